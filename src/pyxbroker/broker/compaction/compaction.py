"""Compaction of a topic: copies the latest message of each key to a new ledger.

A compaction has two phases. Both read the current compacted ledger and the log after it, up to the
entry that is last at the start. The first phase finds the latest message of each key
(compaction.pyx stores them compactly). The second phase copies their entries.

After the new ledger is closed, one write of the cursor `__compaction` makes it the current one, and
moves the mark, which is the horizon. Then the previous ledger is deleted. Long computations run in
threads without the GIL. Mirrors Pulsar's AbstractTwoPhaseCompactor.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pyxbroker.base.errors import PulsarError, ServiceNotReady
from pyxbroker.base.log import get_logger
from pyxbroker.base.run_to_completion import run_to_completion
from pyxbroker.base.system_cursors import COMPACTION
from pyxbroker.broker.compaction.compacted import CompactedLedger, open_compacted
from pyxbroker.broker.compaction.packed_batches import unpack, with_messages
from pyxbroker.compaction import (
    BLOCK_BYTES,
    KEY_PARTS,
    LatestMessages,
    TooManyMessages,
    compressed_payload,
    record,
    unwrap,
)
from pyxbroker.entry import EntryBatch, EntryRun, Position
from pyxbroker.ledger.errors import EntryDamaged, LedgerError, NoSuchEntry
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.retries import Retries
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger import compacted_ledger
from pyxbroker.mledger.compacted_ledger import LEDGER_PROPERTY
from pyxbroker.mledger.cursor import CursorClosed, CursorError
from pyxbroker.mledger.errors import ManagedLedgerError, ManagedLedgerNotReady

if TYPE_CHECKING:
    from pyxbroker.broker.broker_limits import CompactionLimits
    from pyxbroker.broker.compaction.compacted import CompactedTopic
    from pyxbroker.mledger.managed_ledger import ManagedLedger

log = get_logger("pyxbroker.topic")

T = TypeVar("T")

ENTRIES_PER_READ = 2048
BYTES_PER_READ = 2 << 20
BYTES_PER_RUN = 512 << 10
BYTES_PENDING_MAX = 4 << 20  # being written
KEYS_BYTES_MAX = 64 << 20  # records in memory; more are spilled to a file
LOST_MAX = 1_000  # lost entries that may be left out; with more the compaction fails
BATCH_BYTES_MIN = 5 << 20  # batches up to this size are unpacked, whatever the maximum message size

Errors = (
    *(PulsarError, LedgerError, ManagedLedgerError, MetadataError, CursorError),
    *(OSError, MemoryError, TooManyMessages),
)


class Status(enum.Enum):
    """Status in REST (LongRunningProcessStatus)."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


class CompactionFailed(Exception):
    """Raised if the entries of the topic prevent a compaction."""


class CompactionOvertaken(CompactionFailed):
    """Raised if entries were deleted while they were being compacted."""


OVERTAKEN = (CompactionOvertaken, ServiceNotReady, ManagedLedgerNotReady, CursorClosed)
"""The topic was truncated or closed meanwhile; a later compaction uses its new state."""


class Compaction:
    """The compactions of one loaded topic; they run one at a time."""

    def __init__(
        self, topic: CompactedTopic, managed_ledger: ManagedLedger, limits: CompactionLimits
    ) -> None:
        self.status = Status.NOT_RUN
        self.last_error = ""
        self.removed = 0  # messages removed by the last successful one
        self.succeeded = 0  # number of successful compactions
        self.failed = 0
        self.succeeded_ms = 0  # time of the last successful one; 0: none
        self.failed_ms = 0
        self.duration_ms = 0  # of the last one
        self._topic = topic
        self._log = managed_ledger
        self._limits = limits
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True if a compaction runs, or waits for those of other topics."""
        return self._task is not None

    def begin(self) -> None:
        """Start a compaction, unless one runs."""
        if self._task is None:
            self.status = Status.RUNNING
            self._task = self._topic.loop.create_task(self._compact())
            self._task.add_done_callback(self._on_done)

    async def settle(self) -> None:
        """Wait for the running compaction."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Cancel the running compaction; the view does not change."""
        if self._task is not None:
            self._task.cancel()
            await self.settle()

    async def _compact(self) -> None:
        async with self._limits.turns:
            began = time.monotonic()
            try:
                self.removed = await _Run(self._topic, self._log, self._limits).run()
            finally:
                self.duration_ms = int((time.monotonic() - began) * 1000)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        now_ms = int(self._topic.wall_clock() * 1000)
        if task.cancelled():
            self.status, self.last_error = Status.ERROR, "The compaction was cancelled."
            return
        error = task.exception()
        if error is None:
            self.status, self.last_error, self.succeeded_ms = Status.SUCCESS, "", now_ms
            self.succeeded += 1
            return
        self.failed_ms = now_ms
        self.failed += 1
        self.status = Status.ERROR
        if isinstance(error, (*Errors, CompactionFailed)):
            # Errors of the metadata store may name files, so only the log has them.
            is_metadata = isinstance(error, MetadataError)
            self.last_error = "The metadata store failed." if is_metadata else str(error)
            write = log.info if isinstance(error, OVERTAKEN) else log.error
            write("a topic was not compacted", topic=self._topic.name, error=error)
        else:
            reference = log.failure("a topic was not compacted", error, topic=self._topic.name)
            self.last_error = f"The reason is in the broker's log (reference {reference})."


