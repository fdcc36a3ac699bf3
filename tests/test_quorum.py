"""Adds that wait for their bookies: the ring of bits against a set for each entry."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oracles.quorum import SlowPendingAdds
from pyxbroker.quorum import PendingAdds

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
