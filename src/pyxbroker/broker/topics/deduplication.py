"""Deduplication: a message that a producer sends again is acknowledged but not stored twice.

The broker knows the highest sequence id of each producer name. Snapshots of these ids are stored as
properties of a cursor (`pulsar.dedup`); they are valid for the entries up to its mark-delete
position. When the topic is opened, the ids of later entries are added by reading them. The cursor
retains only these entries: a snapshot is taken after a number of entries, at intervals, and when a
ledger is full. Mirrors Pulsar's MessageDeduplication.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.clock import age_s
from pyxbroker.base.errors import PersistenceError, PulsarError
from pyxbroker.base.limits import PRODUCER_BYTES_MAX
from pyxbroker.base.log import get_logger
from pyxbroker.base.system_cursors import DEDUPLICATION_CURSOR
from pyxbroker.broker.broker_limits import DeduplicationLimits
from pyxbroker.broker.dispatch.interfaces import DispatchedTopic
from pyxbroker.broker.topics.log_reader import read_batches
from pyxbroker.broker.topics.publish_steps import (
    Publication,
    PublishChain,
    PublishStep,
    StepOrder,
)
from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.cursor import Cursor, CursorError
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.opening import delete_unreadable_cursor
from pyxbroker.sequence_ids import (
    IS_DUPLICATE,
    IS_UNKNOWN,
    NO_SEQUENCE_ID,
    SequenceIds,
    collect_highest,
)

if TYPE_CHECKING:
    from pyxbroker.broker.topics.producer import Producer
    from pyxbroker.mledger.managed_ledger import ManagedLedger

log = get_logger("pyxbroker.topic")

NOWHERE = Position(-1, -1)  # the position in the receipt of a duplicate
SNAPSHOT_BYTES_MAX = 512 << 10  # of names; connected producers and the last that left come first
NAME_BYTES = 12  # of a snapshot for each name, in addition to the name
ENTRIES_PER_NAME = 10  # between two snapshots at least: each writes all names
FORGET_CHECKS_MAX = 8  # names that are checked to find one that may be forgotten
NAMES_PER_STEP = 1000
RETRY_MIN_S = 1.0  # first delay before a failed policy change is retried; it doubles each time
RETRY_MAX_S = 60.0

Errors = (PulsarError, LedgerError, ManagedLedgerError, MetadataError, CursorError)


class DeduplicatedTopic(DispatchedTopic, Protocol):
    """The topic of a deduplication (persistent.py)."""

    producers: dict[str, Producer]
    fenced: bool
    deduplication: Deduplication | None

    @property
    def is_gone(self) -> bool: ...
    def set_deduplication(self, deduplication: Deduplication | None) -> None: ...
    def close_producer(self, producer: Producer) -> None: ...


class Deduplication:
    """The sequence ids of one topic, created when a policy asks for it, and closed with the topic.

    The last publish step. If it is the only step, it needs no PublishChain (see `publisher`).
    """

    order = StepOrder.DEDUPLICATION

    def __init__(
        self, topic: DeduplicatedTopic, managed_ledger: ManagedLedger, limits: DeduplicationLimits
    ) -> None:
        self._topic = topic
        self._log = managed_ledger
        self._limits = limits
        self._ids: dict[str, SequenceIds] = {}  # ordered by when the producer came or left
        self._cursor: Cursor | None = None
        self._ledger_id, self._entry_id = NOWHERE  # see _position
        self._snapshot_at = NOWHERE
        self._snapshot_s = age_s()  # time of the last snapshot
        self._entries = 0  # since the last snapshot
        self._entries_due = limits.entries_interval  # entries after which the next one is due
        self._begun_s = -math.inf  # time of the last snapshot that entries triggered
        self._task: asyncio.Task[None] | None = None

    # --- opening and closing ------------------------------------------------------------------

    async def open(self) -> None:
        """Read the stored sequence ids, from the snapshot and the entries after it.

        Entries that are stored while this runs are included. The caller must call on_confirmed for
        later ones, and must not await before that. Raises LedgerError, MetadataError.
        """
        cursor = await self._open_cursor()
        self._cursor = cursor
        self._snapshot_at = cursor.acks.mark_delete
        self._note_position(self._snapshot_at)
        # A snapshot has the newest names first.
        newest = cursor.position_properties.items()
        found = {name.encode(): value for name, value in reversed(newest)}
        start = self._log.next_position(self._snapshot_at)
        async for batch in read_batches(self._log, start, "sequence ids"):
            collect_highest(batch, found, PRODUCER_BYTES_MAX)
            self._entries += len(batch)
            self._note_position(Position(batch.ledger_id, batch.entry_id(len(batch) - 1)))
            self._forget_oldest(found)
            await asyncio.sleep(0)
        now = self._topic.loop.time()
        for name, value in found.items():
            ids = self._ids[name.decode(errors="replace")] = SequenceIds(value)
            ids.last_seen = now

    def _forget_oldest(self, found: dict[bytes, int]) -> None:
        while len(found) > self._limits.producers_max:
            del found[next(iter(found))]

    async def _open_cursor(self) -> Cursor:
        name = DEDUPLICATION_CURSOR
        if name in self._log.unreadable:
            # The snapshot is lost. Entries that are still stored are read from the first one on.
            log.error("the snapshot of sequence ids cannot be read", topic=self._topic.name)
            await delete_unreadable_cursor(self._log, name)
            return await self._make_cursor(self._log.first_position())
        found = self._log.cursors.get(name)
        if found is not None:
            await found.created()
            return found
        return await self._make_cursor(self._log.last_confirmed)

    async def _make_cursor(self, mark: Position) -> Cursor:
        cursor = Cursor(self._log, DEDUPLICATION_CURSOR, mark)
        self._log.cursors[cursor.name] = cursor
        try:
            await cursor.create_node()
        except BaseException:
            self._log.cursors.pop(cursor.name, None)
            raise
        return cursor

    async def delete(self) -> None:
        """Delete the cursor with its snapshot. Raises MetadataError."""
        await self.settle()
        if self._cursor is not None:
            await self._cursor.delete()

    async def settle(self) -> None:
        """Wait for a snapshot that is being written."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def prepare_close(self) -> None:
        """Put the current ids into the cursor, which is written when the topic is closed."""
        cursor = self._cursor
        if cursor is not None and self._position > self._snapshot_at and not cursor.closed:
            self._put_snapshot(cursor)

    # --- publishing ---------------------------------------------------------------------------

    def publisher(
        self, steps: Sequence[PublishStep], append: Callable[[EntryRun], None]
    ) -> Callable[[EntryRun], None]:
        """Return the publish function of a topic that has these steps before this one."""
        if steps:
            return PublishChain((*steps, self), append).publish

        def publish(run: EntryRun) -> None:
            name = run.owner.name
            if (self._ids.get(name) or self._ids_of(name)).take(run):
                append(run)
            else:
                self._publish_undecided(run, append)

        return publish

    def _publish_undecided(self, run: EntryRun, append: Callable[[EntryRun], None]) -> None:
        """Append the SENDs of a run that are not stored yet."""
        publication = Publication(run)
        self.check(publication)
        publication.producer.publish_undecided(publication, append)

    def check(self, publication: Publication) -> None:
        """Answer SENDs that are stored already, and refuse SENDs that are pending elsewhere.

        A pending SEND may still fail. All later SENDs of the run are refused too, to preserve the
        order, and the producer is disconnected. Its client reconnects and sends them again.
        """
        producer, run = publication.producer, publication.run
        ids = self._ids_of(producer.name)
        unknown: PersistenceError | None = None
        for index in publication.undecided:
            kind = IS_UNKNOWN if unknown is not None else ids.classify(run, index)
            if kind == IS_DUPLICATE:
                publication.answer(index, NOWHERE)
            elif kind == IS_UNKNOWN:
                unknown = unknown or PersistenceError(
                    f"[{self._topic.name}][{producer.name}]Cannot determine whether the message is"
                    " a duplicate at this time"
                )
                publication.refuse(index, unknown)
        if unknown is not None:
            self._disconnect(producer)

    def _ids_of(self, name: str) -> SequenceIds:
        ids = self._ids.get(name)
        if ids is None:
            ids = self._ids[name] = SequenceIds()
            ids.last_seen = age_s()
            if len(self._ids) > self._limits.producers_max:
                self._forget_one()
        return ids

    def _forget_one(self) -> None:
        """Forget one of the oldest names that no connected producer has."""
        for _ in range(FORGET_CHECKS_MAX):
            name = next(iter(self._ids))
            ids = self._ids.pop(name)
            if name not in self._topic.producers and ids.pushed == ids.persisted:
                return
            self._ids[name] = ids

    def confirm_function(
        self, listen: Callable[[EntryRun], None] | None
    ) -> Callable[[EntryRun], None]:
        """Return the function that the log calls for each run: on_confirmed, then `listen`."""
        if listen is None:
            return self.on_confirmed
        others = listen

        def on_run(run: EntryRun) -> None:
            self.on_confirmed(run)
            others(run)

        return on_run

    def on_confirmed(self, run: EntryRun) -> None:
        """Take note of a stored run. This is called for each run, so it creates no objects."""
        name = getattr(run.owner, "name", None)
        if name is not None:
            ids = self._ids.get(name) or self._ids_of(name)
            ids.confirm(run)
            if ids.has_failed:
                self._reset_if_idle(run.owner, ids)
        before = self._ledger_id
        self._ledger_id = run.ledger_id
        self._entry_id = run.last_entry_id
        self._entries += run.count
        if before != self._ledger_id:
            self.begin_snapshot()
        elif self._entries >= self._entries_due:
            self._begin_within_rate()

    def _begin_within_rate(self) -> None:
        """Begin a snapshot unless that exceeds the rate of cursor writes, else defer it.

        A topic with a high publish rate would trigger hundreds of snapshots in a second.
        """
        now = self._topic.loop.time()
        rate = self._log.limits.mark_delete_per_s
        if rate <= 0 or now - self._begun_s >= 1 / rate:
            self._begun_s = now
            self.begin_snapshot()
        else:
            self._entries_due = self._entries + self._limits.entries_interval

    def on_left(self, name: str) -> None:
        """Move the name of a producer that has disconnected to the end: it is forgotten last."""
        ids = self._ids.pop(name, None)
        if ids is not None:
            ids.last_seen = age_s()
            self._ids[name] = ids

    def is_undecided(self, producer: Producer) -> bool:
        """Return True if SENDs of an earlier connection of a producer's name are neither stored nor
        failed: the same ids are refused until then.
        """
        ids = self._ids.get(producer.name)
        return ids is not None and ids.pushed > ids.persisted and not producer.pending_sends

    @property
    def _position(self) -> Position:
        """The position of the last entry that the ids include."""
        return Position(self._ledger_id, self._entry_id)

    def _note_position(self, position: Position) -> None:
        self._ledger_id, self._entry_id = position

    def on_failed(self, producer: Producer) -> None:
        """Take note that a SEND of a producer was not stored, and disconnect the producer.

        Later SENDs must not be stored either: the failed one would be taken for a duplicate when
        the client sends it again.
        """
        ids = self._ids_of(producer.name)
        ids.has_failed = True
        self._reset_if_idle(producer, ids)
        self._disconnect(producer)

    def _reset_if_idle(self, producer: Producer, ids: SequenceIds) -> None:
        now = self._topic.producers.get(producer.name)
        if producer.pending_sends == 0 and (now is None or now.pending_sends == 0):
            ids.reset()

    def _disconnect(self, producer: Producer) -> None:
        # Drop all later SENDs, including those that this loop iteration has read already.
        producer.forget()

        def disconnect() -> None:
            if not producer.closed:
                self._topic.close_producer(producer)

        self._topic.turn.at_end(disconnect)

    def last_sequence_id(self, name: str) -> int:
        """Return the last sequence id that a producer of that name has sent, -1 if unknown."""
        ids = self._ids.get(name)
        return -1 if ids is None or ids.pushed == NO_SEQUENCE_ID else ids.pushed

    # --- snapshots ----------------------------------------------------------------------------

    async def snapshot_if_due(self) -> None:
        """Take a snapshot if one is due. The broker calls this at intervals."""
        interval_s = self._topic.policies.deduplication_snapshot_s
        is_due = interval_s > 0 and age_s() - self._snapshot_s >= interval_s
        if is_due and self._position > self._snapshot_at:
            self.begin_snapshot()
        await self.settle()

    async def forget_inactive(self) -> None:
        """Forget names that no producer has used for long. The broker calls this at intervals."""
        now = age_s()
        names = list(self._ids)
        is_less = False
        for number, name in enumerate(names, start=1):
            ids = self._ids.get(name)
            if ids is not None and (name in self._topic.producers or ids.pushed != ids.persisted):
                ids.last_seen = now
            elif ids is not None and now - ids.last_seen >= self._limits.inactive_s:
                del self._ids[name]
                is_less = True
            if number % NAMES_PER_STEP == 0:
                await asyncio.sleep(0)
        if is_less:
            self.begin_snapshot()
            await self.settle()

    def begin_snapshot(self) -> None:
        """Begin a snapshot, unless one is being written."""
        if self._task is None and self._cursor is not None and not self._topic.fenced:
            self._task = asyncio.get_running_loop().create_task(self._snapshot(self._cursor))
            self._task.add_done_callback(self._on_snapshot)

    async def snapshot(self) -> None:
        """Take a snapshot that includes all stored entries, unless the last one does."""
        await self.settle()
        if self._position > self._snapshot_at:
            self.begin_snapshot()
            await self.settle()

    async def _snapshot(self, cursor: Cursor) -> None:
        self._put_snapshot(cursor)
        await cursor.persist()
        cursor.kept_after = None
        self._log.trim()

    def _put_snapshot(self, cursor: Cursor) -> None:
        """Put the current ids into the cursor."""
        if cursor.kept_after is None:
            # Entries after the stored state must be retained until the new state is stored.
            cursor.kept_after = cursor.acks.mark_delete
        cursor.put_state(self._position, self._ids_to_store())
        self._snapshot_at = self._position
        self._snapshot_s = age_s()
        self._entries = 0
        self._entries_due = max(self._limits.entries_interval, ENTRIES_PER_NAME * len(self._ids))

    def _ids_to_store(self) -> dict[str, int]:
        """Return the ids that fit into a snapshot: connected producers first, then the last that
        left.
        """
        room = SNAPSHOT_BYTES_MAX
        found: dict[str, int] = {}
        for name in chain(self._topic.producers, reversed(self._ids)):
            ids = self._ids.get(name)
            if ids is None or ids.persisted == NO_SEQUENCE_ID or name in found:
                continue
            room -= len(name.encode()) + NAME_BYTES
            if room < 0 or len(found) == self._limits.producers_max:
                break
            found[name] = ids.persisted
        return found

    def _on_snapshot(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Errors):
            # The log has the reason. The next opening of the topic reads more entries.
            log.warning("a snapshot was not taken", topic=self._topic.name, error=error)
        elif error is not None:
            log.failure("a snapshot was not taken", error, topic=self._topic.name)


