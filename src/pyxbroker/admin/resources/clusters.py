"""/admin/v2/clusters: the clusters of this instance."""

from __future__ import annotations

from pyxbroker.admin.endpoints import Answer, Endpoint
from pyxbroker.admin.errors import HttpError
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRINGS
from pyxbroker.admin.response import Response
from pyxbroker.auth.authorization import AUTHENTICATED, GET_CLUSTER
from pyxbroker.metadata import paths
from pyxbroker.policies.records import fields_of

# Where an instance keeps what belongs to all clusters; Pulsar does not list it either.
GLOBAL = "global"


async def get_clusters(request: Request) -> Response:
    """The names of all clusters."""
    names = await request.app.broker.metadata.children(paths.CLUSTERS)
    return Response.json([name for name in names if name != GLOBAL])


async def get_cluster(request: Request) -> Response:
    """Pulsar's ClusterData."""
    name = request.parameters["cluster"]
    path = paths.cluster(name)
    metadata = request.app.broker.metadata
    # A name may have slashes or dots, which lead elsewhere in a path.
    is_known = name in await metadata.children(paths.CLUSTERS)
    found = await metadata.get(path) if is_known else None
    if found is None:
        raise HttpError(404, "Cluster does not exist")
    return Response.json(fields_of(path, found.value))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/admin/v2/clusters",
        get_clusters,
        AUTHENTICATED,
        "The names of all clusters of this instance.",
        Answer("The names.", STRINGS),
    ),
    Endpoint(
        "GET",
        "/admin/v2/clusters/{cluster}",
        get_cluster,
        GET_CLUSTER,
        "Where the brokers of a cluster are.",
        Answer("Pulsar's ClusterData.", {"type": "object"}),
    ),
)
