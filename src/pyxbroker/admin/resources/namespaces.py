"""/admin/v2/namespaces: lists, creates, changes and deletes namespaces, as Pulsar's Namespaces
does.
"""

from __future__ import annotations

from pyxbroker.admin.grant_checks import checked_grants
from pyxbroker.admin.namespace_record import new_record, shown_record
from pyxbroker.admin.policy_bodies import BOOLEAN
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    NO_NAMESPACE,
    STRING_MAP,
    STRINGS,
    check_tenant,
    namespace_name_of,
    namespace_of,
    read_json,
    strings_of,
    tenant_of,
    texts_of,
)
from pyxbroker.auth.authorization import (
    ADMINISTRATE,
    CREATE_NAMESPACE,
    DELETE_NAMESPACE,
    GET_BUNDLE,
    LIST_NAMESPACES,
    MIGRATE_NAMESPACE,
    READ_ALLOW_CLUSTERS,
    READ_POLICIES,
    READ_REPLICATION,
    WRITE_ALLOW_CLUSTERS,
    WRITE_REPLICATION,
)
from pyxbroker.base.bundles import bundles_of
from pyxbroker.base.errors import NamespaceNotFound, TenantNotFound
from pyxbroker.base.json_weight import MANY_TOKENS_MAX
from pyxbroker.base.limits import CLUSTER_BYTES_MAX, properties_trouble
from pyxbroker.metadata import paths
from pyxbroker.policies.grants import AUTH
from pyxbroker.policies.records import Change, Fields
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

PATH = "/admin/v2/namespaces/{tenant}"
ONE = PATH + "/{namespace}"
REPLICATION = "replication_clusters"
ALLOWED = "allowed_clusters"
PROPERTIES = "properties"
MIGRATED = "migrated"
CLUSTERS_MAX = 1_000
POLICIES_BYTES_MAX = 384 << 10  # parsing more would block the loop for too long
NAMES_BYTES_MAX = 64 << 10


# --- namespaces -------------------------------------------------------------------------------


async def get_namespaces(request: Request) -> Response:
    """Return the namespaces of a tenant."""
    tenant = str(tenant_of(request))
    broker = request.app.broker
    try:
        await broker.tenants.record(tenant)
    except TenantNotFound:
        raise HttpError(404, "Tenant not found") from None
    return Response.json(await broker.namespaces.names(tenant))


async def get_policies(request: Request) -> Response:
    """Return Pulsar's Policies, complete."""
    name = namespace_of(request)
    record = await record_of(request)
    local = await request.app.broker.namespaces.local_record(name)
    return Response.json(shown_record(record, local, request.app.broker.config))


async def get_bundles(request: Request) -> Response:
    """Return Pulsar's BundlesData."""
    name = namespace_of(request)
    record = await record_of(request)
    broker = request.app.broker
    local = await broker.namespaces.local_record(name)
    bundles = broker.config.defaultNumberOfNamespaceBundles
    return Response.json(bundles_of(record, local, bundles))


async def create(request: Request) -> Response:
    """Create a namespace with the policies of the body, or with the defaults.

    Older clients send BundlesData as the body, which has no policies; Pulsar accepts it, too.
    """
    name = namespace_name_of(request)
    body = await read_json(request)
    broker = request.app.broker
    tenant = await broker.tenants.record(name.tenant)
    config = broker.config
    fields = new_record(body, config)
    fields[AUTH] = await checked_grants(fields[AUTH])
    replication = clusters_of(fields[REPLICATION])
    allowed = clusters_of(fields[ALLOWED])
    if allowed and not set(replication) <= set(allowed):
        raise HttpError(
            400,
            f"[{name}] All replication clusters should be included in allowed clusters."
            f" Repl clusters: {_shown(replication)}, allowed clusters: {_shown(allowed)}",
        )
    check_allowed([*replication, *allowed], tenant, name.tenant)
    check_local(request, replication, allowed)
    fields |= {REPLICATION: replication, ALLOWED: allowed}
    await broker.namespaces.create(name, fields)
    return Response.empty()


