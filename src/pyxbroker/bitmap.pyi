"""Type stub of bitmap.pyx; Python code uses the sets through ackset.pyx."""

def held_bytes() -> int:
    """Return the approximate memory of all bitmaps of the process, in bytes."""

class EntryBitmap:
    """A set of entry ids of one ledger, one bit each."""

    def __init__(self, tracked: bool = False) -> None: ...
    @property
    def count(self) -> int:
        """Number of entries in the set."""
