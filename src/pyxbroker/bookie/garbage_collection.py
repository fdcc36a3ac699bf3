"""Garbage collection: frees the space of deleted ledgers.

Works like BookKeeper's ScanAndCompareGarbageCollector: it lists the stored ledgers, then checks
which of them exist in metadata. In this order a ledger that is created meanwhile is not taken for
garbage, because its metadata is written before its first entry. A ledger that a pass misses is
found by the next one.

A ledger without metadata is deleted only if metadata records its deletion. Otherwise metadata has
lost it (damage, an older state that was restored): it is kept, logged once, and deleted on request
(`pyxbroker metadata repair --delete-unknown-ledgers`). A refused creation leaves no such ledger,
because nothing was written to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

from pyxbroker import _native
from pyxbroker.base.log import get_logger
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import CorruptStore, MetadataStore

log = get_logger("pyxbroker.bookie")

LEDGERS_PER_ROUND = 256
LEDGERS_NAMED_MAX = 20


def stored_ledgers(storage: _native.Storage) -> Iterator[list[int]]:
    """Yield the ids of all ledgers of a storage in one pass, in unordered batches.

    Ledgers may be created and deleted between two batches. A ledger that exists throughout may be
    listed twice, and in rare cases, when others are deleted, not at all.
    """
    position = 0
    while True:
        ledger_ids, position = storage.ledgers(position, LEDGERS_PER_ROUND)
        yield ledger_ids
        if position == 0:
            return


class GarbageCollector:
    """The garbage collector of one storage. `unknown_ledgers` have no metadata and are kept.

    `delete` deletes a ledger, now or later; it raises FileNotFoundError if the ledger is unknown.
    """

    def __init__(
        self,
        storage: _native.Storage,
        store: MetadataStore,
        delete: Callable[[int], None] | None = None,
    ) -> None:
        self.unknown_ledgers: list[int] = []
        self._storage = storage
        self._delete = storage.delete_ledger if delete is None else delete
        self._store = store
        self._deleted: set[int] = set()  # a crash of this process may restore them
        self._damaged: set[int] = set()  # with damaged metadata, already logged

    async def collect(self) -> int:
        """Do one pass; return the number of deleted ledgers. Raises MetadataError."""
        deleted = 0
        unknown: set[int] = set()
        for stored in stored_ledgers(self._storage):
            without = await self._without_metadata(stored)
            names = [paths.ledger(each) for each in without]
            were_deleted = await self._store.was_deleted(names) if names else []
            for ledger_id, was_deleted in zip(without, were_deleted, strict=True):
                if not was_deleted:
                    unknown.add(ledger_id)
                    continue
                # The ledger's owner may have deleted it from the storage already.
                self._deleted.add(ledger_id)
                with suppress(FileNotFoundError):
                    self._delete(ledger_id)
                    deleted += 1
        await self._record_unknown(sorted(unknown))
        await self._forget_deletions()
        if deleted:
            log.info("garbage collected", ledgers=deleted)
        return deleted

    async def _without_metadata(self, ledger_ids: list[int]) -> list[int]:
        answers = await asyncio.gather(
            *(self._store.exists(paths.ledger(each)) for each in ledger_ids),
            return_exceptions=True,
        )
        return [
            ledger_id
            for ledger_id, answer in zip(ledger_ids, answers, strict=True)
            if not self._is_known(ledger_id, answer)
        ]

    def _is_known(self, ledger_id: int, answer: bool | BaseException) -> bool:
        """Return True for existing metadata, and for damaged metadata, which may be repaired."""
        if isinstance(answer, CorruptStore):
            if ledger_id not in self._damaged:
                self._damaged.add(ledger_id)
                log.warning("a ledger is kept", ledger=ledger_id, reason=str(answer))
            return True
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _record_unknown(self, ledger_ids: list[int]) -> None:
        """Store the list of unknown ledgers, and log those that are new in it."""
        self.unknown_ledgers = ledger_ids
        named = set(await self._store.unknown())
        names = [paths.ledger(each) for each in ledger_ids]
        if named == set(names):
            return
        await self._store.set_unknown(names)
        new = [each for each, name in zip(ledger_ids, names, strict=True) if name not in named]
        if new:
            log.error(
                "ledgers without metadata, whose deletion is not recorded either, are kept;"
                " `pyxbroker metadata repair --delete-unknown-ledgers` deletes them",
                ledgers=len(new),
                ids=",".join(str(each) for each in new[:LEDGERS_NAMED_MAX]),
            )

    async def _forget_deletions(self) -> None:
        """Remove the records of deletions whose ledgers are no longer stored.

        A ledger deleted by this process may be back after a crash. So this covers only deletions by
        earlier processes, of ledgers that this process did not find when it started.
        """
        old = await self._store.old_deletions(paths.LEDGERS + "/")
        if not old:
            return
        stored = {each for batch in stored_ledgers(self._storage) for each in batch}
        gone = []
        for path in old:
            ledger_id = paths.ledger_id(path)
            if ledger_id is None or ledger_id in stored or ledger_id in self._deleted:
                continue
            if self._is_gone(ledger_id):
                gone.append(path)
        if gone:
            await self._store.forget_deletions(gone)

    def _is_gone(self, ledger_id: int) -> bool:
        try:
            self._storage.last_entry(ledger_id)
        except FileNotFoundError:
            return True
        return False
