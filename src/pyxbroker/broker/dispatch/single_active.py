"""Exclusive and Failover: one consumer gets everything, in order.

Mirrors PersistentDispatcherSingleActiveConsumer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyxbroker.base.errors import ConsumerBusy
from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.dispatch.selectors import choose_active

if TYPE_CHECKING:
    from pyxbroker.broker.topics.consumer import Consumer
    from pyxbroker.broker.topics.subscription import Subscription

ACTIVE_CONSUMER_CHANGE_VERSION = 12  # of the protocol


class ExclusiveDispatcher(Dispatcher):
    """The only consumer gets everything, in order."""

    def add_consumer(self, consumer: Consumer) -> None:
        if self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        super().add_consumer(consumer)
        self.holders.sole = consumer
        self.rewind()

    def remove_consumer(self, consumer: Consumer) -> None:
        super().remove_consumer(consumer)
        self.holders.sole = None
        self.rewind()

    def next_consumer(self) -> Consumer | None:
        for consumer in self.consumers:
            return consumer if self._can_take(consumer) else None
        return None

    def redeliver_all(self, consumer: Consumer) -> None:
        consumer.clear_pending()
        self.rewind()
        self.wake()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        # Order is kept: everything from the mark on comes again, as Pulsar does.
        self.redeliver_all(consumer)


class FailoverDispatcher(Dispatcher):
    """The active consumer gets everything, in order; when it goes, another becomes active.

    A change takes effect after activeConsumerFailoverDelayTimeMillis, also the first one: what the
    former consumer acknowledges meanwhile does not come twice, and of many consumers that come and
    go together only the last choice counts.
    """

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.active: Consumer | None = None
        self._switching: asyncio.TimerHandle | None = None

    def add_consumer(self, consumer: Consumer) -> None:
        super().add_consumer(consumer)
        if not self._choose():
            self._tell(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        super().remove_consumer(consumer)
        self._choose()

    def next_consumer(self) -> Consumer | None:
        active = self.active
        if active is None or self._switching is not None:
            return None
        return active if self._can_take(active) else None

    def _choose(self) -> bool:
        """Chooses the active consumer; True when it is another one than before."""
        chosen = None
        if self.consumers:
            # Pulsar's order, which equal names keep as they came.
            self.consumers.sort(key=lambda each: (each.priority_level, each.name))
            chosen = self.consumers[
                choose_active(
                    [(each.priority_level, each.name) for each in self.consumers],
                    str(self.topic.name),
                    self.topic.partition,
                    self.topic.policies.failover_by_hash,
                )
            ]
        if chosen is self.active:
            return False
        if self.active is not None:
            # The next one gets again what this one has not acknowledged.
            self.active.clear_pending()
        self.active = self.holders.sole = chosen
        self._switch_later()
        return True

    def _switch_later(self) -> None:
        self.rewind()
        if self.active is None:
            if self._switching is not None:
                self._switching.cancel()
                self._switching = None
            return
        delay_s = self.topic.policies.failover_delay_s
        if delay_s <= 0:
            self._switch()
        elif self._switching is None:
            turn = self.topic.turn
            self._switching = self.topic.loop.call_later(delay_s, turn.run, self._switch)

    def _switch(self) -> None:
        self._switching = None
        self.rewind()
        for consumer in self.consumers:
            self._tell(consumer)
        self.wake()

    def _tell(self, consumer: Consumer) -> None:
        """ACTIVE_CONSUMER_CHANGE: whether this consumer is the active one."""
        if consumer.connection.protocol_version >= ACTIVE_CONSUMER_CHANGE_VERSION:
            consumer.connection.send_frame(
                replies.active_consumer_change(consumer.consumer_id, consumer is self.active)
            )

    def redeliver_all(self, consumer: Consumer) -> None:
        if consumer is self.active and self._switching is None:
            consumer.clear_pending()
            self.rewind()
            self.wake()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        self.redeliver_all(consumer)
