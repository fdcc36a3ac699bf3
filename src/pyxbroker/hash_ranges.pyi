"""Type stub of hash_ranges.pyx: hash ranges of STICKY Key_Shared consumers."""

from array import array
from collections.abc import Iterable

class HashRanges:
    """The ranges that one consumer requests, ascending by the first hash."""

    @staticmethod
    def of(ranges: Iterable[tuple[int, int]]) -> HashRanges:
        """Create from (first, last) pairs."""
    @staticmethod
    def of_message(message: bytes, ranges_max: int) -> tuple[int, HashRanges, bool]:
        """Parse a serialized KeySharedMeta to (mode, ranges, allowOutOfOrderDelivery).

        More than ranges_max ranges are returned unsorted. Raise ValueError for malformed bytes.
        """
    @property
    def backward(self) -> tuple[int, int] | None:
        """The first range in message order with last < first, or None."""
    @property
    def overlap(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Two adjacent ranges with a common hash, or None."""
    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> tuple[int, int]: ...

class HeldRanges:
    """The ranges of all consumers of a subscription. Consumers are identified by slots from 1."""

    @property
    def count(self) -> int:
        """Total number of ranges."""
    def conflict(self, asked: HashRanges) -> int:
        """Return the slot of a consumer whose ranges overlap the requested ones; 0 if there is
        none.
        """
    def add(self, slot: int, ranges: HashRanges) -> None:
        """Add the ranges of a consumer. They do not overlap existing ones."""
    def remove(self, slot: int) -> None:
        """Remove the ranges of a consumer."""
    def owners(self) -> tuple[array[int], array[int]]:
        """Return the ascending last hashes of ranges ("H") and the slots of their owners ("i"); 0:
        none.
        """
