"""What Python sees of turn_watch.pyx: how long the event loop's turns take."""

import asyncio

CLOSED: int
STALLED: int
ENDED: int

class TurnWatch:
    """Measures the turns of one uvloop. Made, and closed, by the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        """A turn of limit_s or more is a stall. Raises RuntimeError where libuv is out of reach."""
    def wait(self) -> tuple[int, int, float]:
        """Blocks until there is something to tell: (what, turn, seconds). For one other thread.

        STALLED: this turn takes longer than it should, now; it is told again when it is stuck.
        ENDED: it took so long. CLOSED: that was all.
        """
    def lasts(self, turn: int) -> float:
        """Seconds that this turn has lasted by now; 0 when it is over."""
    def histogram(self) -> tuple[list[tuple[float, int]], float]:
        """(seconds at most, turns) for each bucket, the last one without a bound; all seconds."""
    def close(self) -> None:
        """No turn is measured any more; who waits is told CLOSED. A second call changes nothing."""
