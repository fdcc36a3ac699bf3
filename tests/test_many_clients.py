"""A topic with many producers, or a subscription with many consumers: what concerns all of them is
done for some in a turn, and what concerns one costs no look at the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from one_bookie import turns as some_turns
from one_broker import Broker, Client, run
from pyxbroker.base.slices import Slices, Steps
from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch import dispatcher
from pyxbroker.broker.dispatch.limits import Limits
from pyxbroker.broker.statistics import dimensions, statistics, stats
from pyxbroker.broker.subscriptions import subscription as topics_subscription
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics import topic as topics_topic
from pyxbroker.broker.topics.publish_rate import PublishRate
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.policies.values import DispatchRate, Rate
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
        over_at_once(broker.node.turn.dispatching)
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
        over_at_once(broker.node.turn.dispatching)
        terminating = asyncio.ensure_future(topic.terminate())
        before = subscription.consumers[:]
        await some_are_told(before)
        # Of those that were told and of those that were not.
        gone = [before[0], before[1], *before[-10:]]
        assert not gone[-1].end_sent
        for each in gone:
            subscription.disconnect_one(each)
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
        over_at_once(broker.node.turn.dispatching)
        terminating = asyncio.ensure_future(topic.terminate())
        await some_are_told(subscription.consumers)
        await subscription.seek(start)
        await terminating
        before = sum(each.end_sent for each in subscription.consumers)
        assert before < MANY
        assert len(await told(client)) == before
        await some_turns()
        await client.ack(position, consumer_id=0)
        await topic.wait_disconnected()
        assert len(await told(client)) == MANY - before

    run(tmp_path, scenario)


# --- counters and rates -----------------------------------------------------------------------


async def clients_of(broker: Broker) -> tuple[Client, Topic, Subscription]:
    """Many producers, and many consumers of one subscription."""
    client, topic, subscription = await consumers_of(broker)
    for number in range(MANY):
        await client.produce(number, producer_name=f"p{number}")
    return client, topic, subscription


@pytest.mark.usefixtures("no_time")
def test_rates_of_many_clients_are_noted_for_one_of_them_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        await clients_of(broker)
        turns = Turns()
        turns.count(monkeypatch, stats, "producer_rates")
        turns.count(monkeypatch, Consumer, "rates")
        await broker.topics.upkeep.note_rates()
        turns.stop()
        assert sum(turns.done.values()) == 2 * MANY
        assert turns.most == 1

    run(tmp_path, scenario)


def test_what_many_clients_sent_is_summed_up_in_steps_and_who_goes_meanwhile_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_topic, "COUNTED_PER_STEP", 7)
    monkeypatch.setattr(topics_subscription, "COUNTED_PER_STEP", 7)

    async def scenario(broker: Broker) -> None:
        client, topic, subscription = await clients_of(broker)
        for number in range(MANY):
            client.publish(0, b"x", number)
        for number in range(1, MANY):
            client.flow(1, number)
        await client.messages(MANY)
        await subscription.skip_to(topic.last_confirmed)  # who goes leaves nothing to others
        assert topic.received()[0] == subscription.sent()[0] == MANY

        def count(counting: Steps[tuple[int, int]], gone: Callable[[int], None]) -> None:
            """At each step two go: one that was counted, and one that was not."""
            for _ in range(MANY // 7):
                next(counting)
                gone(0)
                gone(-1)
            with pytest.raises(StopIteration) as end:
                next(counting)
            assert end.value.value[0] == MANY

        def close_producer(at: int) -> None:
            topic.close_producer(list(topic.producers.values())[at])

        def send_away(at: int) -> None:
            subscription.disconnect_one(subscription.consumers[at])

        count(topic.count_received(), close_producer)
        count(subscription.count_sent(), send_away)
        left = MANY - 2 * (MANY // 7)
        steps = [len(list(each)) for each in (topic.count_received(), subscription.count_sent())]
        assert steps == [left // 7] * 2
        assert len(topic.producers) == len(subscription.consumers) == left
        assert (
            len(list(topic.count_received())) == len(list(subscription.count_sent())) == left // 7
        )
        assert topic.received()[0] == subscription.sent()[0] == MANY

    run(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_what_broker_stats_tell_of_many_clients_is_taken_of_one_of_them_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        _, topic, subscription = await clients_of(broker)
        turns = Turns()
        turns.count(monkeypatch, dimensions, "_selected")
        telling = asyncio.ensure_future(dimensions.dimension_statistics(topic, Slices()))
        while sum(turns.done.values()) < MANY + MANY // 2:
            await some_turns(1)
        # All producers and some consumers have been told. Others go, and are told as they were.
        topic.close_producers()
        for each in subscription.consumers[:10]:
            subscription.disconnect_one(each)
        found = await telling
        turns.stop()
        assert [each["producerName"] for each in found["publishers"]] == sorted(
            f"p{number}" for number in range(MANY)
        )
        consumers = found["subscriptions"]["s"]["consumers"]
        assert [each.keys() for each in consumers] == [consumers[0].keys()] * MANY
        assert "bytesOutCounter" not in consumers[0]
        assert sum(turns.done.values()) > 2 * MANY
        assert turns.most <= 4  # of a subscription itself, and the first of its consumers
        turns = Turns()
        await statistics.forget(found)
        turns.stop()
        assert turns.number > 2 * MANY
        assert (found["publishers"], consumers) == ([], [])

    run(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_statistics_of_consumers_that_come_and_go_meanwhile_tell_of_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        _, topic, subscription = await clients_of(broker)
        looked_at: list[Consumer] = []
        rates = Consumer.rates

        def noted(consumer: Consumer) -> Any:
            looked_at.append(consumer)
            return rates(consumer)

        monkeypatch.setattr(Consumer, "rates", noted)
        before = subscription.consumers[:]
        asked = statistics.StatisticsOptions()
        telling = asyncio.ensure_future(
            statistics.subscription_statistics(topic, subscription, asked, Slices(), 0.0)
        )
        while len(looked_at) < 10:
            await some_turns(1)
        for each in before[:5]:
            subscription.disconnect_one(each)
        found = await telling
        assert list(dict.fromkeys(looked_at)) == before
        assert len(found["consumers"]) == MANY

    run(tmp_path, scenario)


def test_what_metrics_tell_of_many_clients_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        _, topic, _ = await clients_of(broker)
        monkeypatch.setattr(stats, "CLIENTS_PER_STEP", 7)
        monkeypatch.setattr(topics_topic, "COUNTED_PER_STEP", 7)
        monkeypatch.setattr(topics_subscription, "COUNTED_PER_STEP", 7)
        *parts, found = stats.read_stats([topic], stats.Detail(producers=True, consumers=True))
        # Twice those of each kind, for what they are told of and for the sums of their topic.
        assert parts == [None] * (4 * (MANY // 7))
        assert found is not None
        assert len(found.producer_stats) == MANY
        assert len(found.subscriptions[0].consumer_stats) == MANY

    run(tmp_path, scenario)


# --- policies ---------------------------------------------------------------------------------


def test_of_many_producers_some_are_told_in_a_turn_what_they_may_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client, topic, _ = await clients_of(broker)
        over_at_once(broker.node.turn.dispatching)
        before = list(topic.producers.values())
        turns = Turns()
        turns.count(monkeypatch, PublishRate, "cut_runs")
        topic.on_policies(topic.policies._replace(publish_rate=Rate(messages=10_000)))
        await some_turns(MANY // 2)
        assert 0 < sum(turns.done.values()) < MANY
        # Some go, another comes, and the rate is another one before all are told of the first.
        topic.close_producer(before[0])
        topic.close_producer(before[-1])
        await client.produce(MANY, producer_name="late")
        late = topic.producers["late"]
        told = late.run_messages_max
        assert told < 10_000
        topic.on_policies(topic.policies._replace(publish_rate=Rate(messages=20_000)))
        await topic.wait_disconnected()
        turns.stop()
        assert turns.most <= 2  # of the policy, and who comes
        limits = {each.run_messages_max for each in topic.producers.values()}
        assert limits == {2 * told}

    run(tmp_path, scenario)


def test_of_many_consumers_some_are_told_in_a_turn_what_they_may_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "UPDATED_PER_STEP", 7)

    async def scenario(broker: Broker) -> None:
        client, topic, subscription = await consumers_of(broker)
        over_at_once(broker.node.turn.dispatching)
        before = subscription.consumers[:]
        turns = Turns()
        turns.count(monkeypatch, Limits, "apply_policies")
        rate = DispatchRate(messages=1_000)
        topic.on_policies(topic.policies._replace(dispatch_rate=rate, unacked_per_consumer_max=1))
        await some_turns(3)
        assert 0 < sum(turns.done.values()) < MANY
        for each in (*before[:5], *before[-5:]):
            subscription.disconnect_one(each)
        await client.subscribe(MANY, permits=0)
        await topic.wait_disconnected()
        turns.stop()
        assert turns.most <= 7 + 1  # who comes
        throttle = subscription.dispatcher.throttle
        assert throttle is not None
        assert {each.sent_total for each in subscription.consumers} == {throttle.sent}
        # Each has one message, which it does not acknowledge, and gets no more.
        for each in subscription.consumers:
            client.flow(10, each.consumer_id)
        await broker.publish(*[b"x"] * (2 * MANY))
        await client.quiet()
        assert [each.unacked_messages for each in subscription.consumers] == [1] * (MANY - 9)
        # What holds them up is gone: all of them go on.
        topic.on_policies(
            topic.policies._replace(dispatch_rate=DispatchRate(), unacked_per_consumer_max=0)
        )
        await client.messages(2 * MANY)
        assert {each.sent_total for each in subscription.consumers} == {None}

    run(tmp_path, scenario)


def test_consumers_of_a_subscription_that_is_left_are_told_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "UPDATED_PER_STEP", 7)

    async def scenario(broker: Broker) -> None:
        _, topic, subscription = await consumers_of(broker)
        over_at_once(broker.node.turn.dispatching)
        turns = Turns()
        turns.count(monkeypatch, Limits, "apply_policies")
        topic.on_policies(topic.policies._replace(dispatch_rate=DispatchRate(messages=1_000)))
        await some_turns(3)
        told = sum(turns.done.values())
        assert 0 < told < MANY
        subscription.disconnect()
        await topic.wait_disconnected()
        turns.stop()
        assert sum(turns.done.values()) == told

    run(tmp_path, scenario)
