"""Connections whose clients have not said yet what they want."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from certificates import client_context, server_context
from one_broker import Broker, Client, command_of
from one_broker import run as run_broker
from oracles import wire
from pyxbroker.base.half_open import (
    TLS_RECORD_BYTES_MAX,
    HalfOpen,
    PendingConnection,
    tls_first_bytes,
)
from pyxbroker.base.listening import Acceptor, listen
from pyxbroker.base.log import get_logger
from pyxbroker.base.pacing import Pace
from pyxbroker.base.poller import Poller
from pyxbroker.broker.broker_port import BrokerPort
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.web import server as admin_server
from pyxbroker.web.server import HANDSHAKE_S, WebServer
from served import nothing_can_be_watched_by
from web_client import LAST, Run, echo, parse, run, until

__all__ = ["run"]


STEPS_PER_TURN = 4
# A whole record of TLS, with the beginning of a ClientHello whose rest never comes.
BEGUN = bytes.fromhex("1603010004010000c8")
CONNECT = wire.frame(command_of(pb.CommandConnect(client_version="test", protocol_version=21)))


class Clock:
    """Time that passes with each step that is made for a pending."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Port:
    """Takes note of who begins, and of who has left, in which turn."""

    first_header_bytes = 1

    def __init__(self, side: Side) -> None:
        self._side = side
        self.begun: list[int] = []
        self.gone: list[int] = []
        self.looks = 0

    def first_bytes(self, header: bytes) -> int:
        self.looks += 1
        return len(header)

    def begin(self, pending: PendingConnection) -> None:
        self._side.step()
        self.begun.append(pending.number)
        pending.connection = pending.number

    def on_closed(self, pending: PendingConnection) -> None:
        self._side.step()
        self.gone.append(pending.number)


class CommandPort(Port):
    """Whose clients begin with a frame."""

    first_header_bytes = 4

    def first_bytes(self, header: bytes) -> int:
        self.looks += 1
        return 4 + int.from_bytes(header, "big")


class Side:
    """Half-open connections of a poller with time for four steps per turn, and their clients."""

    def __init__(self, timeout_s: float = 60) -> None:
        self.clock = Clock()
        self.turn = 0
        self.steps: list[int] = []  # in which turn
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop, Pace(STEPS_PER_TURN - 0.5, self.clock))
        self.closed: list[int] = []  # of those that had begun
        self.late: list[int] = []
        self.half_open = HalfOpen(self.poller, timeout_s, self._close, self._tell)
        self.strangers: list[PendingConnection] = []
        self.clients: list[socket.socket] = []
        self._counting = asyncio.ensure_future(self._count())

    async def _count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def step(self) -> None:
        self.clock.now += 1
        self.steps.append(self.turn)

    def _close(self, number: int) -> None:
        self.step()
        self.closed.append(number)

    def _tell(self, pending: PendingConnection) -> None:
        self.late.append(pending.number)

    def add(self, port: Port, count: int, address: str = "peer") -> None:
        for _ in range(count):
            with listen("127.0.0.1", 0) as sock:
                self.clients.append(socket.create_connection(sock.getsockname()))
                near = sock.accept()[0]
            near.setblocking(False)
            number = len(self.strangers)
            self.strangers.append(self.half_open.add(port, near, address, number))

    @property
    def most_in_a_turn(self) -> int:
        return max(Counter(self.steps).values())


def at_door(scenario: Callable[[Side], Awaitable[None]], timeout_s: float = 60) -> None:
    async def main() -> None:
        side = Side(timeout_s)
        try:
            await scenario(side)
        finally:
            for each in side.clients:
                each.close()
            side.half_open.stop()

    asyncio.run(main())


def test_a_turn_accepts_no_more_than_it_has_time_for() -> None:
    async def scenario(side: Side) -> None:
        accepted: list[socket.socket] = []

        def on_accepted(sock: socket.socket, *_: object) -> None:
            side.step()
            accepted.append(sock)

        sockets = [listen("127.0.0.1", 0) for _ in range(3)]
        for sock in sockets:
            side.clients += [socket.create_connection(sock.getsockname()) for _ in range(10)]
        acceptors = [Acceptor(sock, side.poller, on_accepted, get_logger("x")) for sock in sockets]
        await until(lambda: len(accepted) == 30)
        assert side.most_in_a_turn <= STEPS_PER_TURN
        # The ports take turns.
        assert len({each.getsockname() for each in accepted[:3]}) == 3
        for acceptor in acceptors:
            acceptor.close()
        for each in accepted:
            each.close()

    at_door(scenario)


