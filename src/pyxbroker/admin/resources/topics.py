"""/admin/v2/{domain}/...: creates, lists, terminates and deletes topics, as Pulsar's
PersistentTopics and NonPersistentTopics do.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from pyxbroker.admin.fan_out import ask, elsewhere, for_each_bundle
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    NO_NAMESPACE,
    NOT_PERSISTENT,
    STRING_MAP,
    STRINGS,
    check_namespace,
    check_not_internal,
    check_not_system,
    domain_of,
    namespace_name_of,
    namespace_of,
    read_json,
    require_namespace,
    require_persistent,
    strings_of,
    topic_of,
)
from pyxbroker.auth.authorization import CREATE_TOPIC, DELETE_TOPIC, GET_TOPICS, TERMINATE
from pyxbroker.base.bundles import Bundle
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import TopicNotFound, TopicsLimitReached
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.base.topic_name import PERSISTENT, TopicName
from pyxbroker.broker.peers import topic_path
from pyxbroker.metadata import paths
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

NAMESPACE = "/admin/v2/{domain}/{tenant}/{namespace}"
TOPIC = NAMESPACE + "/{topic}"
EXISTS = "This topic already exists"
# Names that are processed in one step; 100,000 would block the loop for a second.
SLICE = 256
# The range of all hashes.
ALL = (0, 1 << 32)

T = TypeVar("T")


# --- lists ------------------------------------------------------------------------------------


async def get_list(request: Request) -> Response:
    """Return the topics of a namespace with each partition: persistent ones, or open non-persistent
    ones.

    `bundle` limits the list to one bundle.
    """
    namespace, domain = namespace_of(request), domain_of(request)
    await check_namespace(request, namespace, NO_NAMESPACE)
    names = await all_topic_names(request, namespace, domain)
    bundle = request.argument("bundle")
    hashes = ALL if bundle is None else await _bundle(request, namespace, bundle)
    return await list_response(names, request.argument("includeSystemTopic"), hashes)


async def all_topic_names(request: Request, namespace: str, domain: str) -> list[TopicName]:
    """Return the topics of a namespace; of non-persistent ones those that any broker serves."""
    broker = request.app.broker
    own: list[TopicName] = await broker.namespaces.topic_names(namespace, domain)
    if domain == PERSISTENT or broker.peers is None:
        return own
    found = dict.fromkeys(own)

    async def nothing(bundle: Bundle) -> None:
        """Add nothing: the open topics of this broker are in the list."""

    def add(names: list[str]) -> None:
        found.update((TopicName.get(each), None) for each in names)

    def path(bundle: Bundle) -> str:
        return f"/admin/v2/{domain}/{namespace}/{bundle}"

    await for_each_bundle(request, namespace, nothing, False, path, add)
    return list(found)


async def get_partitioned_list(request: Request) -> Response:
    """Return the partitioned topics of a namespace."""
    namespace, domain = namespace_of(request), domain_of(request)
    await check_namespace(request, namespace, NO_NAMESPACE)
    names = await request.app.broker.namespaces.partitioned_names(namespace, domain)
    return await list_response(names, request.argument("includeSystemTopic"))


async def list_response(
    names: list[TopicName], with_system: bool, hashes: tuple[int, int] = ALL
) -> Response:
    """Return the sorted names with hashes from `hashes[0]` to before `hashes[1]`.

    The broker's own topics are included with `with_system`.
    """
    low, high = hashes
    chosen: list[str] = []
    async for part in _parts(names):
        texts = [str(each) for each in part if with_system or not each.is_system]
        if hashes != ALL:
            texts = [text for text in texts if low <= zlib.crc32(text.encode()) < high]
        chosen += texts
    if len(chosen) <= SLICE:
        return Response(_encode([sorted(chosen)]), JSON)
    # Imported with the first long list. Sorting all names in one call would block the loop, also
    # from a thread.
    from pyxbroker.broker.commands.topics_pattern import sorted_parts

    parts = await sorted_parts(chosen, Slices().pause)
    loop = asyncio.get_running_loop()
    return Response(await loop.run_in_executor(None, _encode, parts), JSON)


def _encode(parts: list[list[str]]) -> bytes:
    """Encode names as JSON in parts, between which a thread lets others run."""
    return b"[" + b",".join(to_json(part)[1:-1] for part in parts if part) + b"]"


async def _parts(items: list[T]) -> AsyncIterator[list[T]]:
    """Yield slices of a list, with pauses between them."""
    async for at in in_slices(range(0, len(items), SLICE)):
        yield items[at : at + SLICE]


async def _bundle(request: Request, namespace: str, bundle: str) -> tuple[int, int]:
    """Return the hash range of a bundle; an empty range if the bundle does not exist."""
    metadata = request.app.broker.metadata
    found = await metadata.get(paths.local_policies(namespace)) or await metadata.get(
        paths.namespace_policies(namespace)
    )
    record: dict[str, Any] = {} if found is None else json.loads(found.value)
    boundaries = (record.get("bundles") or {}).get("boundaries") or []
    for low, high in itertools.pairwise(boundaries):
        if bundle == f"{low}_{high}":
            # The last bundle includes its upper boundary.
            return int(low, 16), int(high, 16) + (high == boundaries[-1])
    return 0, 0


# --- single topics ----------------------------------------------------------------------------


async def create(request: Request) -> Response:
    """Create a non-partitioned topic, or a missing partition, with the properties of the body."""
    body = await read_json(request)
    properties = strings_of(body, "The topic's properties")
    name = topic_of(request)
    check_not_internal(name)
    topics = request.app.broker.topics
    if name.is_partitioned:
        await _check_partition(request, name)
    elif (await topics.partitions.read(name)).partitions:
        raise HttpError(409, EXISTS)
    await topics.loader.check_name(name)
    if await topics.registry.exists(name):
        raise HttpError(409, EXISTS)
    try:
        await topics.loader.ensure(name, properties)
    except TopicsLimitReached as error:
        # The same status as Apache Pulsar's; for a partitioned topic it is 412.
        raise HttpError(409, str(error)) from None
    return Response.empty()


async def _check_partition(request: Request, name: TopicName) -> None:
    """Raise HttpError 412 for a partition outside of its topic's partition count."""
    whole = TopicName.get(name.partitioned_topic_name)
    count = (await request.app.broker.topics.partitions.read(whole)).partitions
    if name.partition_index < count:
        return
    reason = (
        f'Can\'t create topic {name.local_name} with "-partition-" followed by a number smaller'
        f" than number of partition of partitioned topic {whole.local_name}"
        if count
        else f'Can\'t create topic {name.local_name} with "-partition-" followed by numeric value'
        f" if there isn't a partitioned topic {whole.local_name} created."
    )
    raise HttpError(412, reason)


