"""Recovery of a ledger that another writer may still have: fence its bookies, find its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from functools import partial

from pyxbroker.base.log import get_logger
from pyxbroker.ledger.bookie import Bookie
from pyxbroker.ledger.errors import EntryDamaged, LedgerError, NoSuchEntry, journal_failed
from pyxbroker.ledger.reader import ReadHandle
from pyxbroker.metadata.store import resolve

log = get_logger("pyxbroker.ledger")

# The entry header's length field: 8 bytes at offset 24 of the packaging.
_LENGTH_AT = slice(24, 32)


async def fence(reader: ReadHandle) -> None:
    """Fence a ledger on the bookies of its last segment, so that its writer confirms nothing more.

    Raises LedgerError when one of them cannot be fenced.
    """
    bookies = reader.segments[-1].bookies
    key = reader.digest.master_key
    asked = (_answer(bookie.fence, reader.ledger_id, key) for bookie in bookies)
    for bookie, code in zip(bookies, await asyncio.gather(*asked), strict=True):
        if code < -1 and bookie.failure:
            raise journal_failed(bookie.bookie_id, bookie.failure)
        if code < -1:
            why = f"ledger {reader.ledger_id} cannot be fenced: {os.strerror(-code)}"
            raise LedgerError(why, code)


async def find_end(reader: ReadHandle) -> tuple[int, int]:
    """Return (last entry id, length in bytes) of a ledger that no writer has.

    The embedded bookie is the only one of its ensemble, so a missing entry before the last one
    says nothing about those behind it: it was damaged, and they were acknowledged. The ledger
    then continues behind a gap. A power cut leaves no gap: the bookie stores nothing behind the
    first entry that a torn write lost. Raises LedgerError when an entry cannot be read now.
    """
    last = await stored_entries(reader.segments[-1].bookies, reader.ledger_id) - 1
    length = 0
    lost: LedgerError | None = None
    entry_id = last
    while entry_id >= 0:
        try:
            batch = await reader.read_future(entry_id, entry_id)
        except (EntryDamaged, NoSuchEntry) as error:
            lost = error
            entry_id -= 1
            continue
        length = int.from_bytes(batch.packaged(0)[_LENGTH_AT], "big")
        break
    if lost is not None:
        log.error(
            "entries at the end of a ledger are lost",
            ledger=reader.ledger_id,
            entries=last - entry_id,
            first=entry_id + 1,
            error=lost,
        )
    return last, length


async def stored_entries(bookies: Iterable[Bookie], ledger_id: int) -> int:
    """Return one more than the highest entry id that one of the bookies stores; 0 without any."""
    found = await asyncio.gather(*(_answer(bookie.last_entry, ledger_id) for bookie in bookies))
    return 1 + max(found)


async def _answer(ask: Callable[..., None], *arguments: object) -> int:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ask(*arguments, partial(resolve, future))
    return await future
