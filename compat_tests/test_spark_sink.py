"""The sink of the Spark connector: columns, schemas, partitions, and exactly once."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.conftest import BrokerFactory, official_client
from compat_tests.spark_rows import error_of, given, rows_of, sent_once, sink_options
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.exactly_once import lacks_deduplication
from pyxbroker.spark.options import SINK, Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.producers import AtLeastOnce
from pyxbroker.spark.records import Primitive
from pyxbroker.spark.routing import Router
from pyxbroker.spark.sequence import EPOCH_BITS, Part

pytestmark = pytest.mark.spark


def test_rows_name_their_topics_and_nulls_are_tombstones(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str
) -> None:
    columns = (
        "value string, __key string, __topic string, __eventTime timestamp,"
        " __messageProperties map<string,string>"
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=timezone.utc)
    rows = [
        ("one", "k", f"{topic}-a", moment, {"x": "y"}),
        (None, "k", f"{topic}-a", None, None),
        ("two", None, f"{topic}-b", None, None),
    ]
    frame = spark.createDataFrame(rows, columns).coalesce(1)
    frame.write.format("pulsar").options(**given(broker, {})).mode("append").save()
    reader = client.create_reader(f"{topic}-a", pulsar.MessageId.earliest)
    first, second = reader.read_next(10_000), reader.read_next(10_000)
    assert (first.data(), first.partition_key(), first.properties()) == (b"one", "k", {"x": "y"})
    assert first.event_timestamp() == round(moment.timestamp() * 1000)
    assert second.has_null_value() and second.partition_key() == "k"
    other = client.create_reader(f"{topic}-b", pulsar.MessageId.earliest)
    assert other.read_next(10_000).data() == b"two"


def test_a_broker_that_goes_away_fails_what_is_written_in_time(
    own_broker: BrokerFactory, topic: str
) -> None:
    """What a task of the sink does, without Spark."""
    broker = own_broker()
    broker.start()
    limit = {"topic": topic, "pulsar.producer.sendTimeoutMs": "3000"}
    sender = AtLeastOnce(Options(SINK, given(broker, limit)), None)
    try:
        sender.send(message(topic, "k", b"kept"))
        sender.finish()
        broker.kill()
        begin = time.monotonic()
        with pytest.raises(
            PulsarSparkError, match=r"\d+ messages were not acknowledged: .*: no bro"
        ):
            for _ in range(5_000):
                sender.send(message(topic, "k", b"lost"))
            sender.finish()
        assert time.monotonic() - begin < 30
    finally:
        sender.close()
    broker.start()
    assert [bytes(row["value"]) for row in rows_of(broker, topic=topic)] == [b"kept"]


def test_keys_choose_partitions_as_javas_client_does() -> None:
    router = Router("JavaStringHash", "RoundRobinPartition", 0)
    # In Java "hello".hashCode() is 99162322, and "world".hashCode() 113318802.
    assert [router.partition_of(each, 7) for each in ("hello", "world")] == [0, 2]
    turns = [router.partition_of(None, 3) for _ in range(6_000)]
    assert {turns.count(each) for each in range(3)} == {2_000}
    router = Router("Murmur3_32Hash", "SinglePartition", 5)
    # Murmur3_32Hash.makeHash of "k1" and "key1", from the tests of Pulsar's client.
    assert {router.partition_of(None, 3) for _ in range(6_000)} == {2}


# --- exactly once, without Spark ------------------------------------------------------------------

ROWS = [(f"key {number % 7}", b"%d" % number) for number in range(50)]


def message(topic: str, key: str | None, value: bytes) -> Outgoing:
    return Outgoing(topic, key, value, {})


def write_part(
    broker: Broker,
    topic: str,
    part: Part,
    rows: list[tuple[str, bytes]],
    *,
    is_cut: bool = False,
    **options: str,
) -> list[str]:
    """What a task does; is_cut: it ends before it is done. The topics without deduplication."""
    messages = [message(topic, key, value) for key, value in rows]
    return sent_once(sink_options(broker, topic, **options), part, messages, is_cut)


def stored(broker: Broker, topic: str) -> list[tuple[str, bytes]]:
    return [(row["__key"].decode(), row["value"]) for row in rows_of(broker, topic=topic)]


@pytest.fixture
def once(broker: Broker, topic: str) -> str:
    """A topic with deduplication."""
    path = "/admin/v2/" + topic.replace("://", "/")
    assert broker.rest("PUT", path)[0] == 204
    assert broker.rest("POST", path + "/deduplicationEnabled", True)[0] == 204
    deadline = time.monotonic() + 30
    while broker.rest("GET", path + "/deduplicationEnabled?applied=true") != (200, True):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return topic


def test_a_part_that_comes_again_is_stored_once(broker: Broker, once: str) -> None:
    part = Part("query", 1, 7)
    assert write_part(broker, once, part, ROWS[:30], is_cut=True) == []
    for _ in range(3):
        assert write_part(broker, once, part, ROWS) == []
        assert stored(broker, once) == ROWS
    # Other parts, and what comes next, are others.
    write_part(broker, once, part._replace(task=2), ROWS[:3])
    write_part(broker, once, part._replace(epoch=8), ROWS[:4])
    write_part(broker, once, part._replace(query="another"), ROWS[:5])
    assert stored(broker, once) == [*ROWS, *ROWS[:3], *ROWS[:4], *ROWS[:5]]


def test_messages_in_chunks_are_stored_once(broker: Broker, once: str) -> None:
    large = [("k", bytes([number]) * (6 << 20)) for number in range(2)]
    options = {
        "pulsar.producer.chunkingEnabled": "true",
        "pulsar.producer.compressionType": "none",
    }
    part = Part("query", 0, 0)
    write_part(broker, once, part, large[:1], is_cut=True, **options)
    for _ in range(2):
        write_part(broker, once, part, large, **options)
    assert stored(broker, once) == large


def test_ids_go_on_over_the_end_of_their_bits(broker: Broker, once: str) -> None:
    for epoch in ((1 << EPOCH_BITS) - 1, 1 << EPOCH_BITS, (1 << EPOCH_BITS) + 1):
        for _ in range(2):
            write_part(broker, once, Part("query", 0, epoch), ROWS[:2])
    assert stored(broker, once) == ROWS[:2] * 3


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([*ROWS[1:], ROWS[0]], id="order"),
        pytest.param([*ROWS[:9], ("key", b"other"), *ROWS[10:]], id="value"),
        pytest.param([("other", ROWS[0][1]), *ROWS[1:]], id="key"),
        pytest.param(ROWS[:40], id="less"),
    ],
)
def test_a_part_that_comes_again_as_another_is_an_error(
    broker: Broker, once: str, rows: list[tuple[str, bytes]]
) -> None:
    write_part(broker, once, Part("query", 0, 3), ROWS)
    with pytest.raises(PulsarSparkError, match="is not the batch that was begun before"):
        write_part(broker, once, Part("query", 0, 3), rows)
    assert stored(broker, once) == ROWS


def test_a_checkpoint_that_was_set_back_is_an_error(broker: Broker, once: str) -> None:
    write_part(broker, once, Part("query", 0, 5), ROWS)
    with pytest.raises(PulsarSparkError, match="was the checkpoint set back, or copied"):
        write_part(broker, once, Part("query", 0, 4), ROWS)


def test_partitions_that_are_added_in_the_midst_of_a_batch(broker: Broker, topic: str) -> None:
    path = f"/admin/v2/{topic.replace('://', '/')}"
    assert broker.rest("PUT", f"{path}/partitions", 2)[0] == 204
    assert broker.rest("POST", f"{path}/deduplicationEnabled", True)[0] == 204
    time.sleep(1)
    part = Part("query", 0, 0)
    write_part(broker, topic, part, ROWS[:30], is_cut=True)
    assert broker.rest("POST", f"{path}/partitions", 5)[0] == 204
    for _ in range(2):
        write_part(broker, topic, part, ROWS)
    assert sorted(stored(broker, topic)) == sorted(ROWS)
    write_part(broker, topic, part._replace(epoch=1), ROWS)
    assert sorted(stored(broker, topic)) == sorted(ROWS * 2)
    used = {row["__topic"] for row in rows_of(broker, topic=topic)}
    assert len(used) > 2


def test_a_name_that_is_taken_is_waited_for(
    broker: Broker, client: pulsar.Client, once: str
) -> None:
    """A task that was given up is still connected for a while."""
    part = Part("query", 0, 0)
    given_up = client.create_producer(once, producer_name=part.producer_name)
    timer = threading.Timer(1.5, given_up.close)
    timer.start()
    assert write_part(broker, once, part, ROWS) == []
    timer.join()
    assert stored(broker, once) == ROWS


def test_a_topic_without_deduplication_is_noticed(broker: Broker, topic: str) -> None:
    assert write_part(broker, topic, Part("query", 0, 0), ROWS) == [topic]
    assert lacks_deduplication(Options(SINK, given(broker, {"topic": topic})))


@pytest.mark.pyxbroker  # Apache Pulsar forgets names when it takes a snapshot
def test_a_batch_whose_producer_was_forgotten_is_written_in_full_once_more(
    own_broker: BrokerFactory, topic: str
) -> None:
    """Here as too many others came; by time it is the same (the next test, which takes minutes)."""
    names_max = 2
    broker = own_broker(
        settings={
            "brokerDeduplicationEnabled": "true",
            "brokerDeduplicationMaxNumberOfProducers": str(names_max),
        }
    )
    broker.start()
    done, part = Part("query", 0, 6), Part("query", 0, 7)
    write_part(broker, topic, done, ROWS[:5])
    write_part(broker, topic, part, ROWS[:30], is_cut=True)
    client = official_client(broker.url)
    for number in range(names_max + 1):
        other = client.create_producer(topic, producer_name=f"other {number}")
        other.send(b"", partition_key="other")
        other.close()
    client.close()
    assert last_id(broker, topic, part) < 0
    # No error: the broker cannot say that it knew more. From here on each row is there once again.
    for _ in range(2):
        assert write_part(broker, topic, part, ROWS) == []
        found = [row for row in stored(broker, topic) if row[0] != "other"]
        assert found == [*ROWS[:5], *ROWS[:30], *ROWS]
    for _ in range(2):
        write_part(broker, topic, part._replace(epoch=8), ROWS[:5])
    assert [row for row in stored(broker, topic) if row[0] != "other"] == [*found, *ROWS[:5]]


@pytest.mark.slow
@pytest.mark.minutes
def test_who_was_away_longer_than_names_are_kept_writes_a_batch_twice(
    own_broker: BrokerFactory, topic: str
) -> None:
    broker = own_broker(
        settings={
            "brokerDeduplicationEnabled": "true",
            "brokerDeduplicationProducerInactivityTimeoutMinutes": "1",
            "brokerDeduplicationSnapshotIntervalSeconds": "1",
            "brokerDeduplicationEntriesInterval": "1",
        }
    )
    broker.start()
    part = Part("query", 0, 0)
    write_part(broker, topic, part, ROWS)
    write_part(broker, topic, part, ROWS)
    assert stored(broker, topic) == ROWS
    client = official_client(broker.url)
    keeper = client.create_producer(topic)  # the topic stays open, and takes snapshots
    deadline = time.monotonic() + 200
    while not (found := last_id(broker, topic, part)) < 0:
        assert time.monotonic() < deadline, found
        time.sleep(75)
        keeper.send(b"", partition_key="keeper")
    client.close()
    write_part(broker, topic, part, ROWS)
    found = [row for row in stored(broker, topic) if row[0] != "keeper"]
    assert found == ROWS * 2


def last_id(broker: Broker, topic: str, part: Part) -> int:
    client = official_client(broker.url)
    try:
        return client.create_producer(topic, producer_name=part.producer_name).last_sequence_id()
    finally:
        client.close()


# --- Spark ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_columns_are_a_record_with_a_schema_and_come_back_as_they_were(
    spark: Any, broker: Broker, topic: str, kind: str
) -> None:
    columns = (
        "name string, size double, count bigint, small tinyint, ok boolean, raw binary, day date,"
        " moment timestamp, tags array<string>, parts map<string,int>,"
        " inner struct<number:int, more:array<struct<text:string>>>, __key string"
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901)
    rows = [
        (
            *("fig", 1.5, 1 << 40, -1, True, b"\x00\xff", moment.date(), moment, ["a", None]),
            *({"seed": 9}, (7, [("née",), None]), "k"),
        ),
        (*[None] * 11, "k"),
    ]
    frame = spark.createDataFrame(rows, columns).coalesce(1)
    options = given(broker, {"topic": topic, "schemaType": kind})
    frame.write.format("pulsar").options(**options).mode("append").save()
    status, described = broker.rest("GET", f"/admin/v2/schemas/{topic[13:]}/schema")
    assert (status, described["type"]) == (200, kind.upper())
    back = spark.read.format("pulsar").options(**given(broker, {"topic": topic})).load()
    names = [field.name for field in frame.schema.fields[:-1]]
    assert sorted(map(str, back.select(names).collect())) == sorted(
        str(row) for row in frame.select(names).withColumn("small", frame.small).collect()
    )
    other = spark.createDataFrame([("fig", "much")], "name string, size string")
    text = error_of(other.write.format("pulsar").options(**options).mode("append").save)
    refusal = f"{topic} cannot be written: its schema is not compatible with what is written: "
    reason = text.partition(refusal)[2]
    assert len(reason) > 20 and "Traceback" not in text, text


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("boolean", True), ("tinyint", -1), ("smallint", 256), ("int", -2), ("bigint", 1 << 40)),
        *(("float", 1.5), ("double", 2.5)),
    ],
)
def test_numbers_have_pulsars_schema(broker: Broker, topic: str, kind: str, value: Any) -> None:
    """Without Spark."""
    payloads = Primitive(kind)
    sender = AtLeastOnce(Options(SINK, given(broker, {"topic": topic})), payloads.schema())
    sender.send(Outgoing(topic, None, payloads.encode({"value": value}), {}))
    sender.finish()
    sender.close()
    assert [row["value"] for row in rows_of(broker, topic=topic)] == [value]


def test_a_message_is_delivered_at_its_time(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    later = datetime.now(timezone.utc) + timedelta(days=1)
    rows = [("late", later), ("now", None)]
    frame = spark.createDataFrame(rows, "value string, __deliverAt timestamp").coalesce(1)
    options = given(broker, {"topic": topic})
    frame.write.format("pulsar").options(**options).mode("append").save()
    assert consumer.receive(10_000).data() == b"now"
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    consumer.close()


def test_a_stream_is_written_once_and_without_deduplication_that_is_told(
    spark: Any, broker: Broker, once: str, tmp_path: Path
) -> None:
    source = f"{once}-source"
    numbers = spark.range(20).selectExpr("string(id) as value", "string(id % 3) as __key")
    write = numbers.coalesce(1).write.format("pulsar").mode("append")
    write.options(**given(broker, {"topic": source})).save()

    def run(copy: str, checkpoint: Path, **options: str) -> None:
        rows = spark.readStream.format("pulsar").options(
            **given(broker, {"topic": source, "startingOffsets": "earliest"})
        )
        query = (
            rows.load()
            .drop("__topic")
            .writeStream.format("pulsar")
            .options(**given(broker, {"topic": copy} | options))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    first = tmp_path / "first"
    run(once, first, exactlyOnce="true")
    # The batch was done, and the query was killed before it had noted that.
    for each in (first / "commits").iterdir():
        each.unlink()
    run(once, first, exactlyOnce="true")
    assert sorted(int(row["value"]) for row in rows_of(broker, topic=once)) == list(range(20))
    text = error_of(lambda: run(f"{once}-plain", tmp_path / "second", exactlyOnce="true"))
    assert "has no deduplication, so a batch that is repeated" in text
    third = tmp_path / "third"
    run(f"{once}-again", third)
    for each in (third / "commits").iterdir():
        each.unlink()
    run(f"{once}-again", third, exactlyOnce="false")
    assert len(rows_of(broker, topic=f"{once}-again")) == 40


# --- what Spark asks before it writes -------------------------------------------------------------


def test_a_topic_is_not_overwritten_and_columns_are_checked(broker: Broker, topic: str) -> None:
    """What Spark asks before it writes, without Spark."""
    from pyspark.sql.types import BinaryType, LongType, StringType, StructType

    from pyxbroker.spark.source import PulsarDataSource

    source = PulsarDataSource(given(broker, {"topic": topic}))
    nameless = PulsarDataSource(given(broker, {}))
    value = StructType().add("value", BinaryType())
    assert "cannot be overwritten" in error_of(lambda: source.writer(value, True))
    for make in (source.writer, source.streamWriter):
        other = StructType().add("value", BinaryType()).add("size", LongType())
        assert "the column size cannot be written" in error_of(partial(make, other, False))
        keyed = StructType().add("__key", StringType())
        assert "there is nothing to write" in error_of(partial(make, keyed, False))
    text = error_of(lambda: nameless.writer(value, False))
    assert "give the option topic, or a column __topic." in text
    wrong = PulsarDataSource(given(broker, {"topic": topic, "failOnDataLoss": "true"}))
    text = error_of(lambda: wrong.writer(value, False))
    assert "failOnDataLoss is not an option of the sink" in text
    limited = PulsarDataSource(given(broker, {"topic": topic, "maxBytesPerTrigger": "1m"}))
    text = error_of(lambda: limited.streamReader(limited.schema()))
    assert "maxBytesPerTrigger needs admin.url" in text
