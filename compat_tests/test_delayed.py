"""Delayed delivery: when a message comes, whom it does not hold up, and what a restart keeps.

Only Shared and Key_Shared subscriptions wait for a message's time; all others get it at once.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from compat_tests.conftest import AnyClient, BrokerFactory, ClientFactory, broker_kind
from compat_tests.messages import assert_nothing_more, receive

HOUR_MS = 3_600_000
WAITING = {"shared": pulsar.ConsumerType.Shared, "key-shared": pulsar.ConsumerType.KeyShared}
# Apache Pulsar looks once a second, and may be early by as much unless it is told to be strict.
EARLY_S = 1.0 if broker_kind() == "apache" else 0.0
LATE_S = 2.5

every_waiting_type = pytest.mark.parametrize("type_name", WAITING)


@pytest.fixture
def client(any_client: AnyClient) -> AnyClient:
    return any_client


def in_an_hour(how: str) -> dict[str, Any]:
    """The option that delays a message by an hour: relative, or as an absolute time."""
    if how == "deliver_after":
        return {how: timedelta(hours=1)}
    return {how: round(time.time() * 1000) + HOUR_MS}


@pytest.mark.parametrize("how", ["deliver_after", "deliver_at"])
def test_an_exclusive_consumer_gets_delayed_messages_at_once(
    client: AnyClient, topic: str, how: str
) -> None:
    consumer = client.subscribe(topic, "exclusive")
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number, **(in_an_hour(how) if number % 2 else {}))
    assert receive(consumer, 20) == [b"%d" % number for number in range(20)]


def test_a_reader_gets_delayed_messages_at_once(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=timedelta(hours=1))
    producer.send(b"behind it")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(timeout_millis=10_000).data() == b"delayed"
    assert reader.read_next(timeout_millis=10_000).data() == b"behind it"


def test_a_time_that_has_passed_delays_nothing(client: AnyClient, topic: str) -> None:
    consumer = client.subscribe(topic, "shared", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"an hour late", deliver_at=round(time.time() * 1000) - HOUR_MS)
    producer.send(b"not delayed")
    assert receive(consumer, 2) == [b"an hour late", b"not delayed"]
    assert_nothing_more(consumer)


def test_delayed_messages_of_a_batching_producer_stand_alone(client: AnyClient, topic: str) -> None:
    consumer = client.subscribe(topic, "exclusive")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=200
    )
    for number in range(6):
        options = {"deliver_after": timedelta(hours=1)} if number % 3 == 1 else {}
        producer.send_async(b"%d" % number, None, **options)
    producer.flush()
    got = [consumer.receive(timeout_millis=10_000) for _ in range(6)]
    assert sorted(message.data() for message in got) == [b"%d" % number for number in range(6)]
    places = [message.message_id() for message in got]
    alone = {b"1", b"4"}
    for message, place in zip(got, places, strict=True):
        entry = (place.ledger_id(), place.entry_id())
        others = [one for one in places if (one.ledger_id(), one.entry_id()) == entry]
        if message.data() in alone:
            assert len(others) == 1


def receive_at(consumer: Any, count: int, timeout_ms: int = 15_000) -> list[tuple[bytes, float]]:
    """Bodies, each with the time when it came; all are acknowledged."""
    got = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=timeout_ms)
        got.append((message.data(), time.time()))
        consumer.acknowledge(message)
    return got


def assert_in_time(came: float, due: float) -> None:
    # Clients cut the time to whole milliseconds.
    assert due - EARLY_S - 0.001 <= came <= due + LATE_S, f"{came - due:+.3f} s beside its time"


@every_waiting_type
@pytest.mark.parametrize("how", ["deliver_after", "deliver_at"])
def test_a_message_waits_for_its_time(
    client: AnyClient, topic: str, type_name: str, how: str
) -> None:
    consumer = client.subscribe(topic, "waits", consumer_type=WAITING[type_name])
    producer = client.create_producer(topic)
    due = time.time() + 2.0
    option = round(due * 1000) if how == "deliver_at" else timedelta(seconds=2)
    producer.send(b"delayed", partition_key="k", properties={"a": "b"}, **{how: option})
    producer.send(b"at once", partition_key="k")
    (first, first_came), (second, second_came) = receive_at(consumer, 2)
    assert (first, second) == (b"at once", b"delayed")
    assert first_came < due - EARLY_S
    assert_in_time(second_came, due)
    assert_nothing_more(consumer)


@every_waiting_type
def test_messages_come_in_the_order_of_their_times(
    client: AnyClient, topic: str, type_name: str
) -> None:
    consumer = client.subscribe(topic, "waits", consumer_type=WAITING[type_name])
    producer = client.create_producer(topic)
    # What Apache Pulsar finds due at once comes in the order of publishing.
    apart_ms = 3_000 if EARLY_S else 1_000
    now_ms = round(time.time() * 1000)
    due = {b"%d" % number: now_ms + 1_200 + apart_ms * number for number in (2, 0, 1)}
    for body, at_ms in due.items():
        producer.send(body, partition_key="k", deliver_at=at_ms)
    got = receive_at(consumer, 3)
    assert [body for body, _ in got] == [b"0", b"1", b"2"]
    for body, came in got:
        assert_in_time(came, due[body] / 1000)


def test_a_thousand_delayed_messages_come_once_each(client: AnyClient, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "waits", consumer_type=pulsar.ConsumerType.Shared) for _ in range(2)
    ]
    producer = client.create_producer(topic, block_if_queue_full=True)
    due_ms = round(time.time() * 1000) + 4_000
    for number in range(1000):
        producer.send_async(b"%d" % number, None, deliver_at=due_ms + number)
    producer.flush()
    assert time.time() < due_ms / 1000 - EARLY_S, "the machine is too slow for this test"
    seen: dict[bytes, float] = {}
    deadline = time.time() + 15
    while len(seen) < 1000 and time.time() < deadline:
        for consumer in consumers:
            try:
                message = consumer.receive(timeout_millis=20)
            except pulsar.Timeout:
                continue
            assert message.data() not in seen
            seen[message.data()] = time.time()
            consumer.acknowledge(message)
    assert len(seen) == 1000
    for body, came in seen.items():
        assert came >= (due_ms + int(body)) / 1000 - EARLY_S - 0.001


def test_a_shared_subscription_waits_while_an_exclusive_one_reads(
    client: AnyClient, topic: str
) -> None:
    waits = client.subscribe(topic, "waits", consumer_type=pulsar.ConsumerType.Shared)
    reads = client.subscribe(topic, "reads")
    due = time.time() + 2.5
    client.create_producer(topic).send(b"x", deliver_at=round(due * 1000))
    assert receive_at(reads, 1)[0][1] < due - EARLY_S
    assert_in_time(receive_at(waits, 1)[0][1], due)


def test_an_unacknowledged_delayed_message_returns_at_once(client: AnyClient, topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, "waits", consumer_type=kind)
    client.create_producer(topic).send(b"x", deliver_after=timedelta(seconds=1))
    consumer.receive(timeout_millis=10_000)
    consumer.close()
    again = client.subscribe(topic, "waits", consumer_type=kind)
    assert receive_at(again, 1)[0][0] == b"x"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_keeps_the_times(
    own_broker: BrokerFactory, new_client: ClientFactory, topic: str, how: str
) -> None:
    broker = own_broker()
    broker.start()
    client = new_client(broker.url)
    client.subscribe(topic, "waits", consumer_type=pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(topic)
    # A restart of Apache Pulsar takes a while.
    due = time.time() + (90 if broker.kind == "apache" else 5)
    producer.send(b"delayed", deliver_at=round(due * 1000))
    producer.send(b"at once")
    new_client.close()
    broker.stop() if how == "stop" else broker.kill()
    broker.start()
    consumer = new_client(broker.url).subscribe(
        topic, "waits", consumer_type=pulsar.ConsumerType.Shared
    )
    (first, first_came), (second, second_came) = receive_at(consumer, 2, 120_000)
    assert (first, second) == (b"at once", b"delayed")
    assert first_came < due - EARLY_S
    assert_in_time(second_came, due)
