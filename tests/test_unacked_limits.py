"""Limits of unacknowledged messages, consumer stats, epochs, and who may have a name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manual_loop import ManualLoop
from one_bookie import append
from one_broker import Broker, Client, data_of, run, section
from pyxbroker.base.rates import Rates
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from pyxbroker.delivery import UnackedCount
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.turn import Turn

EXCLUSIVE = {"subType": pb.CommandSubscribe.Exclusive}
KEY_SHARED = {"subType": pb.CommandSubscribe.Key_Shared}


async def take(client: Client) -> list[tuple[int, int]]:
    """The positions of all messages that come until the broker is quiet."""
    count = (await client.quiet()).count("message")
    return [each.position for each in await client.messages(count)]


# --- counts ---------------------------------------------------------------------------------------


def test_the_limit_of_a_subscription(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(50))
        client = await broker.client()
        await client.subscribe(1)
        await client.subscribe(2)
        await client.quiet()
        held = {
            number: client.connection.consumers[number].pending_positions() for number in (1, 2)
        }
        assert len(held[1]) + len(held[2]) == 20
        await client.messages(20)
        total = held[1] + held[2]
        for position in total[:10]:
            await client.ack(position)
        assert await take(client) == [], "half of the limit is left"
        await client.ack(total[10])
        assert len(await take(client)) == 11
        # What one leaves goes to the other, within the limit.
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        assert len(client.connection.consumers[2].pending_positions()) <= 20

    run(tmp_path, scenario, maxUnackedMessagesPerSubscription=20)


@pytest.mark.parametrize("kind", [{}, KEY_SHARED], ids=["Shared", "Key_Shared"])
def test_an_ack_by_another_consumer_makes_room(tmp_path: Path, kind: dict[str, Any]) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        keyed = [section(data, partition_key=data.decode()) for data in data_of(50)]
        await append(topic.managed_ledger, *keyed)
        client = await broker.client()
        await client.subscribe(1, **kind)
        first = await take(client)
        assert len(first) == 10
        await client.subscribe(2, permits=0, **kind)
        for position in first[:5]:
            await client.ack(position, consumer_id=2)
        assert len(await take(client)) > 0

    run(tmp_path, scenario, maxUnackedMessagesPerConsumer=10)


def test_what_is_acknowledged_out_of_order_stops_reading_by_its_ranges(tmp_path: Path) -> None:
    """Not by its entries: a cursor stores a range in the same bytes, however long it is."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        topic.ack_ranges_max = 2
        client = await broker.client()
        await client.subscribe()
        await broker.publish(*data_of(20))
        positions = [each.position for each in await client.messages(20)]
        dispatcher = topic.subscriptions["s"].dispatcher

        async def comes() -> bool:
            await broker.publish(b"more")
            return len(await take(client)) > 0

        await client.ack(*positions[10:16], positions[2])
        assert await comes(), "seven entries, two ranges"
        assert not dispatcher.waits_for_acks
        await client.ack(positions[5])
        assert not await comes()
        assert dispatcher.waits_for_acks
        await client.ack(positions[3])
        assert await take(client) == [], "it belongs to a range that is there"
        await client.ack(positions[4])
        assert len(await take(client)) == 1, "two ranges became one"
        topic.ack_ranges_max = 0
        await client.ack(positions[7], positions[18])
        assert await comes(), "without a limit there may be any number"

    run(tmp_path, scenario, dispatcherPauseOnAckStatePersistentEnabled=True)


def test_an_exclusive_consumer_has_no_limit(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(50))
        client = await broker.client()
        await client.subscribe(1, **EXCLUSIVE)
        assert len(await client.messages(50)) == 50

    run(
        tmp_path,
        scenario,
        maxUnackedMessagesPerConsumer=10,
        maxUnackedMessagesPerSubscription=10,
        maxUnackedMessagesPerBroker=10,
    )


