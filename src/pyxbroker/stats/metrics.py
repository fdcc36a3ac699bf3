"""/metrics: reads all statistics of a source and writes them in Prometheus' format.

Both happen on the event loop in time slices. The numbers of one sample are therefore from slightly
different moments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from operator import add, attrgetter
from typing import NamedTuple, Protocol

from pyxbroker import __version__
from pyxbroker.base.log import defects
from pyxbroker.base.slices import Slices, Steps, in_slices, run_in_slices
from pyxbroker.settings.config import Config
from pyxbroker.stats import bookie_client, definitions, exposition
from pyxbroker.stats.bookie_client import BookieClientStats
from pyxbroker.stats.broker_series import BrokerSeries, BrokerStats, histogram_text
from pyxbroker.stats.definitions import GAUGE, Stat
from pyxbroker.stats.exposition import Number, Row, Table, braced, escaped, family
from pyxbroker.stats.latencies import Latencies, Latency
from pyxbroker.stats.load import Load, Usage, percent
from pyxbroker.stats.process import ProcessStats, process_stats

SLICE_S = 0.0005  # messages wait at most this long, and one step more
PIECE_BYTES = 128 << 10
TOPICS_PER_STEP = 8
TOPICS_PER_SUM = 64
PARTITION = "-partition-"
PERSISTENT = "persistent://"
# Sums of bytes that are split by whether a topic is a system topic: label, and index of the sum.
SYSTEM_LABELS = {"bytes_in": ("system_topic", 0), "bytes_out": ("system_subscription", 1)}


class ConsumerStats(Protocol):
    """One consumer, with the fields of definitions.CONSUMER."""

    @property
    def name(self) -> str: ...

    @property
    def consumer_id(self) -> int: ...


class ProducerStats(Protocol):
    """One producer, with the fields of definitions.PRODUCER."""

    @property
    def name(self) -> str: ...

    @property
    def producer_id(self) -> int: ...


class SubscriptionStats(Protocol):
    """One subscription, with the fields of definitions.SUBSCRIPTION."""

    @property
    def name(self) -> str: ...

    @property
    def consumer_stats(self) -> Sequence[ConsumerStats]:
        """Empty if series of consumers are disabled."""

    @property
    def ack_ranges(self) -> int:
        """Ranges acknowledged beyond the mark-delete position."""

    @property
    def throttled(self) -> ThrottledStats | None:
        """None if no rate has throttled the subscription."""


class ThrottledStats(Protocol):
    """Throttling of one subscription by dispatch rates: the fields of definitions.THROTTLED."""


class EvictionStats(Protocol):
    """Evictions from the backlog of one topic: the fields of definitions.EVICTIONS."""


class CompactionStats(Protocol):
    """The compactions of one topic: the fields of definitions.COMPACTION."""


class TransactionStats(Protocol):
    """The transactions of one topic: the fields of definitions.TRANSACTIONS."""


class CoordinatorStats(Protocol):
    """One transaction coordinator, with the fields of definitions.COORDINATOR."""

    @property
    def id(self) -> int: ...

    @property
    def latencies(self) -> Sequence[int]:
        """The numbers of definitions.COORDINATOR_LATENCIES."""


class TopicStats(Protocol):
    """One topic, with the fields of definitions.TOPIC."""

    @property
    def name(self) -> str:
        """The full name, such as persistent://tenant/namespace/topic."""

    @property
    def namespace(self) -> str:
        """tenant/namespace."""

    @property
    def is_system(self) -> bool: ...

    @property
    def bytes_in(self) -> int: ...

    @property
    def bytes_out(self) -> int: ...

    @property
    def last_adds(self) -> tuple[int, ...]:
        """The numbers of definitions.ADDS."""

    @property
    def subscriptions(self) -> Sequence[SubscriptionStats]: ...

    @property
    def producer_stats(self) -> Sequence[ProducerStats]:
        """Empty if series of producers are disabled."""

    @property
    def compaction(self) -> CompactionStats | None:
        """None if there was no compaction."""

    @property
    def evictions(self) -> EvictionStats | None:
        """None if there was no eviction."""

    @property
    def transactions(self) -> TransactionStats | None:
        """None if there was no transaction."""


