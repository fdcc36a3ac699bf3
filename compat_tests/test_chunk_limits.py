"""Chunks that never become a message: they cost a client its patience, and nobody anything else.

What is incomplete is written chunk by chunk over a plain socket, and read by both clients.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.go_client import Client as GoClient
from harness.raw import RawConnection

from compat_tests.conftest import AnyClient
from compat_tests.messages import TYPES, assert_nothing_more, payload, publish, receive

EARLIEST = pulsar.InitialPosition.Earliest
every_type = pytest.mark.parametrize("type_name", TYPES)
# Apache Pulsar holds a Shared subscription up: it looks for the consumer that got the beginning.
every_type_here = pytest.mark.parametrize(
    "type_name",
    [
        pytest.param(name, marks=pytest.mark.pyxbroker) if name == "shared" else name
        for name in TYPES
    ],
)
CHUNK = 100


class Chunks:
    """A producer on a plain socket: sends whole messages, and chunks one by one."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._raw = RawConnection(broker.port)
        self._raw.producer(topic)
        self._sequence = 0

    def __enter__(self) -> Chunks:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.socket.close()

    def whole(self, body: bytes) -> None:
        self._write({}, body)

    def chunk(self, name: str, index: int, count: int = 2) -> None:
        """Chunk `index` of `count` of the message that `message(name, count)` tells."""
        size = count * CHUNK
        fields = {9: size, 26: name, 27: count, 28: size, 29: index}
        self._write(fields, message(name, count)[index * CHUNK : (index + 1) * CHUNK])

    def _write(self, fields: dict[int, Any], body: bytes) -> None:
        meta = wire.metadata("raw", self._sequence, int(time.time() * 1000), fields=fields)
        options = {"send_fields": {7: 1}} if fields else {}
        self._raw.write(wire.send(1, self._sequence, meta, body, **options))
        self._sequence += 1
        self._raw.wait_for(wire.SEND_RECEIPT)


def message(name: str, count: int = 2) -> bytes:
    """The bytes of a chunked message."""
    return payload(sum(name.encode()), count * CHUNK)


@every_type_here
def test_a_lost_chunk_blocks_nobody(
    broker: Broker, any_client: AnyClient, topic: str, type_name: str
) -> None:
    options: dict[str, Any] = {"consumer_type": TYPES[type_name], "initial_position": EARLIEST}
    consumer = any_client.subscribe(topic, "s", **options)
    with Chunks(broker, topic) as chunks:
        chunks.chunk("its end is lost", 0)
        chunks.whole(b"one")
        chunks.chunk("its beginning is lost", 1)
        chunks.chunk("complete", 0)
        chunks.chunk("its middle is lost", 0, 3)
        chunks.chunk("complete", 1)
        chunks.chunk("its middle is lost", 2, 3)
        chunks.whole(b"two")
        expected = [b"one", message("complete"), b"two"]
        assert receive(consumer, 3) == expected
        assert_nothing_more(consumer)
        consumer.close()
        again = any_client.subscribe(topic, "s", **options)
        chunks.whole(b"three")
        assert receive(again, 1) == [b"three"]
        assert_nothing_more(again)


@every_type_here
@pytest.mark.parametrize("acknowledged", [True, False], ids=["acked", "kept"])
def test_the_oldest_incomplete_message_makes_room(
    broker: Broker, any_client: AnyClient, topic: str, type_name: str, acknowledged: bool
) -> None:
    kind = TYPES[type_name]
    impatient = any_client.subscribe(
        topic,
        "s",
        consumer_type=kind,
        max_pending_chunked_message=1,
        auto_ack_oldest_chunked_message_on_queue_full=acknowledged,
    )
    with Chunks(broker, topic) as chunks:
        chunks.chunk("older", 0)
        chunks.chunk("newer", 0)
        time.sleep(0.5)  # the Go client gives up the older one in its own time
        chunks.chunk("newer", 1)
        chunks.whole(b"small")
        assert receive(impatient, 2) == [message("newer"), b"small"]
        assert_nothing_more(impatient, 400)
        impatient.close()
        chunks.chunk("older", 1)
    # What the consumer gave up is acknowledged, or left for the next one.
    patient = any_client.subscribe(topic, "s", consumer_type=kind)
    if not acknowledged:
        assert receive(patient, 1) == [message("older")]
    assert_nothing_more(patient)


