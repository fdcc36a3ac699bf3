"""Type stub of delayed_index.pyx: the index of delayed delivery."""

from pyxbroker.entry import Position

def set_bytes_max(bytes_max: int) -> None:
    """Limit the memory of all indexes together, in bytes; 0 is no limit."""

def held_bytes() -> int:
    """Return the memory of all indexes in bytes."""

class DelayedIndex:
    """Positions ordered by due time, then by position in the log."""

    now: int
    """Current time in ms since the epoch, set by the owner. Dispatch delays entries that are due
    later.
    """

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    @property
    def next_time(self) -> int:
        """Due time of the next entry in ms since the epoch; -1 if the index is empty."""
    @property
    def memory_bytes(self) -> int:
        """Memory of the heap in bytes."""
    @property
    def is_full(self) -> bool:
        """True if the memory limit of all indexes is reached and this index is not small."""
    def put(self, deliver_at: int, ledger_id: int, entry_id: int) -> None:
        """Add an entry that is due at a time in ms since the epoch. It must not be in the index.

        Raise MemoryError, or OverflowError beyond four million ledgers.
        """
    def take_due(self, now: int, count_max: int) -> list[Position]:
        """Remove and return up to count_max positions that are due now (ms), the earliest first."""
    def drop_up_to(self, ledger_id: int, entry_id: int) -> None:
        """Drop the entries up to an acknowledged position. Scans all entries."""
    def clear(self) -> None:
        """Drop all entries, and free the memory."""
