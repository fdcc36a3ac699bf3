"""The compacted view of a topic: its compacted ledger up to the horizon, then the log.

An entry of the compacted ledger has the id of its original in the log (compaction.pyx), so the view
is an entry source like the log. The index of an id in the compacted ledger is found by bisection;
sequential reads know it already. Mirrors Pulsar's CompactedTopicImpl.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

from pyxbroker.ackset import AckSet
from pyxbroker.base.log import get_logger
from pyxbroker.broker.compaction.packed_batches import last_index_of
from pyxbroker.broker.dispatch.interfaces import DispatchedTopic
from pyxbroker.compaction import unwrap, wrapped_position
from pyxbroker.delivery import peek_entry
from pyxbroker.entry import AckRun, EntryBatch, Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import EntryDamaged, LedgerError, NoSuchEntry
from pyxbroker.ledger.reader import ReadHandle
from pyxbroker.ledger.retries import Retries
from pyxbroker.mledger import compacted_ledger
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.read_entries import read_entries

log = get_logger("pyxbroker.topic")

T = TypeVar("T")
LogReader = Callable[[Position], AsyncIterator[tuple[Position, bytes]]]

FIRST = Position(0, 0)  # before all possible entries
RECORDS_PER_READ = 100
BYTES_PER_READ = 1 << 20
LOST_MAX = 1_000  # lost entries that a bisection skips
NOTED_MAX = 10_000  # unacknowledged entries read from the compacted ledger only: 1 MB


class CompactedLedger:
    """A compacted ledger, open for reading."""

    def __init__(self, ledger_id: int, handle: ReadHandle, last_index: int, size: int) -> None:
        self.ledger_id = ledger_id
        self.size = size  # bytes
        self.last_index = last_index  # index of its last entry; -1: empty
        self.last: Position | None = None  # id of its last entry
        self.handle = handle
        self._last_message: tuple[Position, int] | None = None

    async def open(self) -> None:
        """Find its last entry and its last message. Raises LedgerError; NoSuchEntry if all of its
        entries are lost.
        """
        retries = Retries(f"the compacted ledger {self.ledger_id}")
        index = self.last_index
        while index >= 0 and self.last is None:
            self.last = await self._position(index, retries)
            index -= 1
        if self.last is None and self.last_index >= 0:
            # Treated as empty, it would hide the entries of the log up to the horizon.
            raise NoSuchEntry(f"none of its {self.last_index + 1} entries can be read")
        await self.last_message()

    async def _position(self, index: int, retries: Retries) -> Position | None:
        """Return the id of an entry, or None if it is lost. Raises LedgerError."""
        batch = await self.read_one(index, retries)
        return None if batch is None else wrapped_position(batch, 0)

    async def find(self, position: tuple[int, int]) -> int:
        """Return the index of the first entry at or after a position, beyond the last index if
        none.

        Raises LedgerError.
        """
        return await self._bisect(lambda batch: wrapped_position(batch, 0), position)

    async def first_since(self, time_ms: int) -> Position | None:
        """Return the first entry published at a time or later, or None. Raises LedgerError."""
        index = await self._bisect(_publish_time, time_ms)
        if index > self.last_index:
            return None
        return await self._position(index, Retries(f"the compacted ledger {self.ledger_id}"))

    async def last_message(self) -> tuple[Position, int]:
        """Return (position, batch index) of its last message, as PersistentTopic.last_message.

        The result is cached: Java's table view looks up schemas in the thread that receives the
        answer. It deadlocks if messages arrive before the answer.
        """
        if self._last_message is None:
            self._last_message = await self._read_last_message()
        return self._last_message

    async def _read_last_message(self) -> tuple[Position, int]:
        retries = Retries(f"the compacted ledger {self.ledger_id}")
        for index in range(self.last_index, -1, -1):
            batch = await self.read_one(index, retries)
            entries = None if batch is None else unwrap(batch, 0)[0]
            if entries is not None:
                return Position(entries.ledger_id, entries.entry_id(0)), last_index_of(
                    entries.data(0)
                )
        return Position(-1, -1), -1

    async def _bisect(self, value_of: Callable[[EntryBatch], Any], wanted: Any) -> int:
        retries = Retries(f"the compacted ledger {self.ledger_id}")
        low, high, lost = 0, self.last_index + 1, 0
        while low < high:
            middle = (low + high) // 2
            at, found = middle, None
            # A lost entry gives no direction, so the previous one is used. None is read twice.
            while at >= low and found is None:
                batch = await self.read_one(at, retries)
                found = None if batch is None else value_of(batch)
                at -= 1
                lost += found is None
                if lost > LOST_MAX:
                    raise LedgerError(
                        f"more than {LOST_MAX} entries of compacted ledger {self.ledger_id}"
                        " cannot be read"
                    )
            if found is not None and found >= wanted:
                high = at + 1
            else:
                low = middle + 1
        return low

    async def read_one(self, index: int, retries: Retries) -> EntryBatch | None:
        """Return the record of an entry, or None if it is lost. Raises LedgerError."""
        try:
            return await retries.call(partial(self.handle.read_future, index, index))
        except (EntryDamaged, NoSuchEntry):
            return None

    def read_some(self, index: int, count_max: int, bytes_max: int) -> asyncio.Future[EntryBatch]:
        """Read records from an index on. The future raises LedgerError."""
        future: asyncio.Future[EntryBatch] = asyncio.get_running_loop().create_future()

        def on_read(result: EntryBatch | LedgerError) -> None:
            if future.cancelled():
                return
            if isinstance(result, LedgerError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.handle.read(index, self.last_index, count_max, bytes_max, on_read)
        return future


def _publish_time(batch: EntryBatch) -> int | None:
    entries, _ = unwrap(batch, 0)
    peeked = None if entries is None else peek_entry(entries, 0)
    return None if peeked is None else peeked.time


async def open_compacted(managed_ledger: ManagedLedger) -> CompactedLedger | None:
    """Open the compacted ledger that the cursor names. Raises LedgerError.

    Return None if none exists, or it is lost. Readers then get the whole log, with older values.
    """
    ledger_id = compacted_ledger.current(managed_ledger)
    if ledger_id is None:
        return None
    retries = Retries(f"the compacted ledger of {managed_ledger.name}")
    try:
        handle, last, size = await retries.call(
            partial(managed_ledger.client.open_compacted, ledger_id)
        )
        found = CompactedLedger(ledger_id, handle, last, size)
        await found.open()
    except (EntryDamaged, NoSuchEntry) as error:
        log.error(
            "the compacted ledger is lost; the next compaction creates one from the log",
            managed_ledger=managed_ledger.name,
            ledger=ledger_id,
            error=error,
        )
        return None
    return found


async def read_with_compacted(
    client: LedgerClient, ledger_id: int, start: Position, log_from: LogReader
) -> AsyncIterator[tuple[Position, bytes]]:
    """Yield the position and the bytes of each entry from a position on: those of a compacted
    ledger, then those of the log behind them.

    Lost entries of the compacted ledger are left out. Raises LedgerError.
    """
    retries = Retries(f"the compacted ledger {ledger_id}")
    at = start
    try:
        handle, last, size = await retries.call(partial(client.open_compacted, ledger_id))
    except (EntryDamaged, NoSuchEntry) as error:
        log.error("the compacted ledger is lost", ledger=ledger_id, error=error)
        last = -1
    else:
        compacted = CompactedLedger(ledger_id, handle, last, size)
    index = 0
    while index <= last:
        read = partial(compacted.read_some, index, RECORDS_PER_READ, BYTES_PER_READ)
        try:
            batch = await retries.call(read)
        except (EntryDamaged, NoSuchEntry):
            index += 1
            continue
        i = 0
        while i < len(batch):
            entries, following = unwrap(batch, i)
            if entries is None:
                i += 1
                continue
            for k in range(len(entries)):
                position = Position(entries.ledger_id, entries.entry_id(k))
                if position >= start:
                    yield position, entries.data(k)
                    at = Position(position.ledger_id, position.entry_id + 1)
            i = following
        index += len(batch)
    async for position, entry in log_from(at):
        yield position, entry


class CompactedTopic(DispatchedTopic, Protocol):
    """The topic of a compacted view and of compactions (topics/persistent.py)."""

    horizon: Position
    compacted: CompactedLedger | None

    @property
    def last_readable(self) -> Position: ...
    def without_aborted(self, batch: EntryBatch) -> Iterator[EntryBatch]: ...
    def set_compacted(self, compacted: CompactedLedger | None, horizon: Position) -> None: ...
    async def query_compacted(
        self, question: Callable[[CompactedLedger], Awaitable[T]]
    ) -> T | None: ...
    async def compaction_subscription(self) -> object: ...


class CompactedSource:
    """The entry source of one subscription's consumers that read the compacted view."""

    def __init__(self, topic: CompactedTopic, managed_ledger: ManagedLedger) -> None:
        self._topic = topic
        self._log = managed_ledger
        # Position in the part of which the log has no entries (any more), so the cursor cannot
        # store it. None: the log has all entries from the cursor's mark on.
        self.mark: Position | None = None
        self._ledger: CompactedLedger | None = None  # the ledger of the next two fields
        self._next = FIRST  # id after the last read
        self._next_index = 0  # its index
        self._acks = AckSet(-1, -1)  # for ledgers that the log does not have: empty
        # Entries read after the mark without a gap, in order, with a flag: acknowledged. Then the
        # index after the last of them.
        self._noted: dict[Position, bool] = {}
        self._noted_ledger: CompactedLedger | None = None
        self._noted_end = 0

    @property
    def _compacted(self) -> CompactedLedger | None:
        return self._topic.compacted

    def begin_at(self, position: Position | None) -> None:
        """Begin at an entry, or the next one after it; None: at the cursor's position in the
        log.
        """
        self.mark = None
        self._noted.clear()
        self._noted_ledger = None
        if position is not None and position <= self._topic.horizon:
            self.mark = Position(position.ledger_id, position.entry_id - 1)

    async def first_since(self, time_ms: int) -> Position | None:
        """Return the first entry of the compacted ledger published at a time or later, or None.
        Raises LedgerError.
        """
        return await self._topic.query_compacted(lambda ledger: ledger.first_since(time_ms))

    def on_acknowledged(self, run: AckRun, cumulative: bool, mark: Position | None) -> None:
        """Note acknowledged entries, which may not be in the log (any more). mark: the cursor's
        mark, if it has moved.

        For entries that the log does not have, only the mark is stored. So a single acknowledgement
        only counts when all entries before it are acknowledged.
        """
        if self.mark is None:
            return
        if mark is not None and (mark.entry_id >= 0 or mark > self._log.first_position()):
            self.mark = max(self.mark, mark)
        compacted = self._compacted
        if compacted is None or compacted.last is None:
            return
        for index in range(len(run)):
            ledger_id, entry_id, left = run.position(index)
            position = Position(ledger_id, entry_id)
            if left or not self.mark < position <= compacted.last:
                continue
            if cumulative:
                self.mark = position
            elif position in self._noted:
                self._noted[position] = True
        self._forget_acknowledged()

    def _forget_acknowledged(self) -> None:
        """Move the mark over acknowledged entries up to the first gap."""
        assert self.mark is not None
        while self._noted:
            position, is_acknowledged = next(iter(self._noted.items()))
            if not is_acknowledged and position > self.mark:
                break
            del self._noted[position]
            self.mark = max(self.mark, position)

    def _note(
        self, compacted: CompactedLedger, wanted: Position, index: int, entries: EntryBatch
    ) -> None:
        """Note entries read for the wanted position; the first one has this index.

        Entries of the log are left to the cursor. After a gap, or at the limit, nothing is noted
        until a read begins at the mark again. The mark stays before entries that are not noted.
        """
        mark = self.mark
        if mark is None or entries.ledger_id in self._log.ledgers:
            return
        is_begin = wanted == (mark.ledger_id, mark.entry_id + 1)
        if is_begin and (self._noted_ledger is not compacted or index > self._noted_end):
            self._noted.clear()
            self._noted_ledger, self._noted_end = compacted, index
        if self._noted_ledger is not compacted or index > self._noted_end:
            return
        for at in range(self._noted_end - index, len(entries)):
            if len(self._noted) >= NOTED_MAX:
                break
            self._noted[Position(entries.ledger_id, entries.entry_id(at))] = False
            self._noted_end += 1

    def acks_of(self, ledger_id: int, acks: AckSet) -> AckSet:
        """Return the cursor's acknowledgements of a ledger, or none for a ledger not in the log."""
        return acks if ledger_id in self._log.ledgers else self._acks

    # --- positions ---

    def next_position(self, position: tuple[int, int]) -> Position:
        """Return the position of the entry after a position, which may not be written yet."""
        ledger_id, entry_id = position
        compacted = self._compacted
        if compacted is not None and compacted.last is not None:
            if self.mark is not None and (ledger_id, entry_id) <= self._log.first_position():
                position = ledger_id, entry_id = self.mark
            if (ledger_id, entry_id) < compacted.last:
                return Position(max(ledger_id, 0), max(entry_id + 1, 0))
            if position <= self._topic.horizon:
                position = self._topic.horizon
        return self._log.next_position(position)

    def normalize(self, position: tuple[int, int]) -> Position | None:
        """Return the first readable entry at or after a position, or None if none exists yet."""
        compacted = self._compacted
        if compacted is None or position > self._topic.horizon:
            return self._topic.source.normalize(position)
        if compacted.last is not None and position <= compacted.last:
            return Position(*position)
        return self._topic.source.normalize(self._log.next_position(self._topic.horizon))

    def last_entry(self, ledger_id: int) -> int | None:
        """Return the id of the last entry of a ledger of the log."""
        return self._topic.source.last_entry(ledger_id)

    # --- reads ---

    def _is_compacted(self, position: Position) -> bool:
        compacted = self._compacted
        return compacted is not None and compacted.last is not None and position <= compacted.last

    def read_cached(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch | None:
        """Return entries from a normalized position on, or None if they are not in memory."""
        compacted = self._compacted
        if compacted is None or not self._is_compacted(position):
            return self._topic.source.read_cached(position, count_max, bytes_max, last)
        if self._ledger is not compacted or self._next != position:
            return None
        batch = compacted.handle.read_cached(
            self._next_index, compacted.last_index, count_max, bytes_max
        )
        return None if batch is None else self._unwrap(compacted, batch, self._next_index, position)

    def read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | LedgerError], None],
        last: int | None = None,
    ) -> None:
        """Read the same entries from memory or disk; callback gets an EntryBatch or a
        LedgerError.
        """
        if self._is_compacted(position):
            self._log.spawn(self._read(position, count_max, bytes_max, callback))
        else:
            self._topic.source.read(position, count_max, bytes_max, callback, last)

    async def _read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | LedgerError], None],
    ) -> None:
        result: EntryBatch | LedgerError
        try:
            result = await self._read_some(position, count_max, bytes_max)
        except LedgerError as error:
            result = error
        self._topic.turn.run(callback, result)

    async def _read_some(self, position: Position, count_max: int, bytes_max: int) -> EntryBatch:
        while True:
            compacted = self._compacted
            if compacted is None or not self._is_compacted(position):
                # The compacted ledger was replaced meanwhile.
                following = self.normalize(position)
                if following is None:
                    raise LedgerError(f"{self._topic.name} has nothing at {position} now")
                if self._is_compacted(following):
                    position = following
                    continue
                read = self._topic.source.read
                return await read_entries(read, following, count_max, bytes_max)
            try:
                index = await self._index(compacted, position)
                batch = await compacted.read_some(index, count_max, bytes_max)
            except LedgerError:
                if compacted is not self._compacted:
                    continue
                raise
            if compacted is not self._compacted:
                # An index of a replaced ledger may be wrong.
                continue
            found = self._unwrap(compacted, batch, index, position)
            if found is None:
                raise EntryDamaged(f"a record of compacted ledger {compacted.ledger_id} is damaged")
            return found

    async def _index(self, compacted: CompactedLedger, position: Position) -> int:
        if self._ledger is compacted and self._next == position:
            return self._next_index
        return await compacted.find(position)

    def _unwrap(
        self, compacted: CompactedLedger, batch: EntryBatch, index: int, wanted: Position
    ) -> EntryBatch | None:
        found, count = unwrap(batch, 0)
        if found is not None:
            self._ledger = compacted
            self._next = Position(found.ledger_id, found.entry_id(len(found) - 1) + 1)
            self._next_index = index + count
            self._note(compacted, wanted, index, found)
        return found

    # --- notifications ---

    def watch(self, wake: Callable[[], None]) -> None:
        """Call wake when there are more entries, until unwatch(wake)."""
        self._log.watch(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Stop calling wake."""
        self._log.unwatch(wake)