def test_the_limit_of_the_broker(tmp_path: Path) -> None:
    """Who has more than its share waits until there is room; who has less goes on."""

    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(100))
        greedy, modest = await broker.client(), await broker.client()
        await greedy.subscribe(1, subscription="greedy")
        mine = await take(greedy)
        assert len(mine) == 40
        await modest.subscribe(2, subscription="modest")
        assert len(await take(modest)) == 11, "its share, and the one that goes over it"
        await greedy.ack(*mine[:30])
        # Still more than half of the limit: but the greedy one has its share again.
        assert len(await take(greedy)) == 1
        await greedy.ack(*mine[30:])
        assert len(await take(modest)) > 20, "who has waited comes first"

    run(
        tmp_path,
        scenario,
        maxUnackedMessagesPerBroker=40,
        maxUnackedMessagesPerSubscriptionOnBrokerBlocked=0.25,
        dispatcherMaxReadBatchSize=1,
    )


def test_consumers_that_go_make_room_in_the_broker(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(100))
        greedy, modest = await broker.client(), await broker.client()
        await greedy.subscribe(1, subscription="greedy")
        assert len(await take(greedy)) == 40
        await modest.subscribe(2, subscription="modest")
        assert await take(modest) != []
        greedy.far.close()
        assert len(await take(modest)) > 20

    run(
        tmp_path,
        scenario,
        maxUnackedMessagesPerBroker=40,
        maxUnackedMessagesPerSubscriptionOnBrokerBlocked=0.1,
    )


def test_a_limit_that_changes() -> None:
    count = UnackedCount(10)
    assert not count.is_stopped
    count.set_limit(0)
    assert (count.limit, count.blocked, count.messages) == (0, False, 0)


def test_who_waits_for_the_broker_is_called_once() -> None:
    whole = BrokerUnacked(10, Turn(cast(asyncio.AbstractEventLoop, ManualLoop())).dispatching)
    calls: list[str] = []
    call = lambda: calls.append("called")  # noqa: E731
    whole.on_unblocked(call)
    whole.on_unblocked(call)
    whole.go_on()
    whole.go_on()
    assert calls == ["called"]


# --- rates ----------------------------------------------------------------------------------------


def test_rates_are_those_of_the_last_window() -> None:
    rates = Rates(100.0, 0, 0, 0, 0, window_s=60.0)
    assert rates.per_second(159.0, 10, 1000, 1, 5) == (0.0, 0.0, 0.0, 0.0)
    assert rates.per_second(160.0, 60, 6000, 6, 30) == (1.0, 100.0, 0.1, 0.5)
    assert rates.per_second(200.0, 900, 9000, 6, 30) == (1.0, 100.0, 0.1, 0.5)
    assert rates.per_second(260.0, 260, 6000, 6, 30) == (2.0, 0.0, 0.0, 0.0)


def test_readers_close_to_each_other_see_the_same_rate() -> None:
    """100 messages a second, and two who ask, of whom the second comes 50 ms later."""
    rates = Rates(0.0, 0, 0)
    for second in range(15, 100, 15):
        for now in (second, second + 0.05):
            messages = int(now) * 100
            assert rates.per_second(now, messages, messages * 10) == (100.0, 1000.0)


def test_counters_that_begin_anew_have_no_negative_rate() -> None:
    rates = Rates(0.0, 500, 5000)
    assert rates.per_second(10.0, 100, 6000) == (0.0, 0.0)
    assert rates.per_second(20.0, 200, 7000) == (10.0, 100.0)


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 10**9)), max_size=20))
def test_rates_are_never_negative(steps: list[tuple[float, int]]) -> None:
    rates = Rates(0.0, 0, 0, window_s=1.0)
    now, counter = 0.0, 0
    for seconds, more in steps:
        now += seconds
        counter += more
        found = rates.per_second(now, counter, counter)
        assert min(found) >= 0
        assert found[0] <= counter


