"""Long work on the event loop, in slices between which everybody else has a turn.

All that is cut into slices shares them: a thousand tasks with long work each take no longer in one
turn of the loop than a single one does. Who has to yield stands in line, and whoever comes to the
front while there is time left goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work that yields now and then, so that it can be done in slices."""

# Of a turn, for long work of all kinds together; what a step takes comes on top, and commands have
# a millisecond of their own (pacing.py). Each turn costs a look at the sockets, some 20 us.
SLICE_S = 0.001
CALLED_MAX = 32  # of those in line, in one turn: when they have little left each, it is not empty


class _Turn:
    """When long work began in the turn that the loop is in; None: there was none in it yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        # It does not know its loop, which is let go of with it.
        self.began: float | None = None
        self._clock = clock
        # What they wait for; it is True for the first one that is called, which goes on in any
        # case.
        self._line: deque[asyncio.Future[bool]] = deque()
        self._called_in_vain: list[asyncio.Future[bool]] = []
        self._is_calling = False

    def begin(self, now: float) -> float:
        self.began = now
        # It runs in the next turn, before those that yielded in this one.
        asyncio.get_running_loop().call_soon(self._over)
        return now

    def _over(self) -> None:
        self.began = None

    def stand_in_line(self) -> asyncio.Future[bool] | None:
        """To be called in a turn to come; None: nobody is in line, and the next turn will do."""
        if self._call():
            return None
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        return place

    def _call(self) -> bool:
        """The line is called from the next turn on; False: it is being called already."""
        if self._is_calling:
            return False
        self._is_calling = True
        asyncio.get_running_loop().call_soon(self._end_of_line)
        return True

    def keep_place(self) -> asyncio.Future[bool]:
        """The same for one that was called when there was no time left, before all others."""
        # Whose steps are paced may come long after the turn that it was called for.
        self._call()
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._called_in_vain.append(place)
        return place

    def _call_some(self) -> None:
        # All that is called from here runs in the next turn, one after the other.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._begin_with_line)
        is_first = True
        for _ in range(min(len(self._line), CALLED_MAX)):
            place = self._line.popleft()
            if not place.done():  # who waits may have been cancelled
                place.set_result(is_first)
                is_first = False
        loop.call_soon(self._end_of_line)

    def _begin_with_line(self) -> None:
        if self.began is None:
            self.begin(self._clock())

    def _end_of_line(self) -> None:
        self._line.extendleft(reversed(self._called_in_vain))
        self._called_in_vain.clear()
        if self._line:
            self._call_some()
        else:
            self._is_calling = False


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
            turn = _Turn(clock)
            if clock is time.monotonic:
                _turns[loop] = turn
        self._turn = turn
        if turn.began is None:
            turn.begin(clock())

    async def pause(self) -> None:
        """Yields to the loop if long work has lasted a slice in this turn."""
        if self._has_time():
            return
        turn = self._turn
        place = turn.stand_in_line()
        if place is None:
            await asyncio.sleep(0)
            # The step that follows counts, which may be a long one.
            self._has_time()
            return
        while not (await place or self._has_time()):
            place = turn.keep_place()

    def _has_time(self) -> bool:
        now = self._clock()
        began = self._turn.began
        if began is None:
            began = self._turn.begin(now)
        return now - began < self._slice_s


async def in_slices(steps: Steps[T], slices: Slices | None = None) -> T:
    """Does work that yields now and then; others run in between."""
    if slices is None:
        slices = Slices()
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await slices.pause()


def at_once(steps: Steps[T]) -> T:
    """Does work that yields now and then without letting others run."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
