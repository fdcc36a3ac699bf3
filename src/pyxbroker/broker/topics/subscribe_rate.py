"""The limit on how often a consumer may subscribe, by its address, name and id."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from pyxbroker.base.errors import NotAllowed

if TYPE_CHECKING:
    from pyxbroker.policies.values import SubscribeRate

ConsumerKey = tuple[str, str, int]  # a client's address, a consumer's name and its id

KNOWN_MAX = 4_096  # consumers of a topic, about 2 MB: a client may use a new name each time
FORGOTTEN_PER_CHECK = (
    4  # more than one, so that old consumers are forgotten faster than new ones come
)


class SubscribeLimiter:
    """The subscribe rate of one topic.

    Each check forgets a few consumers that have not subscribed for a whole period. Beyond KNOWN_MAX
    the consumer that subscribed longest ago is forgotten early, and may exceed its rate once.
    """

    def __init__(self, rate: SubscribeRate) -> None:
        self.rate = rate
        # The remaining attempts of each consumer, and the time of its last one; oldest first.
        self._left: OrderedDict[ConsumerKey, tuple[float, float]] = OrderedDict()

    def check(self, consumer: ConsumerKey, now: float) -> None:
        """Count an attempt of a consumer. Raises NotAllowed if it has subscribed too often."""
        self._forget(now)
        left, since = self._left.get(consumer, (float(self.rate.per_consumer), now))
        come = (now - since) * self.rate.per_consumer / self.rate.period_s
        left = min(left + come, float(self.rate.per_consumer))
        if left < 1:
            raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")
        self._left[consumer] = (left - 1, now)
        self._left.move_to_end(consumer)
        if len(self._left) > KNOWN_MAX:
            self._left.popitem(last=False)

    def _forget(self, now: float) -> None:
        for _ in range(FORGOTTEN_PER_CHECK):
            first = next(iter(self._left.values()), None)
            if first is None or now - first[1] < self.rate.period_s:
                return
            self._left.popitem(last=False)
