"""/admin/v2/brokers/backup: moments of which `pyxbroker backup create` copies the data."""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import this_broker
from pyxbroker.auth.authorization import BACKUP
from pyxbroker.broker.backup import BackupRefused, BackupSource
from pyxbroker.web.endpoint import Answer, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response


async def begin(request: Request) -> Response:
    """Choose a moment, and delay deletions of data until the backup ends."""
    try:
        return Response.json(await _source(request).begin())
    except BackupRefused as error:
        raise _refusal(error) from None


async def renew(request: Request) -> Response:
    """Keep the data of a moment for another minute."""
    try:
        _source(request).renew(request.parameters["moment"])
    except BackupRefused as error:
        raise _refusal(error) from None
    return Response.empty()


async def end(request: Request) -> Response:
    """End the backup of a moment."""
    try:
        _source(request).end(request.parameters["moment"])
    except BackupRefused as error:
        raise _refusal(error) from None
    return Response.empty()


def _source(request: Request) -> BackupSource:
    source = request.app.broker.backup
    if source is None:
        raise HttpError(
            412,
            "This broker is one of a cluster and has no data of its own: its messages are on"
            " bookies and its metadata in a store, which have backups of their own.",
        )
    return source()


def _refusal(error: BackupRefused) -> HttpError:
    return HttpError(error.status, str(error))


_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer"}

ENDPOINTS = (
    Endpoint(
        "POST",
        "/admin/v2/brokers/backup/moments",
        begin,
        BACKUP,
        "Flushes all messages and chooses the moment of a backup; deletions wait until it ends.",
        Answer(
            "The moment, and the files that contain its data.",
            {
                "type": "object",
                "properties": {
                    **dict.fromkeys(("id", "cluster", "instanceId", "bookieId"), _TEXT),
                    **dict.fromkeys(("ledgers", "copies"), _TEXT),
                    **dict.fromkeys(("holdSeconds", "timeMs", "transaction", "logEnd"), _NUMBER),
                },
            },
        ),
        resource=this_broker,
    ),
    Endpoint(
        "PUT",
        "/admin/v2/brokers/backup/moments/{moment}",
        renew,
        BACKUP,
        "Keeps the data of a moment for another minute.",
        resource=this_broker,
    ),
    Endpoint(
        "DELETE",
        "/admin/v2/brokers/backup/moments/{moment}",
        end,
        BACKUP,
        "Ends a backup; 404 if the broker has abandoned it.",
        resource=this_broker,
    ),
)
