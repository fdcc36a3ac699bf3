"""Acknowledged positions: bitmaps against plain sets."""

from __future__ import annotations

import gc
import time
from contextlib import suppress

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

from oracles.ackset import SlowAckSet, longs_in, longs_of
from pyxbroker import ackset, bitmap
from pyxbroker.ackset import AckSet, PositionSet
from pyxbroker.entry import AckRun
from pyxbroker.proto import MLDataFormats

# Ledger id -> entries in it; 7 was closed without any, and 11 is still written to.
LEDGERS = {3: 5, 5: 200, 7: 0, 8: 64, 11: 130}
OPEN_LEDGER = 11
ENTRIES = [(ledger, entry) for ledger, entries in LEDGERS.items() for entry in range(entries)]


def last_entry(ledger_id: int) -> int | None:
    """As ManagedLedger.last_entry answers it."""
    return LEDGERS[ledger_id] - 1 if ledger_id in LEDGERS else None


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
        for count_max in (-1, 0, 1, 2, 2**63 - 1):
            assert acks.ranges(ledger, count_max) == slow.ranges(ledger)[: max(count_max, 0)]
        assert longs_in(acks, ledger) == slow.longs(ledger)
    assert acks.count_ranges() == sum(len(slow.ranges(each)) for each in acks.ledger_ids())
    assert acks.longs_size() == sum(len(slow.longs(each)) for each in acks.ledger_ids())
    assert acks.partial == len(slow.left)
    assert acks.batch_ledger_ids() == sorted({ledger for ledger, _ in slow.left})
    assert acks.partial_words == sum(len(longs_of(left)) for left in slow.left.values())
    for position, left in slow.left.items():
        assert acks.unacked_in_batch(*position) == len(left)
        assert acks.ack_set(*position) == longs_of(left)


def copy_into(target: AckSet, acks: AckSet, bytes_max: int, only_changed: bool) -> None:
    """Stores an ack set as bytes, in pieces, and restores them in another one."""
    number = MLDataFormats.PositionInfo.DESCRIPTOR.fields_by_name["batchedEntryDeletionIndexInfo"]
    target.mark_delete_to(*acks.mark_delete)
    for ledger in acks.ledger_ids():
        word = 0
        while word != -1:
            runs, word = acks.encode_runs(ledger, word, bytes_max, only_changed)
            assert len(runs) <= bytes_max
            target.add_runs(ledger, runs, LEDGERS[ledger] - 1)
    for ledger in acks.batch_ledger_ids():
        entry = 0
        while entry != -1:
            args = (number.number, bytes_max, only_changed)
            batches, entry = acks.encode_batches(ledger, entry, *args)
            info = MLDataFormats.PositionInfo.FromString(b"\x08\x00\x10\x00" + batches)
            for each in info.batchedEntryDeletionIndexInfo:
                target.acknowledge_batch(
                    each.position.ledgerId, each.position.entryId, each.deleteSet
                )
    target.drop_acknowledged_batches()


class AckSetMachine(RuleBasedStateMachine):
    """Any sequence of what a cursor does with its acknowledgements.

    The copy is told only what changed, now and then, as a cursor ledger is.
    """

    @initialize()
    def open(self) -> None:
        self.acks = AckSet(3, -1, tracked=True)
        self.slow = SlowAckSet(3, -1)
        self.copy = AckSet(3, -1)

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
        self.acks.add_range(ledger, entry, entry + count, LEDGERS[ledger] - 1)
        self.acks.drop_acknowledged_batches()
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
        went_back = position < tuple(self.acks.mark_delete)
        self.acks.mark_delete_to(*position)
        self.slow.mark_delete_to(position)
        if went_back:
            # What the mark had swallowed is not a change: everything has to be stored anew.
            self.copy_everything(100)

    @rule(position=st.sampled_from(ENTRIES), left=st.frozensets(st.integers(0, 150), max_size=5))
    def acknowledge_batch(self, position: tuple[int, int], left: frozenset[int]) -> None:
        assert self.acks.acknowledge_batch(
            *position, longs_of(left)
        ) == self.slow.acknowledge_batch(position, left)
        self.reference_mark()

    @precondition(lambda self: self.slow.left)
    @rule(data=st.data())
    def acknowledge_more_of_a_batch(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(sorted(self.slow.left)))
        left = data.draw(st.frozensets(st.sampled_from(sorted(self.slow.left[position]))))
        self.acknowledge_batch(position, left)

    @precondition(lambda self: self.slow.single)
    @rule(data=st.data())
    def add_again_what_is_known(self, data: st.DataObject) -> None:
        ledger = data.draw(st.sampled_from(self.acks.ledger_ids()))
        self.acks.add_longs(ledger, longs_in(self.acks, ledger), LEDGERS[ledger] - 1)

    @rule(bytes_max=st.integers(64, 300))
    def copy_changes(self, bytes_max: int) -> None:
        copy_into(self.copy, self.acks, bytes_max, only_changed=True)
        assert_same(self.copy, self.slow)

    @rule(bytes_max=st.integers(64, 300))
    def copy_everything(self, bytes_max: int) -> None:
        self.copy = AckSet(3, -1)
        copy_into(self.copy, self.acks, bytes_max, only_changed=False)
        assert_same(self.copy, self.slow)

    @rule()
    def copy_everything_at_once(self) -> None:
        self.copy = AckSet(*self.acks.mark_delete)
        for ledger in self.acks.ledger_ids():
            self.copy.add_longs(ledger, longs_in(self.acks, ledger), LEDGERS[ledger] - 1)
        for position, left in self.slow.left.items():
            self.copy.acknowledge_batch(*position, longs_of(left))
        self.acks.forget_changes()
        assert_same(self.copy, self.slow)

    @rule()
    def clear(self) -> None:
        self.acks.clear()
        self.slow.single.clear()
        self.slow.left.clear()
        self.copy.clear()

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
        by_longs.add_longs(ledger, longs_in(acks, ledger), LEDGERS[ledger] - 1)
        for lower, upper in acks.ranges(ledger):
            by_ranges.add_range(ledger, lower, upper, LEDGERS[ledger] - 1)
    for restored in (by_longs, by_ranges):
        assert restored.holes == acks.holes
        assert all(
            restored.is_acknowledged(*each) == acks.is_acknowledged(*each) for each in ENTRIES
        )


