"""Who is active, and who owns which hashes: Pulsar's choices, and what holds for all of them."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from oracles.selectors import SlowAutoSplit, active_by_ring
from pyxbroker.base.errors import ConsumerAssignError
from pyxbroker.broker.dispatch import selectors
from pyxbroker.broker.dispatch.selectors import (
    FAILOVER_POINTS,
    NO_RANGES,
    ConsistentHashing,
    FailoverRing,
    HashRangeAutoSplit,
    HashRangeExclusive,
    Selector,
)
from pyxbroker.hash_ranges import HashRanges
from pyxbroker.keys import murmur3_of
from pyxbroker.proto import PulsarApi as pb

# --- Failover -------------------------------------------------------------------------------------


def active(candidates: list[tuple[int, str]], topic: str) -> int:
    """The index of the one that is active."""
    ring = FailoverRing[int](topic)
    for index, (level, name) in enumerate(candidates):
        ring.add(index, level, name)
    return ring.first()


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("fo-fixed-0-x1795273368", "d"),
        ("fo-fixed-1-x1795273371", "d"),
        ("fo-fixed-2-x1795273373", "b"),
        ("fo-fixed-5-x1795273380", "d"),
    ],
)
def test_the_active_consumer_is_the_one_that_pulsar_chooses(topic: str, expected: str) -> None:
    assert "abcd"[
        active([(0, name) for name in "abcd"], f"persistent://public/default/{topic}")
    ] == (expected)


def test_only_the_best_priority_level_counts() -> None:
    candidates = [(1, "a"), (0, "c"), (1, "b"), (0, "d")]
    assert {active(candidates, f"t{n}") for n in range(30)} == {1, 3}


def test_of_equal_names_the_last_one_is_active() -> None:
    assert active([(0, "")] * 3, "persistent://public/default/t") == 2


@given(
    st.text("ab", max_size=3),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 2)), max_size=30),
)
def test_the_active_one_is_that_of_all_points_on_a_ring(
    topic: str, changes: list[tuple[bool, int, int]]
) -> None:
    ring, here = FailoverRing[int](topic), list[tuple[int, str, int]]()
    for number, (comes, which, level) in enumerate(changes):
        if comes:
            here.append((level, f"name-{which % 4}", number))
            ring.add(number, level, f"name-{which % 4}")
        elif here:
            ring.remove(here.pop(which % len(here))[2])
        if here:
            in_order = sorted(here)
            candidates = [(level, name) for level, name, _ in in_order]
            assert ring.first() == in_order[active_by_ring(candidates, topic)][2]


def test_who_comes_next_costs_what_its_own_points_do(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    monkeypatch.setattr(selectors, "murmur3_of", lambda data: hashed.append(1) or murmur3_of(data))
    ring = FailoverRing[int]("t")
    hash_ring = ConsistentHashing(FAILOVER_POINTS)
    for number in range(1, 2_000):
        hashed.clear()
        ring.add(number, 0, f"name-{number}")
        ring.first()
        hash_ring.add(number, f"name-{number}", NO_RANGES)
        assert len(hashed) <= 2 * FAILOVER_POINTS


# --- owners of hashes -----------------------------------------------------------------------------


def owned(selector: Selector) -> list[tuple[int, int]]:
    """[(last hash of a range, its owner or 0)]."""
    ends, slots = selector.owners()
    return list(zip(ends, slots, strict=True))


def ranges_of(selector: Selector) -> dict[int, list[tuple[int, int]]]:
    """slot -> its ranges, those that touch joined."""
    found: dict[int, list[tuple[int, int]]] = {}
    first = 65536 - selector.hashes
    for last, slot in owned(selector):
        mine = found.setdefault(slot, [])
        if mine and mine[-1][1] == first - 1:
            mine[-1] = (mine[-1][0], last)
        else:
            mine.append((first, last))
        first = last + 1
    return found


def test_the_ring_is_pulsars() -> None:
    """Two consumers have the same name, and some points of theirs meet."""
    ring = ConsistentHashing(100)
    for slot, name in enumerate("abac", start=1):
        ring.add(slot, name, NO_RANGES)
    before = ranges_of(ring)
    assert {slot: len(each) for slot, each in before.items()} == {1: 76, 2: 78, 3: 70, 4: 68}
    assert before[2][:3] == [(1, 78), (460, 637), (1536, 1575)]
    assert before[2][-1] == (64885, 65535)
    ring.remove(1)
    after = ranges_of(ring)
    assert {slot: len(each) for slot, each in after.items()} == {2: 72, 3: 66, 4: 61}
    assert after[2][:3] == [(1, 78), (460, 637), (1295, 1575)]
    assert after[3][:3] == [(1142, 1294), (1943, 2173), (2643, 2682)]
    assert after[4][:3] == [(79, 459), (638, 1141), (1576, 1806)]
    # A point of the first one was also one of the third, which has it now.
    assert any(first <= 9841 <= last for first, last in after[3])


def test_the_largest_range_is_split() -> None:
    split = HashRangeAutoSplit()
    for slot in (1, 2, 3):
        split.add(slot, "", NO_RANGES)
    assert owned(split) == [(16384, 3), (32768, 2), (65535, 1)]
    split.remove(1)
    assert owned(split) == [(16384, 3), (65535, 2)]
    split.remove(3)
    assert owned(split) == [(65535, 2)]
    split.remove(2)
    assert owned(split) == []
    split.add(4, "", NO_RANGES)
    assert owned(split) == [(65535, 4)]


@pytest.mark.parametrize(
    ("ranges", "sentence"),
    [
        ((), "Ranges for KeyShared policy must not be empty."),
        (((10, 5),), "Fixed hash range start > end for range: [10,5]"),
        (((0, 10), (5, 20)), "Consumer's own ranges conflict: [0,10] overlaps with [5,20]"),
        (((10, 20), (0, 10)), "Consumer's own ranges conflict: [0,10] overlaps with [10,20]"),
    ],
)
def test_ranges_that_are_none(ranges: tuple[tuple[int, int], ...], sentence: str) -> None:
    with pytest.raises(ConsumerAssignError) as caught:
        HashRangeExclusive().add(1, "", HashRanges.of(ranges))
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([(21, 30)], 0),
        ([(0, 9)], 0),
        ([(0, 10)], 1),
        ([(20, 20)], 1),
        ([(12, 13)], 1),
        ([(0, 100)], 1),
        ([(0, 1), (55, 70)], 2),
    ],
)
def test_ranges_that_another_consumer_has(asked: list[tuple[int, int]], expected: int) -> None:
    sticky = HashRangeExclusive()
    sticky.add(1, "", HashRanges.of([(10, 20)]))
    sticky.add(2, "", HashRanges.of([(50, 60), (70, 80)]))
    assert sticky.conflict(HashRanges.of(asked)) == expected


def test_any_number_of_ranges_is_looked_at_in_any_order() -> None:
    sticky = HashRangeExclusive()
    even = HashRanges.of((hash_, hash_) for hash_ in range(65534, -1, -2))
    assert (even.backward, even.overlap, len(even)) == (None, None, 32768)
    sticky.add(1, "", even)
    odd = HashRanges.of((hash_, hash_) for hash_ in range(1, 65536, 2))
    assert sticky.conflict(odd) == 0
    sticky.add(2, "", odd)
    assert sticky.conflict(HashRanges.of([(65535, 65535)])) == 2
    assert owned(sticky) == [(hash_, hash_ % 2 + 1) for hash_ in range(65536)]
    sticky.remove(1)
    assert sticky.conflict(even) == 0
    assert owned(sticky)[:3] == [(0, 0), (1, 2), (2, 0)]


RANGES = st.lists(
    st.tuples(st.integers(-20, 70_000), st.integers(0, 50)).map(lambda it: (it[0], sum(it))),
    max_size=12,
)


@given(st.lists(RANGES, min_size=1, max_size=5))
def test_ranges_are_as_an_obvious_model_has_them(each_asks: list[list[tuple[int, int]]]) -> None:
    sticky, having = HashRangeExclusive(), dict[int, int]()
    for slot, asked in enumerate(each_asks, start=1):
        hashes = [hash_ for first, last in asked for hash_ in range(first, last + 1)]
        ranges = HashRanges.of(asked)
        assert list(ranges) == sorted(asked)
        assert (ranges.overlap is not None) == (len(hashes) != len(set(hashes)))
        others = {having[hash_] for hash_ in hashes if hash_ in having}
        if asked and ranges.overlap is None:
            conflict = sticky.conflict(ranges)
            assert conflict in others if others else conflict == 0
            if not others:
                sticky.add(slot, "", ranges)
                having |= dict.fromkeys(hashes, slot)
        expected = [having.get(hash_, 0) for hash_ in range(65536)]
        found = owners_of(sticky)
        assert found + [0] * (65536 - len(found)) == expected


def test_the_ranges_of_a_message_are_those_that_protobuf_reads() -> None:
    message = pb.KeySharedMeta(keySharedMode=pb.STICKY, allowOutOfOrderDelivery=True)
    asked = [(-5, 3), (300, 65535), (20, 20)]
    for first, last in asked:
        message.hashRanges.add(start=first, end=last)
    data = message.SerializeToString()
    mode, ranges, out_of_order = HashRanges.of_message(data, len(asked))
    assert (mode, list(ranges), out_of_order) == (pb.STICKY, sorted(asked), True)
    for cut in range(len(data)):
        try:
            pb.KeySharedMeta.FromString(data[:cut])
        except DecodeError:
            if cut:  # the mode, which protobuf alone wants to be there
                with pytest.raises(ValueError, match="malformed"):
                    HashRanges.of_message(data[:cut], len(asked))
    with pytest.raises(IndexError):
        HashRanges.of(asked)[3]


def test_unknown_fields_of_a_policy_are_passed_over() -> None:
    known = pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT, hashRanges=[pb.IntRange(start=1, end=2)])
    unknown = b"\xc0\x3e\x05" + b"\xc2\x3e\x03abc" + b"\xc1\x3e" + bytes(8) + b"\xc5\x3e" + bytes(4)
    data = unknown + known.SerializeToString() + unknown
    pb.KeySharedMeta.FromString(data)
    mode, ranges, out_of_order = HashRanges.of_message(data, 1)
    assert (mode, list(ranges), out_of_order) == (pb.AUTO_SPLIT, [(1, 2)], False)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_in_the_order_of_their_numbers(seed: int) -> None:
    random = Random(seed)
    bound = random.choice([3, 300, 70_000, 2**31 - 1])
    asked = [
        (random.randint(-bound, bound), random.randint(-bound, bound))
        for _ in range(random.choice([2, 5, 3_000]))
    ]
    assert list(HashRanges.of(asked)) == sorted(asked)
    assert list(HashRanges.of(sorted(asked, reverse=True))) == sorted(asked)


def test_what_nobody_asked_for_nobody_has() -> None:
    sticky = HashRangeExclusive()
    sticky.add(1, "", HashRanges.of([(60_000, 70_000), (-5, 10)]))
    sticky.add(2, "", HashRanges.of([(11, 20), (100, 100), (70_001, 80_000), (-100, -50)]))
    assert owned(sticky) == [(10, 1), (20, 2), (99, 0), (100, 2), (59_999, 0), (65535, 1)]
    sticky.remove(1)
    assert owned(sticky) == [(10, 0), (20, 2), (99, 0), (100, 2)]


def owners_of(selector: Selector) -> list[int]:
    found: list[int] = [0] * (65536 - selector.hashes)
    for last, slot in owned(selector):
        found += [slot] * (last + 1 - len(found))
    return found


@given(
    st.sampled_from(["ring", "split"]),
    st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=25),
)
def test_consumers_that_come_and_go(kind: str, changes: list[tuple[bool, int]]) -> None:
    selector: Selector = ConsistentHashing(30) if kind == "ring" else HashRangeAutoSplit()
    here: set[int] = set()
    before = owners_of(selector)
    for comes, slot in changes:
        if comes == (slot in here):
            continue
        if comes:
            selector.add(slot, f"name-{slot % 3}", NO_RANGES)
            here.add(slot)
        else:
            selector.remove(slot)
            here.remove(slot)
        ends = [last for last, _ in owned(selector)]
        assert all(a < b for a, b in pairwise(ends))
        after = owners_of(selector)
        if not here:
            assert after == [0] * (65536 - selector.hashes)
        else:
            assert len(after) == 65536
            assert set(after[1:]) == here
            # Only what the one that comes gets, or the one that goes leaves, changes hands.
            moved = [(a, b) for a, b in zip(before, after, strict=False) if a != b]
            assert all(b == slot if comes else a == slot for a, b in moved if a and b)
        before = after


@pytest.mark.parametrize("seed", range(10))
def test_the_ranges_that_are_split_are_those_that_looking_at_all_finds(seed: int) -> None:
    random = Random(seed)
    split, slow = HashRangeAutoSplit(), SlowAutoSplit()
    here: list[int] = []
    most = 10 ** random.randint(0, 2)
    for _ in range(400):
        if here and random.random() < len(here) / most / 2:
            slot = here.pop(random.randrange(len(here)))
            split.remove(slot)
            slow.remove(slot)
        else:
            slot = next(each for each in range(1, 500) if each not in here)
            split.add(slot, "", NO_RANGES)
            assert slow.add(slot)
            here.append(slot)
        assert owned(split) == slow.owners()


def test_ranges_are_split_until_each_is_one_hash() -> None:
    split = HashRangeAutoSplit()
    for slot in range(1, 65537):
        split.add(slot, "", NO_RANGES)
    with pytest.raises(ConsumerAssignError, match="assigned consumers 65536"):
        split.add(65537, "", NO_RANGES)
    ends = [last for last, _ in owned(split)]
    assert ends == [*range(1, 65536), 65535]
    for slot in range(1, 65536):
        split.remove(slot)
    assert owned(split) == [(65535, 65536)]
