"""A broker on which roles may do what they were granted, and the official clients."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.tokens import SECRET, TOKENS, data_url, token

from compat_tests.conftest import official_client

pytestmark = pytest.mark.pyxbroker
BROKER_SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": TOKENS,
    "tokenSecretKey": data_url(SECRET),
    "authorizationEnabled": "true",
    "superUserRoles": "root",
}
SEEN_WITHIN_S = 1.0
NAMESPACE = "/admin/v2/namespaces/public/default"


def asked(broker: Broker, role: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
    login = {"Authorization": f"Bearer {token(role)}"}
    status, _, data = broker.exchange(method, path, body, login)
    if method != "GET" and len(broker.web_urls()) > 1:
        time.sleep(SEEN_WITHIN_S)  # by the others
    return status, data.decode()


def client_of(broker: Broker, role: str) -> pulsar.Client:
    return official_client(
        broker.url,
        authentication=pulsar.AuthenticationToken(token(role)),
        operation_timeout_seconds=5,
    )


def test_a_role_does_what_it_was_granted_and_no_more(broker: Broker, topic: str) -> None:
    writer, reader = client_of(broker, "writer"), client_of(broker, "reader")
    for client in (writer, reader):
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)
    local_name = topic.rpartition("/")[2]
    path = f"/admin/v2/persistent/public/default/{local_name}"
    assert asked(broker, "root", "PUT", path)[0] == 204
    assert asked(broker, "writer", "POST", f"{path}/permissions/writer", ["produce"])[0] == 401
    assert asked(broker, "root", "POST", f"{path}/permissions/writer", ["produce"])[0] == 204
    assert asked(broker, "root", "POST", f"{NAMESPACE}/permissions/reader", ["consume"])[0] == 204

    consumer = reader.subscribe(topic, "s")
    writer.create_producer(topic).send(b"hello")
    assert consumer.receive(10_000).data() == b"hello"
    with pytest.raises(pulsar.AuthorizationError):
        writer.subscribe(topic, "s2")
    with pytest.raises(pulsar.AuthorizationError):
        reader.create_producer(topic)
    status, stats = asked(broker, "reader", "GET", f"{path}/stats")
    assert status == 200 and list(json.loads(stats)["subscriptions"]) == ["s"]
    status, told = asked(broker, "writer", "GET", NAMESPACE)
    assert status == 403
    assert json.loads(told)["reason"] == (
        "Unauthorized to validateNamespacePolicyOperation for operation [READ] on namespace"
        " [public/default] on policy [ALL]"
    )

    assert asked(broker, "root", "DELETE", f"{path}/permissions/writer")[0] == 204
    with pytest.raises(pulsar.PulsarException):
        writer.create_producer(topic)
    writer.close()
    reader.close()


def test_who_loses_the_right_to_what_is_open_is_closed_and_told(broker: Broker, topic: str) -> None:
    """Apache Pulsar leaves such producers and consumers open."""
    path = f"/admin/v2/persistent/public/default/{topic.rpartition('/')[2]}"
    assert asked(broker, "root", "PUT", path)[0] == 204
    for role in ("losing", "keeping"):
        grant = f"{path}/permissions/{role}"
        assert asked(broker, "root", "POST", grant, ["produce", "consume"])[0] == 204
    losing, keeping = client_of(broker, "losing"), client_of(broker, "keeping")
    lost = losing.create_producer(topic, send_timeout_millis=3_000)
    kept = keeping.create_producer(topic)
    consumer, other = losing.subscribe(topic, "s"), keeping.subscribe(topic, "s2")
    lost.send(b"before")
    assert other.receive(10_000).data() == consumer.receive(10_000).data() == b"before"
    assert asked(broker, "root", "DELETE", f"{path}/permissions/losing")[0] == 204
    deadline = time.monotonic() + 10
    with pytest.raises(pulsar.PulsarException):
        while time.monotonic() < deadline:
            lost.send(b"after")
    kept.send(b"still")
    got = b""
    while got != b"still":
        got = other.receive(10_000).data()
    with pytest.raises(pulsar.Timeout):
        while consumer.receive(2_000).data() != b"still":
            pass
    stats = json.loads(asked(broker, "root", "GET", f"{path}/stats")[1])
    assert len(stats["publishers"]) == 1
    assert stats["subscriptions"]["s"]["consumers"] == []
    losing.close()
    keeping.close()


def test_an_administrator_of_a_tenant_has_it_and_nothing_beside(broker: Broker) -> None:
    tenant = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    assert asked(broker, "boss", "PUT", "/admin/v2/tenants/mine", tenant)[0] == 401
    assert asked(broker, "root", "PUT", "/admin/v2/tenants/mine", tenant)[0] == 204
    assert asked(broker, "boss", "PUT", "/admin/v2/namespaces/mine/n", {})[0] == 204
    assert asked(broker, "boss", "PUT", "/admin/v2/namespaces/public/n", {})[0] == 401
    client = client_of(broker, "boss")
    client.create_producer("persistent://mine/n/t").send(b"x")
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/default/t")
    client.close()


def test_a_pattern_needs_the_namespace(broker: Broker, topic: str) -> None:
    listing = client_of(broker, "listing")
    with pytest.raises(pulsar.PulsarException):
        listing.subscribe(topic_of_pattern(), "s")
    path = f"{NAMESPACE}/permissions/listing"
    assert asked(broker, "root", "POST", path, ["consume"])[0] == 204
    listing.subscribe(topic_of_pattern(), "s")
    listing.close()


def topic_of_pattern() -> Any:
    return re.compile("persistent://public/default/compat-.*")
