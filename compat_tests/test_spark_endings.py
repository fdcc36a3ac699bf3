"""How queries of Spark end whose sink cannot go on: with one sentence that says why, in time, no
task that hangs, and no producer that stays with the broker. Ours and Apache Pulsar
(`BROKER=apache`).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker
from harness.tokens import token

from compat_tests.conftest import BrokerFactory, official_client
from compat_tests.spark_rows import error_of
from compat_tests.test_spark_refusals import (
    LIFE_S,
    PARAMS,
    PATIENCE_S,
    grant,
    guarded,
    is_left_alone,
    options_of,
    revoke,
    root,
)

pytestmark = pytest.mark.spark

SEND_S = 3.0
LIMITS = {"pulsar.producer.sendTimeoutMs": f"{SEND_S * 1000:.0f}"}
__all__ = ["guarded", "root"]


@pytest.fixture(params=["false", "auto"], ids=["least", "once"])
def exactly_once(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def target(guarded: Broker, topic: str, exactly_once: str) -> str:
    """A topic, with deduplication where it counts."""
    path = "/admin/v2/" + topic.replace("://", "/")
    assert guarded.rest("PUT", path)[0] == 204
    if exactly_once == "auto":
        assert guarded.rest("POST", path + "/deduplicationEnabled", True)[0] == 204
        deadline = time.monotonic() + 30
        while guarded.rest("GET", path + "/deduplicationEnabled?applied=true") != (200, True):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    return topic


@pytest.fixture
def options(guarded: Broker, target: str, exactly_once: str) -> dict[str, str]:
    """Of who writes there, under LIMITS."""
    return options_of(guarded, target) | {"exactlyOnce": exactly_once} | LIMITS


def stream(spark: Any, options: dict[str, str], place: Path) -> Any:
    """A query that writes some rows, again and again."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    rows = rows.selectExpr("string(value) as value", "string(value % 5) as __key")
    query = rows.writeStream.format("pulsar").options(**options)
    query = query.option("checkpointLocation", str(place / "checkpoint"))
    return query.trigger(processingTime="200 milliseconds").start()


def write_some(query: Any) -> None:
    """Until a batch with rows is done."""
    deadline = time.monotonic() + PATIENCE_S
    while not (query.lastProgress and query.lastProgress["numInputRows"]):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def sentence(text: str) -> str:
    """The one that Spark shows last of a Python worker."""
    found = re.findall(r"\bpyxbroker\.spark\.errors\.\w+: (.*)$", text, re.MULTILINE)
    assert found, text
    return str(found[-1])


def ending(query: Any) -> str:
    """How a query ends."""
    try:
        return sentence(error_of(lambda: query.awaitTermination(PATIENCE_S)))
    finally:
        query.stop()


def is_idle(spark: Any) -> bool:
    """Whether no task runs, after a moment."""
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 10
    while tracker.getActiveStageIds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_a_token_that_expires_while_a_stream_is_written(
    spark: Any, guarded: Broker, target: str, options: dict[str, str], tmp_path: Path
) -> None:
    grant(guarded, "produce")
    file = tmp_path / "token"
    file.write_text(token("me", exp=600))
    query = stream(spark, options | {PARAMS: f"file://{file}"}, tmp_path)
    write_some(query)
    file.write_text(token("me", exp=LIFE_S))
    assert "a token may have expired" in ending(query)
    assert is_idle(spark) and is_left_alone(guarded, target)


def test_who_has_no_right_to_write_a_stream(
    spark: Any, guarded: Broker, target: str, options: dict[str, str], tmp_path: Path
) -> None:
    grant(guarded, "consume")
    query = stream(spark, options, tmp_path)
    assert ending(query) == f"{target} cannot be written: there is no right to write it."
    assert is_idle(spark) and is_left_alone(guarded, target)


@pytest.mark.pyxbroker  # Apache Pulsar lets whoever is connected go on
def test_a_right_that_is_taken_away_while_a_stream_is_written(
    spark: Any, guarded: Broker, target: str, options: dict[str, str], tmp_path: Path
) -> None:
    grant(guarded, "produce")
    query = stream(spark, options, tmp_path)
    write_some(query)
    revoke(guarded)
    assert "there is no right to write it" in ending(query)
    assert is_idle(spark) and is_left_alone(guarded, target)


