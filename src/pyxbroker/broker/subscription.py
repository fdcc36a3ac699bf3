"""A subscription: a cursor, its consumers, and the dispatcher between them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from pyxbroker.broker.dispatchers import Dispatcher, ExclusiveDispatcher, SharedDispatcher
from pyxbroker.entry import AckRun, Position
from pyxbroker.errors import ConsumerBusy, NotAllowed
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.cursor import Cursor

if TYPE_CHECKING:
    from pyxbroker.broker.consumer import Consumer
    from pyxbroker.broker.topic import Topic


class SubscriptionType(enum.IntEnum):
    """CommandSubscribe.SubType."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


DISPATCHERS: dict[SubscriptionType, type[Dispatcher]] = {
    SubscriptionType.EXCLUSIVE: ExclusiveDispatcher,
    SubscriptionType.SHARED: SharedDispatcher,
}


class Subscription:
    """One subscription of a topic."""

    def __init__(self, topic: Topic, name: str, cursor: Cursor) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.kind = SubscriptionType.EXCLUSIVE
        self.dispatcher: Dispatcher = ExclusiveDispatcher(self)
        self.closing = False  # it is being deleted or moved: no consumer may come
        self._past_msg_out = 0  # to consumers that are gone
        self._past_bytes_out = 0

    @property
    def consumers(self) -> list[Consumer]:
        return self.dispatcher.consumers

    def holder(self, kind: SubscriptionType) -> Consumer | None:
        """Who keeps a consumer of a type from joining, and would not if its client were gone."""
        if kind is SubscriptionType.EXCLUSIVE and self.kind is kind and self.consumers:
            return self.consumers[0]
        return None

    def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Attaches a consumer. Raises ConsumerBusy when the subscription cannot take it."""
        if self.closing:
            raise ConsumerBusy(
                f"Subscription {self.name} of {self.topic.name} is being closed; try again."
            )
        if self.consumers and kind is not self.kind:
            raise ConsumerBusy(
                f"Subscription {self.name} is of type {self.kind.name.title()} while it has"
                f" consumers; a {kind.name.title()} consumer cannot join it."
            )
        if self.consumers and kind is SubscriptionType.EXCLUSIVE:
            raise ConsumerBusy(
                f"Exclusive consumer is already connected to subscription {self.name}"
                f" of {self.topic.name}."
            )
        limit = self.topic.limits.consumers_per_subscription_max
        if limit and len(self.consumers) >= limit:
            raise ConsumerBusy(
                f"Subscription {self.name} has {limit} consumers, which is its limit"
                " (maxConsumersPerSubscription)."
            )
        if kind is SubscriptionType.SHARED:
            consumer.unacked_max = self.topic.limits.unacked_per_consumer_max
        if kind is not self.kind or not self.consumers:
            self.kind = kind
            self.dispatcher = DISPATCHERS[kind](self)
        self.dispatcher.add_consumer(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detaches a consumer; what it has not acknowledged goes to others, or waits."""
        if consumer in self.consumers:
            consumer.closed = True
            self._past_msg_out += consumer.msg_out
            self._past_bytes_out += consumer.bytes_out
            self.dispatcher.remove_consumer(consumer)
            self.dispatcher.wake()
        if not self.cursor.durable and not self.consumers:
            self.topic.drop_reader(self)

    @property
    def msg_out(self) -> int:
        """Messages sent to consumers since the topic was opened."""
        return self._past_msg_out + sum(each.msg_out for each in self.consumers)

    @property
    def bytes_out(self) -> int:
        """Bytes sent to consumers since the topic was opened."""
        return self._past_bytes_out + sum(each.bytes_out for each in self.consumers)

    def acknowledge(
        self, consumer: Consumer, run: AckRun, cumulative: bool, has_txn: bool
    ) -> str | None:
        """Takes an ACK; returns the sentence with which it is refused, or None."""
        if has_txn:
            return "Acknowledging within a transaction is not supported by this broker."
        if not cumulative:
            was_blocked = consumer.is_blocked
            consumer.settle(run)
            self.cursor.acknowledge(run)
            if self.kind is not SubscriptionType.EXCLUSIVE:
                self._settle_elsewhere(consumer, run)
            if run.partial:
                self._settle_batches(run)
            if was_blocked and not consumer.is_blocked:
                self.dispatcher.wake()
            return None
        if self.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            return (
                f"A consumer of a {self.kind.name.title()} subscription cannot acknowledge"
                " cumulatively."
            )
        if len(run) != 1:
            return f"A cumulative acknowledgement names one message id, not {len(run)}."
        ledger_id, entry_id, left = run.position(0)
        if entry_id >= 0:
            self.cursor.acknowledge_up_to((ledger_id, entry_id), run.ack_set(0))
            consumer.settle_up_to(ledger_id, entry_id - 1 if left else entry_id)
            if left:
                self._settle_batches(run)
        return None

    def _settle_batches(self, run: AckRun) -> None:
        """Of the batches of which messages are left, the others are settled; who has the batch is
        sent nothing of it again but those.
        """
        acks = self.cursor.acks
        for i in range(len(run)):
            ledger_id, entry_id, left = run.position(i)
            if left == 0:
                continue
            if acks.is_acknowledged(ledger_id, entry_id):
                # Earlier acknowledgements had what this one left out.
                self.dispatcher.settled((ledger_id, entry_id))
                for each in self.consumers:
                    each.settle_one(ledger_id, entry_id)
                continue
            known = acks.messages_left(ledger_id, entry_id)
            if known is not None:
                for each in self.consumers:
                    each.settle_all_but(ledger_id, entry_id, known)

    def _settle_elsewhere(self, consumer: Consumer, run: AckRun) -> None:
        """An entry may be acknowledged by another consumer than the one that has it now."""
        for i in range(len(run)):
            ledger_id, entry_id, left = run.position(i)
            if left:
                continue
            self.dispatcher.settled((ledger_id, entry_id))
            for other in self.consumers:
                if other is not consumer:
                    other.settle_one(ledger_id, entry_id)

    async def seek(self, mark_delete: Position) -> None:
        """Moves the cursor; consumers get everything after mark_delete. Durable when it returns."""
        self.cursor.reset(mark_delete)
        self.dispatcher.reset()
        await self.cursor.persist()
        self.dispatcher.wake()

    async def delete(self) -> None:
        """Removes the subscription; it has no consumers any more."""
        self.closing = True
        try:
            await self.cursor.delete()
        except MetadataError:
            # Its node is still there, so it is: the client may try again.
            self.cursor.closed = False
            self.closing = False
            raise

    def check_unsubscribe(self, consumer: Consumer, force: bool) -> None:
        """Raises NotAllowed while others use the subscription."""
        others = [each for each in self.consumers if each is not consumer]
        if others and not force:
            raise NotAllowed(
                f"Subscription {self.name} of {self.topic.name} has {len(others)} other"
                " consumers; close them first, or unsubscribe with force."
            )