async def delete(request: Request) -> Response:
    """Delete a namespace; with force also its topics, if the settings allow it."""
    name = namespace_of(request)
    force = request.argument("force")
    request.argument("authoritative")
    broker = request.app.broker
    if force and not broker.config.forceDeleteNamespaceAllowed:
        raise HttpError(405, "Broker doesn't allow forced deletion of namespaces")
    await broker.namespaces.delete(name, force)
    return Response.empty()


async def record_of(request: Request, reason: str = NO_NAMESPACE) -> Fields:
    """Return the record of a path's namespace, which must not be modified. Raises HttpError 404."""
    try:
        return await request.app.broker.topics.policies.namespace_fields(namespace_of(request))
    except NamespaceNotFound:
        raise HttpError(404, reason) from None


async def change_record(request: Request, change: Change, reason: str = NO_NAMESPACE) -> None:
    """Change the record of a path's namespace. Raises HttpError 404, and the errors of `change`."""
    try:
        await request.app.broker.namespaces.change(namespace_of(request), change)
    except NamespaceNotFound:
        raise HttpError(404, reason) from None


async def set_field(request: Request, field: str, value: object) -> None:
    """Set a field in the record of a path's namespace. Raises HttpError 404."""

    def change(fields: Fields) -> None:
        fields[field] = value

    await change_record(request, change)


async def set_migrated(request: Request) -> Response:
    """Mark a namespace as not migrated; refuse to mark it as migrated."""
    if BOOLEAN.read(await read_json(request)):
        raise HttpError(501, "Other clusters are not built yet: no namespace migrates.")
    await set_field(request, MIGRATED, False)
    return Response.empty()


# --- properties -------------------------------------------------------------------------------


async def get_properties(request: Request) -> Response:
    """Return all properties of a namespace."""
    await check_tenant(request)
    return Response.json((await record_of(request)).get(PROPERTIES) or {})


async def set_properties(request: Request) -> Response:
    """Set properties; properties that the body does not name are retained."""
    await check_tenant(request)
    await _set_properties(request, strings_of(await read_json(request), "The properties"))
    return Response.empty()


async def _set_properties(request: Request, properties: dict[str, str]) -> None:
    def change(fields: Fields) -> None:
        whole = {**(fields.get(PROPERTIES) or {}), **properties}
        trouble = properties_trouble("properties of the namespace", whole.items())
        if trouble is not None:
            raise HttpError(400, trouble)
        fields[PROPERTIES] = whole

    await change_record(request, change)


async def delete_properties(request: Request) -> Response:
    """Delete all properties."""
    await check_tenant(request)
    await set_field(request, PROPERTIES, {})
    return Response.empty()


async def get_property(request: Request) -> Response:
    """Return the value of one property as plain text, empty if it is missing."""
    await check_tenant(request)
    properties = (await record_of(request)).get(PROPERTIES) or {}
    return Response.text(properties.get(request.parameters["key"], ""), JSON)


async def set_property(request: Request) -> Response:
    """Set one property."""
    await check_tenant(request)
    await _set_properties(request, {request.parameters["key"]: request.parameters["value"]})
    return Response.empty()


async def delete_property(request: Request) -> Response:
    """Delete one property and return its value as plain text, empty if it was missing."""
    await check_tenant(request)
    found: list[str] = []

    def change(fields: Fields) -> None:
        properties = dict(fields.get(PROPERTIES) or {})
        found[:] = [properties.pop(request.parameters["key"], "")]
        fields[PROPERTIES] = properties

    await change_record(request, change)
    return Response.text(found[0], JSON)


# --- clusters ---------------------------------------------------------------------------------


async def get_replication(request: Request) -> Response:
    """Return the replication clusters of a namespace."""
    return Response.json((await record_of(request)).get(REPLICATION) or [])


