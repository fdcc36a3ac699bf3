"""A topic with many producers, or a subscription with many consumers: what concerns all of them is
done for some in a turn, and what concerns one costs no look at the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from one_bookie import turns as some_turns
from one_broker import Broker, Client, run
from pyxbroker.broker.commands import replies
from pyxbroker.broker.topics.consumer import Consumer
from pyxbroker.broker.topics.subscription import Subscription
from pyxbroker.broker.topics.topic import Topic
from shares import over_at_once
from test_many_subscriptions import Turns, no_time

__all__ = ["no_time"]

MANY = 60
END = "reachedEndOfTopic"


class Watched(list[Any]):
    """A list that notes who of it was looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            Watched.looks += 1
            yield each


async def consumers_of(broker: Broker) -> tuple[Client, Topic, Subscription]:
    """Many of one subscription, with one message that the first one has."""
    client = await broker.client()
    await client.subscribe(0)
    for number in range(1, MANY):
        await client.subscribe(number, permits=0)
    topic = await broker.topic()
    return client, topic, topic.subscriptions["s"]


async def told(client: Client) -> list[int]:
    """The consumers that were told of the end."""
    await client.quiet()
    return sorted(each.consumer_id for name, each, _ in client.take() if name == END)


async def some_are_told(consumers: list[Consumer]) -> None:
    while sum(each.end_sent for each in consumers) <= 2:
        await some_turns(1)


# --- the end of a topic -----------------------------------------------------------------------


def test_of_many_consumers_some_are_told_of_the_end_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic, _ = await consumers_of(broker)
        over_at_once(broker.node.turn.more)
        turns = Turns()
        turns.count(monkeypatch, replies, "reached_end_of_topic")
        await topic.terminate()
        turns.stop()
        # Who asked for it has the answer when all are told.
        assert sum(turns.done.values()) == MANY
        assert turns.most == 1
        assert await told(client) == list(range(MANY))

    run(tmp_path, scenario)


def test_what_one_of_many_consumers_does_at_the_end_looks_at_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic, subscription = await consumers_of(broker)
        await topic.terminate()
        assert len(await told(client)) == MANY
        monkeypatch.setattr(
            Subscription, "consumers", property(lambda self: Watched(self.dispatcher.consumers))
        )
        Watched.looks = 0
        for number in range(MANY):
            client.flow(1, number)
            await client.ack((0, 0), consumer_id=number)
        assert Watched.looks == 0
        assert await told(client) == [], "they are told once"
        # Who comes later is told when it asks, alone.
        await client.subscribe(MANY, permits=1)
        assert await told(client) == [MANY]
        assert Watched.looks == 0
        assert len(subscription.consumers) == MANY + 1

    run(tmp_path, scenario)


def test_consumers_that_come_and_go_while_all_are_told_of_the_end_keep_no_other_from_it(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic, subscription = await consumers_of(broker)
        over_at_once(broker.node.turn.more)
        terminating = asyncio.ensure_future(topic.terminate())
        before = subscription.consumers[:]
        await some_are_told(before)
        # Of those that were told and of those that were not.
        gone = [before[0], before[1], *before[-10:]]
        assert not gone[-1].end_sent
        for each in gone:
            subscription.send_away(each)
        await client.subscribe(MANY, permits=0)
        client.flow(1, MANY)
        await terminating
        ended = await told(client)
        assert len(ended) == len(set(ended))
        left = {each.consumer_id for each in before if each not in gone}
        assert set(ended) == left | {MANY} | {each.consumer_id for each in gone if each.end_sent}
        assert not gone[-1].end_sent

    run(tmp_path, scenario)


def test_consumers_that_have_something_left_again_are_told_when_that_is_done(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic, subscription = await consumers_of(broker)
        [position] = await broker.publish(b"one")
        start = subscription.acks.mark_delete
        await client.ack(position, consumer_id=0)
        over_at_once(broker.node.turn.more)
        terminating = asyncio.ensure_future(topic.terminate())
        await some_are_told(subscription.consumers)
        await subscription.seek(start)
        await terminating
        before = sum(each.end_sent for each in subscription.consumers)
        assert before < MANY
        assert len(await told(client)) == before
        await some_turns()
        await client.ack(position, consumer_id=0)
        await topic.left()
        assert len(await told(client)) == MANY - before

    run(tmp_path, scenario)
