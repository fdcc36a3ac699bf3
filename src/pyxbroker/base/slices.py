"""Long work on the event loop, in slices between which everybody else has a turn.

All that is cut into slices shares them: a thousand tasks with long work each take no longer in one
turn of the loop than a single one does, and a step of each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

# Of a turn, for long work of all kinds together; what a step takes comes on top, and commands have
# a millisecond of their own (pacing.py). Each turn costs a look at the sockets, some 20 us.
SLICE_S = 0.001


class _Turn:
    """When long work began in the turn that the loop is in; None: there was none in it yet."""

    def __init__(self) -> None:
        self.began: float | None = None

    def begin(self, now: float) -> float:
        self.began = now
        # It runs in the next turn, before those that yielded in this one.
        asyncio.get_running_loop().call_soon(self._over)
        return now

    def _over(self) -> None:
        self.began = None


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()


class Slices:
    """One piece of long work: asked after each step, it lets others run when a slice is over."""

    def __init__(
        self, slice_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        loop = asyncio.get_running_loop()
        self._slice_s = SLICE_S if slice_s is None else slice_s
        self._clock = clock
        # Times of different clocks cannot be compared.
        turn = _turns.get(loop) if clock is time.monotonic else None
        if turn is None:
            turn = _Turn()
            if clock is time.monotonic:
                _turns[loop] = turn
        self._turn = turn
        if turn.began is None:
            turn.begin(clock())

    async def pause(self) -> None:
        """Yields to the loop if long work has lasted a slice in this turn."""
        now = self._clock()
        turn = self._turn
        began = turn.begin(now) if turn.began is None else turn.began
        if now - began >= self._slice_s:
            await asyncio.sleep(0)
            # The step that follows counts, which may be a long one.
            if turn.began is None:
                turn.begin(self._clock())
