"""Who fails to log in again and again is refused for a while; others are not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jwt
import pytest
from harness.tokens import PACKAGE, SECRET, TOKENS, settings, token

from fake_service import FakeService
from one_broker import Broker, Client
from pyxbroker.admin.app import Application
from pyxbroker.admin.request import Body, Request
from pyxbroker.admin.response import Response
from pyxbroker.auth import failed_logins
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.failed_logins import FailedLogins
from pyxbroker.auth.provider import NotChecked
from pyxbroker.base.crowd import network_of
from pyxbroker.base.errors import AuthenticationError, TooManyRequests
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.settings.config import Config
from test_logins import REFRESHES, answer, connect, expire, keep_out, let_in, serve

BAD = token("me", SECRET[::-1])
WRONG = AuthenticationError("as shown")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def logins(clock: Clock, most: int = 3) -> FailedLogins:
    config = Config(maxFailedLoginsPerAddress=most, failedLoginsPeriodSeconds=60)
    return FailedLogins(config, clock)


def is_refused(found: FailedLogins, address: str = "10.0.0.1", shown: bytes = b"x") -> bool:
    try:
        found.check(address, "token", shown)
    except TooManyRequests:
        return True
    return False


@pytest.mark.parametrize("error", [NotChecked("not now"), TooManyRequests("too many")])
def test_what_nobody_has_looked_at_is_no_guess(error: Exception) -> None:
    found = logins(Clock())
    found.succeeded("token", b"right")
    for _ in range(10):
        found.failed("10.0.0.1", "token", b"x", error)
        found.failed("10.0.0.1", "token", b"right", error)
    assert not is_refused(found)
    for _ in range(3):
        found.failed("10.0.0.1", "token", b"x", WRONG)
    assert is_refused(found) and not is_refused(found, shown=b"right")


def test_an_address_is_refused_for_a_period_after_so_many_failures() -> None:
    clock = Clock()
    found = logins(clock)
    for number in range(3):
        assert not is_refused(found)
        found.failed("10.0.0.1", "token", b"%d" % number, WRONG)
    assert is_refused(found)
    assert not is_refused(found, "10.0.0.2")
    clock.now += 59
    assert is_refused(found)
    with pytest.raises(TooManyRequests, match="try again in 1 s"):
        found.check("10.0.0.1", "token", b"x")
    clock.now += 1
    assert not is_refused(found)
    found.failed("10.0.0.1", "token", b"x", WRONG)
    assert not is_refused(found)


def test_failures_that_are_far_between_are_forgotten() -> None:
    clock = Clock()
    found = logins(clock)
    for _ in range(20):
        found.failed("10.0.0.1", "token", b"x", WRONG)
        clock.now += 31
        assert not is_refused(found)


def test_what_was_right_lately_is_looked_at_whoever_else_fails_there() -> None:
    found = logins(Clock())
    found.succeeded("token", b"right")
    for _ in range(3):
        found.failed("10.0.0.1", "token", b"x", WRONG)
    assert is_refused(found)
    assert not is_refused(found, shown=b"right")
    found.failed("10.0.0.1", "token", b"right", WRONG)  # it has expired
    assert is_refused(found, shown=b"right")


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    found = logins(Clock())
    for number in range(3):
        found.failed(f"2001:db8::{number}", "token", b"x", WRONG)
    assert is_refused(found, "2001:db8::ffff:1")
    assert not is_refused(found, "2001:db8:0:1::1")
    assert network_of("::ffff:10.1.2.3") == network_of("10.1.2.3") == "10.1.2.3"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("peer") == "peer"


def test_memory_is_bounded_whoever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_logins, "ADDRESSES_MAX", 100)
    monkeypatch.setattr(failed_logins, "RIGHT_MAX", 100)
    found = logins(Clock(), most=1)
    for number in range(1000):
        found.failed(f"10.0.{number // 256}.{number % 256}", "token", b"x", WRONG)
        found.succeeded("token", b"%d" % number)
    assert (len(found._failures), len(found._right)) == (100, 100)
    assert is_refused(found, "10.0.3.231")
    assert not is_refused(found, "10.0.0.0")


def test_there_may_be_no_limit_and_who_shows_nothing_guesses_nothing() -> None:
    found = logins(Clock(), most=0)
    for _ in range(1000):
        found.failed("10.0.0.1", "token", b"x", WRONG)
    assert not is_refused(found)
    found = logins(Clock(), most=1)
    found.failed("10.0.0.1", "token", b"", WRONG)
    assert not is_refused(found)


def test_a_connect_is_refused_after_too_many_failures(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await let_in(broker, connect(token("known")))
        for _ in range(2):
            await keep_out(broker, connect(BAD))
        client = Client(broker)
        client.send(connect(token("new")))
        error = await client.receive("error")
        assert (error.error, error.message) == (
            TooManyRequests.code,
            "Too many logins from this address have failed; try again in 60 s.",
        )
        await client.closed()
        await let_in(broker, connect(token("known")))

    serve(tmp_path, scenario, maxFailedLoginsPerAddress=2)


def test_who_was_let_in_may_show_a_newer_token_whoever_guesses_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("me", exp=50), feature_flags=REFRESHES))
        for _ in range(2):
            await keep_out(broker, connect(BAD))
        expire(broker, monkeypatch)
        await client.receive("authChallenge")
        newer = token("me", exp=1000)
        client.send(answer(newer))
        assert await client.quiet() == []
        assert not client.connection.closed
        await let_in(broker, connect(newer))  # when it comes back
        stranger = Client(broker)
        stranger.send(connect(token("new")))
        assert (await stranger.receive("error")).error == TooManyRequests.code

    serve(tmp_path, scenario, maxFailedLoginsPerAddress=2)


@pytest.fixture
def unreachable() -> Iterator[str]:
    """An issuer that nobody can ask: its port is taken, and nobody listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def with_issuer(url: str) -> dict[str, Any]:
    return {
        "maxFailedLoginsPerAddress": 2,
        "authenticationProviders": f"{PACKAGE}oidc.AuthenticationProviderOpenID,{TOKENS}",
        "openIDAllowedTokenIssuers": url,
        "openIDAllowedAudiences": "a",
        "openIDRequireIssuersUseHttps": False,
    }


