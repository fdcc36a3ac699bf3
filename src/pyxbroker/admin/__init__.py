"""Admin REST, HTTP lookup and /metrics: a web server on the broker's own loop.

The libraries for it take longer to import than the broker takes to start. So the port is opened
first, early requests wait in its backlog, and the rest is imported in a thread meanwhile.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from typing import TYPE_CHECKING

from pyxbroker.config import Config

if TYPE_CHECKING:
    from pyxbroker.admin.app import WebServer
    from pyxbroker.admin.service import BrokerService

BACKLOG = 128


def listen(config: Config) -> socket.socket | None:
    """Opens the web port, or nothing when the settings have none.

    Raises OSError, for example EADDRINUSE.
    """
    port = config.webServicePort
    if port is None:
        return None
    family = socket.AF_INET6 if ":" in config.bindAddress else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((config.bindAddress, port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


async def start_web(service: BrokerService, sock: socket.socket) -> WebServer:
    """Serves on an open port. The caller stops it by `await server.stop()`."""
    loop = asyncio.get_running_loop()
    app = await loop.run_in_executor(None, importlib.import_module, "pyxbroker.admin.app")
    server: WebServer = app.WebServer(service)
    await server.start(sock)
    return server
