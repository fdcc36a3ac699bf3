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

from pyxbroker.broker.dispatch.dispatch_limiter import DispatchLimiter, updated_limiter
from pyxbroker.delivery import SentCount

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.interfaces import DispatchedSubscription

CAUGHT_UP_MAX = 1000  # backlog, in entries, of a subscription that counts as caught up
LIMITS = ("BrokerLimit", "TopicLimit", "SubscriptionLimit")
AVERAGE_WEIGHT = 0.25  # of the newest delivery in the moving average


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

    def on_policies(self, subscription: DispatchedSubscription) -> bool:
        """Apply the topic's changed policies. Return True if a rate limits the dispatcher now."""
        topic = subscription.topic
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

    def allowance(
        self, subscription: DispatchedSubscription, count: int, size: int
    ) -> tuple[int, int] | None:
        """Return the (entries, bytes) that may be read, at most these. None: nothing now; the
        dispatcher is woken when it may continue.
        """
        self.settle(subscription)
        if self._is_exempt(subscription):
            return count, size
        messages = size_left = math.inf
        for limiter in self._limiters:
            if limiter.is_resuming(self._wake):
                # It keeps its turn at this rate while it waits for another one.
                self._had_turn.add(limiter)
            has_tokens = limiter.has_tokens()
            if not has_tokens or (limiter.has_waiting and limiter not in self._had_turn):
                if limiter.wait(self._wake) and not has_tokens:
                    self._count(subscription, limiter)
                return None
            messages = min(messages, limiter.tokens.messages)
            size_left = min(size_left, limiter.tokens.bytes)
        if not math.isinf(messages):
            count = int(min(max(messages / self._messages_per_entry, 1.0), count))
        return count, int(min(max(size_left, 1.0), size))

    @property
    def waits_for(self) -> list[tuple[str, DispatchLimiter]]:
        """The limits in whose queues the dispatcher waits, by name."""
        both = zip(self._limits, self._limiters, strict=True)
        return [(name, limiter) for name, limiter in both if limiter.is_waiting(self._wake)]

    def _count(self, subscription: DispatchedSubscription, limiter: DispatchLimiter) -> None:
        """Count for the statistics that a limit has delayed the subscription."""
        limit = self._limits[self._limiters.index(limiter)]
        what = "Msg" if limiter.tokens.messages <= 0 else "Bytes"
        if subscription.throttled is None:
            subscription.throttled = Counter()
        subscription.throttled[f"dispatchThrottled{what}EventsBy{limit}"] += 1

    def settle(self, subscription: DispatchedSubscription) -> None:
        """Charge what was sent since the last call."""
        entries, messages, size = self.sent.take()
        if not entries:
            return
        self._had_turn.clear()
        if subscription.topic.policies.dispatch_rate_by_entries:
            messages = entries
        average, before = messages / entries, self._messages_per_entry
        if math.isinf(before):
            before = average
        self._messages_per_entry = before + (average - before) * AVERAGE_WEIGHT
        if not self._is_exempt(subscription):
            for limiter in self._limiters:
                limiter.spend(messages, size)

    @staticmethod
    def _is_exempt(subscription: DispatchedSubscription) -> bool:
        if subscription.topic.policies.dispatch_rate_when_caught_up:
            return False
        return subscription.backlog <= CAUGHT_UP_MAX

    def retire(self) -> None:
        """Leave all queues: the dispatcher is abandoned, or has no rate any more."""
        for limiter in self._limiters:
            limiter.leave(self._wake)
        del self._wake
