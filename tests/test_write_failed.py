"""A journal that failed: what was acknowledged is read on, and nothing is written any more."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from one_bookie import LIMITS, Node, Runs, append, cursor_at, entries, read_all, run, turns, until
from one_broker import TOPIC, Broker, data_of, section
from pyxbroker.ackset import AckSet
from pyxbroker.base.errors import PersistenceError
from pyxbroker.base.topic_name import TopicName
from pyxbroker.entry import CRC32C, EntryRun
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata import paths
from pyxbroker.mledger.cursor import CursorError
from pyxbroker.mledger.cursor_ledger import CursorLedger
from pyxbroker.mledger.errors import ManagedLedgerError, ManagedLedgerWriteFailed
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.state import State
from pyxbroker.proto import PulsarApi as pb

EXCLUSIVE: dict[str, Any] = {"subType": pb.CommandSubscribe.Exclusive}
NAME = "public/default/persistent/t"


async def break_journal(node: Node) -> None:
    """The next sync fails, and one is due."""
    node.faults.rule("fdatasync", ".journal", errno=5)
    done: list[int] = []
    node.bookie.fence(1 << 40, CRC32C, done.append)
    await until(lambda: bool(done))
    assert node.bookie.failure == -5


# --- managed ledgers and cursors ------------------------------------------------------------------


def test_who_waits_for_a_cursor_is_told_and_nobody_else_later(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(LIMITS._replace(mark_delete_per_s=1000.0))
        cursor = await cursor_at(managed_ledger, "c", managed_ledger.first_position())
        await append(managed_ledger, *entries(0, 10))
        ledger = managed_ledger.last_confirmed.ledger_id
        cursor.acknowledge_positions([(ledger, 0)])
        await cursor.persist()
        node.faults.rule("fdatasync", ".journal", errno=5)
        cursor.acknowledge_positions([(ledger, 1)])
        waiting = [cursor.persist() for _ in range(3)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(each, CursorError) for each in results)
        # Who met it first tells the others.
        assert managed_ledger.state is State.WRITE_FAILED
        writes = node.storage.stats()["adds"]
        cursor.acknowledge_positions([(ledger, 2)])
        assert cursor.acks.mark_delete == (ledger, 2)
        with pytest.raises(CursorError, match="in memory only"):
            await cursor.persist()
        await asyncio.sleep(0.05)
        assert node.storage.stats()["adds"] == writes

    run(tmp_path, scenario)


def test_entries_and_positions_stay_right(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        positions = await append(managed_ledger, *entries(0, 10))
        await break_journal(node)
        runs = []

        class Owner:
            def on_run_failed(self, run: Any, error: Exception) -> None:
                runs.append(error)

        managed_ledger.append(EntryRun.of(b"never", Owner()))
        await turns()
        [error] = runs
        assert isinstance(error, ManagedLedgerWriteFailed)
        assert "the journal of bookie" in str(error)
        assert "until the broker is started again" in str(error)
        assert managed_ledger.state is State.WRITE_FAILED
        assert managed_ledger.last_confirmed == positions[-1]
        assert managed_ledger.entries == 10
        assert managed_ledger.normalize((positions[-1][0], 10)) is None
        assert await read_all(managed_ledger) == entries(0, 10)
        managed_ledger.roll_over()
        managed_ledger.check_age()
        assert managed_ledger.state is State.WRITE_FAILED
        managed_ledger.roll_over_if_consumed()
        assert managed_ledger.state is State.WRITE_FAILED
        new = await cursor_at(managed_ledger, "new", managed_ledger.first_position())
        assert new.acknowledge_positions(positions[:3]) == 3
        with pytest.raises(CursorError):
            await new.persist()

    run(tmp_path, scenario)


def test_a_close_ends_and_keeps_in_the_node_what_was_acknowledged_since(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger = await node.open()
            cursor = await cursor_at(managed_ledger, "c", managed_ledger.first_position())
            positions = await append(managed_ledger, *entries(0, 10))
            cursor.acknowledge_positions(positions[:1])
            await cursor.persist()
            await break_journal(node)
            cursor.acknowledge_positions(positions[:5])
            with pytest.raises(CursorError):
                await cursor.persist()
            assert managed_ledger.state is State.WRITE_FAILED
            await asyncio.wait_for(managed_ledger.close(), 5)
            assert managed_ledger.state is State.CLOSED
            successor = node.kill()
        async with successor as node:
            again = await node.open()
            assert again.cursors["c"].acks.mark_delete == positions[4]
            assert await read_all(again) == entries(0, 10)

    asyncio.run(scenario())


async def _two_ledgers_and_a_cursor(node: Node, stale: bool) -> list[tuple[int, int]]:
    """A closed ledger and one that was being written when its owner vanished."""
    managed_ledger = await node.open()
    cursor = await cursor_at(managed_ledger, "c", managed_ledger.first_position())
    positions = await append(managed_ledger, *entries(0, 5))
    managed_ledger.roll_over()
    await managed_ledger.finish_tasks()
    positions += await append(managed_ledger, *entries(5, 10))
    cursor.acknowledge_positions([*positions[:2], positions[7]])
    await cursor.persist()
    if stale:
        # An owner that is gone leaves all of this open.
        return positions
    await managed_ledger.close()
    return positions


@pytest.mark.parametrize("stale", [False, True], ids=["closed", "open"])
def test_it_is_opened_for_reading_and_nothing_is_changed(tmp_path: Path, stale: bool) -> None:
    async def scenario(node: Node) -> None:
        positions = await _two_ledgers_and_a_cursor(node, stale)
        await break_journal(node)
        tree = await _values(node)
        managed_ledger = await node.open()
        assert managed_ledger.state is State.WRITE_FAILED
        assert managed_ledger.last_confirmed == positions[-1]
        assert await read_all(managed_ledger) == entries(0, 10)
        cursor = managed_ledger.cursors["c"]
        assert cursor.acks.mark_delete == positions[1]
        assert cursor.acks.is_acknowledged(*positions[7])
        assert cursor.backlog == 7
        with pytest.raises(ManagedLedgerError, match="cannot be written"):
            managed_ledger.append(None)  # type: ignore[arg-type]
        managed_ledger.check_age()
        await managed_ledger.finish_tasks()
        assert await _values(node) == tree
        await asyncio.wait_for(managed_ledger.close(), 5)

    run(tmp_path, scenario)


def test_what_was_never_acknowledged_is_not_there(tmp_path: Path) -> None:
    """It is in memory and nowhere else: it would be gone after a restart."""

    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        await append(managed_ledger, *entries(0, 5))
        node.faults.rule("fdatasync", ".journal", errno=5)
        runs = Runs()
        for data in entries(5, 10):
            managed_ledger.append(runs.run(data))
        await until(lambda: runs.answered == 5)
        assert [data for data, _ in runs.failed] == entries(5, 10)
        assert await read_all(managed_ledger) == entries(0, 5)
        await managed_ledger.close()
        again = await node.open()
        assert again.state is State.WRITE_FAILED
        assert again.entries == 5
        assert await read_all(again) == entries(0, 5)

    run(tmp_path, scenario)


async def _values(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def visit(path: str) -> None:
        found[path] = await node.store.get(path)
        for name in await node.store.children(path):
            await visit(f"{path.rstrip('/')}/{name}")

    await visit("/")
    return found


def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            positions = await _two_ledgers_and_a_cursor(node, stale=True)
            await break_journal(node)
            reading: ManagedLedger = await node.open()
            reading.cursors["c"].acknowledge_up_to(positions[3])
            await reading.close()
            successor = node.kill()
        async with successor as node:
            again = await node.open()
            assert await read_all(again) == entries(0, 10)
            assert again.cursors["c"].acks.mark_delete == positions[3]
            assert again.cursors["c"].acks.is_acknowledged(*positions[7])
            await append(again, b"new")

    asyncio.run(scenario())


def test_one_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        await break_journal(node)
        with pytest.raises(Exception, match="journal"):
            await node.open()
        assert not await node.store.exists(paths.managed_ledger(NAME))

    run(tmp_path, scenario)


def test_a_cursor_that_is_refused_at_once_leaves_no_error_behind(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        ledger = await CursorLedger.create(node.client, NAME, "c", LIMITS, False)
        await break_journal(node)
        with pytest.raises(LedgerError, match="journal"):
            await ledger.write(AckSet(0, -1, tracked=True), {}, urgent=True)
        with pytest.raises(LedgerError, match="journal"):
            await ledger.write(AckSet(0, -1, tracked=True), {}, urgent=True)
        del ledger
        gc.collect()
        await asyncio.sleep(0)
        assert told == []

    run(tmp_path, scenario)


# --- clients --------------------------------------------------------------------------------------


def run_broker(tmp_path: Path, scenario: Callable[[Broker], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Broker(tmp_path / "bookie") as broker:
            await scenario(broker)

    asyncio.run(main())


def test_sends_are_refused_and_consumers_stay(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        await client.subscribe(1, permits=1, **EXCLUSIVE)
        for sequence_id in range(3):
            client.publish(sequence_id, b"%d" % sequence_id)
            await client.receive("send_receipt")
        broker.node.faults.rule("fdatasync", ".journal", errno=5)
        for sequence_id in range(3, 13):
            client.publish(sequence_id, b"x")
        errors = [await client.receive("send_error") for _ in range(10)]
        assert [each.sequence_id for each in errors] == list(range(3, 13))
        assert {each.error for each in errors} == {pb.PersistenceError}
        assert (await client.receive("close_producer")).producer_id == 1
        # The consumer gets what is left; what it acknowledges counts, and is not stored.
        first, *_ = await client.messages(1)
        client.flow(10)
        rest = await client.messages(2)
        assert [each.data for each in [first, *rest]] == [b"0", b"1", b"2"]
        answer = await client.ack(first.position)
        assert answer.error == pb.PersistenceError
        assert "in memory only" in answer.message
        assert set(await client.quiet()) == set()
        assert broker.node.connections.publish_bytes == 0
        topic = await broker.topic()
        assert topic.subscriptions["s"].cursor.backlog == 2
        # The journal does not come back, and whoever tries is told so.
        answer = await client.produce(producer_id=2)
        assert answer.error == pb.ProducerBlockedQuotaExceededException
        assert "journal" in answer.message
        # New consumers of every kind are served.
        other = await broker.client()
        await other.subscribe(2, subscription="new")
        assert [each.data for each in await other.messages(3)] == [b"0", b"1", b"2"]
        await other.subscribe(3, subscription="reader", durable=False, **EXCLUSIVE)
        assert [each.data for each in await other.messages(3)] == [b"0", b"1", b"2"]

    run_broker(tmp_path, scenario)


def test_a_topic_that_was_not_open_is_read(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await topic.subscription_for("s", topic.managed_ledger.first_position(), {}, True)
        await broker.publish(*data_of(10))
        await topic.close()
        await break_journal(broker.node)
        client = await broker.client()
        await client.subscribe(1, **EXCLUSIVE)
        assert [each.data for each in await client.messages(10)] == data_of(10)
        answer = await client.produce()
        assert answer.error == pb.ProducerBlockedQuotaExceededException
        answer = await client.subscribe(2, topic=TOPIC + "-new")
        assert answer.error == pb.PersistenceError
        assert "until the broker is started again" in answer.message
        with pytest.raises(PersistenceError, match="until the broker is started again"):
            await broker.topics.loader.ensure(TopicName.get(TOPIC + "-made"))
        # It can be unloaded and opened once more.
        await (await broker.topic()).close()
        again = await broker.client()
        await again.subscribe(1, **EXCLUSIVE)
        assert len(await again.messages(10)) == 10

    run_broker(tmp_path, scenario)


def test_a_topic_can_still_be_deleted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await topic.subscription_for("s", topic.managed_ledger.first_position(), {}, True)
        await append(topic.managed_ledger, section(b"x"))
        await break_journal(broker.node)
        await broker.topics.deletion.delete(topic)
        assert not await broker.node.store.exists(paths.managed_ledger(NAME))

    run_broker(tmp_path, scenario)
