"""The start of a standalone process: as soon as it can be, since people wait for it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from pyxbroker.base.listening import listen
from pyxbroker.broker.broker_port import Addresses, BrokerPort
from pyxbroker.roles.data import StandaloneData
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.auth.authentication import Authentication
    from pyxbroker.roles.standalone import Standalone


async def start_standalone(
    config: Config, data_directory: Path, accept_loss: bool = False
) -> Standalone:
    """Starts broker, embedded bookie and metadata; returns when the broker port is served.

    With accept_loss it starts without what is missing of its data; the log says what that is.
    """
    # Before a port is there: who is to be let in is known then, or there is no start.
    authentication = authentication_of(config)
    port = BrokerPort(config.bindAddress, config.brokerServicePort or 0)
    web_socket: socket.socket | None = None
    web_port = 0
    if config.webServicePort is not None:
        web_socket = listen(config.bindAddress, config.webServicePort)
        web_port = web_socket.getsockname()[1]
    host = config.advertisedAddress
    addresses = Addresses(f"pulsar://{host}:{port.port}", f"http://{host}:{web_port}")
    data = StandaloneData(config, data_directory, accept_loss, addresses)
    opening = asyncio.ensure_future(data.open())
    # Other threads open the data now; what comes next is imported meanwhile.
    await asyncio.sleep(0)
    from pyxbroker.roles.standalone import Standalone

    storage, bookie_id = await opening
    standalone = Standalone(data, port, web_socket, authentication)
    await standalone.start(storage, bookie_id)
    return standalone


def authentication_of(config: Config) -> Authentication | None:
    """Who is let in, None for everybody. Raises ConfigError."""
    if config.authorizationEnabled:
        from pyxbroker.auth.permissions import check_settings

        check_settings(config)
    if not config.authenticationEnabled:
        return None
    from pyxbroker.auth.authentication import Authentication

    return Authentication(config)
