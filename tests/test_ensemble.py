"""Managed ledgers on several bookies, whose answers come late, twice, out of order or never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from model_bookies import ModelBookie, closed
from one_bookie import LIMITS, NAME, Node, Runs, entries, read_all, until
from pyxbroker.entry import EntryBatch
from pyxbroker.ledger import read_policy
from pyxbroker.ledger.bookie import DISCONNECTED
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.ensemble import EnsembleHandle
from pyxbroker.ledger.errors import LedgerError, NoSuchEntry
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.ledger.reader import ReadSettings
from pyxbroker.mledger.entry_cache import EntryCache
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import open_managed_ledger

QUORUMS = LedgerQuorums(3, 3, 2)
QUICK = ReadSettings(speculative_s=0.05, timeout_s=0.1)


class Cluster:
    """Five model bookies, and a ledger client whose ledgers are on three of them."""

    def __init__(
        self,
        node: Node,
        directory: Path,
        seed: int,
        reads: ReadSettings,
        quorums: LedgerQuorums = QUORUMS,
    ) -> None:
        self.node = node
        self.bookies = [
            ModelBookie(directory / f"b{i}", node.turn, f"b{i}", 10 * seed + i) for i in range(5)
        ]
        by_id = {each.bookie_id: each for each in self.bookies}
        self.client = LedgerClient(node.store, by_id, node.turn, quorums, read_settings=reads)
        self.cache = EntryCache(1 << 20, age_max_s=60)

    async def open(self) -> ManagedLedger:
        managed_ledger = await open_managed_ledger(
            NAME, self.node.store, self.client, LIMITS, cache=self.cache
        )
        assert managed_ledger is not None
        return managed_ledger

    @property
    def reads(self) -> int:
        return sum(each.reads for each in self.bookies)


def run(
    tmp_path: Path,
    scenario: Callable[[Cluster], Awaitable[None]],
    seed: int = 1,
    reads: ReadSettings = QUICK,
    quorums: LedgerQuorums = QUORUMS,
) -> None:
    async def main() -> None:
        async with Node(tmp_path / "node") as node:
            cluster = Cluster(node, tmp_path, seed, reads, quorums)
            try:
                await scenario(cluster)
            finally:
                cluster.cache.close()
                await cluster.client.stop()
                await closed(cluster.bookies)

    asyncio.run(main())


async def append_all(cluster: Cluster, managed_ledger: ManagedLedger, data: list[bytes]) -> Runs:
    runs = Runs()
    for each in data:
        cluster.node.turn.run(managed_ledger.append, runs.run(each))
    await until(lambda: runs.answered == len(data))
    return runs


@pytest.mark.parametrize("seed", range(5))
def test_entries_are_confirmed_in_order_and_read_back(tmp_path: Path, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        assert isinstance(managed_ledger.current, EnsembleHandle)
        managed_ledger.watch(lambda: None)  # else nobody would read what the cache has
        data = entries(0, 200)
        runs = await append_all(cluster, managed_ledger, data)
        assert runs.added == data
        assert await read_all(managed_ledger) == data
        assert cluster.reads == 0, "the cache has what was added"
        await managed_ledger.close()
        cluster.cache.close()
        again = await cluster.open()
        assert await read_all(again) == data
        await again.close()

    run(tmp_path, scenario, seed)


def test_a_bookie_that_goes_down_is_replaced(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        await append_all(cluster, managed_ledger, entries(0, 20))
        cluster.bookies[1].is_down = True
        runs = await append_all(cluster, managed_ledger, entries(20, 60))
        assert runs.added == entries(20, 60)
        handle = managed_ledger.current
        assert isinstance(handle, EnsembleHandle)
        await until(lambda: handle.writer.change is None and len(handle.segments) == 2)
        assert handle.writer.ensemble == ["b0", "b3", "b2"]
        cluster.bookies[0].is_down = True
        cluster.cache.close()
        managed_ledger.cache = None
        assert await read_all(managed_ledger) == entries(0, 60), "each segment by its own bookies"
        cluster.bookies[0].is_down = False
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_bookie_that_fails_after_a_ledger_was_closed_has_no_effect(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        await append_all(cluster, managed_ledger, entries(0, 20))
        old = managed_ledger.current
        assert isinstance(old, EnsembleHandle)
        managed_ledger.roll_over()
        await until(lambda: managed_ledger.current not in (None, old))
        # An add beyond the ack quorum had no answer until now.
        old.on_adds_failed(1, 0, DISCONNECTED)
        await asyncio.sleep(0.1)
        runs = await append_all(cluster, managed_ledger, entries(20, 40))
        assert runs.added == entries(20, 40)
        assert old.failure is None and old.writer.change is None
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_bookie_that_fails_while_its_ledger_is_closed_is_replaced_before(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        await append_all(cluster, managed_ledger, entries(0, 20))
        old = managed_ledger.current
        assert isinstance(old, EnsembleHandle)
        old.on_adds_failed(1, 0, DISCONNECTED)
        managed_ledger.roll_over()
        await until(lambda: managed_ledger.current not in (None, old))
        runs = await append_all(cluster, managed_ledger, entries(20, 40))
        assert runs.added == entries(20, 40)
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_bookie_that_never_answers_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def scenario(cluster: Cluster) -> None:
        cluster.client.add_timeout_s = 0.4
        managed_ledger = await cluster.open()
        for silent in cluster.bookies[:2]:
            silent.drops = 1.0
        runs = await append_all(cluster, managed_ledger, entries(0, 30))
        assert runs.added == entries(0, 30)
        handle = managed_ledger.current
        assert isinstance(handle, EnsembleHandle)
        assert not {"b0", "b1"} & set(handle.writer.ensemble)
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_readers_ask_another_bookie_when_one_is_silent_down_or_without_the_entry(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        await append_all(cluster, managed_ledger, entries(0, 3))
        handle = managed_ledger.current
        assert handle is not None
        first, second, third = cluster.bookies[:3]
        first.drops = 1.0
        assert (await handle.read_future(0, 0)).data(0) == b"entry 0"
        second.is_down = True
        assert (await handle.read_future(0, 0)).data(0) == b"entry 0"
        third.inner.delete_ledger(handle.ledger_id)
        with pytest.raises(LedgerError) as unsure:
            await handle.read_future(0, 0)
        assert not isinstance(unsure.value, NoSuchEntry), "a silent bookie may have it"
        first.drops = 0.0
        second.is_down = False
        for each in (first, second):
            each.inner.delete_ledger(handle.ledger_id)
        with pytest.raises(NoSuchEntry):
            await handle.read_future(0, 0)

    run(tmp_path, scenario)


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regard no bookie as slow, however busy the machine is."""
    monkeypatch.setattr(read_policy, "SLOW_MIN_S", 60.0)


