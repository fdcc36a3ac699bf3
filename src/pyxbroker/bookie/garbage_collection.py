"""Garbage collection: ledgers that metadata no longer knows give their space back.

As BookKeeper's ScanAndCompareGarbageCollector: list what is stored here, then look which of it
metadata has. In that order a ledger that is created meanwhile cannot be taken for garbage, since
its metadata is written before its first entry.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pyxbroker import _native
from pyxbroker.log import get_logger
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

log = get_logger("pyxbroker.bookie")

LEDGERS_PER_ROUND = 256


async def collect_garbage(storage: _native.Storage, store: MetadataStore) -> int:
    """Deletes the ledgers of a storage that have no metadata; returns how many. MetadataError."""
    deleted = 0
    after = -1
    while True:
        stored = storage.ledgers(after, LEDGERS_PER_ROUND)
        if not stored:
            break
        after = stored[-1]
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
