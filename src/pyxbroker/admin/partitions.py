"""/admin/v2/{domain}/.../partitions: how many partitions a topic has, which HTTP clients ask."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.admin.response import Response


async def get_partitions(request: Request) -> Response:
    """Pulsar's PartitionedTopicMetadata; 0 partitions for a topic that is not partitioned."""
    parts = request.parameters
    name = f"{parts['domain']}://{parts['tenant']}/{parts['namespace']}/{parts['topic']}"
    count = await request.app.service.partitions(name)
    return Response.json({"partitions": count, "deleted": False})


ROUTES = (("GET", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions", get_partitions),)
