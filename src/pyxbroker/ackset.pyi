"""What Python sees of ackset.pyx: acknowledged positions of a cursor, and sets of positions."""

from collections.abc import Callable, Iterable

from pyxbroker.entry import AckRun, Position

class EntryBitmap:
    """Entry ids of one ledger, a bit each."""

    @property
    def count(self) -> int:
        """Entries in the set."""
    def to_longs(self) -> list[int]:
        """Signed 64-bit words from entry 0 on, as Java's BitSet.toLongArray gives them."""
    @staticmethod
    def from_longs(longs: Iterable[int]) -> EntryBitmap:
        """The set that to_longs gave these words of."""

class AckSet:
    """Mark-delete position plus the entries acknowledged after it."""

    def __init__(self, ledger_id: int, entry_id: int) -> None: ...
    @property
    def mark_ledger_id(self) -> int:
        """Ledger id of the mark-delete position."""
    @property
    def mark_entry_id(self) -> int:
        """Entry id of the mark-delete position; -1 before a ledger's first entry."""
    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
    @property
    def holes(self) -> int:
        """Entries acknowledged one by one after the mark."""
    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the mark has passed an entry or it was acknowledged alone."""
    def add(self, ledger_id: int, entry_id: int) -> bool:
        """Acknowledges an entry that exists; True when it was not acknowledged before."""
    def add_run(self, run: AckRun, last_entry: Callable[[int], int | None]) -> int:
        """Acknowledges the whole entries of an ACK that exist; returns how many were new."""
    def add_range(self, ledger_id: int, lower: int, upper: int) -> None:
        """Acknowledges the entries after lower up to upper."""
    def advance(self, next_ledger: Callable[[int, int], int | None]) -> None:
        """Moves the mark over everything that is acknowledged without a gap."""
    def mark_delete_to(self, ledger_id: int, entry_id: int) -> None:
        """Sets the mark, and forgets single entries up to it."""
    def clear(self) -> None:
        """Forgets every single entry; the mark stays."""
    def acknowledged_up_to(self, ledger_id: int, first: int, last: int) -> int:
        """How many of the entries first..last of one ledger are acknowledged one by one."""
    def ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        """Single entries of one ledger as (lower, upper], in order."""
    def ledger_ids(self) -> list[int]:
        """Ledgers that hold single acknowledged entries, ascending."""
    def to_longs(self, ledger_id: int) -> list[int]:
        """The words of one ledger (see EntryBitmap). KeyError for one without single entries."""
    def restore_longs(self, ledger_id: int, longs: Iterable[int]) -> None:
        """Takes the words of one ledger in place of what is known of it."""

class PositionSet:
    """A set of positions that gives its first ones in order."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, position: tuple[int, int], /) -> bool: ...
    def add(self, ledger_id: int, entry_id: int) -> None:
        """Adds a position; nothing happens when it is there already."""
    def first_range(self, count_max: int) -> tuple[int, int, int]:
        """(ledger_id, first, last) of the first positions without a gap. IndexError: none."""
    def discard_range(self, ledger_id: int, first: int, last: int) -> None:
        """Removes the positions first..last of one ledger, those that are there."""
    def clear(self) -> None:
        """Removes every position."""
