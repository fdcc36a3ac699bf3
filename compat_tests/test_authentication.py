"""A broker that asks who clients are, and the official clients that tell it."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import bcrypt
import pulsar
import pytest
from harness.brokers import Broker, BrokerFailed
from harness.tokens import BASIC, SECRET, TOKENS, data_url, token

from compat_tests.conftest import official_client

pytestmark = pytest.mark.pyxbroker
PACKAGE = "org.apache.pulsar.broker.authentication."
COST = bcrypt.gensalt(8)
BROKER_SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": f"{TOKENS},{BASIC}",
    "authenticateMetricsEndpoint": "true",
    "authenticationRefreshCheckSeconds": "1",
    "tokenSecretKey": data_url(SECRET),
    # `openssl passwd -apr1 -salt abcdefgh secret`, and bcrypt of the word.
    "basicAuthConf": data_url(
        b"ann:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\nben:" + bcrypt.hashpw(b"secret", COST)
    ),
}
WRONG_KEY = SECRET[::-1]


def log_in(broker: Broker, authentication: Any = None, **options: Any) -> pulsar.Client:
    return official_client(broker.url, authentication=authentication, **options)


def of_token(*shown: Any) -> pulsar.Authentication:
    return pulsar.AuthenticationToken(*shown)


def round_trip(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"hello")
    message = consumer.receive(10_000)
    assert message.data() == b"hello"
    consumer.acknowledge(message)
    consumer.close()
    producer.close()


def asked(broker: Broker, path: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(broker.web_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_client_with_a_good_token_publishes_and_consumes(broker: Broker, topic: str) -> None:
    client = log_in(broker, of_token(token("me")))
    round_trip(client, topic)
    client.close()


@pytest.mark.parametrize("user", ["ann", "ben"])
def test_a_client_with_a_good_password_publishes_and_consumes(
    broker: Broker, topic: str, user: str
) -> None:
    client = log_in(broker, pulsar.AuthenticationBasic(user, "secret"))
    round_trip(client, topic)
    client.close()


@pytest.mark.parametrize(
    "authentication",
    [
        None,
        of_token(token("me", WRONG_KEY)),
        of_token(token("me", exp=-10)),
        of_token("no token"),
        pulsar.AuthenticationBasic("ann", "Secret"),
        pulsar.AuthenticationBasic("nobody", "secret"),
        pulsar.AuthenticationBasic("ann", "secret", "other"),
    ],
    ids=["nothing", "another key", "expired", "no token", "password", "user", "method"],
)
def test_other_clients_are_kept_out(broker: Broker, topic: str, authentication: Any) -> None:
    client = log_in(broker, authentication, operation_timeout_seconds=3)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()


def test_http(broker: Broker) -> None:
    clusters = "/admin/v2/clusters"
    good = {"Authorization": f"Bearer {token('me')}"}
    assert json.loads(asked(broker, clusters, **good)[1]) == ["standalone"]
    assert asked(broker, f"{clusters}?token={token('me')}")[0] == 200
    user = {"Authorization": "Basic " + base64.b64encode(b"ben:secret").decode()}
    assert asked(broker, clusters, **user)[0] == 200
    named = {"X-Pulsar-Auth-Method-Name": "token"}
    assert asked(broker, clusters, **user, **named)[0] == 401
    guess = {"Authorization": "Basic " + base64.b64encode(b"ben:Secret").decode()}
    assert asked(broker, clusters, **guess)[0] == 401
    for path in (clusters, "/metrics", "/openapi.json", "/lookup/v2/topic/persistent/a/b/c"):
        assert asked(broker, path)[0] == 401
        wrong = {"Authorization": f"Bearer {token('me', WRONG_KEY)}"}
        assert asked(broker, path, **wrong)[0] == 401
    assert asked(broker, "/metrics", **good)[0] == 200
    assert (
        "tokenSecretKey"
        not in asked(broker, "/admin/v2/brokers/configuration/runtime", **good)[1].decode()
    )


def test_a_client_that_has_newer_tokens_goes_on_when_one_expires(
    broker: Broker, topic: str
) -> None:
    """While it publishes: nothing is lost, and its connection stays."""
    given: list[str] = []

    def supply() -> str:
        given.append(token("me", exp=2 if not given else 60))
        return given[-1]

    client = log_in(broker, of_token(supply))
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    until, sent = time.monotonic() + 6, 0
    while time.monotonic() < until:
        producer.send(b"%d" % sent)
        sent += 1
        time.sleep(0.02)
    assert [consumer.receive(10_000).data() for _ in range(sent)] == [
        b"%d" % number for number in range(sent)
    ]
    assert len(given) >= 2
    assert "closed: its credentials have expired" not in broker.output()
    client.close()


def test_a_client_whose_token_expires_for_good_is_cut_off(broker: Broker, topic: str) -> None:
    client = log_in(broker, of_token(token("me", exp=2)), operation_timeout_seconds=3)
    producer = client.create_producer(topic, send_timeout_millis=3000)
    producer.send(b"in time")
    time.sleep(4)
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    client.close()


def test_a_provider_that_is_not_there_keeps_the_broker_from_starting(tmp_path: Path) -> None:
    name = PACKAGE + "AuthenticationProviderSasl"
    one = Broker(
        "pyxbroker", tmp_path, settings={**BROKER_SETTINGS, "authenticationProviders": name}
    )
    with pytest.raises(BrokerFailed, match=f"authenticationProviders has '{name}'"):
        one.start()


def test_nothing_that_was_shown_is_in_the_log(broker: Broker) -> None:
    assert "eyJ" not in broker.output()
    assert data_url(SECRET) not in broker.output()
