"""Limiters of dispatch rates, and the publish rate that a relative rate is added to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.broker.rate_limiter import RateLimiter

if TYPE_CHECKING:
    from pyxbroker.policies.values import DispatchRate
    from pyxbroker.turn import Turn

Counters = Callable[[], tuple[int, int]]

FOLLOW_S = 1.0  # interval at which the publish rate is measured


class Published:
    """The publish rate of a topic, for all limiters relative to it.

    Measuring asks all producers, so subscriptions share one measurement.
    """

    __slots__ = ("_per_second", "_received", "_seen", "_seen_at")

    def __init__(self, received: Counters) -> None:
        self._received = received
        self._seen: tuple[int, int] | None = None  # None: not measured yet
        self._seen_at = 0.0
        self._per_second = (0.0, 0.0)

    def rates(self, now: float) -> tuple[float, float]:
        """Return messages and bytes per second, between the last two measurements."""
        if self._seen is None:
            self._seen, self._seen_at = self._received(), now
        elif now - self._seen_at >= FOLLOW_S:
            seen, seconds = self._received(), now - self._seen_at
            messages, size = (new - old for new, old in zip(seen, self._seen, strict=True))
            self._seen, self._seen_at = seen, now
            self._per_second = messages / seconds, size / seconds
        return self._per_second


class DispatchLimiter(RateLimiter):
    """One dispatch rate. A relative rate is added to the publish rate `published`."""

    __slots__ = ("_measured_at", "_published", "rate")

    def __init__(self, turn: Turn, rate: DispatchRate, published: Published | None = None) -> None:
        super().__init__(turn, 0, 0)
        self._published = published
        self.change(rate)

    def change(self, rate: DispatchRate) -> None:
        """Replace the rate."""
        self.rate = rate
        # Discard the measurement before the change.
        self._publish_rates()
        self._set(0.0, 0.0)

    def has_tokens(self) -> bool:
        if self.rate.relative and self._loop.time() - self._measured_at >= FOLLOW_S:
            self._set(*self._publish_rates())
        return super().has_tokens()

    def _set(self, published_messages: float, published_bytes: float) -> None:
        rate = self.rate
        messages, size = rate.messages / rate.period_s, rate.bytes / rate.period_s
        self.set_rates(
            messages + published_messages if messages else 0,
            size + published_bytes if size else 0,
        )

    def _publish_rates(self) -> tuple[float, float]:
        """Return the publish rate."""
        now = self._measured_at = self._loop.time()
        if not self.rate.relative or self._published is None:
            return 0.0, 0.0
        return self._published.rates(now)


def updated_limiter(
    limiter: DispatchLimiter | None,
    rate: DispatchRate,
    turn: Turn,
    published: Published | None,
) -> DispatchLimiter | None:
    """Return the limiter for a new rate, reusing the given one; None: the rate sets no limit."""
    if not (rate.messages or rate.bytes):
        if limiter is not None:
            # Dispatchers learn of the policies separately, and resume by themselves.
            limiter.stop()
        return None
    if limiter is None:
        return DispatchLimiter(turn, rate, published)
    if limiter.rate != rate:
        limiter.change(rate)
    return limiter
