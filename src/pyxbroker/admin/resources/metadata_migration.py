"""/admin/v2/metadata/migration: answers like a Pulsar whose metadata store cannot be migrated."""

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
    """Return that no migration has started."""
    return Response.json({"phase": "NOT_STARTED"})


async def start(request: Request) -> Response:
    """Refuse to migrate."""
    if not request.argument("target"):
        raise HttpError(400, "Target URL is required")
    raise HttpError(400, NOT_CONFIGURED)


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH + "/status",
        get_status,
        MIGRATE_METADATA,
        "The state of the metadata's migration to another store.",
        Answer("Pulsar's MigrationState.", {"type": "object"}),
    ),
    Endpoint(
        "POST",
        PATH + "/start",
        start,
        MIGRATE_METADATA,
        "Migrates the metadata to another store: refused while a broker runs.",
        query=(Query("target", "The URL of the other store."),),
    ),
)
