"""/admin/v2/brokers: is this broker well?"""

from __future__ import annotations

import asyncio

from aiohttp import web

from pyxbroker import __version__
from pyxbroker.admin.errors import refusal
from pyxbroker.admin.keys import SERVICE
from pyxbroker.metadata import paths

HEALTH_TIMEOUT_S = 10.0


async def health(request: web.Request) -> web.Response:
    """Whether messages can be published: the storage takes entries and the metadata answers.

    Apache Pulsar publishes and reads a message for this, in a topic of its own that grows with each
    question. Here the journal itself says whether it works, and asking leaves nothing behind.
    """
    service = request.app[SERVICE]
    reason = service.failure()
    if reason is not None:
        return refusal(503, reason)
    cluster = paths.cluster(service.config.clusterName)
    found = await asyncio.wait_for(service.metadata.get(cluster), HEALTH_TIMEOUT_S)
    if found is None:
        return refusal(503, f"The metadata store has no cluster {service.config.clusterName!r}.")
    return _word("ok")


async def ready(request: web.Request) -> web.Response:
    """Whether the broker has started; a broker that has not does not serve this port."""
    return _word("ok")


async def version(request: web.Request) -> web.Response:
    """The version of the broker's program."""
    return _word(__version__)


def _word(text: str) -> web.Response:
    # Pulsar answers these words bare, yet calls them JSON.
    return web.Response(text=text, content_type="application/json")


ROUTES = (
    ("/admin/v2/brokers/health", health),
    ("/admin/v2/brokers/ready", ready),
    ("/admin/v2/brokers/version", version),
)
