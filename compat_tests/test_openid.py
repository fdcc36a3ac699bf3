"""A broker that takes tokens of an issuer, and the official client that gets them there."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
import trustme
from harness.brokers import Broker
from harness.issuer import AUDIENCE, KEYS, SECRET, Issuer
from harness.tokens import PACKAGE, TOKENS, data_url, rsa_key, token
from harness.tokens import SECRET as STATIC

from compat_tests.conftest import official_client
from compat_tests.test_authentication import asked, round_trip

pytestmark = [pytest.mark.pyxbroker, pytest.mark.slow]
OPENID = PACKAGE + "oidc.AuthenticationProviderOpenID"


class Scene:
    """A broker, the issuer that it asks over TLS, and a door to it without TLS for a client that
    knows no authority of tests.
    """

    def __init__(self, directory: Path) -> None:
        ca = trustme.CA()
        trusted = directory / "authority.pem"
        ca.cert_pem.write_to_path(trusted)
        self.issuer, self.door = Issuer(ca), Issuer(None)
        self.door.claims = {"iss": self.issuer.url}
        self.broker = Broker(
            "pyxbroker",
            directory / "broker",
            settings={
                "authenticationEnabled": "true",
                "authenticationProviders": f"{TOKENS},{OPENID}",
                "authenticationRefreshCheckSeconds": "2",
                "tokenSecretKey": data_url(STATIC),
                "openIDAllowedTokenIssuers": self.issuer.url,
                "openIDAllowedAudiences": AUDIENCE,
                "openIDTokenIssuerTrustCertsFilePath": str(trusted),
                "openIDKeyIdCacheMissRefreshSeconds": "1",
                "openIDHttpReadTimeoutMillis": "2000",
            },
        )
        self.broker.start()

    def close(self) -> None:
        self.broker.close()
        self.issuer.close()
        self.door.close()

    def client(self, authentication: Any) -> pulsar.Client:
        return official_client(
            self.broker.url, authentication=authentication, operation_timeout_seconds=5
        )

    def credentials(self, secret: str = SECRET) -> pulsar.Authentication:
        known = json.dumps({"client_id": "orders", "client_secret": secret}).encode()
        file = "data:application/json;base64," + base64.b64encode(known).decode()
        told = {"issuer_url": self.door.url, "private_key": file, "audience": AUDIENCE}
        return pulsar.AuthenticationOauth2(json.dumps(told))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    one = Scene(tmp_path_factory.mktemp("openid"))
    yield one
    one.close()


def test_a_client_with_a_token_of_the_issuer_publishes_and_consumes(
    scene: Scene, topic: str
) -> None:
    client = scene.client(pulsar.AuthenticationToken(scene.issuer.token("me")))
    round_trip(client, topic)
    client.close()


def test_a_client_with_a_token_of_the_secret_does_so_beside_it(scene: Scene, topic: str) -> None:
    client = scene.client(pulsar.AuthenticationToken(token("me")))
    round_trip(client, topic)
    client.close()


def test_a_client_with_credentials_gets_its_token_and_publishes(scene: Scene, topic: str) -> None:
    client = scene.client(scene.credentials())
    round_trip(client, topic)
    client.close()
    assert "role=orders" in scene.broker.output()


def test_other_clients_are_kept_out(scene: Scene, topic: str) -> None:
    with Issuer(None) as stranger:
        shown = [
            stranger.token(),
            stranger.token(iss=scene.issuer.url, key=rsa_key(3072)),
            scene.issuer.token(aud="elsewhere"),
            scene.issuer.token(exp=-5),
        ]
    for authentication in (*map(pulsar.AuthenticationToken, shown), scene.credentials("wrong")):
        client = scene.client(authentication)
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)
        client.close()


def test_http_takes_them(scene: Scene) -> None:
    for shown, status in ((scene.issuer.token(), 200), (scene.issuer.token(exp=-5), 401)):
        headers = {"Authorization": f"Bearer {shown}"}
        assert asked(scene.broker, "/admin/v2/clusters", **headers)[0] == status


def test_a_client_goes_on_over_a_change_of_keys_and_an_issuer_that_is_away(
    scene: Scene, topic: str
) -> None:
    """Its tokens expire meanwhile, and it brings newer ones of the new key."""
    issuer, given = scene.issuer, []

    def supply() -> str:
        given.append(issuer.token("me", next(iter(issuer.private)), exp=4))
        return given[-1]

    client = scene.client(pulsar.AuthenticationToken(supply))
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    before = issuer.asked[KEYS]
    newer = f"after-{before}"
    issuer.private = {newer: rsa_key(3072)}
    until, sent = time.monotonic() + 9, 0
    while time.monotonic() < until:
        producer.send(b"%d" % sent)
        sent += 1
        time.sleep(0.02)
    assert "closed: " not in scene.broker.output()
    # Where the machine is busy a client may come back by itself, and repeat what it has no receipt
    # for.
    found: dict[bytes, None] = {}
    while len(found) < sent:
        found[consumer.receive(10_000).data()] = None
    assert list(found) == [b"%d" % number for number in range(sent)]
    assert len(given) >= 2 and issuer.asked[KEYS] == before + 1
    # What was read lately is enough while nobody answers.
    issuer.delay_s = 30
    other = scene.client(pulsar.AuthenticationToken(issuer.token("me", newer)))
    round_trip(other, topic + "-other")
    other.close()
    client.close()
    issuer.delay_s = 0


def test_nothing_that_was_shown_is_in_the_log(scene: Scene) -> None:
    assert "eyJ" not in scene.broker.output() and SECRET not in scene.broker.output()
