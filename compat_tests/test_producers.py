"""Producers: many at once, names, sizes, several topics on one connection."""

from __future__ import annotations

import itertools

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.conftest import AnyClient, ClientFactory
from compat_tests.messages import payload, publish, receive

MAX_MESSAGE_BYTES = 5 * 1024 * 1024


@pytest.fixture
def client(any_client: AnyClient) -> AnyClient:
    return any_client


def test_64_producers_at_once_keep_their_order(client: AnyClient, topic: str) -> None:
    producers = 64
    each = 200
    consumer = client.subscribe(topic, "check", receiver_queue_size=10_000)
    made = [client.create_producer(topic, batching_enabled=n % 2 == 0) for n in range(producers)]
    assert len({producer.producer_name() for producer in made}) == producers
    refused: list[object] = []

    def done(result: pulsar.Result, _: object) -> None:
        if result != pulsar.Result.Ok:
            refused.append(result)

    for number, (index, producer) in itertools.product(range(each), enumerate(made)):
        producer.send_async(f"{index}:{number}".encode(), done)
    seen: dict[int, list[int]] = {index: [] for index in range(producers)}
    for body in receive(consumer, producers * each):
        index, number = map(int, body.split(b":"))
        seen[index].append(number)
    assert not refused
    assert all(numbers == list(range(each)) for numbers in seen.values())


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_message_at_the_size_limit(client: AnyClient, topic: str, batched: bool) -> None:
    consumer = client.subscribe(topic, "check")
    producer = client.create_producer(topic, batching_enabled=batched, chunking_enabled=False)
    # The client counts the metadata too, so the largest body is a little under the limit.
    body = payload(1, MAX_MESSAGE_BYTES - 200)
    producer.send(body)
    assert consumer.receive(timeout_millis=20_000).data() == body
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(payload(2, MAX_MESSAGE_BYTES + 1))
    producer.send(b"the producer goes on")
    assert consumer.receive(timeout_millis=20_000).data() == b"the producer goes on"


def test_topics_share_one_connection(client: AnyClient, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(20)]
    consumers = [client.subscribe(name, "check") for name in topics]
    producers = [client.create_producer(name) for name in topics for _ in range(2)]
    for number in range(50):
        for index, producer in enumerate(producers):
            producer.send_async(f"{index}/{number}".encode(), None)
    for index, consumer in enumerate(consumers):
        bodies = receive(consumer, 100)
        for mine in (2 * index, 2 * index + 1):
            numbers = [int(b.split(b"/")[1]) for b in bodies if int(b.split(b"/")[0]) == mine]
            assert numbers == list(range(50))


def test_hundreds_of_topics(client: AnyClient, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(300)]
    producers = [client.create_producer(name) for name in names]
    for number, producer in enumerate(producers):
        producer.send(payload(number))
    for number, name in enumerate(names):
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        assert reader.read_next(timeout_millis=10_000).data() == payload(number)
        reader.close()


def test_a_producer_name_is_held_once(new_client: ClientFactory, topic: str) -> None:
    first = new_client().create_producer(topic, producer_name="only-one")
    other_client = new_client(operation_timeout_seconds=3)
    with pytest.raises(pulsar.ProducerBusy):
        other_client.create_producer(topic, producer_name="only-one")
    first.close()
    again = other_client.create_producer(topic, producer_name="only-one")
    again.send(b"x")


def test_message_ids_rise(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    ids = publish(producer, [payload(number) for number in range(500)])
    places = [(one.ledger_id(), one.entry_id()) for one in ids]
    assert places == sorted(set(places))


def test_messages_of_a_batch_share_an_entry(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=200, batching_max_messages=10
    )
    ids = publish(producer, [payload(number) for number in range(10)])
    assert len({(one.ledger_id(), one.entry_id()) for one in ids}) == 1
    assert [one.batch_index() for one in ids] == list(range(10))


def test_lookup_over_http(new_client: ClientFactory, broker: Broker, topic: str) -> None:
    client = new_client(broker.web_url)
    consumer = client.subscribe(topic, "check")
    client.create_producer(topic).send(b"found over http")
    assert consumer.receive(timeout_millis=10_000).data() == b"found over http"


def test_invalid_topic_names_are_refused(client: AnyClient) -> None:
    for name in ("persistent://only-two/parts", "nonsense://a/b/c", "a/b"):
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(name)