# --- following the policy -------------------------------------------------------------------------


async def check(topic: DeduplicatedTopic, managed_ledger: ManagedLedger) -> None:
    """Begin or end deduplication as the policy of a topic requires.

    Raises LedgerError, MetadataError; nothing has changed then.
    """
    if managed_ledger.write_failure is not None:
        # No message can be published, and no snapshot be stored.
        return
    now = topic.deduplication
    # No messages are published to a terminated topic, so it needs no sequence ids.
    is_wanted = topic.policies.deduplication and not managed_ledger.is_terminated
    if is_wanted and now is None:
        deduplication = Deduplication(topic, managed_ledger, topic.broker_limits.deduplication)
        await deduplication.open()
        # No await since open() has read the last entry, so no confirmed run was missed.
        topic.set_deduplication(deduplication)
    elif not is_wanted and now is not None:
        topic.set_deduplication(None)
        await now.delete()
    elif not is_wanted:
        cursor = managed_ledger.cursors.get(DEDUPLICATION_CURSOR)
        if cursor is not None:
            await cursor.delete()


class DeduplicationSwitch:
    """Begins and ends the deduplication of an open topic when its policy changes.

    A change that the storage or the metadata store refuses is retried with increasing delays, until
    it succeeds or the topic closes.
    """

    def __init__(self, topic: DeduplicatedTopic, managed_ledger: ManagedLedger) -> None:
        self._topic = topic
        self._log = managed_ledger
        self._task: asyncio.Task[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_MIN_S
        self._is_closed = False

    def check_soon(self) -> None:
        """Begin to apply a changed policy."""
        if self._task is not None or self._is_closed:
            # The running task checks again until the policy is unchanged.
            return
        self._forget_timer()
        self._task = self._topic.loop.create_task(self._check())
        self._task.add_done_callback(self._on_checked)

    async def close(self) -> None:
        """Cancel retries, and wait for a running check."""
        self._is_closed = True
        self._forget_timer()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _check(self) -> bool:
        """Apply the policy until it is unchanged. Return False if that has to be retried."""
        topic = self._topic
        wanted, is_done = None, True
        while wanted != topic.policies.deduplication and not topic.fenced:
            wanted = topic.policies.deduplication
            is_done = True
            try:
                await check(topic, self._log)
            except Errors as error:
                is_done = False
                log.error(
                    "deduplication was not changed yet",
                    topic=topic.name,
                    error=error,
                    again_in_s=self._retry_s,
                )
            except Exception as error:
                # A defect: a retry would fail as well.
                log.failure("deduplication was not changed", error, topic=topic.name)
        # A fenced topic was not changed. If its closing is abandoned, a retry has to change it.
        return is_done and wanted == topic.policies.deduplication

    def _on_checked(self, task: asyncio.Task[bool]) -> None:
        self._task = None
        if task.cancelled() or task.result():
            self._retry_s = RETRY_MIN_S
        elif not self._is_closed:
            self._timer = self._topic.loop.call_later(self._retry_s, self._on_time)
            self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)

    def _on_time(self) -> None:
        self._timer = None
        if self._topic.is_gone:
            return
        if self._topic.fenced:
            # The topic is being closed or deleted, which may be abandoned.
            self._timer = self._topic.loop.call_later(RETRY_MAX_S, self._on_time)
        else:
            self.check_soon()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
