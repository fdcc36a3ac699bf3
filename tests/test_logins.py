"""CONNECT with credentials, and what becomes of a connection when they expire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.tokens import SECRET, settings, token

from one_broker import TOPIC, Broker, Client, command_of, run
from oracles import wire
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.principal import Principal
from pyxbroker.base.log import defects
from pyxbroker.proto import PulsarApi as pb

NO_REQUEST = 2**64 - 1
Scenario = Callable[[Broker], Awaitable[None]]


def serve(directory: Path, scenario: Scenario, **more: Any) -> None:
    """Runs a scenario with a broker that asks who clients are."""

    async def with_authentication(broker: Broker) -> None:
        broker.service.authentication = Authentication(broker.config)
        await scenario(broker)

    run(directory, with_authentication, **settings(**more))


def connect(shown: str | bytes | None = None, method: str = "token", **more: Any) -> Any:
    command = pb.CommandConnect(client_version="test", protocol_version=21, **more)
    if shown is not None:
        command.auth_method_name = method
        command.auth_data = shown if isinstance(shown, bytes) else shown.encode()
    return command


async def let_in(broker: Broker, command: Any) -> Client:
    client = Client(broker)
    client.send(command)
    await client.receive("connected")
    return client


async def keep_out(broker: Broker, command: Any) -> None:
    client = Client(broker)
    client.send(command)
    error = await client.receive("error")
    assert (error.request_id, error.error, error.message) == (
        *(NO_REQUEST, pb.AuthenticationError),
        "Failed to authenticate",
    )
    await client.closed()
    assert not client.connection.established


def test_a_connect_without_what_is_required_is_no_defect(tmp_path: Path) -> None:
    """As while nobody is asked: a stranger cannot fill the log with defects of ours."""

    async def scenario(broker: Broker) -> None:
        found = dict(defects)
        for shown, answer in ((token("me"), "connected"), ("wrong", "error")):
            client = Client(broker)
            command = connect(shown)
            command.ClearField("client_version")
            client.far.send(wire.frame(command_of(command, partial=True)))
            await client.receive(answer)
        assert dict(defects) == found

    serve(tmp_path, scenario)


def test_logins_are_counted_by_provider_and_reason(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        authentication = broker.service.authentication
        assert authentication is not None
        await let_in(broker, connect(token("me", exp=60)))
        await keep_out(broker, connect("wrong"))
        await keep_out(broker, connect(token("me", exp=-60)))
        counts = authentication.counts
        provider = "AuthenticationProviderToken", "token"
        assert counts.succeeded == {provider: 1}
        assert counts.failed == {(*provider, "INVALID_TOKEN"): 2}
        assert counts.expired_tokens == 1
        assert counts.token_minutes.counts[0] == 1
        assert broker.service.connects_succeeded == 1
        assert broker.service.connects_failed == 2
        assert broker.service.connections_opened == 3

    serve(tmp_path, scenario)


def test_who_shows_a_good_token_is_let_in_and_others_are_told_no_more_than_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("me")))
        assert client.connection.session.principal == Principal("me")
        bad = token("me", SECRET[::-1])
        for command in (
            connect(),
            connect(b"", "none"),
            connect(bad),
            connect(b""),
            connect(token("me"), "basic"),
            connect(token("me"), "TOKEN"),
            connect(token("me", exp=-5)),
            connect(b"a" * 100_000),
            pb.CommandConnect(
                client_version="old", protocol_version=21, auth_data=token("me").encode()
            ),
        ):
            await keep_out(broker, command)
        assert bad not in capsys.readouterr().err

    serve(tmp_path, scenario)


def test_who_names_no_method_that_is_there_is_anonymous_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        for command in (connect(), connect(b"", "none"), connect(b"x", "athenz")):
            client = await let_in(broker, command)
            assert client.connection.session.principal == Principal("nobody")
        # A provider's answer is final.
        await keep_out(broker, connect(b"no token"))

    serve(tmp_path, scenario, anonymousUserRole="nobody")


def test_while_authentication_is_off_nothing_that_is_shown_counts(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        for command in (connect(), connect(b"\xff", "x", original_principal="root")):
            client = await let_in(broker, command)
            assert client.connection.session.principal == Principal()
            assert client.connection.session.login is None

    run(tmp_path, scenario)


def test_nothing_is_done_for_who_is_not_known_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes behind a CONNECT that has no answer yet ends the connection."""

    async def scenario(broker: Broker) -> None:
        assert broker.service.authentication is not None
        waits: asyncio.Future[Any] = broker.loop.create_future()
        monkeypatch.setattr(
            broker.service.authentication, "verify", lambda *_: asyncio.shield(waits)
        )
        behind = [
            connect(token("me")),
            pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1),
            pb.CommandSend(producer_id=1, sequence_id=0),
            pb.CommandPing(),
            pb.CommandAuthResponse(),
        ]
        clients = []
        for message in behind:
            client = Client(broker)
            clients.append(client)
            client.send(connect(token("me")))
            await asyncio.sleep(0.01)
            client.send(message)
            assert "waits for the answer" in (await client.receive("error")).message
            await client.closed()
        gone = Client(broker)
        gone.send(connect(token("me")))
        await asyncio.sleep(0.01)
        gone.far.close()
        await asyncio.sleep(0.01)
        waits.set_exception(ZeroDivisionError("a defect of a provider"))
        await asyncio.sleep(0.01)
        assert not any(each.connection.established for each in [*clients, gone])
        assert not any(each.connection.session.tasks for each in [*clients, gone])
        assert len(broker.topics.registry) == 0

    serve(tmp_path, scenario)