async def delete(request: Request) -> Response:
    """Delete a topic; with force also while clients are connected."""
    name = topic_of(request)
    force = request.argument("force")
    topics = request.app.broker.topics
    if (await topics.partitions.read(name)).partitions:
        raise HttpError(
            409,
            f"{name} is a partitioned topic, instead of calling delete topic, please call"
            " delete-partitioned-topic.",
        )
    if name.is_persistent and not await topics.registry.exists(name):
        raise HttpError(404, f"Topic {name} not found")
    await topics.deletion.delete_by_name(name, force)
    return Response.empty()


# --- termination ------------------------------------------------------------------------------


async def terminate(request: Request) -> Response:
    """Terminate a topic, so that nothing can be published; return the id of its last message."""
    name = topic_of(request)
    check_not_system(name, "Termination")
    await check_namespace(request, name.namespace)
    topics = request.app.broker.topics
    if (await topics.partitions.read(name)).partitions:
        raise HttpError(405, "Termination of a partitioned topic is not allowed")
    return Response.json(await _terminate(request, name))


async def terminate_partitions(request: Request) -> Response:
    """Terminate all partitions of a topic; return the ids of their last messages by partition."""
    name = topic_of(request)
    check_not_system(name, "Termination")
    await check_namespace(request, name.namespace)
    count = (await request.app.broker.topics.partitions.read(name)).partitions
    if count == 0:
        raise HttpError(
            405,
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate,"
            " please use terminate commands",
        )
    if not name.is_persistent:
        raise HttpError(405, "Termination of a non-persistent topic is not allowed")
    last: dict[str, dict[str, int]] = {}
    async for index in in_slices(range(count)):
        partition = name.partition(index)
        to = await elsewhere(request, partition)
        if to is None:
            last[str(index)] = await _terminate(request, partition)
        else:
            last[str(index)] = await ask(request, to, topic_path(partition) + "/terminate")
    return await Response.long_json(last)


