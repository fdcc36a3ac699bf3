"""What Python sees of entry.pyx: positions, runs of entries, batches read, positions of an ACK."""

import builtins
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

ENTRY_HEADER_SIZE_MAX: int
"""Bytes of packaging before an entry's data, at most: with the longest digest."""

class Digest:
    """How the entries of a ledger are packaged and checked, by the number of a DigestType.

    ValueError when there is none with that number. Only MAC needs the password.
    """

    def __init__(self, type: int, password: builtins.bytes = b"") -> None: ...
    @property
    def type(self) -> int: ...
    @property
    def header_size(self) -> int:
        """Bytes of packaging before the data."""

CRC32C: Digest

class Position(NamedTuple):
    """Where an entry is: ledger id and entry id, ordered as such."""

    ledger_id: int
    entry_id: int

class EntryRun:
    """Entries that one producer sent in one read of its socket, in order."""

    owner: Any
    """Told by on_run_added(run) or on_run_failed(run, error)."""
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
        """Messages in the entries; a batch counts as what is in it."""
    @property
    def last_entry_id(self) -> int:
        """Id of the last entry, once the run is appended."""
    @staticmethod
    def of(data: builtins.bytes, owner: Any = None) -> EntryRun:
        """A run of one entry, for what the broker itself writes."""
    def without(self, indexes: Container[int]) -> EntryRun | None:
        """A run of the other entries, None when there are none; it shares this one's data."""
    @property
    def prefixed(self) -> int:
        """Bytes of it that prefix() has put in front."""
    def prefix(self, timestamp_ms: int, index: int) -> int:
        """Puts broker entry metadata in front of each entry; the index of the last message."""
    def keep(self) -> None:
        """Copies the data, so that the run may wait after the read that brought it is over."""
    def release(self) -> None:
        """Lets go of any copy: the bookies have the data."""
    def data(self, i: int) -> builtins.bytes:
        """The bytes of entry i, there until the turn ends or release. IndexError."""
    def crc(self, i: int) -> int:
        """CRC32C of the bytes of entry i. IndexError."""
    def sequence_ids(self) -> list[tuple[int, int]]:
        """(sequence_id, highest_sequence_id) of each entry."""

class EntryBatch:
    """Entries read from one ledger, consecutive ids; their bytes are pinned while it lives."""

    @staticmethod
    def of_run(run: EntryRun, has_ids: bool = False) -> EntryBatch:
        """The entries of a run that was kept, with the ids of its ledger, or all with 0:0."""
    @staticmethod
    def join(parts: list[tuple[EntryBatch, int, int]]) -> EntryBatch:
        """Entries of several batches of one ledger as one: (batch, first index, count) each, at
        least one. ValueError, IndexError.
        """
    @property
    def has_packaging(self) -> bool:
        """The bytes of the entries begin with the packaging of a bookie."""
    @property
    def byte_count(self) -> int:
        """Bytes of all entries, packaging included."""
    def size(self, i: int) -> int:
        """Bytes of entry i of the batch, packaging included. IndexError."""
    @property
    def count(self) -> int:
        """Entries in the batch."""
    @property
    def ledger_id(self) -> int:
        """The ledger that all of them are in."""
    def unpack(self, digest: Digest) -> int:
        """Learns where the data begins, and drops all from the first entry on that CRC32 or MAC
        says is not as it was written; how many are left.
        """
    def __len__(self) -> int: ...
    def entry_id(self, i: int) -> int:
        """Id of entry i of the batch. IndexError."""
    def data(self, i: int) -> bytes:
        """The bytes that were added, without the packaging. IndexError, ValueError."""
    def packaged(self, i: int) -> bytes:
        """The bytes that are stored, packaging included. IndexError."""

class AckRun:
    """The positions of one ACK command."""

    @property
    def count(self) -> int:
        """Positions in the run."""
    def __len__(self) -> int: ...
    def position(self, i: int) -> tuple[int, int, int]:
        """(ledger_id, entry_id, messages of the batch that stay unacknowledged). IndexError."""
    @property
    def partial(self) -> int:
        """Positions in the run of which messages of a batch stay unacknowledged."""
    def ack_set(self, i: int) -> list[int]:
        """The 64-bit words of the messages that stay unacknowledged, signed. IndexError."""
    @staticmethod
    def of(positions: Iterable[tuple[int, int]]) -> AckRun:
        """A run of whole entries."""
    def add(
        self, ledger_id: int, entry_id: int, ack_set: Sequence[int] = (), batch_size: int = 0
    ) -> None:
        """Adds a position; ack_set has the words of the messages of a batch that stay."""
