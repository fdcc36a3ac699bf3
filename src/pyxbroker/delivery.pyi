"""Type stub of delivery.pyx: deliveries to consumers, and metadata of entries."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyxbroker.ackset import AckSet, PositionSet
from pyxbroker.connection import Connection
from pyxbroker.delayed_index import DelayedIndex
from pyxbroker.entry import AckRun, EntryBatch
from pyxbroker.keys import KeyShared

FreedDict = dict[Any, Any] | None

class UnackedCount:
    """Number of unacknowledged messages of a subscription or of the whole broker.

    At the limit (0: none) it blocks until fewer than half of the limit are unacknowledged. While
    the enclosing count is blocked, a subscription may still have its share.
    """

    def __init__(
        self, limit: int = 0, whole: UnackedCount | None = None, share: int = 0
    ) -> None: ...
    @property
    def messages(self) -> int:
        """Number of unacknowledged messages."""
    @property
    def limit(self) -> int:
        """Maximum number of unacknowledged messages; 0: none."""
    @property
    def blocked(self) -> bool:
        """True once the limit was reached, until fewer than half of it are unacknowledged."""
    @property
    def is_stopped(self) -> bool:
        """True if nothing more may be sent until messages are acknowledged."""
    def set_limit(self, limit: int) -> None:
        """Change the limit. Consumers below the new limit resume immediately."""

class SentCount:
    """Counts of what was sent to the consumers of a subscription."""

    def take(self) -> tuple[int, int, int]:
        """Return (entries, messages, bytes) since the last call."""

class Holders:
    """Index from delivered entries to the consumers of a subscription that hold them.

    The cost per entry does not depend on the number of consumers.
    """

    def __init__(self) -> None: ...
    def __len__(self) -> int:
        """Return the number of held entries."""
    def add(self, consumer: ConsumerState) -> None:
        """Start recording the deliveries to a consumer. It must not hold any entry yet."""
    def remove(self, consumer: ConsumerState) -> None:
        """Remove a consumer whose deliveries are settled or revoked."""
    def clear(self) -> FreedDict:
        """Remove all records and return their dict, to be freed with free_items()."""
    def holder(self, ledger_id: int, entry_id: int) -> ConsumerState | None:
        """Return the consumer that may hold an entry, or None."""
    def settle(
        self,
        run: AckRun,
        consumer: ConsumerState,
        acks: AckSet,
        redelivery_counts: dict[tuple[int, int], int],
    ) -> list[ConsumerState]:
        """Apply an ACK that the cursor has already processed: release acknowledged entries and
        messages from the consumers that hold them.

        Returns the other consumers that held any of them, each once.
        """

class ConsumerState:
    """Permits, deliveries and unacknowledged entries of one consumer."""

    wants_broker_metadata: bool
    permits: int
    """Messages the client still accepts; negative after a batch that exceeded the permits."""
    unacked_messages: int
    """Messages delivered and not acknowledged."""
    sent_total: SentCount | None
    """The counts of its subscription if a dispatch rate limits it."""
    unacked_total: UnackedCount | None
    """The count of its subscription; None: not limited."""
    consumer_epoch: int
    """Epoch of the client's redeliveries; -1: it does not use epochs."""
    closed: bool
    tracks_pending: bool
    """True if deliveries are stored as pending. False: nothing is redelivered, or everything after
    the mark.
    """
    priority_level: int
    """Priority on a Shared subscription; 0 is the highest."""
    keys: KeyShared | None
    """Key hashes and look-ahead of a Key_Shared subscription."""
    slot: int
    """The index of the consumer in keys."""

    def __init__(self, connection: Connection, consumer_id: int, partition: int = -1) -> None: ...
    @property
    def connection(self) -> Connection:
        """The consumer's connection."""
    @property
    def consumer_id(self) -> int:
        """The client's id of the consumer, unique on its connection."""
    @property
    def partition(self) -> int:
        """Partition index of the topic; -1: none."""
    @property
    def msg_out(self) -> int:
        """Messages sent since creation."""
    @property
    def bytes_out(self) -> int:
        """Bytes sent since creation."""
    @property
    def messages_per_entry(self) -> float:
        """Moving average of the messages per sent entry."""
    @property
    def first_sent_ms(self) -> int:
        """Time of the first delivery in ms since the epoch; 0: none."""
    @property
    def last_sent_ms(self) -> int:
        """Time of the last delivery in ms since the epoch; 0: none."""
    @property
    def redelivered(self) -> int:
        """Messages that were sent again."""
    @property
    def chunks_out(self) -> int:
        """Chunks of chunked messages sent."""
    @property
    def can_deliver(self) -> bool:
        """True if the consumer has permits and its connection accepts more bytes."""
    @property
    def acked(self) -> int:
        """Messages acknowledged by the consumer."""
    @property
    def is_at_limit(self) -> bool:
        """True once unacked_max was reached, until at most half of it are unacknowledged."""
    @property
    def is_blocked(self) -> bool:
        """True while the consumer, or another one of its subscription, must acknowledge messages
        first.
        """
    @property
    def unacked_max(self) -> int:
        """Limit of unacknowledged messages of the consumer; 0: none."""
    def set_unacked_max(self, messages: int) -> None:
        """Change the limit. Below the new limit the consumer resumes immediately."""
    def read_budget(self, entries_max: int, bytes_max: int) -> tuple[int, int]:
        """Return (entries, bytes) to read: what its permits and its connection accept now."""
    def deliver(
        self,
        batch: EntryBatch,
        start: int,
        stop: int,
        acks: AckSet,
        redelivery_counts: dict[tuple[int, int], int],
        undeliverable: list[tuple[int, int]],
        delayed: DelayedIndex | None = None,
        chunked: object | None = None,
    ) -> int:
        """Send entries start..stop-1 of a batch while there are permits. Return the index where it
        stopped.

        Acknowledged entries are skipped. Entries that clients never receive are skipped and
        appended to undeliverable. Entries that are not due yet are added to delayed, if given.
        """
    def reduce_pending(self, ledger_id: int, entry_id: int, left: int) -> int:
        """Reduce a delivered batch to `left` messages; return how many were settled."""
    def settle(self, run: AckRun) -> int:
        """Settle the whole entries of an individual ACK; return the number of their messages."""
    def settle_one(self, ledger_id: int, entry_id: int) -> int:
        """Settle one delivered entry; return the number of its messages, or 0 if it was not pending
        here.
        """
    def is_pending(self, ledger_id: int, entry_id: int) -> bool:
        """Return True if an entry was delivered and is not acknowledged."""
    def key_hash_of(self, ledger_id: int, entry_id: int) -> int:
        """Return the key hash of a pending entry of a Key_Shared subscription, or 0."""
    def pending_up_to(
        self, ledger_id: int, entry_id: int, count_max: int
    ) -> Iterator[list[tuple[int, int]]]:
        """Yield the pending positions up to a position in lists of at most count_max. Entries
        settled during the iteration may be included.
        """

    def pending_positions(self) -> list[tuple[int, int]]:
        """Return all pending positions in order."""
    def take_back(self) -> TakenBack:
        """Revoke all pending deliveries and return them."""
    def count_acked(self, run: AckRun) -> None:
        """Count acknowledgements of a consumer whose deliveries are not stored as pending."""
    def count_acked_entries(self, entries: int) -> None:
        """Count a number of acknowledged entries of such a consumer."""

