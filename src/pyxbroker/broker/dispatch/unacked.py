"""The number of unacknowledged messages of all subscriptions of the broker."""

from __future__ import annotations

from collections.abc import Callable

from pyxbroker.delivery import UnackedCount
from pyxbroker.turn import Share


class BrokerUnacked(UnackedCount):
    """Limits the broker's unacknowledged messages (maxUnackedMessagesPerBroker).

    At the limit, subscriptions above their share get nothing, until the broker falls below half of
    the limit, or the subscription below its share.
    """

    def __init__(self, limit: int, more: Share) -> None:
        super().__init__(limit)
        self._more = more
        self._waiting: dict[Callable[[], None], None] = {}  # in the order of arrival

    def on_unblocked(self, call: Callable[[], None]) -> None:
        """Call call() once when the broker is below its limit again.

        A caller that asks again goes to the end of the queue.
        """
        self._waiting.pop(call, None)
        self._waiting[call] = None

    def resume(self) -> None:
        """Wake waiting subscriptions if an acknowledgement has unblocked the broker."""
        if self._waiting and not self.blocked:
            waiting, self._waiting = self._waiting, {}
            for call in waiting:
                self._more.run(call)
