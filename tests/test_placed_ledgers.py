"""Managed ledgers whose bookies a placement policy chooses, and which come and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from model_bookies import ModelBookie, closed
from one_bookie import LIMITS, NAME, Node, Runs, entries, read_all, until
from pyxbroker.ledger import quarantine
from pyxbroker.ledger.bookie import TIMED_OUT
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.ensemble import EnsembleHandle
from pyxbroker.ledger.errors import NotEnoughBookies
from pyxbroker.ledger.metadata import LedgerMetadataStore
from pyxbroker.ledger.placement import Affinity, LedgerQuorums, affinity_of
from pyxbroker.ledger.rack_placement import RackPlacement, RackSettings
from pyxbroker.ledger.registered_bookies import BookiesView
from pyxbroker.mledger.cursor import Cursor, CursorError
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import open_managed_ledger
from pyxbroker.mledger.state import State

COUNT = 5


class Cluster:
    """Five model bookies, of which the test says which ones are registered."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self.bookies = [
            ModelBookie(directory / f"b{i}", node.turn, f"b{i}", i) for i in range(COUNT)
        ]
        self.view = BookiesView()
        self.callbacks: list[Callable[[], None]] = []
        self.placement = RackPlacement(
            self,
            RackSettings(),
            random.Random(1),
            asyncio.get_running_loop().time,
        )
        self.client = LedgerClient(
            node.store,
            {each.bookie_id: each for each in self.bookies},
            node.turn,
            LedgerQuorums(2, 2, 2),
            placement=self.placement,
        )
        self.metadata = LedgerMetadataStore(node.store)

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: None

    def register(self, *names: str, groups: dict[str, set[str]] | None = None) -> None:
        self.view = BookiesView(
            writable=dict.fromkeys(names),
            groups={name: frozenset(each) for name, each in (groups or {}).items()},
        )
        for callback in self.callbacks:
            callback()

    async def open(self, limits: ManagedLedgerLimits = LIMITS) -> ManagedLedger:
        found = await open_managed_ledger(NAME, self.node.store, self.client, limits)
        assert found is not None
        return found

    async def append(self, managed_ledger: ManagedLedger, data: list[bytes]) -> Runs:
        runs = Runs()
        for each in data:
            self.node.turn.run(managed_ledger.append, runs.run(each))
        await until(lambda: runs.answered == len(data))
        return runs

    async def ensembles(self, ledger_id: int) -> list[set[str]]:
        found = await self.metadata.read(ledger_id)
        return [set(each) for each in found.metadata.ensembles.values()]


async def cursor_of(managed_ledger: ManagedLedger) -> Cursor:
    cursor = Cursor(managed_ledger, "s", managed_ledger.first_position())
    managed_ledger.cursors["s"] = cursor
    await cursor.create_node()
    return cursor


