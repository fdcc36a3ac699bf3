"""What Python sees of turn.pyx: what is due at the end of what happens now."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from pyxbroker.turn_watch import TurnWatch

_T = TypeVar("_T")

class Turn:
    """Collects the calls that are due once at the end of what happens now."""

    watch: TurnWatch | None
    """Told when a turn begins; it measures the loop's turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the turns are of."""
    def at_end(self, call: Callable[[], object]) -> None:
        """Calls call() when the current turn ends; in a turn of its own when there is none."""
    def at_last(self, call: Callable[[], object]) -> None:
        """The same, after everything that at_end was asked for."""
    def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Calls function(*args) as a turn."""
