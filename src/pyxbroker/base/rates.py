"""Rates of counters that only grow."""

from __future__ import annotations

# A rate is taken over at least this time: that of Pulsar is a minute, Prometheus asks more often.
RATE_WINDOW_S = 10.0


class Rates:
    """How much counters grow per second, over the last window that has ended.

    It is asked now and then: a window ends when somebody asks at least window_s after its begin.
    Until then everybody is told the same, however many ask; before the first end it is 0.
    """

    __slots__ = ("_began", "_counters", "_last", "_window_s")

    def __init__(self, now: float, *counters: int, window_s: float = RATE_WINDOW_S) -> None:
        self._window_s = window_s
        self._began = now
        self._counters = counters
        self._last = (0.0,) * len(counters)

    def per_second(self, now: float, *counters: int) -> tuple[float, ...]:
        """The rates at a time, in seconds, at which the counters are these."""
        seconds = now - self._began
        if seconds >= self._window_s:
            grown = [new - old for new, old in zip(counters, self._counters, strict=True)]
            # A counter that fell began anew: what it counted before is not known.
            has_restarted = min(grown) < 0
            self._last = tuple(0.0 if has_restarted else each / seconds for each in grown)
            self._began = now
            self._counters = counters
        return self._last
