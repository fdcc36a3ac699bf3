"""Key_Shared: every key goes to one consumer at a time, in order.

Mirrors PersistentStickyKeyDispatcherMultipleConsumers. Which entry may go to whom is decided in
keys.pyx; here is when entries are read: first those that wait and have their turn, then new
ones, as long as not too many wait.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.base.errors import ConsumerAssignError
from pyxbroker.broker.dispatch.selectors import (
    ConsistentHashing,
    HashRangeAutoSplit,
    HashRangeExclusive,
    Selector,
)
from pyxbroker.broker.dispatch.shared import SharingDispatcher
from pyxbroker.delivery import deal, deal_waiting
from pyxbroker.entry import AckRun, EntryBatch, Position
from pyxbroker.keys import KeyShared

if TYPE_CHECKING:
    from pyxbroker.broker.topics.consumer import Consumer
    from pyxbroker.broker.topics.subscription import Subscription
    from pyxbroker.policies.table import Policies

GAP_MAX = 8  # entries that are read for nothing, rather than to begin another read
ENTRY_ID_MAX = 2**63 - 1


class KeySharedMode(enum.IntEnum):
    """KeySharedMeta.keySharedMode."""

    AUTO_SPLIT = 0
    STICKY = 1


class KeySharedPolicy(NamedTuple):
    """What a Key_Shared consumer asks for (KeySharedMeta)."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: tuple[tuple[int, int], ...] = ()
    out_of_order: bool = False


def look_ahead(policies: Policies, consumers: int) -> int:
    """How many entries may wait before no new ones are read."""
    per_consumer = policies.look_ahead_per_consumer_max
    limit = policies.look_ahead_per_subscription_max
    if per_consumer > 0:
        of_all = per_consumer * consumers
        limit = min(limit, of_all) if limit > 0 else of_all
    if limit <= 0:
        # Without limits of their own, as many as may be unacknowledged.
        candidates = (
            policies.unacked_per_subscription_max,
            policies.unacked_per_consumer_max * consumers,
        )
        limit = min((each for each in candidates if each > 0), default=ENTRY_ID_MAX)
    return limit


