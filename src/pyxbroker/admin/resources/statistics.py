"""/admin/v2/{domain}/...: statistics of topics, as in Pulsar's PersistentTopics and
NonPersistentTopics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from pyxbroker.admin.fan_out import NOT_FOUND, ask, elsewhere
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import check_namespace, partitioned_topic_of, topic_of
from pyxbroker.admin.resources.topic_work import load_topic, partitions_of, topic_not_found
from pyxbroker.auth.authorization import GET_BACKLOG_SIZE, GET_STATS
from pyxbroker.base.errors import ServiceNotReady, TopicNotFound
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.peers import topic_path
from pyxbroker.broker.statistics import internal_stats, statistics
from pyxbroker.broker.statistics.internal_stats import offline_stats, parts_of_offline_stats
from pyxbroker.broker.statistics.partitioned_statistics import MergedStatistics
from pyxbroker.broker.statistics.statistics import StatisticsOptions
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.web.endpoint import Answer, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
CONCURRENT_MAX = 16  # partitions that are opened and read concurrently
PART_BYTES = 1 << 10  # of a backlog's answer, per subscription or ledger
PARTITION_BYTES = 4 << 10  # of a partition's answer, in addition to its parts

Json = dict[str, Any]


async def get_stats(request: Request) -> Response:
    """Return Pulsar's TopicStats of a non-partitioned topic."""
    topic = await _topic(request)
    return await _answer(request, topic, STATS)


async def get_internal_stats(request: Request) -> Response:
    """Return Pulsar's PersistentTopicInternalStats."""
    name = topic_of(request)
    topic = await _topic(request, None if name.is_persistent else "Topic not found")
    return await _answer(request, topic, INTERNAL_STATS)


async def get_partitioned_stats(request: Request) -> Response:
    """Return the merged statistics of all partitions, and those of each."""
    name, metadata, indexes = await _partitions(request, "Partitioned topic not found {}")
    with_partitions = request.argument("perPartition")
    merged = MergedStatistics()
    answer: Json = {}
    found: dict[str, Json] = {}
    has_partitions = False
    async with _reserve(request, name, indexes, STATS):
        try:
            async for partition, one in _each_partition(request, name, indexes, STATS):
                has_partitions = True
                await merged.add(one)
                if with_partitions:
                    found[partition] = one
                else:
                    # Its producers are part of the merged answer.
                    await statistics.forget(one | {"publishers": []})
            if not has_partitions:
                # Without partitions, Pulsar lists the partitioned topic itself.
                nothing = statistics.without_partitions(is_persistent=name.is_persistent)
                await merged.add(nothing)
                if with_partitions:
                    found[str(name)] = nothing
            answer = await merged.end()
            answer["metadata"] = metadata
            answer["partitions"] = found
            return await Response.long_json(answer)
        finally:
            await statistics.forget(answer)
            await _free(found, STATS)


async def get_partitioned_internal_stats(request: Request) -> Response:
    """Return the internal statistics of each partition."""
    name, metadata, indexes = await _partitions(request, "Partitioned Topic {} not found")
    found: dict[str, Json] = {}
    async with _reserve(request, name, indexes, INTERNAL_STATS):
        try:
            async for partition, one in _each_partition(request, name, indexes, INTERNAL_STATS):
                found[partition] = one
            return await Response.long_json({"metadata": metadata, "partitions": found})
        finally:
            await _free(found, INTERNAL_STATS)


async def get_backlog(request: Request) -> Response:
    """Return the stored size and the backlogs of a topic: PersistentOfflineTopicStats.

    Pulsar reads them from storage for topics that are not loaded; here the topic is loaded.
    """
    topic = await _topic(request)
    if not isinstance(topic, PersistentTopic):
        raise HttpError(405, "The backlog of a non-persistent topic is not stored")
    async with request.app.statistics.reserve(request, PART_BYTES * parts_of_offline_stats(topic)):
        return await Response.long_json(await offline_stats(topic, request.app.broker.broker_id))


