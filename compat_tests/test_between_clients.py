"""What one official client writes the other one reads, and ids pass between them."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.go_client import Client as GoClient

from compat_tests.conftest import AnyClient, official_client
from compat_tests.messages import assert_nothing_more, payload, publish, receive

EARLIEST = pulsar.InitialPosition.Earliest
SHARED = pulsar.ConsumerType.Shared
CODECS = ["LZ4", "ZLib", "ZSTD", "SNAPPY"]


@pytest.fixture
def pair(python_client: pulsar.Client, go_client: GoClient, request: Any) -> list[AnyClient]:
    """Who writes and who reads."""
    both = {"python": python_client, "go": go_client}
    return [both[name] for name in request.param]


both_ways = pytest.mark.parametrize(
    "pair",
    [("go", "python"), ("python", "go")],
    indirect=True,
    ids=["go-to-python", "python-to-go"],
)
batched_or_not = pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])


def place(one: Any) -> tuple[int, int]:
    return one.ledger_id(), one.entry_id()


@both_ways
@batched_or_not
@pytest.mark.parametrize("codec", CODECS)
def test_a_codec_is_read(pair: list[AnyClient], topic: str, codec: str, batched: bool) -> None:
    writer, reader = pair
    consumer = reader.subscribe(topic, "check")
    producer = writer.create_producer(
        topic,
        compression_type=pulsar.CompressionType.__members__[codec],
        batching_enabled=batched,
    )
    bodies = [*(payload(number) for number in range(300)), b"\0" * 100_000]
    publish(producer, bodies)
    assert receive(consumer, len(bodies)) == bodies
    assert_nothing_more(consumer)


@both_ways
@batched_or_not
def test_an_empty_message_is_read(pair: list[AnyClient], topic: str, batched: bool) -> None:
    # Without a codec: of an empty message that stands alone, the clients do not agree on whether
    # its compressed form is to be decompressed; and the Go client takes an empty one without
    # properties for a broken one.
    writer, reader = pair
    consumer = reader.subscribe(topic, "check")
    producer = writer.create_producer(topic, batching_enabled=batched)
    for body in (b"", b"x", b""):
        producer.send(body, properties={"not": "broken"})
    assert receive(consumer, 3) == [b"", b"x", b""]


@both_ways
@batched_or_not
def test_all_fields_are_read(pair: list[AnyClient], topic: str, batched: bool) -> None:
    writer, reader = pair
    consumer = reader.subscribe(topic, "check")
    producer = writer.create_producer(
        topic, producer_name=f"writer-of-{topic}", batching_enabled=batched
    )
    sent = producer.send(
        b"body",
        properties={"a": "1", "schlüssel": "wert ✓", "empty": ""},
        partition_key="the key",
        ordering_key="the order",
        event_timestamp=1_700_000_000_123,
        sequence_id=77,
    )
    message = consumer.receive(timeout_millis=10_000)
    assert message.data() == b"body"
    assert message.properties() == {"a": "1", "schlüssel": "wert ✓", "empty": ""}
    assert message.partition_key() == "the key"
    assert message.ordering_key() == "the order"
    assert message.event_timestamp() == 1_700_000_000_123
    assert message.publish_timestamp() > 1_700_000_000_000
    assert message.producer_name() == f"writer-of-{topic}"
    assert message.topic_name() == topic
    assert message.redelivery_count() == 0
    assert place(message.message_id()) == place(sent)
    assert producer.last_sequence_id() == 77


@both_ways
def test_a_message_without_fields_is_read(pair: list[AnyClient], topic: str) -> None:
    writer, reader = pair
    consumer = reader.subscribe(topic, "check")
    writer.create_producer(topic).send(b"plain")
    message = consumer.receive(timeout_millis=10_000)
    assert message.properties() == {}
    assert (message.partition_key(), message.ordering_key()) == ("", "")
    assert message.event_timestamp() == 0


@both_ways
def test_the_messages_of_a_batch_have_the_same_ids(pair: list[AnyClient], topic: str) -> None:
    writer, reader = pair
    consumer = reader.subscribe(topic, "check")
    producer = writer.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=500
    )
    sent = publish(producer, [payload(number) for number in range(20)])
    got = [consumer.receive(timeout_millis=10_000).message_id() for _ in range(20)]
    assert [place(one) for one in got] == [place(one) for one in sent]
    assert [one.batch_index() for one in got] == [*range(10), *range(10)]
    assert [one.batch_index() for one in sent] == [*range(10), *range(10)]
    assert len({place(one) for one in got}) == 2


@both_ways
def test_batches_by_key_are_read(pair: list[AnyClient], topic: str) -> None:
    writer, reader = pair
    consumer = reader.subscribe(topic, "check")
    producer = writer.create_producer(
        topic,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=100,
    )
    for number in range(60):
        producer.send_async(b"%d" % number, None, partition_key=f"key-{number % 3}")
    producer.flush()
    keys_of_entry: dict[tuple[int, int], set[str]] = {}
    of_key: dict[str, list[int]] = {}
    for _ in range(60):
        message = consumer.receive(timeout_millis=10_000)
        key = message.partition_key()
        keys_of_entry.setdefault(place(message.message_id()), set()).add(key)
        of_key.setdefault(key, []).append(int(message.data()))
    assert all(len(keys) == 1 for keys in keys_of_entry.values()), keys_of_entry
    assert of_key == {f"key-{n}": list(range(n, 60, 3)) for n in range(3)}


@both_ways
def test_the_other_clients_ids_are_places(pair: list[AnyClient], topic: str) -> None:
    # In batches: of a message outside, the Go client says that it is number 0 of 1, the Python
    # client that it has no number, and neither takes the other's form for a place.
    writer, reader = pair
    bodies = [payload(number) for number in range(50)]
    consumer = reader.subscribe(topic, "places")
    ids = publish(writer.create_producer(topic, batching_enabled=True), bodies)
    assert receive(consumer, 50) == bodies
    consumer.seek(ids[19])
    assert receive(consumer, 30) == bodies[20:]
    behind = reader.create_reader(topic, ids[39])
    assert [behind.read_next(timeout_millis=10_000).data() for _ in range(10)] == bodies[40:]
    including = reader.create_reader(topic, ids[39], start_message_id_inclusive=True)
    assert including.read_next(timeout_millis=10_000).data() == bodies[39]


def test_ids_of_the_python_client_are_acknowledged_by_the_go_client(
    python_client: pulsar.Client, go_client: GoClient, topic: str
) -> None:
    producer = python_client.create_producer(topic)
    ids = publish(producer, [payload(number) for number in range(10)])
    consumer = go_client.subscribe(topic, "acks", consumer_type=SHARED, initial_position=EARLIEST)
    receive(consumer, 10, ack=False)
    for one in ids[::2]:
        consumer.acknowledge(one)
    consumer.close()
    again = python_client.subscribe(topic, "acks", consumer_type=SHARED)
    assert sorted(receive(again, 5)) == sorted(payload(number) for number in range(1, 10, 2))
    assert_nothing_more(again)


@both_ways
def test_a_subscription_passes_from_one_client_to_the_other(
    pair: list[AnyClient], topic: str
) -> None:
    first, second = pair
    bodies = [payload(number) for number in range(100)]
    consumer = first.subscribe(topic, "passed")
    publish(second.create_producer(topic, batching_enabled=False), bodies)
    got = [consumer.receive(timeout_millis=10_000) for _ in range(60)]
    consumer.acknowledge_cumulative(got[59])
    consumer.close()
    assert receive(second.subscribe(topic, "passed"), 40) == bodies[60:]


def test_both_clients_share_a_subscription(
    python_client: pulsar.Client, go_client: GoClient, topic: str
) -> None:
    consumers = [
        client.subscribe(topic, "shared", consumer_type=SHARED, receiver_queue_size=10)
        for client in (python_client, go_client)
    ]
    bodies = [b"%d" % number for number in range(200)]
    publish(python_client.create_producer(topic), bodies[:100])
    publish(go_client.create_producer(topic), bodies[100:])
    shares: list[list[bytes]] = [[], []]
    for turn in range(400):
        try:
            message = consumers[turn % 2].receive(timeout_millis=300)
        except pulsar.Timeout:
            if sum(map(len, shares)) == 200:
                break
            continue
        consumers[turn % 2].acknowledge(message)
        shares[turn % 2].append(message.data())
    assert sorted(shares[0] + shares[1]) == sorted(bodies)
    assert min(map(len, shares)) > 20, [len(share) for share in shares]


def test_an_exclusive_subscription_keeps_the_other_client_out(
    python_client: pulsar.Client, go_client: GoClient, topic: str
) -> None:
    mine = python_client.subscribe(topic, "mine")
    with pytest.raises(pulsar.ConsumerBusy):
        go_client.subscribe(topic, "mine")
    mine.close()
    taken = go_client.subscribe(topic, "mine")
    with pytest.raises(pulsar.ConsumerBusy):
        python_client.subscribe(topic, "mine")
    taken.close()


@both_ways
def test_a_client_that_crashes_gives_its_messages_back(
    broker: Broker, topic: str, pair: list[AnyClient]
) -> None:
    """A killed process of the Go client, and a Python client that only shuts down."""
    first, second = pair
    # A client of its own, for it does not live on.
    doomed = GoClient(broker.url) if isinstance(first, GoClient) else official_client(broker.url)
    consumer = doomed.subscribe(topic, "crash", consumer_type=SHARED)
    bodies = [b"%d" % number for number in range(30)]
    publish(second.create_producer(topic), bodies)
    receive(consumer, 30, ack=False)
    other = second.subscribe(topic, "crash", consumer_type=SHARED)
    doomed.shutdown()
    got = [other.receive(timeout_millis=10_000) for _ in range(30)]
    assert sorted(message.data() for message in got) == sorted(bodies)
