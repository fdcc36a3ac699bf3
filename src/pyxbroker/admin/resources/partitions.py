"""/admin/v2/{domain}/.../partitions: partitioned topics, as in Pulsar's PersistentTopics."""

from __future__ import annotations

from pyxbroker.admin.policy_bodies import Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    STRING_MAP,
    check_namespace,
    check_not_internal,
    namespace_name_of,
    partitioned_topic_of,
    read_json,
    require_namespace,
    strings_of,
    topic_of,
)
from pyxbroker.auth.authorization import CREATE_TOPIC, DELETE_TOPIC, LOOKUP, WRITE_PARTITION
from pyxbroker.base.errors import (
    NamespaceNotFound,
    PartitionsNotAllowed,
    TopicExists,
    TopicNotFound,
)
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions"
BODY_BYTES_MAX = 64 * 1024
INT_MAX = 2**31 - 1

# The body is the number of partitions, or, with this media type, the topic's metadata record.
METADATA = "application/vnd.partitioned-topic-metadata+json"


async def get_partitions(request: Request) -> Response:
    """Return Pulsar's PartitionedTopicMetadata; 0 partitions for a non-partitioned topic.

    Clients with an http:// URL set checkAllowAutoCreation: a missing topic that clients may create
    is then answered as if it existed, and created if it is partitioned.
    """
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    topics = request.app.broker.topics
    found = await topics.partitions.read(name)
    if found.partitions == 0:
        try:
            count = await topics.partitioned.metadata(
                name, request.argument("checkAllowAutoCreation")
            )
        except TopicNotFound:
            raise HttpError(404, f"Topic {name} not found") from None
        request.has_created = count > 0
        return Response.json({"partitions": count, "deleted": False})
    answer = {"partitions": found.partitions, "deleted": bool(found.fields.get("deleted"))}
    if found.fields.get("properties") is not None:
        answer["properties"] = found.fields["properties"]
    return Response.json(answer)


async def create(request: Request) -> Response:
    """Create a partitioned topic. createLocalTopicOnly is ignored: there is no other cluster."""
    body = await read_json(request)
    properties = None
    if request.content_type == METADATA and isinstance(body, dict):
        if body.get("properties") is not None:
            properties = strings_of(body["properties"], "properties")
        count = _count(body.get("partitions"))
    else:
        count = _count(body)
    request.argument("createLocalTopicOnly")
    name = partitioned_topic_of(request)
    check_not_internal(name)
    try:
        await request.app.broker.topics.partitioned.create(name, count, properties)
    except TopicExists:
        raise HttpError(409, "This topic already exists") from None
    return Response.empty()


async def update(request: Request) -> Response:
    """Add partitions to a topic. updateLocalTopicOnly and force are ignored."""
    count = _count(await read_json(request))
    request.argument("updateLocalTopicOnly")
    request.argument("force")
    name = partitioned_topic_of(request)
    try:
        await request.app.broker.topics.partitioned.update(name, count)
    except PartitionsNotAllowed as error:
        raise HttpError(422, str(error)) from None
    except NamespaceNotFound as error:
        raise HttpError(404, str(error)) from None
    except TopicNotFound:
        raise HttpError(409, f"Topic {name} is not the partitioned topic.") from None
    return Response.empty()


async def delete(request: Request) -> Response:
    """Delete a topic with its partitions; with force also while clients are connected."""
    name = partitioned_topic_of(request)
    broker = request.app.broker
    if name.is_transaction_internal and broker.transactions is not None:
        raise HttpError(
            405,
            f"{name} assigns the transaction coordinators to brokers. It cannot be deleted while"
            " transactions are enabled.",
        )
    topics = broker.topics
    force = request.argument("force")
    try:
        await topics.partitioned.delete(name, force)
    except TopicNotFound:
        if await topics.registry.exists(name):
            raise HttpError(
                409,
                f"{name} is a non-partitioned topic. Instead of calling delete-partitioned-topic"
                " please call delete.",
            ) from None
        raise HttpError(404, f"Topic {name} not found.") from None
    return Response.empty()


_COUNT = Field("integer", 0)


def _count(value: object) -> int:
    """Return a number of partitions; as in Pulsar, null is 0."""
    count: int = _COUNT.read(value, "The number of partitions")
    return count


COUNT = {"type": "integer", "minimum": 1, "maximum": INT_MAX}
NUMBERS = {"application/json": COUNT, "text/plain": COUNT}
METADATA_SCHEMA = {
    "type": "object",
    "properties": {
        "partitions": {"type": "integer"},
        "deleted": {"type": "boolean"},
        "properties": STRING_MAP,
    },
}

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_partitions,
        LOOKUP,
        "The number of partitions of a topic; 0 for a non-partitioned topic.",
        Answer("Pulsar's PartitionedTopicMetadata.", METADATA_SCHEMA),
        topic_of,
        (
            Query(
                "checkAllowAutoCreation",
                "Treats a missing topic as existing, if clients may create it by using it.",
                False,
            ),
        ),
    ),
    Endpoint(
        "PUT",
        PATH,
        create,
        CREATE_TOPIC,
        "Creates a partitioned topic.",
        resource=namespace_name_of,
        precheck=require_namespace,
        query=(
            Query(
                "createLocalTopicOnly", "Accepted and ignored: there is no other cluster.", False
            ),
        ),
        content=Content(
            "The number of partitions, or an object with the number and properties.",
            {**NUMBERS, METADATA: METADATA_SCHEMA},
            required=True,
            bytes_max=BODY_BYTES_MAX,
        ),
    ),
    Endpoint(
        "POST",
        PATH,
        update,
        WRITE_PARTITION,
        "Adds partitions to a partitioned topic.",
        resource=partitioned_topic_of,
        query=(
            Query(
                "updateLocalTopicOnly", "Accepted and ignored: there is no other cluster.", False
            ),
            Query("force", "Accepted and ignored: adding partitions needs no force.", False),
        ),
        content=Content(
            "The new number of partitions.",
            NUMBERS,
            required=True,
            bytes_max=BODY_BYTES_MAX,
        ),
    ),
    Endpoint(
        "DELETE",
        PATH,
        delete,
        DELETE_TOPIC,
        "Deletes a partitioned topic with its partitions.",
        resource=partitioned_topic_of,
        query=(Query("force", "Also while clients are connected.", False),),
    ),
)
