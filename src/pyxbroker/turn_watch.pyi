"""Type stub of turn_watch.pyx: durations of event loop iterations."""

import asyncio

CLOSED: int
STALLED: int
ENDED: int

class TurnWatch:
    """Measures the iterations of a uvloop. Created and closed by the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        """An iteration of limit_s or more is a stall. Raise RuntimeError if libuv is not
        accessible.
        """
    def wait(self) -> tuple[int, int, float]:
        """Block until an event occurs; return (event, iteration, seconds). Called by one other
        thread.

        STALLED: the current iteration exceeds the limit; reported again when it seems stuck. ENDED:
        a stalled iteration has ended after that time. CLOSED: the watch was closed.
        """
    def elapsed(self, turn: int) -> float:
        """Return how long an iteration has lasted so far, in seconds; 0 if it has ended."""
    def histogram(self) -> tuple[list[tuple[float, int]], float]:
        """Return (upper bound in seconds, count) of each bucket, the last one unbounded, and the
        total seconds.
        """
    def close(self) -> None:
        """Stop measuring, and make wait() return CLOSED. Further calls have no effect."""
