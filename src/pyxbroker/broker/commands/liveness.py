"""Liveness checks: find out if the client of a connection is still there.

A client that asks for a name in use may be the holder itself, returning before its old connection
was closed (after a power loss no FIN arrives). The broker sends PING to the holder. If the holder
stays silent, the broker closes its connection, which releases the name. Mirrors Pulsar's
ServerCnx.checkConnectionLiveness.
"""

from __future__ import annotations

import asyncio

from pyxbroker.base.log import get_logger
from pyxbroker.broker.commands import replies
from pyxbroker.connection import Connection

log = get_logger("pyxbroker.connection")


class Liveness:
    """Checks connections; timeout_ms is connectionLivenessCheckTimeoutMillis, 0: never."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000

    async def is_alive(self, connection: Connection) -> bool:
        """Return True if a connection is alive. A connection that does not answer is closed."""
        if connection.closed:
            return False
        if self._timeout_s == 0:
            return True
        session = connection.session
        if session.alive is None:
            session.alive = asyncio.ensure_future(self._ask(connection))
        return bool(await asyncio.shield(session.alive))

    async def _ask(self, connection: Connection) -> bool:
        session = connection.session
        session.answered = asyncio.get_running_loop().create_future()
        connection.received_since_check = False
        connection.send_frame(replies.ping())
        try:
            await asyncio.wait([session.answered], timeout=self._timeout_s)
            if connection.closed:
                return False
            # The broker reads nothing from a paused connection, so silence proves nothing.
            if connection.received_since_check or connection.is_paused:
                return True
            log.info("closed: silent while another client needs its place", peer=connection.peer)
            connection.group.turn.run(connection.close)
            return False
        finally:
            session.alive = None
            session.answered = None


def on_answer(connection: Connection) -> None:
    """Complete a liveness check: a PONG has arrived, or the connection is closed."""
    answered = connection.session.answered
    if answered is not None and not answered.done():
        answered.set_result(None)
