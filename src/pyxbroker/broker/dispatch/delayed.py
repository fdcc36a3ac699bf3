"""Delayed delivery: what a dispatcher has set aside until it is due, and who wakes it then.

An entry is set aside when it is read; nothing but its position and its time is kept, in memory
(delayed.pyx). After a restart the entries are read again, and set aside again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.delayed import DelayedIndex

if TYPE_CHECKING:
    from pyxbroker.ackset import PositionSet
    from pyxbroker.broker.topic import Topic

DUE_MAX = 10_000  # positions that are taken out of the index at once
TIMER_S_MAX = 3600.0  # then the clock is looked at again: it may have been set


class DelayedDelivery:
    """The entries of one subscription that are not due yet, and a timer for the next one."""

    def __init__(self, topic: Topic, wake: Callable[[], None]) -> None:
        self.index = DelayedIndex()
        self._topic = topic
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for = -1  # ms since the epoch

    def look_at_clock(self) -> None:
        """What is read from now on is judged by the time of now: never early."""
        self.index.now = int(self._topic.wall_clock() * 1000)

    def take_due(self, into: PositionSet) -> None:
        """Moves what is due to the positions that are read and sent next."""
        if 0 <= self.index.next_time <= self.index.now:
            for position in self.index.take_due(self.index.now, DUE_MAX):
                into.add(*position)

    def set_timer(self) -> None:
        """The dispatcher has done what it can now: it is woken when the next entry is due."""
        when = self.index.next_time
        if when <= self.index.now:
            # Nothing is set aside, or what is due waits for a consumer, which will wake us.
            self.stop()
            return
        if self._timer is not None and self._timer_for == when:
            return
        self.stop()
        delay = min((when - self.index.now + 1) / 1000, TIMER_S_MAX)
        self._timer_for = when
        self._timer = self._topic.loop.call_later(delay, self._topic.turn.run, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake()

    def stop(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def clear(self) -> None:
        """Forgets everything: it will be read again, or nobody wants it any more."""
        self.stop()
        self.index.clear()
