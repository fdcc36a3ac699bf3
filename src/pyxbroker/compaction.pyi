"""Type stub of compaction.pyx: the latest messages of the keys of a topic."""

from typing import IO

from pyxbroker.entry import EntryBatch, EntryRun, Position

BLOCK_BYTES: int
"""Size of one block of records."""
KEY_PARTS: int
"""Number of parts that the keys are divided into. They are resolved one by one."""

class TooManyMessages(Exception):
    """Raised when a topic has more messages than a compaction accepts."""

class LatestMessages:
    """Find the latest message of each key: scan all entries, resolve all parts, then select
    entries.

    Calls must not overlap. All of them release the GIL while they work.
    """

    def __init__(
        self, secret: bytes, retains_keyless: bool = False, messages_max: int = 1 << 31
    ) -> None: ...
    @property
    def messages(self) -> int:
        """Number of scanned messages."""
    @property
    def kept(self) -> int:
        """Number of selected messages."""
    @property
    def blocks(self) -> int:
        """Number of full blocks of records in memory."""
    @property
    def last_position(self) -> Position:
        """Position of the last entry with a message that may be retained; -1:-1 if none."""
    def scan(self, batch: EntryBatch, first: int) -> int:
        """Scan entries from `first` on. Return the index of a compressed batch that must be
        decompressed first, or the number of entries at the end. Raise MemoryError or
        TooManyMessages.
        """
    def scan_unpacked(self, batch: EntryBatch, index: int, unpacked: bytes | None) -> None:
        """Scan a compressed batch. unpacked is None if it cannot be decompressed; then it is
        retained.
        """
    def spill(self, file: IO[bytes]) -> None:
        """Write the full blocks to a file. Raise OSError on failure."""
    def resolve(self, part: int, file: IO[bytes] | None) -> None:
        """Determine the latest message of each key of one part. Raise MemoryError or OSError."""
    def begin_selection(self) -> None:
        """Start the selection at the first entry."""
    def select(
        self, batch: EntryBatch, first: int, partition: int, bytes_max: int
    ) -> tuple[EntryRun | None, int, bool]:
        """Return (run, index, partly): the records of the retained entries, about bytes_max bytes;
        the index where selection stopped; and whether that is a batch to be retained in part.
        """
    def rebuild(
        self, batch: EntryBatch, index: int, unpacked: bytes | None
    ) -> tuple[bytes, list[int]]:
        """Return the payload of a batch that is retained in part, and the indexes of its retained
        messages. The other messages are marked as compacted out. Selection continues with the next
        entry. unpacked has the decompressed messages of a compressed batch. Raise ValueError if the
        batch differs from the scanned one.
        """

def compressed_payload(batch: EntryBatch, index: int) -> tuple[int, int, bytes]:
    """Return (compression, uncompressed size, payload). Raise ValueError if malformed."""

def record(position: Position, partition: int, entry: bytes) -> bytes:
    """Encode an entry as a compacted ledger stores it: together with its original message id."""

def unwrap(batch: EntryBatch, first: int) -> tuple[EntryBatch | None, int]:
    """Return (entries, index): the entries of the records from `first` on under their original ids,
    as long as they belong to one ledger, and the index of the next record. The entries are None if
    the record at `first` is malformed.
    """

def wrapped_position(batch: EntryBatch, index: int) -> Position | None:
    """Return the original position of an entry of a compacted ledger; None if the record is
    malformed.
    """

def keyed_hash(secret: bytes, key: bytes) -> bytes:
    """Return the SipHash-2-4 of a key, 128 bits."""
