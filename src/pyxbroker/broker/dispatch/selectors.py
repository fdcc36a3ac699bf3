"""Who gets what: the active consumer of Failover, and the owners of key hashes of Key_Shared.

These are values in, values out. The choices are Pulsar's, number by number, so that a consumer sees
the same after a move from one to the other, and tools show the same ranges.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from pyxbroker.base.errors import ConsumerAssignError
from pyxbroker.keys import murmur3_of

FAILOVER_POINTS = 100  # of each consumer on the ring
HASH_MAX = 65535
RING_HASHES = 65535  # a ring leaves out 0
RANGE_HASHES = 65536


def choose_active(
    candidates: Sequence[tuple[int, str]], topic: str, partition: int, by_hash: bool
) -> int:
    """The index of the active consumer among candidates: (priority level, name), in that order.

    Partitions (index 0 or more) go round among those of the best level; for other topics, or when
    by_hash says so (activeConsumerFailoverConsistentHashing), their names are put on a ring.
    """
    best = [each for each in candidates if each[0] == candidates[0][0]]
    if partition >= 0 and not by_hash:
        return partition % len(best)
    ring: dict[int, int] = {}
    for index, (_, name) in enumerate(best):
        for point in range(FAILOVER_POINTS):
            ring[murmur3_of(f"{name}{point}".encode())] = index
    hashes = sorted(ring)
    at = bisect_left(hashes, murmur3_of(topic.encode()))
    return ring[hashes[at if at < len(hashes) else 0]]


class Selector(Protocol):
    """Gives each key hash to one consumer. Consumers are slots, counted from 1."""

    hashes: int
    """How many hashes there are: RING_HASHES or RANGE_HASHES."""

    def add(self, slot: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """A consumer came. Raises ConsumerAssignError when it cannot have what it asks for."""

    def remove(self, slot: int) -> None:
        """A consumer is gone."""

    def owners(self) -> list[tuple[int, int]]:
        """[(last hash of a range, its owner or 0)], ascending."""


class ConsistentHashing:
    """Points of every consumer on a ring; a hash belongs to the next point at or after it.

    A point is a hash of the consumer's name, of the number of consumers of that name that were
    there before (the lowest one that is free), and of the point's own number. Where points of
    several consumers meet, the one that came first has it.
    """

    hashes = RING_HASHES

    def __init__(self, points: int) -> None:
        self._points = points
        self._sorted: list[int] = []
        self._at: dict[int, int] = {}  # point -> slot
        self._behind: dict[int, list[int]] = {}  # point -> slots that came later
        self._names: dict[int, tuple[str, int]] = {}  # slot -> name and its number

    def add(self, slot: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        taken = {number for other, number in self._names.values() if other == name}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        self._names[slot] = (name, number)
        for point in self._points_of(slot):
            if point not in self._at:
                self._at[point] = slot
                insort(self._sorted, point)
            else:
                self._behind.setdefault(point, []).append(slot)

    def remove(self, slot: int) -> None:
        points = self._points_of(slot)
        del self._names[slot]
        for point in points:
            behind = self._behind.get(point)
            if self._at[point] != slot:
                self._behind[point].remove(slot)
            elif behind:
                self._at[point] = behind.pop(0)
            else:
                del self._at[point]
                del self._sorted[bisect_left(self._sorted, point)]
            if behind is not None and not behind:
                del self._behind[point]

    def _points_of(self, slot: int) -> set[int]:
        """Points of one consumer that meet count once."""
        name, number = self._names[slot]
        prefix = f"{name}\0{number}\0"
        return {
            murmur3_of(f"{prefix}{point}".encode()) % RING_HASHES + 1
            for point in range(self._points)
        }

    def owners(self) -> list[tuple[int, int]]:
        found = [(point, self._at[point]) for point in self._sorted]
        if found and found[-1][0] < HASH_MAX:
            found.append((HASH_MAX, found[0][1]))
        return found


class HashRangeAutoSplit:
    """Ranges of hashes: who comes gets the lower half of the largest one."""

    hashes = RANGE_HASHES

    def __init__(self) -> None:
        self._ends: list[int] = []  # ascending; the last one is RANGE_HASHES
        self._owners: dict[int, int] = {}

    def add(self, slot: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        if not self._ends:
            self._ends = [RANGE_HASHES]
            self._owners[RANGE_HASHES] = slot
            return
        start = 0
        best, best_size = 0, 0
        for end in self._ends:
            if end - start > best_size:
                best, best_size = end, end - start
            start = end
        if best_size <= 1:
            raise ConsumerAssignError(
                f"No more range can assigned to new consumer, assigned consumers {len(self._ends)}"
            )
        middle = best - (best_size >> 1)
        insort(self._ends, middle)
        self._owners[middle] = slot

    def remove(self, slot: int) -> None:
        at = next(i for i, end in enumerate(self._ends) if self._owners[end] == slot)
        end = self._ends[at]
        if end == RANGE_HASHES and at > 0:
            # The one before it takes the end of the whole.
            before = self._ends[at - 1]
            self._owners[end] = self._owners.pop(before)
            del self._ends[at - 1]
        else:
            del self._ends[at]
            del self._owners[end]

    def owners(self) -> list[tuple[int, int]]:
        return [(min(end, HASH_MAX), self._owners[end]) for end in self._ends]


class HashRangeExclusive:
    """Ranges that consumers ask for themselves (STICKY); nobody has what nobody asked for."""

    hashes = RANGE_HASHES

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, int]] = []  # (first, last, slot), ascending

    def add(self, slot: int, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        self.check(ranges)
        self._ranges.extend((first, last, slot) for first, last in ranges)
        self._ranges.sort()

    def check(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Raises ConsumerAssignError for ranges that are none, or overlap each other."""
        if not ranges:
            raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
        for first, last in ranges:
            if first > last:
                raise ConsumerAssignError(
                    f"Fixed hash range start > end for range: [{first},{last}]"
                )
        in_order = sorted(ranges)
        for one, other in pairwise(in_order):
            if other[0] <= one[1]:
                raise ConsumerAssignError(
                    f"Consumer's own ranges conflict: [{one[0]},{one[1]}] overlaps with"
                    f" [{other[0]},{other[1]}]"
                )

    def conflict(self, ranges: Sequence[tuple[int, int]]) -> int:
        """The slot of a consumer that has a part of these ranges; 0: nobody has."""
        for first, last in ranges:
            # None of them overlap, so only the two can that are next to its beginning.
            at = bisect_left(self._ranges, (first, first, 0))
            for held_first, held_last, slot in self._ranges[max(at - 1, 0) : at + 1]:
                if held_first <= last and first <= held_last:
                    return slot
        return 0

    def remove(self, slot: int) -> None:
        self._ranges = [each for each in self._ranges if each[2] != slot]

    def owners(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        free_from = 0
        for first, last, slot in self._ranges:
            if last < 0 or first > HASH_MAX:
                continue  # nothing of it exists
            if first > free_from:
                found.append((first - 1, 0))
            found.append((min(last, HASH_MAX), slot))
            free_from = last + 1
        return found
