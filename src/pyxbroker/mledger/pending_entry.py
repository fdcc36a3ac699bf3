"""The wait for one entry of the broker itself."""

from __future__ import annotations

import asyncio

from pyxbroker.entry import EntryRun, Position
from pyxbroker.mledger.errors import ManagedLedgerError


class PendingEntry:
    """The owner of a run without a producer; its future has the position of the run."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def on_run_added(self, run: EntryRun) -> None:
        if not self.future.done():
            self.future.set_result(Position(run.ledger_id, run.first_entry_id))

    def on_run_failed(self, run: EntryRun, error: ManagedLedgerError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
