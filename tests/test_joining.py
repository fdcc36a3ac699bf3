"""Consumers that join a topic, or leave it, while something else happens to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_broker import Broker, run
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
