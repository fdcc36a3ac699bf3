"""Selection of the active consumer (Failover) and of the owners of key hashes (Key_Shared).

Plain functions of their input. They choose exactly as Pulsar does, so that consumers and tools see
the same ranges after a migration.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from pyxbroker.base.errors import ConsumerAssignError
from pyxbroker.hash_ranges import HashRanges, HeldRanges
from pyxbroker.keys import murmur3_of

FAILOVER_POINTS = 100  # per consumer
HASH_MASK = 2**31 - 1  # for results of murmur3_of()
HASH_MAX = 65535
RING_HASHES = 65535  # a ring has no hash 0
RANGE_HASHES = 65536
LARGEST_SPARE = 64
NO_RANGES = HashRanges()

T = TypeVar("T")

Owners: TypeAlias = "tuple[array[int], array[int]]"
"""The last hashes of ranges, ascending, and the owner of each: a slot, or 0 for none."""


class KeySharedMode(enum.IntEnum):
    """KeySharedMeta.keySharedMode."""

    AUTO_SPLIT = 0
    STICKY = 1


class KeySharedPolicy(NamedTuple):
    """The options of a Key_Shared consumer (KeySharedMeta)."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: HashRanges = NO_RANGES
    out_of_order: bool = False


class FailoverRing(Generic[T]):
    """Selects the active consumer among candidates of the best priority level.

    Each candidate has points on a ring, hashed from its name. The candidate of the first point at
    or after the topic's point is active. If points of several candidates meet, the last name wins,
    and among equal names the latest candidate.

    The topic's point is fixed, so only the nearest point of each candidate is stored.
    """

    def __init__(self, topic: str) -> None:
        self._from = murmur3_of(topic.encode())
        self._arrivals = 0
        self._places: dict[T, _Place] = {}
        self._sorted: list[tuple[_Place, T]] = []

    def add(self, candidate: T, level: int, name: str) -> None:
        self._arrivals += 1
        place = (level, self._distance(name), name, self._arrivals)
        self._places[candidate] = place
        # Places are unique, so the comparison never reaches the candidates.
        insort(self._sorted, (place, candidate))

    def remove(self, candidate: T) -> None:
        place = self._places.pop(candidate)
        del self._sorted[bisect_left(self._sorted, place, key=_place_of)]

    def first(self) -> T:
        """Return the active candidate; there must be at least one."""
        best = self._sorted[0][0][:2]
        at = bisect_right(self._sorted, best, key=_level_and_distance)
        return self._sorted[at - 1][1]

    def _distance(self, name: str) -> int:
        return min(
            (murmur3_of(f"{name}{point}".encode()) - self._from) & HASH_MASK
            for point in range(FAILOVER_POINTS)
        )


_Place: TypeAlias = "tuple[int, int, str, int]"
"""Sort key of a candidate: priority level, distance of its next point, name, order of arrival."""


def _place_of(candidate: tuple[_Place, object]) -> _Place:
    return candidate[0]


def _level_and_distance(candidate: tuple[_Place, object]) -> tuple[int, int]:
    return candidate[0][:2]


class Selector(Protocol):
    """Assigns each key hash to one consumer. Consumers are slots, counted from 1."""

    hashes: int
    """Number of hashes: RING_HASHES or RANGE_HASHES."""

    def add(self, slot: int, name: str, ranges: HashRanges) -> None:
        """Add a consumer. Raises ConsumerAssignError if it cannot have the ranges it requests."""

    def remove(self, slot: int) -> None:
        """Remove a consumer."""

    def owners(self) -> Owners:
        """Return the owner of each range of hashes."""


class ConsistentHashing:
    """Points of every consumer on a ring; a hash belongs to the next point at or after it.

    A point is a hash of the consumer's name, of a number that distinguishes consumers of the same
    name (the lowest free one), and of the point's own number. If points of several consumers meet,
    the first consumer owns the point.
    """

    hashes = RING_HASHES

    def __init__(self, points: int) -> None:
        self._points = points
        # All points, ascending, and the slot that owns each.
        self._ends = array("H")
        self._slots = array("i")
        self._sharing: dict[int, list[int]] = {}  # point -> slots that share it and do not own it
        self._names: dict[int, tuple[str, int]] = {}  # slot -> name and its number
        self._numbers: dict[str, FreeNumbers] = {}  # used numbers by name

    def add(self, slot: int, name: str, ranges: HashRanges) -> None:
        numbers = self._numbers.setdefault(name, FreeNumbers(0))
        self._names[slot] = (name, numbers.take())
        ends, slots = self._ends, self._slots
        for point in self._points_of(slot):
            at = bisect_left(ends, point)
            if at < len(ends) and ends[at] == point:
                self._sharing.setdefault(point, []).append(slot)
            else:
                ends.insert(at, point)
                slots.insert(at, slot)

    def remove(self, slot: int) -> None:
        points = self._points_of(slot)
        name, number = self._names.pop(slot)
        numbers = self._numbers[name]
        numbers.give_back(number)
        if numbers.used == 0:
            del self._numbers[name]
        ends, slots = self._ends, self._slots
        for point in points:
            sharing = self._sharing.get(point)
            at = bisect_left(ends, point)
            if slots[at] != slot:
                self._sharing[point].remove(slot)
            elif sharing:
                slots[at] = sharing.pop(0)
            else:
                del ends[at], slots[at]
            if sharing is not None and not sharing:
                del self._sharing[point]

    def _points_of(self, slot: int) -> set[int]:
        """Return the distinct points of one consumer."""
        name, number = self._names[slot]
        prefix = f"{name}\0{number}\0"
        return {
            murmur3_of(f"{prefix}{point}".encode()) % RING_HASHES + 1
            for point in range(self._points)
        }

    def owners(self) -> Owners:
        ends, slots = self._ends[:], self._slots[:]
        if ends and ends[-1] < HASH_MAX:
            ends.append(HASH_MAX)
            slots.append(slots[0])
        return ends, slots


