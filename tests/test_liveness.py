"""Who comes for a name that another connection holds gets it when nobody is there any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from one_broker import TOPIC, Broker, Client
from pyxbroker.proto import PulsarApi as pb

Scenario = Callable[[Broker], Awaitable[None]]


def run(tmp_path: Path, scenario: Scenario, timeout_ms: int = 300) -> None:
    async def main() -> None:
        async with Broker(
            tmp_path / "bookie", connectionLivenessCheckTimeoutMillis=timeout_ms
        ) as broker:
            await scenario(broker)

    asyncio.run(main())


async def answer_pings(client: Client) -> None:
    while True:
        await client.receive("ping")
        client.send(pb.CommandPong())


async def exclusive(client: Client) -> Any:
    return await client.subscribe(subType=pb.CommandSubscribe.Exclusive)


def test_a_silent_holder_of_a_producers_name_is_closed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        silent = await broker.client()
        assert (await silent.produce(producer_name="mine")).producer_name == "mine"
        heir = await broker.client()
        assert (await heir.produce(producer_name="mine")).producer_name == "mine"
        await silent.closed()
        heir.publish(0, b"go on")
        assert (await heir.receive("send_receipt")).sequence_id == 0

    run(tmp_path, scenario)


def test_a_silent_exclusive_consumer_is_closed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        silent = await broker.client()
        await exclusive(silent)
        await broker.publish(b"one")
        heir = await broker.client()
        assert not hasattr(await exclusive(heir), "error")
        assert (await heir.messages(1))[0].data == b"one"
        await silent.closed()

    run(tmp_path, scenario)


def test_a_holder_that_answers_stays(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        holder = await broker.client()
        await holder.produce(producer_name="mine")
        await exclusive(holder)
        answering = asyncio.ensure_future(answer_pings(holder))
        others = [await broker.client() for _ in range(2)]
        began = asyncio.get_running_loop().time()
        refused = await asyncio.gather(*(each.produce(producer_name="mine") for each in others))
        assert [each.error for each in refused] == [pb.ProducerBusy] * 2
        refused = await asyncio.gather(*(exclusive(each) for each in others))
        assert [each.error for each in refused] == [pb.ConsumerBusy] * 2
        assert asyncio.get_running_loop().time() - began < 3, "an answer was not waited for"
        answering.cancel()
        assert not holder.connection.closed

    run(tmp_path, scenario, timeout_ms=5000)


def test_of_many_who_come_for_one_name_one_gets_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        silent = await broker.client()
        await silent.produce(producer_name="mine")
        others = [await broker.client() for _ in range(5)]
        answers = await asyncio.gather(*(each.produce(producer_name="mine") for each in others))
        won = [each for each in answers if not hasattr(each, "error")]
        assert len(won) == 1
        topic = await broker.topic()
        assert len(topic.producers) == 1

    run(tmp_path, scenario)


def test_without_a_timeout_nobody_is_asked(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        holder = await broker.client()
        await holder.produce(producer_name="mine")
        other = await broker.client()
        assert (await other.produce(producer_name="mine")).error == pb.ProducerBusy
        assert await holder.quiet() == []

    run(tmp_path, scenario, timeout_ms=0)


def test_who_gives_up_while_the_holder_is_asked_gets_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        silent = await broker.client()
        await silent.produce(producer_name="mine")
        await exclusive(silent)
        other = await broker.client()
        for command in (
            pb.CommandProducer(topic=TOPIC, producer_id=1, producer_name="mine", request_id=1),
            pb.CommandSubscribe(
                topic=TOPIC,
                subscription="s",
                subType=pb.CommandSubscribe.Exclusive,
                consumer_id=1,
                request_id=2,
            ),
        ):
            other.send(command)
        await silent.receive("ping")
        other.connection.close()
        await silent.closed()
        await asyncio.sleep(0.05)
        topic = await broker.topic()
        assert topic.producers == {}
        assert topic.subscriptions["s"].consumers == []

    run(tmp_path, scenario)
