"""An open ledger: the writer's side, and the reader's side of any ledger."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pyxbroker.bookie.embedded import DAMAGED, FAILED, FENCED, NO_ENTRY, NO_LEDGER
from pyxbroker.entry import CRC32C, Digest, EntryBatch, EntryRun
from pyxbroker.metadata.store import resolve
from pyxbroker.quorum import PendingAdds

if TYPE_CHECKING:
    from pyxbroker.ledger.metadata import LedgerMetadata


class LedgerError(Exception):
    """A ledger operation failed; code is the storage's error (bookie/embedded.py)."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class LedgerFenced(LedgerError):
    """Another writer has taken the ledger over: this one must stop."""


class JournalFailed(LedgerError):
    """A bookie stores nothing any more; what it has acknowledged can be read."""


class EntryDamaged(LedgerError):
    """An entry is stored and fails its checksum on every bookie that has it."""


class NoSuchEntry(LedgerError):
    """No bookie has the entry."""


class WrongPassword(LedgerError):
    """A ledger was made with another password than this broker has."""


class NotEnoughBookies(LedgerError):
    """There are fewer of them than a new ledger is to be on."""


def error_of(code: int, ledger_id: int, entry_id: int) -> LedgerError:
    """The error for a bookie's code about one entry."""
    where = f"{ledger_id}:{entry_id}"
    if code == FENCED:
        return LedgerFenced(f"ledger {ledger_id} was taken over by another writer", code)
    if code == DAMAGED:
        return EntryDamaged(f"entry {where} is damaged on disk", code)
    if code in (NO_ENTRY, NO_LEDGER):
        return NoSuchEntry(f"entry {where} is not on its bookie", code)
    return LedgerError(f"the bookie failed for entry {where}: {os.strerror(-code)}", code)


def journal_failed(bookie_id: str, code: int) -> JournalFailed:
    """The error for a bookie whose journal failed with a code."""
    return JournalFailed(
        f"the journal of bookie {bookie_id} failed ({os.strerror(-code)}): nothing can be stored"
        " until the broker is started again, and what is stored can be read",
        code,
    )


def is_lost(error: LedgerError) -> bool:
    """Whether an entry is gone for good; any other error says nothing about it, and may pass."""
    return isinstance(error, (EntryDamaged, NoSuchEntry))


class Bookie(Protocol):
    """What a ledger asks of a bookie, in this process or elsewhere; see EmbeddedBookie."""

    bookie_id: str
    failure: int
    """0, or the storage's error because of which it stores nothing any more."""

    def add_run(
        self,
        adder: LedgerHandle,
        index: int,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        flags: int = 0,
    ) -> bool: ...

    def take_back(self, only: LedgerHandle | None = None) -> None: ...

    def read_cached(
        self, ledger_id: int, first: int, last: int, count_max: int, bytes_max: int
    ) -> EntryBatch | None: ...

    def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | int], None],
    ) -> None: ...


ReadCallback = Callable[[EntryBatch | LedgerError], None]


class ReadHandle:
    """Reads the entries of one ledger from the bookies of its ensemble."""

    __slots__ = ("bookies", "digest", "ledger_id")

    def __init__(self, ledger_id: int, bookies: Sequence[Bookie], digest: Digest = CRC32C) -> None:
        self.ledger_id = ledger_id
        self.bookies = bookies
        self.digest = digest

    def read_cached(
        self, first: int, last: int, count_max: int, bytes_max: int
    ) -> EntryBatch | None:
        """Entries from first on, when a bookie in this process has them in memory."""
        bookie = self.bookies[first % len(self.bookies)]
        batch = bookie.read_cached(self.ledger_id, first, last, count_max, bytes_max)
        return batch if batch is not None and self._has_some(batch) else None

    def _has_some(self, batch: EntryBatch) -> bool:
        """Whether its first entry is as it was written, as far as the ledger's digest tells."""
        return self.digest is CRC32C or batch.unpack(self.digest) > 0

    def read(
        self, first: int, last: int, count_max: int, bytes_max: int, callback: ReadCallback
    ) -> None:
        """Reads entries from first on, at most to last; callback gets a batch or a LedgerError.

        Bookies are asked in the order of the entry's write set, the next one when one fails.
        """
        _Read(self, first, last, count_max, bytes_max, callback).ask()

    def read_future(self, first: int, last: int) -> asyncio.Future[EntryBatch]:
        """The same for coroutines: entries from first on, as many as come in one read."""
        future: asyncio.Future[EntryBatch] = asyncio.get_running_loop().create_future()
        on_read = partial(resolve, future)
        self.read(first, last, min(last - first + 1, 1024), 8 << 20, on_read)
        return future


