"""What Python sees of delayed_index.pyx: the index of delayed delivery."""

from pyxbroker.entry import Position

def set_bytes_max(bytes_max: int) -> None:
    """How many bytes all indexes together may have; 0 is no limit."""

def held_bytes() -> int:
    """Bytes that all indexes have."""

class DelayedIndex:
    """Positions by the time that they are due at; equal times go in the order of the log."""

    now: int
    """The time in ms since the epoch, as its owner last said; dispatch sets aside what is later."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    @property
    def next_time(self) -> int:
        """When the next entry is due, in ms since the epoch; -1 when there is none."""
    @property
    def memory_bytes(self) -> int:
        """What the heap takes."""
    @property
    def is_full(self) -> bool:
        """All indexes together have as much as they may, and this one has more than little."""
    def put(self, deliver_at: int, ledger_id: int, entry_id: int) -> None:
        """Adds an entry that is due at a time in ms since the epoch; it must not be in already.

        Raises MemoryError, and OverflowError beyond four million ledgers.
        """
    def take_due(self, now: int, count_max: int) -> list[Position]:
        """Takes out up to count_max positions that are due now (ms), the earliest first."""
    def drop_up_to(self, ledger_id: int, entry_id: int) -> None:
        """Forgets the entries up to a position; they are acknowledged. Looks at all of them."""
    def clear(self) -> None:
        """Forgets everything, and gives the memory back."""
