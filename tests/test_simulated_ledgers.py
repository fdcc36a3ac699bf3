"""Ledgers under the simulator: no schedule breaks a promise, and planted bugs are found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyxbroker.entry import EntryRun
from pyxbroker.ledger import recovery
from pyxbroker.ledger.bookie import DISCONNECTED, FENCED, NO_ENTRY, TIMED_OUT
from pyxbroker.ledger.metadata import LedgerMetadata, VersionedLedgerMetadata
from pyxbroker.ledger.reader import ReadHandle, _StripedRead
from pyxbroker.ledger.recovery import FoundEntry, LedgerRecovery, Recovered, WriteBack
from pyxbroker.ledger.writer import Action, Change, LedgerWriter, Send, WriteMetadata
from simulate_ledger import ModelBatch, ModelBookie, Plants, StoredEntry, Violation, simulate

SEEDS = 3000
SEEDS_MAX = 10_000
"""Each planted bug is found within so many seeds."""


def test_no_schedule_breaks_a_promise() -> None:
    outcomes = [simulate(seed) for seed in range(SEEDS)]
    assert sum(len(each.stored.ensembles) > 1 for each in outcomes) > SEEDS // 5
    assert sum(each.failed for each in outcomes) > SEEDS // 5
    assert sum(each.confirmed == each.stored.last_entry_id for each in outcomes) > SEEDS // 5
    assert sum(each.confirmed < each.stored.last_entry_id for each in outcomes) > SEEDS // 10
    assert sum(len(each.recoveries) > 2 for each in outcomes) > SEEDS // 10
    assert sum(each.seen > 0 for each in outcomes) > SEEDS // 10


# --- bugs of the writer -------------------------------------------------------------------------


class ConfirmsDuringAChange(LedgerWriter):
    def _begin_change(self) -> list[Action]:
        actions = super()._begin_change()
        self.pending.resume()
        return actions


class CountsAcksOfTheReplaced(LedgerWriter):
    def on_metadata_written(self, version: int) -> list[Action]:
        for slot, index in dict(self._index_of).items():
            self._late[slot] = index
        return super().on_metadata_written(version)

    def on_acked(self, slot: int, first: int, last: int) -> Sequence[EntryRun]:
        index = self._late.get(slot)
        return super().on_acked(slot if index is None else self._slots[index], first, last)

    @property
    def _late(self) -> dict[int, int]:
        late: dict[int, int] = self.__dict__.setdefault("late", {})
        return late


class ResendsNothing(LedgerWriter):
    def on_metadata_written(self, version: int) -> list[Action]:
        actions = super().on_metadata_written(version)
        return [each for each in actions if not isinstance(each, Send)]


class BeginsTheSegmentTooLate(LedgerWriter):
    def _propose(self) -> list[Action]:
        (write,) = super()._propose()
        assert isinstance(write, WriteMetadata)
        ensemble = write.metadata.last_ensemble()[1]
        self._proposed = self.metadata.with_ensemble(self.pending.next, ensemble)
        return [write._replace(metadata=self._proposed)]


class OverwritesARecovery(LedgerWriter):
    def on_metadata_read(self, found: VersionedLedgerMetadata | None) -> list[Action]:
        assert found is not None
        self.metadata, self.version = self.metadata, found.version
        return self._propose()

    def on_failed(self, slot: int, first: int, code: int) -> list[Action]:
        return super().on_failed(slot, first, DISCONNECTED if code == FENCED else code)


class WaitsForOneTooFew(LedgerWriter):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        asked = self.metadata
        self.pending = type(self.pending)(
            asked.ensemble_size, asked.write_quorum_size, max(asked.ack_quorum_size - 1, 1)
        )


class KeepsTheOldSegment(LedgerWriter):
    def on_bookies_found(self, found: dict[int, str]) -> list[Action]:  # type: ignore[override]
        actions = super().on_bookies_found(found)
        if self.change is Change.WRITING:
            self._proposed = self.metadata
            return [WriteMetadata(self.metadata, self.version)]
        return actions


class SendsToTheFormerMembers(LedgerWriter):
    def _adopt(self, version: int) -> list[Action]:
        members = dict(self._members)
        actions = super()._adopt(version)
        self._members.update(members)
        return actions

    def _begin_change(self) -> list[Action]:
        members = dict(self._members)
        actions = super()._begin_change()
        self._members.update(members)
        return actions


class StopsAtALostAnswer(LedgerWriter):
    def on_metadata_lost(self) -> list[Action]:
        super().on_metadata_lost()
        return []


# --- bugs of the recovery -----------------------------------------------------------------------


class ClosesAtTheLastAddConfirmed(LedgerRecovery):
    def _advance(self) -> list[recovery.Action]:
        return self._close(self.metadata, 10 * self._next)


class TakesATimeoutForAbsence(LedgerRecovery):
    def on_read(
        self, entry_id: int, member: int, answer: FoundEntry | int
    ) -> list[recovery.Action]:
        return super().on_read(entry_id, member, NO_ENTRY if answer == TIMED_OUT else answer)


class BelievesTheFirstWithoutTheEntry(LedgerRecovery):
    def on_read(
        self, entry_id: int, member: int, answer: FoundEntry | int
    ) -> list[recovery.Action]:
        actions = super().on_read(entry_id, member, answer)
        if answer == NO_ENTRY and self._reads.pop(entry_id, None) is not None:
            self._decided[entry_id] = None
            actions += self._advance()
        return actions


class ForgetsToWriteBack(LedgerRecovery):
    def _advance(self) -> list[recovery.Action]:
        actions = super()._advance()
        self._unwritten = 0
        return [
            *(each for each in actions if not isinstance(each, WriteBack)),
            *self._close_if_written(),
        ]


class ClosesBeforeTheCopiesAreWritten(LedgerRecovery):
    def _close_if_written(self) -> list[recovery.Action]:
        self._unwritten = 0
        return super()._close_if_written()


class ForgetsItsEnsembleChanges(LedgerRecovery):
    def _close(self, metadata: LedgerMetadata, length: int) -> list[recovery.Action]:
        return super()._close(self.metadata, length)


class _MovingTheMark(LedgerWriter):
    @property
    def last_add_confirmed(self) -> int:
        return self.pending.last_add_confirmed


class MovesTheMarkWhileItRecovers(LedgerRecovery):
    """A later recovery then believes what only an ensemble in memory has."""

    def _advance(self) -> list[recovery.Action]:
        actions = super()._advance()
        if self.writer is not None:
            self.writer.__class__ = _MovingTheMark
        return actions


class KeepsItsEndAfterALostRace(LedgerRecovery):
    def on_metadata_lost(self) -> list[recovery.Action]:
        if self.phase is recovery.Phase.CLOSING:
            return [Recovered(self.metadata.last_entry_id, self.metadata.length)]
        return super().on_metadata_lost()


class ClosesOverAnotherEnd(LedgerRecovery):
    def on_metadata_read(self, found: VersionedLedgerMetadata | None) -> list[recovery.Action]:
        if found is not None and self.phase is recovery.Phase.CLOSING:
            return [WriteMetadata(self.metadata, found.version)]
        return super().on_metadata_read(found)


class NeedsOneAnswerOnly(LedgerRecovery):
    @property
    def _needed(self) -> int:
        return 1


# --- bugs of bookies and readers ----------------------------------------------------------------


class AcceptsAnAddAfterAFence(ModelBookie):
    """An add that passed the check before the fence is stored after it."""

    def may_add(self, is_recovery: bool) -> bool:
        return True


class DoesNotFenceWithRecoveryReads(ModelBookie):
    def recovery_read(self, entry_id: int) -> StoredEntry | None:
        return self.visible(entry_id)


class AsksOneBookieOnly(ReadHandle):
    def __init__(self, *arguments, policy) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*arguments[:2], 1, policy=policy)


class JoinsOverAGap(ReadHandle):
    """A part of a striped read that failed, or is too short, is left out."""

    def read(self, *arguments) -> None:  # type: ignore[no-untyped-def]
        first, last, _, bytes_max, callback = arguments
        segment, last = self._segment(first, last)
        if last > first and len(segment.bookies) > self.write_quorum:
            _JoinedAnyway(self, bytes_max, callback).ask(segment.bookies, first, last)
        else:
            super().read(*arguments)


class _JoinedAnyway(_StripedRead):
    def joined(self, parts):  # type: ignore[no-untyped-def]
        result = super().joined(parts)
        found = [each for each in parts if isinstance(each, ModelBatch)]
        if isinstance(result, ModelBatch):
            return result.join([(each, 0, each.count) for each in found])
        return result


@pytest.mark.parametrize(
    "planted",
    [
        ConfirmsDuringAChange,
        CountsAcksOfTheReplaced,
        ResendsNothing,
        BeginsTheSegmentTooLate,
        OverwritesARecovery,
        WaitsForOneTooFew,
        KeepsTheOldSegment,
        SendsToTheFormerMembers,
        StopsAtALostAnswer,
        ClosesAtTheLastAddConfirmed,
        TakesATimeoutForAbsence,
        BelievesTheFirstWithoutTheEntry,
        ForgetsToWriteBack,
        ClosesBeforeTheCopiesAreWritten,
        ForgetsItsEnsembleChanges,
        MovesTheMarkWhileItRecovers,
        KeepsItsEndAfterALostRace,
        ClosesOverAnotherEnd,
        NeedsOneAnswerOnly,
        AcceptsAnAddAfterAFence,
        DoesNotFenceWithRecoveryReads,
        AsksOneBookieOnly,
        JoinsOverAGap,
    ],
)
def test_the_simulator_finds_a_planted_bug(planted: type) -> None:
    (kind,) = (each for each in _KINDS if issubclass(planted, _KINDS[each]))
    plants = Plants()._replace(**{kind: planted})
    with pytest.raises(Violation):
        for seed in range(SEEDS_MAX):
            simulate(seed, plants)


_KINDS = {
    "writer": LedgerWriter,
    "recovery": LedgerRecovery,
    "bookie": ModelBookie,
    "reader": ReadHandle,
}
