"""/admin/v2/tenants: the owners of namespaces, as in Pulsar's Tenants."""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRINGS, read_json, tenant_of, texts_of
from pyxbroker.auth.authorization import (
    CREATE_TENANT,
    DELETE_TENANT,
    GET_TENANT,
    LIST_TENANTS,
    UPDATE_TENANT,
)
from pyxbroker.metadata import paths
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = "/admin/v2/tenants"
ONE = PATH + "/{tenant}"
BODY_BYTES_MAX = 256 << 10
ROLES_MAX = 1_000
ROLE_BYTES_MAX = 1_024
FIELDS = ("adminRoles", "allowedClusters")


async def get_tenants(request: Request) -> Response:
    """Return the names of all tenants."""
    return Response.json(await request.app.broker.tenants.names())


async def get_tenant(request: Request) -> Response:
    """Return Pulsar's TenantInfo without unset fields."""
    record = await request.app.broker.tenants.record(str(tenant_of(request)))
    return Response.json({name: record[name] for name in FIELDS if record.get(name) is not None})


async def create(request: Request) -> Response:
    """Create a tenant."""
    name = str(tenant_of(request))
    await request.app.broker.tenants.create(name, await _info(request))
    return Response.empty()


async def update(request: Request) -> Response:
    """Replace the administrators and the allowed clusters of a tenant."""
    name = str(tenant_of(request))
    await request.app.broker.tenants.update(name, await _info(request))
    return Response.empty()


async def delete(request: Request) -> Response:
    """Delete a tenant; with force also its namespaces, if the settings allow it."""
    name = str(tenant_of(request))
    force = request.argument("force")
    config = request.app.broker.config
    if force and not config.forceDeleteTenantAllowed:
        raise HttpError(405, "Broker doesn't allow forced deletion of tenants")
    if force and not config.forceDeleteNamespaceAllowed:
        raise HttpError(405, "Broker doesn't allow forced deletion of namespaces")
    await request.app.broker.tenants.delete(name, force)
    return Response.empty()


async def _info(request: Request) -> dict[str, Any]:
    """Return the TenantInfo of a body. Raises HttpError."""
    body = await read_json(request)
    if body is None:
        raise HttpError(412, "TenantInfo is null")
    if not isinstance(body, dict):
        raise HttpError(400, f"A TenantInfo is a JSON object, not {body!r:.100}.")
    clusters = _texts(body, "allowedClusters")
    roles = _texts(body, "adminRoles")
    if clusters is None:
        raise HttpError(412, "Clusters cannot be null")
    if not clusters or not all(each.strip() for each in clusters):
        raise HttpError(412, "Clusters cannot be empty or blank")
    known = await request.app.broker.metadata.children(paths.CLUSTERS)
    if not set(clusters) <= set(known):
        raise HttpError(412, "Clusters do not exist")
    if any(each != each.strip() for each in roles or []):
        raise HttpError(412, "AdminRoles contains whitespace in the beginning or end.")
    return {"adminRoles": roles, "allowedClusters": clusters}


def _texts(body: dict[str, Any], name: str) -> list[str] | None:
    """Return a field that is a set of strings, or None if it is missing."""
    value = body.get(name)
    return None if value is None else texts_of(value, name, ROLES_MAX, ROLE_BYTES_MAX)


TENANT_INFO = {"type": "object", "properties": dict.fromkeys(FIELDS, STRINGS)}
INFO = Content(
    "Pulsar's TenantInfo: its administrators and allowed clusters.",
    {"application/json": TENANT_INFO},
    bytes_max=BODY_BYTES_MAX,
)

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_tenants,
        LIST_TENANTS,
        "The names of all tenants.",
        Answer("The names.", STRINGS),
    ),
    Endpoint(
        "GET",
        ONE,
        get_tenant,
        GET_TENANT,
        "The administrators and the allowed clusters of a tenant.",
        Answer("Pulsar's TenantInfo.", TENANT_INFO),
        tenant_of,
    ),
    Endpoint(
        "PUT",
        ONE,
        create,
        CREATE_TENANT,
        "Creates a tenant.",
        resource=tenant_of,
        content=INFO,
    ),
    Endpoint(
        "POST",
        ONE,
        update,
        UPDATE_TENANT,
        "Replaces the administrators and the allowed clusters of a tenant.",
        resource=tenant_of,
        content=INFO,
    ),
    Endpoint(
        "DELETE",
        ONE,
        delete,
        DELETE_TENANT,
        "Deletes a tenant without namespaces.",
        resource=tenant_of,
        query=(
            Query(
                "force",
                "Deletes its namespaces, too, if forceDeleteTenantAllowed and "
                "forceDeleteNamespaceAllowed are true.",
                False,
            ),
        ),
    ),
)