async def set_replication(request: Request) -> Response:
    """Set the replication clusters of a namespace: so far only the local cluster."""
    request.argument("compareTopicPartitions")
    clusters = clusters_of(await read_json(request))
    if not clusters:
        raise HttpError(412, "ClusterIds should not be null or empty")
    record = await record_of(request)
    allowed = frozenset(record.get(ALLOWED) or ())
    await check_exist(request, clusters)
    tenant = await request.app.broker.tenants.record(request.parameters["tenant"])
    check_allowed(clusters, tenant, request.parameters["tenant"])
    for cluster in clusters:
        if allowed and cluster not in allowed:
            raise HttpError(
                403,
                f"Cluster [{cluster}] is not in the list of allowed clusters list for namespace"
                f" [{namespace_of(request)}]",
            )
    check_local(request, clusters, [])
    await set_field(request, REPLICATION, clusters)
    return Response.empty(200)


async def get_allowed_clusters(request: Request) -> Response:
    """Return the clusters that a namespace or its topics may be in."""
    return Response.json((await record_of(request)).get(ALLOWED) or [])


async def set_allowed_clusters(request: Request) -> Response:
    """Set the clusters that a namespace or its topics may be in."""
    tenant = await request.app.broker.tenants.record(request.parameters["tenant"])
    clusters = clusters_of(await read_json(request))
    record = await record_of(request)
    check_allowed(clusters, tenant, request.parameters["tenant"])
    await check_exist(request, clusters)
    given = frozenset(clusters)
    for cluster in record.get(REPLICATION) or []:
        if cluster not in given:
            raise HttpError(
                400,
                f"Allowed clusters do not contain the replication cluster [{cluster}]. Please"
                " remove the replication cluster if the cluster is not allowed for this namespace",
            )
    check_local(request, [], clusters)
    await set_field(request, ALLOWED, clusters)
    return Response.empty(200)


def clusters_of(value: object) -> list[str]:
    """Return the distinct cluster names of a body. Raises HttpError 400."""
    if value is None:
        return []
    return texts_of(value, "The list of clusters", CLUSTERS_MAX, CLUSTER_BYTES_MAX)


def _shown(clusters: list[str]) -> str:
    return f"[{', '.join(clusters)}]"


async def check_exist(request: Request, clusters: list[str]) -> None:
    """Raise HttpError 403 for an unknown cluster."""
    known = frozenset(await request.app.broker.metadata.children(paths.CLUSTERS))
    for cluster in clusters:
        if cluster not in known or cluster == "global":
            raise HttpError(403, f"Invalid cluster id: {cluster}")


def check_allowed(clusters: list[str], tenant: Fields, name: str) -> None:
    """Raise HttpError 403 for a cluster that the tenant may not be in."""
    allowed = frozenset(tenant.get("allowedClusters") or ())
    for cluster in clusters:
        if cluster not in allowed:
            raise HttpError(
                403,
                f"Cluster [{cluster}] is not in the list of allowed clusters list for tenant"
                f" [{name}]",
            )


def check_local(request: Request, *given: list[str], whose: str = "namespace") -> None:
    """Raise HttpError 412 for any cluster but the local one: replication is not built."""
    local = request.app.broker.config.clusterName
    others = [each for clusters in given for each in clusters if each != local]
    if others:
        raise HttpError(
            412,
            f"A {whose} is in cluster {local} alone: this broker does not replicate to"
            f" {others[0]!r:.100}.",
        )


