"""The pending acknowledgements of a subscription in a running broker.

The first transactional acknowledgement of a subscription creates its log. A log that exists is
replayed before the first consumer of the subscription is added, or in the background after the
topic was opened. Conflicts are found before a record is appended, so that this broker stores no
record of a rejected acknowledgement. An acknowledgement is answered once its record is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pyxbroker.ackset import AckSet
from pyxbroker.base import limits
from pyxbroker.base.errors import (
    NotAllowed,
    PersistenceError,
    PulsarError,
    ServiceNotReady,
    TooManyRequests,
    TransactionConflict,
    UnknownError,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.signed import bits_of, words_of
from pyxbroker.base.slices import Slices
from pyxbroker.broker.topics import log_reader
from pyxbroker.broker.topics.log_reader import LOST_HELP
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.pending_ack_log import (
    LogRecord,
    Operation,
    PendingAckLog,
    name_of,
)
from pyxbroker.broker.transactions.pending_acks import Ack, PendingAcks
from pyxbroker.delivery import peek_entry
from pyxbroker.entry import AckRun
from pyxbroker.ledger.errors import LedgerError, is_lost
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.opening import delete_managed_ledger, open_managed_ledger

if TYPE_CHECKING:
    from pyxbroker.base.topic_name import TopicName
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.entry import EntryBatch, Position
    from pyxbroker.mledger.cursor import Cursor
    from pyxbroker.mledger.entry_cache import EntryCache
    from pyxbroker.mledger.managed_ledger import ManagedLedger
    from pyxbroker.settings.config import Config
    from pyxbroker.turn import Turn

log = get_logger("pyxbroker.transactions")

ACKS_PER_STEP = 256  # acknowledgements of one transaction that end in one step
RECOVERIES_MAX = 16  # logs that are replayed in parallel in the background
STORAGE_ERRORS = (LedgerError, MetadataError, ManagedLedgerError)


class State(Enum):
    """The states of PendingAckHandleState."""

    NONE = "None"
    INITIALIZING = "Initializing"
    READY = "Ready"
    ERROR = "Error"
    CLOSE = "Close"


class TransactionalTopic(Protocol):
    """The topic of the subscription (topics/persistent.py)."""

    name: TopicName
    turn: Turn
    fenced: bool


class TransactionalSubscription(Protocol):
    """The subscription of a handle (subscriptions/subscription.py)."""

    name: str
    pending_acks: PendingAckHandle | None
    lacks_pending_acks: bool

    @property
    def topic(self) -> TransactionalTopic: ...
    @property
    def durable_cursor(self) -> Cursor: ...
    def settle_pending(self, consumer: Consumer, run: AckRun, acks: AckSet) -> None: ...
    def acknowledge_committed(self, run: AckRun, cumulative: bool) -> None: ...
    def release_pending(self, positions: list[tuple[int, int]]) -> None: ...


class PendingAckStores:
    """Opens the logs of pending acknowledgements of this broker, and deletes them."""

    def __init__(
        self,
        config: Config,
        entry_cache: EntryCache | None,
        check_served: Callable[[TopicName], Awaitable[None]],
    ) -> None:
        self.config = config
        self.check_served = check_served
        self._entry_cache = entry_cache
        self._looking: dict[TransactionalSubscription, asyncio.Future[bool]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._recoveries = asyncio.Semaphore(RECOVERIES_MAX)

    async def open_ledger(
        self, subscription: TransactionalSubscription, create: bool
    ) -> ManagedLedger | None:
        """Open the managed ledger of a subscription; None if it does not exist.

        Raises LedgerError, MetadataError.
        """
        origin = subscription.durable_cursor.managed_ledger
        return await open_managed_ledger(
            name_of(subscription.topic.name, subscription.name),
            origin.store,
            origin.client,
            origin.limits.keeping(0, 0),
            create,
            cache=self._entry_cache,
        )

    async def recover(self, subscription: TransactionalSubscription) -> PendingAckHandle | None:
        """Return the pending acknowledgements of a subscription once they are replayed; None if it
        has no log. Raises PulsarError.
        """
        if subscription.pending_acks is None:
            if subscription.lacks_pending_acks:
                return None
            looking = self._looking.get(subscription)
            if looking is None:
                looking = self._looking[subscription] = asyncio.ensure_future(_exists(subscription))
                looking.add_done_callback(lambda _: self._looking.pop(subscription))
            try:
                is_found = await asyncio.shield(looking)
            except MetadataError as error:
                raise ServiceNotReady(
                    f"The pending acknowledgements of {subscription.name} of"
                    f" {subscription.topic.name} cannot be read now."
                ) from error
            if subscription.pending_acks is None:
                subscription.lacks_pending_acks = not is_found
                if not is_found:
                    return None
                subscription.pending_acks = PendingAckHandle(subscription, self)
        await subscription.pending_acks.ready()
        return subscription.pending_acks

    def begin(self, subscription: TransactionalSubscription) -> PendingAckHandle:
        """Return the pending acknowledgements of a subscription, which may not be ready yet."""
        if subscription.pending_acks is None:
            subscription.pending_acks = PendingAckHandle(subscription, self)
        return subscription.pending_acks

    def recover_soon(self, subscriptions: Iterable[TransactionalSubscription]) -> None:
        """Replay the logs of a topic's subscriptions in the background."""
        task = asyncio.get_running_loop().create_task(self._recover_each(list(subscriptions)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _recover_each(self, subscriptions: list[TransactionalSubscription]) -> None:
        slices = Slices()
        for subscription in subscriptions:
            await slices.pause()
            if subscription.topic.fenced:
                return
            async with self._recoveries:
                try:
                    await self.recover(subscription)
                except PulsarError:
                    continue  # the log has the reason; the next consumer tries again

    async def delete(self, subscription: TransactionalSubscription) -> None:
        """Delete the log of a subscription, if one exists.

        Raises PersistenceError, MetadataError.
        """
        handle = subscription.pending_acks
        if handle is None and subscription.lacks_pending_acks:
            return
        try:
            opened = None if handle is None else await handle.close_for_deletion()
            if opened is None:
                opened = await self.open_ledger(subscription, create=False)
            if opened is not None:
                await delete_managed_ledger(opened)
        except (LedgerError, ManagedLedgerError) as error:
            raise PersistenceError(
                f"The pending acknowledgements of {subscription.name} of {subscription.topic.name}"
                f" were not deleted: {error}"
            ) from error
        finally:
            # After an error the next use opens what is left.
            subscription.pending_acks = None


async def _exists(subscription: TransactionalSubscription) -> bool:
    name = name_of(subscription.topic.name, subscription.name)
    return await subscription.durable_cursor.managed_ledger.store.exists(paths.managed_ledger(name))


class PendingAckHandle:
    """The pending acknowledgements of one subscription, with their log."""

    def __init__(self, subscription: TransactionalSubscription, stores: PendingAckStores) -> None:
        self.acks = PendingAcks()
        self.state = State.NONE
        # Dispatch has left out entries because of the pending cumulative acknowledgement.
        self._has_hidden = False
        self.committed = 0  # transactions, since the topic was opened
        self.aborted = 0
        self.recover_start_ms = 0  # since 1970; 0: never
        self.recover_end_ms = 0
        self._subscription = subscription
        self._stores = stores
        self._log: PendingAckLog | None = None
        self._opening: asyncio.Task[None] | None = None
        self._unreadable: str | None = None  # records were lost at the last attempt to open the log
        # The records of ends that are not durable yet, or were not stored; True: a cumulative one.
        self._ends: dict[TxnId, dict[bool, asyncio.Future[Position]]] = {}
        # Acknowledgements that wait for the log: what to do then, and the future of the answer.
        self._waiting: deque[tuple[Callable[[], None], asyncio.Future[None]]] = deque()

    @property
    def managed_ledger(self) -> ManagedLedger | None:
        """The managed ledger of the log, None before it is open."""
        return None if self._log is None else self._log.managed_ledger

    # --- opening --------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Open the log and replay it, unless that has been done. Raises PulsarError."""
        if self.state is State.READY:
            return
        self._check_open()
        await asyncio.shield(self._begin_opening())

    def _check_open(self) -> None:
        if self.state is State.CLOSE:
            raise ServiceNotReady("PendingAckHandle have been closed!")

    def _begin_opening(self) -> asyncio.Task[None]:
        if self._opening is None:
            self.state = State.INITIALIZING
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._on_opened)
        return self._opening

    async def _open(self) -> None:
        subscription = self._subscription
        topic = subscription.topic
        try:
            if topic.fenced:
                raise ServiceNotReady(f"Topic {topic.name} is being closed; look it up again.")
            if self._unreadable is not None:
                raise self._failure(self._unreadable)
            if self._log is not None:
                # Another broker may have taken over the topic and this log.
                await self._stores.check_served(topic.name)
                await self._abandon(self._log.managed_ledger)
            opened = await self._stores.open_ledger(subscription, create=True)
            assert opened is not None  # it is created if it does not exist
            opened.listener = self
            lag_min = self._stores.config.transactionPendingAckLogIndexMinLag
            self._log = await PendingAckLog.of(opened, lag_min)
            await self._replay(self._log)
            await self._handle_waiting()
        except PulsarError:
            raise
        except STORAGE_ERRORS as error:
            is_unreadable = is_lost(error)
            log.error(
                "the pending acknowledgements of a subscription cannot be read now",
                topic=topic.name,
                subscription=subscription.name,
                error=error,
                **({"help": LOST_HELP} if is_unreadable else {}),
            )
            if is_unreadable:
                # Until then clients do not have the log opened again and again.
                self._unreadable = f"A part of their log is lost: {error}."
                loop = asyncio.get_running_loop()
                loop.call_later(log_reader.LOST_RETRY_S, self._forget_unreadable)
                raise self._failure(self._unreadable) from error
            raise ServiceNotReady("PendingAckHandle not replay error!") from error
        except Exception as error:
            log.failure(
                "the pending acknowledgements of a subscription were not replayed",
                error,
                topic=topic.name,
                subscription=subscription.name,
            )
            raise self._failure() from error

    def _failure(self, reason: str = "") -> UnknownError:
        where = f"[{self._subscription.topic.name}][{self._subscription.name}]"
        return UnknownError(f"{where} Failed to init transaction pending ack. {reason}".rstrip())

    def _forget_unreadable(self) -> None:
        self._unreadable = None

    @staticmethod
    async def _abandon(former: ManagedLedger) -> None:
        """Finish what a managed ledger that failed, or could not be replayed, has begun."""
        former.listener = None
        await former.settle()
        if not former.is_dead:
            with contextlib.suppress(*STORAGE_ERRORS):  # opening it again reads what is stored
                await former.close()

    async def _replay(self, stored: PendingAckLog) -> None:
        """Apply the records of the log, a number of them per loop iteration."""
        self.recover_start_ms = int(time.time() * 1000)
        former, acks = self.acks, PendingAcks()
        cursor = self._subscription.durable_cursor
        slices = Slices()
        async for record in stored.read(self._stores.config.autoSkipNonRecoverableData):
            await slices.pause()
            if record.operation is not Operation.ACK:
                is_commit = record.operation is Operation.COMMIT
                acks.begin_end(record.txn)
                async for found, cumulative in _taken(acks, record.txn):
                    if is_commit:
                        self._commit(found, cumulative)
            elif not record.is_cumulative:
                acks.replay(record.txn, record.acks, cursor.acks)
            elif record.acks:
                acks.replay_cumulative(record.txn, record.acks[0], cursor.acks)
        self.acks = acks
        self._ends.clear()
        # Acknowledgements whose record was not stored because the log had failed.
        for txn in former.transactions():
            async for found, _ in _taken(former, txn):
                self._release([each for each in found if acks.left(*each.position) is None])
        self.recover_end_ms = int(time.time() * 1000)

    async def _handle_waiting(self) -> None:
        """Handle the acknowledgements that wait, and those that come in the meantime, in slices."""
        slices = Slices()
        while self._waiting and self.state is State.INITIALIZING:
            call, _ = self._waiting.popleft()
            self._subscription.topic.turn.run(call)
            await slices.pause()

    def _on_opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        error = None if opening.cancelled() else opening.exception()
        if self.state is not State.CLOSE:
            self.state = State.ERROR if opening.cancelled() or error else State.READY
        waiting, self._waiting = self._waiting, deque()
        for call, future in waiting:
            if self.state is State.READY:
                self._subscription.topic.turn.run(call)
            elif not future.done():
                future.set_exception(error or ServiceNotReady("PendingAckHandle have been closed!"))

    def on_managed_ledger_failed(self, error: ManagedLedgerError) -> None:
        """Open the log again at its next use: it lacks acknowledgements that are in memory."""
        if self.state is State.READY:
            self.state = State.ERROR
        log.error(
            "a log of pending acknowledgements cannot be written any more",
            topic=self._subscription.topic.name,
            subscription=self._subscription.name,
            error=error,
        )

    on_managed_ledger_write_failed = on_managed_ledger_failed

    # --- acknowledging ------------------------------------------------------------------------

    def acknowledge(
        self, consumer: Consumer, txn: TxnId, run: AckRun, cumulative: bool
    ) -> asyncio.Future[None]:
        """Acknowledge within a transaction. The future is done when that is durable, or has the
        PulsarError.
        """
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = partial(self._acknowledge, consumer, txn, run, cumulative, answer)
        if self.state is State.READY:
            call()
            return answer
        try:
            self._check_open()
        except ServiceNotReady as error:
            answer.set_exception(error)
            return answer
        self._waiting.append((call, answer))
        self._begin_opening()
        return answer

    def _acknowledge(
        self,
        consumer: Consumer,
        txn: TxnId,
        run: AckRun,
        cumulative: bool,
        answer: asyncio.Future[None],
    ) -> None:
        assert self._log is not None
        try:
            acks = self._acks_of(run, cumulative)
            if cumulative and len(run) != 1:
                acks = []  # as in Pulsar, the acknowledgement has no effect
            self._check(txn, acks, cumulative)
            if not acks:
                answer.set_result(None)
                return
            stored = self._log.append(LogRecord(Operation.ACK, txn, cumulative, acks))
        except PulsarError as error:
            answer.set_exception(error)
            return
        except ManagedLedgerError as error:
            answer.set_exception(PersistenceError(str(error)))
            return
        # If the record is not stored, the log is read again before it is used again.
        if cumulative:
            self.acks.acknowledge_cumulatively(txn, acks[0])
        else:
            self.acks.acknowledge(txn, acks)
        if not consumer.closed:
            self._subscription.settle_pending(consumer, run, self.view_of(run))
        stored.add_done_callback(partial(self._on_stored, answer))

    def _on_stored(self, answer: asyncio.Future[None], stored: asyncio.Future[Position]) -> None:
        error = stored.exception()
        if answer.done():
            return
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(PersistenceError(str(error)))

    def _acks_of(self, run: AckRun, cumulative: bool) -> list[Ack]:
        """Return the positions of an ACK, without those that name no message of the topic."""
        managed_ledger = self._subscription.durable_cursor.managed_ledger
        acks = self._subscription.durable_cursor.acks
        found = []
        for index in range(len(run)):
            ledger_id, entry_id, left = run.position(index)
            batch_size = max(run.batch_size(index), 0)
            if 0 < batch_size <= left:
                continue  # it acknowledges no message
            last = managed_ledger.last_entry(ledger_id)
            if entry_id < -1 or (entry_id < 0 and not cumulative):
                continue
            if (last is None or entry_id > last) and not acks.is_acknowledged(ledger_id, entry_id):
                continue
            if left and not batch_size:
                batch_size = self._batch_size(ledger_id, entry_id)
            bits = bits_of(run.ack_set(index)) if left else 0
            found.append(Ack(ledger_id, entry_id, bits, batch_size))
        return found

    def _batch_size(self, ledger_id: int, entry_id: int) -> int:
        """Return the number of messages of a batch that is in memory; some clients omit it."""
        managed_ledger = self._subscription.durable_cursor.managed_ledger
        position = managed_ledger.normalize((ledger_id, entry_id))
        batch = None if position is None else managed_ledger.peek_cached(position)
        peeked = None if batch is None else peek_entry(batch, 0)
        return peeked.num_messages if peeked is not None and peeked.is_batch else 0

    def _check(self, txn: TxnId, acks: list[Ack], cumulative: bool) -> None:
        """Raise NotAllowed, TransactionConflict, or TooManyRequests."""
        if self.acks.refuses(txn):
            raise NotAllowed(
                f"Transaction [{txn}] has been ended. Please use a new transaction to acknowledge."
            )
        cursor = self._subscription.durable_cursor.acks
        if not cumulative:
            text = self.acks.conflict(txn, acks, cursor)
        else:
            text = self.acks.cumulative_conflict(txn, acks[0], cursor) if acks else None
        if text is not None:
            raise TransactionConflict(f"{self._prefix(txn)} {text}")
        pending = self.acks
        if (
            pending.transaction_count >= limits.PENDING_ACK_TRANSACTIONS_MAX
            and not pending.holds(txn)[0]
        ) or pending.part_words >= limits.PENDING_ACK_WORDS_MAX:
            raise TooManyRequests(
                f"{self._prefix(txn)} too many acknowledgements of open transactions are pending;"
                " end some of these transactions first."
            )

    def _prefix(self, txn: TxnId) -> str:
        return f"[{self._subscription.topic.name}][{self._subscription.name}] Transaction:{txn}"

    # --- the end of a transaction ---------------------------------------------------------------

    async def end(self, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """End a transaction: acknowledge what it has acknowledged, or release it. Durable on
        return. Raises PulsarError.
        """
        await self.ready()
        await self._end(txn, commit)
        self.acks.raise_low_water_mark(txn.most, low_water_mark)
        while (stray := self.acks.stray(txn.most)) is not None:
            log.warning(
                "acknowledgements that came after the end of their transaction are released",
                topic=self._subscription.topic.name,
                subscription=self._subscription.name,
                transaction=stray,
            )
            await self._end(stray, False)
        if self._log is not None:
            await self._log.trim(self._subscription.durable_cursor)

    async def _end(self, txn: TxnId, commit: bool) -> None:
        stored = self._log
        assert stored is not None
        operation = Operation.COMMIT if commit else Operation.ABORT
        self.acks.begin_end(txn)
        individually, cumulatively = self.acks.holds(txn)
        # A former attempt may have ended the acknowledgements, before its records are durable.
        records = self._ends.setdefault(txn, {})
        missing = {kind for kind, each in records.items() if each.done() and each.exception()}
        try:
            # As Pulsar reads its log, a record ends one of the two kinds.
            for is_cumulative in missing.union([False] * individually, [True] * cumulatively):
                record = LogRecord(operation, txn, is_cumulative)
                records[is_cumulative] = stored.append(record)
            # The coordinator has decided, so the end takes effect before the record is durable.
            async for found, cumulative in _taken(self.acks, txn):
                if commit:
                    self._commit(found, cumulative)
                elif not cumulative or self._has_hidden:
                    # The client has what it has acknowledged cumulatively, and asks for it. A
                    # redelivery that it has not asked for would mix with what it has not read yet.
                    # But a consumer that came since does not have it.
                    self._release(found)
                self._has_hidden = self._has_hidden and not cumulative
            for future in list(records.values()):
                await asyncio.shield(future)
            self._ends.pop(txn, None)
            self.committed += commit
            self.aborted += not commit
        except ManagedLedgerError as error:
            raise PersistenceError(str(error)) from error

    def _commit(self, acks: list[Ack], cumulative: bool) -> None:
        run = AckRun()
        for ack in acks:
            run.add(*ack.position, ack.words, ack.batch_size)
        subscription = self._subscription
        subscription.topic.turn.run(subscription.acknowledge_committed, run, cumulative)

    def _release(self, acks: list[Ack]) -> None:
        subscription = self._subscription
        subscription.topic.turn.run(subscription.release_pending, [each.position for each in acks])

    # --- dispatch -----------------------------------------------------------------------------

    def view(self, batch: EntryBatch, acks: AckSet) -> AckSet:
        """Return the acknowledgements of the entries of a batch, pending ones included."""
        if (batch.ledger_id, batch.entry_id(0)) > self.acks.highest:
            return acks  # new entries, as most of those that are read
        self._has_hidden = self.acks.cumulative is not None
        view = AckSet(batch.ledger_id, batch.entry_id(0) - 1)
        for index in range(batch.count):
            self._copy(batch.ledger_id, batch.entry_id(index), acks, view)
        return view

    def view_of(self, run: AckRun) -> AckSet:
        """Return the same for the positions of an ACK."""
        view = AckSet(-1, -1)
        for index in range(len(run)):
            ledger_id, entry_id, _ = run.position(index)
            if entry_id >= 0:
                self._copy(ledger_id, entry_id, self._subscription.durable_cursor.acks, view)
        return view

    def _copy(self, ledger_id: int, entry_id: int, acks: AckSet, view: AckSet) -> None:
        left = self.acks.left(ledger_id, entry_id)
        if left == 0 or acks.is_acknowledged(ledger_id, entry_id):
            view.add(ledger_id, entry_id)
            return
        acknowledged = acks.ack_set(ledger_id, entry_id)
        if left is not None:
            both = left & bits_of(acknowledged) if acknowledged else left
            view.acknowledge_batch(ledger_id, entry_id, words_of(both))
        elif acknowledged:
            view.acknowledge_batch(ledger_id, entry_id, acknowledged)

    def without_pending(self, positions: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the positions of which nothing is pending."""
        return [each for each in positions if self.acks.left(*each) is None]

    # --- what operators ask ---------------------------------------------------------------------

    def holders(self, ledger_id: int, entry_id: int) -> list[TxnId]:
        """Return the open transactions for which an entry is pending."""
        return list(self.acks.holders(ledger_id, entry_id))

    def cumulative_position(self, txn: TxnId) -> str | None:
        """Return the position that a transaction has acknowledged cumulatively, as in
        TransactionInPendingAckStats, or None.
        """
        held = self.acks.cumulative
        if held is None or held[0] != txn:
            return None
        ledger_id, entry_id, left, _ = held[1]
        index = f":{(left & -left).bit_length() - 2}" if left else ""
        return f"{ledger_id}:{entry_id}{index}"

    def position_state(self, ledger_id: int, entry_id: int, batch_index: int | None) -> str:
        """Return the state of an entry or of a message of a batch (PositionInPendingAckStats)."""
        if self.state is not State.READY:
            return "PendingAckNotReady"
        if (ledger_id, entry_id) <= self._subscription.durable_cursor.acks.mark_delete:
            return "MarkDelete"
        ack = self.acks.individual(ledger_id, entry_id)
        if ack is None:
            return "NotInPendingAck"
        if batch_index is None or not ack.left:
            return "PendingAck"
        if batch_index >= (ack.batch_size or ack.left.bit_length()):
            return "InvalidPosition"
        return "NotInPendingAck" if ack.left >> batch_index & 1 else "PendingAck"

    # --- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the log, because the topic is closed. Acknowledgements stay pending."""
        opened = await self._stop()
        if opened is None:
            return
        try:
            await opened.close()
        except (*STORAGE_ERRORS, OSError) as error:
            log.warning(
                "a log of pending acknowledgements was not closed cleanly",
                managed_ledger=opened.name,
                error=error,
            )

    async def close_for_deletion(self) -> ManagedLedger | None:
        """Use the log no more. Return its managed ledger, if it is open and was not closed."""
        opened = await self._stop()
        return None if opened is None or opened.is_dead else opened

    async def _stop(self) -> ManagedLedger | None:
        self.state = State.CLOSE
        while self._opening is not None:
            await asyncio.wait([self._opening])
            await asyncio.sleep(0)
        return self.managed_ledger


async def _taken(acks: PendingAcks, txn: TxnId) -> AsyncIterator[tuple[list[Ack], bool]]:
    """Remove and yield the acknowledgements of a transaction in steps: a list, and True if it has
    the cumulative one. The caller handles each before it asks for the next.
    """
    last = acks.take_cumulative(txn)
    if last is not None:
        yield [last], True
    slices = Slices()
    while found := acks.take(txn, ACKS_PER_STEP):
        yield found, False
        await slices.pause()
