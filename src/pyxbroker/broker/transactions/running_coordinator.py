"""A transaction coordinator that this broker runs: its state, its log, and its timers."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
from collections.abc import Callable, Iterable
from functools import partial

from pyxbroker.base.clock import age_s, wall_s
from pyxbroker.base.errors import PulsarError, TransactionCoordinatorNotFound
from pyxbroker.base.histogram import Histogram
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.broker.transactions.coordinator import (
    Coordinator,
    LogRecord,
    Operation,
    Status,
    Transaction,
)
from pyxbroker.broker.transactions.coordinator_log import CoordinatorLog
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.participants import RETRIED, End, Participants
from pyxbroker.entry import Position
from pyxbroker.mledger.errors import ManagedLedgerError

log = get_logger("pyxbroker.transactions")

RETRY_S = 1.0  # between attempts at a participant, as in Pulsar
LATER_RETRY_S = 60.0  # after an error that does not end by itself
IN_PARALLEL_MAX = 16  # participants of one transaction
STOP_S = 2.0
TIMER_S_MAX = 3600.0
FORGOTTEN_DEADLINES_MIN = 1000
ABORTED_PER_CALL = 64  # transactions that have timed out
LATENCY_BOUNDS_MS = (
    *(10, 20, 50, 100, 500, 1_000, 5_000, 15_000, 30_000, 60_000),
    *(300_000, 1_500_000, 3_000_000, math.inf),
)
"""As in Pulsar's metrics."""


