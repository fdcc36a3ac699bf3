"""The writer's handle of an open ledger on the embedded bookie."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from pyxbroker.entry import CRC32C, Digest, EntryRun
from pyxbroker.ledger.bookie import FAILED, Bookie
from pyxbroker.ledger.errors import LedgerError, error_of, journal_failed
from pyxbroker.ledger.reader import ReadHandle, Segment
from pyxbroker.quorum import PendingRuns

if TYPE_CHECKING:
    from pyxbroker.ledger.metadata import LedgerMetadata


class LedgerListener(Protocol):
    """The owner of a ledger that is being written."""

    def on_run_confirmed(self, run: EntryRun) -> None: ...

    def on_run_taken_back(self, run: EntryRun) -> None: ...

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None: ...


class LedgerHandle(ReadHandle):
    """The writer of an open ledger: appends runs, confirms them in order.

    listener.on_run_confirmed(run) is called for each run when its entries are on the ack quorum,
    in order; listener.on_ledger_failed(handle, error) once, when no further entry can be confirmed.
    add_flags are those of Bookie.add_run for all adds.

    This class is the direct path to an ensemble of one bookie, the embedded one; EnsembleHandle
    (ensemble.py) is for all others.
    """

    __slots__ = (
        *("_drained", "add_flags", "failure", "in_metadata", "length", "listener"),
        "pending",
    )

    def __init__(
        self,
        ledger_id: int,
        bookie: Bookie,
        listener: LedgerListener,
        add_flags: int = 0,
        digest: Digest = CRC32C,
    ) -> None:
        super().__init__(ledger_id, (Segment(0, (bookie,)),), 1, digest)
        self.add_flags = add_flags
        self.pending = PendingRuns(1, 1, 1)
        self.length = 0
        self.failure: LedgerError | None = None
        self.listener = listener
        self.in_metadata: tuple[LedgerMetadata, int] | None = None  # and version, until closed
        self._drained: asyncio.Future[None] | None = None

    @property
    def last_add_confirmed(self) -> int:
        return self.pending.last_add_confirmed

    @property
    def bookie(self) -> Bookie:
        return self.segments[0].bookies[0]

    def append(self, run: EntryRun) -> None:
        """Give the run its entry ids and send it to the bookie."""
        run.ledger_id = self.ledger_id
        self.pending.append(run)
        length = self.length
        self.length += run.bytes
        confirmed = self.pending.last_add_confirmed
        if self.segments[0].bookies[0].add_run(self, 0, run, confirmed, length, self.add_flags):
            run.release()

    def on_adds_acked(self, slot: int, first: int, last: int) -> None:
        """Take note that a bookie has entries first..last (Adder)."""
        if self.failure is not None:
            self.pending.on_ack(0, first, last)
            return
        for run in self.pending.on_run_ack(0, first, last):
            self.listener.on_run_confirmed(run)
        self._check_drained()

    def _check_drained(self) -> None:
        if self._drained is not None and not self._drained.done() and self._is_idle():
            self._drained.set_result(None)

    def _is_idle(self) -> bool:
        return not self.pending.has_runs

    def on_adds_failed(self, slot: int, first: int, code: int) -> None:
        """Take note that a bookie will not store the entries from first on (Adder)."""
        if self.failure is not None:
            return
        bookie = self.bookie
        if bookie.failure or code == FAILED:
            self._fail(journal_failed(bookie.bookie_id, bookie.failure or code))
        else:
            self._fail(error_of(code, self.ledger_id, first))

    def _fail(self, error: LedgerError) -> None:
        self.failure = error
        self.listener.on_ledger_failed(self, error)
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(error)

    def take_back(self) -> None:
        """Take back the runs of which no bookie has stored anything, since there is no room."""
        self.bookie.take_back(self)

    def on_add_taken_back(self, slot: int, run: EntryRun) -> bool:
        """Take back a run that waits for room in the bookie; False if it has to wait longer."""
        if self.pending.newest is not run:
            return False  # a later run was stored
        self.pending.take_back()
        self.length -= run.bytes
        run.release()
        self.listener.on_run_taken_back(run)
        self._check_drained()
        return True

    def take_unconfirmed(self) -> list[EntryRun]:
        """Remove and return the runs that were never confirmed, after a failure."""
        return self.pending.take_all()

    async def seal(self) -> None:
        """Wait until nothing is under way; from then on the failure of a bookie has no effect."""
        while self.failure is not None or not self._is_idle():
            await self.drain()

    async def drain(self) -> None:
        """Wait until every appended entry is confirmed. Raises the ledger's failure."""
        if self.failure is not None:
            raise self.failure
        if not self._is_idle():
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
