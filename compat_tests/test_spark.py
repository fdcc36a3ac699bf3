"""The Spark connector in a real Spark (local[2]), against a real broker.

`make spark` runs it. Each action of Spark starts Python workers, so a test does several things;
what needs no Spark is in test_spark_ranges.py.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import ROOT, Broker

from compat_tests.conftest import BrokerFactory

pytestmark = pytest.mark.spark

Load = Callable[..., Any]


def spark_home(place: Path) -> Path:
    """PySpark's installation without its zip of modules, which each worker would compile anew: that
    takes a second and a half, and a worker that takes ten on a busy machine is given up.
    """
    import pyspark

    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "python":
            (place / each.name).symlink_to(each)
    return place


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(spark_home(tmp_path_factory.mktemp("spark")))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    from pyxbroker.spark import register

    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture
def load(spark: Any, broker: Broker) -> Load:
    """A DataFrame of the source; `admin_url` is the option admin.url."""

    def make(**options: str) -> Any:
        return spark.read.format("pulsar").options(**given(broker, options)).load()

    return make


def given(broker: Broker, options: dict[str, str]) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return {"service.url": broker.url} | named


def publish(client: pulsar.Client, topic: str, numbers: range) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10)
    for number in numbers:
        producer.send_async(
            str(number).encode(),
            None,
            partition_key=f"key {number}",
            properties={"number": str(number)},
            event_timestamp=1_700_000_000_000 + number,
        )
    producer.flush()
    producer.close()


def numbers_of(rows: list[Any]) -> list[int]:
    return [int(row.value) for row in rows]


def error_of(do: Callable[[], Any]) -> str:
    """The text of the error that Spark shows."""
    with pytest.raises(Exception) as caught:
        do()
    return str(caught.value)


def test_the_tour_of_the_readme(
    spark: Any, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"```python\n(from pyspark.*?)```", text, re.DOTALL)
    assert len(program.strip().splitlines()) <= 12
    exec(program.replace("pulsar://localhost:6650", broker.url), {})
    shown = capsys.readouterr().out
    assert "apple" in shown and "pear" in shown and "__publishTime" in shown


def test_columns_of_a_partitioned_topic_and_tasks_of_a_large_one(
    load: Load, broker: Broker, client: pulsar.Client, topic: str
) -> None:
    assert broker.rest("PUT", f"/admin/v2/{topic.replace('://', '/')}/partitions", 2)[0] == 204
    publish(client, topic, range(100))
    rows = load(topic=topic, admin_url=broker.web_url, bytesPerTask="512")
    assert rows.rdd.getNumPartitions() > 4
    assert dict(rows.dtypes) == {
        "value": "binary",
        "__key": "binary",
        "__topic": "string",
        "__messageId": "binary",
        "__publishTime": "timestamp",
        "__eventTime": "timestamp",
        "__messageProperties": "map<string,string>",
    }
    found = {int(row.value): row for row in rows.collect()}
    assert sorted(found) == list(range(100))
    for number, row in found.items():
        assert bytes(row["__key"]) == f"key {number}".encode()
        assert row["__topic"] in (f"{topic}-partition-0", f"{topic}-partition-1")
        assert row["__messageProperties"] == {"number": str(number)}
        assert row["__eventTime"].timestamp() * 1000 == pytest.approx(1_700_000_000_000 + number)
        assert abs((row["__publishTime"] - found[0]["__publishTime"]).total_seconds()) < 60
    # The id is one that clients understand.
    row = min(
        rows.where(f"__topic like '%-partition-{0}'").collect(), key=lambda row: int(row.value)
    )
    reader = client.create_reader(
        row["__topic"],
        pulsar.MessageId.deserialize(bytes(row["__messageId"])),
        start_message_id_inclusive=True,
    )
    assert reader.read_next(10_000).data() == row.value
    reader.close()


def test_a_stream_goes_on_where_it_was_in_bounded_batches_and_leaves_nothing(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str, tmp_path: Path, load: Load
) -> None:
    copy = f"{topic}-copy"

    def run(**options: str) -> list[Any]:
        source = {"topic": topic, "startingOffsets": "earliest", "admin_url": broker.web_url}
        rows = spark.readStream.format("pulsar").options(**given(broker, source | options)).load()
        query = (
            rows.writeStream.format("pulsar")
            .options(**given(broker, {"topic": copy}))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            query.processAllAvailable()
            return [each for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()

    publish(client, topic, range(100))
    batches = run(maxBytesPerTrigger="1200")
    assert sum(each["numInputRows"] for each in batches) == 100
    assert len(batches) > 2 and max(each["numInputRows"] for each in batches) < 60
    publish(client, topic, range(100, 150))
    assert sum(each["numInputRows"] for each in run()) == 50
    rows = load(topic=copy).collect()
    assert sorted(numbers_of(rows)) == list(range(150))
    assert {bytes(row["__key"]): row["__messageProperties"] for row in rows} == {
        f"key {number}".encode(): {"number": str(number)} for number in range(150)
    }
    for each in (topic, copy):
        path = f"/admin/v2/{each.replace('://', '/')}/subscriptions"
        assert broker.rest("GET", path) == (200, [])


def test_offsets_of_a_stream_are_replayed_and_have_what_appears(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    """What Spark asks of the source, in its order, without Spark."""
    from pyxbroker.spark.source import PulsarDataSource

    publish(client, f"{topic}-s1", range(20))
    options = {"topicsPattern": f"{topic}-s.*", "startingOffsets": "earliest"}
    source = PulsarDataSource(given(broker, options))
    stream = source.streamReader(source.schema())

    def values(start: dict[str, str], end: dict[str, str]) -> list[int]:
        batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
        return sorted(int(row["value"]) for batch in batches for row in batch.to_pylist())

    start = stream.initialOffset()
    end = stream.latestOffset(start)
    assert values(start, end) == list(range(20))
    publish(client, f"{topic}-s1", range(20, 25))
    publish(client, f"{topic}-s2", range(25, 40))
    later = stream.latestOffset(end)
    assert set(later) == {f"{topic}-s1", f"{topic}-s2"}
    assert values(end, later) == list(range(20, 40))
    assert values(start, end) == list(range(20))
    assert stream.latestOffset(later) == later and values(later, later) == []
    path = f"/admin/v2/{topic.replace('://', '/')}-s2?force=true"
    assert broker.rest("DELETE", path)[0] == 204
    assert "there is no topic" in error_of(lambda: values(end, later))
    patient = PulsarDataSource(given(broker, options | {"failOnDataLoss": "false"}))
    stream = patient.streamReader(patient.schema())
    assert values(end, later) == list(range(20, 25))
    newest = PulsarDataSource(given(broker, {"topic": f"{topic}-s1"}))
    stream = newest.streamReader(newest.schema())
    start = stream.initialOffset()
    assert values(start, stream.latestOffset(start)) == []
    publish(client, f"{topic}-s1", range(40, 42))
    assert values(start, stream.latestOffset(start)) == [40, 41]


def rows_of(broker: Broker, **options: str) -> list[dict[str, Any]]:
    """What the source reads, without Spark."""
    from pyxbroker.spark.source import PulsarDataSource

    source = PulsarDataSource(given(broker, options))
    reader = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def without_metadata(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("__")}


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_fields_of_records_are_columns_by_the_schema_of_each_message(
    broker: Broker, client: pulsar.Client, topic: str, kind: str
) -> None:
    from pulsar import schema

    class Inner(schema.Record):
        number = schema.Integer()
        texts = schema.Array(schema.String())

    fields = {
        "name": schema.String(),
        "size": schema.Double(),
        "count": schema.Long(),
        "ok": schema.Boolean(),
        "parts": schema.Map(schema.Integer()),
        "inner": Inner(),
    }
    more = fields | {"colour": schema.String(required=False, default=None, required_default=True)}
    old, new = (type("Fruit", (schema.Record,), dict(each)) for each in (fields, more))
    make = {"avro": schema.AvroSchema, "json": schema.JsonSchema}[kind]
    one = {"name": "fig", "size": 1.5, "count": 1 << 40, "ok": True, "parts": {"seed": 9}}
    producer = client.create_producer(topic, schema=make(old))
    producer.send(old(**one, inner=Inner(number=7, texts=["a", "b"])))
    producer.send(old())
    producer = client.create_producer(topic, schema=make(new))
    producer.send(new(name="plum", colour="blue"))
    producer.send(None)
    nothing: dict[str, Any] = dict.fromkeys(more)
    # What the client writes where it was given nothing.
    empty = nothing | {"ok": False, "inner": {"number": None, "texts": None}}
    assert [without_metadata(row) for row in rows_of(broker, topic=topic)] == [
        nothing | one | {"parts": [("seed", 9)], "inner": {"number": 7, "texts": ["a", "b"]}},
        empty,
        empty | {"name": "plum", "colour": "blue"},
        nothing,
    ]


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        ("STRING", "née".encode(), "née"),
        ("BOOLEAN", b"\x01", True),
        ("INT8", b"\xff", -1),
        ("INT16", b"\x01\x00", 256),
        ("INT32", b"\xff\xff\xff\xfe", -2),
        ("INT64", b"\x00\x00\x01\x00\x00\x00\x00\x00", 1 << 40),
        ("FLOAT", b"\x3f\xc0\x00\x00", 1.5),
        ("DOUBLE", b"\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5),
        ("INSTANT", b"\x00" * 12, b"\x00" * 12),
    ],
)
def test_primitives_are_values(
    broker: Broker, client: pulsar.Client, topic: str, kind: str, payload: bytes, value: Any
) -> None:
    register_schema(broker, topic, kind)
    client.create_producer(topic).send(payload)
    assert [row["value"] for row in rows_of(broker, topic=topic)] == [value]


def register_schema(broker: Broker, topic: str, kind: str) -> None:
    path = f"/admin/v2/schemas/{topic.removeprefix('persistent://')}/schema"
    body = {"type": kind, "schema": "", "properties": {}}
    assert broker.rest("POST", path, body)[0] == 200


def test_what_does_not_fit_its_schema_is_told(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    for name, kind in ((topic, "INT64"), (f"{topic}-other", "INT32")):
        register_schema(broker, name, kind)
        client.create_producer(name).send(b"abc")
    assert "cannot be read by its schema" in error_of(lambda: rows_of(broker, topic=topic))
    text = error_of(lambda: rows_of(broker, topics=f"{topic},{topic}-other"))
    assert "have different schemas; read those with one schema together" in text


def test_rows_name_their_topics_and_nulls_are_tombstones(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str
) -> None:
    columns = (
        "value string, __key string, __topic string, __eventTime timestamp,"
        " __messageProperties map<string,string>"
    )
    from datetime import datetime, timezone

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
    from pyxbroker.spark.errors import PulsarSparkError
    from pyxbroker.spark.options import SINK, Options
    from pyxbroker.spark.sink import Producers

    broker = own_broker()
    broker.start()
    limit = {"topic": topic, "pulsar.client.operationTimeoutMs": "3000"}
    producers = Producers(Options(SINK, given(broker, limit)))
    try:
        assert producers.send_all([{"value": "kept"}]) == 1
        producers.flush()
        broker.kill()
        begin = time.monotonic()
        with pytest.raises(PulsarSparkError, match=r"\d+ messages .* were not acknowledged"):
            producers.send_all([{"value": b"lost"}] * 5_000)
            producers.flush()
        assert time.monotonic() - begin < 30
    finally:
        producers.close()
    broker.start()
    assert [bytes(row["value"]) for row in rows_of(broker, topic=topic)] == [b"kept"]
    with pytest.raises(PulsarSparkError, match=r"a row has no __topic"):
        Producers(Options(SINK, given(broker, {}))).send_all([{"value": b"", "__topic": None}])


def test_keys_choose_partitions_as_javas_client_does() -> None:
    from pyxbroker.spark.sink import Router

    class Keyed:
        def __init__(self, key: str) -> None:
            self.partition_key = lambda: key

    router = Router()
    # In Java "hello".hashCode() is 99162322, and "world".hashCode() 113318802.
    assert [router.partition_of(Keyed(each), 7) for each in ("hello", "world")] == [0, 2]
    turns = [router.partition_of(Keyed(""), 3) for _ in range(6_000)]
    assert {turns.count(each) for each in range(3)} == {2_000}


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
        assert "the column size is none" in error_of(partial(make, other, False))
        keyed = StructType().add("__key", StringType())
        assert "there is no column value" in error_of(partial(make, keyed, False))
    text = error_of(lambda: nameless.writer(value, False))
    assert "give the option topic, or a column __topic." in text
    wrong = PulsarDataSource(given(broker, {"topic": topic, "failOnDataLoss": "true"}))
    text = error_of(lambda: wrong.writer(value, False))
    assert "failOnDataLoss is no option of the sink" in text
    limited = PulsarDataSource(given(broker, {"topic": topic, "maxBytesPerTrigger": "1m"}))
    text = error_of(lambda: limited.streamReader(limited.schema()))
    assert "maxBytesPerTrigger needs admin.url" in text


def test_what_cannot_be_is_an_error_with_one_sentence(
    spark: Any, broker: Broker, load: Load, topic: str
) -> None:
    assert "there is no option topc: did you mean topic or topics?" in error_of(
        lambda: load(topc=topic)
    )
    assert f"there is no topic {topic}" in error_of(load(topic=topic).count)
    text = error_of(spark.read.format("pulsar").option("service.url", "pulsar://127.0.0.1:1").load)
    assert "one of topic, topics and topicsPattern has to be given" in text
    nobody = {"service.url": "pulsar://127.0.0.1:1", "topic": topic}
    text = error_of(spark.read.format("pulsar").options(**nobody).load)
    assert "no broker answers at pulsar://127.0.0.1:1" in text
    write = spark.range(3).selectExpr("id as value").write.format("pulsar").mode("append")
    text = error_of(write.options(**given(broker, {"topic": topic})).save)
    assert "the column value is bigint: it has to be binary or string." in text
