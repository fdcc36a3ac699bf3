"""/admin/v2/{domain}/.../partitions: how many partitions a topic has, which HTTP clients ask."""

from __future__ import annotations

from aiohttp import web

from pyxbroker.admin.errors import refusal
from pyxbroker.admin.keys import SERVICE
from pyxbroker.admin.lookup import DOMAINS


async def partitions(request: web.Request) -> web.Response:
    """Pulsar's PartitionedTopicMetadata; 0 partitions for a topic that is not partitioned."""
    parts = request.match_info
    if parts["domain"] not in DOMAINS:
        return refusal(404, f"There is no resource {parts['domain']!r}.")
    name = f"{parts['domain']}://{parts['tenant']}/{parts['namespace']}/{parts['topic']}"
    count = await request.app[SERVICE].partitions(name)
    return web.json_response({"partitions": count, "deleted": False})


ROUTES = (("/admin/v2/{domain}/{tenant}/{namespace}/{topic}/partitions", partitions),)
