"""Delayed delivery: nothing comes early, everything comes, and what has no delay does not wait."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append, until
from one_broker import Broker, Client, section
from pyxbroker.broker.dispatch import dispatcher
from pyxbroker.broker.dispatch.delayed import WATCH_S, ClockWatch
from pyxbroker.proto import PulsarApi as pb

NOW = 1_800_000_000.0  # s since the epoch
TYPES = (pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared)
both_types = pytest.mark.parametrize("kind", TYPES, ids=("shared", "key_shared"))


class Clock:
    """The wall clock of a topic; the test sets it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def run(tmp_path: Path, scenario: Callable[[Broker, Clock], Awaitable[None]], **settings) -> None:
    settings.setdefault("isDelayedDeliveryDeliverAtTimeStrict", True)

    async def main() -> None:
        async with Broker(tmp_path / "bookie", **settings) as broker:
            clock = Clock()
            (await broker.topic()).wall_clock = clock
            await scenario(broker, clock)

    asyncio.run(main())


async def publish(broker: Broker, *delays: float | None) -> list[tuple[int, int]]:
    """Messages that are due so many seconds after NOW; None: with no delay."""
    sections = []
    for number, delay in enumerate(delays):
        fields: dict[str, Any] = {"partition_key": f"k{number % 5}"}
        if delay is not None:
            fields["deliver_at_time"] = int((NOW + delay) * 1000)
        sections.append(section(b"message %d" % number, **fields))
    return await append((await broker.topic()).managed_ledger, *sections)


async def wake(broker: Broker) -> None:
    """What the timer does when the time has come."""
    topic = await broker.topic()
    topic.turn.run(topic.subscriptions["s"].dispatcher.wake)


async def positions(client: Client, count: int) -> list[tuple[int, int]]:
    return [each.position for each in await client.messages(count)]


