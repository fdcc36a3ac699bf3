"""Dispatch rates: limit what the broker, a topic or a subscription sends per second.

Before a read, the dispatcher learns how much the rates allow. It is charged afterwards for what it
has sent. A batch may exceed the allowance; then nothing is sent until the debt is paid off. A rate
for a longer period is spread evenly. Mirrors Pulsar's DispatchRateLimiter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.broker.rate_limiter import RateLimiter
from pyxbroker.delivery import SentCount

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.dispatcher import Dispatcher
    from pyxbroker.broker.subscriptions.subscription import Subscription
    from pyxbroker.policies.values import DispatchRate
    from pyxbroker.turn import Turn

Counters = Callable[[], tuple[int, int]]

FOLLOW_S = 1.0  # interval at which the publish rate is measured
CAUGHT_UP_MAX = 1000  # backlog, in entries, of a subscription that counts as caught up
LIMITS = ("BrokerLimit", "TopicLimit", "SubscriptionLimit")
AVERAGE_WEIGHT = 0.25  # of the newest delivery in the moving average


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


class Throttle:
    """The rates that apply to one dispatcher."""

    __slots__ = (
        "_had_turn",
        "_limiters",
        "_limits",
        "_messages_per_entry",
        "_wake",
        "sent",
    )

    def __init__(self, wake: Callable[[], None]) -> None:
        self.sent = SentCount()
        self._wake = wake
        self._limiters: list[DispatchLimiter] = []
        self._limits: list[str] = []  # the name of each limiter's limit
        self._had_turn: set[DispatchLimiter] = (
            set()
        )  # limiters whose queue it has passed since the last delivery
        self._messages_per_entry = math.inf  # unknown at first: the first entry is read alone

    def on_policies(self, dispatcher: Dispatcher) -> bool:
        """Apply the topic's changed policies. Return True if a rate limits the dispatcher now."""
        topic, subscription = dispatcher.topic, dispatcher.subscription
        limiter = subscription.dispatch_limiter = updated_limiter(
            subscription.dispatch_limiter,
            topic.policies.dispatch_rate_of(subscription.name),
            topic.turn,
            topic.published,
        )
        limiters = (topic.broker_limits.dispatch, topic.dispatch_limiter, limiter)
        held = [each for each in zip(LIMITS, limiters, strict=True) if each[1] is not None]
        self._limits = [name for name, _ in held]
        self._limiters = [each for each in limiters if each is not None]
        return bool(self._limiters)

    def allowance(self, dispatcher: Dispatcher, count: int, size: int) -> tuple[int, int] | None:
        """Return the (entries, bytes) that may be read, at most these. None: nothing now; the
        dispatcher is woken when it may continue.
        """
        self.settle(dispatcher)
        if self._is_exempt(dispatcher):
            return count, size
        messages = size_left = math.inf
        for limiter in self._limiters:
            if limiter.is_resuming(self._wake):
                # It keeps its turn at this rate while it waits for another one.
                self._had_turn.add(limiter)
            has_tokens = limiter.has_tokens()
            if not has_tokens or (limiter.has_waiting and limiter not in self._had_turn):
                if limiter.wait(self._wake) and not has_tokens:
                    self._count(dispatcher.subscription, limiter)
                return None
            messages = min(messages, limiter.tokens.messages)
            size_left = min(size_left, limiter.tokens.bytes)
        if not math.isinf(messages):
            count = int(min(max(messages / self._messages_per_entry, 1.0), count))
        return count, int(min(max(size_left, 1.0), size))

    def _count(self, subscription: Subscription, limiter: DispatchLimiter) -> None:
        """Count for the statistics that a limit has delayed the subscription."""
        limit = self._limits[self._limiters.index(limiter)]
        what = "Msg" if limiter.tokens.messages <= 0 else "Bytes"
        if subscription.throttled is None:
            subscription.throttled = Counter()
        subscription.throttled[f"dispatchThrottled{what}EventsBy{limit}"] += 1

    def settle(self, dispatcher: Dispatcher) -> None:
        """Charge what was sent since the last call."""
        entries, messages, size = self.sent.take()
        if not entries:
            return
        self._had_turn.clear()
        if dispatcher.topic.policies.dispatch_rate_by_entries:
            messages = entries
        average, before = messages / entries, self._messages_per_entry
        if math.isinf(before):
            before = average
        self._messages_per_entry = before + (average - before) * AVERAGE_WEIGHT
        if not self._is_exempt(dispatcher):
            for limiter in self._limiters:
                limiter.spend(messages, size)

    @staticmethod
    def _is_exempt(dispatcher: Dispatcher) -> bool:
        if dispatcher.topic.policies.dispatch_rate_when_caught_up:
            return False
        return dispatcher.subscription.backlog <= CAUGHT_UP_MAX

    def retire(self) -> None:
        """Leave all queues: the dispatcher is abandoned, or has no rate any more."""
        for limiter in self._limiters:
            limiter.leave(self._wake)
        del self._wake
