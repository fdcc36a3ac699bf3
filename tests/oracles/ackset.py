"""Acknowledged positions as plain Python sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyxbroker.ackset import AckSet
from pyxbroker.proto import MLDataFormats

Position = tuple[int, int]
NextLedger = Callable[[int, int], int | None]


def longs_in(acks: AckSet, ledger: int) -> list[int]:
    """Return the words of a ledger as they are stored; the set encodes those of all ledgers."""
    encoded = b"\x08\x00\x10\x00" + acks.encode_longs(6)
    [found] = [
        list(each.values)
        for each in MLDataFormats.PositionInfo.FromString(encoded).individualDeletedMessageRanges
        if each.key == ledger
    ]
    return found


class SlowAckSet:
    """A mark-delete position, every single position acknowledged after it, and of each batch that
    is partly acknowledged the indexes of the messages that are not.
    """

    def __init__(self, ledger_id: int, entry_id: int) -> None:
        self.mark: Position = (ledger_id, entry_id)
        self.single: set[Position] = set()
        self.left: dict[Position, frozenset[int]] = {}

    def contains(self, position: Position) -> bool:
        return position <= self.mark or position in self.single

    def add(self, position: Position) -> bool:
        if self.contains(position):
            return False
        self.single.add(position)
        self.left.pop(position, None)
        return True

    def acknowledge_batch(self, position: Position, indexes: frozenset[int]) -> bool:
        """Acknowledges every message of a batch but those."""
        if self.contains(position):
            return False
        before = self.left.get(position)
        after = indexes if before is None else before & indexes
        if not after:
            return self.add(position)
        self.left[position] = after
        return after != before

    def advance(self, next_ledger: NextLedger) -> None:
        while True:
            ledger_id, entry_id = self.mark
            following = next_ledger(ledger_id, entry_id)
            ahead = [(ledger_id, entry_id + 1)]
            while following is not None:
                ahead.append((following, 0))
                following = next_ledger(following, -1)
            found = [position for position in ahead if position in self.single]
            if not found:
                return
            self.mark = found[0]
            self.single.remove(self.mark)

    def mark_delete_to(self, position: Position) -> None:
        self.mark = position
        self.single = {each for each in self.single if each > position}
        self.left = {each: left for each, left in self.left.items() if each > position}

    def ids(self, ledger_id: int) -> list[int]:
        """Entries of one ledger acknowledged one by one."""
        return sorted(entry for ledger, entry in self.single if ledger == ledger_id)

    def ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        """The same as (lower, upper], the longest there are."""
        found: list[tuple[int, int]] = []
        for entry in self.ids(ledger_id):
            if found and found[-1][1] == entry - 1:
                found[-1] = (found[-1][0], entry)
            else:
                found.append((entry - 1, entry))
        return found

    def longs(self, ledger_id: int) -> list[int]:
        """The same as Java's BitSet.toLongArray gives it."""
        return longs_of(self.ids(ledger_id))


def longs_of(indexes: Iterable[int]) -> list[int]:
    """Java's BitSet.toLongArray: signed words, no empty ones at the end."""
    bits = sum(1 << index for index in indexes)
    size = (bits.bit_length() + 63) // 64
    data = bits.to_bytes(size * 8, "little")
    return [
        int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, size * 8, 8)
    ]
