"""The writer of a ledger on an ensemble: by hand, and under the simulator with planted bugs."""

from __future__ import annotations

from typing import cast

import pytest

from pyxbroker.entry import EntryRun
from pyxbroker.ledger.bookie import DISCONNECTED, FENCED, TIMED_OUT, UNAUTHORIZED
from pyxbroker.ledger.errors import LedgerFenced, NotEnoughBookies, WrongPassword
from pyxbroker.ledger.metadata import LedgerMetadata, VersionedLedgerMetadata
from pyxbroker.ledger.writer import (
    Action,
    Change,
    Confirm,
    Fail,
    FindBookies,
    LedgerWriter,
    ReadMetadata,
    Send,
    WriteMetadata,
)
from simulate_writer import ModelRun, Violation, simulate

SEEDS = 3000
NAMES = ("a", "b", "c")


def writer_of(
    ensemble: int = 3, write: int = 3, ack: int = 2, delays: bool = False
) -> LedgerWriter:
    metadata = LedgerMetadata(ensemble, write, ack, {0: NAMES[:ensemble]})
    return LedgerWriter(7, metadata, 5, delays)


def append(writer: LedgerWriter, count: int = 1) -> tuple[EntryRun, list[Action]]:
    run = cast(EntryRun, ModelRun(count))
    return run, writer.append(run)


def sends(actions: list[Action]) -> list[tuple[int, str]]:
    return [(each.slot, each.bookie_id) for each in actions if isinstance(each, Send)]


def test_a_run_is_confirmed_by_its_ack_quorum_and_in_order() -> None:
    writer = writer_of()
    first, actions = append(writer, 2)
    assert sends(actions) == [(0, "a"), (1, "b"), (2, "c")]
    second, _ = append(writer)
    assert writer.on_acked(0, 2, 2) == []
    assert writer.on_acked(1, 2, 2) == []
    assert writer.on_acked(2, 0, 1) == []
    assert writer.on_acked(0, 0, 1) == [Confirm(first), Confirm(second)]
    assert writer.on_acked(0, 0, 1) == []


def test_a_striped_run_goes_to_the_bookies_of_its_write_sets() -> None:
    writer = writer_of(3, 2, 2)
    assert sends(append(writer)[1]) == [(0, "a"), (1, "b")]
    assert sends(append(writer)[1]) == [(1, "b"), (2, "c")]
    assert sends(append(writer, 2)[1]) == [(0, "a"), (1, "b"), (2, "c")]


def test_a_failed_bookie_is_replaced_from_the_first_unconfirmed_entry_on() -> None:
    writer = writer_of()
    first, _ = append(writer)
    writer.on_acked(0, 0, 0)
    assert writer.on_acked(1, 0, 0) == [Confirm(first)]
    second, _ = append(writer)
    writer.on_acked(0, 1, 1)
    assert writer.on_failed(2, 0, DISCONNECTED) == [
        FindBookies(frozenset({2}), NAMES, frozenset({"c"}))
    ]
    assert writer.on_acked(1, 1, 1) == [], "nothing is confirmed during the change"
    (write,) = writer.on_bookies_found({2: "d"})
    assert isinstance(write, WriteMetadata)
    assert write.version == 5
    assert write.metadata.ensembles == {0: NAMES, 1: ("a", "b", "d")}
    send, confirm = writer.on_metadata_written(6)
    assert isinstance(send, Send)
    assert (send.slot, send.bookie_id, send.run, send.length) == (3, "d", second, 10)
    assert confirm == Confirm(second)
    assert writer.on_failed(2, 1, TIMED_OUT) == [], "the replaced bookie does not count any more"


def test_a_bookie_that_refuses_the_password_fails_the_ledger() -> None:
    """Another bookie would refuse it as well."""
    writer = writer_of()
    append(writer)
    (fail,) = writer.on_failed(0, 0, UNAUTHORIZED)
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, WrongPassword)
    assert "another password" in str(fail.error)


def test_a_fence_ends_the_ledger() -> None:
    writer = writer_of()
    run, _ = append(writer)
    (fail,) = writer.on_failed(1, 0, FENCED)
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, LedgerFenced)
    assert writer.on_acked(0, 0, 0) == writer.on_acked(2, 0, 0) == []
    assert writer.take_unconfirmed() == [run]


def test_a_change_that_loses_to_a_recovery_ends_the_ledger() -> None:
    writer = writer_of()
    append(writer)
    writer.on_failed(1, 0, DISCONNECTED)
    writer.on_bookies_found({1: "d"})
    assert writer.on_metadata_lost() == [ReadMetadata()]
    (fail,) = writer.on_metadata_read(VersionedLedgerMetadata(writer.metadata.in_recovery(), 6))
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, LedgerFenced)


