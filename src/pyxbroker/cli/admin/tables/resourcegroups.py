"""Commands about resource groups."""

from __future__ import annotations

from pyxbroker.cli.admin.rows import argument, delete, get, option, put

PATH = "/admin/v2/resourcegroups"
GROUP = argument("group", "The resource group.")
RATES = (
    option("-mp --msg-publish-rate", "Messages published per second.", "publishRateInMsgs", int),
    option("-bp --byte-publish-rate", "Bytes published per second.", "publishRateInBytes", int),
    option("-md --msg-dispatch-rate", "Messages dispatched per second.", "dispatchRateInMsgs", int),
    option("-bd --byte-dispatch-rate", "Bytes dispatched per second.", "dispatchRateInBytes", int),
)

COMMANDS = {
    "list": get("List the resource groups.", PATH),
    "get": get("Print the rates of a resource group.", f"{PATH}/{{group}}", GROUP),
    "create": put("Create a resource group.", f"{PATH}/{{group}}", GROUP, *RATES, body={}),
    "update": put(
        "Change the rates of a resource group.", f"{PATH}/{{group}}", GROUP, *RATES, body={}
    ),
    "delete": delete("Delete a resource group.", f"{PATH}/{{group}}", GROUP),
}
