"""What Python sees of ackset.pyx: acknowledged positions of a cursor, and sets of positions."""

from collections.abc import Callable, Iterable, Sequence

from pyxbroker.entry import AckRun, Position

def set_batches_bytes_max(bytes_max: int) -> None:
    """How many bytes all sets together may have of batches; 0 is no limit."""

def batches_bytes() -> int:
    """Bytes that all sets have of batches, about."""

def batches_refused() -> int:
    """Batches of which nothing was remembered, since there was too much."""

class AckSet:
    """Mark-delete position plus the entries, and messages of batches, acknowledged after it."""

    def __init__(self, ledger_id: int, entry_id: int, tracked: bool = False) -> None:
        """tracked: what changes is noted, for encode_runs and encode_batches."""
    @property
    def mark_ledger_id(self) -> int:
        """Ledger id of the mark-delete position."""
    @property
    def mark_entry_id(self) -> int:
        """Entry id of the mark-delete position; -1 before a ledger's first entry."""
    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
    @property
    def has_passed(self) -> bool:
        """The mark has passed batches that are not forgotten yet; drop_passed() does it."""
    @property
    def holes(self) -> int:
        """Entries acknowledged one by one after the mark."""
    @property
    def partial(self) -> int:
        """Batches of which some messages are acknowledged."""
    @property
    def partial_words(self) -> int:
        """Words of the ack sets of those batches."""
    @property
    def refused(self) -> int:
        """Times that nothing was remembered of a batch, since there was too much."""
    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the mark has passed an entry or it was acknowledged alone."""
    def add(self, ledger_id: int, entry_id: int) -> bool:
        """Acknowledges an entry that exists; True when it was not acknowledged before."""
    def add_run(self, run: AckRun, last_entry: Callable[[int], int | None]) -> int:
        """Acknowledges what an ACK names and exists; how many entries and batches it changed."""
    def acknowledge_batch(self, ledger_id: int, entry_id: int, words: Sequence[int]) -> bool:
        """Acknowledges the messages of an existing batch whose bits are 0; True: some were new."""
    def messages_left(self, ledger_id: int, entry_id: int) -> int | None:
        """Messages of a batch that are not acknowledged; None when no single one of it was
        acknowledged, or all of them are.
        """
    def ack_set(self, ledger_id: int, entry_id: int) -> list[int]:
        """The words of the messages that are left of a batch; [] where messages_left is None."""
    def advance(self, next_ledger: Callable[[int, int], int | None]) -> None:
        """Moves the mark over everything that is acknowledged without a gap."""
    def mark_delete_to(self, ledger_id: int, entry_id: int) -> None:
        """Sets the mark, and forgets what is acknowledged up to it."""
    def drop_passed(self) -> bool:
        """Forgets some more of the batches that the mark has passed; True when that was all."""
    def drop_batches(self) -> bool:
        """The same of all its batches, for a set that nobody needs any more."""
    def clear(self) -> None:
        """Forgets every single entry and message; the mark stays."""
    def acknowledged_up_to(self, ledger_id: int, first: int, last: int) -> int:
        """How many of the entries first..last of one ledger are acknowledged one by one."""
    def ranges(self, ledger_id: int, count_max: int = ...) -> list[tuple[int, int]]:
        """Single entries of one ledger as (lower, upper], in order; the first count_max of many."""
    def ledger_ids(self) -> list[int]:
        """Ledgers that hold single acknowledged entries, ascending."""
    def batch_ledger_ids(self) -> list[int]:
        """Ledgers that hold batches of which messages are acknowledged, ascending."""
    def count_ranges(self) -> int:
        """How many ranges the single entries make in all ledgers."""
    def to_longs(self, ledger_id: int) -> list[int]:
        """Signed 64-bit words of one ledger from entry 0 on, as Java's BitSet.toLongArray gives
        them. KeyError for one without single entries.
        """
    def longs_size(self) -> int:
        """How many words to_longs gives of all ledgers."""
    def encode_ranges(self, number: int) -> bytes:
        """Every range as the repeated field `number` of MessageRange, in protobuf's format."""
    def encode_runs(
        self, ledger_id: int, word: int, bytes_max: int, only_changed: bool
    ) -> tuple[bytes, int]:
        """(runs of words of one ledger, the word to go on from or -1); bytes_max is at least 64.

        What was encoded is no longer noted as changed. The format is in bitmap.pyx.
        """
    def encode_batches(
        self, ledger_id: int, entry_id: int, number: int, bytes_max: int, only_changed: bool
    ) -> tuple[bytes, int]:
        """(batches of one ledger from an entry on, the entry to go on from or -1).

        They are the repeated field `number` of BatchedEntryDeletionIndexInfo, in protobuf's format,
        at least one, and no further one begins behind bytes_max. What was encoded is no longer
        noted as changed.
        """
    def forget_changes(self) -> None:
        """Everything was encoded: nothing is noted as changed."""
    def add_range(self, ledger_id: int, lower: int, upper: int, last: int) -> None:
        """Acknowledges the entries after lower up to upper, none behind last."""
    def add_longs(self, ledger_id: int, longs: Iterable[int], last: int) -> None:
        """Acknowledges the entries of the words that to_longs gave, none behind last."""
    def add_runs(self, ledger_id: int, runs: bytes, last: int) -> None:
        """Acknowledges the entries of encode_runs, none behind last. ValueError: malformed."""
    def drop_acknowledged_batches(self) -> None:
        """After restoring: forgets the messages of entries that are acknowledged themselves."""

class PositionSet:
    """A set of positions that gives its first ones in order."""

    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, position: tuple[int, int], /) -> bool: ...
    def add(self, ledger_id: int, entry_id: int) -> None:
        """Adds a position; nothing happens when it is there already."""
    def first_range(self, count_max: int) -> tuple[int, int, int]:
        """(ledger_id, first, last) of the first positions without a gap. IndexError: none."""
    def discard_range(self, ledger_id: int, first: int, last: int) -> None:
        """Removes the positions first..last of one ledger, those that are there."""
    def clear(self) -> None:
        """Removes every position."""
