"""How often a consumer may subscribe: known by its address, name and id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.base.errors import NotAllowed

if TYPE_CHECKING:
    from pyxbroker.policies.values import SubscribeRate

Who = tuple[str, str, int]  # a client's address, a consumer's name and its id


class SubscribeLimiter:
    """That of one topic. Who has not subscribed for a whole period is forgotten."""

    def __init__(self, rate: SubscribeRate, now: float) -> None:
        self.rate = rate
        self._left: dict[Who, tuple[float, float]] = {}  # how often it may, and when that was so
        self._forgot_at = now

    def check(self, who: Who, now: float) -> None:
        """Counts it. Raises NotAllowed when it has subscribed too often."""
        if now - self._forgot_at >= self.rate.period_s:
            self._forget(now)
        left, since = self._left.get(who, (float(self.rate.per_consumer), now))
        come = (now - since) * self.rate.per_consumer / self.rate.period_s
        left = min(left + come, float(self.rate.per_consumer))
        if left < 1:
            raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")
        self._left[who] = (left - 1, now)

    def _forget(self, now: float) -> None:
        since = now - self.rate.period_s
        self._left = {who: it for who, it in self._left.items() if it[1] > since}
        self._forgot_at = now
