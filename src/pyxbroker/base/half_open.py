"""Connections that have not sent a complete first request yet: their number and their time limit.

A TLS handshake that does not end, a CONNECT that arrives byte by byte, and silence are treated
alike: a connection has a fixed time, whatever it sends meanwhile. The time is the same for all, so
the oldest connection is always the next to expire, and one timer serves thousands. A connection
that has sent its request and not yet authenticated still counts, but no longer expires.

Until a connection has sent enough to begin with, it is only a socket watched by the poller, and its
bytes stay in the kernel. Where the first bytes tell the length of the first unit (a TLS record, a
command), the socket is not read before all of it has arrived. A large first unit begins with a part
of it: otherwise the kernel would buffer all of it for each of thousands of connections.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import Any, Protocol

from pyxbroker.base.eviction_queue import EvictionQueue
from pyxbroker.base.log import get_logger
from pyxbroker.base.poller import Poller

TLS_HEADER_BYTES = 5
TLS_RECORD_BYTES_MAX = TLS_HEADER_BYTES + (16 << 10)
_TLS_HANDSHAKE = 0x16

log = get_logger(__name__)


class Host(Protocol):
    """The port that accepted the connections."""

    @property
    def first_header_bytes(self) -> int:
        """The number of first bytes (at least one) that tell how many bytes to wait for."""

    def first_bytes(self, header: bytes) -> int:
        """Return how many bytes, including the header, must arrive before the connection begins.

        0 means that it begins immediately.
        """

    def begin(self, pending: PendingConnection) -> None:
        """Take over the socket: its first bytes have arrived, or the peer has closed it."""

    def on_closed(self, pending: PendingConnection) -> None:
        """Handle a connection that was closed before it began."""


class PendingConnection:
    """An accepted connection without a complete first request."""

    __slots__ = ("_awaited", "_half_open", "address", "connection", "due", "host", "number", "sock")

    def __init__(
        self, half_open: HalfOpen, host: Host, sock: socket.socket, address: str, number: int
    ) -> None:
        self._half_open = half_open
        self._awaited = 1  # bytes that must arrive before the next check
        self.host = host
        self.sock = sock
        self.address = address
        self.number = number
        self.due = 0.0  # loop time at which it expires
        self.connection: Any = None  # set when it has begun and is still half-open

    @property
    def peer(self) -> str:
        """The address and port, for the log."""
        return f"{self.address}:{self.number}"

    def on_ready(self) -> None:
        """Check what has arrived: begin, wait for more, or close."""
        size = self.host.first_header_bytes
        try:
            header = self.sock.recv(size, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            header = b""
        if not header:
            self._half_open.disconnect(self)
            return
        awaited = size if len(header) < size else self.host.first_bytes(header)
        if awaited <= self._awaited or awaited <= bytes_there(self.sock):
            self._half_open.begin(self)  # all bytes are there, or no more will arrive
            return
        self._awaited = awaited
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)


def bytes_there(sock: socket.socket) -> int:
    """Return how many bytes can be received now."""
    count = array.array("i", [0])
    fcntl.ioctl(sock, termios.FIONREAD, count)
    return count[0]


def tls_first_bytes(header: bytes) -> int:
    """Return `Host.first_bytes` for a port with TLS: the length of the first record."""
    size = TLS_HEADER_BYTES + int.from_bytes(header[3:TLS_HEADER_BYTES], "big")
    return size if header[0] == _TLS_HANDSHAKE and size <= TLS_RECORD_BYTES_MAX else 0


class HalfOpen:
    """The half-open connections of some ports.

    `close` closes a connection that has begun. `on_expired` is called for each one that expires.
    `queue` is shared with other kinds of connections if these compete for the same places.
    """

    def __init__(
        self,
        poller: Poller,
        timeout_s: float,
        close: Callable[[Any], object],
        on_expired: Callable[[PendingConnection], object],
        queue: EvictionQueue[Any] | None = None,
    ) -> None:
        self._poller = poller
        self._timeout_s = timeout_s
        self._close = close
        self._on_expired = on_expired
        self._step_queue = poller.pace.queue()
        self._queue: EvictionQueue[Any] = EvictionQueue() if queue is None else queue
        self._unidentified: dict[PendingConnection, None] = {}  # oldest first
        self._authenticating: dict[PendingConnection, None] = {}  # in the order of login requests
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False  # the oldest one is queued to be closed
        self.silent = 0  # connections that have not begun

    def __len__(self) -> int:
        return len(self._unidentified) + len(self._authenticating)

    def add(self, host: Host, sock: socket.socket, address: str, number: int) -> PendingConnection:
        """Register a new connection that has sent nothing yet."""
        pending = PendingConnection(self, host, sock, address, number)
        self._poller.watch(sock.fileno(), pending)
        self.silent += 1
        pending.due = self._poller.loop.time() + self._timeout_s
        self._unidentified[pending] = None
        self._queue.add(pending, address)
        if self._timer is None and not self._is_due:
            self._timer = self._poller.loop.call_at(pending.due, self._on_due)
        return pending

    def begin(self, pending: PendingConnection) -> None:
        """Begin a connection: its first bytes are complete, or no more will arrive."""
        self._unwatch(pending)
        pending.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        try:
            pending.host.begin(pending)
        except Exception as error:
            # A defect must cost only this connection: the poller continues for all others.
            log.failure("a connection could not begin", error, peer=pending.peer)
            self.remove(pending)
            pending.sock.close()
            pending.host.on_closed(pending)

    def mark_authenticating(self, pending: PendingConnection) -> None:
        """Mark a connection as logging in: it no longer expires, but still counts."""
        self._unidentified.pop(pending, None)
        self._authenticating[pending] = None

    def remove(self, pending: PendingConnection) -> None:
        """Stop counting a connection: it is authenticated, or closed."""
        self._unidentified.pop(pending, None)
        self._authenticating.pop(pending, None)
        self._queue.discard(pending)

    def evict(self) -> PendingConnection:
        """Close and return the oldest connection of the largest network.

        There must be one, and no other kind of entry in the queue.
        """
        first = self._queue.first()
        assert isinstance(first, PendingConnection), "no half-open connection to close"
        self.disconnect(first)
        return first

    def disconnect(self, pending: PendingConnection) -> None:
        """Close a connection."""
        self.remove(pending)
        if pending.connection is not None:
            self._close(pending.connection)
            return
        self._unwatch(pending)
        pending.sock.close()
        pending.host.on_closed(pending)

    def _unwatch(self, pending: PendingConnection) -> None:
        self.silent -= 1
        self._poller.unwatch(pending.sock.fileno())

    def _on_due(self) -> None:
        self._timer = None
        self._is_due = True
        self._step_queue.wait(self._close_due)

    def _close_due(self) -> None:
        """Close one expired connection, since thousands may expire at the same time."""
        self._is_due = False
        oldest = next(iter(self._unidentified), None)
        if oldest is None:
            return
        if oldest.due > self._poller.loop.time():
            self._timer = self._poller.loop.call_at(oldest.due, self._on_due)
            return
        try:
            self._on_expired(oldest)
            self.disconnect(oldest)
        finally:
            self._on_due()  # an error with one connection must not stop the expiry of the others

    def stop(self) -> None:
        """Close the connections that have not begun, and stop tracking the others."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for pending in [*self._unidentified, *self._authenticating]:
            if pending.connection is None:
                self.disconnect(pending)
            else:
                self.remove(pending)
