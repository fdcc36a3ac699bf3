"""kazoo's connection to ZooKeeper with less work for each request.

kazoo sends one request per system call, reads one answer with two, and creates and closes an epoll
instance before each of these calls. It passes each answer through a queue to another thread. Here,
waiting requests are sent together, answers that have arrived together are read together, and
callbacks run on the connection's thread. They only hand over to the loop, so they never block it.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler

if TYPE_CHECKING:
    from kazoo.client import KazooClient

READ_BYTES = 64 << 10
XID_MAX = 0x7FFFFFFF

_LENGTH = Struct(">i")
_HEAD = Struct(">iii")  # length of what follows, xid, type


class DirectHandler(SequentialThreadingHandler):
    """Callbacks run on the thread that has the answer or the event, in ZooKeeper's order."""

    def start(self) -> None:
        """Start no thread. kazoo calls back directly while `running` is False."""

    def stop(self) -> None:
        """Stop nothing."""

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def select(
        self,
        readers: Sequence[socket.socket],
        writers: Sequence[socket.socket],
        _: Sequence[socket.socket],
        timeout: float | None = None,
    ) -> tuple[list[socket.socket], list[socket.socket], list[socket.socket]]:
        poll = select.poll()
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)}
        return (
            [each for each in readers if each.fileno() in ready],
            [each for each in writers if each.fileno() in ready],
            [],
        )


class _WakeUp:
    """The socket that wakes the connection's thread, used once for all requests that wait.

    kazoo appends a request to the queue before it calls `send`, and the thread takes all of them. A
    request that is not the first one there is therefore covered by an earlier call.
    """

    def __init__(self, client: KazooClient, wake_up: socket.socket) -> None:
        self._client = client
        self._socket = wake_up
        self.close = wake_up.close

    def send(self, data: bytes) -> None:
        if len(self._client._queue) == 1:
            self._socket.send(data)


class BatchingConnection(ConnectionHandler):
    """A connection that sends and receives several messages with one system call."""

    _received = bytearray()
    _write_sock: Any
    _xid: int

    def start(self) -> None:
        super().start()
        self._write_sock = _WakeUp(self.client, self._write_sock)

    def _connect(self, *address: Any) -> Any:
        self._received = bytearray()
        return super()._connect(*address)

    def _read(self, length: int, timeout: float) -> bytes:
        """Return exactly so many bytes, and receive what has arrived beyond them."""
        while len(self._received) < length:
            with self._socket_error_handling():
                try:
                    data = self._socket.recv(max(READ_BYTES, length - len(self._received)))
                except BlockingIOError:
                    if not self.handler.select([self._socket], [], [], timeout)[0]:
                        raise self.handler.timeout_exception("ZooKeeper is silent") from None
                    continue
            if not data:
                raise ConnectionDropped("ZooKeeper closed the connection")
            self._received += data
        taken = bytes(self._received[:length])
        del self._received[:length]
        return taken

    def _has_message(self) -> bool:
        """Return True if a whole message has been received and not been taken yet."""
        received = len(self._received)
        size = _LENGTH.size
        return received >= size and received >= size + _LENGTH.unpack_from(self._received)[0]

    def _read_socket(self, timeout: float) -> Any:
        """Handle all messages that have arrived. kazoo would wait for the others in the socket."""
        result = super()._read_socket(timeout)
        while result is None and self._has_message():
            result = super()._read_socket(timeout)
        return result

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """Send all waiting requests. If that fails, they fail as those without an answer do."""
        self._read_sock.recv(READ_BYTES)
        queue, pending = self.client._queue, self.client._pending
        messages = bytearray()
        while queue:
            request, answer = queue.popleft()
            self._xid = self._xid % XID_MAX + 1
            body = request.serialize()
            messages += _HEAD.pack(_HEAD.size - _LENGTH.size + len(body), self._xid, request.type)
            messages += body
            pending.append((request, answer, self._xid))
        if messages:
            self._write(messages, connect_timeout)
