"""/admin/v2/{domain}/...: metadata of topics other than policies, as in Pulsar's PersistentTopics
and NonPersistentTopics.
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
    require_persistent,
    strings_of,
    topic_of,
)
from pyxbroker.admin.resources.topic_work import (
    existing_topics_of,
    load_topic,
    partitions_of,
    topic_not_found,
)
from pyxbroker.admin.resources.topics import list_response
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
    """Return the properties of a topic, partitioned or not."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    partitioned = await request.app.broker.topics.partitions.read(name)
    if partitioned.partitions:
        return Response.json(partitioned.fields.get("properties") or {})
    return Response.json((await _topic(request, name)).properties)


async def put_properties(request: Request) -> Response:
    """Add properties to a topic, and replace values of existing ones."""
    given = strings_of(await read_json(request), "The topic's properties")

    def add(properties: Properties) -> Properties:
        for key in OWN_PROPERTIES & given.keys():
            raise HttpError(412, f"The property {key} is reserved for the broker.")
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
    """Delete one property of a topic; a missing property is ignored."""
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
    topic = await load_topic(request, name)
    assert isinstance(topic, PersistentTopic)
    return topic


# --- partitions, policies, lists --------------------------------------------------------------


async def create_missed(request: Request) -> Response:
    """Create the missing partitions of a topic."""
    name = partitioned_topic_of(request)
    await check_namespace(request, name.namespace)
    try:
        await request.app.broker.topics.partitioned.create_missing(name)
    except TopicNotFound:
        raise HttpError(404, f"Topic {name} does not exist") from None
    return Response.empty()


async def delete_policies(request: Request) -> Response:
    """Remove all policies of a topic."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    topics = request.app.broker.topics
    # Partitions have the policies of their topic.
    if not name.is_partitioned and topics.policies.has_records:
        await topics.policies.records.forget(name)
    return Response.empty()


async def get_in_bundle(request: Request) -> Response:
    """Return the open non-persistent topics of a bundle."""
    namespace = namespace_of(request)
    if domain_of(request) != "non-persistent":
        raise HttpError(
            405, f"{request.path} takes DELETE, PUT, not GET.", [("Allow", "DELETE, PUT")]
        )
    await check_namespace(request, namespace)
    bundle = await bundle_of(request)
    names = await request.app.broker.namespaces.topic_names(namespace, "non-persistent")
    # The last bundle includes its upper boundary.
    hashes = bundle.lower, bundle.upper + (bundle.upper == LAST_BOUNDARY)
    return await list_response(names, with_system=True, hashes=hashes)


async def get_info(request: Request) -> Response:
    """Return the metadata of the ledgers and cursors of a topic, or of its partitions."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    _check_persistent(name)
    broker = request.app.broker
    count = await partitions_of(request, name)
    try:
        if not count:
            return await Response.long_json(await read_info(broker.metadata, name))
        found = {}
        async for each in existing_topics_of(request, name):
            found[str(each)] = await read_info(broker.metadata, each)
    except TopicNotFound:
        raise topic_not_found(name) from None
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
        precheck=require_persistent(406, NOT_PERSISTENT),
    ),
    Endpoint(
        "PUT",
        TOPIC + "/properties",
        put_properties,
        UPDATE_METADATA,
        "Adds properties to a topic.",
        resource=topic_of,
        content=Body("The properties to add.", {"application/json": STRING_MAP}),
    ),
    Endpoint(
        "DELETE",
        TOPIC + "/properties",
        delete_property,
        DELETE_METADATA,
        "Deletes a property of a topic.",
        resource=topic_of,
        precheck=require_persistent(406, NOT_PERSISTENT),
        query=(Query("key", "The name of the property."),),
    ),
    Endpoint(
        "POST",
        TOPIC + "/createMissedPartitions",
        create_missed,
        CREATE_TOPIC,
        "Creates the missing partitions of a topic.",
        resource=partitioned_topic_of,
    ),
    Endpoint(
        "DELETE",
        TOPIC + "/policies",
        delete_policies,
        DELETE_POLICIES,
        "Removes all policies of a topic.",
        resource=topic_of,
    ),
    Endpoint(
        "GET",
        NAMESPACE + "/{bundle}",
        get_in_bundle,
        GET_BUNDLE,
        "The open non-persistent topics of a bundle; 405 for persistent topics.",
        Answer("The names.", STRINGS),
        namespace_name_of,
        # Not "topics": a broker that holds a place there for a whole list asks others for bundles.
        queue="bundle-topics",
    ),
    Endpoint(
        "GET",
        TOPIC + "/internal-info",
        get_info,
        GET_STATS,
        "The metadata of a topic's ledgers and cursors.",
        Answer("Pulsar's ManagedLedgerInfo.", ANY),
        topic_of,
    ),
)