def test_some_of_many_ranges_are_told_without_all_of_them() -> None:
    acks = AckSet(1, -1)
    acks.add_longs(1, [0x5555555555555554] * 10_000, 639_999)
    assert acks.count_ranges() == 310_000
    began = time.thread_time()
    for _ in range(100):
        assert len(acks.ranges(1, 1_000)) == 1_000
    assert time.thread_time() - began < 0.5, "of all of them, a hundred times, it takes 4 s"
    assert acks.ranges(1, 1_000) == acks.ranges(1)[:1_000]
    assert acks.ranges(2, 5) == []
    with pytest.raises(OverflowError):
        acks.ranges(1, 2**63)


def test_longs_before_the_mark_are_not_restored() -> None:
    acks = AckSet(5, 70)
    acks.add_longs(3, [-1], 1000)
    acks.add_longs(5, [-1, -1], 1000)
    assert acks.ledger_ids() == [5]
    assert acks.ranges(5) == [(70, 127)]
    assert acks.holes == 57


def test_restoring_a_ledger_twice_counts_its_entries_once() -> None:
    acks = AckSet(5, 0)
    acks.add_longs(5, [0b1110100], 1000)
    acks.add_longs(5, [0b1100], 1000)
    assert acks.holes == 5
    acks.advance(lambda ledger, entry: None)
    assert (tuple(acks.mark_delete), acks.holes) == ((5, 0), 5)


def test_nothing_behind_the_end_of_a_ledger_is_restored() -> None:
    """However much the stored bytes claim; and it costs no memory."""
    for last in (-1, 0, 62, 63, 64, 100):
        acks = AckSet(5, -1)
        acks.add_longs(5, [-1] * 100, last)
        assert acks.ranges(5) == [] if last < 0 else [(-1, last)]
        assert acks.holes == last + 1
        acks = AckSet(5, -1)
        acks.add(5, 0)
        acks.add_range(5, 1, 2**62, last)
        assert acks.holes == max(last - 1, 0)
        acks = AckSet(5, -1)
        source = AckSet(5, -1)
        source.add_longs(5, [-1] * 100, 10_000)
        acks.add_runs(5, source.encode_runs(5, 0, 1000, False)[0], last)
        assert acks.holes == last + 1


def test_no_runs_and_those_before_the_mark_restore_nothing() -> None:
    runs = AckSet(5, -1)
    runs.add_longs(5, [7], 10)
    data = runs.encode_runs(5, 0, 1000, False)[0]
    acks = AckSet(6, -1)
    acks.add_runs(6, b"", 10)
    acks.add_runs(6, data, -1)
    acks.add_runs(5, data, 10)
    assert (acks.holes, acks.ranges(5), acks.ranges(6)) == (0, [], [])
    acks.add_runs(6, data, 10)
    assert (acks.holes, acks.ranges(6)) == (3, [(-1, 2)])