class TakenBack:
    """Revoked deliveries of a consumer that are not queued for redelivery yet."""

    def put_back(
        self,
        acks: AckSet,
        to: PositionSet | None,
        redelivery_counts: dict[tuple[int, int], int] | None,
        entries_max: int,
    ) -> bool:
        """Queue up to entries_max entries for redelivery: in `to`, or (None) with the entries of
        their key. Acknowledged entries are dropped. Redelivery counts are incremented if given.
        Return True when no entry is left.
        """
    def forget(self) -> list[FreedDict]:
        """Return the dicts to free with free_items(). The entries will be read again."""

def free_items(dicts: list[FreedDict], items_max: int) -> bool:
    """Free up to items_max items of nested dicts that are no longer in use. Return True when none
    is left. Freeing a million items in one call takes too long.
    """

class Rotation:
    """Round-robin order of the consumers of a Shared subscription."""

    eligibility_checks: int
    """Number of eligibility checks."""

    def add(self, consumer: ConsumerState) -> None:
        """Add a consumer after all others of its priority level."""
    def remove(self, consumer: ConsumerState) -> None:
        """Remove a consumer."""
    def next(self) -> Any:
        """Return the consumer for the next entries, or None if no consumer can receive any."""
    def advance(self) -> None:
        """Advance past the consumer that next() returned."""
    @property
    def is_limited(self) -> bool:
        """True if next() returned None and a consumer waits for acknowledgements."""
    def take_newly_full(self) -> Sequence[Connection]:
        """Return the connections that became too full for a consumer since the last call."""
    def is_waiting_for(self, connection: Connection) -> bool:
        """Return True if a consumer is skipped until retry_connection() is called for its
        connection.
        """
    def retry_connection(self, connection: Connection) -> None:
        """Stop skipping the consumers of a connection whose socket accepts more."""

