"""What Python sees of dispatch.pyx: one consumer's deliveries, and a look into an entry."""

from typing import NamedTuple

from pyxbroker.ackset import AckSet
from pyxbroker.connection import Connection
from pyxbroker.entry import AckRun, EntryBatch

class ConsumerState:
    """Permits, deliveries and unacknowledged entries of one consumer."""

    permits: int
    """Messages that the client still wants; below 0 after a batch larger than they were."""
    unacked_messages: int
    """Messages delivered and not acknowledged."""
    unacked_max: int
    """Messages that may be unacknowledged before it gets no more; 0: no limit."""
    consumer_epoch: int
    closed: bool

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
    def redelivered(self) -> int:
        """Messages sent not for the first time."""
    @property
    def can_deliver(self) -> bool:
        """True when it has permits and its connection takes more bytes."""
    @property
    def is_blocked(self) -> bool:
        """It must acknowledge something before it gets more."""
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
    ) -> int:
        """Sends entries start..stop-1 of a batch while there are permits; where it stopped.

        Acknowledged entries are passed over; so are those that no client may see, which are
        appended to left_out.
        """
    def settle(self, run: AckRun) -> int:
        """Forgets the whole entries of an individual ack; the messages that they had."""
    def settle_all_but(self, ledger_id: int, entry_id: int, left: int) -> int:
        """Of a delivered batch only so many messages are left; how many were settled."""
    def settle_one(self, ledger_id: int, entry_id: int) -> int:
        """Forgets one delivered entry; its messages, 0 when it was not pending here."""
    def settle_up_to(self, ledger_id: int, entry_id: int) -> int:
        """Forgets every delivered entry up to a position; the messages that they had."""
    def is_pending(self, ledger_id: int, entry_id: int) -> bool:
        """Whether an entry is delivered and not acknowledged here."""
    def pending_positions(self) -> list[tuple[int, int]]:
        """Every delivered, unacknowledged position, in order."""
    def clear_pending(self) -> None:
        """Forgets all deliveries: they will be sent again."""

class Peeked(NamedTuple):
    """What peek_entry tells of an entry."""

    publish_time: int
    num_messages: int
    is_batch: bool
    marker_type: int

def peek_entry(batch: EntryBatch, i: int) -> Peeked | None:
    """What the metadata of an entry says; None when it cannot be decoded. IndexError."""