# --- helpers ----------------------------------------------------------------------------------


async def _topic(request: Request, reason: str | None = None) -> Topic:
    """Load the topic of a path. Raises HttpError 404, also for a partitioned topic."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    if await partitions_of(request, name):
        raise topic_not_found(name)
    try:
        return await load_topic(request, name)
    except HttpError:
        if reason is None:
            raise
        raise HttpError(404, reason) from None


async def _partitions(request: Request, reason: str) -> tuple[TopicName, Json, list[int]]:
    """Return the partitioned topic of a path, its metadata, and the indexes of existing partitions.

    Raises HttpError 404.
    """
    name = partitioned_topic_of(request)
    await check_namespace(request, name.namespace)
    partitions = request.app.broker.topics.partitions
    found = await partitions.read(name)
    if not found.partitions:
        if name.is_persistent:
            reason = "Partitioned Topic {} not found"
        raise HttpError(404, reason.format(name))
    metadata: Json = {"partitions": found.partitions, "deleted": bool(found.fields.get("deleted"))}
    if found.fields.get("properties") is not None:
        metadata["properties"] = found.fields["properties"]
    if name.is_persistent or request.app.broker.peers is None:
        existing = await partitions.existing(name, found.partitions)
    else:
        existing = list(range(found.partitions))  # other brokers know which ones are open
    if not existing and not name.is_persistent:
        # Not used yet. Pulsar returns all fields nevertheless.
        await request.app.broker.topics.loader.ensure(name.partition(0))
        existing = [0]
    return name, metadata, existing


async def _each_partition(
    request: Request, partitioned: TopicName, indexes: list[int], kind: Kind
) -> AsyncIterator[tuple[str, Json]]:
    """Yield the names and answers of partitions, in concurrent batches.

    Partitions that are deleted or unloaded meanwhile are omitted, as in Pulsar.
    """
    slices = Slices()

    async def one(name: TopicName) -> Json | None:
        # Otherwise all concurrent reads would start in the same loop iteration.
        await slices.pause()
        try:
            to = await elsewhere(request, name)
            if to is not None:
                answer: Json = await ask(request, to, f"{topic_path(name)}/{kind.resource}")
                return answer
            topic = await request.app.broker.topics.loader.get(name, create=False)
            return await kind.read(request, topic)
        except (TopicNotFound, ServiceNotReady):
            return None
        except HttpError as error:
            if error.status != NOT_FOUND:
                raise
            return None

    for at in range(0, len(indexes), CONCURRENT_MAX):
        some = [partitioned.partition(index) for index in indexes[at : at + CONCURRENT_MAX]]
        answers = await asyncio.gather(*map(one, some))
        for name, answer in zip(some, answers, strict=True):
            if answer is not None:
                yield str(name), answer


@asynccontextmanager
async def _reserve(
    request: Request, partitioned: TopicName, indexes: list[int], kind: Kind
) -> AsyncIterator[None]:
    """Reserve memory for the answers of all partitions; open ones can have thousands
    of consumers.
    """
    size = PARTITION_BYTES * len(indexes)
    topics = request.app.broker.topics
    async for index in in_slices(indexes):
        topic = topics.registry.loaded(partitioned.partition(index))
        if topic is not None:
            size += await kind.weigh(request, topic)
    async with request.app.statistics.reserve(request, size):
        yield


async def _free(found: dict[str, Json], kind: Kind) -> None:
    """Free answers incrementally: those of thousands of partitions take tens of milliseconds."""
    slices = Slices()
    while found:
        await kind.forget(found.popitem()[1])
        await slices.pause()


async def _answer(request: Request, topic: Topic, kind: Kind) -> Response:
    """Return the answer for one topic within the memory limit."""
    async with request.app.statistics.reserve(request, await kind.weigh(request, topic)):
        found = await kind.read(request, topic)
        try:
            return await Response.long_json(found)
        finally:
            await kind.forget(found)


class Kind(NamedTuple):
    """A kind of statistics: its name in paths, and functions that estimate its size, read it and
    free it.
    """

    resource: str
    weigh: Callable[[Request, Topic], Awaitable[int]]
    read: Callable[[Request, Topic], Awaitable[Json]]
    forget: Callable[[Json], Awaitable[None]]


def _options(request: Request) -> StatisticsOptions:
    # Pulsar counts exactly only on request; here exact counts are free.
    request.argument("getPreciseBacklog")
    return StatisticsOptions(
        request.argument("subscriptionBacklogSize"),
        request.argument("getEarliestTimeInBacklog"),
        not request.argument("excludePublishers"),
        not request.argument("excludeConsumers"),
    )


async def _weigh_stats(request: Request, topic: Topic) -> int:
    return await statistics.weigh(topic, _options(request))


async def _read_stats(request: Request, topic: Topic) -> Json:
    broker = request.app.broker
    options = _options(request)
    return await statistics.topic_statistics(topic, options, broker.broker_id, broker.metadata)


async def _weigh_internal_stats(request: Request, topic: Topic) -> int:
    return await internal_stats.weigh(topic)


async def _read_internal_stats(request: Request, topic: Topic) -> Json:
    broker, schemas = request.app.broker, request.app.broker.topics.schemas
    with_metadata = request.argument("metadata")
    return await internal_stats.internal_stats(topic, with_metadata, broker.metadata, schemas)


STATS = Kind("stats", _weigh_stats, _read_stats, statistics.forget)
INTERNAL_STATS = Kind(
    "internalStats", _weigh_internal_stats, _read_internal_stats, internal_stats.forget
)

ANY: Json = {"type": "object", "additionalProperties": True}
WHAT = (
    Query("getPreciseBacklog", "Accepted and ignored: backlogs are exact.", False),
    Query("subscriptionBacklogSize", "Includes the bytes of each backlog; otherwise -1.", True),
    Query(
        "getEarliestTimeInBacklog",
        "Includes the publish time of the first message of each backlog.",
        False,
    ),
    Query("excludePublishers", "Omits producers.", False),
    Query("excludeConsumers", "Omits consumers.", False),
)
METADATA = Query("metadata", "Includes the metadata of each ledger.", False)

ENDPOINTS = (
    Endpoint(
        "GET",
        TOPIC + "/stats",
        get_stats,
        GET_STATS,
        "The statistics of a topic.",
        Answer("Pulsar's TopicStats.", ANY),
        topic_of,
        WHAT,
    ),
    Endpoint(
        "GET",
        TOPIC + "/partitioned-stats",
        get_partitioned_stats,
        GET_STATS,
        "The statistics of a partitioned topic.",
        Answer("Pulsar's PartitionedTopicStats.", ANY),
        partitioned_topic_of,
        (Query("perPartition", "Includes those of each partition.", True), *WHAT),
    ),
    Endpoint(
        "GET",
        TOPIC + "/internalStats",
        get_internal_stats,
        GET_STATS,
        "The ledgers and cursors of a topic.",
        Answer("Pulsar's PersistentTopicInternalStats.", ANY),
        topic_of,
        (METADATA,),
    ),
    Endpoint(
        "GET",
        TOPIC + "/partitioned-internalStats",
        get_partitioned_internal_stats,
        GET_STATS,
        "The ledgers and cursors of each partition.",
        Answer("Pulsar's PartitionedTopicInternalStats.", ANY),
        partitioned_topic_of,
        (METADATA,),
    ),
    Endpoint(
        "GET",
        TOPIC + "/backlog",
        get_backlog,
        GET_BACKLOG_SIZE,
        "The stored size of a topic, and the backlogs of its subscriptions.",
        Answer("Pulsar's PersistentOfflineTopicStats.", ANY),
        topic_of,
    ),
)
