"""/status.html: the check of load balancers, as Pulsar's VipStatus."""

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
    """Return OK while the broker serves clients and its status file exists.

    An operator removes the file to stop load balancers from sending clients. Pulsar checks the file
    every half minute.
    """
    broker = request.app.broker
    path = broker.config.statusFilePath.strip()
    loop = asyncio.get_running_loop()
    # In a thread: the file's disk may be slow.
    if not path or not await loop.run_in_executor(None, Path(path).is_file):
        raise HttpError(404, "The status file (statusFilePath) does not exist.")
    if not broker.is_ready:
        raise HttpError(404, "The broker is not ready.")
    return Response.text("OK")


ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_status,
        OPEN,
        "Returns OK if a load balancer may send clients to this broker, otherwise 404.",
        Answer("The word OK.", media_type=TEXT),
    ),
)