def test_many_that_say_something_or_hang_up_at_once_have_so_many_steps_of_a_turn() -> None:
    async def scenario(side: Side) -> None:
        port = Port(side)
        side.add(port, 30)
        for each in side.clients[:15]:
            each.send(b"x")
        for each in side.clients[15:]:
            each.close()
        await until(lambda: len(side.steps) == 30)
        assert sorted(port.begun) == list(range(15)) and sorted(port.gone) == list(range(15, 30))
        assert side.most_in_a_turn <= STEPS_PER_TURN
        assert (side.half_open.silent, len(side.half_open)) == (0, 15)
        assert all(each.sock.fileno() == -1 for each in side.strangers[15:])
        for pending in side.strangers[:15]:
            pending.sock.close()

    at_door(scenario)


def test_each_is_closed_when_its_time_is_over_and_those_that_are_over_are_not() -> None:
    async def scenario(side: Side) -> None:
        port = Port(side)
        side.add(port, 20)
        side.half_open.begin(side.strangers[3])
        side.half_open.begin(side.strangers[4])
        side.half_open.remove(side.strangers[4])
        side.steps.clear()
        await asyncio.sleep(0.1)
        side.add(port, 1)
        await until(lambda: len(side.late) == 20)
        assert side.late == [*range(4), *range(5, 21)]
        assert (side.closed, port.gone) == ([3], [0, 1, 2, *range(5, 21)])
        assert side.most_in_a_turn <= STEPS_PER_TURN
        assert len(side.half_open) == side.half_open.silent == 0
        side.strangers[3].sock.close()
        side.strangers[4].sock.close()

    at_door(scenario, 0.2)


def test_what_belongs_together_is_left_to_the_kernel_until_it_is_there() -> None:
    async def scenario(side: Side) -> None:
        port = CommandPort(side)
        side.add(port, 2)
        whole, cut = side.clients
        whole.send(b"\0\0")
        cut.send(b"\0\0\1\0only a part")
        await asyncio.sleep(0.02)
        assert port.looks == 1
        whole.send(b"\0\6abc")
        await until(lambda: port.looks == 2)
        whole.send(b"de")
        await asyncio.sleep(0.02)
        assert port.looks == 2 and not side.steps
        whole.send(b"f")
        await until(lambda: port.begun == [0])
        assert side.strangers[0].sock.recv(100) == b"\0\0\0\6abcdef"
        # Who sends no more is looked at with what there is.
        cut.shutdown(socket.SHUT_WR)
        await until(lambda: port.begun == [0, 1])
        for pending in side.strangers:
            assert pending.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
            pending.sock.close()

    at_door(scenario)


def test_the_oldest_gives_way_whether_or_not_it_has_begun() -> None:
    async def scenario(side: Side) -> None:
        port = Port(side)
        side.add(port, 3)
        side.half_open.begin(side.strangers[1])
        gave_way = [side.half_open.evict().number for _ in range(3)]
        assert gave_way == [0, 1, 2]
        assert (port.gone, side.closed, len(side.half_open)) == ([0, 2], [1], 0)
        side.strangers[1].sock.close()

    at_door(scenario)


def test_of_the_address_that_has_most_the_oldest_gives_way() -> None:
    async def scenario(side: Side) -> None:
        port = Port(side)
        side.add(port, 1, "10.0.0.1")
        side.add(port, 3, "10.0.0.2")
        side.add(port, 2, "2001:db8::1")
        side.add(port, 2, "2001:db8::2")  # as many of one network of 64 bits make four
        side.half_open.begin(side.strangers[4])
        side.half_open.remove(side.strangers[5])  # it is known what it wants
        gave_way = [side.half_open.evict().number for _ in range(5)]
        assert gave_way == [1, 4, 2, 6, 0]
        for number in (4, 5):
            side.strangers[number].sock.close()

    at_door(scenario)


