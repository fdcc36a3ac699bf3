"""Topics that nobody uses are deleted, and no others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import one_broker
from one_broker import TOPIC, Broker, Client
from pyxbroker.base.errors import TopicNotFound
from pyxbroker.base.topic_name import TopicName
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb

NAME = "public/default/persistent/t"
AT_ONCE = {"brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": 0}


def run(tmp_path: Path, scenario: Callable[[Broker], Awaitable[None]], **settings: Any) -> None:
    one_broker.run(tmp_path, scenario, **(AT_ONCE | settings))


async def is_there(broker: Broker, name: str = NAME) -> bool:
    return await broker.node.store.exists(paths.managed_ledger(name))


async def set_policies(broker: Broker, **fields: Any) -> None:
    value = json.dumps(fields).encode()
    await broker.node.store.put(paths.namespace_policies("public/default"), value)


def test_a_topic_that_nobody_uses_is_deleted_with_all_it_has(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(b"one", b"two")
        ledger_ids = list((await broker.topic()).managed_ledger.ledgers)
        assert await is_there(broker)
        await broker.topics.inactive.delete_all()
        assert not await is_there(broker)
        assert len(broker.topics.registry) == 0
        for ledger_id in ledger_ids:
            assert not await broker.node.store.exists(paths.ledger(ledger_id))
        # It can be made again, and is empty.
        client = await broker.client()
        await client.subscribe()
        assert await client.quiet() == []
        assert (await broker.publish(b"new"))[0][1] == 0
        assert (await client.messages(1))[0].data == b"new"

    run(tmp_path, scenario)


def test_the_error_for_a_topic_says_that_it_was_deleted_as_inactive(tmp_path: Path) -> None:
    """Not that clients may not create it, which is another reason."""

    async def why(broker: Broker, create: bool = False) -> str:
        with pytest.raises(TopicNotFound) as error:
            await broker.topics.loader.get(TopicName.get(TOPIC), create)
        return str(error.value)

    async def scenario(broker: Broker) -> None:
        plain = f"Topic {TOPIC} does not exist."
        assert await why(broker) == plain
        await broker.publish(b"one")
        await broker.topics.inactive.delete_all()
        gone = await why(broker)
        assert gone.startswith(f"Topic {TOPIC} does not exist: the broker deleted it as inactive")
        assert all(reason in gone for reason in ("no client", "no subscription", "no retention"))
        # A topic that was created again and deleted by an operator has no such reason.
        await broker.publish(b"two")
        await broker.topics.deletion.delete(await broker.topic())
        assert await why(broker) == plain
        await set_policies(broker, autoTopicCreationOverride={"allowAutoTopicCreation": False})
        refused = f"{plain[:-1]}, and it may not be created by a client (allowAutoTopicCreation)."
        assert await why(broker, create=True) == refused
        assert await why(broker) == plain

    run(tmp_path, scenario)


def test_producers_consumers_readers_and_subscriptions_keep_a_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce()
        await broker.topics.inactive.delete_all()
        assert await is_there(broker)
        await client.request(pb.CommandCloseProducer(producer_id=1, request_id=0), "success")
        await client.subscribe(durable=False, subType=pb.CommandSubscribe.Exclusive)
        await broker.topics.inactive.delete_all()
        assert await is_there(broker)
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        await client.subscribe()
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        await broker.topics.inactive.delete_all()
        assert await is_there(broker), "a subscription without consumers keeps it"
        await client.subscribe()
        await client.request(pb.CommandUnsubscribe(consumer_id=1, request_id=0), "success")
        await broker.topics.inactive.delete_all()
        assert not await is_there(broker)

    run(tmp_path, scenario)


def test_a_topic_whose_subscriptions_have_caught_up_goes_if_that_is_the_mode(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe()
        (position,) = await broker.publish(b"one")
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        await broker.topics.inactive.delete_all()
        assert await is_there(broker), "it has a backlog"
        await client.subscribe()
        await client.messages(1)
        await client.ack(position)
        await broker.topics.inactive.delete_all()
        assert await is_there(broker), "it has a consumer"
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        await broker.topics.inactive.delete_all()
        assert not await is_there(broker)

    mode = "delete_when_subscriptions_caught_up"
    run(tmp_path, scenario, brokerDeleteInactiveTopicsMode=mode)


def test_a_topic_is_kept_for_as_long_as_it_says(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        for policies in (
            {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}},
            {"retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}},
            {"inactive_topic_policies": inactive(60, delete=True)},
            {"inactive_topic_policies": inactive(0, delete=False)},
        ):
            await set_policies(broker, **policies)
            await broker.topics.inactive.delete_all()
            assert await is_there(broker), policies
        topic._last_active -= 61
        await set_policies(broker, inactive_topic_policies=inactive(60, delete=True))
        await broker.topics.inactive.delete_all()
        assert not await is_there(broker)

    run(tmp_path, scenario)


def inactive(seconds: int, *, delete: bool) -> dict[str, Any]:
    return {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": seconds,
        "deleteWhileInactive": delete,
    }


async def a_producer(client: Client) -> None:
    await client.produce()


async def a_consumer(client: Client) -> None:
    await client.subscribe()


@pytest.mark.parametrize(
    ("comes", "leaves"),
    [
        (a_producer, pb.CommandCloseProducer(producer_id=1, request_id=0)),
        (a_consumer, pb.CommandUnsubscribe(consumer_id=1, request_id=0)),
    ],
    ids=["producer", "consumer"],
)
def test_use_between_two_looks_begins_the_time_anew(
    tmp_path: Path, comes: Callable[[Client], Awaitable[None]], leaves: Any
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await comes(client)
        topic._last_active -= 1000
        await client.request(leaves, "success")
        await broker.topics.inactive.delete_all()
        assert await is_there(broker)
        topic._last_active -= 1000
        await broker.topics.inactive.delete_all()
        assert not await is_there(broker)

    run(tmp_path, scenario, brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=900)


def test_a_client_that_comes_while_a_topic_is_deleted_gets_a_new_one(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(b"old")
        client = await broker.client()
        deleting = asyncio.ensure_future(broker.topics.inactive.delete_all())
        while not (await asyncio.sleep(0) or (await broker_topic(broker)).fenced):
            pass
        answer = await client.produce()
        if hasattr(answer, "error"):
            assert answer.error == pb.ServiceNotReady
        await deleting
        assert not hasattr(await client.produce(), "error")
        client.publish(0, b"new")
        assert (await client.receive("send_receipt")).message_id.entryId == 0

    async def broker_topic(broker: Broker) -> Any:
        return next(iter(broker.topics.registry))

    run(tmp_path, scenario)


@pytest.mark.parametrize("forgets", [True, False])
def test_the_number_of_partitions_goes_with_the_last_partition(
    tmp_path: Path, forgets: bool
) -> None:
    async def scenario(broker: Broker) -> None:
        path = paths.partitioned_topic("public/default", "t")
        await broker.node.store.put(path, b'{"partitions":2}')
        parts = [TopicName.get(TOPIC).partition(index) for index in range(2)]
        used = await broker.topics.loader.get(parts[0], create=True)
        await broker.topics.loader.get(parts[1], create=True)
        client = await broker.client()
        await client.produce(topic=str(parts[0]))
        await broker.topics.inactive.delete_all()
        assert list(broker.topics.registry) == [used]
        assert await broker.topics.partitions.partitions(TopicName.get(TOPIC)) == 2
        client.connection.close()
        await broker.topics.inactive.delete_all()
        assert len(broker.topics.registry) == 0
        assert await broker.node.store.exists(path) is not forgets

    run(tmp_path, scenario, brokerDeleteInactivePartitionedTopicMetadataEnabled=forgets)


async def delete_the_last_partition(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """The number of partitions is not deleted, and the log says so of that, not of the topic."""
    await broker.topics.loader.get(TopicName.get(TOPIC).partition(0), create=True)
    caplog.clear()
    await broker.topics.inactive.delete_all()
    assert len(broker.topics.registry) == 0
    assert await broker.node.store.exists(paths.partitioned_topic("public/default", "t"))
    warnings = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert warnings == ["the record of a partitioned topic was not deleted"]


def test_the_number_of_partitions_stays_while_they_are_being_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        path = paths.partitioned_topic("public/default", "t")
        await broker.node.store.put(path, b'{"partitions":1}')
        with broker.topics.partitions.changing(TopicName.get(TOPIC)):
            await delete_the_last_partition(broker, caplog)

    run(tmp_path, scenario, brokerDeleteInactivePartitionedTopicMetadataEnabled=True)


def test_a_number_of_partitions_that_has_changed_meanwhile_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        path = paths.partitioned_topic("public/default", "t")
        await broker.node.store.put(path, b'{"partitions":1}')
        exists = broker.topics.registry.exists

        async def grow_meanwhile(name: TopicName) -> bool:
            found = await exists(name)
            if not found:
                await broker.node.store.put(path, b'{"partitions":2}')
            return found

        monkeypatch.setattr(broker.topics.registry, "exists", grow_meanwhile)
        await delete_the_last_partition(broker, caplog)

    run(tmp_path, scenario, brokerDeleteInactivePartitionedTopicMetadataEnabled=True)


def test_policies_that_cannot_be_read_delete_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topic()
        for value in (b"", b"[]", b'{"inactive_topic_policies":{}}', b'{"retention_policies":7}'):
            await broker.node.store.put(paths.namespace_policies("public/default"), value)
            await broker.topics.inactive.delete_all()
            assert await is_there(broker)

    run(tmp_path, scenario)


def test_a_topic_that_another_broker_has_taken_is_not_deleted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(b"one")
        path = paths.managed_ledger(NAME)
        found = await broker.node.store.get(path)
        assert found is not None
        await broker.node.store.put(path, found.value)
        await broker.topics.inactive.delete_all()
        assert await is_there(broker)

    run(tmp_path, scenario)


def test_a_topic_is_opened_once_whoever_asks(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = TopicName.get(TOPIC)
        asked = [broker.topics.loader.get(name, create=bool(n % 2)) for n in range(6)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        topics = [each for each in found if not isinstance(each, BaseException)]
        refused = [each for each in found if isinstance(each, BaseException)]
        assert all(isinstance(each, TopicNotFound) for each in refused), refused
        assert len(topics) >= 3
        assert len({id(each) for each in topics}) == 1
        assert len(broker.topics.registry) == 1

    run(tmp_path, scenario)
