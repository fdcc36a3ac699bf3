"""What Python sees of delivery.pyx: one consumer's deliveries, and a look into an entry."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyxbroker.ackset import AckSet, PositionSet
from pyxbroker.connection import Connection
from pyxbroker.delayed_index import DelayedIndex
from pyxbroker.entry import AckRun, EntryBatch
from pyxbroker.keys import KeyShared

FreedDict = dict[Any, Any] | None

class UnackedCount:
    """Messages sent and not acknowledged, of a subscription or of the whole broker.

    At its limit (0: none) it blocks until less than half of that is left. While the whole that it
    is a part of blocks, it may still have its share.
    """

    def __init__(
        self, limit: int = 0, whole: UnackedCount | None = None, share: int = 0
    ) -> None: ...
    @property
    def messages(self) -> int:
        """How many there are."""
    @property
    def limit(self) -> int:
        """How many there may be."""
    @property
    def blocked(self) -> bool:
        """Its limit was reached."""
    @property
    def is_stopped(self) -> bool:
        """Nothing more may be sent until something is acknowledged."""
    def set_limit(self, limit: int) -> None:
        """A policy changed: consumers below the new limit go on at once."""

class SentCount:
    """What was sent to the consumers of a subscription since it was asked last."""

    def take(self) -> tuple[int, int, int]:
        """(entries, messages, bytes) since then."""

class Holders:
    """Who has what is delivered and not settled, of one subscription.

    An entry costs the same however many consumers there are.
    """

    def __init__(self) -> None: ...
    def __len__(self) -> int:
        """How many entries are noted."""
    def add(self, consumer: ConsumerState) -> None:
        """What is sent to a consumer from now on is noted; it must have nothing yet."""
    def remove(self, consumer: ConsumerState) -> None:
        """A consumer is gone; what it had is settled or taken back."""
    def clear(self) -> FreedDict:
        """Nobody has anything any more; what was noted, for free_some()."""
    def holder(self, ledger_id: int, entry_id: int) -> ConsumerState | None:
        """The consumer that may have an entry."""
    def settle(
        self,
        run: AckRun,
        consumer: ConsumerState,
        acks: AckSet,
        redelivery_counts: dict[tuple[int, int], int],
    ) -> list[ConsumerState]:
        """What an ACK says, which the cursor knows already: who has the entries, has them no
        longer, or fewer of their messages.

        Returns the consumers besides the one that acknowledges that had some, each once.
        """

class ConsumerState:
    """Permits, deliveries and unacknowledged entries of one consumer."""

    wants_block: bool
    permits: int
    """Messages that the client still wants; below 0 after a batch larger than they were."""
    unacked_messages: int
    """Messages delivered and not acknowledged."""
    sent_total: SentCount | None
    """That of its subscription, where rates limit it."""
    unacked_total: UnackedCount | None
    """Of its subscription; None: not limited."""
    consumer_epoch: int
    """What the client counts its redeliveries with; -1: it does not."""
    closed: bool
    tracks_pending: bool
    """What was sent is kept as pending; False: nothing is redelivered, or all after the mark."""
    priority_level: int
    """Of a Shared subscription: 0 comes first."""
    keys: KeyShared | None
    """Of a Key_Shared subscription."""
    slot: int
    """The consumer's number there."""

    def __init__(self, connection: Connection, consumer_id: int, partition: int = -1) -> None: ...
    @property
    def connection(self) -> Connection:
        """The socket that it is served on."""
    @property
    def consumer_id(self) -> int:
        """The client's id of it, unique on its connection."""
    @property
    def partition(self) -> int:
        """Index of the topic's partition; -1: none."""
    @property
    def msg_out(self) -> int:
        """Messages sent since it came."""
    @property
    def bytes_out(self) -> int:
        """Bytes sent since it came."""
    @property
    def messages_per_entry(self) -> float:
        """Messages in the entries that it was sent lately, on average."""
    @property
    def first_sent_ms(self) -> int:
        """When it was sent something first, in ms since 1970; 0: never."""
    @property
    def last_sent_ms(self) -> int:
        """When it was sent something last; 0: never."""
    @property
    def redelivered(self) -> int:
        """Messages sent not for the first time."""
    @property
    def chunks_out(self) -> int:
        """Chunks of messages sent to it."""
    @property
    def can_deliver(self) -> bool:
        """True when it has permits and its connection takes more bytes."""
    @property
    def acked(self) -> int:
        """Messages acknowledged by it."""
    @property
    def is_at_limit(self) -> bool:
        """It has reached unacked_max, and has still more than half of that unacknowledged."""
    @property
    def is_blocked(self) -> bool:
        """It, or another of its subscription, must acknowledge something before it gets more."""
    @property
    def unacked_max(self) -> int:
        """Messages that may be unacknowledged before it gets no more; 0: no limit."""
    def set_unacked_max(self, messages: int) -> None:
        """A policy changed: below the new limit it goes on at once."""
    def worth_reading(self, entries_max: int, bytes_max: int) -> tuple[int, int]:
        """(entries, bytes) to read for it: no more than its permits and its connection take now."""
    def deliver(
        self,
        batch: EntryBatch,
        start: int,
        stop: int,
        acks: AckSet,
        redelivery_counts: dict[tuple[int, int], int],
        left_out: list[tuple[int, int]],
        delayed: DelayedIndex | None = None,
        chunked: object | None = None,
    ) -> int:
        """Sends entries start..stop-1 of a batch while there are permits; where it stopped.

        Acknowledged entries are passed over; so are those that no client may see, which are
        appended to left_out. Those that are not due yet go into delayed, if there is one.
        """
    def settle_all_but(self, ledger_id: int, entry_id: int, left: int) -> int:
        """Of a delivered batch only so many messages are left; how many were settled."""
    def settle(self, run: AckRun) -> int:
        """Forgets the whole entries of an individual ack; the messages that they had."""
    def settle_one(self, ledger_id: int, entry_id: int) -> int:
        """Forgets one delivered entry; its messages, 0 when it was not pending here."""
    def is_pending(self, ledger_id: int, entry_id: int) -> bool:
        """Whether an entry is delivered and not acknowledged here."""
    def key_hash_of(self, ledger_id: int, entry_id: int) -> int:
        """The key's hash of a delivered entry of a Key_Shared subscription; 0: not pending."""
    def pending_up_to(
        self, ledger_id: int, entry_id: int, count_max: int
    ) -> Iterator[list[tuple[int, int]]]:
        """Parts of what it has up to a position, of at most so many; what is settled meanwhile may
        be among them.
        """

    def pending_positions(self) -> list[tuple[int, int]]:
        """Every delivered, unacknowledged position, in order."""
    def take_back(self) -> TakenBack:
        """Everything that is delivered and not settled, which it has no longer."""
    def note_acked(self, run: AckRun) -> None:
        """The client has acknowledged entries that are not kept as pending."""
    def note_acked_entries(self, entries: int) -> None:
        """The same for so many of them."""

