"""/admin/v2/metadata/migration: the metadata does not move to another store while a broker runs,
and is told as that of a Pulsar whose store cannot.
"""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import MIGRATE_METADATA
from pyxbroker.web.endpoint import Answer, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = "/admin/v2/metadata/migration"


NOT_CONFIGURED = (
    "Metadata store is not configured for migration. Please ensure you're using a supported source"
    " metadata store (e.g., ZooKeeper)."
)


async def get_status(request: Request) -> Response:
    """It never began."""
    return Response.json({"phase": "NOT_STARTED"})


async def start(request: Request) -> Response:
    """Refuses to begin."""
    if not request.argument("target"):
        raise HttpError(400, "Target URL is required")
    raise HttpError(400, NOT_CONFIGURED)


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH + "/status",
        get_status,
        MIGRATE_METADATA,
        "How far the metadata has moved to another store.",
        Answer("Pulsar's MigrationState.", {"type": "object"}),
    ),
    Endpoint(
        "POST",
        PATH + "/start",
        start,
        MIGRATE_METADATA,
        "Moves the metadata to another store: refused while a broker runs.",
        query=(Query("target", "The URL of the other store."),),
    ),
)
