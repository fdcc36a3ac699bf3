"""Whether consumers can take entries: permits, what is unacknowledged, and room in their sockets.

Who cannot take any wakes the dispatcher when it can again, but for its permits: FLOW does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.delivery import UnackedCount

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyxbroker.broker.dispatch.dispatcher import Dispatcher
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.connection import Connection
    from pyxbroker.delivery import ConsumerState


class Limits:
    """Those of one subscription's consumers."""

    __slots__ = ("_dispatcher", "_limited", "_stopped", "unacked")

    def __init__(self, dispatcher: Dispatcher) -> None:
        topic = dispatcher.topic
        policies = topic.policies
        self._dispatcher = dispatcher
        # What consumers may have unacknowledged together, and whether that kept somebody from
        # getting more when it was last asked for.
        self.unacked = UnackedCount(
            policies.unacked_per_subscription_max, topic.unacked_in_broker, policies.unacked_share
        )
        self._limited = False
        self._stopped = False

    def retire(self) -> None:
        """Their dispatcher does nothing any more."""
        del self._dispatcher

    def hold_for(self, consumer: Consumer) -> None:
        """What a consumer has unacknowledged counts from now on."""
        self.tell(consumer)
        consumer.unacked_total = self.unacked

    def on_policies(self) -> None:
        """The topic's policies have changed; consumers are told one by one."""
        self.unacked.set_limit(self._dispatcher.topic.policies.unacked_per_subscription_max)

    def tell(self, consumer: Consumer) -> None:
        """What a consumer may have unacknowledged is what policies say now."""
        consumer.set_unacked_max(self._dispatcher.topic.policies.unacked_per_consumer_max)

    def can_take(self, consumer: Consumer) -> bool:
        """Whether a consumer can get entries now; if not for its permits, it wakes us later."""
        if consumer.can_deliver:
            return True
        if consumer.permits <= 0 or consumer.closed:
            return False
        if consumer.is_blocked:
            self.wait_for_acks()
        elif not consumer.connection.closed:
            consumer.connection.when_writable(self._dispatcher.wake)
        return False

    def wait_for_acks(self) -> None:
        """Somebody has too much unacknowledged, and wakes us when that changes."""
        self._limited = True
        self._stopped = self.unacked.is_stopped
        in_broker = self._dispatcher.topic.unacked_in_broker
        if in_broker is not None and in_broker.blocked:
            in_broker.on_unblocked(self._dispatcher.wake)

    def wait_for_room(
        self, connection: Connection, tell: Callable[[Connection], None]
    ) -> Callable[[], None]:
        """When a socket takes more, tells of it and wakes us; what the connection calls then."""
        dispatcher = self._dispatcher

        def has_room() -> None:
            tell(connection)
            dispatcher.wake()

        connection.when_writable(has_room)
        return has_room

    def on_acknowledged(self, consumer: Consumer) -> None:
        """A consumer has acknowledged something: who waited for that goes on."""
        in_broker = self._dispatcher.topic.unacked_in_broker
        if in_broker is not None:
            # Others have waited longer than who acknowledges just now.
            in_broker.go_on()
        if self._limited:
            self.go_on(consumer)

    def go_on(self, consumer: ConsumerState) -> None:
        """A consumer has less unacknowledged: sends what waited for that."""
        if not self._limited:
            return
        if not consumer.is_blocked or (self._stopped and not self.unacked.is_stopped):
            self._limited = False
            self._dispatcher.wake()

    def let_others_go_on(self) -> None:
        """Less is unacknowledged: other subscriptions may have waited for that."""
        in_broker = self._dispatcher.topic.unacked_in_broker
        if in_broker is not None:
            in_broker.go_on()
