"""A persistent topic: a managed ledger, its producers and its subscriptions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.base.errors import (
    ConsumerBusy,
    NotAllowed,
    PersistenceError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ServiceNotReady,
    SubscriptionBusy,
    SubscriptionNotFound,
    TopicTerminated,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.rates import Rates
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.broker.topics.subscription import REPLICATED_SUBSCRIPTION, Subscription
from pyxbroker.entry import EntryRun, Position
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import delete_managed_ledger, delete_unreadable_cursor
from pyxbroker.mledger.termination import terminate
from pyxbroker.policies.table import DELETE_WHEN_NO_SUBSCRIPTIONS, Policies
from pyxbroker.turn import Turn

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.entry_source import EntrySource
    from pyxbroker.broker.topics.confirmed import ConfirmListener
    from pyxbroker.broker.topics.peeking import Peeking
    from pyxbroker.broker.topics.publish_steps import PublishStep

log = get_logger("pyxbroker.topic")


NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class SubscribeRequest(NamedTuple):
    """Which subscription a consumer wants, and where it begins if it is new."""

    subscription: str
    durable: bool = True  # False: a reader's
    earliest: bool = False  # else after the last entry
    start: Position | None = None  # a reader: the first entry that it gets
    since_ms: int | None = None  # a reader: the first publish time that it gets
    properties: Mapping[str, str] = NO_PROPERTIES  # of a new one
    replicated: bool = False


class Topic:
    """One topic that this broker serves."""

    def __init__(
        self,
        name: TopicName,
        managed_ledger: ManagedLedger,
        turn: Turn,
        policies: Policies,
        unacked_in_broker: BrokerUnacked | None = None,
    ) -> None:
        self.name = name
        self.managed_ledger = managed_ledger
        self.turn = turn
        self.loop: asyncio.AbstractEventLoop = turn.loop
        self.policies = policies
        self.unacked_in_broker = unacked_in_broker  # None: no limit
        self.wall_clock: Callable[[], float] = time.time  # s since the epoch
        self.partition: int = name.partition_index
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.fenced = False  # closing, or its log failed: clients have to look it up again
        self.being_deleted = False
        self._last_active = self.loop.time()  # when somebody was seen to use it
        self._readers: dict[str, Subscription] = {}  # non-durable subscriptions
        self._past_msg_in = 0  # of producers that are gone
        self._past_bytes_in = 0
        self.publish: Callable[[EntryRun], None] = managed_ledger.append
        """Appends a run of SENDs; its owner is told when it is durable. Raises ManagedLedgerError.

        Without publish steps it is the append itself."""
        self.source: EntrySource = managed_ledger  # of dispatchers
        self.rates: Rates | None = None  # of what comes in; once somebody asked for them
        managed_ledger.listener = self
        for cursor in managed_ledger.cursors.values():
            self.subscriptions[cursor.name] = Subscription(self, cursor.name, cursor)
        self._apply(policies)

    def on_policies(self, policies: Policies) -> None:
        """What holds for the topic has changed."""
        before = self.policies
        self._apply(policies)
        if policies.retention != before.retention:
            # What is there when a topic is opened stays until somebody looks at ages: a reader that
            # comes back shall find it.
            self.managed_ledger.trim()

    def _apply(self, policies: Policies) -> None:
        """Puts policies into force: when the topic is opened, and whenever they change.

        Numbers of producers, consumers and subscriptions are asked when another one comes; who is
        there stays.
        """
        self.policies = policies
        self.managed_ledger.limits = self.managed_ledger.limits.keeping(*policies.retention)
        for subscription in self.all_subscriptions():
            subscription.dispatcher.on_policies()

    # --- producers ----------------------------------------------------------------------------

    def holder(self, producer: Producer) -> Producer | None:
        """Who has a producer's name and does not give way to it."""
        old = self.producers.get(producer.name)
        return None if old is None or self._replaces(producer, old) else old

    def add_producer(self, producer: Producer) -> None:
        """Raises ProducerBusy when the name is taken or there are too many."""
        self.check_open()
        if self.is_terminated:
            raise TopicTerminated("Topic was already terminated")
        failure = self.managed_ledger.write_failure
        if failure is not None:
            # With this code clients fail the sends that they hold, instead of trying for ever.
            raise ProducerBlockedQuotaExceededException(str(failure))
        old = self.producers.get(producer.name)
        if old is not None and not self._replaces(producer, old):
            raise ProducerBusy(
                f"Producer with name '{producer.name}' is already connected to topic '{self.name}'"
            )
        limit = self.policies.producers_max
        if old is None and limit and len(self.producers) >= limit:
            raise ProducerBusy(
                f"Topic {self.name} has {limit} producers, which is its limit"
                " (maxProducersPerTopic)."
            )
        if old is not None:
            old.closed = True
            old.connection.forget_producer(old.producer_id)
            self._count_past(old)
        self.producers[producer.name] = producer

    @staticmethod
    def _replaces(producer: Producer, old: Producer) -> bool:
        """A client that reconnected before its old connection was seen to be gone takes over."""
        if old.connection.closed:
            return True
        return (
            not producer.user_provided_name
            and not old.user_provided_name
            and producer.epoch > old.epoch
        )

    def remove_producer(self, producer: Producer) -> None:
        producer.closed = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
            self._count_past(producer)
            self.on_used()

    def on_used(self) -> None:
        """Somebody who used it leaves: the time that it is inactive begins."""
        self._last_active = self.loop.time()

    def _count_past(self, producer: Producer) -> None:
        self._past_msg_in += producer.msg_in
        self._past_bytes_in += producer.bytes_in

    def received(self) -> tuple[int, int]:
        """Messages and bytes received since the topic was opened."""
        messages, size = self._past_msg_in, self._past_bytes_in
        for each in self.producers.values():
            messages += each.msg_in
            size += each.bytes_in
        return messages, size

    def set_publish_steps(self, steps: Sequence[PublishStep]) -> None:
        """Who looks at SENDs before they are appended from now on, in that order."""
        append = self.managed_ledger.append
        if not steps:
            self.publish = append
            return
        # Most topics have none.
        from pyxbroker.broker.topics.publish_steps import PublishChain

        self.publish = PublishChain(steps, append).publish

    def set_confirm_listeners(self, listeners: Sequence[ConfirmListener]) -> None:
        """Who is told from now on of what is durable, in that order."""
        from pyxbroker.broker.topics.confirmed import resolve

        self.managed_ledger.on_confirmed = resolve(listeners)

    # --- subscriptions ------------------------------------------------------------------------

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        """The subscription that a consumer wants, made if need be; the consumer is not added yet.

        Raises the error that Pulsar has for a consumer that cannot have it.
        """
        self.check_consumers()
        self._check_durability(request)
        if request.durable:
            start = self.first_position() if request.earliest else self.last_confirmed
            return await self.subscription_for(
                request.subscription,
                start,
                dict(request.properties),
                self.policies.auto_subscription_creation,
                request.replicated,
            )
        return self.reader_for(request.subscription, await self._reader_start(request))

    def _check_durability(self, request: SubscribeRequest) -> None:
        """A name is either that of a subscription or that of a reader."""
        if not self.name.is_persistent:
            return
        if request.subscription in (self._readers if request.durable else self.subscriptions):
            kind = "NonDurable" if request.durable else "Durable"
            raise NotAllowed(f"{kind} subscription with the same name already exists.")

    async def _reader_start(self, request: SubscribeRequest) -> Position:
        """The mark after which a reader begins."""
        if request.since_ms is not None:
            return await self.position_before_time(request.since_ms)
        if request.start is not None:
            return self.mark_before(request.start)
        return self.first_position() if request.earliest else self.last_confirmed

    def check_consumers(self) -> None:
        """Raises ConsumerBusy when the topic has as many consumers as it may have."""
        self.check_open()
        limit = self.policies.consumers_max
        if limit and sum(len(each.consumers) for each in self.all_subscriptions()) >= limit:
            raise ConsumerBusy(
                f"Topic {self.name} has {limit} consumers, which is its limit"
                " (maxConsumersPerTopic)."
            )

    async def subscription_for(
        self,
        name: str,
        mark_delete: Position,
        properties: dict[str, str],
        create: bool,
        replicated: bool = False,
    ) -> Subscription:
        """The durable subscription of that name; a new one starts after mark_delete.

        properties are those of a new one. Once replicated, a subscription stays so.
        """
        self.check_open()
        found = self.subscriptions.get(name)
        if found is not None:
            await found.cursor.created()
            if replicated:
                await found.set_replicated()
            return found
        if name in self.managed_ledger.unreadable:
            raise PersistenceError(
                f"The state of subscription {name} of {self.name} cannot be read; the broker's log"
                " says why."
            )
        if not create:
            raise SubscriptionNotFound(
                f"Subscription {name} of {self.name} does not exist, and it may not be created"
                " by a consumer (allowAutoSubscriptionCreation)."
            )
        limit = self.policies.subscriptions_max
        if limit and len(self.subscriptions) >= limit:
            raise NotAllowed(
                f"Topic {self.name} has {limit} subscriptions, which is its limit"
                " (maxSubscriptionsPerTopic)."
            )
        cursor = Cursor(self.managed_ledger, name, mark_delete)
        cursor.properties = properties
        if replicated:
            cursor.position_properties[REPLICATED_SUBSCRIPTION] = 1
        # From here on it counts, so that a second consumer of the name does not create it again and
        # nothing behind its position is trimmed.
        subscription = Subscription(self, name, cursor)
        self.subscriptions[name] = subscription
        self.managed_ledger.cursors[name] = cursor
        try:
            await cursor.create_node()
        except Exception:
            # The topic may have been deleted meanwhile, with both of them.
            self.subscriptions.pop(name, None)
            self.managed_ledger.cursors.pop(name, None)
            raise
        return subscription

    def reader_for(self, name: str, mark_delete: Position) -> Subscription:
        """A non-durable subscription: it lives as long as its consumer."""
        self.check_open()
        found = self._readers.get(name)
        if found is not None:
            return found
        cursor = Cursor(self.managed_ledger, name, mark_delete, durable=False)
        subscription = Subscription(self, name, cursor)
        self._readers[name] = subscription
        return subscription

    def drop_unused_reader(self, subscription: Subscription) -> None:
        """Forgets the subscription of a reader that is gone, unless it is coming (back)."""
        if not (subscription.consumers or subscription.arriving or subscription.closing):
            self._forget_reader(subscription)

    def _forget_reader(self, subscription: Subscription) -> None:
        if self._readers.get(subscription.name) is subscription:
            del self._readers[subscription.name]

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Deletes a subscription whose consumers are gone."""
        await subscription.delete()
        if subscription.cursor.durable:
            self.subscriptions.pop(subscription.name, None)
        self._forget_reader(subscription)

    async def delete_subscription(self, name: str, force: bool) -> None:
        """Deletes a durable subscription, also one whose cursor cannot be read; with force, its
        consumers are sent away.

        Raises SubscriptionNotFound, SubscriptionBusy, ServiceNotReady, MetadataError.
        """
        self.check_open()
        if name in self.managed_ledger.unreadable:
            await delete_unreadable_cursor(self.managed_ledger, name)
            return
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"Subscription {name} not found for topic {self.name}")
        await subscription.cursor.created()
        if subscription.consumers and not force:
            raise SubscriptionBusy("Subscription has active connected consumers")
        if subscription.closing:
            raise ServiceNotReady("Subscription is fenced")
        subscription.closing = True
        subscription.disconnect()
        await self.unsubscribe(subscription)

    # --- positions ----------------------------------------------------------------------------

    @property
    def entries(self) -> int:
        """Entries that are kept."""
        return self.managed_ledger.entries

    @property
    def storage_size(self) -> int:
        """Bytes that are kept."""
        return self.managed_ledger.size

    def first_position(self) -> Position:
        """Just before the first entry that is kept."""
        return self.managed_ledger.first_position()

    @property
    def last_confirmed(self) -> Position:
        """The last entry."""
        return self.managed_ledger.last_confirmed

    def mark_before(self, position: Position) -> Position:
        """The mark after which the entry at a position is the next one, or the first that is left
        behind it, or what is to come. Before all ledgers: the first that is kept.
        """
        if position.ledger_id < 0:
            return self.managed_ledger.first_position()
        following = self.managed_ledger.normalize(position)
        if following is None:
            return self.managed_ledger.last_confirmed
        return Position(following.ledger_id, following.entry_id - 1)

    async def last_message(self) -> tuple[Position, int]:
        """(position, batch index) of the last message; the index is -1 outside of a batch.

        Markers are no messages. (-1, -1) when there is no message.
        """
        managed_ledger = self.managed_ledger
        peeking = self._peeking("the last message")
        index = managed_ledger.entries
        while index > 0:
            position = managed_ledger.position_of(index - 1)
            peeked = await peeking.at(position)
            if not peeking.was_lost:
                if peeked is None or not (peeked.is_batch or peeked.marker_type >= 0):
                    return position, -1
                if peeked.marker_type < 0:
                    return position, peeked.num_messages - 1
            elif peeking.has_lost_too_many:
                peeking.report()
                raise PersistenceError(
                    f"The last {len(peeking.lost)} entries of {self.name} cannot be read; the"
                    " broker's log says why."
                )
            # Nobody gets a marker or what is lost, so no reader shall wait for it. Ledgers may have
            # been trimmed meanwhile, so it is counted anew.
            index = managed_ledger.ordinal(position) - 1
        return Position(-1, -1), -1

    async def position_before_time(self, publish_time_ms: int) -> Position:
        """The last position whose entry was published before a time, by bisection."""
        managed_ledger = self.managed_ledger
        end, count = managed_ledger.last_confirmed, managed_ledger.entries
        peeking = self._peeking("the first message of a time")

        def place(index: int) -> Position | None:
            # Counted back from the end, since ledgers may be trimmed meanwhile; None: it was.
            kept = managed_ledger.ordinal(end) - count + index
            return managed_ledger.position_of(kept) if kept >= 0 else None

        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            # An entry that is lost tells nothing: the one before it is asked.
            at = middle
            while (peeked := await peeking.at(place(at))) is None and at > low:
                at -= 1
            if peeked is not None and peeked.publish_time >= publish_time_ms:
                high = at
            else:
                low = middle + 1
        peeking.report()
        before = place(low - 1) if low else None
        return before or managed_ledger.first_position()

    def _peeking(self, what: str) -> Peeking:
        from pyxbroker.broker.topics.peeking import Peeking

        return Peeking(self.managed_ledger.read_one, self.name, what)

    # --- the end ------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises ServiceNotReady when the topic is not served here any more."""
        if self.fenced:
            raise ServiceNotReady(f"Topic {self.name} is being closed; look it up again.")

    def on_managed_ledger_failed(self, error: ManagedLedgerError) -> None:
        """Nothing more can be written: clients are sent away, and may find another owner."""
        log.error("the topic cannot be written any more", topic=self.name, error=error)
        self.fenced = True
        self.turn.at_end(self.disconnect)

    def on_managed_ledger_write_failed(self, error: ManagedLedgerError) -> None:
        """Nothing more can be written; consumers get on with what was acknowledged."""
        self.turn.at_end(self.close_producers)

    def disconnect(self) -> None:
        """Tells every client that the topic is not served here any more."""
        self.close_producers()
        for subscription in [*self.subscriptions.values(), *self._readers.values()]:
            subscription.disconnect()

    def close_producers(self, only_waiting: bool = False) -> int:
        """Sends producers away (or only those that wait for answers); how many SENDs they had
        pending. Their clients may open them again, and are told then why they cannot.
        """
        pending = 0
        for producer in list(self.producers.values()):
            if only_waiting and not producer.pending_sends:
                continue
            pending += producer.pending_sends
            connection = producer.connection
            connection.send_frame(replies.close_producer(producer.producer_id))
            connection.forget_producer(producer.producer_id)
            self.remove_producer(producer)
        return pending

    @property
    def is_gone(self) -> bool:
        """Its log has failed or was closed: it may be opened anew."""
        return self.managed_ledger.is_dead

    async def settle(self) -> None:
        """Waits, when it is gone, until nothing of it is under way any more."""
        await self.managed_ledger.settle()

    def take_back_waiting(self) -> None:
        """Fails the SENDs that wait for the next ledger, since there is no space for one."""
        self.managed_ledger.take_back_waiting()

    def check_age(self) -> None:
        """Closes and deletes ledgers that are old enough."""
        self.managed_ledger.check_age()

    def free_space(self) -> None:
        """Deletes what everybody has acknowledged, at once."""
        self.managed_ledger.roll_over_if_consumed()

    async def close(self) -> None:
        """Sends the clients away, makes everything durable, and lets the managed ledger go."""
        self.fenced = True
        self.disconnect()
        self.managed_ledger.take_back()
        await self.managed_ledger.close()

    @property
    def is_terminated(self) -> bool:
        """Nothing can be added any more; what is there can be read for ever."""
        return self.managed_ledger.is_terminated

    async def terminate(self) -> Position:
        """Lets nothing be added any more; returns the last position there will ever be.

        Raises ManagedLedgerError.
        """
        position = await terminate(self.managed_ledger)
        self.turn.run(self._on_terminated)
        return position

    def _on_terminated(self) -> None:
        self.close_producers()
        for subscription in self.all_subscriptions():
            subscription.tell_end()

    async def delete(self) -> None:
        """Deletes the topic with its subscriptions and messages; its clients are sent away.

        Raises MetadataError or ManagedLedgerError: then some of it may be left, and be opened.
        """
        self.fenced = True
        self.being_deleted = True
        self.disconnect()
        self.managed_ledger.take_back()
        try:
            await delete_managed_ledger(self.managed_ledger)
        finally:
            self.being_deleted = False

    def is_inactive(self, policies: Policies) -> bool:
        """Whether nobody has used the topic for so long that it may be deleted."""
        if self._is_used(policies.inactive_topics.mode):
            self._last_active = self.loop.time()
            return False
        since = self.loop.time() - self._last_active
        is_retained = self.name.is_persistent and not 0 <= policies.retention.time_s <= since
        return since >= policies.inactive_topics.max_inactive_s and not is_retained

    def _is_used(self, mode: str) -> bool:
        if self.producers or self._readers or self.managed_ledger.unreadable:
            return True
        subscriptions = self.subscriptions.values()
        if mode == DELETE_WHEN_NO_SUBSCRIPTIONS:
            return len(subscriptions) > 0
        return any(each.consumers or each.backlog > 0 for each in subscriptions)

    def all_subscriptions(self) -> list[Subscription]:
        """Durable ones and those of readers."""
        return [*self.subscriptions.values(), *self._readers.values()]
