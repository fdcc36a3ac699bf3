"""Commands about bookies."""

from __future__ import annotations

from pyxbroker.cli.admin.rows import delete, get, option, post

PATH = "/admin/v2/bookies"
BOOKIE = option("-b --bookie", "A bookie: address:port.", "{bookie}", required=True)

COMMANDS = {
    "list-bookies": get("List the bookies.", f"{PATH}/all"),
    "racks-placement": get("Print the racks of all bookies.", f"{PATH}/racks-info"),
    "get-bookie-rack": get("Print the rack of a bookie.", f"{PATH}/racks-info/{{bookie}}", BOOKIE),
    "set-bookie-rack": post(
        "Set the rack of a bookie.",
        f"{PATH}/racks-info/{{bookie}}",
        BOOKIE,
        option("-r --rack", "The rack: /region/rack.", "rack", required=True),
        option("-hn --hostname", "The name of its host.", "hostname"),
        option("-g --group", "Its group.", "?group", default="default"),
    ),
    "delete-bookie-rack": delete(
        "Remove the rack of a bookie.", f"{PATH}/racks-info/{{bookie}}", BOOKIE
    ),
}
