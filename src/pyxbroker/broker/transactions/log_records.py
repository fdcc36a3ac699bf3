"""Entries of the logs of transactions: those of coordinators and of pending acknowledgements.

An entry is one protobuf message, or (as Pulsar's batched writer stores it) several of them:

  offset  size  content (integers big-endian)
  0       2     magic 0x0e01, which cannot begin a message
  2       2     version, 1
  4       rest  a message whose one field repeats the records

Both forms are read, and the plain one is written: entries of one loop iteration share a disk write
anyway. The source is Pulsar's TxnLogBufferedWriter.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Any

from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.protobuf_records import MalformedRecord, parse
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.pending_entry import PendingEntry

_PREFIX = struct.Struct(">HH")
MAGIC = 0x0E01
VERSION = 1


def records_in(entry: bytes, record: Any, batch: Any) -> list[Any]:
    """Return the messages of class `record` in an entry; `batch` is the class of several of them.

    Raises MalformedRecord.
    """
    if len(entry) < _PREFIX.size or entry[0] != MAGIC >> 8 or entry[1] != MAGIC & 0xFF:
        return [parse(record, entry)]
    version = _PREFIX.unpack_from(entry)[1]
    if version != VERSION:
        raise MalformedRecord(f"a batch of records of transactions has the version {version}")
    [field] = batch.DESCRIPTOR.fields
    return list(getattr(parse(batch, entry[_PREFIX.size :]), field.name))


class _PendingRecord(PendingEntry):
    """The owner of the run of one record."""

    def on_run_failed(self, run: EntryRun, error: ManagedLedgerError) -> None:
        super().on_run_failed(run, error)
        if not self.future.cancelled():
            self.future.exception()  # marks it as retrieved: the caller may have been cancelled


async def cursor_of(managed_ledger: ManagedLedger, name: str) -> Cursor:
    """Return the only cursor of a log, created if it is missing. Without it, the log is closed.

    Raises MetadataError, ManagedLedgerError.
    """
    try:
        return await _find_or_create_cursor(managed_ledger, name)
    except BaseException:
        with contextlib.suppress(LedgerError, MetadataError, ManagedLedgerError):
            await managed_ledger.close()
        raise


async def _find_or_create_cursor(managed_ledger: ManagedLedger, name: str) -> Cursor:
    cursor = managed_ledger.cursors.get(name)
    if cursor is None:
        if name in managed_ledger.unreadable:
            raise ManagedLedgerError(f"the cursor of {managed_ledger.name} cannot be read")
        cursor = Cursor(managed_ledger, name, managed_ledger.first_position())
        managed_ledger.cursors[name] = cursor
        await cursor.create_node()
    return cursor


def append(managed_ledger: ManagedLedger, record: bytes) -> asyncio.Future[Position]:
    """Append an entry. The future has its position once it is durable, or ManagedLedgerError.

    Records are stored in the order of the calls. Raises ManagedLedgerError.
    """
    pending = _PendingRecord()
    run = EntryRun.of(record, pending)
    managed_ledger.client.turn.run(managed_ledger.append, run)
    return pending.future