class _Read:
    """One read, until a bookie has answered it. The bookie alone keeps it: it is in no ring."""

    __slots__ = ("bytes_max", "callback", "count_max", "first", "handle", "last", "order")

    def __init__(
        self,
        handle: ReadHandle,
        first: int,
        last: int,
        count_max: int,
        bytes_max: int,
        callback: ReadCallback,
    ) -> None:
        self.handle = handle
        self.first = first
        self.last = last
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.callback = callback
        count = len(handle.bookies)
        self.order = deque(handle.bookies[(first + i) % count] for i in range(count))

    def ask(self) -> None:
        """Asks the next bookie."""
        self.order.popleft().read(
            *(self.handle.ledger_id, self.first, self.last, self.count_max, self.bytes_max),
            self.on_read,
        )

    def on_read(self, result: EntryBatch | int) -> None:
        if not isinstance(result, int):
            if self.handle._has_some(result):
                self.callback(result)
                return
            result = DAMAGED
        if self.order:
            self.ask()
        else:
            self.callback(error_of(result, self.handle.ledger_id, self.first))


class LedgerHandle(ReadHandle):
    """The one writer of an open ledger: appends runs, confirms them in order.

    listener.on_run_confirmed(run) is called for each run when its entries are on the ack quorum,
    in order; listener.on_ledger_failed(handle, error) once, when no further entry can be confirmed.
    add_flags are those of EmbeddedBookie.add_run for all of its adds.
    """

    __slots__ = (
        *("_drained", "_runs", "add_flags", "failure", "in_metadata", "length", "listener"),
        "pending",
    )

    def __init__(
        self,
        ledger_id: int,
        bookies: Sequence[Bookie],
        write_quorum: int,
        ack_quorum: int,
        listener: LedgerListener,
        add_flags: int = 0,
        digest: Digest = CRC32C,
    ) -> None:
        super().__init__(ledger_id, bookies, digest)
        self.add_flags = add_flags
        self.pending = PendingAdds(len(bookies), write_quorum, ack_quorum)
        self.length = 0
        self.failure: LedgerError | None = None
        self.listener = listener
        self.in_metadata: tuple[LedgerMetadata, int] | None = None  # and version, until closed
        self._runs: deque[EntryRun] = deque()
        self._drained: asyncio.Future[None] | None = None

    @property
    def last_add_confirmed(self) -> int:
        return self.pending.last_add_confirmed

    def append(self, run: EntryRun) -> None:
        """Gives the run its entry ids and sends it to the bookies."""
        run.ledger_id = self.ledger_id
        run.first_entry_id = self.pending.add(run.count)
        length = self.length
        self.length += run.bytes
        self._runs.append(run)
        confirmed = self.pending.last_add_confirmed
        taken = True
        for index, bookie in enumerate(self.bookies):
            if not bookie.add_run(self, index, run, confirmed, length, self.add_flags):
                taken = False
        if taken:
            run.release()

    def on_adds_acked(self, index: int, first: int, last: int) -> None:
        """A bookie has entries first..last (see PendingAdds)."""
        confirmed = self.pending.on_ack(index, first, last)
        if self.failure is not None:
            return
        runs = self._runs
        while runs and runs[0].last_entry_id <= confirmed:
            self.listener.on_run_confirmed(runs.popleft())
        self._check_drained()

    def _check_drained(self) -> None:
        if not self._runs and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def on_adds_failed(self, index: int, first: int, code: int) -> None:
        """A bookie will not have entries from first on."""
        if self.failure is not None:
            return
        bookie = self.bookies[index]
        if bookie.failure or code == FAILED:
            self.failure = journal_failed(bookie.bookie_id, bookie.failure or code)
        else:
            self.failure = error_of(code, self.ledger_id, first)
        self.listener.on_ledger_failed(self, self.failure)
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(self.failure)

    def take_back(self) -> None:
        """Takes back the runs that no bookie was given yet, since there is no room for them."""
        for bookie in self.bookies:
            bookie.take_back(self)

    def on_add_taken_back(self, index: int, run: EntryRun) -> bool:
        """A bookie has nothing of a run that waits for room; False when it has to wait on."""
        if len(self.bookies) > 1 or not self._runs or self._runs[-1] is not run:
            # Another bookie may have it, or one that comes after it.
            return False
        self._runs.pop()
        self.pending.truncate(run.first_entry_id)
        self.length -= run.bytes
        run.release()
        self.listener.on_run_taken_back(run)
        self._check_drained()
        return True

    def take_unconfirmed(self) -> list[EntryRun]:
        """The runs that were never confirmed, after a failure."""
        runs = list(self._runs)
        self._runs.clear()
        return runs

    async def drain(self) -> None:
        """Waits until every appended entry is confirmed. Raises the ledger's failure."""
        if self.failure is not None:
            raise self.failure
        if self._runs:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained


class LedgerListener(Protocol):
    """Who owns a ledger that is being written."""

    def on_run_confirmed(self, run: EntryRun) -> None: ...

    def on_run_taken_back(self, run: EntryRun) -> None: ...

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None: ...
