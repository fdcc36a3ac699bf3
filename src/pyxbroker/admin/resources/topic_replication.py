"""/admin/v2/{domain}/.../replication: the replication clusters of a topic.

So far these can only be the local cluster, since this broker does not replicate.

.../shadowTopics: a broker of Apache Pulsar on the same metadata may have set shadow topics. Setting
them here is refused (not_built.py).
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
    """Return the clusters of a topic; with `applied`, those of its namespace if it has none."""
    name = await checked_topic(request)
    clusters: Any = (await topic_fields(request, name)).get(FIELD)
    if clusters is None and request.argument("applied"):
        namespace = await request.app.broker.topics.policies.namespace_fields(name.namespace)
        clusters = namespace.get(REPLICATION) or [request.app.broker.config.clusterName]
    return Response.empty() if clusters is None else Response.json(clusters)


async def set_topic_replication(request: Request) -> Response:
    """Set the clusters of a topic; only the local cluster is accepted."""
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
    """Remove the clusters of a topic."""
    return await change_topic(request, lambda fields: set_at(fields, (FIELD,), None))


async def get_shadow_topics(request: Request) -> Response:
    """Return the shadow topics of a topic."""
    name = await checked_topic(request)
    found = (await topic_fields(request, name)).get(SHADOWS)
    return Response.json(found) if found else Response.empty()


async def remove_shadow_topics(request: Request) -> Response:
    """Remove the shadow topics of a topic."""
    return await change_topic(request, lambda fields: set_at(fields, (SHADOWS,), None))


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_topic_replication,
        READ,
        "The replication clusters of a topic.",
        Answer("The clusters; 204 if they are not set.", STRINGS),
        topic_of,
        (APPLIED, IS_GLOBAL),
    ),
    Endpoint(
        "POST",
        PATH,
        set_topic_replication,
        WRITE,
        "Sets the replication clusters of a topic: so far only the local one.",
        resource=topic_of,
        query=(IS_GLOBAL,),
        content=Content("The clusters.", {"application/json": STRINGS}, bytes_max=NAMES_BYTES_MAX),
    ),
    Endpoint(
        "DELETE",
        PATH,
        remove_topic_replication,
        WRITE,
        "Removes a topic's policy of replication clusters.",
        resource=topic_of,
        query=(IS_GLOBAL,),
    ),
    Endpoint(
        "GET",
        TOPIC + SHADOWS,
        get_shadow_topics,
        READ_SHADOWS,
        "The shadow topics of a topic.",
        Answer("The names; 204 if they are not set.", STRINGS),
        topic_of,
        (IS_GLOBAL,),
    ),
    Endpoint(
        "DELETE",
        TOPIC + SHADOWS,
        remove_shadow_topics,
        WRITE_SHADOWS,
        "Removes a topic's policy of shadow topics.",
        resource=topic_of,
        query=(IS_GLOBAL,),
    ),
)
