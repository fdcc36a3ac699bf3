"""The web port: its connections, and how it stops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from pyxbroker.base.listening import Acceptor
from pyxbroker.base.log import get_logger
from pyxbroker.base.pacing import Line, Pace, paced
from pyxbroker.broker.client_memory import ClientMemory

if TYPE_CHECKING:
    from ssl import SSLContext

    from pyxbroker.admin.request import Request
    from pyxbroker.admin.response import Response
    from pyxbroker.admin.web_connection import HttpConnection

    Contexts = Callable[[], SSLContext]

log = get_logger(__name__)

STOP_TIMEOUT_S = 2.0
TLS_HANDSHAKE_TIMEOUT_S = 10.0
CLOSED_AT_ONCE = 50  # that were silent for too long, before others have their turn


class WebServer:
    """Answers the requests to its listening sockets.

    `answer` makes each answer, and what is written of it is charged to `memory`; `connections_max`
    may be 0, for no limit. Nothing runs while nobody
    asks: each connection has a deadline, the server has none.
    """

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[Response]],
        connections_max: int,
        pace: Pace | None = None,
        memory: ClientMemory | None = None,
        handshake_timeout_s: float = TLS_HANDSHAKE_TIMEOUT_S,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.answer = answer
        self._connections_max = connections_max
        self._pace = pace or Pace()
        self.memory = memory or ClientMemory()
        self._handshake_timeout_s = handshake_timeout_s
        # Those that have sent nothing yet, and when their time is over, the oldest first.
        self._silent: dict[socket.socket, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        # From their first byte on, whether or not their handshake is over.
        self._connections: set[HttpConnection] = set()
        # Those that wait for their client, in the order in which they began to.
        self._waiting: dict[HttpConnection, None] = {}
        self.refused = 0  # connections that were closed since there were too many
        self._tasks: set[asyncio.Task[None]] = set()
        self._acceptors: list[Acceptor] = []
        self._stopped: asyncio.Future[None] | None = None

    def start(self, sock: socket.socket, tls: Contexts | None = None) -> None:
        """Answers what has been waiting in the port's backlog, and all that follows; by HTTPS with
        contexts: `tls` gives that of one more connection. May be called for more than one port.
        """
        accept = partial(self._accept, tls)
        self._acceptors.append(Acceptor(sock, self.loop, accept, log))

    def _accept(self, tls: Contexts | None, sock: socket.socket, address: str, _: int) -> None:
        if not self._make_room():
            sock.close()
            return
        # Who says nothing costs no more than a socket, whatever a connection and its TLS cost.
        self._silent[sock] = self.loop.time() + self._handshake_timeout_s
        self.loop.add_reader(sock, self._on_first_bytes, sock, address, tls)
        if self._timer is None:
            self._timer = self.loop.call_later(self._handshake_timeout_s, self._close_silent)

    def _make_room(self) -> bool:
        """Whether one more connection may be; where there are too many, the one that has waited
        longest for its client gives way. A handshake that does not end waits for its client, too.
        """
        if self.is_stopping:
            return False
        limit = self._connections_max
        if limit and len(self._connections) + len(self._silent) >= limit:
            self.refused += 1
            log.warning("refused by maxHttpServerConnections", limit=limit)
            if self._silent:
                self._hang_up(next(iter(self._silent)))
                return True
            longest = next(iter(self._waiting), None)
            if longest is None:
                return False
            longest.abort()
            self.forget(longest)
        return True

    def _on_first_bytes(self, sock: socket.socket, address: str, tls: Contexts | None) -> None:
        # Thousands may send something, or hang up, in one moment.
        self.loop.remove_reader(sock)
        self._pace.line().run(partial(self._begin, sock, address, tls))

    def _begin(self, sock: socket.socket, address: str, tls: Contexts | None) -> None:
        if self._silent.pop(sock, None) is None:
            return  # it had to give way, or its time is over
        # With the first client: a start does not wait for the parser.
        from pyxbroker.admin.web_connection import HttpConnection

        connection = HttpConnection(self, address)
        self._connections.add(connection)
        self._waiting[connection] = None
        context = None if tls is None else tls()
        connection.opening = self.loop.create_task(self._open(connection, sock, context))

    def _hang_up(self, silent: socket.socket) -> None:
        del self._silent[silent]
        self.loop.remove_reader(silent)
        silent.close()

    def _close_silent(self) -> None:
        """Those whose time is over: the oldest is the next one that is due."""
        self._timer = None
        now = self.loop.time()
        for _ in range(CLOSED_AT_ONCE):
            oldest = next(iter(self._silent), None)
            if oldest is None:
                return
            if self._silent[oldest] > now:
                self._timer = self.loop.call_at(self._silent[oldest], self._close_silent)
                return
            self._hang_up(oldest)
        self._timer = self.loop.call_later(0, self._close_silent)

    async def _open(
        self, connection: HttpConnection, sock: socket.socket, tls: SSLContext | None
    ) -> None:
        """The transport of a connection; with TLS it is there when the handshake is over."""
        timeout_s = None if tls is None else self._handshake_timeout_s
        try:
            await self.loop.connect_accepted_socket(
                lambda: connection, sock, ssl=tls, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ValueError, asyncio.CancelledError) as error:
            # A peer that does not speak TLS, is too slow for it, or has gone.
            if not isinstance(error, asyncio.CancelledError):
                log.warning("closed", peer=connection.address, reason=f"TLS: {error}")
            sock.close()
            self.forget(connection)
        finally:
            connection.opening = None  # each knows the other: no ring is left of them

    async def stop(self) -> None:
        """Closes the port and the connections; answers in progress get a short time to end."""
        self._stopped = self.loop.create_future()
        while self._acceptors:
            self._acceptors.pop().close()
        for sock in list(self._silent):
            self._hang_up(sock)
        if self._timer is not None:
            self._timer.cancel()
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

    def waits(self, connection: HttpConnection, is_waiting: bool) -> None:
        """Whether a connection waits for a request: it may have to give way then."""
        if is_waiting and connection in self._connections:
            self._waiting.setdefault(connection)
        else:
            self._waiting.pop(connection, None)

    def forget(self, connection: HttpConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._waiting.pop(connection, None)
        self._check_stopped()

    def line(self) -> Line:
        """In which the requests of one more connection wait for their turn."""
        return self._pace.line()

    def spawn(self, answering: Coroutine[Any, Any, None], line: Line) -> None:
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
