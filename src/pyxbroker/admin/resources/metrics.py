"""/metrics: what Prometheus reads."""

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

GZIP_BITS = 31  # zlib: a window of 32 KiB, in gzip's wrapping
# However much a broker has to tell, there is room for so many answers that are read slowly.
SAMPLES_MIN = 4
GZIP_LEVEL = 1  # the text repeats itself so much that higher ones make it hardly smaller


async def get_metrics(request: Request) -> Response:
    """All series of this broker in Prometheus' text format.

    The numbers are read before the answer begins, the text is made while the client takes it; both
    on the loop, in slices. It is compressed in a thread, if the client asks for that.
    """
    app = request.app
    collector = await app.collector.get()
    sample = await collector.sample(app.metrics_source)
    pieces = sample.pieces()
    headers = [("Vary", "Accept-Encoding")]
    if _takes_gzip(request.headers.get("accept-encoding", "")):
        headers.append(("Content-Encoding", "gzip"))
        pieces = packed(pieces)
    held_bytes = min(sample.held_bytes, app.broker.client_memory.answers_max // SAMPLES_MIN)
    return Response(pieces, CONTENT_TYPE, headers=headers, held_bytes=held_bytes)


async def packed(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The pieces in gzip's format, packed by a thread."""
    loop = asyncio.get_running_loop()
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_BITS)
    async with aclosing(pieces):
        async for piece in pieces:
            yield await loop.run_in_executor(None, packer.compress, piece)
    yield await loop.run_in_executor(None, packer.flush)


def _takes_gzip(accepted: str) -> bool:
    """Whether Accept-Encoding has gzip in it (RFC 9110, 12.5.3); q=0 says no."""
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
        "All series of this broker, as Prometheus reads them.",
        Answer("Prometheus' text format.", media_type=TEXT),
        line="metrics",
    ),
)
