"""Shared: entries go round between consumers with permits; redeliveries first.

Mirrors PersistentDispatcherMultipleConsumers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.ackset import PositionSet
from pyxbroker.broker.dispatch.chunks import ChunkedMessages
from pyxbroker.broker.dispatch.delayed import DelayedDelivery
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.delivery import UnackedCount, choose
from pyxbroker.entry import EntryBatch, Position

if TYPE_CHECKING:
    from pyxbroker.broker.topics.consumer import Consumer
    from pyxbroker.broker.topics.subscription import Subscription
    from pyxbroker.entry import AckRun

STEPS_ASIDE_MAX = 16  # within one turn, while what is read is full of what is not due


class SharingDispatcher(Dispatcher):
    """What Shared and Key_Shared have in common: limits, and redelivery one by one."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        policies = self.topic.policies
        self.unacked = UnackedCount(
            policies.unacked_per_subscription_max,
            self.topic.unacked_in_broker,
            policies.unacked_share,
        )
        self._replay = PositionSet()  # to be read and sent before what is new
        self._delayed: DelayedDelivery | None = None
        self._aside_before = 0  # entries that were set aside before the last read
        self._sets_aside = False  # the read before brought some more
        if policies.delayed_delivery:
            self._delay()

    def _delay(self) -> None:
        self._delayed = DelayedDelivery(self.topic, self.wake)
        self.delayed_index = self._delayed.index

    def on_policies(self) -> None:
        policies = self.topic.policies
        self.unacked.set_limit(policies.unacked_per_subscription_max)
        for consumer in self.consumers:
            consumer.set_unacked_max(policies.unacked_per_consumer_max)
        if self._delayed is not None:
            self._delayed.is_active = policies.delayed_delivery
        elif policies.delayed_delivery:
            self._delay()
        super().on_policies()

    def abandon(self) -> None:
        super().abandon()
        if self._delayed is not None:
            self._delayed.stop()

    # --- the loop -----------------------------------------------------------------------------

    def _do_what_is_possible(self) -> None:
        if self._delayed is None:
            super()._do_what_is_possible()
            return
        self._delayed.look_at_clock()
        super()._do_what_is_possible()
        if self.consumers:
            self._delayed.set_timer()
        else:
            self._delayed.stop()

    def _steps_max(self) -> int:
        return STEPS_ASIDE_MAX if self._sets_aside else super()._steps_max()

    def _has_replay(self) -> bool:
        """Whether there is something to send before what is new; takes what has become due."""
        if len(self._replay) == 0 and self._delayed is not None:
            self._delayed.take_due(self._replay)
        return len(self._replay) > 0

    def _read_some(self, count: int, size: int) -> bool:
        before, self._aside_before = self._aside_before, self.delayed_entries
        self._sets_aside = self._aside_before > before
        if self._sets_aside:
            # What is not due needs no permits: a consumer that has few must not slow that down.
            count = self.topic.policies.read_batch_max
        return super()._read_some(count, size)

    def _read_replay(self, count: int, size: int) -> bool:
        """Reads and sends the first ones of what goes before what is new."""
        if self.trouble is not None and self.trouble.blocks(again=True):
            return False
        ledger_id, first, last = self._replay.first_range(count)
        position = self.source.normalize((ledger_id, first))
        if position != (ledger_id, first):
            # The ledger was trimmed meanwhile: everything in it is acknowledged.
            self._replay.discard_range(ledger_id, first, last)
            return True
        batch = self.source.read_cached(position, count, size, last)
        if batch is not None:
            self._send_replay(batch)
            return True
        use, pass_over = self._send_replay, self._pass_over_replay
        self._read_from_disk(position, count, size, last, use, pass_over, again=True)
        return False

    def _send_replay(self, batch: EntryBatch) -> None:
        if self.trouble is not None:
            self.trouble.has_read(batch.ledger_id, batch.entry_id(0), again=True)
        reached = self._send_again(batch)
        self._replay.discard_range(batch.ledger_id, batch.entry_id(0), reached.entry_id - 1)

    def _send_again(self, batch: EntryBatch) -> Position:
        """_send, for entries that lie before others which were sent."""
        return self._send(batch)

    def _pass_over_replay(self, position: Position, last: int) -> None:
        self._replay.discard_range(*position, last)

    def put_back(self, positions: list[Position], again: bool) -> None:
        if not again:
            super().put_back(positions, again)
            return
        for position in positions:
            self._replay.add(*position)

    def rewind(self) -> None:
        self._replay.clear()
        if self._delayed is not None:
            self._delayed.clear()
        super().rewind()

    @property
    def delayed_entries(self) -> int:
        """Entries that are known and not due yet."""
        return 0 if self.delayed_index is None else len(self.delayed_index)

    # --- consumers ----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        super().add_consumer(consumer)
        consumer.set_unacked_max(self.topic.policies.unacked_per_consumer_max)
        consumer.unacked_total = self.unacked

    def remove_consumer(self, consumer: Consumer) -> None:
        super().remove_consumer(consumer)
        self.give_back(consumer)
        self._let_others_go_on()

    def give_back(self, consumer: Consumer) -> None:
        """Takes back what a consumer that is gone has; it goes to others, or waits for one."""
        raise NotImplementedError

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        strangers: list[tuple[int, int]] = []
        consumer.settle(run, strangers)
        for position in strangers:
            # An entry may be acknowledged by another consumer than the one that has it now.
            for other in self.consumers:
                if other.settle_one(*position):
                    self._go_on(other)
                    break
        if self._redelivery_counts:
            for i in range(len(run)):
                ledger_id, entry_id, left = run.position(i)
                if not left:
                    self._redelivery_counts.pop((ledger_id, entry_id), None)
        if run.partial:
            self.settle_batches(run)
        # Others have waited longer than who acknowledges just now.
        self._let_others_go_on()
        self._go_on(consumer)

    def _let_others_go_on(self) -> None:
        """Less is unacknowledged: other subscriptions may have waited for that."""
        in_broker = self.topic.unacked_in_broker
        if in_broker is not None:
            in_broker.go_on()

    def redeliver_all(self, consumer: Consumer) -> None:
        self._redeliver(consumer, consumer.pending_positions())

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        self._redeliver(consumer, sorted(positions))

    def _redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        counts = self._redelivery_counts
        for position in self._take_back(consumer, positions):
            counts[position] = counts.get(position, 0) + 1
        self.wake()
        self._let_others_go_on()

    def _take_back(
        self, consumer: Consumer, positions: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Takes deliveries back, to send them again; returns those that a consumer had, in order.

        A consumer that goes away does not count as a redelivery: nobody said that it failed.
        """
        raise NotImplementedError


class SharedDispatcher(SharingDispatcher):
    """Entries go round between consumers with permits; redeliveries first."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._turn_of = 0
        self._chosen = -1
        self._chunked = self.chunked = ChunkedMessages(self.acks)

    def give_back(self, consumer: Consumer) -> None:
        self._chunked.forget(consumer)
        if not self.consumers:
            self._redelivery_counts.clear()
        if self.consumers or self.delayed_entries:
            # To read again what is set aside would be long: the next consumer finds it here.
            self._take_back(consumer, consumer.pending_positions())
            return
        consumer.clear_pending()
        self.rewind()

    def rewind(self) -> None:
        self._chunked.clear(self.acks)
        super().rewind()

    def _has_replay(self) -> bool:
        self._chunked.release(self._replay)
        return super()._has_replay()

    def _pass_over_replay(self, position: Position, last: int) -> None:
        super()._pass_over_replay(position, last)
        self._chunked.pass_over(position, last)

    @property
    def is_kept(self) -> bool:
        return self.delayed_entries > 0

    def next_consumer(self) -> Consumer | None:
        """The next one in turn among those of the best priority level that can take entries."""
        self._chosen = choose(self.consumers, self._turn_of)
        if self._chosen >= 0:
            return self.consumers[self._chosen]
        for consumer in self.consumers:
            # One whose socket is full, or who has too much unacknowledged, wakes us later.
            self._can_take(consumer)
        return None

    def served(self, consumer: Consumer) -> None:
        # Only who got something has had its turn: choosing one to read for is not enough.
        self._turn_of = self._chosen + 1

    def _share(self, consumer: Consumer) -> int:
        if len(self.consumers) == 1:
            return self.topic.policies.read_batch_max
        return self.topic.policies.round_robin_max

    def _step(self) -> bool:
        consumer = self.next_consumer()
        if consumer is None:
            return False
        if self._has_replay():
            return self._read_replay(*self._worth_reading(consumer))
        return self._read_some(*self._worth_reading(consumer))

    def _take_back(
        self, consumer: Consumer, positions: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        acks = self.acks
        taken = []
        for position in positions:
            if consumer.settle_one(*position) and not acks.is_acknowledged(*position):
                self._replay.add(*position)
                taken.append(position)
        return taken
