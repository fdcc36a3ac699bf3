"""Failover: chooses the active consumer, and delays the switch to it.

Mirrors PersistentDispatcherSingleActiveConsumer.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyxbroker.base.pacing import run_incrementally
from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch.choosers import SingleActive
from pyxbroker.broker.dispatch.redelivery import RedeliverFromMark, RedeliveringDispatcher
from pyxbroker.broker.dispatch.selectors import FailoverRing

if TYPE_CHECKING:
    from pyxbroker.base.pacing import StepQueue
    from pyxbroker.broker.subscriptions.consumer import Consumer

ACTIVE_CONSUMER_CHANGE_VERSION = 12  # of the protocol


def _level(consumer: Consumer) -> int:
    return consumer.priority_level


class Failover(RedeliverFromMark):
    """The active consumer gets all entries, in order. When it leaves, another consumer becomes
    active, and gets the unacknowledged entries.

    Every change takes effect after activeConsumerFailoverDelayTimeMillis, including the first.
    Entries that the former consumer acknowledges meanwhile are not delivered twice. When many
    consumers come and go together, only the last choice counts.
    """

    def __init__(self, dispatcher: RedeliveringDispatcher) -> None:
        super().__init__(dispatcher)
        assert isinstance(dispatcher.chooser, SingleActive)
        self._chooser = dispatcher.chooser
        self._topic = dispatcher.topic
        self._chosen: Consumer | None = None  # the active consumer, now or when the delay is over
        self._switching: asyncio.TimerHandle | None = None
        self._notifying: Iterator[StepQueue] | None = (
            None  # notifies all consumers of the active one
        )
        topic = dispatcher.topic
        self._ring: FailoverRing[Consumer] | None = None
        if topic.partition < 0 or topic.policies.failover_by_hash:
            self._ring = FailoverRing(str(topic.name))

    @property
    def chosen(self) -> Consumer | None:
        """The active consumer, or the one that becomes active after the delay."""
        return self._chosen

    def on_added(self, consumer: Consumer) -> None:
        if self._ring is not None:
            self._ring.add(consumer, consumer.priority_level, consumer.name)
        if not self._choose():
            self._notify(consumer)

    def on_removed(self, consumer: Consumer) -> None:
        if self._ring is not None:
            self._ring.remove(consumer)
        self._choose()

    def _choose(self) -> bool:
        """Choose the active consumer. Return True if the choice has changed."""
        consumers = self._chooser.consumers
        chosen = None
        if not consumers:
            pass
        elif self._ring is not None:
            chosen = self._ring.first()
        else:
            # Partitions are spread over the consumers of the best priority level.
            best = bisect_right(consumers, consumers[0].priority_level, key=_level)
            chosen = consumers[self._topic.partition % best]
        if chosen is self._chosen:
            return False
        # The new consumer gets what the former one has not acknowledged.
        self._chosen = chosen
        self._switch_later()
        return True

    def _switch_later(self) -> None:
        self._chooser.active = None
        self._dispatcher.rewind()
        if self._chosen is None:
            self._stop()
            return
        delay_s = self._topic.policies.failover_delay_s
        if delay_s <= 0:
            self._switch()
        elif self._switching is None:
            turn = self._topic.turn
            self._switching = self._topic.loop.call_later(delay_s, turn.run, self._switch)

    def retire(self) -> None:
        super().retire()
        self._notifying = None
        self._stop()

    def _stop(self) -> None:
        if self._switching is not None:
            self._switching.cancel()
            self._switching = None

    def _switch(self) -> None:
        self._switching = None
        self._chooser.active = self._chosen
        self._dispatcher.rewind()
        is_notifying = self._notifying is not None
        self._notifying = self._notify_each(list(self._chooser.consumers))
        if not is_notifying:
            run_incrementally(self._notify_all(), self._topic.turn.run)
        self._dispatcher.wake()

    def _notify_all(self) -> Iterator[StepQueue]:
        """Notify all consumers in steps; they may be many. A new switch starts the round again."""
        while self._notifying is not None:
            notifying = self._notifying
            queue = next(notifying, None)
            if queue is not None:
                yield queue
            elif notifying is self._notifying:
                self._notifying = None

    def _notify_each(self, consumers: list[Consumer]) -> Iterator[StepQueue]:
        for consumer in consumers:
            if not consumer.closed:
                self._notify(consumer)
            yield consumer.connection.session.step_queue

    def _notify(self, consumer: Consumer) -> None:
        """Send ACTIVE_CONSUMER_CHANGE: is this consumer the active one?"""
        if consumer.connection.protocol_version >= ACTIVE_CONSUMER_CHANGE_VERSION:
            consumer.connection.send_frame(
                replies.active_consumer_change(consumer.consumer_id, consumer is self._chosen)
            )

    def redeliver_all(self, consumer: Consumer) -> None:
        if consumer is self._chooser.active:
            super().redeliver_all(consumer)
