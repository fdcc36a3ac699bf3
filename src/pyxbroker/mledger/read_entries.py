"""Awaitable reads of entry sources, whose own reads call back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pyxbroker.entry import EntryBatch, Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.store import resolve


class Readable(Protocol):
    """A managed ledger, or a view of one."""

    def read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | LedgerError], None],
        last: int | None = None,
    ) -> None: ...


async def read_entries(
    source: Readable, position: Position, count_max: int, bytes_max: int, last: int | None = None
) -> EntryBatch:
    """Return entries from a normalized position on. Raises LedgerError."""
    future: asyncio.Future[EntryBatch] = asyncio.get_running_loop().create_future()
    source.read(position, count_max, bytes_max, partial(resolve, future), last)
    return await future
