"""What Python sees of hash_ranges.pyx: what STICKY consumers of Key_Shared ask for."""

from array import array
from collections.abc import Iterable

class HashRanges:
    """What one consumer asks for, ascending by the first hash."""

    @staticmethod
    def of(ranges: Iterable[tuple[int, int]]) -> HashRanges:
        """From (first, last) pairs."""
    @staticmethod
    def of_message(message: bytes, ranges_max: int) -> tuple[int, HashRanges, bool]:
        """(mode, ranges, whether order may be given up) of a KeySharedMeta, as protobuf writes it.

        Of more than ranges_max none is brought in order. Raises ValueError for other bytes.
        """
    @property
    def backward(self) -> tuple[int, int] | None:
        """The first range, as they came, whose end is before its start."""
    @property
    def overlap(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Two neighbours that have a hash in common."""
    def __len__(self) -> int: ...
    def __getitem__(self, i: int) -> tuple[int, int]: ...

class HeldRanges:
    """What all consumers of a subscription have. Consumers are slots, counted from 1."""

    @property
    def count(self) -> int:
        """Ranges of all of them."""
    def conflict(self, asked: HashRanges) -> int:
        """The slot of a consumer that has a part of what is asked for; 0: nobody has."""
    def add(self, slot: int, ranges: HashRanges) -> None:
        """A consumer has these, which nobody else has a part of."""
    def remove(self, slot: int) -> None:
        """A consumer is gone."""
    def owners(self) -> tuple[array[int], array[int]]:
        """The last hashes of ranges ("H"), ascending, and who has each ("i"); 0: nobody."""
