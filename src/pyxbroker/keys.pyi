"""Type stub of keys.pyx: which consumer may receive which entries of which key."""

from array import array

class KeyShared:
    """The state of one Key_Shared subscription. Consumers are identified by slots from 1; 0 means
    none.

    A hash has an owner, and a holder while entries of it are sent and not settled. No entry of a
    hash is sent while its holder is not its owner, or while an earlier entry of it waits.
    """

    has_new_ready: bool
    """True if a hash became ready since the caller set this to False."""

    def __init__(self, ordered: bool, hashes: int = 65536) -> None: ...
    @property
    def ordered(self) -> bool:
        """False: order within a key does not matter, so no entry is ever withheld."""
    @property
    def hashes(self) -> int:
        """65536, or 65535 if the selector is a ring."""
    @property
    def waiting(self) -> int:
        """Number of waiting entries."""
    @property
    def comparisons(self) -> int:
        """Entries compared while searching for insert positions."""
    @property
    def queued(self) -> int:
        """Hashes in ready queues. Some may no longer have waiting entries."""
    @property
    def states_in_use(self) -> int:
        """Number of hashes with any state."""
    @property
    def bytes_held(self) -> int:
        """Memory of the hash states in bytes, without waiting entries."""
    def clear(self) -> None:
        """Clear everything except the owners of hashes."""
    def set_owners(self, last_hashes: array[int], slots: array[int]) -> None:
        """Set the owners of hashes: the last hash of each range ("H"), ascending, and the slot
        ("i") of its owner; 0 is none.
        """
    @property
    def drained(self) -> dict[int, int]:
        """Number of hashes that each slot has drained since it was assigned; slots without any are
        missing.
        """
    @property
    def drained_total(self) -> int:
        """Total number of drained hashes."""
    def draining(self) -> list[tuple[int, int, int, int]]:
        """Return the hashes whose holder is not their owner: (slot of the holder, hash, number of
        its unsettled entries, number of waiting entries).
        """
    def ownerless(self) -> int:
        """Return the number of waiting entries whose hash has no owner."""
    def reset_drained(self, slot: int) -> None:
        """Reset the drained count of a slot that is assigned to another consumer."""
    def has_ready(self, slot: int) -> bool:
        """Return True if an entry waits that may be sent to a consumer now."""
    def plan(self, slot: int, count_max: int, gap_max: int) -> list[tuple[int, int, int]]:
        """Return the entries to read for a consumer: [(ledger_id, first, last)], ascending.

        The ranges contain up to count_max entries that may be sent to it, and gaps of at most
        gap_max other entries. Hashes are served round-robin over successive calls.
        """
    def drop(self, ledger_id: int, first: int, last: int) -> int:
        """Remove waiting entries first..last of a ledger that were deleted; return their number.

        Scans all waiting entries.
        """
    def drop_up_to(self, ledger_id: int, entry_id: int) -> int:
        """Remove all waiting entries up to a position; return their number."""
    def put_back(self, hash: int, ledger_id: int, entry_id: int) -> None:
        """Queue an entry that was sent, in order among the waiting entries of its hash."""
    # For tests.
    def owner_of(self, hash: int) -> int: ...
    def holder_of(self, hash: int) -> tuple[int, int]: ...
    def may_be_sent(self, hash: int, slot: int) -> bool: ...
    def sent(self, hash: int, slot: int) -> None: ...
    def settled(self, hash: int, slot: int) -> None: ...
    def put(self, hash: int, ledger_id: int, entry_id: int) -> None: ...
    def take(self, hash: int, ledger_id: int, entry_id: int) -> bool: ...

def murmur3_of(data: bytes) -> int:
    """Return the Murmur3 hash of bytes, 32 bits, seed 0, without the sign bit."""

def key_hash_of(
    producer_name: bytes,
    sequence_id: int,
    ordering_key: bytes | None = None,
    partition_key: bytes | None = None,
    is_base64: bool = False,
    hashes: int = 65536,
) -> int:
    """Return the key hash of an entry from the fields of its metadata; None for missing fields."""
