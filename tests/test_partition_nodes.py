"""Many partitions: in batches, nobody waits for long, and who was interrupted goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from metadata_backends import Backend, coroutine_test
from one_broker import TOPIC, Broker, run
from pyxbroker.base.errors import PartitionsNotAllowed, ServiceNotReady, TopicExists
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics import partition_nodes
from pyxbroker.broker.topics.partition_nodes import (
    BATCHES_IN_PARALLEL,
    NODES_PER_BATCH_MAX,
    create_nodes,
    for_each,
    one_batch,
)
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, Put, Unavailable

NAME = TopicName.get(TOPIC)
PATH = paths.partitioned_topic("public/default", "t")
MANAGED_LEDGERS = paths.managed_ledgers("public/default")
MANY = 5 * NODES_PER_BATCH_MAX + 1


async def indexes(broker: Broker) -> list[int]:
    """Of the partitions that there are."""
    names = await broker.node.store.children(MANAGED_LEDGERS)
    return sorted(int(each.rpartition("-")[2]) for each in names)


async def record(broker: Broker) -> dict[str, Any]:
    found = await broker.node.store.get(PATH)
    assert found is not None
    return json.loads(found.value)


async def claimed(broker: Broker) -> None:
    """The topic has its record: its partitions are being made."""
    path = paths.partitioned_topics("public/default")
    while await broker.node.store.children(path) == []:
        continue


def fail_after(broker: Broker, patch: pytest.MonkeyPatch, batches: int) -> None:
    """From then on the store is away, as when the process were killed in between."""
    put_all = broker.node.store.put_all
    left = [None] * batches

    async def put_some(puts: Sequence[Put]) -> Any:
        if not left:
            raise Unavailable("away")
        left.pop()
        return await put_all(puts)

    patch.setattr(broker.node.store, "put_all", put_some)


def test_an_interrupted_creation_is_completed_by_repeating_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        with pytest.MonkeyPatch.context() as patch:
            fail_after(broker, patch, 3)
            with pytest.raises(Unavailable):
                await partitioned.create(NAME, MANY, {"a": "b"})
        assert len(await indexes(broker)) == 3 * NODES_PER_BATCH_MAX
        partitions = await broker.topics.partitions.partitions(NAME)
        assert partitions == MANY, "who uses one of them makes it"
        last = await broker.topic(f"{TOPIC}-partition-{MANY - 1}")
        with pytest.raises(TopicExists):
            await partitioned.create(NAME, MANY + 1)
        await partitioned.create(NAME, MANY, {"a": "b"})
        assert await indexes(broker) == list(range(MANY))
        assert await record(broker) == {
            "partitions": MANY,
            "deleted": False,
            "properties": {"a": "b"},
        }
        assert await broker.topic(f"{TOPIC}-partition-{MANY - 1}") is last
        with pytest.raises(TopicExists):
            await partitioned.create(NAME, MANY)

    run(tmp_path, scenario)


def test_an_interrupted_creation_can_be_grown_or_deleted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        for number in range(2):
            with pytest.MonkeyPatch.context() as patch:
                fail_after(broker, patch, 1)
                with pytest.raises(Unavailable):
                    await partitioned.create(NAME, MANY)
            with pytest.raises(PartitionsNotAllowed):
                await partitioned.update(NAME, MANY - 1)
            if number == 0:
                await partitioned.delete(NAME)
                assert await indexes(broker) == []
        await partitioned.update(NAME, MANY + 5)
        assert await indexes(broker) == list(range(MANY + 5))
        assert await record(broker) == {"partitions": MANY + 5, "deleted": False}

    run(tmp_path, scenario)


async def interrupt_growing(broker: Broker, first: int, count: int) -> None:
    """The new partitions are there, the subscriptions of the others not yet."""
    partitioned = broker.topics.partitioned
    await partitioned.create(NAME, first)

    async def fail(*_: Any) -> None:
        raise Unavailable("away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitioned, "_copy_subscriptions", fail)
        with pytest.raises(Unavailable):
            await partitioned.update(NAME, count)
    assert await indexes(broker) == list(range(count))
    partitions = await broker.topics.partitions.partitions(NAME)
    assert partitions == first, "clients are not told of them yet"


def test_an_interrupted_growth_is_deleted_with_the_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await interrupt_growing(broker, 2, 4)
        await broker.topics.partitioned.delete(NAME)
        assert await indexes(broker) == []
        assert not await broker.node.store.exists(PATH)

    run(tmp_path, scenario)


def test_an_interrupted_growth_is_completed_by_repeating_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        await interrupt_growing(broker, 2, 4)
        client = await broker.client()
        await client.subscribe(topic=str(NAME.partition(1)))
        with pytest.raises(PartitionsNotAllowed):
            await partitioned.update(NAME, 3)
        with pytest.raises(TopicExists):
            await partitioned.create(NAME, 2)
        await partitioned.update(NAME, 4)
        assert await record(broker) == {"partitions": 4, "deleted": False}
        for index in (2, 3):
            topic = await broker.topics.loader.get(NAME.partition(index), create=False)
            assert list(topic.subscriptions) == ["s"]

    run(tmp_path, scenario)


def test_a_growth_may_go_further_than_the_one_that_was_interrupted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        await interrupt_growing(broker, 2, 4)
        with pytest.MonkeyPatch.context() as patch:
            fail_after(broker, patch, 0)
            with pytest.raises(Unavailable):
                await partitioned.update(NAME, 6)
        assert (await record(broker))["growingTo"] == 6
        await partitioned.update(NAME, 7)
        assert await indexes(broker) == list(range(7))
        assert await record(broker) == {"partitions": 7, "deleted": False}

    run(tmp_path, scenario)


def test_an_interrupted_creation_whose_growth_was_interrupted_is_completed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        with pytest.MonkeyPatch.context() as patch:
            fail_after(broker, patch, 1)
            for interrupted in (partitioned.create(NAME, MANY), partitioned.update(NAME, MANY + 1)):
                with pytest.raises(Unavailable):
                    await interrupted
        await partitioned.create(NAME, MANY)
        assert await record(broker) == {
            "partitions": MANY,
            "deleted": False,
            "growingTo": MANY + 1,
        }
        await partitioned.update(NAME, MANY + 1)
        assert await indexes(broker) == list(range(MANY + 1))
        assert await record(broker) == {"partitions": MANY + 1, "deleted": False}

    run(tmp_path, scenario)


def test_a_topic_that_is_being_deleted_does_not_grow(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        value = b'{"partitions":2,"deleted":true}'
        await broker.node.store.put(PATH, value)
        with pytest.raises(ServiceNotReady, match="is being deleted"):
            await broker.topics.partitioned.update(NAME, 4)
        assert await indexes(broker) == []
        found = await broker.node.store.get(PATH)
        assert found is not None and found.value == value

    run(tmp_path, scenario)


def test_partitions_that_are_left_over_are_kept(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        left = await broker.topics.loader.ensure(NAME.partition(1))
        positions = await broker.publish_to(left, b"kept")
        await broker.topics.partitioned.create(NAME, 3)
        assert await indexes(broker) == [0, 1, 2]
        assert await record(broker) == {"partitions": 3, "deleted": False}
        assert left.managed_ledger.last_confirmed == positions[0]

    run(tmp_path, scenario)


def test_partitions_are_made_a_few_at_a_time(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        put_all = broker.node.store.put_all
        under_way, most = 0, 0

        async def counted(puts: Sequence[Put]) -> Any:
            nonlocal under_way, most
            assert len(puts) <= NODES_PER_BATCH_MAX
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            try:
                return await put_all(puts)
            finally:
                under_way -= 1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.node.store, "put_all", counted)
            await broker.topics.partitioned.create(NAME, MANY)
        assert most == BATCHES_IN_PARALLEL
        assert len(broker.topics.registry) == 0, "they are opened when they are used"
        assert (await broker.publish_to(await broker.topic(f"{TOPIC}-partition-7"), b"x"))[0][
            1
        ] == 0

    run(tmp_path, scenario)


def test_partitions_are_changed_by_one_request_at_a_time(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        making = asyncio.ensure_future(partitioned.create(NAME, MANY))
        await claimed(broker)
        for other in (
            partitioned.create(NAME, MANY),
            partitioned.update(NAME, MANY + 1),
            partitioned.delete(NAME),
        ):
            with pytest.raises(ServiceNotReady, match="are being changed"):
                await other
        await making
        await partitioned.delete(NAME)

    run(tmp_path, scenario)


def test_a_partitioned_topic_that_is_deleted_elsewhere_is_not_said_to_be_made(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        making = asyncio.ensure_future(broker.topics.partitioned.create(NAME, MANY))
        await claimed(broker)
        await broker.node.store.put(PATH, b'{"partitions":1,"deleted":true}')
        with pytest.raises(ServiceNotReady):
            await making

    run(tmp_path, scenario)


def test_new_partitions_have_the_subscriptions_of_all_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        await partitioned.create(NAME, 40)
        client = await broker.client()
        await client.subscribe(1, topic=str(NAME.partition(3)), subscription="a/b")
        await client.subscribe(2, topic=str(NAME.partition(39)), subscription="c")
        closed = await broker.topic(str(NAME.partition(39)))
        await closed.close()
        await partitioned.update(NAME, 42)
        for index in (40, 41):
            topic = await broker.topics.loader.get(NAME.partition(index), create=False)
            assert sorted(topic.subscriptions) == ["a/b", "c"]

    run(tmp_path, scenario)


def test_names_that_are_long_make_batches_small() -> None:
    assert len(one_batch(NAME, NODES_PER_BATCH_MAX) or []) == NODES_PER_BATCH_MAX
    assert one_batch(NAME, NODES_PER_BATCH_MAX + 1) is None
    assert one_batch(TopicName.get("persistent://public/default/" + "x" * 10_000), 30) is None


@coroutine_test
async def test_every_store_takes_the_batches(backend: Backend) -> None:
    longest = TopicName.get("persistent://public/default/" + "\N{SNOWMAN}" * 700)
    async with backend.store() as store:
        for name in (NAME, longest):
            there = paths.managed_ledger(name.partition(300).managed_ledger_name)
            await store.put(there, b"mine", MUST_NOT_EXIST)
            await create_nodes(store, name, 0, 1000)
            for index in (0, 299, 301, 999):
                path = paths.managed_ledger(name.partition(index).managed_ledger_name)
                found = await store.get(path)
                assert found is not None and found.value == b"", index
            kept = await store.get(there)
            assert kept is not None and kept.value == b"mine"
        assert len(await store.children(MANAGED_LEDGERS)) == 2000


@coroutine_test
async def test_the_first_error_ends_the_work() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        if number == 20:
            raise ZeroDivisionError
        done.append(number)

    with pytest.raises(ZeroDivisionError):
        await for_each(range(1000), work, 4)
    await asyncio.sleep(0.01)
    assert len(done) < 30
    await for_each(range(3), work, partition_nodes.WORKERS)
    await for_each([], work)
