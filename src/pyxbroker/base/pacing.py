"""How much of a turn of the loop the commands of clients may take, and whose is next.

A client may send a thousand commands in one write, and all of them may get what they wait for in
the same moment. So each command goes on in steps, from one place where it waits to the next, and
all steps of a turn take BUDGET_S together, and one step more. What is over waits for another turn;
sockets are served and timers run before that. Clients take turns: each has a line, in which what it
asked for keeps its order, and who asks for little does not wait for all that others ask for.

SEND, ACK and FLOW are not paced by this: they are many, small, and counted where they are read.
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
STEPS_AT_ONCE = 32  # of what goes on bit by bit, some microseconds each


class Pace:
    """The turns of one loop, and the lines of those who wait for one."""

    def __init__(
        self, budget_s: float = BUDGET_S, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.clock = clock
        self._budget_s = budget_s
        self._spent_s = 0.0
        self._lines: deque[Line] = deque()
        self._is_scheduled = False
        # What a step begins must not take its client for the one that made the turn necessary.
        self._context = Context()

    def line(self) -> Line:
        """A line for one more client."""
        return Line(self)

    @property
    def is_free(self) -> bool:
        """Whether a step may be made at once: there is time left, and nobody waits for it."""
        return not self._lines and self._spent_s < self._budget_s

    def spend(self, seconds: float) -> None:
        """A step was made. A turn is asked for only when the time is over, so what earlier turns
        took counts in this one: each is a look at all sockets, and most clients ask for little.
        """
        self._spent_s += seconds
        if self._spent_s >= self._budget_s:
            self._schedule()

    def enqueue(self, line: Line) -> None:
        """Somebody waits in a line that nobody waited in."""
        self._lines.append(line)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._on_turn, loop, context=self._context)

    def _on_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """The next turn: one step of each line, then the next one of each."""
        self._is_scheduled = False
        lines, clock = self._lines, self.clock
        began = clock()
        self._spent_s = 0.0
        while lines and self._spent_s < self._budget_s:
            line = lines.popleft()
            call = line.waiting.popleft()
            if line.waiting:
                lines.append(line)
            try:
                call()
            except Exception as error:
                loop.call_exception_handler(
                    {"message": "what waited for its turn failed", "exception": error}
                )
            # A step may have told of more than it took: of what it makes others do.
            self._spent_s = max(self._spent_s, clock() - began)
        if lines or self._spent_s >= self._budget_s:
            self._schedule()


class Line:
    """What one client waits with, in its order."""

    __slots__ = ("pace", "waiting")

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.waiting: deque[Callable[[], object]] = deque()

    def wait(self, call: Callable[[], object]) -> None:
        """Calls call() when it is its turn."""
        self.waiting.append(call)
        if len(self.waiting) == 1:
            self.pace.enqueue(self)

    def run(self, call: Callable[[], object]) -> None:
        """Calls call() now if there is time left in this turn, else when it is its turn."""
        pace = self.pace
        if not pace.is_free:
            self.wait(call)
            return
        began = pace.clock()
        try:
            call()
        finally:
            pace.spend(pace.clock() - began)


def bit_by_bit(work: Iterator[Line], run: Callable[..., object]) -> None:
    """Makes some steps now, and the rest some at a time, when it is their client's turn.

    work: makes a step and says in whose line the next one waits. run(call, *args) calls call(*args)
    as a turn of what it sends.
    """
    for _ in range(STEPS_AT_ONCE - 1):
        if next(work, None) is None:
            return
    line = next(work, None)
    if line is not None:
        line.wait(partial(run, bit_by_bit, work, run))


_line: ContextVar[Line | None] = ContextVar("line", default=None)


async def paced(coroutine: Coroutine[Any, Any, T], line: Line | None = None) -> T:
    """Runs a coroutine in steps that wait for their turn. To be a task of its own.

    line: whose command it is; without one, that of the task that made this one, if there is any.
    """
    line = line or _line.get()
    if line is None:
        return await coroutine
    _line.set(line)
    return await _steps(coroutine, line)


@generator_based
def _steps(coroutine: Coroutine[Any, Any, T], line: Line) -> Generator[Any, None, T]:
    pace = line.pace
    clock = pace.clock
    failure: BaseException | None = None
    while True:
        # Who is cancelled has to end, and is not waited for.
        if not (pace.is_free or isinstance(failure, asyncio.CancelledError)):
            place = _Place(asyncio.get_running_loop())
            line.wait(place.resolve)
            try:
                yield place
            except BaseException as error:
                failure = error
        began = clock()
        try:
            waited = coroutine.send(None) if failure is None else coroutine.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            failure = None  # else it and this frame, which its traceback has, would be a ring
            pace.spend(clock() - began)
        try:
            yield waited
        except BaseException as error:
            failure = error
        waited = None  # and so would what it is the failure of


class _Place:
    """A task's place in a line. A task takes it for a future; its next step is made within
    `resolve`, while that of a future would be made later, when nobody looks at the time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = True
        self._loop = loop
        self._wake: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._is_cancelled = False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that the task runs on."""
        return self._loop

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context) -> None:
        """The task that waits."""
        self._wake, self._context = wake, context

    def resolve(self) -> None:
        """It is its turn; a second call changes nothing."""
        wake, context = self._wake, self._context
        if wake is not None and context is not None:
            self._wake = self._context = None
            context.run(wake, self)
        # Who was cancelled keeps the error, and that this frame: no ring is left of them.
        del wake, context

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled; it need not wait for its turn."""
        if self._wake is None:
            return False
        self._is_cancelled = True
        self._loop.call_soon(self.resolve)
        return True

    def result(self) -> None:
        """Raises CancelledError."""
        if self._is_cancelled:
            raise asyncio.CancelledError
