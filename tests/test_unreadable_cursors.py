"""A subscription whose state cannot be read: it is refused, and what it may need is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from one_bookie import turns, until
from one_broker import TOPIC, Broker
from one_broker import run as run_broker
from pyxbroker.base.errors import SubscriptionNotFound, TopicBusy
from pyxbroker.base.topic_name import TopicName
from pyxbroker.ledger.metadata import LedgerMetadataStore
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import CorruptStore, Unavailable
from pyxbroker.mledger.positions import decode_cursor
from pyxbroker.proto import PulsarApi as pb

NAME = "public/default/persistent/t"
LEDGER = "the metadata of its ledger"

Scenario = Callable[[Broker, list[tuple[int, int]]], Awaitable[None]]


async def made(broker: Broker, damaged: str) -> list[tuple[int, int]]:
    """A topic of four ledgers whose subscription "s" is lost; it is not open."""
    topic = await broker.topic()
    node = broker.node
    await topic.subscription_for("s", topic.managed_ledger.first_position(), {}, True)
    positions = []
    for n in range(4):
        positions += await broker.publish(b"%d" % n)
        topic.managed_ledger.roll_over()
        await topic.managed_ledger.finish_tasks()
    cursor = topic.subscriptions["s"].cursor
    cursor.acknowledge_positions(positions[1:2])
    await cursor.persist()
    broken = paths.cursor(NAME, "s") if damaged == "its node" else paths.ledger(cursor.ledger_id)
    # As a kill leaves it: a clean close would put the state into the node.
    cursor.abandon()
    await broker.topics.close()
    await node.store.put(broken, b"\xff\xff\xff\xff")
    return positions


def run(tmp_path: Path, damaged: str, scenario: Scenario) -> None:
    async def main() -> None:
        first = Broker(tmp_path / "bookie")
        async with first:
            positions = await made(first, damaged)
        settings = {"brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 0}
        second = Broker(tmp_path / "bookie", **settings)
        second.node.tree = first.node.tree
        async with second:
            await scenario(second, positions)

    asyncio.run(main())


@pytest.mark.parametrize("damaged", ["its node", LEDGER])
def test_it_is_refused_and_others_are_served(tmp_path: Path, damaged: str) -> None:
    async def scenario(broker: Broker, positions: list[tuple[int, int]]) -> None:
        client = await broker.client()
        for consumer_id in (1, 2):
            answer = await client.subscribe(consumer_id, permits=0)
            assert (answer.error, "cannot be read" in answer.message) == (pb.PersistenceError, True)
        await client.produce()
        await client.subscribe(3, subscription="other")
        assert [each.position for each in await client.messages(4)] == positions
        assert not (await broker.topic()).fenced
        assert await client.quiet() == []

    run(tmp_path, damaged, scenario)


def test_what_it_may_need_is_kept(tmp_path: Path) -> None:
    async def scenario(broker: Broker, positions: list[tuple[int, int]]) -> None:
        topic = await broker.topic()
        topic.managed_ledger.trim()
        await broker.topics.inactive.delete_all()
        await turns()
        assert await broker.topic() is topic
        assert {ledger_id for ledger_id, _ in positions} <= set(topic.managed_ledger.ledgers)

    run(tmp_path, "its node", scenario)


@pytest.mark.parametrize("damaged", ["its node", LEDGER])
def test_it_can_be_deleted(tmp_path: Path, damaged: str) -> None:
    async def scenario(broker: Broker, positions: list[tuple[int, int]]) -> None:
        topic = await broker.topic()
        assert positions[0][0] in topic.managed_ledger.ledgers
        store = broker.node.store
        ledger_id = None
        if damaged == LEDGER:
            node = await store.get(paths.cursor(NAME, "s"))
            assert node is not None
            ledger_id = decode_cursor(node.value, {}).cursors_ledger_id
            assert await store.exists(paths.ledger(ledger_id))
        await broker.topics.deletion.delete_subscription(TopicName.get(TOPIC), "s", force=False)
        assert not await store.exists(paths.cursor(NAME, "s"))
        assert ledger_id is None or not await store.exists(paths.ledger(ledger_id))
        # Nothing is kept for it any more, and its name can be used again.
        await until(lambda: positions[0][0] not in topic.managed_ledger.ledgers)
        client = await broker.client()
        assert not hasattr(await client.subscribe(1), "error")
        [position] = await broker.publish(b"new")
        assert (await client.messages(1))[0].position == position

    run(tmp_path, damaged, scenario)


def test_one_that_cannot_be_deleted_now_can_be_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, positions: list[tuple[int, int]]) -> None:
        topic = await broker.topic()
        store = broker.node.store
        delete = store.delete

        def refuse(path: str, *version: int) -> Any:
            if path != paths.cursor(NAME, "s"):
                return delete(path, *version)
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(Unavailable("away"))
            return answer

        monkeypatch.setattr(store, "delete", refuse)
        with pytest.raises(Unavailable):
            await topic.delete_subscription("s", force=True)
        client = await broker.client()
        answer = await client.subscribe(1, permits=0)
        assert (answer.error, "cannot be read" in answer.message) == (pb.PersistenceError, True)
        assert positions[0][0] in topic.managed_ledger.ledgers
        monkeypatch.setattr(store, "delete", delete)
        await topic.delete_subscription("s", force=True)
        assert not hasattr(await client.subscribe(1), "error")
        with pytest.raises(SubscriptionNotFound):
            await topic.delete_subscription("t", force=True)

    run(tmp_path, "its node", scenario)


@pytest.mark.parametrize("damaged", ["its node", LEDGER])
def test_it_goes_with_its_topic(tmp_path: Path, damaged: str) -> None:
    async def scenario(broker: Broker, positions: list[tuple[int, int]]) -> None:
        store = broker.node.store
        client = await broker.client()
        await client.subscribe(1, subscription="other")
        with pytest.raises(TopicBusy):
            await broker.topics.deletion.delete_by_name(TopicName.get(TOPIC))
        await broker.topics.deletion.delete_by_name(TopicName.get(TOPIC), force=True)
        assert not await store.exists(paths.managed_ledger(NAME))
        assert not await store.exists(paths.cursor(NAME, "s"))
        if damaged == LEDGER:
            left = [each async for each in LedgerMetadataStore(store).ledger_ids()]
            assert left == []

    run(tmp_path, damaged, scenario)


def test_a_node_that_the_store_finds_damaged_costs_its_subscription_only(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        start = topic.managed_ledger.first_position()
        for name in ("s", "t"):
            await topic.subscription_for(name, start, {}, True)
        await broker.publish(b"x")
        await topic.close()
        get = broker.node.store.get

        def damaged(path: str) -> asyncio.Future[Any]:
            if path != paths.cursor(NAME, "s"):
                return get(path)
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(CorruptStore("the node is damaged"))
            return answer

        broker.node.store.get = damaged  # type: ignore[method-assign]
        client = await broker.client()
        await client.subscribe(1, subscription="t")
        assert len(await client.messages(1)) == 1
        answer = await client.subscribe(2, subscription="s")
        assert (answer.error, "cannot be read" in answer.message) == (pb.PersistenceError, True)

    run_broker(tmp_path, scenario)
