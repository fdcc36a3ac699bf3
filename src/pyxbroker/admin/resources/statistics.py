"""/admin/v2/{domain}/...: the statistics of topics, as in Pulsar's PersistentTopics and
NonPersistentTopics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import check_namespace, partitioned_topic_of, topic_of
from pyxbroker.admin.resources.topic_work import missing, opened, partitions_of
from pyxbroker.auth.authorization import GET_BACKLOG_SIZE, GET_STATS
from pyxbroker.base.errors import ServiceNotReady, TopicNotFound
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import TopicName
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
AT_ONCE = 16  # partitions that are opened and asked
PART_BYTES = 1 << 10  # of a backlog: a subscription or a ledger
PARTITION_BYTES = 4 << 10  # of what a partition tells, besides what it has

Json = dict[str, Any]


async def get_stats(request: Request) -> Response:
    """Pulsar's TopicStats of a topic that is not partitioned."""
    topic = await _topic(request)
    return await _told(request, topic, STATS)


async def get_internal_stats(request: Request) -> Response:
    """Pulsar's PersistentTopicInternalStats."""
    name = topic_of(request)
    topic = await _topic(request, None if name.is_persistent else "Topic not found")
    return await _told(request, topic, INTERNAL_STATS)


async def get_partitioned_stats(request: Request) -> Response:
    """The statistics of all partitions together, and of each."""
    name, metadata, indexes = await _partitions(request, "Partitioned topic not found {}")
    is_each_told = request.argument("perPartition")
    together = MergedStatistics()
    answer: Json = {}
    found: dict[str, Json] = {}
    has_partitions = False
    async with _place(request, name, indexes, STATS):
        try:
            async for partition, one in _of_each(request, name, indexes, STATS):
                has_partitions = True
                await together.add(one)
                if is_each_told:
                    found[partition] = one
                else:
                    # Its producers are told at the end.
                    await statistics.forget(one | {"publishers": []})
            if not has_partitions:
                # Pulsar names the partitioned topic itself where it has no partition to name.
                nothing = statistics.without_partitions(is_persistent=name.is_persistent)
                await together.add(nothing)
                if is_each_told:
                    found[str(name)] = nothing
            answer = await together.end()
            answer["metadata"] = metadata
            answer["partitions"] = found
            return await Response.long_json(answer)
        finally:
            await statistics.forget(answer)
            await _free(found, STATS)


async def get_partitioned_internal_stats(request: Request) -> Response:
    """Those below each partition."""
    name, metadata, indexes = await _partitions(request, "Partitioned Topic {} not found")
    found: dict[str, Json] = {}
    async with _place(request, name, indexes, INTERNAL_STATS):
        try:
            async for partition, one in _of_each(request, name, indexes, INTERNAL_STATS):
                found[partition] = one
            return await Response.long_json({"metadata": metadata, "partitions": found})
        finally:
            await _free(found, INTERNAL_STATS)


async def get_backlog(request: Request) -> Response:
    """What a topic stores and what its subscriptions have left of it: PersistentOfflineTopicStats,
    which Pulsar reads from storage for topics that are not loaded; here they are, then.
    """
    topic = await _topic(request)
    if not isinstance(topic, PersistentTopic):
        raise HttpError(405, "The backlog of a non-persistent topic is not stored")
    async with request.app.statistics.place(request, PART_BYTES * parts_of_offline_stats(topic)):
        return await Response.long_json(await offline_stats(topic, request.app.broker.broker_id))


# --- what they have in common -----------------------------------------------------------------


async def _topic(request: Request, reason: str | None = None) -> Topic:
    """The topic of a path, opened. Raises HttpError 404, also for a partitioned one."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    if await partitions_of(request, name):
        raise missing(name)
    try:
        return await opened(request, name)
    except HttpError:
        if reason is None:
            raise
        raise HttpError(404, reason) from None


async def _partitions(request: Request, reason: str) -> tuple[TopicName, Json, list[int]]:
    """The partitioned topic of a path, what metadata says of it, and which of its partitions there
    are. Raises HttpError 404.
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
    existing = await partitions.existing(name, found.partitions)
    if not existing and not name.is_persistent:
        # Nobody uses it yet: in Pulsar they are there all the same, and so all fields are.
        await request.app.broker.topics.loader.ensure(name.partition(0))
        existing = [0]
    return name, metadata, existing


