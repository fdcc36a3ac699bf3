"""Rates of monotonic counters."""

from __future__ import annotations

# The minimum time over which a rate is taken. Pulsar uses a minute, Prometheus scrapes more often.
RATE_WINDOW_S = 10.0


class Rates:
    """The growth of counters per second over the last completed window.

    A window ends with the first call at least window_s after its start. Until then all callers get
    the same rates, which are 0 before the first window ends.
    """

    __slots__ = ("_began", "_counters", "_last", "_window_s")

    def __init__(self, now: float, *counters: int, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._began = now
        self._counters = counters
        self._last = (0.0,) * len(counters)

    def per_second(self, now: float, *counters: int) -> tuple[float, ...]:
        """Return the rates, given the time in seconds and the current counters."""
        seconds = now - self._began
        if seconds >= self._window_s:
            grown = [new - old for new, old in zip(counters, self._counters, strict=True)]
            # A counter that fell was restarted: its earlier value is unknown.
            has_restarted = min(grown) < 0
            self._last = tuple(0.0 if has_restarted else each / seconds for each in grown)
            self._began = now
            self._counters = counters
        return self._last
