"""Spark's source on topics with transactions: it reads what is committed, in both readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import Broker
from harness.transactions import SETTINGS, GoTransactions, unload

from compat_tests.spark_rows import given, rows_of

pytestmark = pytest.mark.spark

BROKER_SETTINGS = SETTINGS


@pytest.fixture
def transactions(broker: Broker) -> Iterator[GoTransactions]:
    one = GoTransactions(broker.url)
    yield one
    one.close()


def values(rows: Any) -> list[bytes]:
    return [bytes(each["value"]) for each in rows]


@pytest.mark.parametrize("reader", ["fast", "client"])
def test_a_batch_has_committed_messages_only(
    broker: Broker, transactions: GoTransactions, topic: str, reader: str
) -> None:
    producer = transactions.producer(topic)
    committed, aborted, last = [transactions.begin() for _ in range(3)]
    for number in range(20):
        producer.send(b"c%d" % number, committed)
        producer.send(b"a%d" % number, aborted)
    producer.send(b"plain")
    unload(broker, topic)  # so that a ledger ends with messages of transactions
    producer.send(b"late", committed)
    committed.commit()
    aborted.abort()
    unload(broker, topic)
    producer.send(b"gone", last)
    last.abort()
    still_open = transactions.begin()
    producer.send(b"open", still_open)
    producer.send(b"behind")
    expected = [*(b"c%d" % number for number in range(20)), b"plain", b"late"]
    source = {"topic": topic, "reader": reader}
    small = {"admin_url": broker.web_url, "bytesPerTask": "200"}
    assert values(rows_of(broker, **source)) == expected
    assert values(rows_of(broker, **source, **small)) == expected
    still_open.commit()
    assert values(rows_of(broker, **source, **small)) == [*expected, b"open", b"behind"]


def test_a_topic_without_committed_messages_is_empty(
    broker: Broker, transactions: GoTransactions, topic: str
) -> None:
    producer = transactions.producer(topic)
    for end in ("abort", None):
        transaction = transactions.begin()
        producer.send(b"x", transaction)
        if end is not None:
            transaction.abort()
        assert values(rows_of(broker, topic=topic, admin_url=broker.web_url)) == []
        assert values(rows_of(broker, topic=topic)) == []


def test_a_stream_continues_with_what_is_committed(
    spark: Any, broker: Broker, transactions: GoTransactions, topic: str, tmp_path: Path
) -> None:
    producer = transactions.producer(topic)
    source = {"topic": topic, "startingOffsets": "earliest", "admin_url": broker.web_url}
    rows = spark.readStream.format("pulsar").options(**given(broker, source)).load()

    def run() -> list[bytes]:
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        found = spark.read.parquet(str(tmp_path / "rows")).orderBy("__messageId").collect()
        return values(found)

    first, second = transactions.begin(), transactions.begin()
    producer.send(b"plain")
    producer.send(b"first", first)
    producer.send(b"second", second)
    assert run() == [b"plain"]
    first.abort()
    assert run() == [b"plain"]
    unload(broker, topic)
    producer.send(b"more", second)
    second.commit()
    assert run() == [b"plain", b"second", b"more"]
    third = transactions.begin()
    producer.send(b"third", third)
    third.abort()
    assert run() == [b"plain", b"second", b"more"]