class RunningCoordinator:
    """A coordinator whose log this broker owns. `replay` comes first.

    `on_lost` is called when the log cannot be written any more.
    """

    def __init__(
        self,
        log: CoordinatorLog,
        active_max: int,
        participants: Participants,
        on_lost: Callable[[RunningCoordinator], None],
    ) -> None:
        self.id = log.coordinator
        self.state = Coordinator(self.id, active_max)
        self.log = log
        self.is_lost = False
        self.recovery_began_s = self.recovery_ended_s = 0.0  # since 1970
        self.latencies = Histogram(LATENCY_BOUNDS_MS)  # of ended transactions
        self._participants = participants
        self._on_lost = on_lost
        self._ends: dict[int, asyncio.Task[None]] = {}  # by number of their transactions
        self._deadlines: list[tuple[float, int]] = []  # a heap: age_s, number
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self._later: set[asyncio.TimerHandle] = set()
        self._stopped = asyncio.Event()
        log.managed_ledger.listener = self

    # --- recovery -------------------------------------------------------------------------------

    async def replay(self, skips_lost: bool) -> None:
        """Read the log; then complete what was under way.

        Raises LedgerError, also for lost records, unless they are to be skipped.
        """
        state, self.recovery_began_s = self.state, wall_s()
        slices = Slices()
        async for record in self.log.read(skips_lost):
            await slices.pause()
            if not state.replay(record):
                self.log.drop_last(record.least)
            elif record.least in state.ended and record.operation is Operation.UPDATE:
                self.log.end(record.least)
        state.sequence = max(state.sequence, self.log.sequence)
        self.recovery_ended_s = wall_s()
        async for each in in_slices(list(state.transactions.values())):
            if each.status is Status.OPEN:
                self._note_deadline(each)
            else:
                self._drive(each.least, None)

    # --- commands -------------------------------------------------------------------------------

    async def new(self, timeout_ms: int, owner: str | None) -> TxnId:
        """Begin a transaction. Raises PulsarError."""
        record = self.state.new(timeout_ms, _now_ms(), owner)
        await self._append(record)
        found = self.state.find(record.least)
        if found is not None:
            self._note_deadline(found)
        return TxnId(self.id, record.least)

    async def add_partitions(self, least: int, names: Iterable[str]) -> None:
        """Add partitions to a transaction. Raises PulsarError."""
        add = partial(self.state.add_partitions, least, names, _now_ms())
        await self._append(await self._changed(add))

    async def add_subscriptions(self, least: int, pairs: Iterable[tuple[str, str]]) -> None:
        """Add subscriptions, each a topic and a name, to a transaction. Raises PulsarError."""
        add = partial(self.state.add_subscriptions, least, pairs, _now_ms())
        await self._append(await self._changed(add))

    async def end(self, least: int, is_commit: bool) -> asyncio.Future[None]:
        """Begin the end of a transaction, or follow the end that has begun. The future is done when
        all participants have ended the transaction and the log says so; it may have a PulsarError.

        Raises PulsarError.
        """
        begin = partial(self.state.begin_end, least, is_commit, _now_ms())
        record = await self._changed(begin)
        running = self._ends.get(least)
        if running is None:
            running = self._drive(least, record)
        return running

    def find(self, least: int) -> Transaction | None:
        """Return a transaction that is not ended, or None."""
        return self.state.find(least)

    async def _changed(self, change: Callable[[], LogRecord | None]) -> LogRecord | None:
        """Change the state and return the record. Raises PulsarError, once the records on which
        that rests are durable: the next owner of the log must not decide otherwise.
        """
        try:
            return change()
        except PulsarError:
            await self._append(None)
            raise

    async def _append(self, record: LogRecord | None) -> None:
        """Wait until a record is durable, or without one those before. Raises PulsarError."""
        await self._stored(self._begin_append(record))

    def _begin_append(self, record: LogRecord | None) -> asyncio.Future[Position] | None:
        if self.is_lost:
            raise not_here(self.id)
        if record is None:
            return self.log.last
        try:
            return self.log.append(record)
        except ManagedLedgerError as error:
            # The state in memory differs from the log now.
            self._lose(error)
            raise not_here(self.id) from error

    async def _stored(self, stored: asyncio.Future[Position] | None) -> None:
        if stored is None:
            return
        try:
            await asyncio.shield(stored)
        except ManagedLedgerError as error:
            self._lose(error)
            raise not_here(self.id) from error

    # --- the end of a transaction ---------------------------------------------------------------

    def _drive(self, least: int, record: LogRecord | None) -> asyncio.Task[None]:
        stored = self._begin_append(record)
        task = self._ends[least] = asyncio.ensure_future(self._end(least, stored))
        task.add_done_callback(partial(self._on_end, least))
        return task

    async def _end(self, least: int, stored: asyncio.Future[Position] | None) -> None:
        await self._stored(stored)
        found = self.state.find(least)
        if found is None:
            return  # it has ended before
        await self._end_everywhere(found)
        now_ms = _now_ms()
        await self._append(self.state.finish_end(least, now_ms))
        self.latencies.add(now_ms - found.start_ms)
        self.log.end(least)

    async def _end_everywhere(self, found: Transaction) -> None:
        """End a transaction at all its participants. Raises the PulsarError of one of them that
        does not end by itself, after the others.
        """
        left: list[tuple[str, str | None]] = [*found.subscriptions, *_topics(found)]
        failures: list[PulsarError] = []
        while left:
            left = await self._attempt(found, left, failures)
            if self.is_lost:
                raise not_here(self.id)
            if left:
                await self._pause()
        if failures:
            raise failures[0]

    async def _attempt(
        self,
        found: Transaction,
        participants: list[tuple[str, str | None]],
        failures: list[PulsarError],
    ) -> list[tuple[str, str | None]]:
        """Make one attempt at each participant; return those to attempt again."""
        again: list[tuple[str, str | None]] = []
        waiting = iter(participants)
        txn, is_commit = TxnId(self.id, found.least), found.status is Status.COMMITTING

        async def work() -> None:
            slices = Slices()
            for topic, subscription in waiting:
                await slices.pause()
                if self.is_lost:
                    return
                end = End(txn, is_commit, self.state.low_water_mark)
                try:
                    await self._participants.end(topic, subscription, end)
                except PulsarError as error:
                    is_retried = isinstance(error, RETRIED)
                    report = log.info if is_retried else log.error
                    report(
                        "a transaction was not ended at a participant",
                        txn=txn,
                        topic=topic,
                        subscription=subscription,
                        is_retried=is_retried,
                        error=error,
                    )
                    if is_retried:
                        again.append((topic, subscription))
                    else:
                        failures.append(error)

        workers = min(len(participants), IN_PARALLEL_MAX)
        await asyncio.gather(*(work() for _ in range(workers)))
        return again

    async def _pause(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), RETRY_S)

    def _on_end(self, least: int, done: asyncio.Task[None]) -> None:
        self._ends.pop(least, None)
        error = None if done.cancelled() else done.exception()
        if error is None or self.is_lost:
            return
        if not isinstance(error, PulsarError):
            log.failure("the end of a transaction failed", error, txn=TxnId(self.id, least))
        if self.state.find(least) is not None:
            self._call_later(LATER_RETRY_S, partial(self._drive_again, least))

    def _drive_again(self, least: int) -> None:
        found = self.state.find(least)
        if found is not None and least not in self._ends:
            self._drive(least, None)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        def run() -> None:
            self._later.discard(timer)
            call()

        timer = asyncio.get_running_loop().call_later(delay_s, run)
        self._later.add(timer)

    # --- timeouts -------------------------------------------------------------------------------

    def _note_deadline(self, found: Transaction) -> None:
        left_s = (found.start_ms + found.timeout_ms) / 1000 - wall_s()
        heapq.heappush(self._deadlines, (age_s() + left_s, found.least))
        if len(self._deadlines) > 2 * len(self.state.transactions) + FORGOTTEN_DEADLINES_MIN:
            self._deadlines = [each for each in self._deadlines if self._is_open(each[1])]
            heapq.heapify(self._deadlines)
        self._set_timer()

    def _is_open(self, least: int) -> bool:
        found = self.state.find(least)
        return found is not None and found.status is Status.OPEN

    def _set_timer(self) -> None:
        while self._deadlines and not self._is_open(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        if not self._deadlines or self.is_lost:
            return
        loop = asyncio.get_running_loop()
        delay_s = min(max(self._deadlines[0][0] - age_s(), 0.0), TIMER_S_MAX)
        due_s = loop.time() + delay_s
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.check_timeouts()

    def check_timeouts(self) -> None:
        """Abort open transactions whose time is over: some of them now, the others soon."""
        now_s = age_s()
        left = ABORTED_PER_CALL
        while left and self._deadlines and self._deadlines[0][0] <= now_s:
            _, least = heapq.heappop(self._deadlines)
            if self._is_open(least):
                left -= 1
                self.state.timed_out += 1
                log.info("a transaction has timed out", txn=TxnId(self.id, least))
                record = self.state.begin_end(least, False, _now_ms())
                try:
                    self._drive(least, record)
                except TransactionCoordinatorNotFound:
                    return  # the log has failed, which was reported
        self._set_timer()

    # --- the end --------------------------------------------------------------------------------

    def on_managed_ledger_failed(self, error: ManagedLedgerError) -> None:
        self._lose(error)

    def on_managed_ledger_write_failed(self, error: ManagedLedgerError) -> None:
        self._lose(error)

    def _lose(self, error: ManagedLedgerError) -> None:
        if not self.is_lost:
            log.warning("a transaction coordinator is closed", coordinator=self.id, error=error)
            self.stop()
            self._on_lost(self)

    def stop(self) -> None:
        """Begin nothing any more."""
        self.is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        for timer in self._later:
            timer.cancel()
        self._stopped.set()

    async def close(self) -> None:
        """Stop, and close the log. Raises LedgerError, MetadataError, ManagedLedgerError."""
        self.stop()
        if self._ends:
            # An attempt at a participant completes, rather than being cancelled half way.
            await asyncio.wait(list(self._ends.values()), timeout=STOP_S)
        await self.log.close()


def _topics(found: Transaction) -> list[tuple[str, str | None]]:
    return [(each, None) for each in found.partitions]


def _now_ms() -> int:
    return int(wall_s() * 1000)


def not_here(coordinator: int) -> TransactionCoordinatorNotFound:
    """Return the error for a coordinator that this broker does not run."""
    return TransactionCoordinatorNotFound(
        f"Transaction coordinator with id {coordinator} not found!"
    )
