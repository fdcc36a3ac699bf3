"""What consumers of all subscriptions of this broker have unacknowledged together."""

from __future__ import annotations

from collections.abc import Callable

from pyxbroker.delivery import UnackedCount
from pyxbroker.turn import Share


class BrokerUnacked(UnackedCount):
    """Their number, and whoever has to wait until it is small again (maxUnackedMessagesPerBroker).

    At the limit, subscriptions that have more than their share get nothing until less than half of
    the limit is left, or less than their share.
    """

    def __init__(self, limit: int, more: Share) -> None:
        super().__init__(limit)
        self._more = more
        self._waiting: dict[Callable[[], None], None] = {}  # in the order of their turn

    def on_unblocked(self, call: Callable[[], None]) -> None:
        """Calls call() once when the broker is not at its limit any more.

        Who asks again, having been served meanwhile, goes behind the others.
        """
        self._waiting.pop(call, None)
        self._waiting[call] = None

    def go_on(self) -> None:
        """Something was acknowledged: wakes those who wait, when that is enough."""
        if self._waiting and not self.blocked:
            waiting, self._waiting = self._waiting, {}
            for call in waiting:
                self._more.run(call)
