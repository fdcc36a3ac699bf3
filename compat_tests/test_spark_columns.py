"""Which columns the Spark connector reads, and what filters leave out, against a real broker."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from pulsar import schema

from compat_tests.spark_rows import error_of, given, rows_of
from pyxbroker.spark.options import SINK, Options
from pyxbroker.spark.outgoing import Messages, Outgoing
from pyxbroker.spark.producers import AtLeastOnce
from pyxbroker.spark.source import PulsarDataSource

pytestmark = pytest.mark.spark

ALL = (
    "*,__orderingKey,__producerName,__sequenceId,__schemaVersion,__ledgerId,__entryId,__batchIndex"
)


class Fruit(schema.Record):  # type: ignore[misc]
    name = schema.String()
    size = schema.Double()
    parts = schema.Map(schema.Integer())


class Number(schema.Record):  # type: ignore[misc]
    one = schema.Long()
    two = schema.String()
    three = schema.Double()


def chosen(broker: Broker, topic: str, *names: str) -> list[tuple[Any, ...]]:
    rows = rows_of(broker, topic=topic, columns=", ".join(names))
    assert not rows or list(rows[0]) == list(names)
    return [tuple(row.values()) for row in rows]


def test_columns_that_are_asked_for_are_there_in_their_order(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    settings: dict[str, Any] = {"batching_enabled": True, "block_if_queue_full": True}
    producer = client.create_producer(topic, "me", initial_sequence_id=40, **settings)
    for number in range(5):
        producer.send_async(b"%d" % number, None, partition_key="k", ordering_key=f"o{number}")
    producer.flush()
    client.create_producer(topic, "other").send(b"last")
    found = chosen(broker, topic, "__sequenceId", "value", "__producerName", "__orderingKey")
    assert found == [
        *((41 + n, b"%d" % n, "me", b"o%d" % n) for n in range(5)),
        (0, b"last", "other", None),
    ]
    places = chosen(broker, topic, "__ledgerId", "__entryId", "__batchIndex", "__messageId")
    for ledger, entry, index, message_id in places:
        known = pulsar.MessageId.deserialize(message_id)
        assert (ledger, entry, index) == (known.ledger_id(), known.entry_id(), known.batch_index())
    assert chosen(broker, topic, "__key") == [(b"k",)] * 5 + [(None,)]
    assert chosen(broker, topic, "__topic", "__schemaVersion") == [(topic, None)] * 6
    usual = list(rows_of(broker, topic=topic)[0])
    assert list(rows_of(broker, topic=topic, columns="*,__entryId")[0]) == [*usual, "__entryId"]


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_fields_that_are_asked_for(
    broker: Broker, client: pulsar.Client, topic: str, kind: str
) -> None:
    make = {"avro": schema.AvroSchema, "json": schema.JsonSchema}[kind]
    sent = Number(one=7, two="deux", three=3.5)
    client.create_producer(topic, schema=make(Number)).send(sent)
    assert chosen(broker, topic, "three", "__schemaVersion", "one") == [(3.5, 0, 7)]
    assert chosen(broker, topic, "__schemaVersion") == [(0,)]
    within = f"{topic}-within"
    fig = Fruit(name="fig", size=1.5, parts={"seed": 9})
    client.create_producer(within, schema=make(Fruit)).send(fig)
    assert chosen(broker, within, "parts", "name") == [([("seed", 9)], "fig")]
    assert chosen(broker, within, "__key") == [(None,)]


def test_columns_that_are_not_there_are_told(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, schema=schema.AvroSchema(Number)).send(Number(one=1))
    ask = partial(rows_of, broker, topic=topic)
    text = error_of(lambda: ask(columns="one,__mesageId"))
    assert "columns: there is no column __mesageId: did you mean __messageId" in text
    assert "columns names one twice" in error_of(lambda: ask(columns="*,one"))
    assert "names separated by commas" in error_of(lambda: ask(columns="one,,two"))


def test_a_schema_of_ones_own_chooses_columns(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str
) -> None:
    empty = f"{topic}-empty"
    client.create_producer(empty).close()
    producer = client.create_producer(topic, schema=schema.AvroSchema(Number))
    for number in range(20):
        producer.send(Number(one=number, two="t", three=0.5))
    reader = spark.read.format("pulsar").options(**given(broker, {"topic": topic}))
    rows = reader.schema("two string, __publishTime timestamp, one bigint").load()
    assert rows.columns == ["two", "__publishTime", "one"]
    assert sorted(row.one for row in rows.where("one >= 5").collect()) == list(range(5, 20))
    text = error_of(reader.schema("one string").load().collect)
    assert "has one as string: it is bigint" in text
    text = error_of(reader.schema("four string").load().collect)
    assert "the given schema: there is no column four" in text
    nothing = spark.read.format("pulsar").options(**given(broker, {"topic": empty})).load()
    assert nothing.collect() == []


def test_what_the_official_client_does_not_tell_is_no_column_by_it(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic, "me").send(b"v", ordering_key="o")
    ask = partial(rows_of, broker, topic=topic, reader="client")
    (row,) = ask(columns="value,__producerName,__orderingKey,__schemaVersion,__entryId")
    assert tuple(row.values()) == (b"v", "me", b"o", None, 0)
    assert "does not provide __sequenceId" in error_of(lambda: ask(columns="*,__sequenceId"))


def test_what_was_read_with_all_columns_can_be_written(broker: Broker, topic: str) -> None:
    """Without Spark, from what the source has to what the sink takes."""
    first = Outgoing(topic, "k", b"v", {"a": "b"}, event_time=7, ordering_key="o")
    copies = []
    for name in (topic, f"{topic}-copy"):
        sender = AtLeastOnce(Options(SINK, given(broker, {"topic": name})), None)
        sender.send(first._replace(topic=name))
        sender.finish()
        sender.close()
        source = PulsarDataSource(given(broker, {"topic": name, "columns": ALL}))
        messages = Messages(Options(SINK, given(broker, {"topic": topic})), source.schema())
        (row,) = rows_of(broker, topic=name, columns=ALL)
        first = messages.of(row)
        copies.append(first)
    assert copies[0] == copies[1] == first
    assert (first.key, first.ordering_key, first.event_time) == ("k", "o", 7)


# --- filters --------------------------------------------------------------------------------------


@pytest.fixture
def spread(broker: Broker, client: pulsar.Client, topic: str) -> str:
    """A topic with ten messages, each an entry, some time apart."""
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
        time.sleep(0.02)
    return topic


def planned(broker: Broker, filters: list[Any], **options: str) -> tuple[list[int], int]:
    """(the messages that tasks read, how many tasks there are) with filters, without Spark."""
    source = PulsarDataSource(given(broker, options))
    reader = source.reader(source.schema())
    assert list(reader.pushFilters(filters)) == filters
    parts = reader.partitions()
    batches = [batch for part in parts for batch in reader.read(part)]
    return [int(row["value"]) for batch in batches for row in batch.to_pylist()], len(parts)


@pytest.mark.since_spark("4.1")
def test_filters_on_time_are_seeks_and_ends(broker: Broker, spread: str) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, LessThanOrEqual, Not

    at = [row["__publishTime"] for row in rows_of(broker, topic=spread)]
    time_of = ("__publishTime",)

    def read(*filters: Any, skew: str = "1") -> list[int]:
        return planned(broker, list(filters), topic=spread, publishTimeSkewMs=skew)[0]

    assert read() == list(range(10))
    assert read(GreaterThan(time_of, at[6])) == [6, 7, 8, 9]
    assert read(LessThan(time_of, at[3])) == [0, 1, 2, 3]
    assert read(GreaterThan(time_of, at[2]), LessThanOrEqual(time_of, at[4])) == [2, 3, 4]
    assert read(EqualTo(time_of, at[5])) == [5]
    assert read(In(time_of, (at[5], at[7]))) == [5, 6, 7]
    later = datetime.now(timezone.utc) + timedelta(days=1)
    assert read(GreaterThan(time_of, later)) == read(LessThan(time_of, at[0].replace(1999))) == []
    # What says nothing of a place leaves all; so does a skew that is longer than the topic.
    assert read(Not(EqualTo(time_of, at[5])), EqualTo(("value",), b"5")) == list(range(10))
    assert read(GreaterThan(time_of, at[6]), skew="60000") == list(range(10))


@pytest.mark.since_spark("4.1")
def test_filters_on_ids_and_topics_choose_what_is_read(broker: Broker, spread: str) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In

    ids = [row["__messageId"] for row in rows_of(broker, topic=spread)]
    assert planned(broker, [EqualTo(("__messageId",), ids[4])], topic=spread) == ([4], 1)
    several = In(("__messageId",), (ids[7], ids[5]))
    assert planned(broker, [several], topic=spread) == ([5, 6, 7], 1)
    # Ids are compared as bytes, whose order is none of messages.
    after = GreaterThan(("__messageId",), ids[5])
    assert planned(broker, [after], topic=spread)[0] == list(range(10))
    no_id = EqualTo(("__messageId",), b"\xff")
    assert planned(broker, [no_id], topic=spread)[0] == list(range(10))
    this = EqualTo(("__topic",), spread)
    assert planned(broker, [this], topicsPattern=f"{spread}.*")[1] == 1
    assert planned(broker, [EqualTo(("__topic",), "x")], topicsPattern=f"{spread}.*") == ([], 0)


@pytest.mark.since_spark("4.1")
def test_sparks_own_filters_reach_the_source(spark: Any, broker: Broker, spread: str) -> None:
    options = {
        "topic": spread,
        "admin_url": broker.web_url,
        "bytesPerTask": "1",
        "publishTimeSkewMs": "1",
    }
    rows = spark.read.format("pulsar").options(**given(broker, options)).load()
    assert rows.rdd.getNumPartitions() == 10
    messages = sorted(rows.collect(), key=lambda row: int(row.value))
    moment = messages[6]["__publishTime"].isoformat()
    late = rows.where(f"__publishTime > timestamp'{moment}' and value != X'38'")
    assert sorted(int(row.value) for row in late.collect()) == [7, 9]
    assert late.rdd.getNumPartitions() == 4
    one = rows.where(f"__messageId = X'{bytes(messages[2]['__messageId']).hex()}'")
    assert [int(row.value) for row in one.collect()] == [2]
    assert one.rdd.getNumPartitions() == 1
    none = rows.where("__publishTime < timestamp'1999-01-01'")
    assert none.count() == 0
