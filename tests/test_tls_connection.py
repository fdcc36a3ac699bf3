"""What a client can make of a connection's TLS: sessions that go on, and records without data."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme

from certificates import authority, client_context, server_context, write_files
from hostile_tls import HostileClient
from pyxbroker.base import tls_connection
from pyxbroker.base.listening import listen
from pyxbroker.base.tls import TlsContexts, make_context
from pyxbroker.base.tls_connection import HANDSHAKE_RECORDS_MAX, IDLE_RECORDS_MAX
from pyxbroker.web.request import Request
from pyxbroker.web.response import Response
from pyxbroker.web.server import WebServer
from served import Served, ping, turns
from test_tls import client_with, settings_of
from web_client import GET, LAST, Run, echo, parse, run, until

__all__ = ["run"]

OUT_PENDING_PAUSE = 8 << 20  # of connection.pxd
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
versions = pytest.mark.parametrize("version", VERSIONS)


class Pair:
    """A server's and a client's end, past their handshake; raises SSLError of either side."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext, session: Any = None) -> None:
        self.to_server, self.to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(self.to_server, self.to_client, server_side=True)
        self.client = client.wrap_bio(
            self.to_client, self.to_server, server_hostname="localhost", session=session
        )
        for _ in range(4):
            for end in (self.client, self.server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.client.read()  # tickets come behind the handshake

    @property
    def session(self) -> Any:
        return self.client.session


def client_of(version: ssl.TLSVersion) -> ssl.SSLContext:
    client = client_with(authority())
    client.minimum_version = client.maximum_version = version
    return client


# --- sessions that go on --------------------------------------------------------------------------


@versions
def test_no_session_goes_on_when_an_authority_was_taken_out(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    files = write_files(tmp_path)
    contexts = TlsContexts(settings_of(files, tlsCertRefreshCheckDurationSec=0))
    client = client_of(version)
    first = Pair(contexts.current(), client)
    session = first.session
    trustme.CA().cert_pem.write_to_path(files.trusted)
    os.utime(files.trusted, (1, 1))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        Pair(contexts.current(), client, session)


def test_no_session_of_tls_1_3_goes_on(tmp_path: Path) -> None:
    context = make_context(settings_of(write_files(tmp_path)))
    client = client_of(ssl.TLSVersion.TLSv1_3)
    first = Pair(context, client)
    assert not first.session.has_ticket
    assert not Pair(context, client, first.session).server.session_reused


def test_no_session_goes_on_with_a_certificate_that_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make_context(settings_of(write_files(tmp_path)))
    client = client_of(ssl.TLSVersion.TLSv1_2)
    first = Pair(context, client)  # OpenSSL forgets what ended without a farewell
    second = Pair(context, client, first.session)
    assert second.server.session_reused
    until = time.time() + 2000 * 365 * 86400
    monkeypatch.setattr(time, "time", lambda: until)
    with pytest.raises(ssl.SSLError, match="earlier session has expired"):
        Pair(context, client, second.session)


def goodbye_of_the_client(pair: Pair) -> None:
    """In two pieces, as a network may bring it."""
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    record = pair.to_server.read()
    pair.to_server.write(record[:1])
    with contextlib.suppress(ssl.SSLWantReadError):
        pair.server.read()
    pair.to_server.write(record[1:])
    assert pair.server.read() == b""
    assert pair.server.read(10, bytearray(10)) == 0
    pair.server.unwrap()


def goodbye_of_the_server(pair: Pair) -> None:
    with contextlib.suppress(ssl.SSLWantReadError):
        pair.server.unwrap()
    with contextlib.suppress(ssl.SSLError):
        pair.client.unwrap()
    with contextlib.suppress(ssl.SSLError):
        pair.server.read()
        pair.server.unwrap()


def no_goodbye(pair: Pair) -> None:
    pair.to_server.write_eof()
    assert pair.server.read() == b""


@pytest.mark.parametrize("say", [goodbye_of_the_client, goodbye_of_the_server, no_goodbye])
def test_the_session_of_a_certificate_is_gone_with_its_connection(
    tmp_path: Path, say: Callable[[Pair], None]
) -> None:
    """A chain of 77 KB in one of 20,480 has 750 KB."""
    context = make_context(settings_of(write_files(tmp_path)))
    for _ in range(3):
        pair = Pair(context, client_of(ssl.TLSVersion.TLSv1_2))
        pair.client.write(b"all of this")
        assert pair.server.read() == b"all of this"
        assert context.session_stats()["number"] == 1
        say(pair)
        del pair
        assert context.session_stats()["number"] == 0


def test_who_has_no_certificate_is_told_that_its_connection_ends(tmp_path: Path) -> None:
    context = make_context(settings_of(write_files(tmp_path)))
    pair = Pair(context, client_context())
    with contextlib.suppress(ssl.SSLWantReadError):
        pair.server.unwrap()
    assert pair.client.read() == b""


def test_a_goodbye_by_https_leaves_no_session_of_a_certificate(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        contexts = TlsContexts(settings_of(write_files(tmp_path)))
        sock = listen("127.0.0.1", 0)
        server = WebServer(echo, 0)
        server.start(sock, contexts.current)
        client = client_of(ssl.TLSVersion.TLSv1_2)
        for request in (GET, LAST):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", sock.getsockname()[1], ssl=client, server_hostname="localhost"
            )
            writer.write(request)
            assert (await reader.readline()).split()[1] == b"200"
            assert contexts.current().session_stats()["number"] == 1
            if request is LAST:
                assert await reader.read()
            writer.close()
            await until(lambda: not server._connections)
            await until(lambda: contexts.current().session_stats()["number"] == 0)
        await server.stop()

    run(scenario)


def test_each_connection_by_https_has_the_context_of_the_files_as_they_are(
    run: Run, tmp_path: Path
) -> None:
    """One that all of them had would keep sessions for as long as the broker runs."""

    async def scenario() -> None:
        files = write_files(tmp_path)
        contexts = TlsContexts(settings_of(files, tlsCertRefreshCheckDurationSec=0))
        sock = listen("127.0.0.1", 0)
        server = WebServer(echo, 0)
        server.start(sock, contexts.current)
        port = sock.getsockname()[1]
        client = client_of(ssl.TLSVersion.TLSv1_2)

        async def ask() -> int:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client, server_hostname="localhost"
            )
            writer.write(LAST)
            status = parse(await reader.read())[0][0]
            writer.close()
            return status

        assert await ask() == 200
        trustme.CA().cert_pem.write_to_path(files.trusted)
        os.utime(files.trusted, (1, 1))
        with pytest.raises((OSError, ssl.SSLError)):
            await ask()
        await server.stop()

    run(scenario)


# --- records without data -------------------------------------------------------------------------


@pytest.fixture
def over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Served, "over_tls", True)