def test_a_change_is_proposed_again_over_one_of_an_earlier_segment() -> None:
    writer = writer_of()
    run, _ = append(writer)
    for slot in (0, 1):
        writer.on_acked(slot, 0, 0)
    append(writer)
    writer.on_failed(1, 1, DISCONNECTED)
    writer.on_bookies_found({1: "d"})
    writer.on_metadata_written(6)
    writer.on_failed(0, 1, DISCONNECTED)
    writer.on_bookies_found({0: "e"})
    writer.on_metadata_lost()
    replicated = writer.metadata.with_ensemble(0, ("x", "b", "c"))
    (write,) = writer.on_metadata_read(VersionedLedgerMetadata(replicated, 9))
    assert isinstance(write, WriteMetadata)
    assert write.version == 9
    assert write.metadata.ensembles == {0: ("x", "b", "c"), 1: ("e", "d", "c")}
    assert run.first_entry_id == 0


def test_without_a_spare_bookie_the_rest_of_the_ack_quorum_goes_on() -> None:
    writer = writer_of()
    first, _ = append(writer)
    writer.on_failed(2, 0, DISCONNECTED)
    writer.on_acked(0, 0, 0)
    writer.on_acked(1, 0, 0)
    assert writer.on_bookies_found({}) == [Confirm(first)]
    second, actions = append(writer)
    assert sends(actions) == [(0, "a"), (1, "b")]
    assert writer.retry() == [FindBookies(frozenset({2}), NAMES, frozenset())]
    writer.on_bookies_found({2: "d"})
    assert sends(writer.on_metadata_written(6)) == [(3, "d")]
    writer.on_acked(3, 1, 1)
    assert writer.on_acked(0, 1, 1) == [Confirm(second)]


def test_without_a_bookie_for_the_ack_quorum_the_ledger_fails() -> None:
    writer = writer_of()
    append(writer)
    writer.on_failed(2, 0, DISCONNECTED)
    writer.on_failed(1, 0, DISCONNECTED)
    (fail,) = writer.on_bookies_found({})
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, NotEnoughBookies)
    assert "ack quorum of 2: 2 of its 3 bookies failed" in str(fail.error)


def test_a_delayed_change_waits_until_an_entry_lacks_its_ack_quorum() -> None:
    writer = writer_of(delays=True)
    first, _ = append(writer)
    assert writer.on_failed(2, 0, TIMED_OUT) == []
    assert sends(append(writer)[1]) == [(0, "a"), (1, "b"), (2, "c")], "it may be well again"
    writer.on_acked(0, 0, 0)
    assert writer.on_acked(1, 0, 0) == [Confirm(first)]
    assert writer.on_failed(1, 1, TIMED_OUT) == [], "the third bookie was not asked in vain yet"
    append(writer)
    assert writer.on_failed(2, 1, TIMED_OUT) == [
        FindBookies(frozenset({1, 2}), NAMES, frozenset({"b", "c"}))
    ]


# --- the simulator ------------------------------------------------------------------------------


def test_no_schedule_breaks_a_promise() -> None:
    outcomes = [simulate(seed) for seed in range(SEEDS)]
    assert sum(len(each.stored.ensembles) > 1 for each in outcomes) > SEEDS // 10
    assert sum(each.end is not None for each in outcomes) > SEEDS // 10
    assert sum(not each.failed for each in outcomes) > SEEDS // 10


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

    def on_acked(self, slot: int, first: int, last: int) -> list[Action]:
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


class ForgetsWhatFailsDuringAChange(LedgerWriter):
    def on_failed(self, slot: int, first: int, code: int) -> list[Action]:
        if self.change is Change.WRITING and code != FENCED:
            return []
        return super().on_failed(slot, first, code)


class KeepsTheOldSegment(LedgerWriter):
    def on_bookies_found(self, found: dict[int, str]) -> list[Action]:  # type: ignore[override]
        actions = super().on_bookies_found(found)
        if self.change is Change.WRITING:
            self._proposed = self.metadata
            return [WriteMetadata(self.metadata, self.version)]
        return actions


class StopsAtALostAnswer(LedgerWriter):
    def on_metadata_lost(self) -> list[Action]:
        super().on_metadata_lost()
        return []


@pytest.mark.parametrize(
    "planted",
    [
        ConfirmsDuringAChange,
        CountsAcksOfTheReplaced,
        ResendsNothing,
        BeginsTheSegmentTooLate,
        OverwritesARecovery,
        WaitsForOneTooFew,
        ForgetsWhatFailsDuringAChange,
        KeepsTheOldSegment,
        StopsAtALostAnswer,
    ],
)
def test_the_simulator_finds_a_planted_bug(planted: type[LedgerWriter]) -> None:
    with pytest.raises(Violation):
        for seed in range(SEEDS):
            simulate(seed, planted)
