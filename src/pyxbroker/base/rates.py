"""Rates of counters that only grow."""

from __future__ import annotations

# A rate is taken over at least this time: that of Pulsar is a minute, Prometheus asks more often.
RATE_WINDOW_S = 10.0

STANDSTILL = (0.0, 0.0)


class Rates:
    """Messages and bytes per second since the begin of a window.

    The window begins anew when somebody asks at least RATE_WINDOW_S after its begin, so a second
    reader does not shorten the window of the first.
    """

    __slots__ = ("_began", "_messages", "_size")

    def __init__(self, now: float, messages: int, size: int) -> None:
        self._began = now
        self._messages = messages
        self._size = size

    def per_second(self, now: float, messages: int, size: int) -> tuple[float, float]:
        """Both rates at a time, in seconds, at which the counters are these."""
        elapsed = now - self._began
        messages_grown = messages - self._messages
        size_grown = size - self._size
        has_restarted = messages_grown < 0 or size_grown < 0
        if has_restarted or elapsed >= RATE_WINDOW_S:
            self._began = now
            self._messages = messages
            self._size = size
        if has_restarted or elapsed <= 0:
            return STANDSTILL
        return messages_grown / elapsed, size_grown / elapsed