@pytest.mark.parametrize("mark", [100, 1_087, 1_100, 1_200])
def test_changes_behind_a_mark_that_went_far_are_not_forgotten(mark: int) -> None:
    """Memory is moved then. What is no change is not told either."""
    acks, copy = AckSet(5, -1, tracked=True), AckSet(5, -1)
    for entry_id in range(1, 1_280, 2):
        acks.add(5, entry_id)
    acks.mark_delete_to(5, mark)
    runs, word = acks.encode_runs(5, 0, 1_000, True)
    assert word == -1
    copy.mark_delete_to(*acks.mark_delete)
    copy.add_runs(5, runs, 1_279)
    assert copy.ranges(5) == acks.ranges(5) != []

    acks.add(5, 1_250)
    acks.mark_delete_to(5, mark + 20)
    last, _ = acks.encode_runs(5, 0, 1_000, True)
    only = AckSet(5, -1)
    only.add_runs(5, last, 1_279)
    assert longs_in(only, 5) == [*[0] * 19, longs_in(acks, 5)[19]]


@given(st.binary(max_size=60), st.integers(-1, 5000))
def test_bytes_that_are_no_runs_are_refused_and_harm_nothing(data: bytes, last: int) -> None:
    acks = AckSet(5, 3)
    with suppress(ValueError):
        acks.add_runs(5, data, last)
    ranges = acks.ranges(5)
    assert acks.holes == sum(upper - lower for lower, upper in ranges)
    assert all(lower >= 3 and upper <= last for lower, upper in ranges)


@pytest.mark.parametrize("data", [b"\x00", b"\x00\x00", b"\x00\x01abc", b"\x80" * 12, b"\xff" * 9])
def test_runs_that_are_cut_short_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="encoded wrongly"):
        AckSet(5, 3).add_runs(5, data, 1000)


def test_an_ack_of_messages_completes_a_batch_in_any_order() -> None:
    acks = AckSet(3, -1)
    run = AckRun()
    run.add(3, 1, [0b1011], 4)
    run.add(3, 1, [0b1110], 4)
    run.add(3, 2, [0b1111], 4)  # none of four is acknowledged
    run.add(3, 3, [0, 1], 65)
    run.add(3, 4, [0, 0], 65)
    run.add(3, 5, [1], 2)  # no such entry
    run.add(99, 0, [1], 2)
    assert [run.position(i)[2] for i in range(len(run))] == [3, 3, 4, 1, 0, 1, 1]
    assert run.partial == 6
    assert run.ack_set(4) == []
    assert acks.add_run(run, last_entry) == 4
    assert (acks.partial, acks.unacked_in_batch(3, 1), acks.unacked_in_batch(3, 2)) == (2, 2, None)
    assert acks.ack_set(3, 1) == [0b1010]
    assert acks.ack_set(3, 3) == [0, 1]
    assert acks.ranges(3) == [(3, 4)]
    rest = AckRun()
    rest.add(3, 1, [0b0101], 4)
    assert acks.add_run(rest, last_entry) == 1
    assert (acks.partial, acks.ranges(3)) == (1, [(0, 1), (3, 4)])
    assert acks.add_run(rest, last_entry) == 0


def test_batches_that_take_too_much_memory_are_not_remembered() -> None:
    acks = AckSet(3, -1)
    words = [-1] * 4096
    entry = 0
    while acks.acknowledge_batch(8, entry, words):
        entry += 1
    assert 200 << 20 < acks.partial_words * 8 < 300 << 20
    assert not acks.acknowledge_batch(8, entry + 1, [1])
    assert acks.acknowledge_batch(8, 0, [1]), "what is remembered may shrink"
    assert not acks.acknowledge_batch(8, 1, [-1] * 4097)
    acks.mark_delete_to(8, entry)
    while not acks.drop_passed():
        assert acks.partial > 0
    assert (acks.partial, acks.partial_words) == (0, 0)


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
    longs = longs_in(acks, 1)
    assert len(longs) == 31_250
    restored = AckSet(1, -1)
    restored.add_longs(1, longs, 2_000_000)
    for entry in range(0, 2_000_000, 2):
        restored.add(1, entry)
    restored.advance(lambda ledger, entry: None)
    assert (tuple(restored.mark_delete), restored.holes) == ((1, 1_999_999), 0)


def test_a_run_acknowledges_only_whole_entries_that_exist() -> None:
    acks = AckSet(3, -1)
    run = AckRun.of([(3, 1), (3, 1), (3, 4), (3, 5), (3, -1), (99, 0), (8, 63), (8, 2**62)])
    assert acks.add_run(run, last_entry) == 3
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


