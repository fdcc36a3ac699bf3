"""/admin/v2/broker-stats: what this broker does, and what load that is, as in Pulsar's BrokerStats.

What only a Java program has (MBeans, the arenas of its allocators) is told as nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from pyxbroker import __version__
from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import READ_BROKER_STATS
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.sliced_json import to_json_in_slices
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker import Broker
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.served_bundles import topics_by_bundle
from pyxbroker.broker.statistics.dimensions import dimension_statistics
from pyxbroker.broker.statistics.internal_stats import is_creating_ledger
from pyxbroker.broker.statistics.statistics import forget
from pyxbroker.broker.statistics.stats import TopicStats, read_stats
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.stats.load import Usage, percent
from pyxbroker.web.endpoint import Answer, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

PATH = "/admin/v2/broker-stats"
PERSISTENT = "persistent://"
ALLOCATORS = ("default", "ml-cache")
TOPIC_NAME_BYTES = 300  # with its place, when its topic is closed
UNKNOWN_KBIT = -1_000.0  # what Pulsar says of interfaces whose speed it does not know
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
    """Numbers of the broker, of its managed ledgers and of each namespace."""
    broker = request.app.broker
    host = broker.broker_id.rpartition(":")[0]
    place = {"broker": host, "cluster": broker.config.clusterName}
    sums = await _by_namespace(broker)
    ledgers = sum(each.persistent_topics for each in sums.values())
    usage = await _usage(request)
    told = [
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
    return await Response.long_json(told)


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
    """What the topics of a namespace, or of a bundle, have together."""

    def __init__(self) -> None:
        self.topics = 0
        self.persistent_topics = 0
        self.of: dict[str, Any] = dict.fromkeys(SUMMED, 0)  # by the names of TopicStats

    def add(self, stats: TopicStats) -> None:
        """Adds one more topic."""
        self.topics += 1
        self.persistent_topics += stats.name.startswith(PERSISTENT)
        for name in SUMMED:
            self.of[name] += getattr(stats, name)

    def of_ledgers(self) -> Json:
        """Of their managed ledgers."""
        return {
            "brk_ml_AddEntryMessagesRate": float(self.of["storage_write_rate"]),
            "brk_ml_NumberOfMessagesInBacklog": self.of["backlog"],
            "brk_ml_ReadEntriesRate": float(self.of["storage_read_rate"]),
            "brk_ml_StoredMessagesSize": self.of["storage_size"],
        }

    def of_namespace(self) -> Json:
        """Of the topics, with nothing of other clusters."""
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

    def of_bundle(self) -> Json:
        """Pulsar's NamespaceBundleStats."""
        return {
            "msgRateIn": float(self.of["rate_in"]),
            "msgThroughputIn": float(self.of["throughput_in"]),
            "msgRateOut": float(self.of["rate_out"]),
            "msgThroughputOut": float(self.of["throughput_out"]),
            "consumerCount": self.of["consumers"],
            "producerCount": self.of["producers"],
            "topics": self.topics,
            "cacheSize": 0,
        }


async def _by_namespace(broker: Broker) -> dict[str, Sums]:
    sums: dict[str, Sums] = {}
    slices = Slices()
    async for stats in _stats_of(list(broker.topics.registry), slices):
        sums.setdefault(stats.namespace, Sums()).add(stats)
    return sums


async def stats_by_bundle(broker: Broker) -> dict[str, Json]:
    """Pulsar's NamespaceBundleStats of each bundle with open topics, by its full name."""
    bundles: dict[str, Sums] = {}
    slices = Slices()
    found = await topics_by_bundle(broker.topics.registry, broker.namespaces)
    for (namespace, bundle), topics in sorted(found.items()):
        sums = bundles.setdefault(f"{namespace}/{bundle}", Sums())
        async for each in _stats_of(topics, slices):
            sums.add(each)
    return {name: each.of_bundle() for name, each in bundles.items()}


async def _stats_of(topics: list[Topic], slices: Slices) -> AsyncIterator[TopicStats]:
    """Topic by topic; others have their turn within one, too."""
    for stats in read_stats(topics):
        if stats is not None:
            yield stats
        await slices.pause()


