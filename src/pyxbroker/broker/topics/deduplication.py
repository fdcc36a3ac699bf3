"""Deduplication: what a producer sends again is answered and not stored twice.

Of each producer's name the highest sequence id is known. It is kept in a snapshot, the properties
of a cursor of the topic's own (`pulsar.dedup`), at whose mark they hold; opening the topic adds
what the entries behind that say. The cursor keeps what would be read then, and no more: a snapshot
is taken every so many entries, now and then, and when a ledger has come to its end. Mirrors
Pulsar's MessageDeduplication.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Protocol

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

NOWHERE = Position(-1, -1)  # where a duplicate is, as its client is told
SNAPSHOT_BYTES_MAX = 512 << 10  # of names; those that are connected, or left last, are in it
NAME_BYTES = 12  # of a snapshot, besides the name
ENTRIES_PER_NAME = 10  # between two snapshots at least: each writes all names
LOOKED_AT_MAX = 8  # names of connected producers that are passed over for one to be forgotten
NAMES_PER_STEP = 1000
RETRY_MIN_S = 1.0  # until a change of the policy that failed is tried again; then twice as long
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

    The last publish step. Without other steps it needs no chain (see `publisher`).
    """

    order = StepOrder.DEDUPLICATION

    def __init__(
        self, topic: DeduplicatedTopic, managed_ledger: ManagedLedger, limits: DeduplicationLimits
    ) -> None:
        self._topic = topic
        self._log = managed_ledger
        self._limits = limits
        self._ids: dict[str, SequenceIds] = {}  # who left last, or has just come, is behind
        self._cursor: Cursor | None = None
        self._ledger_id, self._entry_id = NOWHERE  # see _position
        self._snapshot_at = NOWHERE
        self._snapshot_s = topic.loop.time()  # when it was taken
        self._entries = 0  # since then
        self._entries_due = limits.entries_interval  # for the next one
        self._begun_s = -math.inf  # when the last one was asked for by entries
        self._task: asyncio.Task[None] | None = None

    # --- coming and going ---------------------------------------------------------------------

    async def open(self) -> None:
        """Learns what is stored, from the snapshot and what comes behind it.

        What is stored while this runs is known as well when it returns, if nobody else has a turn
        before on_confirmed is called. Raises LedgerError, MetadataError.
        """
        cursor = await self._open_cursor()
        self._cursor = cursor
        self._snapshot_at = cursor.acks.mark_delete
        self._note_position(self._snapshot_at)
        # The newest were written first.
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
            # What it said is lost; nothing that is still stored is.
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
        """Nothing is known any more, nor kept for it. Raises MetadataError."""
        await self.settle()
        if self._cursor is not None:
            await self._cursor.delete()

    async def settle(self) -> None:
        """Waits for a snapshot that is being written."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def prepare_close(self) -> None:
        """The topic is about to be closed, and its cursors with it: who opens it next finds all
        that is known now.
        """
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
            if (self._ids.get(name) or self._of(name)).take(run):
                append(run)
            else:
                self._publish_rest(run, append)

        return publish

    def _publish_rest(self, run: EntryRun, append: Callable[[EntryRun], None]) -> None:
        """Append those SENDs of a run that are not stored yet."""
        publication = Publication(run)
        self.check(publication)
        publication.producer.publish_rest(publication, append)

    def check(self, publication: Publication) -> None:
        """Answers what is stored already, and refuses what may still fail.

        What its producer has sent behind that is refused, too: it sends all of it again, and the
        order has to stay. So it is sent away.
        """
        producer, run = publication.producer, publication.run
        ids = self._of(producer.name)
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
            self._send_away(producer)

    def _of(self, name: str) -> SequenceIds:
        ids = self._ids.get(name)
        if ids is None:
            ids = self._ids[name] = SequenceIds()
            ids.last_seen = self._topic.loop.time()
            if len(self._ids) > self._limits.producers_max:
                self._forget_one()
        return ids

    def _forget_one(self) -> None:
        """Forgets one of those that came first and are not connected."""
        for _ in range(LOOKED_AT_MAX):
            name = next(iter(self._ids))
            ids = self._ids.pop(name)
            if name not in self._topic.producers and ids.pushed == ids.persisted:
                return
            self._ids[name] = ids

    def confirming(self, listen: Callable[[EntryRun], None] | None) -> Callable[[EntryRun], None]:
        """What a log calls for each run, where others may listen, too."""
        if listen is None:
            return self.on_confirmed
        others = listen

        def on_run(run: EntryRun) -> None:
            self.on_confirmed(run)
            others(run)

        return on_run

    def on_confirmed(self, run: EntryRun) -> None:
        """A run is stored. Called for each, so it makes no objects."""
        name = getattr(run.owner, "name", None)
        if name is not None:
            ids = self._ids.get(name) or self._of(name)
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
            self._begin_in_time()

    def _begin_in_time(self) -> None:
        """No cursor is written more often than its rate says: a topic that is published to as fast
        as it goes would ask for hundreds of snapshots in a second.
        """
        now = self._topic.loop.time()
        rate = self._log.limits.mark_delete_per_s
        if rate <= 0 or now - self._begun_s >= 1 / rate:
            self._begun_s = now
            self.begin_snapshot()
        else:
            self._entries_due = self._entries + self._limits.entries_interval

    def on_left(self, name: str) -> None:
        """A producer is not connected any more: of those its name is forgotten last."""
        ids = self._ids.pop(name, None)
        if ids is not None:
            ids.last_seen = self._topic.loop.time()
            self._ids[name] = ids

    @property
    def _position(self) -> Position:
        """Up to here the ids are those of what is stored."""
        return Position(self._ledger_id, self._entry_id)

    def _note_position(self, position: Position) -> None:
        self._ledger_id, self._entry_id = position

    def on_failed(self, producer: Producer) -> None:
        """Something of a producer will never be stored. What it has sent behind that must not be:
        the same would be taken for a duplicate when it is sent again.
        """
        ids = self._of(producer.name)
        ids.has_failed = True
        self._reset_if_idle(producer, ids)
        self._send_away(producer)

    def _reset_if_idle(self, producer: Producer, ids: SequenceIds) -> None:
        now = self._topic.producers.get(producer.name)
        if producer.pending_sends == 0 and (now is None or now.pending_sends == 0):
            ids.reset()

    def _send_away(self, producer: Producer) -> None:
        # What comes behind it is not looked at any more, also of what this turn has read already.
        producer.forget()

        def send_away() -> None:
            if not producer.closed:
                self._topic.close_producer(producer)

        self._topic.turn.at_end(send_away)

    def last_sequence_id(self, name: str) -> int:
        """What a producer of that name has sent last; -1: nobody knows."""
        ids = self._ids.get(name)
        return -1 if ids is None or ids.pushed == NO_SEQUENCE_ID else ids.pushed

    # --- snapshots ----------------------------------------------------------------------------

    async def look(self) -> None:
        """Called now and then: takes a snapshot where that is due. Raises what it met."""
        interval_s = self._topic.policies.deduplication_snapshot_s
        is_due = interval_s > 0 and self._topic.loop.time() - self._snapshot_s >= interval_s
        if is_due and self._position > self._snapshot_at:
            self.begin_snapshot()
        await self.settle()

    async def forget_inactive(self) -> None:
        """Called now and then: names that nobody was connected with for long are forgotten."""
        now = self._topic.loop.time()
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
        """Takes one, unless one is being written; the next one is due later then."""
        if self._task is None and self._cursor is not None and not self._topic.fenced:
            self._task = asyncio.get_running_loop().create_task(self._snapshot(self._cursor))
            self._task.add_done_callback(self._on_snapshot)

    async def snapshot(self) -> None:
        """One that has all that is stored now, where there is more than in the last one."""
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
        """The cursor's state is that of now."""
        if cursor.kept_after is None:
            # What is behind the state that is stored is kept until this one is.
            cursor.kept_after = cursor.acks.mark_delete
        cursor.put_state(self._position, self._newest())
        self._snapshot_at = self._position
        self._snapshot_s = self._topic.loop.time()
        self._entries = 0
        self._entries_due = max(self._limits.entries_interval, ENTRIES_PER_NAME * len(self._ids))

    def _newest(self) -> dict[str, int]:
        """What a snapshot has room for: of those that are connected, and of who left last."""
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
            # The log says why the cursor was not written. More is read at the next opening.
            log.warning("a snapshot was not taken", topic=self._topic.name, error=error)
        elif error is not None:
            log.failure("a snapshot was not taken", error, topic=self._topic.name)


