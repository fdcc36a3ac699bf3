"""The door of a process: its listening sockets, and who came by them and is not known yet.

Strangers cost the others turns of the loop, however little each of them does: thousands may come,
say something, or hang up in one moment. So they are watched by an epoll of the door's own, which is
one descriptor for the loop, and what any of them makes necessary, on whatever port, is done at a
pace of the door's own: a tenth of a millisecond in a turn, and one step more.
"""

from __future__ import annotations

import asyncio
import select
from typing import Protocol

from pyxbroker.base.pacing import Pace

BUDGET_S = 0.0001  # of a turn


class Watched(Protocol):
    """What has a descriptor at the door."""

    def on_ready(self) -> object:
        """Something is there, or it has ended: one step of what that makes necessary."""


class Door:
    """One for a loop. It watches for as long as there is anything to watch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pace: Pace | None = None) -> None:
        self.loop = loop
        self.pace = pace or Pace(BUDGET_S)
        self._line = self.pace.line()
        self._epoll = select.epoll()
        self._watched: dict[int, Watched] = {}

    def watch(self, fd: int, watched: Watched) -> None:
        """Tells it when the descriptor is readable, again and again while it is. Raises OSError or
        MemoryError where it cannot; nothing is watched then.
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
        """To be called before the descriptor is closed, and once."""
        self._epoll.unregister(fd)
        del self._watched[fd]
        if not self._watched:
            self.loop.remove_reader(self._epoll.fileno())

    def _on_ready(self) -> None:
        """Called once in a turn, for as long as something is ready."""
        line = self._line
        while not line.waiting:
            if not self.pace.is_free:
                line.wait(self._serve)
                return
            began = self.pace.clock()
            try:
                has_served = self._serve()
            finally:
                self.pace.spend(self.pace.clock() - began)
            if not has_served:
                return

    def _serve(self) -> bool:
        """Tells one of those that are ready, which take turns; whether there was any."""
        for fd, _ in self._epoll.poll(0, 1):
            self._watched[fd].on_ready()
            return True
        return False