async def get_mbeans(request: Request) -> Response:
    """Nothing: MBeans are objects of a Java program."""
    return Response.json([])


async def get_allocator(request: Request) -> Response:
    """Nothing of an allocator of Netty's."""
    name = request.parameters["allocator"]
    if name not in ALLOCATORS:
        raise HttpError(406, f"Invalid allocator name : {name:.100}")
    return Response.json(NO_ALLOCATOR)


# --- topics -----------------------------------------------------------------------------------


async def get_topics(request: Request) -> Response:
    """The statistics of all topics that are open, by namespace, bundle and domain."""
    broker = request.app.broker
    found = await topics_by_bundle(broker.topics.registry, broker.namespaces)
    namespaces: dict[str, dict[str, list[TopicName]]] = {}
    for (namespace, bundle), topics in sorted(found.items()):
        namespaces.setdefault(namespace, {})[bundle] = [each.name for each in topics]
    held_bytes = TOPIC_NAME_BYTES * sum(map(len, found.values()))
    return Response(_written(namespaces, broker.topics.registry), JSON, held_bytes=held_bytes)


async def _written(
    namespaces: dict[str, dict[str, list[TopicName]]], registry: TopicRegistry
) -> AsyncGenerator[bytes, None]:
    """The answer topic by topic: all of it may be long.

    Who reads it slowly keeps names, and no topic that is closed meanwhile.
    """
    slices = Slices()
    yield b"{"
    for number, (namespace, bundles) in enumerate(namespaces.items()):
        yield _comma(number) + to_json(namespace) + b":{"
        for number, (bundle, names) in enumerate(bundles.items()):
            yield _comma(number) + to_json(bundle) + b":{"
            for number, domain in enumerate(("persistent", "non-persistent")):
                yield _comma(number) + to_json(domain) + b":{"
                told = 0
                for name in [each for each in names if each.domain == domain]:
                    topic = registry.loaded(name)
                    if topic is None:
                        continue
                    found = await dimension_statistics(topic, slices)
                    del topic
                    text = await to_json_in_slices(found)
                    await forget(found)
                    yield _comma(told) + to_json(str(name)) + b":"
                    yield text
                    told += 1
                    await slices.pause()
                yield b"}"
            yield b"}"
        yield b"}"
    yield b"}"


def _comma(number: int) -> bytes:
    return b"," if number else b""


async def get_bookie_operations(request: Request) -> Response:
    """What each persistent topic that is open waits for at bookies: Pulsar's PendingBookieOpsStats.

    Only the creation of a topic's next ledger is waited for here.
    """
    told: dict[str, dict[str, Json]] = {}
    slices = Slices()
    for topic in list(request.app.broker.topics.registry):
        if isinstance(topic, PersistentTopic):
            waits = dict.fromkeys(LEDGER_OPERATIONS, 0)
            waits["dataLedgerCreateOp"] = int(is_creating_ledger(topic))
            told.setdefault(topic.name.namespace, {})[str(topic.name)] = waits
        await slices.pause()
    return await Response.long_json(told)


# --- load -------------------------------------------------------------------------------------


async def get_load_report(request: Request) -> Response:
    """Pulsar's LocalBrokerData, of now."""
    broker = request.app.broker
    stats = await stats_by_bundle(broker)

    def total(field: str) -> Any:
        return sum(each[field] for each in stats.values())

    usage = await _usage(request)
    return await Response.long_json(
        {
            "webServiceUrl": broker.addresses.web_url,
            "pulsarServiceUrl": broker.addresses.broker_url,
            **_tls_urls(broker.addresses),
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": True,
            **_resources(usage),
            **{
                name: float(total(name))
                for name in ("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut")
            },
            "lastUpdate": int(time.time() * 1000),
            "lastStats": stats,
            "numTopics": total("topics"),
            "numBundles": len(stats),
            "numConsumers": total("consumerCount"),
            "numProducers": total("producerCount"),
            "bundles": list(stats),
            "lastBundleGains": [],
            "lastBundleLosses": [],
            "brokerVersionString": __version__,
            "protocols": {},
            "advertisedListeners": _listeners(broker.listeners.advertised),
            "startTimestamp": 0 if usage is None else int(usage.start_s * 1000),
            "maxResourceUsage": _most(usage),
            "loadReportType": "LocalBrokerData",
        }
    )