@every_type_here
def test_an_incomplete_message_expires(
    broker: Broker, go_client: GoClient, topic: str, type_name: str
) -> None:
    """The Python client does not let one set the time (a minute)."""
    kind = TYPES[type_name]
    options: dict[str, Any] = {"expire_time_of_incomplete_chunked_message_ms": 400}
    consumer = go_client.subscribe(topic, "s", consumer_type=kind, **options)
    with Chunks(broker, topic) as chunks:
        chunks.chunk("late", 0)
        chunks.chunk("in time", 0)
        chunks.chunk("in time", 1)
        assert receive(consumer, 1) == [message("in time")]
        time.sleep(1.0)
        chunks.chunk("late", 1)
        assert_nothing_more(consumer)
        consumer.close()
        again = go_client.subscribe(topic, "s", consumer_type=kind)
        chunks.whole(b"small")
        assert receive(again, 1) == [b"small"]
        assert_nothing_more(again)


@pytest.mark.parametrize("type_name", ["exclusive", "failover"])
def test_a_cumulative_acknowledgement_ends_with_the_last_chunk(
    go_client: GoClient, any_client: AnyClient, topic: str, type_name: str
) -> None:
    kind = TYPES[type_name]
    consumer = any_client.subscribe(topic, "s", consumer_type=kind)
    producer = go_client.create_producer(
        topic, chunking_enabled=True, chunk_max_message_size=20_000
    )
    bodies = [payload(number, 90_000) for number in range(5)]
    publish(producer, bodies)
    got = [consumer.receive(timeout_millis=10_000) for _ in bodies]
    consumer.acknowledge_cumulative(got[2])
    time.sleep(0.3)  # the Go client sends it within 100 ms
    consumer.close()
    again = any_client.subscribe(topic, "s", consumer_type=kind)
    assert receive(again, 2) == bodies[3:]
    assert_nothing_more(again)


@every_type
def test_chunks_are_acknowledged_together(
    broker: Broker, any_client: AnyClient, topic: str, type_name: str
) -> None:
    kind = TYPES[type_name]
    consumer = any_client.subscribe(topic, "s", consumer_type=kind)
    with Chunks(broker, topic) as chunks:
        for index in range(3):
            chunks.chunk("a", index, 3)
            chunks.chunk("b", index, 3)
    first = consumer.receive(timeout_millis=10_000)
    assert first.data() == message("a", 3)
    assert consumer.receive(timeout_millis=10_000).data() == message("b", 3)
    consumer.acknowledge(first)
    time.sleep(0.3)  # the Go client sends it within 100 ms
    consumer.close()
    # All three chunks of the other one come again, and none of the first.
    again = any_client.subscribe(topic, "s", consumer_type=kind)
    assert receive(again, 1) == [message("b", 3)]
    assert_nothing_more(again)


@pytest.mark.parametrize("type_name", ["shared", "key_shared"])
def test_consumers_that_share_a_subscription_get_whole_messages(
    go_client: GoClient, any_client: AnyClient, topic: str, type_name: str
) -> None:
    """All chunks of a message go to one consumer, also when several producers send at once."""
    consumers = [
        any_client.subscribe(
            topic, "s", consumer_type=TYPES[type_name], max_pending_chunked_message=100
        )
        for _ in range(3)
    ]
    producers = [
        go_client.create_producer(topic, chunking_enabled=True, chunk_max_message_size=20_000)
        for _ in range(4)
    ]
    sent = []
    for number in range(10):
        for index, producer in enumerate(producers):
            sent.append(payload(10 * number + index, 70_000))
            producer.send_async(sent[-1], None)
    for producer in producers:
        producer.flush()
    received: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(received) < len(sent) and time.monotonic() < deadline:
        for consumer in consumers:
            with contextlib.suppress(pulsar.Timeout):
                received += receive(consumer, 1, timeout_ms=100)
    assert sorted(received) == sorted(sent)
    for consumer in consumers:
        assert_nothing_more(consumer, 300)
