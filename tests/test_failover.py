"""Failover: who is active, who is told, and what comes again when that changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import one_broker
from one_broker import Broker, Client, Scenario, data_of
from pyxbroker.base.topic_name import TopicName
from pyxbroker.proto import PulsarApi as pb

FAILOVER = {"subType": pb.CommandSubscribe.Failover}


def run(tmp_path: Path, scenario: Scenario, delay_ms: int = 0, **settings: Any) -> None:
    settings["activeConsumerFailoverDelayTimeMillis"] = delay_ms
    one_broker.run(tmp_path, scenario, **settings)


async def join(broker: Broker, *names: str, **fields: Any) -> list[Client]:
    """One client for each consumer; consumer ids are numbers from 1."""
    clients = []
    for number, name in enumerate(names, start=1):
        client = await broker.client()
        await client.subscribe(number, consumer_name=name, **FAILOVER, **fields)
        clients.append(client)
    return clients


async def told(client: Client) -> list[bool]:
    """What the ACTIVE_CONSUMER_CHANGEs said, until the broker is quiet."""
    names = await client.quiet()
    count = names.count("active_consumer_change")
    return [(await client.receive("active_consumer_change")).is_active for _ in range(count)]


def test_one_consumer_gets_everything_in_order(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        # Of these names the ring of this topic gives "b" the first place.
        a, b, c = await join(broker, "a", "b", "c")
        positions = await broker.publish(*data_of(120))
        [active] = [each for each in (a, b, c) if (await told(each))[-1]]
        messages = await active.messages(120)
        assert [each.position for each in messages] == positions
        for other in (a, b, c):
            assert "message" not in await other.quiet()

    run(tmp_path, scenario)


def test_partitions_choose_by_their_number(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = TopicName.get("persistent://public/default/p")
        await broker.topics.partitioned.create(name, 4)
        for number in range(4):
            topic = str(name.partition(number))
            clients = await join(broker, "d", "b", "c", "a", topic=topic)
            active = [(await told(each))[-1] for each in clients]
            assert [name for name, is_active in zip("dbca", active, strict=True) if is_active] == [
                "abcd"[number]
            ]

    run(tmp_path, scenario)


def test_the_best_priority_level_is_active(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, consumer_name="a", priority_level=1, **FAILOVER)
        assert await told(client) == [True]
        await client.subscribe(2, consumer_name="z", priority_level=0, **FAILOVER)
        changes = [await client.receive("active_consumer_change") for _ in range(2)]
        assert {each.consumer_id: each.is_active for each in changes} == {1: False, 2: True}
        await client.subscribe(3, consumer_name="b", priority_level=1, **FAILOVER)
        change = await client.receive("active_consumer_change")
        assert (change.consumer_id, change.is_active) == (3, False), "only the new one is told"
        assert await told(client) == []

    run(tmp_path, scenario)


def test_the_next_one_gets_what_was_not_acknowledged_in_order(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(30))
        first = await broker.client()
        await first.subscribe(1, priority_level=1, **FAILOVER)
        await first.messages(30)
        await first.ack(positions[9], cumulative=True)
        await first.ack(positions[15])
        expected = positions[10:15] + positions[16:]
        second = await broker.client()
        await second.subscribe(2, priority_level=0, **FAILOVER)
        messages = await second.messages(19)
        assert [each.position for each in messages] == expected
        assert {each.redelivery_count for each in messages} == {0}
        state = first.connection.consumers[1]
        assert (state.unacked_messages, state.pending_positions()) == (0, [])
        # The former one may still acknowledge what it had, and gets nothing any more.
        await first.ack(positions[10], cumulative=True)
        first.redeliver(consumer_id=1)
        assert "message" not in await first.quiet()
        second.far.close()
        messages = await first.messages(18)
        assert [each.position for each in messages] == expected[1:]

    run(tmp_path, scenario)


def test_a_consumer_that_is_not_active_may_go(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        active = await broker.client()
        await active.subscribe(1, priority_level=0, **FAILOVER)
        other = await broker.client()
        await other.subscribe(2, priority_level=1, **FAILOVER)
        positions = await broker.publish(*data_of(5))
        await active.messages(5)
        assert await told(active) == [True]
        await other.request(pb.CommandCloseConsumer(consumer_id=2, request_id=0), "success")
        assert await active.quiet() == [], "neither a message nor a change"
        active.redeliver()
        assert [each.position for each in await active.messages(5)] == positions

    run(tmp_path, scenario)


def test_a_change_takes_effect_after_the_delay(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(10))
        loop = asyncio.get_running_loop()
        first = await broker.client()
        began = loop.time()
        await first.subscribe(1, priority_level=1, **FAILOVER)
        assert await first.quiet() == []
        await first.messages(10)
        assert loop.time() - began >= 0.3
        second = await broker.client()
        began = loop.time()
        await second.subscribe(2, priority_level=0, **FAILOVER)
        # What is acknowledged meanwhile does not come twice, and flow changes nothing.
        await first.ack(positions[6], cumulative=True)
        second.flow(10, 2)
        messages = await second.messages(3)
        assert loop.time() - began >= 0.3
        assert [each.position for each in messages] == positions[7:]

    run(tmp_path, scenario, delay_ms=300)


def test_of_many_changes_within_the_delay_the_last_counts(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(10))
        client = await broker.client()
        for consumer_id, level in ((1, 3), (2, 2), (3, 1)):
            await client.subscribe(consumer_id, priority_level=level, **FAILOVER)
        await client.request(pb.CommandCloseConsumer(consumer_id=3, request_id=0), "success")
        assert {each.consumer_id for each in await client.messages(10)} == {2}
        changes = [await client.receive("active_consumer_change") for _ in range(2)]
        assert {each.consumer_id: each.is_active for each in changes} == {1: False, 2: True}
        assert await client.quiet() == []

    run(tmp_path, scenario, delay_ms=200)


def test_everybody_goes_while_a_change_is_due(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(5))
        client = await broker.client()
        await client.subscribe(1, **FAILOVER)
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        await asyncio.sleep(0.15)
        await client.subscribe(2, subType=pb.CommandSubscribe.Exclusive)
        assert [each.position for each in await client.messages(5)] == positions
        assert await client.quiet() == []

    run(tmp_path, scenario, delay_ms=100)


@pytest.mark.parametrize("version", [11, 12])
def test_only_clients_that_know_the_change_are_told(tmp_path: Path, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        client = Client(broker)
        client.send(pb.CommandConnect(client_version="old", protocol_version=version))
        await client.receive("connected")
        await client.subscribe(1, **FAILOVER)
        assert await told(client) == ([True] if version >= 12 else [])

    run(tmp_path, scenario)
