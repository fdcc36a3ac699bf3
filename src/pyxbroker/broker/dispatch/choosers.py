"""Choosers: which consumers of a subscription get the next entries, and how many each.

They know nothing of reads, timers or sockets: whether a consumer can take entries now is asked of
limits.py. Key_Shared's is in key_shared.py.
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
    from pyxbroker.broker.dispatch.dispatcher import Dispatcher
    from pyxbroker.broker.dispatch.key_shared import KeyQueue
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.connection import Connection
    from pyxbroker.delayed_index import DelayedIndex
    from pyxbroker.entry import EntryBatch


class Chooser:
    """The consumers of a subscription, and who of them is next."""

    # There may be a hundred thousand subscriptions, each with one of these.
    __slots__ = ("_limits", "_topic", "chunked", "consumers", "key_queue")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.consumers: list[Consumer] = []
        self.key_queue: KeyQueue | None = None  # entries that wait for their key's turn
        self.chunked: ChunkedMessages | None = None  # who gets their chunks, if that is a question
        self._topic = dispatcher.topic
        self._limits = dispatcher.limits

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy or ConsumerAssignError for a consumer that cannot join."""
        self.consumers.append(consumer)

    def forget(self, consumer: Consumer) -> None:
        """A consumer is not among the others any more, and what it had is taken back."""

    def let_go(self, consumer: Consumer) -> None:
        """All consumers are gone at once, and nothing is chosen any more."""

    def on_policies(self) -> None:
        """The topic's policies have changed."""

    @property
    def wants_compacted(self) -> bool:
        """Whether who is next reads the compacted view."""
        return bool(self.consumers) and self.consumers[0].reads_compacted

    def worth_reading(self) -> tuple[int, int] | None:
        """(entries, bytes) that consumers can take now; None: nobody can take any."""
        raise NotImplementedError

    def send(
        self,
        batch: EntryBatch,
        acks: AckSet,
        redelivery_counts: dict[tuple[int, int], int],
        left_out: list[tuple[int, int]],
        delayed: DelayedIndex | None,
        again: bool,
    ) -> int:
        """Sends what consumers can take; how many entries of the batch are done with, from its
        first on. Adds to left_out what no consumer shall get. again: they lie before others that
        were sent.
        """
        raise NotImplementedError

    def hand_out(self, batch: EntryBatch, start: int, stop: int, acks: AckSet) -> int:
        """Sends what consumers can take now of entries start..stop-1, which are not kept; returns
        the messages that nobody could.
        """
        raise NotImplementedError


class OneAtATime(Chooser):
    """One consumer gets its share, then the next one."""

    __slots__ = ()

    handed_out_max = 0  # entries in a row to one consumer, of those that are not kept; 0: any

    def next_consumer(self) -> Consumer | None:
        """The consumer that gets the next entries, or None when none can take any."""
        raise NotImplementedError

    def served(self) -> None:
        """Who was next has had its share."""

    def share(self) -> int:
        """How many entries one consumer gets before the next has its turn."""
        return self._topic.policies.read_batch_max

    def worth_reading(self) -> tuple[int, int] | None:
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
        left_out: list[tuple[int, int]],
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
                batch, sent, stop, acks, redelivery_counts, left_out, delayed, self.chunked
            )
            self.served()
        return sent

    def hand_out(self, batch: EntryBatch, start: int, stop: int, acks: AckSet) -> int:
        share = self.handed_out_max or batch.count
        at = start
        while at < stop:
            consumer = self.next_consumer()
            if consumer is None:
                return count_messages(batch, at, stop)
            at = consumer.deliver(batch, at, min(at + share, stop), acks, {}, [])
            self.served()
        return 0


class OnlyOne(OneAtATime):
    """Exclusive: there is one consumer."""

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


class SingleActive(OneAtATime):
    """Failover: one of the consumers gets everything; who it is and since when, failover.py
    says.
    """

    __slots__ = ("active",)

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        self.active: Consumer | None = None

    def add(self, consumer: Consumer) -> None:
        # Pulsar's order, which equal names keep as they came.
        insort(self.consumers, consumer, key=_rank)

    @property
    def wants_compacted(self) -> bool:
        return self.active is not None and self.active.reads_compacted

    def next_consumer(self) -> Consumer | None:
        active = self.active
        return active if active is not None and self._limits.can_take(active) else None


class RoundRobin(OneAtATime):
    """Shared: entries go round between consumers with permits, and chunks to who has the others of
    their message.
    """

    __slots__ = ("_rotation", "_waiting_for_room")

    handed_out_max = 1  # one after the other, as they would come one by one

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        self.chunked = ChunkedMessages(dispatcher.acks)
        self._rotation = Rotation()
        # What connections call that have consumers which wait for room in their sockets.
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
                # A client that reads nothing may come and go for ever.
                connection.cancel_when_writable(call)

    def let_go(self, consumer: Consumer) -> None:
        self.forget(consumer)

    def next_consumer(self) -> Consumer | None:
        """The next one in turn among those of the best priority level that can take entries."""
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
        # Only who got something has had its turn: choosing one to read for is not enough.
        self._rotation.advance()

    def share(self) -> int:
        if len(self.consumers) == 1:
            return self._topic.policies.read_batch_max
        return self._topic.policies.round_robin_max