async def _terminate(request: Request, name: TopicName) -> dict[str, int]:
    """Return Pulsar's MessageIdImpl of the last entry; the entry id is -1 in an empty topic."""
    try:
        ledger_id, entry_id = await request.app.broker.topics.deletion.terminate(name)
    except TopicNotFound:
        reason = f"Topic {name} not found"
        if name.is_partitioned:
            reason = "Topic partitions were not yet created"
        raise HttpError(404, reason) from None
    return {
        "ledgerId": ledger_id,
        "entryId": entry_id,
        "partitionIndex": -1,
        "batchIndex": -1,
        "batchSize": 0,
    }


SYSTEM_TOPICS = Query("includeSystemTopic", "Includes topics of the broker itself.", False)
MESSAGE_ID = {
    "type": "object",
    "properties": {
        name: {"type": "integer"}
        for name in ("ledgerId", "entryId", "partitionIndex", "batchIndex", "batchSize")
    },
}

ENDPOINTS = (
    Endpoint(
        "GET",
        NAMESPACE,
        get_list,
        GET_TOPICS,
        "The topics of a namespace, with each partition of partitioned topics.",
        Answer("The names of persistent topics, or of the non-persistent ones in use.", STRINGS),
        namespace_name_of,
        (
            Query("bundle", "Topics of this bundle only, such as 0x00000000_0x40000000."),
            SYSTEM_TOPICS,
        ),
        queue="topics",
    ),
    Endpoint(
        "GET",
        NAMESPACE + "/partitioned",
        get_partitioned_list,
        GET_TOPICS,
        "The partitioned topics of a namespace.",
        Answer("The names.", STRINGS),
        namespace_name_of,
        (SYSTEM_TOPICS,),
        queue="topics",
    ),
    Endpoint(
        "PUT",
        TOPIC,
        create,
        CREATE_TOPIC,
        "Creates a non-partitioned topic, or a missing partition.",
        resource=namespace_name_of,
        precheck=require_namespace,
        content=Content("The topic's properties.", {"application/json": STRING_MAP}),
    ),
    Endpoint(
        "DELETE",
        TOPIC,
        delete,
        DELETE_TOPIC,
        "Deletes a topic that is not partitioned, or a partition.",
        resource=topic_of,
        query=(Query("force", "Also while clients are connected.", False),),
    ),
    Endpoint(
        "POST",
        TOPIC + "/terminate",
        terminate,
        TERMINATE,
        "Terminates a topic: nothing can be published to it any more.",
        Answer("The id of its last message.", MESSAGE_ID),
        topic_of,
        precheck=require_persistent(406, NOT_PERSISTENT),
    ),
    Endpoint(
        "POST",
        TOPIC + "/terminate/partitions",
        terminate_partitions,
        TERMINATE,
        "Terminates all partitions of a topic: nothing can be published to them any more.",
        Answer(
            "The ids of the last messages, by the number of the partition.",
            {"type": "object", "additionalProperties": MESSAGE_ID},
        ),
        topic_of,
    ),
)
