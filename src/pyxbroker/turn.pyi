"""Type stub of turn.pyx: work at the end of a turn, and shares of a loop iteration."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pyxbroker.turn_watch import TurnWatch

_T = TypeVar("_T")

class Share:
    """Limits calls of one kind to a share of each loop iteration, and one more call."""

    turn_ns: int
    """Time per loop iteration for all calls, in ns."""
    call_ns: int
    """Time after which a call must yield and request another turn, in ns."""

    def now_ns(self) -> int:
        """Return the clock that has_used_slice() compares with."""
    def has_used_slice(self, began_ns: int) -> bool:
        """Return True if a call that started at began_ns must yield and request another turn."""
    def run(self, call: Callable[[], object]) -> None:
        """Run call() now if time is left in this loop iteration; otherwise queue it."""
    def later(self, call: Callable[[], object]) -> None:
        """Queue call() for a later loop iteration. A queued call keeps its place."""

class Turn:
    """Collects calls that run once at the end of the current turn."""

    watch: TurnWatch | None
    """Notified when a turn begins; measures loop iterations."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""
    @property
    def notifications(self) -> Share:
        """For notifications of new entries."""
    @property
    def dispatching(self) -> Share:
        """For dispatchers with more work."""
    def at_end(self, call: Callable[[], object]) -> None:
        """Run call() when the current turn ends, or in a turn of its own."""
    def at_last(self, call: Callable[[], object]) -> None:
        """Run call() after all calls registered with at_end()."""
    def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Run function(*args) as a turn."""