class BlockedConsumers:
    """Consumers that have permits but cannot receive: one for each cause."""

    consumers: list[Any]

def find_consumer(consumers: list[Any], consumer: ConsumerState) -> int:
    """Return the index of a consumer in a list. Raise ValueError if it is missing."""

def total_read_budget(
    consumers: list[Any], entries_max: int, bytes_max: int, blocked: BlockedConsumers
) -> tuple[int, int]:
    """Return (entries, bytes) that the consumers can receive together, up to these limits."""

def next_ready(
    consumers: list[Any], turn_of: int, keys: KeyShared, blocked: BlockedConsumers
) -> int:
    """Return the index of the first consumer at or after turn_of that can receive a waiting entry
    now, or -1.
    """

def dispatch_by_key(
    batch: EntryBatch,
    consumers: Sequence[ConsumerState | None],
    keys: KeyShared,
    acks: AckSet,
    redelivery_counts: dict[tuple[int, int], int],
    undeliverable: list[tuple[int, int]],
    waiting_max: int,
    delayed: DelayedIndex | None = None,
    again: bool = False,
) -> int:
    """Send entries to the owners of their keys. Entries that cannot be sent wait in keys.

    consumers is indexed by slot; the first one is None. Stops when waiting_max entries wait, and
    returns the index where it stopped. Acknowledged entries are skipped, as are entries that
    clients never receive, which are appended to undeliverable. Entries that are not due yet are
    added to delayed, if given. `again` is set for entries that come from there; they precede other
    waiting entries.
    """

def dispatch_waiting(
    batch: EntryBatch,
    consumers: Sequence[ConsumerState | None],
    keys: KeyShared,
    acks: AckSet,
    redelivery_counts: dict[tuple[int, int], int],
    undeliverable: list[tuple[int, int]],
) -> int:
    """Send waiting entries that are first for their key; return how many stopped waiting.

    Acknowledged entries stop waiting. Entries without unacknowledged messages are appended to
    undeliverable. Entries that do not wait are skipped.
    """

class Peeked(NamedTuple):
    """Metadata of an entry, as peek_entry returns it."""

    publish_time: int
    num_messages: int
    is_batch: bool
    marker_type: int
    broker_time: int = 0
    transaction: tuple[int, int] | None = None
    @property
    def time(self) -> int:
        """Publish time: the broker's timestamp if present, else the client's."""

def transactions_of(batch: EntryBatch) -> list[tuple[int, tuple[int, int], int]]:
    """Return [(index, (most bits, least bits), marker type)] of the entries of transactions. The
    marker type is -1 for messages.
    """

def count_messages(batch: EntryBatch, start: int, stop: int) -> int:
    """Count the messages of entries start..stop-1 of a batch, without markers."""

def dispatch_without_queue(
    batch: EntryBatch,
    start: int,
    stop: int,
    consumers: Sequence[ConsumerState | None],
    keys: KeyShared,
) -> int:
    """Send entries start..stop-1 to the owners of their keys without look-ahead; return the number
    of messages that were dropped. consumers is indexed by slot; the first one is None.
    """

def peek_entry(batch: EntryBatch, i: int) -> Peeked | None:
    """Return the metadata of an entry, or None if it cannot be decoded. Raise IndexError."""
