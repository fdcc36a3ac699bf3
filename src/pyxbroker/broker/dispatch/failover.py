"""Failover: who is the active consumer, and since when.

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
from pyxbroker.broker.dispatch.redelivery import FromMark
from pyxbroker.broker.dispatch.selectors import FailoverRing

if TYPE_CHECKING:
    from pyxbroker.base.pacing import Line
    from pyxbroker.broker.dispatch.dispatcher import Dispatcher
    from pyxbroker.broker.subscriptions.consumer import Consumer

ACTIVE_CONSUMER_CHANGE_VERSION = 12  # of the protocol


def _level(consumer: Consumer) -> int:
    return consumer.priority_level


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
        self._telling: Iterator[Line] | None = None  # who is active, to all of them
        topic = dispatcher.topic
        self._ring: FailoverRing[Consumer] | None = None
        if topic.partition < 0 or topic.policies.failover_by_hash:
            self._ring = FailoverRing(str(topic.name))

    def on_added(self, consumer: Consumer) -> None:
        if self._ring is not None:
            self._ring.add(consumer, consumer.priority_level, consumer.name)
        if not self._choose():
            self._tell(consumer)

    def give_back(self, consumer: Consumer) -> None:
        if self._ring is not None:
            self._ring.remove(consumer)
        self._choose()

    def _choose(self) -> bool:
        """Chooses the active consumer; True when it is another one than before."""
        consumers = self._chooser.consumers
        chosen = None
        if not consumers:
            pass
        elif self._ring is not None:
            chosen = self._ring.first()
        else:
            # Partitions go round among those of the best level.
            best = bisect_right(consumers, consumers[0].priority_level, key=_level)
            chosen = consumers[self._topic.partition % best]
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
        self._telling = None
        self._stop()

    def _stop(self) -> None:
        if self._switching is not None:
            self._switching.cancel()
            self._switching = None

    def _switch(self) -> None:
        self._switching = None
        self._chooser.active = self._chosen
        self._dispatcher.rewind()
        is_telling = self._telling is not None
        self._telling = self._tell_each(list(self._chooser.consumers))
        if not is_telling:
            run_incrementally(self._tell_all(), self._topic.turn.run)
        self._dispatcher.wake()

    def _tell_all(self) -> Iterator[Line]:
        """There may be a hundred thousand. A switch meanwhile makes it begin anew."""
        while self._telling is not None:
            telling = self._telling
            line = next(telling, None)
            if line is not None:
                yield line
            elif telling is self._telling:
                self._telling = None

    def _tell_each(self, consumers: list[Consumer]) -> Iterator[Line]:
        for consumer in consumers:
            if not consumer.closed:
                self._tell(consumer)
            yield consumer.connection.session.line

    def _tell(self, consumer: Consumer) -> None:
        """ACTIVE_CONSUMER_CHANGE: whether this consumer is the active one."""
        if consumer.connection.protocol_version >= ACTIVE_CONSUMER_CHANGE_VERSION:
            consumer.connection.send_frame(
                replies.active_consumer_change(consumer.consumer_id, consumer is self._chosen)
            )

    def redeliver_all(self, consumer: Consumer) -> None:
        if consumer is self._chooser.active:
            super().redeliver_all(consumer)
