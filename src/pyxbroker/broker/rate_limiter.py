"""A rate limit shared by many users: its tokens, and the queue of users that wait for them.

A user without tokens goes to the end of the queue. The first one resumes when there are tokens
again. So all users get their turn, and their work is spread evenly over each second.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.base.tokens import Tokens

if TYPE_CHECKING:
    from pyxbroker.turn import Turn

TICK_S = 0.002  # timers have a resolution of a millisecond


class RateLimiter:
    """Limits messages and bytes per second; 0 means unlimited."""

    __slots__ = (
        "_loop",
        "_next",
        "_queue",
        "_resumed_max",
        "_timer",
        "_turn",
        "_was_used",
        "tokens",
    )

    def __init__(self, turn: Turn, messages_per_s: float, bytes_per_s: float) -> None:
        self._turn = turn
        self._loop: asyncio.AbstractEventLoop = turn.loop
        self.tokens = Tokens(self._loop.time(), messages_per_s, bytes_per_s)
        self._queue: OrderedDict[Callable[[], object], None] = OrderedDict()
        self._next: Callable[[], object] | None = None  # the user being resumed
        self._timer: asyncio.TimerHandle | None = None
        self._resumed_max = 1  # users resumed per round without using tokens
        self._was_used = False  # tokens were used since the last resume

    def set_rates(self, messages_per_s: float, bytes_per_s: float) -> None:
        """Change the rates, and the wake-up time of the queue."""
        self.tokens.set_rates(self._loop.time(), messages_per_s, bytes_per_s)
        self._set_timer()

    def spend(self, messages: int, size: int) -> bool:
        """Use tokens. Return False if no tokens are left."""
        self._was_used = True
        return self.tokens.take(messages, size) or self.tokens.fill(self._loop.time())

    def has_tokens(self) -> bool:
        """Return True if tokens are left now."""
        return self.tokens.fill(self._loop.time())

    @property
    def has_waiting(self) -> bool:
        """True if users wait."""
        return bool(self._queue)

    def is_resuming(self, call: Callable[[], object]) -> bool:
        """Return True while the limiter resumes this user."""
        return call == self._next

    def is_waiting(self, call: Callable[[], object]) -> bool:
        """Return True if a user is in the queue."""
        return call in self._queue

    def wait(self, call: Callable[[], object]) -> bool:
        """Add a user to the queue, to be called once. Return False if it waits already."""
        if call in self._queue:
            return False
        self._queue[call] = None
        if self._timer is None:
            self._set_timer()
        return True

    def leave(self, call: Callable[[], object]) -> bool:
        """Remove a user from the queue. Return False if it did not wait."""
        if call not in self._queue:
            return False
        del self._queue[call]
        if not self._queue:
            self._stop_timer()
        return True

    def stop(self) -> list[Callable[[], object]]:
        """Remove the rate limit. Return the waiting users, which are not called."""
        self._stop_timer()
        queue, self._queue = self._queue, OrderedDict()
        return list(queue)

    def _on_timer(self) -> None:
        self._timer = None
        if self.has_tokens():
            self._serve()
        self._set_timer()

    def _serve(self) -> None:
        """Resume the first user, and further ones while tokens are left.

        Some users take tokens later, or never. These must not delay the others, so the number of
        resumed users doubles while no tokens are used.
        """
        self._resumed_max = 1 if self._was_used else self._resumed_max * 2
        self._was_used = False
        later = 0
        for _ in range(len(self._queue)):
            self._next, _ = self._queue.popitem(last=False)
            was_used, self._was_used = self._was_used, False
            self._next()
            later += not self._was_used
            self._was_used |= was_used
            if later == self._resumed_max or not (self._queue and self.has_tokens()):
                break
        self._next = None

    def _set_timer(self) -> None:
        self._stop_timer()
        if self._queue:
            delay = max(self.tokens.short_s, TICK_S)
            self._timer = self._loop.call_later(delay, self._turn.run, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