def of_issuer(url: str) -> str:
    claims = {"iss": url, "sub": "me", "aud": "a", "iat": 1, "exp": 2**33}
    return jwt.encode(claims, SECRET[:32], "HS256", headers={"kid": "k"})


def test_what_cannot_be_checked_now_is_no_guess(tmp_path: Path, unreachable: str) -> None:
    async def scenario(broker: Broker) -> None:
        for _ in range(3):
            await keep_out(broker, connect(of_issuer(unreachable)))
        await let_in(broker, connect(token("new")))
        for _ in range(2):
            await keep_out(broker, connect(BAD))
        client = Client(broker)
        client.send(connect(token("other")))
        assert (await client.receive("error")).error == TooManyRequests.code

    serve(tmp_path, scenario, **with_issuer(unreachable))


@pytest.mark.parametrize("anonymous", ["", "nobody"])
def test_a_request_that_cannot_be_checked_now_is_no_guess(unreachable: str, anonymous: str) -> None:
    shown = [("a", of_issuer(unreachable))] * 3 + [("a", token("new"))]
    answers = ask(shown, anonymousUserRole=anonymous, **with_issuer(unreachable))
    expected = 200 if anonymous else 401
    assert [each.status for each in answers] == [expected] * 3 + [200]


def ask(headers: list[tuple[str, str]], **more: Any) -> list[Response]:
    """The answers of one broker to requests with a token each, from an address each."""

    async def main() -> list[Response]:
        store = MemoryStore()
        await store.open()
        config = Config(**settings(**more))
        service = FakeService(store, config)
        service.authentication = Authentication(config)
        application = Application(cast(Any, service), cast(Any, service))
        answers = []
        for address, shown in headers:
            body = Body(0, lambda: None)
            body.end()
            head = {"authorization": shown if " " in shown else f"Bearer {shown}"}
            request = Request("GET", "/admin/v2/clusters", "", head, body, address=address)
            answers.append(await application.answer(request))
        await store.close()
        return answers

    return asyncio.run(main())


def test_a_request_is_refused_after_too_many_failures() -> None:
    known, new = token("known"), token("new")
    answers = ask(
        [("a", known), ("a", BAD), ("a", BAD), ("a", new), ("a", known), ("b", new)],
        maxFailedLoginsPerAddress=2,
    )
    assert [each.status for each in answers] == [200, 401, 401, 429, 200, 200]
    assert isinstance(answers[3].body, bytes)
    assert "try again in 60 s" in json.loads(answers[3].body)["reason"]


def test_guesses_that_end_as_anonymous_are_counted_too() -> None:
    answers = ask(
        [("a", BAD), ("a", BAD), ("a", token("new"))],
        maxFailedLoginsPerAddress=2,
        anonymousUserRole="nobody",
    )
    assert [each.status for each in answers] == [200, 200, 429]


def test_who_is_let_in_as_anonymous_pushes_out_nothing_that_was_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_logins, "RIGHT_MAX", 3)
    settings = {"maxFailedLoginsPerAddress": 2, "anonymousUserRole": "nobody"}
    known = token("known")
    made_up = [("b", f"Basic {number}") for number in range(5)]
    answers = ask([("a", known), *made_up, ("a", BAD), ("a", BAD), ("a", known)], **settings)
    assert [each.status for each in answers] == [200] * 9

    async def scenario(broker: Broker) -> None:
        await let_in(broker, connect(known))
        for number in range(5):
            await let_in(broker, connect(b"%d" % number, "athenz"))
        for _ in range(2):
            await keep_out(broker, connect(BAD))
        await let_in(broker, connect(known))

    serve(tmp_path, scenario, **settings)