async def _of_each(
    request: Request, whole: TopicName, indexes: list[int], kind: Kind
) -> AsyncIterator[tuple[str, Json]]:
    """The answers of partitions, with their names, a few at a time; one that is deleted or unloaded
    meanwhile is left out, as in Pulsar.
    """
    slices = Slices()

    async def one(name: TopicName) -> Json | None:
        # Each of those that are asked at once would else be in the same turn.
        await slices.pause()
        try:
            topic = await request.app.broker.topics.loader.get(name, create=False)
            return await kind.tell(request, topic)
        except (TopicNotFound, ServiceNotReady):
            return None

    for at in range(0, len(indexes), AT_ONCE):
        some = [whole.partition(index) for index in indexes[at : at + AT_ONCE]]
        answers = await asyncio.gather(*map(one, some))
        for name, answer in zip(some, answers, strict=True):
            if answer is not None:
                yield str(name), answer


@asynccontextmanager
async def _place(
    request: Request, whole: TopicName, indexes: list[int], kind: Kind
) -> AsyncIterator[None]:
    """Room for what all partitions tell: those that are open may have thousands of consumers."""
    size = PARTITION_BYTES * len(indexes)
    topics = request.app.broker.topics
    slices = Slices()
    for index in indexes:
        topic = topics.registry.loaded(whole.partition(index))
        if topic is not None:
            size += await kind.weigh(request, topic)
        await slices.pause()
    async with request.app.statistics.place(request, size):
        yield


async def _free(found: dict[str, Json], kind: Kind) -> None:
    """What was told goes bit by bit: of thousands of partitions it takes tens of milliseconds."""
    slices = Slices()
    while found:
        await kind.forget(found.popitem()[1])
        await slices.pause()


async def _told(request: Request, topic: Topic, kind: Kind) -> Response:
    """The answer of one topic, where there is room for it."""
    async with request.app.statistics.place(request, await kind.weigh(request, topic)):
        told = await kind.tell(request, topic)
        try:
            return await Response.long_json(told)
        finally:
            await kind.forget(told)


class Kind(NamedTuple):
    """One kind of statistics of a topic: how much they are, what they are, and how they go."""

    weigh: Callable[[Request, Topic], Awaitable[int]]
    tell: Callable[[Request, Topic], Awaitable[Json]]
    forget: Callable[[Json], Awaitable[None]]


def _asked(request: Request) -> StatisticsOptions:
    # Pulsar counts exactly only where that is asked for; here it costs nothing.
    request.argument("getPreciseBacklog")
    return StatisticsOptions(
        request.argument("subscriptionBacklogSize"),
        request.argument("getEarliestTimeInBacklog"),
        not request.argument("excludePublishers"),
        not request.argument("excludeConsumers"),
    )


async def _weigh_stats(request: Request, topic: Topic) -> int:
    return await statistics.weigh(topic, _asked(request))


async def _tell_stats(request: Request, topic: Topic) -> Json:
    broker = request.app.broker
    asked = _asked(request)
    return await statistics.topic_statistics(topic, asked, broker.broker_id, broker.metadata)


async def _weigh_internal_stats(request: Request, topic: Topic) -> int:
    return await internal_stats.weigh(topic)


async def _tell_internal_stats(request: Request, topic: Topic) -> Json:
    broker, schemas = request.app.broker, request.app.broker.topics.schemas
    with_metadata = request.argument("metadata")
    return await internal_stats.internal_stats(topic, with_metadata, broker.metadata, schemas)


STATS = Kind(_weigh_stats, _tell_stats, statistics.forget)
INTERNAL_STATS = Kind(_weigh_internal_stats, _tell_internal_stats, internal_stats.forget)

ANY: Json = {"type": "object", "additionalProperties": True}
WHAT = (
    Query("getPreciseBacklog", "Taken: backlogs are counted one by one, without it, too.", False),
    Query("subscriptionBacklogSize", "The bytes of each backlog, else -1.", True),
    Query("getEarliestTimeInBacklog", "When the first of each backlog was published.", False),
    Query("excludePublishers", "Without producers.", False),
    Query("excludeConsumers", "Without consumers.", False),
)
METADATA = Query("metadata", "With what metadata says of each ledger.", False)

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
        (Query("perPartition", "Also those of each partition.", True), *WHAT),
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
        "What a topic stores, and what subscriptions have left of it.",
        Answer("Pulsar's PersistentOfflineTopicStats.", ANY),
        topic_of,
    ),
)
