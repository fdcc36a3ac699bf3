"""Token buckets for rate limits.

More tokens may be taken than are available. The result is a debt, and nothing more is allowed until
it is paid off. So a rate holds over time, whatever the size of each operation. The caller passes
the time in; nothing here reads a clock.
"""

from __future__ import annotations

import math

SAVED_S = 0.05  # how long unused tokens accumulate


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
        """Change the rates from now on. A debt does not grow."""
        if self._filled_at < now:
            self.fill(now)
        self._messages_per_s = messages_per_s
        self._bytes_per_s = bytes_per_s
        self._messages_max = max(messages_per_s * SAVED_S, 1.0) if messages_per_s else math.inf
        self._bytes_max = max(bytes_per_s * SAVED_S, 1.0) if bytes_per_s else math.inf
        self.messages = min(self.messages, self._messages_max) if messages_per_s else math.inf
        self.bytes = min(self.bytes, self._bytes_max) if bytes_per_s else math.inf

    def take(self, messages: int, size: int) -> bool:
        """Take tokens. False means that they may be used up, which `fill` determines."""
        self.messages -= messages
        self.bytes -= size
        return self.messages > 0 < self.bytes

    def fill(self, now: float) -> bool:
        """Add the tokens since the last call. Return True if there is neither shortage nor debt."""
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
        """The seconds it takes to pay off the debt of the last `fill`."""
        seconds = 0.0
        if self.messages < 0:
            seconds = -self.messages / self._messages_per_s
        if self.bytes < 0:
            seconds = max(seconds, -self.bytes / self._bytes_per_s)
        return seconds
