"""/status.html: what a load balancer asks, as Pulsar's VipStatus."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import OPEN
from pyxbroker.web.endpoint import Answer, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import TEXT, Response

PATH = "/status.html"


async def get_status(request: Request) -> Response:
    """OK while the broker serves clients and its status file is there: who takes the file away
    lets a load balancer send nobody any more.

    Pulsar looks for the file every half minute.
    """
    broker = request.app.broker
    path = broker.config.statusFilePath.strip()
    loop = asyncio.get_running_loop()
    # The file may be on a disk that takes its time.
    if not path or not await loop.run_in_executor(None, Path(path).is_file):
        raise HttpError(404, "There is no status file (statusFilePath).")
    if not broker.is_ready:
        raise HttpError(404, "The broker is not ready.")
    return Response.text("OK")


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_status,
        OPEN,
        "Whether a load balancer may send clients here: 404 says no.",
        Answer("The word OK.", media_type=TEXT),
    ),
)