async def hostile(side: Served, directory: Path, version: ssl.TLSVersion) -> tuple[Any, ...]:
    """A connection of the binary protocol, its client's socket, and its client."""
    client = HostileClient(directory, version)
    connection, far = side.connect()
    received = b""
    for _ in range(4):
        if data := client.shake_hands(received):
            far.send(data)
        await turns()
        try:
            received = far.recv(1 << 16)
        except BlockingIOError:
            received = b""
    side.told  # noqa: B018
    return connection, far, client


def on_a_connection(
    directory: Path,
    version: ssl.TLSVersion,
    scenario: Callable[[Served, Any, Any, HostileClient], Coroutine[Any, Any, None]],
) -> None:
    async def main() -> None:
        side = Served()
        try:
            connection, far, client = await hostile(side, directory, version)
            assert connection.tls.established
            await scenario(side, connection, far, client)
            far.close()
        finally:
            side.close()

    asyncio.run(main())


@pytest.mark.usefixtures("over_tls")
def test_keys_that_are_changed_again_and_again_cost_their_connection(tmp_path: Path) -> None:
    async def scenario(side: Served, connection: Any, far: Any, client: HostileClient) -> None:
        for _ in range(IDLE_RECORDS_MAX):
            far.send(client.key_update())
        await turns()
        assert not connection.closed
        far.send(b"".join(client.key_update() for _ in range(2000)))
        await turns()
        assert [each[0] for each in side.told] == ["broken tls", "closed"]
        assert connection.tls.failure == "too many records without data"

    on_a_connection(tmp_path, ssl.TLSVersion.TLSv1_3, scenario)


