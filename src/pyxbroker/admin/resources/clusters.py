"""/admin/v2/clusters: the clusters of this instance."""

from __future__ import annotations

from pyxbroker.admin.endpoints import Answer, Endpoint
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRINGS
from pyxbroker.admin.response import Response
from pyxbroker.auth.authorization import AUTHENTICATED
from pyxbroker.metadata import paths

# Where an instance keeps what belongs to all clusters; Pulsar does not list it either.
GLOBAL = "global"


async def get_clusters(request: Request) -> Response:
    """The names of all clusters."""
    names = await request.app.broker.metadata.children(paths.CLUSTERS)
    return Response.json([name for name in names if name != GLOBAL])


ENDPOINTS = (
    Endpoint(
        "GET",
        "/admin/v2/clusters",
        get_clusters,
        AUTHENTICATED,
        "The names of all clusters of this instance.",
        Answer("The names.", STRINGS),
    ),
)
