"""Who is active and who has which hashes, by looking at everything each time, as Pulsar does."""

from __future__ import annotations

from bisect import bisect_left, insort

from pyxbroker.keys import murmur3_of

RANGE_HASHES = 65536


def active_by_ring(candidates: list[tuple[int, str]], topic: str) -> int:
    """The index of the active consumer among candidates: (priority level, name), in that order,
    and of equal ones as they came.
    """
    ring: dict[int, int] = {}
    for index, (level, name) in enumerate(candidates):
        if level == candidates[0][0]:
            for point in range(100):
                ring[murmur3_of(f"{name}{point}".encode())] = index
    hashes = sorted(ring)
    at = bisect_left(hashes, murmur3_of(topic.encode()))
    return ring[hashes[at if at < len(hashes) else 0]]


class SlowAutoSplit:
    """Who comes gets the lower half of the largest range."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._owners: dict[int, int] = {}

    def add(self, slot: int) -> bool:
        """False: there is no range that can be split."""
        if not self._ends:
            self._ends = [RANGE_HASHES]
            self._owners[RANGE_HASHES] = slot
            return True
        starts = [0, *self._ends]
        size, _, end = max(
            (end - start, -start, end) for start, end in zip(starts, self._ends, strict=False)
        )
        if size <= 1:
            return False
        insort(self._ends, end - (size >> 1))
        self._owners[end - (size >> 1)] = slot
        return True

    def remove(self, slot: int) -> None:
        at = next(i for i, end in enumerate(self._ends) if self._owners[end] == slot)
        end = self._ends[at]
        if end == RANGE_HASHES and at > 0:
            self._owners[end] = self._owners.pop(self._ends[at - 1])
            del self._ends[at - 1]
        else:
            del self._ends[at]
            del self._owners[end]

    def owners(self) -> list[tuple[int, int]]:
        """[(last hash of a range, its slot)]."""
        return [(min(end, RANGE_HASHES - 1), self._owners[end]) for end in self._ends]