def test_batches_have_a_limit_over_all_sets_and_who_has_little_goes_on() -> None:
    gc.collect()  # what earlier tests have left is not given back in the middle
    before, refused = ackset.batches_bytes(), ackset.batches_refused()
    words = [-1] * 1_000  # 8,200 bytes of a batch
    greedy, modest = AckSet(0, -1), AckSet(0, -1)
    ackset.set_batches_bytes_max(before + (4 << 20))
    try:
        kept = sum(greedy.acknowledge_batch(0, entry, words) for entry in range(1_000))
        assert kept == (4 << 20) // 8_200 + 1
        assert ackset.batches_refused() - refused == 1_000 - kept
        # What is remembered changes on, and others begin.
        assert greedy.acknowledge_batch(0, 0, words[1:])
        assert all(modest.acknowledge_batch(0, entry, words) for entry in range(100))
        assert not greedy.acknowledge_batch(0, 999, words)
        for entry in range(kept):
            greedy.add(0, entry)
        assert greedy.acknowledge_batch(0, 999, words)
    finally:
        ackset.set_batches_bytes_max(0)
    modest.clear()
    assert ackset.batches_bytes() - before == 8_200
    del greedy
    gc.collect()
    assert ackset.batches_bytes() == before


@pytest.mark.parametrize("last", [8, 9, 10, 2**63 - 1])
def test_counting_up_to_the_end_of_all_ids_ends(last: int) -> None:
    acks = AckSet(3, -1)
    for entry_id in (2, 3, 9):
        acks.add(3, entry_id)
    assert acks.acknowledged_up_to(3, 0, last) == (2 if last < 9 else 3)
    assert acks.acknowledged_up_to(3, last, last) == (1 if last == 9 else 0)


def test_sets_of_entries_are_counted_and_take_about_a_bit_for_each_entry_between() -> None:
    gc.collect()
    before = bitmap.held_bytes()
    acks = AckSet(0, -1, tracked=True)
    for entry in range(1, 1_000_000, 2):
        acks.add(0, entry)
    held = bitmap.held_bytes() - before
    assert 1_000_000 / 8 < held < 2.5 * 1_000_000 / 8
    again = PositionSet()
    again.add(7, 10**12)
    assert 0 < bitmap.held_bytes() - before - held < 1_000
    # Each of a ledger's own counts, however few entries are in it.
    for ledger in range(1, 1_001):
        acks.add(ledger, 0)
    assert bitmap.held_bytes() - before - held > 200_000
    acks.mark_delete_to(2_000, 0)
    again.clear()
    assert bitmap.held_bytes() == before


def test_a_mark_that_passes_many_batches_forgets_them_in_parts_and_at_once_for_all_who_ask() -> (
    None
):
    parts = 5000
    acks = AckSet(1, -1, tracked=True)
    for entry in range(parts):
        acks.acknowledge_batch(1, entry, [0b110])
    acks.mark_delete_to(1, parts - 2)
    assert acks.has_passed_batches
    assert acks.partial > parts // 2
    assert acks.unacked_in_batch(1, 0) is acks.unacked_in_batch(1, parts - 2) is None
    assert acks.ack_set(1, parts - 2) == []
    assert acks.unacked_in_batch(1, parts - 1) == 2
    # What is stored has them no longer.
    encoded, following = acks.encode_batches(1, 0, 5, 1 << 20, False)
    assert following == -1
    assert len(encoded) < 30
    # Nor can anything be added to them.
    assert not acks.acknowledge_batch(1, parts - 2, [0b100])
    steps = 1
    while not acks.drop_passed():
        before = acks.partial
        steps += 1
        assert before > 1
    assert steps >= parts // 1024
    assert (acks.partial, acks.has_passed_batches) == (1, False)


def test_a_set_that_nobody_needs_is_let_go_in_parts() -> None:
    acks = AckSet(1, -1, tracked=True)
    for ledger in range(1, 6):
        for entry in range(1000):
            acks.acknowledge_batch(ledger, entry, [0b110])
    left = [acks.partial]
    while not acks.drop_batches():
        left.append(acks.partial)
    assert left == [5000 - 1024 * step for step in range(5)]
    assert (acks.partial, acks.partial_words, acks.batch_ledger_ids()) == (0, 0, [])


@pytest.mark.parametrize("tracked", [False, True])
def test_the_first_and_the_last_of_a_million_entries_take_two_pages(tracked: bool) -> None:
    gc.collect()
    before = bitmap.held_bytes()
    acks = AckSet(0, -1, tracked=tracked)
    for entry in (1, 999_999):
        acks.add(0, entry)
    assert bitmap.held_bytes() - before < 6_000
    assert acks.acknowledged_up_to(0, 0, 10**6) == 2
    assert not acks.is_acknowledged(0, 500_000)
    # What the mark passes is given back.
    acks.mark_delete_to(0, 999_990)
    assert acks.holes == 1
    assert bitmap.held_bytes() - before < 4_000
