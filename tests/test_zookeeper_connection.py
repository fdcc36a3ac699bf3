"""Messages of the connection to ZooKeeper, with a server that cuts and joins them."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable

import pytest

from pyxbroker.metadata.store import Unavailable
from pyxbroker.metadata.zookeeper import ZooKeeperStore

NO_NODE = -101
CONNECTED = struct.pack(">iiiqi", 36, 0, 10_000, 1, 16) + bytes(16)
VALUE = b"v" * 200_000  # more than one receive brings

Send = Callable[[socket.socket, bytes], None]


def answer(xid: int, path: bytes) -> bytes:
    """The answer to GetData: a missing node, or one whose value is its path with VALUE."""
    if path.startswith(b"/missing"):
        return struct.pack(">iiqi", 16, xid, 1, NO_NODE)
    value = path + VALUE if path.startswith(b"/large") else path
    body = struct.pack(">iqi", xid, 1, 0) + struct.pack(">i", len(value)) + value
    body += struct.pack(">qqqqiiiqiiq", 1, 1, 0, 0, 7, 0, 0, 0, len(value), 0, 1)
    return struct.pack(">i", len(body)) + body


class Server(threading.Thread):
    """Accepts one connection, and answers when `count` requests have arrived."""

    def __init__(self, count: int, send: Send) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.count = count
        self.send = send
        self.paths: list[bytes] = []
        self.receives = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def run(self) -> None:
        connection = self.listener.accept()[0]
        with self.listener, connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = bytearray(connection.recv(1 << 16))
            assert len(received) == 4 + struct.unpack_from(">i", received)[0]
            received.clear()
            self.send(connection, CONNECTED)
            answers = b""
            while True:
                data = connection.recv(1 << 16)
                if not data:
                    return
                self.receives += 1
                received += data
                while len(received) >= 4:
                    length, xid, kind = struct.unpack_from(">iii", received)
                    if len(received) < 4 + length:
                        break
                    if kind == 4:  # GetData
                        size = struct.unpack_from(">i", received, 12)[0]
                        self.paths.append(bytes(received[16 : 16 + size]))
                        answers += answer(xid, self.paths[-1])
                    else:  # closeSession
                        self.send(connection, struct.pack(">iiqi", 16, xid, 1, 0))
                    del received[: 4 + length]
                if len(self.paths) == self.count and answers:
                    self.send(connection, answers)
                    answers = b""


def store_of(server: Server) -> ZooKeeperStore:
    return ZooKeeperStore(
        server.address,
        session_timeout_ms=10_000,
        operation_timeout_ms=5_000,
        connect_timeout_ms=5_000,
    )


def together(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)


def cut(connection: socket.socket, data: bytes) -> None:
    """Send the first bytes one by one, and end in the middle of messages later on."""
    for at in range(min(100, len(data))):
        connection.sendall(data[at : at + 1])
    for at in range(100, len(data), 13):
        connection.sendall(data[at : at + 13])


@pytest.mark.parametrize("send", [together, cut])
def test_waiting_requests_arrive_together_and_their_answers_in_order(send: Send) -> None:
    """No request waits for the answer of one before it."""
    paths = [f"/{'missing' if n % 3 else 'node'}-{n}" for n in range(100)]
    server = Server(len(paths), send)

    async def main() -> None:
        store = store_of(server)
        await store.open()
        order: list[str] = []

        async def get(path: str) -> None:
            found = await store.get(path)
            order.append(path)
            assert (found is None) == path.startswith("/missing")
            assert found is None or (found.value, found.version) == (path.encode(), 7)

        await asyncio.gather(*map(get, paths))
        assert order == paths
        await store.close()

    server.start()
    asyncio.run(asyncio.wait_for(main(), 20))
    assert server.paths == [path.encode() for path in paths]
    assert server.receives < len(paths) / 2


def test_an_answer_larger_than_one_receive_is_whole() -> None:
    server = Server(3, together)

    async def main() -> None:
        store = store_of(server)
        await store.open()
        found = await asyncio.gather(*map(store.get, ["/node", "/large", "/node-2"]))
        assert [each and each.value for each in found] == [b"/node", b"/large" + VALUE, b"/node-2"]
        await store.close()

    server.start()
    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_connection_that_ends_within_an_answer_leaves_no_wrong_answer() -> None:
    def half(connection: socket.socket, data: bytes) -> None:
        if data == CONNECTED:
            connection.sendall(data)
        else:
            connection.sendall(data[:-5])
            connection.shutdown(socket.SHUT_RDWR)

    server = Server(2, half)

    async def main() -> None:
        store = ZooKeeperStore(
            server.address,
            session_timeout_ms=10_000,
            operation_timeout_ms=1_000,
            connect_timeout_ms=5_000,
        )
        await store.open()
        first, second = await asyncio.gather(
            store.get("/node"), store.get("/missing"), return_exceptions=True
        )
        assert isinstance(second, Unavailable)
        assert not isinstance(first, BaseException) and first and first.value == b"/node"
        await store.close()

    server.start()
    asyncio.run(asyncio.wait_for(main(), 20))
