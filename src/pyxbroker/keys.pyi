"""What Python sees of keys.pyx: which entries of which key may go to whom."""

from array import array

class KeyShared:
    """The state of one Key_Shared subscription. Consumers are slots, counted from 1; 0 is nobody.

    A hash has an owner, and a holder while entries of it are sent and not settled. Nothing of a
    hash is sent while its holder is not its owner, nor while an earlier entry of it waits.
    """

    news: bool
    """A hash became ready to be sent since somebody set this to False."""

    def __init__(self, ordered: bool, hashes: int = 65536) -> None: ...
    @property
    def ordered(self) -> bool:
        """False: order within a key does not matter, so nothing is ever withheld."""
    @property
    def hashes(self) -> int:
        """65536, or 65535 where the selector is a ring."""
    @property
    def waiting(self) -> int:
        """Entries that wait."""
    @property
    def looked_at(self) -> int:
        """Entries that were looked at to find the places of those that came back."""
    @property
    def queued(self) -> int:
        """Hashes in ready queues; some may have nothing that waits any more."""
    @property
    def states_in_use(self) -> int:
        """Hashes that anything is known of."""
    @property
    def bytes_held(self) -> int:
        """What it takes to know of those hashes, without what waits."""
    def clear(self) -> None:
        """Forgets everything but the owners of hashes."""
    def set_owners(self, last_hashes: array[int], slots: array[int]) -> None:
        """Who owns which hashes: the last one of each range ("H"), ascending, and its slot ("i"); 0
        is nobody.
        """
    @property
    def drained(self) -> dict[int, int]:
        """How many hashes each slot has drained since it was taken; nothing for none."""
    @property
    def drained_total(self) -> int:
        """How many were drained at all."""
    def draining(self) -> list[tuple[int, int, int, int]]:
        """Hashes whose holder is not their owner: (slot of the holder, hash, entries that it has
        and that are not settled, entries that wait for that).
        """
    def forget_drained(self, slot: int) -> None:
        """Another consumer has the slot."""
    def has_ready(self, slot: int) -> bool:
        """Whether something waits that may be sent to a consumer now."""
    def plan(self, slot: int, count_max: int, gap_max: int) -> list[tuple[int, int, int]]:
        """What to read for a consumer: [(ledger_id, first, last)], ascending.

        They hold up to count_max entries that may be sent to it, and between those at most gap_max
        others in a row. Hashes take turns: what is planned last is planned first the next time.
        """
    def drop(self, ledger_id: int, first: int, last: int) -> int:
        """Entries first..last of a ledger, which turned out to be gone, wait no longer.

        Looks through everything that waits; returns how many of them did.
        """
    def drop_up_to(self, ledger_id: int, entry_id: int) -> int:
        """The same for everything up to a position."""
    def put_back(self, hash: int, ledger_id: int, entry_id: int) -> None:
        """An entry that was sent waits again, among those of its hash."""
    # What tests look at.
    def owner_of(self, hash: int) -> int: ...
    def holder_of(self, hash: int) -> tuple[int, int]: ...
    def may_be_sent(self, hash: int, slot: int) -> bool: ...
    def sent(self, hash: int, slot: int) -> None: ...
    def settled(self, hash: int, slot: int) -> None: ...
    def put(self, hash: int, ledger_id: int, entry_id: int) -> None: ...
    def take(self, hash: int, ledger_id: int, entry_id: int) -> bool: ...

def murmur3_of(data: bytes) -> int:
    """Murmur3 of bytes, 32 bits, seed 0, without the sign bit."""

def key_hash_of(
    producer_name: bytes,
    sequence_id: int,
    ordering_key: bytes | None = None,
    partition_key: bytes | None = None,
    is_base64: bool = False,
    hashes: int = 65536,
) -> int:
    """The hash of an entry's key from the fields of its metadata; None: not there."""
