"""Limits of consumers: permits, unacknowledged messages, and room in their sockets.

A blocked consumer wakes the dispatcher when it can take entries again. For permits, the FLOW
command does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.delivery import UnackedCount

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyxbroker.broker.dispatch.interfaces import DispatchLoop
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.connection import Connection
    from pyxbroker.delivery import ConsumerState


class Limits:
    """The limits of one subscription's consumers."""

    __slots__ = ("_dispatcher", "_limited", "_stopped", "unacked")

    def __init__(self, dispatcher: DispatchLoop) -> None:
        topic = dispatcher.topic
        policies = topic.policies
        self._dispatcher = dispatcher
        # Unacknowledged messages of all consumers. _limited and _stopped note whether the limit
        # blocked a consumer at the last check.
        self.unacked = UnackedCount(
            policies.unacked_per_subscription_max, topic.unacked_in_broker, policies.unacked_share
        )
        self._limited = False
        self._stopped = False

    def retire(self) -> None:
        """Break the reference cycle with an abandoned dispatcher."""
        del self._dispatcher

    def hold_for(self, consumer: Consumer) -> None:
        """Count the unacknowledged messages of a consumer from now on."""
        self.apply_policies(consumer)
        consumer.unacked_total = self.unacked

    def on_policies(self) -> None:
        """Apply changed policies to the subscription, not to its consumers (apply_policies)."""
        self.unacked.set_limit(self._dispatcher.topic.policies.unacked_per_subscription_max)

    def apply_policies(self, consumer: Consumer) -> None:
        """Apply the policy for unacknowledged messages to a consumer."""
        consumer.set_unacked_max(self._dispatcher.topic.policies.unacked_per_consumer_max)

    def can_take(self, consumer: Consumer) -> bool:
        """Return True if a consumer can take entries. Otherwise arrange a wake-up, except for
        permits.
        """
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
        """Wake the dispatcher when the number of unacknowledged messages has shrunk."""
        self._limited = True
        self._stopped = self.unacked.is_stopped
        in_broker = self._dispatcher.topic.unacked_in_broker
        if in_broker is not None and in_broker.blocked:
            in_broker.on_unblocked(self._dispatcher.wake)

    def wait_for_room(
        self, connection: Connection, notify: Callable[[Connection], None]
    ) -> Callable[[], None]:
        """Call notify and wake the dispatcher when a socket has room. Return the registered
        callback.
        """
        dispatcher = self._dispatcher

        def has_room() -> None:
            notify(connection)
            dispatcher.wake()

        connection.when_writable(has_room)
        return has_room

    def on_acknowledged(self, consumer: Consumer) -> None:
        """Resume deliveries that waited for an acknowledgement."""
        in_broker = self._dispatcher.topic.unacked_in_broker
        if in_broker is not None:
            # Other subscriptions have waited longer than the one that acknowledges now.
            in_broker.resume()
        if self._limited:
            self.resume(consumer)

    def resume(self, consumer: ConsumerState) -> None:
        """Wake the dispatcher if a consumer's acknowledgement has lifted a limit."""
        if not self._limited:
            return
        if not consumer.is_blocked or (self._stopped and not self.unacked.is_stopped):
            self._limited = False
            self._dispatcher.wake()

    def wake_other_subscriptions(self) -> None:
        """Wake other subscriptions that wait for fewer unacknowledged messages in the broker."""
        in_broker = self._dispatcher.topic.unacked_in_broker
        if in_broker is not None:
            in_broker.resume()
