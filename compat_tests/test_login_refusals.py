"""Who cannot say who they are is told the same as by Apache Pulsar, on both ports."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed, RawConnection
from harness.tokens import BASIC, SECRET, TOKENS, data_url, token

from compat_tests.conftest import broker_kind

AUDIENCE = {"aud": "here"}
GOOD = token("admin", **AUDIENCE)
CLIENT = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": f"{TOKENS},{BASIC}",
    "tokenSecretKey": data_url(SECRET),
    "tokenAudienceClaim": "aud",
    "tokenAudience": "here",
    "basicAuthConf": data_url(b"ann:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/"),
    "superUserRoles": "admin",
    "maxFailedLoginsPerAddress": "0",
    # Apache Pulsar's standalone is a client of itself.
    "brokerClientAuthenticationPlugin": CLIENT,
    "brokerClientAuthenticationParameters": f"token:{GOOD}",
}
NOT_SIGNED = jwt.encode({"sub": "admin", **AUDIENCE}, None, algorithm="none")
WRONG = {
    "another key": token("admin", SECRET[::-1], **AUDIENCE),
    "expired": token("admin", exp=-10, **AUDIENCE),
    "not yet": token("admin", nbf=86_400, **AUDIENCE),
    "audience": token("admin", aud="there"),
    "no audience": token("admin"),
    "not signed": NOT_SIGNED,
    "no token": "no token",
    "empty": "",
}


@pytest.fixture(scope="module")
def guarded(module_directory: Path) -> Iterator[Broker]:
    """A broker that lets in who has a token for it."""
    one = Broker(broker_kind(), module_directory, settings=SETTINGS)
    try:
        one.spawn()
        until = time.monotonic() + 180
        while not one.answers() or ask(one, bearer(GOOD))[0] != 200:
            assert time.monotonic() < until, one.output()
            time.sleep(0.2)
        yield one
    finally:
        one.close()


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


REFUSED = (2**64 - 1, 3, "Failed to authenticate")


@pytest.mark.parametrize("name", WRONG)
def test_a_connect_with_a_token_that_does_not_count(guarded: Broker, name: str) -> None:
    assert refusal(guarded, {3: WRONG[name].encode(), 5: "token"}) == REFUSED


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


NAMED = "X-Pulsar-Auth-Method-Name"
REQUESTS: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({}, "Authentication required"),
    **{f"token: {name}": (bearer(each), "Authentication required") for name, each in WRONG.items()},
    "lower case": ({"Authorization": f"bearer {GOOD}"}, "Authentication required"),
    "no scheme": ({"Authorization": GOOD}, "Authentication required"),
    "password": (basic("ann:wrong"), "Authentication required"),
    "user": (basic("nobody:secret"), "Authentication required"),
    "no password": (basic("ann"), "Authentication required"),
    "no base64": ({"Authorization": "Basic ?"}, "Authentication required"),
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
        assert json.loads(ask(guarded, headers)[2])["message"] == "Authentication required"


def test_what_is_good_is_taken(guarded: Broker) -> None:
    for headers in (
        bearer(GOOD),
        bearer(GOOD) | {NAMED: "token"},
        basic("ann:secret"),
        {"Authorization": "bAsIc " + base64.b64encode(b"ann:secret").decode()},
    ):
        assert ask(guarded, headers)[0] == 200
    assert ask(guarded, {}, f"/admin/v2/clusters?token={GOOD}")[0] == 200
    for fields in ({3: GOOD.encode(), 5: "token"}, {3: b"ann:secret", 5: "basic"}):
        with RawConnection(guarded.port, handshake=False) as raw:
            raw.command(wire.CONNECT, {1: "raw", 4: 21} | fields)
            raw.expect(wire.CONNECTED)