# --- as the policy says ---------------------------------------------------------------------------


async def check(topic: DeduplicatedTopic, managed_ledger: ManagedLedger) -> None:
    """Begins, or ends, what the policy of a topic wants. Raises LedgerError, MetadataError: then it
    is as it was.
    """
    if managed_ledger.write_failure is not None:
        # Nothing can be sent, and nothing be noted.
        return
    now = topic.deduplication
    # Nobody sends anything to a topic that has come to its end: nothing is kept for it.
    is_wanted = topic.policies.deduplication and not managed_ledger.is_terminated
    if is_wanted and now is None:
        deduplication = Deduplication(topic, managed_ledger, topic.broker_limits.deduplication)
        await deduplication.open()
        # Nothing was confirmed since the last entry that it has read.
        topic.set_deduplication(deduplication)
    elif not is_wanted and now is not None:
        topic.set_deduplication(None)
        await now.delete()
    elif not is_wanted:
        cursor = managed_ledger.cursors.get(DEDUPLICATION_CURSOR)
        if cursor is not None:
            await cursor.delete()


class Switch:
    """Keeps the deduplication of an open topic as its policy says, which may change at any time.

    What the storage or the metadata refuses is tried again, later each time, until the policy is in
    force or the topic closes.
    """

    def __init__(self, topic: DeduplicatedTopic, managed_ledger: ManagedLedger) -> None:
        self._topic = topic
        self._log = managed_ledger
        self._task: asyncio.Task[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_MIN_S
        self._is_closed = False

    def check_soon(self) -> None:
        """The policy has changed."""
        if self._task is not None or self._is_closed:
            # Who looks does so until nothing has changed.
            return
        self._forget_timer()
        self._task = self._topic.loop.create_task(self._check())
        self._task.add_done_callback(self._on_checked)

    async def close(self) -> None:
        """Nothing is tried again; what is under way is over when this returns."""
        self._is_closed = True
        self._forget_timer()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _check(self) -> bool:
        """Whether the policy is in force, as far as that can be."""
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
                    "deduplication stays as it was for now",
                    topic=topic.name,
                    error=error,
                    again_in_s=self._retry_s,
                )
            except Exception as error:
                # Nor would it go better the next time.
                log.failure("deduplication stays as it was", error, topic=topic.name)
        # Of a topic that is about to go nothing is changed, but it may stay after all.
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
            # It is about to go, and may stay after all.
            self._timer = self._topic.loop.call_later(RETRY_MAX_S, self._on_time)
        else:
            self.check_soon()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
