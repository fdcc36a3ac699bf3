"""/metrics: series in Prometheus' format."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import OPEN
from pyxbroker.stats.exposition import CONTENT_TYPE
from pyxbroker.web.endpoint import Answer, Endpoint
from pyxbroker.web.response import TEXT, Response

GZIP_BITS = 31  # zlib: a window of 32 KiB, with gzip's header
# At least this many answers that are read slowly fit into the memory for answers.
SAMPLES_MIN = 4
GZIP_LEVEL = 1  # the text is so repetitive that higher levels hardly reduce its size


async def get_metrics(request: Request) -> Response:
    """Return all series of this broker in Prometheus' text format.

    The values are read before the answer begins, and the text is produced as the client reads it,
    both in slices of the loop's time. A thread compresses it if the client accepts that.
    """
    app = request.app
    collector = await app.collector.get()
    sample = await collector.sample(app.metrics_source)
    pieces = sample.pieces()
    headers = [("Vary", "Accept-Encoding")]
    if _takes_gzip(request.headers.get("accept-encoding", "")):
        headers.append(("Content-Encoding", "gzip"))
        pieces = compressed(pieces)
    held_bytes = min(sample.held_bytes, app.broker.client_memory.answers_max // SAMPLES_MIN)
    return Response(pieces, CONTENT_TYPE, headers=headers, held_bytes=held_bytes)


async def compressed(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Compress the pieces with gzip in a thread."""
    loop = asyncio.get_running_loop()
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_BITS)
    async with aclosing(pieces):
        async for piece in pieces:
            yield await loop.run_in_executor(None, packer.compress, piece)
    yield await loop.run_in_executor(None, packer.flush)


def _takes_gzip(accepted: str) -> bool:
    """Return True if Accept-Encoding includes gzip (RFC 9110, 12.5.3); q=0 excludes it."""
    weights: dict[str, bool] = {}
    for each in accepted.lower().split(","):
        coding, _, weight = each.partition(";")
        _, _, q = weight.replace(" ", "").partition("q=")
        weights[coding.strip()] = not q or q.strip("0.") != ""
    return weights.get("gzip", weights.get("*", False))


ENDPOINTS = (
    Endpoint(
        "GET",
        "/metrics",
        get_metrics,
        OPEN,
        "All series of this broker in Prometheus' format.",
        Answer("Prometheus' text format.", media_type=TEXT),
        queue="metrics",
    ),
)