class TakenBack:
    """What was taken back from a consumer and does not wait to be sent again yet."""

    def put_back(
        self,
        acks: AckSet,
        to: PositionSet | None,
        redelivery_counts: dict[tuple[int, int], int] | None,
        entries_max: int,
    ) -> bool:
        """Has at most so many entries wait to be sent again: in `to` or (None) among those of their
        key, but for those that are acknowledged. Each is counted as redelivered, unless there are
        no counts. True when it was the last of them.
        """
    def forget(self) -> list[FreedDict]:
        """Dicts, for free_some(): it is read again, whoever has it."""

def free_some(dicts: list[FreedDict], items_max: int) -> bool:
    """Frees at most so many items of dicts that nobody uses any more, and of dicts in them; True
    when it was the last of them. To free a million at once takes long.
    """

class Rotation:
    """Whose turn it is among the consumers of a Shared subscription."""

    asked: int
    """How often a consumer was asked whether it can take entries."""

    def add(self, consumer: ConsumerState) -> None:
        """One more, behind all others of its priority level."""
    def remove(self, consumer: ConsumerState) -> None:
        """It has left."""
    def next(self) -> Any:
        """The consumer that gets the next entries, or None: nobody can take any."""
    def served(self) -> None:
        """Who was found last has had its turn."""
    @property
    def is_limited(self) -> bool:
        """After next() has found nobody: whether there is one that waits for acknowledgements."""
    def take_newly_full(self) -> Sequence[Connection]:
        """Connections whose sockets have kept consumers from entries since it was asked last."""
    def waits_for(self, connection: Connection) -> bool:
        """Whether there is a consumer that is not asked before has_room() of its connection."""
    def has_room(self, connection: Connection) -> None:
        """A socket takes more, so its consumers are asked again."""

