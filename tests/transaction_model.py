"""What the logs of transactions mean: a naive model for simulate_transactions.py.

It evaluates whole logs from their beginning, without snapshots, cursors and low-water marks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.base.errors import TransactionNotFound
from pyxbroker.broker.transactions.coordinator import LogRecord, Operation, Status
from pyxbroker.broker.transactions.ids import TxnId

if TYPE_CHECKING:
    from simulate_transactions import StoredSubscription, StoredTopic

OK = "ok"
LOST = "lost"
CONFLICT = "conflict"
REFUSED = "refused"
"""Answers."""


class Violation(AssertionError):
    """A promise was broken."""


class Entry(NamedTuple):
    """An entry of a topic."""

    txn: TxnId | None
    end: bool | None = None  # of a marker: True for a commit


class PendingRecord(NamedTuple):
    """A record of pending acknowledgements."""

    txn: TxnId
    is_cumulative: bool
    acknowledged: int | None = None
    is_commit: bool = False


class ModelAcks:
    """The acknowledgements of a subscription. Those of ended transactions are in the log."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.pending: dict[int, TxnId] = {}
        self.cumulative: tuple[TxnId, int] | None = None
        self.ended: set[TxnId] = set()  # since the last crash

    def mark(self) -> int:
        at = -1
        while at + 1 in self.acknowledged:
            at += 1
        return at

    def is_pending(self, at: int) -> bool:
        return at in self.pending or (self.cumulative is not None and at <= self.cumulative[1])

    def conflicts(self, at: int) -> bool:
        return at in self.acknowledged or at in self.pending

    def conflicts_up_to(self, txn: TxnId, at: int) -> bool:
        if self.cumulative is None:
            return at <= self.mark()
        return at <= self.mark() or self.cumulative[0] != txn or at <= self.cumulative[1]

    def acknowledge(self, record: PendingRecord) -> None:
        assert record.acknowledged is not None
        if record.is_cumulative:
            self.cumulative = record.txn, record.acknowledged
        else:
            self.pending[record.acknowledged] = record.txn

    def end(self, txn: TxnId, is_commit: bool) -> None:
        self.ended.add(txn)
        mine = [at for at, holder in self.pending.items() if holder == txn]
        for at in mine:
            del self.pending[at]
        if self.cumulative is not None and self.cumulative[0] == txn:
            mine += range(self.cumulative[1] + 1)
            self.cumulative = None
        if is_commit:
            self.acknowledged.update(mine)

    def holders(self) -> list[TxnId]:
        found = list(dict.fromkeys(self.pending.values()))
        if self.cumulative is not None and self.cumulative[0] not in found:
            found.append(self.cumulative[0])
        return found

    def crash(self, durable_acks: frozenset[int], log: list[PendingRecord]) -> None:
        """Evaluate the whole log. The cursor may have a commit whose record was not stored."""
        self.__init__()  # type: ignore[misc]
        self.acknowledged.update(durable_acks)
        for record in log:
            if record.acknowledged is None:
                self.end(record.txn, record.is_commit)
            else:
                self.acknowledge(record)
        for at in self.acknowledged & self.pending.keys():
            del self.pending[at]
        if self.cumulative is not None and self.cumulative[1] <= self.mark():
            self.cumulative = None
        self.ended.clear()


class Model:
    """What the logs say of each transaction, and what clients were answered."""

    def __init__(self) -> None:
        self.given: set[TxnId] = set()
        self.is_commit: dict[TxnId, bool] = {}
        self.finished: set[TxnId] = set()
        self.sent: dict[TxnId, list[tuple[str, int]]] = {}
        # The first markers, by topic and transaction; the entries before them, by topic.
        self.ends: dict[str, dict[TxnId, int]] = {}
        self.counts: dict[str, int] = {}

    # --- what is stored ---

    def on_decision(self, coordinator: int, record: LogRecord) -> None:
        txn = TxnId(coordinator, record.least)
        if record.operation is not Operation.UPDATE:
            if txn in self.is_commit:
                raise Violation(f"{txn} is changed after its end began")
            return
        is_commit = record.new in (Status.COMMITTING, Status.COMMITTED)
        if self.is_commit.setdefault(txn, is_commit) is not is_commit:
            raise Violation(f"{txn} is committed and aborted")
        if record.new in (Status.COMMITTED, Status.ABORTED):
            self.finished.add(txn)

    def on_entry(self, topic: str, entry: Entry) -> None:
        at = self.counts.get(topic, 0)
        self.counts[topic] = at + 1
        if entry.end is None:
            return
        assert entry.txn is not None
        ends = self.ends.setdefault(topic, {})
        if entry.txn in ends:
            return
        ends[entry.txn] = at
        if self.is_commit.get(entry.txn) is not entry.end:
            raise Violation(f"{topic} ends {entry.txn} with {entry.end}, not as was decided")

    # --- what is seen ---

    def is_late(self, topic: StoredTopic, at: int) -> bool:
        """Return True for a message that was stored after the end of its transaction."""
        txn = topic.log.durable[at].txn
        return at > self.ends.get(topic.name, {}).get(txn, at)

    def check_visibility(self, topic: StoredTopic, at: int, is_visible: bool) -> None:
        txn = topic.log.durable[at].txn
        if txn is None:
            return
        is_commit = self.is_commit.get(txn)
        if is_visible and not is_commit:
            raise Violation(f"message {at} of {topic.name} is visible, {txn} is not committed")
        if not is_visible and is_commit is not False and not self.is_late(topic, at):
            raise Violation(f"message {at} of {topic.name} is left out, {txn} is not aborted")

    def check_delivery(self, subscription: StoredSubscription, at: int) -> None:
        for txn in subscription.answered.get(at, ()):
            if self.is_commit.get(txn) is not False:
                raise Violation(
                    f"{at} of {subscription.participant} is delivered again, and {txn}, which is"
                    " not aborted, has acknowledged it"
                )
        if subscription.model.is_pending(at) or at in subscription.model.acknowledged:
            raise Violation(f"{at} of {subscription.participant} is delivered again")

    def check_end(self, subscription: StoredSubscription, txn: TxnId) -> None:
        """The end of a transaction is answered now, so that no crash may undo it."""
        after_crash = ModelAcks()
        after_crash.crash(subscription.durable_acks, subscription.log.durable)
        if txn in after_crash.holders():
            where = subscription.participant
            raise Violation(f"the end of {txn} on {where} is answered, and is not durable")

    def visible(self, topic: StoredTopic) -> list[int]:
        """Return the messages of a topic that each reader receives once."""
        return [
            at
            for at, (txn, end) in enumerate(topic.log.durable)
            if end is None
            and (txn is None or (self.is_commit.get(txn) and not self.is_late(topic, at)))
        ]

    # --- what clients were answered ---

    def on_ended(self, txn: TxnId, is_commit: bool, answer: Any) -> None:
        decided = self.is_commit.get(txn)
        if answer is OK:
            if decided is not is_commit or txn not in self.finished:
                raise Violation(f"the end of {txn} was answered, and is not durable")
            for topic, _ in self.sent.get(txn, ()):
                # A message that comes after an abort may be accepted, and is aborted later.
                if is_commit and txn not in self.ends.get(topic, ()):
                    raise Violation(f"the end of {txn} was answered, and {topic} has not ended it")
        elif decided is None:
            raise Violation(f"the end of {txn} was refused ({answer}), and no end is durable")
        elif decided is is_commit and not isinstance(answer, TransactionNotFound):
            raise Violation(f"the end of {txn} was refused: {answer}")
