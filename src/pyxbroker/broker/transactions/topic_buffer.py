"""The transaction buffer of one topic, created with its first transaction, or with its snapshot.

buffer.py has the rules. This file connects them with the topic: SENDs of transactions, markers, the
entries that consumers receive, snapshots, and recovery. Mirrors Pulsar's TopicTransactionBuffer.

A snapshot is stored before the first message of a transaction. A topic without a snapshot therefore
has no messages of transactions, and costs nothing: it has no publish step, and its dispatchers read
the managed ledger.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyxbroker.base.errors import NotAllowed, PulsarError, ServiceNotReady, UnknownError
from pyxbroker.base.limits import TOPIC_TRANSACTIONS_MAX
from pyxbroker.base.log import get_logger
from pyxbroker.broker.dispatch.entry_source import EntrySource
from pyxbroker.broker.topics import log_reader
from pyxbroker.broker.topics.log_reader import LOST_HELP, read_batches
from pyxbroker.broker.topics.messages import write_message
from pyxbroker.broker.topics.producer import refusal_of
from pyxbroker.broker.topics.publish_steps import Publication, StepOrder
from pyxbroker.broker.topics.system_messages import PendingMessage
from pyxbroker.broker.transactions.buffer import ABORT_MARKER, COMMIT_MARKER, Buffer, Snapshot
from pyxbroker.broker.transactions.committed_source import CommittedSource
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.snapshots import Snapshots, TopicSnapshots
from pyxbroker.delivery import transactions_of
from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.errors import LedgerError, is_lost
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.errors import ManagedLedgerError, ManagedLedgerNotReady
from pyxbroker.mledger.state import State as LedgerState

if TYPE_CHECKING:
    from pyxbroker.broker.topics.producer import Producer
    from pyxbroker.broker.topics.transactional import TransactionalTopic
    from pyxbroker.mledger.managed_ledger import ManagedLedger
    from pyxbroker.settings.config import Config

log = get_logger("pyxbroker.transactions")

MARKER_PRODUCER = "pulsar.txn.marker"
DELETION_TIMEOUT_S = 5.0  # of the snapshot of a topic that is being deleted
Errors = (PulsarError, LedgerError, ManagedLedgerError, MetadataError)
Publish = Callable[[EntryRun], None]


class State(Enum):
    """The state of a transaction buffer, with the name in REST."""

    NO_SNAPSHOT = "NoSnapshot"
    FIRST_SNAPSHOTTING = "FirstSnapshotting"
    INITIALIZING = "Initializing"
    READY = "Ready"
    CLOSED = "Close"


class TransactionBuffers:
    """Creates the transaction buffers of the topics of this broker."""

    def __init__(self, config: Config, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._config = config

    async def open(self, topic: TransactionalTopic) -> TransactionBuffer | None:
        """Begin to recover the buffer of a topic that had transactions. Return None for others.

        Raises PulsarError, LedgerError, MetadataError if the snapshot cannot be read now.
        """
        found = await self._snapshots.find(topic.name)
        if found is None:
            return None
        stored, snapshot = found
        buffer = TransactionBuffer(topic, topic.managed_ledger, stored, self._config)
        buffer.recover(snapshot)
        return buffer

    def create(self, topic: TransactionalTopic) -> TransactionBuffer:
        """Return the buffer of a topic that has no transactions yet."""
        stored = self._snapshots.of(topic.name)
        return TransactionBuffer(topic, topic.managed_ledger, stored, self._config)


class TransactionBuffer:
    """The transactions of one topic. This is also a publish step and a confirm listener."""

    order = StepOrder.CHECK

    def __init__(
        self,
        topic: TransactionalTopic,
        managed_ledger: ManagedLedger,
        snapshots: TopicSnapshots,
        config: Config,
    ) -> None:
        self.state = State.NO_SNAPSHOT
        self.committed = 0  # transactions, since the topic was opened
        self.aborted = 0
        self.snapshot_ms = 0  # when the last snapshot was stored; 0: none since then
        self.recover_start_ms = 0  # since 1970; 0: nothing was recovered
        self.recover_end_ms = 0
        self.unreadable: str | None = None
        self._topic = topic
        self._log = managed_ledger
        self._snapshots = snapshots
        self._config = config
        self._buffer = Buffer()
        self._source = CommittedSource(managed_ledger, self._buffer.aborted)
        self._recovery: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: deque[EntryRun] = deque()  # until SENDs of transactions can be stored
        self._held_of: set[Producer] = set()
        self._moves = 0  # entries that were stored since the last snapshot
        self._timer: asyncio.TimerHandle | None = None  # of the next snapshot
        self._is_storing = False
        self._is_due = False  # the next snapshot follows the one that is being stored
        self._is_failing = False  # the last snapshot was not stored, and this was logged
        self._writing = asyncio.Lock()  # held while a snapshot is stored
        self._has_unstored_ends = False  # of a terminated topic: no snapshot has them yet

    # --- publishing ---------------------------------------------------------------------------

    def publish(self, run: EntryRun) -> None:
        """Publish a run with SENDs of transactions. Raises ManagedLedgerError."""
        if self.state is State.READY:
            self._topic.publish(run)
        elif self.state is State.CLOSED:
            raise ManagedLedgerNotReady("Topic is closed")
        elif self.unreadable is not None:
            self._topic.publish(run)  # `check` refuses the SENDs of transactions
        else:
            self._hold(run)
            if self.state is State.NO_SNAPSHOT:
                self.state = State.FIRST_SNAPSHOTTING
                self._spawn(self._begin())

    def _hold(self, run: EntryRun) -> None:
        run.copy_data()
        self._held.append(run)
        self._held_of.add(run.owner)
        self._topic.set_publish_gate(self._publish_or_hold)

    def _publish_or_hold(self, publish: Publish, run: EntryRun) -> None:
        """Publish a run, unless earlier SENDs of its producer are held: their order is kept."""
        if run.owner in self._held_of:
            self._hold(run)
        else:
            publish(run)

    async def _begin(self) -> None:
        """Store the first snapshot, then publish what was held."""
        try:
            await self._snapshots.store(self._buffer, self._log.last_confirmed)
        except Errors as error:
            log.warning("a first snapshot was not stored", topic=self._topic.name, error=error)
            if self.state is State.FIRST_SNAPSHOTTING:
                self.state = State.NO_SNAPSHOT
                self._topic.turn.run(
                    self._refuse_held, "The topic cannot begin transactions now; try again."
                )
            return
        self.snapshot_ms = self._now_ms()
        if self.state is State.FIRST_SNAPSHOTTING:
            self._follow()
            self._become_ready()

    def _follow(self) -> None:
        """Follow what is published, and let consumers read what is committed."""
        topic = self._topic
        topic.add_publish_step(self)
        topic.add_confirm_listener(self)
        topic.set_source(self._source)

    def _become_ready(self) -> None:
        self.state = State.READY
        self._move_limit()
        self._topic.turn.run(self._release_held)
        self._topic.wake_dispatchers()

    def _take_held(self) -> deque[EntryRun]:
        runs, self._held = self._held, deque()
        self._held_of.clear()
        self._topic.set_publish_gate(None)
        return runs

    def _release_held(self) -> None:
        for run in self._take_held():
            producer: Producer = run.owner
            if producer.closed:
                producer.refuse_run(run, ManagedLedgerNotReady("the producer was closed"))
            else:
                producer.publish(run)

    def _refuse_held(self, why: str) -> None:
        runs = self._take_held()
        while runs:
            # The newest one first, as refuse_run requires.
            run = runs.pop()
            run.owner.refuse_run(run, ManagedLedgerNotReady(why))

    def check(self, publication: Publication) -> None:
        """Refuse SENDs of transactions that have ended, or are too many."""
        buffer = self._buffer
        for index, most, least in publication.run.transactions or ():
            txn = TxnId(most, least)
            if self.unreadable is not None:
                publication.refuse(index, NotAllowed(self.unreadable))
            elif buffer.refuses(txn):
                publication.refuse(
                    index,
                    NotAllowed(
                        f"Transaction [{txn}] has been ended. Please use a new transaction to send"
                        " message."
                    ),
                )
            elif len(buffer.ongoing) >= TOPIC_TRANSACTIONS_MAX and txn not in buffer.ongoing:
                publication.refuse(
                    index,
                    NotAllowed(
                        f"Topic {self._topic.name} has messages of {TOPIC_TRANSACTIONS_MAX} open"
                        " transactions, which is the limit. End some of them first."
                    ),
                )

    def on_confirmed(self, run: EntryRun, first: Position) -> None:
        for index, most, least in run.transactions or ():
            position = Position(first.ledger_id, first.entry_id + index)
            self._buffer.on_message(TxnId(most, least), position)
        self._move_limit()
        self._note_moves(run.count)

    def _move_limit(self) -> None:
        if self.state is State.READY:
            self._source.limit = self._buffer.limit

    # --- ends of transactions -----------------------------------------------------------------

    async def end(self, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """Commit or abort a transaction; its end is durable on return.

        All transactions of the coordinator up to low_water_mark have ended. Raises PulsarError.
        """
        await self.recovered()
        if self.state is State.CLOSED:
            raise ServiceNotReady("Topic is closed")
        if self._log.is_terminated:
            await self._end_unmarked(txn, commit, low_water_mark)
            return
        if self.state is not State.READY and not commit:
            # No message of a transaction was stored yet. Those that are held will be refused.
            self._buffer.remember_end(txn, commit)
            return
        buffer = self._buffer
        if not buffer.has_ended(txn):
            await self._append_marker(txn, commit)
        buffer.raise_low_water_mark(txn.most, low_water_mark)
        while (stray := buffer.stray()) is not None:
            await self._append_marker(stray, commit=False)
        buffer.trim(self._log.first_position().ledger_id)
        if self._moves >= self._config.transactionBufferSnapshotMaxTransactionCount:
            self._store_snapshot()

    async def _end_unmarked(self, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """End a transaction on a terminated topic, whose log takes no marker: a snapshot has it.

        After a recovery, messages up to the position of the snapshot are committed, unless it lists
        their transaction as aborted. So a commit is stored after the other transactions have ended.
        """
        buffer = self._buffer
        if not buffer.has_ended(txn):
            self._end_without_marker(txn, commit)
        buffer.raise_low_water_mark(txn.most, low_water_mark)
        while (stray := buffer.stray()) is not None:
            self._end_without_marker(stray, commit=False)
        async with self._writing:
            if not self._has_unstored_ends:
                return
            is_last = not buffer.ongoing
            if commit and not is_last:
                raise ServiceNotReady(
                    f"Topic {self._topic.name} is terminated. The commit of {txn} is stored when"
                    f" the other open transactions of the topic ({self.ongoing}) have ended."
                )
            await self._snapshots.store(buffer, self.max_read)
            self.snapshot_ms = self._now_ms()
            self._has_unstored_ends = not is_last

    def _end_without_marker(self, txn: TxnId, commit: bool) -> None:
        if txn in self._buffer.ongoing:
            self._has_unstored_ends = True
        self._on_end(txn, commit, self._log.last_confirmed)
        self._topic.wake_dispatchers()

    async def _append_marker(self, txn: TxnId, commit: bool) -> None:
        self._buffer.begin_end(txn)
        marker = _Marker(self._topic, txn, commit, self._on_end)
        try:
            await self._topic.append_message(_marker_entry(self._topic, txn, commit), marker)
        except ManagedLedgerError as error:
            raise refusal_of(error) from error

    def _on_end(self, txn: TxnId, commit: bool, position: Position) -> None:
        self._buffer.on_end(txn, commit, position)
        self._move_limit()
        if commit:
            self.committed += 1
        else:
            self.aborted += 1

    @property
    def ongoing(self) -> int:
        """The number of open transactions."""
        return len(self._buffer.ongoing)

    # --- what operators ask ---------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """The state in TransactionBufferStats."""
        return self.state.value

    @property
    def is_recovering(self) -> bool:
        """True while the log is read after a snapshot. Consumers receive nothing meanwhile."""
        return self.state is State.INITIALIZING

    @property
    def oldest(self) -> tuple[TxnId, Position] | None:
        """The oldest open transaction with its first message, None without one."""
        return next(iter(self._buffer.ongoing.items()), None)

    def start_of(self, txn: TxnId) -> Position | None:
        """Return the position of the first message of an open transaction, or None."""
        return self._buffer.ongoing.get(txn)

    @property
    def aborted_count(self) -> int:
        """The number of aborted transactions whose messages may still be stored."""
        return len(self._buffer.aborted)

    @property
    def low_water_marks(self) -> Mapping[int, int]:
        """For each coordinator, the id up to which all its transactions have ended."""
        return self._buffer.low_water_marks

    def segments_stats(self, with_segments: bool) -> Mapping[str, Any] | None:
        """Return the segmentsStats of TransactionBufferStats; None: the snapshot has no
        segments.
        """
        return self._snapshots.segments_stats(self._buffer, with_segments)

    def _now_ms(self) -> int:
        return int(self._topic.wall_clock() * 1000)

    # --- reading ------------------------------------------------------------------------------

    @property
    def source(self) -> EntrySource:
        """The entries that consumers may receive."""
        return self._source

    def is_aborted(self, transaction: tuple[int, int]) -> bool:
        """Return True for an aborted transaction."""
        return transaction in self._source.aborted

    async def recovered(self) -> None:
        """Wait until the buffer is recovered. Raises ServiceNotReady if it cannot be read now, and
        UnknownError if entries are lost.
        """
        if self._recovery is not None:
            await asyncio.wait([self._recovery])
            if self._recovery.cancelled() or self._recovery.exception() is not None:
                failure = "Failed to recover Transaction Buffer."
                if self.unreadable is not None:
                    raise UnknownError(f"{failure} {self.unreadable}")
                raise ServiceNotReady(failure)

    def recover(self, snapshot: Snapshot) -> None:
        """Begin to read the log after a snapshot. Consumers receive nothing meanwhile."""
        self.state = State.INITIALIZING
        self.recover_start_ms = self._now_ms()
        self._buffer = Buffer(snapshot.aborted)
        self._source = CommittedSource(self._log, self._buffer.aborted)
        self._follow()
        self._continue_recovery(self._log.next_position(snapshot.max_read))

    def _continue_recovery(self, start: Position) -> None:
        self._timer = None
        self._recovery = self._spawn(self._recover(start))

    async def _recover(self, start: Position) -> None:
        skips_lost = self._config.autoSkipNonRecoverableData
        try:
            async for batch in read_batches(self._log, start, "transactions", skips_lost):
                for index, (most, least), marker in transactions_of(batch):
                    position = Position(batch.ledger_id, batch.entry_id(index))
                    self._replay(TxnId(most, least), marker, position)
                start = Position(batch.ledger_id, batch.entry_id(len(batch) - 1) + 1)
                await asyncio.sleep(0)
        except Errors as error:
            if is_lost(error) and self.state is State.INITIALIZING:
                self._stop_at(start, error)
            else:
                self._fail(error)
            raise
        self.recover_end_ms = self._now_ms()
        if self.state is State.INITIALIZING:
            self.unreadable = None
            self._become_ready()

    def _fail(self, error: Exception) -> None:
        """Close the topic. Its clients come back, and the next opening tries again."""
        reason = f"the transactions of {self._log.name} cannot be read: {error}"
        self._log.fail(LedgerState.FAILED, ManagedLedgerError(reason))

    def _stop_at(self, start: Position, error: Exception) -> None:
        """Stop before lost entries, which may have ended a transaction, and try again later."""
        if self.unreadable is None:
            log.error(
                "the transactions of a topic cannot be read; consumers wait",
                topic=self._topic.name,
                error=error,
                help=LOST_HELP,
            )
        self.unreadable = f"The transactions of {self._topic.name} cannot be read: {error}."
        self._topic.turn.run(self._release_held)
        delay_s = log_reader.LOST_RETRY_S
        self._timer = self._topic.loop.call_later(delay_s, self._continue_recovery, start)

    def _replay(self, txn: TxnId, marker: int, position: Position) -> None:
        if marker in (COMMIT_MARKER, ABORT_MARKER):
            self._buffer.on_end(txn, marker == COMMIT_MARKER, position)
        elif marker < 0:
            self._buffer.on_message(txn, position)

    # --- snapshots ----------------------------------------------------------------------------

    def _note_moves(self, count: int) -> None:
        self._moves += count
        if self._moves and self._timer is None and self.state is State.READY:
            delay_s = self._config.transactionBufferSnapshotMinTimeInMillis / 1000
            self._timer = self._topic.loop.call_later(delay_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._store_snapshot()

    def _store_snapshot(self) -> None:
        if self._is_storing:
            self._is_due = True
        elif self._moves and self.state is State.READY:
            self._is_storing = True
            self._is_due = False
            self._spawn(self._store())

    async def _store(self) -> None:
        moves, self._moves = self._moves, 0
        try:
            async with self._writing:
                self._buffer.trim(self._log.first_position().ledger_id)
                await self._snapshots.store(self._buffer, self.max_read)
        except Errors as error:
            # Recovery begins at an older position until the next snapshot is stored.
            if not self._is_failing:
                log.warning("a snapshot was not stored", topic=self._topic.name, error=error)
            self._is_failing = True
            self._note_moves(moves)
        else:
            self._is_failing = False
            self.snapshot_ms = self._now_ms()
        finally:
            self._is_storing = False
        # Entries may have been stored meanwhile.
        if self._is_due and not self._is_failing:
            self._store_snapshot()
        else:
            self._note_moves(0)

    @property
    def max_read(self) -> Position:
        """The position of the last entry that consumers may receive."""
        if self.state in (State.NO_SNAPSHOT, State.FIRST_SNAPSHOTTING):
            return self._log.last_confirmed  # dispatchers do not read `_source` yet
        limit = self._source.limit
        if limit is None:
            return self._log.last_confirmed
        before = self._log.ordinal(limit) - 1
        return self._log.position_of(before - 1) if before > 0 else self._log.first_position()

    # --- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Refuse what was held, and store no further snapshots."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._topic.turn.run(self._refuse_held, "Topic is closed")

    async def close(self) -> None:
        """Stop, and wait until no work is under way."""
        self.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def delete(self) -> None:
        """Delete the snapshot of a topic that is being deleted.

        A failure is only logged: the topic of that name that may be created next reads its log from
        an earlier position.
        """
        has_snapshot = self.state is not State.NO_SNAPSHOT
        await self.close()
        if not has_snapshot:
            return
        name = self._topic.name
        try:
            await asyncio.wait_for(self._snapshots.delete(), DELETION_TIMEOUT_S)
        except (*Errors, asyncio.TimeoutError) as error:
            log.warning("the snapshot of a topic was not deleted", topic=name, error=error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._topic.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Errors):
            self._log.on_defect("a transaction buffer failed", error)


class _Marker(PendingMessage):
    """The owner of the entry that ends a transaction."""

    def __init__(
        self,
        topic: TransactionalTopic,
        txn: TxnId,
        commit: bool,
        on_end: Callable[[TxnId, bool, Position], None],
    ) -> None:
        super().__init__(topic)
        self._txn = txn
        self._commit = commit
        self._on_end = on_end

    def on_run_added(self, run: EntryRun) -> None:
        # Before later entries of the log are seen, so that the buffer follows its order.
        self._on_end(self._txn, self._commit, Position(run.ledger_id, run.first_entry_id))
        super().on_run_added(run)


def _marker_entry(topic: TransactionalTopic, txn: TxnId, commit: bool) -> bytes:
    from pyxbroker.proto import PulsarApi as pb

    most, least = txn.wire()
    metadata = pb.MessageMetadata(
        producer_name=MARKER_PRODUCER,
        sequence_id=2**64 - 1,
        publish_time=int(topic.wall_clock() * 1000),
        marker_type=COMMIT_MARKER if commit else ABORT_MARKER,
        txnid_most_bits=most,
        txnid_least_bits=least,
    )
    return write_message(metadata, b"")