def test_a_door_with_nobody_asks_nothing_of_the_loop() -> None:
    async def scenario(side: Side) -> None:
        side.add(Port(side), 2)
        assert side.loop.remove_reader(side.poller._epoll.fileno())
        side.loop.add_reader(side.poller._epoll.fileno(), side.poller._on_ready)
        for each in side.strangers:
            side.half_open.disconnect(each)
        assert not side.loop.remove_reader(side.poller._epoll.fileno())

    at_door(scenario)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"\x16\3\1\0\xc8", 205),
        (b"\x16\3\1\x40\0", 16389),
        (b"\x16\3\1\x40\1", 0),  # no record is that large
        (b"GET /", 0),
        (b"\0\0\0\1\2", 0),
    ],
)
def test_a_handshake_begins_with_a_whole_record(header: bytes, size: int) -> None:
    assert tls_first_bytes(header) == size


def test_a_connect_begins_with_8_kib_at_most_and_one_that_is_too_large_at_once() -> None:
    port = BrokerPort("127.0.0.1", 0)
    sizes = (10, 8 << 10, 128 << 10, 129 << 10)
    awaited = [port.first_bytes(size.to_bytes(4, "big")) for size in sizes]
    assert awaited == [14, 8 << 10, 8 << 10, 0]
    port.close()


