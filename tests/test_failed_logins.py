"""Who fails to log in again and again is refused for a while; others are not."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import bcrypt
import jwt
import pytest
from harness.tokens import BASIC, PACKAGE, SECRET, TOKENS, data_url, settings, token

from fake_service import FakeService
from one_broker import Broker, Client
from pyxbroker.admin.app import Application
from pyxbroker.admin.request import Request
from pyxbroker.auth import failed_logins
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.basic import BasicProvider
from pyxbroker.auth.failed_logins import FailedLogins
from pyxbroker.auth.provider import NotChecked, joined
from pyxbroker.base.errors import AuthenticationError, TooManyRequests
from pyxbroker.base.eviction_queue import network_of
from pyxbroker.broker.commands import handshake
from pyxbroker.broker.commands.login import shown_by
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import Config
from pyxbroker.web.request import Body
from pyxbroker.web.response import Response
from test_audit import lines, told
from test_logins import REFRESHES, answer, connect, expire, keep_out, let_in, serve
from test_waiting_requests import reset
from web_client import Run, Served, dial, run, served, until

__all__ = ["lines", "run"]

BAD = token("me", SECRET[::-1])
WRONG = AuthenticationError("as shown")
OF_CERTIFICATE = "CN="


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


def application_of(store: MemoryStore, **more: Any) -> tuple[FakeService, Application]:
    config = Config(**settings(**more))
    service = FakeService(store, config)
    service.authentication = Authentication(config)
    return service, Application(cast(Any, service), lambda: cast(Any, service))


def ask(
    headers: list[tuple[str, str]], common_name: str = "", *, at_once: bool = False, **more: Any
) -> list[Response]:
    """The answers of one broker to requests with a token each, from an address each, with the same
    certificate if there is one.
    """

    async def main() -> list[Response]:
        store = MemoryStore()
        await store.open()
        _, application = application_of(store, **more)
        requests = []
        for address, shown in headers:
            body = Body(0, lambda: None)
            body.end()
            head = {"authorization": shown if " " in shown else f"Bearer {shown}"} if shown else {}
            name = common_name
            if shown.startswith(OF_CERTIFICATE):
                head, name = {}, shown.removeprefix(OF_CERTIFICATE)
            path = "/admin/v2/clusters"
            request = Request("GET", path, "", head, body, address=address, common_name=name)
            requests.append(request)
        if at_once:
            answers = await asyncio.gather(*map(application.answer, requests))
        else:
            answers = [await application.answer(each) for each in requests]
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


def test_guesses_beside_a_certificate_that_is_good_are_counted_too() -> None:
    """The password comes first, so whoever has found it is its user."""
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    more: dict[str, Any] = {
        "authenticationProviders": f"{BASIC},{PACKAGE}AuthenticationProviderTls",
        "basicAuthConf": data_url(f"root:{hashed}".encode()),
        "webServicePortTls": 1,
        "tlsTrustCertsFilePath": "as the test says",
        "maxFailedLoginsPerAddress": 2,
    }
    wrong, right = [
        f"Basic {base64.b64encode(b'root:' + each).decode()}" for each in (b"x", b"secret")
    ]
    shown = [("a", ""), ("a", wrong), ("a", wrong), ("a", right), ("a", ""), ("b", right)]
    answers = ask(shown, common_name="mallory", **more)
    assert [each.status for each in answers] == [200, 200, 200, 429, 200, 200]


def test_who_is_let_in_as_anonymous_pushes_out_nothing_that_was_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_logins, "RIGHT_MAX", 3)
    settings: dict[str, Any] = {"maxFailedLoginsPerAddress": 2, "anonymousUserRole": "nobody"}
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


def test_what_is_shown_as_another_part_takes_nothing_from_who_was_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_certificates: dict[str, Any] = {
        "maxFailedLoginsPerAddress": 1,
        "authenticationProviders": f"{PACKAGE}AuthenticationProviderTls,{TOKENS}",
        "webServicePortTls": 1,
        "tlsTrustCertsFilePath": "authorities.pem",
    }
    ann = ("a", f"{OF_CERTIFICATE}an n")
    answers = ask([ann, ("a", "an n"), ann, ("a", token("new"))], **with_certificates)
    assert [each.status for each in answers] == [200, 401, 200, 429]

    async def scenario(broker: Broker) -> None:
        names = iter(("ann", "", "ann", "ann", ""))
        monkeypatch.setattr(handshake, "_common_name", lambda _: next(names))
        await let_in(broker, connect(b"", "tls"))
        await keep_out(broker, connect(b"ann", "tls"))
        await let_in(broker, connect(b"", "tls"))
        await let_in(broker, connect(b"", "tls", original_auth_data=""))
        client = Client(broker)
        client.send(connect(token("new")))
        assert (await client.receive("error")).error == TooManyRequests.code

    serve(tmp_path, scenario, **with_certificates)


def test_parts_of_what_is_shown_are_told_apart() -> None:
    assert joined(b"", b"") == b"", "nothing was shown"
    parts = ((b"ab", b"c"), (b"a", b"bc"), (b"abc", b""), (b"", b"abc"))
    assert len({joined(*each) for each in parts}) == len(parts)
    proxied = [connect(b"ab", original_auth_data="c"), connect(b"a", original_auth_data="bc")]
    assert shown_by(proxied[0], "") != shown_by(proxied[1], "")


# --- many at once -----------------------------------------------------------------------------

USERS = 300  # and clients
SHA = "{SHA}" + base64.b64encode(hashlib.sha1(b"right").digest()).decode()
PASSWORDS: dict[str, Any] = {
    "maxFailedLoginsPerAddress": 2,
    "authenticationProviders": BASIC,
    "basicAuthConf": data_url("".join(f"user-{n}:{SHA}\n" for n in range(USERS)).encode()),
}


def looked_at(
    authentication: Authentication | None,
    monkeypatch: pytest.MonkeyPatch,
    may_end: threading.Semaphore | None = None,
) -> list[bytes]:
    """The passwords that are checked from now on, in a thread; each check ends when it may."""
    assert authentication is not None
    [provider] = authentication._in_order
    assert isinstance(provider, BasicProvider)
    check, seen = provider._is_right, []

    def noted(user: str, password: bytes) -> bool:
        seen.append(password)
        if may_end is not None:
            may_end.acquire(timeout=5)  # a test that fails ends as well
        return check(user, password)

    monkeypatch.setattr(provider, "_is_right", noted)
    return seen


def by_password(user: int, password: str) -> Any:
    return connect(f"user-{user}:{password}", "basic")


async def all_at_once(broker: Broker, commands: list[Any]) -> list[int | None]:
    """Codes of the errors that CONNECTs of one address are answered with; None: it is let in."""
    clients = [Client(broker) for _ in commands]
    for client, command in zip(clients, commands, strict=True):
        client.send(command)
    answers = [await client.either("connected", "error") for client in clients]
    return [each.error if isinstance(each, pb.CommandError) else None for each in answers]


def test_of_many_guesses_at_once_no_more_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        seen = looked_at(broker.service.authentication, monkeypatch)
        guesses = [by_password(0, f"wrong {number}") for number in range(60)]
        codes = await all_at_once(broker, guesses)
        assert len(seen) == 2
        assert Counter(codes) == {AuthenticationError.code: 2, TooManyRequests.code: 58}
        assert not broker.service.failed_logins._under_way

    serve(tmp_path, scenario, **PASSWORDS)


def test_a_fleet_that_comes_at_once_is_let_in_however_few_may_fail(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        fleet = [by_password(user, "right") for user in range(USERS)]
        assert await all_at_once(broker, fleet) == [None] * USERS
        assert not broker.service.failed_logins._under_way

    serve(tmp_path, scenario, **PASSWORDS)


def test_who_was_right_lately_waits_for_no_guess_and_is_let_in_beside_many(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        known = by_password(1, "right")
        await let_in(broker, known)
        guesses = [by_password(0, f"wrong {number}") for number in range(60)]
        codes = await all_at_once(broker, [*guesses, known])
        assert codes[-1] is None and codes.count(TooManyRequests.code) == 58

    serve(tmp_path, scenario, **PASSWORDS)


def test_of_many_requests_with_guesses_at_once_no_more_are_looked_at() -> None:
    basic = [base64.b64encode(b"user-0:wrong %d" % number).decode() for number in range(60)]
    answers = ask([("a", f"Basic {each}") for each in basic], at_once=True, **PASSWORDS)
    assert Counter(each.status for each in answers) == {401: 2, 429: 58}


# --- whose client has hung up -----------------------------------------------------------------


async def hang_up(
    broker: Broker, command: Any, seen: list[bytes], ends: threading.Semaphore
) -> None:
    """A client that goes while its password is checked, and is gone before the check ends."""
    client, before = Client(broker), len(seen)
    client.send(command)
    await until(lambda: len(seen) > before)
    client.far.close()
    await until(lambda: client.connection.closed)
    ends.release()
    await until(lambda: not client.connection.session.tasks)


def test_guesses_whose_clients_hang_up_are_failed_logins_each_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: io.StringIO
) -> None:
    async def scenario(broker: Broker) -> None:
        ends = threading.Semaphore(0)
        seen = looked_at(broker.service.authentication, monkeypatch, ends)
        await hang_up(broker, by_password(0, "wrong 0"), seen, ends)
        await keep_out(broker, by_password(0, "wrong 0"))  # known as wrong: it is not checked again
        client = Client(broker)
        client.send(by_password(0, "wrong 1"))
        assert (await client.receive("error")).error == TooManyRequests.code
        assert seen == [b"wrong 0"]
        assert not broker.service.failed_logins._under_way
        *guesses, refused = told(lines)
        assert guesses == 2 * [
            {
                "event": "login failed",
                "address": "",
                "operation": "login by CONNECT",
                "method": "basic",
                "reason": "Unknown user or invalid password",
            }
        ]
        assert "Too many logins" in refused["reason"]

    serve(tmp_path, scenario, **PASSWORDS)


def test_what_is_right_counts_as_nothing_when_its_client_hangs_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: io.StringIO
) -> None:
    async def scenario(broker: Broker) -> None:
        ends, found = threading.Semaphore(0), broker.service.failed_logins
        seen = looked_at(broker.service.authentication, monkeypatch, ends)
        await hang_up(broker, by_password(0, "right"), seen, ends)
        assert not (found._failures or found._right or found._under_way or told(lines))

    serve(tmp_path, scenario, **PASSWORDS)


def test_who_hangs_up_while_its_password_waits_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: io.StringIO
) -> None:
    async def scenario(broker: Broker) -> None:
        ends = threading.Semaphore(0)
        seen = looked_at(broker.service.authentication, monkeypatch, ends)
        first, second = Client(broker), Client(broker)
        first.send(by_password(0, "right"))
        await until(lambda: seen)
        second.send(by_password(1, "wrong"))
        await until(lambda: second.connection.session.tasks)
        await asyncio.sleep(0.01)
        second.far.close()
        await until(lambda: not second.connection.session.tasks)
        ends.release()
        await first.receive("connected")
        assert seen == [b"right"] and not told(lines)

    serve(tmp_path, scenario, **PASSWORDS)


@asynccontextmanager
async def web(answers: list[int], **more: Any) -> AsyncIterator[tuple[Served, Authentication]]:
    """A web server, the statuses of whose answers are noted, sent or not."""
    store = MemoryStore()
    await store.open()
    service, application = application_of(store, **more)
    assert service.authentication is not None

    async def answer_to(request: Request) -> Response:
        response = await application.answer(request)
        answers.append(response.status)
        return response

    async with served(answer_to) as one:
        yield one, service.authentication
    await store.close()


@pytest.mark.parametrize(("anonymous", "statuses"), [("", [401, 401, 429]), ("nobody", [429])])
def test_guesses_by_http_whose_clients_hang_up_are_failed_logins_each_told_once(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    lines: io.StringIO,
    anonymous: str,
    statuses: list[int],
) -> None:
    """As anonymous nothing is done for who has gone."""
    answers: list[int] = []

    async def main() -> None:
        ends = threading.Semaphore(0)
        async with web(answers, anonymousUserRole=anonymous, **PASSWORDS) as (one, authentication):
            seen = looked_at(authentication, monkeypatch, ends)
            for number in range(3):
                basic = base64.b64encode(b"user-0:wrong %d" % number)
                reader, writer = await dial(one)
                writer.write(
                    b"GET /admin/v2/clusters HTTP/1.1\r\nHost: b\r\n"
                    b"Authorization: Basic " + basic + b"\r\n\r\n"
                )
                if number == 2:
                    assert (await reader.readline()).split()[1] == b"429"
                else:
                    await until(lambda number=number: len(seen) > number)
                    reset(writer)
                    await until(lambda: not one.server._connections)
                    ends.release()
                    await until(lambda: not one.server._tasks)
                writer.close()
        assert seen == [b"wrong 0", b"wrong 1"]

    run(main)
    assert answers == statuses
    *guesses, refused = told(lines)
    assert [(each["operation"], each["address"]) for each in guesses] == 2 * [
        ("login by HTTP", "127.0.0.1")
    ]
    assert "Too many logins" in refused["reason"]


class Visitor:
    """A login that waits, or is looked at until somebody says what has come of it."""

    def __init__(self, found: FailedLogins, shown: bytes) -> None:
        self.is_looked_at = False
        self._fails = asyncio.get_running_loop().create_future()
        self.task = asyncio.ensure_future(self._log_in(found, shown))

    async def _log_in(self, found: FailedLogins, shown: bytes) -> None:
        async with found.attempt("a", "token", shown):
            self.is_looked_at = True
            if await self._fails:
                found.failed("a", "token", shown, WRONG)

    async def ends(self, fails: bool) -> None:
        self._fails.set_result(fails)
        await self.task


def test_who_waits_has_its_turn_when_one_before_it_was_no_failure_or_has_gone() -> None:
    async def main() -> None:
        found = logins(Clock(), most=2)
        one, two, three, four, five = (Visitor(found, b"%d" % number) for number in range(5))
        await asyncio.sleep(0.01)
        assert [each.is_looked_at for each in (one, two, three)] == [True, True, False]
        three.task.cancel()
        await one.ends(False)
        await asyncio.sleep(0.01)
        assert four.is_looked_at and not five.is_looked_at
        four.task.cancel()
        await asyncio.sleep(0.01)
        assert five.is_looked_at
        await two.ends(True)
        await five.ends(False)
        assert not is_refused(found, "a") and not found._under_way

    asyncio.run(main())


def test_of_those_who_wait_nobody_is_looked_at_when_too_many_have_failed() -> None:
    async def main() -> None:
        found = logins(Clock(), most=2)
        visitors = [Visitor(found, b"%d" % number) for number in range(10)]
        await asyncio.sleep(0.01)
        found.succeeded("token", b"9")  # over another connection
        await visitors[0].ends(True)
        await asyncio.sleep(0.01)
        assert not visitors[2].is_looked_at
        await visitors[1].ends(True)
        refused = await asyncio.gather(
            *(each.task for each in visitors[2:9]), return_exceptions=True
        )
        assert {type(each) for each in refused} == {TooManyRequests}
        await asyncio.sleep(0.01)
        assert visitors[9].is_looked_at
        await visitors[9].ends(False)
        assert not found._under_way

    asyncio.run(main())


def test_so_many_wait_and_who_comes_behind_them_is_no_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failed_logins, "WAITING_MAX", 3)

    async def main() -> None:
        found = logins(Clock(), most=2)
        visitors = [Visitor(found, b"%d" % number) for number in range(6)]
        with pytest.raises(NotChecked, match="3 logins of this address wait"):
            await visitors[5].task
        for each in visitors[:5]:
            await each.ends(False)
        assert not found._under_way

    asyncio.run(main())
