"""Redelivery: its count, order and epochs; dead letters; limits of what is unacknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.conftest import AnyClient, BrokerFactory, ClientFactory
from compat_tests.messages import assert_nothing_more, publish, receive

EARLIEST = pulsar.InitialPosition.Earliest
SHARED, KEY_SHARED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
FAILOVER = 2
TYPES = {"Exclusive": wire.EXCLUSIVE, "Shared": wire.SHARED, "Failover": FAILOVER, "Key_Shared": 3}
NACK_MS = 100


@pytest.fixture
def client(any_client: AnyClient) -> AnyClient:
    return any_client


def numbered(count: int) -> list[bytes]:
    return [b"message-%d" % number for number in range(count)]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=["Shared", "Key_Shared"])
def test_a_negative_ack_is_counted_and_a_disconnect_is_not(
    new_client: ClientFactory, topic: str, kind: pulsar.ConsumerType
) -> None:
    client = new_client()
    consumer = client.subscribe(
        topic, "s", consumer_type=kind, negative_ack_redelivery_delay_ms=NACK_MS
    )
    client.create_producer(topic).send(b"again", partition_key="k")
    for count in range(3):
        message = consumer.receive(timeout_millis=10_000)
        assert (message.data(), message.redelivery_count()) == (b"again", count)
        consumer.negative_acknowledge(message)
    message = consumer.receive(timeout_millis=10_000)
    assert message.redelivery_count() == 3
    # Another one is there, so what is known of the message stays.
    other_client = new_client()
    other = other_client.subscribe(topic, "s", consumer_type=kind)
    consumer.close()
    message = other.receive(timeout_millis=10_000)
    assert (message.data(), message.redelivery_count()) == (b"again", 3)
    other.close()
    # Nobody was there meanwhile.
    again = other_client.subscribe(topic, "s", consumer_type=kind)
    message = again.receive(timeout_millis=10_000)
    assert (message.data(), message.redelivery_count()) == (b"again", 0)


def test_unacknowledged_messages_come_again_after_their_timeout(
    python_client: pulsar.Client, topic: str
) -> None:
    consumer = python_client.subscribe(
        topic, "s", consumer_type=SHARED, unacked_messages_timeout_ms=10_000
    )
    publish(python_client.create_producer(topic), numbered(4))
    messages = [consumer.receive(timeout_millis=5000) for _ in range(4)]
    consumer.acknowledge(messages[1])
    again = [consumer.receive(timeout_millis=25_000) for _ in range(3)]
    assert {each.data() for each in again} == {b"message-0", b"message-2", b"message-3"}
    assert {each.redelivery_count() for each in again} == {1}
    assert_nothing_more(consumer)


@pytest.mark.parametrize(
    "kind",
    [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover],
    ids=["Exclusive", "Failover"],
)
def test_order_is_restored(
    python_client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = python_client.subscribe(topic, "s", consumer_type=kind)
    publish(python_client.create_producer(topic), numbered(20))
    messages = [consumer.receive(timeout_millis=10_000) for _ in range(20)]
    consumer.acknowledge_cumulative(messages[4])
    consumer.acknowledge(messages[7])
    time.sleep(0.3)
    consumer.redeliver_unacknowledged_messages()
    expected = numbered(20)[5:7] + numbered(20)[8:]
    assert receive(consumer, len(expected)) == expected
    assert_nothing_more(consumer)


def test_dead_letters_go_to_their_topic(client: AnyClient, topic: str) -> None:
    """The topic gets its first subscription with its producer, so that nothing is lost."""
    dead = f"{topic}-dead"
    policy = pulsar.ConsumerDeadLetterPolicy(2, dead, "undertaker")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=SHARED,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=NACK_MS,
    )
    publish(client.create_producer(topic), numbered(10))
    tries: dict[bytes, int] = {}
    deadline = time.monotonic() + 30
    while sum(tries.values()) < 9 + 3 and time.monotonic() < deadline:
        message = consumer.receive(timeout_millis=15_000)
        tries[message.data()] = tries.get(message.data(), 0) + 1
        if message.data() == b"message-7":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    assert tries == dict.fromkeys(numbered(10), 1) | {b"message-7": 3}
    assert_nothing_more(consumer, 2000)
    undertaker = client.subscribe(dead, "undertaker", consumer_type=SHARED)
    message = undertaker.receive(timeout_millis=10_000)
    assert message.data() == b"message-7"
    assert message.properties()["REAL_TOPIC"].startswith(topic)
    undertaker.acknowledge(message)
    assert_nothing_more(undertaker)


def test_an_initial_subscription_has_all_that_is_there(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic)
        for number in range(3):
            one.send(b"%d" % number, number)
            one.expect(wire.SEND_RECEIPT)
        one.command(
            wire.PRODUCER, {1: topic, 2: 2, 3: one.request_id(), 13: "first", 4: f"{topic}-2"}
        )
        one.expect(wire.PRODUCER_SUCCESS)
        # Latest would be where it starts, if it were not there already.
        one.subscribe(topic, "first", 1, wire.SHARED, fields={13: wire.LATEST})
        one.flow(10)
        bodies = [wire.parse_payload(one.wait_for(wire.MESSAGE).rest).body for _ in range(3)]
        assert bodies == [b"0", b"1", b"2"]


# --- epochs ---------------------------------------------------------------------------------------


def messages(one: RawConnection, count: int) -> list[tuple[bytes, int, int]]:
    """(body, redelivery count, consumer epoch or -1) of the next messages."""
    found = []
    while len(found) < count:
        frame = one.wait_for(wire.MESSAGE)
        body = wire.parse_payload(frame.rest).body
        found.append((body, frame.number(3), frame.number(5, -1)))
    return found


@pytest.mark.parametrize("kind", TYPES)
def test_epochs_and_counts(broker: Broker, topic: str, kind: str) -> None:
    """Those who get everything in order are told the epoch, the others the count."""
    in_order = kind in ("Exclusive", "Failover")
    with RawConnection(broker.port) as one:
        one.producer(topic)
        one.subscribe(topic, "s", 1, TYPES[kind], fields={19: 0})
        for number in range(3):
            one.send(b"%d" % number, number)
        one.flow(1000)
        bodies = [b"0", b"1", b"2"]

        def expected(count: int, epoch: int) -> list[tuple[bytes, int, int]]:
            return [(each, 0 if in_order else count, epoch if in_order else -1) for each in bodies]

        assert messages(one, 3) == expected(0, 0)
        for count, (asked, epoch) in enumerate([(5, 5), (3, 5), (None, 5), (6, 6)], start=1):
            one.command(wire.REDELIVER, {1: 1} | ({} if asked is None else {3: asked}))
            assert messages(one, 3) == expected(count, epoch), f"asked with {asked}"


def test_a_redelivery_for_nobody_is_dropped(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.subscribe(topic, "s", 1, wire.SHARED)
        one.command(wire.REDELIVER, {1: 99})
        one.command(wire.REDELIVER, {1: 1, 2: [wire.message_id(7, 7)]})
        one.command(wire.REDELIVER, {1: 99, 2: [wire.message_id(7, 7)]})
        one.flow(5, 99)
        one.assert_alive()


# --- limits ---------------------------------------------------------------------------------------


class Held:
    """A raw consumer that acknowledges when it is told to."""

    def __init__(self, port: int, topic: str, consumer_id: int, kind: int, **names: Any) -> None:
        self.one = RawConnection(port)
        self.consumer_id = consumer_id
        name = names.get("subscription", "s")
        assert self.one.subscribe(topic, name, consumer_id, kind).type == wire.SUCCESS
        self.ids: list[bytes] = []
        self.one.flow(1000, consumer_id)

    def take(self, seconds: float = 0.7) -> int:
        """Takes what comes until nothing does for a while; how much that was."""
        before = len(self.ids)
        while True:
            try:
                frame = self.one.receive(seconds)
            except TimeoutError:
                return len(self.ids) - before
            if frame.type == wire.MESSAGE:
                self.ids.append(frame.data(2))

    def ack(self, count: int) -> None:
        due, self.ids = self.ids[:count], self.ids[count:]
        fields = {1: self.consumer_id, 2: wire.INDIVIDUAL, 3: due}
        self.one.command(wire.ACK, fields)

    def blocked(self) -> bool:
        """What CONSUMER_STATS says."""
        self.one.command(wire.CONSUMER_STATS, {1: self.one.request_id(), 4: self.consumer_id})
        return self.one.wait_for(26).number(10) == 1


@pytest.fixture
def limited(own_broker: BrokerFactory) -> Callable[..., Broker]:
    def start(**settings: str) -> Broker:
        # With a batch of one at a time the limits are kept to the message.
        broker = own_broker(
            settings=settings
            | {"dispatcherMaxReadBatchSize": "1", "dispatcherMaxRoundRobinBatchSize": "1"}
        )
        broker.start()
        return broker

    return start


def fill(broker: Broker, topic: str, count: int) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic)
        for number in range(count):
            one.send(b"%d" % number, number)
            one.expect(wire.SEND_RECEIPT)


def test_a_consumer_stops_at_its_limit(limited: Callable[..., Broker], topic: str) -> None:
    """It goes on when not more than half of the limit is left; Exclusive ones know no limit."""
    broker = limited(maxUnackedMessagesPerConsumer="20")
    for kind in (wire.SHARED, 3):
        name = f"s{kind}"
        held = Held(broker.port, topic, 1, kind, subscription=name)
        if kind == wire.SHARED:
            fill(broker, topic, 100)
        assert held.take() == 20
        assert held.blocked()
        held.ack(9)
        assert held.take() == 0
        held.ack(1)
        assert held.take() == 10
        # A negative acknowledgement makes room as well.
        held.one.command(wire.REDELIVER, {1: 1, 2: held.ids[:15]})
        assert held.take() == 15
        held.one.socket.close()
    held = Held(broker.port, topic, 1, wire.EXCLUSIVE, subscription="exclusive")
    assert held.take() == 100
    assert not held.blocked()


def test_a_subscription_stops_at_its_limit(limited: Callable[..., Broker], topic: str) -> None:
    broker = limited(maxUnackedMessagesPerSubscription="30")
    first, second = (Held(broker.port, topic, number, wire.SHARED) for number in (1, 2))
    fill(broker, topic, 100)
    assert first.take() + second.take() == 30
    assert min(len(first.ids), len(second.ids)) > 5
    held = len(first.ids) + len(second.ids)
    for consumer in (first, second, first, second, first, second, first, second):
        # Nothing comes until less than half of the limit is left.
        assert first.take(0.3) + second.take(0.3) == 0
        count = min(2, held - 15)
        consumer.ack(count)
        held -= count
    assert held == 15
    assert first.take(0.3) + second.take(0.3) == 0
    second.ack(1)
    assert first.take() + second.take() == 16
    # One that goes away makes room too.
    first.one.socket.close()
    second.ack(len(second.ids))
    assert second.take() == 30


def test_a_queue_of_no_size_takes_one_message_at_a_time(client: AnyClient, topic: str) -> None:
    """The client gives one permit for each receive, which then knows no timeout."""
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, receiver_queue_size=0)
    other = client.subscribe(topic, "s", consumer_type=SHARED, receiver_queue_size=10)
    publish(client.create_producer(topic), numbered(9))
    assert receive(other, 9) == numbered(9)
    other.close()
    publish(client.create_producer(topic), numbered(5))
    for number in range(5):
        message = consumer.receive()
        assert message.data() == b"message-%d" % number
        consumer.acknowledge(message)


# --- what consumers are told ----------------------------------------------------------------------


def test_consumer_stats(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic)
        one.subscribe(topic, "s", 7, wire.SHARED, fields={6: "watched"})
        one.flow(10, 7)
        for number in range(4):
            one.send(b"x", number)
        for _ in range(4):
            one.wait_for(wire.MESSAGE)
        one.command(wire.CONSUMER_STATS, {1: 4711, 4: 7})
        answer = one.wait_for(26)
        assert answer.number(1) == 4711
        assert answer.data(7) == b"watched"
        assert (answer.number(8), answer.number(9), answer.number(10)) == (6, 4, 0)
        host, port = one.socket.getsockname()
        assert answer.data(11).decode() == f"/{host}:{port}"
        assert answer.data(12).endswith(b"Z") and answer.data(12)[10:11] == b"T"
        assert answer.data(13) == b"Shared"
        assert answer.number(15) == 4
        assert {4, 5, 6, 14, 16} <= set(answer.fields)


@pytest.mark.parametrize("permits", [0, 1 << 31, (1 << 32) - 1])
def test_a_flow_that_gives_nothing_closes_the_connection(
    broker: Broker, topic: str, permits: int
) -> None:
    with RawConnection(broker.port) as one:
        one.subscribe(topic, "s", 1, wire.SHARED)
        one.flow(permits)
        one.assert_closed()


def test_names_that_are_taken_or_empty(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        answer = one.subscribe(topic, "", 1)
        assert (answer.number(2), answer.data(3)) == (16, b"Empty subscription name")
        assert one.subscribe(topic, "reader", 1, fields={8: 0}).type == wire.SUCCESS
        answer = one.subscribe(topic, "reader", 2)
        assert answer.number(2) == 22
        assert answer.data(3) == b"NonDurable subscription with the same name already exists."
        assert one.subscribe(topic, "durable", 2).type == wire.SUCCESS
        answer = one.subscribe(topic, "durable", 3, fields={8: 0})
        assert answer.data(3) == b"Durable subscription with the same name already exists."
        one.command(wire.UNSUBSCRIBE, {1: 99, 2: 4711})
        answer = one.expect(wire.ERROR)
        assert (answer.number(2), answer.data(3)) == (1, b"Consumer not found")