def receive_buffer(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def test_of_a_large_connect_the_kernel_holds_no_more_than_8_kib(tmp_path: Path) -> None:
    """With more, its client is one of those of whom there are not many."""

    async def scenario(broker: Broker) -> None:
        port = BrokerPort("127.0.0.1", 0)
        port.serve(broker.service)
        half_open, unfinished = broker.service.half_open, broker.service.connections.unfinished
        with socket.create_connection(("127.0.0.1", port.port)) as far:
            await until(lambda: half_open.silent == 1)
            [pending] = half_open._unidentified
            before = receive_buffer(pending.sock)
            size = 128 << 10
            far.sendall(struct.pack(">II", size, size - 4) + bytes((8 << 10) - 9))
            await asyncio.sleep(0.05)
            assert half_open.silent == 1 and receive_buffer(pending.sock) == before
            far.sendall(bytes(100))
            await until(lambda: list(unfinished) == [pending.connection])
            assert half_open.silent == 0 and len(half_open) == 1
        await until(lambda: not len(half_open))
        assert not unfinished
        port.close()

    run_broker(tmp_path, scenario)


def test_a_record_that_is_waited_for_takes_no_larger_buffer() -> None:
    async def scenario(side: Side) -> None:
        port = CommandPort(side)
        side.add(port, 1)
        near = side.strangers[0].sock
        before = receive_buffer(near)
        side.clients[0].send((TLS_RECORD_BYTES_MAX - 4).to_bytes(4, "big"))
        await until(lambda: port.looks == 1)
        awaited = near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        assert (awaited, receive_buffer(near)) == (TLS_RECORD_BYTES_MAX, before)

    at_door(scenario)


def test_a_client_gets_in_beside_many_that_say_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        silent = [Client(broker) for _ in range(20)]
        client = await broker.client()
        assert len(broker.service.half_open) == 4
        for each in silent[:15]:
            await each.closed()
        assert not client.connection.closed

    run_broker(tmp_path, scenario, maxHalfOpenConnections=5)


def test_a_client_that_is_slow_keeps_its_place_whoever_comes_from_elsewhere(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        port = BrokerPort("127.0.0.1", 0)
        port.serve(broker.service)
        here = ("127.0.0.1", port.port)
        with ExitStack() as stack:
            slow = stack.enter_context(socket.create_connection(here))
            slow.send(CONNECT[:9])
            for _ in range(50):
                stack.enter_context(socket.create_connection(here, source_address=("127.0.0.2", 0)))
            await until(lambda: sum(broker.service.evicted.values()) == 46)
            slow.send(CONNECT[9:])
            slow.setblocking(False)
            assert await broker.loop.sock_recv(slow, 1 << 10) != b""
        assert broker.service.evicted == {"maxHalfOpenConnections": 46}
        port.close()

    run_broker(tmp_path, scenario, maxHalfOpenConnections=5)


def test_who_cannot_be_watched_is_sent_away_and_counts_for_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system has a limit for what is watched: it costs the one that is too many."""

    async def scenario(broker: Broker) -> None:
        port = BrokerPort("127.0.0.1", 0)
        port.serve(broker.service)
        watch = broker.service.poller.watch

        def full(fd: int, watched: Any) -> None:
            if isinstance(watched, PendingConnection):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            watch(fd, watched)

        monkeypatch.setattr(broker.service.poller, "watch", full)
        with socket.create_connection(("127.0.0.1", port.port)) as refused:
            refused.setblocking(False)
            assert await broker.loop.sock_recv(refused, 1) == b""
        assert broker.service.connections_of("127.0.0.1") == 0
        assert (broker.service.half_open.silent, len(broker.service.half_open)) == (0, 0)
        monkeypatch.undo()
        with socket.create_connection(("127.0.0.1", port.port)):
            await until(lambda: broker.service.connections_of("127.0.0.1") == 1)
        await until(lambda: broker.service.connections_of("127.0.0.1") == 0)
        port.close()

    run_broker(tmp_path, scenario)


def test_who_cannot_be_watched_when_it_begins_counts_for_nobody_either(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        service, port = broker.service, BrokerPort("127.0.0.1", 0)
        port.serve(service)
        with (
            nothing_can_be_watched_by(service.connections.unauthenticated_fd),
            socket.create_connection(("127.0.0.1", port.port)) as far,
        ):
            far.send(CONNECT)
            far.setblocking(False)
            with suppress(ConnectionResetError):  # what it sent was not looked at
                assert await broker.loop.sock_recv(far, 1) == b""
        assert service.connection_count == service.connections_of("127.0.0.1") == 0
        assert not service.connections.live and not service.connections.watched
        with socket.create_connection(("127.0.0.1", port.port)) as far:
            far.send(CONNECT)
            await until(lambda: [each for each in service.connections.live if each.established])
        port.close()

    run_broker(tmp_path, scenario)
    assert "could not begin" in caplog.text


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
        assert server.evicted >= 25 and not server.refused
        assert len(server._connections) + len(server._silent) <= 5
        for each in silent:
            each.close()

    run(lambda: over_https(scenario, 5, 60))


def test_a_handshake_that_is_slow_keeps_its_place_on_the_web_port_whoever_comes_from_elsewhere(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_server, "HANDSHAKES_MIN", 1)

    async def scenario(server: WebServer, port: int) -> None:
        [begun] = silent_ones(port, 1)
        begun.sendall(BEGUN)
        await until(lambda: len(server._opening) == 1)
        [silent] = silent_ones(port, 1)
        await until(lambda: len(server._silent) == 1)
        others = []
        for number in range(60):
            others.append(
                socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
            )
            if number % 2:
                others[-1].sendall(BEGUN)
        await until(lambda: len(server._connections) + len(server._silent) + server.evicted == 62)
        assert server.evicted >= 42
        for each in (begun, silent):
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
        for each in [begun, silent, *others]:
            each.close()

    run(lambda: over_https(scenario, 20, 60))


def test_handshakes_that_are_not_over_have_a_quarter_of_the_places_of_the_web_port(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_server, "HANDSHAKES_MIN", 1)

    async def scenario(server: WebServer, port: int) -> None:
        silent = silent_ones(port, 20)
        for each in silent:
            each.sendall(BEGUN)
        await until(lambda: server.evicted == 15 and not len(server._silent))
        assert len(server._opening) == len(server._connections) == 5
        assert await ask(port) == 200
        assert (server.evicted, server.refused) == (16, 0)
        for each in silent:
            each.close()
        await until(lambda: not server._connections and not server._opening)

    run(lambda: over_https(scenario, 20, 60))


def test_where_there_are_few_places_handshakes_may_have_all_of_them(run: Run) -> None:
    async def scenario(server: WebServer, port: int) -> None:
        assert await asyncio.gather(*(ask(port) for _ in range(4))) == [200] * 4

    run(lambda: over_https(scenario, 4, 60))


def test_who_cannot_begin_for_a_defect_costs_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Port):
        def begin(self, pending: PendingConnection) -> None:
            raise ZeroDivisionError("broken")

    async def scenario(side: Side) -> None:
        port = Broken(side)
        side.add(port, 2)
        side.clients[0].send(b"x")
        await until(lambda: port.gone == [0])
        assert side.strangers[0].sock.fileno() == -1
        assert len(side.half_open) == side.half_open.silent == 1
        await until(lambda: port.gone == [0, 1])  # its time is over

    at_door(scenario, 0.2)
    assert "could not begin" in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError("broken"), ("a connection could not be opened", None)),
        (OSError("broken"), ("closed", "broken")),
    ],
)
def test_who_cannot_be_opened_on_the_web_port_keeps_no_place(
    run: Run, caplog: pytest.LogCaptureFixture, error: Exception, told: tuple[str, str | None]
) -> None:
    async def main() -> None:
        async def connect(*_: Any, **__: Any) -> Any:
            raise error

        sock = listen("127.0.0.1", 0)
        server = WebServer(echo, 1)
        server.loop = Wrapped(asyncio.get_running_loop(), connect)  # type: ignore[assignment]
        server.start(sock)
        for _ in range(2):
            with silent_ones(sock.getsockname()[1], 1)[0] as peer:
                peer.sendall(LAST)
                peer.setblocking(False)
                with suppress(ConnectionResetError):
                    assert await asyncio.get_running_loop().sock_recv(peer, 1) == b""
        assert not server._connections and not len(server._waiting)
        assert (server.refused, server.evicted) == (0, 0)
        await server.stop()

    run(main)
    fields = [(each.getMessage(), vars(each)["fields"].get("reason")) for each in caplog.records]
    assert fields == [told] * 2


def test_a_handshake_has_no_time_anew_when_it_begins(run: Run) -> None:
    async def scenario(server: WebServer, port: int) -> None:
        (silent,) = silent_ones(port, 1)
        await until(lambda: len(server._silent) == 1)
        (pending,) = server._silent._unidentified
        pending.due -= 59.9
        silent.sendall(BEGUN)
        await until(lambda: server._connections)
        await until(lambda: not server._connections)
        silent.close()

    run(lambda: over_https(scenario, 0, 60))


def test_a_turn_opens_so_many_connections_of_the_web_port_whoever_counts_them(run: Run) -> None:
    """Also what uvloop does of a handshake, beyond what is seen of it, is paid for."""

    async def main() -> None:
        loop, turn = asyncio.get_running_loop(), 0
        opened: list[int] = []
        connect = loop.connect_accepted_socket

        async def counted(*args: Any, **more: Any) -> Any:
            opened.append(turn)
            return await connect(*args, **more)

        sock = listen("127.0.0.1", 0)
        clock = Clock()  # which stands still: nothing is paid for but what is told
        server = WebServer(echo, 0, poller=Poller(loop, Pace(HANDSHAKE_S, clock)))
        server.loop = Wrapped(loop, counted)  # type: ignore[assignment]
        server.start(sock, server_context)
        silent = silent_ones(sock.getsockname()[1], 10)
        for each in silent:
            each.sendall(BEGUN)
        while len(opened) < 10:
            turn += 1
            await asyncio.sleep(0)
        assert max(Counter(opened).values()) == 1
        await server.stop()
        for each in silent:
            each.close()

    run(main)


class Wrapped:
    """A loop with another way to open transports."""

    def __init__(self, inner: Any, connect: Any) -> None:
        self._inner = inner
        self.connect_accepted_socket = connect

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_handshake_on_the_web_port_ends_in_time(run: Run) -> None:
    async def scenario(server: WebServer, port: int) -> None:
        silent = silent_ones(port, 3)
        silent[0].sendall(BEGUN)
        silent[1].sendall(BEGUN[:3])
        for each in silent:
            each.settimeout(5)
            with suppress(ConnectionResetError):  # of what it sent something was not looked at
                assert await asyncio.to_thread(each.recv, 1) == b""
            each.close()
        assert not server._connections and not len(server._silent)
        assert await ask(port) == 200

    run(lambda: over_https(scenario, 0, 0.2))


@pytest.mark.parametrize("says", [b"", BEGUN])
def test_a_stop_does_not_wait_for_a_handshake(run: Run, says: bytes) -> None:
    async def main() -> None:
        sock = listen("127.0.0.1", 0)
        server = WebServer(echo, 0, handshake_timeout_s=60)
        server.start(sock, server_context)
        with silent_ones(sock.getsockname()[1], 1)[0] as peer:
            peer.sendall(says)
            await until(lambda: server._connections if says else len(server._silent))
            await asyncio.wait_for(server.stop(), 30)  # half of its time

    run(main)


def test_handshakes_that_are_cut_off_leave_no_rings(run: Run) -> None:
    async def scenario(server: WebServer, port: int) -> None:
        with ExitStack() as stack:
            for number in range(30):
                [peer] = silent_ones(port, 1)
                stack.enter_context(peer)
                peer.sendall(BEGUN)
                await until(lambda: server._waiting and not len(server._silent))
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
