"""Long work on the event loop, in slices between which other tasks run.

All tasks with long work share one slice per loop iteration, so a thousand of them take no longer in
an iteration than one does. A task that has used its slice waits in a FIFO queue. The task at the
head resumes as soon as the current iteration has time left.
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
"""Work that yields between its steps, so that it can run in slices."""

# Time per loop iteration for long work of all kinds together; the last step may exceed it. Commands
# have a millisecond of their own (pacing.py). Each iteration polls the sockets, some 20 us.
SLICE_S = 0.001
WOKEN_MAX = 32  # tasks woken per iteration: enough to fill a slice with short remainders


class _Turn:
    """The start of long work in the current loop iteration, or None if it had none yet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        # It does not refer to its loop, so that it can be released with it.
        self.began: float | None = None
        self._clock = clock
        # Waiting tasks. The result is True for the first one woken, which resumes in any case.
        self._queue: deque[asyncio.Future[bool]] = deque()
        self._woken_too_late: list[asyncio.Future[bool]] = []
        self._is_waking = False

    def begin(self, now: float) -> float:
        self.began = now
        # This callback runs in the next iteration, before the tasks that yielded in this one.
        asyncio.get_running_loop().call_soon(self._on_iteration_end)
        return now

    def _on_iteration_end(self) -> None:
        self.began = None

    def wait_in_queue(self) -> asyncio.Future[bool] | None:
        """Queue the calling task; None if the queue is idle and the next iteration will do."""
        if self._start_waking():
            return None
        entry: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append(entry)
        return entry

    def _start_waking(self) -> bool:
        """Start waking the queue from the next iteration on. Return False if it is being woken."""
        if self._is_waking:
            return False
        self._is_waking = True
        asyncio.get_running_loop().call_soon(self._wake_next)
        return True

    def wait_at_head(self) -> asyncio.Future[bool]:
        """Queue a task that was woken without time left, ahead of all others."""
        # A paced task may run long after the iteration for which it was woken.
        self._start_waking()
        entry: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._woken_too_late.append(entry)
        return entry

    def _wake_batch(self) -> None:
        # All that is scheduled here runs in the next iteration, in this order.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._begin_slice)
        is_first = True
        for _ in range(min(len(self._queue), WOKEN_MAX)):
            entry = self._queue.popleft()
            if not entry.done():  # the waiting task may have been cancelled
                entry.set_result(is_first)
                is_first = False
        loop.call_soon(self._wake_next)

    def _begin_slice(self) -> None:
        if self.began is None:
            self.begin(self._clock())

    def _wake_next(self) -> None:
        self._queue.extendleft(reversed(self._woken_too_late))
        self._woken_too_late.clear()
        if self._queue:
            self._wake_batch()
        else:
            self._is_waking = False


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()


class Slices:
    """One piece of long work. It calls `pause` after each step, to let other tasks run."""

    def __init__(
        self, slice_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        loop = asyncio.get_running_loop()
        self._slice_s = SLICE_S if slice_s is None else slice_s
        self._clock = clock
        # Times of different clocks cannot be compared, so only the default clock is shared.
        turn = _turns.get(loop) if clock is time.monotonic else None
        if turn is None:
            turn = _Turn(clock)
            if clock is time.monotonic:
                _turns[loop] = turn
        self._turn = turn
        if turn.began is None:
            turn.begin(clock())

    async def pause(self) -> None:
        """Yield to the loop if long work has used its slice in this iteration."""
        if self._has_time():
            return
        turn = self._turn
        entry = turn.wait_in_queue()
        if entry is None:
            await asyncio.sleep(0)
            # Start the slice now, so that the next step, which may be long, counts.
            self._has_time()
            return
        while not (await entry or self._has_time()):
            entry = turn.wait_at_head()

    def _has_time(self) -> bool:
        now = self._clock()
        began = self._turn.began
        if began is None:
            began = self._turn.begin(now)
        return now - began < self._slice_s


async def in_slices(steps: Steps[T], slices: Slices | None = None) -> T:
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