def test_a_defect_of_a_provider_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("broken")

        monkeypatch.setattr(broker.service.authentication, "verify", broken)
        await keep_out(broker, connect(token("me")))

    serve(tmp_path, scenario)


# --- behind a proxy ---------------------------------------------------------------------------


def test_a_proxy_says_for_whom_it_asks(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("proxy"), original_principal="me"))
        assert client.connection.session.principal == Principal("proxy", "me")
        # Its own credentials come first.
        await keep_out(broker, connect(b"no", original_principal="me"))

    serve(tmp_path, scenario, proxyRoles="proxy")


def test_who_is_behind_a_proxy_may_have_to_prove_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        def behind(data: str | None, method: str | None = "token") -> Any:
            return connect(
                token("proxy"),
                original_principal="root",
                original_auth_data=data,
                original_auth_method=method,
            )

        client = await let_in(broker, behind(token("me")))
        assert client.connection.session.principal == Principal("proxy", "me")
        for command in (
            behind("no token"),
            behind(token("me", exp=-5)),
            behind(None),
            behind(token("me"), None),
            behind(None, None),
        ):
            await keep_out(broker, command)

    serve(tmp_path, scenario, proxyRoles="proxy", authenticateOriginalAuthData=True)


def test_a_proxy_with_somebody_anonymous_is_no_more_than_that(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("proxy"), original_principal="root"))
        assert client.connection.session.principal == Principal("nobody", "nobody")

    serve(
        tmp_path,
        scenario,
        proxyRoles="proxy",
        authenticateOriginalAuthData=True,
        anonymousUserRole="nobody",
    )


# --- what expires -----------------------------------------------------------------------------

REFRESHES = pb.FeatureFlags(supports_auth_refresh=True)


def expire(broker: Broker, monkeypatch: pytest.MonkeyPatch, later_s: float = 100) -> None:
    """It is looked at what has expired, so much later."""
    with monkeypatch.context() as patch:
        now = time.time() + later_s
        patch.setattr("pyxbroker.broker.commands.handshake.wall_s", lambda: now)
        broker.node.turn.run(broker.handlers.check_credentials, list(broker.node.connections.live))


def answer(shown: str, method: str = "token") -> Any:
    return pb.CommandAuthResponse(
        response=pb.AuthData(auth_method_name=method, auth_data=shown.encode())
    )


