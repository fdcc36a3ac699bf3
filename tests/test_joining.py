"""Consumers that join a topic, or leave it, while something else happens to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_bookie import turns, until
from one_broker import Broker, run
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.proto import PulsarApi as pb


def test_nobody_joins_a_topic_that_was_closed_meanwhile(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        former = await broker.topic()
        before = former.subscription_for

        async def close_meanwhile(*arguments: Any) -> Any:
            found = await before(*arguments)
            await former.close()
            return found

        former.subscription_for = close_meanwhile  # type: ignore[method-assign]
        client = await broker.client()
        answer = await client.subscribe(1, permits=0)
        assert answer.error == pb.ServiceNotReady
        assert former.subscriptions["s"].consumers == []
        # Who asks again is served by its successor.
        await client.subscribe(1)
        await broker.publish(b"x")
        assert len(await client.messages(1)) == 1

    run(tmp_path, scenario)


def test_consumers_that_come_at_once_are_not_more_than_the_limit(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.client() for _ in range(5)]
        joining = (
            client.subscribe(1, permits=0, subscription=f"s{n}") for n, client in enumerate(clients)
        )
        answers = await asyncio.gather(*joining)
        errors = [each.error for each in answers if hasattr(each, "error")]
        assert errors == [pb.ConsumerBusy] * 3

    run(tmp_path, scenario, maxConsumersPerTopic=2)


@pytest.mark.parametrize("how", ["seek", "unsubscribe", "close"])
@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared])
def test_who_is_sent_away_gets_nothing_of_who_was_sent_away_before(
    tmp_path: Path, how: str, kind: int
) -> None:
    async def scenario(broker: Broker) -> None:
        first, second = [await broker.client() for _ in range(2)]
        await first.subscribe(1, subType=kind)
        await broker.publish(*[b"%d" % n for n in range(20)])
        await first.messages(20)
        await second.subscribe(1, subType=kind)
        if how == "seek":
            latest = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
            seek = pb.CommandSeek(consumer_id=1, request_id=0, message_id=latest)
            await first.request(seek, "success")
        elif how == "unsubscribe":
            leave = pb.CommandUnsubscribe(consumer_id=1, request_id=0, force=True)
            await first.request(leave, "success")
        else:
            await (await broker.topic()).close()
        assert await second.quiet() == ["close_consumer"]

    run(tmp_path, scenario)


def test_the_limit_of_a_topic_does_not_ask_each_subscription_and_knows_who_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        clients = [await broker.client() for _ in range(4)]

        def check(count: int) -> None:
            asked = topic.all_subscriptions()
            assert topic.consumer_count == sum(len(each.consumers) for each in asked) == count

        async def join(kind: int = pb.CommandSubscribe.Shared) -> None:
            for number, client in enumerate(clients):
                answer = await client.subscribe(1, subType=kind, subscription=f"s{number % 2}")
                assert not hasattr(answer, "error")
            check(4)

        with monkeypatch.context() as patch:
            patch.setattr(Topic, "all_subscriptions", lambda _: pytest.fail("each was asked"))
            topic.check_consumers()
        await join()
        answer = await clients[0].subscribe(2, subscription="other")
        assert answer.error == pb.ConsumerBusy
        check(4)
        refused = await clients[0].subscribe(2, subscription="s0")
        assert hasattr(refused, "error")
        check(4)
        for number, client in enumerate(clients):
            await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=9), "success")
            check(3 - number)
        await join(pb.CommandSubscribe.Key_Shared)
        seek = pb.CommandSeek(consumer_id=1, request_id=10, message_publish_time=1)
        await clients[0].request(seek, "success")
        check(2)
        topic.subscriptions["s1"].on_defect(RuntimeError("a defect"))
        await turns()
        check(0)
        await join()
        leave = pb.CommandUnsubscribe(consumer_id=1, request_id=11, force=True)
        await clients[1].request(leave, "success")
        check(2)
        clients[0].connection.close()
        await until(lambda: topic.consumer_count == 1)
        check(1)
        await clients[1].subscribe(
            3,
            subscription="r",
            durable=False,
            start_message_id=pb.MessageIdData(ledgerId=0, entryId=0),
        )
        check(2)
        await clients[1].request(pb.CommandCloseConsumer(consumer_id=3, request_id=12), "success")
        check(1)
        topic.disconnect()
        await topic.wait_disconnected()
        check(0)

    run(tmp_path, scenario, maxConsumersPerTopic=4)
