"""What waits to be sent to a client that asks for more than it reads.

Beyond OUT_PENDING_PAUSE no further command of it is looked at, but those that are under way, up to
a thousand, go on answering, and news come unasked. What is beyond that costs the client memory;
what is long is not even made before most of the rest was taken.
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

UNREAD_FREE_BYTES = 8 << 20  # as connection.pxd has it: where reading of its commands is paused


def note_unread(connection: Connection, budget: ClientMemory) -> None:
    """More was queued for a client, or it has read some: what is too much closes its connection."""
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
    except (NotAllowed, TooManyRequests):  # which is in the log
        session.unread = before
        budget.close(connection, TOTAL_SETTING)
        return
    if before == 0:
        connection.when_writable(partial(note_unread, connection, budget))


async def until_read(connection: Connection) -> None:
    """Until a client has read most of what waits for it, or has gone."""
    while not connection.closed and connection.pending_bytes > UNREAD_FREE_BYTES:
        is_read = asyncio.get_running_loop().create_future()
        connection.when_writable(partial(resolve, is_read, None))
        await wait_for(connection, is_read, None)
