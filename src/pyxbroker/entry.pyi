"""Type stub of entry.pyx: positions, and runs and batches of entries."""

import builtins
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

ENTRY_HEADER_SIZE_MAX: int
"""Maximum size of the packaging before an entry's data: that of the longest digest."""

class Digest:
    """The digest that packages and checks the entries of a ledger, by DigestType number.

    Raise ValueError for an unknown number. Only MAC needs the password.
    """

    def __init__(self, type: int, password: builtins.bytes = b"") -> None: ...
    @property
    def type(self) -> int: ...
    @property
    def header_size(self) -> int:
        """Size of the packaging before the data."""
    @property
    def master_key(self) -> builtins.bytes:
        """SHA-1("ledger" + password), which a ledger's writer and its recovery send to bookies."""

CRC32C: Digest

class Position(NamedTuple):
    """Position of an entry: ledger id and entry id, ordered as such."""

    ledger_id: int
    entry_id: int

class EntryRun:
    """Entries of one producer from one read of its socket, in order."""

    owner: Any
    """Notified by on_run_added(run) or on_run_failed(run, error)."""
    ledger_id: int
    """-1 until the run is appended to a ledger."""
    first_entry_id: int
    """-1 until the run is appended to a ledger."""

    def __init__(self, owner: Any = None) -> None: ...
    @property
    def count(self) -> int:
        """Entries in the run."""
    @property
    def bytes(self) -> int:
        """Bytes of all their data."""
    @property
    def messages(self) -> int:
        """Messages in the entries; a batch counts for its messages."""
    @property
    def transactions(self) -> list[tuple[int, int, int]] | None:
        """(index, most bits, least bits) of each SEND of a transaction; None: no such SENDs."""
    @property
    def age_ms(self) -> int:
        """Time since its first entry was read."""
    @property
    def last_entry_id(self) -> int:
        """Id of the last entry, once the run is appended."""
    @staticmethod
    def of(data: builtins.bytes, owner: Any = None) -> EntryRun:
        """Create a run of one entry, for data that the broker itself writes."""
    @staticmethod
    def of_all(data: list[builtins.bytes], owner: Any = None) -> EntryRun:
        """Create a run of an entry for each bytes object."""
    def without(self, indexes: Container[int]) -> EntryRun | None:
        """Return a run of the remaining entries, or None if none remains. It shares this run's
        data.
        """
    @property
    def broker_metadata_bytes(self) -> int:
        """Bytes of broker entry metadata that add_broker_metadata() added."""
    def add_broker_metadata(self, timestamp_ms: int, index: int) -> int:
        """Prepend broker entry metadata to each entry; return the index of the last message."""
    def copy_data(self) -> None:
        """Copy the data, so that the run can outlive the read that brought it."""
    def release(self) -> None:
        """Free the copy, if any. The bookies have stored the data."""
    def data(self, i: int) -> builtins.bytes:
        """Return the bytes of entry i, valid until the current Turn ends or release(). Raise
        IndexError.
        """
    def crc(self, i: int) -> int:
        """Return the CRC32C of the bytes of entry i. Raise IndexError."""
    def sequence_ids(self) -> list[tuple[int, int]]:
        """Return (sequence_id, highest_sequence_id) of each entry."""

class EntryBatch:
    """Consecutive entries read from one ledger. Their bytes are pinned while it exists."""

    aborted: Container[tuple[int, int]] | None
    """Ids of aborted transactions, whose entries clients never receive; None: no such ids."""

    @staticmethod
    def of_run(run: EntryRun, has_ids: bool = False) -> EntryBatch:
        """Create a batch of the entries of a copied run, with the ids of its ledger or all with
        0:0.
        """
    @staticmethod
    def join(parts: list[tuple[EntryBatch, int, int]]) -> EntryBatch:
        """Join parts of batches of one ledger, each (batch, first index, count), at least one.
        Raise ValueError or IndexError.
        """
    @property
    def has_packaging(self) -> bool:
        """True if the bytes of the entries start with the packaging of a bookie."""
    @property
    def byte_count(self) -> int:
        """Bytes of all entries, including packaging."""
    def size(self, i: int) -> int:
        """Return the size of entry i in bytes, including packaging. Raise IndexError."""
    @property
    def count(self) -> int:
        """Number of entries."""
    @property
    def ledger_id(self) -> int:
        """The ledger of the entries."""
    def unpack(self, digest: Digest) -> int:
        """Set where the data starts, and truncate the batch at the first entry that fails its
        digest. Return the number of remaining entries.
        """
    def __len__(self) -> int: ...
    def entry_id(self, i: int) -> int:
        """Return the id of entry i. Raise IndexError."""
    def data(self, i: int) -> bytes:
        """Return the data of entry i, without packaging. Raise IndexError or ValueError."""
    def packaged(self, i: int) -> bytes:
        """Return the stored bytes of entry i, including packaging. Raise IndexError."""

class AckRun:
    """The positions of one ACK command."""

    @property
    def count(self) -> int:
        """Number of positions."""
    def __len__(self) -> int: ...
    def position(self, i: int) -> tuple[int, int, int]:
        """Return (ledger_id, entry_id, number of unacknowledged messages of the batch). Raise
        IndexError.
        """
    @property
    def partial(self) -> int:
        """Number of positions with unacknowledged messages."""
    def batch_size(self, i: int) -> int:
        """Return the number of messages that a position names for its batch, 0 if it names none.
        Raise IndexError.
        """
    def ack_set(self, i: int) -> list[int]:
        """Return the ack set of a position as signed 64-bit words. Raise IndexError."""
    @staticmethod
    def of(positions: Iterable[tuple[int, int]]) -> AckRun:
        """Create a run of whole entries."""
    def add(
        self, ledger_id: int, entry_id: int, ack_set: Sequence[int] = (), batch_size: int = 0
    ) -> None:
        """Add a position; ack_set has a set bit for each unacknowledged message of a batch."""