def test_what_a_client_may_know_of_its_consumer(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(15))
        client = await broker.client()
        await client.subscribe(3, permits=12, consumer_name="watched")
        await client.messages(10)
        answer = await client.request(
            pb.CommandConsumerStats(consumer_id=3, request_id=0), "consumerStatsResponse"
        )
        assert not answer.HasField("error_code")
        assert (answer.consumerName, answer.type, answer.address) == ("watched", "Shared", "/:1")
        assert (answer.availablePermits, answer.unackedMessages, answer.msgBacklog) == (2, 10, 15)
        assert answer.blockedConsumerOnUnackedMsgs
        assert answer.connectedSince.endswith("Z")
        answer = await client.request(
            pb.CommandConsumerStats(consumer_id=99, request_id=0), "consumerStatsResponse"
        )
        assert (answer.error_code, answer.error_message) == (
            pb.ConsumerNotFound,
            "Consumer 99 not found",
        )

    run(tmp_path, scenario, maxUnackedMessagesPerConsumer=10)


# --- epochs, names, properties --------------------------------------------------------------------


async def epochs(client: Client, count: int) -> list[int | None]:
    found = []
    for _ in range(count):
        message = await client.receive("message")
        found.append(message.consumer_epoch if message.HasField("consumer_epoch") else None)
    return found


@pytest.mark.parametrize(
    ("kind", "first", "expected"),
    [
        (EXCLUSIVE, {}, [None, 5, 5, 5, 6]),
        (EXCLUSIVE, {"consumer_epoch": 0}, [0, 5, 5, 5, 6]),
        ({}, {"consumer_epoch": 0}, [None] * 5),
    ],
)
def test_epochs_never_go_back(
    tmp_path: Path, kind: dict[str, Any], first: dict[str, Any], expected: list[int | None]
) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(b"one")
        client = await broker.client()
        await client.subscribe(1, **kind, **first)
        found = await epochs(client, 1)
        for asked in ({"consumer_epoch": 5}, {"consumer_epoch": 3}, {}, {"consumer_epoch": 6}):
            client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, **asked))
            found += await epochs(client, 1)
        assert found == expected

    run(tmp_path, scenario)


def test_an_initial_subscription_begins_with_the_first_message(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(3))
        client = await broker.client()
        await client.produce(1, initial_subscription_name="first")
        await client.subscribe(1, subscription="first", initialPosition=pb.CommandSubscribe.Latest)
        assert [each.position for each in await client.messages(3)] == positions
        # It is there now: another producer changes nothing.
        await client.ack(*positions)
        await client.produce(2, initial_subscription_name="first", producer_name="other")
        client.redeliver()
        assert await take(client) == []

    run(tmp_path, scenario)


def test_an_initial_subscription_may_be_forbidden(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answer = await client.produce(1, initial_subscription_name="first")
        assert answer.error == pb.NotAllowedError
        assert "auto subscription creation" in answer.message
        topic = await broker.topic()
        assert (topic.producers, topic.subscriptions) == ({}, {})
        assert (await client.produce(1)).producer_name

    run(tmp_path, scenario, allowAutoSubscriptionCreation=False)


def test_properties_are_those_of_who_came_first(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for consumer_id, value in ((1, "one"), (2, "two")):
            properties = [pb.KeyValue(key="k", value=value)]
            await client.subscribe(consumer_id, subscription_properties=properties)
        topic = await broker.topic()
        assert topic.subscriptions["s"].cursor.properties == {"k": "one"}

    run(tmp_path, scenario)


def test_a_name_is_of_a_subscription_or_of_a_reader(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, durable=False, **EXCLUSIVE)
        answer = await client.subscribe(2, **EXCLUSIVE)
        assert answer.error == pb.NotAllowedError
        assert answer.message == "NonDurable subscription with the same name already exists."
        await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
        await client.subscribe(2, **EXCLUSIVE)
        answer = await client.subscribe(3, durable=False, **EXCLUSIVE)
        assert answer.message == "Durable subscription with the same name already exists."

    run(tmp_path, scenario)
