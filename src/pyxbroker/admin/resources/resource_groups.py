"""/admin/v2/resourcegroups: what namespaces may have in common, as in Pulsar's ResourceGroups.

Groups and who is in them are kept and told; their rates are not looked at by this broker.
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

# The fields of Pulsar's ResourceGroup; -1 limits nothing.
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
    """The names of all resource groups."""
    return Response.json(await request.app.broker.resource_groups.names())


async def get_resource_group(request: Request) -> Response:
    """Pulsar's ResourceGroup."""
    name = request.parameters["resourcegroup"]
    return Response.json(await request.app.broker.resource_groups.record(name))


async def put_resource_group(request: Request) -> Response:
    """Makes a resource group, or changes the rates that the body has."""
    fields = await _rates(request)
    name = node_name_of(request, "resourcegroup", "resource group")
    await request.app.broker.resource_groups.put(name, fields, NEW)
    return Response.empty()


async def delete_resource_group(request: Request) -> Response:
    """Deletes a resource group that no namespace is in."""
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
        Answer("Pulsar's ResourceGroup; -1 is no limit.", GROUP),
    ),
    Endpoint(
        "PUT",
        ONE,
        put_resource_group,
        WRITE_RESOURCE_GROUPS,
        "Makes a resource group, or changes the rates that the body has. They are kept for other"
        " brokers: this one does not limit namespaces together.",
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
        "Deletes a resource group that no namespace is in.",
    ),
)
