"""Awaitable reads of entry sources, whose own reads call back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from pyxbroker.entry import EntryBatch, Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.store import resolve

Callback = Callable[[EntryBatch | LedgerError], None]


async def read_entries(
    read: Callable[[Position, int, int, Callback, int | None], None],
    position: Position,
    count_max: int,
    bytes_max: int,
    last: int | None = None,
) -> EntryBatch:
    """Return entries from a normalized position on. `read` is that of an EntrySource.

    Raises LedgerError.
    """
    future: asyncio.Future[EntryBatch] = asyncio.get_running_loop().create_future()
    read(position, count_max, bytes_max, partial(resolve, future), last)
    return await future
