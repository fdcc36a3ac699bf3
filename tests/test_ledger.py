"""Ledgers on one bookie: one writer, in order, taken over by recovery, without loss."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from one_bookie import NAME, Node, Runs, ledgers_of, turns, until
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import EntryDamaged, LedgerError, LedgerFenced, NoSuchLedger
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import BadVersion, Put


async def add(node: Node, handle: LedgerHandle, runs: Runs, *data: bytes) -> None:
    """Appends entries within one turn and waits for the answers."""
    before = runs.answered

    def append_all() -> None:
        for each in data:
            handle.append(runs.run(each))

    node.turn.run(append_all)
    await until(lambda: runs.answered == before + len(data))


async def contents(node: Node, ledger_id: int, last: int) -> list[bytes]:
    reader = await node.client.open_read(ledger_id)
    found = []
    for entry_id in range(last + 1):
        batch = await reader.read_future(entry_id, entry_id)
        found.append(batch.data(0))
    return found


def damage(node: Node, data: bytes) -> None:
    """Flips a bit of stored data in every file of a node that is not running."""
    hits = 0
    for file in node.directory.rglob("*"):
        if not file.is_file():
            continue
        stored = bytearray(file.read_bytes())
        at = stored.find(data)
        while at >= 0:
            stored[at] ^= 1
            hits += 1
            at = stored.find(data, at + 1)
        file.write_bytes(stored)
    assert hits, f"{data!r} is stored nowhere"


def test_entries_are_confirmed_in_order_and_read_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            runs = Runs()
            handle = await node.client.create(runs, NAME)
            data = [b"entry %d" % n for n in range(50)] + [b"", b"x" * 100_000]
            await add(node, handle, runs, *data)
            assert runs.added == data
            assert runs.positions == [(handle.ledger_id, n) for n in range(52)]
            assert handle.last_add_confirmed == 51
            assert handle.length == sum(map(len, data))
            await handle.drain()
            await node.client.close(handle)
            assert await contents(node, handle.ledger_id, 51) == data
            # A closed ledger is as its writer left it: recovery only reads that.
            assert await node.client.recover(handle.ledger_id) == (51, handle.length)

    asyncio.run(scenario())


def test_nothing_is_confirmed_within_append(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            runs = Runs()
            handle = await node.client.create(runs, NAME)
            handle.append(runs.run(b"a"))
            assert runs.answered == 0
            assert handle.last_add_confirmed == -1
            await handle.drain()
            assert runs.added == [b"a"]

    asyncio.run(scenario())


def test_recovery_fences_the_writer_and_keeps_what_it_confirmed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            runs = Runs()
            handle = await node.client.create(runs, NAME)
            await add(node, handle, runs, b"one", b"two")
            assert await node.client.recover(handle.ledger_id) == (1, 6)
            await add(node, handle, runs, b"three")
            assert runs.added == [b"one", b"two"]
            [(data, error)] = runs.failed
            assert data == b"three"
            assert isinstance(error, LedgerFenced)
            with pytest.raises(LedgerFenced):
                await handle.drain()
            with pytest.raises(LedgerError, match="taken over"):
                await node.client.close(handle)
            assert await contents(node, handle.ledger_id, 1) == [b"one", b"two"]

    asyncio.run(scenario())


def test_recovery_after_a_kill(tmp_path: Path) -> None:
    async def scenario() -> None:
        runs = Runs()
        async with Node(tmp_path / "bookie") as node:
            handle = await node.client.create(runs, NAME)
            empty = await node.client.create(runs, NAME)
            await add(node, handle, runs, *(b"%d" % n for n in range(100)))
            successor = node.kill()
        async with successor as node:
            assert await node.client.recover(handle.ledger_id) == (99, 190)
            assert await node.client.recover(empty.ledger_id) == (-1, 0)
            assert await contents(node, handle.ledger_id, 99) == runs.added

    asyncio.run(scenario())


def test_a_recovery_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        runs = Runs()
        async with Node(tmp_path / "bookie") as node:
            handle = await node.client.create(runs, NAME)
            await add(node, handle, runs, b"one")
            node.faults.rule("fdatasync", ".journal", errno=5)
            with pytest.raises(LedgerError):
                await node.client.recover(handle.ledger_id)
            successor = node.kill()
        async with successor as node:
            assert await node.client.recover(handle.ledger_id) == (0, 3)
            assert await contents(node, handle.ledger_id, 0) == [b"one"]

    asyncio.run(scenario())


def test_two_recoveries_at_once_agree(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            runs = Runs()
            handle = await node.client.create(runs, NAME)
            await add(node, handle, runs, b"one")
            results = await asyncio.gather(
                node.client.recover(handle.ledger_id),
                node.client.recover(handle.ledger_id),
                return_exceptions=True,
            )
            assert (0, 3) in results
            assert all(each == (0, 3) or isinstance(each, BadVersion) for each in results)
            assert await node.client.recover(handle.ledger_id) == (0, 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("which", [0, 1, 2])
def test_damage_costs_only_the_entry_that_it_hit(tmp_path: Path, which: int) -> None:
    """Also when it is the last one, which recovery reads to learn the length."""
    data = [b"first entry of three", b"second entry of three", b"third entry of three"]

    async def scenario() -> None:
        runs = Runs()
        async with Node(tmp_path / "bookie") as node:
            handle = await node.client.create(runs, NAME)
            await add(node, handle, runs, *data)
        damage(node, data[which])
        async with Node(tmp_path / "bookie", node.tree) as node:
            last, length = await node.client.recover(handle.ledger_id)
            assert last == 2
            assert length == sum(map(len, data if which < 2 else data[:2]))
            reader = await node.client.open_read(handle.ledger_id)
            for entry_id, expected in enumerate(data):
                if entry_id == which:
                    with pytest.raises(EntryDamaged):
                        await reader.read_future(entry_id, entry_id)
                else:
                    batch = await reader.read_future(entry_id, entry_id)
                    assert batch.data(0) == expected

    asyncio.run(scenario())


def test_a_deleted_ledger_is_gone_from_metadata_and_bookie(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            runs = Runs()
            handle = await node.client.create(runs, NAME)
            await add(node, handle, runs, b"one")
            await node.client.delete(handle.ledger_id)
            assert not await node.store.exists(paths.ledger(handle.ledger_id))
            assert ledgers_of(node.storage) == []
            with pytest.raises(NoSuchLedger):
                await node.client.open_read(handle.ledger_id)
            with pytest.raises(NoSuchLedger):
                await node.client.recover(handle.ledger_id)
            # Whoever deletes it again finds nothing to do.
            await node.client.delete(handle.ledger_id)

    asyncio.run(scenario())


def test_ledger_ids_that_are_taken_are_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            first = await node.client.create(Runs(), NAME)
            for step in range(1, 5):
                await node.store.put(paths.ledger(first.ledger_id + step), b"taken")
            second = await node.client.create(Runs(), NAME)
            assert second.ledger_id > first.ledger_id + 4

    asyncio.run(scenario())


def test_a_failed_journal_fails_every_run_that_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            runs = Runs()
            handle = await node.client.create(runs, NAME)
            await add(node, handle, runs, b"kept")
            node.faults.rule("fdatasync", ".journal", errno=5)
            await add(node, handle, runs, b"a", b"b", b"c")
            assert runs.added == [b"kept"]
            assert [data for data, _ in runs.failed] == [b"a", b"b", b"c"]
            with pytest.raises(LedgerError):
                await handle.drain()

    asyncio.run(scenario())


def test_drain_tells_of_a_failure_that_comes_while_it_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            runs = Runs()
            handle = await node.client.create(runs, NAME)
            node.faults.rule("fdatasync", ".journal", errno=5)
            handle.append(runs.run(b"a"))
            draining = asyncio.ensure_future(handle.drain())
            await turns()
            with pytest.raises(LedgerError):
                await draining

    asyncio.run(scenario())


def test_an_ensemble_needs_that_many_bookies(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            with pytest.raises(ValueError, match="managedLedgerDefaultEnsembleSize to 1"):
                LedgerClient(
                    node.store, {"b": node.bookie}, node.turn, LedgerQuorums(ensemble=2, write=2)
                )

    asyncio.run(scenario())


def test_a_ledger_with_an_ensemble_of_its_own_needs_that_many_bookies(tmp_path: Path) -> None:
    def naming(ledger_id: int) -> Put:
        raise AssertionError("a ledger got an id")

    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            two = LedgerQuorums(ensemble=2, write=1, ack=1)
            with pytest.raises(LedgerError, match=r"an ensemble of 2 needs .* there are 1"):
                await node.client.create_named(Runs(), NAME, naming, quorums=two)

    asyncio.run(scenario())
