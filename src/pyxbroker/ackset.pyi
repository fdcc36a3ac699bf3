"""Type stub of ackset.pyx: acknowledged positions of a cursor, and sets of positions."""

from collections.abc import Callable, Iterable, Sequence

from pyxbroker.entry import AckRun, Position

def set_batches_bytes_max(bytes_max: int) -> None:
    """Limit the memory of the ack sets of all cursors together, in bytes; 0 is no limit."""

def batches_bytes() -> int:
    """Return the approximate memory of the ack sets of all cursors, in bytes."""

def batches_refused() -> int:
    """Return how many ack sets were not stored because of a memory limit."""

class AckSet:
    """The mark-delete position of a cursor, and the entries and messages acknowledged after it."""

    def __init__(self, ledger_id: int, entry_id: int, tracked: bool = False) -> None:
        """Create an empty set. tracked: record changes for encode_runs and encode_batches."""
    @property
    def mark_ledger_id(self) -> int:
        """Ledger id of the mark-delete position."""
    @property
    def mark_entry_id(self) -> int:
        """Entry id of the mark-delete position; -1 before the first entry of a ledger."""
    @property
    def mark_delete(self) -> Position:
        """The mark-delete position: everything up to it is acknowledged."""
    @property
    def has_passed_batches(self) -> bool:
        """True while the mark has passed batches whose ack sets drop_passed() has not freed yet."""
    @property
    def holes(self) -> int:
        """Number of entries acknowledged individually after the mark."""
    @property
    def partial(self) -> int:
        """Number of partially acknowledged batches."""
    @property
    def partial_words(self) -> int:
        """Number of 64-bit words in the ack sets of the partially acknowledged batches."""
    @property
    def refused(self) -> int:
        """Number of ack sets that were not stored because of a memory limit."""
    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        """Return True if an entry is at or before the mark, or was acknowledged individually."""
    def add(self, ledger_id: int, entry_id: int) -> bool:
        """Acknowledge an existing entry; return True if it was not acknowledged before."""
    def add_run(self, run: AckRun, last_entry: Callable[[int], int | None]) -> int:
        """Acknowledge the existing positions of an ACK; return how many entries and batches
        changed.
        """
    def acknowledge_batch(self, ledger_id: int, entry_id: int, words: Sequence[int]) -> bool:
        """Acknowledge the messages of an existing batch whose bits are 0; return True if any was
        new.
        """
    def unacked_in_batch(self, ledger_id: int, entry_id: int) -> int | None:
        """Return how many messages of a partially acknowledged batch are unacknowledged. Return
        None for a batch that is acknowledged as a whole or not at all.
        """
    def ack_set(self, ledger_id: int, entry_id: int) -> list[int]:
        """Return the ack set of a partially acknowledged batch as words; [] for other batches."""
    def advance(self, next_ledger: Callable[[int, int], int | None]) -> None:
        """Move the mark over all acknowledged entries up to the first gap."""
    def mark_delete_to(self, ledger_id: int, entry_id: int) -> None:
        """Set the mark, and drop the entries and ack sets up to it."""
    def drop_passed(self) -> bool:
        """Free a number of ack sets that the mark has passed; return True if none is left."""
    def drop_batches(self) -> bool:
        """Free a number of ack sets regardless of the mark; return True if none is left."""
    def clear(self) -> None:
        """Drop all individually acknowledged entries and ack sets; the mark stays."""
    def acknowledged_up_to(self, ledger_id: int, first: int, last: int) -> int:
        """Count the individually acknowledged entries among first..last of one ledger."""
    def ranges(self, ledger_id: int, count_max: int = ...) -> list[tuple[int, int]]:
        """Return up to count_max ranges (lower, upper] of acknowledged entries of one ledger, in
        order.
        """
    def ledger_ids(self) -> list[int]:
        """Return the ledgers with individually acknowledged entries, ascending."""
    def batch_ledger_ids(self) -> list[int]:
        """Return the ledgers with partially acknowledged batches, ascending."""
    def count_ranges(self) -> int:
        """Count the ranges of individually acknowledged entries over all ledgers."""
    def longs_size(self) -> int:
        """Return how many words encode_longs encodes."""
    def encode_ranges(self, number: int) -> bytes:
        """Encode all ranges as the repeated protobuf field `number` of type MessageRange."""
    def encode_longs(self, number: int) -> bytes:
        """Encode all entries as the repeated protobuf field `number` of type LongListMap: signed
        64-bit words from entry 0 on, as Java's BitSet.toLongArray returns them.
        """
    def encode_runs(
        self, ledger_id: int, word: int, bytes_max: int, only_changed: bool
    ) -> tuple[bytes, int]:
        """Return (runs of words of one ledger, next word to encode or -1). bytes_max is at least
        64.

        The encoded words no longer count as changed. bitmap.pyx describes the format.
        """
    def encode_batches(
        self, ledger_id: int, entry_id: int, number: int, bytes_max: int, only_changed: bool
    ) -> tuple[bytes, int]:
        """Return (batches of one ledger from entry_id on, next entry to encode or -1).

        The batches are encoded as the repeated protobuf field `number` of type
        BatchedEntryDeletionIndexInfo. At least one is encoded; no further one starts beyond
        bytes_max. The encoded batches no longer count as changed.
        """
    def forget_changes(self) -> None:
        """Clear all change records. The caller has encoded everything."""
    def add_range(self, ledger_id: int, lower: int, upper: int, last: int) -> None:
        """Acknowledge the entries after lower up to upper, but none after last."""
    def add_longs(
        self, ledger_id: int, longs: Iterable[int], last: int, first_word: int = ...
    ) -> None:
        """Acknowledge the entries of words as of encode_longs, from first_word on, but none after
        last.
        """
    def add_runs(self, ledger_id: int, runs: bytes, last: int) -> None:
        """Acknowledge the entries that encode_runs encoded, but none after last. Raise ValueError
        if the bytes are malformed.
        """
    def drop_acknowledged_batches(self) -> None:
        """Drop the ack sets of fully acknowledged entries. Call this after restoring."""

class PositionSet:
    """A set of positions that returns its lowest ones first."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, position: tuple[int, int], /) -> bool: ...
    def add(self, ledger_id: int, entry_id: int) -> None:
        """Add a position. Adding a position that is in the set has no effect."""
    def first_range(self, count_max: int) -> tuple[int, int, int]:
        """Return (ledger_id, first, last) of the lowest contiguous positions, up to count_max.
        Raise IndexError if the set is empty.
        """
    def discard_range(self, ledger_id: int, first: int, last: int) -> None:
        """Remove the positions first..last of one ledger."""
    def clear(self) -> None:
        """Remove all positions."""
