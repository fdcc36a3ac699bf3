"""/admin/v2/resourcegroups: rate limits shared by namespaces, as in Pulsar's ResourceGroups.

Groups and their namespaces are stored and returned; this broker does not apply the rates.
"""

from __future__ import annotations

from pyxbroker.admin.policy_bodies import Body, Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRINGS, node_name_of, read_json
from pyxbroker.auth.authorization import READ_RESOURCE_GROUPS, WRITE_RESOURCE_GROUPS
from pyxbroker.policies.shapes import LONG_MAX
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.response import Response

PATH = "/admin/v2/resourcegroups"
ONE = PATH + "/{resourcegroup}"
BODY_BYTES_MAX = 4 << 10

# The fields of Pulsar's ResourceGroup; -1 means no limit.
RATES = Body(
    fields={
        "publishRateInMsgs": Field("integer"),
        "publishRateInBytes": Field("integer", maximum=LONG_MAX),
        "dispatchRateInMsgs": Field("integer"),
        "dispatchRateInBytes": Field("integer", maximum=LONG_MAX),
    }
)
NEW = dict.fromkeys(RATES.fields, -1)


async def get_resource_groups(request: Request) -> Response:
    """Return the names of all resource groups."""
    return Response.json(await request.app.broker.resource_groups.names())


async def get_resource_group(request: Request) -> Response:
    """Return Pulsar's ResourceGroup."""
    name = request.parameters["resourcegroup"]
    return Response.json(await request.app.broker.resource_groups.record(name))


async def put_resource_group(request: Request) -> Response:
    """Create a resource group, or change the rates in the body."""
    fields = await _rates(request)
    name = node_name_of(request, "resourcegroup", "resource group")
    await request.app.broker.resource_groups.put(name, fields, NEW)
    return Response.empty()


async def delete_resource_group(request: Request) -> Response:
    """Delete a resource group without namespaces."""
    await request.app.broker.resource_groups.delete(request.parameters["resourcegroup"])
    return Response.empty()


async def _rates(request: Request) -> dict[str, int]:
    found: dict[str, int] = RATES.read(await read_json(request))
    return found


GROUP = RATES.schema

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_resource_groups,
        READ_RESOURCE_GROUPS,
        "The names of all resource groups.",
        Answer("The names.", STRINGS),
    ),
    Endpoint(
        "GET",
        ONE,
        get_resource_group,
        READ_RESOURCE_GROUPS,
        "The rates of a resource group.",
        Answer("Pulsar's ResourceGroup; -1 means no limit.", GROUP),
    ),
    Endpoint(
        "PUT",
        ONE,
        put_resource_group,
        WRITE_RESOURCE_GROUPS,
        "Creates a resource group, or changes the rates in the body. The rates are stored for "
        "other brokers; this one does not apply them.",
        content=Content(
            "Pulsar's ResourceGroup.",
            {"application/json": GROUP},
            required=True,
            bytes_max=BODY_BYTES_MAX,
        ),
    ),
    Endpoint(
        "DELETE",
        ONE,
        delete_resource_group,
        WRITE_RESOURCE_GROUPS,
        "Deletes a resource group without namespaces.",
    ),
)