class Blocked:
    """Of consumers that have permits and cannot take any all the same, one for each cause."""

    consumers: list[Any]

def place_of(consumers: list[Any], consumer: ConsumerState) -> int:
    """The index of a consumer, which is in the list; ValueError if it is not."""

def worth_together(
    consumers: list[Any], entries_max: int, bytes_max: int, blocked: Blocked
) -> tuple[int, int]:
    """(entries, bytes) that consumers can take together, up to these, as long as it had to ask."""

def next_ready(consumers: list[Any], turn_of: int, keys: KeyShared, blocked: Blocked) -> int:
    """The index of the first consumer at or after turn_of for which something waits that it can
    have now; -1: there is none.
    """

def deal(
    batch: EntryBatch,
    consumers: Sequence[ConsumerState | None],
    keys: KeyShared,
    acks: AckSet,
    redelivery_counts: dict[tuple[int, int], int],
    left_out: list[tuple[int, int]],
    waiting_max: int,
    delayed: DelayedIndex | None = None,
    again: bool = False,
) -> int:
    """Sends entries to the owners of their keys; those that cannot take them wait in keys.

    consumers: by slot, the first one is None. Stops when waiting_max entries wait; returns where it
    stopped. Acknowledged entries are passed over, as are those that no client may see, which are
    appended to left_out. Those that are not due yet go into delayed, if there is one; again: they
    were there, and lie before others that wait.
    """

def deal_waiting(
    batch: EntryBatch,
    consumers: Sequence[ConsumerState | None],
    keys: KeyShared,
    acks: AckSet,
    redelivery_counts: dict[tuple[int, int], int],
    left_out: list[tuple[int, int]],
) -> int:
    """Sends entries of a batch that wait in keys and have their turn; returns how many went.

    Those that are acknowledged meanwhile wait no longer, and those of which nothing is left are
    appended to left_out. Entries that do not wait are passed over.
    """

class Peeked(NamedTuple):
    """What peek_entry tells of an entry."""

    publish_time: int
    num_messages: int
    is_batch: bool
    marker_type: int
    broker_time: int = 0
    @property
    def time(self) -> int:
        """When it was published: the clock of the broker counts, where it was noted."""

def count_messages(batch: EntryBatch, start: int, stop: int) -> int:
    """Messages in entries start..stop-1 of a batch, of those that clients may see."""

def deal_now(
    batch: EntryBatch,
    start: int,
    stop: int,
    consumers: Sequence[ConsumerState | None],
    keys: KeyShared,
) -> int:
    """Sends entries start..stop-1 to the owners of their keys, nothing waits; returns the messages
    that nobody took. consumers: by slot, the first one is None.
    """

def peek_entry(batch: EntryBatch, i: int) -> Peeked | None:
    """What the metadata of an entry says; None when it cannot be decoded. IndexError."""
