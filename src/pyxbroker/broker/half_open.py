"""Connections whose clients have not said yet what they want: how many, and for how long.

A TLS handshake that does not end, a CONNECT that comes byte by byte, and silence are all the same
here: a connection has so long for its CONNECT, whatever it sends meanwhile. All of them have the
same time, so that the oldest is the next one that is due, and one timer is enough for thousands.
"""

from __future__ import annotations

import asyncio

from pyxbroker.base.log import get_logger
from pyxbroker.connection import Connection
from pyxbroker.turn import Turn

log = get_logger("pyxbroker.connection")

CLOSED_AT_ONCE = 50  # before others have their turn


class HalfOpen:
    """Those of one broker; `most` may be 0, for no limit."""

    def __init__(self, turn: Turn, timeout_s: float, most: int) -> None:
        self._turn = turn
        self._loop: asyncio.AbstractEventLoop = turn.loop
        self._timeout_s = timeout_s
        self._most = most
        self._due: dict[Connection, float] = {}  # when its time is over, the oldest first
        self._timer: asyncio.TimerHandle | None = None
        self.closed = 0  # because there were too many, so far

    def __len__(self) -> int:
        return len(self._due)

    def add(self, connection: Connection) -> None:
        """A connection begins; the oldest one is closed where there are too many."""
        if self._most and len(self._due) >= self._most:
            self.closed += 1
            oldest = next(iter(self._due))
            del self._due[oldest]
            log.warning("closed by maxHalfOpenConnections", peer=oldest.peer, limit=self._most)
            self._turn.run(oldest.close)
        self._due[connection] = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._look)

    def over(self, connection: Connection) -> None:
        """It has sent its CONNECT, or is gone."""
        self._due.pop(connection, None)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        for _ in range(CLOSED_AT_ONCE):
            oldest = next(iter(self._due), None)
            if oldest is None:
                return
            if self._due[oldest] > now:
                self._timer = self._loop.call_at(self._due[oldest], self._look)
                return
            del self._due[oldest]
            log.info("closed: no CONNECT for too long", peer=oldest.peer)
            self._turn.run(oldest.close)
        self._timer = self._loop.call_later(0, self._look)

    def stop(self) -> None:
        """The broker closes its connections by itself from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
