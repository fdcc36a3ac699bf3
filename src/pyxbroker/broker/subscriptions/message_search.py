"""Looking for entries of a topic: the n-th of a backlog, one by index, and what a backlog has."""

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

BACKLOG_ENTRIES_MAX = 10_000  # that are looked at; subscriptionBacklogScanMaxEntries of Pulsar


@dataclass
class BacklogAnalysis:
    """Pulsar's AnalyzeSubscriptionBacklogResult: there are no filters, so all is accepted."""

    entries: int = 0
    messages: int = 0
    marker_messages: int = 0
    is_aborted: bool = False
    first: Position | None = None
    last: Position | None = None

    def to_json(self) -> dict[str, Any]:
        """With the names that Pulsar's JSON has."""
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
    """Counts what a subscription has not acknowledged, from a position on or all of it, up to a
    number of entries. Raises LedgerError when entries cannot be read now.
    """
    found = BacklogAnalysis()
    managed_ledger = topic.managed_ledger
    begin = managed_ledger.next_position(subscription.acks.mark_delete) if start is None else start
    slices = Slices()
    looked_at = 0
    async for batch in read_batches(managed_ledger, begin, "a backlog"):
        for index in range(len(batch)):
            if looked_at == BACKLOG_ENTRIES_MAX:
                found.is_aborted = True
                return found
            looked_at += 1
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
    """The entry that has the message with an index, by bisection; None: none has it yet.

    Raises LedgerError when entries cannot be read now.
    """
    managed_ledger = topic.managed_ledger
    end, count = managed_ledger.last_confirmed, managed_ledger.entries
    retries = Retries(f"looking for index {index} of {topic.name}")

    def place(at: int) -> Position | None:
        # Counted back from the end, since ledgers may be trimmed meanwhile; None: it was.
        kept = managed_ledger.ordinal(end) - count + at
        return managed_ledger.position_of(kept) if kept >= 0 else None

    async def last_index(at: int) -> int:
        """Of the messages in an entry; -1: it has none, or is lost."""
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
        # What has no index tells nothing: the one before it is asked.
        at = middle
        while (here := await last_index(at)) < 0 and at > low:
            at -= 1
        if here >= index:
            high = at
        else:
            low = middle + 1
    return place(low) if low < count else None