@both_types
def test_comes_when_it_is_due_and_not_before(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe(subType=kind)
        sent = await publish(broker, 10, None, 5, None)
        assert await positions(client, 2) == [sent[1], sent[3]]
        clock.now = NOW + 4.999
        await wake(broker)
        assert "message" not in await client.quiet()
        clock.now = NOW + 5
        await wake(broker)
        assert await positions(client, 1) == [sent[2]]
        clock.now = NOW + 60
        await wake(broker)
        [message] = await client.messages(1)
        assert (message.position, message.redelivery_count) == (sent[0], 0)
        await client.ack(*sent)
        assert (await broker.topic()).subscriptions["s"].cursor.backlog == 0

    run(tmp_path, scenario)


@both_types
def test_unless_times_are_strict_it_may_come_early_by_a_tick(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe(subType=kind)
        sent = await publish(broker, 1.0, 1.001, 10)
        assert await positions(client, 1) == [sent[0]]
        assert "message" not in await client.quiet()
        topic.on_policies(topic.policies._replace(delay_tick_ms=9_999))
        assert await positions(client, 1) == [sent[1]]
        assert "message" not in await client.quiet()
        clock.now += 0.001
        await wake(broker)
        assert await positions(client, 1) == [sent[2]]
        sent = await publish(broker, 9)
        assert await positions(client, 1) == sent
        topic.on_policies(topic.policies._replace(delay_strict=True))
        await publish(broker, 0.002)
        assert "message" not in await client.quiet()

    run(tmp_path, scenario, isDelayedDeliveryDeliverAtTimeStrict=False)


@both_types
def test_another_tick_sets_the_timer_anew(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe(subType=kind)
        topic.on_policies(topic.policies._replace(delay_tick_ms=0))
        sent = await publish(broker, 3600)
        assert "message" not in await client.quiet()
        topic.on_policies(topic.policies._replace(delay_tick_ms=3_599_900))
        # The clock stands still: what wakes it is the timer, and then its time has come.
        clock.now += 0.1
        assert await positions(client, 1) == sent

    run(tmp_path, scenario, isDelayedDeliveryDeliverAtTimeStrict=False)


@both_types
def test_what_is_read_a_moment_before_its_time_waits_for_it(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe(subType=kind)
        sent = await publish(broker, 0.001, 0.049, 0)
        assert await positions(client, 1) == [sent[2]]
        assert "message" not in await client.quiet()
        for position, due in zip(sent[:2], (0.001, 0.049), strict=True):
            clock.now = NOW + due
            await wake(broker)
            assert await positions(client, 1) == [position]
            assert "message" not in await client.quiet()

    run(tmp_path, scenario)


@both_types
def test_a_timer_wakes_it(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        (await broker.topic()).wall_clock = lambda: NOW + loop.time() - began
        client = await broker.client()
        await client.subscribe(subType=kind)
        sent = await publish(broker, 0.3, 0.1, 0.2)
        assert await positions(client, 3) == [sent[1], sent[2], sent[0]]
        assert 0.3 <= loop.time() - began < 30

    run(tmp_path, scenario)


def test_exclusive_does_not_wait(tmp_path: Path) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe(subType=pb.CommandSubscribe.Exclusive)
        sent = await publish(broker, 10, None)
        assert await positions(client, 2) == sent

    run(tmp_path, scenario)


@both_types
def test_can_be_switched_off(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe(subType=kind)
        sent = await publish(broker, 10, None)
        assert sorted(await positions(client, 2)) == sent

    run(tmp_path, scenario, delayedDeliveryEnabled=False)


@both_types
def test_survives_that_all_consumers_go(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe(subType=kind)
        sent = await publish(broker, None, 20, 10, None)
        assert sorted(await positions(client, 2)) == [sent[0], sent[3]]
        await client.ack(sent[0])
        client.far.close()
        await asyncio.sleep(0.05)
        second = await broker.client()
        await second.subscribe(subType=kind)
        assert await positions(second, 1) == [sent[3]]
        clock.now = NOW + 30
        await wake(broker)
        assert sorted(await positions(second, 2)) == [sent[1], sent[2]]
        assert "message" not in await second.quiet()

    run(tmp_path, scenario)


def test_another_type_of_consumer_finds_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe()
        sent = await publish(broker, 10)
        assert "message" not in await client.quiet()
        client.far.close()
        await asyncio.sleep(0.05)
        second = await broker.client()
        await second.subscribe(subType=pb.CommandSubscribe.Exclusive)
        assert await positions(second, 1) == sent

    run(tmp_path, scenario)


@both_types
def test_few_permits_do_not_keep_others_waiting(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe(subType=kind, permits=1)
        sent = await publish(broker, *[50] * 700, None)
        assert await positions(client, 1) == [sent[-1]]
        assert (await broker.topic()).subscriptions["s"].dispatcher.delayed_entries == 700
        clock.now = NOW + 50
        await wake(broker)
        for _ in range(3):
            client.flow(100)
        got = [*await positions(client, 100), *await positions(client, 100)]
        client.flow(500)
        got += await positions(client, 500)
        assert sorted(got) == sent[:-1]

    run(tmp_path, scenario)


@both_types
def test_seek_starts_anew(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe(subType=kind)
        sent = await publish(broker, 10, None)
        assert await positions(client, 1) == [sent[1]]
        topic = await broker.topic()
        subscription = topic.subscriptions["s"]
        await subscription.seek(topic.managed_ledger.first_position())
        assert await positions(client, 1) == [sent[1]]
        clock.now = NOW + 10
        await wake(broker)
        assert await positions(client, 1) == [sent[0]]
        assert "message" not in await client.quiet()

    run(tmp_path, scenario)


@both_types
def test_everything_comes_once_at_its_time(tmp_path: Path, kind: int) -> None:
    choose = random.Random(7)

    async def scenario(broker: Broker, clock: Clock) -> None:
        clients = [await broker.client() for _ in range(3)]
        for number, client in enumerate(clients):
            await client.subscribe(number, subType=kind, consumer_name=f"c{number}")
        delays = [choose.choice([None, choose.randrange(100)]) for _ in range(2000)]
        sent = await publish(broker, *delays)
        due = {at: delay or 0 for at, delay in zip(sent, delays, strict=True)}
        seen: list[tuple[int, int]] = []
        for second in range(0, 101, 10):
            clock.now = NOW + second
            await wake(broker)
            for number, client in enumerate(clients):
                came = (await client.quiet()).count("message")
                got = await positions(client, came)
                assert all(due[each] <= second for each in got)
                if got:
                    await client.ack(*got, consumer_id=number)
                    client.flow(came, number)
                seen += got
            assert sorted(seen) == sorted(each for each in sent if due[each] <= second)

    run(tmp_path, scenario, keySharedLookAheadMsgInReplayThresholdPerSubscription=50)


def test_a_long_backlog_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "STEPS_MAX", 2)
    monkeypatch.setattr(dispatcher, "STEPS_ASIDE_MAX", 2)

    async def scenario(broker: Broker, clock: Clock) -> None:
        sent = await publish(broker, *[10] * 1000, None)
        client = await broker.client()
        topic = await broker.topic()
        topic.turn.dispatching.turn_ns = 1  # what goes on has a turn of its own
        await client.subscribe()
        seen = set()
        while (known := topic.subscriptions["s"].dispatcher.delayed_entries) < 1000:
            seen.add(known)
            await asyncio.sleep(0)
        assert len(seen) >= 4, "it is read in several turns"
        assert await positions(client, 1) == [sent[-1]]

    run(tmp_path, scenario)


# --- a clock that is set --------------------------------------------------------------------------


class SetClock:
    """A wall clock that goes on by itself, and can be set forwards and backwards."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._offset = NOW - self._loop.time()

    def __call__(self) -> float:
        return self._offset + self._loop.time()

    def set_by(self, seconds: float) -> None:
        self._offset += seconds


async def with_set_clock(broker: Broker, kind: int) -> tuple[SetClock, Client]:
    clock = SetClock()
    (await broker.topic()).wall_clock = clock
    ClockWatch.of(asyncio.get_running_loop()).clock = clock
    client = await broker.client()
    await client.subscribe(subType=kind)
    return clock, client


@both_types
def test_a_clock_that_is_set_forward_wakes_what_is_due_within_a_second(
    tmp_path: Path, kind: int
) -> None:
    assert WATCH_S < 1

    async def scenario(broker: Broker, _: Clock) -> None:
        clock, client = await with_set_clock(broker, kind)
        sent = await publish(broker, 3600, 7200)
        assert "message" not in await client.quiet()
        for position in sent:
            clock.set_by(3600)
            assert await positions(client, 1) == [position]

    run(tmp_path, scenario)


@both_types
def test_a_clock_that_is_set_a_part_of_the_way_shortens_the_wait(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, _: Clock) -> None:
        clock, client = await with_set_clock(broker, kind)
        sent = await publish(broker, 3601)
        await asyncio.sleep(0.1)
        clock.set_by(3599.5)
        began = asyncio.get_running_loop().time()
        assert await positions(client, 1) == sent
        assert asyncio.get_running_loop().time() - began > 1.2

    run(tmp_path, scenario)


@both_types
def test_a_clock_that_is_set_back_lets_nothing_come_early(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, _: Clock) -> None:
        clock, client = await with_set_clock(broker, kind)
        sent = await publish(broker, 0.3)
        clock.set_by(-1.0)
        began = asyncio.get_running_loop().time()
        assert await positions(client, 1) == sent
        assert asyncio.get_running_loop().time() - began > 1.2

    run(tmp_path, scenario)


def test_one_timer_watches_the_clock_for_all_and_only_while_somebody_waits(tmp_path: Path) -> None:
    async def scenario(broker: Broker, _: Clock) -> None:
        clock, client = await with_set_clock(broker, TYPES[0])
        watch = ClockWatch.of(asyncio.get_running_loop())
        for number in range(2, 12):
            await client.subscribe(number, subscription=f"s{number}")
        assert watch._timer is None
        await publish(broker, 3600)
        await until(lambda: len(watch._waiting) == 11)
        timer = watch._timer
        assert timer is not None
        await publish(broker, 1800)
        assert watch._timer is timer
        clock.set_by(3600)
        await client.messages(22)
        await until(lambda: not watch._waiting)
        await until(lambda: watch._timer is None)

    run(tmp_path, scenario)


# --- the limit of what is remembered --------------------------------------------------------------


@both_types
def test_beyond_the_limit_nothing_more_is_read_until_some_of_it_is_due(
    tmp_path: Path,
    kind: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("pyxbroker.broker.dispatch.delayed.FULL_MS", 50)
    count = 80_000  # 1.28 MB

    async def scenario(broker: Broker, clock: Clock) -> None:
        memory = broker.service.client_memory
        gc.collect()  # what earlier tests left counts as well
        before = memory.delayed_bytes
        client = await broker.client()
        await client.subscribe(subType=kind, permits=0)
        sent = await publish(broker, *[10] * count, None)
        client.flow(2 * count)
        subscription = (await broker.topic()).subscriptions["s"]
        index = subscription.dispatcher.replay.delayed_index
        await until(lambda: index.is_full)
        held = len(index)
        for _ in range(5):
            # It looks again and again, whoever wakes it.
            await wake(broker)
            await asyncio.sleep(0.06)
        assert (len(index), await client.quiet()) == (held, [])
        assert 50_000 < held < count
        assert memory.delayed_bytes >= before + held * 16
        told = [each for each in caplog.records if "too much is delayed" in each.getMessage()]
        assert vars(told[0])["fields"]["setting"] == "maxDelayedDeliveryStateSizeInMB"
        # Nothing is lost of what it did not look at yet.
        clock.now = NOW + 20
        await wake(broker)
        got = await positions(client, count + 1)
        assert sorted(got) == sent
        assert (len(index), memory.delayed_bytes) == (0, before)

    unlimited = {
        "maxUnackedMessagesPerConsumer": 0,
        "maxUnackedMessagesPerSubscription": 0,
        "keySharedLookAheadMsgInReplayThresholdPerConsumer": 0,
    }
    run(tmp_path, scenario, maxDelayedDeliveryStateSizeInMB=1, **unlimited)


def test_beyond_the_limit_others_with_little_go_on_and_what_nobody_waits_for_is_given_back(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=0)
        await client.subscribe(2, permits=0, subscription="modest")
        await publish(broker, *[10] * 80_000)
        topic = await broker.topic()
        greedy = topic.subscriptions["s"].dispatcher
        modest = topic.subscriptions["modest"].dispatcher
        client.flow(1000, 1)
        await until(lambda: greedy.replay.is_full)
        client.flow(1000, 2)
        await until(lambda: modest.delayed_entries > 50_000)
        await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        assert greedy.delayed_entries == 0, "it is read again for the next consumer"

    run(tmp_path, scenario, maxDelayedDeliveryStateSizeInMB=1)


def test_a_dispatcher_is_woken_when_the_next_entry_is_due_and_not_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker, clock: Clock) -> None:
        client = await broker.client()
        await client.subscribe(1)
        await publish(broker, 60.0, 90.0)
        delivery = (await broker.topic()).subscriptions["s"].dispatcher.replay.delayed
        await until(lambda: len(delivery.index) == 2 and delivery._timer is not None)
        assert delivery._timer_for == int((NOW + 60) * 1000)
        assert not [each for each in caplog.records if "too much" in each.getMessage()]

    run(tmp_path, scenario)
