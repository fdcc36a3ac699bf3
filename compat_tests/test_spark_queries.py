"""Queries of a real Spark (local[2]) on topics that grow, appear, go and lose messages, and options
that say what is read.

What a query has written are files, each row of a batch once, whatever is repeated.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.spark_rows import error_of, given

pytestmark = pytest.mark.spark

AT_ONCE = {"processingTime": "0 seconds"}
NOW = {"availableNow": True}
LOST = "were deleted, or may have been, before they were read"
END_S = 120


class Query:
    """A streaming query with a checkpoint, which can be started again and again."""

    def __init__(self, spark: Any, broker: Broker, place: Path, **options: str) -> None:
        self._spark = spark
        self._broker = broker
        self._place = place
        self._options = {"startingOffsets": "earliest", "admin_url": broker.web_url} | options

    @contextmanager
    def runs(self, trigger: dict[str, Any], **more: str) -> Iterator[Any]:
        options = given(self._broker, self._options | more)
        rows = self._spark.readStream.format("pulsar").options(**options).load()
        query = (
            rows.selectExpr("cast(value as string) as text", "__topic as topic")
            .writeStream.format("parquet")
            .option("path", str(self._place / "rows"))
            .option("checkpointLocation", str(self._place / "checkpoint"))
            .trigger(**trigger)
            .start()
        )
        try:
            yield query
        finally:
            query.stop()

    def run(self, trigger: dict[str, Any] = AT_ONCE, **more: str) -> list[Any]:
        """Until all that is there is read; the batches that had rows."""
        with self.runs(trigger, **more) as query:
            wait_for(query, trigger)
            return [each for each in query.recentProgress if each["numInputRows"]]

    def texts(self) -> list[str]:
        return [row.text for row in self._spark.read.parquet(str(self._place / "rows")).collect()]


def wait_for(query: Any, trigger: dict[str, Any]) -> None:
    if trigger is NOW:
        assert query.awaitTermination(END_S)
    else:
        query.processAllAvailable()


def wait_for_batches(query: Any, count: int) -> None:
    """Of those with rows, while more and more come."""

    def batches() -> set[int]:
        return {each["batchId"] for each in query.recentProgress if each["numInputRows"]}

    before = batches()
    deadline = time.monotonic() + END_S
    while len(batches() - before) < count:
        assert query.isActive and time.monotonic() < deadline, query.exception()
        time.sleep(0.1)


@pytest.fixture
def query_of(spark: Any, broker: Broker, tmp_path: Path) -> Callable[..., Query]:
    numbers = itertools.count()
    return lambda **options: Query(spark, broker, tmp_path / str(next(numbers)), **options)


def path_of(topic: str) -> str:
    return "/admin/v2/" + topic.replace("://", "/")


def bound(size: str) -> dict[str, str]:
    """Of batches, which there is from Spark 4.2 on."""
    from pyspark.sql.datasource import DataSourceStreamReader

    has_bounds = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
    return {"maxBytesPerTrigger": size} if has_bounds else {}


def publish(client: pulsar.Client, topic: str, texts: list[str], batch: int = 1) -> None:
    batches: dict[str, Any] = (
        {"batching_enabled": True, "batching_max_messages": batch} if batch > 1 else {}
    )
    producer = client.create_producer(topic, block_if_queue_full=True, **batches)
    for each in texts:
        producer.send_async(each.encode(), None)
    producer.flush()
    producer.close()


def names(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def delete_all_so_far(broker: Broker, topic: str) -> None:
    """What retention does with ledgers that are closed."""
    assert broker.rest("PUT", f"{path_of(topic)}/unload")[0] == 204
    assert broker.rest("DELETE", f"{path_of(topic)}/truncate")[0] == 204
    deadline = time.monotonic() + 20
    while len(broker.rest("GET", f"{path_of(topic)}/internalStats")[1]["ledgers"]) > 1:
        assert time.monotonic() < deadline, "its ledgers are still there"
        time.sleep(0.1)


class Publishing(threading.Thread):
    """Publishes meanwhile; `sent` is what was acknowledged."""

    def __init__(self, client: pulsar.Client, topics: list[str]) -> None:
        super().__init__()
        self._client = client
        self.topics = topics
        self.sent: list[str] = []
        self._is_over = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                return
            for topic in list(self.topics):
                # A producer that is made anew knows all partitions.
                texts = names(f"{topic} meanwhile {number}", 20)
                publish(self._client, topic, texts, batch=7)
                self.sent += texts
            self._is_over.wait(0.2)

    def stop(self) -> None:
        self._is_over.set()
        self.join()


# --- topics that grow, appear and go --------------------------------------------------------------


@pytest.mark.parametrize("option", ["topic", "topicsPattern"])
def test_partitions_and_topics_that_come_while_a_query_runs_are_read_once(
    query_of: Callable[..., Query],
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    option: str,
) -> None:
    partitions = f"{path_of(topic)}/partitions"
    assert broker.rest("PUT", partitions, 1)[0] == 204
    named = topic if option == "topic" else f"{topic}.*"
    query = query_of(**{option: named}, bytesPerTask="20k")
    publishing = Publishing(client, [topic])
    publishing.start()
    try:
        with query.runs(AT_ONCE) as running:
            for count in (2, 5):
                wait_for_batches(running, 2)
                assert broker.rest("POST", partitions, count)[0] == 204
                if option == "topicsPattern":
                    publishing.topics.append(f"{topic}-new-{count}")
            wait_for_batches(running, 2)
        # While it does not run, and by a query that goes on, in batches with a bound.
        assert broker.rest("POST", partitions, 16)[0] == 204
        if option == "topicsPattern":
            assert broker.rest("PUT", f"{path_of(topic)}-more/partitions", 2)[0] == 204
            publishing.topics.append(f"{topic}-more")
        query.run(NOW, **bound("64k"))
    finally:
        publishing.stop()
    publish(client, topic, names("last", 64))
    query.run()
    expected = publishing.sent + names("last", 64)
    assert Counter(query.texts()) == Counter(expected)


def test_one_partition_grows_to_sixteen_between_two_batches(
    query_of: Callable[..., Query], broker: Broker, client: pulsar.Client, topic: str
) -> None:
    partitions = f"{path_of(topic)}/partitions"
    assert broker.rest("PUT", partitions, 1)[0] == 204
    publish(client, topic, names("one", 10))
    query = query_of(topic=topic)
    with query.runs(AT_ONCE) as running:
        running.processAllAvailable()
        assert broker.rest("POST", partitions, 16)[0] == 204
        publish(client, topic, names("sixteen", 160))
        running.processAllAvailable()
    assert Counter(query.texts()) == Counter(names("one", 10) + names("sixteen", 160))


@pytest.mark.parametrize("option", ["topics", "topicsPattern"])
def test_a_topic_that_is_deleted_ends_a_query_or_is_passed_over(
    query_of: Callable[..., Query],
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    option: str,
) -> None:
    one, two = f"{topic}-1", f"{topic}-2"
    for name in (one, two):
        publish(client, name, names(name, 10))
    named = f"{one},{two}" if option == "topics" else f"{topic}-.*"
    query = query_of(**{option: named})
    with query.runs(AT_ONCE) as running:
        running.processAllAvailable()
        assert broker.rest("DELETE", f"{path_of(two)}?force=true")[0] == 204
        text = error_of(lambda: running.awaitTermination(END_S))
    assert (
        f"{two}, which was read up to" in text
        and "was deleted: some of its messages may have been" in text
    )
    with query.runs(AT_ONCE, failOnDataLoss="false") as running:
        publish(client, one, names("more", 10))
        running.processAllAvailable()
        # One with the same name is another one.
        publish(client, two, names("again", 10))
        running.processAllAvailable()
    expected = [*names(one, 10), *names(two, 10), *names("more", 10), *names("again", 10)]
    assert Counter(query.texts()) == Counter(expected)


@pytest.mark.parametrize("trigger", [AT_ONCE, NOW], ids=["processingTime", "availableNow"])
def test_what_retention_deletes_between_two_runs_is_told_in_a_sentence(
    query_of: Callable[..., Query],
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    trigger: dict[str, Any],
) -> None:
    publish(client, topic, names("read", 10))
    query = query_of(topic=topic)
    assert len(query.run(trigger)) == 1
    publish(client, topic, names("lost", 10))
    delete_all_so_far(broker, topic)
    publish(client, topic, names("left", 10))
    text = error_of(lambda: query.run(trigger))
    (sentence,) = [line for line in text.splitlines() if LOST in line]
    assert topic in sentence and "failOnDataLoss=false continues with what is there" in sentence
    query.run(trigger, failOnDataLoss="false")
    # It has been told, and the query goes on as before.
    publish(client, topic, names("more", 10))
    query.run(trigger)
    expected = [*names("read", 10), *names("left", 10), *names("more", 10)]
    assert Counter(query.texts()) == Counter(expected)


def test_an_idle_topic_whose_broker_starts_again_does_not_end_a_query(
    spark: Any, own_broker: Callable[..., Broker], topic: str, tmp_path: Path
) -> None:
    from compat_tests.conftest import official_client

    broker = own_broker()
    broker.start()
    client = official_client(broker.url)
    publish(client, topic, names("one", 10))
    query = Query(spark, broker, tmp_path, topic=topic)
    with query.runs(AT_ONCE) as running:
        running.processAllAvailable()
        # Nothing is left of what was read, and the ledger that is written is empty.
        assert broker.rest("PUT", f"{path_of(topic)}/unload")[0] == 204
        running.processAllAvailable()
        assert broker.rest("DELETE", f"{path_of(topic)}/truncate")[0] == 204
        for _ in range(2):
            client.close()
            broker.stop()
            broker.start()
            client = official_client(broker.url)
            client.create_producer(topic).close()
            running.processAllAvailable()
    broker.stop()
    broker.start()
    assert query.run(NOW) == []
    client = official_client(broker.url)
    publish(client, topic, names("two", 10))
    query.run(NOW)
    client.close()
    assert Counter(query.texts()) == Counter(names("one", 10) + names("two", 10))


@pytest.mark.since_spark("4.2")
@pytest.mark.parametrize("trigger", [AT_ONCE, NOW], ids=["processingTime", "availableNow"])
def test_batches_with_a_bound_are_cut_by_the_ledgers_they_are_in(
    query_of: Callable[..., Query],
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    trigger: dict[str, Any],
) -> None:
    """Old ledgers of small entries, before one of large ones."""
    # Else the first ledger is deleted when it is closed.
    client.subscribe(topic, "keeps", initial_position=pulsar.InitialPosition.Earliest).close()
    publish(client, topic, names("small", 400))
    assert broker.rest("PUT", f"{path_of(topic)}/unload")[0] == 204
    large = [each.ljust(100_000) for each in names("large", 10)]
    publish(client, topic, large)
    query = query_of(topic=topic, maxBytesPerTrigger="10k", bytesPerTask="5k")
    batches = query.run(trigger)
    rows = [each["numInputRows"] for each in batches]
    small = [each for each in rows if each > 1]
    assert sum(rows) == 410 and len(small) <= 5 and max(rows) < 300
    assert len(rows) - len(small) <= 10
    assert Counter(query.texts()) == Counter(names("small", 400) + large)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trigger",
    [
        pytest.param(AT_ONCE, id="processingTime"),
        # Before, the last batch of such a query is committed by the next query.
        pytest.param(NOW, id="availableNow", marks=pytest.mark.since_spark("4.2")),
    ],
)
def test_a_subscription_of_ones_own_follows_a_query(
    query_of: Callable[..., Query],
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    trigger: dict[str, Any],
) -> None:
    assert broker.rest("PUT", f"{path_of(topic)}/partitions", 2)[0] == 204

    def backlog() -> int:
        """Of all partitions."""
        found = 0
        for number in range(2):
            path = f"{path_of(topic)}-partition-{number}/stats?getPreciseBacklog=true"
            found += broker.rest("GET", path)[1]["subscriptions"]["held"]["msgBacklog"]
        return found

    publish(client, topic, names("one", 20))
    query = query_of(topic=topic, predefinedSubscription="held")
    query.run(trigger)
    publish(client, topic, names("two", 20))
    assert backlog() == 20, "what is not read is held"
    query.run(trigger)
    assert backlog() == 0
    assert broker.rest("PUT", f"{path_of(topic)}/unload")[0] == 204
    query.run(trigger)
    assert backlog() == 0
    publish(client, topic, names("three", 20))
    assert backlog() == 20
    query.run(trigger)
    assert backlog() == 0
    expected = [*names("one", 20), *names("two", 20), *names("three", 20)]
    assert Counter(query.texts()) == Counter(expected)


def texts_of(rows: Any) -> list[str]:
    return sorted(row.text for row in rows.selectExpr("cast(value as string) as text").collect())


@pytest.fixture
def load(spark: Any, broker: Broker) -> Callable[..., Any]:
    def make(**options: str) -> Any:
        return spark.read.format("pulsar").options(**given(broker, options)).load()

    return make


def test_messages_by_their_ids_and_by_words_are_where_queries_begin_and_end(
    load: Callable[..., Any],
    query_of: Callable[..., Query],
    client: pulsar.Client,
    topic: str,
) -> None:
    one, two, three = (f"{topic}-{number}" for number in range(3))
    ids = {}
    for name in (one, two, three):
        producer = client.create_producer(name)
        ids[name] = [producer.send(f"{name[-1]}{number}".encode()) for number in range(6)]
        producer.close()
    text = ids[two][2]
    starts = {
        one: list(ids[one][4].serialize()),
        two: f"{text.ledger_id()}:{text.entry_id()}",
        three: "earliest",
    }
    ends = starts | {one: "latest", three: list(ids[three][1].serialize())}
    options = {"topics": f"{one},{two},{three}"}
    found = texts_of(load(**options, startingOffsets=json.dumps(starts)))
    behind = ["04", "05", "12", "13", "14", "15", "20", "21", "22", "23", "24", "25"]
    assert found == behind
    found = texts_of(load(**options, endingOffsets=json.dumps(ends)))
    assert found == ["00", "01", "02", "03", "04", "05", "10", "11", "12", "20", "21"]
    both = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    assert texts_of(load(**options, **both)) == ["04", "05", "12", "20", "21"]
    query = query_of(**options, startingOffsets=json.dumps(starts | {three: "latest"}))
    query.run()
    publish(client, three, ["26"])
    query.run(NOW)
    assert sorted(query.texts()) == [*behind[:6], "26"]
    text = error_of(load(**options, startingOffsets=json.dumps({one: "earliest"})).count)
    assert f"startingOffsets has no offset for {two}" in text


def test_times_are_where_queries_begin_and_end(
    load: Callable[..., Any], query_of: Callable[..., Query], client: pulsar.Client, topic: str
) -> None:
    for number in range(4):
        publish(client, topic, [str(number)])
        time.sleep(0.02)
    rows = load(topic=topic).selectExpr("value", "unix_millis(__publishTime) as at").collect()
    times = [row.at for row in sorted(rows, key=lambda row: bytes(row.value))]
    between = {"startingTime": str(times[1]), "endingTime": str(times[2])}
    assert texts_of(load(topic=topic, **between)) == ["1", "2"]
    assert texts_of(load(topic=topic, endingTime=str(times[0] - 1))) == []
    query = query_of(topic=topic, startingTime=str(times[2]))
    query._options.pop("startingOffsets")
    query.run()
    publish(client, topic, ["4"])
    query.run(NOW)
    assert sorted(query.texts()) == ["2", "3", "4"]


@pytest.mark.parametrize("option", ["topic", "topicsPattern"])
def test_a_query_waits_for_a_topic_and_a_batch_does_not(
    load: Callable[..., Any],
    query_of: Callable[..., Query],
    client: pulsar.Client,
    topic: str,
    option: str,
) -> None:
    query = query_of(**{option: topic})
    assert "no topic" in error_of(query.run)
    query = query_of(**{option: topic}, waitingForNonExistedTopic="true")
    with query.runs(AT_ONCE) as running:
        running.processAllAvailable()
        publish(client, topic, names("one", 10))
        running.processAllAvailable()
    assert Counter(query.texts()) == Counter(names("one", 10))
    text = error_of(lambda: load(topic=topic, waitingForNonExistedTopic="true").count())
    assert "waitingForNonExistedTopic is not an option of the batch source" in text


def test_names_of_readers_of_tasks_begin_as_they_shall(
    load: Callable[..., Any],
    query_of: Callable[..., Query],
    broker: Broker,
    client: pulsar.Client,
    topic: str,
) -> None:
    publish(client, topic, [each.ljust(1_000) for each in names("one", 100_000)], batch=500)
    found: set[str] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            found.update(broker.rest("GET", f"{path_of(topic)}/stats")[1]["subscriptions"])

    looking = threading.Thread(target=look)
    looking.start()
    try:
        load(topic=topic, subscriptionPrefix="of-a-batch").count()
        query_of(topic=topic, subscriptionPrefix="of-a-stream").run(NOW)
    finally:
        is_over.set()
        looking.join()
    assert {name.rpartition("-")[0] for name in found} == {"of-a-batch", "of-a-stream"}
    assert broker.rest("GET", f"{path_of(topic)}/subscriptions") == (200, [])
