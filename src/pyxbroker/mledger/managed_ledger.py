"""A managed ledger: an endless log made of a list of ledgers, with one writer (ManagedLedgerImpl).

The list is one metadata node. Its last ledger is the one being written; opening a managed ledger
takes that one over (fences and recovers it), so that an earlier owner can confirm nothing more, and
goes on in a new ledger. Every change of the list is a compare-and-set: when somebody else changed
the node, the managed ledger belongs to them and this one is fenced. So a write of it goes to its
end also where who wants it is cancelled: else its own would look like that of somebody else.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyxbroker.add_stats import NO_ADDS, AddStats
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices
from pyxbroker.base.to_its_end import to_its_end
from pyxbroker.entry import EntryBatch, EntryRun, Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import JournalFailed, LedgerError, NoSuchEntry, NotEnoughBookies
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.patience import Patience
from pyxbroker.ledger.reader import ReadHandle
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    MetadataError,
    MetadataStore,
    NoSpace,
    Put,
    resolve,
)
from pyxbroker.mledger import positions, trimming
from pyxbroker.mledger.errors import (
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerNotReady,
    ManagedLedgerTakenBack,
    ManagedLedgerTerminated,
    ManagedLedgerWriteFailed,
)
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.listener import Listener, Watchers
from pyxbroker.mledger.positions import LedgerInfo
from pyxbroker.mledger.state import State

if TYPE_CHECKING:
    from pyxbroker.base.pacing import Line
    from pyxbroker.mledger.cursor import Cursor
    from pyxbroker.mledger.entry_cache import LedgerCache

log = get_logger("pyxbroker.mledger")


ReadCallback = Callable[[EntryBatch | LedgerError], None]

CLOSED_AT_ONCE = 64  # cursors
TOLD_AT_ONCE = 64  # cursors, of limits
PASSING = (State.OPENING, State.CREATING_LEDGER, State.TERMINATED, State.CLOSED)
"""States that others follow soon, here or where it is opened anew."""


class ManagedLedger:
    """The log of one topic. Made by open_managed_ledger (mledger/opening.py).

    What few of them ever have is of the class until then: up to 30 attributes, objects share what
    they are called.
    """

    add_stats: AddStats | None = None  # once something was added
    before_list_write: Callable[[], None] | None = None  # brings its properties up to date
    entries_read = 0
    entries_read_from_disk = 0  # of them, those that were not in memory
    on_confirmed: Callable[[EntryRun], None] | None = None  # told of what is durable
    terminated_position: Position | None = None
    # The same once all that was appended is confirmed: the list must not say so before.
    stored_end: Position | None = None
    last_added_s = 0.0  # when an entry was confirmed last, since 1970; 0: none since it was opened
    was_closed = False  # by who had it before; else it was killed, or could not
    write_failure: ManagedLedgerWriteFailed | None = None  # nothing is stored any more
    _failure: ManagedLedgerError | None = None
    _trim_failure: Exception | None = None  # why the last trim deleted nothing
    holder: Cursor | None = None  # one of those that needed the oldest ledger, when last looked at
    _cursor_line: Line | None = None
    cache: LedgerCache | None = None  # where the bookies are other processes

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
        self.cursors: dict[str, Cursor] = {}
        self.unreadable: set[str] = set()  # cursors: nobody knows what they need, so all is kept
        self.current: LedgerHandle | None = None
        self.last_confirmed = Position(-1, -1)
        self.entries_added = 0
        self.size = 0  # bytes of all ledgers of the list
        self._ids: list[int] = []  # of self.ledgers, ascending
        self._cumulative: list[int] = [0]  # entries before each closed ledger
        self._current_since = 0.0
        self._waiting: deque[EntryRun] = deque()
        self._watchers = Watchers(ledgers.turn)
        self._readers: dict[int, ReadHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._trimming = False
        self._closing = False  # for good
        self.is_closing = False  # for as long as it takes
        self._info_lock = asyncio.Lock()

    def watch(self, wake: Callable[[], None]) -> None:
        """Calls wake once in each turn that brought entries, at its end, until unwatch(wake)."""
        self._watchers.add(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Nothing happens when it does not watch."""
        self._watchers.remove(wake)

    def set_limits(self, limits: ManagedLedgerLimits) -> None:
        """Its limits have changed, or are known by now."""
        before, self.limits = self.limits, limits
        may_begin = self.state is State.TOO_FEW_BOOKIES and not self._closing
        if may_begin and limits.quorums != before.quorums:
            self.state = State.CREATING_LEDGER
            self.spawn(self._begin_next(Patience(f"the next ledger of {self.name}")))
        if limits.mark_delete_per_s != before.mark_delete_per_s:
            if len(self.cursors) <= TOLD_AT_ONCE:
                for cursor in self.cursors.values():
                    cursor.on_limits()
            else:
                self.spawn(self._tell_cursors(limits.mark_delete_per_s))

    async def _tell_cursors(self, rate: float) -> None:
        """They are written at another rate, as long as it is that one. Those that are made
        meanwhile know it.
        """
        slices = Slices()
        for cursor in list(self.cursors.values()):
            if self.limits.mark_delete_per_s != rate:
                return  # whatever it is now is told to all of them
            cursor.on_limits()
            await slices.pause()

    # --- the list -----------------------------------------------------------------------------

    def index_ledgers(self) -> None:
        """Rebuilds what is derived from self.ledgers after the list changed."""
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
        """Of all ledgers of the list, ascending."""
        return self._ids

    async def write_info(self) -> None:
        """Writes the list. Raises ManagedLedgerFenced when somebody else has changed it."""
        async with self._info_lock:
            await to_its_end(self._write_info())

    async def _write_info(self) -> None:
        try:
            result = await self.store.put(*self._list_put(self.ledgers.values()))
        except BadVersion as error:
            raise self.fence(str(error)) from error
        self.version = result.version

    async def put_property(self, key: str, value: str) -> None:
        """Keeps a text with the list; as change_properties."""
        await self.change_properties(lambda properties: {**properties, key: value})

    async def change_properties(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Keeps other texts with the list, durable when this returns. Raises what change does,
        ManagedLedgerError, MetadataError: nobody knows then which of the two whoever opens it next
        will find.
        """
        async with self._info_lock:
            if self.is_dead:
                raise self.refusal()
            await to_its_end(self._change_properties(change))

    async def _change_properties(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        before = self.properties
        self.properties = change(before)
        try:
            await self._write_info()
        except BaseException:
            self.properties = before
            raise

    async def create_beside(
        self,
        create: Callable[[Callable[[int], Put]], Awaitable[tuple[LedgerHandle, int]]],
        key: str,
        value_of: Callable[[int], str],
    ) -> LedgerHandle:
        """Creates a ledger that is not of the list, and a property of the list that names it: both
        or neither. Raises LedgerError, MetadataError, ManagedLedgerError.
        """
        async with self._info_lock:
            if self.is_dead:
                raise self.refusal()
            return await to_its_end(self._create_beside(create, key, value_of))

    async def _create_beside(
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
        """The write of a list of ledgers over what the node has now."""
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
        """Stops writing, since another broker has changed what only an owner changes."""
        fenced = ManagedLedgerFenced(f"{self.name} is owned by another broker: {reason}")
        self.fail(State.FENCED, fenced)
        return fenced

    def last_entry(self, ledger_id: int) -> int | None:
        """Id of the last confirmed entry of a ledger (-1: none yet), None for an unknown ledger."""
        current = self.current
        if current is not None and ledger_id == current.ledger_id:
            return current.last_add_confirmed
        info = self.ledgers.get(ledger_id)
        return None if info is None else info.entries - 1

    def ledger_after(self, ledger_id: int, entry_id: int) -> int | None:
        """The ledger that follows when entry_id is the last one of a ledger that is closed."""
        if self.current is not None and ledger_id == self.current.ledger_id:
            return None
        last = self.last_entry(ledger_id)
        if last is not None and entry_id < last:
            return None
        at = bisect_right(self._ids, ledger_id)
        return self._ids[at] if at < len(self._ids) else None

    def next_position(self, position: tuple[int, int]) -> Position:
        """Where the entry after a position is, or will be."""
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
        """Just before the first entry that is kept."""
        if not self._ids:
            return Position(-1, -1)
        return Position(self._ids[0], -1)

    def ordinal(self, position: tuple[int, int]) -> int:
        """How many kept entries are at or before a position."""
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
        """The position of the index-th kept entry (from 0)."""
        at = bisect_right(self._cumulative, index) - 1
        return Position(self._ids[at], index - self._cumulative[at])

    def entries_between(self, after: tuple[int, int], last: tuple[int, int]) -> int:
        """How many kept entries are after one position and not after another."""
        return max(self.ordinal(last) - self.ordinal(after), 0)

    @property
    def entries(self) -> int:
        """Entries that are kept."""
        return self.ordinal(self.last_confirmed)

    @property
    def current_since_s(self) -> float:
        """When the ledger that is being written was begun, in s since 1970; 0: none was yet."""
        if not self._current_since:
            return 0.0
        return time.time() - (time.monotonic() - self._current_since)

    @property
    def watcher_count(self) -> int:
        """How many wait for entries that come."""
        return len(self._watchers)

    @property
    def is_dead(self) -> bool:
        """It failed or was closed: it can only be opened anew."""
        return self.state in (State.FAILED, State.FENCED, State.CLOSED)

    def refusal(self) -> ManagedLedgerError:
        """Why it does not do now what it is asked for."""
        if self._failure is not None:
            return self._failure
        told = f"{self.name} is {self.state.value}"
        if self.state in PASSING:
            return ManagedLedgerNotReady(f"{told}; try again")
        return ManagedLedgerError(told)

    @property
    def is_terminated(self) -> bool:
        """Its last entry is confirmed, and there will be no other."""
        return self.state is State.TERMINATED and self.current is None

    # --- adding -------------------------------------------------------------------------------

    def append(self, run: EntryRun) -> None:
        """Appends a run; run.owner is told when its entries are durable, or why they are not.

        The run's data is needed only during this call. Raises ManagedLedgerError when nothing can
        be added now (the run's owner is not told then).
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
        """The current ledger has a run on its ack quorum."""
        self.last_confirmed = Position(run.ledger_id, run.last_entry_id)
        self.entries_added += run.count
        self.last_added_s = time.time()
        self.size += run.bytes
        (self.add_stats or self._begin_add_stats()).on_added(run)
        if self.cache is not None:
            self.cache.add_run(run)
        try:
            run.owner.on_run_added(run)
            if self.on_confirmed is not None:
                self.on_confirmed(run)
        except Exception as error:
            self.on_defect("what is stored was not taken in", error)
        self._watchers.call_at_end()

    def _begin_add_stats(self) -> AddStats:
        self.add_stats = AddStats(self.client.publish_latency)
        return self.add_stats

    def last_adds(self) -> tuple[int, ...]:
        """How long the adds of the last period took, and how large they were (add_stats.pyi)."""
        return NO_ADDS if self.add_stats is None else self.add_stats.last_period()

    def take_back(self) -> None:
        """Fails the runs that nothing is stored of, while there is no space for them."""
        if self.client.is_holding:
            self.take_back_waiting()
            if self.current is not None:
                self.current.take_back()

    def take_back_waiting(self) -> None:
        """The same for those that wait for the next ledger only."""
        while self._waiting:
            self.on_run_taken_back(self._waiting.pop())

    def on_run_taken_back(self, run: EntryRun) -> None:
        """There was no room for a run, and now it does not wait for it any more."""
        error = ManagedLedgerTakenBack(f"nothing can be stored of {self.name}")
        self._fail_run(run, error)

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        """The current ledger can confirm nothing more."""
        if isinstance(error, JournalFailed):
            self.fail_writes(error)
        else:
            self.fail(State.FAILED, ManagedLedgerError(f"{self.name} cannot be written: {error}"))

    def fail(self, state: State, error: ManagedLedgerError) -> None:
        """Stops all writing and answers every run that waits: it has to be opened anew."""
        if self._failure is not None and (
            self.state is not State.WRITE_FAILED or state is State.FAILED
        ):
            return
        self._failure = error
        self.state = state
        for cursor in self.cursors.values():
            cursor.abandon()
        self._fail_runs(error)
        if self.listener is not None:
            self.listener.on_managed_ledger_failed(error)

    def fail_writes(self, error: JournalFailed) -> None:
        """Nothing can be written any more, and what was confirmed is read and acknowledged on.

        No other owner can come before this process ends: its bookie takes no fence either.
        """
        if self._failure is not None or self.write_failure is not None:
            return
        told = self.refuse_writes(error)
        self._fail_runs(told)
        if self.listener is not None:
            self.listener.on_managed_ledger_write_failed(told)

    def refuse_writes(self, error: JournalFailed) -> ManagedLedgerError:
        """The journal has failed, now or before this was opened."""
        told = ManagedLedgerWriteFailed(f"{self.name} cannot be written: {error}")
        self.write_failure = told
        self.client.add_errors[self.namespace] += 1
        if not self.is_terminated:
            self._failure = told
            if self.state is not State.CLOSED:
                self.state = State.WRITE_FAILED
        for cursor in self.cursors.values():
            cursor.fail_writes(told)
        return told

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
            # Of one producer: the others wait for their answers as well.
            log.failure("a run could not be refused", defect, managed_ledger=self.name)

    # --- ledgers come and go ------------------------------------------------------------------

    def _roll_over_if_due(self) -> None:
        if time.monotonic() - self._current_since >= self.limits.rollover_min_s:
            self.roll_over()

    def roll_over(self) -> None:
        """Closes the current ledger and begins the next; runs that come meanwhile wait."""
        if self.state is State.OPEN:
            self.state = State.CREATING_LEDGER
            self.spawn(self._roll_over())

    def roll_over_if_consumed(self) -> None:
        """Space is short: the current ledger goes too, if no cursor and no retention needs it."""
        if self.state is State.OPEN and trimming.is_consumed(self):
            self.roll_over()
        else:
            self.trim()

    def check_age(self) -> None:
        """Called now and then: closes a current ledger that is too old, frees old ones."""
        age = time.monotonic() - self._current_since
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
        # Who reads goes on meanwhile; who publishes waits, or is refused for want of space.
        patience = Patience(f"the next ledger of {self.name}", self._waits_for_space)
        try:
            await patience.ask(partial(self._close_ledger, old))
        except (LedgerError, MetadataError) as error:
            self._fail_without_next(error)
            return
        await self._begin_next(patience)

    async def _begin_next(self, patience: Patience) -> None:
        """The next ledger, after one that is closed or none."""
        try:
            await patience.ask(self.begin_ledger)
        except NotEnoughBookies as error:
            self.refuse_for_bookies(error)
            await self._write_end()
            return
        except (LedgerError, MetadataError) as error:
            self._fail_without_next(error)
            return
        except ManagedLedgerError:
            return
        if self.last_confirmed.ledger_id < 0:
            self.last_confirmed = self.first_position()
        self.trim()

    def _fail_without_next(self, error: LedgerError | MetadataError) -> None:
        log.error("there is no next ledger", managed_ledger=self.name, error=error)
        # What the metadata store says may name files, which is for the log only.
        is_metadata = isinstance(error, MetadataError)
        why = "the metadata store cannot make it" if is_metadata else error
        self.fail(State.FAILED, ManagedLedgerError(f"{self.name} has no next ledger: {why}"))

    def refuse_for_bookies(self, error: NotEnoughBookies) -> None:
        """The next ledger wants more bookies than there are, until the limits change.

        What is there is read, acknowledged and deleted as ever.
        """
        told = ManagedLedgerError(f"{self.name} has no next ledger: {error}")
        log.error("there is no next ledger", managed_ledger=self.name, error=error)
        self.state = State.TOO_FEW_BOOKIES
        self.current = None
        self.index_ledgers()
        self._fail_runs(told)
        if self.listener is not None:
            self.listener.on_managed_ledger_write_failed(told)

    async def _write_end(self) -> None:
        """The list gets the end of its last ledger, where no next one brings it along."""
        try:
            await self.write_info()
        except MetadataError as error:
            # Whoever opens it finds the end in the ledger's own metadata.
            log.warning("a list was not written", managed_ledger=self.name, error=error)
        except ManagedLedgerError:
            return

    def _waits_for_space(self, error: Exception) -> bool:
        return isinstance(error, NoSpace) and not self._closing

    async def _close_ledger(self, handle: LedgerHandle) -> LedgerInfo:
        """Waits for its last entry, then writes its end; the list knows of it in memory only."""
        await handle.drain()
        await self.client.close(handle)
        info = self.ledgers[handle.ledger_id]
        info.entries = handle.last_add_confirmed + 1
        info.size = handle.length
        info.timestamp_ms = int(time.time() * 1000)
        return info

    async def create(self) -> bool:
        """Makes the managed ledger with its first ledger; False when there is one of that name."""
        try:
            await self._begin_ledger()
        except BadVersion:
            return False
        self.last_confirmed = self.first_position()
        return True

    async def begin_ledger(self) -> None:
        """Creates the next ledger, adds it to the list, and sends what waited for it.

        Raises ManagedLedgerFenced when the list has another owner.
        """
        try:
            await self._begin_ledger()
        except BadVersion as error:
            raise self.fence(str(error)) from error

    async def _begin_ledger(self) -> None:
        """The ledger and the list that names it are one write: neither is ever without the
        other.
        """
        async with self._info_lock:
            handle, self.version = await self.client.create_named(
                self,
                self.name,
                lambda ledger_id: self._list_put([*self.ledgers.values(), LedgerInfo(ledger_id)]),
                max(self.ledgers, default=-1),
                self.limits.quorums,
            )
            self.adopt_ledger(handle)
        self.start_ledger(handle)

    def adopt_ledger(self, handle: LedgerHandle) -> None:
        """Adds a new ledger to the list in memory."""
        self.ledgers[handle.ledger_id] = LedgerInfo(handle.ledger_id)
        self.index_ledgers()

    def start_ledger(self, handle: LedgerHandle) -> None:
        """Writes to a ledger that the list on disk has. Raises what it failed of meanwhile."""
        if self._failure is not None:
            raise self._failure
        self.current = handle
        self._readers[handle.ledger_id] = handle
        self._current_since = time.monotonic()
        self.state = State.OPEN
        while self._waiting and self.state is State.OPEN:
            run = self._waiting.popleft()
            handle.append(run)

    def trim(self) -> None:
        """Deletes ledgers that every cursor has passed and retention does not keep."""
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
        """Trims; what can go is gone when it returns. Raises ManagedLedgerError, MetadataError."""
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
        """Raises ManagedLedgerError while no ledger can be deleted, whatever the cursors passed."""
        if self.unreadable:
            names = ", ".join(sorted(self.unreadable))
            raise ManagedLedgerError(
                f"nothing of {self.name} is deleted, since nobody knows what these subscriptions"
                f" need, whose state cannot be read: {names}"
            )
        if not self._can_trim:
            raise self.refusal()

    async def truncate(self) -> None:
        """Deletes the closed ledgers that every cursor has passed, whatever is to be retained.

        Raises ManagedLedgerError, MetadataError.
        """
        await self.finish_trim(retains=False)

    async def _trim(self, victims: list[int]) -> None:
        removed = {ledger_id: self.ledgers.pop(ledger_id) for ledger_id in victims}
        self.index_ledgers()
        try:
            await self.write_info()
        except (MetadataError, ManagedLedgerError) as error:
            # The list still has them, so that the next trim finds them.
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
        """The first confirmed entry at or after a position; None when there is none yet."""
        if position > self.last_confirmed:
            return None
        ledger_id, entry_id = position
        current = self.current
        if current is not None and ledger_id == current.ledger_id and entry_id >= 0:
            # Where consumers are that keep up.
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
        """Entries of one ledger from a normalized position on, when they are in memory."""
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
        """The same from disk; callback gets an EntryBatch or a LedgerError, never within this
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
            cache.add(result)
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
        """The entry at a position, as a batch of one. Raises LedgerError."""
        return await self.read_some(position, 1, 1, position.entry_id)

    async def read_some(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch:
        """Entries from a normalized position on, as `read` brings them. Raises LedgerError."""
        future: asyncio.Future[EntryBatch] = asyncio.get_running_loop().create_future()
        self.read(position, count_max, bytes_max, partial(resolve, future), last)
        return await future

    # --- the end ------------------------------------------------------------------------------

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine of this managed ledger in the background, kept until it is done."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    @property
    def cursor_line(self) -> Line:
        """Its cursors wait in it for their turn, where nobody waits for them."""
        if self._cursor_line is None:
            self._cursor_line = self.client.cursor_pace.line()
        return self._cursor_line

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_defect("a task failed", error)

    def on_defect(self, event: str, error: BaseException) -> ManagedLedgerError:
        """Nobody knows what of this managed ledger still holds: it ends, and is opened anew."""
        reference = log.failure(event, error, managed_ledger=self.name)
        told = f"{self.name} failed; the broker's log says why (reference {reference})"
        failure = ManagedLedgerError(told)
        self.fail(State.FAILED, failure)
        return failure

    async def close(self) -> None:
        """Confirms what was appended, folds cursors into metadata, closes the current ledger.

        What fails keeps nothing else from being closed; the first error is raised in the end.
        """
        self._closing = self.is_closing = True
        try:
            await self.finish_tasks()
            outcomes = await self._close_cursors()
            await self.finish_tasks()
            outcomes += await asyncio.gather(self._close_current(), return_exceptions=True)
            errors = [outcome for outcome in outcomes if outcome is not None]
            for error in errors[1:]:
                log.error("a part was not closed either", managed_ledger=self.name, error=error)
            if errors:
                raise errors[0]
        finally:
            self.is_closing = False

    async def _close_cursors(self) -> list[BaseException | None]:
        """What became of each. There may be thousands, and what is written for many at once comes
        back in one turn of the loop.
        """
        outcomes: list[BaseException | None] = []
        cursors = list(self.cursors.values())
        for at in range(0, len(cursors), CLOSED_AT_ONCE):
            some = (cursor.close() for cursor in cursors[at : at + CLOSED_AT_ONCE])
            outcomes += await asyncio.gather(*some, return_exceptions=True)
        return outcomes

    async def settle(self) -> None:
        """Waits, after a failure, until nothing of this managed ledger is under way any more."""
        await self.finish_tasks()
        for cursor in list(self.cursors.values()):
            await cursor.settle()

    async def finish_tasks(self) -> None:
        """Waits for what is under way, and for what that begins in its turn."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _close_current(self) -> None:
        handle = self.current
        if self.state is not State.OPEN or handle is None:
            if self._failure is None or self.state is State.WRITE_FAILED:
                self.state = State.CLOSED
            return
        self.state = State.CLOSED
        info = await self._close_ledger(handle)
        if info.entries == 0:
            del self.ledgers[handle.ledger_id]
        self.index_ledgers()
        await self.write_info()
        if info.entries == 0:
            await self.client.delete(handle.ledger_id)
