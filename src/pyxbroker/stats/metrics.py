"""The series of /metrics: Pulsar's and BookKeeper's names, labels and types.

Apache Pulsar exposes its own topic series as gauges, the ever-growing `_total` ones too; dashboards
do not mind, and we do the same. prometheus_client is imported when the first sample is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyxbroker import __version__
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from prometheus_client import Metric

# A rate is taken over at least this time: that of Pulsar is a minute, Prometheus asks more often.
RATE_WINDOW_S = 10.0
NANOSECONDS_PER_MILLISECOND = 1e6


class SubscriptionStats(Protocol):
    """The counters of one subscription since its topic was loaded."""

    @property
    def name(self) -> str: ...

    @property
    def consumers(self) -> int: ...

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""

    @property
    def unacked_messages(self) -> int:
        """Messages sent to consumers and not acknowledged."""

    @property
    def msg_out(self) -> int: ...

    @property
    def bytes_out(self) -> int: ...

    @property
    def stopped_by_damage(self) -> str | None:
        """Why it reads no further, where too many entries in a row are lost."""


class TopicStats(Protocol):
    """The counters of one topic since it was loaded."""

    @property
    def name(self) -> str:
        """The full name, such as persistent://tenant/namespace/topic."""

    @property
    def namespace(self) -> str:
        """tenant/namespace."""

    @property
    def producers(self) -> int: ...

    @property
    def consumers(self) -> int: ...

    @property
    def subscriptions(self) -> Iterable[SubscriptionStats]: ...

    @property
    def msg_in(self) -> int: ...

    @property
    def bytes_in(self) -> int: ...

    @property
    def storage_size(self) -> int:
        """Bytes."""

    @property
    def backlog_size(self) -> int:
        """Bytes that the slowest subscription has not acknowledged."""


class MetricsSource(Protocol):
    """What is asked for numbers: the broker service."""

    @property
    def config(self) -> Config: ...

    def topic_stats(self) -> Iterable[TopicStats]: ...

    def storage_stats(self) -> Mapping[str, int]: ...

    def failure(self) -> str | None: ...

    def disk_usage(self) -> Mapping[str, tuple[int, int]]:
        """(free, total) bytes of each file system, by a directory on it."""

    def refused_sends(self) -> int: ...

    def unknown_ledgers(self) -> Sequence[int]: ...


class SubscriptionSample(NamedTuple):
    """Numbers of a subscription at one time; rates are per second."""

    name: str
    consumers: int
    backlog: int
    unacked_messages: int
    msg_out: int
    bytes_out: int
    rate_out: float
    throughput_out: float
    is_stopped: bool


class TopicSample(NamedTuple):
    """Numbers of a topic, or sums over some, at one time; rates are per second."""

    name: str
    namespace: str
    producers: int
    consumers: int
    msg_in: int
    bytes_in: int
    storage_size: int
    backlog_size: int
    rate_in: float
    throughput_in: float
    subscriptions: tuple[SubscriptionSample, ...]

    def total(self, field: str) -> float:
        """The sum of a field over the subscriptions."""
        return float(sum(getattr(each, field) for each in self.subscriptions))


class Collector:
    """Takes samples of one source, and remembers counters from which it computes rates."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._base: dict[tuple[str, str], tuple[float, int, int]] = {}

    def sample(self, source: MetricsSource) -> Sample:
        """Copies all numbers. Call it on the loop's thread; the sample may go to another one."""
        now = self._clock()
        seen: dict[tuple[str, str], tuple[float, int, int]] = {}
        topics = [self._topic(each, now, seen) for each in source.topic_stats()]
        self._base = seen
        config = source.config
        return Sample(
            config.clusterName,
            topics,
            dict(source.storage_stats()),
            Disks(
                source.failure() is None,
                dict(source.disk_usage()),
                source.refused_sends(),
                len(source.unknown_ledgers()),
            ),
            config.exposeTopicLevelMetricsInPrometheus,
        )

    def _topic(
        self, topic: TopicStats, now: float, seen: dict[tuple[str, str], tuple[float, int, int]]
    ) -> TopicSample:
        subscriptions = []
        for each in topic.subscriptions:
            key = (topic.name, each.name)
            rates = self._rates(key, now, each.msg_out, each.bytes_out, seen)
            subscriptions.append(
                SubscriptionSample(
                    each.name,
                    each.consumers,
                    each.backlog,
                    each.unacked_messages,
                    each.msg_out,
                    each.bytes_out,
                    *rates,
                    each.stopped_by_damage is not None,
                )
            )
        return TopicSample(
            topic.name,
            topic.namespace,
            topic.producers,
            topic.consumers,
            topic.msg_in,
            topic.bytes_in,
            topic.storage_size,
            topic.backlog_size,
            *self._rates((topic.name, ""), now, topic.msg_in, topic.bytes_in, seen),
            tuple(subscriptions),
        )

    def _rates(
        self,
        key: tuple[str, str],
        now: float,
        messages: int,
        size: int,
        seen: dict[tuple[str, str], tuple[float, int, int]],
    ) -> tuple[float, float]:
        """Messages and bytes per second since the base of this key, which moves on with time."""
        then, messages_then, size_then = self._base.get(key, (now, messages, size))
        elapsed = now - then
        # Counters start again when a topic is loaded again.
        restarted = messages < messages_then or size < size_then
        if restarted or elapsed >= RATE_WINDOW_S:
            seen[key] = (now, messages, size)
        else:
            seen[key] = (then, messages_then, size_then)
        if restarted or elapsed <= 0:
            return 0.0, 0.0
        return (messages - messages_then) / elapsed, (size - size_then) / elapsed


