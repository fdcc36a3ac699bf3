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
import struct
from typing import Any

from pyxbroker.entry import EntryRun, Position
from pyxbroker.metadata.protobuf_records import MalformedRecord, parse
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import ManagedLedger

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


class _Pending:
    """The owner of the run of one record."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def on_run_added(self, run: EntryRun) -> None:
        if not self.future.done():
            self.future.set_result(Position(run.ledger_id, run.first_entry_id))

    def on_run_failed(self, run: EntryRun, error: ManagedLedgerError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # marks it as retrieved: the caller may have been cancelled


def append(managed_ledger: ManagedLedger, record: bytes) -> asyncio.Future[Position]:
    """Append an entry. The future has its position once it is durable, or ManagedLedgerError.

    Records are stored in the order of the calls. Raises ManagedLedgerError.
    """
    pending = _Pending()
    run = EntryRun.of(record, pending)
    managed_ledger.client.turn.run(managed_ledger.append, run)
    return pending.future
