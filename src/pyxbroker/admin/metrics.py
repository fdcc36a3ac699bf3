"""/metrics: what Prometheus reads."""

from __future__ import annotations

import asyncio

from aiohttp import web

from pyxbroker.admin.keys import COLLECTOR, SERVICE


async def get_metrics(request: web.Request) -> web.Response:
    """All series of this broker in Prometheus' text format.

    The counters are copied here, on the loop; the text, which is long when there are many topics,
    is made in a thread, so that no message waits for it.
    """
    sample = request.app[COLLECTOR].sample(request.app[SERVICE])
    loop = asyncio.get_running_loop()
    content_type, body = await loop.run_in_executor(None, sample.exposition)
    return web.Response(body=body, headers={"Content-Type": content_type})


ROUTES = (("/metrics", get_metrics),)
