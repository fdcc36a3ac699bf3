"""One bookie, one metadata store and a ledger client in this process, as a broker has them."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pyxbroker import _native
from pyxbroker.bookie.embedded import EmbeddedBookie
from pyxbroker.bookie.garbage_collection import stored_ledgers
from pyxbroker.connection import Connections
from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import open_managed_ledger
from pyxbroker.mledger.state import State
from pyxbroker.turn import Turn
from shares import without_end

MIB = 1 << 20
NAME = "public/default/persistent/t"
BOOKIE_ID = "127.0.0.1:3181"

_trees = itertools.count()

# Acknowledgements are written when a test asks for it, ledgers are as short as it says.
LIMITS = ManagedLedgerLimits(rollover_min_s=0.0, mark_delete_per_s=0.001)
SHORT = LIMITS._replace(entries_per_ledger_max=10)


class Node:
    """What one broker process has. `async with` starts and stops it; kill() gives its successor."""

    def __init__(self, directory: Path, tree: str = "", **options: Any) -> None:
        self.directory = directory
        self.tree = tree or f"one-bookie-{next(_trees)}"
        self.options = options
        self.full: list[bool] = []
        self.on_full: Callable[[bool], None] = lambda full: None
        self.on_trouble: Callable[[], None] = lambda: None
        self.faults = _native.DiskFaults()
        self.make_store: Callable[[str], MemoryStore] = MemoryStore
        self.store: MemoryStore
        self.connections: Connections
        self.turn: Turn
        self.storage: _native.Storage
        self.bookie: EmbeddedBookie
        self.client: LedgerClient

    async def __aenter__(self) -> Node:
        settings: dict[str, Any] = {
            "journal_file_bytes": 4 * MIB,
            "dirty_bytes_max": 2 * MIB,
            "cache_bytes_max": 8 * MIB,
            "entry_bytes_max": 1 * MIB,
            "faults": self.faults,
        }
        settings.update(self.options)
        self.store = self.make_store(self.tree)
        await self.store.open()
        self.connections = Connections(
            asyncio.get_running_loop(),
            None,
            frame_bytes_max=1 * MIB,
            sends_max=1000,
            publish_bytes_max=64 * MIB,
        )
        self.turn = self.connections.turn
        # How far something comes in one turn must not depend on the machine.
        without_end(self.turn.notifications, self.turn.dispatching)
        self.storage = _native.Storage(
            self.directory / "journal", self.directory / "ledgers", **settings
        )
        self.bookie = EmbeddedBookie(
            self.storage, self.turn, BOOKIE_ID, self._on_full, self._on_trouble
        )
        self.client = LedgerClient(self.store, {BOOKIE_ID: self.bookie}, self.turn, LedgerQuorums())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.client.stop()
        with suppress(OSError):
            # A journal that a test broke says so when it is closed.
            await self.bookie.close()
        await self.store.close()

    def _on_full(self, full: bool) -> None:
        self.full.append(full)
        self.on_full(full)

    def _on_trouble(self) -> None:
        self.on_trouble()

    def kill(self, name: str = "killed") -> Node:
        """A node that finds what a kill -9 of this one would leave now: what the disk has."""
        target = self.directory.parent / name
        copy_as_killed(self.directory, target)
        return Node(target, self.tree, **self.options)

    async def open(self, limits: ManagedLedgerLimits = LIMITS, name: str = NAME) -> ManagedLedger:
        managed_ledger = await open_managed_ledger(name, self.store, self.client, limits)
        assert managed_ledger is not None
        return managed_ledger

    def last_entry(self, ledger_id: int) -> int:
        """Return the highest entry id that the bookie stores; -1 without any."""
        with suppress(FileNotFoundError):
            return self.storage.last_entry(ledger_id)
        return -1

    async def flush(self) -> None:
        """Moves what the write cache has to the entry logs."""
        before = self.storage.stats()["flushes"]
        self.storage.flush()
        await until(lambda: self.storage.stats()["flushes"] > before)


def run(tmp_path: Path, scenario: Callable[[Node], Awaitable[None]], **options: Any) -> None:
    """Runs a scenario on a loop of its own, with a fresh bookie."""

    async def main() -> None:
        async with Node(tmp_path / "bookie", **options) as node:
            await scenario(node)

    asyncio.run(main())


def copy_as_killed(source: Path, target: Path) -> None:
    """Copies the directories of an open storage as a kill -9 would leave them now.

    The journal is copied first: what a flush moves meanwhile is then found in the entry logs. A
    file that a background thread renames under the copy was not needed any more. When the
    journal's manifest or that of entry logs changed meanwhile, the copy is made anew: a kill
    leaves it and the files of one moment.
    """

    def manifest(directory: Path) -> list[bytes]:
        files = (directory / "journal" / "journal.manifest", directory / "ledgers" / "manifest")
        return [file.read_bytes() if file.exists() else b"" for file in files]

    while True:
        before = manifest(source)
        for folder in ("journal", "ledgers"):
            shutil.rmtree(target / folder, ignore_errors=True)
            (target / folder).mkdir(parents=True)
            for file in sorted((source / folder).iterdir()):
                with suppress(FileNotFoundError):
                    shutil.copy(file, target / folder)
        if before == manifest(source) == manifest(target):
            return


def ledgers_of(storage: _native.Storage) -> list[int]:
    """The ids of all ledgers that are stored."""
    return sorted(each for some in stored_ledgers(storage) for each in some)


class Runs:
    """The owner of runs: which of them were added, in what order, and which failed."""

    def __init__(self) -> None:
        self.added: list[bytes] = []
        self.positions: list[tuple[int, int]] = []
        self.failed: list[tuple[bytes, Exception]] = []
        self._data: dict[int, bytes] = {}
        self._kept: list[EntryRun] = []

    def run(self, data: bytes) -> EntryRun:
        run = EntryRun.of(data, self)
        self._data[id(run)] = data
        self._kept.append(run)
        return run

    @property
    def answered(self) -> int:
        return len(self.added) + len(self.failed)

    def on_run_added(self, run: EntryRun) -> None:
        self.added.append(self._data[id(run)])
        self.positions.append((run.ledger_id, run.first_entry_id))

    def on_run_failed(self, run: EntryRun, error: Exception) -> None:
        self.failed.append((self._data[id(run)], error))

    # The same of a ledger without a managed ledger.

    def on_run_confirmed(self, run: EntryRun) -> None:
        self.on_run_added(run)

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        for run in handle.take_unconfirmed():
            self.on_run_failed(run, error)


async def append(managed_ledger: ManagedLedger, *data: bytes) -> list[tuple[int, int]]:
    """Appends entries one run each, waits until they are durable; returns their positions."""
    runs = Runs()
    for each in data:
        managed_ledger.append(runs.run(each))
    await until(lambda: runs.answered == len(data))
    assert runs.failed == []
    assert runs.added == list(data)
    return runs.positions


async def read_all(managed_ledger: ManagedLedger) -> list[bytes]:
    """The data of every entry that is kept, in order, read as a dispatcher does."""
    found: list[bytes] = []
    position = managed_ledger.normalize(managed_ledger.first_position())
    while position is not None:
        batch = managed_ledger.read_cached(position, 100, MIB)
        if batch is None:
            batch = await managed_ledger.read_one(position)
        assert (batch.ledger_id, batch.entry_id(0)) == position
        found.extend(batch.data(i) for i in range(len(batch)))
        last = (batch.ledger_id, batch.entry_id(len(batch) - 1))
        position = managed_ledger.normalize(managed_ledger.next_position(last))
    return found


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Lets the loop go on until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to the expected state"
        await asyncio.sleep(0.001)


async def turns(count: int = 10) -> None:
    """Lets the event loop go around, so that all that is ready is done."""
    for _ in range(count):
        await asyncio.sleep(0)


def entries(start: int, stop: int) -> list[bytes]:
    return [b"entry %d" % n for n in range(start, stop)]


async def settled(managed_ledger: ManagedLedger) -> None:
    """Waits until no ledger is being created or deleted."""
    await until(lambda: managed_ledger.state is State.OPEN and not managed_ledger._tasks)


async def cursor_at(managed_ledger: ManagedLedger, name: str, mark: Position) -> Cursor:
    cursor = Cursor(managed_ledger, name, mark)
    managed_ledger.cursors[name] = cursor
    await cursor.create_node()
    return cursor


def check_positions(managed_ledger: ManagedLedger) -> None:
    """All arithmetic of positions against a plain list of what is kept."""
    current = managed_ledger.current
    assert current is not None
    ids = sorted(managed_ledger.ledgers)
    counts = {each: managed_ledger.ledgers[each].entries for each in ids}
    counts[current.ledger_id] = current.last_add_confirmed + 1
    kept = [Position(each, n) for each in ids for n in range(counts[each])]
    assert managed_ledger.entries == len(kept)
    for index, position in enumerate(kept):
        assert managed_ledger.position_of(index) == position
        assert managed_ledger.ordinal(position) == index + 1
    places = {Position(-1, -1), Position(ids[-1] + 1, 0), *kept, managed_ledger.last_confirmed}
    for each in range(ids[0] - 1, ids[-1] + 1):
        count = counts.get(each, 0)
        places.update(Position(each, n) for n in (-1, 0, count - 1, count, count + 5))
    ordered = sorted(places)
    for place in ordered:
        after = [position for position in kept if position > place]
        at_or_after = [position for position in kept if position >= place]
        assert managed_ledger.normalize(place) == (at_or_after[0] if at_or_after else None)
        assert managed_ledger.ordinal(place) == len(kept) - len(after)
        following = managed_ledger.next_position(place)
        assert following > place
        assert managed_ledger.normalize(following) == (after[0] if after else None)
    for low, high in itertools.pairwise(ordered):
        between = len([position for position in kept if low < position <= high])
        assert managed_ledger.entries_between(low, high) == between
        assert managed_ledger.entries_between(high, low) == 0


async def filled(node: Node, limits: ManagedLedgerLimits) -> ManagedLedger:
    """Five closed ledgers of ten entries and the empty one that is being written."""
    managed_ledger = await node.open(limits._replace(retention_s=-1, retention_bytes=-1))
    for start in range(0, 50, 10):
        await append(managed_ledger, *entries(start, start + 10))
        await settled(managed_ledger)
    assert len(managed_ledger.ledgers) == 6
    managed_ledger.limits = limits
    return managed_ledger
