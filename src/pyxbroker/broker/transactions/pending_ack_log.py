"""The log of the pending acknowledgements of a subscription: a managed ledger with one cursor.

A record is a PendingAckMetadataEntry. The log is read from its cursor on, which follows the durable
mark-delete position of the subscription (TrimIndex). Mirrors Pulsar's MLPendingAckStore.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from pyxbroker.base.log import get_logger
from pyxbroker.base.signed import bits_of
from pyxbroker.base.topic_name import PENDING_ACKS, TopicName
from pyxbroker.base.url_encoding import encode
from pyxbroker.broker.topics.log_reader import read_log
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.log_records import append, cursor_of, records_in
from pyxbroker.broker.transactions.pending_acks import Ack, TrimIndex
from pyxbroker.entry import Position
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.mledger.cursor import Cursor, CursorError
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.proto import TransactionPendingAck as pb

log = get_logger("pyxbroker.transactions")

CURSOR = "__pending_ack_state"


class Operation(IntEnum):
    """PendingAckOp."""

    ACK = 1
    COMMIT = 2
    ABORT = 3


class LogRecord(NamedTuple):
    """One record."""

    operation: Operation
    txn: TxnId
    is_cumulative: bool
    acks: Sequence[Ack] = ()  # of ACK


def name_of(topic: TopicName, subscription: str) -> str:
    """Return the name of the managed ledger of a subscription."""
    local_name = f"{topic.local_name}-{encode(subscription)}{PENDING_ACKS}"
    return f"{topic.namespace}/{topic.domain}/{encode(local_name)}"


def encode_record(record: LogRecord) -> bytes:
    """Encode a record as an entry of its own."""
    most, least = record.txn.wire()
    message = pb.PendingAckMetadataEntry(
        pending_ack_op=int(record.operation),
        ack_type=int(record.is_cumulative),
        txnid_least_bits=least,
        txnid_most_bits=most,
    )
    for ack in record.acks:
        added = message.pending_ack_metadata.add(
            ledgerId=ack.ledger_id, entryId=ack.entry_id, ack_set=ack.words
        )
        if not record.is_cumulative:
            added.batch_size = ack.batch_size
    encoded: bytes = message.SerializeToString()
    return encoded


def decode_records(entry: bytes) -> list[LogRecord]:
    """Decode the records of an entry. Raises MalformedRecord."""
    messages = records_in(entry, pb.PendingAckMetadataEntry, pb.BatchedPendingAckMetadataEntry)
    return [_decode(message) for message in messages]


def _decode(message: Any) -> LogRecord:
    if not message.HasField("pending_ack_op"):
        raise MalformedRecord("a record of pending acknowledgements has no operation")
    acks = tuple(
        Ack(each.ledgerId, each.entryId, bits_of(each.ack_set), max(each.batch_size, 0))
        for each in message.pending_ack_metadata
    )
    txn = TxnId.of_wire(message.txnid_most_bits, message.txnid_least_bits)
    return LogRecord(Operation(message.pending_ack_op), txn, message.ack_type == 1, acks)


class PendingAckLog:
    """The log of one subscription, which this broker owns."""

    def __init__(self, managed_ledger: ManagedLedger, cursor: Cursor, index: TrimIndex) -> None:
        self.managed_ledger = managed_ledger
        self._cursor = cursor
        self._index = index

    @classmethod
    async def of(cls, opened: ManagedLedger, lag_min: int) -> PendingAckLog:
        """Return the log in a managed ledger that was opened.

        Raises LedgerError, MetadataError, ManagedLedgerError.
        """
        return cls(opened, await cursor_of(opened, CURSOR), TrimIndex(lag_min))

    async def read(self, skips_lost: bool) -> AsyncIterator[LogRecord]:
        """Yield the records that are not trimmed. Lost ones and errors as with read_batches."""
        managed_ledger = self.managed_ledger
        start = managed_ledger.next_position(self._cursor.acks.mark_delete)
        what = "pending acknowledgements"
        async for position, entry in read_log(managed_ledger, start, what, skips_lost):
            try:
                records = decode_records(entry)
            except MalformedRecord as error:
                log.error(
                    "a record of pending acknowledgements cannot be read",
                    managed_ledger=managed_ledger.name,
                    position=position,
                    error=error,
                )
                continue
            for record in records:
                self._index.note(position, record.acks)
                yield record

    def append(self, record: LogRecord) -> asyncio.Future[Position]:
        """Append a record. The future is done when it is durable; with a ManagedLedgerError the
        record may be stored nevertheless. Records are stored in the order of the calls.

        Raises ManagedLedgerError.
        """
        stored = append(self.managed_ledger, encode_record(record))
        stored.add_done_callback(partial(self._on_stored, record.acks))
        return stored

    def _on_stored(self, acks: Sequence[Ack], stored: asyncio.Future[Position]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            self._index.note(stored.result(), acks)

    async def trim(self, subscription: Cursor) -> None:
        """Trim what is not needed any more, once the subscription's mark is durable."""
        position = self._index.trim_to(subscription.acks.mark_delete)
        if position is None:
            return
        try:
            await subscription.persist()
        except CursorError:
            return  # the log is trimmed after the topic was opened again
        self._cursor.acknowledge_up_to(position)
