"""Connections whose clients have not said yet what they want."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from certificates import client_context, server_context
from one_broker import Broker, Client
from one_broker import run as run_broker
from pyxbroker.admin.server import WebServer
from pyxbroker.base.listening import listen
from pyxbroker.broker import half_open
from pyxbroker.broker.half_open import HalfOpen
from web_client import LAST, Run, echo, parse, run, until

__all__ = ["run"]


class Turn:
    """A turn that is over at once."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    def run(self, call: Callable[[], object]) -> None:
        call()


class Timers:
    """A loop whose time goes on by `pass_by` alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        self.timers.append((when, call))

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.call_at(self.now + seconds, call)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        while due := [each for each in self.timers if each[0] <= self.now]:
            for each in due:
                self.timers.remove(each)
                each[1]()


class Hashable(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def connections(closed: list[int], count: int) -> list[Any]:
    return [
        Hashable(peer=f"peer:{number}", close=lambda number=number: closed.append(number))
        for number in range(count)
    ]


def test_each_is_closed_when_its_time_is_over_and_those_that_are_over_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(half_open, "CLOSED_AT_ONCE", 3)
    loop = Timers()
    turn: Any = SimpleNamespace(loop=loop, run=lambda call: call())
    closed: list[int] = []
    kept = HalfOpen(turn, 10, 0)
    each = connections(closed, 11)
    for one in each[:10]:
        kept.add(one)
    kept.over(each[4])
    loop.pass_by(6)
    kept.add(each[10])
    assert closed == []
    loop.pass_by(6)
    assert closed == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    loop.pass_by(6)
    assert (closed[9:], len(kept)) == ([10], 0)


def test_the_oldest_gives_way_where_there_are_too_many() -> None:
    async def main() -> None:
        turn: Any = Turn()
        closed: list[int] = []
        kept = HalfOpen(turn, 10, 3)
        for one in connections(closed, 8):
            kept.add(one)
        assert (closed, len(kept), kept.closed) == ([0, 1, 2, 3, 4], 3, 5)
        kept.stop()

    asyncio.run(main())


def test_a_client_gets_in_beside_many_that_say_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        silent = [Client(broker) for _ in range(20)]
        client = await broker.client()
        assert len(broker.service.half_open) == 4
        for each in silent[:15]:
            await each.closed()
        assert not client.connection.closed

    run_broker(tmp_path, scenario, maxHalfOpenConnections=5)


Scenario = Callable[[WebServer, int], Awaitable[None]]


async def over_https(scenario: Scenario, connections_max: int, timeout_s: float) -> None:
    sock = listen("127.0.0.1", 0)
    server = WebServer(echo, connections_max, handshake_timeout_s=timeout_s)
    server.start(sock, server_context)
    try:
        await scenario(server, sock.getsockname()[1])
    finally:
        await server.stop()


async def ask(port: int) -> int:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=client_context(), server_hostname="localhost"
    )
    writer.write(LAST)
    status = parse(await reader.read())[0][0]
    writer.close()
    return status


def silent_ones(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


def test_a_handshake_that_is_not_over_counts_as_a_connection_of_the_web_port(run: Run) -> None:
    async def scenario(server: WebServer, port: int) -> None:
        silent = silent_ones(port, 30)
        assert await ask(port) == 200
        assert server.refused >= 25
        assert len(server._connections) + len(server._silent) <= 5
        for each in silent:
            each.close()

    run(lambda: over_https(scenario, 5, 60))


def test_a_handshake_on_the_web_port_ends_in_time(run: Run) -> None:
    async def scenario(server: WebServer, port: int) -> None:
        silent = silent_ones(port, 3)
        silent[0].sendall(b"\x16\x03\x01")
        for each in silent:
            each.settimeout(5)
            assert await asyncio.to_thread(each.recv, 1) == b""
            each.close()
        assert not server._connections and not server._silent
        assert await ask(port) == 200

    run(lambda: over_https(scenario, 0, 0.2))


@pytest.mark.parametrize("says", [b"", b"\x16\x03\x01"])
def test_a_stop_does_not_wait_for_a_handshake(run: Run, says: bytes) -> None:
    async def main() -> None:
        sock = listen("127.0.0.1", 0)
        server = WebServer(echo, 0, handshake_timeout_s=60)
        server.start(sock, server_context)
        with silent_ones(sock.getsockname()[1], 1)[0] as peer:
            peer.sendall(says)
            await until(lambda: server._connections if says else server._silent)
            await asyncio.wait_for(server.stop(), 30)  # half of its time

    run(main)


def test_handshakes_that_are_cut_off_leave_no_rings(run: Run) -> None:
    async def scenario(server: WebServer, port: int) -> None:
        with ExitStack() as stack:
            for number in range(30):
                [peer] = silent_ones(port, 1)
                stack.enter_context(peer)
                peer.sendall(b"\x16\x03\x01")
                await until(lambda: server._waiting and not server._silent)
                if number == 10:
                    gc.collect()
                    gc.disable()
            await asyncio.sleep(0.05)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            gc.set_debug(0)
            found = [each for each in gc.garbage if "pyxbroker" in type(each).__module__]
            gc.garbage.clear()
            gc.enable()
        assert found == []

    run(lambda: over_https(scenario, 3, 60))


def test_what_is_no_tls_ends_its_connection_alone(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: WebServer, port: int) -> None:
        with silent_ones(port, 1)[0] as plain:
            plain.sendall(LAST)
            plain.settimeout(5)
            await asyncio.to_thread(plain.recv, 1 << 10)
        assert await ask(port) == 200
        await until(lambda: not server._connections)

    run(lambda: over_https(scenario, 0, 5))
    assert [each.levelname for each in caplog.records] == ["WARNING"]
