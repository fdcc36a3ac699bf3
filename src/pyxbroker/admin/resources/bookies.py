"""/admin/v2/bookies: the bookies and their racks, as in Pulsar's Bookies.

The placement of ledgers on a BookKeeper cluster follows the racks (ledger/rack_placement.py).
"""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.policy_bodies import Body, Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import check_length, node_name_of, read_json
from pyxbroker.auth.authorization import READ_BOOKIES, WRITE_BOOKIES
from pyxbroker.metadata import paths
from pyxbroker.settings.config import Config
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = "/admin/v2/bookies"
RACKS = PATH + "/racks-info"
ONE = RACKS + "/{bookie}"
TEXT_BYTES_MAX = 256
BOOKIES_MAX = 1_000
NOT_FOUND = "Bookie rack placement configuration not found: {}"
INVALID_RACK = (
    "Bookie 'rack' parameter is invalid, When `RackawareEnsemblePlacementPolicy` is enabled, the"
    " rack name is not allowed to contain slash (`/`) except for the beginning and end of the rack"
    " name string. When `RegionawareEnsemblePlacementPolicy` is enabled, the rack name can only"
    " contain one slash (`/`) except for the beginning and end of the rack name string."
)
INFO = Body(fields={"rack": Field("string"), "hostname": Field("string")})

Groups = dict[str, Any]  # of bookies, each with its BookieInfo


async def get_all(request: Request) -> Response:
    """Return the registered bookies."""
    names = await request.app.broker.metadata.children(paths.COOKIES)
    return Response.json({"bookies": [{"bookieId": name} for name in sorted(names)]})


async def get_racks(request: Request) -> Response:
    """Return all racks, by group."""
    return Response.json(await _groups(request))


async def get_rack(request: Request) -> Response:
    """Return Pulsar's BookieInfo."""
    bookie = request.parameters["bookie"]
    for bookies in (await _groups(request)).values():
        if bookie in bookies:
            return Response.json(bookies[bookie])
    raise HttpError(404, NOT_FOUND.format(bookie))


async def set_rack(request: Request) -> Response:
    """Set the rack of a bookie, which is in one group."""
    bookie = node_name_of(request, "bookie", "bookie")
    group = request.argument("group")
    if not group:
        raise HttpError(412, "Bookie 'group' parameters is missing")
    body = await read_json(request)
    info = INFO.read(body)
    for text in (group, *info.values()):
        check_length("text", text, TEXT_BYTES_MAX, 400)

    _check_rack(info.get("rack") or "", request.app.broker.config)

    def put(groups: Groups) -> Groups:
        others = _without_bookie(groups, bookie)
        if sum(map(len, others.values())) >= BOOKIES_MAX:
            raise HttpError(412, f"At most {BOOKIES_MAX} bookies can have racks.")
        return others | {group: {**others.get(group, {}), bookie: info}}

    await request.app.broker.stored_records.change(paths.BOOKIE_RACKS, put)
    return Response.empty()


def _check_rack(rack: str, config: Config) -> None:
    """Raise HttpError for a rack that the placement policy cannot use, as Pulsar does."""
    slashes = rack.strip("/").count("/")
    expected = int(config.bookkeeperClientRegionawarePolicyEnabled)
    if config.bookkeeperClientRackawarePolicyEnabled and slashes != expected:
        raise HttpError(412, INVALID_RACK)


async def delete_rack(request: Request) -> Response:
    """Delete the rack of a bookie."""
    bookie = request.parameters["bookie"]

    def drop(groups: Groups) -> Groups:
        if not any(bookie in bookies for bookies in groups.values()):
            raise HttpError(404, NOT_FOUND.format(bookie))
        return _without_bookie(groups, bookie)

    await request.app.broker.stored_records.change(paths.BOOKIE_RACKS, drop)
    return Response.empty()


async def _groups(request: Request) -> Groups:
    found = await request.app.broker.stored_records.read(paths.BOOKIE_RACKS)
    return _without_bookie(found or {}, "")


def _without_bookie(groups: Groups, bookie: str) -> Groups:
    """Return the groups without a bookie and without groups that become empty."""
    left = {
        group: {name: info for name, info in bookies.items() if name != bookie}
        for group, bookies in groups.items()
        if isinstance(bookies, dict)
    }
    return {group: bookies for group, bookies in left.items() if bookies}


ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH + "/all",
        get_all,
        READ_BOOKIES,
        "The registered bookies.",
        Answer("Pulsar's BookiesClusterInfo.", ANY),
    ),
    Endpoint(
        "GET",
        RACKS,
        get_racks,
        READ_BOOKIES,
        "The racks of bookies.",
        Answer("Pulsar's BookieInfo of each, by group.", ANY),
    ),
    Endpoint(
        "GET",
        ONE,
        get_rack,
        READ_BOOKIES,
        "The rack of a bookie.",
        Answer("Pulsar's BookieInfo.", INFO.schema),
    ),
    Endpoint(
        "POST",
        ONE,
        set_rack,
        WRITE_BOOKIES,
        "Sets the rack of a bookie.",
        query=(Query("group", "The group of the bookie; required."),),
        content=Content(
            "Pulsar's BookieInfo.",
            {"application/json": INFO.schema},
            required=True,
            bytes_max=16 << 10,
        ),
    ),
    Endpoint("DELETE", ONE, delete_rack, WRITE_BOOKIES, "Deletes the rack of a bookie."),
)
