"""Partitioned topics: made by use, and partitions that are added while clients run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.conftest import BrokerFactory, ClientFactory, broker_kind
from compat_tests.messages import payload, publish

PARTITIONED = {"allowAutoTopicCreationType": "partitioned", "defaultNumPartitions": "3"}
NOT_FOUND, NOT_ALLOWED = 11, 22


@pytest.fixture(scope="module")
def partitioning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker where topics that are made by use have three partitions."""
    one = Broker(broker_kind(), tmp_path_factory.mktemp("partitioned"), settings=PARTITIONED)
    one.start()
    yield one
    one.close()


def ask(one: RawConnection, topic: str, auto: int | None = None) -> tuple[int, int]:
    """(partitions, error) of PARTITIONED_METADATA; -1 where there is none."""
    request = one.request_id()
    fields: dict[int, Any] = {1: topic, 2: request}
    if auto is not None:
        fields[6] = auto
    one.command(wire.PARTITIONED_METADATA, fields)
    answer = one.expect(wire.PARTITIONED_METADATA_RESPONSE)
    assert answer.number(2) == request
    if answer.number(3):
        return -1, answer.number(4)
    return answer.number(1), -1


def opening(broker: Broker, topic: str) -> int:
    """The error of a PRODUCER, -1 when it is opened."""
    with RawConnection(broker.port) as one:
        one.lookup(topic)
        request = one.request_id()
        one.command(wire.PRODUCER, {1: topic, 2: 1000 + request, 3: request})
        answer = one.receive()
        assert answer.number(1) == request
        return answer.number(2) if answer.type == wire.ERROR else -1


def test_topics_are_not_partitioned_by_default(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        assert ask(one, topic) == (0, -1)
        assert ask(one, topic, 0) == (-1, NOT_FOUND)
        assert opening(broker, topic) == -1
        assert ask(one, topic, 0) == (0, -1)
        assert opening(broker, topic + "-none-partition-0") == NOT_ALLOWED


def test_topics_may_be_partitioned_by_default(partitioning: Broker, topic: str) -> None:
    with RawConnection(partitioning.port) as one:
        assert ask(one, topic, 0) == (-1, NOT_FOUND)
        assert ask(one, topic) == (3, -1)
        assert ask(one, topic, 0) == (3, -1)
        assert ask(one, topic + "-partition-1") == (0, -1)
        assert ask(one, topic + "-partition-3") == (-1, NOT_FOUND)
        assert opening(partitioning, topic) == NOT_ALLOWED
        assert opening(partitioning, topic + "-partition-2") == -1
        assert opening(partitioning, topic + "-partition-3") == NOT_FOUND
        assert opening(partitioning, topic + "-none-partition-0") == NOT_ALLOWED
        assert opening(partitioning, topic + "-direct") == -1
        assert ask(one, topic + "-direct") == (0, -1)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
def test_a_partitioned_topic_is_used_as_one(
    partitioning: Broker, new_client: ClientFactory, topic: str, kind: pulsar.ConsumerType
) -> None:
    client = new_client(partitioning.url)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{n}" for n in range(3)]
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(
        topic,
        batching_enabled=False,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    bodies = [payload(number) for number in range(300)]
    ids = publish(producer, bodies)
    assert {one.partition() for one in ids} == {0, 1, 2}
    received = []
    for _ in bodies:
        message = consumer.receive(timeout_millis=10_000)
        received.append((message.message_id().partition(), message.data()))
        consumer.acknowledge(message)
    assert sorted(body for _, body in received) == sorted(bodies)
    for partition in range(3):
        mine = [body for where, body in received if where == partition]
        sent = [body for body, one in zip(bodies, ids, strict=True) if one.partition() == partition]
        assert mine == sent, "order is kept within a partition"


def test_keys_stay_in_their_partition(
    partitioning: Broker, new_client: ClientFactory, topic: str
) -> None:
    client = new_client(partitioning.url)
    producer = client.create_producer(topic)
    partitions: dict[str, set[int]] = {}
    for number in range(60):
        key = f"key-{number % 10}"
        one = producer.send(b"x", partition_key=key)
        partitions.setdefault(key, set()).add(one.partition())
    assert all(len(each) == 1 for each in partitions.values())
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert len([reader.read_next(timeout_millis=10_000) for _ in range(60)]) == 60
    assert not reader.has_message_available()


def test_without_automatic_creation_nothing_is_made(
    own_broker: BrokerFactory, new_client: ClientFactory, topic: str
) -> None:
    broker = own_broker(settings={"allowAutoTopicCreation": "false"})
    broker.start()
    with RawConnection(broker.port) as one:
        assert ask(one, topic) == (-1, NOT_FOUND)
        assert opening(broker, topic) == NOT_FOUND
        assert opening(broker, topic + "-partition-0") == NOT_FOUND
    client = new_client(broker.url, operation_timeout_seconds=5)
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(topic)
    with pytest.raises(pulsar.TopicNotFound):
        client.subscribe(topic, "s")
