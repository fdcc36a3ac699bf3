"""/admin/v2/namespaces/.../antiAffinity and .../persistence/bookieAffinity: placement preferences.

An anti-affinity group has namespaces that should be on different brokers; bookie affinity names the
bookies for a namespace's ledgers. Both are in Pulsar's LocalPolicies, the record of a namespace
that is specific to one cluster. The placement of bundles follows the groups
(cluster/placement.py), that of ledgers the bookie affinity (ledger/rack_placement.py).
"""

from __future__ import annotations

from pyxbroker.admin.policy_bodies import Body, Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.clusters import check_cluster
from pyxbroker.admin.resources.names import (
    NAMESPACE_NOT_FOUND,
    STRINGS,
    check_length,
    namespace_name_of,
    namespace_of,
    read_body,
    read_json,
)
from pyxbroker.admin.resources.namespaces import ONE, record_of
from pyxbroker.auth.authorization import (
    LIST_ANTI_AFFINITY,
    READ_ANTI_AFFINITY,
    READ_BOOKIE_AFFINITY,
    WRITE_ANTI_AFFINITY,
    WRITE_BOOKIE_AFFINITY,
)
from pyxbroker.base.errors import InvalidTopicName, NamespaceNotFound
from pyxbroker.base.slices import in_slices
from pyxbroker.base.topic_name import TenantName
from pyxbroker.cluster.rules import GROUP
from pyxbroker.policies.records import Fields
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

PATH = ONE + "/antiAffinity"
LIST = "/admin/v2/namespaces/{cluster}/antiAffinity/{group}"
BOOKIES_PATH = ONE + "/persistence/bookieAffinity"
# A field of a namespace's local record.
BOOKIES = "bookieAffinityGroup"
BOOKIE_GROUPS = Body(
    fields={
        "bookkeeperAffinityGroupPrimary": Field("string"),
        "bookkeeperAffinityGroupSecondary": Field("string"),
    }
)
EMPTY = "Anti-affinity group can't be empty"
GROUP_BYTES_MAX = 1_024
BODY_BYTES_MAX = 16 << 10


# --- anti-affinity ----------------------------------------------------------------------------


async def get_group(request: Request) -> Response:
    """Return the name of the group as it was sent, as plain text; empty without a group."""
    return Response.text(str((await _local(request)).get(GROUP) or ""), JSON)


async def set_group(request: Request) -> Response:
    """Add a namespace to an anti-affinity group.

    As in Pulsar, the body is the plain name. Clients that send quotes get them back.
    """
    try:
        group = (await read_body(request)).decode()
    except UnicodeDecodeError as error:
        raise HttpError(400, f"The name of the group is not UTF-8: {error.reason}.") from None
    if not group.strip():
        raise HttpError(412, EMPTY)
    check_length("name of the group", group, GROUP_BYTES_MAX)
    await _set(request, GROUP, group)
    return Response.empty()


async def remove_group(request: Request) -> Response:
    """Remove a namespace from its anti-affinity group."""
    await _set(request, GROUP, None)
    return Response.empty()


async def get_members(request: Request) -> Response:
    """Return the namespaces of a tenant in an anti-affinity group."""
    broker = request.app.broker
    tenant = str(_tenant_of_query(request))
    group = request.parameters["group"]
    if not group.strip():
        raise HttpError(412, EMPTY)
    await check_cluster(request)
    found = []
    async for name in in_slices(await broker.namespaces.names(tenant)):
        if (await broker.namespaces.local_record(name)).get(GROUP) == group:
            found.append(name)
    return Response.json(found)


def _tenant_of_query(request: Request) -> TenantName:
    """Return the tenant of the query. Raises HttpError."""
    tenant = request.argument("tenant")
    if tenant is None:
        raise HttpError(400, "Tenant should not be null")
    try:
        name = TenantName(tenant)
        name.check_length()
    except InvalidTopicName:
        raise HttpError(412, "Tenant name is not valid") from None
    return name


# --- bookies ----------------------------------------------------------------------------------


async def get_bookies(request: Request) -> Response:
    """Return Pulsar's BookieAffinityGroupData, or nothing if it is not set."""
    found = (await _local(request)).get(BOOKIES)
    return Response.empty(200) if found is None else Response.json(found)


async def set_bookies(request: Request) -> Response:
    """Set the bookie groups for a namespace's ledgers."""
    body = await read_json(request)
    value = None
    if body is not None:
        value = BOOKIE_GROUPS.read(body)
        for name, text in value.items():
            check_length(name, text, GROUP_BYTES_MAX, 400)
    await _set(request, BOOKIES, value)
    return Response.empty()


async def remove_bookies(request: Request) -> Response:
    """Remove the bookie groups of a namespace."""
    await _set(request, BOOKIES, None)
    return Response.empty()


async def _local(request: Request) -> Fields:
    """Return the local record of the namespace of a path. Raises HttpError 404."""
    await record_of(request, NAMESPACE_NOT_FOUND)
    return await request.app.broker.namespaces.local_record(namespace_of(request))


async def _set(request: Request, field: str, value: object) -> None:
    """Set a field of the local record. Raises HttpError 404."""

    def change(fields: Fields) -> None:
        if value is None:
            fields.pop(field, None)
        else:
            fields[field] = value

    try:
        await request.app.broker.namespaces.change_local(namespace_of(request), change)
    except NamespaceNotFound:
        raise HttpError(404, NAMESPACE_NOT_FOUND) from None


DATA = BOOKIE_GROUPS.schema

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_group,
        READ_ANTI_AFFINITY,
        "The anti-affinity group of a namespace.",
        Answer("The name as plain text, as it was sent; empty without a group."),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        PATH,
        set_group,
        WRITE_ANTI_AFFINITY,
        "Adds a namespace to an anti-affinity group.",
        resource=namespace_name_of,
        content=Content(
            "The name as plain text.",
            {"application/json": {"type": "string"}},
            bytes_max=BODY_BYTES_MAX,
        ),
    ),
    Endpoint(
        "DELETE",
        PATH,
        remove_group,
        WRITE_ANTI_AFFINITY,
        "Removes a namespace from its anti-affinity group.",
        resource=namespace_name_of,
    ),
    Endpoint(
        "GET",
        LIST,
        get_members,
        LIST_ANTI_AFFINITY,
        "The namespaces of a tenant in an anti-affinity group.",
        Answer("Their names.", STRINGS),
        _tenant_of_query,
        query=(Query("tenant", "The tenant; required."),),
    ),
    Endpoint(
        "GET",
        BOOKIES_PATH,
        get_bookies,
        READ_BOOKIE_AFFINITY,
        "The bookie groups for a namespace's ledgers.",
        Answer("Pulsar's BookieAffinityGroupData, or nothing.", DATA),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        BOOKIES_PATH,
        set_bookies,
        WRITE_BOOKIE_AFFINITY,
        "Sets the bookie groups for a namespace's ledgers.",
        resource=namespace_name_of,
        content=Content(
            "Pulsar's BookieAffinityGroupData.",
            {"application/json": DATA},
            bytes_max=BODY_BYTES_MAX,
        ),
    ),
    Endpoint(
        "DELETE",
        BOOKIES_PATH,
        remove_bookies,
        WRITE_BOOKIE_AFFINITY,
        "Removes the bookie groups of a namespace.",
        resource=namespace_name_of,
    ),
)