def test_a_topic_that_is_terminated_while_a_stream_is_written(
    spark: Any, guarded: Broker, target: str, options: dict[str, str], tmp_path: Path
) -> None:
    grant(guarded, "produce")
    query = stream(spark, options, tmp_path)
    write_some(query)
    path = f"/admin/v2/{target.replace('://', '/')}/terminate"
    assert guarded.rest("POST", path)[0] == 200
    assert ending(query).endswith(f"{target} cannot be written: it was terminated.")
    assert is_idle(spark) and is_left_alone(guarded, target)


def test_a_stream_whose_rows_do_not_go_with_the_topics_schema(
    spark: Any, guarded: Broker, target: str, options: dict[str, str], tmp_path: Path
) -> None:
    grant(guarded, "produce", "consume")
    one = spark.createDataFrame([("fig", 1.5)], "name string, size double")
    batch = {name: value for name, value in options.items() if name != "exactlyOnce"}
    one.write.format("pulsar").options(**batch).mode("append").save()
    rows = spark.readStream.format("rate").load()
    query = rows.selectExpr("string(value) as name", "string(value) as size").writeStream
    query = query.format("pulsar").options(**options)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    expected = f"{target} cannot be written: its schema is not compatible with what is written: "
    told = ending(query)
    assert told.startswith(expected) and "size" in told.removeprefix(expected), told
    assert is_idle(spark) and is_left_alone(guarded, target)


# --- a broker that does not come back -------------------------------------------------------------


@pytest.fixture
def leaving(own_broker: BrokerFactory) -> Broker:
    broker = own_broker(settings={"brokerDeduplicationEnabled": "true"})
    broker.start()
    return broker


def plain(broker: Broker, topic: str) -> dict[str, str]:
    return {
        "service.url": broker.url,
        "topic": topic,
        "pulsar.client.operationTimeoutMs": "10000",
    } | LIMITS


def in_time(do: Callable[[], str]) -> str:
    begin = time.monotonic()
    found = do()
    assert time.monotonic() - begin < 2 * SEND_S + 25
    return found


def test_a_broker_that_goes_away_for_good_while_a_stream_is_written(
    spark: Any, leaving: Broker, topic: str, exactly_once: str, tmp_path: Path
) -> None:
    query = stream(spark, plain(leaving, topic) | {"exactlyOnce": exactly_once}, tmp_path)
    write_some(query)
    leaving.kill()
    assert f"no broker answers at {leaving.url}" in in_time(lambda: ending(query))
    assert is_idle(spark)


def test_a_broker_that_goes_away_for_good_while_a_batch_is_written(
    spark: Any, leaving: Broker, topic: str
) -> None:
    def rows(_: Any) -> Iterator[Any]:
        for number in range(100_000):
            if number % 1_000 == 0:
                time.sleep(0.1)
            yield str(number), "k"

    numbers = spark.sparkContext.parallelize([0, 1], 2)
    frame = spark.createDataFrame(numbers.mapPartitions(rows), "value string, __key string")
    write = frame.write.format("pulsar").options(**plain(leaving, topic)).mode("append")
    client = official_client(leaving.url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)

    def leave() -> None:
        reader.read_next(60_000)
        leaving.kill()

    thread = threading.Thread(target=leave)
    thread.start()
    text = error_of(write.save)
    thread.join()
    client.shutdown()
    assert f"no broker answers at {leaving.url}" in sentence(text)
    assert is_idle(spark)


def test_who_gives_a_batch_up_needs_no_broker(topic: str) -> None:
    """Spark makes a writer for that, and does not tell why a task failed where that cannot be."""
    from pyspark.sql.types import BinaryType, StructType

    from pyxbroker.spark.source import PulsarDataSource

    source = PulsarDataSource({"service.url": "pulsar://127.0.0.1:1", "topic": topic})
    begin = time.monotonic()
    source.streamWriter(StructType().add("value", BinaryType()), False).abort([], 1)
    assert time.monotonic() - begin < 5
