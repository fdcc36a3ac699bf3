"""What Python sees of turn.pyx: what is due at the end of what happens now."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pyxbroker.turn_watch import TurnWatch

_T = TypeVar("_T")

class Share:
    """Calls that together take no more than a share of a turn of the loop, and one call more."""

    turn_ns: int
    """Of a turn of the loop, for all of them."""
    call_ns: int
    """A call that has lasted so long asks for another turn."""

    def now_ns(self) -> int:
        """The time that lasts_long() compares with."""
    def lasts_long(self, began_ns: int) -> bool:
        """Whether a call that began then has to let others go on, and ask for another turn."""
    def run(self, call: Callable[[], object]) -> None:
        """Calls call() now when there is time left in this turn, else when it is its turn."""
    def later(self, call: Callable[[], object]) -> None:
        """Calls call() in another turn; who waits already keeps its place."""

class Turn:
    """Collects the calls that are due once at the end of what happens now."""

    watch: TurnWatch | None
    """Told when a turn begins; it measures the loop's turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the turns are of."""
    @property
    def news(self) -> Share:
        """For telling of new entries."""
    @property
    def more(self) -> Share:
        """For dispatchers that have more to do."""
    def at_end(self, call: Callable[[], object]) -> None:
        """Calls call() when the current turn ends; in a turn of its own when there is none."""
    def at_last(self, call: Callable[[], object]) -> None:
        """The same, after everything that at_end was asked for."""
    def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Calls function(*args) as a turn."""
