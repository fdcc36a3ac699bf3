"""Delayed delivery: the entries that a dispatcher has set aside until they are due, and its timer.

The dispatcher sets an entry aside when it reads the entry. Only the position and the due time stay
in memory (delayed_index.pyx). After a restart the dispatcher reads the entries again.

Due times follow the wall clock, timers the monotonic clock. A timer becomes wrong when the wall
clock is set. One watch per event loop detects this for all subscriptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, proxy

from pyxbroker.base.clock import wall_s
from pyxbroker.base.log import get_logger
from pyxbroker.delayed_index import DelayedIndex, held_bytes

if TYPE_CHECKING:
    from pyxbroker.ackset import PositionSet
    from pyxbroker.broker.dispatch.interfaces import DispatchedTopic

log = get_logger("pyxbroker.subscription")

SETTING = "maxDelayedDeliveryStateSizeInMB"
TIME_MAX = 2**63 - 1  # ms since the epoch: the latest due time
DUE_MAX = 10_000  # positions per call of take_due()
TIMER_S_MAX = 3600.0  # event loops limit the delay of a timer
WATCH_S = 0.5  # interval of the wall clock check
SET_S_MIN = 0.05  # smaller steps of the clock do not wake subscriptions
FULL_MS = 1000  # until a full index checks for room again


class ClockWatch:
    """Detects that the wall clock was set, while some entry waits for its due time.

    All subscriptions of an event loop share one timer. It runs only while a subscription has
    delayed entries.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.clock: Callable[[], float] = wall_s
        self._loop = proxy(loop)  # a proxy: the loop owns the watch
        self._waiting: dict[DelayedDelivery, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._offset = 0.0  # of the wall clock from the loop's clock, when timers were set

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> ClockWatch:
        """Return the watch of an event loop."""
        watch = _watches.get(loop)
        if watch is None:
            watch = _watches[loop] = cls(loop)
        return watch

    def add(self, delivery: DelayedDelivery) -> None:
        """Notify a delivery with a running timer when the clock is set."""
        self._waiting[delivery] = None
        if self._timer is None:
            self._offset = self.clock() - self._loop.time()
            self._timer = self._loop.call_later(WATCH_S, self._on_timer)

    def remove(self, delivery: DelayedDelivery) -> None:
        self._waiting.pop(delivery, None)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        self.check()
        if self._waiting:
            self._timer = self._loop.call_later(WATCH_S, self._on_timer)

    def check(self) -> None:
        """Notify the deliveries if the clock was set."""
        offset = self.clock() - self._loop.time()
        if abs(offset - self._offset) >= SET_S_MIN:
            self._offset = offset
            for delivery in list(self._waiting):
                delivery.on_clock_set()


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, ClockWatch] = WeakKeyDictionary()


class DelayedDelivery:
    """The entries of one subscription that are not due yet, and the timer of the next one."""

    def __init__(self, topic: DispatchedTopic, wake: Callable[[], None]) -> None:
        self.index = DelayedIndex()
        self.is_active = True  # False: every entry counts as due
        self._early_ms = 0  # how much before its due time an entry may be sent
        self._topic = topic
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for = -1  # ms since the epoch
        self._watch = ClockWatch.of(topic.loop)

    def on_policies(self) -> None:
        """Apply the topic's changed policies."""
        policies = self._topic.policies
        self.is_active = policies.delayed_delivery
        self._early_ms = 0 if policies.delay_strict else policies.delay_tick_ms

    def update_now(self) -> None:
        """Update the time that decides which entries are due."""
        if self.is_active:
            now = int(self._topic.wall_clock() * 1000) + self._early_ms
            self.index.now = min(now, TIME_MAX)
        else:
            self.index.now = TIME_MAX

    @property
    def is_due(self) -> bool:
        """True if take_due() has positions to move."""
        return 0 <= self.index.next_time <= self.index.now

    def take_due(self, into: PositionSet) -> None:
        """Move due positions to the set that the dispatcher reads and sends next."""
        if self.is_due:
            for position in self.index.take_due(self.index.now, DUE_MAX):
                into.add(*position)

    def set_timer(self) -> None:
        """Set the timer for the next due entry, after the dispatcher has sent what it can now."""
        when = self.index.next_time
        if when <= self.index.now:
            # Nothing is delayed, or the due entries wait for a consumer, which wakes the
            # dispatcher.
            self.stop()
            return
        if self.index.is_full:
            # Other subscriptions may free memory, and do not notify this one.
            when = min(when, self.index.now + FULL_MS)
            log.warning(
                "the memory for delayed messages is full: the subscription reads no new entries",
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
        """Set the timer anew: the running one would fire at the wrong time."""
        self.stop()
        self._topic.turn.run(self._wake)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._watch.remove(self)

    def clear(self) -> None:
        """Drop all entries: the dispatcher reads them again, or no longer needs them."""
        self.stop()
        self.index.clear()
