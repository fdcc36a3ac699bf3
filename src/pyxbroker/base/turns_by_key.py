"""One at a time for each key, in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class _Line:
    """Who has the turn of one key, and who waits for it."""

    __slots__ = ("count", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class TurnsByKey(Generic[K]):
    """Remembers only keys that somebody has the turn of."""

    def __init__(self) -> None:
        self._lines: dict[K, _Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    @asynccontextmanager
    async def turn(self, key: K) -> AsyncIterator[None]:
        """Within it nobody else has the turn of the key."""
        line = self._lines.setdefault(key, _Line())
        line.count += 1
        try:
            async with line.lock:
                yield
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[key]
