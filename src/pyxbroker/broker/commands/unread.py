"""Limits the data that waits for a client that reads slower than it asks.

Beyond OUT_PENDING_PAUSE the broker handles no further commands of the client. Up to a thousand
commands in progress still answer, and notifications still arrive. The excess is charged to the
client's memory. The broker builds long answers only after the client has read most of the pending
data.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from pyxbroker.base.errors import NotAllowed, TooManyRequests
from pyxbroker.base.memory_budget import TOTAL_SETTING
from pyxbroker.broker.client_memory import ClientMemory
from pyxbroker.broker.commands.session import wait_for
from pyxbroker.metadata.store import resolve

if TYPE_CHECKING:
    from pyxbroker.connection import Connection

UNREAD_FREE_BYTES = 8 << 20  # where connection.pxd pauses the reading of commands


def note_unread(connection: Connection, budget: ClientMemory) -> None:
    """Update the charge for pending data. Close the connection if it exceeds the limit."""
    if connection.closed:
        return
    session = connection.session
    before = session.unread
    session.unread = max(0, connection.pending_bytes - UNREAD_FREE_BYTES)
    if session.unread <= before:
        session.memory.release(before - session.unread)
        return
    try:
        session.memory.charge(session.unread - before)
    except (NotAllowed, TooManyRequests):  # logged by charge()
        session.unread = before
        budget.close(connection, TOTAL_SETTING)
        return
    if before == 0:
        connection.when_writable(partial(note_unread, connection, budget))


async def wait_until_read(connection: Connection) -> None:
    """Wait until a client has read most of the pending data, or is gone."""
    while not connection.closed and connection.pending_bytes > UNREAD_FREE_BYTES:
        is_read = asyncio.get_running_loop().create_future()
        connection.when_writable(partial(resolve, is_read, None))
        await wait_for(connection, is_read, None)