def test_a_client_that_can_is_asked_for_a_newer_token_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("me", exp=50), feature_flags=REFRESHES))
        stays = await let_in(broker, connect(token("me")))
        expire(broker, monkeypatch, later_s=10)
        assert await client.quiet() == []
        expire(broker, monkeypatch)
        asked = await client.receive("authChallenge")
        assert (asked.challenge.auth_method_name, asked.challenge.auth_data) == (
            "token",
            b"PulsarAuthRefresh",
        )
        assert asked.protocol_version == 21
        client.send(answer(token("me", exp=1000)))
        assert await client.quiet() == []
        expire(broker, monkeypatch)
        assert await client.quiet() == await stays.quiet() == []
        assert not client.connection.closed and not stays.connection.closed
        await client.subscribe()

    serve(tmp_path, scenario)


def test_who_cannot_show_a_newer_one_or_does_not_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        cannot = await let_in(broker, connect(token("me", exp=50)))
        silent = await let_in(broker, connect(token("me", exp=50), feature_flags=REFRESHES))
        proxied = await let_in(
            broker,
            connect(token("p", exp=50), feature_flags=REFRESHES, original_principal="somebody"),
        )
        expire(broker, monkeypatch)
        for client in (cannot, proxied):
            assert await client.quiet_until_closed() == []
        expire(broker, monkeypatch)
        assert await silent.quiet_until_closed() == ["authChallenge"]

    serve(tmp_path, scenario, proxyRoles="p")


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (lambda: answer("no token"), ["error"]),
        (lambda: answer(token("me", exp=-5)), ["error"]),
        (lambda: answer(token("me"), "basic"), ["error"]),
        (lambda: answer(token("root")), []),
        (pb.CommandAuthResponse, ["error"]),
        (lambda: pb.CommandAuthResponse(response=pb.AuthData(auth_method_name="token")), ["error"]),
    ],
)
def test_an_answer_that_is_no_good_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: Any, told: list[str]
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("me", exp=50), feature_flags=REFRESHES))
        expire(broker, monkeypatch)
        await client.receive("authChallenge")
        client.send(shown())
        assert await client.quiet_until_closed() == told

    serve(tmp_path, scenario)


def test_an_answer_that_nobody_has_asked_for_ends_the_connection(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(broker, connect(token("me"), feature_flags=REFRESHES))
        client.send(answer(token("root")))
        assert await client.quiet_until_closed() == ["error"]
        assert client.connection.session.principal == Principal("me")

    serve(tmp_path, scenario)
    run(tmp_path / "off", without_authentication)


async def without_authentication(broker: Broker) -> None:
    client = await broker.client()
    client.send(answer(token("root")))
    assert await client.quiet_until_closed() == ["error"]


def test_what_is_behind_a_proxy_and_was_proved_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await let_in(
            broker,
            connect(
                token("proxy"),
                feature_flags=REFRESHES,
                original_principal="me",
                original_auth_data=token("me", exp=50),
                original_auth_method="token",
            ),
        )
        expire(broker, monkeypatch)
        await client.receive("authChallenge")
        client.send(answer(token("me")))
        assert await client.quiet() == []
        assert client.connection.session.principal == Principal("proxy", "me")

    serve(tmp_path, scenario, proxyRoles="proxy", authenticateOriginalAuthData=True)


def test_who_has_proved_who_it_is_is_closed_when_the_credentials_of_its_proxy_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        def behind(proxy: str) -> Any:
            return connect(
                proxy,
                feature_flags=REFRESHES,
                original_principal="me",
                original_auth_data=token("me"),
                original_auth_method="token",
            )

        client = await let_in(broker, behind(token("proxy", exp=50)))
        stays = await let_in(broker, behind(token("proxy", exp=500)))
        expire(broker, monkeypatch, later_s=10)
        assert await client.quiet() == []
        expire(broker, monkeypatch)
        assert await client.quiet_until_closed() == await stays.quiet() == []
        assert not stays.connection.closed

    serve(tmp_path, scenario, proxyRoles="proxy", authenticateOriginalAuthData=True)