class FreeNumbers:
    """Numbers from `first` on; take() returns the lowest free one."""

    def __init__(self, first: int) -> None:
        self.used = 0
        self._next = first  # lowest number never taken
        self._back: list[int] = []  # a heap of returned numbers

    def take(self) -> int:
        self.used += 1
        if self._back:
            return heappop(self._back)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        self.used -= 1
        heappush(self._back, number)


class HashRangeAutoSplit:
    """Ranges of hashes: a new consumer gets the lower half of the largest range."""

    hashes = RANGE_HASHES

    def __init__(self) -> None:
        # The last hashes of the ranges, ascending, and the owner of each. The last range ends at
        # RANGE_HASHES, which does not fit, so HASH_MAX stands for it.
        self._ends = array("H")
        self._slots = array("i")
        self._end_of: dict[int, int] = {}  # slot -> end of its range
        self._largest: list[tuple[int, int, int]] = []  # a heap of (-size, start, end)

    def add(self, slot: int, name: str, ranges: HashRanges) -> None:
        if not self._ends:
            self._insert(0, RANGE_HASHES, slot)
            return
        size, end = self._find_largest()
        if size <= 1:
            raise ConsumerAssignError(
                f"No more range can assigned to new consumer, assigned consumers {len(self._ends)}"
            )
        self._insert(self._index_of(end), end - (size >> 1), slot)

    def remove(self, slot: int) -> None:
        end = self._end_of.pop(slot)
        at = self._index_of(end)
        if end == RANGE_HASHES and at > 0:
            # The previous range becomes the last one.
            before = self._slots[at - 1]
            self._slots[at] = before
            self._end_of[before] = end
            at -= 1
        del self._ends[at], self._slots[at]
        self._update_heap(at)

    def _insert(self, at: int, end: int, slot: int) -> None:
        self._ends.insert(at, min(end, HASH_MAX))
        self._slots.insert(at, slot)
        self._end_of[slot] = end
        self._update_heap(at)
        self._update_heap(at + 1)

    def _index_of(self, end: int) -> int:
        """Return the index of the range with that end, or of the first one behind it."""
        last = len(self._ends) - 1
        return last if end == RANGE_HASHES else bisect_left(self._ends, end, hi=last)

    def _range(self, at: int) -> tuple[int, int, int]:
        """Return a range as an element of the heap."""
        start = self._ends[at - 1] if at else 0
        end = RANGE_HASHES if at == len(self._ends) - 1 else self._ends[at]
        return start - end, start, end

    def _update_heap(self, at: int) -> None:
        """Update the heap after the start or end of a range has changed."""
        count = len(self._ends)
        if len(self._largest) > 2 * count + LARGEST_SPARE:
            # Most elements are ranges that no longer exist.
            self._largest = [self._range(each) for each in range(count)]
            heapify(self._largest)
        elif at < count:
            heappush(self._largest, self._range(at))

    def _find_largest(self) -> tuple[int, int]:
        """Return (size, end) of the largest range, of equal ones the first."""
        while self._range(self._index_of(self._largest[0][2])) != self._largest[0]:
            heappop(self._largest)
        minus_size, _, end = self._largest[0]
        return -minus_size, end

    def owners(self) -> Owners:
        return self._ends[:], self._slots[:]


class HashRangeExclusive:
    """Ranges that consumers request themselves (STICKY); other hashes have no owner."""

    hashes = RANGE_HASHES

    def __init__(self) -> None:
        self._held = HeldRanges()

    def add(self, slot: int, name: str, ranges: HashRanges) -> None:
        self.check(ranges)
        self._held.add(slot, ranges)

    def check(self, ranges: HashRanges) -> None:
        """Raise ConsumerAssignError for ranges that are empty, reversed, or overlap each other."""
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
        """Return the slot of a consumer that has a part of these ranges, or 0."""
        return self._held.conflict(ranges)

    def remove(self, slot: int) -> None:
        self._held.remove(slot)

    def owners(self) -> Owners:
        return self._held.owners()
