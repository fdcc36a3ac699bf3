"""Consumers: exclusive and shared, acknowledgement of every kind, redelivery, limits."""

from __future__ import annotations

import time

import pulsar
import pytest

from compat_tests.conftest import AnyClient
from compat_tests.messages import assert_nothing_more, payload, publish, receive

EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def client(any_client: AnyClient) -> AnyClient:
    return any_client


def numbered(count: int) -> list[bytes]:
    return [b"message-%d" % number for number in range(count)]


@pytest.fixture(params=[True, False], ids=["batched", "unbatched"])
def batched(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_a_second_exclusive_consumer_is_refused(client: AnyClient, topic: str) -> None:
    first = client.subscribe(topic, "mine", consumer_type=pulsar.ConsumerType.Exclusive)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "mine", consumer_type=pulsar.ConsumerType.Exclusive)
    client.create_producer(topic).send(b"still served")
    assert receive(first, 1) == [b"still served"]
    first.close()
    client.subscribe(topic, "mine", consumer_type=pulsar.ConsumerType.Exclusive).close()


def test_a_subscription_keeps_its_type_while_connected(client: AnyClient, topic: str) -> None:
    shared = client.subscribe(topic, "mixed", consumer_type=pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "mixed", consumer_type=pulsar.ConsumerType.Exclusive)
    shared.close()


def test_shared_consumers_divide_the_messages(client: AnyClient, topic: str) -> None:
    consumers = [
        client.subscribe(
            topic, "share", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10
        )
        for _ in range(4)
    ]
    publish(client.create_producer(topic, batching_enabled=False), numbered(400))
    seen: list[bytes] = []
    shares = [0] * len(consumers)
    deadline = time.monotonic() + 20
    while len(seen) < 400 and time.monotonic() < deadline:
        for index, consumer in enumerate(consumers):
            try:
                message = consumer.receive(timeout_millis=50)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            seen.append(message.data())
            shares[index] += 1
    assert sorted(seen) == sorted(numbered(400))
    assert min(shares) > 20, f"one consumer starved: {shares}"


def test_subscriptions_are_independent(client: AnyClient, topic: str) -> None:
    first = client.subscribe(topic, "first")
    second = client.subscribe(topic, "second")
    publish(client.create_producer(topic), numbered(100))
    assert receive(first, 100) == numbered(100)
    assert receive(second, 100) == numbered(100)


def test_initial_positions(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    late = client.subscribe(topic, "late", initial_position=pulsar.InitialPosition.Latest)
    early = client.subscribe(topic, "early", initial_position=EARLIEST)
    producer.send(b"after")
    assert receive(late, 1) == [b"after"]
    assert receive(early, 2) == [b"before", b"after"]


def test_unacknowledged_messages_return_to_the_next_consumer(
    client: AnyClient, topic: str, batched: bool
) -> None:
    consumer = client.subscribe(topic, "again", consumer_type=pulsar.ConsumerType.Shared)
    publish(client.create_producer(topic, batching_enabled=batched), numbered(10))
    received = [consumer.receive(timeout_millis=10_000) for _ in range(10)]
    for message in received[:5] if not batched else received:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "again", consumer_type=pulsar.ConsumerType.Shared)
    if not batched:
        assert sorted(receive(again, 5)) == numbered(10)[5:]
    assert_nothing_more(again)


def test_individual_acknowledgements_leave_holes(client: AnyClient, topic: str) -> None:
    consumer = client.subscribe(topic, "holes", consumer_type=pulsar.ConsumerType.Shared)
    publish(client.create_producer(topic, batching_enabled=False), numbered(100))
    for number in range(100):
        message = consumer.receive(timeout_millis=10_000)
        if number % 3:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "holes", consumer_type=pulsar.ConsumerType.Shared)
    assert receive(again, 34) == numbered(100)[::3]
    assert_nothing_more(again)


def test_cumulative_acknowledgement(client: AnyClient, topic: str, batched: bool) -> None:
    consumer = client.subscribe(topic, "up-to")
    producer = client.create_producer(topic, batching_enabled=batched)
    publish(producer, numbered(60))
    publish(producer, numbered(40))
    received = [consumer.receive(timeout_millis=10_000) for _ in range(100)]
    consumer.acknowledge_cumulative(received[59])
    consumer.close()
    again = client.subscribe(topic, "up-to")
    assert receive(again, 40) == numbered(40)
    assert_nothing_more(again)


def test_negative_acknowledgement_redelivers(client: AnyClient, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "nack",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=200,
    )
    client.create_producer(topic).send(b"twice")
    for expected in range(3):
        message = consumer.receive(timeout_millis=10_000)
        assert message.data() == b"twice"
        assert message.redelivery_count() == expected
        consumer.negative_acknowledge(message)
    consumer.acknowledge(consumer.receive(timeout_millis=10_000))
    assert_nothing_more(consumer)


def test_ack_timeout_redelivers(python_client: pulsar.Client, topic: str) -> None:
    consumer = python_client.subscribe(
        topic,
        "timeout",
        consumer_type=pulsar.ConsumerType.Shared,
        unacked_messages_timeout_ms=10_000,
    )
    python_client.create_producer(topic).send(b"slow")
    first = consumer.receive(timeout_millis=10_000)
    second = consumer.receive(timeout_millis=25_000)
    assert first.message_id().entry_id() == second.message_id().entry_id()
    consumer.acknowledge(second)


def test_redeliver_all_on_an_exclusive_subscription(
    python_client: pulsar.Client, topic: str
) -> None:
    consumer = python_client.subscribe(topic, "rewind")
    publish(python_client.create_producer(topic), numbered(20))
    assert receive(consumer, 20, ack=False) == numbered(20)
    consumer.redeliver_unacknowledged_messages()
    assert receive(consumer, 20) == numbered(20)


def test_unsubscribe_forgets_the_position(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "gone", initial_position=EARLIEST)
    publish(producer, numbered(5))
    assert receive(consumer, 5) == numbered(5)
    consumer.unsubscribe()
    again = client.subscribe(topic, "gone", initial_position=EARLIEST)
    assert receive(again, 5) == numbered(5)


def test_permits_bound_what_is_sent(client: AnyClient, topic: str) -> None:
    greedy = client.subscribe(
        topic, "fair", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10
    )
    publish(client.create_producer(topic, batching_enabled=False), numbered(200))
    time.sleep(0.5)
    other = client.subscribe(
        topic, "fair", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1000
    )
    assert len(receive(other, 150)) == 150
    greedy.close()


def test_a_zero_queue_consumer_pulls_one_at_a_time(client: AnyClient, topic: str) -> None:
    consumer = client.subscribe(topic, "zero", receiver_queue_size=0)
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, numbered(20))
    # A receive with a timeout is not offered for an empty queue, so this blocks until delivery.
    for number in range(20):
        message = consumer.receive()
        assert message.data() == b"message-%d" % number
        consumer.acknowledge(message)


def test_a_message_listener_sees_everything(client: AnyClient, topic: str) -> None:
    seen: list[bytes] = []

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        seen.append(message.data())
        consumer.acknowledge(message)

    client.subscribe(topic, "listen", message_listener=listen)
    publish(client.create_producer(topic), [payload(number) for number in range(300)])
    deadline = time.monotonic() + 15
    while len(seen) < 300 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == [payload(number) for number in range(300)]