class ClientState(Protocol):
    """Memory that clients use: the fields of definitions.CLIENT_STATE."""


class Turns(NamedTuple):
    """Durations of event-loop turns."""

    buckets: Sequence[tuple[float, int]]  # (upper bound in seconds, number of turns)
    sum_s: float


class MetricsSource(Protocol):
    """Source of all statistics."""

    @property
    def config(self) -> Config: ...

    def topic_stats(self) -> Iterable[TopicStats | None]:
        """Yield the open topics. A None allows a pause within a topic that takes long."""

    def storage_stats(self) -> Mapping[str, int]:
        """Return the counters of the embedded bookie; empty without one."""

    def entry_cache(self) -> Mapping[str, int]:
        """Return the numbers of the broker's own cache of entries; empty without one."""

    def bookie_client(self) -> BookieClientStats | None:
        """Return the statistics of bookies in other processes, if the broker uses any."""

    def latencies(self) -> Mapping[str, Latency]:
        """Return the latencies of definitions.LATENCIES that are measured here."""

    @property
    def latency_bounds_us(self) -> Sequence[int]:
        """Upper bounds of their buckets."""

    def failure(self) -> str | None: ...

    def disk_usage(self) -> Mapping[str, tuple[int, int]]:
        """Return (free, total) bytes of each file system, by a directory on it."""

    def refused_sends(self) -> int: ...

    def unknown_ledgers(self) -> Sequence[int]: ...

    def client_state(self) -> ClientState:
        """Return the memory that clients use."""

    def refused_connections(self) -> Mapping[str, int]:
        """Return the number of refused connections, by the setting of the limit."""

    def closed_connections(self) -> Mapping[str, int]:
        """Return the number of connections closed for others, by the setting of the limit."""

    def stray_commands(self) -> Mapping[str, int]:
        """Return the number of commands for objects not open on their connection, by name."""

    def turns(self) -> Turns | None:
        """Return the event-loop turns, or None if they are not measured."""

    async def broker_stats(self) -> BrokerStats:
        """Return the broker's statistics about itself, without the fields of `Load`."""

    def coordinators(self) -> Sequence[CoordinatorStats]:
        """Return the transaction coordinators of this broker."""


class Storage(NamedTuple):
    """State of the storage, with the fields of definitions.STORAGE."""

    is_healthy: int
    refused_sends: int
    unknown_ledgers: int  # number of stored ledgers that are unknown to the metadata
    disks: Mapping[str, tuple[int, int]]  # free and total bytes by directory
    counters: Mapping[str, int]  # of the bookie; empty without one


