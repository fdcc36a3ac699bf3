"""One rate that holds for many: its tokens, and the line of those who wait for some.

Who has used them up goes to the end of the line, and the first in it goes on when there are tokens
again. So all have their turn, however many they are, and what they do is spread over each second.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.base.tokens import Tokens

if TYPE_CHECKING:
    from pyxbroker.turn import Turn

TICK_S = 0.002  # timers are not more exact than a millisecond


class RateLimiter:
    """For messages and bytes in a second; 0 is no limit."""

    __slots__ = ("_at_once", "_line", "_loop", "_next", "_timer", "_turn", "_was_used", "tokens")

    def __init__(self, turn: Turn, messages_per_s: float, bytes_per_s: float) -> None:
        self._turn = turn
        self._loop: asyncio.AbstractEventLoop = turn.loop
        self.tokens = Tokens(self._loop.time(), messages_per_s, bytes_per_s)
        self._line: OrderedDict[Callable[[], object], None] = OrderedDict()
        self._next: Callable[[], object] | None = None  # whose turn it is
        self._timer: asyncio.TimerHandle | None = None
        self._at_once = 1  # how many of the line go on next that may use nothing
        self._was_used = False  # since one of it went on

    def set_rates(self, messages_per_s: float, bytes_per_s: float) -> None:
        """They have changed: who waits may have to wait longer, or not any more."""
        self.tokens.set_rates(self._loop.time(), messages_per_s, bytes_per_s)
        self._set_timer()

    def spend(self, messages: int, size: int) -> bool:
        """Something was done; False when nothing more may be done until there are tokens again."""
        self._was_used = True
        return self.tokens.take(messages, size) or self.tokens.fill(self._loop.time())

    def has_tokens(self) -> bool:
        """Whether something may be done now."""
        return self.tokens.fill(self._loop.time())

    @property
    def has_line(self) -> bool:
        """Whether somebody waits."""
        return bool(self._line)

    def is_turn_of(self, call: Callable[[], object]) -> bool:
        """Whether the limiter calls it just now."""
        return call == self._next

    def wait(self, call: Callable[[], object]) -> bool:
        """Calls call() once when it is its turn; False: it is in the line already."""
        if call in self._line:
            return False
        self._line[call] = None
        if self._timer is None:
            self._set_timer()
        return True

    def leave(self, call: Callable[[], object]) -> bool:
        """It waits no longer, if it did."""
        if call not in self._line:
            return False
        del self._line[call]
        if not self._line:
            self._stop_timer()
        return True

    def stop(self) -> list[Callable[[], object]]:
        """There is no such rate any more; those who wait are not called."""
        self._stop_timer()
        line, self._line = self._line, OrderedDict()
        return list(line)

    def _on_timer(self) -> None:
        self._timer = None
        if self.has_tokens():
            self._serve()
        self._set_timer()

    def _serve(self) -> None:
        """Lets the next go on, and those after it as long as tokens are left.

        Some take tokens only later, or never. Who has nothing to do must not keep the others
        waiting: while nothing is used, there are more of those each time.
        """
        self._at_once = 1 if self._was_used else self._at_once * 2
        self._was_used = False
        later = 0
        for _ in range(len(self._line)):
            self._next, _ = self._line.popitem(last=False)
            was_used, self._was_used = self._was_used, False
            self._next()
            later += not self._was_used
            self._was_used |= was_used
            if later == self._at_once or not (self._line and self.has_tokens()):
                break
        self._next = None

    def _set_timer(self) -> None:
        self._stop_timer()
        if self._line:
            delay = max(self.tokens.short_s, TICK_S)
            self._timer = self._loop.call_later(delay, self._turn.run, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
