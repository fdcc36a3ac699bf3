"""Consumers of several topics at once, and readers of all partitions of one.

Neither the Python nor the Go client has a reader of a list of topics (the Java client has): their
readers of several topics are those of a partitioned topic.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.conftest import AnyClient
from compat_tests.messages import TYPES, assert_nothing_more, receive

EARLIEST = pulsar.InitialPosition.Earliest
ROUND_ROBIN = pulsar.PartitionsRoutingMode.RoundRobinDistribution
every_type = pytest.mark.parametrize("type_name", TYPES)


def partitioned(broker: Broker, topic: str, count: int = 3) -> str:
    path = f"/admin/v2/persistent/public/default/{topic.rpartition('/')[2]}/partitions"
    assert broker.rest("PUT", path, count) == (204, None)
    return topic


def plain_name(topic: str) -> str:
    """A topic's name without the partition."""
    return topic.partition("-partition-")[0]


def fill(client: AnyClient, topics: list[str], count: int) -> dict[str, list[bytes]]:
    """Sends to each topic; what was sent, by topic."""
    sent: dict[str, list[bytes]] = {}
    for number, topic in enumerate(topics):
        producer = client.create_producer(topic, message_routing_mode=ROUND_ROBIN)
        sent[topic] = [b"%d-%d" % (number, each) for each in range(count)]
        for body in sent[topic]:
            producer.send(body, partition_key=body.decode())
    return sent


@every_type
def test_a_consumer_of_several_topics(
    broker: Broker, any_client: AnyClient, topic: str, type_name: str
) -> None:
    topics = [topic + "-a", topic + "-b", partitioned(broker, topic + "-c")]
    options: dict[str, Any] = {"consumer_type": TYPES[type_name], "initial_position": EARLIEST}
    consumer = any_client.subscribe(topics, "s", **options)
    sent = fill(any_client, topics, 20)
    received: dict[str, list[bytes]] = {each: [] for each in topics}
    for number in range(60):
        message = consumer.receive(timeout_millis=10_000)
        received[plain_name(message.topic_name())].append(message.data())
        if number < 40:
            consumer.acknowledge(message)
    assert {each: sorted(bodies) for each, bodies in received.items()} == {
        each: sorted(bodies) for each, bodies in sent.items()
    }
    for each in topics[:2]:
        assert received[each] == sent[each], "a topic keeps its order"
    consumer.close()
    again = any_client.subscribe(topics, "s", **options)
    assert len(receive(again, 20)) == 20
    assert_nothing_more(again)


def test_consumers_of_several_topics_share_them(any_client: AnyClient, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    options: dict[str, Any] = {"consumer_type": pulsar.ConsumerType.Shared}
    consumers = [any_client.subscribe(topics, "s", **options) for _ in range(2)]
    sent = fill(any_client, topics, 20)
    received: list[bytes] = []
    while len(received) < 60:
        for consumer in consumers:
            with contextlib.suppress(pulsar.Timeout):
                received += receive(consumer, 1, timeout_ms=500)
    assert sorted(received) == sorted(body for each in sent.values() for body in each)
    for consumer in consumers:
        assert_nothing_more(consumer)


def test_a_negative_acknowledgement_comes_again_from_its_topic(
    any_client: AnyClient, topic: str
) -> None:
    topics = [topic + "-a", topic + "-b"]
    consumer = any_client.subscribe(
        topics,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=200,
    )
    fill(any_client, topics, 1)
    first = {}
    for _ in topics:
        message = consumer.receive(timeout_millis=10_000)
        first[message.topic_name()] = message.data()
        consumer.negative_acknowledge(message)
    for _ in topics:
        message = consumer.receive(timeout_millis=10_000)
        assert message.redelivery_count() == 1
        assert first.pop(message.topic_name()) == message.data()
        consumer.acknowledge(message)
    assert_nothing_more(consumer)


def test_a_reader_of_all_partitions(broker: Broker, any_client: AnyClient, topic: str) -> None:
    sent = fill(any_client, [partitioned(broker, topic)], 30)[topic]
    behind = any_client.create_reader(topic, pulsar.MessageId.latest)
    reader = any_client.create_reader(topic, pulsar.MessageId.earliest)
    read = []
    partitions = set()
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=10_000)
        read.append(message.data())
        partitions.add(message.message_id().partition())
    assert sorted(read) == sorted(sent)
    assert partitions == {0, 1, 2}
    assert not behind.has_message_available()
    more = any_client.create_producer(topic, message_routing_mode=ROUND_ROBIN)
    bodies = [b"more-%d" % number for number in range(6)]
    for body in bodies:
        more.send(body)
    for one in (behind, reader):
        found = [one.read_next(timeout_millis=10_000).data() for _ in bodies]
        assert sorted(found) == bodies
