"""Values that a thread computes once, on first use, without blocking the event loop.

Above all these are imports that take tens of milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OffLoop(Generic[T]):
    """The result of `make()`, shared by all callers. After a failure, the next caller retries."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._making: asyncio.Future[T] | None = None

    async def get(self) -> T:
        if not self._made:
            loop = asyncio.get_running_loop()
            if self._making is None or self._making.get_loop() is not loop:
                self._making = loop.run_in_executor(None, self._make)
            making = self._making
            try:
                # A cancelled caller must not cancel the work for the other callers.
                self._made = [await asyncio.shield(making)]
            finally:
                if making.done() and self._making is making:
                    self._making = None
        return self._made[0]
