"""The web port: its connections, and its shutdown."""

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
# Approximate time that the loop spends on a handshake. uvloop does not pace handshakes.
HANDSHAKE_S = 0.0003
HANDSHAKES_PART = 4  # share of the connections whose handshake may be incomplete
HANDSHAKES_MIN = 64  # lower limit of that share, if as many connections are allowed


class WebServer:
    """A server that answers the requests to its listening sockets.

    `answer` produces each answer; its bytes are charged to `memory`. `connections_max` 0 means no
    limit. Each connection has a deadline; the server has no timer, so that it does nothing while it
    is idle.
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
        # Connections that wait for their client or for authentication: these may be evicted.
        self._waiting: EvictionQueue[PendingConnection | HttpConnection] = EvictionQueue()
        self.head_timeout_s = handshake_timeout_s  # equal to the limit of the TLS handshake
        # Until its first bytes arrive, a connection costs only a socket: no protocol object, no
        # TLS.
        self._silent = HalfOpen(
            self._poller,
            handshake_timeout_s,
            _fail_silent_begin,
            _ignore_silent_close,
            self._waiting,
        )
        # All connections, also those whose handshake is incomplete.
        self._connections: set[HttpConnection] = set()
        # Those whose handshake is incomplete.
        self._opening: EvictionQueue[HttpConnection] = EvictionQueue()
        self.counts = WebCounts()
        self.refused = 0  # connections, because of too many others
        self.evicted = 0  # connections that were closed to make room for others
        self._tasks: set[asyncio.Task[None]] = set()
        self._acceptors: list[Acceptor] = []
        self._stopped: asyncio.Future[None] | None = None

    def start(self, sock: socket.socket, tls: Contexts | None = None) -> None:
        """Accept the connections of a listening socket, beginning with its backlog.

        `tls` returns the TLS context of a new connection (HTTPS). Can be called for several
        sockets.
        """
        accept = partial(self._accept, _Port(self, tls))
        self._acceptors.append(Acceptor(sock, self._poller, accept, log))

    def _accept(self, port: _Port, sock: socket.socket, address: str, number: int) -> None:
        if not self._make_room():
            sock.close()
            return
        self._silent.add(port, sock, address, number)

    def _make_room(self) -> bool:
        """Return True if one more connection is allowed.

        At the limit, the connection is evicted that has waited longest for its client, for its
        handshake or for authentication.
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
            self._evict(first, "closed by maxHttpServerConnections")
        return True

    def _evict(self, one: PendingConnection | HttpConnection, why: str) -> None:
        self.evicted += 1
        log.warning(why, peer=one.address, limit=self._connections_max)
        if isinstance(one, PendingConnection):
            self._silent.disconnect(one)
        else:
            one.abort()
            self.forget(one)

    def begin(self, pending: PendingConnection, tls: Contexts | None) -> None:
        """Create the protocol of a connection whose first bytes have arrived."""
        # Imported with the first client, so that the start does not wait for it.
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
        # A transport and TLS are the costliest steps before a login: the poller's pace limits them.
        task = self.loop.create_task(paced(opening, self._poller.pace.queue()))
        connection.opening = task
        task.add_done_callback(partial(self._on_opened, connection, sock, opening))

    def _make_room_for_handshake(self) -> None:
        """Evict a connection if too many handshakes are incomplete.

        Each takes about 60 KB, and completing many in one iteration would block the loop.
        """
        limit = self._connections_max
        most = min(limit, max(limit // HANDSHAKES_PART, HANDSHAKES_MIN))
        first = self._opening.first()
        if limit and first is not None and len(self._opening) >= most:
            self._evict(first, "closed: too many handshakes are not over")

    async def _open(
        self, connection: HttpConnection, sock: socket.socket, tls: SSLContext | None, due: float
    ) -> None:
        """Create the transport of a connection.

        With TLS it exists after the handshake, which has time until `due` on the loop's clock.
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
            # The client does not speak TLS, is too slow, or has disconnected.
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
        connection.opening = None  # task and connection refer to each other: a cycle
        self._opening.discard(connection)
        opening.close()  # needed if it was cancelled before its first step
        if task.cancelled():
            self._drop(connection, sock)
        elif error := task.exception():
            # A bug, or no memory: only this connection is closed.
            log.failure("a connection could not be opened", error, peer=connection.address)
            self._drop(connection, sock)

    def _drop(self, connection: HttpConnection, sock: socket.socket) -> None:
        sock.close()
        self.forget(connection)

    async def stop(self) -> None:
        """Close ports and connections; answers in progress get STOP_TIMEOUT_S to complete."""
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
            log.warning(
                "the stop aborts requests that were not answered in time", requests=len(self._tasks)
            )
            for connection in list(self._connections):
                connection.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- called by connections ----------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """True if each answer in progress is the last one of its connection."""
        return self._stopped is not None

    def set_waiting(self, connection: HttpConnection, is_waiting: bool) -> bool:
        """Set whether a connection waits for its client or for authentication, and may be evicted.

        Returns True if it was waiting before.
        """
        has_waited = connection in self._waiting
        if is_waiting and connection in self._connections:
            self._waiting.add(connection, connection.address)
        else:
            self._waiting.discard(connection)
        return has_waited

    def forget(self, connection: HttpConnection) -> None:
        """Remove a connection that has ended."""
        self._connections.discard(connection)
        self._opening.discard(connection)
        self._waiting.discard(connection)
        self._check_stopped()

    def queue(self) -> StepQueue:
        """Return a queue that paces the requests of a new connection."""
        return self._pace.queue()

    def unauthenticated_queue(self) -> StepQueue:
        """Return a queue that paces a connection before its first request."""
        return self._poller.pace.queue()

    def spawn(self, answering: Coroutine[Any, Any, None], line: StepQueue) -> None:
        """Run the coroutine that answers a request, paced by `line`."""
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
    """A listening socket, with or without TLS."""

    def __init__(self, server: WebServer, tls: Contexts | None) -> None:
        self._server = server
        self._tls = tls
        # HTTP does not announce the length of a head.
        self.first_header_bytes = 1 if tls is None else TLS_HEADER_BYTES

    def first_bytes(self, header: bytes) -> int:
        """Return the number of bytes to wait for before the connection begins."""
        return len(header) if self._tls is None else tls_first_bytes(header)

    def begin(self, pending: PendingConnection) -> None:
        """Hand the connection to the server: its first bytes have arrived."""
        self._server.begin(pending, self._tls)

    def on_closed(self, pending: PendingConnection) -> None:
        """Ignore a connection that closed before its first bytes arrived."""


def _fail_silent_begin(connection: object) -> None:
    raise AssertionError(
        "the client has sent bytes, and is no longer in the queue of silent connections"
    )


def _ignore_silent_close(pending: PendingConnection) -> None:
    """Log nothing for a client that closed without sending anything."""