class Collector:
    """Takes samples of sources."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latencies = Latencies()
        self._series = BrokerSeries()
        self._load = Load()

    async def sample(self, source: MetricsSource) -> Sample:
        """Read all statistics that the settings enable."""
        sample = Sample(source.config, self._clock)
        try:
            await self._fill(sample, source)
        except BaseException:
            await sample.forget()
            raise
        return sample

    async def _fill(self, sample: Sample, source: MetricsSource) -> None:
        loop = asyncio.get_running_loop()
        await run_in_slices(sample.read(source.topic_stats()), sample.slices)
        # In an executor because the kernel needs long to list thousands of open files.
        sample.write_process(await loop.run_in_executor(None, process_stats))
        usage = await loop.run_in_executor(None, self._load.usage)
        sample.write_broker(self._series, _with_usage(await source.broker_stats(), usage))
        counters = source.storage_stats()
        if counters:
            sample.write_cache(self._series, counters)
        sample.write_entry_cache(self._series, source.entry_cache())
        sample.write_bookie_client(source.bookie_client())
        sample.write_storage(
            Storage(
                int(source.failure() is None),
                source.refused_sends(),
                len(source.unknown_ledgers()),
                source.disk_usage(),
                counters,
            )
        )
        sample.write_latencies(self._latencies, source.latencies(), source.latency_bounds_us)
        sample.write_client_state(source.client_state())
        sample.write_counted(definitions.DEFECTS, "kind", defects)
        refused = source.refused_connections()
        sample.write_counted(definitions.REFUSED_CONNECTIONS, "setting", refused)
        closed = source.closed_connections()
        sample.write_counted(definitions.CLOSED_CONNECTIONS, "setting", closed)
        sample.write_counted(definitions.STRAY_COMMANDS, "command", source.stray_commands())
        sample.write_turns(source.turns())
        sample.write_coordinators(source.coordinators())


class Sample:
    """The statistics of one response of /metrics; they can be written once."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.slices = Slices(SLICE_S, clock)
        self._per_topic = config.exposeTopicLevelMetricsInPrometheus
        self._per_producer = config.exposeProducerLevelMetricsInPrometheus
        self._per_consumer = config.exposeConsumerLevelMetricsInPrometheus
        self._splits_partition = config.splitTopicAndPartitionLabelInPrometheus
        self._cluster = f'cluster="{escaped(config.clusterName)}"'
        self._subscriptions = Table(definitions.SUBSCRIPTION)
        self._throttled = Table(definitions.THROTTLED)
        self._compactions = Table(definitions.COMPACTION)
        self._evictions = Table(definitions.EVICTIONS)
        self._transactions = Table(definitions.TRANSACTIONS)
        self._consumers = Table(definitions.CONSUMER)
        self._producers = Table(definitions.PRODUCER)
        self._cursors = Table(definitions.CURSOR)
        self._ledgers = Table(definitions.LEDGERS)
        self._period_s = config.managedLedgerStatsPeriodSeconds
        self._of_ledgers = _columns_of(definitions.LEDGERS)
        self._per_ledger = config.exposeManagedLedgerMetricsInPrometheus
        self._per_cursor = config.exposeManagedCursorMetricsInPrometheus
        all_of_topic = (*definitions.TOPIC, *definitions.ADDS)
        of_namespaces = () if self._per_topic else all_of_topic
        self._topics = Table(all_of_topic)
        self._namespaces = Table(tuple(map(_of_namespace, (definitions.TOPICS, *of_namespaces))))
        self._read_topic = attrgetter(*(each.field for each in definitions.TOPIC))
        self._namespace_labels: dict[str, str] = {}
        self._not_summed: dict[str, list[Row]] = {}  # topics by namespace
        self._sums: dict[str, list[Number]] = {}  # by namespace: how many topics, then each number
        summed = definitions.TOPIC if self._per_topic else all_of_topic
        self._asked = [not self._per_topic or bool(each.broker_series) for each in summed]
        self._whole: list[Number] = [0] * (1 + len(summed))  # of all namespaces
        self._evicted: dict[str, Row] = {}  # sums of evictions by namespace
        self._transacted: dict[str, Row] = {}  # likewise of transactions
        self._bytes_of_system_topics = [0, 0]  # received, sent
        self._process = ""
        self._storage = ""
        self._counted = ""

    # --- reading ------------------------------------------------------------------------------

    def read(self, topics: Iterable[TopicStats | None]) -> Steps[None]:
        """Read and sum up all topics, with a few topics or a part of one per step."""
        read, not_summed, number = self._read_topic, self._not_summed, 0
        for topic in topics:
            if topic is None:
                yield
                continue
            row = read(topic)
            if not self._per_topic:
                row += topic.last_adds
            not_summed.setdefault(topic.namespace, []).append(row)
            if topic.evictions is not None:
                row_of = self._evictions.of
                _add(self._evicted, topic.namespace, row_of(topic.evictions))
            if topic.transactions is not None:
                row_of = self._transactions.of
                _add(self._transacted, topic.namespace, row_of(topic.transactions))
            if topic.is_system:
                self._bytes_of_system_topics[0] += topic.bytes_in
                self._bytes_of_system_topics[1] += topic.bytes_out
            if self._per_topic:
                prefix = self._topic_label(topic)
                self._topics.append(braced(prefix), row + topic.last_adds)
                if topic.compaction is not None:
                    row_of = self._compactions.of
                    self._compactions.append(braced(prefix), row_of(topic.compaction))
                if topic.evictions is not None:
                    self._evictions.append(braced(prefix), self._evictions.of(topic.evictions))
                if topic.transactions is not None:
                    row_of = self._transactions.of
                    self._transactions.append(braced(prefix), row_of(topic.transactions))
                if topic.subscriptions or topic.producer_stats:
                    yield from self._read_parts(topic, prefix)
            number += 1
            if number % TOPICS_PER_STEP == 0:
                yield
            if number % TOPICS_PER_SUM == 0:
                self._sum()
        self._sum()
        yield from self._read_sums()
        for table in self._tables():
            table.end_block()

    def _read_parts(self, topic: TopicStats, prefix: str) -> Iterator[None]:
        for producer in topic.producer_stats:
            name = f'producer_name="{escaped(producer.name)}",producer_id="{producer.producer_id}"'
            self._producers.append(braced(f"{prefix},{name}"), self._producers.of(producer))
            yield
        for each in topic.subscriptions:
            name = f'{prefix},subscription="{escaped(each.name)}"'
            self._subscriptions.append(braced(name), self._subscriptions.of(each))
            if each.throttled is not None:
                self._throttled.append(braced(name), self._throttled.of(each.throttled))
            if self._per_cursor and topic.name.startswith(PERSISTENT):
                self._read_cursor(topic, each)
            for consumer in each.consumer_stats:
                self._read_consumer(name, consumer)
                yield
            yield

    def _read_consumer(self, prefix: str, consumer: ConsumerStats) -> None:
        name = f'consumer_name="{escaped(consumer.name)}",consumer_id="{consumer.consumer_id}"'
        self._consumers.append(braced(f"{prefix},{name}"), self._consumers.of(consumer))

    def _read_cursor(self, topic: TopicStats, subscription: SubscriptionStats) -> None:
        namespace = f"{topic.namespace}/persistent"
        ledger = f"{namespace}/{topic.name.rpartition('/')[2]}"
        label = (
            f'{self._cluster},namespace="{escaped(namespace)}",ledger_name="{escaped(ledger)}"'
            f',cursor_name="{escaped(subscription.name)}"'
        )
        self._cursors.append(braced(label), (subscription.ack_ranges,))

    def _topic_label(self, topic: TopicStats) -> str:
        name, namespace = topic.name, topic.namespace
        label = self._namespace_labels.get(namespace) or self._namespace_label(namespace)
        if not self._splits_partition:
            return f'{label},topic="{escaped(name)}"'
        base, _, partition = name.rpartition(PARTITION)
        if not (base and partition.isdigit()):
            base, partition = name, "-1"
        return f'{label},topic="{escaped(base)}",partition="{partition}"'

    def _namespace_label(self, namespace: str) -> str:
        label = self._namespace_labels.get(namespace)
        if label is None:
            label = f'{self._cluster},namespace="{escaped(namespace)}"'
            self._namespace_labels[namespace] = label
        return label

    def _sum(self) -> None:
        """Add the last topics to the sums of their namespaces."""
        for namespace, rows in self._not_summed.items():
            columns = zip(zip(*rows, strict=True), self._asked, strict=True)
            sums: list[Number] = [len(rows)]
            sums += [sum(column) if is_asked else 0 for column, is_asked in columns]
            before = self._sums.get(namespace)
            self._sums[namespace] = sums if before is None else list(map(add, before, sums))
        self._not_summed.clear()

    def _read_sums(self) -> Iterator[None]:
        shown = len(self._namespaces.stats)
        if not self._per_topic:
            for table, sums_of in (
                (self._evictions, self._evicted),
                (self._transactions, self._transacted),
            ):
                for namespace, row in sums_of.items():
                    table.append(braced(self._namespace_label(namespace)), row)
        for namespace, sums in self._sums.items():
            self._namespaces.append(braced(self._namespace_label(namespace)), tuple(sums[:shown]))
            self._whole = list(map(add, self._whole, sums))
            if self._per_ledger:
                row = tuple(sums[column] for column in self._of_ledgers)
                label = f'{self._cluster},namespace="{escaped(namespace)}/persistent"'
                self._ledgers.append(braced(label), row)
            yield

    # --- writing ------------------------------------------------------------------------------

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the text (of exposition.CONTENT_TYPE), generated on demand."""
        texts = exposition.pieces(self._texts(), PIECE_BYTES)
        try:
            await asyncio.sleep(0)  # the last numbers were written in this iteration
            async for piece in in_slices(texts, self.slices):
                if piece is not None:
                    yield piece
        finally:
            await self.forget()

    @property
    def held_bytes(self) -> int:
        """Return the estimated memory of the sample until it is written."""
        return sum(table.held_bytes for table in self._tables())

    async def forget(self) -> None:
        """Free the memory of the sample in time slices."""
        await run_in_slices(self._forget(), self.slices)

    def _tables(self) -> tuple[Table, ...]:
        shown = {
            self._namespaces: True,
            self._topics: self._per_topic,
            self._compactions: self._per_topic,
            self._evictions: True,
            self._transactions: True,
            self._producers: self._per_topic and self._per_producer,
            self._subscriptions: self._per_topic,
            self._throttled: self._per_topic,
            self._cursors: self._per_topic and self._per_cursor,
            self._ledgers: self._per_ledger,
            self._consumers: self._per_topic and self._per_consumer,
        }
        return tuple(table for table, is_shown in shown.items() if is_shown)

    def _texts(self) -> Iterator[bytes]:
        version = f'{self._cluster},version="{escaped(__version__)}"'
        about = "The version of this broker."
        yield family("pulsar_version_info", about, GAUGE, [(braced(version), 1)]).encode()
        yield self._process.encode()
        yield from exposition.tables_text(self._tables())
        # zip stops early: the last columns may have no series of the broker.
        summed = (definitions.TOPICS, *definitions.TOPIC)
        for stat, value in zip(summed, self._whole, strict=False):
            if stat.field in SYSTEM_LABELS and stat.broker_series:
                yield self._split_by_system(stat, int(value)).encode()
            elif stat.broker_series:
                yield self._single(stat._replace(series=stat.broker_series), value).encode()
        yield self._evictions_of_broker().encode()
        yield self._storage.encode()
        yield self._counted.encode()

    def _split_by_system(self, stat: Stat, value: int) -> str:
        """Return the bytes of system topics and of all other topics, with a label."""
        name, index = SYSTEM_LABELS[stat.field]
        of_system = self._bytes_of_system_topics[index]
        rows = [
            (braced(f'{self._cluster},{name}="true"'), of_system),
            (braced(f'{self._cluster},{name}="false"'), value - of_system),
        ]
        return family(stat.broker_series, stat.help, stat.kind, rows)

    def _evictions_of_broker(self) -> str:
        whole = map(sum, zip((0, 0), *self._evicted.values(), strict=True))
        stats = definitions.EVICTIONS
        rows = [
            (braced(f"{self._cluster},{stat.label}"), value)
            for stat, value in zip(stats, whole, strict=True)
        ]
        return family(stats[0].broker_series, stats[0].help, stats[0].kind, rows)

    def _forget(self) -> Steps[None]:
        for table in self._tables():
            yield from table.clear()

    def _single(self, stat: Stat, value: Number) -> str:
        return family(stat.series, stat.help, stat.kind, [(braced(self._cluster), value)])

    def write_counted(self, stat: Stat, label: str, counts: Mapping[str, int]) -> None:
        """Add a series for each value of a label; none exist before the first count."""
        rows = [
            (braced(f'{self._cluster},{label}="{escaped(value)}"'), count)
            for value, count in counts.items()
        ]
        self._counted += family(stat.series, stat.help, stat.kind, rows)

    def write_latencies(
        self, windows: Latencies, latencies: Mapping[str, Latency], bounds_us: Sequence[int]
    ) -> None:
        """Add latencies."""
        self._counted += windows.text(self._clock(), latencies, bounds_us, self._cluster)

    def write_client_state(self, state: ClientState) -> None:
        """Add the memory that clients use."""
        for each in definitions.CLIENT_STATE:
            self._counted += self._single(each, getattr(state, each.field))

    def write_turns(self, turns: Turns | None) -> None:
        """Add the durations of event-loop turns, if they are measured."""
        if turns is not None:
            self._counted += histogram_text(
                definitions.TURNS, self._cluster, turns.buckets, turns.sum_s
            )

    def write_coordinators(self, coordinators: Sequence[CoordinatorStats]) -> None:
        """Add the transaction coordinators of this broker; without one there are no series."""
        if not coordinators:
            return
        stats = (*definitions.COORDINATOR, *definitions.COORDINATOR_LATENCIES)
        fields = [each.field for each in definitions.COORDINATOR]
        rows = {
            braced(f'{self._cluster},coordinator_id="{each.id}"'): (
                *(getattr(each, field) for field in fields),
                *each.latencies,
            )
            for each in coordinators
        }
        for index, stat in enumerate(stats):
            column = [(label, row[index]) for label, row in rows.items()]
            self._counted += family(stat.series, stat.help, stat.kind, column)

    def write_broker(self, series: BrokerSeries, stats: BrokerStats) -> None:
        """Add the broker's statistics about itself."""
        self._counted += series.text(stats, self._cluster)
        if self._per_ledger:
            namespaces = [f"{name}/persistent" for name in self._sums]
            self._counted += series.ledger_errors(
                self._clock(), self._period_s, stats.ledger_errors, namespaces, self._cluster
            )

    def write_cache(self, series: BrokerSeries, counters: Mapping[str, int]) -> None:
        """Add the rates of the embedded bookie's reads."""
        self._write_rates(series, definitions.CACHE_RATES, counters)

    def write_entry_cache(self, series: BrokerSeries, counters: Mapping[str, int]) -> None:
        """Add the statistics of the broker's own cache, if it has one."""
        if counters:
            self._counted += "".join(
                self._single(each, counters[each.field]) for each in definitions.ENTRY_CACHE
            )
            self._write_rates(series, definitions.ENTRY_CACHE_RATES, counters)

    def write_bookie_client(self, stats: BookieClientStats | None) -> None:
        """Add the statistics of bookies in other processes, if the broker uses any."""
        if stats is not None:
            self._counted += bookie_client.text_of(stats, self._cluster)

    def _write_rates(
        self, series: BrokerSeries, stats: Sequence[Stat], counters: Mapping[str, int]
    ) -> None:
        self._counted += series.cache(self._clock(), stats, counters, self._cluster)

    def write_process(self, process: ProcessStats | None) -> None:
        """Add the kernel's statistics about this process, if available."""
        if process is not None:
            series = (
                self._single(each, getattr(process, each.field)) for each in definitions.PROCESS
            )
            self._process = "".join(series)

    def write_storage(self, storage: Storage) -> None:
        """Add the statistics of the embedded bookie, if there is one."""
        if not storage.counters:
            return
        texts = [self._single(each, getattr(storage, each.field)) for each in definitions.STORAGE]
        texts += self._disks(storage.disks)
        texts += [self._single(each, storage.counters[each.field]) for each in definitions.BOOKIE]
        self._storage = "".join(texts)

    def _disks(self, disks: Mapping[str, tuple[int, int]]) -> Iterator[str]:
        free = [
            (braced(f'{self._cluster},directory="{escaped(path)}"'), free_bytes)
            for path, (free_bytes, _) in disks.items()
        ]
        yield family("bookie_disk_free_bytes", "Free bytes of a file system.", GAUGE, free)
        for path, (free_bytes, total_bytes) in disks.items():
            name = "".join(each if each.isascii() and each.isalnum() else "_" for each in path)
            used = 100 * (1 - free_bytes / total_bytes) if total_bytes else 0.0
            about = f"Percent in use of the file system of {path}."
            yield self._single(Stat("", about, f"bookie_ledger_dir_{name}_usage"), used)


def _add(sums: dict[str, Row], namespace: str, row: Row) -> None:
    before = sums.get(namespace, (0,) * len(row))
    sums[namespace] = tuple(map(add, before, row))


def _of_namespace(stat: Stat) -> Stat:
    """Return the Stat of a sum over the topics of a namespace."""
    series = stat.series if stat.namespace_series is None else stat.namespace_series
    return stat._replace(series=series, label=stat.namespace_label)


def _columns_of(stats: Sequence[Stat]) -> list[int]:
    """Return the indexes of some stats in the sums of a namespace."""
    fields = [each.field for each in (definitions.TOPICS, *definitions.TOPIC)]
    return [fields.index(each.field) for each in stats]


def _with_usage(stats: BrokerStats, usage: Usage | None) -> BrokerStats:
    if usage is None:
        return stats
    numbers = {
        "cpu_percent": percent(usage.cpu_percent, usage.cpu_percent_max),
        "memory_percent": percent(usage.memory_mib, usage.memory_mib_max),
    }
    return stats._replace(numbers={**stats.numbers, **numbers})
