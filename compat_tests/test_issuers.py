"""Tokens of an issuer: which count, beside Apache Pulsar's own provider, by both protocols."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pulsar
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding
from harness import apache_oidc, wire
from harness.brokers import Broker
from harness.go_client import Client as GoClient
from harness.issuer import AUDIENCE, DISCOVERY, KEYS, Issuer, public_jwk
from harness.issuer import SECRET as ISSUERS_SECRET
from harness.java_client import Java, JavaError
from harness.raw import RawConnection
from harness.tokens import CLIENT, PACKAGE, SECRET, TOKENS, data_url, ec_key, public, rsa_key, token

from compat_tests.conftest import broker_kind, official_client
from compat_tests.test_login_refusals import forged

OPENID = PACKAGE + "oidc.AuthenticationProviderOpenID"
OAUTH2 = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"
REFUSALS = (pulsar.PulsarException, JavaError)
LET_IN = "let in", 200
REFUSED = (3, "Failed to authenticate"), 401
TIMEOUT_MS = 2000
KIDS_KNOWN_S = 2


class Scene:
    """A broker that takes tokens of an issuer that answers as it should, and of some others."""

    def __init__(self, directory: Path) -> None:
        ca = trustme.CA()
        trusted = directory / "authority.pem"
        ca.cert_pem.write_to_path(trusted)
        self.issuer, self.stranger = Issuer(ca), Issuer(ca)
        self.others = {
            "silent": Issuer(ca),
            "gone": Issuer(ca),
            "of another authority": Issuer(trustme.CA()),
            "of another host": Issuer(ca, host="example.org"),
            "without TLS": Issuer(None),
            "by another name": Issuer(ca),
            "broken": Issuer(ca),
            "answering with an error's status": Issuer(ca),
            "talking nonsense": Issuer(ca),
            "without keys": Issuer(ca),
        }
        # To clients, which know no authority of tests.
        self.door = Issuer(None)
        self.door.claims = {"iss": self.issuer.url, "nbf": 0}
        for each in (self.issuer, self.stranger, *self.others.values()):
            each.private |= {"pss": rsa_key(), "any": rsa_key()}
            publish(each)
        self.others["silent"].delay_s = 30
        self.others["gone"].close()
        self.others["by another name"].discovery = {"issuer": self.issuer.url}
        self.others["broken"].status = self.others["answering with an error's status"].status = 500
        self.others["broken"].bodies[DISCOVERY] = b'{"error":"out of order"}'
        self.others["talking nonsense"].bodies[DISCOVERY] = b"<html></html>"
        self.others["without keys"].published = []
        good = token("root")
        is_apache = broker_kind() == "apache"
        self.broker = Broker(
            broker_kind(),
            directory / "broker",
            environment=apache_oidc.environment(directory / "jars") if is_apache else {},
            settings={
                "authenticationEnabled": "true",
                "authenticationProviders": f"{TOKENS},{OPENID}",
                "tokenSecretKey": data_url(SECRET),
                "openIDAllowedTokenIssuers": ",".join(
                    each.url.replace("http:", "https:")
                    for each in (self.issuer, *self.others.values())
                ),
                "openIDAllowedAudiences": f"{AUDIENCE},urn:other",
                "openIDTokenIssuerTrustCertsFilePath": str(trusted),
                "openIDKeyIdCacheMissRefreshSeconds": str(KIDS_KNOWN_S),
                "openIDHttpConnectionTimeoutMillis": str(TIMEOUT_MS),
                "openIDHttpReadTimeoutMillis": str(TIMEOUT_MS),
                "maxFailedLoginsPerAddress": "0",
                "superUserRoles": "root",
                # Apache Pulsar's standalone is a client of itself.
                "brokerClientAuthenticationPlugin": CLIENT,
                "brokerClientAuthenticationParameters": f"token:{good}",
            },
        )
        self.broker.spawn()
        until = time.monotonic() + 180
        while not self.broker.answers() or self.told(good) != LET_IN:
            assert time.monotonic() < until, self.broker.output()
            time.sleep(0.2)

    def close(self) -> None:
        self.broker.close()
        for name, each in self.others.items():
            if name != "gone":
                each.close()
        for each in (self.issuer, self.stranger, self.door):
            each.close()

    def told(self, shown: str) -> tuple[Any, int]:
        """What becomes of a CONNECT and of a request with a token."""
        with RawConnection(self.broker.port, handshake=False, timeout_s=30) as raw:
            raw.command(wire.CONNECT, {1: "raw", 4: 21, 3: shown.encode(), 5: "token"})
            answer = raw.receive()
        let_in = answer.type == wire.CONNECTED
        by_protocol = LET_IN[0] if let_in else (answer.number(2), answer.data(3).decode())
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.web_port, timeout=30)
        try:
            headers = {"Authorization": f"Bearer {shown}"}
            connection.request("GET", "/admin/v2/clusters", headers=headers)
            return by_protocol, connection.getresponse().status
        finally:
            connection.close()


ALGORITHMS = {"k1": "RS256", "k2": "ES256", "pss": "PS256"}


def publish(issuer: Issuer) -> None:
    """Each key says what it is for, but for one."""
    issuer.published = [
        public_jwk(key, kid, **({"alg": ALGORITHMS[kid]} if kid in ALGORITHMS else {}))
        for kid, key in issuer.private.items()
    ]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    one = Scene(tmp_path_factory.mktemp("issuers"))
    yield one
    one.close()


class Row(NamedTuple):
    """A token, and what becomes of it; where Apache Pulsar does something else, that."""

    token: Callable[[Scene], str]
    told: tuple[Any, int] = REFUSED
    told_by_apache: tuple[Any, int] | None = None


def of(issuer: str = "issuer", **claims: Any) -> Callable[[Scene], str]:
    """A token of an issuer that is good but for some claims."""
    return lambda scene: getattr(scene, issuer).token(**{"nbf": 0, **claims})


GOOD = of()
ROWS = {
    "good": Row(GOOD, LET_IN),
    "one audience of several": Row(of(aud=["urn:x", AUDIENCE]), LET_IN),
    "the other audience": Row(of(aud="urn:other"), LET_IN),
    "of the secret": Row(lambda _: token("me"), LET_IN),
    "another issuer": Row(of("stranger")),
    "another issuer's key": Row(of(key=rsa_key(3072))),
    "another issuer's name": Row(lambda scene: of(iss=scene.stranger.url)(scene)),
    "issuer with a slash": Row(lambda scene: of(iss=scene.issuer.url + "/")(scene)),
    "no issuer": Row(of(iss=None)),
    "another audience": Row(of(aud="urn:elsewhere")),
    "no audience": Row(of(aud=None)),
    "expired": Row(of(exp=-10)),
    "not yet": Row(of(nbf=3600)),
    "issued tomorrow": Row(of(iat=86_400)),
    "PS256": Row(of(kid="pss", algorithm="PS256"), LET_IN, told_by_apache=REFUSED),
    "a key that does not say for what": Row(of(kid="any"), LET_IN),
    "no beginning": Row(of(nbf=None), LET_IN, told_by_apache=REFUSED),
    "no expiry": Row(of(exp=None)),
    "no time of issue": Row(of(iat=None)),
    "no subject": Row(of(role=None)),
    "unknown key": Row(of(kid="k9", key=rsa_key())),
    "no key's name": Row(of(kid=None)),
    "not signed": Row(
        lambda scene: jwt.encode(
            jwt.decode(GOOD(scene), options={"verify_signature": False}),
            None,
            algorithm="none",
            headers={"kid": "k1"},
        )
    ),
    "the public key as a secret": Row(lambda _: forged(public(rsa_key()))),
    "the public key's text as a secret": Row(lambda _: forged(public(rsa_key(), Encoding.PEM))),
    "another algorithm than the key's": Row(of(algorithm="RS512")),
    "no token": Row(lambda _: "no token"),
}


@pytest.mark.parametrize("name", ROWS)
def test_which_tokens_count(scene: Scene, name: str) -> None:
    row = ROWS[name]
    expected = row.told
    if broker_kind() == "apache" and row.told_by_apache is not None:
        expected = row.told_by_apache
    assert scene.told(row.token(scene)) == expected


OTHERS = (
    *("silent", "gone", "of another authority", "of another host", "without TLS"),
    *("by another name", "broken", "answering with an error's status"),
    *("talking nonsense", "without keys"),
)


@pytest.mark.parametrize("name", OTHERS)
def test_an_issuer_that_cannot_be_asked_costs_its_own_tokens_and_the_timeouts(
    scene: Scene, name: str
) -> None:
    issuer = scene.others[name]
    shown = issuer.token(nbf=0, iss=issuer.url.replace("http:", "https:"))
    started = time.monotonic()
    # Apache Pulsar's provider does not look at the status of an answer.
    is_let_in = name == "answering with an error's status" and broker_kind() == "apache"
    assert scene.told(shown) == (LET_IN if is_let_in else REFUSED)
    assert time.monotonic() - started < 2 * 2 * TIMEOUT_MS / 1000 + 5
    assert scene.told(GOOD(scene)) == LET_IN


def test_a_new_key_counts_once_the_issuer_is_asked_again(scene: Scene) -> None:
    issuer = scene.issuer
    assert scene.told(GOOD(scene)) == LET_IN
    issuer.private["k2"] = ec_key()
    publish(issuer)
    shown = of(kid="k2", algorithm="ES256")(scene)
    until = time.monotonic() + 4 * KIDS_KNOWN_S + 20
    while scene.told(shown) != LET_IN:
        assert time.monotonic() < until
        time.sleep(KIDS_KNOWN_S + 0.5)
    assert issuer.asked[KEYS] >= 2


def credentials(secret: str) -> str:
    """What a client shows to the issuer, as each of them reads it."""
    known = {"type": "sn_service_account", "client_id": "orders", "client_secret": secret}
    return "data:application/json;base64," + base64.b64encode(json.dumps(known).encode()).decode()


@pytest.fixture(params=["python", "go", "java"])
def connect(request: pytest.FixtureRequest, scene: Scene) -> Callable[..., Any]:
    """Makes a client of the kind that gets its tokens at the issuer by a secret."""
    kind = request.param
    names = ("issuer_url", "private_key") if kind == "python" else ("issuerUrl", "privateKey")

    def make(secret: str, timeout_s: int) -> Any:
        told = dict(zip(names, (scene.door.url, credentials(secret)), strict=True))
        told |= {"type": "client_credentials", "audience": AUDIENCE}
        if kind == "java":
            java: Java = request.getfixturevalue("java")
            return java.client(
                scene.broker.url,
                authPluginClassName=OAUTH2,
                authParams=json.dumps(told),
                operationTimeoutMs=timeout_s * 1000,
                lookupTimeoutMs=timeout_s * 1000,
            )
        if kind == "go":
            return GoClient(
                scene.broker.url,
                auth_plugin="oauth2",
                auth_params=json.dumps(told | {"clientId": "orders"}),
                operation_timeout_seconds=timeout_s,
            )
        return official_client(
            scene.broker.url,
            authentication=pulsar.AuthenticationOauth2(json.dumps(told)),
            operation_timeout_seconds=timeout_s,
        )

    return make


def test_a_client_gets_its_tokens_at_the_issuer(
    connect: Callable[..., Any], scene: Scene, topic: str
) -> None:
    with contextlib.closing(connect(ISSUERS_SECRET, 20)) as client:
        consumer = client.subscribe(topic, "s")
        client.create_producer(topic).send(b"hello")
        message = consumer.receive(10_000)
        assert (message.data() if callable(message.data) else message.data) == b"hello"


def test_a_client_that_the_issuer_does_not_know_stays_out(
    connect: Callable[..., Any], topic: str
) -> None:
    with pytest.raises(REFUSALS), contextlib.closing(connect("wrong", 2)) as client:
        client.create_producer(topic)
