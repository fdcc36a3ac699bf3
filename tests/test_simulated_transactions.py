"""Transactions under the simulator: no schedule breaks a promise, and planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from pyxbroker.base.errors import PulsarError
from pyxbroker.broker.transactions.buffer import Buffer, Snapshot
from pyxbroker.broker.transactions.coordinator import (
    Coordinator,
    LogRecord,
    Status,
    Transaction,
)
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.pending_acks import Ack, Cursor, PendingAcks, TrimIndex
from pyxbroker.entry import Position
from simulate_transactions import (
    Call,
    CoordinatorNode,
    Plants,
    SubscriptionNode,
    TopicNode,
    simulate,
)
from transaction_model import OK, Violation

SEEDS = 400
SEEDS_MAX = 10_000
"""Each planted bug is found within so many seeds."""


def test_no_schedule_breaks_a_promise() -> None:
    outcomes = [simulate(seed) for seed in range(SEEDS)]
    decisions = [is_commit for each in outcomes for is_commit in each.model.is_commit.values()]
    answered = [each for outcome in outcomes for each in outcome.subscriptions if each.answered]
    assert decisions.count(True) > SEEDS
    assert decisions.count(False) > SEEDS
    assert len(answered) > SEEDS // 5
    assert sum(each.crashes > 0 for each in outcomes) > SEEDS // 5
    assert any(topic.first for each in outcomes for topic in each.all_topics)


# --- bugs of the coordinator --------------------------------------------------------------------


class AbortsWhatItCommits(Coordinator):
    """A time-out, or a client, aborts a transaction whose commit has begun."""

    def begin_end(self, least: int, is_commit: bool, now_ms: int) -> LogRecord | None:
        found = self.find(least)
        if found is not None and found.status is Status.COMMITTING and not is_commit:
            found.status = Status.OPEN
        return super().begin_end(least, is_commit, now_ms)


class ForgetsSubscriptions(Coordinator):
    def replay(self, record: LogRecord) -> bool:
        return super().replay(record._replace(subscriptions=()))


class ForgetsItsDecisions(Coordinator):
    def replay(self, record: LogRecord) -> bool:
        return record.new is not Status.COMMITTING and super().replay(record)


class GivesANumberTwice(Coordinator):
    def replay(self, record: LogRecord) -> bool:
        sequence = self.sequence
        is_applied = super().replay(record)
        self.sequence = max(sequence, min(self.transactions, default=sequence))
        return is_applied


class AddsToWhatItEnds(Coordinator):
    def _open(self, least: int) -> Transaction:
        return self._find(least)


class MarksOpenOnesAsEnded(Coordinator):
    """The low-water mark ignores transactions that are open."""

    @property
    def low_water_mark(self) -> int:
        return self.sequence


class AnswersARepeatedEndBeforeItIsDecided(CoordinatorNode):
    def append(self, record: LogRecord | None, callback: Callable[[], None]) -> None:
        if record is not None and record.new in (Status.COMMITTING, Status.ABORTING):
            super().append(record, lambda: None)
            callback()
        else:
            super().append(record, callback)


# --- bugs of the transaction buffer -------------------------------------------------------------


class RefusesBeforeTheOtherEndIsDurable(CoordinatorNode):
    """A crash loses the commit for which an abort was refused, and a repeated abort succeeds."""

    def refuse(self, error: PulsarError, call: Call) -> None:
        call.answer(error)


class ShowsWhatFollowsAnOpenTransaction(Buffer):
    """The limit is the first message of the newest open transaction."""

    def on_end(self, txn: TxnId, commit: bool, position: Position) -> None:
        super().on_end(txn, commit, position)
        self.limit = next(reversed(self.ongoing.values()), None)


class SnapshotsTooLate(Buffer):
    """Recovery does not read the messages of open transactions again."""

    def snapshot(self, max_read: Position) -> Snapshot:
        return super().snapshot(max(self.ongoing.values(), default=max_read))


class ForgetsTheAbortedOfASnapshot(Buffer):
    def __init__(self, aborted: Iterable[tuple[TxnId, Position]] = ()) -> None:
        super().__init__(tuple(aborted)[1:])


class WaitsForStrays(Buffer):
    """Messages that come after the end of their transaction hold readers back for ever."""

    def stray(self) -> TxnId | None:
        return None


class ForgetsEnds(Buffer):
    """Messages are accepted after the end of their transaction, and a second end hides others."""

    def remember_end(self, txn: TxnId, commit: bool) -> None:
        super().remember_end(txn, commit)
        del self._ended[txn]


class AcceptsMessagesUntilTheMarkerIsStored(Buffer):
    """A message after the marker is aborted by the low-water mark, and hides those before it."""

    def begin_end(self, txn: TxnId) -> None:
        pass


class EndsBeforeTheMarkerIsStored(TopicNode):
    def _append_marker(self, txn: TxnId, is_commit: bool, then: Callable[[], None]) -> None:
        if is_commit:
            super()._append_marker(txn, is_commit, lambda: None)
            then()
        else:
            super()._append_marker(txn, is_commit, then)


# --- bugs of pending acknowledgements -----------------------------------------------------------


class OverlooksPendingOnes(PendingAcks):
    def _is_pending(self, ack: Ack) -> bool:
        return False


class OverlooksAcknowledgedOnes(PendingAcks):
    def _is_acknowledged(self, ack: Ack, cursor: Cursor) -> bool:
        return False


class LetsPlainAcknowledgementsPassPendingOnes(PendingAcks):
    """A crash undoes the plain ones, and the replay rejects what was accepted after them."""

    def cumulative_conflict(self, txn: TxnId, ack: Ack, cursor: Any) -> str | None:
        if self.cumulative is not None and self.cumulative[1].position <= cursor.mark_delete:
            return None if ack.position > cursor.mark_delete else "passed"
        return super().cumulative_conflict(txn, ack, cursor)


class ReplaysHalf(PendingAcks):
    """Only the first acknowledgement of each transaction is pending after a crash."""

    def replay(self, txn: TxnId, acks: Sequence[Ack], cursor: Cursor) -> None:
        if not self.holds(txn)[0]:
            super().replay(txn, acks, cursor)


class TakesOneStepOnly(PendingAcks):
    def take(self, txn: TxnId, count_max: int) -> list[Ack]:
        taken = super().take(txn, count_max)
        super().take(txn, 1000)
        return taken


class KeepsWhatCameLate(PendingAcks):
    def stray(self, coordinator: int) -> TxnId | None:
        return None


class AcceptsAcknowledgementsAfterTheEnd(PendingAcks):
    """They are released later, although they were answered with success."""

    def refuses(self, txn: TxnId) -> bool:
        return False


class TrimsOneRecordTooMany(TrimIndex):
    def trim_to(self, mark_delete: tuple[int, int]) -> tuple[int, int] | None:
        found = super().trim_to(mark_delete)
        return None if found is None else (found[0], found[1] + 1)


class BelievesThatAnEndIsDurable(SubscriptionNode):
    """The second call of two is answered before the record of the first is durable."""

    def after_end(self, then: Callable[[], None], has_records: bool) -> None:
        if has_records:
            super().after_end(then, has_records)
        else:
            then()


class AnswersBeforeTheRecordIsDurable(SubscriptionNode):
    def acknowledge(self, txn: TxnId, at: int, is_cumulative: bool, call: Call) -> None:
        super().acknowledge(txn, at, is_cumulative, call)
        call.answer(OK)


_KINDS: dict[str, type[Any]] = {
    "coordinator": Coordinator,
    "buffer": Buffer,
    "pending_acks": PendingAcks,
    "trim_index": TrimIndex,
    "coordinator_node": CoordinatorNode,
    "topic_node": TopicNode,
    "subscription_node": SubscriptionNode,
}
PLANTED: list[type[Any]] = [
    AbortsWhatItCommits,
    ForgetsSubscriptions,
    ForgetsItsDecisions,
    GivesANumberTwice,
    AddsToWhatItEnds,
    MarksOpenOnesAsEnded,
    AnswersARepeatedEndBeforeItIsDecided,
    RefusesBeforeTheOtherEndIsDurable,
    ShowsWhatFollowsAnOpenTransaction,
    SnapshotsTooLate,
    ForgetsTheAbortedOfASnapshot,
    WaitsForStrays,
    ForgetsEnds,
    AcceptsMessagesUntilTheMarkerIsStored,
    EndsBeforeTheMarkerIsStored,
    OverlooksPendingOnes,
    OverlooksAcknowledgedOnes,
    LetsPlainAcknowledgementsPassPendingOnes,
    ReplaysHalf,
    TakesOneStepOnly,
    KeepsWhatCameLate,
    AcceptsAcknowledgementsAfterTheEnd,
    TrimsOneRecordTooMany,
    BelievesThatAnEndIsDurable,
    AnswersBeforeTheRecordIsDurable,
]


@pytest.mark.parametrize("planted", PLANTED)
def test_the_simulator_finds_a_planted_bug(planted: type[Any]) -> None:
    (kind,) = (each for each in _KINDS if issubclass(planted, _KINDS[each]))
    plants = Plants()._replace(**{kind: planted})
    with pytest.raises(Violation):
        for seed in range(SEEDS_MAX):
            simulate(seed, plants)
