"""The Spark connector in a real Spark (local[2]), against a real broker.

`make spark` runs it. Each action of Spark starts Python workers, so a test does several things;
what needs no Spark is in test_spark_ranges.py.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pulsar
import pytest
from harness.brokers import ROOT, Broker
from harness.java_client import Client as JavaClient

from compat_tests.spark_rows import error_of, given, rows_of

pytestmark = pytest.mark.spark

Load = Callable[..., Any]


@pytest.fixture
def load(spark: Any, broker: Broker) -> Load:
    """A DataFrame of the source; `admin_url` is the option admin.url."""

    def make(**options: str) -> Any:
        return spark.read.format("pulsar").options(**given(broker, options)).load()

    return make


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


def test_the_tour_of_the_readme(
    spark: Any, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"```python\n(from pyspark.*?)```", text, re.DOTALL)
    assert len(program.strip().splitlines()) <= 12
    exec(program.replace("pulsar://localhost:6650", broker.url), {})
    shown = capsys.readouterr().out
    assert "apple" in shown and "pear" in shown and "__publishTime" in shown


def test_a_session_of_tests_has_its_temporary_files_in_its_own_folder(
    spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One that is killed would leave them behind elsewhere."""
    spark.range(1).count()
    system = spark.sparkContext._jvm.java.lang.System
    temporary = Path(system.getProperty("java.io.tmpdir"))
    assert tmp_path_factory.getbasetemp() in temporary.parents
    assert spark.conf.get("spark.local.dir") == str(temporary)
    assert list(temporary.glob("blockmgr-*"))


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
    from pyspark.sql.datasource import DataSourceStreamReader

    copy = f"{topic}-copy"

    def run(is_ending: bool = False, **options: str) -> list[Any]:
        source = {"topic": topic, "startingOffsets": "earliest", "admin_url": broker.web_url}
        rows = spark.readStream.format("pulsar").options(**given(broker, source | options)).load()
        trigger = {"availableNow": True} if is_ending else {"processingTime": "0 seconds"}
        query = (
            rows.writeStream.format("pulsar")
            .options(**given(broker, {"topic": copy}))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )
        try:
            if is_ending:
                assert query.awaitTermination(120)
            else:
                query.processAllAvailable()
            return [each for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()

    is_bounded = hasattr(DataSourceStreamReader, "getDefaultReadLimit")  # from Spark 4.2 on
    bound = {"maxBytesPerTrigger": "1200"} if is_bounded else {}

    def are_bounded(batches: list[Any]) -> bool:
        return len(batches) > 2 and max(each["numInputRows"] for each in batches) < 60

    publish(client, topic, range(100))
    batches = run(**bound)
    assert sum(each["numInputRows"] for each in batches) == 100
    assert are_bounded(batches) == is_bounded
    publish(client, topic, range(100, 150))
    assert sum(each["numInputRows"] for each in run()) == 50
    publish(client, topic, range(150, 250))
    batches = run(is_ending=True, **bound)
    assert sum(each["numInputRows"] for each in batches) == 100
    assert are_bounded(batches) == is_bounded
    (source,) = batches[0]["sources"]
    assert not is_bounded or source["latestOffset"] not in (None, source["endOffset"])
    rows = load(topic=copy).collect()
    assert sorted(numbers_of(rows)) == list(range(250))
    assert {bytes(row["__key"]): row["__messageProperties"] for row in rows} == {
        f"key {number}".encode(): {"number": str(number)} for number in range(250)
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
    assert "was deleted: some of its messages may have been deleted" in error_of(
        lambda: values(end, later)
    )
    patient = PulsarDataSource(given(broker, options | {"failOnDataLoss": "false"}))
    stream = patient.streamReader(patient.schema())
    assert values(end, later) == list(range(20, 25))
    newest = PulsarDataSource(given(broker, {"topic": f"{topic}-s1"}))
    stream = newest.streamReader(newest.schema())
    start = stream.initialOffset()
    assert values(start, stream.latestOffset(start)) == []
    publish(client, f"{topic}-s1", range(40, 42))
    assert values(start, stream.latestOffset(start)) == [40, 41]


@pytest.mark.since_spark("4.2")
def test_a_query_of_what_is_there_now_ends_with_that_and_is_cut_alike_when_repeated(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    """What Spark asks for the trigger availableNow, without Spark."""
    from pyspark.sql.streaming.datasource import ReadMaxBytes

    from pyxbroker.spark.source import PulsarDataSource

    publish(client, f"{topic}-s1", range(100))
    options = {
        "topicsPattern": f"{topic}-s.*",
        "startingOffsets": "earliest",
        "admin_url": broker.web_url,
        "maxBytesPerTrigger": "1500",
        "bytesPerTask": "500",
    }
    source = PulsarDataSource(given(broker, options))
    stream = source.streamReader(source.schema())
    offsets = [stream.initialOffset()]
    stream.prepareForTriggerAvailableNow()
    publish(client, f"{topic}-s1", range(100, 150))
    publish(client, f"{topic}-s2", range(150, 160))

    def ranges(start: dict[str, str], end: dict[str, str]) -> list[Any]:
        again = source.streamReader(source.schema())
        return [part.range for part in again.partitions(start, end)]

    cuts, found = [], []
    while (end := stream.latestOffset(offsets[-1], ReadMaxBytes(1500))) != offsets[-1]:
        cuts.append(ranges(offsets[-1], end))
        for part in stream.partitions(offsets[-1], end):
            found += [int(row["value"]) for b in stream.read(part) for row in b.to_pylist()]
        publish(client, f"{topic}-s1", range(200, 210))
        offsets.append(end)
        assert len(offsets) < 50, "it has no end"
    assert sorted(found) == list(range(100))
    assert len(cuts) > 2 and all(len(each) > 1 for each in cuts[:-1])
    assert [ranges(*each) for each in itertools.pairwise(offsets)] == cuts
    assert stream.latestOffset(offsets[-1]) == offsets[-1]
    assert set(stream.reportLatestOffset()) == {f"{topic}-s1", f"{topic}-s2"}
    # The next query goes on with what came meanwhile.
    following = source.streamReader(source.schema())
    following.prepareForTriggerAvailableNow()
    assert set(following.latestOffset(offsets[-1])) == {f"{topic}-s1", f"{topic}-s2"}


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
        ("TIME", b"\x00" * 8, b"\x00" * 8),
        ("LOCAL_TIME", b"\x00" * 8, b"\x00" * 8),
    ],
)
def test_primitives_are_values(
    broker: Broker, client: pulsar.Client, topic: str, kind: str, payload: bytes, value: Any
) -> None:
    register_schema(broker, topic, kind)
    client.create_producer(topic).send(payload)
    assert [row["value"] for row in rows_of(broker, topic=topic)] == [value]


UTC = timezone.utc
PLAIN_MOMENTS: list[tuple[str, Any, Any]] = [
    ("DATE", -1, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
    ("TIMESTAMP", 1_800_000_000_123, datetime(2027, 1, 15, 8, 0, 0, 123_000, UTC)),
    ("INSTANT", "1969-12-31T23:59:59.999999999Z", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
    ("LOCAL_DATE", "1582-10-15", date(1582, 10, 15)),
    ("LOCAL_DATE", "2027-02-28", date(2027, 2, 28)),
    ("LOCAL_DATE_TIME", "1969-12-31T23:59:59.000001", datetime(1969, 12, 31, 23, 59, 59, 1)),
]


@pytest.mark.parametrize(("kind", "sent", "value"), PLAIN_MOMENTS)
def test_dates_and_moments_of_javas_client_are_those_of_spark(
    broker: Broker, java_client: JavaClient, topic: str, kind: str, sent: Any, value: Any
) -> None:
    java_client.create_producer(topic, kind).send(sent)
    assert [row["value"] for row in rows_of(broker, topic=topic)] == [value]
    pair = {"key": kind, "value": kind, "encoding": "SEPARATED"}
    producer = java_client.create_producer(f"{topic}-pair", pair)
    producer.send({"key": sent, "value": sent})
    (row,) = rows_of(broker, topic=f"{topic}-pair", columns="key,value")
    assert row == {"key": value, "value": value}


def test_decimals_of_avro_are_those_of_spark(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    money = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    tall = {"type": "fixed", "name": "F", "size": 20, "logicalType": "decimal", "precision": 39}
    tall["scale"] = 1
    cases = (([money, "null"], True), (money | {"precision": 39}, False), (tall, False))
    for number, (type_, is_column) in enumerate(cases):
        name = f"{topic}-{number}"
        definition = {"type": "record", "name": "R", "fields": [{"name": "it", "type": type_}]}
        register_schema(broker, name, "AVRO", json.dumps(definition))
        out = io.BytesIO()
        fastavro.schemaless_writer(out, definition, {"it": Decimal("-12.5")})
        client.create_producer(name).send(out.getvalue())
        (row,) = rows_of(broker, topic=name)
        found = {"it": Decimal("-12.50")} if is_column else {"value": out.getvalue()}
        assert without_metadata(row) == found


def register_schema(broker: Broker, topic: str, kind: str, definition: str = "") -> None:
    path = f"/admin/v2/schemas/{topic.removeprefix('persistent://')}/schema"
    body = {"type": kind, "schema": definition, "properties": {}}
    assert broker.rest("POST", path, body)[0] == 200


def test_what_does_not_fit_its_schema_is_told(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    for name, kind in ((topic, "INT64"), (f"{topic}-other", "INT32")):
        register_schema(broker, name, kind)
        client.create_producer(name).send(b"abc")
    assert "cannot be read by its schema" in error_of(lambda: rows_of(broker, topic=topic))
    text = error_of(lambda: rows_of(broker, topics=f"{topic},{topic}-other"))
    assert "have different schemas; read topics of one schema together" in text


def test_what_cannot_be_is_an_error_with_one_sentence(
    spark: Any, broker: Broker, load: Load, topic: str
) -> None:
    assert "there is no option topc: did you mean topic or topics?" in error_of(
        lambda: load(topc=topic)
    )
    text = error_of(load(topic=topic).count)
    assert f"there is no topic {topic}" in text and "Traceback" not in text
    text = error_of(spark.read.format("pulsar").option("service.url", "pulsar://127.0.0.1:1").load)
    assert "give one of topic, topics and topicsPattern" in text
    nobody = {"service.url": "pulsar://127.0.0.1:1", "topic": topic}
    text = error_of(spark.read.format("pulsar").options(**nobody).load)
    assert "no broker answers at pulsar://127.0.0.1:1" in text
    write = spark.range(3).selectExpr("id as value").write.format("pulsar").mode("append")
    text = error_of(write.options(**given(broker, {"topic": topic, "schemaType": "avro"})).save)
    assert "schemaType is for columns that are the fields of a record" in text
