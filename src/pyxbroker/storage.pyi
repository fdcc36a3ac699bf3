"""The storage of the embedded bookie (storage.pyx)."""

from pyxbroker._native import Storage
from pyxbroker.entry import Digest, EntryBatch, EntryRun

class StorageWriter:
    """Adds of the embedded bookie: packages the entries of a run and adds them to the storage."""

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
        """Adds entries of a run from index start on; length: bytes of the ledger before the run.

        Returns (entries of the run that are in the storage, sequence of the last, 0 or an error).
        """
    def commit(self) -> None:
        """Lets the journal write what was added since the last call."""
    def durable_sequence(self) -> int:
        """Everything up to this sequence number is on disk."""
    def failure(self) -> int:
        """0, or the error that ended the journal."""

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
