"""Key hashes, and what waits for whom: the packed state against an obvious model."""

from __future__ import annotations

import time
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oracles import key_shared as plain
from oracles.key_shared import SlowKeyShared
from oracles.key_shared import owners as as_arrays
from pyxbroker.keys import KeyShared, key_hash_of, murmur3_of

# --- hashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0), (b"hello", 0x248BFA47), (b"test", 0xBA6BD213 & 0x7FFFFFFF)]
)
def test_murmur3_has_its_known_values(data: bytes, expected: int) -> None:
    assert murmur3_of(data) == expected


@given(st.binary(max_size=70))
def test_murmur3(data: bytes) -> None:
    assert murmur3_of(data) == plain.murmur3(data)


@given(
    st.binary(max_size=40),
    st.integers(0, 2**64 - 1),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
    st.sampled_from([65535, 65536]),
)
def test_the_hash_of_a_key(
    name: bytes, sequence_id: int, ordering: bytes | None, partition: bytes | None, hashes: int
) -> None:
    arguments = (name, sequence_id, ordering, partition, False, hashes)
    assert key_hash_of(*arguments) == plain.key_hash(*arguments)
    assert 1 <= key_hash_of(*arguments) <= 65535


@given(st.text("Ab0+/=-", max_size=12) | st.text("Ab0+/", max_size=3000))
def test_the_hash_of_a_key_in_base64(text: str) -> None:
    arguments = (b"p", 1, None, text.encode(), True, 65536)
    assert key_hash_of(*arguments) == plain.key_hash(*arguments)


def test_a_very_long_producer_name_counts_by_its_start() -> None:
    long = b"n" * 10_000
    assert key_hash_of(long, 7) == key_hash_of(long[:512], 7)


# --- the state ------------------------------------------------------------------------------------

