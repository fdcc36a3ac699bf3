"""The poller of a process for its listening sockets and its unauthenticated connections.

Unauthenticated connections must not delay the other clients: thousands may connect, send something
or hang up in one moment. A separate epoll instance watches them, which is a single descriptor for
the event loop. All work that they cause, on any port, shares a budget of a tenth of a millisecond
per loop iteration, which the last step may exceed.
"""

from __future__ import annotations

import asyncio
import select
from typing import Protocol

from pyxbroker.base.pacing import Pace

BUDGET_S = 0.0001  # per loop iteration


class Watched(Protocol):
    """The owner of a watched descriptor."""

    def on_ready(self) -> object:
        """Handle readiness or the end of the connection, in one step."""


class Poller:
    """A secondary poller, one per loop. It is registered while it watches any descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pace: Pace | None = None) -> None:
        self.loop = loop
        self.pace = pace or Pace(BUDGET_S)
        self._step_queue = self.pace.queue()
        self._epoll = select.epoll()
        self._watched: dict[int, Watched] = {}

    def watch(self, fd: int, watched: Watched) -> None:
        """Call `watched.on_ready` repeatedly while the descriptor is readable.

        Raises OSError or MemoryError if the descriptor cannot be watched.
        """
        self._epoll.register(fd, select.EPOLLIN)
        if not self._watched:
            try:
                self.loop.add_reader(self._epoll.fileno(), self._on_ready)
            except BaseException:
                self._epoll.unregister(fd)
                raise
        self._watched[fd] = watched

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor. Call it once, before the descriptor is closed."""
        self._epoll.unregister(fd)
        del self._watched[fd]
        if not self._watched:
            self.loop.remove_reader(self._epoll.fileno())

    def _on_ready(self) -> None:
        """Handle readiness; the loop calls it in each iteration while a descriptor is ready."""
        queue = self._step_queue
        while not queue.waiting and queue.run(self._serve):
            pass

    def _serve(self) -> bool:
        """Serve one ready descriptor, in turn. Return False if none is ready."""
        for fd, _ in self._epoll.poll(0, 1):
            self._watched[fd].on_ready()
            return True
        return False
