"""Chunked messages: all subscription types that allow them, both clients, chunks of others between.

The Go client cuts at any size (``chunk_max_message_size``), the Python client at the broker's
limit only, so most tests let the Go client write and both of them read.
"""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from harness.go_client import Client as GoClient

from compat_tests.conftest import AnyClient
from compat_tests.messages import assert_nothing_more, payload, publish, receive

EARLIEST = pulsar.InitialPosition.Earliest
TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
}
MIB = 1024 * 1024
CHUNK_BYTES = 20_000

every_type = pytest.mark.parametrize("type_name", TYPES)


def chunking(client: AnyClient, topic: str, **options: Any) -> Any:
    """A producer that cuts: at 20,000 bytes if it can be told."""
    if isinstance(client, GoClient):
        options.setdefault("chunk_max_message_size", CHUNK_BYTES)
    return client.create_producer(topic, chunking_enabled=True, batching_enabled=False, **options)


@every_type
def test_a_message_above_the_limit_comes_back(
    any_client: AnyClient, topic: str, type_name: str
) -> None:
    consumer = any_client.subscribe(topic, "check", consumer_type=TYPES[type_name])
    producer = any_client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    body = payload(7, 12 * MIB + 5)
    producer.send(body)
    producer.send(b"a small one behind it")
    message = consumer.receive(timeout_millis=30_000)
    assert message.data() == body
    consumer.acknowledge(message)
    assert receive(consumer, 1) == [b"a small one behind it"]
    consumer.close()
    again = any_client.subscribe(topic, "check", consumer_type=TYPES[type_name])
    assert_nothing_more(again)


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_a_compressed_message_is_cut_behind_the_codec(
    go_client: GoClient, any_client: AnyClient, topic: str, codec: str
) -> None:
    consumer = any_client.subscribe(topic, "check")
    kind = pulsar.CompressionType.__members__[codec]
    producer = chunking(go_client, topic, compression_type=kind)
    bodies = [payload(number, 300_000 + number) for number in range(5)]
    publish(producer, bodies)
    assert receive(consumer, 5) == bodies


@every_type
def test_many_chunked_messages_keep_their_order(
    go_client: GoClient, any_client: AnyClient, topic: str, type_name: str
) -> None:
    consumer = any_client.subscribe(topic, "check", consumer_type=TYPES[type_name])
    bodies = [payload(number, 10_000 + number * 7_919 % 150_000) for number in range(60)]
    publish(chunking(go_client, topic, max_pending_messages=2000), bodies)
    assert receive(consumer, 60) == bodies
    assert_nothing_more(consumer)


@every_type
def test_unacknowledged_chunks_return_to_the_next_consumer(
    go_client: GoClient, any_client: AnyClient, topic: str, type_name: str
) -> None:
    kind = TYPES[type_name]
    consumer = any_client.subscribe(topic, "again", consumer_type=kind)
    bodies = [payload(number, 90_000) for number in range(6)]
    publish(chunking(go_client, topic), bodies)
    got = [consumer.receive(timeout_millis=10_000) for _ in range(6)]
    for message in got[:3]:
        consumer.acknowledge(message)
    consumer.close()
    again = any_client.subscribe(topic, "again", consumer_type=kind)
    assert receive(again, 3) == bodies[3:]
    again.close()
    assert_nothing_more(any_client.subscribe(topic, "again", consumer_type=kind))


def test_chunks_between_those_of_others(go_client: GoClient, topic: str, any_client: Any) -> None:
    consumer = any_client.subscribe(topic, "check", max_pending_chunked_message=20)
    producers = [chunking(go_client, topic) for _ in range(8)]
    sent: list[bytes] = []
    for number in range(4):
        for index, producer in enumerate(producers):
            body = payload(number * 8 + index, 70_000 + index)
            sent.append(body)
            producer.send_async(body, None)
    for producer in producers:
        producer.flush()
    assert sorted(receive(consumer, 32)) == sorted(sent)
    assert_nothing_more(consumer)


def test_a_chunked_message_is_a_place_for_a_reader(
    go_client: GoClient, topic: str, any_client: AnyClient
) -> None:
    bodies = [payload(number, 70_000) for number in range(10)]
    ids = publish(chunking(go_client, topic), bodies)
    reader = any_client.create_reader(topic, ids[4])
    assert [reader.read_next(timeout_millis=10_000).data() for _ in range(5)] == bodies[5:]
    with pytest.raises(pulsar.Timeout):
        reader.read_next(timeout_millis=500)


def test_seek_to_a_chunked_message(go_client: GoClient, topic: str) -> None:
    consumer = go_client.subscribe(topic, "seek", start_message_id_inclusive=True)
    bodies = [payload(number, 70_000) for number in range(10)]
    ids = publish(chunking(go_client, topic), bodies)
    assert receive(consumer, 10) == bodies
    consumer.seek(ids[6])
    assert receive(consumer, 4) == bodies[6:]
    consumer.seek(pulsar.MessageId.earliest)
    assert receive(consumer, 10) == bodies


def test_the_last_message_id_is_that_of_the_last_chunk(
    go_client: GoClient, any_client: AnyClient, topic: str
) -> None:
    consumer = any_client.subscribe(topic, "last")
    sent = chunking(go_client, topic).send(payload(3, 100_000))
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (sent.ledger_id(), sent.entry_id())


def test_a_negative_acknowledgement_brings_all_chunks_again(
    go_client: GoClient, topic: str
) -> None:
    # The Python client asks for the last chunk alone again and cannot put it together.
    consumer = go_client.subscribe(
        topic,
        "nack",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=200,
    )
    body = payload(9, 100_000)
    chunking(go_client, topic).send(body)
    first = consumer.receive(timeout_millis=10_000)
    consumer.negative_acknowledge(first)
    second = consumer.receive(timeout_millis=10_000)
    assert first.data() == second.data() == body
    consumer.acknowledge(second)
    assert_nothing_more(consumer)