class _Run:
    """A compaction run."""

    def __init__(
        self, topic: CompactedTopic, managed_ledger: ManagedLedger, limits: CompactionLimits
    ) -> None:
        self._topic = topic
        self._log = managed_ledger
        self._latest = LatestMessages(secrets.token_bytes(16), limits.retains_keyless)
        self._bytes_max = max(topic.broker_limits.message_bytes_max, BATCH_BYTES_MIN)
        self._directory = limits.directory
        self._file: IO[bytes] | None = None
        self._former: CompactedLedger | None = None
        self._horizon = Position(-1, -1)  # of the previous compaction
        self._end = Position(-1, -1)  # the last entry to compact
        self._lost: set[Position] = set()  # lost entries of the log
        self._lost_records: set[int] = set()  # lost entries of the compacted ledger, by index
        self._retries = Retries(f"compacting {topic.name}")
        self._began_s = self._scanned_s = time.monotonic()

    async def run(self) -> int:
        """Compact, and return the number of removed messages. After an error the view is unchanged,
        unless it is unknown if the cursor was written.
        """
        topic = self._topic
        await topic.compaction_subscription()
        cursor = self._log.cursors[COMPACTION]
        self._former, self._horizon = topic.compacted, topic.horizon
        self._end = topic.last_readable
        # The cursor may be ahead, at the beginning of a ledger without entries.
        first = self._log.normalize(self._log.next_position(self._horizon))
        if first is None or first > self._end:
            # It may be unknown if the previous cursor write succeeded.
            await self._settle(cursor)
            return 0
        try:
            await self._scan()
            return await self._copy(cursor)
        finally:
            if self._file is not None:
                self._file.close()

    # --- reading ------------------------------------------------------------------------------

    async def _entries(self, again: bool) -> AsyncIterator[EntryBatch]:
        """Yield all entries, those of the compacted ledger first. again: the second pass, which
        skips the entries lost in the first pass, and fails on others.
        """
        former = self._former
        if former is not None:
            index = 0
            while index <= former.last_index:
                read = partial(former.read_some, index, ENTRIES_PER_READ, BYTES_PER_READ)
                batch = await self._ask(read, None, index, again)
                if batch is None:
                    index += 1
                    continue
                at = 0
                while at < len(batch):
                    if index + at in self._lost_records:
                        at += 1
                        continue
                    entries, following = unwrap(batch, at)
                    if entries is None:
                        self._note_lost(None, index + at, again)
                        following = at + 1
                    else:
                        yield entries
                    at = following
                index += len(batch)
        async for batch in self._log_entries(again):
            yield batch

    async def _log_entries(self, again: bool) -> AsyncIterator[EntryBatch]:
        position = self._log.normalize(self._log.next_position(self._horizon))
        reading: asyncio.Task[EntryBatch | None] | None = None
        try:
            while position is not None and position <= self._end:
                if reading is None:
                    reading = asyncio.ensure_future(self._read(position, again))
                batch = await reading
                reading = None
                last = (
                    position
                    if batch is None
                    else Position(batch.ledger_id, batch.entry_id(len(batch) - 1))
                )
                position = self._log.normalize((last.ledger_id, last.entry_id + 1))
                if position is not None and position <= self._end:
                    # Read ahead while this batch is processed.
                    reading = asyncio.ensure_future(self._read(position, again))
                if batch is not None:
                    for part in self._topic.without_aborted(batch):
                        yield part
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])

    async def _read(self, position: Position, again: bool) -> EntryBatch | None:
        """Read entries of one ledger from a position on. Return None if the first one is lost."""
        last = self._log.last_entry(position.ledger_id)
        if position.ledger_id == self._end.ledger_id:
            last = self._end.entry_id
        if again:
            behind = [
                each.entry_id
                for each in self._lost
                if each.ledger_id == position.ledger_id and each.entry_id >= position.entry_id
            ]
            if position.entry_id in behind:
                return None
            if behind:
                last = min(behind) - 1
        read = partial(self._log.read_some, position, ENTRIES_PER_READ, BYTES_PER_READ, last)
        return await self._ask(read, position, 0, again)

    async def _ask(
        self,
        read: Callable[[], Any],
        position: Position | None,
        index: int,
        again: bool,
    ) -> EntryBatch | None:
        try:
            found: EntryBatch = await self._retries.call(read)
        except (EntryDamaged, NoSuchEntry):
            self._note_lost(position, index, again)
            return None
        return found

    def _note_lost(self, position: Position | None, index: int, again: bool) -> None:
        """Note a lost entry. position: in the log; None: index is that of a record."""
        if position is not None and position.ledger_id not in self._log.ledgers:
            raise CompactionOvertaken("Entries were deleted while the topic was compacted.")
        is_known = index in self._lost_records if position is None else position in self._lost
        if again and not is_known:
            raise CompactionFailed("An entry was lost while the topic was compacted.")
        if not self._topic.policies.skips_lost_data:
            # An older message of its keys would appear as the latest.
            where = (
                f"Entry {position.ledger_id}:{position.entry_id}"
                if position is not None
                else f"Record {index} of the compacted ledger"
            )
            raise CompactionFailed(
                f"{where} cannot be read, and may have the newest of its keys; with"
                " autoSkipNonRecoverableData it is left out."
            )
        if position is None:
            self._lost_records.add(index)
        else:
            self._lost.add(position)
        if len(self._lost) + len(self._lost_records) > LOST_MAX:
            raise CompactionFailed(f"More than {LOST_MAX} entries cannot be read.")

    # --- the first phase ----------------------------------------------------------------------

    async def _scan(self) -> None:
        async for batch in self._entries(again=False):
            await _in_thread(self._scan_batch, batch)
        for part in range(KEY_PARTS):
            await _in_thread(self._latest.resolve, part, self._file)
        self._scanned_s = time.monotonic()
        if self._lost or self._lost_records:
            log.error(
                "entries cannot be read, and are left out of the compacted ledger",
                topic=self._topic.name,
                entries=len(self._lost),
                records=len(self._lost_records),
            )

    def _scan_batch(self, batch: EntryBatch) -> None:
        latest, at = self._latest, 0
        while (at := latest.scan(batch, at)) < len(batch):
            latest.scan_unpacked(batch, at, self._unpacked(batch, at))
            at += 1
        if latest.blocks * BLOCK_BYTES > KEYS_BYTES_MAX:
            if self._file is None:
                # Without a name, so it disappears with the process.
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 (it is closed by run)
                    dir=self._directory, buffering=0
                )
            latest.spill(self._file)

    def _unpacked(self, batch: EntryBatch, index: int) -> bytes | None:
        return unpack(*compressed_payload(batch, index), self._bytes_max)

    # --- the second phase ---------------------------------------------------------------------

    async def _copy(self, cursor: Any) -> int:
        topic = self._topic
        last = self._latest.last_position
        message_id = compacted_ledger.message_id(
            last if last.ledger_id >= 0 else self._end, topic.partition
        )
        writer = _Writer()
        try:
            await run_to_completion(self._create(writer, message_id))
            await self._write(writer)
            await writer.settle()
            await self._retries.call(partial(self._log.client.close, writer.handle))
            if cursor.closed:
                raise CompactionFailed("The compaction's subscription was deleted meanwhile.")
        except BaseException:
            if writer.is_begun:
                await run_to_completion(self._give_up(writer))
            raise
        await run_to_completion(self._finish(cursor, writer.handle.ledger_id))
        log.info(
            "a topic was compacted",
            topic=topic.name,
            messages=self._latest.messages,
            left=self._latest.kept,
            scan_s=round(self._scanned_s - self._began_s, 3),
            copy_s=round(time.monotonic() - self._scanned_s, 3),
        )
        return int(self._latest.messages - self._latest.kept)

    async def _create(self, writer: _Writer, message_id: bytes) -> None:
        topic = str(self._topic.name)
        writer.begin(await compacted_ledger.create(self._log, writer, topic, message_id))

    async def _write(self, writer: _Writer) -> None:
        self._latest.begin_selection()
        turn = self._topic.turn
        async for batch in self._entries(again=True):
            at = 0
            while at < len(batch):
                runs, at = await _in_thread(self._select, batch, at)
                for run in runs:
                    await writer.wait_for_room()
                    turn.run(writer.append, run)

    def _select(self, batch: EntryBatch, at: int) -> tuple[list[EntryRun], int]:
        """Return runs of selected entries, starting at an index, and the index after them."""
        latest, runs, size = self._latest, [], 0
        while at < len(batch) and size < BYTES_PER_RUN:
            run, at, partly = latest.select(batch, at, self._topic.partition, BYTES_PER_RUN - size)
            if run is not None:
                runs.append(run)
                size += run.bytes
            if partly:
                runs.append(self._rebuild(batch, at))
                size += runs[-1].bytes
                at += 1
        return runs, at

    def _rebuild(self, batch: EntryBatch, index: int) -> EntryRun:
        """Return a batch with only its selected messages."""
        is_packed = compressed_payload(batch, index)[0] != 0
        unpacked = self._unpacked(batch, index) if is_packed else None
        if is_packed and unpacked is None:
            raise CompactionFailed("A batch was unpacked once, and cannot be again.")
        messages, left = self._latest.rebuild(batch, index, unpacked)
        entry = with_messages(batch.data(index), messages, left)
        position = Position(batch.ledger_id, batch.entry_id(index))
        return EntryRun.of(record(position, self._topic.partition, entry))

    # --- the end ------------------------------------------------------------------------------

    async def _give_up(self, writer: _Writer) -> None:
        await writer.give_up()
        await compacted_ledger.delete(self._log, str(self._topic.name), [writer.handle.ledger_id])

    async def _finish(self, cursor: Any, ledger_id: int) -> None:
        """Make the new ledger current by one write of the cursor. Until that is durable, entries
        after the previous mark are retained.
        """
        topic = self._topic
        if cursor.kept_after is None:
            cursor.kept_after = cursor.acks.mark_delete
        properties = {**cursor.position_properties, LEDGER_PROPERTY: ledger_id}
        cursor.put_state(self._end, properties)
        try:
            await cursor.persist()
        finally:
            # If it is unknown whether the write succeeded, both ledgers are retained, and both are
            # valid. The cursor and readers continue with the new one.
            topic.set_compacted(await open_compacted(self._log), self._end)
        if topic.compacted is None or topic.compacted.ledger_id != ledger_id:
            raise CompactionFailed(f"The compacted ledger {ledger_id} cannot be read.")
        await self._settle(cursor)

    async def _settle(self, cursor: Any) -> None:
        """Make the cursor durable, and delete all other compacted ledgers."""
        await cursor.persist()
        cursor.kept_after = None
        await compacted_ledger.delete_orphans(self._log, str(self._topic.name))
        self._log.trim()


