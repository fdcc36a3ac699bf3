"""What Python sees of reads.pyx: reads of the embedded bookie."""

from pyxbroker._native import Storage
from pyxbroker.entry import EntryBatch

class StorageReader:
    """Reads runs of entries; what the cache has at once, the rest through the read thread."""

    def __init__(self, owner: Storage) -> None: ...
    @property
    def outstanding(self) -> int:
        """Reads that the read thread still has."""
    def read_cached(
        self, ledger_id: int, first: int, last: int, count_max: int, bytes_max: int
    ) -> EntryBatch | None:
        """A batch that starts with entry first, or None when that entry is not in the cache."""
    def submit(self, ledger_id: int, first: int, last: int, count_max: int, bytes_max: int) -> int:
        """Starts a read through the read thread; its tag, or a negative storage error."""
    def completions(self) -> list[tuple[int, EntryBatch | int]]:
        """Finished reads: (tag, batch or negative storage error)."""
