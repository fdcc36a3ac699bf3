"""In which turn of the event loop something happens, for what must not do too much in one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Callable[[], int]]:
    """Gives what tells the number of the turn that the loop is in."""
    turn = 0

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    try:
        yield lambda: turn
    finally:
        counting.cancel()
