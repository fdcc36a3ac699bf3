"""What a rate allows: tokens that come all the time, and that are taken for what is done.

More may be taken than there is: then it is a debt, and nothing more is done until it is paid off.
So a rate holds over time, whatever size the parts are that something is done in. It knows no clock:
what the time is comes in from outside.
"""

from __future__ import annotations

import math

SAVED_S = 0.05  # how long tokens are saved up while nobody takes them


class Tokens:
    """Tokens for messages and for bytes. A rate of 0 is no limit."""

    __slots__ = (
        "_bytes_max",
        "_bytes_per_s",
        "_filled_at",
        "_messages_max",
        "_messages_per_s",
        "bytes",
        "messages",
    )

    def __init__(self, now: float, messages_per_s: float, bytes_per_s: float) -> None:
        self._filled_at = now
        self.messages = self.bytes = math.inf
        self.set_rates(now, messages_per_s, bytes_per_s)

    def set_rates(self, now: float, messages_per_s: float, bytes_per_s: float) -> None:
        """From now on they come at other rates; a debt is not larger than it was."""
        if self._filled_at < now:
            self.fill(now)
        self._messages_per_s = messages_per_s
        self._bytes_per_s = bytes_per_s
        self._messages_max = max(messages_per_s * SAVED_S, 1.0) if messages_per_s else math.inf
        self._bytes_max = max(bytes_per_s * SAVED_S, 1.0) if bytes_per_s else math.inf
        self.messages = min(self.messages, self._messages_max) if messages_per_s else math.inf
        self.bytes = min(self.bytes, self._bytes_max) if bytes_per_s else math.inf

    def take(self, messages: int, size: int) -> bool:
        """Takes tokens; False: they may be used up, and fill() says for sure."""
        self.messages -= messages
        self.bytes -= size
        return self.messages > 0 < self.bytes

    def fill(self, now: float) -> bool:
        """Adds what has come until now; whether there are tokens of both kinds, or no debts."""
        seconds = max(now - self._filled_at, 0.0)
        self._filled_at = now
        if self.messages < self._messages_max:
            more = self.messages + seconds * self._messages_per_s
            self.messages = min(more, self._messages_max)
        if self.bytes < self._bytes_max:
            self.bytes = min(self.bytes + seconds * self._bytes_per_s, self._bytes_max)
        return self.messages > 0 < self.bytes

    @property
    def short_s(self) -> float:
        """How long it takes to pay off the debt that there was when they were filled."""
        seconds = 0.0
        if self.messages < 0:
            seconds = -self.messages / self._messages_per_s
        if self.bytes < 0:
            seconds = max(seconds, -self.bytes / self._bytes_per_s)
        return seconds
