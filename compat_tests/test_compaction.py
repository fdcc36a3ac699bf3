"""Compaction as clients meet it: readers, consumers and table views of compacted topics."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.conftest import AnyClient

BROKER_SETTINGS = {"brokerServiceCompactionMonitorIntervalInSeconds": "1"}
PATIENCE_S = 60.0
EARLIEST = pulsar.InitialPosition.Earliest
CODECS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]

Pairs = list[tuple[str, bytes]]


def path(topic: str) -> str:
    return "/admin/v2/" + topic.replace("://", "/")


def status(broker: Broker, topic: str) -> str:
    code, answer = broker.rest("GET", f"{path(topic)}/compaction")
    assert code == 200, answer
    return str(answer["status"])


def compact(broker: Broker, topic: str) -> None:
    """Compacts a topic, and waits until that is done."""
    assert broker.rest("PUT", f"{path(topic)}/compaction")[0] == 204
    deadline = time.monotonic() + PATIENCE_S
    while status(broker, topic) == "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert status(broker, topic) == "SUCCESS"


def trim(broker: Broker, client: AnyClient, topic: str) -> None:
    """Has the log deleted, of which everything is compacted."""
    assert broker.rest("PUT", f"{path(topic)}/unload")[0] == 204
    deadline = time.monotonic() + PATIENCE_S
    while read(client, topic, is_read_compacted=False):
        assert time.monotonic() < deadline
        # Apache Pulsar's broker trims when it likes to.
        broker.rest("POST", f"{path(topic)}/trim")
        time.sleep(0.2)


def publish(client: AnyClient, topic: str, *pairs: tuple[str, bytes], **options: Any) -> None:
    """One message after the other, unless options say that they come in a batch."""
    options.setdefault("batching_enabled", False)
    producer = client.create_producer(topic, **options)
    for key, value in pairs:
        producer.send(value, partition_key=key)
    producer.close()


def read(client: AnyClient, topic: str, **options: Any) -> Pairs:
    """What a reader gets from the beginning. An empty place in a batch is a message without key
    and value for some clients."""
    settings: dict[str, Any] = {"is_read_compacted": True}
    reader = client.create_reader(topic, pulsar.MessageId.earliest, **(settings | options))
    found = []
    while reader.has_message_available():
        message = reader.read_next(10_000)
        found.append((message.partition_key(), message.data()))
    reader.close()
    return [each for each in found if each != ("", b"")]


def take(consumer: Any, count: int) -> list[Any]:
    return [consumer.receive(10_000) for _ in range(count)]


def is_quiet(consumer: Any) -> bool:
    with contextlib.suppress(pulsar.Timeout):
        consumer.receive(500)
        return False
    return True


def test_readers_get_the_latest_of_each_key_and_what_comes_then(
    broker: Broker, any_client: AnyClient, topic: str
) -> None:
    sent = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1")]
    publish(any_client, topic, *sent)
    assert status(broker, topic) == "NOT_RUN"
    compact(broker, topic)
    assert read(any_client, topic) == [("b", b"1"), ("a", b"2"), ("c", b"1")]
    assert read(any_client, topic, is_read_compacted=False) == sent
    publish(any_client, topic, ("b", b""))
    compact(broker, topic)
    assert read(any_client, topic) == [("a", b"2"), ("c", b"1")]
    publish(any_client, topic, ("a", b"3"), ("d", b"1"))
    assert read(any_client, topic) == [("a", b"2"), ("c", b"1"), ("a", b"3"), ("d", b"1")]
    compact(broker, topic)
    assert read(any_client, topic) == [("c", b"1"), ("a", b"3"), ("d", b"1")]


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_compacted_message_by_message(
    broker: Broker, any_client: AnyClient, topic: str, codec: str
) -> None:
    producer = any_client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=4,
        batching_max_publish_delay_ms=10_000,
        compression_type=getattr(pulsar.CompressionType, codec),
    )
    keys = ["a", "b", "a", "c", "d", "a", "e", "f"]
    done: list[Any] = []
    for number, key in enumerate(keys):
        producer.send_async(
            b"%d" % number * 100, lambda result, _: done.append(result), partition_key=key
        )
    producer.flush()
    producer.close()
    compact(broker, topic)
    expected = [
        (key, b"%d" % number * 100) for number, key in enumerate(keys) if number not in {0, 2}
    ]
    assert read(any_client, topic) == expected
    publish(any_client, topic, ("f", b"9"), ("c", b""))
    compact(broker, topic)
    expected = [each for each in expected if each[0] not in "cf"]
    assert read(any_client, topic) == [*expected, ("f", b"9")]


def test_the_view_outlives_the_log(broker: Broker, any_client: AnyClient, topic: str) -> None:
    publish(any_client, topic, *((f"k{n % 2}", b"%d" % n) for n in range(6)))
    compact(broker, topic)
    trim(broker, any_client, topic)
    assert read(any_client, topic) == [("k0", b"4"), ("k1", b"5")]
    options: dict[str, Any] = {"is_read_compacted": True, "initial_position": EARLIEST}
    consumer = any_client.subscribe(topic, "s", **options)
    messages = take(consumer, 2)
    assert [each.data() for each in messages] == [b"4", b"5"]
    for each in messages:
        consumer.acknowledge(each)
    consumer.close()
    consumer = any_client.subscribe(topic, "s", **options)
    assert is_quiet(consumer)
    publish(any_client, topic, ("k0", b"6"))
    assert [each.data() for each in take(consumer, 1)] == [b"6"]
    compact(broker, topic)
    assert read(any_client, topic) == [("k1", b"5"), ("k0", b"6")]


def test_consumers_seek_in_the_view(broker: Broker, any_client: AnyClient, topic: str) -> None:
    publish(any_client, topic, *((f"k{n % 3}", b"%d" % n) for n in range(6)))
    compact(broker, topic)
    consumer = any_client.subscribe(topic, "s", is_read_compacted=True, initial_position=EARLIEST)
    messages = take(consumer, 3)
    assert [each.data() for each in messages] == [b"3", b"4", b"5"]
    consumer.seek(pulsar.MessageId.earliest)
    assert [each.data() for each in take(consumer, 3)] == [b"3", b"4", b"5"]
    consumer.seek(1)
    assert [each.data() for each in take(consumer, 3)] == [b"3", b"4", b"5"]
    consumer.seek(pulsar.MessageId.latest)
    assert is_quiet(consumer)


def test_a_reader_begins_within_the_view(
    broker: Broker, python_client: pulsar.Client, topic: str
) -> None:
    publish(python_client, topic, *((f"k{n % 3}", b"%d" % n) for n in range(6)))
    compact(broker, topic)
    earliest = pulsar.MessageId.earliest
    reader = python_client.create_reader(topic, earliest, is_read_compacted=True)
    first = reader.read_next(10_000)
    assert first.data() == b"3"
    consumer = python_client.subscribe(topic, "s", is_read_compacted=True)
    last = consumer.get_last_message_id()
    assert (last.ledger_id(), last.entry_id()) == (first.message_id().ledger_id(), 5)
    behind = python_client.create_reader(topic, first.message_id(), is_read_compacted=True)
    assert [behind.read_next(10_000).data() for _ in range(2)] == [b"4", b"5"]
    assert not behind.has_message_available()
    publish(python_client, topic, ("k9", b"9"))
    assert behind.read_next(10_000).data() == b"9"


def test_a_topic_of_which_nothing_is_left_is_empty(
    broker: Broker, any_client: AnyClient, topic: str
) -> None:
    publish(any_client, topic, ("a", b"1"), ("a", b""))
    compact(broker, topic)
    assert read(any_client, topic) == []
    publish(any_client, topic, ("b", b"1"))
    assert read(any_client, topic) == [("b", b"1")]


def test_failover_consumers_read_the_view_and_others_the_log(
    broker: Broker, any_client: AnyClient, topic: str
) -> None:
    publish(any_client, topic, ("a", b"1"), ("a", b"2"))
    compact(broker, topic)
    options: dict[str, Any] = {"initial_position": EARLIEST}
    failover = any_client.subscribe(
        topic, "f", pulsar.ConsumerType.Failover, is_read_compacted=True, **options
    )
    assert [each.data() for each in take(failover, 1)] == [b"2"]
    assert is_quiet(failover)
    shared = any_client.subscribe(topic, "s", pulsar.ConsumerType.Shared, **options)
    assert [each.data() for each in take(shared, 2)] == [b"1", b"2"]


@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
def test_other_consumers_cannot_read_the_view(
    python_client: pulsar.Client, topic: str, kind: str
) -> None:
    with pytest.raises(pulsar.InvalidConfiguration):
        python_client.subscribe(
            topic, "s", getattr(pulsar.ConsumerType, kind), is_read_compacted=True
        )


def test_table_views_have_the_latest_values(
    broker: Broker, python_client: pulsar.Client, topic: str
) -> None:
    publish(python_client, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), ("b", b""))
    compact(broker, topic)
    table = python_client.create_table_view(topic)
    assert table.get("a") == b"2"
    assert table.get("b") is None
    publish(python_client, topic, ("c", b"1"))
    deadline = time.monotonic() + PATIENCE_S
    while table.get("c") is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    table.close()


def test_a_threshold_has_a_topic_compacted(
    broker: Broker, python_client: pulsar.Client, topic: str
) -> None:
    publish(python_client, topic, ("a", b"1"))
    code, answer = broker.rest("POST", f"{path(topic)}/compactionThreshold", 10)
    assert code == 204, answer
    publish(python_client, topic, *(("a", b"%d" % n) for n in range(20)))
    deadline = time.monotonic() + PATIENCE_S
    while read(python_client, topic) != [("a", b"19")]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_who_deletes_the_subscription_ends_it(
    broker: Broker, python_client: pulsar.Client, topic: str
) -> None:
    publish(python_client, topic, ("a", b"1"), ("a", b"2"))
    compact(broker, topic)
    assert broker.rest("DELETE", f"{path(topic)}/subscription/__compaction")[0] == 204
    assert read(python_client, topic) == [("a", b"1"), ("a", b"2")]


def test_partitions_are_compacted_together(
    broker: Broker, any_client: AnyClient, topic: str
) -> None:
    assert broker.rest("PUT", f"{path(topic)}/partitions", 2)[0] == 204
    parts = [f"{topic}-partition-{number}" for number in range(2)]
    for part in parts:
        publish(any_client, part, ("a", b"1"), ("a", b"2"))
    assert broker.rest("PUT", f"{path(topic)}/compaction")[0] == 204
    for part in parts:
        deadline = time.monotonic() + PATIENCE_S
        while read(any_client, part) != [("a", b"2")]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_requests_are_refused_as_pulsar_does(broker: Broker, topic: str) -> None:
    code, answer = broker.rest("PUT", f"{path(topic)}/compaction")
    assert (code, answer["reason"]) == (404, f"Topic {topic} not found")
    code, answer = broker.rest("GET", f"{path(topic)}/compaction")
    assert (code, answer["reason"]) == (404, f"Topic {topic} not found")
    code, answer = broker.rest("PUT", "/admin/v2/namespaces/public/default/compactionThreshold", -1)
    assert (code, answer["reason"]) == (412, "compactionThreshold must be 0 or more")


@pytest.mark.pyxbroker
def test_all_chunks_of_the_latest_message_are_kept(
    broker: Broker, python_client: pulsar.Client, topic: str
) -> None:
    large = b"x" * (11 << 20)
    publish(python_client, topic, ("a", b"1"), ("a", large), ("b", b"1"), chunking_enabled=True)
    compact(broker, topic)
    assert read(python_client, topic) == [("a", large), ("b", b"1")]
