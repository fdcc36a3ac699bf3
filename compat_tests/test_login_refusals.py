"""Who cannot say who they are is told the same as by Apache Pulsar, on both ports."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed, RawConnection
from harness.tokens import BASIC, CLIENT, SECRET, TOKENS, data_url, ec_key, public, rsa_key, token

from compat_tests.conftest import broker_kind

AUDIENCE = {"aud": "here"}
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": f"{TOKENS},{BASIC}",
    "tokenAudienceClaim": "aud",
    "tokenAudience": "here",
    "basicAuthConf": data_url(b"ann:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/"),
    "superUserRoles": "admin",
    "maxFailedLoginsPerAddress": "0",
    # Apache Pulsar's standalone is a client of itself.
    "brokerClientAuthenticationPlugin": CLIENT,
}


class Keys(NamedTuple):
    """What tokens are signed with, and how the broker is told of it."""

    settings: Callable[[], dict[str, str]]
    sign: Callable[..., str]
    wrong: Callable[[], dict[str, str]]  # tokens that are wrong for such a broker alone


def by_secret(role: Any = "admin", **claims: Any) -> str:
    return token(role, **claims)


def by_private_key(role: Any = "admin", **claims: Any) -> str:
    return token(role, rsa_key(), "RS256", **claims)


def forged(secret: bytes) -> str:
    """Signed with HS256 and a secret that is none: PyJWT makes no token with a public key."""
    header, claims = {"alg": "HS256", "typ": "JWT"}, {"sub": "admin", **AUDIENCE}
    text = b".".join(as_base64url(json.dumps(each).encode()) for each in (header, claims))
    signature = as_base64url(hmac.new(secret, text, hashlib.sha256).digest())
    return (text + b"." + signature).decode()


def as_base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def claiming(good: str, **claims: Any) -> str:
    """A good token with other claims and the signature that it had."""
    header, _, signature = good.split(".")
    changed = as_base64url(json.dumps({"sub": "admin", **AUDIENCE, **claims}).encode()).decode()
    return f"{header}.{changed}.{signature}"


KEYS = {
    "secret": Keys(
        lambda: {"tokenSecretKey": data_url(SECRET)},
        by_secret,
        lambda: {
            "another key": token("admin", SECRET[::-1], **AUDIENCE),
            "a private key": by_private_key(**AUDIENCE),
        },
    ),
    "public key": Keys(
        lambda: {"tokenPublicKey": data_url(public(rsa_key()))},
        by_private_key,
        lambda: {
            "another key": token("admin", rsa_key(3072), "RS256", **AUDIENCE),
            "another kind of key": token("admin", ec_key(), "ES256", **AUDIENCE),
            "a secret": by_secret(**AUDIENCE),
            "the public key as a secret": forged(public(rsa_key())),
            "the public key's text as a secret": forged(public(rsa_key(), Encoding.PEM)),
        },
    ),
}
NOT_SIGNED = jwt.encode({"sub": "admin", **AUDIENCE}, None, algorithm="none")


@functools.cache
def wrong_ones(kind: str) -> dict[str, str]:
    """Tokens that do not count for a broker with a kind of key."""
    sign = KEYS[kind].sign
    good = sign(**AUDIENCE)
    return KEYS[kind].wrong() | {
        "expired": sign(exp=-10, **AUDIENCE),
        "not yet": sign(nbf=86_400, **AUDIENCE),
        "audience": sign(aud="there"),
        "audiences": sign(aud=["there", "elsewhere"]),
        "no audience": sign(),
        "not signed": NOT_SIGNED,
        "without its signature": good.rpartition(".")[0] + ".",
        "without its last part": good.rpartition(".")[0],
        "changed": claiming(good, sub="root"),
        "blank before": " " + good,
        "blank within": good.replace(".", ". ", 1),
        "no token": "no token",
        "empty": "",
    }


GOOD = by_secret(**AUDIENCE)
WRONG = wrong_ones("secret")


def running(kind: str, directory: Path) -> Iterator[Broker]:
    """A broker that lets in who has a token of a kind of key for it."""
    good = KEYS[kind].sign(**AUDIENCE)
    settings = SETTINGS | {"brokerClientAuthenticationParameters": f"token:{good}"}
    one = Broker(broker_kind(), directory, settings=settings | KEYS[kind].settings())
    try:
        one.spawn()
        until = time.monotonic() + 180
        while not one.answers() or ask(one, bearer(good))[0] != 200:
            assert time.monotonic() < until, one.output()
            time.sleep(0.2)
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def guarded(module_directory: Path) -> Iterator[Broker]:
    """A broker with a secret."""
    yield from running("secret", module_directory / "secret")


@pytest.fixture(scope="module")
def guarded_by_pair(module_directory: Path) -> Iterator[Broker]:
    """A broker with a public key."""
    yield from running("public key", module_directory / "public")


def bearer(shown: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {shown}"}


def basic(shown: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(shown.encode()).decode()}


def ask(
    broker: Broker, headers: dict[str, str], path: str = "/admin/v2/clusters"
) -> tuple[int, str, str]:
    """Status, media type and body of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", broker.web_port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.getheader("WWW-Authenticate") is None
        kind = (answer.getheader("Content-Type") or "").partition(";")[0]
        return answer.status, kind, answer.read().decode()
    except OSError:
        return 0, "", ""
    finally:
        connection.close()


