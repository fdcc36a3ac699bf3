"""Garbage collection: ledgers that metadata no longer knows give their space back.

As BookKeeper's ScanAndCompareGarbageCollector: list what is stored here, then look which of it
metadata has. In that order a ledger that is created meanwhile cannot be taken for garbage, since
its metadata is written before its first entry. A ledger that a pass misses is met by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from pyxbroker import _native
from pyxbroker.log import get_logger
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

log = get_logger("pyxbroker.bookie")

LEDGERS_PER_ROUND = 256


def stored_ledgers(storage: _native.Storage) -> Iterator[list[int]]:
    """The ids of all ledgers of a storage in one pass, some at a time and in no order.

    Ledgers may come and go between two steps; one that is there all the while may come twice, and
    seldom not at all when others go.
    """
    position = 0
    while True:
        ledger_ids, position = storage.ledgers(position, LEDGERS_PER_ROUND)
        yield ledger_ids
        if position == 0:
            return


async def collect_garbage(storage: _native.Storage, store: MetadataStore) -> int:
    """Deletes the ledgers of a storage that have no metadata; returns how many. MetadataError."""
    deleted = 0
    for stored in stored_ledgers(storage):
        known = await asyncio.gather(*(store.exists(paths.ledger(each)) for each in stored))
        for ledger_id, is_known in zip(stored, known, strict=True):
            if not is_known:
                # Its owner may have deleted it here as well by now.
                with suppress(FileNotFoundError):
                    storage.delete_ledger(ledger_id)
                    deleted += 1
    if deleted:
        log.info("garbage collected", ledgers=deleted)
    return deleted
