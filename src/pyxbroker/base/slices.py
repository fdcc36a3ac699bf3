"""Long work on the event loop, in slices between which other tasks run.

All tasks with long work share one slice per loop iteration, so a thousand of them take no longer in
an iteration than one does. A task that has used its slice waits in a FIFO queue (pacing.py). The
task at the head resumes in a later iteration, and those behind it while time is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeVar
from weakref import ref

from pyxbroker.base.pacing import Pace

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work that yields between its steps, so that it can run in slices."""

# Time per loop iteration for long work of all kinds together; the last step may exceed it. Commands
# have a millisecond of their own (pacing.py). Each iteration polls the sockets, some 20 us.
SLICE_S = 0.001


class _LongWork:
    """The slice that all long work of a loop shares, and the queue of tasks that have used it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = ref(loop)
        self.queue = Pace().queue()
        self.began: float | None = None  # in the current loop iteration; None: no work yet

    def begin(self, now: float) -> float:
        self.began = now
        # This callback runs in the next iteration, before the tasks that yielded in this one.
        asyncio.get_running_loop().call_soon(self._on_iteration_end)
        return now

    def _on_iteration_end(self) -> None:
        self.began = None


_latest: _LongWork | None = None
"""The shared slice of the loop that last had long work. Processes have one loop with much of it."""


class Slices:
    """One piece of long work. It calls `pause` after each step, to let other tasks run."""

    def __init__(
        self, slice_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        global _latest
        loop = asyncio.get_running_loop()
        self._slice_s = SLICE_S if slice_s is None else slice_s
        self._clock = clock
        shared = _latest
        if clock is not time.monotonic:
            # Times of different clocks cannot be compared.
            shared = _LongWork(loop)
        elif shared is None or shared.loop() is not loop:
            shared = _latest = _LongWork(loop)
        self._shared = shared
        if shared.began is None:
            shared.begin(clock())

    async def pause(self) -> None:
        """Yield to the loop if long work has used its slice in this iteration."""
        if self._has_time():
            return
        queue = self._shared.queue
        queue.pace.end_turn()
        await queue.join()
        # Start the slice now, so that the next step, which may be long, counts.
        self._has_time()

    def _has_time(self) -> bool:
        now = self._clock()
        began = self._shared.began
        if began is None:
            began = self._shared.begin(now)
        return now - began < self._slice_s


class in_slices(Generic[T]):
    """Asynchronous iteration over items, with a pause after each one.

    Unlike an asynchronous generator, it needs no task to end it when a loop leaves it early. It
    costs a microsecond for a loop and 0.1 for an item more than calls of `pause`. Therefore paths
    that run for each of many topics call `pause`: their opening, their statistics, and JSON.
    """

    __slots__ = ("_has_begun", "_next", "_slices")

    def __init__(self, items: Iterable[T], slices: Slices | None = None) -> None:
        self._next = iter(items).__next__
        self._slices = Slices() if slices is None else slices
        self._has_begun = False

    def __aiter__(self) -> in_slices[T]:
        return self

    async def __anext__(self) -> T:
        if self._has_begun:
            await self._slices.pause()
        self._has_begun = True
        try:
            return self._next()
        except StopIteration:
            raise StopAsyncIteration from None


async def run_in_slices(steps: Steps[T], slices: Slices | None = None) -> T:
    """Run a generator of steps in slices, and return its result."""
    if slices is None:
        slices = Slices()
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await slices.pause()
