"""A topic: its producers and its subscriptions, whether or not what is published is kept.

What is kept is in persistent.py, and how it goes without that in non_persistent.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyxbroker.add_stats import NO_ADDS
from pyxbroker.base.errors import (
    ConsumerBusy,
    MetadataStoreError,
    NotAllowed,
    ProducerBusy,
    ServiceNotReady,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.rates import Rates
from pyxbroker.base.slices import Steps
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import NO_BROKER_LIMITS, BrokerLimits
from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch.entry_source import EntrySource
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from pyxbroker.broker.subscriptions.subscription import (
    COUNTED_PER_STEP,
    Subscription,
    SubscriptionCursor,
    SubscriptionType,
)
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.entry import EntryRun, Position
from pyxbroker.metadata.store import resolve
from pyxbroker.policies.values import (
    DELETE_WHEN_NO_SUBSCRIPTIONS,
    DispatchRate,
    Policies,
    Rate,
    SubscribeRate,
)
from pyxbroker.turn import Turn

if TYPE_CHECKING:
    from pyxbroker.broker.compaction.compacted import CompactedLedger
    from pyxbroker.broker.compaction.compaction import Compaction
    from pyxbroker.broker.dispatch.dispatch_limiter import DispatchLimiter, Published
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.broker.topics.access import ProducerAccess
    from pyxbroker.broker.topics.deduplication import Deduplication
    from pyxbroker.broker.topics.entry_metadata import EntryMetadata
    from pyxbroker.broker.topics.publish_rate import PublishRate
    from pyxbroker.broker.topics.publish_steps import PublishStep
    from pyxbroker.broker.topics.subscribe_rate import SubscribeLimiter, Who

log = get_logger("pyxbroker.topic")

NO_RATE = Rate()
NO_DISPATCH_RATE = DispatchRate()
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
    compacted: bool = False  # of what was compacted, only what was left


class Log(EntrySource, Protocol):
    """What a topic publishes to, and what its dispatchers read; a managed ledger is one."""

    def append(self, run: EntryRun) -> None:
        """Adds a run; its owner is told when it is durable. Raises ManagedLedgerError."""


class Topic:
    """One topic that this broker serves.

    What few of them ever have is of the class until then: up to 30 attributes, objects share what
    they are called.
    """

    auto_consumer_count = 0  # of consumer_count, those that take whatever schema there is
    access: ProducerAccess | None = None  # once a producer wanted the topic for itself
    being_deleted = False
    compacted: CompactedLedger | None = None  # once it was compacted
    compaction: Compaction | None = None  # once somebody asked for one
    deduplication: Deduplication | None = None  # while a policy asks for it
    entry_metadata: EntryMetadata | None = None  # where the broker puts some before entries
    epoch: int | None = None  # of the exclusive producer that came last; in metadata where it is
    evictions: Counter[str] | None = None  # by kind of quota, once a backlog exceeded one
    dispatch_limiter: DispatchLimiter | None = None  # where the topic has such a rate
    rates: Rates | None = None  # of what comes in; once somebody asked for them
    _calls: tuple[Iterator[Callable[[], None]], ...] = ()  # that go to many, bit by bit
    _publish_rate: PublishRate | None = None  # once there was one
    _published: Published | None = None  # once there was a dispatch rate
    _subscribe_limiter: SubscribeLimiter | None = None

    def __init__(
        self,
        name: TopicName,
        log: Log,
        turn: Turn,
        policies: Policies,
        unacked_in_broker: BrokerUnacked | None = None,
        broker_limits: BrokerLimits = NO_BROKER_LIMITS,
    ) -> None:
        self.name = name
        self.turn = turn
        self.loop: asyncio.AbstractEventLoop = turn.loop
        self.policies = policies
        self.unacked_in_broker = unacked_in_broker  # None: no limit
        self.broker_limits = broker_limits
        self.wall_clock: Callable[[], float] = time.time  # s since the epoch
        self.partition: int = name.partition_index
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.consumer_count = 0  # of all subscriptions, which count them as they come and go
        self.fenced = False  # closing, or its log failed: clients have to look it up again
        self._last_active = self.loop.time()  # when somebody was seen to use it
        self._readers: dict[str, Subscription] = {}  # non-durable subscriptions
        self._past_msg_in = 0  # of producers that are gone
        self._past_bytes_in = 0
        self._past_chunks_in = 0
        self._log = log
        self.publish: Callable[[EntryRun], None] = log.append
        """Appends a run of SENDs; its owner is told when it is durable. Raises ManagedLedgerError.

        Without publish steps and rates it is the append itself."""
        self._publish_steps: tuple[PublishStep, ...] = ()  # that were added
        self._policy_check: PublishStep | None = None  # the step that policies ask for
        self.ack_ranges_max = 0  # of a cursor that is stored as a whole; 0: any number
        self.source: EntrySource = log  # of dispatchers

    def on_policies(self, policies: Policies) -> None:
        """What holds for the topic has changed."""
        self._apply(policies)

    def on_broker_rates(self) -> None:
        """How much may be published to the broker, or sent by it, has changed."""
        self._apply(self.policies)

    def _apply(self, policies: Policies) -> None:
        """Puts policies into force: when the topic is opened, and whenever they change.

        Numbers of producers, consumers and subscriptions are asked when another one comes; who is
        there stays.
        """
        self.policies = policies
        check = self._policy_check_of(policies)
        if self._apply_publish_rate(policies.publish_rate) or check is not self._policy_check:
            self._policy_check = check
            self._resolve_publish()
        self._apply_dispatch_rate(policies)
        self._apply_subscribe_rate(policies.subscribe_rate)
        if self.producers or self.subscriptions or self._readers:
            self.call_bit_by_bit(self._tellings_while(policies))

    def _tellings_while(self, policies: Policies) -> Iterator[Callable[[], None]]:
        """Calls that tell all of these policies, as long as they are in force."""
        for telling in self._tellings():
            if self.policies is not policies:
                return  # whatever is in force now is told to all of them
            yield telling

    def _tellings(self) -> Iterator[Callable[[], None]]:
        """Calls that tell producers and dispatchers of what is in force. Those that are made
        meanwhile go by that.
        """
        rate = self._publish_rate
        if rate is not None:
            for producer in list(self.producers.values()):
                yield partial(rate.cut_runs, producer)
        for subscription in self.all_subscriptions():
            yield from subscription.dispatcher.policy_update_steps()

    # --- producers ----------------------------------------------------------------------------

    def replaced_by(self, producer: Producer) -> Producer | None:
        """Who gives way to a producer of the same name."""
        old = self.producers.get(producer.name)
        return old if old is not None and self._replaces(producer, old) else None

    async def keep_epoch(self, epoch: int) -> None:
        """An exclusive producer is about to have an epoch; it lasts as long as the topic."""
        self.epoch = epoch

    def last_sequence_id(self, name: str) -> int:
        """What a producer of that name has published last; -1 where that is not looked at."""
        return -1 if self.deduplication is None else self.deduplication.last_sequence_id(name)

    def holder(self, producer: Producer) -> Producer | None:
        """Who has a producer's name and does not give way to it."""
        old = self.producers.get(producer.name)
        return None if old is None or self._replaces(producer, old) else old

    def add_producer(self, producer: Producer) -> None:
        """Raises ProducerBusy when the name is taken or there are too many, and what a topic says
        to which nothing can be added.
        """
        self.check_open()
        self._check_writable()
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
        limit = self.policies.same_address_producers_max
        address = producer.connection.session.address
        if old is None and limit and count_of(address, self.producers.values()) >= limit:
            raise ProducerBusy(f"Topic '{self.name}' reached max same address producers limit")
        if old is not None:
            old.closed = True
            old.release()
            old.forget()
            self._count_past(old)
            self._release_rate(old)
        self.producers[producer.name] = producer
        if self._publish_rate is not None:
            self._publish_rate.cut_runs(producer)

    def check_encryption(self, is_encrypted: bool) -> None:
        """Raises MetadataStoreError for a producer that does not encrypt, where it has to."""
        if self.policies.encryption_required and not is_encrypted:
            raise MetadataStoreError(f"Encryption is required in {self.name}")

    def _check_writable(self) -> None:
        """Raises why nothing can be added to the topic, where that is so."""

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
        producer.release()
        self._release_rate(producer)
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
            self._count_past(producer)
            self.on_used()
            if self.access is not None:
                self.access.leave(producer)

    def on_used(self) -> None:
        """Somebody who used it leaves: the time that it is inactive begins."""
        self._last_active = self.loop.time()

    def _count_past(self, producer: Producer) -> None:
        self._past_msg_in += producer.msg_in
        self._past_bytes_in += producer.bytes_in
        self._past_chunks_in += producer.chunks_in

    def received(self) -> tuple[int, int]:
        """Messages and bytes received since the topic was opened."""
        messages, size = self._past_msg_in, self._past_bytes_in
        for each in self.producers.values():
            messages += each.msg_in
            size += each.bytes_in
        return messages, size

    def count_received(self) -> Steps[tuple[int, int]]:
        """The same, of some producers in a step: those that were there at its begin, whether they
        go meanwhile or not.
        """
        messages, size = self._past_msg_in, self._past_bytes_in
        for number, each in enumerate(list(self.producers.values()), 1):
            messages += each.msg_in
            size += each.bytes_in
            if number % COUNTED_PER_STEP == 0:
                yield
        return messages, size

    def look_for_chunks(self) -> Steps[bool]:
        """Whether a chunk of a message was received since the topic was opened. It looks at some
        producers in a step.
        """
        if self._past_chunks_in:
            return True
        for number, each in enumerate(list(self.producers.values()), 1):
            if each.chunks_in:
                return True
            if number % COUNTED_PER_STEP == 0:
                yield
        return False

    def on_not_stored(self, producer: Producer) -> None:
        """Note that SENDs of a producer will never be stored."""
        if self.deduplication is not None:
            self.deduplication.on_failed(producer)

    def add_publish_step(self, step: PublishStep) -> None:
        """Let a step check SENDs before they are appended, in the order of StepOrder."""
        self._publish_steps = (*self._publish_steps, step)
        self._resolve_publish()

    def remove_publish_step(self, step: PublishStep) -> None:
        """Remove a step that was added. Raises ValueError for a step that was not."""
        steps = list(self._publish_steps)
        steps.remove(step)
        self._publish_steps = tuple(steps)
        self._resolve_publish()

    def _resolve_publish(self) -> None:
        append = self._append
        self.publish = append
        steps = self._publish_steps
        if self._policy_check is not None:
            steps = (*steps, self._policy_check)
        if len(steps) > 1:
            steps = tuple(sorted(steps, key=lambda step: step.order))
        if self.deduplication is not None:
            self.publish = self.deduplication.publisher(steps, append)
        elif steps:
            # Most topics have none.
            from pyxbroker.broker.topics.publish_steps import PublishChain

            self.publish = PublishChain(steps, append).publish
        if self._publish_rate is not None and self._publish_rate.is_limit:
            self.publish = self._publish_rate.before(self.publish)

    def publish_own(self, run: EntryRun) -> None:
        """Appends a run that comes from no producer; policies look at it as at any other one.

        Raises PulsarError for one that they forbid or that the topic cannot have now, and
        ManagedLedgerError.
        """
        self.check_open()
        self._check_writable()
        if self._policy_check is not None:
            from pyxbroker.broker.topics.publish_steps import Publication

            publication = Publication(run)
            self._policy_check.check(publication)
            publication.raise_refusal()
        self._append(run)

    @property
    def _append(self) -> Callable[[EntryRun], None]:
        """Appends a run, whatever anybody says of it."""
        if self.entry_metadata is not None:
            return self.entry_metadata.append
        return self._log.append

    def _policy_check_of(self, policies: Policies) -> PublishStep | None:
        bytes_max = policies.message_bytes_max
        if bytes_max >= self.broker_limits.message_bytes_max:
            # What is larger does not get here: a frame's size is looked at before its message is.
            bytes_max = 0
        delay_max_ms = policies.delay_max_ms if policies.delayed_delivery else 0
        if not (bytes_max or delay_max_ms or policies.encryption_required):
            return None
        from pyxbroker.broker.topics.policy_checks import policy_checks

        return policy_checks(policies.encryption_required, bytes_max, delay_max_ms)

    def _apply_publish_rate(self, rate: Rate) -> bool:
        """Whether others limit it than before."""
        if self._publish_rate is None:
            if rate == NO_RATE and self.broker_limits.publish is None:
                return False
            # Most topics have none.
            from pyxbroker.broker.topics.publish_rate import PublishRate

            self._publish_rate = PublishRate(self.turn, self.broker_limits)
        return self._publish_rate.change(rate)

    def _apply_dispatch_rate(self, policies: Policies) -> None:
        if self.dispatch_limiter is not None or policies.dispatch_rate != NO_DISPATCH_RATE:
            from pyxbroker.broker.dispatch.dispatch_limiter import updated_limiter

            self.dispatch_limiter = updated_limiter(
                self.dispatch_limiter, policies.dispatch_rate, self.turn, self.published
            )

    @property
    def published(self) -> Published:
        """How much comes in, for rates that are relative to it."""
        if self._published is None:
            from pyxbroker.broker.dispatch.dispatch_limiter import Published

            self._published = Published(self.received)
        return self._published

    def _apply_subscribe_rate(self, rate: SubscribeRate) -> None:
        limiter = self._subscribe_limiter
        if rate.per_consumer == 0:
            self._subscribe_limiter = None
        elif limiter is None or limiter.rate != rate:
            from pyxbroker.broker.topics.subscribe_rate import SubscribeLimiter

            self._subscribe_limiter = SubscribeLimiter(rate)

    @property
    def limits_dispatch(self) -> bool:
        """Whether some rate limits what is sent to consumers."""
        return (
            self.dispatch_limiter is not None
            or self.policies.subscription_dispatch_rate != NO_DISPATCH_RATE
            or self.policies.dispatch_rates_of != ()
            or self.broker_limits.dispatch is not None
        )

    def _release_rate(self, producer: Producer) -> None:
        if self._publish_rate is not None:
            self._publish_rate.release(producer.connection)

    @property
    def publish_rate_limited(self) -> int:
        """How often a connection had to wait before it could publish more."""
        return 0 if self._publish_rate is None else self._publish_rate.limited

    # --- subscriptions ------------------------------------------------------------------------

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        """The subscription that a consumer wants, made if need be; the consumer is not added yet.

        Raises the error that Pulsar has for a consumer that cannot have it.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def check_consumers(self) -> None:
        """Raises ConsumerBusy when the topic has as many consumers as it may have."""
        self.check_open()
        limit = self.policies.consumers_max
        if limit and self.consumer_count >= limit:
            raise ConsumerBusy(
                f"Topic {self.name} has {limit} consumers, which is its limit"
                " (maxConsumersPerTopic)."
            )

    def check_subscribe(self, kind: SubscriptionType, who: Who) -> None:
        """Raises NotAllowed for a consumer of a type that is not allowed, or that comes too often.

        who: the address of its client, its name and its id.
        """
        if str(kind) not in self.policies.subscription_types:
            raise NotAllowed(f"Topic[{{{self.name}}}] doesn't support {kind} sub type!")
        if self._subscribe_limiter is not None:
            self._subscribe_limiter.check(who, self.loop.time())

    def check_address(self, address: str) -> None:
        """Raises ConsumerBusy when the topic has as many consumers from there as it may have."""
        limit = self.policies.same_address_consumers_max
        if not limit:
            return
        if sum(count_of(address, each.consumers) for each in self.all_subscriptions()) >= limit:
            raise ConsumerBusy("Topic reached max same address consumers limit")

    def known(self, name: str) -> Subscription | None:
        """The durable subscription of that name; of a topic that keeps nothing, whatever it is."""
        found = self.subscriptions.get(name)
        if found is None and not self.name.is_persistent:
            found = self._readers.get(name)
        return found

    def reader_for(self, name: str, mark_delete: Position) -> Subscription:
        """A non-durable subscription: it lives as long as its consumer."""
        self.check_open()
        found = self._readers.get(name)
        if found is not None:
            return found
        subscription = Subscription(self, name, self._reader_cursor(name, mark_delete))
        self._readers[name] = subscription
        return subscription

    def _reader_cursor(self, name: str, mark_delete: Position) -> SubscriptionCursor:
        """What knows what a reader has acknowledged, as long as the reader is there."""
        raise NotImplementedError

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
        if subscription.is_durable:
            self.subscriptions.pop(subscription.name, None)
        self._forget_reader(subscription)

    async def delete_subscription(self, name: str, force: bool) -> None:
        """Deletes a durable subscription, also one whose cursor cannot be read; with force, its
        consumers are sent away.

        Raises SubscriptionNotFound, SubscriptionBusy, ServiceNotReady, MetadataError.
        """
        raise NotImplementedError

    async def clear_backlog(self, name: str) -> None:
        """Acknowledges, for a durable subscription, everything that is stored now.

        Raises CursorClosed, CursorDeleted.
        """
        raise NotImplementedError

    # --- what is kept -------------------------------------------------------------------------

    @property
    def entries(self) -> int:
        """Entries that are kept."""
        return 0

    @property
    def storage_size(self) -> int:
        """Bytes that are kept."""
        return 0

    @property
    def entries_added(self) -> int:
        """Entries that were stored since it was opened."""
        return 0

    @property
    def entries_read(self) -> int:
        """Entries that were read of what is stored, from memory or from a disk, since then."""
        return 0

    @property
    def entries_read_from_disk(self) -> int:
        """Of the entries read, those that were not in memory."""
        return 0

    def backlog_time_ms(self, subscription: Subscription) -> int | None:
        """The publish time of the first entry of a backlog; None: it would have to be read."""
        return None

    async def find_backlog_time(self, subscription: Subscription) -> None:
        """Reads that time."""

    def last_adds(self) -> tuple[int, ...]:
        """How long it took to store what the last period brought, and its sizes (add_stats.pyi)."""
        return NO_ADDS

    def first_position(self) -> Position:
        """Just before the first entry that is kept."""
        raise NotImplementedError

    # --- the end ------------------------------------------------------------------------------

    async def check_quotas(self) -> None:
        """Raises what a producer is told that comes while a backlog quota is exceeded."""

    def check_open(self) -> None:
        """Raises ServiceNotReady when the topic is not served here any more."""
        if self.fenced:
            raise ServiceNotReady(f"Topic {self.name} is being closed; look it up again.")

    def disconnect(self) -> None:
        """Tells every client that the topic is not served here any more; of many some in each turn,
        and who goes on with what is left of the topic waits for left().
        """
        self.close_producers()
        self.call_bit_by_bit(each.disconnect for each in self.all_subscriptions())

    def close_producers(self) -> None:
        """Sends producers away, of many some in each turn. Their clients may open them again, and
        are told then why they cannot.
        """
        if self.access is not None:
            self.access.turn_away(
                ServiceNotReady(f"Topic {self.name} sends its producers away; open them again.")
            )
        producers = list(self.producers.values())
        self.call_bit_by_bit(partial(self._close_if_open, each) for each in producers)

    def call_bit_by_bit(self, calls: Iterator[Callable[[], None]]) -> None:
        """Makes calls, each for one of many clients or subscriptions: of many some in each turn."""
        self._calls = (*self._calls, calls)
        if len(self._calls) == 1:
            self.turn.dispatching.run(self._call_some)

    def _call_some(self) -> None:
        more = self.turn.dispatching
        began_ns = more.now_ns()
        while self._calls:
            for call in self._calls[0]:
                try:
                    call()
                except Exception as error:
                    # A defect of one is not one of the others, whose clients wait as well.
                    log.failure("a client or subscription was not told", error, topic=self.name)
                if more.has_used_slice(began_ns):
                    more.later(self._call_some)
                    return
            self._calls = self._calls[1:]

    async def left(self) -> None:
        """Waits until everybody is gone that was sent away."""
        if self._calls:
            told: asyncio.Future[None] = self.loop.create_future()
            self.call_bit_by_bit(iter((partial(resolve, told, None),)))
            await told

    def close_waiting_producers(self) -> int:
        """Sends those producers away that wait for answers, at once; how many SENDs they had
        pending.
        """
        pending = 0
        for producer in list(self.producers.values()):
            if producer.pending_sends:
                pending += producer.pending_sends
                try:
                    self.close_producer(producer)
                except Exception as error:
                    # A defect of one is not one of the others, whose clients wait as well.
                    log.failure("a producer could not be closed", error, topic=self.name)
        return pending

    def _close_if_open(self, producer: Producer) -> None:
        # Its client may have closed it meanwhile, and use its id for another one.
        if self.producers.get(producer.name) is producer:
            self.close_producer(producer)

    def close_producer(self, producer: Producer) -> None:
        """Sends one producer away; its client may open it again."""
        producer.connection.send_frame(replies.close_producer(producer.producer_id))
        producer.forget()
        self.remove_producer(producer)

    @property
    def is_gone(self) -> bool:
        """Its log has failed or was closed: it may be opened anew."""
        raise NotImplementedError

    async def settle(self) -> None:
        """Waits, when it is gone, until nothing of it is under way any more."""

    async def close(self) -> None:
        """Sends the clients away, makes everything durable, and lets the log go."""
        raise NotImplementedError

    @property
    def is_terminated(self) -> bool:
        """Nothing can be added any more; what is there can be read for ever."""
        return False

    async def terminate(self) -> Position:
        """Lets nothing be added any more; returns the last position there will ever be.

        Raises ManagedLedgerError.
        """
        raise NotImplementedError

    async def delete(self) -> None:
        """Deletes the topic with its subscriptions and messages; its clients are sent away. Who
        calls it, as TopicDeletion.delete does, has fenced the topic.

        Raises MetadataError or ManagedLedgerError: then some of it may be left, and be opened.
        """
        raise NotImplementedError

    def is_inactive(self, policies: Policies) -> bool:
        """Whether nobody has used the topic for so long that it may be deleted."""
        if self._is_used(policies.inactive_topics.mode):
            self._last_active = self.loop.time()
            return False
        since = self.loop.time() - self._last_active
        is_retained = self.name.is_persistent and not 0 <= policies.retention.time_s <= since
        return since >= policies.inactive_topics.max_inactive_s and not is_retained

    def idle_since(self, when_s: float) -> None:
        """Nobody has used it since then, by the wall clock: it was not open."""
        self._last_active = self.loop.time() - max(self.wall_clock() - when_s, 0.0)

    @property
    def is_in_use(self) -> bool:
        """Whether somebody is connected to it, or about to be."""
        return bool(self.producers) or any(
            each.consumers or each.arriving or each.closing for each in self.all_subscriptions()
        )

    def _is_used(self, mode: str) -> bool:
        if self.producers or self._readers:
            return True
        subscriptions = self.subscriptions.values()
        if mode == DELETE_WHEN_NO_SUBSCRIPTIONS:
            return len(subscriptions) > 0
        return any(each.consumers or each.backlog > 0 for each in subscriptions)

    def all_subscriptions(self) -> list[Subscription]:
        """Durable ones and those of readers."""
        return [*self.subscriptions.values(), *self._readers.values()]


def count_of(address: str, clients: Iterable[Producer | Consumer]) -> int:
    """How many of them come from an address."""
    return sum(each.connection.session.address == address for each in clients)
