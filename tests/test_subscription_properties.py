"""What is kept of a subscription besides its position, and how subscriptions are given up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from one_broker import TOPIC, Broker, Client, run
from oracles import wire
from pyxbroker.base.topic_name import TopicName
from pyxbroker.metadata import paths
from pyxbroker.mledger import records
from pyxbroker.proto import PulsarApi as pb

REPLICATED = "pulsar.replicated.subscription"


def pairs(**values: str) -> list[Any]:
    return [pb.KeyValue(key=key, value=value) for key, value in values.items()]


async def stored(broker: Broker, subscription: str = "s") -> tuple[dict[str, str], dict[str, int]]:
    """The properties of the subscription and of its position, as its node has them."""
    path = paths.cursor("public/default/persistent/t", subscription)
    found = await broker.node.store.get(path)
    assert found is not None
    info = records.decode_managed_cursor_info(found.value)
    return (
        {each.name: each.value for each in info.cursorProperties},
        {each.name: each.value for each in info.properties},
    )


async def reopened(broker: Broker) -> Any:
    await (await broker.topic()).close()
    return (await broker.topic()).subscriptions["s"]


async def unsubscribe(client: Client, consumer_id: int = 1, force: bool = False) -> Any:
    command = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=0, force=force)
    return await client.request(command, "success")


def test_properties_are_those_of_who_made_the_subscription(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        given = [*pairs(a="1", b="2"), *pairs(a="9")]
        await client.subscribe(1, subscription_properties=given)
        assert await stored(broker) == ({"a": "1", "b": "2"}, {})
        await client.subscribe(2, subscription_properties=pairs(c="3"))
        subscription = await reopened(broker)
        assert subscription.cursor.properties == {"a": "1", "b": "2"}
        assert not subscription.replicated

    run(tmp_path, scenario)


def test_the_replicated_flag_is_stored_and_stays(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, replicate_subscription_state=True)
        assert await stored(broker) == ({}, {REPLICATED: 1})
        await client.subscribe(2, replicate_subscription_state=False)
        [position] = await broker.publish(b"one")
        await client.messages(1)
        await client.ack(position)
        subscription = await reopened(broker)
        assert subscription.replicated
        assert subscription.cursor.backlog == 0

    run(tmp_path, scenario)


def test_a_subscription_becomes_replicated_when_a_consumer_wants_that(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1)
        topic = await broker.topic()
        assert not topic.subscriptions["s"].replicated
        await client.subscribe(2, replicate_subscription_state=True)
        assert topic.subscriptions["s"].replicated
        # It was durable when the consumer was answered: a broker that is killed now has it.
        other = Broker(tmp_path / "unused")
        other.node = broker.node.kill()
        async with other.node:
            managed_ledger = await other.node.open(name="public/default/persistent/t")
            assert managed_ledger.cursors["s"].position_properties == {REPLICATED: 1}

    run(tmp_path, scenario)


def test_partitions_that_are_added_have_the_flag_too(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = TopicName.get(TOPIC)
        await broker.topics.partitioned.create(name, 1)
        client = await broker.client()
        await client.subscribe(topic=str(name.partition(0)), replicate_subscription_state=True)
        await broker.topics.partitioned.update(name, 2)
        topic = await broker.topics.loader.get(name.partition(1), create=False)
        assert topic.subscriptions["s"].replicated

    run(tmp_path, scenario)


def test_properties_that_are_no_text_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        command = pb.CommandSubscribe(
            topic=TOPIC, subscription="s", subType=1, consumer_id=1, request_id=5
        )
        data = command.SerializeToString() + b"\x92\x01\x06\x0a\x01\xff\x12\x01a"
        raw = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE).SerializeToString()
        raw += b"\x22" + bytes([len(data)]) + data
        client.far.send(wire.frame(raw))
        error = await client.receive("error")
        assert (error.request_id, error.error) == (5, pb.NotAllowedError)
        assert "not UTF-8" in error.message

    run(tmp_path, scenario)


def test_a_subscription_that_others_use_is_given_up_with_force_only(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        one, other = [await broker.client() for _ in range(2)]
        await one.subscribe(1)
        await other.subscribe(7)
        answer = await unsubscribe(one)
        assert answer.error == pb.MetadataError
        assert answer.message == "Unconnected or shared consumer attempting to unsubscribe"
        assert not hasattr(await unsubscribe(one, force=True), "error")
        assert (await other.receive("close_consumer")).consumer_id == 7
        assert "close_consumer" not in await one.quiet()
        topic = await broker.topic()
        assert topic.subscriptions == {}
        path = paths.cursor("public/default/persistent/t", "s")
        assert not await broker.node.store.exists(path)
        assert (await unsubscribe(one)).error == pb.MetadataError

    run(tmp_path, scenario)


def test_a_reader_is_given_up_too(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(durable=False, subType=pb.CommandSubscribe.Exclusive)
        assert not hasattr(await unsubscribe(client), "error")
        assert (await broker.topic()).all_subscriptions() == []

    run(tmp_path, scenario)


def test_other_properties_are_durable_wherever_the_position_is(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, subscription_properties=pairs(a="1"))
        cursor = (await broker.topic()).subscriptions["s"].cursor
        # Once while the node has the position, and twice while a ledger of the cursor has it.
        for given in ({"b": "1"}, {"b": "2"}, {}):
            await cursor.set_properties(dict(given))
            assert (await stored(broker))[0] == given
            [position] = await broker.publish(b"one")
            await client.messages(1)
            await client.ack(position)
        await asyncio.gather(
            *(cursor.set_properties({"c": str(n)}) for n in range(20)), cursor.persist()
        )
        assert await stored(broker) == ({"c": "19"}, {})
        other = Broker(tmp_path / "unused")
        other.node = broker.node.kill()
        async with other.node:
            managed_ledger = await other.node.open(name="public/default/persistent/t")
            assert managed_ledger.cursors["s"].properties == {"c": "19"}
            assert managed_ledger.cursors["s"].backlog == 0

    run(tmp_path, scenario)


def test_the_replicated_flag_is_taken_away_for_good(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, replicate_subscription_state=True)
        subscription = (await broker.topic()).subscriptions["s"]
        for flag in (False, True, False):
            await subscription.set_replicated(flag)
            assert subscription.replicated is flag
        assert not (await reopened(broker)).replicated

    run(tmp_path, scenario)
