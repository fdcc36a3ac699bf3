"""The bookie that lives in the broker's process: storage calls instead of a socket."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pyxbroker import _native
from pyxbroker.base.log import get_logger
from pyxbroker.entry import Digest, EntryBatch, EntryRun
from pyxbroker.quorum import StorageWriter
from pyxbroker.reads import StorageReader
from pyxbroker.turn import Turn

log = get_logger("pyxbroker.bookie")

# storage.h, enum storage_error
NO_LEDGER = -2
FAILED = -5
NO_ENTRY = -61
DAMAGED = -74
FULL = -105
FENCED = -116

ADD_RECOVERY = 1
ADD_HIGH_PRIORITY = 0x100
"""What the broker itself has to remember (BookKeeper's high priority writes): it does not wait
behind what clients publish, and is stored also when there is no space for that."""

_SEVERITIES = (log.info, log.warning, log.error)


class Adder(Protocol):
    """Who adds entries: told, by its own ensemble index, which are durable or why not."""

    @property
    def digest(self) -> Digest: ...

    def on_adds_acked(self, index: int, first: int, last: int) -> None: ...

    def on_adds_failed(self, index: int, first: int, code: int) -> None: ...

    def on_add_taken_back(self, index: int, run: EntryRun) -> bool: ...


ReadCallback = Callable[[EntryBatch | int], None]

# adder, its index, run, last add confirmed, length, entries of the run that are stored, flags
_StalledAdd = tuple[Adder, int, EntryRun, int, int, int, int]


class EmbeddedBookie:
    """Adds and reads of the local storage; completions come by its eventfd, a run at a time.

    on_full(bool) is called when the write cache refuses entries and when it takes them again;
    on_trouble() when the storage begins to fail, fails in another way, or works again.
    """

    def __init__(
        self,
        storage: _native.Storage,
        turn: Turn,
        bookie_id: str,
        on_full: Callable[[bool], None],
        on_trouble: Callable[[], None] | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self.storage = storage
        self.failure: int = 0
        self.trouble: int = 0
        """0, or the negative errno because of which nothing can be stored for now."""
        self.holding = False
        """Nothing that clients publish is given to the storage."""
        self._closed = False
        self._turn = turn
        self._on_full = on_full
        self._on_trouble = on_trouble
        self._writer = StorageWriter(storage)
        self._reader = StorageReader(storage)
        # (sequence, adder, index, first, last): runs in the order in which they become durable.
        self._adds: deque[tuple[int, Adder, int, int, int]] = deque()
        # Adds that the write cache had no room for, and those of high priority apart.
        self._stalled: deque[_StalledAdd] = deque()
        self._urgent: deque[_StalledAdd] = deque()
        self._waiting_fences: deque[tuple[int, Callable[[int], None]]] = deque()
        self._syncs: deque[tuple[int, Callable[[int], None]]] = deque()
        self._reads: dict[int, ReadCallback] = {}
        self._commit_due = False
        self._event_fd = storage.event_fd
        turn.loop.add_reader(self._event_fd, self._on_event)

    # --- adds ---------------------------------------------------------------------------------

    def add_run(
        self,
        adder: Adder,
        index: int,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        flags: int = 0,
    ) -> bool:
        """Adds a run; False when it has to wait for room (its data is copied then).

        length: bytes of the ledger before the run. The answer comes through adder.
        """
        if self.failure:
            adder.on_adds_failed(index, run.first_entry_id, self.failure)
            return True
        if self._urgent if flags & ADD_HIGH_PRIORITY else self._stalled or self.holding:
            self._stall(adder, index, run, last_add_confirmed, length, 0, flags)
            return False
        return self._add(adder, index, run, last_add_confirmed, length, 0, flags)

    def _add(
        self,
        adder: Adder,
        index: int,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        done: int,
        flags: int,
    ) -> bool:
        added, sequence, error = self._writer.add_run(
            run, last_add_confirmed, length, done, flags, adder.digest
        )
        first = run.first_entry_id
        if added > done:
            self._adds.append((sequence, adder, index, first + done, first + added - 1))
            self._schedule_commit()
        if error == FULL:
            self._stall(adder, index, run, last_add_confirmed, length, added, flags)
            return False
        if error:
            adder.on_adds_failed(index, first + added, error)
        return True

    def _stall(
        self,
        adder: Adder,
        index: int,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        done: int,
        flags: int,
    ) -> None:
        run.keep()
        add = (adder, index, run, last_add_confirmed, length, done, flags)
        if flags & ADD_HIGH_PRIORITY:
            self._urgent.append(add)
            return
        if not self._stalled or self.holding:
            self._on_full(True)
        self._stalled.append(add)

    def _retry_stalled(self) -> None:
        """Gives the storage what waits for room, while it takes it."""
        urgent, self._urgent = self._urgent, deque()
        if not self._retry(urgent):
            self._urgent.extend(urgent)
            return
        waiting, self._stalled = self._stalled, deque()
        if not waiting:
            return
        if self._retry(waiting):
            self._on_full(False)
        else:
            self._stalled.extend(waiting)

    def _retry(self, waiting: deque[_StalledAdd]) -> bool:
        """Adds them from the front on; False when some had to stay."""
        while waiting:
            adder, index, run, last_add_confirmed, length, done, flags = waiting[0]
            if self.holding and not done and not flags & ADD_HIGH_PRIORITY:
                return False
            waiting.popleft()
            if not self._add(adder, index, run, last_add_confirmed, length, done, flags):
                return False
            run.release()
        return True

    def set_holding(self, on: bool) -> None:
        """Whether what clients publish waits here: there is no space for it. What the broker itself
        has to remember is stored all the same.
        """
        self.holding = on
        if not on and not self.failure and not self._closed:
            self._retry_stalled()

    def take_back(self, only: Adder | None = None) -> None:
        """Gives what waits for room back to its ledgers, newest first, as if it had never come.

        A run of which the storage has a part stays, and so do adds of high priority.
        """
        if not self._stalled:
            return
        kept: deque[_StalledAdd] = deque()
        while self._stalled:
            add = self._stalled.pop()
            adder, index, run, _, _, done, _ = add
            is_wanted = only is None or adder is only
            if done or not is_wanted or not adder.on_add_taken_back(index, run):
                kept.appendleft(add)
        self._stalled = kept
        if not kept:
            self._on_full(False)

    def add_packaged(self, adder: Adder, index: int, entry_id: int, packaged: bytes) -> None:
        """Adds one entry as another bookie stored it, also when the ledger is fenced."""
        sequence = self.failure or self._writer.add_packaged(packaged, ADD_RECOVERY)
        if sequence < 0:
            adder.on_adds_failed(index, entry_id, sequence)
            return
        self._adds.append((sequence, adder, index, entry_id, entry_id))
        self._schedule_commit()

    def fence(self, ledger_id: int, callback: Callable[[int], None]) -> None:
        """Fences a ledger; callback(0) when that is durable, callback(error) when it failed."""
        try:
            sequence = self.failure or self.storage.fence(ledger_id)
        except OSError as error:
            sequence = -(error.errno or -FAILED)
        if sequence == FULL:
            # The write cache has no room: tried again when it has, as adds are.
            self._waiting_fences.append((ledger_id, callback))
        elif sequence < 0:
            callback(sequence)
        else:
            self._syncs.append((sequence, callback))
            self._schedule_commit()

    def _schedule_commit(self) -> None:
        if not self._commit_due:
            self._commit_due = True
            self._turn.at_end(self._commit)

    def _commit(self) -> None:
        self._commit_due = False
        if not self._closed:
            self._writer.commit()

    # --- reads --------------------------------------------------------------------------------

    def read_cached(
        self, ledger_id: int, first: int, last: int, count_max: int, bytes_max: int
    ) -> EntryBatch | None:
        """Entries from first on that are in memory, or None when first is not."""
        if self._closed:
            return None
        return self._reader.read_cached(ledger_id, first, last, count_max, bytes_max)

    def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        count_max: int,
        bytes_max: int,
        callback: ReadCallback,
    ) -> None:
        """Reads from disk; callback(EntryBatch), or callback(storage error) for entry first."""
        tag = FAILED
        if not self._closed:
            tag = self._reader.submit(ledger_id, first, last, count_max, bytes_max)
        if tag < 0:
            self._turn.loop.call_soon(self._turn.run, callback, tag)
        else:
            self._reads[tag] = callback

    def last_entry(self, ledger_id: int) -> int:
        """Highest entry id stored here; -1 when there is none, or the ledger was never seen."""
        if self._closed:
            return -1
        try:
            found: int = self.storage.last_entry(ledger_id)
        except FileNotFoundError:
            return -1
        return found

    def delete_ledger(self, ledger_id: int) -> None:
        """Frees a ledger's space; nothing happens when no entry of it was ever stored."""
        if self._closed:
            return
        try:
            self.storage.delete_ledger(ledger_id)
        except FileNotFoundError:
            return

    # --- completions --------------------------------------------------------------------------

    def _on_event(self) -> None:
        os.eventfd_read(self._event_fd)
        self._turn.run(self._complete)

    def _complete(self) -> None:
        durable = self._writer.durable_sequence()
        adds = self._adds
        while adds and adds[0][0] <= durable:
            _, adder, index, first, last = adds.popleft()
            self._answer(adder.on_adds_acked, index, first, last)
        while self._syncs and self._syncs[0][0] <= durable:
            self._answer(self._syncs.popleft()[1], 0)
        code = self._writer.failure()
        if code and not self.failure:
            self._fail(code)
        if self.storage.trouble() != self.trouble:
            self._change_trouble()
        if self._reads:
            for tag, result in self._reader.completions():
                self._answer(self._reads.pop(tag), result)
        if (self._stalled or self._urgent) and not self.failure:
            self._retry_stalled()
        for _ in range(len(self._waiting_fences)):
            self.fence(*self._waiting_fences.popleft())
        self._log_events()

    def _change_trouble(self) -> None:
        self.trouble = self.storage.trouble()
        if self._on_trouble is not None:
            self._on_trouble()

    @staticmethod
    def _answer(callback: Callable[..., None], *results: object) -> None:
        """One ledger's or reader's mistake must not keep the answers from the others."""
        try:
            callback(*results)
        except Exception as error:
            log.failure("an answer of the storage was not taken in", error)

    def _fail(self, code: int) -> None:
        """The journal failed: nothing that is not durable now will ever be."""
        self.failure = code
        adds, self._adds = self._adds, deque()
        stalled, self._stalled = self._stalled, deque()
        urgent, self._urgent = self._urgent, deque()
        syncs, self._syncs = self._syncs, deque()
        for _, adder, index, first, _last in adds:
            self._answer(adder.on_adds_failed, index, first, code)
        for adder, index, run, _lac, _length, done, _flags in (*urgent, *stalled):
            self._answer(adder.on_adds_failed, index, run.first_entry_id + done, code)
        for _, callback in syncs:
            self._answer(callback, code)
        if stalled:
            self._on_full(False)
        if self._on_trouble is not None:
            self._on_trouble()

    def _log_events(self) -> None:
        while (event := self.storage.next_event()) is not None:
            severity, text = event
            _SEVERITIES[severity](text)

    # --- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stops taking completions and closes the storage; what is not written yet is flushed.

        The flush is the disk's work and takes as long as the disk does, in a thread.
        """
        self._turn.loop.remove_reader(self._event_fd)
        self._reads.clear()
        journal_failed = bool(self.failure)
        # Whoever comes later is answered, and never reaches the storage.
        self._closed = True
        self.failure = self.failure or FAILED
        await asyncio.to_thread(self.storage.close, flush=not journal_failed)
        if journal_failed:
            log.error("the journal had failed; the next start recovers what was acknowledged")
