"""Delayed delivery: what a dispatcher has set aside until it is due, and who wakes it then.

An entry is set aside when it is read; nothing but its position and its time is kept, in memory
(delayed_index.pyx). After a restart the entries are read again, and set aside again.

Due times are the wall clock's, timers are the monotonic clock's. When the first is set while a
timer runs, the timer is wrong: so one watch for all subscriptions compares the two now and then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, proxy

from pyxbroker.base.log import get_logger
from pyxbroker.delayed_index import DelayedIndex, held_bytes

if TYPE_CHECKING:
    from pyxbroker.ackset import PositionSet
    from pyxbroker.broker.topics.topic import Topic

log = get_logger("pyxbroker.subscription")

SETTING = "maxDelayedDeliveryStateSizeInMB"
TIME_MAX = 2**63 - 1  # ms since the epoch; nothing is due later
DUE_MAX = 10_000  # positions that are taken out of the index at once
TIMER_S_MAX = 3600.0  # event loops have a limit
WATCH_S = 0.5  # between two looks at the wall clock
SET_S_MIN = 0.05  # a smaller difference is not worth waking everybody
FULL_MS = 1000  # until a full index looks whether there is room again


class ClockWatch:
    """Looks whether the wall clock was set, while some entry waits for its time.

    It is one timer, however many subscriptions have such entries, and there is none when none has.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.clock: Callable[[], float] = time.time
        self._loop = proxy(loop)  # which keeps this one
        self._waiting: dict[DelayedDelivery, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._offset = 0.0  # of the wall clock from the loop's, when timers were set

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> ClockWatch:
        """The one of an event loop."""
        watch = _watches.get(loop)
        if watch is None:
            watch = _watches[loop] = cls(loop)
        return watch

    def add(self, delivery: DelayedDelivery) -> None:
        """Somebody has set a timer: it is told when the clock is set."""
        self._waiting[delivery] = None
        if self._timer is None:
            self._offset = self.clock() - self._loop.time()
            self._timer = self._loop.call_later(WATCH_S, self._look)

    def remove(self, delivery: DelayedDelivery) -> None:
        self._waiting.pop(delivery, None)

    def _look(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        offset = self.clock() - self._loop.time()
        if abs(offset - self._offset) >= SET_S_MIN:
            self._offset = offset
            for delivery in list(self._waiting):
                delivery.on_clock_set()
        if self._waiting:
            self._timer = self._loop.call_later(WATCH_S, self._look)


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, ClockWatch] = WeakKeyDictionary()


class DelayedDelivery:
    """The entries of one subscription that are not due yet, and a timer for the next one."""

    def __init__(self, topic: Topic, wake: Callable[[], None]) -> None:
        self.index = DelayedIndex()
        self.is_active = True  # else all that is set aside, or would be, is due
        self._early_ms = 0  # by which an entry may come early
        self._topic = topic
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for = -1  # ms since the epoch
        self._watch = ClockWatch.of(topic.loop)

    def on_policies(self) -> None:
        """The topic's policies have changed."""
        policies = self._topic.policies
        self.is_active = policies.delayed_delivery
        self._early_ms = 0 if policies.delay_strict else policies.delay_tick_ms

    def look_at_clock(self) -> None:
        """What is read from now on is judged by the time of now."""
        if self.is_active:
            now = int(self._topic.wall_clock() * 1000) + self._early_ms
            self.index.now = min(now, TIME_MAX)
        else:
            self.index.now = TIME_MAX

    @property
    def is_due(self) -> bool:
        """Whether take_due() has something to move."""
        return 0 <= self.index.next_time <= self.index.now

    def take_due(self, into: PositionSet) -> None:
        """Moves what is due to the positions that are read and sent next."""
        if self.is_due:
            for position in self.index.take_due(self.index.now, DUE_MAX):
                into.add(*position)

    def set_timer(self) -> None:
        """The dispatcher has done what it can now: it is woken when the next entry is due."""
        when = self.index.next_time
        if when <= self.index.now:
            # Nothing is set aside, or what is due waits for a consumer, which will wake us.
            self.stop()
            return
        if self.index.is_full:
            # Others may give some of theirs back, and do not tell.
            when = min(when, self.index.now + FULL_MS)
            log.warning(
                "too much is delayed: a subscription reads no further",
                topic=self._topic.name,
                entries=len(self.index),
                bytes=held_bytes(),
                setting=SETTING,
            )
        if self._timer is not None and self._timer_for == when - self._early_ms:
            return
        self.stop()
        delay = min((when - self.index.now + 1) / 1000, TIMER_S_MAX)
        self._timer_for = when - self._early_ms
        self._timer = self._topic.loop.call_later(delay, self._topic.turn.run, self._on_timer)
        self._watch.add(self)

    def _on_timer(self) -> None:
        self.stop()
        self._wake()

    def on_clock_set(self) -> None:
        """The timer that runs would come too late, or too early."""
        self.stop()
        self._topic.turn.run(self._wake)

    def stop(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._watch.remove(self)

    def clear(self) -> None:
        """Forgets everything: it will be read again, or nobody wants it any more."""
        self.stop()
        self.index.clear()