def run(tmp_path: Path, scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Node(tmp_path / "node") as node:
            cluster = Cluster(node, tmp_path)
            try:
                await scenario(cluster)
            finally:
                await cluster.client.stop()
                await closed(cluster.bookies)

    asyncio.run(main())


def test_ledgers_of_topics_and_cursors_are_on_the_bookies_of_their_groups(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        affinity = Affinity("g1", "g2")
        groups = {"g1": {"b1", "b3"}, "g2": {"b0"}}
        cluster.register("b0", "b1", "b2", "b3", "b4", groups=groups)
        managed_ledger = await cluster.open(LIMITS._replace(affinity=affinity))
        await cluster.append(managed_ledger, entries(0, 3))
        cursor = await cursor_of(managed_ledger)
        cursor.acknowledge_positions([(managed_ledger.ledger_ids[-1], 0)])
        await cursor.persist()
        for ledger_id in (managed_ledger.ledger_ids[-1], cursor.ledger_id):
            found = (await cluster.metadata.read(ledger_id)).metadata
            assert affinity_of(found.custom_metadata) == affinity
            assert await cluster.ensembles(ledger_id) == [{"b1", "b3"}]
        handle = managed_ledger.current
        assert isinstance(handle, EnsembleHandle)
        cluster.bookies[3].is_down = True
        cluster.register("b0", "b1", "b2", "b4", groups=groups)
        runs = await cluster.append(managed_ledger, entries(3, 6))
        assert runs.added == entries(3, 6)
        await until(lambda: handle.writer.change is None and len(handle.segments) == 2)
        assert set(handle.writer.ensemble) == {"b0", "b1"}, "the secondary group"
        cluster.bookies[3].is_down = False
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_topic_continues_when_bookies_return(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.register("b0", "b1")
        managed_ledger = await cluster.open()
        await cluster.append(managed_ledger, entries(0, 5))
        cluster.register("b0")
        managed_ledger.roll_over()
        await managed_ledger.finish_tasks()
        assert managed_ledger.state is State.TOO_FEW_BOOKIES
        assert managed_ledger.lack_of_bookies == (
            "a ledger needs 2 bookies (managedLedgerDefaultEnsembleSize), but there is 1 writable:"
            " start more bookies, or lower it"
        )
        assert await read_all(managed_ledger) == entries(0, 5)
        cluster.register("b4")
        await until(lambda: managed_ledger.state is State.TOO_FEW_BOOKIES)
        cluster.register("b0", "b4")
        await until(lambda: managed_ledger.state is State.OPEN)
        runs = await cluster.append(managed_ledger, entries(5, 9))
        assert runs.added == entries(5, 9)
        assert await cluster.ensembles(managed_ledger.ledger_ids[-1]) == [{"b0", "b4"}]
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_topic_that_is_opened_without_bookies_can_be_read_and_written_later(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.register("b0", "b1")
        managed_ledger = await cluster.open()
        await cluster.append(managed_ledger, entries(0, 5))
        await managed_ledger.close()
        cluster.register()
        managed_ledger = await cluster.open()
        assert managed_ledger.state is State.TOO_FEW_BOOKIES
        assert await read_all(managed_ledger) == entries(0, 5)
        cluster.register("b2", "b3")
        await until(lambda: managed_ledger.state is State.OPEN)
        assert (await cluster.append(managed_ledger, entries(5, 7))).added == entries(5, 7)
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_who_waits_for_bookies_continues_with_them_or_after_a_time(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.register("b0", "b1")
        managed_ledger = await cluster.open()
        await asyncio.wait_for(managed_ledger.wait_for_bookies(60), 1)
        cluster.register("b0")
        managed_ledger.roll_over()
        await managed_ledger.finish_tasks()
        await managed_ledger.wait_for_bookies(0.01)
        assert managed_ledger.state is State.TOO_FEW_BOOKIES
        waiting = asyncio.ensure_future(managed_ledger.wait_for_bookies(60))
        cluster.register("b0", "b4")
        await asyncio.wait_for(waiting, 5)
        assert managed_ledger.state is State.OPEN
        cluster.register()
        managed_ledger.roll_over()
        await managed_ledger.finish_tasks()
        waiting = asyncio.ensure_future(managed_ledger.wait_for_bookies(60))
        await asyncio.sleep(0)
        await managed_ledger.close()
        await asyncio.wait_for(waiting, 5)

    run(tmp_path, scenario)


def test_a_topic_that_was_closed_meanwhile_stays_closed(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.register("b0", "b1")
        managed_ledger = await cluster.open()
        cluster.register()
        managed_ledger.roll_over()
        await managed_ledger.finish_tasks()
        await managed_ledger.close()
        cluster.register("b0", "b1")
        await asyncio.sleep(0.01)
        assert managed_ledger.state is State.CLOSED

    run(tmp_path, scenario)


def test_acknowledgements_are_stored_when_bookies_return(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.register("b0", "b1")
        managed_ledger = await cluster.open(LIMITS._replace(mark_delete_per_s=1000.0))
        await cluster.append(managed_ledger, entries(0, 5))
        cursor = await cursor_of(managed_ledger)
        cluster.register("b0")
        cursor.acknowledge_positions([(managed_ledger.ledger_ids[-1], 0)])
        with pytest.raises(CursorError, match="a ledger needs 2 bookies"):
            await cursor.persist()
        assert cursor.failure is None
        cluster.register("b0", "b1")
        await cursor.persist()
        assert cursor.ledger_id >= 0
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_cursor_continues_in_another_ledger_when_all_its_bookies_return(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.register("b0", "b1", "b2", "b3")
        managed_ledger = await cluster.open(LIMITS._replace(mark_delete_per_s=1000.0))
        await cluster.append(managed_ledger, entries(0, 5))
        cursor = await cursor_of(managed_ledger)
        ledger_id = managed_ledger.ledger_ids[-1]
        cursor.acknowledge_positions([(ledger_id, 0)])
        await cursor.persist()
        before = cursor.ledger_id
        for bookie in cluster.bookies:
            bookie.is_down = True
        cursor.acknowledge_positions([(ledger_id, 1)])
        with pytest.raises(CursorError, match="no other bookie is writable"):
            await cursor.persist()
        for bookie in cluster.bookies:
            bookie.is_down = False
        await cursor.persist()
        assert cursor.ledger_id > before
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_bookie_that_does_not_answer_is_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "TIMEOUT_SPACING_S", 0.0)

    async def scenario(cluster: Cluster) -> None:
        cluster.client.add_timeout_s = 0.02
        counted: list[tuple[str, int]] = []
        on_error = cluster.placement.on_error

        def count(*error: Any) -> None:
            counted.append(error)
            on_error(*error)

        monkeypatch.setattr(cluster.placement, "on_error", count)
        cluster.register("b0", "b1", "b2", "b3")
        cluster.bookies[0].drops = 1.0
        managed_ledger = await cluster.open()
        while len(counted) < 5:
            await cluster.append(managed_ledger, entries(0, 2))
            managed_ledger.roll_over()
            await managed_ledger.finish_tasks()
        assert set(counted) == {("b0", TIMED_OUT)}
        for _ in range(20):
            assert "b0" not in cluster.placement.new_ensemble(LedgerQuorums(2, 2, 2))
        cluster.bookies[0].drops = 0.0
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_ledger_without_bookies_is_not_created(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(NotEnoughBookies, match="there are 0 writable"):
            await cluster.open()
        assert [each async for each in cluster.metadata.ledger_ids()] == []

    run(tmp_path, scenario)
