"""Non-persistent topics: delivered to who is there, dropped for who is not, never stored."""

from __future__ import annotations

import time

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.conftest import AnyClient
from compat_tests.messages import assert_nothing_more, payload, publish, receive

KINDS = (
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
)


@pytest.fixture
def client(any_client: AnyClient) -> AnyClient:
    return any_client


@pytest.fixture
def fleeting(topic: str) -> str:
    """The name of a non-persistent topic."""
    return "non-" + topic


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_consumers_get_what_comes_while_they_are_there(
    client: AnyClient, fleeting: str, kind: pulsar.ConsumerType, batched: bool
) -> None:
    producer = client.create_producer(fleeting, batching_enabled=batched)
    producer.send(b"too early")
    consumer = client.subscribe(fleeting, "s", consumer_type=kind)
    other = client.subscribe(fleeting, "other", consumer_type=kind)
    time.sleep(1.5)  # a failover consumer becomes active after a while
    bodies = [payload(number) for number in range(200)]
    for body in bodies:
        producer.send(body)
    assert receive(consumer, 200) == bodies
    assert receive(other, 200) == bodies
    assert_nothing_more(consumer, 300)
    consumer.close()
    producer.send(b"to one only")
    assert receive(other, 1) == [b"to one only"]
    again = client.subscribe(fleeting, "s", consumer_type=kind)
    assert_nothing_more(again)


def test_shared_consumers_divide_the_messages(client: AnyClient, fleeting: str) -> None:
    consumers = [
        client.subscribe(fleeting, "s", consumer_type=pulsar.ConsumerType.Shared) for _ in range(3)
    ]
    producer = client.create_producer(fleeting, batching_enabled=False)
    for number in range(90):
        producer.send(b"%d" % number)
    shares = [receive(consumer, 30) for consumer in consumers]
    assert sorted(int(body) for each in shares for body in each) == list(range(90))


def test_nothing_waits_for_permits(broker: Broker, fleeting: str) -> None:
    with RawConnection(broker.port) as sender, RawConnection(broker.port) as one:
        sender.producer(fleeting)
        for kind in range(4):
            answer = one.subscribe(fleeting, f"s{kind}", kind + 1, kind)
            assert answer.type == wire.SUCCESS
            one.flow(2, kind + 1)
        time.sleep(1.5)
        for number in range(6):
            sender.send(b"%d" % number, number)
            receipt = sender.expect(wire.SEND_RECEIPT)
            assert wire.position(receipt.data(3)) == (0, 0)
        got: dict[int, list[bytes]] = {}
        for _ in range(8):
            frame = one.wait_for(wire.MESSAGE)
            assert wire.position(frame.data(2)) == (0, 0)
            got.setdefault(frame.number(1), []).append(wire.parse_payload(frame.rest).body)
        assert got == {consumer: [b"0", b"1"] for consumer in range(1, 5)}
        for kind in range(4):
            one.flow(100, kind + 1)
        with pytest.raises(TimeoutError):
            one.wait_for(wire.MESSAGE, 0.7)


def test_a_reader_of_a_non_persistent_topic(client: AnyClient, fleeting: str) -> None:
    reader = client.create_reader(fleeting, pulsar.MessageId.latest)
    producer = client.create_producer(fleeting)
    producer.send(b"now")
    assert reader.read_next(timeout_millis=10_000).data() == b"now"


def test_many_messages_to_a_consumer_that_keeps_up(client: AnyClient, fleeting: str) -> None:
    consumer = client.subscribe(fleeting, "s", receiver_queue_size=20_000)
    producer = client.create_producer(
        fleeting, block_if_queue_full=True, batching_enabled=True, max_pending_messages=500
    )
    bodies = [payload(number) for number in range(10_000)]
    publish(producer, bodies)
    received = receive(consumer, 9_000, ack=False)
    # Some may be dropped; none comes twice, or out of order.
    numbers = {body: number for number, body in enumerate(bodies)}
    order = [numbers[body] for body in received]
    assert order == sorted(set(order))
