"""Failover: who is the active consumer, and since when.

Mirrors PersistentDispatcherSingleActiveConsumer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch.choosers import SingleActive
from pyxbroker.broker.dispatch.redelivery import FromMark
from pyxbroker.broker.dispatch.selectors import choose_active

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.dispatcher import Dispatcher
    from pyxbroker.broker.topics.consumer import Consumer

ACTIVE_CONSUMER_CHANGE_VERSION = 12  # of the protocol


class Failover(FromMark):
    """The active consumer gets everything, in order; when it goes, another becomes active, and gets
    what it had not acknowledged.

    A change takes effect after activeConsumerFailoverDelayTimeMillis, also the first one: what the
    former consumer acknowledges meanwhile does not come twice, and of many consumers that come and
    go together only the last choice counts.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        assert isinstance(dispatcher.chooser, SingleActive)
        self._chooser = dispatcher.chooser
        self._topic = dispatcher.topic
        self._chosen: Consumer | None = None  # active, or it will be when the delay is over
        self._switching: asyncio.TimerHandle | None = None

    def on_added(self, consumer: Consumer) -> None:
        if not self._choose():
            self._tell(consumer)

    def give_back(self, consumer: Consumer) -> None:
        self._choose()

    def _choose(self) -> bool:
        """Chooses the active consumer; True when it is another one than before."""
        consumers = self._chooser.consumers
        chosen = None
        if consumers:
            # Pulsar's order, which equal names keep as they came.
            consumers.sort(key=lambda each: (each.priority_level, each.name))
            chosen = consumers[
                choose_active(
                    [(each.priority_level, each.name) for each in consumers],
                    str(self._topic.name),
                    self._topic.partition,
                    self._topic.policies.failover_by_hash,
                )
            ]
        if chosen is self._chosen:
            return False
        # The next one gets again what the former one has not acknowledged.
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
        self._stop()

    def _stop(self) -> None:
        if self._switching is not None:
            self._switching.cancel()
            self._switching = None

    def _switch(self) -> None:
        self._switching = None
        self._chooser.active = self._chosen
        self._dispatcher.rewind()
        for consumer in self._chooser.consumers:
            self._tell(consumer)
        self._dispatcher.wake()

    def _tell(self, consumer: Consumer) -> None:
        """ACTIVE_CONSUMER_CHANGE: whether this consumer is the active one."""
        if consumer.connection.protocol_version >= ACTIVE_CONSUMER_CHANGE_VERSION:
            consumer.connection.send_frame(
                replies.active_consumer_change(consumer.consumer_id, consumer is self._chosen)
            )

    def redeliver_all(self, consumer: Consumer) -> None:
        if consumer is self._chooser.active:
            super().redeliver_all(consumer)
