"""Choosers: select the consumers of a subscription that get the next entries, and how many each.

A chooser has no part in reads, timers or sockets. It asks limits.py if a consumer can take entries
now. The chooser of Key_Shared is in key_shared.py.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from pyxbroker.base.errors import ConsumerBusy
from pyxbroker.broker.dispatch.chunks import ChunkedMessages
from pyxbroker.delivery import Rotation, count_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyxbroker.ackset import AckSet
    from pyxbroker.broker.dispatch.interfaces import DispatchedTopic
    from pyxbroker.broker.dispatch.key_shared import KeyQueue
    from pyxbroker.broker.dispatch.limits import Limits
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.connection import Connection
    from pyxbroker.delayed_index import DelayedIndex
    from pyxbroker.entry import EntryBatch


class Chooser:
    """The consumers of a subscription, and the order in which they get entries."""

    # One exists for each subscription, of which there may be a hundred thousand.
    __slots__ = ("_limits", "_topic", "chunked", "consumers", "key_queue")

    def __init__(self, topic: DispatchedTopic, limits: Limits, acks: AckSet) -> None:
        self.consumers: list[Consumer] = []
        self.key_queue: KeyQueue | None = None  # entries that wait for earlier ones of their key
        self.chunked: ChunkedMessages | None = None  # the consumer of each chunked message (Shared)
        self._topic = topic
        self._limits = limits

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises ConsumerBusy or ConsumerAssignError if it cannot join."""
        self.consumers.append(consumer)

    def forget(self, consumer: Consumer) -> None:
        """Remove a consumer from the rotation, after its deliveries were taken back."""

    def detach(self, consumer: Consumer) -> None:
        """Detach one consumer of a dispatcher that was abandoned together with all its
        consumers.
        """

    def on_policies(self) -> None:
        """Apply the topic's changed policies."""

    @property
    def wants_compacted(self) -> bool:
        """True if the next consumer reads the compacted view."""
        return bool(self.consumers) and self.consumers[0].reads_compacted

    def read_budget(self) -> tuple[int, int] | None:
        """Return the (entries, bytes) that consumers can take now, or None if they can take
        none.
        """
        raise NotImplementedError

    def send(
        self,
        batch: EntryBatch,
        acks: AckSet,
        redelivery_counts: dict[tuple[int, int], int],
        undeliverable: list[tuple[int, int]],
        delayed: DelayedIndex | None,
        again: bool,
    ) -> int:
        """Send what consumers can take. Return how many entries of the batch, from its first on,
        are done with.

        Adds positions that no consumer shall get to undeliverable. again: the entries lie before
        entries that were already sent.
        """
        raise NotImplementedError

    def send_unstored(self, batch: EntryBatch, start: int, stop: int, acks: AckSet) -> int:
        """Send what consumers can take now of entries start..stop-1, which are not stored. Return
        the number of messages that no consumer could take.
        """
        raise NotImplementedError


class SequentialChooser(Chooser):
    """Serves one consumer its share of entries, then the next consumer."""

    __slots__ = ()

    unstored_run_max = 0  # unstored entries in a row to one consumer; 0: no limit

    def next_consumer(self) -> Consumer | None:
        """Return the consumer that gets the next entries, or None if no consumer can take any."""
        raise NotImplementedError

    def served(self) -> None:
        """Note that the next consumer has received its share."""

    def share(self) -> int:
        """Return how many entries one consumer gets before the next consumer is served."""
        return self._topic.policies.read_batch_max

    def read_budget(self) -> tuple[int, int] | None:
        consumer = self.next_consumer()
        if consumer is None:
            return None
        policies = self._topic.policies
        return consumer.read_budget(policies.read_batch_max, policies.read_bytes_max)

    def send(
        self,
        batch: EntryBatch,
        acks: AckSet,
        redelivery_counts: dict[tuple[int, int], int],
        undeliverable: list[tuple[int, int]],
        delayed: DelayedIndex | None,
        again: bool,
    ) -> int:
        sent, count = 0, batch.count
        share = self.share()
        while sent < count:
            consumer = self.next_consumer()
            if consumer is None:
                break
            stop = min(count, sent + share)
            sent = consumer.deliver(
                batch, sent, stop, acks, redelivery_counts, undeliverable, delayed, self.chunked
            )
            self.served()
        return sent

    def send_unstored(self, batch: EntryBatch, start: int, stop: int, acks: AckSet) -> int:
        share = self.unstored_run_max or batch.count
        at = start
        while at < stop:
            consumer = self.next_consumer()
            if consumer is None:
                return count_messages(batch, at, stop)
            at = consumer.deliver(batch, at, min(at + share, stop), acks, {}, [])
            self.served()
        return 0


