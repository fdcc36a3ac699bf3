"""/admin/v2/broker-stats: the activity and load of this broker, as in Pulsar's BrokerStats.

Resources that only Java programs have (MBeans, allocators) are empty.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from pyxbroker import __version__
from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import READ_BROKER_STATS
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.sliced_json import to_json_in_slices
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker import Broker
from pyxbroker.broker.served_bundles import topics_by_bundle
from pyxbroker.broker.statistics.dimensions import dimension_statistics
from pyxbroker.broker.statistics.internal_stats import is_creating_ledger
from pyxbroker.broker.statistics.statistics import forget
from pyxbroker.broker.statistics.stats import TopicStats, read_stats
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.cluster.load_report import starting_report
from pyxbroker.cluster.measured_load import stats_by_bundle
from pyxbroker.stats.load import Usage, percent
from pyxbroker.web.endpoint import Answer, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

PATH = "/admin/v2/broker-stats"
PERSISTENT = "persistent://"
ALLOCATORS = ("default", "ml-cache")
TOPIC_NAME_BYTES = 300  # with its object, in case its topic is closed
NO_ALLOCATOR = {
    **dict.fromkeys(("numDirectArenas", "numHeapArenas", "numThreadLocalCaches"), 0),
    **dict.fromkeys(("normalCacheSize", "smallCacheSize"), 0),
    **dict.fromkeys(("usedDirectMemory", "usedHeapMemory"), 0),
    "directArenas": [],
    "heapArenas": [],
}
LEDGER_OPERATIONS = tuple(
    f"{whose}Ledger{what}Op"
    for whose in ("data", "cursor")
    for what in ("Open", "Close", "Create", "Delete")
)
SUMMED = (  # of TopicStats
    *("producers", "consumers", "subscription_count", "backlog", "storage_size"),
    *("rate_in", "throughput_in", "rate_out", "throughput_out"),
    *("storage_write_rate", "storage_read_rate"),
)

Json = dict[str, Any]


async def get_metrics(request: Request) -> Response:
    """Return metrics of the broker, of its managed ledgers and of each namespace."""
    broker = request.app.broker
    host = broker.broker_id.rpartition(":")[0]
    place = {"broker": host, "cluster": broker.config.clusterName}
    sums = await _by_namespace(broker)
    ledgers = sum(each.persistent_topics for each in sums.values())
    usage = await _usage(request)
    answer = [
        _metrics({}, {"brk_ml_count": ledgers}),
        _metrics(
            place | {"metric": "broker_connection"},
            {"brk_active_connections": broker.connection_count},
        ),
        *(
            _metrics({"namespace": f"{name}/persistent"}, each.of_ledgers())
            for name, each in sums.items()
            if each.persistent_topics
        ),
        *([] if usage is None else [_load_balancing(host, usage)]),
        _metrics(
            place | {"metric": "broker_health"}, {"brk_health": int(broker.failure() is None)}
        ),
        *(_metrics({"namespace": name}, each.of_namespace()) for name, each in sums.items()),
    ]
    return await Response.long_json(answer)


def _metrics(dimensions: Json, numbers: Json) -> Json:
    return {"metrics": numbers, "dimensions": dimensions}


def _load_balancing(host: str, usage: Usage) -> Json:
    return _metrics(
        {"broker": host, "metric": "loadBalancing"},
        {
            "brk_lb_cpu_usage": percent(usage.cpu_percent, usage.cpu_percent_max),
            "brk_lb_memory_usage": percent(usage.memory_mib, usage.memory_mib_max),
        },
    )


class Sums:
    """Sums over the topics of a namespace."""

    def __init__(self) -> None:
        self.topics = 0
        self.persistent_topics = 0
        self.of: dict[str, Any] = dict.fromkeys(SUMMED, 0)  # by the names of TopicStats

    def add(self, stats: TopicStats) -> None:
        """Add a topic."""
        self.topics += 1
        self.persistent_topics += stats.name.startswith(PERSISTENT)
        for name in SUMMED:
            self.of[name] += getattr(stats, name)

    def of_ledgers(self) -> Json:
        """Return metrics of the managed ledgers."""
        return {
            "brk_ml_AddEntryMessagesRate": float(self.of["storage_write_rate"]),
            "brk_ml_NumberOfMessagesInBacklog": self.of["backlog"],
            "brk_ml_ReadEntriesRate": float(self.of["storage_read_rate"]),
            "brk_ml_StoredMessagesSize": self.of["storage_size"],
        }

    def of_namespace(self) -> Json:
        """Return metrics of the topics; those of replication are 0."""
        return {
            "brk_in_rate": float(self.of["rate_in"]),
            "brk_in_tp_rate": float(self.of["throughput_in"]),
            "brk_max_replication_delay_second": 0.0,
            "brk_msg_backlog": float(self.of["backlog"]),
            "brk_no_of_consumers": self.of["consumers"],
            "brk_no_of_producers": self.of["producers"],
            "brk_no_of_replicators": 0,
            "brk_no_of_subscriptions": self.of["subscription_count"],
            "brk_out_rate": float(self.of["rate_out"]),
            "brk_out_tp_rate": float(self.of["throughput_out"]),
            "brk_replication_backlog": 0.0,
            "brk_storage_size": float(self.of["storage_size"]),
        }


async def _by_namespace(broker: Broker) -> dict[str, Sums]:
    sums: dict[str, Sums] = {}
    slices = Slices()
    async for stats in _stats_of(list(broker.topics.registry), slices):
        sums.setdefault(stats.namespace, Sums()).add(stats)
    return sums


async def _stats_of(topics: list[Topic], slices: Slices) -> AsyncIterator[TopicStats]:
    """Yield the statistics of each topic, and pause within large topics, too."""
    async for stats in in_slices(read_stats(topics), slices):
        if stats is not None:
            yield stats


async def get_mbeans(request: Request) -> Response:
    """Return an empty list: MBeans are objects of Java programs."""
    return Response.json([])


async def get_allocator(request: Request) -> Response:
    """Return an empty allocator: Netty is not used."""
    name = request.parameters["allocator"]
    if name not in ALLOCATORS:
        raise HttpError(406, f"Invalid allocator name : {name:.100}")
    return Response.json(NO_ALLOCATOR)


# --- topics -----------------------------------------------------------------------------------


async def get_topics(request: Request) -> Response:
    """Return the statistics of all open topics, by namespace, bundle and domain."""
    broker = request.app.broker
    found = await topics_by_bundle(broker.topics.registry, broker.namespaces.bundles)
    namespaces: dict[str, dict[str, list[TopicName]]] = {}
    for (namespace, bundle), topics in sorted(found.items()):
        namespaces.setdefault(namespace, {})[bundle] = [each.name for each in topics]
    held_bytes = TOPIC_NAME_BYTES * sum(map(len, found.values()))
    return Response(_topic_pieces(namespaces, broker.topics.registry), JSON, held_bytes=held_bytes)


async def _topic_pieces(
    namespaces: dict[str, dict[str, list[TopicName]]], registry: TopicRegistry
) -> AsyncGenerator[bytes, None]:
    """Yield the answer topic by topic, since all of it can be long.

    A slow client holds names in memory, but not the topics that are closed meanwhile.
    """
    slices = Slices()
    yield b"{"
    for number, (namespace, bundles) in enumerate(namespaces.items()):
        yield _comma(number) + to_json(namespace) + b":{"
        for number, (bundle, names) in enumerate(bundles.items()):
            yield _comma(number) + to_json(bundle) + b":{"
            for number, domain in enumerate(("persistent", "non-persistent")):
                yield _comma(number) + to_json(domain) + b":{"
                answer = 0
                async for name in in_slices(
                    [each for each in names if each.domain == domain], slices
                ):
                    topic = registry.loaded(name)
                    if topic is None:
                        continue
                    found = await dimension_statistics(topic, slices)
                    del topic
                    text = await to_json_in_slices(found)
                    await forget(found)
                    yield _comma(answer) + to_json(str(name)) + b":"
                    yield text
                    answer += 1
                yield b"}"
            yield b"}"
        yield b"}"
    yield b"}"


def _comma(number: int) -> bytes:
    return b"," if number else b""


async def get_bookie_operations(request: Request) -> Response:
    """Return the pending operations of each open persistent topic: Pulsar's PendingBookieOpsStats.

    Topics wait only for the creation of their next ledger.
    """
    answer: dict[str, dict[str, Json]] = {}
    async for topic in in_slices(list(request.app.broker.topics.registry)):
        if isinstance(topic, PersistentTopic):
            waits = dict.fromkeys(LEDGER_OPERATIONS, 0)
            waits["dataLedgerCreateOp"] = int(is_creating_ledger(topic))
            answer.setdefault(topic.name.namespace, {})[str(topic.name)] = waits
    return await Response.long_json(answer)


# --- load -------------------------------------------------------------------------------------


async def get_peers(request: Request) -> Response:
    """Return what this broker knows about the processes of the others of its kind."""
    cluster = request.app.broker.cluster
    return Response.json({} if cluster is None else cluster.peers())


async def get_load_report(request: Request) -> Response:
    """Return Pulsar's LocalBrokerData with current values."""
    broker = request.app.broker
    stats = await stats_by_bundle(broker.topics.registry, broker.namespaces.bundles)
    usage = await _usage(request)
    started_ms = 0 if usage is None else int(usage.start_s * 1000)
    report = starting_report(broker.listeners, __version__, started_ms)
    report = report._replace(last_update=int(time.time() * 1000), last_stats=stats)
    if usage is not None:
        report = report.with_usage(
            (usage.cpu_percent, usage.cpu_percent_max),
            (usage.memory_mib, usage.memory_mib_max),
            (usage.kbit_in, usage.kbit_out),
            usage.kbit_max,
        )
    return await Response.long_json(report.fields())


