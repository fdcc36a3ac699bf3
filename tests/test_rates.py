"""Rates: what is allowed in a second, who waits for it, and that it is spread over the second."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from counted_names import Name
from one_bookie import append, turns, until
from one_broker import TOPIC, Broker, Client, command_of, data_of, run, section
from oracles import wire
from pyxbroker.base.tokens import Tokens
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import NO_BROKER_LIMITS, BrokerLimits
from pyxbroker.broker.dispatch.dispatch_limiter import DispatchLimiter, Published
from pyxbroker.broker.dispatch.throttle import Throttle
from pyxbroker.broker.rate_limiter import RateLimiter
from pyxbroker.broker.topics.publish_rate import PublishLimiter, PublishRate
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.policies.table import TABLE
from pyxbroker.policies.values import DispatchRate, Policies, Rate
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.turn import Turn

NON_PERSISTENT = "non-persistent://public/default/t"
RATE = "dispatchThrottlingRateInMsg"


class FakeTimer:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """A clock that a test moves, and the timers by it. It is also the Turn of that loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self.loop = self
        self._timers: list[tuple[float, int, FakeTimer, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[..., object], *args: Any) -> FakeTimer:
        timer = FakeTimer()
        # As late as the timers of a loop are, in the mean.
        when = self.now + delay + 0.0007
        item = (when, next(self._numbers), timer, lambda: call(*args))
        heapq.heappush(self._timers, cast(Any, item))
        return timer

    def run(self, call: Callable[..., object], *args: Any) -> object:
        return call(*args)

    @property
    def timers(self) -> int:
        return sum(not each[2].is_cancelled for each in self._timers)

    def advance(self, seconds: float) -> None:
        until_s = self.now + seconds
        while self._timers and self._timers[0][0] <= until_s:
            self.now, _, timer, call = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                call()
        self.now = until_s


def turn_of(loop: FakeLoop) -> Turn:
    return cast(Turn, loop)


# --- tokens ---------------------------------------------------------------------------------------


def test_tokens_come_all_the_time_and_are_not_saved_up_for_long() -> None:
    tokens = Tokens(0.0, 1000, 0)
    assert tokens.messages == 50, "those of 50 ms"
    assert tokens.take(30, 10**9)
    assert tokens.fill(0.01) and tokens.messages == pytest.approx(30)
    assert tokens.fill(5.0) and tokens.messages == 50
    assert tokens.short_s == 0


def test_what_is_taken_too_much_is_a_debt() -> None:
    tokens = Tokens(0.0, 10, 1000)
    assert tokens.messages == 1, "a slow rate allows one message"
    assert not tokens.take(21, 10)
    assert not tokens.fill(0.0)
    assert tokens.short_s == pytest.approx(2.0)
    assert not tokens.fill(1.5) and tokens.short_s == pytest.approx(0.5)
    assert tokens.fill(2.1)
    assert not tokens.take(0, 3000) and not tokens.fill(2.2)
    assert tokens.short_s == pytest.approx(2.85), "the longer one of the two"


def test_other_rates_begin_at_once_and_keep_the_debt() -> None:
    tokens = Tokens(0.0, 10, 0)
    tokens.take(101, 0)
    tokens.fill(0.0)
    tokens.set_rates(0.0, 100, 0)
    assert tokens.short_s == pytest.approx(1.0)
    tokens.set_rates(0.5, 0, 5)
    assert tokens.fill(0.5) and tokens.bytes == 1.0


# --- who waits ------------------------------------------------------------------------------------


class Flooding:
    """A connection that always has more to publish, and how much it has, by time."""

    def __init__(self, loop: FakeLoop, rate: PublishRate) -> None:
        self.loop = loop
        self.connection = self
        self.owner = self
        self.run_messages_max = self.run_bytes_max = 0
        self.size = 100
        self.published: list[tuple[float, int]] = []
        self._waits_for = 0
        self._publish = rate.limit(lambda run: None)
        rate.cut_runs(cast(Any, self))

    messages = 1

    @property
    def bytes(self) -> int:
        return self.messages * self.size

    def begin_throttling(self) -> None:
        self._waits_for += 1

    def end_throttling(self) -> None:
        self._waits_for -= 1
        self.loop.call_later(0, self.go_on)

    def go_on(self) -> None:
        most = min(self.run_messages_max, -(-self.run_bytes_max // self.size), 500)
        while self._waits_for == 0:
            self.messages = most
            self.published.append((self.loop.now, most))
            self._publish(cast(Any, self))
        assert self._waits_for > 0

    @property
    def count(self) -> int:
        return sum(count for _, count in self.published)


def flood(rate: Rate, producers: int, seconds: float) -> tuple[FakeLoop, list[Flooding]]:
    loop = FakeLoop()
    rates = PublishRate(turn_of(loop), NO_BROKER_LIMITS)
    rates.change(rate)
    flooding = [Flooding(loop, rates) for _ in range(producers)]
    for each in flooding:
        loop.call_later(0, each.go_on)
    loop.advance(seconds)
    return loop, flooding


def gaps(flooding: list[Flooding], since: float) -> list[float]:
    """Times between two runs. What all send before anybody has to wait is a debt at first."""
    times = sorted(at for each in flooding for at, _ in each.published if at >= since)
    return [after - before for before, after in itertools.pairwise(times)]


@pytest.mark.parametrize("producers", [1, 7])
@pytest.mark.parametrize(
    "rate",
    [Rate(100, 0), Rate(5_000, 0), Rate(200_000, 0), Rate(0, 1_000_000), Rate(10**6, 50_000)],
)
def test_a_rate_is_kept_and_spread_over_each_second(rate: Rate, producers: int) -> None:
    loop, flooding = flood(rate, producers, 10.0)
    per_s = min(rate.messages or 10**9, (rate.bytes or 10**12) / 100)
    total = sum(each.count for each in flooding)
    assert total == pytest.approx(per_s * 10, rel=0.02)
    assert max(gaps(flooding, loop.now - 9.0)) <= 0.015 + 1.5 / per_s


def test_who_waits_goes_on_in_turn() -> None:
    _, flooding = flood(Rate(1000, 0), 50, 10.0)
    counts = [each.count for each in flooding]
    assert min(counts) >= 0.8 * max(counts)


def test_who_has_nothing_to_do_does_not_keep_the_others_waiting() -> None:
    loop = FakeLoop()
    limiter = RateLimiter(turn_of(loop), 1000, 0)
    assert not limiter.spend(60, 0)
    for number in range(1000):
        assert limiter.wait(lambda number=number: None)
    done: list[float] = []
    limiter.wait(lambda: done.append(loop.now))
    loop.advance(0.2)
    assert done and loop.timers == 0


def test_while_the_rate_is_used_one_of_those_who_have_nothing_to_do_goes_on_at_a_time() -> None:
    loop = FakeLoop()
    limiter = RateLimiter(turn_of(loop), 10**6, 0)
    limiter.spend(1, 0)
    done: list[int] = []

    def go_on(number: int) -> None:
        done.append(number)
        if number % 2 == 0:
            limiter.spend(1, 0)

    for number in range(6):
        assert limiter.wait(partial(go_on, number))
    counts = []
    for _ in range(3):
        limiter._serve()
        counts.append(len(done))
    assert counts == [2, 4, 6]


def test_who_waits_already_waits_once_and_who_leaves_not_any_more() -> None:
    loop = FakeLoop()
    limiter = RateLimiter(turn_of(loop), 10, 0)
    done: list[str] = []
    limiter.spend(100, 0)
    first, second = (lambda: done.append("first")), (lambda: done.append("second"))
    assert limiter.wait(first) and not limiter.wait(first)
    assert limiter.wait(second)
    assert limiter.leave(first) and not limiter.leave(first)
    loop.advance(9.0)
    assert done == []
    loop.advance(1.0)
    assert done == ["second"] and loop.timers == 0


def test_without_a_rate_all_go_on() -> None:
    loop, flooding = FakeLoop(), []
    of_broker = BrokerLimits()
    of_broker.publish = PublishLimiter(turn_of(loop), Rate(10**6, 0))
    rates = PublishRate(turn_of(loop), of_broker)
    rates.change(Rate(10, 0))
    for _ in range(3):
        flooding.append(Flooding(loop, rates))
        flooding[-1].messages = 1000
        rates.limit(lambda run: None)(cast(Any, flooding[-1]))
    assert [each._waits_for for each in flooding] == [1, 1, 1]
    rates.change(Rate())
    assert [each._waits_for for each in flooding] == [0, 0, 0]
    rates.cut_runs(cast(Any, flooding[0]))
    assert flooding[0].run_messages_max == 10_000, "the broker's rate is left"


# --- topics ---------------------------------------------------------------------------------------


def limited(topic: Topic, **policies: Any) -> None:
    topic.on_policies(topic.policies._replace(**policies))


async def receipts(client: Client, seconds: float) -> int:
    """How many come within a time."""
    count = 0
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (left := end - loop.time()) > 0:
        try:
            await client._read(left)
        except asyncio.TimeoutError:
            break
    for name, _, _ in client._inbox:
        count += name == "send_receipt"
    client._inbox = [each for each in client._inbox if each[0] != "send_receipt"]
    return count


def burst(client: Client, count: int, producer_id: int = 1) -> None:
    for number in range(count):
        client.publish(number, b"x", producer_id)


@pytest.mark.parametrize("name", [TOPIC, NON_PERSISTENT, TOPIC + "-partition-0"])
def test_a_publish_rate_holds_back_the_connection_and_no_other(tmp_path: Path, name: str) -> None:
    async def scenario(broker: Broker) -> None:
        if name.endswith("-partition-0"):
            await broker.topics.partitioned.create(TopicName.get(TOPIC), 1)
        topic, other = await broker.topic(name), await broker.topic(TOPIC + "-other")
        fast, slow = await broker.client(), await broker.client()
        await slow.produce(1, topic=name)
        await fast.produce(1, topic=TOPIC + "-other")
        limited(topic, publish_rate=Rate(20, 0))
        burst(slow, 60)
        burst(fast, 60)
        assert await receipts(fast, 0.2) == 60
        connection = slow.connection
        assert connection.is_paused and connection.throttling_rates == 1
        assert 2 <= await receipts(slow, 0.3) < 30
        # Neither is what was read already published.
        assert sum(topic.received()) and topic.received()[0] < 30
        assert topic.publish_rate_limited > 0
        limited(topic, publish_rate=Rate())
        await until(lambda: topic.received()[0] == 60, 2.0)
        assert not connection.is_paused and connection.throttling_rates == 0
        assert other.publish_rate_limited == 0
        assert topic.publish == topic._log.append

    run(tmp_path, scenario)


def test_the_run_that_is_too_much_is_stored_whole(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        limited(topic, publish_rate=Rate(0, 100))
        client = await broker.client()
        await client.produce()
        client.publish(0, bytes(5000))
        client.publish(1, b"later")
        assert await receipts(client, 0.2) == 1
        assert topic.received()[0] == 1 and client.connection.is_paused

    run(tmp_path, scenario)


def test_a_broker_has_a_rate_for_all_of_its_topics(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        clients = []
        for number in range(4):
            client = await broker.client()
            await client.produce(1, topic=f"{TOPIC}-{number}")
            burst(client, 60)
            clients.append(client)
        await asyncio.sleep(1.0)
        counts = [topic.received()[0] for topic in broker.topics.registry]
        assert 80 <= sum(counts) <= 200
        assert min(counts) >= 0.5 * max(counts)

    run(tmp_path, scenario, brokerPublisherThrottlingMaxMessageRate=100)


def test_who_leaves_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        limited(topic, publish_rate=Rate(1, 0))
        rate = topic._publish_rate
        assert rate is not None and rate._of_topic is not None
        for _ in range(3):
            client = await broker.client()
            await client.produce()
            burst(client, 30)
            await until(lambda client=client: client.connection.throttling_rates == 1)
            client.far.close()
            # Nothing is read from it, so that it is gone is seen by somebody else.
            client.connection.close()
            assert len(rate._of_topic._queue) == 0 and client.connection.throttling_rates == 0
        assert rate._of_topic._timer is None

    run(tmp_path, scenario)


def test_a_connection_that_waits_for_two_rates_waits_for_both(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        names = [TOPIC, TOPIC + "-2"]
        topics = [await broker.topic(each) for each in names]
        for number, topic in enumerate(topics):
            await client.produce(number, topic=names[number])
            limited(topic, publish_rate=Rate(0, 10))
        # Both in one read, and each is more than its rate allows.
        sends = [wire.frame(*_send_of(number, bytes(1000))) for number in range(2)]
        client.far.send(b"".join(sends))
        await until(lambda: client.connection.throttling_rates > 0)
        await turns()
        if client.connection.throttling_rates == 1:
            limited(topics[0], publish_rate=Rate())
            await until(
                lambda: client.connection.throttling_rates == 1 and topics[1].received()[0] == 1
            )
        limited(topics[0], publish_rate=Rate())
        assert client.connection.throttling_rates == 1 and client.connection.is_paused
        limited(topics[1], publish_rate=Rate())
        assert client.connection.throttling_rates == 0 and not client.connection.is_paused

    run(tmp_path, scenario)


def _send_of(producer_id: int, data: bytes) -> tuple[bytes, bytes]:
    return command_of(pb.CommandSend(producer_id=producer_id, sequence_id=0)), section(data)


def test_what_is_too_much_waits_at_the_client(tmp_path: Path) -> None:
    """No more is read than there is room for in one read, and what was read is not published."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        limited(topic, publish_rate=Rate(5, 0))
        client = await broker.client()
        await client.produce()
        frame = wire.frame(*_send_of(1, bytes(2000)))
        loop = asyncio.get_running_loop()
        writing = asyncio.ensure_future(loop.sock_sendall(client.far, frame * 500))
        await until(lambda: client.connection.throttling_rates == 1)
        await asyncio.sleep(0.5)
        assert not writing.done(), "the rest waits at the client"
        assert topic.received()[0] < 20
        limited(topic, publish_rate=Rate())
        await writing
        await until(lambda: topic.received()[0] == 500)

    run(tmp_path, scenario)


# --- what is sent to consumers --------------------------------------------------------------------

TYPES = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "shared": pb.CommandSubscribe.Shared,
    "failover": pb.CommandSubscribe.Failover,
    "key_shared": pb.CommandSubscribe.Key_Shared,
}
CLOSE = pb.CommandCloseConsumer(consumer_id=1, request_id=0)
every_type = pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)


async def received(client: Client, seconds: float) -> list[float]:
    """When messages come within a time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    times = [loop.time()] * count_messages(client)
    while (left := end - loop.time()) > 0:
        try:
            await client._read(left)
        except asyncio.TimeoutError:
            break
        times += [loop.time()] * count_messages(client)
    return times


def count_messages(client: Client) -> int:
    """How many have come since they were asked for last."""
    count = sum(name == "message" for name, _, _ in client._inbox)
    client._inbox = [each for each in client._inbox if each[0] != "message"]
    return count


@every_type
@pytest.mark.parametrize("is_cached", [True, False], ids=["cached", "disk"])
def test_a_dispatch_rate_spreads_what_is_sent(tmp_path: Path, kind: int, is_cached: bool) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(600))
        topic = await broker.topic()
        if not is_cached:
            topic.managed_ledger.read_cached = lambda *_: None
        limited(topic, dispatch_rate=DispatchRate(200, 0))
        client = await broker.client()
        await client.subscribe(subType=kind, permits=1000)
        times = await received(client, 1.0)
        # Some of the time passes before the first one comes.
        assert 100 <= len(times) <= 212
        in_first_half = sum(at < times[0] + 0.5 for at in times)
        assert in_first_half <= 120, "no second begins with all that it may have"
        limited(topic, dispatch_rate=DispatchRate())
        assert len(times) + len(await client.messages(600 - len(times))) == 600

    run(tmp_path, scenario, activeConsumerFailoverDelayTimeMillis=0)


@every_type
def test_a_rate_of_a_subscription_is_no_other_ones(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(300))
        topic = await broker.topic()
        limited(topic, subscription_dispatch_rate=DispatchRate(0, 20_000))
        clients = [await broker.client() for _ in range(3)]
        for number, client in enumerate(clients):
            await client.subscribe(subType=kind, subscription=f"s{number}")
        size = len(section(b"message 100"))
        begun = asyncio.get_running_loop().time()
        counts = [len(await received(client, 0.2)) for client in clients]
        seconds = asyncio.get_running_loop().time() - begun + 0.2
        for count in counts:
            assert 1_000 <= count * size <= 20_000 * (seconds + 0.05) + 1_000

    run(tmp_path, scenario, activeConsumerFailoverDelayTimeMillis=0)


@every_type
def test_who_reconnects_gets_no_more_than_the_rate_of_its_subscription(
    tmp_path: Path, kind: int
) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(300))
        topic = await broker.topic()
        limited(topic, subscription_dispatch_rate=DispatchRate(20, 0))
        begun = asyncio.get_running_loop().time()
        count = 0
        client = await broker.client()
        for _ in range(20):
            await client.subscribe(subType=kind, permits=1000)
            count += len(await received(client, 0.02))
            await client.request(CLOSE, "success")
        seconds = asyncio.get_running_loop().time() - begun
        # A slow rate has a message at once, and the last one may be more than is left.
        assert 1 <= count <= 20 * seconds + 3

    run(tmp_path, scenario, activeConsumerFailoverDelayTimeMillis=0)


def test_a_subscription_has_one_rate_whatever_its_consumers_are(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        limited(topic, subscription_dispatch_rate=DispatchRate(20, 0))
        limiters = []
        client = await broker.client()
        for kind in (*TYPES.values(), TYPES["shared"]):
            await client.subscribe(subType=kind)
            [subscription] = topic.subscriptions.values()
            limiters.append(subscription.dispatch_limiter)
            await client.request(CLOSE, "success")
        assert limiters[0] is not None and all(each is limiters[0] for each in limiters)
        limited(topic, subscription_dispatch_rate=DispatchRate())
        assert subscription.dispatch_limiter is None

    run(tmp_path, scenario)


def test_subscriptions_share_the_rate_of_their_topic_and_topics_that_of_the_broker(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        clients = []
        for name in (TOPIC, TOPIC + "-2"):
            topic = await broker.topic(name)
            await broker.publish_to(topic, *data_of(500))
            limited(topic, dispatch_rate=DispatchRate(150, 0))
            for number in range(3):
                client = await broker.client()
                await client.subscribe(topic=name, subscription=f"s{number}")
                clients.append(client)
        await asyncio.sleep(1.0)
        counts = [len(await received(client, 0.01)) for client in clients]
        assert 120 <= sum(counts) <= 260, "200 of the broker, not 300 of both topics"
        assert min(counts) >= 0.5 * max(counts), counts

    run(tmp_path, scenario, dispatchThrottlingRateInMsg=200)


@pytest.mark.parametrize(
    ("policies", "field"),
    [
        ({"dispatch_rate": DispatchRate(5, 0)}, "dispatchThrottledMsgEventsByTopicLimit"),
        ({"dispatch_rate": DispatchRate(0, 20)}, "dispatchThrottledBytesEventsByTopicLimit"),
        (
            {"subscription_dispatch_rate": DispatchRate(5, 0)},
            "dispatchThrottledMsgEventsBySubscriptionLimit",
        ),
    ],
)
def test_the_limit_that_holds_a_subscription_back_is_counted(
    tmp_path: Path, policies: dict[str, Any], field: str
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe()
        subscription = topic.subscriptions["s"]
        limited(topic, **policies)
        assert subscription.throttled is None
        await broker.publish(*data_of(20))
        await received(client, 0.5)
        assert subscription.throttled is not None
        assert set(subscription.throttled) == {field}

    run(tmp_path, scenario)


def test_redeliveries_count_as_well(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(200))
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe()
        first = await client.messages(200)
        limited(topic, dispatch_rate=DispatchRate(100, 0))
        client.flow(1000)
        client.redeliver(*[each.position for each in first])
        assert 20 <= len(await received(client, 0.5)) <= 62

    run(tmp_path, scenario)


def test_a_batch_counts_its_messages_or_as_one(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        batch = section(bytes(1000), num_messages_in_batch=50)
        topic = await broker.topic()
        await append(topic.managed_ledger, *[batch] * 40)
        limited(topic, dispatch_rate=DispatchRate(100, 0))
        client = await broker.client()
        await client.subscribe(permits=10_000)
        assert 1 <= len(await received(client, 0.7)) <= 3
        limited(topic, dispatch_rate_by_entries=True, dispatch_rate=DispatchRate(1000, 0))
        assert len(await received(client, 0.7)) >= 37

    run(tmp_path, scenario)


def test_who_has_caught_up_can_be_left_out(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(1500))
        topic = await broker.topic()
        limited(topic, dispatch_rate=DispatchRate(100, 0), dispatch_rate_when_caught_up=False)
        client = await broker.client()
        await client.subscribe(permits=10_000)
        assert len(await received(client, 0.3)) <= 40
        await client.subscribe(2, subscription="latest", initialPosition=pb.CommandSubscribe.Latest)
        client.take()
        await broker.publish(*data_of(300))
        got = [each for each in await client.messages(300) if each.consumer_id == 2]
        assert len(got) >= 250

    run(tmp_path, scenario)


def test_a_relative_rate_is_on_top_of_what_is_published() -> None:
    loop = FakeLoop()
    published = [0, 0]
    followed = Published(lambda: (published[0], published[1]))
    limiter = DispatchLimiter(turn_of(loop), DispatchRate(100, 0, 1, True), followed)
    assert limiter.has_tokens() and limiter.tokens.messages == pytest.approx(5)
    loop.advance(2.0)
    published[0] = 1000
    assert limiter.has_tokens()
    loop.advance(0.1)
    assert limiter.has_tokens() and limiter.tokens.messages == pytest.approx(30)
    loop.advance(2.0)
    assert limiter.has_tokens() and limiter.tokens.messages == pytest.approx(5)


def test_relative_rates_of_many_subscriptions_ask_the_producers_once_a_second() -> None:
    loop = FakeLoop()
    looks = 0

    def received() -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return looks * 500, 0

    followed = Published(received)
    rate = DispatchRate(100, 0, 1, True)
    limiters = [DispatchLimiter(turn_of(loop), rate, followed) for _ in range(40)]
    assert looks == 1
    for second in range(1, 4):
        loop.advance(1.0)
        assert all(each.has_tokens() for each in limiters)
        loop.advance(0.1)
        assert all(each.has_tokens() for each in limiters)
        assert looks == 1 + second
        assert {round(each.tokens.messages) for each in limiters} <= {28, 30}, "600 in a second"
    plain = DispatchLimiter(turn_of(loop), rate._replace(relative=False), followed)
    loop.advance(1.0)
    assert plain.has_tokens() and looks == 4, "what is not relative does not ask"


@pytest.mark.parametrize("count", [0, 1, 2, 2000])
def test_the_rate_of_one_of_many_subscriptions_is_found_without_looking_at_each(
    count: int,
) -> None:
    rates = {f"s{number}": {"dispatchRate": {RATE: number + 1}} for number in range(count)}
    [policy] = [each for each in TABLE if each.name == "dispatch_rates_of"]
    policies = Policies(
        dispatch_rates_of=policy.read(rates), subscription_dispatch_rate=DispatchRate(7)
    )
    for number in range(count):
        assert policies.dispatch_rate_of(f"s{number}") == DispatchRate(number + 1)
    for other in ("", "r", "s", "s0 ", "s1\x00", "t", "é"):
        assert policies.dispatch_rate_of(other) == DispatchRate(7)
    Name.compared = 0
    policies.dispatch_rate_of(Name("s1999"))
    assert Name.compared <= 30


def test_a_rate_of_a_longer_period_is_spread_over_it() -> None:
    loop = FakeLoop()
    limiter = DispatchLimiter(turn_of(loop), DispatchRate(100, 0, 10))
    limiter.spend(11, 0)
    assert limiter.tokens.short_s == pytest.approx(1.0)


def test_one_that_waits_for_two_rates_keeps_its_turn() -> None:
    """With a line at both, nobody would ever have its turn at both at once."""
    loop = FakeLoop()
    broker = DispatchLimiter(turn_of(loop), DispatchRate(100, 0))
    topic = DispatchLimiter(turn_of(loop), DispatchRate(100, 0))
    sent: dict[int, int] = dict.fromkeys(range(5), 0)

    class Dispatching:
        """Sends one message whenever it may."""

        def __init__(self, number: int) -> None:
            self.number = number
            self.throttle = Throttle(self.wake)
            self.throttle._limiters = [broker, topic]
            self.throttle._limits = ["BrokerLimit", "TopicLimit"]
            self.subscription: Any = SimpleNamespace(
                throttled=None, topic=SimpleNamespace(policies=Policies())
            )

        def wake(self) -> None:
            while self.throttle.allowance(self.subscription, 100, 1 << 20) is not None:
                sent[self.number] += 1
                for limiter in self.throttle._limiters:
                    limiter.spend(1, 1)
                self.throttle._had_turn.clear()

    for number in sent:
        Dispatching(number).wake()
    loop.advance(5.0)
    assert sum(sent.values()) == pytest.approx(500, rel=0.05)
    assert min(sent.values()) >= 0.7 * max(sent.values()), sent


def test_a_dispatcher_without_rates_has_no_throttle(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe()
        [subscription] = topic.subscriptions.values()
        assert subscription.dispatcher.throttle is None
        [consumer] = subscription.consumers
        assert consumer.sent_total is None
        limited(topic, subscription_dispatch_rate=DispatchRate(5, 0))
        assert subscription.dispatcher.throttle is not None and consumer.sent_total is not None
        limited(topic, subscription_dispatch_rate=DispatchRate())
        assert subscription.dispatcher.throttle is None and consumer.sent_total is None

    run(tmp_path, scenario)