POLICIES = {"type": "object"}
BUNDLES_DATA = {
    "type": "object",
    "properties": {"boundaries": STRINGS, "numBundles": {"type": "integer"}},
}
PROPERTY_PATH = ONE + "/property/{key}"
CLUSTER_NAMES = Content(
    "The names of clusters.", {"application/json": STRINGS}, bytes_max=NAMES_BYTES_MAX
)

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_namespaces,
        LIST_NAMESPACES,
        "The namespaces of a tenant.",
        Answer("The names, as tenant/namespace.", STRINGS),
        tenant_of,
    ),
    Endpoint(
        "GET",
        ONE,
        get_policies,
        READ_POLICIES,
        "All policies of a namespace.",
        Answer("Pulsar's Policies.", POLICIES),
        namespace_name_of,
    ),
    Endpoint(
        "PUT",
        ONE,
        create,
        CREATE_NAMESPACE,
        "Creates a namespace.",
        resource=namespace_name_of,
        content=Content(
            "Pulsar's Policies.",
            {"application/json": POLICIES},
            bytes_max=POLICIES_BYTES_MAX,
            tokens_max=MANY_TOKENS_MAX,
        ),
    ),
    Endpoint(
        "DELETE",
        ONE,
        delete,
        DELETE_NAMESPACE,
        "Deletes a namespace without topics other than the broker's own.",
        resource=namespace_name_of,
        query=(
            Query(
                "force",
                "Deletes its topics, too, if forceDeleteNamespaceAllowed is true.",
                False,
            ),
            Query("authoritative", "Accepted and ignored: any broker deletes a namespace.", False),
        ),
    ),
    Endpoint(
        "GET",
        ONE + "/bundles",
        get_bundles,
        GET_BUNDLE,
        "The bundles that a namespace is divided into.",
        Answer("Pulsar's BundlesData.", BUNDLES_DATA),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        ONE + "/migration",
        set_migrated,
        MIGRATE_NAMESPACE,
        "Marks a namespace as not migrated to another cluster; marking it as migrated is refused.",
        resource=namespace_name_of,
        content=Content(
            "True if it has migrated.",
            {"application/json": BOOLEAN.schema},
            required=True,
            bytes_max=NAMES_BYTES_MAX,
        ),
    ),
    Endpoint(
        "GET",
        ONE + "/properties",
        get_properties,
        ADMINISTRATE,
        "All properties of a namespace.",
        Answer("The properties.", STRING_MAP),
        namespace_name_of,
    ),
    Endpoint(
        "PUT",
        ONE + "/properties",
        set_properties,
        ADMINISTRATE,
        "Sets properties of a namespace; other properties are retained.",
        resource=namespace_name_of,
        content=Content(
            "The properties.",
            {"application/json": STRING_MAP},
            required=True,
            bytes_max=POLICIES_BYTES_MAX,
        ),
    ),
    Endpoint(
        "DELETE",
        ONE + "/properties",
        delete_properties,
        ADMINISTRATE,
        "Deletes all properties of a namespace.",
        resource=namespace_name_of,
    ),
    Endpoint(
        "GET",
        PROPERTY_PATH,
        get_property,
        ADMINISTRATE,
        "One property of a namespace.",
        Answer("The value as plain text; empty if the property is missing."),
        namespace_name_of,
    ),
    Endpoint(
        "DELETE",
        PROPERTY_PATH,
        delete_property,
        ADMINISTRATE,
        "Deletes one property of a namespace.",
        Answer("The previous value as plain text; empty if the property was missing."),
        namespace_name_of,
    ),
    Endpoint(
        "PUT",
        PROPERTY_PATH + "/{value}",
        set_property,
        ADMINISTRATE,
        "Sets one property of a namespace.",
        resource=namespace_name_of,
    ),
    Endpoint(
        "GET",
        ONE + "/replication",
        get_replication,
        READ_REPLICATION,
        "The replication clusters of a namespace.",
        Answer("The names.", STRINGS),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        ONE + "/replication",
        set_replication,
        WRITE_REPLICATION,
        "Sets the replication clusters of a namespace: so far only the local one.",
        Answer("Done; no body.", status=200),
        namespace_name_of,
        (
            Query(
                "compareTopicPartitions", "Accepted and ignored: there is no other cluster.", False
            ),
        ),
        CLUSTER_NAMES,
    ),
    Endpoint(
        "GET",
        ONE + "/allowedClusters",
        get_allowed_clusters,
        READ_ALLOW_CLUSTERS,
        "The clusters that a namespace may be in; an empty list allows all.",
        Answer("The names.", STRINGS),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        ONE + "/allowedClusters",
        set_allowed_clusters,
        WRITE_ALLOW_CLUSTERS,
        "Sets the clusters that a namespace may be in: so far only the local one.",
        Answer("Done; no body.", status=200),
        namespace_name_of,
        (),
        CLUSTER_NAMES,
    ),
)
