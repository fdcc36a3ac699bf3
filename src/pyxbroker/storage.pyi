"""Type stub of storage.pyx: the storage of the embedded bookie."""

from pyxbroker._native import Storage
from pyxbroker.entry import Digest, EntryBatch, EntryRun

class StorageWriter:
    """Adds the entries of runs to the storage of the embedded bookie, packaged with a digest."""

    def __init__(self, owner: Storage) -> None: ...
    def add_run(
        self,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        start: int,
        flags: int,
        digest: Digest = ...,
    ) -> tuple[int, int, int]:
        """Add the entries of a run from index start on. length is that of the ledger before the
        run.

        Return (number of entries of the run in the storage, sequence number of the last, 0 or an
        error).
        """
    def commit(self) -> None:
        """Let the journal write what was added since the last call."""
    def durable_sequence(self) -> int:
        """Return the sequence number up to which everything is on disk."""
    def failure(self) -> int:
        """Return 0, or the error that stopped the journal."""

class StorageReader:
    """Reads runs of entries, from the cache directly or through the read thread."""

    def __init__(self, owner: Storage) -> None: ...
    @property
    def outstanding(self) -> int:
        """Number of reads in progress on the read thread."""
    def read_cached(
        self, ledger_id: int, first: int, last: int, count_max: int, bytes_max: int
    ) -> EntryBatch | None:
        """Return a batch that starts with entry first, or None if the cache lacks that entry."""
    def submit(self, ledger_id: int, first: int, last: int, count_max: int, bytes_max: int) -> int:
        """Start a read on the read thread; return its tag, or a negative storage error."""
    def completions(self) -> list[tuple[int, EntryBatch | int]]:
        """Return finished reads: (tag, batch or negative storage error)."""
