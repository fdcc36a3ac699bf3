"""What Python sees of bitmap.pyx: nothing but that a set of entry ids exists; see ackset.pyi."""

def held_bytes() -> int:
    """Bytes that all sets of entry ids take, about."""

class EntryBitmap:
    """Entry ids of one ledger, a bit each."""

    def __init__(self, tracked: bool = False) -> None: ...
    @property
    def count(self) -> int:
        """Entries in the set."""
