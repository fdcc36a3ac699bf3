"""What is made once, by a thread, when it is first asked for: imports above all, of which one takes
tens of milliseconds. The loop has its turns meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class OffLoop(Generic[T]):
    """The result of `make()`, for all who ask. One that fails is tried again by who asks next."""

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
                # Who gives up does not take it from the others.
                self._made = [await asyncio.shield(making)]
            finally:
                if making.done() and self._making is making:
                    self._making = None
        return self._made[0]
