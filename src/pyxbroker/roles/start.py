"""The start of a standalone process: as soon as it can be, since people wait for it."""

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
    """Starts broker, embedded bookie and metadata; returns when the broker port is served.

    With accept_loss it starts without what is missing of its data; the log says what that is.
    Calls `on_step` with what each step of the start waits for.
    """
    on_step("the keys and certificates of its settings, and its ports")
    # Before a port is there: who is to be let in is known then, or there is no start.
    authentication = authentication_of(config)
    ports = open_ports(config)
    listeners = listeners_of(config, ports)
    data = StandaloneData(config, data_directory, accept_loss, listeners.own, on_step)
    opening = asyncio.ensure_future(data.open())
    # Other threads open the data now; what comes next is imported meanwhile.
    await asyncio.sleep(0)
    from pyxbroker.roles.standalone import Standalone

    storage, bookie_id = await opening
    on_step("the broker's parts")
    standalone = Standalone(data, ports, authentication, listeners)
    await standalone.start(storage, bookie_id)
    return standalone
