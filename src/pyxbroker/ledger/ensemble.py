"""The writer's handle of an open ledger on several bookies.

Imported with the first ledger that is not on the embedded bookie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from pyxbroker.base.log import get_logger
from pyxbroker.entry import CRC32C, Digest, EntryRun
from pyxbroker.ledger.bookie import TIMED_OUT, Bookie
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.ledger.handle import LedgerHandle, LedgerListener
from pyxbroker.ledger.metadata import LedgerMetadata, LedgerMetadataStore
from pyxbroker.ledger.read_policy import ReadPolicy
from pyxbroker.ledger.reader import segments_of
from pyxbroker.ledger.writer import (
    Action,
    Confirm,
    Fail,
    FindBookies,
    LedgerWriter,
    ReadMetadata,
    Send,
    WriteMetadata,
)
from pyxbroker.metadata.store import BadVersion, NotFound, Unavailable

log = get_logger("pyxbroker.ledger")

RETRY_S = 1.0
"""Pause before a ledger looks again for bookies, or asks again for its metadata."""


def ignore_error(bookie_id: str, code: int) -> None:
    """Nothing: no placement policy counts the errors."""


class EnsembleHandle(LedgerHandle):
    """The writer of a ledger on several bookies: performs the actions of a LedgerWriter.

    `find` returns a bookie id for each index that a failed bookie had, as far as there are any.
    `on_error` is called with the id of a bookie that failed, and the code. A bookie that keeps the
    oldest unconfirmed entry waiting for `add_timeout_s` has failed for this ledger.
    """

    __slots__ = (
        *(
            "_add_timeout_s",
            "_bookies",
            "_find",
            "_metadata",
            "_on_error",
            "_slots",
            "_tasks",
            "_timer",
        ),
        "_waits_for",
        "writer",
    )

    def __init__(
        self,
        writer: LedgerWriter,
        bookies: Mapping[str, Bookie],
        find: Callable[[FindBookies], Mapping[int, str]],
        metadata: LedgerMetadataStore,
        listener: LedgerListener,
        add_timeout_s: float,
        add_flags: int = 0,
        digest: Digest = CRC32C,
        on_error: Callable[[str, int], None] = ignore_error,
        policy: ReadPolicy | None = None,
    ) -> None:
        first = bookies[writer.ensemble[0]]
        super().__init__(writer.ledger_id, first, listener, add_flags, digest)
        self.policy = policy
        self.writer = writer
        self.pending = writer.pending
        self.write_quorum = writer.metadata.write_quorum_size
        self._add_timeout_s = add_timeout_s
        self._bookies = bookies
        self._find = find
        self._on_error = on_error
        self._metadata = metadata
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for = -1  # the oldest unconfirmed entry when the timer was set
        self._slots = 0  # the writer's next slot then; a later member has been asked only since
        self._note_metadata()

    def append(self, run: EntryRun) -> None:
        """Give the run its entry ids and send it to the bookies of its write sets."""
        writer, bookies, flags = self.writer, self._bookies, self.add_flags
        confirmed, length = writer.last_add_confirmed, writer.length
        members = writer.append(run)
        self.length = writer.length
        if self._timer is None:
            self._set_timer(self._add_timeout_s, self._check_progress)
        for slot, bookie_id, stripe in members:
            bookies[bookie_id].add_run(self, slot, run, confirmed, length, flags, stripe)
        run.copy_data()  # unless a remote bookie has packaged the run, which copies it

    def on_adds_acked(self, slot: int, first: int, last: int) -> None:
        for run in self.writer.on_acked(slot, first, last):
            self.listener.on_run_confirmed(run)
        if self._drained is not None:
            self._check_drained()

    def on_adds_failed(self, slot: int, first: int, code: int) -> None:
        self._fail_slot(slot, first, code)

    def _fail_slot(self, slot: int, first: int, code: int) -> None:
        bookie_id = self.writer.bookie_of(slot)
        if bookie_id is not None:
            self._on_error(bookie_id, code)
        self._perform(self.writer.on_failed(slot, first, code))

    def take_back(self) -> None:
        """Do nothing: a run for which one bookie has no room may be on another one already."""

    def on_add_taken_back(self, slot: int, run: EntryRun) -> bool:
        return False

    def take_unconfirmed(self) -> list[EntryRun]:
        return self.writer.take_unconfirmed()

    def _is_idle(self) -> bool:
        return self.writer.is_idle

    async def seal(self) -> None:
        await super().seal()
        self.writer.seal()

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(slot, bookie_id, run, confirmed, length, stripe):
                    bookie = self._bookies[bookie_id]
                    bookie.add_run(self, slot, run, confirmed, length, self.add_flags, stripe)
                case Confirm(run):
                    self.listener.on_run_confirmed(run)
                case FindBookies():
                    self._spawn(self._find_bookies(action))
                case WriteMetadata(metadata, version):
                    self._spawn(self._write_metadata(metadata, version))
                case ReadMetadata():
                    self._spawn(self._read_metadata())
                case Fail(error):
                    self._stop_timer()
                    self._fail(error)
        self._check_drained()

    # --- ensemble changes ---------------------------------------------------------------------

    async def _find_bookies(self, wanted: FindBookies) -> None:
        found = self._find(wanted)
        log.warning(
            "bookies of a ledger failed",
            ledger=self.ledger_id,
            failed=", ".join(wanted.ensemble[index] for index in sorted(wanted.indexes)),
            replacements=", ".join(found.values()) or "none",
        )
        self._perform(self.writer.on_bookies_found(found))
        if self.writer.absent and not found and self.failure is None:
            asyncio.get_running_loop().call_later(RETRY_S, self._retry)

    def give_up(self, error: LedgerError) -> None:
        """Stop all work on the ledger."""
        self._perform(self.writer.give_up(error))

    def _retry(self) -> None:
        self._perform(self.writer.retry())

    async def _write_metadata(self, metadata: LedgerMetadata, version: int) -> None:
        while self.failure is None:
            try:
                result = await self._metadata.update(self.ledger_id, metadata, version)
            except (BadVersion, NotFound):
                self._perform(self.writer.on_metadata_lost())
                return
            except Unavailable as error:
                log.warning("bookies are not replaced yet", ledger=self.ledger_id, error=error)
                await asyncio.sleep(RETRY_S)
                continue
            self._metadata.ensemble_changes += 1
            actions = self.writer.on_metadata_written(result.version)
            self._note_metadata()
            self._perform(actions)
            return

    async def _read_metadata(self) -> None:
        while self.failure is None:
            try:
                found = await self._metadata.read(self.ledger_id)
            except NotFound:
                self._perform(self.writer.on_metadata_read(None))
                return
            except Unavailable as error:
                log.warning("metadata cannot be read yet", ledger=self.ledger_id, error=error)
                await asyncio.sleep(RETRY_S)
                continue
            actions = self.writer.on_metadata_read(found)
            self._note_metadata()
            self._perform(actions)
            return

    def _note_metadata(self) -> None:
        writer = self.writer
        self.in_metadata = (writer.metadata, writer.version)
        self.segments = segments_of(writer.metadata.ensembles, self._bookies, self.ledger_id)

    # --- bookies that do not answer -----------------------------------------------------------

    def _check_progress(self) -> None:
        """Report the bookies that have kept the oldest unconfirmed entry waiting."""
        self._timer = None
        oldest = self.pending.first
        if self.failure is not None or self.pending.pending == 0:
            return
        if oldest == self._waits_for and self.writer.change is None:
            for slot in self.writer.silent_slots(oldest, self._slots):
                self._fail_slot(slot, oldest, TIMED_OUT)
        self._set_timer(self._add_timeout_s, self._check_progress)

    def _set_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        self._waits_for = self.pending.first
        self._slots = self.writer.next_slot
        self._timer = asyncio.get_running_loop().call_later(delay_s, call)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            reference = log.failure("a ledger's bookies could not be replaced", error)
            self.give_up(LedgerError(f"ledger {self.ledger_id} failed (reference {reference})"))
