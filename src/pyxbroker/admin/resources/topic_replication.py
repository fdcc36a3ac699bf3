"""/admin/v2/{domain}/.../replication: the clusters of a topic, which are its own one alone: a topic
may say so, and nothing else, for this broker does not replicate.

.../shadowTopics: a broker of Apache Pulsar on the same metadata may have set some. To set them here
is refused (not_built.py).
"""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRINGS, read_json, topic_of
from pyxbroker.admin.resources.namespaces import (
    NAMES_BYTES_MAX,
    REPLICATION,
    check_allowed,
    check_exist,
    check_local,
    clusters_of,
)
from pyxbroker.admin.resources.policies import APPLIED, IS_GLOBAL, TOPIC, Fields, set_at
from pyxbroker.admin.resources.topic_policies import change_topic, checked_topic, topic_fields
from pyxbroker.auth.authorization import TENANT_ADMIN, Right, Scope
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = TOPIC + "replication"
FIELD = "replicationClusters"
NOT_GLOBAL = (
    "Please do not use the global topic level policy when namespace-level replication is not"
    " enabled, because the global level policy relies on namespace-level replication"
)
READ = Right(Scope.TOPIC_POLICY, "READ REPLICATION", (TENANT_ADMIN,))
WRITE = Right(Scope.TOPIC_POLICY, "WRITE REPLICATION", (TENANT_ADMIN,))
SHADOWS = "shadowTopics"
READ_SHADOWS = Right(Scope.TOPIC_POLICY, "READ SHADOW_TOPIC", (TENANT_ADMIN,))
WRITE_SHADOWS = Right(Scope.TOPIC_POLICY, "WRITE SHADOW_TOPIC", (TENANT_ADMIN,))


async def get_topic_replication(request: Request) -> Response:
    """The clusters that a topic names; with applied those of its namespace where it names none."""
    name = await checked_topic(request)
    clusters: Any = (await topic_fields(request, name)).get(FIELD)
    if clusters is None and request.argument("applied"):
        namespace = await request.app.broker.topics.policies.namespace_fields(name.namespace)
        clusters = namespace.get(REPLICATION) or [request.app.broker.config.clusterName]
    return Response.empty() if clusters is None else Response.json(clusters)


async def set_topic_replication(request: Request) -> Response:
    """Names the clusters of a topic. Refuses any other than its own one, and a list without it."""
    name = await checked_topic(request)
    clusters = clusters_of(await read_json(request))
    if not clusters:
        raise HttpError(412, "ClusterIds should not be null or empty")
    if request.argument("isGlobal"):
        raise HttpError(412, NOT_GLOBAL)
    broker = request.app.broker
    if broker.config.clusterName not in clusters:
        raise HttpError(
            412,
            "Can not remove local cluster from the local topic-level replication clusters policy",
        )
    await check_exist(request, clusters)
    tenant = await broker.tenants.record(name.tenant)
    check_allowed(clusters, tenant, name.tenant)
    check_local(request, clusters, whose="topic")

    def change(fields: Fields) -> None:
        set_at(fields, (FIELD,), clusters)

    return await change_topic(request, change)


async def remove_topic_replication(request: Request) -> Response:
    """A topic names no clusters any more."""
    return await change_topic(request, lambda fields: set_at(fields, (FIELD,), None))


async def get_shadow_topics(request: Request) -> Response:
    """The shadow topics that a topic names."""
    name = await checked_topic(request)
    found = (await topic_fields(request, name)).get(SHADOWS)
    return Response.json(found) if found else Response.empty()


async def remove_shadow_topics(request: Request) -> Response:
    """Removes the shadow topics that a topic names."""
    return await change_topic(request, lambda fields: set_at(fields, (SHADOWS,), None))


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_topic_replication,
        READ,
        "Tells to which clusters a topic is replicated.",
        Answer("The clusters; 204 when they are not set.", STRINGS),
        topic_of,
        (APPLIED, IS_GLOBAL),
    ),
    Endpoint(
        "POST",
        PATH,
        set_topic_replication,
        WRITE,
        "Says that a topic is in its own cluster, the one that this broker takes.",
        resource=topic_of,
        query=(IS_GLOBAL,),
        content=Content("The clusters.", {"application/json": STRINGS}, bytes_max=NAMES_BYTES_MAX),
    ),
    Endpoint(
        "DELETE",
        PATH,
        remove_topic_replication,
        WRITE,
        "Removes a topic's policy that says to which clusters it is replicated.",
        resource=topic_of,
        query=(IS_GLOBAL,),
    ),
    Endpoint(
        "GET",
        TOPIC + SHADOWS,
        get_shadow_topics,
        READ_SHADOWS,
        "Tells which shadow topics a topic has.",
        Answer("Their names; 204 when they are not set.", STRINGS),
        topic_of,
        (IS_GLOBAL,),
    ),
    Endpoint(
        "DELETE",
        TOPIC + SHADOWS,
        remove_shadow_topics,
        WRITE_SHADOWS,
        "Removes a topic's policy that says which shadow topics it has.",
        resource=topic_of,
        query=(IS_GLOBAL,),
    ),
)
