"""Admin REST, HTTP lookup and /metrics: a web server on the broker's own loop.

The libraries for it take longer to import than the broker takes to start. So the port is opened
first, early requests wait in its backlog, and the rest is imported in a thread meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import socket
from types import ModuleType
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


def _import_app() -> ModuleType:
    """Imports the web server's code as quickly as it goes; runs in a thread.

    aiohttp's client half, which nothing here uses, reads the system's certificates when it is
    imported: 60 ms, a third of the whole import. Certificate paths that lead nowhere prevent that.
    Whoever uses aiohttp as a client in this process has to give it an SSL context of its own.
    The collector is off meanwhile, since almost all that an import makes stays.
    """
    paths = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    before = {name: os.environ.get(name) for name in paths}
    collecting = gc.isenabled()
    gc.disable()
    os.environ.update(dict.fromkeys(paths, os.devnull))
    try:
        return importlib.import_module("pyxbroker.admin.app")
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        # What was imported stays; looking through it again and again would delay messages.
        gc.freeze()
        if collecting:
            gc.enable()


async def start_web(service: BrokerService, sock: socket.socket) -> WebServer:
    """Serves on an open port. The caller stops it by `await server.stop()`."""
    loop = asyncio.get_running_loop()
    app = await loop.run_in_executor(None, _import_app)
    server: WebServer = app.WebServer(service)
    await server.start(sock)
    return server
