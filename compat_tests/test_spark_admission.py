"""How much a batch of a stream has: bounds by rows and by bytes, without Spark and under it."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.spark_rows import error_of, given
from compat_tests.test_spark_planning import path_of, read, stream_of, unload
from pyxbroker.spark import admission
from pyxbroker.spark import stream as stream_module
from pyxbroker.spark.errors import WrongOption
from pyxbroker.spark.options import STREAM, Options
from pyxbroker.spark.plan import Range
from pyxbroker.spark.positions import read_offset
from pyxbroker.spark.range_reader import RangeReader
from pyxbroker.spark.source import PulsarDataSource

pytestmark = [pytest.mark.spark, pytest.mark.since_spark("4.2")]


def publish(client: pulsar.Client, topic: str, numbers: range, batch: int) -> None:
    """Messages in entries of so many."""
    batching = {"batching_enabled": True, "batching_max_messages": batch} if batch > 1 else {}
    producer = client.create_producer(topic, batching_max_publish_delay_ms=60_000, **batching)
    for number in numbers:
        producer.send_async(b"%d" % number, None)
    producer.flush()
    producer.close()


def batches_of(broker: Broker, **options: str) -> list[list[int]]:
    """What each batch of a stream has that asks as Spark does, without Spark."""
    source = PulsarDataSource(given(broker, {"startingOffsets": "earliest"} | options))
    stream = source.streamReader(source.schema())
    limit = stream.getDefaultReadLimit()
    offsets = [stream.initialOffset()]
    found = []
    while (end := stream.latestOffset(offsets[-1], limit)) != offsets[-1]:
        parts = stream.partitions(offsets[-1], end)
        rows = [row for part in parts for b in stream.read(part) for row in b.to_pylist()]
        found.append([int(row["value"]) for row in rows])
        offsets.append(end)
        assert len(offsets) < 300, "it has no end"
    # What was planned before is planned again as it was.
    again = source.streamReader(source.schema())
    for (begin, end), batch in zip(itertools.pairwise(offsets), found, strict=True):
        parts = again.partitions(begin, end)
        rows = [row for part in parts for b in again.read(part) for row in b.to_pylist()]
        assert [int(row["value"]) for row in rows] == batch
    return found


@pytest.mark.parametrize("reader", ["fast", "client"])
@pytest.mark.parametrize("option", ["maxRowsPerTrigger", "maxOffsetsPerTrigger"])
def test_batches_have_so_many_rows_wherever_entries_end(
    broker: Broker, client: pulsar.Client, topic: str, option: str, reader: str
) -> None:
    publish(client, topic, range(25), 10)
    publish(client, topic, range(25, 30), 1)
    publish(client, topic, range(30, 60), 30)
    found = batches_of(broker, topic=topic, reader=reader, **{option: "7"})
    assert [len(each) for each in found] == [7] * 8 + [4]
    assert list(itertools.chain(*found)) == list(range(60))
    found = batches_of(broker, topic=topic, reader=reader, **{option: "10"})
    assert [len(each) for each in found] == [10] * 6
    assert [len(each) for each in batches_of(broker, topic=topic, **{option: "60"})] == [60]
    assert [len(each) for each in batches_of(broker, topic=topic, **{option: "61"})] == [60]


def test_topics_share_the_rows_of_a_batch(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    for index, count in enumerate((100, 3, 20)):
        publish(client, f"{topic}-{index}", range(1000 * index, 1000 * index + count), 8)
    found = batches_of(broker, topicsPattern=f"{topic}-.*", maxRowsPerTrigger="12")
    assert all(len(each) <= 12 for each in found)
    assert sorted(itertools.chain(*found)) == [*range(100), *range(1000, 1003), *range(2000, 2020)]
    assert {number // 1000 for number in found[0]} == {0, 1, 2}
    # Fewer rows than topics: each has its turn.
    found = batches_of(broker, topicsPattern=f"{topic}-.*", maxRowsPerTrigger="1")
    assert [len(each) for each in found] == [1] * 123


def test_rows_and_bytes_bound_a_batch_together(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, range(100), 10)
    admin = {"admin_url": broker.web_url}
    by_bytes = batches_of(broker, topic=topic, maxBytesPerTrigger="1", **admin)
    assert [len(each) for each in by_bytes] == [10] * 10
    both = {"topic": topic, "maxBytesPerTrigger": "1"} | admin
    assert max(map(len, batches_of(broker, maxRowsPerTrigger="4", **both))) == 4
    found = batches_of(broker, maxRowsPerTrigger="50", **both)
    assert [len(each) for each in found] == [10] * 10


def test_chunked_messages_are_rows(broker: Broker, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    for number in range(3):
        producer.send((b"%d" % number).ljust(6 << 20))
        producer.send(b"%d" % number)
    assert batches_of(broker, topic=topic, maxRowsPerTrigger="1") == [[0], [0], [1], [1], [2], [2]]
    assert batches_of(broker, topic=topic, maxRowsPerTrigger="4") == [[0, 0, 1, 1], [2, 2]]


def test_a_stream_in_spark_has_batches_of_so_many_rows(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, range(100), 15)

    def run(trigger: dict[str, Any], name: str) -> list[int]:
        options = {"topic": topic, "startingOffsets": "earliest", "maxRowsPerTrigger": "40"}
        rows = spark.readStream.format("pulsar").options(**given(broker, options)).load()
        query = (
            rows.selectExpr("cast(value as string) as value")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(**trigger)
            .start()
        )
        try:
            if "availableNow" in trigger:
                assert query.awaitTermination(120)
            else:
                query.processAllAvailable()
            return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()

    assert run({"availableNow": True}, "checkpoint") == [40, 40, 20]
    publish(client, topic, range(100, 150), 15)
    assert run({"processingTime": "0 seconds"}, "checkpoint") == [40, 10]
    written = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(int(row.value) for row in written) == list(range(150))


# --- what changes while rows are counted ----------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Range]:
    """The ranges whose rows the driver has counted."""
    found = []

    class Counted(RangeReader):
        def __init__(self, options: Options, wanted: Range, columns: Any) -> None:
            found.append(wanted)
            super().__init__(options, wanted, columns)

    monkeypatch.setattr(admission, "RangeReader", Counted)
    return found


def test_a_ledger_without_entries_is_not_waited_for(
    broker: Broker, client: pulsar.Client, topic: str, counted: list[Range]
) -> None:
    """An end is before its first entry where the ledger before was read, or has to be."""
    topics = [f"{topic}-{number}" for number in range(6)]
    for each in topics:
        publish(client, each, range(2), 1)
    stream = stream_of(
        broker,
        topics=",".join(topics),
        admin_url=broker.web_url,
        startingOffsets="earliest",
        maxRowsPerTrigger="100",
    )
    limit = stream.getDefaultReadLimit()
    first = stream.latestOffset(stream.initialOffset(), limit)
    for each in topics:
        unload(broker, each)
    counted.clear()
    begin = time.monotonic()
    second = stream.latestOffset(first, limit)
    assert counted == []
    assert time.monotonic() - begin < 3
    assert {each.entry for each in read_offset(second).values()} == {-1}
    assert read(stream, first, second) == []
    for each in topics:
        publish(client, each, range(2, 4), 1)
        unload(broker, each)
    third = stream.latestOffset(second, limit)
    assert [each.end.entry for each in counted] == [1] * 6
    assert sorted(read(stream, second, third)) == ["2"] * 6 + ["3"] * 6
    assert {each.entry for each in read_offset(third).values()} == {-1}


def test_a_ledger_that_the_driver_read_to_its_end_may_be_deleted(
    broker: Broker, client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, topic, range(5), 1)
    unload(broker, topic)
    publish(client, topic, range(5, 10), 1)
    look = RangeReader._check_gap

    def look_late(self: RangeReader) -> None:
        if self._columns.position[1] >= 0:
            trim(broker, topic)
        look(self)

    monkeypatch.setattr(RangeReader, "_check_gap", look_late)
    options = {"topic": topic, "admin_url": broker.web_url, "startingOffsets": "earliest"}
    stream = stream_of(broker, **options, maxRowsPerTrigger="100")
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert read_offset(end)[topic].entry == 4


def trim(broker: Broker, topic: str) -> None:
    """All goes but the ledger that is written."""
    deadline = time.monotonic() + 20
    while len(broker.rest("GET", f"{path_of(topic)}/internalStats")[1]["ledgers"]) > 1:
        assert time.monotonic() < deadline, "its ledgers are still there"
        assert broker.rest("POST", f"{path_of(topic)}/trim")[0] in (200, 204)
        time.sleep(0.1)


@pytest.mark.parametrize("with_rest", [False, True], ids=["", "rest"])
@pytest.mark.parametrize("fails", [False, True], ids=["goes-on", "fails"])
def test_a_topic_that_is_deleted_while_rows_are_counted_is_told_by_who_reads_it(
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    with_rest: bool,
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = f"{topic}-1", f"{topic}-2"
    for each in (one, other):
        publish(client, each, range(3), 1)
    options = {"topicsPattern": f"{topic}-.*", "startingOffsets": "earliest"}
    options |= {"maxRowsPerTrigger": "2", "failOnDataLoss": str(fails)}
    if with_rest:
        options["admin_url"] = broker.web_url
    stream = stream_of(broker, **options)
    start = stream.initialOffset()
    limit_ends = stream_module.limit_ends

    def delete_and_limit_ends(*arguments: Any) -> Any:
        broker.rest("DELETE", f"{path_of(one)}?force=true")
        return limit_ends(*arguments)

    monkeypatch.setattr(stream_module, "limit_ends", delete_and_limit_ends)
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    if fails:
        assert f"{one}, which was to be read up to" in error_of(lambda: read(stream, start, end))
    else:
        assert read(stream, start, end) in (["0"], ["0", "1"])


def test_an_option_with_two_names_is_given_once() -> None:
    both = {"maxRowsPerTrigger": "1", "maxOffsetsPerTrigger": "2"}
    with pytest.raises(WrongOption, match="maxoffsetspertrigger and maxrowspertrigger are one"):
        Options(STREAM, {"service.url": "pulsar://a", "topic": "a"} | both)
