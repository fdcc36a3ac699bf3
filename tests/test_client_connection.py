"""The client's connections: requests and answers, keep-alive, credentials, how connections end."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.client import requests
from pyxbroker.client.addresses import Address, ServiceUrl, host_and_port
from pyxbroker.client.authentication import TokenAuthentication
from pyxbroker.client.client import Client
from pyxbroker.client.connection import FRAME_BYTES_MAX, Connection
from pyxbroker.client.errors import (
    AnswerTimeout,
    BadSetting,
    BrokerRefused,
    Closed,
    ConnectFailed,
    ConnectionFailed,
    ConnectionRefused,
    NotPulsar,
    ProtocolFault,
    network_reason,
)
from pyxbroker.client.pool import ConnectionPool
from pyxbroker.proto import PulsarApi as pb
from scripted_broker import frame_of
from scripted_server import Peer, Server, command_of, refuse, run

pytestmark = pytest.mark.usefixtures("each_loop")

SCHEMA_ANSWER = pb.BaseCommand.GET_SCHEMA_RESPONSE


async def ended(connection: Connection) -> None:
    """Waits until the connection is not open any more."""
    for _ in range(1000):
        if not connection.is_open:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it is open")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("pulsar://broker:7000", ("broker", 7000)),
        ("pulsar://broker:7000/", ("broker", 7000)),
        ("pulsar://broker", ("broker", 6650)),
        ("pulsar+ssl://broker/", ("broker", 6651)),
        ("pulsar://[::1]:7000/", ("::1", 7000)),
        ("pulsar://[::1]", ("::1", 6650)),
        ("https://web", ("web", 443)),
    ],
)
def test_the_address_of_a_url(url: str, address: tuple[str, int]) -> None:
    assert host_and_port(url) == address


@pytest.mark.parametrize(
    "url", ["", "broker:6650", "ftp://a", "pulsar://", "pulsar://a:b", "pulsar://a,"]
)
def test_what_is_no_service_url_is_refused(url: str) -> None:
    with pytest.raises(BadSetting):
        ServiceUrl(url)


def test_answers_go_to_their_requests_in_any_order() -> None:
    waiting: list[tuple[Peer, Any]] = []

    def collect(peer: Peer, body: Any, rest: bytes) -> None:
        waiting.append((peer, body))
        if len(waiting) == 3:
            for peer, body in reversed(waiting):
                command = command_of(SCHEMA_ANSWER, request_id=body.request_id)
                command.getSchemaResponse.schema.name = body.topic
                command.getSchemaResponse.schema.schema_data = b""
                command.getSchemaResponse.schema.type = 1
                peer.write(frame_of(command))

    async def main() -> None:
        async with Server({pb.BaseCommand.GET_SCHEMA: collect}) as server:
            connection = await Connection.open(Address(server.url), server.settings())
            asked = [requests.schema_of(connection, name) for name in "abc"]
            assert [each.name for each in await asyncio.gather(*asked)] == ["a", "b", "c"]
            connection.close()

    run(main)


def test_a_request_times_out_and_its_late_answer_is_dropped() -> None:
    async def main() -> None:
        asked: list[tuple[Peer, Any]] = []
        answers = {pb.BaseCommand.GET_SCHEMA: lambda peer, body, _: asked.append((peer, body))}
        async with Server(answers) as server:
            settings = server.settings(operation_timeout_s=0.05)
            connection = await Connection.open(Address(server.url), settings)
            with pytest.raises(AnswerTimeout):
                await requests.schema_of(connection, "a")
            peer, body = asked[0]
            refuse(pb.UnknownError)(peer, body, b"")
            await asyncio.sleep(0.02)
            assert connection.is_open
            connection.close()

    run(main)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes(8), "too large"),
        (bytes([0, 0, 0, 8, 0, 0, 0, 9]) + bytes(4), "malformed"),
        (bytes([0, 0, 0, 8, 0, 0, 0, 4]) + b"\xff" * 4, "broken command"),
        (
            frame_of(pb.BaseCommand(type=pb.BaseCommand.SUCCESS, success=pb.CommandSuccess())),
            "broken",
        ),
    ],
)
def test_bytes_that_are_not_the_protocol_end_the_connection(data: bytes, reason: str) -> None:
    async def main() -> None:
        answers = {pb.BaseCommand.GET_SCHEMA: lambda peer, *_: peer.write(data)}
        async with Server(answers) as server:
            connection = await Connection.open(Address(server.url), server.settings())
            with pytest.raises(ProtocolFault, match=reason):
                await requests.schema_of(connection, "a")
            with pytest.raises(ProtocolFault):
                await requests.schema_of(connection, "b")

    run(main)


def test_frames_in_pieces_and_many_at_once_are_all_handled() -> None:
    def answer(peer: Peer, body: Any, rest: bytes) -> None:
        ping = frame_of(command_of(pb.BaseCommand.PING))
        command = command_of(SCHEMA_ANSWER, request_id=body.request_id)
        command.getSchemaResponse.schema.name = "x" * 3_000_000
        command.getSchemaResponse.schema.schema_data = b""
        command.getSchemaResponse.schema.type = 1
        peer.write(ping * 1000 + frame_of(command) + ping)

    async def main() -> None:
        async with Server({pb.BaseCommand.GET_SCHEMA: answer}) as server:
            connection = await Connection.open(Address(server.url), server.settings())
            assert len((await requests.schema_of(connection, "a")).name) == 3_000_000
            await server.until(pb.BaseCommand.PONG, 1001)
            connection.close()

    run(main)


def test_a_lost_connection_fails_every_request() -> None:
    async def main() -> None:
        answers = {
            pb.BaseCommand.GET_SCHEMA: lambda peer, body, _: body.topic == "b" and peer.close()
        }
        async with Server(answers) as server:
            connection = await Connection.open(Address(server.url), server.settings())
            asked = [requests.schema_of(connection, name) for name in "ab"]
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(each) for each in found] == [ConnectionFailed, ConnectionFailed]
            assert not connection.is_open

    run(main)


def test_a_silent_broker_is_given_up_and_one_that_answers_ping_is_not() -> None:
    async def main() -> None:
        async with Server() as server:
            connection = await Connection.open(
                Address(server.url), server.settings(keep_alive_s=0.03)
            )
            await server.until(pb.BaseCommand.PING)
            await asyncio.sleep(0.1)
            assert isinstance(connection.error, ConnectionFailed)
            assert "PING" in connection.error.reason
        pong = {pb.BaseCommand.PING: lambda peer, *_: peer.say(pb.BaseCommand.PONG)}
        async with Server(pong) as server:
            connection = await Connection.open(
                Address(server.url), server.settings(keep_alive_s=0.03)
            )
            await server.until(pb.BaseCommand.PING, 5)
            assert connection.is_open
            connection.close()

    run(main)


def test_a_challenge_is_answered_by_the_token_that_the_file_has_now(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")

    async def main() -> None:
        async with Server() as server:
            login = TokenAuthentication("authParams", f"file://{file}")
            settings = server.settings(authentication=login)
            connection = await Connection.open(Address(server.url), settings)
            (connect,) = server.said(pb.BaseCommand.CONNECT)
            assert (connect.auth_method_name, connect.auth_data) == ("token", b"first")
            assert connect.feature_flags.supports_auth_refresh
            file.write_text("second")
            server.peers[0].say(pb.BaseCommand.AUTH_CHALLENGE, server_version="x")
            (answer,) = await server.until(pb.BaseCommand.AUTH_RESPONSE)
            assert answer.response.auth_data == b"second"
            file.unlink()
            server.peers[0].say(pb.BaseCommand.AUTH_CHALLENGE, server_version="x")
            await ended(connection)
            assert "cannot be read" in str(connection.error)
            assert str(file) not in str(connection.error)

    run(main)


def test_a_refused_connect_has_its_code_and_no_secret() -> None:
    async def main() -> None:
        def deny(peer: Peer, body: Any, rest: bytes) -> None:
            peer.say(
                pb.BaseCommand.ERROR,
                request_id=(1 << 64) - 1,
                error=pb.AuthenticationError,
                message="no",
            )

        async with Server({pb.BaseCommand.CONNECT: deny}) as server:
            settings = server.settings(authentication=TokenAuthentication("p", "token:S3CRET"))
            with pytest.raises(ConnectionRefused) as caught:
                await Connection.open(Address(server.url), settings)
            assert caught.value.code == "AuthenticationError"
            assert "S3CRET" not in f"{caught.value!r}{settings!r}{vars(caught.value)}"

    run(main)


def test_a_server_of_another_protocol_and_one_that_is_silent() -> None:
    async def main() -> None:
        speak = {pb.BaseCommand.CONNECT: lambda peer, *_: peer.write(b"HTTP/1.1 400 \r\n\r\n")}
        async with Server(speak) as server:
            with pytest.raises(NotPulsar):
                await Connection.open(Address(server.url), server.settings())
        async with Server({pb.BaseCommand.CONNECT: lambda *_: None}) as server:
            with pytest.raises(AnswerTimeout):
                settings = server.settings(operation_timeout_s=0.05)
                await Connection.open(Address(server.url), settings)
            with pytest.raises(ConnectFailed):
                await Connection.open(Address("pulsar://127.0.0.1:1"), server.settings())

    run(main)


def test_a_proxy_is_told_the_broker_behind_it() -> None:
    async def main() -> None:
        async with Server() as server:
            address = Address(server.url, "pulsar://behind:6650")
            (await Connection.open(address, server.settings())).close()
            await server.until(pb.BaseCommand.CONNECT)
            (connect,) = server.said(pb.BaseCommand.CONNECT)
            assert connect.proxy_to_broker_url == "behind:6650"

    run(main)


def test_an_address_has_one_connection_and_a_new_one_after_it_ended() -> None:
    async def main() -> None:
        async with Server() as server:
            pool = ConnectionPool(server.settings())
            found = await asyncio.gather(*(pool.to_service() for _ in range(10)))
            assert len(set(found)) == 1 and len(server.peers) == 1
            server.peers[0].close()
            await ended(found[0])
            assert (await pool.to_service()) is not found[0]
            pool.close()
            with pytest.raises(Closed):
                await pool.to_service()

    run(main)


def test_a_refused_request_has_its_code() -> None:
    async def main() -> None:
        answers = {pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: refuse(pb.AuthorizationError, "why")}
        async with Server(answers) as server, Client(server.settings()) as client:
            with pytest.raises(BrokerRefused) as caught:
                await client.topics("public/default")
            assert (caught.value.code, caught.value.message) == ("AuthorizationError", "why")

    run(main)


def test_an_alert_of_tls_is_named_by_its_own_words() -> None:
    error = ssl.SSLError(1, "[SSL: ...] (_ssl.c:2580)")
    error.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    assert network_reason(error) == "tlsv13 alert certificate required"
