"""The web port: its connections, and how it stops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pyxbroker.base.listening import BACKLOG
from pyxbroker.base.log import get_logger
from pyxbroker.base.pacing import Line, Pace, paced
from pyxbroker.broker.client_memory import ClientMemory

if TYPE_CHECKING:
    from ssl import SSLContext

    from pyxbroker.admin.request import Request
    from pyxbroker.admin.response import Response
    from pyxbroker.admin.web_connection import HttpConnection

log = get_logger(__name__)

STOP_TIMEOUT_S = 2.0
TLS_HANDSHAKE_TIMEOUT_S = 10.0


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
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.answer = answer
        self._connections_max = connections_max
        self._pace = pace or Pace()
        self.memory = memory or ClientMemory()
        self._connections: set[HttpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[asyncio.Server] = []
        self._stopped: asyncio.Future[None] | None = None

    async def start(self, sock: socket.socket, tls: SSLContext | None = None) -> None:
        """Answers what has been waiting in the port's backlog, and all that follows; by HTTPS with
        a context. May be called for more than one port.
        """
        timeout_s = None if tls is None else TLS_HANDSHAKE_TIMEOUT_S
        self._listeners.append(
            await self.loop.create_server(
                self._connect,
                sock=sock,
                backlog=BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=timeout_s,
            )
        )

    def _connect(self) -> HttpConnection:
        # With the first client: a start does not wait for the parser.
        from pyxbroker.admin.web_connection import HttpConnection

        return HttpConnection(self)

    async def stop(self) -> None:
        """Closes the port and the connections; answers in progress get a short time to end."""
        self._stopped = self.loop.create_future()
        for listener in self._listeners:
            listener.close()
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

    def admit(self, connection: HttpConnection) -> bool:
        """Counts a new connection, or refuses it: it is one too many, or too late."""
        limit = self._connections_max
        if self.is_stopping or (limit and len(self._connections) >= limit):
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: HttpConnection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
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