@pytest.mark.usefixtures("alike")
def test_sticky_reads_go_to_one_bookie_until_it_fails(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        await append_all(cluster, managed_ledger, entries(0, 9))
        handle = managed_ledger.current
        assert handle is not None
        counts = []
        for down in (None, handle.ledger_id % 3):
            if down is not None:
                cluster.bookies[down].is_down = True
            for each in cluster.bookies:
                each.reads = 0
            for entry_id in range(9):
                assert (await handle.read_future(entry_id, entry_id)).data(0)
            counts.append([each.reads for each in cluster.bookies[:3]])
        at = handle.ledger_id % 3
        assert counts[0][at] == 9
        assert counts[1][at] == 1, "a bookie that failed is the last one to be asked"
        assert counts[1][(at + 1) % 3] == 9

    run(tmp_path, scenario)


@pytest.mark.usefixtures("alike")
def test_reads_without_stickiness_take_turns(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        await append_all(cluster, managed_ledger, entries(0, 9))
        handle = managed_ledger.current
        assert handle is not None
        for entry_id in range(9):
            await handle.read_future(entry_id, entry_id)
        assert [each.reads for each in cluster.bookies[:3]] == [3, 3, 3]

    run(tmp_path, scenario, reads=ReadSettings(is_sticky=False))


def test_a_damaged_answer_is_counted_and_the_next_bookie_is_asked(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        await append_all(cluster, managed_ledger, entries(0, 3))
        handle = managed_ledger.current
        assert handle is not None
        cluster.bookies[handle.ledger_id % 3].is_damaged = True
        assert (await handle.read_future(0, 0)).data(0) == b"entry 0"
        damaged = cluster.client.read_policy().damaged
        assert damaged == {f"b{handle.ledger_id % 3}": 1}

    run(tmp_path, scenario)


STRIPED = LedgerQuorums(3, 2, 2)
PATIENT = ReadSettings(speculative_s=0.0, timeout_s=30.0)


def data_of(batch: EntryBatch) -> list[bytes]:
    return [batch.data(i) for i in range(len(batch))]


async def striped(cluster: Cluster, count: int) -> EnsembleHandle:
    """A ledger whose entries alternate between bookies, with this many of them, and one read."""
    managed_ledger = await cluster.open()
    await append_all(cluster, managed_ledger, entries(0, count))
    handle = managed_ledger.current
    assert isinstance(handle, EnsembleHandle)
    # The first read tells how large entries are.
    assert data_of(await handle.read_future(0, count - 1)) == entries(0, 2)
    for each in cluster.bookies:
        each.reads = 0
    return handle


@pytest.mark.usefixtures("alike")
def test_the_bookies_of_a_striped_ledger_are_read_together(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        handle = await striped(cluster, 30)
        assert data_of(await handle.read_future(2, 29)) == entries(2, 30)
        assert [each.reads for each in cluster.bookies[:3]] == [5, 4, 5]
        cluster.bookies[1].is_down = True
        # Until it is known that one is down, its entries are read one by one from the others.
        while len(await handle.read_future(0, 29)) < 30:
            pass
        assert data_of(await handle.read_future(1, 28)) == entries(1, 29)

    run(tmp_path, scenario, reads=PATIENT, quorums=STRIPED)


@pytest.mark.usefixtures("alike")
def test_a_read_of_a_striped_ledger_keeps_its_limits(tmp_path: Path) -> None:
    async def read(handle: EnsembleHandle, count_max: int, bytes_max: int) -> EntryBatch:
        future: asyncio.Future[EntryBatch] = asyncio.get_running_loop().create_future()
        handle.read(0, 29, count_max, bytes_max, future.set_result)  # type: ignore[arg-type]
        return await future

    async def scenario(cluster: Cluster) -> None:
        handle = await striped(cluster, 30)
        assert len(await read(handle, 7, 1 << 20)) == 7
        size = (await read(handle, 1, 1 << 20)).byte_count
        batch = await read(handle, 30, 11 * size)
        assert 9 <= len(batch) <= 11
        assert data_of(batch) == entries(0, len(batch))
        assert len(await read(handle, 30, 1)) == 1
        # Entries were expected to be much smaller than they are.
        handle.entry_bytes = 1
        assert 9 <= len(await read(handle, 30, 11 * size)) <= 11

    run(tmp_path, scenario, reads=PATIENT, quorums=STRIPED)


@pytest.mark.usefixtures("alike")
def test_a_silent_bookie_does_not_delay_the_entries_before_its_own(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        handle = await striped(cluster, 30)
        cluster.bookies[0].drops = 1.0
        # Entries 0 and 1 are asked from bookie 1, 2 and 3 from bookie 0.
        batch = await asyncio.wait_for(handle.read_future(0, 29), 10)
        assert data_of(batch) == entries(0, 2)

    run(tmp_path, scenario, reads=PATIENT, quorums=STRIPED)


def test_a_damaged_part_of_a_striped_read_is_read_elsewhere(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        handle = await striped(cluster, 30)
        cluster.bookies[2].is_damaged = True
        found: list[bytes] = []
        while len(found) < 30:
            found += data_of(await handle.read_future(len(found), 29))
        assert found == entries(0, 30)
        assert cluster.client.read_policy().damaged["b2"] > 0

    run(tmp_path, scenario, quorums=STRIPED)


def test_subscriptions_that_read_the_same_share_one_read(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        await append_all(cluster, managed_ledger, entries(0, 10))
        cluster.cache.close()
        position = managed_ledger.normalize(managed_ledger.first_position())
        assert position is not None
        batches = await asyncio.gather(
            *(managed_ledger.read_some(position, 10, 1 << 20) for _ in range(8))
        )
        assert [[batch.data(i) for i in range(len(batch))] for batch in batches] == [
            entries(0, 10)
        ] * 8
        assert cluster.reads == 1
        assert managed_ledger.entries_read == 80
        await managed_ledger.close()

    run(tmp_path, scenario)
