"""The web port: its connections, and how it stops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from pyxbroker.base.eviction_queue import EvictionQueue
from pyxbroker.base.half_open import TLS_HEADER_BYTES, HalfOpen, PendingConnection, tls_first_bytes
from pyxbroker.base.listening import Acceptor
from pyxbroker.base.log import get_logger
from pyxbroker.base.memory_budget import MemoryBudget
from pyxbroker.base.pacing import Pace, StepQueue, paced
from pyxbroker.base.poller import Poller
from pyxbroker.web.counts import WebCounts

if TYPE_CHECKING:
    from ssl import SSLContext

    from pyxbroker.web.connection import HttpConnection
    from pyxbroker.web.request import Request
    from pyxbroker.web.response import Response

    Contexts = Callable[[], SSLContext]

log = get_logger(__name__)

STOP_TIMEOUT_S = 2.0
HANDSHAKE_TIMEOUT_S = 10.0
# About what a handshake costs the loop once its transport is there: uvloop asks nobody for a turn.
HANDSHAKE_S = 0.0003
HANDSHAKES_PART = 4  # of the places for connections, for those whose handshake is not over
HANDSHAKES_MIN = 64  # they may be so many where there are as many places


class WebServer:
    """Answers the requests to its listening sockets.

    `answer` makes each answer, and what is written of it is charged to `memory`; `connections_max`
    may be 0, for no limit. Nothing runs while nobody
    asks: each connection has a deadline, the server has none.
    """

    def __init__(
        self,
        answer: Callable[[Request[Any]], Awaitable[Response]],
        connections_max: int,
        pace: Pace | None = None,
        memory: MemoryBudget | None = None,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        poller: Poller | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.answer = answer
        self._connections_max = connections_max
        self._pace = pace or Pace()
        self.memory = memory or MemoryBudget()
        self._poller = poller or Poller(self.loop)
        # Those that wait for their client, be it for its first word, or to know who it is.
        self._waiting: EvictionQueue[PendingConnection | HttpConnection] = EvictionQueue()
        self.head_timeout_s = handshake_timeout_s  # a client is as slow with the one as the other
        # Who says nothing costs no more than a socket, whatever a connection and its TLS cost.
        self._silent = HalfOpen(
            self._poller, handshake_timeout_s, _never, _no_matter, self._waiting
        )
        # From their beginning on, whether or not their handshake is over.
        self._connections: set[HttpConnection] = set()
        # Those of them whose handshake is not over.
        self._opening: EvictionQueue[HttpConnection] = EvictionQueue()
        self.counts = WebCounts()
        self.refused = 0  # connections, since there were too many
        self.gave_way = 0  # that were closed for others
        self._tasks: set[asyncio.Task[None]] = set()
        self._acceptors: list[Acceptor] = []
        self._stopped: asyncio.Future[None] | None = None

    def start(self, sock: socket.socket, tls: Contexts | None = None) -> None:
        """Answers what has been waiting in the port's backlog, and all that follows; by HTTPS with
        contexts: `tls` gives that of one more connection. May be called for more than one port.
        """
        accept = partial(self._accept, _Port(self, tls))
        self._acceptors.append(Acceptor(sock, self._poller, accept, log))

    def _accept(self, port: _Port, sock: socket.socket, address: str, number: int) -> None:
        if not self._make_room():
            sock.close()
            return
        self._silent.add(port, sock, address, number)

    def _make_room(self) -> bool:
        """Whether one more connection may be; where there are too many, one gives way that waits
        for its client, or to be known. A handshake that does not end waits for its client, too.
        """
        if self.is_stopping:
            return False
        limit = self._connections_max
        if limit and len(self._connections) + len(self._silent) >= limit:
            first = self._waiting.first()
            if first is None:
                self.refused += 1
                log.warning("refused by maxHttpServerConnections", limit=limit)
                return False
            self._give_way(first, "closed by maxHttpServerConnections")
        return True

    def _give_way(self, one: PendingConnection | HttpConnection, why: str) -> None:
        self.gave_way += 1
        log.warning(why, peer=one.address, limit=self._connections_max)
        if isinstance(one, PendingConnection):
            self._silent.disconnect(one)
        else:
            one.abort()
            self.forget(one)

    def begin(self, pending: PendingConnection, tls: Contexts | None) -> None:
        """Somebody has something to begin with."""
        # With the first client: a start does not wait for the parser.
        from pyxbroker.web.connection import HttpConnection

        context = None if tls is None else tls()
        self._silent.remove(pending)
        sock = pending.sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = HttpConnection(self, pending.address)
        self._connections.add(connection)
        self._waiting.add(connection, connection.address)
        if context is not None:
            self._make_room_for_handshake()
            self._opening.add(connection, connection.address)
        opening = self._open(connection, sock, context, pending.due)
        # A transport and TLS cost more than all else before a login: the poller has time for a few.
        task = self.loop.create_task(paced(opening, self._poller.pace.queue()))
        connection.opening = task
        task.add_done_callback(partial(self._on_opened, connection, sock, opening))

    def _make_room_for_handshake(self) -> None:
        """A handshake has some 60 KB, and its end by many at once would be one turn of the loop."""
        limit = self._connections_max
        most = min(limit, max(limit // HANDSHAKES_PART, HANDSHAKES_MIN))
        first = self._opening.first()
        if limit and first is not None and len(self._opening) >= most:
            self._give_way(first, "closed: too many handshakes are not over")

    async def _open(
        self, connection: HttpConnection, sock: socket.socket, tls: SSLContext | None, due: float
    ) -> None:
        """The transport of a connection; with TLS it is there when the handshake is over, for which
        there is time until `due`, on the loop's clock.
        """
        timeout_s = None
        if tls is not None:
            timeout_s = max(due - self.loop.time(), HANDSHAKE_S)
            self._poller.pace.spend(HANDSHAKE_S)
        try:
            await self.loop.connect_accepted_socket(
                lambda: connection, sock, ssl=tls, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ValueError) as error:
            # A peer that does not speak TLS, is too slow for it, or has gone.
            reason = str(error)
            if tls is not None:
                from pyxbroker.base.other_protocols import explain_tls

                reason = explain_tls(getattr(error, "reason", None) or reason, "web")
            log.warning("closed", peer=connection.address, reason=reason)
            self._drop(connection, sock)

    def _on_opened(
        self,
        connection: HttpConnection,
        sock: socket.socket,
        opening: Coroutine[Any, Any, None],
        task: asyncio.Task[None],
    ) -> None:
        connection.opening = None  # each knows the other: no ring is left of them
        self._opening.discard(connection)
        opening.close()  # where it was cancelled before its first step
        if task.cancelled():
            self._drop(connection, sock)
        elif error := task.exception():
            # A defect, or no memory: it costs this one.
            log.failure("a connection could not be opened", error, peer=connection.address)
            self._drop(connection, sock)

    def _drop(self, connection: HttpConnection, sock: socket.socket) -> None:
        sock.close()
        self.forget(connection)

    async def stop(self) -> None:
        """Closes the port and the connections; answers in progress get a short time to end."""
        self._stopped = self.loop.create_future()
        while self._acceptors:
            self._acceptors.pop().close()
        self._silent.stop()
        for connection in list(self._connections):
            connection.stop()
        self._check_stopped()
        try:
            await asyncio.wait_for(self._stopped, STOP_TIMEOUT_S)
        except asyncio.TimeoutError:
            log.warning("requests are cut off", requests=len(self._tasks))
            for connection in list(self._connections):
                connection.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what connections ask -----------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """Whether each answer in progress is the last one of its connection."""
        return self._stopped is not None

    def waits(self, connection: HttpConnection, is_waiting: bool) -> bool:
        """Whether a connection waits for its client, or to know who that is: it may have to give
        way then. Returns whether it has waited before.
        """
        has_waited = connection in self._waiting
        if is_waiting and connection in self._connections:
            self._waiting.add(connection, connection.address)
        else:
            self._waiting.discard(connection)
        return has_waited

    def forget(self, connection: HttpConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._opening.discard(connection)
        self._waiting.discard(connection)
        self._check_stopped()

    def line(self) -> StepQueue:
        """In which the requests of one more connection wait for their turn."""
        return self._pace.queue()

    def strangers_line(self) -> StepQueue:
        """In which it waits before it has asked for anything."""
        return self._poller.pace.queue()

    def spawn(self, answering: Coroutine[Any, Any, None], line: StepQueue) -> None:
        """Runs what answers a request."""
        task = self.loop.create_task(paced(answering, line))
        self._tasks.add(task)
        task.add_done_callback(self._on_answered)

    def _on_answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._check_stopped()

    def _check_stopped(self) -> None:
        stopped = self._stopped
        if stopped is not None and not (stopped.done() or self._connections or self._tasks):
            stopped.set_result(None)


class _Port:
    """Where clients come in, and whether they speak TLS there."""

    def __init__(self, server: WebServer, tls: Contexts | None) -> None:
        self._server = server
        self._tls = tls
        # Nothing says how many bytes a head of HTTP will have.
        self.first_header_bytes = 1 if tls is None else TLS_HEADER_BYTES

    def first_bytes(self, header: bytes) -> int:
        """How many belong to what a client begins with."""
        return len(header) if self._tls is None else tls_first_bytes(header)

    def begin(self, pending: PendingConnection) -> None:
        """They are there."""
        self._server.begin(pending, self._tls)

    def on_closed(self, pending: PendingConnection) -> None:
        """It is closed before that."""


def _never(connection: object) -> None:
    raise AssertionError("who has begun is no longer among those that are silent")


def _no_matter(pending: PendingConnection) -> None:
    """Silence is not worth a line."""
