"""What Python sees of quorum.pyx: pending adds of a ledger, and the embedded bookie's intake."""

from pyxbroker._native import Storage
from pyxbroker.entry import Digest, EntryRun

class PendingAdds:
    """Counts acks of one ledger's entries and confirms them in order (BookKeeper's PendingAddOp).

    ValueError when not 0 < ack_quorum <= write_quorum <= ensemble_size <= 32.
    """

    def __init__(
        self, ensemble_size: int, write_quorum: int, ack_quorum: int, next_entry_id: int = 0
    ) -> None: ...
    @property
    def first(self) -> int:
        """The oldest entry that is not confirmed."""
    @property
    def next(self) -> int:
        """Id of the next entry to be added."""
    @property
    def last_add_confirmed(self) -> int:
        """The last entry of which it and all before it are confirmed; -1: none."""
    @property
    def pending(self) -> int:
        """Entries added and not confirmed."""
    def add(self, count: int) -> int:
        """Takes count further entries; returns the id of the first. ValueError for none."""
    def write_set(self, entry_id: int) -> list[int]:
        """Ensemble indexes that an entry is written to, in order."""
    def on_ack(self, index: int, first: int, last: int) -> int:
        """The bookie at an ensemble index has entries first..last; the last confirmed id."""
    def truncate(self, first: int) -> None:
        """Takes back the entries from first on, which no bookie was given. ValueError."""
    def forget(self, index: int) -> None:
        """The bookie at an ensemble index was replaced: what it acknowledged is void."""

class StorageWriter:
    """The intake of the embedded bookie: packages entries and adds them, a run at a time."""

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
    def add_packaged(self, packaged: bytes, flags: int) -> int:
        """Adds an entry that is packaged; its sequence or a negative storage error. ValueError."""
    def commit(self) -> None:
        """Lets the journal write what was added since the last call."""
    def durable_sequence(self) -> int:
        """Everything up to this sequence number is on disk."""
    def failure(self) -> int:
        """0, or the error that ended the journal."""
