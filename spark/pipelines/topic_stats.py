"""Statistics and internal statistics of topics from REST, in two snapshots.

Rates of messages and the growth of backlogs are the differences between the snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import quote

from pyxbroker.base.topic_name import TopicName
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.ledgers import rest_json
from pyxbroker.spark.options import Options
from pyxbroker.spark.security import Security


class Backlog(NamedTuple):
    """The backlog of a subscription."""

    topic: str
    subscription: str
    consumers: int
    entries: int
    """Unacknowledged messages as the broker counts them: a batch may count as one."""
    growth: float
    """The growth of `entries` per second between the snapshots."""
    rate_out: float
    holes: int
    """Ranges of acknowledged messages after the first unacknowledged one."""


class TopicStats(NamedTuple):
    """A topic in the second snapshot. Rates are per second between the snapshots."""

    topic: str
    rate_in: float
    bytes_in: float
    rate_out: float
    storage: int
    ledgers: int
    producers: int
    backlogs: list[Backlog]


class Snapshot(NamedTuple):
    """The statistics of all topics at one time."""

    at_s: float
    stats: dict[str, Any]
    internal: dict[str, Any]


def request_statistics(
    options: Options, topics: list[str], show: Callable[[str], None]
) -> Snapshot:
    """Request the statistics of topics. Raises PulsarSparkError."""
    at_s = time.monotonic()
    stats, internal = {}, {}
    for number, topic in enumerate(topics):
        show(f"requesting statistics, {number} of {len(topics)} topics")
        stats[topic] = _ask(options, topic, "stats")
        internal[topic] = _ask(options, topic, "internalStats")
    return Snapshot(at_s, stats, internal)


def compare(first: Snapshot, second: Snapshot) -> list[TopicStats]:
    """Return the second snapshot with the rates since the first. Raises PulsarSparkError."""
    seconds = max(0.001, second.at_s - first.at_s)
    try:
        return [_topic(each, first, second, seconds) for each in second.stats]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PulsarSparkError(f"REST returned invalid statistics of topics: {error!r}") from error


def sum_partitions(partitions: Iterable[TopicStats]) -> list[TopicStats]:
    """Return one TopicStats for each partitioned topic, the sum of those of its partitions.

    A client of a partitioned topic has a producer or consumer at each partition, so the numbers
    of these are the maximum over partitions.
    """
    groups: dict[str, list[TopicStats]] = {}
    for each in partitions:
        groups.setdefault(TopicName.get(each.topic).partitioned_topic_name, []).append(each)
    return [_sum(topic, parts) for topic, parts in groups.items()]


def _sum(topic: str, parts: list[TopicStats]) -> TopicStats:
    backlogs: dict[str, list[Backlog]] = {}
    for each in (backlog for part in parts for backlog in part.backlogs):
        backlogs.setdefault(each.subscription, []).append(each)
    return TopicStats(
        topic=topic,
        rate_in=sum(each.rate_in for each in parts),
        bytes_in=sum(each.bytes_in for each in parts),
        rate_out=sum(each.rate_out for each in parts),
        storage=sum(each.storage for each in parts),
        ledgers=sum(each.ledgers for each in parts),
        producers=max(each.producers for each in parts),
        backlogs=[
            Backlog(
                topic=topic,
                subscription=name,
                consumers=max(each.consumers for each in of_it),
                entries=sum(each.entries for each in of_it),
                growth=sum(each.growth for each in of_it),
                rate_out=sum(each.rate_out for each in of_it),
                holes=sum(each.holes for each in of_it),
            )
            for name, of_it in sorted(backlogs.items())
        ],
    )


def _ask(options: Options, topic: str, what: str) -> Any:
    name = TopicName.get(topic)
    path = f"/admin/v2/persistent/{name.namespace}/{quote(name.local_name, safe='')}/{what}"
    timeout_s = options["pulsar.client.operationTimeoutMs"]
    security = Security(options, of_rest=True)
    return rest_json(options["admin.url"], path, topic, timeout_s, security)


def _topic(topic: str, first: Snapshot, second: Snapshot, seconds: float) -> TopicStats:
    old, new, internal = first.stats[topic], second.stats[topic], second.internal[topic]

    def rate(name: str) -> float:
        return max(0.0, (new[name] - old[name]) / seconds)

    cursors = internal["cursors"]
    return TopicStats(
        topic=topic,
        rate_in=rate("msgInCounter"),
        bytes_in=rate("bytesInCounter"),
        rate_out=rate("msgOutCounter"),
        storage=int(new["storageSize"]),
        ledgers=len(internal["ledgers"]),
        producers=len(new["publishers"]),
        backlogs=[
            _backlog(topic, name, old["subscriptions"].get(name), each, cursors.get(name), seconds)
            for name, each in sorted(new["subscriptions"].items())
        ],
    )


def _backlog(topic: str, name: str, old: Any, new: Any, cursor: Any, seconds: float) -> Backlog:
    before = new if old is None else old
    return Backlog(
        topic=topic,
        subscription=name,
        consumers=len(new["consumers"]),
        entries=int(new["msgBacklog"]),
        growth=(new["msgBacklog"] - before["msgBacklog"]) / seconds,
        rate_out=max(0.0, (new["msgOutCounter"] - before["msgOutCounter"]) / seconds),
        holes=int((cursor or {}).get("totalNonContiguousDeletedMessagesRange", 0)),
    )
