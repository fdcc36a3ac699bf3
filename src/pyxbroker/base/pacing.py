"""Pacing of client commands: how much of a loop iteration they may take, and in which order.

A client may send a thousand commands in one write, and all of them may become ready in the same
moment. Each command therefore runs in steps, from one await to the next. All steps of an iteration
take BUDGET_S together, which the last step may exceed. The remaining steps wait for the next
iteration; the loop serves sockets and timers before it. Clients take turns. Each has a FIFO queue
(`StepQueue`), so that a client with few commands does not wait for all commands of the others.

Other kinds of work (long work, unauthenticated connections, cursor writes) have a `Pace` of their
own, with a budget of its own.

SEND, ACK and FLOW are not paced here: they are frequent and small, and counted where they are read.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context, ContextVar
from functools import partial
from types import coroutine as generator_based
from typing import Any, TypeVar

T = TypeVar("T")

BUDGET_S = 0.001
STEPS_PER_BATCH = 32  # of incremental work, some microseconds each


class Pace:
    """The budget of one event loop, and the queues that wait for it."""

    def __init__(
        self, budget_s: float = BUDGET_S, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.clock = clock
        self._budget_s = budget_s
        self._spent_s = 0.0
        self._queues: deque[StepQueue] = deque()
        self._is_scheduled = False
        # Work that a step starts must not inherit the context of the client that scheduled it.
        self._context = Context()

    def queue(self) -> StepQueue:
        """Return a queue for one more client."""
        return StepQueue(self)

    @property
    def is_free(self) -> bool:
        """True if a step may run immediately: there is budget left, and no queue is waiting."""
        return not self._queues and self._spent_s < self._budget_s

    def spend(self, seconds: float) -> None:
        """Account for a step that was run.

        An iteration is requested only when the budget is used up, so earlier steps may have used a
        part of it. Each iteration polls all sockets, and most clients send little.
        """
        self._spent_s += seconds
        if self._spent_s >= self._budget_s:
            self._schedule()

    def end_turn(self) -> None:
        """Use up the budget: no further step runs before the next iteration."""
        self.spend(self._budget_s)

    def enqueue(self, queue: StepQueue) -> None:
        """Add a queue that has become non-empty."""
        self._queues.append(queue)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._on_turn, loop, context=self._context)

    def _on_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run one step of each queue in turn, until the budget is used up."""
        self._is_scheduled = False
        queues, clock = self._queues, self.clock
        began = clock()
        self._spent_s = 0.0
        while queues and self._spent_s < self._budget_s:
            queue = queues.popleft()
            call = queue.waiting.popleft()
            if queue.waiting:
                queues.append(queue)
            try:
                call()
            except Exception as error:
                loop.call_exception_handler({"message": "a paced step failed", "exception": error})
            # A step may have reported more through `spend`: work that it causes elsewhere.
            self._spent_s = max(self._spent_s, clock() - began)
        if queues or self._spent_s >= self._budget_s:
            self._schedule()


class StepQueue:
    """The queue of one client's steps, in order."""

    __slots__ = ("pace", "waiting")

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.waiting: deque[Callable[[], object]] = deque()

    def wait(self, call: Callable[[], object]) -> None:
        """Queue call()."""
        self.waiting.append(call)
        if len(self.waiting) == 1:
            self.pace.enqueue(self)

    def join(self) -> QueueEntry:
        """Queue the calling task, which has to await the entry next."""
        entry = QueueEntry(asyncio.get_running_loop())
        self.wait(entry.resolve)
        return entry

    def run(self, call: Callable[[], T]) -> T | None:
        """Call call() now if there is budget left, and return its result; else queue it."""
        pace = self.pace
        if not pace.is_free:
            self.wait(call)
            return None
        began = pace.clock()
        try:
            return call()
        finally:
            pace.spend(pace.clock() - began)


def run_incrementally(work: Iterator[StepQueue], run: Callable[..., object]) -> None:
    """Run some steps now, and the remaining ones in batches, each queued for its client.

    work: runs a step and yields the queue in which the next one waits. run(call, *args) calls
    call(*args) and flushes what it sends.
    """
    for _ in range(STEPS_PER_BATCH - 1):
        if next(work, None) is None:
            return
    queue = next(work, None)
    if queue is not None:
        queue.wait(partial(run, run_incrementally, work, run))


_queue: ContextVar[StepQueue | None] = ContextVar("step_queue", default=None)


async def paced(coroutine: Coroutine[Any, Any, T], queue: StepQueue | None = None) -> T:
    """Run a coroutine in paced steps. It must be a task of its own.

    queue: the client's queue. By default that of the task that created this one, if it has one.
    """
    queue = queue or _queue.get()
    if queue is None:
        return await coroutine
    _queue.set(queue)
    return await _steps(coroutine, queue)


@generator_based
def _steps(coroutine: Coroutine[Any, Any, T], queue: StepQueue) -> Generator[Any, None, T]:
    pace = queue.pace
    clock = pace.clock
    failure: BaseException | None = None
    while True:
        # A cancelled task has to end without waiting.
        if not (pace.is_free or isinstance(failure, asyncio.CancelledError)):
            try:
                yield queue.join()
            except BaseException as error:
                failure = error
        began = clock()
        try:
            waited = coroutine.send(None) if failure is None else coroutine.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            failure = None  # else a cycle of the exception, its traceback and this frame
            pace.spend(clock() - began)
        try:
            yield waited
        except BaseException as error:
            failure = error
        waited = None  # a cycle for the same reason


class QueueEntry:
    """A queue entry of a task, which awaits it like a future.

    `resolve` runs the next step itself, so that its time is measured. A real future would run it
    later, outside of the measurement.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = True
        self._loop = loop
        self._wake: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._is_cancelled = False

    def __await__(self) -> Generator[Any, None, None]:
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that the task runs on."""
        return self._loop

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context) -> None:
        """Register the waiting task."""
        self._wake, self._context = wake, context

    def resolve(self) -> None:
        """Run the task's next step. A second call does nothing."""
        wake, context = self._wake, self._context
        if wake is not None and context is not None:
            self._wake = self._context = None
            context.run(wake, self)
        # The exception of a cancelled task refers to this frame: leave no cycle.
        del wake, context

    def cancel(self, msg: object = None) -> bool:
        """Cancel the task, which then does not wait for its turn."""
        if self._wake is None:
            return False
        self._is_cancelled = True
        self._loop.call_soon(self.resolve)
        return True

    def result(self) -> None:
        """Raise CancelledError if the task was cancelled."""
        if self._is_cancelled:
            raise asyncio.CancelledError
