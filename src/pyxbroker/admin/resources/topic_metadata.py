"""/admin/v2/{domain}/...: what metadata says of topics besides their policies, as in Pulsar's
PersistentTopics and NonPersistentTopics.
"""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.bundles import bundle_of
from pyxbroker.admin.resources.names import (
    NOT_PERSISTENT,
    STRING_MAP,
    STRINGS,
    check_namespace,
    domain_of,
    namespace_name_of,
    namespace_of,
    partitioned_topic_of,
    read_json,
    stored_first,
    strings_of,
    topic_of,
)
from pyxbroker.admin.resources.topic_work import missing, names_of, opened, partitions_of
from pyxbroker.admin.resources.topics import listed
from pyxbroker.auth.authorization import (
    CREATE_TOPIC,
    DELETE_METADATA,
    DELETE_POLICIES,
    GET_BUNDLE,
    GET_METADATA,
    GET_STATS,
    UPDATE_METADATA,
)
from pyxbroker.base.bundles import LAST_BOUNDARY
from pyxbroker.base.errors import TopicNotFound
from pyxbroker.base.limits import properties_trouble
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.statistics.managed_ledger_info import read_info
from pyxbroker.broker.topics.persistent import OWN_PROPERTIES, PersistentTopic
from pyxbroker.web.endpoint import Answer, Endpoint, Query
from pyxbroker.web.endpoint import Content as Body
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

NAMESPACE = "/admin/v2/{domain}/{tenant}/{namespace}"
TOPIC = NAMESPACE + "/{topic}"

Properties = dict[str, str]


# --- properties -------------------------------------------------------------------------------


async def get_properties(request: Request) -> Response:
    """The properties of a topic, or of a partitioned one."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    partitioned = await request.app.broker.topics.partitions.read(name)
    if partitioned.partitions:
        return Response.json(partitioned.fields.get("properties") or {})
    return Response.json((await _topic(request, name)).properties)


async def put_properties(request: Request) -> Response:
    """Gives a topic further properties, and other values to those it has."""
    given = strings_of(await read_json(request), "The topic's properties")

    def add(properties: Properties) -> Properties:
        for key in OWN_PROPERTIES & given.keys():
            raise HttpError(412, f"The property {key} is the broker's own.")
        both = properties | given
        trouble = properties_trouble("topic's properties", both.items())
        if trouble is not None:
            raise HttpError(412, trouble)
        return both

    name = topic_of(request)
    _check_persistent(name)
    await check_namespace(request, name.namespace)
    if await partitions_of(request, name):
        await request.app.broker.topics.partitioned.change_properties(name, add)
    else:
        await (await _topic(request, name)).change_properties(add)
    return Response.empty()


async def delete_property(request: Request) -> Response:
    """Takes one property from a topic; nothing happens where there is none of that name."""
    key = request.argument("key")

    def drop(properties: Properties) -> Properties:
        return {name: value for name, value in properties.items() if name != key}

    name = topic_of(request)
    await check_namespace(request, name.namespace)
    if not key:
        raise HttpError(412, "The query needs the key of a property.")
    if await partitions_of(request, name):
        await request.app.broker.topics.partitioned.change_properties(name, drop)
    else:
        await (await _topic(request, name)).change_properties(drop)
    return Response.empty()


def _check_persistent(name: TopicName) -> None:
    if not name.is_persistent:
        raise HttpError(406, NOT_PERSISTENT)


async def _topic(request: Request, name: TopicName) -> PersistentTopic:
    topic = await opened(request, name)
    assert isinstance(topic, PersistentTopic)
    return topic


# --- partitions, policies, lists --------------------------------------------------------------


async def create_missed(request: Request) -> Response:
    """Makes the partitions of a topic that are not there."""
    name = partitioned_topic_of(request)
    await check_namespace(request, name.namespace)
    try:
        await request.app.broker.topics.partitioned.create_missing(name)
    except TopicNotFound:
        raise HttpError(404, f"Topic {name} does not exist") from None
    return Response.empty()


async def delete_policies(request: Request) -> Response:
    """Takes all policies from a topic."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    topics = request.app.broker.topics
    # Partitions have those of their topic.
    if not name.is_partitioned and topics.policies.has_records:
        await topics.policies.records.forget(name)
    return Response.empty()


async def get_in_bundle(request: Request) -> Response:
    """The non-persistent topics of a bundle that are in use."""
    namespace = namespace_of(request)
    if domain_of(request) != "non-persistent":
        raise HttpError(
            405, f"{request.path} takes DELETE, PUT, not GET.", [("Allow", "DELETE, PUT")]
        )
    await check_namespace(request, namespace)
    bundle = await bundle_of(request)
    names = await request.app.broker.namespaces.topic_names(namespace, "non-persistent")
    # The last one has its end, too.
    hashes = bundle.lower, bundle.upper + (bundle.upper == LAST_BOUNDARY)
    return await listed(names, with_system=True, hashes=hashes)


async def get_info(request: Request) -> Response:
    """What metadata says of the ledgers and cursors of a topic, or of its partitions."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    _check_persistent(name)
    broker = request.app.broker
    count = await partitions_of(request, name)
    try:
        if not count:
            return await Response.long_json(await read_info(broker.metadata, name))
        found = {}
        async for each in names_of(request, name):
            found[str(each)] = await read_info(broker.metadata, each)
    except TopicNotFound:
        raise missing(name) from None
    return await Response.long_json({"version": 0, "partitions": found})


ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}

ENDPOINTS = (
    Endpoint(
        "GET",
        TOPIC + "/properties",
        get_properties,
        GET_METADATA,
        "The properties of a topic.",
        Answer("The properties.", STRING_MAP),
        topic_of,
        first=stored_first(406, NOT_PERSISTENT),
    ),
    Endpoint(
        "PUT",
        TOPIC + "/properties",
        put_properties,
        UPDATE_METADATA,
        "Gives a topic further properties.",
        resource=topic_of,
        content=Body("Those that it gets.", {"application/json": STRING_MAP}),
    ),
    Endpoint(
        "DELETE",
        TOPIC + "/properties",
        delete_property,
        DELETE_METADATA,
        "Takes a property from a topic.",
        resource=topic_of,
        first=stored_first(406, NOT_PERSISTENT),
        query=(Query("key", "Which one."),),
    ),
    Endpoint(
        "POST",
        TOPIC + "/createMissedPartitions",
        create_missed,
        CREATE_TOPIC,
        "Makes the partitions of a topic that are not there.",
        resource=partitioned_topic_of,
    ),
    Endpoint(
        "DELETE",
        TOPIC + "/policies",
        delete_policies,
        DELETE_POLICIES,
        "Takes all policies from a topic.",
        resource=topic_of,
    ),
    Endpoint(
        "GET",
        NAMESPACE + "/{bundle}",
        get_in_bundle,
        GET_BUNDLE,
        "The non-persistent topics of a bundle that are in use; of persistent ones it is 405.",
        Answer("The names.", STRINGS),
        namespace_name_of,
        line="topics",
    ),
    Endpoint(
        "GET",
        TOPIC + "/internal-info",
        get_info,
        GET_STATS,
        "What metadata says of a topic's ledgers and cursors.",
        Answer("Pulsar's ManagedLedgerInfo.", ANY),
        topic_of,
    ),
)
