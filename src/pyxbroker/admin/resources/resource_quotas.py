"""/admin/v2/resource-quotas: the expected load of bundles, as in Pulsar's ResourceQuotas.

A quota is the load of a bundle that has not been measured yet (cluster/load_manager.py). Quotas are
deleted with their namespace.
"""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.policy_bodies import Body, Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.bundles import bundle_of
from pyxbroker.admin.resources.names import namespace_name_of, namespace_of, read_json
from pyxbroker.auth.authorization import (
    READ_QUOTA,
    READ_QUOTAS,
    WRITE_QUOTA,
    WRITE_QUOTAS,
)
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import NotFound
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = "/admin/v2/resource-quotas"
ONE = PATH + "/{tenant}/{namespace}/{bundle}"
USUAL: dict[str, float | bool] = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}
"""Pulsar's default for bundles without a quota of their own."""


async def get_usual(request: Request) -> Response:
    """Return the default quota."""
    return Response.json(await _usual(request))


async def set_usual(request: Request) -> Response:
    """Set the default quota."""
    await _set(request, paths.RESOURCE_QUOTAS + "/default")
    return Response.empty()


async def get(request: Request) -> Response:
    """Return the quota of a bundle."""
    found = await request.app.broker.stored_records.read(await _path(request))
    return Response.json(found or await _usual(request))


async def set_quota(request: Request) -> Response:
    """Set the quota of a bundle."""
    await _set(request, await _path(request))
    return Response.empty()


async def delete(request: Request) -> Response:
    """Delete the quota of a bundle, so that the default applies."""
    path = await _path(request)
    try:
        await request.app.broker.metadata.delete(path)
    except NotFound:
        raise HttpError(404, f"path {path} not found.") from None
    return Response.empty()


async def _usual(request: Request) -> dict[str, Any]:
    path = paths.RESOURCE_QUOTAS + "/default"
    return await request.app.broker.stored_records.read(path) or dict(USUAL)


async def _path(request: Request) -> str:
    bundle = await bundle_of(request)
    return f"{paths.resource_quotas(namespace_of(request))}/{bundle}"


async def _set(request: Request, path: str) -> None:
    quota: dict[str, float | bool] = QUOTA.read(await read_json(request))
    for name, value in quota.items():
        if abs(value) > MAX:
            raise HttpError(400, f"{name} must be a number of at most {MAX:g}.")
    await request.app.broker.stored_records.change(path, lambda before: quota)


MAX = 1e18
QUOTA = Body(
    fields={
        name: Field("boolean", True) if isinstance(value, bool) else Field("number", 0.0)
        for name, value in USUAL.items()
    }
)
BODY = Content(
    "Pulsar's ResourceQuota.", {"application/json": QUOTA.schema}, required=True, bytes_max=16 << 10
)

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_usual,
        READ_QUOTAS,
        "The default quota of bundles.",
        Answer("Pulsar's ResourceQuota.", QUOTA.schema),
    ),
    Endpoint(
        "POST",
        PATH,
        set_usual,
        WRITE_QUOTAS,
        "Sets the default quota of bundles.",
        content=BODY,
    ),
    Endpoint(
        "GET",
        ONE,
        get,
        READ_QUOTA,
        "The quota of a bundle.",
        Answer("Pulsar's ResourceQuota.", QUOTA.schema),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        ONE,
        set_quota,
        WRITE_QUOTA,
        "Sets the quota of a bundle.",
        resource=namespace_name_of,
        content=BODY,
    ),
    Endpoint(
        "DELETE",
        ONE,
        delete,
        WRITE_QUOTA,
        "Deletes the quota of a bundle, so that the default applies.",
        resource=namespace_name_of,
    ),
)
