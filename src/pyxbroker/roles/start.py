"""The start of a standalone process, with imports deferred so that it takes little time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyxbroker.roles.data import StandaloneData, ignore_step
from pyxbroker.roles.early_parts import authentication_of, listeners_of, open_ports
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.roles.standalone import Standalone


async def start_standalone(
    config: Config,
    data_directory: Path,
    accept_loss: bool = False,
    on_step: Callable[[str], None] = ignore_step,
) -> Standalone:
    """Start broker, embedded bookie and metadata; return when the broker port is served.

    With `accept_loss`, the broker starts without data that is missing, and the log names it. Each
    step of the start calls `on_step` with what it waits for.
    """
    on_step("the keys and certificates of its settings, and its ports")
    # First, so that invalid authentication settings fail the start before a port is open.
    authentication = authentication_of(config)
    ports = open_ports(config)
    listeners = listeners_of(config, ports)
    data = StandaloneData(config, data_directory, accept_loss, listeners.own, on_step)
    opening = asyncio.ensure_future(data.open())
    # While other threads open the data, this thread imports the rest.
    await asyncio.sleep(0)
    from pyxbroker.roles.standalone import Standalone

    storage, bookie_id = await opening
    on_step("the broker's parts")
    standalone = Standalone(data, ports, authentication, listeners)
    await standalone.start(storage, bookie_id)
    return standalone
