"""The data of a running standalone as of one moment, for a backup that another process copies.

All adds and all writes of metadata are issued by one event loop. In one of its iterations the write
cache is handed to the flush thread and the metadata's transactions are marked. The entry logs up to
the one that this flush writes, and the transactions up to the mark, are the state of that
iteration: what a start would find after a kill in that moment, if all operations issued until then
had become durable.

Entry logs do not change, except that deletions of ledgers punch holes into them and remove logs
without ledgers. Therefore deletions are delayed until the copy is complete.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.bookie.embedded import EmbeddedBookie
from pyxbroker.bookie.entry_logs import entry_log_ids
from pyxbroker.bookie.layout import Layout
from pyxbroker.broker.backup import BackupRefused
from pyxbroker.metadata import paths
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.store import MetadataError, MetadataStore

HOLD_S = 60.0
FLUSH_S = 60.0  # a flush takes about a second for a full write cache
POLL_S = 0.01

log = get_logger("pyxbroker.standalone")


class _Moment(NamedTuple):
    log_end: int
    is_flushing: bool
    mark: asyncio.Future[int]
    time_ms: int


class StandaloneBackup:
    """Implements broker/backup.py for an embedded bookie and an embedded metadata store."""

    def __init__(
        self, cluster: str, layout: Layout, bookie: EmbeddedBookie, store: MetadataStore
    ) -> None:
        self._cluster = cluster
        self._layout = layout
        self._bookie = bookie
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._moment_id = ""  # of the current backup
        self._is_beginning = False
        self._end_reason = ""  # why the last hold ended before its backup
        self._expiry: asyncio.TimerHandle | None = None

    async def begin(self) -> dict[str, Any]:
        store = self._store
        if not isinstance(store, EmbeddedStore):
            raise BackupRefused(
                412,
                "The metadata of this broker is not in local files; use the tools of its metadata"
                " store for a backup.",
            )
        if self._moment_id or self._is_beginning:
            raise BackupRefused(
                409,
                "Another backup of this broker is under way. If its command was killed, the broker"
                f" forgets it within {HOLD_S:g} s.",
            )
        self._is_beginning = True
        try:
            return await self._begin(store)
        except MetadataError as error:
            raise BackupRefused(503, f"The metadata cannot be backed up now: {error}.") from error
        finally:
            self._is_beginning = False
            if not self._moment_id:
                self._bookie.begin_copy(None)
                self._bookie.hold_deletions(False)

    async def _begin(self, store: EmbeddedStore) -> dict[str, Any]:
        if not await store.has_change_log():
            await store.make_copy()  # which starts a change log
        instance = await store.get(paths.INSTANCE_ID)
        moment = await self._take_moment(store)
        transaction = await moment.mark
        if not await store.has_change_log():
            raise MetadataError("its change log cannot be written")
        if moment.is_flushing:
            await self._wait_flushed(moment.log_end - 1)
        self._moment_id = os.urandom(8).hex()
        self._end_reason = ""
        self.renew(self._moment_id)
        log.info("a backup begins", moment=self._moment_id)
        return {
            "id": self._moment_id,
            "holdSeconds": int(HOLD_S),
            "timeMs": moment.time_ms,
            "cluster": self._cluster,
            "instanceId": "" if instance is None else instance.value.decode(),
            "bookieId": self._bookie.bookie_id,
            "transaction": transaction,
            "logEnd": moment.log_end,
            "ledgers": str(self._layout.ledgers),
            "copies": str(self._layout.copies),
        }

    async def _take_moment(self, store: EmbeddedStore) -> _Moment:
        taken: asyncio.Future[_Moment] = self._loop.create_future()

        def take(log_end: int, is_flushing: bool) -> None:
            self._bookie.hold_deletions(True)
            now_ms = time.time_ns() // 1_000_000
            taken.set_result(_Moment(log_end, is_flushing, store.mark(), now_ms))

        deadline = self._loop.time() + FLUSH_S
        self._bookie.begin_copy(take)
        while not taken.done():
            self._check_storage(deadline)
            await asyncio.sleep(POLL_S)
            if not taken.done():
                self._bookie.begin_copy(take)
        return taken.result()

    async def _wait_flushed(self, log_id: int) -> None:
        deadline = self._loop.time() + FLUSH_S
        while not any(each >= log_id for each in entry_log_ids(self._layout.ledgers)):
            self._check_storage(deadline)
            await asyncio.sleep(POLL_S)

    def _check_storage(self, deadline: float) -> None:
        bookie = self._bookie
        error = -bookie.failure or -bookie.storage.trouble()
        if error:
            raise BackupRefused(
                503, f"The storage of this broker cannot be written now: {os.strerror(error)}."
            )
        if self._loop.time() > deadline:
            raise BackupRefused(
                503, f"The write cache could not be flushed within {FLUSH_S:g} s; try again."
            )

    def renew(self, moment_id: str) -> None:
        self._check_id(moment_id)
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = self._loop.call_later(
            HOLD_S, self.abandon, f"its command has not been heard of for {HOLD_S:g} s"
        )

    def end(self, moment_id: str) -> None:
        self._check_id(moment_id)
        self._release("")
        log.info("a backup ends", moment=moment_id)

    def abandon(self, reason: str) -> None:
        """End the current backup, if any: deletions are executed again."""
        if self._moment_id:
            log.warning("a backup was abandoned", moment=self._moment_id, reason=reason)
            self._release(reason)

    def _release(self, reason: str) -> None:
        self._moment_id = ""
        self._end_reason = reason
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._bookie.hold_deletions(False)

    def _check_id(self, moment_id: str) -> None:
        if not self._moment_id or moment_id != self._moment_id:
            reason = self._end_reason or "it is not known to this broker"
            raise BackupRefused(404, f"The broker has abandoned this backup: {reason}.")