@pytest.mark.usefixtures("over_tls")
def test_openssl_gets_no_more_than_one_record_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would open all that are there before anybody could count them."""
    sizes: list[int] = []
    feed = tls_connection.ServerConnection._feed

    def noted(self: Any) -> bool:
        found = feed(self)
        sizes.append(self._inner.pending)
        return found

    async def scenario(side: Served, connection: Any, far: Any, client: HostileClient) -> None:
        monkeypatch.setattr(tls_connection.ServerConnection, "_feed", noted)
        one = client.key_update()
        far.send(one + b"".join(client.key_update() for _ in range(500)))
        await turns()
        assert connection.closed
        assert sizes == [len(one)] * (IDLE_RECORDS_MAX + 1)

    on_a_connection(tmp_path, ssl.TLSVersion.TLSv1_3, scenario)


@pytest.mark.usefixtures("over_tls")
def test_a_client_that_sends_much_may_change_its_keys_now_and_then(tmp_path: Path) -> None:
    async def scenario(side: Served, connection: Any, far: Any, client: HostileClient) -> None:
        many = ping() * 1000
        for _ in range(3):
            for _ in range(IDLE_RECORDS_MAX):
                far.send(client.key_update())
            await turns()
            for _ in range((1 << 20) // len(many) + 1):
                far.send(client.data(many))
                await turns()
        assert not connection.closed

    on_a_connection(tmp_path, ssl.TLSVersion.TLSv1_3, scenario)


@pytest.mark.usefixtures("over_tls")
def test_who_wants_another_handshake_is_sent_away(tmp_path: Path) -> None:
    async def scenario(side: Served, connection: Any, far: Any, client: HostileClient) -> None:
        far.send(client.renegotiation())
        await turns()
        assert [each[0] for each in side.told] == ["broken tls", "closed"]
        assert connection.tls.failure == "the client requests a renegotiation"

    on_a_connection(tmp_path, ssl.TLSVersion.TLSv1_2, scenario)


@pytest.mark.usefixtures("over_tls")
def test_answers_of_tls_that_are_not_read_pause_their_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no frames, and wait in memory all the same."""
    monkeypatch.setattr(tls_connection, "IDLE_RECORDS_MAX", 1 << 40)

    async def scenario(side: Served, connection: Any, far: Any, client: HostileClient) -> None:
        connection.send_frame(bytes(OUT_PENDING_PAUSE))
        await turns()
        frames_bytes = connection.pending_bytes
        assert 0 < frames_bytes < OUT_PENDING_PAUSE
        assert not connection.is_paused
        for _ in range(200):
            if connection.is_paused:
                break
            far.send(b"".join(client.key_update() for _ in range(200)))
            await turns(2)
        assert connection.is_paused
        assert connection.pending_bytes == frames_bytes

    on_a_connection(tmp_path, ssl.TLSVersion.TLSv1_3, scenario)


@versions
def test_by_https_such_records_cost_their_connection_as_well(
    run: Run, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    async def scenario() -> None:
        sock = listen("127.0.0.1", 0)
        server = WebServer(echo, 0)
        server.start(sock, server_context)
        client = HostileClient(tmp_path, version)
        reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1])
        writer.write(client.shake_hands(b""))
        data = client.shake_hands(await reader.read(1 << 16))
        while data:
            writer.write(data)
            if version is ssl.TLSVersion.TLSv1_3:
                break
            data = client.shake_hands(await reader.read(1 << 16))
        if version is ssl.TLSVersion.TLSv1_3:
            writer.write(b"".join(client.key_update() for _ in range(IDLE_RECORDS_MAX + 1)))
        else:
            writer.write(client.renegotiation())
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.wait_for(reader.read(1 << 16), 5):
                pass
        writer.close()
        await server.stop()

    run(scenario)


def test_a_handshake_in_crumbs_ends() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context().wrap_bio(incoming, outgoing, server_side=True)
    hello = b"\x01\0\x40\0" + bytes(1 << 14)
    incoming.write(b"".join(b"\x16\x03\x01\0\x01" + bytes([each]) for each in hello))
    with pytest.raises(ssl.SSLError, match="too many records for a handshake"):
        server.do_handshake()
    assert incoming.pending > (len(hello) - 2 * HANDSHAKE_RECORDS_MAX) * 6


def test_nothing_is_counted_while_a_client_only_waits() -> None:
    pair = Pair(server_context(), client_context())
    for _ in range(IDLE_RECORDS_MAX * 3):
        with pytest.raises(ssl.SSLWantReadError):
            pair.server.read()
    pair.client.write(b"x")
    assert pair.server.read() == b"x"


def test_a_request_by_https_says_so(run: Run, tmp_path: Path) -> None:
    async def scheme(request: Request[Any]) -> Response:
        return Response.text("https" if request.is_tls else "http")

    async def scenario() -> None:
        contexts = TlsContexts(settings_of(write_files(tmp_path)))
        server = WebServer(scheme, 0)
        for expected in (b"https", b"http"):
            sock = listen("127.0.0.1", 0)
            is_tls = expected == b"https"
            server.start(sock, contexts.current if is_tls else None)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1",
                sock.getsockname()[1],
                ssl=client_of(ssl.TLSVersion.TLSv1_3) if is_tls else None,
                server_hostname="localhost" if is_tls else None,
            )
            writer.write(LAST)
            assert (await reader.read()).endswith(b"\r\n\r\n" + expected)
            writer.close()
        await server.stop()

    run(scenario)
