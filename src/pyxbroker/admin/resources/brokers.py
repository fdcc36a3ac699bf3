"""/admin/v2/brokers: is this broker well?"""

from __future__ import annotations

import asyncio

from pyxbroker import __version__
from pyxbroker.admin.endpoints import Answer, Endpoint
from pyxbroker.admin.errors import refusal
from pyxbroker.admin.request import Request
from pyxbroker.admin.response import JSON, Response
from pyxbroker.auth.authorization import AUTHENTICATED, HEALTH_CHECK
from pyxbroker.metadata import paths

HEALTH_TIMEOUT_S = 10.0


async def health(request: Request) -> Response:
    """Whether messages can be published: the storage takes entries and the metadata answers.

    Apache Pulsar publishes and reads a message for this, in a topic of its own that grows with each
    question. Here the journal itself says whether it works, and asking leaves nothing behind.
    """
    broker = request.app.broker
    reason = broker.failure()
    if reason is not None:
        return refusal(503, reason)
    cluster = paths.cluster(broker.config.clusterName)
    found = await asyncio.wait_for(broker.metadata.get(cluster), HEALTH_TIMEOUT_S)
    if found is None:
        return refusal(503, f"The metadata store has no cluster {broker.config.clusterName!r}.")
    return _word("ok")


async def ready(request: Request) -> Response:
    """Whether the broker has started; a broker that has not does not serve this port."""
    return _word("ok")


async def version(request: Request) -> Response:
    """The version of the broker's program."""
    return _word(__version__)


def _word(text: str) -> Response:
    # Pulsar answers these words bare, yet calls them JSON.
    return Response.text(text, JSON)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/admin/v2/brokers/health",
        health,
        HEALTH_CHECK,
        "Whether messages can be published: 503 says why not.",
        Answer("The word ok, bare."),
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/ready",
        ready,
        AUTHENTICATED,
        "Whether the broker has started.",
        Answer("The word ok, bare."),
    ),
    Endpoint(
        "GET",
        "/admin/v2/brokers/version",
        version,
        AUTHENTICATED,
        "The version of the broker's program.",
        Answer("The version, bare."),
    ),
)
