"""The control of a broker by the test that started it (`pyxbroker.testing`).

It is an inherited socket, named by the hidden option --test-control FD:SECONDS. So no client can
use it. The test sends the seconds by which the clock is ahead of the host's, one number per line,
and gets a line for each when the broker has done what is due. The first line says that the broker
is ready. If the test process ends, the socket closes, and the broker ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

from pyxbroker.base import clock
from pyxbroker.cli.serving import Observer

if TYPE_CHECKING:
    from pyxbroker.cli.serving import Service

ANSWER = b"done\n"


class Control(Observer):
    """The socket of the test."""

    def __init__(self, descriptor: int, ahead_s: float) -> None:
        clock.set_ahead(ahead_s)
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of_option(cls, text: str) -> Control:
        """Return the control that an option names. Raises ArgumentTypeError."""
        descriptor, _, ahead_s = text.partition(":")
        try:
            return cls(int(descriptor), float(ahead_s))
        except (ValueError, OSError) as error:
            raise ArgumentTypeError(f"{text!r}: {error}") from None

    def on_start(self) -> None:
        """End this process when the test ends, from now on."""
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._on_end)

    def on_ready(self, service: Service) -> None:
        """Report that the broker is ready, and serve requests."""
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._task = asyncio.ensure_future(self._serve(service))

    def _on_end(self) -> None:
        # Nothing is sent before the broker is ready: the test has ended.
        os._exit(1)

    async def _serve(self, service: Service) -> None:
        reader, writer = await asyncio.open_connection(sock=self._socket)
        writer.write(ANSWER)
        while line := await reader.readline():
            clock.set_ahead(float(line))
            await service.broker.on_clock_set()
            writer.write(ANSWER)
        os._exit(1)
