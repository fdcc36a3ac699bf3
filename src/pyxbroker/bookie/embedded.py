"""The bookie inside the broker's process: calls of the storage instead of a socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable

from pyxbroker import _native
from pyxbroker.base.log import get_logger
from pyxbroker.bookie.layout import Layout
from pyxbroker.entry import Digest, EntryBatch, EntryRun
from pyxbroker.ledger.bookie import (
    ADD_HIGH_PRIORITY,
    FAILED,
    FULL,
    LOST_CODES,
    Adder,
    PositionCallback,
    ReadCallback,
    Stripe,
)
from pyxbroker.storage import StorageReader, StorageWriter
from pyxbroker.turn import Turn

log = get_logger("pyxbroker.bookie")

_SEVERITIES = (log.info, log.warning, log.error)

# In the header of a packaged entry (digest.h).
_LAST_ADD_CONFIRMED_AT = slice(16, 24)

# adder, its slot, run, last add confirmed, length, number of the run's stored entries, flags
_StalledAdd = tuple[Adder, int, EntryRun, int, int, int, int]


class EmbeddedBookie:
    """Adds to and reads from the local storage; completions arrive in batches, by its eventfd.

    Implements ledger/bookie.py. It is the only bookie of its ensembles, so its adds have no stripe.
    It calls on_full(True) when the write cache refuses entries and on_full(False) when the cache
    accepts them again. It calls on_trouble() when the storage starts to fail, fails for another
    reason, or works again. `layout` has the paths of the files that the storage's events name.
    """

    is_embedded = True

    def __init__(
        self,
        storage: _native.Storage,
        turn: Turn,
        bookie_id: str,
        on_full: Callable[[bool], None],
        on_trouble: Callable[[], None] | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self.storage = storage
        self.failure: int = 0
        self.trouble: int = 0
        """0, or the negative errno of the condition that prevents writes for now."""
        self.holding = False
        """True while messages of clients wait here and are not passed to the storage."""
        self._closed = False
        self._held_deletions: list[int] | None = None  # while deletions are held
        self._begin_copy: Callable[[int, bool], None] | None = None  # waits for the flush thread
        self._turn = turn
        self._on_full = on_full
        self._on_trouble = on_trouble
        self._layout = layout
        self._writer = StorageWriter(storage)
        self._reader = StorageReader(storage)
        # (sequence, adder, slot, first, last): runs in the order in which they become durable.
        self._adds: deque[tuple[int, Adder, int, int, int]] = deque()
        # Adds that wait for room in the write cache, and those of high priority separately.
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
        slot: int,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        flags: int = 0,
        stripe: Stripe | None = None,
    ) -> bool:
        """Add a run; return False when it must wait for room (its data is copied then)."""
        assert stripe is None, "the embedded bookie is the only one of its ensembles"
        if self.failure:
            self._later(adder.on_adds_failed, slot, run.first_entry_id, self.failure)
            return True
        if self._urgent if flags & ADD_HIGH_PRIORITY else self._stalled or self.holding:
            self._stall(adder, slot, run, last_add_confirmed, length, 0, flags)
            return False
        return self._add(adder, slot, run, last_add_confirmed, length, 0, flags)

    def _add(
        self,
        adder: Adder,
        slot: int,
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
            self._adds.append((sequence, adder, slot, first + done, first + added - 1))
            self._schedule_commit()
        if error == FULL:
            self._stall(adder, slot, run, last_add_confirmed, length, added, flags)
            return False
        if error:
            self._later(adder.on_adds_failed, slot, first + added, error)
        return True

    def _stall(
        self,
        adder: Adder,
        slot: int,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        done: int,
        flags: int,
    ) -> None:
        run.copy_data()
        add = (adder, slot, run, last_add_confirmed, length, done, flags)
        if flags & ADD_HIGH_PRIORITY:
            self._urgent.append(add)
            return
        if not self._stalled or self.holding:
            self._on_full(True)
        self._stalled.append(add)

    def _retry_stalled(self) -> None:
        """Add the waiting runs while the storage has room."""
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
        """Add runs from the front of the queue; return False when some are left."""
        while waiting:
            adder, slot, run, last_add_confirmed, length, done, flags = waiting[0]
            if self.holding and not done and not flags & ADD_HIGH_PRIORITY:
                return False
            waiting.popleft()
            if not self._add(adder, slot, run, last_add_confirmed, length, done, flags):
                return False
            run.release()
        return True

    def set_holding(self, on: bool) -> None:
        """Hold back messages of clients while there is no space for them.

        Adds of high priority, the broker's own state, are stored nevertheless.
        """
        self.holding = on
        if not on and not self.failure and not self._closed:
            self._retry_stalled()

    def take_back(self, only: Adder | None = None) -> None:
        """Return the waiting adds to their ledgers, newest first, as if they were never added.

        Runs that are partly stored stay, and so do adds of high priority.
        """
        if not self._stalled:
            return
        kept: deque[_StalledAdd] = deque()
        while self._stalled:
            add = self._stalled.pop()
            adder, slot, run, _, _, done, _ = add
            is_wanted = only is None or adder is only
            if done or not is_wanted or not adder.on_add_taken_back(slot, run):
                kept.appendleft(add)
        self._stalled = kept
        if not kept:
            self._on_full(False)

    def fence(self, ledger_id: int, digest: Digest, callback: PositionCallback) -> None:
        """Fence a ledger; callback(last add confirmed) when that is durable. The last entry names
        it; when that entry is damaged, the answer is -1.
        """

        def on_fenced(code: int) -> None:
            last = -1 if self._closed else self._last_entry(ledger_id)
            if code or last < 0:
                callback(code or -1)
            else:
                self.read(ledger_id, last, last, 1, 1, on_read)

        def on_read(result: EntryBatch | int) -> None:
            if not isinstance(result, int):
                confirmed = b"" if not result.unpack(digest) else result.packaged(0)
                at = confirmed[_LAST_ADD_CONFIRMED_AT]
                result = int.from_bytes(at, "big", signed=True) if at else -1
            callback(-1 if result in LOST_CODES else result)

        self._fence(ledger_id, on_fenced)

    def _fence(self, ledger_id: int, callback: Callable[[int], None]) -> None:
        """Fence a ledger; callback(0) when that is durable, callback(error) when it failed."""
        try:
            sequence = self.failure or self.storage.fence(ledger_id)
        except OSError as error:
            sequence = -(error.errno or -FAILED)
        if sequence == FULL:
            # The write cache has no room: retried when it has, like adds.
            self._waiting_fences.append((ledger_id, callback))
        elif sequence < 0:
            self._later(callback, sequence)
        else:
            self._syncs.append((sequence, callback))
            self._schedule_commit()

    def _later(self, callback: Callable[..., None], *results: object) -> None:
        """Answer from a later iteration of the event loop."""
        self._turn.loop.call_soon(self._turn.run, self._answer, callback, *results)

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
        """Return cached entries starting at `first`, or None when `first` is not cached."""
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
        fencing_key: bytes | None = None,
    ) -> None:
        """Read from disk; callback(EntryBatch), or callback(storage error) for entry `first`."""
        if fencing_key is not None:
            asked = (ledger_id, first, last, count_max, bytes_max, callback)
            self._fence(ledger_id, lambda code: callback(code) if code else self.read(*asked))
            return
        tag = FAILED
        if not self._closed:
            tag = self._reader.submit(ledger_id, first, last, count_max, bytes_max)
        if tag < 0:
            self._later(callback, tag)
        else:
            self._reads[tag] = callback

    def last_entry(self, ledger_id: int, callback: PositionCallback) -> None:
        """Report the highest stored entry id; -1 without entries, or after the close."""
        self._later(callback, -1 if self._closed else self._last_entry(ledger_id))

    def _last_entry(self, ledger_id: int) -> int:
        with contextlib.suppress(FileNotFoundError):
            return self.storage.last_entry(ledger_id)
        return -1

    def delete_ledger(self, ledger_id: int) -> None:
        """Free a ledger's space; does nothing when none of its entries was ever stored."""
        if self._closed:
            return
        if self._held_deletions is not None:
            self._held_deletions.append(ledger_id)
            return
        with contextlib.suppress(FileNotFoundError):
            self.storage.delete_ledger(ledger_id)

    def hold_deletions(self, on: bool) -> None:
        """Delay deletions of ledgers while a backup reads the entry logs.

        A crash meanwhile delays them until garbage collection.
        """
        held, self._held_deletions = self._held_deletions, [] if on else None
        for ledger_id in held or ():
            self.delete_ledger(ledger_id)

    def begin_copy(self, callback: Callable[[int, bool], None] | None) -> None:
        """Start a flush of all entries added so far, once no other flush is under way.

        callback(end, is_flushing) is called in that moment: the entry logs with an id below `end`
        will have exactly these entries; if `is_flushing`, the last of them is being written. None
        withdraws the request.
        """
        self._begin_copy = callback
        if callback is not None:
            self._try_copy(callback)

    def _try_copy(self, callback: Callable[[int, bool], None]) -> None:
        try:
            end, is_flushing = self.storage.begin_copy()
        except OSError:
            return  # Another flush is under way, or memory is short; its end is an event.
        self._begin_copy = None
        callback(end, is_flushing)

    def save_space(self, is_short: bool) -> None:
        """Remove spare journal files while the journal's disk is short of space."""
        if not self._closed:
            self.storage.save_space(is_short)

    # --- completions --------------------------------------------------------------------------

    def _on_event(self) -> None:
        os.eventfd_read(self._event_fd)
        self._turn.run(self._complete)

    def _complete(self) -> None:
        durable = self._writer.durable_sequence()
        adds = self._adds
        while adds and adds[0][0] <= durable:
            _, adder, slot, first, last = adds.popleft()
            self._answer(adder.on_adds_acked, slot, first, last)
        while self._syncs and self._syncs[0][0] <= durable:
            self._answer(self._syncs.popleft()[1], 0)
        code = self._writer.failure()
        if code and not self.failure:
            self._fail(code)
        if self.storage.trouble() != self.trouble:
            self._change_trouble()
        if self._begin_copy is not None:
            self._try_copy(self._begin_copy)
        if self._reads:
            for tag, result in self._reader.completions():
                self._answer(self._reads.pop(tag), result)
        if (self._stalled or self._urgent) and not self.failure:
            self._retry_stalled()
        for _ in range(len(self._waiting_fences)):
            self._fence(*self._waiting_fences.popleft())
        self._log_events()

    def _change_trouble(self) -> None:
        self.trouble = self.storage.trouble()
        if self._on_trouble is not None:
            self._on_trouble()

    @staticmethod
    def _answer(callback: Callable[..., None], *results: object) -> None:
        """Call back. An exception of one ledger or reader must not affect the others."""
        try:
            callback(*results)
        except Exception as error:
            log.failure("a callback of the storage failed", error)

    def _fail(self, code: int) -> None:
        """Handle the journal's failure: adds that are not durable now never will be."""
        self.failure = code
        adds, self._adds = self._adds, deque()
        stalled, self._stalled = self._stalled, deque()
        urgent, self._urgent = self._urgent, deque()
        syncs, self._syncs = self._syncs, deque()
        for _, adder, slot, first, _last in adds:
            self._answer(adder.on_adds_failed, slot, first, code)
        for adder, slot, run, _lac, _length, done, _flags in (*urgent, *stalled):
            self._answer(adder.on_adds_failed, slot, run.first_entry_id + done, code)
        for _, callback in syncs:
            self._answer(callback, code)
        if stalled:
            self._on_full(False)
        if self._on_trouble is not None:
            self._on_trouble()

    def _log_events(self) -> None:
        while (event := self.storage.next_event()) is not None:
            severity, text = event
            path = None if self._layout is None else self._layout.path_in(text)
            _SEVERITIES[severity](text, **({} if path is None else {"path": path}))

    # --- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop taking completions and close the storage, which flushes unwritten entries.

        The flush runs in a thread and takes as long as the disk needs.
        """
        self._turn.loop.remove_reader(self._event_fd)
        self._reads.clear()
        journal_failed = bool(self.failure)
        # Later calls are answered here and do not reach the storage.
        self._closed = True
        self.failure = self.failure or FAILED
        await asyncio.to_thread(self.storage.close, flush=not journal_failed)
        if journal_failed:
            log.error("the journal has failed; the next start recovers all acknowledged entries")
