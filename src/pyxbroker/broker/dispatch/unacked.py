"""What consumers of all subscriptions of this broker have unacknowledged together."""

from __future__ import annotations

from collections.abc import Callable

from pyxbroker.dispatch import UnackedCount


class BrokerUnacked(UnackedCount):
    """Their number, and whoever has to wait until it is small again (maxUnackedMessagesPerBroker).

    At the limit, subscriptions that have more than their share get nothing until less than half of
    the limit is left, or less than their share.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._waiting: set[Callable[[], None]] = set()

    def when_it_goes_on(self, call: Callable[[], None]) -> None:
        """Calls call() once when the broker is not at its limit any more."""
        self._waiting.add(call)

    def go_on(self) -> None:
        """Something was acknowledged: wakes those who wait, when that is enough."""
        if self._waiting and not self.blocked:
            waiting, self._waiting = self._waiting, set()
            for call in waiting:
                call()
