"""Key_Shared: every key goes to one consumer at a time, in order.

Mirrors PersistentStickyKeyDispatcherMultipleConsumers. keys.pyx decides which consumer may get an
entry. This module assigns slots to consumers, sends waiting entries, and limits their number.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from pyxbroker.base.errors import ConsumerAssignError
from pyxbroker.base.slices import Slices
from pyxbroker.broker.dispatch.choosers import Chooser
from pyxbroker.broker.dispatch.selectors import (
    RANGE_HASHES,
    ConsistentHashing,
    FreeNumbers,
    HashRangeAutoSplit,
    HashRangeExclusive,
    KeySharedMode,
    KeySharedPolicy,
    Selector,
)
from pyxbroker.delivery import (
    BlockedConsumers,
    dispatch_by_key,
    dispatch_waiting,
    dispatch_without_queue,
    next_ready,
    total_read_budget,
)
from pyxbroker.keys import KeyShared

if TYPE_CHECKING:
    from pyxbroker.ackset import AckSet
    from pyxbroker.broker.dispatch.interfaces import DispatchedTopic
    from pyxbroker.broker.dispatch.limits import Limits
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.delayed_index import DelayedIndex
    from pyxbroker.entry import EntryBatch, Position
    from pyxbroker.hash_ranges import HashRanges
    from pyxbroker.policies.values import Policies

GAP_MAX = 8  # entries that are read in vain, to avoid another read
ENTRY_ID_MAX = 2**63 - 1
RANGES_PER_STEP = 256  # processed before the task yields


def look_ahead(policies: Policies, consumers: int) -> int:
    """Return how many entries may wait before the dispatcher stops reading new ones."""
    per_consumer = policies.look_ahead_per_consumer_max
    limit = policies.look_ahead_per_subscription_max
    if per_consumer > 0:
        of_all = per_consumer * consumers
        limit = min(limit, of_all) if limit > 0 else of_all
    if limit <= 0:
        # Without limits of their own, the limits of unacknowledged messages apply.
        candidates = (
            policies.unacked_per_subscription_max,
            policies.unacked_per_consumer_max * consumers,
        )
        limit = min((each for each in candidates if each > 0), default=ENTRY_ID_MAX)
    return limit


class KeySlots(Chooser):
    """Assigns every key to one consumer at a time, in order. Each consumer has a slot."""

    def __init__(
        self, policy: KeySharedPolicy, topic: DispatchedTopic, limits: Limits, acks: AckSet
    ) -> None:
        super().__init__(topic, limits, acks)
        self.policy = policy
        self.selector: Selector = self._make_selector()
        self.keys = KeyShared(not policy.out_of_order, self.selector.hashes)
        self.slots: list[Consumer | None] = [None]
        self._free_slots = FreeNumbers(1)
        self.key_queue = KeyQueue(self, self._limits)
        self._look_ahead = 0

    def _make_selector(self) -> Selector:
        policies = self._topic.policies
        if self.policy.mode is KeySharedMode.STICKY:
            return HashRangeExclusive()
        if policies.key_shared_by_ring:
            return ConsistentHashing(policies.key_shared_points)
        return HashRangeAutoSplit()

    # --- consumers ----------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        ranges = consumer.key_shared.ranges
        if isinstance(self.selector, HashRangeExclusive):
            self.selector.check(ranges)
            other = self.holder(ranges)
            if other is not None:
                raise ConsumerAssignError(f"Range conflict with consumer {other}")
        slot = self._free_slots.take()
        try:
            self.selector.add(slot, consumer.name, ranges)
        except ConsumerAssignError:
            self._free_slots.give_back(slot)
            raise
        super().add(consumer)
        if slot == len(self.slots):
            self.slots.append(None)
        self.slots[slot] = consumer
        self.keys.reset_drained(slot)
        consumer.slot = slot
        consumer.keys = self.keys
        self._owners_changed()

    def holder(self, ranges: HashRanges) -> Consumer | None:
        """Return the consumer that has requested a part of these ranges, or None."""
        if not isinstance(self.selector, HashRangeExclusive):
            return None
        return self.slots[self.selector.conflict(ranges)]

    def forget(self, consumer: Consumer) -> None:
        consumer.keys = None
        self.slots[consumer.slot] = None
        self._free_slots.give_back(consumer.slot)
        self.selector.remove(consumer.slot)
        self._owners_changed()

    def detach(self, consumer: Consumer) -> None:
        consumer.keys = None
        self.slots[consumer.slot] = None

    async def ranges_by_slot(self, slices: Slices) -> dict[int, list[list[int]]]:
        """Return the hash ranges of each slot as [first, last], ascending, as of the call."""
        found: dict[int, list[list[int]]] = {}
        first = RANGE_HASHES - self.selector.hashes  # a ring leaves out 0
        for number, (last, slot) in enumerate(zip(*self.selector.owners(), strict=True), start=1):
            if number % RANGES_PER_STEP == 0:
                await slices.pause()
            ranges = found.setdefault(slot, [])
            if ranges and ranges[-1][1] == first - 1:
                ranges[-1][1] = last
            else:
                ranges.append([first, last])
            first = last + 1
        return found

    @property
    def look_ahead(self) -> int:
        """The number of waiting entries at which the dispatcher reads no new ones."""
        return self._look_ahead

    def owner_of(self, key_hash: int) -> Consumer | None:
        """Return the consumer that gets the next entries of a key hash, or None."""
        last_hashes, slots = self.selector.owners()
        at = bisect_left(last_hashes, key_hash)
        return self.slots[slots[at]] if at < len(slots) else None

    def _owners_changed(self) -> None:
        self.keys.set_owners(*self.selector.owners())
        self.on_policies()

    def on_policies(self) -> None:
        self._look_ahead = look_ahead(self._topic.policies, len(self.consumers))

    # --- dispatch -----------------------------------------------------------------------------

    def read_budget(self) -> tuple[int, int] | None:
        """Return what all consumers can take together, or None if too many entries wait."""
        if self.keys.waiting >= self._look_ahead:
            return None
        policies = self._topic.policies
        count_max, size_max = policies.read_batch_max, policies.read_bytes_max
        blocked = BlockedConsumers()
        count, size = total_read_budget(self.consumers, count_max, size_max, blocked)
        for consumer in blocked.consumers:
            self._limits.can_take(consumer)
        return (count, size) if count else None

    def send(
        self,
        batch: EntryBatch,
        acks: AckSet,
        redelivery_counts: dict[tuple[int, int], int],
        undeliverable: list[tuple[int, int]],
        delayed: DelayedIndex | None,
        again: bool,
    ) -> int:
        return dispatch_by_key(
            batch,
            self.slots,
            self.keys,
            acks,
            redelivery_counts,
            undeliverable,
            self._look_ahead,
            delayed,
            again,
        )

    def send_unstored(self, batch: EntryBatch, start: int, stop: int, acks: AckSet) -> int:
        return dispatch_without_queue(batch, start, stop, self.slots, self.keys)


class KeyQueue:
    """Entries that wait for an earlier entry of their key, or for the owner of their key."""

    def __init__(self, chooser: KeySlots, limits: Limits) -> None:
        self.keys = chooser.keys
        self._slots = chooser.slots
        self._consumers = chooser.consumers
        self._limits = limits
        self._turn_of = 0

    def next_consumer(self) -> Consumer | None:
        """Return the next consumer in rotation that can take some waiting entries, or None."""
        keys = self.keys
        if keys.queued == 0:
            return None
        blocked = BlockedConsumers()
        at = next_ready(self._consumers, self._turn_of, keys, blocked)
        for consumer in blocked.consumers:
            self._limits.can_take(consumer)
        if at < 0:
            return None
        self._turn_of = at + 1
        return self._consumers[at]

    def plan(self, consumer: Consumer, count: int) -> list[tuple[int, int, int]]:
        """Return the ranges to read for a consumer: (ledger id, first and last entry id)."""
        return self.keys.plan(consumer.slot, count, GAP_MAX)

    def send(
        self,
        batch: EntryBatch,
        acks: AckSet,
        redelivery_counts: dict[tuple[int, int], int],
        undeliverable: list[tuple[int, int]],
    ) -> None:
        """Send entries of the look-ahead to those of their consumers that can take them."""
        dispatch_waiting(batch, self._slots, self.keys, acks, redelivery_counts, undeliverable)

    def take_back(
        self, consumer: Consumer, positions: list[tuple[int, int]], acks: AckSet
    ) -> list[tuple[int, int]]:
        """Revoke deliveries of a consumer. Return those that were pending, in order."""
        taken = []
        for position in positions:
            key_hash = consumer.key_hash_of(*position)
            if consumer.settle_one(*position) and not acks.is_acknowledged(*position):
                self.keys.put_back(key_hash, *position)
                taken.append(position)
        return taken

    def pass_over(self, position: Position, last: int) -> None:
        """Drop entries up to the id last, which cannot be read."""
        self.keys.drop(position.ledger_id, position.entry_id, last)

    def drop_up_to(self, mark: Position) -> None:
        """Drop everything up to a mark, which is acknowledged."""
        if self.keys.waiting:
            self.keys.drop_up_to(*mark)

    def drop_ledger(self, ledger_id: int) -> None:
        self.keys.drop(ledger_id, 0, ENTRY_ID_MAX)

    def clear(self) -> None:
        """Drop all entries, because they are read again."""
        self.keys.clear()
