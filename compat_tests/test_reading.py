"""Readers, seeking by id and by time, the last message id."""

from __future__ import annotations

import time

import pulsar
import pytest

from compat_tests.conftest import AnyClient
from compat_tests.messages import assert_nothing_more, payload, publish, receive

ACKS_LEAVE_S = 0.5
"""Clients send acknowledgements together, every 100 ms; one that comes after a seek counts."""


@pytest.fixture
def client(any_client: AnyClient) -> AnyClient:
    return any_client


@pytest.fixture(params=[True, False], ids=["batched", "unbatched"])
def batched(request: pytest.FixtureRequest) -> bool:
    return request.param


def bodies(count: int) -> list[bytes]:
    return [payload(number, 50) for number in range(count)]


def read(reader: pulsar.Reader, count: int) -> list[bytes]:
    return [reader.read_next(timeout_millis=10_000).data() for _ in range(count)]


def test_a_reader_reads_all_from_the_earliest(client: AnyClient, topic: str, batched: bool) -> None:
    publish(client.create_producer(topic, batching_enabled=batched), bodies(500))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert read(reader, 500) == bodies(500)
    assert not reader.has_message_available()


def test_a_reader_starts_behind_the_latest(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic)
    publish(producer, bodies(10))
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    producer.send(b"new")
    assert read(reader, 1) == [b"new"]


def test_a_reader_starts_behind_an_id(client: AnyClient, topic: str, batched: bool) -> None:
    ids = publish(client.create_producer(topic, batching_enabled=batched), bodies(100))
    behind = client.create_reader(topic, ids[39])
    assert read(behind, 60) == bodies(100)[40:]
    including = client.create_reader(topic, ids[39], start_message_id_inclusive=True)
    assert read(including, 61) == bodies(100)[39:]


def test_a_reader_leaves_no_subscription_behind(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(payload(number))
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert read(reader, number + 1) == [payload(n) for n in range(number + 1)]
        reader.close()


def test_has_message_available_follows_the_topic(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    for number in range(5):
        producer.send(payload(number))
        assert reader.has_message_available()
        assert read(reader, 1) == [payload(number)]
        assert not reader.has_message_available()


def test_last_message_id(client: AnyClient, topic: str, batched: bool) -> None:
    consumer = client.subscribe(topic, "last")
    ids = publish(client.create_producer(topic, batching_enabled=batched), bodies(25))
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id())
    assert last.batch_index() == ids[-1].batch_index()


def test_seek_to_an_id(client: AnyClient, topic: str, batched: bool) -> None:
    consumer = client.subscribe(topic, "seek")
    ids = publish(client.create_producer(topic, batching_enabled=batched), bodies(100))
    assert receive(consumer, 100) == bodies(100)
    consumer.seek(ids[70])
    assert receive(consumer, 29) == bodies(100)[71:]
    consumer.seek(pulsar.MessageId.earliest)
    assert receive(consumer, 100) == bodies(100)
    consumer.seek(pulsar.MessageId.latest)
    assert_nothing_more(consumer)


def test_seek_to_a_time(client: AnyClient, topic: str) -> None:
    consumer = client.subscribe(topic, "clock")
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, bodies(50))
    time.sleep(0.3)
    between_ms = int(time.time() * 1000)
    time.sleep(0.3)
    publish(producer, bodies(80)[50:])
    assert receive(consumer, 80) == bodies(80)
    consumer.seek(between_ms)
    assert receive(consumer, 30) == bodies(80)[50:]
    consumer.seek(between_ms - 3_600_000)
    assert receive(consumer, 80) == bodies(80)


def test_seek_of_a_reader(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = publish(producer, bodies(20))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert read(reader, 20) == bodies(20)
    reader.seek(ids[9])
    assert read(reader, 10) == bodies(20)[10:]
    reader.seek(pulsar.MessageId.earliest)
    assert read(reader, 20) == bodies(20)
    reader.seek(pulsar.MessageId.latest)
    producer.send(b"new")
    assert read(reader, 1) == [b"new"]


@pytest.mark.parametrize("inclusive", [True, False])
def test_seek_into_a_batch(client: AnyClient, topic: str, inclusive: bool) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=5000
    )
    ids = publish(producer, bodies(30))
    consumer = client.subscribe(topic, "seek", start_message_id_inclusive=inclusive)
    consumer.seek(ids[14])
    first = 14 if inclusive else 15
    assert receive(consumer, 30 - first) == bodies(30)[first:]
    assert_nothing_more(consumer)


def test_a_seek_holds_for_every_consumer(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    consumers = [
        client.subscribe(topic, "both", consumer_type=pulsar.ConsumerType.Shared) for _ in range(2)
    ]
    ids = publish(producer, bodies(40))
    received: list[bytes] = []

    def drain(expected: list[bytes]) -> None:
        deadline = time.monotonic() + 20
        while not set(expected) <= set(received) and time.monotonic() < deadline:
            for consumer in consumers:
                try:
                    message = consumer.receive(timeout_millis=100)
                except pulsar.Timeout:
                    continue
                consumer.acknowledge(message)
                received.append(message.data())

    drain(bodies(40))
    received.clear()
    time.sleep(ACKS_LEAVE_S)
    consumers[0].seek(ids[30])
    drain(bodies(40)[31:])
    # Only the consumer that moved knows of the id it was moved to, and leaves it out.
    assert set(bodies(40)[31:]) <= set(received) <= set(bodies(40)[30:])


def test_has_message_available_after_a_seek(python_client: pulsar.Client, topic: str) -> None:
    # Until the Go client has reconnected it answers for the place where it was before.
    client = python_client
    producer = client.create_producer(topic, batching_enabled=False)
    ids = publish(producer, bodies(10))
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    reader.seek(pulsar.MessageId.earliest)
    assert reader.has_message_available()
    assert read(reader, 10) == bodies(10)
    assert not reader.has_message_available()
    reader.seek(ids[8])
    assert reader.has_message_available()
    assert read(reader, 1) == bodies(10)[9:]
    reader.seek(pulsar.MessageId.latest)
    assert not reader.has_message_available()
    producer.send(b"new")
    assert reader.has_message_available()
    assert read(reader, 1) == [b"new"]


def test_a_reader_is_moved_to_a_time(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, bodies(10))
    time.sleep(0.3)
    between_ms = int(time.time() * 1000)
    time.sleep(0.3)
    publish(producer, bodies(20)[10:])
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    reader.seek(between_ms)
    assert read(reader, 10) == bodies(20)[10:]
    reader.seek(int(time.time() * 1000) + 60_000)
    producer.send(b"new")
    assert read(reader, 1) == [b"new"]


def test_a_chunked_message_is_read_from_its_first_chunk(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    large = payload(1, 12 * 1024 * 1024)
    producer.send(b"before")
    chunked = producer.send(large)
    producer.send(b"after")
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    consumer.seek(chunked)
    assert receive(consumer, 2) == [large, b"after"]


def test_a_reader_starts_at_the_first_chunk(python_client: pulsar.Client, topic: str) -> None:
    # The Go client starts its readers at the last one, at any broker.
    client = python_client
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    large = payload(1, 12 * 1024 * 1024)
    producer.send(b"before")
    chunked = producer.send(large)
    producer.send(b"after")
    reader = client.create_reader(topic, chunked, start_message_id_inclusive=True)
    assert read(reader, 2) == [large, b"after"]
    assert not reader.has_message_available()


def test_partition_count_of_a_plain_topic_is_zero(client: AnyClient, topic: str) -> None:
    client.create_producer(topic)
    assert client.get_topic_partitions(topic) == [topic]
