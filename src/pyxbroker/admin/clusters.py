"""/admin/v2/clusters: the clusters of this instance."""

from __future__ import annotations

from aiohttp import web

from pyxbroker.admin.keys import SERVICE
from pyxbroker.metadata import paths

# Where an instance keeps what belongs to all clusters; Pulsar does not list it either.
GLOBAL = "global"


async def get_clusters(request: web.Request) -> web.Response:
    """The names of all clusters."""
    names = await request.app[SERVICE].metadata.children(paths.CLUSTERS)
    return web.json_response([name for name in names if name != GLOBAL])


ROUTES = (("/admin/v2/clusters", get_clusters),)
