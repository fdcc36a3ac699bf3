"""The log of a transaction coordinator: a managed ledger with one cursor, as in Pulsar.

The cursor has acknowledged the records of ended transactions, and only those. Records of the last
transactions that ended stay for a while. So a coordinator remembers outcomes after a restart, and
a client whose END_TXN was not answered can repeat it. The records of a transaction are acknowledged
together: a cursor that has lost some of the acknowledgements cannot bring an ended transaction
back as an open one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from pyxbroker.base.log import get_logger
from pyxbroker.base.signed import bits_of, signed, words_of
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE, TRANSACTION_LOG
from pyxbroker.broker.topics.log_reader import read_log
from pyxbroker.broker.transactions.coordinator import (
    NO_TRANSACTION,
    LogRecord,
    Operation,
    Status,
)
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.log_records import append, cursor_of, records_in
from pyxbroker.entry import AckRun, Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.metadata.protobuf_records import MalformedRecord, text_of
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.entry_cache import EntryCache
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import open_managed_ledger
from pyxbroker.proto import PulsarTransactionMetadata as pb

log = get_logger("pyxbroker.transactions")

CURSOR = "transaction.subscription"
LAST_SEQUENCE = "max_local_txn_id"  # property of the managed ledger
ENDED_KEPT_MAX = 1_000
"""Ended transactions whose records stay in the log."""
LOST_SEQUENCES_MAX = 1 << 32
"""Numbers that lost records may have given to transactions. They are not given again."""
_MASK = (1 << 64) - 1


def name_of(coordinator: int) -> str:
    """Return the name of the managed ledger of a coordinator."""
    return f"{SYSTEM_NAMESPACE}/persistent/{TRANSACTION_LOG}{coordinator}"


class _Place:
    """The place of one record. The entries of a batched log have several."""

    __slots__ = ("batch_size", "index", "position")

    def __init__(self, position: Position, index: int = 0, batch_size: int = 1) -> None:
        self.position = position
        self.index = index
        self.batch_size = batch_size


class CoordinatorLog:
    """The log of one coordinator. `open` returns one that this broker owns."""

    def __init__(self, coordinator: int, managed_ledger: ManagedLedger) -> None:
        self.coordinator = coordinator
        self.managed_ledger = managed_ledger
        self.sequence = NO_TRANSACTION
        """The last number that the coordinator has given to a transaction, for the property."""
        self.appended = 0
        self._cursor: Cursor
        self._places: dict[int, list[_Place]] = {}  # of transactions, by number
        self._ended: deque[int] = deque()
        self.last: asyncio.Future[Position] | None = None
        """The record that was appended last; those before it are durable when it is."""
        managed_ledger.before_list_write = self._note_sequence

    @classmethod
    async def open(
        cls,
        coordinator: int,
        store: MetadataStore,
        ledgers: LedgerClient,
        limits: ManagedLedgerLimits,
        cache: EntryCache | None,
    ) -> CoordinatorLog:
        """Take the log over from its former owner, or create it.

        Raises LedgerError, MetadataError, ManagedLedgerError.
        """
        opened = await open_managed_ledger(
            name_of(coordinator), store, ledgers, limits, cache=cache
        )
        assert opened is not None  # it is created if it does not exist
        self = cls(coordinator, opened)
        text = opened.properties.get(LAST_SEQUENCE, "")
        if text.lstrip("-").isdigit():
            self.sequence = int(text)
        self._cursor = await cursor_of(opened, CURSOR)
        return self

    # --- reading --------------------------------------------------------------------------------

    async def read(self, skips_lost: bool) -> AsyncIterator[LogRecord]:
        """Yield the records of transactions that are not acknowledged. The caller calls `end` for
        each transaction that has ended, and `drop_last` for a record without effect.

        Lost records and errors as with read_batches.
        """
        managed_ledger, acks = self.managed_ledger, self._cursor.acks
        is_lost, last = False, managed_ledger.last_confirmed
        if last.entry_id >= 0:
            # Nothing before it is of interest if the cursor has acknowledged everything.
            is_lost = managed_ledger.normalize(last) == last  # else it was trimmed
            async for _, entry in read_log(managed_ledger, last, "the last record", skips_lost):
                is_lost = False
                for found in self._records(last, entry):
                    self.sequence = max(self.sequence, found.max_local_txn_id)
        start = managed_ledger.next_position(acks.mark_delete)
        async for position, entry in read_log(managed_ledger, start, "transactions", skips_lost):
            if acks.is_acknowledged(*position):
                continue
            messages = self._records(position, entry)
            acknowledged = acks.ack_set(*position)
            for index, message in enumerate(messages):
                if acknowledged and not bits_of(acknowledged) >> index & 1:
                    continue
                record = self._record_of(position, message)
                if record is None:
                    continue
                place = _Place(position, index, len(messages))
                self._places.setdefault(record.least, []).append(place)
                self.sequence = max(self.sequence, record.sequence, record.least)
                yield record
        if is_lost:
            self.sequence += LOST_SEQUENCES_MAX

    def _records(self, position: Position, entry: bytes) -> list[Any]:
        try:
            return records_in(
                entry, pb.TransactionMetadataEntry, pb.BatchedTransactionMetadataEntry
            )
        except MalformedRecord as error:
            self._log_unreadable(position, error)
            return []

    def _record_of(self, position: Position, message: Any) -> LogRecord | None:
        try:
            return _decode(message)
        except MalformedRecord as error:
            self._log_unreadable(position, error)
            return None

    def _log_unreadable(self, position: Position, error: MalformedRecord) -> None:
        log.error(
            "a record of transactions cannot be read",
            managed_ledger=self.managed_ledger.name,
            position=position,
            error=error,
        )

    # --- writing --------------------------------------------------------------------------------

    def append(self, record: LogRecord) -> asyncio.Future[Position]:
        """Append a record. The future is done when it is durable; with a ManagedLedgerError the
        record may be stored nevertheless. Records are stored in the order of the calls.

        Raises ManagedLedgerError.
        """
        self.sequence = max(self.sequence, record.sequence)
        stored = self.last = append(self.managed_ledger, _encode(self.coordinator, record))
        stored.add_done_callback(partial(self._on_stored, record.least))
        self.appended += 1
        return stored

    def _on_stored(self, least: int, stored: asyncio.Future[Position]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            self._places.setdefault(least, []).append(_Place(stored.result()))

    def end(self, least: int) -> None:
        """Note that a transaction has ended: its records are acknowledged some time later."""
        self._ended.append(least)
        while len(self._ended) > ENDED_KEPT_MAX:
            self._release(self._places.pop(self._ended.popleft(), []))

    def drop_last(self, least: int) -> None:
        """Acknowledge the record that `read` has yielded last, which has no effect."""
        places = self._places[least]
        self._release([places.pop()])
        if not places:
            del self._places[least]

    def _release(self, places: list[_Place]) -> None:
        """Acknowledge records, and with the last one of an entry the entry."""
        run = AckRun.of(())
        for each in places:
            if each.batch_size == 1:
                run.add(*each.position)
            else:
                words = words_of(((1 << each.batch_size) - 1) & ~(1 << each.index))
                run.add(*each.position, ack_set=words, batch_size=each.batch_size)
        self._cursor.acknowledge(run)

    def _note_sequence(self) -> None:
        """Update the property before the list of ledgers is written."""
        if self.sequence > NO_TRANSACTION:
            self.managed_ledger.properties[LAST_SEQUENCE] = str(self.sequence)

    async def close(self) -> None:
        """Store the cursor and close the log. Raises LedgerError, MetadataError and others."""
        await self.managed_ledger.close()


# --- encoding -----------------------------------------------------------------------------------


def _encode(coordinator: int, record: LogRecord) -> bytes:
    most, least = TxnId(coordinator, record.least).wire()
    entry = pb.TransactionMetadataEntry(
        metadata_op=record.operation,
        txnid_most_bits=most,
        txnid_least_bits=least,
        last_modification_time=record.modified_ms,
        max_local_txn_id=record.sequence,
    )
    if record.operation is Operation.NEW:
        entry.timeout_ms, entry.start_time = record.timeout_ms & _MASK, record.start_ms
        if record.owner is not None:
            entry.owner = record.owner
    elif record.operation is Operation.UPDATE:
        entry.expected_status, entry.new_status = record.expected, record.new
    entry.partitions.extend(record.partitions)
    for topic, subscription in record.subscriptions:
        entry.subscriptions.add(topic=topic, subscription=subscription)
    encoded: bytes = entry.SerializeToString()
    return encoded


def _decode(entry: Any) -> LogRecord:
    """Raise MalformedRecord for text that is not UTF-8."""
    return LogRecord(
        Operation(entry.metadata_op),
        signed(entry.txnid_least_bits),
        entry.last_modification_time,
        signed(entry.max_local_txn_id),
        Status(entry.expected_status),
        Status(entry.new_status),
        tuple(text_of(each) for each in entry.partitions),
        tuple((text_of(each.topic), text_of(each.subscription)) for each in entry.subscriptions),
        signed(entry.timeout_ms),
        entry.start_time,
        text_of(entry.owner) if entry.HasField("owner") else None,
    )