async def _usage(request: Request) -> Usage | None:
    # In a thread: the kernel is slow to list thousands of open files.
    return await asyncio.get_running_loop().run_in_executor(None, request.app.load.usage)


ANY: Json = {"type": "object", "additionalProperties": True}
METRICS: Json = {"type": "array", "items": ANY}

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH + "/metrics",
        get_metrics,
        READ_BROKER_STATS,
        "Metrics of this broker and of each namespace with topics on it.",
        Answer("Pulsar's Metrics.", METRICS),
        queue="broker-stats",
    ),
    Endpoint(
        "GET",
        PATH + "/mbeans",
        get_mbeans,
        READ_BROKER_STATS,
        "The MBeans of Java programs: an empty list.",
        Answer("Pulsar's Metrics.", METRICS),
    ),
    Endpoint(
        "GET",
        PATH + "/topics",
        get_topics,
        READ_BROKER_STATS,
        "The statistics of all open topics.",
        Answer("Statistics by namespace, bundle, domain and topic.", ANY),
        queue="broker-stats",
    ),
    Endpoint(
        "GET",
        PATH + "/allocator-stats/{allocator}",
        get_allocator,
        READ_BROKER_STATS,
        "The memory allocators of Java programs: empty.",
        Answer("Pulsar's AllocatorStats.", ANY),
    ),
    Endpoint(
        "GET",
        PATH + "/bookieops",
        get_bookie_operations,
        READ_BROKER_STATS,
        "Pending bookie operations of persistent topics.",
        Answer("Pulsar's PendingBookieOpsStats by namespace and topic.", ANY),
        queue="broker-stats",
    ),
    Endpoint(
        "GET",
        PATH + "/peers",
        get_peers,
        READ_BROKER_STATS,
        "The other brokers of this kind in the cluster, as the connections to them show.",
        Answer(
            "By broker id: state (unknown, reached, refused, silent), startTimestamp in ms.", ANY
        ),
    ),
    Endpoint(
        "GET",
        PATH + "/load-report",
        get_load_report,
        READ_BROKER_STATS,
        "The topics that this broker serves, and its share of the machine.",
        Answer("Pulsar's LocalBrokerData.", ANY),
        queue="broker-stats",
    ),
)
