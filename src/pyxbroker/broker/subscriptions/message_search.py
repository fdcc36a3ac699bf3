"""Searches for entries of a topic: the n-th of a backlog, one by index; analysis of a backlog."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyxbroker.base.slices import Slices
from pyxbroker.broker.topics.entry_metadata import index_of
from pyxbroker.broker.topics.log_reader import read_batches
from pyxbroker.delivery import peek_entry
from pyxbroker.entry import Position
from pyxbroker.ledger.errors import EntryDamaged, NoSuchEntry
from pyxbroker.ledger.retries import Retries

if TYPE_CHECKING:
    from pyxbroker.broker.subscriptions.subscription import Subscription
    from pyxbroker.broker.topics.persistent import PersistentTopic

BACKLOG_ENTRIES_MAX = 10_000  # analysed at most; Pulsar's subscriptionBacklogScanMaxEntries


@dataclass
class BacklogAnalysis:
    """Pulsar's AnalyzeSubscriptionBacklogResult. Without filters, all messages are accepted."""

    entries: int = 0
    messages: int = 0
    marker_messages: int = 0
    is_aborted: bool = False
    first: Position | None = None
    last: Position | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result with the field names of Pulsar's JSON."""
        counted = asdict(self)
        found: dict[str, Any] = {
            "entries": counted["entries"],
            "messages": counted["messages"],
            "markerMessages": counted["marker_messages"],
            "filterRejectedEntries": 0,
            "filterAcceptedEntries": counted["entries"],
            "filterRescheduledEntries": 0,
            "filterRejectedMessages": 0,
            "filterAcceptedMessages": counted["messages"],
            "filterRescheduledMessages": 0,
            "aborted": self.is_aborted,
        }
        for name, position in (("firstMessageId", self.first), ("lastMessageId", self.last)):
            if position is not None:
                found[name] = f"{position.ledger_id}:{position.entry_id}"
        return found


async def analyze_backlog(
    topic: PersistentTopic, subscription: Subscription, start: Position | None
) -> BacklogAnalysis:
    """Count the unacknowledged entries of a subscription, from a position or its mark on, up to a
    maximum. Raises LedgerError if entries cannot be read now.
    """
    found = BacklogAnalysis()
    managed_ledger = topic.managed_ledger
    begin = managed_ledger.next_position(subscription.acks.mark_delete) if start is None else start
    slices = Slices()
    checked = 0
    async for batch in read_batches(managed_ledger, begin, "a backlog"):
        for index in range(len(batch)):
            if checked == BACKLOG_ENTRIES_MAX:
                found.is_aborted = True
                return found
            checked += 1
            await slices.pause()
            position = Position(batch.ledger_id, batch.entry_id(index))
            if subscription.acks.is_acknowledged(*position):
                continue
            found.first = found.first or position
            found.last = position
            found.entries += 1
            peeked = peek_entry(batch, index)
            if peeked is not None and peeked.marker_type >= 0:
                found.marker_messages += 1
            else:
                found.messages += 1 if peeked is None else peeked.num_messages
    return found


async def position_of_index(topic: PersistentTopic, index: int) -> Position | None:
    """Find the entry of the message with an index by bisection. Return None if none exists yet.

    Raises LedgerError if entries cannot be read now.
    """
    managed_ledger = topic.managed_ledger
    end, count = managed_ledger.last_confirmed, managed_ledger.entries
    retries = Retries(f"looking for index {index} of {topic.name}")

    def place(at: int) -> Position | None:
        # Counted from the end, because ledgers may be trimmed meanwhile. None: trimmed.
        kept = managed_ledger.ordinal(end) - count + at
        return managed_ledger.position_of(kept) if kept >= 0 else None

    async def last_index(at: int) -> int:
        """Return the index of the last message in an entry; -1 if it has none, or is lost."""
        position = place(at)
        if position is None:
            return -1
        try:
            return index_of(await retries.call(lambda: managed_ledger.read_one(position)))
        except (EntryDamaged, NoSuchEntry):
            return -1

    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        # An entry without an index gives no direction, so the previous one is used.
        at = middle
        while (here := await last_index(at)) < 0 and at > low:
            at -= 1
        if here >= index:
            high = at
        else:
            low = middle + 1
    return place(low) if low < count else None
