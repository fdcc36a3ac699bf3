"""Samples of brokers: their /metrics, and what changed between two of them.

Rates come from the counters of two samples, because the rates that brokers publish are those of the
last minute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

TOPIC_SERIES = {
    "pulsar_in_messages_total": "messages_in",
    "pulsar_in_bytes_total": "bytes_in",
    "pulsar_out_messages_total": "messages_out",
    "pulsar_out_bytes_total": "bytes_out",
    "pulsar_producers_count": "producers",
    "pulsar_consumers_count": "consumers",
    "pulsar_subscriptions_count": "subscriptions",
    "pulsar_msg_backlog": "backlog",
    "pulsar_storage_size": "storage_bytes",
    "pulsar_storage_backlog_age_seconds": "age_s",
}
SUBSCRIPTION_SERIES = {
    "pulsar_out_messages_total": "messages_out",
    "pulsar_subscription_back_log": "backlog",
    "pulsar_subscription_unacked_messages": "unacknowledged",
    "pulsar_subscription_consumers_count": "consumers",
    "pulsar_subscription_storage_backlog_age_seconds": "age_s",
}
BROKER_SERIES = {
    "pulsar_broker_in_messages_total": "messages_in",
    "pulsar_broker_out_messages_total": "messages_out",
    "pulsar_broker_topics_count": "topics",
    "pulsar_broker_producers_count": "producers",
    "pulsar_broker_consumers_count": "consumers",
    "pulsar_broker_msg_backlog": "backlog",
    "pulsar_broker_storage_size": "storage_bytes",
    "pulsar_active_connections": "connections",
    "process_cpu_seconds_total": "cpu_s",
    "process_resident_memory_bytes": "memory_bytes",
    "bookie_disk_free_bytes": "disk_free_bytes",
}
LOOP_BUCKETS = "pyxbroker_loop_turn_seconds_bucket"
COUNTERS = ("messages_in", "bytes_in", "messages_out", "bytes_out", "cpu_s")

_WANTED = "|".join({*TOPIC_SERIES, *SUBSCRIPTION_SERIES, *BROKER_SERIES, LOOP_BUCKETS})
_LINE = re.compile(rf"^({_WANTED})\{{(.*)\}} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")

Numbers = dict[str, float]
SubscriptionKey = tuple[str, str]


@dataclass
class Sample:
    """The numbers of one broker at one moment."""

    taken_at: float
    """Seconds of a monotonic clock."""
    broker: Numbers = field(default_factory=dict)
    topics: dict[str, Numbers] = field(default_factory=dict)
    subscriptions: dict[SubscriptionKey, Numbers] = field(default_factory=dict)
    loop: dict[float, float] = field(default_factory=dict)
    """Turns of the event loop up to each duration in seconds."""


def read_metrics(text: str, taken_at: float) -> Sample:
    """Return the numbers in the answer of /metrics. Other series are ignored."""
    sample = Sample(taken_at)
    for name, inside, number in _LINE.findall(text):
        labels = {key: _ESCAPE.sub(_unescaped, value) for key, value in _LABEL.findall(inside)}
        try:
            value = float(number)
        except ValueError:
            continue
        topic, subscription = labels.get("topic"), labels.get("subscription")
        if topic and subscription:
            if name in SUBSCRIPTION_SERIES:
                row = sample.subscriptions.setdefault((topic, subscription), {})
                row[SUBSCRIPTION_SERIES[name]] = value
            if name in ("pulsar_out_messages_total", "pulsar_out_bytes_total"):
                _add(_topic(sample, topic), TOPIC_SERIES[name], value)
        elif topic:
            if name in TOPIC_SERIES:
                _topic(sample, topic)[TOPIC_SERIES[name]] = value
        elif name == LOOP_BUCKETS:
            sample.loop[float(labels.get("le", "nan"))] = value
        elif name in BROKER_SERIES:
            _add(sample.broker, BROKER_SERIES[name], value)  # several disks
    return sample


def _topic(sample: Sample, name: str) -> Numbers:
    # A topic without subscriptions has no series of what it sent.
    return sample.topics.setdefault(name, {"messages_out": 0.0, "bytes_out": 0.0})


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _add(row: Numbers, name: str, value: float) -> None:
    row[name] = row.get(name, 0.0) + value


# --- what the page shows --------------------------------------------------------------------------


@dataclass
class Row:
    """A line of a table: its names, and its numbers; a number that is not known is missing."""

    names: tuple[str, ...]
    numbers: Numbers


@dataclass
class Snapshot:
    """The rows of all brokers of a cluster, and the brokers that failed."""

    brokers: list[Row] = field(default_factory=list)
    topics: list[Row] = field(default_factory=list)
    subscriptions: list[Row] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """The reason for each broker that did not answer."""

    def totals(self) -> Numbers:
        """Return the sums over the brokers."""
        found: Numbers = {}
        for row in self.brokers:
            for name, value in row.numbers.items():
                if name not in ("loop_p99_s", "disk_free_bytes"):
                    _add(found, name, value)
        return found


def snapshot(
    samples: Mapping[str, Sample], before: Mapping[str, Sample], failures: Mapping[str, str]
) -> Snapshot:
    """Return what samples of brokers show, with rates since the samples before them."""
    found = Snapshot(failures=dict(failures))
    for broker, sample in sorted(samples.items()):
        old = before.get(broker, Sample(sample.taken_at))
        passed_s = sample.taken_at - old.taken_at
        numbers = _rated(sample.broker, old.broker, passed_s)
        loop_s = _percentile(sample.loop, old.loop)
        if loop_s is not None:
            numbers["loop_p99_s"] = loop_s
        found.brokers.append(Row((broker,), numbers))
        found.topics += (
            Row((topic, broker), _rated(row, old.topics.get(topic), passed_s))
            for topic, row in sample.topics.items()
        )
        found.subscriptions += (
            Row((*key, broker), _rated(row, old.subscriptions.get(key), passed_s))
            for key, row in sample.subscriptions.items()
        )
    return found


def _rated(row: Numbers, before: Numbers | None, passed_s: float) -> Numbers:
    """Return numbers with `NAME_rate` for each counter that both samples have."""
    found = {name: value for name, value in row.items() if name != "age_s" or value >= 0}
    for name in COUNTERS:
        if passed_s > 0 and before is not None and name in row and name in before:
            # A topic that was opened again counts from 0.
            found[f"{name}_rate"] = max(0.0, row[name] - before[name]) / passed_s
    return found


def _percentile(now: Mapping[float, float], before: Mapping[float, float]) -> float | None:
    """Return the bucket below which 99 % of the turns were; None: there were none."""
    counts = sorted((bound, count - before.get(bound, 0.0)) for bound, count in now.items())
    if not counts or counts[-1][1] <= 0:
        return None
    return next(bound for bound, count in counts if count >= 0.99 * counts[-1][1])


def ordered(rows: Iterable[Row], sort: str, wanted: str) -> list[Row]:
    """Return the rows whose names have a text, the largest number first, or by name."""
    found = [row for row in rows if wanted in row.names[0] or wanted in row.names[1]]
    found.sort(key=lambda row: row.names)
    if sort != "name":
        found.sort(key=lambda row: row.numbers.get(sort, -1.0), reverse=True)
    return found
