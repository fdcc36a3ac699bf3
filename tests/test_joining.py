"""Consumers that join a topic while something else happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from one_broker import Broker
from pyxbroker.proto import PulsarApi as pb


def run(tmp_path: Path, scenario: Callable[[Broker], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with Broker(tmp_path / "bookie", **settings) as broker:
            await scenario(broker)

    asyncio.run(main())


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