class _Writer:
    """Writes a compacted ledger, with a limit of bytes being written."""

    def __init__(self) -> None:
        self.handle: LedgerHandle
        self.is_begun = False
        self._pending_bytes = 0
        self._failure: LedgerError | None = None
        self._changed = asyncio.Event()

    def begin(self, handle: LedgerHandle) -> None:
        """Use a created ledger."""
        self.handle = handle
        self.is_begun = True

    def append(self, run: EntryRun) -> None:
        """Append a run, within a loop iteration of the Turn."""
        self._pending_bytes += run.bytes
        self.handle.append(run)

    async def wait_for_room(self) -> None:
        """Wait until another run may be appended. Raises LedgerError."""
        while self._failure is None and self._pending_bytes >= BYTES_PENDING_MAX:
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    async def settle(self) -> None:
        """Wait until everything is written. Raises LedgerError if that fails."""
        await self.handle.drain()
        # A run that was taken back is neither pending, nor a failure of the ledger.
        if self._failure is not None:
            raise self._failure

    async def give_up(self) -> None:
        """Wait until no write is in progress any more."""
        try:
            await self.handle.drain()
        except LedgerError as error:
            log.info("a compacted ledger was not written", error=error)

    def on_run_confirmed(self, run: EntryRun) -> None:
        """Note that a run has reached its ack quorum."""
        self._pending_bytes -= run.bytes
        self._changed.set()

    def on_run_taken_back(self, run: EntryRun) -> None:
        """Fail, because there is no space for a run."""
        self.on_ledger_failed(self.handle, LedgerError("there is no space for a compacted ledger"))

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        """Fail, because nothing more can be written."""
        self._failure = self._failure or error
        self._changed.set()


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run long work in a thread. A cancelled caller still waits for its end."""
    future = asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


async def create_subscription(topic: CompactedTopic) -> None:
    """Retain entries of a topic from now on, because a policy wants them compacted."""
    try:
        await topic.compaction_subscription()
    except Errors as error:
        log.warning("a topic will be compacted later", topic=topic.name, error=error)
    except Exception as error:
        log.failure("a topic will be compacted later", error, topic=topic.name)


async def open_topic(topic: CompactedTopic, managed_ledger: ManagedLedger) -> None:
    """Load the view of a compacted topic, and delete ledgers that interrupted compactions have
    left. Raises LedgerError, MetadataError.
    """
    cursor = managed_ledger.cursors.get(COMPACTION)
    if cursor is not None:
        topic.set_compacted(await open_compacted(managed_ledger), cursor.acks.mark_delete)
    if COMPACTION not in managed_ledger.unreadable and managed_ledger.write_failure is None:
        await compacted_ledger.delete_orphans(managed_ledger, str(topic.name))
