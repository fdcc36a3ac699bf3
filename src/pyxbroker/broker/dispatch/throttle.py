"""How much may be sent to consumers in a second: of the broker, of a topic, of a subscription.

Before a dispatcher reads it is told how much of that the rates allow, and what it has sent is
charged afterwards. So a batch may be more than was allowed; then nothing is sent until that is paid
off. A rate for a longer period is spread over it. Mirrors Pulsar's DispatchRateLimiter.
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

FOLLOW_S = 1.0  # between two looks at how much is published
CAUGHT_UP_MAX = 1000  # entries that a subscription may be behind, and still has caught up
LIMITS = ("BrokerLimit", "TopicLimit", "SubscriptionLimit")
AVERAGE_WEIGHT = 0.25  # of the newest delivery among all before it


class Published:
    """How much is published to a topic in a second, for all limiters that follow it.

    Of many producers all are asked: that is done once for however many subscriptions there are.
    """

    __slots__ = ("_per_second", "_received", "_seen", "_seen_at")

    def __init__(self, received: Counters) -> None:
        self._received = received
        self._seen: tuple[int, int] | None = None  # None: nobody has looked yet
        self._seen_at = 0.0
        self._per_second = (0.0, 0.0)

    def look(self, now: float) -> tuple[float, float]:
        """Messages and bytes in a second, between the last two looks at what was received."""
        if self._seen is None:
            self._seen, self._seen_at = self._received(), now
        elif now - self._seen_at >= FOLLOW_S:
            seen, seconds = self._received(), now - self._seen_at
            messages, size = (new - old for new, old in zip(seen, self._seen, strict=True))
            self._seen, self._seen_at = seen, now
            self._per_second = messages / seconds, size / seconds
        return self._per_second


class DispatchLimiter(RateLimiter):
    """One such rate. `published` is what a relative one is on top of."""

    __slots__ = ("_looked_at", "_published", "rate")

    def __init__(self, turn: Turn, rate: DispatchRate, published: Published | None = None) -> None:
        super().__init__(turn, 0, 0)
        self._published = published
        self.change(rate)

    def change(self, rate: DispatchRate) -> None:
        """From now on it is another one."""
        self.rate = rate
        # What was published before counts for nothing.
        self._look()
        self._set(0.0, 0.0)

    def has_tokens(self) -> bool:
        if self.rate.relative and self._loop.time() - self._looked_at >= FOLLOW_S:
            self._set(*self._look())
        return super().has_tokens()

    def _set(self, published_messages: float, published_bytes: float) -> None:
        rate = self.rate
        messages, size = rate.messages / rate.period_s, rate.bytes / rate.period_s
        self.set_rates(
            messages + published_messages if messages else 0,
            size + published_bytes if size else 0,
        )

    def _look(self) -> tuple[float, float]:
        """How much is published in a second."""
        now = self._looked_at = self._loop.time()
        if not self.rate.relative or self._published is None:
            return 0.0, 0.0
        return self._published.look(now)


def changed(
    limiter: DispatchLimiter | None,
    rate: DispatchRate,
    turn: Turn,
    published: Published | None,
) -> DispatchLimiter | None:
    """The limiter of a rate that is this one from now on; None where it limits nothing."""
    if not (rate.messages or rate.bytes):
        if limiter is not None:
            # Dispatchers are told of policies, and go on by themselves.
            limiter.stop()
        return None
    if limiter is None:
        return DispatchLimiter(turn, rate, published)
    if limiter.rate != rate:
        limiter.change(rate)
    return limiter


class Throttle:
    """The rates that hold for one dispatcher."""

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
        self._limits: list[str] = []  # whose each of them is
        self._had_turn: set[DispatchLimiter] = set()  # since it has sent something
        self._messages_per_entry = math.inf  # until one was sent: the first one is read alone

    def on_policies(self, dispatcher: Dispatcher) -> bool:
        """The topic's policies have changed; whether any rate limits the dispatcher now."""
        topic, subscription = dispatcher.topic, dispatcher.subscription
        limiter = subscription.dispatch_limiter = changed(
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
        """(entries, bytes) that may be read of what consumers can take; None: nothing now, and the
        dispatcher is woken when it may go on.
        """
        self.settle(dispatcher)
        if self._is_exempt(dispatcher):
            return count, size
        messages = size_left = math.inf
        for limiter in self._limiters:
            if limiter.is_turn_of(self._wake):
                # Its turn at one rate is not lost while it waits for another.
                self._had_turn.add(limiter)
            has_tokens = limiter.has_tokens()
            if not has_tokens or (limiter.has_line and limiter not in self._had_turn):
                if limiter.wait(self._wake) and not has_tokens:
                    self._count(dispatcher.subscription, limiter)
                return None
            messages = min(messages, limiter.tokens.messages)
            size_left = min(size_left, limiter.tokens.bytes)
        if not math.isinf(messages):
            count = int(min(max(messages / self._messages_per_entry, 1.0), count))
        return count, int(min(max(size_left, 1.0), size))

    def _count(self, subscription: Subscription, limiter: DispatchLimiter) -> None:
        """A limit holds the subscription back, for the statistics."""
        limit = self._limits[self._limiters.index(limiter)]
        what = "Msg" if limiter.tokens.messages <= 0 else "Bytes"
        if subscription.throttled is None:
            subscription.throttled = Counter()
        subscription.throttled[f"dispatchThrottled{what}EventsBy{limit}"] += 1

    def settle(self, dispatcher: Dispatcher) -> None:
        """Charges what was sent since the last time."""
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
        """Its dispatcher does nothing any more, or has no rate."""
        for limiter in self._limiters:
            limiter.leave(self._wake)
        del self._wake