class Disks(NamedTuple):
    """Whether the bookie takes entries, and what it has of disks."""

    is_healthy: bool
    usage: Mapping[str, tuple[int, int]]  # free and total bytes by directory
    refused_sends: int
    unknown_ledgers: int  # stored, unknown to the metadata, and kept for that


class Sample:
    """Everything that one answer of /metrics says."""

    def __init__(
        self,
        cluster: str,
        topics: list[TopicSample],
        storage: Mapping[str, int],
        disks: Disks,
        per_topic: bool,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._storage = storage
        self._disks = disks
        self._per_topic = per_topic

    def exposition(self) -> tuple[str, bytes]:
        """The content type and the text. Touches nothing of the broker: any thread may call it."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return CONTENT_TYPE_LATEST, generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """All families of series, as prometheus_client asks for them."""
        yield self._family("pulsar_version_info", [({"version": __version__}, 1)])
        yield from self._process()
        yield from self._topic_series()
        yield from self._subscription_series()
        yield from self._broker_series()
        yield from self._bookie_series()

    def _family(
        self, name: str, rows: Iterable[tuple[Mapping[str, str], float]], kind: str = "gauge"
    ) -> Metric:
        from prometheus_client import Metric

        family = Metric(name.removesuffix("_total") if kind == "counter" else name, name, kind)
        for labels, value in rows:
            family.add_sample(name, {"cluster": self._cluster, **labels}, value)
        return family

    def _process(self) -> Iterator[Metric]:
        from prometheus_client import Metric
        from prometheus_client.process_collector import ProcessCollector

        for family in ProcessCollector(registry=None).collect():
            labelled = Metric(family.name, family.documentation, family.type)
            for each in family.samples:
                labelled.add_sample(each.name, {"cluster": self._cluster}, each.value)
            yield labelled

    def _topic_series(self) -> Iterator[Metric]:
        topics = self._topics if self._per_topic else _sum_namespaces(self._topics)
        labels = [self._topic_labels(each) for each in topics]

        def family(name: str, value: Callable[[TopicSample], float]) -> Metric:
            rows = [(label, value(each)) for label, each in zip(labels, topics, strict=True)]
            return self._family(name, rows)

        counts: dict[str, int] = {}
        for each in self._topics:
            counts[each.namespace] = counts.get(each.namespace, 0) + 1
        rows = [({"namespace": namespace}, count) for namespace, count in counts.items()]
        yield self._family("pulsar_topics_count", rows)
        yield family("pulsar_subscriptions_count", lambda topic: len(topic.subscriptions))
        yield family("pulsar_producers_count", lambda topic: topic.producers)
        yield family("pulsar_consumers_count", lambda topic: topic.consumers)
        yield family("pulsar_rate_in", lambda topic: topic.rate_in)
        yield family("pulsar_rate_out", lambda topic: topic.total("rate_out"))
        yield family("pulsar_throughput_in", lambda topic: topic.throughput_in)
        yield family("pulsar_throughput_out", lambda topic: topic.total("throughput_out"))
        yield family("pulsar_in_messages_total", lambda topic: topic.msg_in)
        yield family("pulsar_in_bytes_total", lambda topic: topic.bytes_in)
        yield family("pulsar_storage_size", lambda topic: topic.storage_size)
        yield family("pulsar_storage_logical_size", lambda topic: topic.storage_size)
        yield family("pulsar_storage_backlog_size", lambda topic: topic.backlog_size)
        yield family("pulsar_msg_backlog", lambda topic: topic.total("backlog"))

    def _topic_labels(self, topic: TopicSample) -> dict[str, str]:
        if not self._per_topic:
            return {"namespace": topic.namespace}
        return {"namespace": topic.namespace, "topic": topic.name}

    def _subscription_series(self) -> Iterator[Metric]:
        if not self._per_topic:
            return
        rows = [
            ({**self._topic_labels(topic), "subscription": each.name}, each)
            for topic in self._topics
            for each in topic.subscriptions
        ]
        fields = {
            "pulsar_subscription_back_log": "backlog",
            "pulsar_subscription_unacked_messages": "unacked_messages",
            "pulsar_subscription_consumers_count": "consumers",
            "pulsar_subscription_msg_rate_out": "rate_out",
            "pulsar_subscription_msg_throughput_out": "throughput_out",
            "pulsar_out_messages_total": "msg_out",
            "pulsar_out_bytes_total": "bytes_out",
        }
        for name, field in fields.items():
            yield self._family(name, [(labels, getattr(each, field)) for labels, each in rows])
        stopped = [(labels, 1) for labels, each in rows if each.is_stopped]
        yield self._family("pyxbroker_subscription_stopped_by_damage", stopped)

    def _broker_series(self) -> Iterator[Metric]:
        whole = _sum_topics("", "", self._topics)
        values = {
            "pulsar_broker_topics_count": len(self._topics),
            "pulsar_broker_subscriptions_count": len(whole.subscriptions),
            "pulsar_broker_producers_count": whole.producers,
            "pulsar_broker_consumers_count": whole.consumers,
            "pulsar_broker_rate_in": whole.rate_in,
            "pulsar_broker_rate_out": whole.total("rate_out"),
            "pulsar_broker_throughput_in": whole.throughput_in,
            "pulsar_broker_throughput_out": whole.total("throughput_out"),
            "pulsar_broker_in_messages_total": whole.msg_in,
            "pulsar_broker_in_bytes_total": whole.bytes_in,
            "pulsar_broker_out_messages_total": whole.total("msg_out"),
            "pulsar_broker_out_bytes_total": whole.total("bytes_out"),
            "pulsar_broker_storage_size": whole.storage_size,
            "pulsar_broker_storage_logical_size": whole.storage_size,
            "pulsar_broker_storage_backlog_size": whole.backlog_size,
            "pulsar_broker_msg_backlog": whole.total("backlog"),
        }
        for name, value in values.items():
            yield self._family(name, [({}, value)])

    def _bookie_series(self) -> Iterator[Metric]:
        """The embedded bookie's, where its counters have one of BookKeeper's names."""
        storage = self._storage
        if not storage:
            return
        # BookKeeper's words: 1 takes entries, 0 only reads.
        yield self._family("bookie_SERVER_STATUS", [({}, int(self._disks.is_healthy))])
        yield from self._disk_series()
        gauges = {
            "bookie_ledgers_count": "ledgers",
            "bookie_entries_count": "entries",
            "bookie_journal_JOURNAL_QUEUE_SIZE": "queue_adds",
            "bookie_write_cache_size": "dirty_bytes",
            "bookie_read_cache_size": "cache_bytes",
        }
        counters = {
            "bookie_WRITE_BYTES_total": "add_bytes",
            "bookie_journal_JOURNAL_WRITE_BYTES_total": "journal_bytes",
            "bookie_read_cache_hits_total": "cache_hits",
            "bookie_read_cache_misses_total": "disk_reads",
        }
        for name, key in gauges.items():
            yield self._family(name, [({}, storage[key])])
        for name, key in counters.items():
            yield self._family(name, [({}, storage[key])], "counter")
        from prometheus_client import Metric

        sync = Metric("bookie_journal_JOURNAL_SYNC", "time of a journal sync in ms", "summary")
        labels = {"cluster": self._cluster, "success": "true"}
        sync.add_sample("bookie_journal_JOURNAL_SYNC_count", labels, storage["syncs"])
        milliseconds = storage["sync_ns_total"] / NANOSECONDS_PER_MILLISECOND
        sync.add_sample("bookie_journal_JOURNAL_SYNC_sum", labels, milliseconds)
        yield sync

    def _disk_series(self) -> Iterator[Metric]:
        disks = self._disks
        yield self._family("bookie_ledger_writable_dirs", [({}, int(disks.is_healthy))])
        free = [({"directory": path}, free) for path, (free, _) in disks.usage.items()]
        yield self._family("bookie_disk_free_bytes", free)
        for path, (free_bytes, total_bytes) in disks.usage.items():
            name = "".join(each if each.isalnum() else "_" for each in path)
            used = 100 * (1 - free_bytes / total_bytes) if total_bytes else 0.0
            yield self._family(f"bookie_ledger_dir_{name}_usage", [({}, used)])
        name = "bookie_ADD_ENTRY_REJECTED_total"
        yield self._family(name, [({}, disks.refused_sends)], "counter")
        yield self._family("pyxbroker_bookie_unknown_ledgers", [({}, disks.unknown_ledgers)])


def _sum_namespaces(topics: Iterable[TopicSample]) -> list[TopicSample]:
    grouped: dict[str, list[TopicSample]] = {}
    for each in topics:
        grouped.setdefault(each.namespace, []).append(each)
    return [_sum_topics("", namespace, members) for namespace, members in grouped.items()]


def _sum_topics(name: str, namespace: str, topics: Iterable[TopicSample]) -> TopicSample:
    members = list(topics)
    return TopicSample(
        name,
        namespace,
        sum(each.producers for each in members),
        sum(each.consumers for each in members),
        sum(each.msg_in for each in members),
        sum(each.bytes_in for each in members),
        sum(each.storage_size for each in members),
        sum(each.backlog_size for each in members),
        sum(each.rate_in for each in members),
        sum(each.throughput_in for each in members),
        tuple(subscription for each in members for subscription in each.subscriptions),
    )
