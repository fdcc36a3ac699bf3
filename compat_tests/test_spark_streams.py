"""Streams of Spark over what topics may have: chunks where micro-batches are cut, what is encrypted
and packed, tombstones, schemas that get new versions meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from pulsar import schema

from compat_tests.spark_rows import given, rows_of
from compat_tests.test_encryption import Pair, keys, pair
from compat_tests.test_spark_reading import incompressible, send_of_each_kind

__all__ = ["keys", "pair"]

pytestmark = pytest.mark.spark

BROKER_SETTINGS = {"maxMessageSize": "100000"}


def without_place(row: Any) -> tuple[Any, ...]:
    """What a row has, wherever it is: of a message that was sent to several topics."""
    key, value = row["__key"], row["value"]
    properties = sorted(dict(row["__messageProperties"]).items())
    return (
        None if value is None else bytes(value),
        None if key is None else bytes(key),
        tuple(properties),
        row["__eventTime"],
    )


@pytest.fixture
def three_ways(
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    keys: pulsar.CryptoKeyReader,
    pair: Pair,
) -> dict[str, dict[str, str]]:
    """The same messages by both readers, and encrypted: options of the source."""
    secret = f"{topic}-secret"
    encrypted = {"encryption_key": "mine", "crypto_key_reader": keys}
    for codec in (pulsar.CompressionType.NONE, pulsar.CompressionType.ZSTD):
        send_of_each_kind(client, topic, codec, {})
        send_of_each_kind(client, secret, codec, encrypted)
    return {
        "fast": {"topic": topic, "reader": "fast"},
        "client": {"topic": topic, "reader": "client"},
        "secret": {
            "topic": secret,
            "pulsar_reader_defaultCryptoKeyReader": str(pair.private),
        },
    }


@pytest.mark.since_spark("4.2")
def test_streams_by_both_readers_have_the_same_rows_when_they_go_on_in_the_midst(
    spark: Any, broker: Broker, three_ways: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    found = {}
    for name, options in three_ways.items():
        # So small that micro-batches end within messages in chunks.
        more = {"admin_url": broker.web_url, "maxBytesPerTrigger": "90k", "bytesPerTask": "40k"}
        source = {"startingOffsets": "earliest"} | options | more
        rows = spark.readStream.format("pulsar").options(**given(broker, source)).load()

        def start(trigger: dict[str, Any], rows: Any = rows, name: str = name) -> Any:
            writer = rows.writeStream.format("parquet").option("path", str(tmp_path / name))
            writer = writer.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
            return writer.trigger(**trigger).start()

        query = start({"processingTime": "0 seconds"})
        try:
            deadline = time.monotonic() + 120
            while query.lastProgress is None or query.lastProgress["batchId"] < 2:
                assert time.monotonic() < deadline and query.exception() is None
                time.sleep(0.05)
        finally:
            query.stop()
        query = start({"availableNow": True})
        assert query.awaitTermination(240)
        assert len(query.recentProgress) > 2
        read = spark.read.parquet(str(tmp_path / name)).collect()
        found[name] = sorted(map(without_place, read), key=repr)
    assert len(found["fast"]) == 52
    assert found["client"] == found["fast"]
    assert found["secret"] == found["fast"]
    values = [value for value, *_ in found["fast"]]
    assert values.count(None) == 4 and values.count(incompressible(3 * 99_000)) == 2


def test_batches_by_both_readers_have_the_same_rows(
    spark: Any, broker: Broker, three_ways: dict[str, dict[str, str]]
) -> None:
    found = {}
    for name, options in three_ways.items():
        source = options | {"admin_url": broker.web_url, "bytesPerTask": "40k"}
        rows = spark.read.format("pulsar").options(**given(broker, source)).load()
        assert rows.rdd.getNumPartitions() > 5
        found[name] = [without_place(each) for each in rows.collect()]
    assert len(found["fast"]) == 52
    assert found["client"] == found["fast"] and found["secret"] == found["fast"]


FIELDS = {"number": schema.Integer(), "text": schema.String()}
ADDED = {"more": schema.String(required=False, default=None, required_default=True)}
Old = type("Order", (schema.Record,), dict(FIELDS))
# In front, so that no one could read it by the older version.
New = type("Order", (schema.Record,), ADDED | FIELDS)


def compacted(broker: Broker, topic: str) -> None:
    path = f"/admin/v2/{topic.replace('://', '/')}/compaction"
    assert broker.rest("PUT", path)[0] == 204
    deadline = time.monotonic() + 60
    while (status := broker.rest("GET", path)[1]["status"]) != "SUCCESS":
        assert time.monotonic() < deadline, status
        time.sleep(0.1)


def test_tombstones_and_new_versions_of_a_schema_come_while_a_stream_runs(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    old = client.create_producer(topic, schema=schema.AvroSchema(Old), batching_enabled=True)
    old.send(Old(number=0, text="old 0"), partition_key="a")
    source = given(broker, {"topic": topic, "startingOffsets": "earliest"})
    rows = spark.readStream.format("pulsar").options(**source).load()
    seen: list[tuple[int, Any]] = []

    def take(batch: Any, number: int) -> None:
        seen.extend((number, each) for each in batch.collect())

    query = rows.writeStream.foreachBatch(take).start()

    def send_by_both_versions() -> None:
        old.send(Old(number=3, text="old 3"), partition_key="a")
        send_new(client, topic, 4)
        old.send(None, partition_key="b")
        old.send(None)

    def send_when_compacted() -> None:
        compacted(broker, topic)
        old.send(Old(number=5, text="old 5"))

    steps: list[Callable[[], Any]] = [
        lambda: old.send(None, partition_key="a"),
        lambda: old.send(Old(number=1, text="old 1"), partition_key="b"),
        partial(send_new, client, topic, 2),
        send_by_both_versions,
        send_when_compacted,
    ]
    try:
        query.processAllAvailable()
        for step in steps:
            step()
            query.processAllAvailable()
    finally:
        query.stop()
    expected = [
        *(("a", 0, "old 0"), ("a", None, None), ("b", 1, "old 1"), ("c", 2, "new 2")),
        *(("a", 3, "old 3"), ("c", 4, "new 4"), ("b", None, None), (None, None, None)),
        (None, 5, "old 5"),
    ]
    assert [short(each) for _, each in seen] == expected
    assert len({number for number, _ in seen}) >= 6
    # Who begins now has the new field, and what was left out by compaction as well.
    later = rows_of(broker, topic=topic)
    assert [short(each) for each in later] == expected
    assert [each["more"] for each in later if each["number"] in (2, 4)] == ["more 2", "more 4"]
    assert [each["more"] for each in later if each["number"] in (0, 3)] == [None, None]
    by_client = rows_of(broker, topic=topic, reader="client")
    assert by_client == later


def send_new(client: pulsar.Client, topic: str, number: int) -> None:
    producer = client.create_producer(topic, schema=schema.AvroSchema(New), batching_enabled=True)
    record = New(number=number, text=f"new {number}", more=f"more {number}")
    producer.send(record, partition_key="c")
    producer.close()


def short(row: Any) -> tuple[Any, ...]:
    key = row["__key"]
    return None if key is None else bytes(key).decode(), row["number"], row["text"]
