"""Acknowledged positions: bitmaps against plain sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from oracles.ackset import SlowAckSet
from pyxbroker.ackset import AckSet, PositionSet
from pyxbroker.entry import AckRun

# Ledger id -> entries in it; 7 was closed without any, and 11 is still written to.
LEDGERS = {3: 5, 5: 200, 7: 0, 8: 64, 11: 130}
OPEN_LEDGER = 11
ENTRIES = [(ledger, entry) for ledger, entries in LEDGERS.items() for entry in range(entries)]


def ledger_after(ledger_id: int, entry_id: int) -> int | None:
    """As ManagedLedger.ledger_after answers it."""
    if ledger_id == OPEN_LEDGER or entry_id < LEDGERS[ledger_id] - 1:
        return None
    return min(each for each in LEDGERS if each > ledger_id)


def assert_same(acks: AckSet, slow: SlowAckSet) -> None:
    assert acks.mark_delete == slow.mark
    assert acks.holes == len(slow.single)
    assert acks.ledger_ids() == sorted({ledger for ledger, _ in slow.single})
    for ledger in acks.ledger_ids():
        assert acks.ranges(ledger) == slow.ranges(ledger)
        assert acks.to_longs(ledger) == slow.longs(ledger)


class AckSetMachine(RuleBasedStateMachine):
    """Any sequence of what a cursor does with its acknowledgements."""

    @initialize()
    def open(self) -> None:
        self.acks = AckSet(3, -1)
        self.slow = SlowAckSet(3, -1)

    def reference_mark(self) -> None:
        """add may move the mark by itself when nothing lies between; the slow one waits."""
        if self.slow.mark != tuple(self.acks.mark_delete):
            ledger, entry = self.slow.mark
            assert tuple(self.acks.mark_delete) == (ledger, entry + 1)
            self.slow.mark = (ledger, entry + 1)
            self.slow.single.remove(self.slow.mark)

    @rule(position=st.sampled_from(ENTRIES))
    def add(self, position: tuple[int, int]) -> None:
        assert self.acks.add(*position) == self.slow.add(position)
        self.reference_mark()

    @rule(start=st.sampled_from(ENTRIES), count=st.integers(1, 90))
    def add_many(self, start: tuple[int, int], count: int) -> None:
        ledger, entry = start
        for each in range(entry, min(entry + count, LEDGERS[ledger])):
            self.add((ledger, each))

    @rule(start=st.sampled_from(ENTRIES), count=st.integers(1, 90))
    def add_range(self, start: tuple[int, int], count: int) -> None:
        ledger, entry = start
        upper = min(entry + count, LEDGERS[ledger] - 1)
        self.acks.add_range(ledger, entry, upper)
        for each in range(entry + 1, upper + 1):
            self.slow.add((ledger, each))
        if self.slow.mark != tuple(self.acks.mark_delete):
            self.slow.mark_delete_to(tuple(self.acks.mark_delete))
            assert self.slow.mark == (ledger, upper)

    @rule()
    def advance(self) -> None:
        self.acks.advance(ledger_after)
        self.slow.advance(ledger_after)

    @rule(position=st.sampled_from([*ENTRIES, (5, -1), (7, -1), (8, -1), (11, -1)]))
    def mark_delete_to(self, position: tuple[int, int]) -> None:
        self.acks.mark_delete_to(*position)
        self.slow.mark_delete_to(position)

    @precondition(lambda self: self.slow.single)
    @rule(data=st.data())
    def restore_one_ledger(self, data: st.DataObject) -> None:
        ledger = data.draw(st.sampled_from(self.acks.ledger_ids()))
        self.acks.restore_longs(ledger, self.acks.to_longs(ledger))

    @rule()
    def clear(self) -> None:
        self.acks.clear()
        self.slow.single.clear()

    @rule(ledger=st.sampled_from([*LEDGERS, 99]), first=st.integers(0, 210), n=st.integers(0, 99))
    def count_some(self, ledger: int, first: int, n: int) -> None:
        expected = sum(first <= each <= first + n for each in self.slow.ids(ledger))
        assert self.acks.acknowledged_up_to(ledger, first, first + n) == expected

    @invariant()
    def same(self) -> None:
        assert_same(self.acks, self.slow)
        for position in ENTRIES:
            assert self.acks.is_acknowledged(*position) == self.slow.contains(position)


TestAckSet = AckSetMachine.TestCase


@given(st.sets(st.sampled_from(ENTRIES)), st.sampled_from(ENTRIES))
def test_longs_and_ranges_restore_the_same_set(
    positions: set[tuple[int, int]], mark: tuple[int, int]
) -> None:
    acks = AckSet(*mark)
    for position in positions:
        acks.add(*position)
    acks.advance(lambda ledger, entry: None)
    by_longs, by_ranges = AckSet(*acks.mark_delete), AckSet(*acks.mark_delete)
    for ledger in acks.ledger_ids():
        by_longs.restore_longs(ledger, acks.to_longs(ledger))
        for lower, upper in acks.ranges(ledger):
            by_ranges.add_range(ledger, lower, upper)
    for restored in (by_longs, by_ranges):
        assert restored.holes == acks.holes
        assert all(
            restored.is_acknowledged(*each) == acks.is_acknowledged(*each) for each in ENTRIES
        )


def test_longs_before_the_mark_are_not_restored() -> None:
    acks = AckSet(5, 70)
    acks.restore_longs(3, [-1])
    acks.restore_longs(5, [-1, -1])
    assert acks.ledger_ids() == [5]
    assert acks.ranges(5) == [(70, 127)]
    assert acks.holes == 57


def test_restoring_a_ledger_twice_counts_its_entries_once() -> None:
    acks = AckSet(5, 0)
    acks.restore_longs(5, [0b1110])
    acks.restore_longs(5, [0b1100])
    assert acks.holes == 2
    acks.advance(lambda ledger, entry: None)
    assert (tuple(acks.mark_delete), acks.holes) == ((5, 0), 2)


def test_the_mark_passes_an_empty_ledger() -> None:
    acks = AckSet(5, 199)
    acks.add(8, 0)
    acks.advance(ledger_after)
    assert (tuple(acks.mark_delete), acks.holes) == ((8, 0), 0)


def test_the_mark_does_not_leave_a_ledger_that_is_open() -> None:
    acks = AckSet(11, -1)
    for entry in range(130):
        acks.add(11, entry)
    acks.advance(ledger_after)
    assert tuple(acks.mark_delete) == (11, 129)


def test_a_million_single_acks_are_kept() -> None:
    acks = AckSet(1, -1)
    for entry in range(1, 2_000_000, 2):
        acks.add(1, entry)
    assert acks.holes == 1_000_000
    assert tuple(acks.mark_delete) == (1, -1)
    longs = acks.to_longs(1)
    assert len(longs) == 31_250
    restored = AckSet(1, -1)
    restored.restore_longs(1, longs)
    for entry in range(0, 2_000_000, 2):
        restored.add(1, entry)
    restored.advance(lambda ledger, entry: None)
    assert (tuple(restored.mark_delete), restored.holes) == ((1, 1_999_999), 0)


def test_a_run_acknowledges_only_whole_entries_that_exist() -> None:
    acks = AckSet(3, -1)
    run = AckRun.of([(3, 1), (3, 1), (3, 4), (3, 5), (3, -1), (99, 0), (8, 63), (8, 2**62)])
    added = acks.add_run(run, lambda ledger: LEDGERS[ledger] - 1 if ledger in LEDGERS else None)
    assert added == 3
    assert acks.ranges(3) == [(0, 1), (3, 4)]
    assert acks.ranges(8) == [(62, 63)]


# --- positions to deliver again -----------------------------------------------------------------


class PositionSetMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.positions = PositionSet()
        self.slow: set[tuple[int, int]] = set()

    @rule(position=st.sampled_from(ENTRIES))
    def add(self, position: tuple[int, int]) -> None:
        self.positions.add(*position)
        self.slow.add(position)

    @rule(start=st.sampled_from(ENTRIES), count=st.integers(1, 150))
    def add_many(self, start: tuple[int, int], count: int) -> None:
        ledger, entry = start
        for each in range(entry, entry + count):
            self.add((ledger, each))

    @rule(ledger=st.sampled_from([*LEDGERS, 99]), first=st.integers(0, 210), n=st.integers(0, 99))
    def discard_range(self, ledger: int, first: int, n: int) -> None:
        self.positions.discard_range(ledger, first, first + n)
        self.slow -= {(ledger, entry) for entry in range(first, first + n + 1)}

    @precondition(lambda self: self.slow)
    @rule(count_max=st.integers(1, 100))
    def take_the_first(self, count_max: int) -> None:
        ledger, first = min(self.slow)
        last = first
        while (ledger, last + 1) in self.slow and last + 1 - first < count_max:
            last += 1
        assert self.positions.first_range(count_max) == (ledger, first, last)

    @rule()
    def clear(self) -> None:
        self.positions.clear()
        self.slow.clear()

    @invariant()
    def same(self) -> None:
        assert len(self.positions) == len(self.slow)
        assert bool(self.positions) == bool(self.slow)
        for position in [*ENTRIES, (99, 0), (3, -1)]:
            assert (position in self.positions) == (position in self.slow)


TestPositionSet = PositionSetMachine.TestCase


def test_an_empty_set_has_no_first_positions() -> None:
    with pytest.raises(IndexError):
        PositionSet().first_range(10)
