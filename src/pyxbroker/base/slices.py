"""Long work on the event loop, in slices between which everybody else has a turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Slices:
    """One piece of long work: asked after each step, it lets others run when a slice is over."""

    def __init__(self, slice_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._slice_s = slice_s
        self._clock = clock
        self._end = clock() + slice_s

    async def pause(self) -> None:
        """Yields to the loop if the slice has lasted its time; the next one begins then."""
        if self._clock() >= self._end:
            await asyncio.sleep(0)
            self._end = self._clock() + self._slice_s
