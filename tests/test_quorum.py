"""Adds that wait for their bookies: the ring of bits against a set for each entry."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oracles.quorum import SlowPendingAdds
from pyxbroker.entry import EntryRun
from pyxbroker.quorum import PendingAdds, PendingRuns

QUORUMS = [
    (ensemble, write, ack)
    for ensemble in range(1, 6)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


class PendingAddsMachine(RuleBasedStateMachine):
    """Runs are added, bookies answer in any order, some are replaced."""

    @initialize(quorums=st.sampled_from(QUORUMS), next_id=st.sampled_from([0, 1, 63, 10**12]))
    def open(self, quorums: tuple[int, int, int], next_id: int) -> None:
        self.ensemble = quorums[0]
        self.adds = PendingAdds(*quorums, next_id)
        self.slow = SlowPendingAdds(*quorums, next_id)

    @rule(count=st.integers(1, 5) | st.integers(60, 200))
    def add(self, count: int) -> None:
        assert self.adds.add(count) == self.slow.add(count)

    @rule(data=st.data())
    def on_ack(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.ensemble - 1))
        first = self.slow.first + data.draw(st.integers(-3, 70))
        last = first + data.draw(st.integers(-1, 70))
        assert self.adds.on_ack(index, first, last) == self.slow.on_ack(index, first, last)

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.ensemble - 1))
        self.adds.forget(index)
        self.slow.forget(index)

    @precondition(lambda self: self.slow.first < self.slow.next)
    @rule()
    def everybody_answers(self) -> None:
        for index in range(self.ensemble):
            self.adds.on_ack(index, 0, self.slow.next)
            self.slow.on_ack(index, 0, self.slow.next)
        assert self.adds.pending == 0

    @invariant()
    def same(self) -> None:
        assert self.adds.first == self.slow.first
        assert self.adds.next == self.slow.next
        assert self.adds.pending == len(self.slow.acks)
        assert self.adds.last_add_confirmed == self.slow.first - 1
        for entry in range(self.slow.first, self.slow.first + 6):
            assert self.adds.write_set(entry) == self.slow.write_set(entry)


TestPendingAdds = PendingAddsMachine.TestCase


class PendingRunsMachine(RuleBasedStateMachine):
    """Runs are appended and taken back, bookies answer in any order."""

    @initialize(quorums=st.sampled_from(QUORUMS), next_id=st.sampled_from([0, 63, 10**12]))
    def open(self, quorums: tuple[int, int, int], next_id: int) -> None:
        self.ensemble = quorums[0]
        self.pending = PendingRuns(*quorums, next_id)
        self.slow = SlowPendingAdds(*quorums, next_id)
        self.runs: list[EntryRun] = []

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=100))
    def append(self, counts: list[int]) -> None:
        for count in counts:
            run = EntryRun.of_all([b"x"] * count)
            assert self.pending.append(run) == self.slow.add(count) == run.first_entry_id
            self.runs.append(run)

    @rule(data=st.data())
    def on_ack(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.ensemble - 1))
        first = self.slow.first + data.draw(st.integers(-3, 70))
        last = first + data.draw(st.integers(-1, 200))
        self.slow.on_ack(index, first, last)
        assert [*self.pending.on_run_ack(index, first, last)] == self.confirmed()

    @rule()
    def everybody_answers_during_a_change(self) -> None:
        self.pending.hold()
        for index in range(self.ensemble):
            assert [*self.pending.on_run_ack(index, 0, self.slow.next)] == []
            self.slow.on_ack(index, 0, self.slow.next)
        self.pending.resume()
        assert [*self.pending.take_confirmed()] == self.confirmed() == self.runs_before
        assert self.pending.newest is None

    @precondition(lambda self: self.runs and self.runs[-1].first_entry_id >= self.slow.first)
    @rule()
    def take_back(self) -> None:
        run = self.runs.pop()
        self.pending.take_back()
        for entry_id in range(run.first_entry_id, self.slow.next):
            del self.slow.acks[entry_id]
        self.slow.next = run.first_entry_id

    @rule()
    def take_all(self) -> None:
        assert self.pending.take_all() == self.runs
        self.runs = []

    def confirmed(self) -> list[EntryRun]:
        self.runs_before = self.runs
        self.runs = [run for run in self.runs if run.last_entry_id >= self.slow.first]
        return [run for run in self.runs_before if run.last_entry_id < self.slow.first]

    @invariant()
    def same(self) -> None:
        assert self.pending.first == self.slow.first
        assert self.pending.next == self.slow.next
        assert self.pending.unconfirmed() == self.runs
        assert self.pending.has_runs == bool(self.runs)
        assert self.pending.newest is (self.runs[-1] if self.runs else None)


TestPendingRuns = PendingRunsMachine.TestCase


def test_an_entry_waits_for_those_before_it() -> None:
    adds = PendingAdds(3, 2, 2)
    adds.add(3)
    assert adds.on_ack(1, 1, 1) == -1
    assert adds.on_ack(2, 1, 1) == -1
    assert adds.on_ack(0, 0, 0) == -1
    assert adds.on_ack(1, 0, 0) == 1


def test_answers_of_bookies_that_were_not_asked_do_not_count() -> None:
    adds = PendingAdds(3, 2, 2)
    adds.add(1)
    adds.on_ack(0, 0, 0)
    assert adds.on_ack(2, 0, 0) == -1
    assert adds.on_ack(0, 0, 0) == -1


def test_answers_of_a_replaced_bookie_are_void() -> None:
    adds = PendingAdds(3, 3, 2)
    adds.add(1)
    adds.on_ack(0, 0, 0)
    adds.forget(0)
    assert adds.on_ack(1, 0, 0) == -1
    assert adds.on_ack(0, 0, 0) == 0


@pytest.mark.parametrize(
    ("ensemble", "write", "ack"), [(0, 0, 0), (1, 1, 0), (3, 2, 3), (2, 3, 2), (33, 2, 2)]
)
def test_impossible_quorums_are_refused(ensemble: int, write: int, ack: int) -> None:
    with pytest.raises(ValueError, match="quorums"):
        PendingAdds(ensemble, write, ack)


@pytest.mark.parametrize("index", [-1, 3, 64])
def test_a_bookie_outside_of_the_ensemble_is_refused(index: int) -> None:
    adds = PendingAdds(3, 2, 2)
    adds.add(1)
    with pytest.raises(ValueError, match="ensemble index"):
        adds.on_ack(index, 0, 0)
    with pytest.raises(ValueError, match="ensemble index"):
        adds.forget(index)


def test_an_empty_run_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PendingAdds(1, 1, 1).add(0)


def test_entries_that_no_bookie_was_given_are_taken_back_and_their_ids_given_again() -> None:
    adds = PendingAdds(3, 2, 2)
    adds.add(4)
    adds.on_ack(0, 0, 3)
    adds.truncate(2)
    assert (adds.next, adds.pending) == (2, 2)
    assert adds.add(1) == 2
    # Entry 2 goes to the bookies 2 and 0; what 0 said of the entry before it does not count.
    for entry_id in (0, 1):
        for index in adds.write_set(entry_id):
            adds.on_ack(index, entry_id, entry_id)
    assert adds.on_ack(2, 2, 2) == 1
    assert adds.on_ack(0, 2, 2) == 2


def test_confirmed_entries_and_those_to_come_are_not_taken_back() -> None:
    adds = PendingAdds(1, 1, 1)
    adds.add(3)
    adds.on_ack(0, 0, 0)
    for first in (0, 4):
        with pytest.raises(ValueError, match="cannot remove the entries"):
            adds.truncate(first)
    adds.truncate(1)
    assert adds.last_add_confirmed == 0
    assert adds.pending == 0


def test_an_answer_for_every_entry_there_can_be_confirms_those_there_are() -> None:
    adds = PendingAdds(1, 1, 1)
    adds.add(3)
    assert adds.on_ack(0, 0, 2**63 - 1) == 2