def _listeners(advertised: Mapping[str, Addresses]) -> Json:
    names = ("brokerServiceUrl", "brokerHttpUrl", "brokerServiceUrlTls", "brokerHttpsUrl")
    return {
        listener: {name: url for name, url in zip(names, urls, strict=True) if url}
        for listener, urls in advertised.items()
    }


def _tls_urls(addresses: Addresses) -> Json:
    """Pulsar leaves out what is not served."""
    urls = {
        "webServiceUrlTls": addresses.web_url_tls,
        "pulsarServiceUrlTls": addresses.broker_url_tls,
    }
    return {name: url for name, url in urls.items() if url}


async def _usage(request: Request) -> Usage | None:
    # A process may have thousands of files, which the kernel lists slowly.
    return await asyncio.get_running_loop().run_in_executor(None, request.app.load.usage)


def _resources(usage: Usage | None) -> Json:
    """Pulsar's ResourceUsage of each: CPU in percent, memory in MiB, bandwidth in kbit/s."""
    if usage is None:
        usage = Usage(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    pairs = {
        "cpu": (usage.cpu_percent, usage.cpu_percent_max),
        "memory": (usage.memory_mib, usage.memory_mib_max),
        "directMemory": (0.0, 0.0),
        "bandwidthIn": (usage.kbit_in, UNKNOWN_KBIT),
        "bandwidthOut": (usage.kbit_out, UNKNOWN_KBIT),
    }
    return {name: {"usage": used, "limit": limit} for name, (used, limit) in pairs.items()}


def _most(usage: Usage | None) -> float:
    """The part of what is used most."""
    if usage is None:
        return 0.0
    cpu = percent(usage.cpu_percent, usage.cpu_percent_max)
    memory = percent(usage.memory_mib, usage.memory_mib_max)
    return min(max(cpu, memory) / 100, 1.0)  # what was measured may be of a little more time


ANY: Json = {"type": "object", "additionalProperties": True}
METRICS: Json = {"type": "array", "items": ANY}

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH + "/metrics",
        get_metrics,
        READ_BROKER_STATS,
        "Numbers of this broker and of each namespace that it serves topics of.",
        Answer("Pulsar's Metrics.", METRICS),
        line="broker-stats",
    ),
    Endpoint(
        "GET",
        PATH + "/mbeans",
        get_mbeans,
        READ_BROKER_STATS,
        "The MBeans of a Java program: an empty list.",
        Answer("Pulsar's Metrics.", METRICS),
    ),
    Endpoint(
        "GET",
        PATH + "/topics",
        get_topics,
        READ_BROKER_STATS,
        "The statistics of all topics that are open.",
        Answer("Statistics by namespace, bundle, domain and topic.", ANY),
        line="broker-stats",
    ),
    Endpoint(
        "GET",
        PATH + "/allocator-stats/{allocator}",
        get_allocator,
        READ_BROKER_STATS,
        "The allocators of a Java program: nothing is in them.",
        Answer("Pulsar's AllocatorStats.", ANY),
    ),
    Endpoint(
        "GET",
        PATH + "/bookieops",
        get_bookie_operations,
        READ_BROKER_STATS,
        "What persistent topics wait for at bookies.",
        Answer("Pulsar's PendingBookieOpsStats by namespace and topic.", ANY),
        line="broker-stats",
    ),
    Endpoint(
        "GET",
        PATH + "/load-report",
        get_load_report,
        READ_BROKER_STATS,
        "What this broker serves, and what it takes of its machine.",
        Answer("Pulsar's LocalBrokerData.", ANY),
        line="broker-stats",
    ),
)
