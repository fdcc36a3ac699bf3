"""Partitioned topics: how many partitions, who may make them, and how they grow and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from one_broker import TOPIC, Broker, Client, run
from pyxbroker.base.errors import NotAllowed, PulsarError, TopicExists, TopicNotFound
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MUST_NOT_EXIST, Put
from pyxbroker.proto import PulsarApi as pb

NAME = TopicName.get(TOPIC)
PATH = paths.partitioned_topic("public/default", "t")
DEFAULT_PARTITIONED = {"allowAutoTopicCreationType": "partitioned", "defaultNumPartitions": 3}


async def ask(client: Client, topic: str = TOPIC, auto: bool | None = None) -> Any:
    """The number of partitions, or the error."""
    command = pb.CommandPartitionedTopicMetadata(topic=topic, request_id=0)
    if auto is not None:
        command.metadata_auto_creation_enabled = auto
    answer = await client.request(command, "partitionMetadataResponse")
    if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
        assert answer.message
        return answer.error
    return answer.partitions


async def open_error(client: Client, topic: str) -> tuple[Any, Any]:
    """The errors of a producer and of a consumer of a topic, None for those that are opened."""
    produced = await client.produce(topic=topic)
    subscribed = await client.subscribe(topic=topic)
    client.send(pb.CommandCloseProducer(producer_id=1, request_id=1000))
    client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=1001))
    for _ in range(2):
        await client.receive("success")
    return getattr(produced, "error", None), getattr(subscribed, "error", None)


async def set_override(broker: Broker, **fields: Any) -> None:
    value = json.dumps({"autoTopicCreationOverride": fields}).encode()
    await broker.node.store.put(paths.namespace_policies("public/default"), value)


async def names(broker: Broker) -> list[str]:
    return await broker.node.store.children(paths.managed_ledgers("public/default"))


def test_topics_that_are_made_by_use_are_not_partitioned_by_default(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert await ask(client) == 0
        assert await ask(client, auto=False) == pb.TopicNotFound
        assert await open_error(client, TOPIC) == (None, None)
        assert await ask(client, auto=False) == 0
        assert await ask(client, "persistent://public/nowhere/t") == pb.TopicNotFound
        assert await ask(client, "nonsense://t") == pb.InvalidTopicName
        assert not await broker.node.store.exists(PATH)

    run(tmp_path, scenario)


def test_topics_that_are_made_by_use_may_be_partitioned(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await broker.topic(TOPIC + "-old")
        assert await ask(client, auto=False) == pb.TopicNotFound
        assert await ask(client) == 3
        found = await broker.node.store.get(PATH)
        assert found is not None and found.value == b'{"partitions":3,"deleted":false}'
        assert await names(broker) == ["t-old"], "partitions are made when they are used"
        assert await ask(client, auto=False) == 3
        assert await ask(client, TOPIC + "-old") == 0
        assert await ask(client, TOPIC + "-partition-0") == 0
        assert await ask(client, TOPIC + "-partition-3") == pb.TopicNotFound
        assert await open_error(client, TOPIC + "-partition-2") == (None, None)
        not_found = (pb.TopicNotFound, pb.TopicNotFound)
        assert await open_error(client, TOPIC + "-partition-3") == not_found
        not_allowed = (pb.NotAllowedError, pb.NotAllowedError)
        assert await open_error(client, TOPIC) == not_allowed
        assert await open_error(client, TOPIC + "-none-partition-0") == not_allowed
        # Who does not ask how many partitions there are gets a topic without any.
        assert await open_error(client, TOPIC + "-direct") == (None, None)

    run(tmp_path, scenario, **DEFAULT_PARTITIONED)


def test_the_namespace_overrides_the_settings(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await set_override(
            broker, allowAutoTopicCreation=True, topicType="partitioned", defaultNumPartitions=2
        )
        assert await ask(client) == 2
        await set_override(broker, allowAutoTopicCreation=True, topicType="non-partitioned")
        assert await ask(client, TOPIC + "-a") == 0
        await set_override(broker, allowAutoTopicCreation=False)
        for auto in (True, False):
            assert await ask(client, TOPIC + "-b", auto=auto) == pb.TopicNotFound
            assert await ask(client, auto=auto) == 2
        not_found = (pb.TopicNotFound, pb.TopicNotFound)
        assert await open_error(client, TOPIC + "-b") == not_found
        assert await open_error(client, TOPIC + "-b-partition-0") == not_found
        # It is there, though nobody has used it before.
        assert await open_error(client, TOPIC + "-partition-1") == (None, None)

    run(tmp_path, scenario, allowAutoTopicCreation=False)


def test_many_who_ask_first_make_one_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.client() for _ in range(10)]
        assert await asyncio.gather(*(ask(each) for each in clients)) == [3] * 10
        found = await broker.node.store.get(PATH)
        assert found is not None and found.version == 0

    run(tmp_path, scenario, **DEFAULT_PARTITIONED)


def test_another_brokers_partitions_are_seen_when_they_are_asked_for(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        cache = broker.service.metadata_cache
        assert await ask(client) == 0
        cache.close()  # the news are late
        await broker.node.store.put(PATH, b'{"partitions":1}')
        assert await ask(client) == 0
        assert await open_error(client, TOPIC + "-partition-0") == (None, None)

    run(tmp_path, scenario)


def test_a_partitioned_topic_is_made_with_its_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        await partitioned.create(NAME, 3)
        assert await names(broker) == [f"t-partition-{index}" for index in range(3)]
        client = await broker.client()
        assert await ask(client) == 3
        with pytest.raises(TopicExists):
            await partitioned.create(NAME, 3)
        await broker.topics.loader.ensure(TopicName.get(TOPIC + "-plain"))
        with pytest.raises(TopicExists):
            await partitioned.create(TopicName.get(TOPIC + "-plain"), 1)
        for count in (0, -1, 6):
            with pytest.raises(NotAllowed, match="Number of partitions should be"):
                await partitioned.create(TopicName.get(TOPIC + "-x"), count)
        with pytest.raises(NotAllowed, match="name of a partition"):
            await partitioned.create(NAME.partition(1), 2)
        with pytest.raises(TopicNotFound):
            await partitioned.create(TopicName.get("persistent://public/nowhere/t"), 2)

    run(tmp_path, scenario, allowAutoTopicCreation=False, maxNumPartitionsPerPartitionedTopic=5)


def test_partitions_grow_with_the_subscriptions_of_the_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        with pytest.raises(TopicNotFound):
            await partitioned.update(NAME, 2)
        await partitioned.create(NAME, 1)
        await broker.node.store.put(PATH, b'{"partitions":1,"deleted":false,"properties":{"a":1}}')
        client = await broker.client()
        first = str(NAME.partition(0))
        await client.subscribe(
            topic=first, subscription_properties=[pb.KeyValue(key="k", value="v")]
        )
        await client.subscribe(2, topic=first, subscription="other")
        await partitioned.update(NAME, 1)
        await partitioned.update(NAME, 3)
        assert await ask(client) == 3
        for index in (1, 2):
            topic = await broker.topics.loader.get(NAME.partition(index), create=False)
            assert sorted(topic.subscriptions) == ["other", "s"]
            assert topic.subscriptions["s"].cursor.properties == {"k": "v"}
        found = await broker.node.store.get(PATH)
        assert found is not None
        assert json.loads(found.value) == {
            "partitions": 3,
            "deleted": False,
            "properties": {"a": 1},
        }
        with pytest.raises(NotAllowed, match="can't be less"):
            await partitioned.update(NAME, 2)

    run(tmp_path, scenario)


def test_a_partitioned_topic_is_deleted_as_a_whole(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        with pytest.raises(TopicNotFound):
            await partitioned.delete(NAME)
        await partitioned.create(NAME, 2)
        client = await broker.client()
        await client.produce(topic=str(NAME.partition(1)))
        with pytest.raises(NotAllowed, match="1 client connected"):
            await partitioned.delete(NAME)
        assert len(await names(broker)) == 2
        await partitioned.delete(NAME, force=True)
        await client.receive("close_producer")
        assert await names(broker) == []
        assert not await broker.node.store.exists(PATH)
        assert await ask(client, auto=False) == pb.TopicNotFound
        assert len(broker.topics.registry) == 0

    run(tmp_path, scenario)


def test_nobody_makes_a_partition_of_a_topic_that_is_being_deleted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.partitioned.create(NAME, 2)
        await broker.topics.deletion.delete_by_name(NAME.partition(0))
        await broker.node.store.put(PATH, b'{"partitions":2,"deleted":true}')
        client = await broker.client()
        not_found = (pb.TopicNotFound, pb.TopicNotFound)
        assert await open_error(client, str(NAME.partition(0))) == not_found
        # Whoever was interrupted begins again.
        await broker.topics.partitioned.delete(NAME)
        assert await names(broker) == []

    run(tmp_path, scenario)


def test_a_single_topic_is_deleted_by_its_name(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.deletion.delete_by_name(NAME)
        client = await broker.client()
        await client.produce()
        with pytest.raises(NotAllowed, match="1 client connected"):
            await broker.topics.deletion.delete_by_name(NAME)
        await broker.topics.deletion.delete_by_name(NAME, force=True)
        await client.receive("close_producer")
        assert await names(broker) == []

    run(tmp_path, scenario)


@pytest.mark.parametrize("head_start", range(6))
@pytest.mark.parametrize("partitioned_first", [True, False])
@pytest.mark.parametrize("way", ["get", "make", "asked"])
def test_a_name_is_not_both_partitioned_and_unpartitioned(
    tmp_path: Path, way: str, partitioned_first: bool, head_start: int
) -> None:
    async def scenario(broker: Broker) -> None:
        topics, partitioned = broker.topics, broker.topics.partitioned
        for number in range(5):
            name = TopicName.get(f"{TOPIC}-{number}")
            making = topics.loader.ensure(name) if way == "make" else topics.loader.get(name, True)
            parted = partitioned.metadata(name, True) if way == "asked" else None
            both = [parted or partitioned.create(name, 2), making]
            if not partitioned_first:
                both.reverse()
            first = asyncio.ensure_future(both[0])
            for _ in range(head_start):
                await asyncio.sleep(0)
            found = await asyncio.gather(first, both[1], return_exceptions=True)
            errors = [each for each in found if isinstance(each, BaseException)]
            assert all(isinstance(each, PulsarError) for each in errors), errors
            is_partitioned = (await broker.topics.partitions.read(name)).partitions > 0
            assert is_partitioned != await topics.registry.exists(name)

    run(tmp_path, scenario, **DEFAULT_PARTITIONED)


def test_who_asks_for_a_partitioned_topic_waits_for_who_opens_a_plain_one(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        opening = asyncio.ensure_future(broker.topics.loader.get(NAME, create=True))
        await asyncio.sleep(0)
        with pytest.raises(TopicExists):
            await broker.topics.partitioned.create(NAME, 2)
        assert opening.done() and await opening is await broker.topic()
        assert not await broker.node.store.exists(PATH)

    run(tmp_path, scenario)


class Overtaken:
    """Another broker writes a node just before this one writes one of the same name."""

    def __init__(self, broker: Broker, before: str, path: str, value: bytes = b"") -> None:
        self._store = broker.node.store
        self._before = before
        self._node = Put(path, value, MUST_NOT_EXIST)
        self._put, self._put_all = self._store.put, self._store.put_all
        self.is_over = False
        self._store.put = self.put  # type: ignore[method-assign]
        self._store.put_all = self.put_all  # type: ignore[method-assign]

    def put(self, path: str, *rest: Any, **options: Any) -> Any:
        self._look([path])
        return self._put(path, *rest, **options)

    def put_all(self, puts: Sequence[Put]) -> Any:
        self._look([each.path for each in puts])
        return self._put_all(puts)

    def _look(self, written: list[str]) -> None:
        if self._before in written and not self.is_over:
            self.is_over = True
            self._put(*self._node)


PLAIN = paths.managed_ledger(NAME.managed_ledger_name)


def test_a_topic_gives_way_to_a_partitioned_one_that_another_broker_made_meanwhile(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        other = Overtaken(broker, PLAIN, PATH, b'{"partitions":2,"deleted":false}')
        error = await client.produce()
        assert other.is_over
        assert error.error == pb.NotAllowedError
        assert not await broker.node.store.exists(PLAIN)
        assert list(broker.topics.registry) == []
        assert await ask(client) == 2

    run(tmp_path, scenario)


@pytest.mark.parametrize("count", [3, 200], ids=["at once", "in batches"])
def test_a_partitioned_topic_gives_way_to_one_that_another_broker_made_meanwhile(
    tmp_path: Path, count: int
) -> None:
    async def scenario(broker: Broker) -> None:
        other = Overtaken(broker, PATH, PLAIN)
        with pytest.raises(TopicExists):
            await broker.topics.partitioned.create(NAME, count)
        assert other.is_over
        assert not await broker.node.store.exists(PATH)
        assert await names(broker) == ["t"], "no partition is left"
        # It is that broker's topic, and can be used.
        client = await broker.client()
        assert await ask(client) == 0
        assert await open_error(client, TOPIC) == (None, None)

    run(tmp_path, scenario)


def test_who_gives_way_does_not_wait_for_topics_that_are_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        is_taken = partitioned._is_taken
        loading: list[asyncio.Future[Topic]] = []

        async def and_another_topic_is_made(name: TopicName) -> bool:
            another = TopicName.get(TOPIC + "-another")
            loading.append(asyncio.ensure_future(broker.topics.loader.ensure(another)))
            for _ in range(10):
                await asyncio.sleep(0)
            return await is_taken(name)

        monkeypatch.setattr(partitioned, "_is_taken", and_another_topic_is_made)
        Overtaken(broker, PATH, PLAIN)
        with pytest.raises(TopicExists):
            await asyncio.wait_for(partitioned.create(NAME, 3), 5)
        await asyncio.wait_for(loading[0], 5)
        assert await names(broker) == ["t", "t-another"]

    run(tmp_path, scenario, maxConcurrentTopicLoadRequest=1, maxTopicsPerNamespace=10)


def test_who_asks_for_a_topic_first_does_not_wait_for_ever_while_it_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "operation_timeout_s", 0.3)

    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        with partitioned._records.changing(NAME):
            clients = [await broker.client() for _ in range(3)]
            asked = [asyncio.ensure_future(ask(each)) for each in clients]
            assert await asyncio.wait_for(asked[0], 5) == pb.ServiceNotReady
        # Those behind are refused at the same time, or find that it is over.
        assert set(await asyncio.gather(*asked[1:])) <= {3, pb.MetadataError, pb.ServiceNotReady}
        assert await ask(clients[0]) == 3

    run(tmp_path, scenario, **DEFAULT_PARTITIONED)


def test_who_asks_for_a_topic_first_waits_while_it_is_changed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.client() for _ in range(3)]
        with broker.topics.partitions.changing(NAME):
            asked = [asyncio.ensure_future(ask(each)) for each in clients]
            await asyncio.sleep(0.1)
            assert not any(each.done() for each in asked)
        assert await asyncio.gather(*asked) == [3, 3, 3]

    run(tmp_path, scenario, **DEFAULT_PARTITIONED)


def test_a_topic_that_another_broker_made_meanwhile_does_not_become_partitioned_by_use(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        other = Overtaken(broker, PATH, PLAIN)
        client = await broker.client()
        assert await ask(client) == 0
        assert other.is_over
        assert not await broker.node.store.exists(PATH)
        assert await open_error(client, TOPIC) == (None, None)

    run(tmp_path, scenario, **DEFAULT_PARTITIONED)


def test_reading_a_topic_leaves_the_list_of_the_others_cached(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned, store = broker.topics.partitioned, broker.node.store
        other = TopicName.get(TOPIC + "-other")
        await partitioned.create(NAME, 2)
        assert await broker.topics.partitions.partitions(NAME) == 2
        asked: list[str] = []
        children = store.children

        def counted(path: str) -> Any:
            asked.append(path)
            return children(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "children", counted)
            assert (await broker.topics.partitions.read(NAME)).partitions == 2
            assert await broker.topics.partitions.partitions(other) == 0
        assert asked == []

    run(tmp_path, scenario)


def test_reading_a_topic_drops_the_value_that_was_cached(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        partitioned = broker.topics.partitioned
        await partitioned.create(NAME, 2)
        assert await broker.topics.partitions.partitions(NAME) == 2
        broker.service.metadata_cache.close()  # the news are late
        await broker.node.store.put(PATH, b'{"partitions":3}')
        assert await broker.topics.partitions.partitions(NAME) == 2
        assert (await broker.topics.partitions.read(NAME)).partitions == 3
        assert await broker.topics.partitions.partitions(NAME) == 3

    run(tmp_path, scenario)
