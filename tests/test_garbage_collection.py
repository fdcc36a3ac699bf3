"""Garbage collection: space of ledgers without metadata comes back, of all others never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from one_bookie import BOOKIE_ID, NAME, Node, Runs, append, ledgers_of, read_all, run, until
from pyxbroker.bookie import garbage_collection
from pyxbroker.bookie.garbage_collection import GarbageCollector
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.metadata import maintenance, paths
from pyxbroker.metadata.database import split
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.store import CorruptStore, MetadataError, Unavailable


async def collect(node: Node) -> int:
    return await GarbageCollector(node.storage, node.store).collect()


async def ledgers(node: Node, count: int) -> list[LedgerHandle]:
    """Ledgers with one entry each."""
    handles = []
    for _ in range(count):
        runs = Runs()
        handle = await node.client.create(runs, NAME)
        handle.append(runs.run(b"x"))
        handles.append(handle)
    for handle in handles:
        await handle.drain()
    return handles


def test_only_ledgers_without_metadata_go(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        handles = await ledgers(node, 10)
        for handle in handles[::3]:
            await node.store.delete(paths.ledger(handle.ledger_id))
        assert await collect(node) == 4
        left = [each.ledger_id for n, each in enumerate(handles) if n % 3]
        assert ledgers_of(node.storage) == left
        assert await collect(node) == 0

    run(tmp_path, scenario)


def test_every_round_of_a_long_list_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collection, "LEDGERS_PER_ROUND", 3)

    async def scenario(node: Node) -> None:
        handles = await ledgers(node, 11)
        for handle in handles[1:]:
            await node.store.delete(paths.ledger(handle.ledger_id))
        assert await collect(node) == 10
        assert ledgers_of(node.storage) == [handles[0].ledger_id]

    run(tmp_path, scenario)


def test_a_topic_in_use_loses_nothing(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        await append(managed_ledger, b"one")
        managed_ledger.roll_over()
        collecting = asyncio.ensure_future(collect(node))
        await append(managed_ledger, b"two")
        assert await collecting == 0
        assert (await read_all(managed_ledger))[-1:] == [b"two"]

    run(tmp_path, scenario)


def test_a_ledger_that_its_owner_deletes_meanwhile_is_no_error(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        handles = await ledgers(node, 5)
        exists = node.store.exists

        def delete_meanwhile(path: str) -> asyncio.Future[bool]:
            return asyncio.ensure_future(deleted(path))

        async def deleted(path: str) -> bool:
            await node.client.delete(handles[2].ledger_id)
            return await exists(path)

        node.store.exists = delete_meanwhile  # type: ignore[method-assign]
        assert await collect(node) == 0
        assert len(ledgers_of(node.storage)) == 4

    run(tmp_path, scenario)


def test_nothing_is_deleted_when_metadata_cannot_be_asked(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await ledgers(node, 3)

        def refuse(path: str) -> asyncio.Future[bool]:
            future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            future.set_exception(Unavailable("the store is away"))
            return future

        node.store.exists = refuse  # type: ignore[method-assign]
        with pytest.raises(MetadataError):
            await collect(node)
        assert len(ledgers_of(node.storage)) == 3

    run(tmp_path, scenario)


def test_a_ledger_with_damaged_metadata_stays_and_all_others_are_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: Node) -> None:
        handles = await ledgers(node, 5)
        damaged, deleted = handles[1].ledger_id, handles[3].ledger_id
        await node.store.delete(paths.ledger(deleted))
        exists = node.store.exists

        def look(path: str) -> asyncio.Future[bool]:
            if path != paths.ledger(damaged):
                return exists(path)
            future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            future.set_exception(CorruptStore(f"the node {path} is damaged"))
            return future

        node.store.exists = look  # type: ignore[method-assign]
        collector = GarbageCollector(node.storage, node.store)
        assert await collector.collect() == 1
        assert await collector.collect() == 0
        left = ledgers_of(node.storage)
        assert damaged in left and deleted not in left and len(left) == 4

    run(tmp_path, scenario)
    assert len([each for each in caplog.records if each.getMessage() == "a ledger is kept"]) == 1


def test_space_of_garbage_comes_back(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        runs = Runs()
        handle = await node.client.create(runs, NAME)
        for n in range(50):
            handle.append(runs.run(bytes([n]) * 10_000))
        await handle.drain()
        await node.flush()
        [kept] = await ledgers(node, 1)
        await node.flush()
        logs = node.directory / "ledgers"
        assert len(list(logs.glob("*.log"))) == 2
        await node.store.delete(paths.ledger(handle.ledger_id))
        assert await collect(node) == 1
        await until(lambda: len(list(logs.glob("*.log"))) == 1)
        assert (await kept.read_future(0, 0)).data(0) == b"x"

    run(tmp_path, scenario)


class WithMemory(Node):
    """A node whose metadata is the embedded store, which knows what was deleted."""

    async def __aenter__(self) -> Node:
        await super().__aenter__()
        self.store = EmbeddedStore(self.directory / "metadata")  # type: ignore[assignment]
        await self.store.open()
        self.client = LedgerClient(self.store, {BOOKIE_ID: self.bookie}, self.turn, LedgerQuorums())
        return self


def run_with_memory(tmp_path: Path, *scenarios: Callable[[Node], Awaitable[None]]) -> None:
    """Each scenario is the life of a process; they share the data."""

    async def main() -> None:
        for scenario in scenarios:
            async with WithMemory(tmp_path / "bookie") as node:
                await scenario(node)

    asyncio.run(main())


def test_a_ledger_that_metadata_lost_is_kept_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[int] = []

    async def lose(node: Node) -> None:
        handles = await ledgers(node, 5)
        lost.append(handles[1].ledger_id)
        # As an older state of the database would have it: gone, and nobody deleted it.
        tree = node.store._tree  # type: ignore[attr-defined]
        path = paths.ledger(lost[0])
        await node.store._issue(  # type: ignore[attr-defined]
            lambda _: None,
            lambda name: tree._execute("DELETE FROM node WHERE parent=? AND name=?", *split(name)),
            path,
        )
        await node.client.delete(handles[3].ledger_id)
        collector = GarbageCollector(node.storage, node.store)
        assert await collector.collect() == 0
        assert collector.unknown_ledgers == lost
        assert await collector.collect() == 0
        assert lost[0] in ledgers_of(node.storage)

    async def again(node: Node) -> None:
        collector = GarbageCollector(node.storage, node.store)
        assert await collector.collect() == 0
        assert collector.unknown_ledgers == lost

    async def asked(node: Node) -> None:
        collector = GarbageCollector(node.storage, node.store)
        assert await collector.collect() == 1
        assert collector.unknown_ledgers == []
        assert lost[0] not in ledgers_of(node.storage)

    run_with_memory(tmp_path, lose, again)
    assert len([each for each in caplog.records if "are kept" in each.getMessage()]) == 1
    directory = tmp_path / "bookie" / "metadata"
    assert maintenance.unknown_ledgers(directory) == lost
    assert maintenance.forget_unknown_ledgers(directory) == lost
    assert maintenance.unknown_ledgers(directory) == []
    run_with_memory(tmp_path, asked)


def test_a_deleted_ledger_that_a_crash_brings_back_goes_again(tmp_path: Path) -> None:
    """Its deletion is remembered until a process has started without it."""
    deleted: list[int] = []

    async def delete(node: Node) -> None:
        [handle] = await ledgers(node, 1)
        await node.flush()
        await ledgers(node, 2)
        await node.flush()
        deleted.append(handle.ledger_id)
        await node.store.delete(paths.ledger(deleted[0]))  # The space is not freed any more.

    async def first(node: Node) -> None:
        await node.store.put("/x", b"")
        await node.store.make_copy()  # type: ignore[attr-defined]
        collector = GarbageCollector(node.storage, node.store)
        assert await collector.collect() == 1
        assert await collector.collect() == 0
        assert await node.store.was_deleted([paths.ledger(deleted[0])]) == [True]
        logs = node.directory / "ledgers"
        await until(lambda: len(list(logs.glob("*.log"))) == 1)

    async def second(node: Node) -> None:
        assert await collect(node) == 0
        assert await node.store.was_deleted([paths.ledger(deleted[0])]) == [False]

    run_with_memory(tmp_path, delete, first, second)
