"""/metrics: what Prometheus reads."""

from __future__ import annotations

import asyncio

from pyxbroker.admin.endpoints import Answer, Endpoint
from pyxbroker.admin.request import Request
from pyxbroker.admin.response import TEXT, Response
from pyxbroker.auth.authorization import OPEN


async def get_metrics(request: Request) -> Response:
    """All series of this broker in Prometheus' text format.

    The counters are copied here, on the loop; the text, which is long when there are many topics,
    is made in a thread, so that no message waits for it.
    """
    sample = request.app.collector.sample(request.app.metrics_source)
    loop = asyncio.get_running_loop()
    content_type, body = await loop.run_in_executor(None, sample.exposition)
    return Response(body, content_type)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/metrics",
        get_metrics,
        OPEN,
        "All series of this broker, as Prometheus reads them.",
        Answer("Prometheus' text format.", media_type=TEXT),
    ),
)
