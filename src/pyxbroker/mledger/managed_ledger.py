"""A managed ledger: an endless log in a list of ledgers, with one writer (ManagedLedgerImpl).

The list is one metadata node, and its last ledger is the one being written. Opening a managed
ledger takes that ledger over (fences and recovers it), so that an earlier owner can confirm nothing
more, and continues in a new ledger. Every change of the list is a compare-and-set: if another
broker has changed the node, that broker owns the managed ledger, and this one is fenced. Therefore
a write of the list completes even if its caller is cancelled. Otherwise a broker could mistake its
own write for another broker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyxbroker.add_stats import NO_ADDS, AddStats
from pyxbroker.base.clock import age_s, wall_s
from pyxbroker.base.log import get_logger
from pyxbroker.base.run_to_completion import run_to_completion
from pyxbroker.base.slices import in_slices
from pyxbroker.entry import EntryBatch, EntryRun, Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import JournalFailed, LedgerError, NoSuchEntry, NotEnoughBookies
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.reader import ReadHandle
from pyxbroker.ledger.retries import Retries
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    MetadataError,
    MetadataStore,
    NoSpace,
    Put,
)
from pyxbroker.mledger import positions, trimming
from pyxbroker.mledger.errors import (
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerNotReady,
    ManagedLedgerTakenBack,
    ManagedLedgerTerminated,
    ManagedLedgerTooFewBookies,
    ManagedLedgerWriteFailed,
)
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.listener import Listener, Watchers
from pyxbroker.mledger.positions import LedgerInfo
from pyxbroker.mledger.read_entries import read_entries
from pyxbroker.mledger.state import State

if TYPE_CHECKING:
    from pyxbroker.base.pacing import StepQueue
    from pyxbroker.mledger.cursor import Cursor
    from pyxbroker.mledger.entry_cache import LedgerCache

log = get_logger("pyxbroker.mledger")


ReadCallback = Callable[[EntryBatch | LedgerError], None]

CURSORS_PER_CLOSE = 64  # cursors that are closed together
CURSORS_PER_CALL = 64  # cursors whose limits change in one call
PASSING = (State.OPENING, State.CREATING_LEDGER, State.TERMINATED, State.CLOSED)
"""States after which a retry helps, here or after the managed ledger is opened again."""


class ManagedLedger:
    """The log of one topic. open_managed_ledger (mledger/opening.py) creates it.

    Rarely used attributes default on the class, so that instances stay within CPython's shared-key
    limit of 30.
    """

    add_stats: AddStats | None = None  # set by the first add
    before_list_write: Callable[[], None] | None = None  # updates the properties
    entries_read = 0
    entries_read_from_disk = 0  # of them, those that were not in memory
    on_confirmed: Callable[[EntryRun], None] | None = None  # called with durable runs
    terminated_position: Position | None = None
    # The terminated position once all appended entries are confirmed, to be stored in the list.
    stored_end: Position | None = None
    last_added_s = 0.0  # when an entry was last confirmed, since 1970; 0: none since it was opened
    was_closed = False  # the previous owner closed it cleanly
    is_closing = False  # during close()
    write_failure: ManagedLedgerWriteFailed | None = None  # set: nothing can be stored any more
    _failure: ManagedLedgerError | None = None
    _trim_failure: Exception | None = None  # the error of the last trim
    # A cursor that needed the oldest ledger at the last check.
    holder: trimming.TrimmedCursor | None = None
    _cursor_queue: StepQueue | None = None
    cache: LedgerCache | None = None  # for bookies in other processes

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        ledgers: LedgerClient,
        limits: ManagedLedgerLimits,
    ) -> None:
        self.name = name
        self.store = store
        self.client = ledgers
        self.limits = limits
        self.state = State.OPENING
        self.listener: Listener | None = None
        self.version = MUST_NOT_EXIST
        self.properties: dict[str, str] = {}
        self.ledgers: dict[int, LedgerInfo] = {}
        self.highest_ledger_id = -1
        """The next ledger gets a higher id, also if that ledger is not in the list any more:
        cursors may be there, and positions must ascend. Another broker may have fetched lower ids
        ahead."""
        self.cursors: dict[str, Cursor] = {}
        self.unreadable: set[str] = set()  # names of cursors, which prevent trimming
        self.lack_of_bookies = ""  # the reason, in the state TOO_FEW_BOOKIES
        self._lack_ended: asyncio.Event | None = None  # of producers that wait for bookies
        self.current: LedgerHandle | None = None
        self.last_confirmed = Position(-1, -1)
        self.entries_added = 0
        self.size = 0  # bytes of all ledgers in the list
        self._ids: list[int] = []  # keys of self.ledgers, ascending
        self._cumulative: list[int] = [0]  # entries before each closed ledger
        self._current_since = 0.0
        self._waiting: deque[EntryRun] = deque()
        self._watchers = Watchers(ledgers.turn)
        self._readers: dict[int, ReadHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._trimming = False
        self._closing = False  # stays set
        self._info_lock = asyncio.Lock()

    def watch(self, wake: Callable[[], None]) -> None:
        """Call wake at the end of each turn that brought entries, until unwatch(wake)."""
        self._watchers.add(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Stop calling wake, if it is watching."""
        self._watchers.remove(wake)

    def set_limits(self, limits: ManagedLedgerLimits) -> None:
        """Apply new limits."""
        before, self.limits = self.limits, limits
        if limits.quorums != before.quorums:
            self.on_bookies_changed()
        if limits.mark_delete_per_s != before.mark_delete_per_s:
            if len(self.cursors) <= CURSORS_PER_CALL:
                for cursor in self.cursors.values():
                    cursor.on_limits()
            else:
                self.spawn(self._apply_rate(limits.mark_delete_per_s))

    def on_bookies_changed(self) -> None:
        """Begin the next ledger, if there were too few bookies for it until now."""
        if self.state is State.TOO_FEW_BOOKIES and not self._closing:
            self.state = State.CREATING_LEDGER
            self.spawn(self._begin_next(Retries(f"the next ledger of {self.name}")))

    async def wait_for_bookies(self, timeout_s: float) -> None:
        """Wait while there are too few bookies for the next ledger, and new ones may come."""
        if self.state is not State.TOO_FEW_BOOKIES or not self.client.may_gain_bookies:
            return
        if self._lack_ended is None:
            self._lack_ended = asyncio.Event()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._lack_ended.wait(), timeout_s)

    def _end_lack(self) -> None:
        if self._lack_ended is not None:
            self._lack_ended.set()
            self._lack_ended = None

    async def _apply_rate(self, rate: float) -> None:
        """Apply a changed rate to the present cursors, until it changes again."""
        async for cursor in in_slices(list(self.cursors.values())):
            if self.limits.mark_delete_per_s != rate:
                return  # another task applies the new rate to all cursors
            cursor.on_limits()

    # --- the list -----------------------------------------------------------------------------

    def index_ledgers(self) -> None:
        """Update what is derived from self.ledgers after the list changed."""
        self._ids = sorted(self.ledgers)
        total = 0
        self._cumulative = []
        for ledger_id in self._ids:
            self._cumulative.append(total)
            total += self.ledgers[ledger_id].entries
        for ledger_id in list(self._readers):
            if ledger_id not in self.ledgers:
                del self._readers[ledger_id]

    @property
    def ledger_ids(self) -> Sequence[int]:
        """The ids of all ledgers in the list, ascending."""
        return self._ids

    async def write_info(self) -> None:
        """Write the list. Raises ManagedLedgerFenced if another broker has changed it."""
        async with self._info_lock:
            await run_to_completion(self._write_info())

    async def _write_info(self) -> None:
        try:
            result = await self.store.put(*self._list_put(self.ledgers.values()))
        except BadVersion as error:
            raise self.fence(str(error)) from error
        self.version = result.version

    async def put_property(self, key: str, value: str) -> None:
        """Store a property with the list, like change_properties."""
        await self.change_properties(lambda properties: {**properties, key: value})

    async def change_properties(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change the properties stored with the list, durably.

        Raises the errors of `change`, ManagedLedgerError and MetadataError. After a MetadataError,
        the outcome is unknown until the managed ledger is opened again.
        """
        async with self._info_lock:
            if self.is_dead:
                raise self.refusal()
            await run_to_completion(self._change_properties(change))

    async def _change_properties(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        before = self.properties
        self.properties = change(before)
        try:
            await self._write_info()
        except BaseException:
            self.properties = before
            raise

    async def create_with_property(
        self,
        create: Callable[[Callable[[int], Put]], Awaitable[tuple[LedgerHandle, int]]],
        key: str,
        value_of: Callable[[int], str],
    ) -> LedgerHandle:
        """Create a ledger outside of the list, and a property of the list that names it, in one
        atomic write. Raises LedgerError, MetadataError, ManagedLedgerError.
        """
        async with self._info_lock:
            if self.is_dead:
                raise self.refusal()
            return await run_to_completion(self._create_with_property(create, key, value_of))

    async def _create_with_property(
        self,
        create: Callable[[Callable[[int], Put]], Awaitable[tuple[LedgerHandle, int]]],
        key: str,
        value_of: Callable[[int], str],
    ) -> LedgerHandle:
        before = self.properties

        def naming(ledger_id: int) -> Put:
            self.properties = {**before, key: value_of(ledger_id)}
            return self._list_put(self.ledgers.values())

        try:
            handle, self.version = await create(naming)
        except BadVersion as error:
            raise self.fence(str(error)) from error
        except BaseException:
            self.properties = before
            raise
        return handle

    def _list_put(self, ledgers: Iterable[LedgerInfo]) -> Put:
        """Return the write that replaces the list in the node."""
        if self.before_list_write is not None:
            self.before_list_write()
        records = (
            positions.LedgerRecord(
                info.ledger_id, info.entries, info.size, info.timestamp_ms, info.raw
            )
            for info in ledgers
        )
        value = positions.encode_ledger_list(records, self.properties, self.stored_end)
        return Put(paths.managed_ledger(self.name), value, self.version)

    def fence(self, reason: str) -> ManagedLedgerFenced:
        """Stop writing, since another broker has made a change that only an owner makes."""
        fenced = ManagedLedgerFenced(f"{self.name} is owned by another broker: {reason}")
        self.fail(State.FENCED, fenced)
        return fenced

    def last_entry(self, ledger_id: int) -> int | None:
        """Return the last confirmed entry of a ledger (-1: none yet), None if it is unknown."""
        current = self.current
        if current is not None and ledger_id == current.ledger_id:
            return current.last_add_confirmed
        info = self.ledgers.get(ledger_id)
        return None if info is None else info.entries - 1

    def ledger_after(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the following ledger if entry_id is the last one of a closed ledger."""
        if self.current is not None and ledger_id == self.current.ledger_id:
            return None
        last = self.last_entry(ledger_id)
        if last is not None and entry_id < last:
            return None
        at = bisect_right(self._ids, ledger_id)
        return self._ids[at] if at < len(self._ids) else None

    def next_position(self, position: tuple[int, int]) -> Position:
        """Return where the entry after a position is, or will be."""
        ledger_id, entry_id = position
        following = self.ledger_after(ledger_id, entry_id)
        while following is not None and self.ledgers[following].entries == 0:
            if self.current is not None and following == self.current.ledger_id:
                break
            further = self.ledger_after(following, -1)
            if further is None:
                break
            following = further
        if following is not None:
            return Position(following, 0)
        return Position(ledger_id, entry_id + 1)

    def first_position(self) -> Position:
        """Return the position just before the first retained entry."""
        if not self._ids:
            return Position(-1, -1)
        return Position(self._ids[0], -1)

    def ordinal(self, position: tuple[int, int]) -> int:
        """Return the number of retained entries up to and including a position."""
        ledger_id, entry_id = position
        at = bisect_right(self._ids, ledger_id) - 1
        if at < 0:
            return 0
        if self._ids[at] != ledger_id:
            last = self.last_entry(self._ids[at])
            return self._cumulative[at] + (last or 0) + 1
        last = self.last_entry(ledger_id)
        return self._cumulative[at] + min(entry_id, -1 if last is None else last) + 1

    def position_of(self, index: int) -> Position:
        """Return the position of the index-th retained entry (from 0)."""
        at = bisect_right(self._cumulative, index) - 1
        return Position(self._ids[at], index - self._cumulative[at])

    def entries_between(self, after: tuple[int, int], last: tuple[int, int]) -> int:
        """Return the number of retained entries in the range (after, last]."""
        return max(self.ordinal(last) - self.ordinal(after), 0)

    @property
    def entries(self) -> int:
        """The number of retained entries."""
        return self.ordinal(self.last_confirmed)

    @property
    def current_since_s(self) -> float:
        """The time in s since 1970 when the current ledger was begun; 0 before the first one."""
        if not self._current_since:
            return 0.0
        return wall_s() - (age_s() - self._current_since)

    @property
    def watcher_count(self) -> int:
        """The number of watchers for new entries."""
        return len(self._watchers)

    @property
    def waiting_runs(self) -> int:
        """The number of runs that wait for the next ledger."""
        return len(self._waiting)

    @property
    def failure(self) -> ManagedLedgerError | None:
        """The error that stopped it, or None."""
        return self._failure

    @property
    def is_dead(self) -> bool:
        """True if it has failed or was closed, so that it must be opened again."""
        return self.state in (State.FAILED, State.FENCED, State.CLOSED)

    def refusal(self) -> ManagedLedgerError:
        """Return the error for an operation that the present state does not allow."""
        if self._failure is not None:
            return self._failure
        if self.state is State.TOO_FEW_BOOKIES:
            return self._too_few_bookies()
        reason = f"{self.name} is {self.state.value}"
        if self.state in PASSING:
            return ManagedLedgerNotReady(f"{reason}; try again")
        return ManagedLedgerError(reason)

    @property
    def is_terminated(self) -> bool:
        """True if its last entry is confirmed, and no other can follow."""
        return self.state is State.TERMINATED and self.current is None

    # --- adding -------------------------------------------------------------------------------

    def append(self, run: EntryRun) -> None:
        """Append a run. Its owner is notified when its entries are durable, or with the error.

        The run's data is needed only during this call. Raises ManagedLedgerError if nothing can be
        added now; then the run's owner is not notified.
        """
        if self.state is State.OPEN:
            current = self.current
            assert current is not None
            current.append(run)
            if current.pending.next >= self.limits.entries_per_ledger_max or (
                current.length >= self.limits.bytes_per_ledger_max
            ):
                self._roll_over_if_due()
        elif self.state is State.CREATING_LEDGER:
            run.copy_data()
            self._waiting.append(run)
        elif self.state is State.TERMINATED:
            raise ManagedLedgerTerminated("Topic was already terminated")
        else:
            raise self.refusal()

    def on_run_confirmed(self, run: EntryRun) -> None:
        """A run has reached its ack quorum in the current ledger."""
        self.last_confirmed = Position(run.ledger_id, run.last_entry_id)
        self.entries_added += run.count
        self.last_added_s = time.time()
        self.size += run.bytes
        (self.add_stats or self._begin_add_stats()).on_added(run)
        if self.cache is not None and len(self._watchers):
            self.cache.add_run(run)
        try:
            run.owner.on_run_added(run)
            if self.on_confirmed is not None:
                self.on_confirmed(run)
        except Exception as error:
            self.on_defect("handling a confirmed run failed", error)
        self._watchers.schedule_round()

    def _begin_add_stats(self) -> AddStats:
        self.add_stats = AddStats(self.client.publish_latency)
        return self.add_stats

    def last_adds(self) -> tuple[int, ...]:
        """Return histograms of latency and size of the adds in the last period (add_stats.pyi)."""
        return NO_ADDS if self.add_stats is None else self.add_stats.last_period()

    def take_back(self) -> None:
        """Fail the runs of which nothing is stored, while there is no space for them."""
        if self.client.is_holding:
            self.take_back_waiting()
            if self.current is not None:
                self.current.take_back()

    def take_back_waiting(self) -> None:
        """Fail only the runs that wait for the next ledger."""
        while self._waiting:
            self.on_run_taken_back(self._waiting.pop())

    def on_run_taken_back(self, run: EntryRun) -> None:
        """Fail a run that had waited for space."""
        error = ManagedLedgerTakenBack(f"nothing can be stored of {self.name}")
        self._fail_run(run, error)

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        """The current ledger can confirm nothing more."""
        if isinstance(error, JournalFailed):
            self.fail_writes(error)
        else:
            self.fail(State.FAILED, ManagedLedgerError(f"{self.name} cannot be written: {error}"))

    def fail(self, state: State, error: ManagedLedgerError) -> None:
        """Stop all writing and fail every waiting run. The managed ledger must be opened again."""
        if self._failure is not None and (
            self.state is not State.WRITE_FAILED or state is State.FAILED
        ):
            return
        self._failure = error
        self.state = state
        self._end_lack()
        for cursor in self.cursors.values():
            cursor.abandon()
        self._fail_runs(error)
        if self.listener is not None:
            self.listener.on_managed_ledger_failed(error)

    def fail_writes(self, error: JournalFailed) -> None:
        """Handle a failure of the journal: writes fail, but reads and acknowledgements continue.

        No other owner can take over before this process ends, since its bookie accepts no fence.
        """
        if self._failure is not None or self.write_failure is not None:
            return
        failure = self.refuse_writes(error)
        self._fail_runs(failure)
        if self.listener is not None:
            self.listener.on_managed_ledger_write_failed(failure)

    def refuse_writes(self, error: JournalFailed) -> ManagedLedgerError:
        """Refuse writes, after a failure of the journal now or before the managed ledger opened."""
        failure = ManagedLedgerWriteFailed(f"{self.name} cannot be written: {error}")
        self.write_failure = failure
        self.client.add_errors[self.namespace] += 1
        if not self.is_terminated:
            self._failure = failure
            if self.state is not State.CLOSED:
                self.state = State.WRITE_FAILED
        for cursor in self.cursors.values():
            cursor.fail_writes(failure)
        return failure

    def _fail_runs(self, error: ManagedLedgerError) -> None:
        runs = self.current.take_unconfirmed() if self.current is not None else []
        runs.extend(self._waiting)
        self._waiting.clear()
        for run in runs:
            self._fail_run(run, error)

    def _fail_run(self, run: EntryRun, error: ManagedLedgerError) -> None:
        try:
            run.owner.on_run_failed(run, error)
        except Exception as defect:
            # A defect of one producer must not affect the answers to the others.
            log.failure("notifying the owner of a run failed", defect, managed_ledger=self.name)

    # --- ledgers are added and removed --------------------------------------------------------

    def _roll_over_if_due(self) -> None:
        if age_s() - self._current_since >= self.limits.rollover_min_s:
            self.roll_over()

    def roll_over(self) -> None:
        """Close the current ledger and begin the next; runs wait meanwhile."""
        if self.state is State.OPEN:
            self.state = State.CREATING_LEDGER
            self.spawn(self._roll_over())

    def roll_over_if_consumed(self) -> None:
        """Free space: also close the current ledger if neither cursors nor retention need it."""
        if self.state is State.OPEN and trimming.is_consumed(self):
            self.roll_over()
        else:
            self.trim()

    def check_age(self) -> None:
        """Close a current ledger that is too old, and trim. Called periodically."""
        age = age_s() - self._current_since
        if self.state is State.OPEN and self.current is not None:
            full = self.current.pending.next >= self.limits.entries_per_ledger_max or (
                self.current.length >= self.limits.bytes_per_ledger_max
            )
            if self.current.last_add_confirmed >= 0 and (
                age >= self.limits.rollover_max_s or (full and age >= self.limits.rollover_min_s)
            ):
                self.roll_over()
        self.trim()

    async def _roll_over(self) -> None:
        old = self.current
        assert old is not None
        # Readers continue meanwhile; producers wait, or are refused for lack of space.
        retries = Retries(f"the next ledger of {self.name}", self._waits_for_space)
        try:
            await retries.call(partial(self._close_ledger, old))
        except (LedgerError, MetadataError) as error:
            self._fail_without_next(error)
            return
        await self._begin_next(retries)

    async def _begin_next(self, retries: Retries) -> None:
        """Begin the next ledger, after the previous one was closed or if there was none."""
        try:
            await retries.call(self.begin_ledger)
        except NotEnoughBookies as error:
            self.refuse_for_bookies(error)
            await self._write_end()
            return
        except (LedgerError, MetadataError) as error:
            self._fail_without_next(error)
            return
        except ManagedLedgerError:
            return
        self._end_lack()
        if self.last_confirmed.ledger_id < 0:
            self.last_confirmed = self.first_position()
        self.trim()

    def _fail_without_next(self, error: LedgerError | MetadataError) -> None:
        log.error("the next ledger cannot be created", managed_ledger=self.name, error=error)
        # The store's message may name files, which only the log should contain.
        is_metadata = isinstance(error, MetadataError)
        why = "the metadata store cannot create it" if is_metadata else error
        self.fail(State.FAILED, ManagedLedgerError(f"{self.name} has no next ledger: {why}"))

    def refuse_for_bookies(self, error: NotEnoughBookies) -> None:
        """Refuse writes, since the next ledger needs more bookies than exist, until the limits or
        the bookies change.

        Existing entries are still read, acknowledged and deleted.
        """
        log.error("the next ledger cannot be created", managed_ledger=self.name, error=error)
        self.state = State.TOO_FEW_BOOKIES
        self.lack_of_bookies = str(error)
        failure = self._too_few_bookies()
        self.client.wait_for_bookies(self)
        self.current = None
        self.index_ledgers()
        self._fail_runs(failure)
        if self.listener is not None:
            self.listener.on_managed_ledger_write_failed(failure)

    def _too_few_bookies(self) -> ManagedLedgerTooFewBookies:
        sentence = f"{self.name} has no next ledger: {self.lack_of_bookies}"
        return ManagedLedgerTooFewBookies(sentence)

    async def _write_end(self) -> None:
        """Store the end of the last ledger in the list, if no next ledger does so."""
        try:
            await self.write_info()
        except MetadataError as error:
            # The next owner finds the end in the metadata of the ledger itself.
            log.warning("a list was not written", managed_ledger=self.name, error=error)
        except ManagedLedgerError:
            return

    def _waits_for_space(self, error: Exception) -> bool:
        return isinstance(error, NoSpace) and not self._closing

    async def _close_ledger(self, handle: LedgerHandle) -> LedgerInfo:
        """Wait for the ledger's last entry and close it; the list is updated in memory only."""
        await handle.drain()
        await self.client.close(handle)
        info = self.ledgers[handle.ledger_id]
        info.entries = handle.last_add_confirmed + 1
        info.size = handle.length
        info.timestamp_ms = int(wall_s() * 1000)
        return info

    async def create(self) -> bool:
        """Create the managed ledger with its first ledger. Return False if it exists."""
        try:
            await self._begin_ledger()
        except BadVersion:
            return False
        self.last_confirmed = self.first_position()
        return True

    async def begin_ledger(self) -> None:
        """Create the next ledger, add it to the list, and append the waiting runs to it.

        Raises ManagedLedgerFenced if the list has another owner.
        """
        try:
            await self._begin_ledger()
        except BadVersion as error:
            raise self.fence(str(error)) from error

    async def _begin_ledger(self) -> None:
        """Create the next ledger and write the list that names it, atomically."""
        async with self._info_lock:
            handle, self.version = await self.client.create_named(
                self,
                self.name,
                lambda ledger_id: self._list_put([*self.ledgers.values(), LedgerInfo(ledger_id)]),
                self.highest_ledger_id,
                self.limits.quorums,
                self.limits.affinity,
            )
            self.adopt_ledger(handle)
        self.start_ledger(handle)

    def adopt_ledger(self, handle: LedgerHandle) -> None:
        """Add a new ledger to the list in memory."""
        self.ledgers[handle.ledger_id] = LedgerInfo(handle.ledger_id)
        self.highest_ledger_id = handle.ledger_id
        self.index_ledgers()

    def start_ledger(self, handle: LedgerHandle) -> None:
        """Start writing to a ledger in the stored list. Raises an error that occurred meanwhile."""
        if self._failure is not None:
            raise self._failure
        self.current = handle
        self._readers[handle.ledger_id] = handle
        self._current_since = age_s()
        self.state = State.OPEN
        while self._waiting and self.state is State.OPEN:
            run = self._waiting.popleft()
            handle.append(run)

    def trim(self) -> None:
        """Delete ledgers that every cursor has passed and that retention does not cover."""
        if not self._trimming and self._can_trim and len(self._ids) > 1:
            victims = trimming.victims(self, self._ids[:-1])
            if victims:
                self._trimming = True
                self._trim_failure = None
                self.spawn(self._trim(victims))

    @property
    def _can_trim(self) -> bool:
        is_steady = self.state in (State.OPEN, State.TOO_FEW_BOOKIES) or self.is_terminated
        return is_steady and not self.unreadable

    async def finish_trim(self, retains: bool = True) -> None:
        """Trim and wait for the end of it. Raises ManagedLedgerError, MetadataError."""
        await self.finish_tasks()
        self.check_trimmable()
        self._trim_failure = None
        limits = self.limits
        if not retains:
            self.limits = limits.keeping(0, 0)
        try:
            self.trim()
        finally:
            self.limits = limits
        await self.finish_tasks()
        if self._trim_failure is not None:
            raise self._trim_failure

    def check_trimmable(self) -> None:
        """Raise ManagedLedgerError if no ledger can be deleted at present."""
        if self.unreadable:
            names = ", ".join(sorted(self.unreadable))
            raise ManagedLedgerError(
                f"nothing of {self.name} is deleted, since the state of these subscriptions cannot"
                f" be read and what they need is unknown: {names}"
            )
        if not self._can_trim:
            raise self.refusal()

    async def truncate(self) -> None:
        """Delete the closed ledgers that every cursor has passed, regardless of retention.

        Raises ManagedLedgerError, MetadataError.
        """
        await self.finish_trim(retains=False)

    async def _trim(self, victims: list[int]) -> None:
        removed = {ledger_id: self.ledgers.pop(ledger_id) for ledger_id in victims}
        self.index_ledgers()
        try:
            await self.write_info()
        except (MetadataError, ManagedLedgerError) as error:
            # The stored list still has them, so the next trim finds them.
            self.ledgers = {**removed, **self.ledgers}
            self.index_ledgers()
            self._trimming = False
            self._trim_failure = error
            log.warning("old ledgers were not deleted", managed_ledger=self.name, error=error)
            return
        self._trimming = False
        for info in removed.values():
            self.size -= info.size
            try:
                await self.client.delete(info.ledger_id)
            except MetadataError as error:
                log.warning("an old ledger was not deleted", ledger=info.ledger_id, error=error)

    # --- reading ------------------------------------------------------------------------------

    def normalize(self, position: tuple[int, int]) -> Position | None:
        """Return the first confirmed entry at or after a position, or None."""
        if position > self.last_confirmed:
            return None
        ledger_id, entry_id = position
        current = self.current
        if current is not None and ledger_id == current.ledger_id and entry_id >= 0:
            # The fast path for consumers that keep up.
            return Position(ledger_id, entry_id)
        at = bisect_right(self._ids, ledger_id) - 1
        if at < 0 or self._ids[at] != ledger_id:
            at += 1
            entry_id = 0
        entry_id = max(entry_id, 0)
        while at < len(self._ids):
            last = self.last_entry(self._ids[at])
            if last is not None and entry_id <= last:
                return Position(self._ids[at], entry_id)
            at += 1
            entry_id = 0
        return None

    def read_cached(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch | None:
        """Return entries of one ledger from a normalized position on, if they are in memory."""
        end = self.last_entry(position.ledger_id)
        if end is None:
            return None
        if last is not None and last < end:
            end = last
        if self.cache is not None:
            batch = self.cache.read(*position, end, count_max, bytes_max)
        else:
            reader = self._readers.get(position.ledger_id)
            if reader is None:
                return None
            batch = reader.read_cached(position.entry_id, end, count_max, bytes_max)
        if batch is not None:
            self.entries_read += batch.count
        return batch

    def read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: ReadCallback,
        last: int | None = None,
    ) -> None:
        """Read entries from disk. `callback` gets an EntryBatch or a LedgerError, always after this
        call.
        """
        reader = self._readers.get(position.ledger_id)
        end = self.last_entry(position.ledger_id)
        if reader is None or end is None:
            self.spawn(self._open_and_read(position, count_max, bytes_max, callback, last))
            return
        on_read = partial(self._on_read, callback)
        if self.cache is not None:
            waiting = self.cache.reading.get(position)
            if waiting is not None:
                asked = (position, count_max, bytes_max, callback, last)
                waiting.append(partial(self._read_again, *asked))
                return
            self.cache.reading[position] = []
            on_read = partial(self._on_shared_read, self.cache, position, on_read)
        end = end if last is None else min(last, end)
        reader.read(position.entry_id, end, count_max, bytes_max, on_read)

    def _on_shared_read(
        self,
        cache: LedgerCache,
        position: Position,
        on_read: ReadCallback,
        result: EntryBatch | LedgerError,
    ) -> None:
        """Cache what a bookie has returned, and serve the other callers that asked for it."""
        waiting = cache.reading.pop(position)
        error = result if isinstance(result, LedgerError) else None
        if not isinstance(result, LedgerError):
            cache.add_read(result)
        on_read(result)
        for each in waiting:
            each(error)

    def _read_again(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: ReadCallback,
        last: int | None,
        error: LedgerError | None,
    ) -> None:
        """Serve a caller that has waited for another caller's read of the same position."""
        if error is not None:
            callback(error)
            return
        batch = self.read_cached(position, count_max, bytes_max, last)
        if batch is not None:
            callback(batch)
        else:
            self.read(position, count_max, bytes_max, callback, last)

    def _on_read(self, callback: ReadCallback, result: EntryBatch | LedgerError) -> None:
        if isinstance(result, LedgerError):
            self.client.read_errors[self.namespace] += 1
        else:
            self.entries_read += result.count
            self.entries_read_from_disk += result.count
        callback(result)

    async def _open_and_read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: ReadCallback,
        last: int | None,
    ) -> None:
        ledger_id = position.ledger_id
        try:
            if ledger_id not in self.ledgers:
                raise NoSuchEntry(f"ledger {ledger_id} is not part of {self.name} any more")
            self._readers[ledger_id] = await self.client.open_read(ledger_id)
        except LedgerError as error:
            self.client.turn.run(callback, error)
            return
        self.read(position, count_max, bytes_max, callback, last)

    @property
    def namespace(self) -> str:
        """The namespace of its topic and the domain, as in public/default/persistent."""
        return self.name.rpartition("/")[0]

    def peek_cached(self, position: Position) -> EntryBatch | None:
        """The entry at a normalized position when it is in memory; it does not count as read."""
        reader = self._readers.get(position.ledger_id)
        return None if reader is None else reader.read_cached(*(position.entry_id,) * 2, 1, 1)

    async def read_one(self, position: Position) -> EntryBatch:
        """Return the entry at a position, as a batch of one. Raises LedgerError."""
        return await self.read_some(position, 1, 1, position.entry_id)

    async def read_some(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch:
        """Return entries from a normalized position on, like `read`. Raises LedgerError."""
        return await read_entries(self.read, position, count_max, bytes_max, last)

    # --- the end ------------------------------------------------------------------------------

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine of this managed ledger in the background."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    @property
    def cursor_queue(self) -> StepQueue:
        """The queue for background work of its cursors."""
        if self._cursor_queue is None:
            self._cursor_queue = self.client.cursor_pace.queue()
        return self._cursor_queue

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_defect("a task failed", error)

    def on_defect(self, event: str, error: BaseException) -> ManagedLedgerError:
        """Fail the managed ledger after an internal error, since its state is uncertain."""
        reference = log.failure(event, error, managed_ledger=self.name)
        failure = ManagedLedgerError(
            f"{self.name} failed; see the broker's log (reference {reference})"
        )
        self.fail(State.FAILED, failure)
        return failure

    async def close(self) -> None:
        """Confirm appended entries, store cursors in metadata, and close the current ledger.

        All parts are closed even if one fails; the first error is raised at the end.
        """
        self._closing = self.is_closing = True
        self._end_lack()
        try:
            await self.finish_tasks()
            outcomes = await self._close_cursors()
            await self.finish_tasks()
            outcomes += await asyncio.gather(self._close_current(), return_exceptions=True)
            errors = [outcome for outcome in outcomes if outcome is not None]
            for error in errors[1:]:
                log.error("another part was not closed", managed_ledger=self.name, error=error)
            if errors:
                raise errors[0]
        finally:
            self.is_closing = False

    async def _close_cursors(self) -> list[BaseException | None]:
        """Close all cursors in batches, and return their errors. Thousands closed together would
        complete in one loop iteration.
        """
        outcomes: list[BaseException | None] = []
        cursors = list(self.cursors.values())
        for at in range(0, len(cursors), CURSORS_PER_CLOSE):
            some = (cursor.close() for cursor in cursors[at : at + CURSORS_PER_CLOSE])
            outcomes += await asyncio.gather(*some, return_exceptions=True)
        return outcomes

    async def settle(self) -> None:
        """Wait, after a failure, until all work of this managed ledger has ended."""
        await self.finish_tasks()
        for cursor in list(self.cursors.values()):
            await cursor.settle()

    async def finish_tasks(self) -> None:
        """Wait for the tasks in progress, and for those that they start."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _close_current(self) -> None:
        handle = self.current
        if self.state is not State.OPEN or handle is None:
            if self._failure is None or self.state is State.WRITE_FAILED:
                self.state = State.CLOSED
            return
        self.state = State.CLOSED
        # Without entries it stays in the list, so that the next owner takes a higher id.
        await self._close_ledger(handle)
        self.index_ledgers()
        await self.write_info()
