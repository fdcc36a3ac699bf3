"""What Python sees of compaction.pyx: which messages are the latest of their keys."""

from typing import IO

from pyxbroker.entry import EntryBatch, EntryRun, Position

BLOCK_BYTES: int
"""Of one block of records."""
KEY_PARTS: int
"""Of all keys, which are resolved one by one."""

class TooManyMessages(Exception):
    """There are more than a compaction takes."""

class LatestMessages:
    """Which message of each key is the latest: scanned first, then resolved, then selected.

    No two calls at the same time; all let other threads run meanwhile.
    """

    def __init__(
        self, secret: bytes, keeps_keyless: bool = False, messages_max: int = 1 << 31
    ) -> None: ...
    @property
    def messages(self) -> int:
        """That were scanned."""
    @property
    def kept(self) -> int:
        """That were selected."""
    @property
    def blocks(self) -> int:
        """Full blocks of records in memory."""
    @property
    def last_position(self) -> Position:
        """Of the last entry in which something was not of no use at once; -1:-1: of none."""
    def scan(self, batch: EntryBatch, first: int) -> int:
        """Scans entries; the index of a compressed batch that has to be unpacked first, or the
        count of all. Raises MemoryError, TooManyMessages.
        """
    def scan_unpacked(self, batch: EntryBatch, index: int, unpacked: bytes | None) -> None:
        """Scans a compressed batch with its messages; None: it cannot be unpacked, and is kept."""
    def spill(self, file: IO[bytes]) -> None:
        """Writes the full blocks to a file. Raises OSError."""
    def resolve(self, part: int, file: IO[bytes] | None) -> None:
        """Decides for the keys of one part. Raises MemoryError, OSError."""
    def begin(self) -> None:
        """From now on entries are selected, from the first one on."""
    def select(
        self, batch: EntryBatch, first: int, partition: int, bytes_max: int
    ) -> tuple[EntryRun | None, int, bool]:
        """(run, index, partly): the records of what is kept of entries, up to about so many bytes;
        where it ended, and whether that is a batch of which a part is kept.
        """
    def rebuild(
        self, batch: EntryBatch, index: int, unpacked: bytes | None
    ) -> tuple[bytes, list[int]]:
        """The payload of a batch of which a part is kept, with empty places for the others, and the
        indexes of those kept; the next entry is the next one to select. unpacked: its messages,
        where they are compressed. ValueError: it is not what was scanned.
        """

def packed(batch: EntryBatch, index: int) -> tuple[int, int, bytes]:
    """(compression, size before it, payload) of an entry; ValueError: it is malformed."""

def record(position: Position, partition: int, entry: bytes) -> bytes:
    """An entry as a compacted ledger has it: with the message id that it had."""

def unwrap(batch: EntryBatch, first: int) -> tuple[EntryBatch | None, int]:
    """(entries, index): the entries in records from `first` on, under the ids that they had, as
    long as they are of one ledger; and where it ended. None: the record at `first` is malformed.
    """

def wrapped_position(batch: EntryBatch, index: int) -> Position | None:
    """The id that an entry of a compacted ledger had; None: the record is malformed."""

def keyed_hash(secret: bytes, key: bytes) -> bytes:
    """SipHash-2-4 of 128 bits."""