SLOTS = [1, 2, 3]
HASHES = [1, 2, 63, 64, 65, 1000, 40_000, 65_534, 65_535]
hashes = st.sampled_from(HASHES)


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Owners of every hash, or of some."""
    ends = draw(st.lists(st.sampled_from([0, *HASHES]), unique=True, max_size=6))
    return [(end, draw(st.sampled_from([0, *SLOTS]))) for end in sorted(ends)]


class KeySharedMachine(RuleBasedStateMachine):
    """Any sequence of what a dispatcher does with it."""

    @initialize(ordered=st.booleans(), owners=ranges())
    def begin(self, ordered: bool, owners: list[tuple[int, int]]) -> None:
        self.keys = KeyShared(ordered)
        self.slow = SlowKeyShared(ordered)
        self.sent: list[tuple[int, int, tuple[int, int]]] = []  # hash, slot, position
        self.next_entry = 0
        self.change_owners(owners)

    def change_owners(self, owners: list[tuple[int, int]]) -> None:
        self.keys.set_owners(*as_arrays(owners))
        self.slow.ranges = owners

    @rule(owners=ranges())
    def owners_change(self, owners: list[tuple[int, int]]) -> None:
        self.change_owners(owners)

    @rule(key_hash=hashes)
    def new_entry(self, key_hash: int) -> None:
        position = (1 + self.next_entry // 20, self.next_entry % 20)
        self.next_entry += 1
        slot = self.slow.owner(key_hash)
        if slot and self.slow.may_be_sent(key_hash, slot):
            self.send(key_hash, slot, position)
        else:
            self.keys.put(key_hash, *position)
            self.slow.waiting[key_hash].append(position)

    @rule(key_hash=hashes)
    def new_entry_finds_no_permits(self, key_hash: int) -> None:
        position = (1 + self.next_entry // 20, self.next_entry % 20)
        self.next_entry += 1
        self.keys.put(key_hash, *position)
        self.slow.waiting[key_hash].append(position)

    def send(self, key_hash: int, slot: int, position: tuple[int, int]) -> None:
        self.keys.sent(key_hash, slot)
        if self.slow.ordered:
            self.slow.held[key_hash].append(slot)
        self.sent.append((key_hash, slot, position))

    @rule(slot=st.sampled_from(SLOTS), count=st.integers(1, 8), gap=st.integers(0, 3))
    def serve(self, slot: int, count: int, gap: int) -> None:
        ready = self.slow.ready(slot)
        plan = self.keys.plan(slot, count, gap)
        planned = [(ledger, entry) for ledger, a, b in plan for entry in range(a, b + 1)]
        assert planned == sorted(set(planned))
        due = [each for entries in ready.values() for each in entries]
        named = [each for each in planned if each in due]
        assert len(named) >= min(count, len(due))
        for ledger, first, last in plan:
            assert (ledger, first) in due and (ledger, last) in due
            inside = sorted(
                each[1] for each in due if each[0] == ledger and first <= each[1] <= last
            )
            assert all(b - a <= gap + 1 for a, b in pairwise(inside))
        for key_hash, entries in list(ready.items()):
            for position in list(entries):
                if position not in named:
                    continue
                # A gap may hold what is not planned itself; it has to wait for those before it.
                is_first = position == entries[0]
                assert self.keys.take(key_hash, *position) == is_first
                if is_first:
                    self.slow.waiting[key_hash].remove(position)
                    self.send(key_hash, slot, position)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.give_up(data)

    def give_up(self, data: st.DataObject) -> tuple[int, int, tuple[int, int]]:
        each = self.sent.pop(data.draw(st.integers(0, len(self.sent) - 1)))
        self.keys.settled(each[0], each[1])
        if self.slow.ordered:
            self.slow.held[each[0]].remove(each[1])
        return each

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        key_hash, _, position = self.give_up(data)
        self.put_back(key_hash, position)

    def put_back(self, key_hash: int, position: tuple[int, int]) -> None:
        self.keys.put_back(key_hash, *position)
        self.slow.waiting[key_hash].append(position)
        self.slow.waiting[key_hash].sort()

    @rule(slot=st.sampled_from(SLOTS), owners=ranges(), down=st.booleans())
    def consumer_leaves(self, slot: int, owners: list[tuple[int, int]], down: bool) -> None:
        mine = sorted((each for each in self.sent if each[1] == slot), key=lambda each: each[2])
        for each in reversed(mine) if down else mine:
            self.sent.remove(each)
            self.keys.settled(each[0], slot)
            if self.slow.ordered:
                self.slow.held[each[0]].remove(slot)
            self.put_back(each[0], each[2])
        self.change_owners([(last, 0 if to == slot else to) for last, to in owners])

    @precondition(lambda self: any(self.slow.waiting.values()))
    @rule(ledger=st.integers(1, 5), first=st.integers(0, 19), count=st.integers(1, 20))
    def drop(self, ledger: int, first: int, count: int) -> None:
        last = first + count - 1
        gone = 0
        for entries in self.slow.waiting.values():
            due = [each for each in entries if each[0] == ledger and first <= each[1] <= last]
            gone += len(due)
            for each in due:
                entries.remove(each)
        assert self.keys.drop(ledger, first, last) == gone

    @rule()
    def clear(self) -> None:
        self.keys.clear()
        self.slow.held.clear()
        self.slow.waiting.clear()
        self.sent.clear()

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "keys"):
            return
        assert self.keys.waiting == sum(map(len, self.slow.waiting.values()))
        assert self.keys.draining() == self.slow.draining()
        for key_hash in HASHES:
            slot = self.slow.owner(key_hash)
            assert self.keys.owner_of(key_hash) == slot
            held = self.slow.held[key_hash]
            assert self.keys.holder_of(key_hash) == ((held[0], len(held)) if held else (0, 0))
            if slot:
                assert self.keys.may_be_sent(key_hash, slot) == self.slow.may_be_sent(
                    key_hash, slot
                )
        for slot in SLOTS:
            assert self.keys.has_ready(slot) == bool(self.slow.ready(slot))
        in_use = {each for each in HASHES if self.slow.held[each] or self.slow.waiting[each]}
        assert len(in_use) <= self.keys.states_in_use <= len(in_use) + self.keys.queued
        if self.slow.ordered:
            for entries in self.slow.held.values():
                assert len(set(entries)) <= 1, "two consumers have entries of one key"


TestKeyShared = KeySharedMachine.TestCase


def test_memory_of_hashes_that_are_not_used_any_more_is_given_back() -> None:
    keys = KeyShared(True)
    keys.set_owners(*as_arrays([(65535, 1)]))
    for key_hash in range(1, 65536):
        keys.sent(key_hash, 1)
    assert keys.states_in_use == 65535
    for key_hash in range(1, 65536):
        keys.put(key_hash, 1, key_hash)
        keys.settled(key_hash, 1)
    for ledger_id, first, last in keys.plan(1, 65535, 0):
        for entry_id in range(first, last + 1):
            assert keys.take(entry_id, ledger_id, entry_id)
    assert not keys.has_ready(1)
    assert (keys.states_in_use, keys.waiting, keys.queued) == (0, 0, 0)


def test_who_knows_of_few_hashes_takes_little() -> None:
    keys = KeyShared(True)
    keys.set_owners(*as_arrays([(65535, 1)]))
    nothing = keys.bytes_held
    assert nothing < 512
    keys.sent(60_000, 1)
    keys.put(60_000, 1, 1)
    assert keys.bytes_held < 3 << 10
    for key_hash in range(1, 65536):
        keys.sent(key_hash, 1)
    assert keys.bytes_held > 65535 * 24
    for key_hash in range(1, 65536):
        keys.settled(key_hash, 1)
    assert keys.bytes_held < 3 << 10
    keys.clear()
    assert keys.bytes_held == nothing


def test_hashes_that_were_drained_are_counted_for_whom_drained_them() -> None:
    keys = KeyShared(True)
    keys.set_owners(*as_arrays([(65535, 1)]))
    for key_hash in (5, 5, 6, 60_000):
        keys.sent(key_hash, 1)
    keys.set_owners(*as_arrays([(50_000, 2), (65535, 1)]))
    keys.put(5, 1, 1)
    assert keys.draining() == [(1, 5, 2, 1), (1, 6, 1, 0)]
    keys.settled(6, 1)
    keys.settled(5, 1)
    keys.settled(60_000, 1)
    assert (keys.draining(), keys.drained, keys.drained_total) == ([(1, 5, 1, 1)], {1: 1}, 1)
    keys.settled(5, 1)
    keys.reset_drained(1)
    assert (keys.draining(), keys.drained, keys.drained_total) == ([], {}, 2)


def test_hashes_take_turns() -> None:
    keys = KeyShared(True)
    keys.set_owners(*as_arrays([(65535, 1)]))
    for key_hash in (1, 2, 3):
        for entry_id in range(10):
            keys.put(key_hash, 1, key_hash * 100 + entry_id)
    firsts = [keys.plan(1, 10, 0)[0][1] for _ in range(4)]
    assert firsts == [100, 200, 300, 100]


def test_nobody_settles_what_it_does_not_have() -> None:
    keys = KeyShared(True)
    keys.set_owners(*as_arrays([(65535, 1)]))
    keys.sent(5, 1)
    for slot, key_hash in ((2, 5), (1, 6)):
        with pytest.raises(AssertionError, match="does not hold"):
            keys.settled(key_hash, slot)


def test_an_entry_costs_the_same_however_many_wait() -> None:
    def best_time(waiting: int) -> float:
        keys = KeyShared(True)
        keys.set_owners(*as_arrays([(65_535, 1)]))
        for entry in range(waiting):
            keys.put(1 + entry % 5_000, 1, entry)
        best = float("inf")
        for first in range(0, 3_000, 1_000):
            before = time.process_time()
            for entry in range(waiting + first, waiting + first + 1_000):
                keys.put(1 + entry % 5_000, 1, entry)
            for _, first_entry, last_entry in keys.plan(1, 1_000, 0):
                for entry in range(first_entry, last_entry + 1):
                    assert keys.take(1 + entry % 5_000, 1, entry)
            best = min(best, time.process_time() - before)
        return best

    assert best_time(200_000) < best_time(5_000) * 5 + 0.005


def test_a_plan_takes_no_more_memory_than_what_waits() -> None:
    keys = KeyShared(True)
    keys.set_owners(*as_arrays([(65_535, 1)]))
    for entry in range(3):
        keys.put(7, 1, entry)
    assert keys.plan(1, 2**60 + 1, 2**63 - 1) == [(1, 0, 2)]


def zigzag(count: int) -> list[int]:
    """The first one, the last one, the second one, and so on."""
    ends = zip(range(count // 2), range(count - 1, count // 2 - 1, -1), strict=True)
    return [each for pair in ends for each in pair]


@pytest.mark.parametrize("order", ["zigzag", "inwards from behind", "random"])
def test_what_comes_back_finds_its_place_among_many_in_a_few_steps(order: str) -> None:
    count = 8_000
    entries = zigzag(count)
    if order == "inwards from behind":
        entries.reverse()
    elif order == "random":
        Random(1).shuffle(entries)
    keys = KeyShared(True)
    keys.set_owners(*as_arrays([(65_535, 1)]))
    for entry in entries:
        keys.put_back(7, 1, entry)
    # To look at all that are before it would take a quarter of all each time.
    assert keys.comparisons < count * (count // 20)
    for entry in range(count):
        assert keys.take(7, 1, entry)
    assert (keys.waiting, keys.take(7, 1, 0)) == (0, False)


@pytest.mark.parametrize("seed", range(5))
def test_many_entries_of_a_key_wait_in_order_however_they_come_and_go(seed: int) -> None:
    random = Random(seed)
    keys = KeyShared(True)
    keys.set_owners(*as_arrays([(65_535, 1)]))
    waiting: list[tuple[int, int]] = []
    out: list[tuple[int, int]] = []
    newest = 0
    for _ in range(300):
        event = random.choice(["new", "new", "back", "back", "take", "drop", "out of order"])
        if event == "new":
            for _ in range(random.randrange(60)):
                newest += 1
                keys.put(7, 1 + newest // 1_000, newest)
                waiting.append((1 + newest // 1_000, newest))
        elif event in ("back", "out of order"):
            random.shuffle(out)
            put = keys.put_back if event == "back" else keys.put
            for _ in range(random.randrange(len(out) + 1)):
                put(7, *out[-1])
                waiting.append(out.pop())
            waiting.sort()
        elif event == "take":
            for _ in range(random.randrange(len(waiting) + 1) // 2):
                assert keys.take(7, *waiting[0])
                out.append(waiting.pop(0))
        elif waiting:
            ledger, first = random.choice(waiting)
            last = first + random.randrange(200)
            gone = [each for each in waiting if each[0] == ledger and first <= each[1] <= last]
            assert keys.drop(ledger, first, last) == len(gone)
            waiting = [each for each in waiting if each not in set(gone)]
        assert keys.waiting == len(waiting)
    for position in waiting:
        assert keys.take(7, *position)
    assert keys.waiting == 0
