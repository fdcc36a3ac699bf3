"""The web server: routes, and its life on the loop."""

from __future__ import annotations

import socket

from aiohttp import web

from pyxbroker.admin import brokers, clusters, lookup, metrics, partitions
from pyxbroker.admin.errors import answer_errors
from pyxbroker.admin.keys import COLLECTOR, SERVICE
from pyxbroker.admin.service import BrokerService
from pyxbroker.metrics import Collector

RESOURCES = (clusters, brokers, lookup, partitions, metrics)
STOP_TIMEOUT_S = 2.0


def make_app(service: BrokerService) -> web.Application:
    """All resources of one broker. A path may end in a slash or not, as with Pulsar."""
    app = web.Application(middlewares=[answer_errors])
    app[SERVICE] = service
    app[COLLECTOR] = Collector()
    for resource in RESOURCES:
        for path, handler in resource.ROUTES:
            app.router.add_get(path, handler)
            app.router.add_get(path + "/", handler)
    return app


class WebServer:
    """One listening web port."""

    def __init__(self, service: BrokerService) -> None:
        # No access log: Pulsar's tools poll, and the log stays quiet.
        self._runner = web.AppRunner(
            make_app(service),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=STOP_TIMEOUT_S,
        )

    async def start(self, sock: socket.socket) -> None:
        """Answers what has been waiting in the port's backlog, and all that follows."""
        await self._runner.setup()
        await web.SockSite(self._runner, sock).start()

    async def stop(self) -> None:
        """Closes the port; requests in progress get a short time to end."""
        await self._runner.cleanup()
