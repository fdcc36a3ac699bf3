"""Who gets what: the active consumer of Failover, and the owners of key hashes of Key_Shared.

These are values in, values out. The choices are Pulsar's, number by number, so that a consumer sees
the same after a move from one to the other, and tools show the same ranges.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from pyxbroker.base.errors import ConsumerAssignError
from pyxbroker.hash_ranges import HashRanges, HeldRanges
from pyxbroker.keys import murmur3_of

FAILOVER_POINTS = 100  # of each consumer on the ring
HASH_MAX = 65535
RING_HASHES = 65535  # a ring leaves out 0
RANGE_HASHES = 65536

Owners: TypeAlias = "tuple[array[int], array[int]]"
"""The last hashes of ranges, ascending, and who has each: a slot, or 0 for nobody."""


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

    def add(self, slot: int, name: str, ranges: HashRanges) -> None:
        """A consumer came. Raises ConsumerAssignError when it cannot have what it asks for."""

    def remove(self, slot: int) -> None:
        """A consumer is gone."""

    def owners(self) -> Owners:
        """Who has which hashes."""


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

    def add(self, slot: int, name: str, ranges: HashRanges) -> None:
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

    def owners(self) -> Owners:
        ends = array("H", self._sorted)
        slots = array("i", map(self._at.__getitem__, self._sorted))
        if ends and ends[-1] < HASH_MAX:
            ends.append(HASH_MAX)
            slots.append(slots[0])
        return ends, slots


class HashRangeAutoSplit:
    """Ranges of hashes: who comes gets the lower half of the largest one."""

    hashes = RANGE_HASHES

    def __init__(self) -> None:
        self._ends: list[int] = []  # ascending; the last one is RANGE_HASHES
        self._owners: dict[int, int] = {}

    def add(self, slot: int, name: str, ranges: HashRanges) -> None:
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

    def owners(self) -> Owners:
        ends = array("H", (min(end, HASH_MAX) for end in self._ends))
        return ends, array("i", map(self._owners.__getitem__, self._ends))


class HashRangeExclusive:
    """Ranges that consumers ask for themselves (STICKY); nobody has what nobody asked for."""

    hashes = RANGE_HASHES

    def __init__(self) -> None:
        self._held = HeldRanges()

    def add(self, slot: int, name: str, ranges: HashRanges) -> None:
        self.check(ranges)
        self._held.add(slot, ranges)

    def check(self, ranges: HashRanges) -> None:
        """Raises ConsumerAssignError for ranges that are none, or overlap each other."""
        if not len(ranges):
            raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
        if ranges.backward is not None:
            first, last = ranges.backward
            raise ConsumerAssignError(f"Fixed hash range start > end for range: [{first},{last}]")
        if ranges.overlap is not None:
            one, other = ranges.overlap
            raise ConsumerAssignError(
                f"Consumer's own ranges conflict: [{one[0]},{one[1]}] overlaps with"
                f" [{other[0]},{other[1]}]"
            )

    def conflict(self, ranges: HashRanges) -> int:
        """The slot of a consumer that has a part of these ranges; 0: nobody has."""
        return self._held.conflict(ranges)

    def remove(self, slot: int) -> None:
        self._held.remove(slot)

    def owners(self) -> Owners:
        return self._held.owners()
