"""/admin/v2/namespaces/.../resourcegroup: the resource group of a namespace."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import namespace_name_of, namespace_of
from pyxbroker.admin.resources.namespaces import ONE, record_of
from pyxbroker.auth.authorization import READ_RESOURCE_GROUP, WRITE_RESOURCE_GROUP
from pyxbroker.base.errors import NamespaceNotFound, ResourceGroupNotFound
from pyxbroker.broker.resource_groups import GROUP
from pyxbroker.web.endpoint import Answer, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

PATH = ONE + "/resourcegroup"
NO_POLICIES = "Namespace policies does not exist"


async def get_resource_group(request: Request) -> Response:
    """Return the name of the group as plain text, empty without a group."""
    return Response.text((await record_of(request)).get(GROUP) or "", JSON)


async def set_resource_group(request: Request) -> Response:
    """Add a namespace to a resource group."""
    await _set(request, request.parameters["resourcegroup"])
    return Response.empty()


async def remove_resource_group(request: Request) -> Response:
    """Remove a namespace from its resource group."""
    await _set(request, None)
    return Response.empty()


async def _set(request: Request, group: str | None) -> None:
    try:
        groups = request.app.broker.resource_groups
        await groups.set_of_namespace(namespace_of(request), group)
    except NamespaceNotFound:
        raise HttpError(404, NO_POLICIES) from None
    except ResourceGroupNotFound as error:
        raise HttpError(412, str(error)) from None


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_resource_group,
        READ_RESOURCE_GROUP,
        "The resource group of a namespace.",
        Answer("The name as plain text; empty without a group."),
        namespace_name_of,
    ),
    Endpoint(
        "POST",
        PATH + "/{resourcegroup}",
        set_resource_group,
        WRITE_RESOURCE_GROUP,
        "Adds a namespace to a resource group.",
        resource=namespace_name_of,
    ),
    Endpoint(
        "DELETE",
        PATH,
        remove_resource_group,
        WRITE_RESOURCE_GROUP,
        "Removes a namespace from its resource group.",
        resource=namespace_name_of,
    ),
)