def refusal(broker: Broker, fields: dict[int, Any]) -> tuple[int, int, str]:
    """Request id, code and words of the answer to a CONNECT; the connection is closed then."""
    with RawConnection(broker.port, handshake=False) as raw:
        raw.command(wire.CONNECT, {1: "raw", 4: 21} | fields)
        answer = raw.expect(wire.ERROR)
        with pytest.raises(ConnectionClosed):
            raw.receive(10)
    return answer.fields[1][0], answer.fields[2][0], answer.data(3).decode()


def is_let_in(broker: Broker, shown: str) -> bool:
    with RawConnection(broker.port, handshake=False) as raw:
        raw.command(wire.CONNECT, {1: "raw", 4: 21, 3: shown.encode(), 5: "token"})
        return raw.receive().type == wire.CONNECTED


REFUSED = (2**64 - 1, 3, "Failed to authenticate")


@pytest.mark.parametrize("name", WRONG)
def test_a_connect_with_a_token_that_does_not_count(guarded: Broker, name: str) -> None:
    assert refusal(guarded, {3: WRONG[name].encode(), 5: "token"}) == REFUSED


@pytest.mark.parametrize("name", wrong_ones("public key"))
def test_a_token_that_does_not_count_by_a_public_key(guarded_by_pair: Broker, name: str) -> None:
    shown = wrong_ones("public key")[name]
    assert refusal(guarded_by_pair, {3: shown.encode(), 5: "token"}) == REFUSED
    headers = bearer(shown) | {"Accept": "application/json"}
    status, kind, body = ask(guarded_by_pair, headers)
    assert (status, kind) == (401, "application/json")
    assert json.loads(body)["message"] == REQUIRED


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("RS256", by_private_key(**AUDIENCE)),
        ("RS512", token("admin", rsa_key(), "RS512", **AUDIENCE)),
        ("PS256", token("admin", rsa_key(), "PS256", **AUDIENCE)),
        ("one audience of several", by_private_key(aud=["there", "here"])),
        ("issued tomorrow", by_private_key(iat=2**32, **AUDIENCE)),
        ("no role", by_private_key(None, **AUDIENCE)),
    ],
)
def test_a_token_that_counts_by_a_public_key(
    guarded_by_pair: Broker, name: str, shown: str
) -> None:
    assert is_let_in(guarded_by_pair, shown), name
    assert ask(guarded_by_pair, bearer(shown))[0] == 200, name


class Oversized(NamedTuple):
    """What becomes of a good token of a size: whether it is let in by the protocol, and what a
    request has for its answer with it in its head and in its query.
    """

    size: int
    is_let_in: bool
    head: int
    query: int


OVERSIZED = {
    "pyxbroker": (
        Oversized(7 << 10, True, 200, 200),
        Oversized(15 << 10, True, 200, 414),
        Oversized(17 << 10, False, 431, 414),
        Oversized(1 << 20, False, 431, 414),
    ),
    "apache": (
        Oversized(7 << 10, True, 200, 200),
        Oversized(15 << 10, True, 431, 414),
        Oversized(17 << 10, True, 431, 414),
        Oversized(1 << 20, True, 431, 414),
    ),
}


