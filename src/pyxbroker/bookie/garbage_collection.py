"""Garbage collection: ledgers that were deleted give their space back.

As BookKeeper's ScanAndCompareGarbageCollector: list what is stored here, then look which of it
metadata has. In that order a ledger that is created meanwhile cannot be taken for garbage, since
its metadata is written before its first entry. A ledger that a pass misses is met by the next one.

A ledger that metadata does not have goes only when metadata remembers that it was deleted. Another
one is there because metadata lost it (damage, an older state that was restored): it is kept, named
once, and deleted when somebody asks for that (`pyxbroker metadata repair
--delete-unknown-ledgers`). A create that was refused leaves no such ledger, since nothing was
written to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from pyxbroker import _native
from pyxbroker.base.log import get_logger
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import CorruptStore, MetadataStore

log = get_logger("pyxbroker.bookie")

LEDGERS_PER_ROUND = 256
LEDGERS_NAMED_MAX = 20


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


class GarbageCollector:
    """The collection of one storage's garbage. `unknown_ledgers` are those that are kept aside."""

    def __init__(self, storage: _native.Storage, store: MetadataStore) -> None:
        self.unknown_ledgers: list[int] = []
        self._storage = storage
        self._store = store
        self._deleted: set[int] = set()  # a crash of this process may bring them back
        self._damaged: set[int] = set()  # whose metadata is, as the log was told

    async def collect(self) -> int:
        """One pass; returns how many ledgers were deleted. Raises MetadataError."""
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
                # Its owner may have deleted it here as well by now.
                self._deleted.add(ledger_id)
                with suppress(FileNotFoundError):
                    self._storage.delete_ledger(ledger_id)
                    deleted += 1
        await self._keep(sorted(unknown))
        await self._forget()
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
        """Damaged metadata may be repaired one day: its ledger stays, and the pass goes on."""
        if isinstance(answer, CorruptStore):
            if ledger_id not in self._damaged:
                self._damaged.add(ledger_id)
                log.warning("a ledger is kept", ledger=ledger_id, reason=str(answer))
            return True
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _keep(self, ledger_ids: list[int]) -> None:
        """Remembers the unknown ledgers and names those that were not named before."""
        self.unknown_ledgers = ledger_ids
        named = set(await self._store.unknown())
        names = [paths.ledger(each) for each in ledger_ids]
        if named == set(names):
            return
        await self._store.set_unknown(names)
        new = [each for each, name in zip(ledger_ids, names, strict=True) if name not in named]
        if new:
            log.error(
                "ledgers that metadata does not know, and whose deletion it does not know of, are"
                " kept; `pyxbroker metadata repair --delete-unknown-ledgers` deletes them",
                ledgers=len(new),
                ids=",".join(str(each) for each in new[:LEDGERS_NAMED_MAX]),
            )

    async def _forget(self) -> None:
        """Forgets deletions of ledgers that the disk does not have any more.

        A ledger that was deleted by this process may be back after a crash, so only those that
        earlier ones deleted, and that this one has not found when it started.
        """
        old = await self._store.old_deletions(paths.LEDGERS + "/")
        if not old:
            return
        stored = {each for some in stored_ledgers(self._storage) for each in some}
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