class SingleConsumer(SequentialChooser):
    """Exclusive: the subscription has one consumer."""

    __slots__ = ()

    def add(self, consumer: Consumer) -> None:
        if self.consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")
        super().add(consumer)

    def next_consumer(self) -> Consumer | None:
        for consumer in self.consumers:
            return consumer if self._limits.can_take(consumer) else None
        return None


def _rank(consumer: Consumer) -> tuple[int, str]:
    return consumer.priority_level, consumer.name


class SingleActive(SequentialChooser):
    """Failover: the active consumer gets all entries. failover.py decides which one is active."""

    __slots__ = ("active",)

    def __init__(self, topic: DispatchedTopic, limits: Limits, acks: AckSet) -> None:
        super().__init__(topic, limits, acks)
        self.active: Consumer | None = None

    def add(self, consumer: Consumer) -> None:
        # Pulsar's order; consumers of equal names keep the order in which they subscribed.
        insort(self.consumers, consumer, key=_rank)

    @property
    def wants_compacted(self) -> bool:
        return self.active is not None and self.active.reads_compacted

    def next_consumer(self) -> Consumer | None:
        active = self.active
        return active if active is not None and self._limits.can_take(active) else None


class RoundRobin(SequentialChooser):
    """Shared: entries go round-robin to consumers with permits. All chunks of a message go to the
    same consumer.
    """

    __slots__ = ("_rotation", "_waiting_for_room")

    unstored_run_max = 1  # as if each entry came alone

    def __init__(self, topic: DispatchedTopic, limits: Limits, acks: AckSet) -> None:
        super().__init__(topic, limits, acks)
        self.chunked = ChunkedMessages(acks)
        self._rotation = Rotation()
        # Callbacks registered with connections whose sockets are full.
        self._waiting_for_room: dict[Connection, Callable[[], None]] = {}

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        self._rotation.add(consumer)

    def forget(self, consumer: Consumer) -> None:
        self._rotation.remove(consumer)
        connection = consumer.connection
        if not self._rotation.is_waiting_for(connection):
            call = self._waiting_for_room.pop(connection, None)
            if call is not None:
                # Otherwise a client that reads nothing could add callbacks without end.
                connection.cancel_when_writable(call)

    def detach(self, consumer: Consumer) -> None:
        self.forget(consumer)

    def next_consumer(self) -> Consumer | None:
        """Return the next consumer in rotation, of the best priority level that can take
        entries.
        """
        rotation = self._rotation
        consumer: Consumer | None = rotation.next()
        for connection in rotation.take_newly_full():
            call = self._limits.wait_for_room(connection, self._has_room)
            self._waiting_for_room[connection] = call
        if consumer is None and rotation.is_limited:
            self._limits.wait_for_acks()
        return consumer

    def _has_room(self, connection: Connection) -> None:
        self._waiting_for_room.pop(connection, None)
        self._rotation.retry_connection(connection)

    def served(self) -> None:
        # The rotation advances only after a delivery. Choosing a consumer for a read does not
        # count.
        self._rotation.advance()

    def share(self) -> int:
        if len(self.consumers) == 1:
            return self._topic.policies.read_batch_max
        return self._topic.policies.round_robin_max