class KeySharedDispatcher(SharingDispatcher):
    """Every key goes to one consumer at a time, in order."""

    def __init__(self, subscription: Subscription, policy: KeySharedPolicy) -> None:
        super().__init__(subscription)
        self.policy = policy
        self.selector: Selector = self._make_selector()
        self.keys = KeyShared(not policy.out_of_order, self.selector.hashes)
        self.slots: list[Consumer | None] = [None]
        self._look_ahead = 0
        self._turn_of = 0

    def _make_selector(self) -> Selector:
        policies = self.topic.policies
        if self.policy.mode is KeySharedMode.STICKY:
            return HashRangeExclusive()
        if policies.key_shared_by_ring:
            return ConsistentHashing(policies.key_shared_points)
        return HashRangeAutoSplit()

    # --- consumers ----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError when the consumer cannot have the hashes it asks for."""
        slot = self.slots.index(None, 1) if None in self.slots[1:] else len(self.slots)
        ranges = consumer.key_shared.ranges
        if isinstance(self.selector, HashRangeExclusive):
            self.selector.check(ranges)
            other = self.holder(ranges)
            if other is not None:
                raise ConsumerAssignError(f"Range conflict with consumer {other}")
        self.selector.add(slot, consumer.name, ranges)
        super().add_consumer(consumer)
        if slot == len(self.slots):
            self.slots.append(None)
        self.slots[slot] = consumer
        consumer.slot = slot
        consumer.keys = self.keys
        self._owners_changed()

    def holder(self, ranges: Sequence[tuple[int, int]]) -> Consumer | None:
        """Who has asked for a part of these ranges."""
        if not isinstance(self.selector, HashRangeExclusive):
            return None
        return self.slots[self.selector.conflict(ranges)]

    def give_back(self, consumer: Consumer) -> None:
        if self.consumers:
            self._take_back(consumer, consumer.pending_positions())
        else:
            consumer.clear_pending()
            self.keys.clear()
            self._redelivery_counts.clear()
            self.rewind()
        consumer.keys = None
        self.slots[consumer.slot] = None
        self.selector.remove(consumer.slot)
        self._owners_changed()

    def _owners_changed(self) -> None:
        self.keys.set_owners(self.selector.owners())
        self._look_ahead = look_ahead(self.topic.policies, len(self.consumers))

    def on_policies(self) -> None:
        self._look_ahead = look_ahead(self.topic.policies, len(self.consumers))
        super().on_policies()

    # --- the loop -----------------------------------------------------------------------------

    def _do_what_is_possible(self) -> None:
        self.keys.news = False
        super()._do_what_is_possible()

    def _step(self) -> bool:
        # What waits may be on its way from the disk now; nothing else is read meanwhile.
        return self._serve_waiting() or (not self._reading and self._read_new())

    def _read_new(self) -> bool:
        """What is due, or else what is new."""
        if self.keys.waiting >= self._look_ahead:
            return False
        due = self._has_replay()
        if not due and self.source.normalize(self.read_position) is None:
            return False
        count = size = 0
        for consumer in self.consumers:
            if self._can_take(consumer):
                entries, room = self._worth_reading(consumer)
                count += entries
                size += room
        if count == 0:
            return False
        policies = self.topic.policies
        count, size = min(count, policies.read_batch_max), min(size, policies.read_bytes_max)
        return (self._read_replay if due else self._read_some)(count, size)

    def _send_again(self, batch: EntryBatch) -> Position:
        return self._send(batch, again=True)

    def _send(self, batch: EntryBatch, again: bool = False) -> Position:
        left_out: list[tuple[int, int]] = []
        acks = self.acks
        sent = deal(
            batch,
            self.slots,
            self.keys,
            acks,
            self._redelivery_counts,
            left_out,
            self._look_ahead,
            self.delayed_index,
            again,
        )
        if left_out:
            self.subscription.acknowledge_positions(left_out)
        if sent < batch.count:
            return Position(batch.ledger_id, batch.entry_id(sent))
        return Position(batch.ledger_id, batch.entry_id(batch.count - 1) + 1)

    def _serve_waiting(self) -> bool:
        """Sends what waits to the next consumer that can have some of it; False: nobody can."""
        keys = self.keys
        if keys.queued == 0:
            return False
        count = len(self.consumers)
        for step in range(count):
            at = (self._turn_of + step) % count
            consumer = self.consumers[at]
            if keys.has_ready(consumer.slot) and self._can_take(consumer):
                self._turn_of = at + 1
                return self._serve(consumer)
        return False

    def _serve(self, consumer: Consumer) -> bool:
        """False when what the consumer gets is being read from disk, or cannot be read."""
        if self.trouble is not None and self.trouble.blocks(again=True):
            return False
        count, _ = self._worth_reading(consumer)
        for ledger_id, first, last in self.keys.plan(consumer.slot, count, GAP_MAX):
            at = first
            while at <= last and consumer.can_deliver:
                if self.source.normalize((ledger_id, at)) != (ledger_id, at):
                    # The ledger was trimmed meanwhile: everything in it is acknowledged.
                    self.keys.drop(ledger_id, 0, ENTRY_ID_MAX)
                    break
                position = Position(ledger_id, at)
                policies = self.topic.policies
                most, size = policies.read_batch_max, policies.read_bytes_max
                batch = self.source.read_cached(position, most, size, last)
                if batch is None:
                    use, pass_over = self._deal_waiting, self._pass_over_waiting
                    self._read_from_disk(position, most, size, last, use, pass_over, again=True)
                    return False
                self._deal_waiting(batch)
                at = batch.entry_id(batch.count - 1) + 1
        return True

    def _deal_waiting(self, batch: EntryBatch) -> None:
        if self.trouble is not None:
            self.trouble.has_read(batch.ledger_id, batch.entry_id(0), again=True)
        left_out: list[tuple[int, int]] = []
        acks = self.acks
        deal_waiting(batch, self.slots, self.keys, acks, self._redelivery_counts, left_out)
        if left_out:
            self.subscription.acknowledge_positions(left_out)

    def _pass_over_waiting(self, position: Position, last: int) -> None:
        self.keys.drop(position.ledger_id, position.entry_id, last)

    # --- going back ---------------------------------------------------------------------------

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        super().on_acknowledged(consumer, run)
        if self.keys.news:
            self.wake()

    def _take_back(
        self, consumer: Consumer, positions: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        acks = self.acks
        taken = []
        for position in positions:
            key_hash = consumer.key_hash_of(*position)
            if consumer.settle_one(*position) and not acks.is_acknowledged(*position):
                self.keys.put_back(key_hash, *position)
                taken.append(position)
        return taken

    def reset(self) -> None:
        super().reset()
        self.keys.clear()
