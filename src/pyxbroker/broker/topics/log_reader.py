"""Iteration over the log of a topic, for data that the broker itself stores in topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices
from pyxbroker.entry import EntryBatch, Position
from pyxbroker.ledger.errors import EntryDamaged, NoSuchEntry, NoSuchLedger
from pyxbroker.ledger.retries import Retries
from pyxbroker.mledger.managed_ledger import ManagedLedger

log = get_logger("pyxbroker.topic")

ENTRIES_PER_READ = 100
BYTES_PER_READ = 1 << 20
LOST_RETRY_S = 30.0  # interval at which a log is read again whose lost entries must not be skipped
LOST_HELP = (
    "set autoSkipNonRecoverableData=true to leave out what is lost; the broker retries every 30 s"
)


async def read_log(
    managed_ledger: ManagedLedger, start: Position, what: str, skips_lost: bool = True
) -> AsyncIterator[tuple[Position, bytes]]:
    """Yield the position and the bytes of each stored entry from a position on.

    Lost entries and errors as with read_batches.
    """
    async for batch in read_batches(managed_ledger, start, what, skips_lost):
        for index in range(len(batch)):
            yield Position(batch.ledger_id, batch.entry_id(index)), batch.data(index)


async def read_batches(
    managed_ledger: ManagedLedger, start: Position, what: str, skips_lost: bool = True
) -> AsyncIterator[EntryBatch]:
    """Yield batches of the stored entries from a position on.

    Lost entries are skipped, and logged in one line. Raises LedgerError if an entry cannot be read
    now, or without `skips_lost` if it is lost.
    """
    retries = Retries(f"reading {what} of {managed_ledger.name}")
    slices = Slices()
    first_lost = last_lost = None
    lost = 0
    position = start
    while (wanted := managed_ledger.normalize(position)) is not None:
        batch = managed_ledger.read_cached(wanted, ENTRIES_PER_READ, BYTES_PER_READ)
        if batch is None:
            read = partial(managed_ledger.read_some, wanted, ENTRIES_PER_READ, BYTES_PER_READ)
            try:
                batch = await retries.call(read)
            except (EntryDamaged, NoSuchEntry) as error:
                last = wanted
                if isinstance(error, NoSuchLedger):
                    last_entry = managed_ledger.last_entry(wanted.ledger_id)
                    last = Position(wanted.ledger_id, max(last_entry or 0, wanted.entry_id))
                if wanted.ledger_id in managed_ledger.ledgers:  # else it was trimmed meanwhile
                    if not skips_lost:
                        raise
                    first_lost, last_lost = first_lost or wanted, last
                    lost += last.entry_id - wanted.entry_id + 1
                position = Position(wanted.ledger_id, last.entry_id + 1)
                await slices.pause()
                continue
        yield batch
        position = Position(batch.ledger_id, batch.entry_id(len(batch) - 1) + 1)
    if lost:
        log.error(
            "entries cannot be read",
            topic=managed_ledger.name,
            sought=what,
            entries=lost,
            first=first_lost,
            last=last_lost,
        )
