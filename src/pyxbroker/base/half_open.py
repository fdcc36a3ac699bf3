"""Connections whose clients have not said yet what they want: how many, and for how long.

A TLS handshake that does not end, a CONNECT that comes byte by byte, and silence are all the same
here: a connection has so long, whatever it sends meanwhile. All of them have the same time, so that
the oldest is the next one that is due, and one timer is enough for thousands. Who has said what it
wants, and not yet proved who it is, is one of them still, but for the time.

Before there is enough to begin with, a stranger is a socket that the door watches, and what it has
sent is left to the kernel: where the first bytes say how many belong together (a record of TLS, a
command), it is not looked at again before they are there. What is large begins with a part of it:
the kernel would hold the rest, and as much room beside it, for each of thousands.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import Any, Protocol

from pyxbroker.base.crowd import Crowd
from pyxbroker.base.door import Door
from pyxbroker.base.log import get_logger

TLS_HEADER_BYTES = 5
TLS_RECORD_BYTES_MAX = TLS_HEADER_BYTES + (16 << 10)
_TLS_HANDSHAKE = 0x16

log = get_logger(__name__)


class Host(Protocol):
    """The port that strangers come by."""

    @property
    def first_header_bytes(self) -> int:
        """With so many bytes, at least one, it is known how many belong to what comes first."""

    def first_bytes(self, header: bytes) -> int:
        """How many of those have to be there before it begins, the header included; 0: it begins
        now, whatever comes.
        """

    def begin(self, stranger: Stranger) -> None:
        """It has something to begin with, or has gone. The socket is the host's from now on."""

    def left(self, stranger: Stranger) -> None:
        """It is closed, and did not begin."""


class Stranger:
    """Somebody who has come to a port."""

    __slots__ = ("_awaited", "_kept", "address", "connection", "due", "host", "number", "sock")

    def __init__(
        self, kept: HalfOpen, host: Host, sock: socket.socket, address: str, number: int
    ) -> None:
        self._kept = kept
        self._awaited = 1  # bytes that have to be there before it is looked at
        self.host = host
        self.sock = sock
        self.address = address
        self.number = number
        self.due = 0.0  # when its time is over
        self.connection: Any = None  # from its beginning on, where it is half-open still

    @property
    def peer(self) -> str:
        """For the log."""
        return f"{self.address}:{self.number}"

    def on_ready(self) -> None:
        """Something has come, or it has gone."""
        size = self.host.first_header_bytes
        try:
            header = self.sock.recv(size, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            header = b""
        if not header:
            self._kept.hang_up(self)
            return
        awaited = size if len(header) < size else self.host.first_bytes(header)
        if awaited <= self._awaited or awaited <= bytes_there(self.sock):
            self._kept.begin(self)  # it is all there, or more is not going to come
            return
        self._awaited = awaited
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)


def bytes_there(sock: socket.socket) -> int:
    """How many bytes could be received now."""
    count = array.array("i", [0])
    fcntl.ioctl(sock, termios.FIONREAD, count)
    return count[0]


def tls_first_bytes(header: bytes) -> int:
    """Of the record that TLS begins with: `Host.first_bytes`."""
    size = TLS_HEADER_BYTES + int.from_bytes(header[3:TLS_HEADER_BYTES], "big")
    return size if header[0] == _TLS_HANDSHAKE and size <= TLS_RECORD_BYTES_MAX else 0


class HalfOpen:
    """Those of some ports; `close` closes the connection of one that has begun, and `tell` is told
    of each whose time is over. A crowd has others beside them where these give way together.
    """

    def __init__(
        self,
        door: Door,
        timeout_s: float,
        close: Callable[[Any], object],
        tell: Callable[[Stranger], object],
        crowd: Crowd[Any] | None = None,
    ) -> None:
        self._door = door
        self._timeout_s = timeout_s
        self._close = close
        self._tell = tell
        self._line = door.pace.line()
        self._crowd: Crowd[Any] = Crowd() if crowd is None else crowd
        self._strangers: dict[Stranger, None] = {}  # the oldest first
        self._looked_at: dict[Stranger, None] = {}  # those whose logins are, in their order
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False  # the oldest one waits for its turn to be closed
        self.silent = 0  # those that have not begun

    def __len__(self) -> int:
        return len(self._strangers) + len(self._looked_at)

    def add(self, host: Host, sock: socket.socket, address: str, number: int) -> Stranger:
        """Somebody has come, and says nothing yet."""
        stranger = Stranger(self, host, sock, address, number)
        self._door.watch(sock.fileno(), stranger)
        self.silent += 1
        stranger.due = self._door.loop.time() + self._timeout_s
        self._strangers[stranger] = None
        self._crowd.add(stranger, address)
        if self._timer is None and not self._is_due:
            self._timer = self._door.loop.call_at(stranger.due, self._on_due)
        return stranger

    def begin(self, stranger: Stranger) -> None:
        """There is enough to begin with, or as much as there is going to be."""
        self._unwatch(stranger)
        stranger.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        try:
            stranger.host.begin(stranger)
        except Exception as error:
            # A defect costs this one: the door goes on for all others.
            log.failure("a connection could not begin", error, peer=stranger.peer)
            self.over(stranger)
            stranger.sock.close()
            stranger.host.left(stranger)

    def look_at(self, stranger: Stranger) -> None:
        """It is known what it wants, and not yet who it is: its time is over, its place is not."""
        self._strangers.pop(stranger, None)
        self._looked_at[stranger] = None

    def over(self, stranger: Stranger) -> None:
        """It is known what it wants and who it is, or it is gone."""
        self._strangers.pop(stranger, None)
        self._looked_at.pop(stranger, None)
        self._crowd.discard(stranger)

    def close_one(self) -> Stranger:
        """Who came first from the network that has most gives way, and is returned. There has to be
        one, and nobody else in the crowd.
        """
        first = self._crowd.first()
        assert isinstance(first, Stranger), "there has to be one"
        self.hang_up(first)
        return first

    def hang_up(self, stranger: Stranger) -> None:
        """Closes it."""
        self.over(stranger)
        if stranger.connection is not None:
            self._close(stranger.connection)
            return
        self._unwatch(stranger)
        stranger.sock.close()
        stranger.host.left(stranger)

    def _unwatch(self, stranger: Stranger) -> None:
        self.silent -= 1
        self._door.unwatch(stranger.sock.fileno())

    def _on_due(self) -> None:
        self._timer = None
        self._is_due = True
        self._line.wait(self._close_due)

    def _close_due(self) -> None:
        """Closes one whose time is over: thousands may be due in one moment."""
        self._is_due = False
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return
        if oldest.due > self._door.loop.time():
            self._timer = self._door.loop.call_at(oldest.due, self._on_due)
            return
        try:
            self._tell(oldest)
            self.hang_up(oldest)
        finally:
            self._on_due()  # whatever is wrong with one, the others' time goes on

    def stop(self) -> None:
        """Those that have not begun are closed; nobody looks after the others any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for stranger in [*self._strangers, *self._looked_at]:
            if stranger.connection is None:
                self.hang_up(stranger)
            else:
                self.over(stranger)
