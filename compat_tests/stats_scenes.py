"""Histories of topics that either broker is given, for what it tells of them afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar
from harness.brokers import Broker
from harness.web import web

PERSISTENT = "/admin/v2/persistent/public/default"
TOPIC = "persistent://public/default"
Json = dict[str, Any]
Scene = Callable[[Broker, pulsar.Client, str], None]
EARLIEST = pulsar.InitialPosition.Earliest


def told(broker: Broker, path: str) -> Any:
    answer = web(broker, "GET", path)
    assert answer.status == 200, (path, answer.body)
    return answer.json()


def done(broker: Broker, method: str, path: str, body: Any = None) -> None:
    status, text = broker.request(method, path, body)
    assert status in (200, 204), (path, status, text)


def chunks(broker: Broker, client: pulsar.Client, name: str) -> None:
    """Messages in pieces, of which one consumer gets all and acknowledges all but the last."""
    consumer = client.subscribe(f"{TOPIC}/{name}", "s", consumer_name="c")
    producer = client.create_producer(
        f"{TOPIC}/{name}", producer_name="p", batching_enabled=False, chunking_enabled=True,
        max_pending_messages=100, compression_type=pulsar.CompressionType.NONE,
    )  # fmt: skip
    for number in range(3):
        producer.send(b"x" * (11 << 20))
        message = consumer.receive(30_000)
        if number < 2:
            consumer.acknowledge(message)
    time.sleep(1)  # a client gathers acknowledgements


def expiry(broker: Broker, client: pulsar.Client, name: str) -> None:
    """Half of what a subscription has left expires."""
    client.subscribe(f"{TOPIC}/{name}", "s").close()
    producer = client.create_producer(f"{TOPIC}/{name}", batching_enabled=False)
    for _ in range(4):
        producer.send(b"old")
    time.sleep(2.1)
    producer.send(b"new")
    done(broker, "POST", f"{PERSISTENT}/{name}/subscription/s/expireMessages/1")
    time.sleep(1)


def throttled(broker: Broker, client: pulsar.Client, name: str) -> None:
    """Who reads is held back by the subscription's and the topic's rate."""
    topic = f"{TOPIC}/{name}"
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=5)
    rate = {
        "dispatchThrottlingRateInMsg": 5,
        "dispatchThrottlingRateInByte": -1,
        "ratePeriodInSecond": 1,
    }
    done(broker, "POST", f"{PERSISTENT}/{name}/subscriptionDispatchRate", rate)
    time.sleep(2)
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(30):
        producer.send(b"m")
    for _ in range(20):
        consumer.acknowledge(consumer.receive(30_000))


def throttled_topic(broker: Broker, client: pulsar.Client, name: str) -> None:
    """Who reads is held back by the topic's rate of bytes."""
    topic = f"{TOPIC}/{name}"
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=5)
    rate = {
        "dispatchThrottlingRateInMsg": -1,
        "dispatchThrottlingRateInByte": 500,
        "ratePeriodInSecond": 1,
    }
    done(broker, "POST", f"{PERSISTENT}/{name}/dispatchRate", rate)
    time.sleep(2)
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(30):
        producer.send(b"m" * 100)
    for _ in range(15):
        consumer.acknowledge(consumer.receive(30_000))


def draining(broker: Broker, client: pulsar.Client, name: str) -> None:
    """Hashes that a second consumer took over while the first has messages of them."""
    topic = f"{TOPIC}/{name}"
    first = client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, consumer_name="first")
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(20):
        producer.send(b"m", partition_key=f"k{i % 10}")
    taken = [first.receive(10_000) for _ in range(20)]
    client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, consumer_name="second")
    for i in range(20):
        producer.send(b"m", partition_key=f"k{i % 10}")
    time.sleep(1)
    for message in taken[:3]:
        first.acknowledge(message)
    for message in taken[10:13]:
        first.acknowledge(message)
    time.sleep(1)


def delayed(broker: Broker, client: pulsar.Client, name: str) -> None:
    """Messages for later, and one for now."""
    topic = f"{TOPIC}/{name}"
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, consumer_name="c")
    producer = client.create_producer(topic, producer_name="p", batching_enabled=False)
    for _ in range(3):
        producer.send(b"later", deliver_at=int(time.time() * 1000) + 3_600_000)
    producer.send(b"now")
    consumer.receive(10_000)


def schema_and_compaction(broker: Broker, client: pulsar.Client, name: str) -> None:
    """A topic with a schema that is compacted."""
    topic = f"{TOPIC}/{name}"
    client.subscribe(topic, "s").close()
    producer = client.create_producer(
        topic, producer_name="p", batching_enabled=False, schema=pulsar.schema.StringSchema()
    )
    for i in range(6):
        producer.send("v", partition_key=f"k{i % 2}")
    done(broker, "PUT", f"{PERSISTENT}/{name}/compaction")
    for _ in range(100):
        if told(broker, f"{PERSISTENT}/{name}/compaction")["status"] == "SUCCESS":
            break
        time.sleep(0.1)
    time.sleep(1)


def deduplicated(broker: Broker, client: pulsar.Client, name: str) -> None:
    """A topic that refuses doubles, with a batch of which a part is acknowledged."""
    topic = f"{TOPIC}/{name}"
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, consumer_name="c")
    done(broker, "POST", f"{PERSISTENT}/{name}/deduplicationEnabled", True)
    time.sleep(1)
    producer = client.create_producer(
        topic, producer_name="p", batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for i in range(4):
        producer.send_async(b"m", lambda result, message_id: None, sequence_id=i)
    producer.flush()
    messages = [consumer.receive(10_000) for _ in range(4)]
    consumer.acknowledge(messages[1])
    time.sleep(1)


SCENES: list[Scene] = [
    chunks, expiry, throttled, throttled_topic, draining, delayed, schema_and_compaction,
    deduplicated,
]  # fmt: skip
