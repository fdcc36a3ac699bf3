"""Statistics of messages by Spark: sizes, keys, and times. The topics are read once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.spark.pipelines.arguments import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOP_KEYS_MAX = 20
BUCKETS_MAX = 60
SPANS_S = (1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800, 2_592_000, 31_536_000)
"""The possible widths of a column in the plot over time."""
KEY_CHARACTERS_MAX = 60
WHOLE_TOPIC = r"regexp_replace(__topic, '-partition-[0-9]+$', '')"
ACCURACY = 10_000
"""The accuracy of percentiles: the relative error of the rank is 1 / ACCURACY."""


class OfTopic(NamedTuple):
    """The messages of a topic. Sizes are in bytes, latencies in ms."""

    topic: str
    messages: int
    entries: int
    bytes: int
    tombstones: int
    size_p50: int
    size_p99: int
    size_max: int
    keyless: int
    keys: int
    timed: int
    latency_p50: float | None
    latency_p99: float | None
    latency_max: float | None
    too_early: int
    top_key: str = ""
    top_messages: int = 0

    @property
    def top_share(self) -> float:
        return self.top_messages / max(1, self.messages)


class OfKey(NamedTuple):
    """A key of a topic."""

    topic: str
    key: str
    messages: int


class MessageStats(NamedTuple):
    """The messages of all topics. Rows of plots are (label of the column, its messages)."""

    topics: list[OfTopic]
    top_keys: list[OfKey]
    sizes: list[tuple[int, int]]
    """Messages by size up to a power of two, in bytes."""
    latencies: list[tuple[int, int]]
    """Messages by latency up to a power of two, in ms."""
    over_time: list[tuple[str, int]]

    @property
    def messages(self) -> int:
        return sum(each.messages for each in self.topics)


def count_messages(spark: SparkSession, source: dict[str, str], is_summed: bool) -> MessageStats:
    """Count the messages of topics. is_summed: a partitioned topic counts as one topic."""
    from pyspark import StorageLevel

    ledger, entry, _ = POSITION
    rows = spark.read.format("pulsar-raw").options(**source).load()
    rows = rows.selectExpr(
        f"{WHOLE_TOPIC if is_summed else '__topic'} as topic",
        "__key as key",
        f"struct({ledger}, {entry}) as entry",
        "value is null as is_tombstone",
        "coalesce(length(value), 0) as size",
        "unix_millis(__publishTime) as published",
        "unix_millis(__publishTime) - unix_millis(__eventTime) as latency",
    ).persist(StorageLevel.DISK_ONLY)
    try:
        keys, topics = _keys(rows), _topics(rows)
        top = {each.topic: each for each in reversed(keys)}
        found = [
            each._replace(top_key=top[each.topic].key, top_messages=top[each.topic].messages)
            if each.topic in top
            else each
            for each in topics
        ]
        return MessageStats(
            topics=found,
            top_keys=sorted(keys, key=lambda each: -each.messages)[:TOP_KEYS_MAX],
            sizes=_count_by_power(rows, "size"),
            latencies=_count_by_power(rows.where("latency >= 0"), "latency"),
            over_time=_over_time(rows),
        )
    finally:
        rows.unpersist()


def _topics(rows: DataFrame) -> list[OfTopic]:
    from pyspark.sql.functions import expr

    measures = {
        "messages": "count(*)",
        "entries": "approx_count_distinct(entry)",
        "bytes": "sum(size)",
        "tombstones": "count_if(is_tombstone)",
        "size_p50": f"percentile_approx(size, 0.5, {ACCURACY})",
        "size_p99": f"percentile_approx(size, 0.99, {ACCURACY})",
        "size_max": "max(size)",
        "keyless": "count_if(key is null)",
        "keys": "approx_count_distinct(key)",
        "timed": "count(latency)",
        "latency_p50": f"percentile_approx(latency, 0.5, {ACCURACY})",
        "latency_p99": f"percentile_approx(latency, 0.99, {ACCURACY})",
        "latency_max": "max(latency)",
        "too_early": "count_if(latency < 0)",
    }
    found = rows.groupBy("topic").agg(
        *(expr(f"{each} as {name}") for name, each in measures.items())
    )
    return [OfTopic(**row.asDict()) for row in found.orderBy("topic").collect()]


def _keys(rows: DataFrame) -> list[OfKey]:
    """Return the most frequent keys of each topic, the most frequent one first."""
    from pyspark.sql.functions import expr

    counted = rows.where("key is not null").groupBy("topic", "key").count()
    ranked = counted.withColumn(
        "rank", expr("row_number() over (partition by topic order by count desc, key)")
    )
    found = ranked.where(f"rank <= {TOP_KEYS_MAX}").orderBy("topic", "rank").collect()
    return [OfKey(row.topic, _text(row.key), row["count"]) for row in found]


def _text(key: bytes) -> str:
    text = bytes(key).decode(errors="backslashreplace")
    text = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return text if len(text) <= KEY_CHARACTERS_MAX else f"{text[:KEY_CHARACTERS_MAX]}…"


def _count_by_power(rows: DataFrame, column: str) -> list[tuple[int, int]]:
    """Return (power of two, number of rows with a value up to it) pairs."""
    from pyspark.sql.functions import expr

    power = expr(f"case when {column} <= 1 then 0 else ceil(log2({column})) end as power")
    found = {row.power: row["count"] for row in rows.groupBy(power).count().collect()}
    if not found:
        return []
    return [(1 << int(each), found.get(each, 0)) for each in range(min(found), max(found) + 1)]


def _over_time(rows: DataFrame) -> list[tuple[str, int]]:
    """Return the messages of each time span. The length of spans follows from the plot's width."""
    from pyspark.sql.functions import expr

    first, last = rows.selectExpr("min(published)", "max(published)").collect()[0]
    if first is None:
        return []
    span_s = next(
        (each for each in SPANS_S if (last - first) / 1000 / each < BUCKETS_MAX), SPANS_S[-1]
    )
    bucket = expr(f"published div {span_s * 1000} as bucket")
    found = {row.bucket: row["count"] for row in rows.groupBy(bucket).count().collect()}
    return [(_moment(each * span_s, span_s), found.get(each, 0)) for each in _filled(found)]


def _filled(buckets: Iterable[Any]) -> range:
    """Return all buckets from the first to the last one, or the newest if there are too many."""
    first, last = min(buckets), max(buckets)
    return range(max(first, last - 4 * BUCKETS_MAX), last + 1)


def _moment(at_s: int, span_s: int) -> str:
    form = "%H:%M:%S" if span_s < 60 else "%H:%M" if span_s < 21_600 else "%Y-%m-%d"
    return f"{datetime.fromtimestamp(at_s, timezone.utc):{form}}"
