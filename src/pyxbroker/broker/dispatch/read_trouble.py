"""Failed reads: a dispatcher retries, passes over lost entries, or stops.

A failed read (EIO, no memory, no file descriptor) says nothing about the entry. The dispatcher
retries it until it succeeds, and everything behind it waits.

An entry that is damaged or missing is lost. The dispatcher passes over it, and the entry stays in
the backlog. Up to LOST_IN_A_ROW_MAX lost entries in a row count as one bad block. More of them mean
a missing file or a failing disk. Passing over them would let the next cumulative acknowledgement
cover them, so the subscription stops and retries at intervals. With autoSkipNonRecoverableData it
acknowledges lost entries and continues.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyxbroker.base.log import get_logger
from pyxbroker.entry import Position
from pyxbroker.ledger.errors import LedgerError, NoSuchLedger

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.interfaces import DispatchLoop

log = get_logger("pyxbroker.delivery")

LOST_IN_A_ROW_MAX = 64  # entries: the most that a block of 4 KiB can hold
RETRY_STOPPED_S = 30.0  # interval at which a stopped subscription retries
REPORT_S = 1.0  # entries passed over within this time share one log line
REPORTED_MAX = 1000  # runs that are remembered, and not logged again

STOPPED_HELP = (
    "seek or reset the subscription to a position behind them, or set"
    " autoSkipNonRecoverableData=true; the broker retries every 30 s"
)


class LostRun:
    """Consecutive lost entries; `again`: they were read before."""

    __slots__ = ("again", "count", "error", "last", "positions")

    def __init__(self, again: bool) -> None:
        self.again = again
        self.count = 0
        self.positions: list[Position] = []  # of the first entries
        self.last = Position(-1, -1)
        self.error: LedgerError | None = None  # of the last entry

    def add(self, position: Position, error: LedgerError) -> None:
        self.count += 1
        if len(self.positions) <= LOST_IN_A_ROW_MAX:
            self.positions.append(position)
        self.last = position
        self.error = error

    @property
    def extent(self) -> tuple[Position, Position]:
        return self.positions[0], self.last

    def __str__(self) -> str:
        first, last = self.extent
        return (
            f"{self.count} entries in a row, from {first.ledger_id}:{first.entry_id} to"
            f" {last.ledger_id}:{last.entry_id}, cannot be read: {self.error}"
        )


class ReadTrouble:
    """The failed reads and lost entries of one dispatcher. Created when the first read fails."""

    def __init__(self, dispatcher: DispatchLoop) -> None:
        self.stopped: str | None = None  # reason, for statistics and logs
        self._dispatcher = dispatcher
        self._loop = dispatcher.topic.loop
        self._turn = dispatcher.topic.turn
        policies = dispatcher.topic.policies
        self._delay_min_s = policies.read_retry_min_s
        self._delay_max_s = policies.read_retry_max_s
        self._where = {
            "topic": dispatcher.topic.name,
            "subscription": dispatcher.subscription.name,
        }
        self._batch_min = policies.read_batch_min
        self._batch_max = policies.read_batch_max
        self._batch = self._batch_max  # entries of the next read
        self._tries = 0  # failures since the last successful read
        self._since = 0.0
        self._error: LedgerError | None = None  # of the last failure
        self._delay_s = self._delay_min_s
        self._new = LostRun(again=False)
        self._again = LostRun(again=True)
        self._stopped_run: LostRun | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._reported: set[tuple[Position, Position]] = set()
        self._to_report: list[LostRun] = []

    # --- reads that fail ----------------------------------------------------------------------

    def try_again(self, position: Position, error: LedgerError) -> None:
        """Retry a failed read after a delay that doubles each time. Nothing else is read
        meanwhile.
        """
        if self._tries == 0:
            self._since = self._loop.time()
            self._delay_s = self._delay_min_s
            log.warning(
                "a read failed; the broker retries until it succeeds, and consumers wait",
                **self._where,
                entry=position,
                error=error,
            )
        self._tries += 1
        self._error = error
        self._batch = self._batch_min
        self._loop.call_later(self._delay_s, self._turn.run, self._dispatcher.retry_read)
        self._delay_s = min(self._delay_s * 2, self._delay_max_s)

    @property
    def retried(self) -> tuple[LedgerError, float] | None:
        """The error of the read that is being retried, and the seconds since its first failure."""
        if not self._tries or self._error is None:
            return None
        return self._error, self._loop.time() - self._since

    @property
    def has_lost(self) -> bool:
        """True if entries were passed over because they are lost."""
        return bool(self._reported or self._to_report)

    def cut(self, count: int) -> int:
        """Return how many entries the next read asks for: few after a failure, then more."""
        return min(count, self._batch) if self._batch < self._batch_max else count

    def answered(self) -> None:
        """Note that a read has completed."""
        self._batch = min(self._batch * 2, self._batch_max)
        if self._tries:
            log.info(
                "reads succeed again",
                **self._where,
                after_s=round(self._loop.time() - self._since, 3),
                tries=self._tries,
            )
            self._tries = 0
            self._error = None

    # --- entries that are lost ----------------------------------------------------------------

    def blocks(self, again: bool) -> bool:
        """Return True if the subscription has stopped at new entries, or (again) at
        redeliveries.
        """
        return (
            self._retry_timer is not None
            and self._stopped_run is not None
            and self._stopped_run.again is again
        )

    def pass_over(self, position: Position, error: LedgerError, again: bool) -> bool:
        """Count a lost entry. Return False if the subscription stops: too many in a row are
        lost.
        """
        stopped = self._stopped_run
        if stopped is not None and stopped.again is again and position >= stopped.positions[0]:
            # The retry found the same entries lost: no further entry is passed over.
            self._schedule_retry()
            return False
        run = self._again if again else self._new
        run.add(position, error)
        if run.count > LOST_IN_A_ROW_MAX:
            self._stop(run)
            return False
        self._report_later(run)
        return True

    def skip(self, position: Position, error: LedgerError, again: bool) -> int:
        """Acknowledge lost entries, as autoSkipNonRecoverableData demands. Return the last entry
        id. A ledger that is lost as a whole is acknowledged for all subscriptions.
        """
        dispatcher = self._dispatcher
        ledger_id, first = position
        last = dispatcher.source.last_entry(ledger_id)
        if isinstance(error, NoSuchLedger) and last is not None:
            log.error("a lost ledger is skipped", **self._where, ledger=ledger_id, error=error)
            durable = dispatcher.topic.subscriptions.values()
            for each in {dispatcher.subscription: None, **dict.fromkeys(durable)}:
                each.acknowledge_ledger(ledger_id, last)
            return last
        run = self._again if again else self._new
        run.add(position, error)
        self._report_later(run)
        dispatcher.subscription.acknowledge_positions([position])
        return first

    def has_read(self, ledger_id: int, entry_id: int, again: bool) -> None:
        """Note a successful read, which ends the run of lost entries before it."""
        run = self._again if again else self._new
        if run.count:
            self._end(again)
        stopped = self._stopped_run
        if stopped is None or stopped.again is not again:
            return
        first = stopped.positions[0]
        # Redeliveries are not read in the order of positions.
        if (ledger_id, entry_id) == first or (not again and (ledger_id, entry_id) > first):
            log.info("a stopped subscription resumes", **self._where)
            self._resume()

    def is_acknowledged(self, position: Position) -> None:
        """Note that a lost entry is acknowledged."""
        stopped = self._stopped_run
        if stopped is not None and position == stopped.positions[0]:
            del stopped.positions[0]
            if not stopped.positions:
                self._resume()

    def rewound(self) -> None:
        """Forget runs of lost entries, because everything is read again from the mark on."""
        self._end(again=False)
        self._end(again=True)
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        if self._stopped_run is not None and self._stopped_run.again:
            self._resume()

    def skipped(self, mark: Position) -> None:
        """Resume if the subscription has stopped at or before a mark, up to which all is
        acknowledged.
        """
        if self._stopped_run is not None and self._stopped_run.positions[0] <= mark:
            self.forget()

    def forget(self) -> None:
        """Resume, after the cursor was moved."""
        self.rewound()
        self._resume()

    def _end(self, again: bool) -> None:
        if again:
            self._again = LostRun(again)
        else:
            self._new = LostRun(again)

    # --- stopping -----------------------------------------------------------------------------

    def _stop(self, run: LostRun) -> None:
        self.stopped = f"The subscription has stopped: {run}."
        self._stopped_run = run
        self._to_report = [each for each in self._to_report if each is not run]
        log.error(
            "a subscription stops: too many entries in a row cannot be read",
            **self._where,
            entries=run.count,
            first=run.positions[0],
            last=run.last,
            error=run.error,
            help=STOPPED_HELP,
        )
        # The last entry of the run is retried together with those passed over before.
        self._end(run.again)
        self._dispatcher.put_back(run.positions[:-1], run.again)
        self._schedule_retry()

    def _schedule_retry(self) -> None:
        if self._retry_timer is not None:
            return
        self._retry_timer = self._loop.call_later(RETRY_STOPPED_S, self._turn.run, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self._dispatcher.wake()

    def _resume(self) -> None:
        self.stopped = None
        self._stopped_run = None

    # --- the log ------------------------------------------------------------------------------

    def _report_later(self, run: LostRun) -> None:
        if not self._to_report:
            self._loop.call_later(REPORT_S, self._report)
        if not any(each is run for each in self._to_report):
            self._to_report.append(run)

    def _report(self) -> None:
        """Write one log line for new runs of lost entries."""
        met, self._to_report = self._to_report, []
        by_extent = {each.extent: each for each in met if each.extent not in self._reported}
        runs = list(by_extent.values())
        if not runs:
            return
        if len(self._reported) + len(runs) > REPORTED_MAX:
            self._reported.clear()
        self._reported.update(by_extent)
        skips = self._dispatcher.topic.policies.skips_lost_data
        log.error(
            "entries that cannot be read are skipped" if skips else "entries cannot be delivered",
            **self._where,
            entries=sum(each.count for each in runs),
            runs=len(runs),
            first=runs[0].positions[0],
            last=runs[-1].last,
            error=runs[-1].error,
        )
