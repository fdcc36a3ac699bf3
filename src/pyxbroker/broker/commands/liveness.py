"""Whether the client at the other end of a connection is still there.

Who asks for a name that another connection holds may be the same client, come back before its
old connection was seen to be gone (a machine that lost its power says no goodbye). So the holder is
asked with PING; one that stays silent is closed, and with it goes what it held. Mirrors Pulsar's
ServerCnx.checkConnectionLiveness.
"""

from __future__ import annotations

import asyncio

from pyxbroker.base.log import get_logger
from pyxbroker.broker.commands import replies
from pyxbroker.connection import Connection

log = get_logger("pyxbroker.connection")


class Liveness:
    """Asks connections; timeout_ms is connectionLivenessCheckTimeoutMillis, 0 never asks."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000

    async def is_alive(self, connection: Connection) -> bool:
        """Whether a connection can be taken for alive; one that did not answer is closed then."""
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
            # Nothing is read from a connection that is paused, so its silence says nothing.
            if connection.received_since_check or connection.is_paused:
                return True
            log.info("closed: silent while somebody asks for its place", peer=connection.peer)
            connection.group.turn.run(connection.close)
            return False
        finally:
            session.alive = None
            session.answered = None


def on_answer(connection: Connection) -> None:
    """A PONG has come, or the connection is gone."""
    answered = connection.session.answered
    if answered is not None and not answered.done():
        answered.set_result(None)