def test_oversized_tokens(guarded: Broker) -> None:
    """Apache Pulsar looks at each that the protocol brings; its requests have half of our room."""
    for expected in OVERSIZED[guarded.kind]:
        shown = by_secret(padding="a" * (expected.size * 3 // 4), **AUDIENCE)
        assert len(shown) >= expected.size
        found = Oversized(
            expected.size,
            is_let_in(guarded, shown),
            ask(guarded, bearer(shown))[0],
            ask(guarded, {}, f"/admin/v2/clusters?token={shown}")[0],
        )
        assert found == expected


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {3: GOOD.encode()},
        {5: "token"},
        {3: GOOD.encode(), 5: "athenz"},
        {3: GOOD.encode(), 5: "TOKEN"},
        {3: GOOD.encode(), 5: "none"},
        {3: GOOD.encode(), 5: "basic"},
        {3: b"ann:wrong", 5: "basic"},
        {3: b"nobody:secret", 5: "basic"},
        {3: b"ann", 5: "basic"},
        {3: b"", 5: "basic"},
    ],
    ids=str,
)
def test_a_connect_that_names_no_method_or_a_wrong_one(
    guarded: Broker, fields: dict[int, Any]
) -> None:
    assert refusal(guarded, fields) == REFUSED


REQUIRED = "Authentication required"
NAMED = "X-Pulsar-Auth-Method-Name"
REQUESTS: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({}, REQUIRED),
    **{f"token: {name}": (bearer(each), "Authentication required") for name, each in WRONG.items()},
    "lower case": ({"Authorization": f"bearer {GOOD}"}, REQUIRED),
    "no scheme": ({"Authorization": GOOD}, REQUIRED),
    "password": (basic("ann:wrong"), REQUIRED),
    "user": (basic("nobody:secret"), REQUIRED),
    "no password": (basic("ann"), REQUIRED),
    "no base64": ({"Authorization": "Basic ?"}, REQUIRED),
    # Who names a method is told more.
    "unknown method": (
        bearer(GOOD) | {NAMED: "athenz"},
        "Unsupported authentication method: [athenz].",
    ),
    "method in capitals": (
        bearer(GOOD) | {NAMED: "TOKEN"},
        "Unsupported authentication method: [TOKEN].",
    ),
    "another method": (
        bearer(GOOD) | {NAMED: "basic"},
        "Authentication token has to be started with &quot;Basic &quot;",
    ),
    "named, blank": (bearer("") | {NAMED: "token"}, "Invalid HTTP Authorization header"),
    "named, nothing": ({NAMED: "token"}, "Invalid HTTP Authorization header"),
    "named, password": (
        basic("ann:wrong") | {NAMED: "basic"},
        "Unknown user or invalid password",
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_refused_with_the_web_servers_words(guarded: Broker, name: str) -> None:
    headers, said = REQUESTS[name]
    status, kind, body = ask(guarded, headers | {"Accept": "application/json"})
    assert (status, kind) == (401, "application/json")
    told = json.loads(body)
    assert (told["status"], told["url"]) == ("401", "/admin/v2/clusters")
    assert told["message"] == said
    status, kind, body = ask(guarded, headers)
    assert (status, kind) == (401, "text/html")
    assert f"<title>Error 401 {said}</title>" in body
    assert f"<h2>HTTP ERROR 401 {said}</h2>" in body
    assert "<tr><th>URI:</th><td>/admin/v2/clusters</td></tr>" in body


@pytest.mark.pyxbroker
def test_what_is_wrong_with_a_token_is_for_the_log_alone(guarded: Broker) -> None:
    """Apache Pulsar tells who names the method what Java says of it, and the time of its clock."""
    for name in ("expired", "another key", "audience", "not yet"):
        headers = bearer(WRONG[name]) | {NAMED: "token", "Accept": "application/json"}
        assert json.loads(ask(guarded, headers)[2])["message"] == REQUIRED


def test_what_is_good_is_taken(guarded: Broker) -> None:
    for headers in (
        bearer(GOOD),
        bearer(GOOD) | {NAMED: "token"},
        # Blanks at its end are no part of a header.
        bearer(GOOD + " \t"),
        basic("ann:secret"),
        {"Authorization": "bAsIc " + base64.b64encode(b"ann:secret").decode()},
    ):
        assert ask(guarded, headers)[0] == 200
    assert ask(guarded, {}, f"/admin/v2/clusters?token={GOOD}")[0] == 200
    for fields in ({3: GOOD.encode(), 5: "token"}, {3: b"ann:secret", 5: "basic"}):
        with RawConnection(guarded.port, handshake=False) as raw:
            raw.command(wire.CONNECT, {1: "raw", 4: 21} | fields)
            raw.expect(wire.CONNECTED)
