"""A topic, persistent or not: its producers, subscriptions and policies.

persistent.py and non_persistent.py have the two kinds of topic.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyxbroker.add_stats import NO_ADDS
from pyxbroker.base.clock import age_s, wall_s
from pyxbroker.base.errors import (
    ConsumerBusy,
    MetadataStoreError,
    NotAllowed,
    ProducerBusy,
    ServiceNotReady,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.rates import Rates
from pyxbroker.base.slices import Steps, in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import NO_BROKER_LIMITS, BrokerLimits
from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch.entry_source import EntrySource
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from pyxbroker.broker.listeners import OfListener
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
    from pyxbroker.broker.topics.subscribe_rate import ConsumerKey, SubscribeLimiter
    from pyxbroker.broker.topics.transactional import PublishGate, TransactionBuffer
    from pyxbroker.broker.transactions.pending_ack_handle import PendingAckStores
    from pyxbroker.connection import Connection

log = get_logger("pyxbroker.topic")

NO_RATE = Rate()
RECEIPTS_TIMEOUT_S = 2.0  # of a topic that is closed, for the entries that are being stored
NOTICES_TIMEOUT_S = 2.0  # after which clients of a topic that takes long to close are notified
NO_DISPATCH_RATE = DispatchRate()
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class SubscribeRequest(NamedTuple):
    """A consumer's request for a subscription, and the start position if it is new."""

    subscription: str
    durable: bool = True  # False: of a reader
    earliest: bool = False  # else after the last entry
    start: Position | None = None  # a reader: the first entry that it gets
    since_ms: int | None = None  # a reader: the first publish time that it gets
    properties: Mapping[str, str] = NO_PROPERTIES  # of a new subscription
    replicated: bool = False
    compacted: bool = False  # readCompacted


class Log(EntrySource, Protocol):
    """The log that a topic appends to and its dispatchers read, such as a managed ledger."""

    def append(self, run: EntryRun) -> None:
        """Append a run; its owner is notified when it is durable. Raises ManagedLedgerError."""


class Topic:
    """One topic that this broker serves.

    Rarely used attributes default on the class, so that instances stay within CPython's shared-key
    limit of 30.
    """

    auto_consumer_count = 0  # consumers of AUTO_CONSUME, which accept any schema
    access: ProducerAccess | None = None  # once a producer has requested exclusive access
    being_deleted = False
    _notices: deque[replies.ClosedNotice] | None = None  # held back while the topic is being closed
    _notices_timer: asyncio.TimerHandle | None = None
    compacted: CompactedLedger | None = None  # once the topic was compacted
    compaction: Compaction | None = None  # created by the first request for compaction
    pending_ack_stores: PendingAckStores | None = None  # None: no transactional acknowledgements
    deduplication: Deduplication | None = None  # while a policy requires it
    entry_metadata: EntryMetadata | None = None  # if settings ask for broker entry metadata
    epoch: int | None = None  # of the last exclusive producer; stored if the topic is persistent
    evictions: Counter[str] | None = None  # by kind of quota, once a quota was exceeded
    dispatch_limiter: DispatchLimiter | None = None  # if the topic has a dispatch rate
    rates: Rates | None = None  # of published messages; created by the first request for them
    transactions: TransactionBuffer | None = None
    """The transaction buffer, once the topic had a transaction or a request about one."""
    _calls: tuple[Iterator[Callable[[], None]], ...] = ()  # calls that call_in_slices has queued
    _publish_gate: PublishGate | None = None  # while SENDs of transactions are held back
    _publish_rate: PublishRate | None = None  # created with the first publish rate
    _published: Published | None = None  # created with the first dispatch rate
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
        self.wall_clock: Callable[[], float] = wall_s  # s since the epoch
        self.partition: int = name.partition_index
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.consumer_count = 0  # of all subscriptions, which update it
        self.fenced = False  # closing, or its log failed: clients have to look it up again
        self._last_active = age_s()  # when a client was last seen to use it
        self._readers: dict[str, Subscription] = {}  # non-durable subscriptions
        self._past_msg_in = 0  # of producers that have left
        self._past_bytes_in = 0
        self._past_chunks_in = 0
        self._log = log
        self.publish: Callable[[EntryRun], None] = log.append
        """Appends a run of SENDs; its owner is notified when it is durable. Raises
        ManagedLedgerError. Without publish steps and rates, this is the append itself."""
        self._publish_steps: tuple[PublishStep, ...] = ()  # see add_publish_step
        self._policy_check: PublishStep | None = None  # the step that enforces policies
        self.ack_ranges_max = 0  # of a cursor that is stored as a whole; 0: no limit
        self.source: EntrySource = log  # that dispatchers read

    def on_policies(self, policies: Policies) -> None:
        """Apply changed policies."""
        self._apply(policies)

    def on_broker_rates(self) -> None:
        """Apply changed publish and dispatch rates of the broker."""
        self._apply(self.policies)

    def _apply(self, policies: Policies) -> None:
        """Apply policies, when the topic is opened and whenever they change.

        Limits on producers, consumers and subscriptions are checked only when another one is added;
        existing ones stay.
        """
        self.policies = policies
        check = self._policy_check_of(policies)
        if self._apply_publish_rate(policies.publish_rate) or check is not self._policy_check:
            self._policy_check = check
            self._resolve_publish()
        self._apply_dispatch_rate(policies)
        self._apply_subscribe_rate(policies.subscribe_rate)
        if self.producers or self.subscriptions or self._readers:
            self.call_in_slices(self._policy_updates_while(policies))

    def _policy_updates_while(self, policies: Policies) -> Iterator[Callable[[], None]]:
        """Yield the calls of _policy_updates as long as these policies are in force."""
        for update in self._policy_updates():
            if self.policies is not policies:
                return  # the newer policies are applied to all of them
            yield update

    def _policy_updates(self) -> Iterator[Callable[[], None]]:
        """Yield calls that apply the policies to producers and dispatchers.

        Producers and subscriptions that are created meanwhile start with the current policies.
        """
        rate = self._publish_rate
        if rate is not None:
            for producer in list(self.producers.values()):
                yield partial(rate.cut_runs, producer)
        for subscription in self.all_subscriptions():
            yield from subscription.dispatcher.policy_update_steps()

    # --- producers ----------------------------------------------------------------------------

    def replaced_by(self, producer: Producer) -> Producer | None:
        """Return the connected producer that a producer of the same name would replace."""
        old = self.producers.get(producer.name)
        return old if old is not None and self._replaces(producer, old) else None

    async def store_epoch(self, epoch: int) -> None:
        """Remember the epoch of an exclusive producer as long as the topic exists."""
        self.epoch = epoch

    def last_sequence_id(self, name: str) -> int:
        """Return the last sequence id of a producer name, -1 without deduplication."""
        return -1 if self.deduplication is None else self.deduplication.last_sequence_id(name)

    def name_holder(self, producer: Producer) -> Producer | None:
        """Return the connected producer that prevents a producer of the same name."""
        old = self.producers.get(producer.name)
        return None if old is None or self._replaces(producer, old) else old

    def add_producer(self, producer: Producer) -> None:
        """Add a producer, which may replace one of the same name.

        Raises ProducerBusy if the name is taken or a limit is reached, and the errors of a topic
        that cannot be written.
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
        if old is None and limit and count_from(address, self.producers.values()) >= limit:
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
        """Raise MetadataStoreError if the topic requires encryption and a producer has none."""
        if self.policies.encryption_required and not is_encrypted:
            raise MetadataStoreError(f"Encryption is required in {self.name}")

    def _check_writable(self) -> None:
        """Raise an error if the topic cannot be written."""

    @staticmethod
    def _replaces(producer: Producer, old: Producer) -> bool:
        """Return True if a producer may replace an older one of its name.

        A client may reconnect before the broker notices that its old connection is closed.
        """
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
        """Restart the time of inactivity, since a client has left the topic."""
        self._last_active = age_s()

    def _count_past(self, producer: Producer) -> None:
        self._past_msg_in += producer.msg_in
        self._past_bytes_in += producer.bytes_in
        self._past_chunks_in += producer.chunks_in

    def received(self) -> tuple[int, int]:
        """Return the messages and bytes received since the topic was opened."""
        messages, size = self._past_msg_in, self._past_bytes_in
        for each in self.producers.values():
            messages += each.msg_in
            size += each.bytes_in
        return messages, size

    def count_received(self) -> Steps[tuple[int, int]]:
        """Return the messages and bytes received, in steps of some producers each.

        The producers are those at the first step, even if they leave meanwhile.
        """
        messages, size = self._past_msg_in, self._past_bytes_in
        for number, each in enumerate(list(self.producers.values()), 1):
            messages += each.msg_in
            size += each.bytes_in
            if number % COUNTED_PER_STEP == 0:
                yield
        return messages, size

    def find_chunks(self) -> Steps[bool]:
        """Return True if a message chunk was received since the topic was opened; in steps."""
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
        """Remove a publish step. Raises ValueError if it was not added."""
        steps = list(self._publish_steps)
        steps.remove(step)
        self._publish_steps = tuple(steps)
        self._resolve_publish()

    def set_publish_gate(self, gate: PublishGate | None) -> None:
        """Let a function decide when each run is published; None: immediately."""
        if gate != self._publish_gate:
            self._publish_gate = gate
            self._resolve_publish()

    def publish_transactional(self, run: EntryRun) -> None:
        """Publish a run with SENDs of transactions, which are refused here. Raises
        ManagedLedgerError.
        """
        from pyxbroker.broker.topics.publish_steps import NO_TRANSACTIONS

        if NO_TRANSACTIONS not in self._publish_steps:
            self.add_publish_step(NO_TRANSACTIONS)
        self.publish(run)

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
            self.publish = self._publish_rate.limit(self.publish)
        if self._publish_gate is not None:
            self.publish = partial(self._publish_gate, self.publish)

    def publish_internal(self, run: EntryRun) -> None:
        """Append a run without a producer. Policies apply to it.

        Raises PulsarError if policies forbid it or the topic cannot be written, and
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
        """The function that appends a run without any check."""
        if self.entry_metadata is not None:
            return self.entry_metadata.append
        return self._log.append

    def _policy_check_of(self, policies: Policies) -> PublishStep | None:
        bytes_max = policies.message_bytes_max
        if bytes_max >= self.broker_limits.message_bytes_max:
            # Larger messages are refused earlier, by the size of their frame.
            bytes_max = 0
        delay_max_ms = policies.delay_max_ms if policies.delayed_delivery else 0
        if not (bytes_max or delay_max_ms or policies.encryption_required):
            return None
        from pyxbroker.broker.topics.policy_checks import policy_checks

        return policy_checks(policies.encryption_required, bytes_max, delay_max_ms)

    def _apply_publish_rate(self, rate: Rate) -> bool:
        """Return True if the set of limiters that apply to the topic has changed."""
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
        """The publish rate of the topic, for dispatch rates that are relative to it."""
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
        """True if a rate limits dispatch to consumers."""
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
        """The number of times that a publish rate has stopped reading a connection."""
        return 0 if self._publish_rate is None else self._publish_rate.limited

    def publish_rates_of(self, connection: Connection) -> tuple[Rate | None, Rate | None]:
        """Return the publish rates of the broker and of the topic that a connection waits for."""
        return (None, None) if self._publish_rate is None else self._publish_rate.holds(connection)

    # --- subscriptions ------------------------------------------------------------------------

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        """Return the subscription that a consumer requests, created if it is missing.

        The consumer is not added yet. Raises the error that Pulsar has for a refused consumer.
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
        """Return the durable subscription of a name; with create, create it if it is missing.

        mark_delete, properties: of a new subscription. A replicated subscription stays replicated.
        """
        raise NotImplementedError

    def check_consumers(self) -> None:
        """Raise ConsumerBusy if the topic has reached its limit on consumers."""
        self.check_open()
        limit = self.policies.consumers_max
        if limit and self.consumer_count >= limit:
            raise ConsumerBusy(
                f"Topic {self.name} has {limit} consumers, which is its limit"
                " (maxConsumersPerTopic)."
            )

    def check_subscribe(self, kind: SubscriptionType, consumer: ConsumerKey) -> None:
        """Raise NotAllowed if the type is not allowed, or the consumer subscribes too often.

        consumer: the address of the client, the name of the consumer and its id.
        """
        if str(kind) not in self.policies.subscription_types:
            raise NotAllowed(f"Topic[{{{self.name}}}] doesn't support {kind} sub type!")
        if self._subscribe_limiter is not None:
            self._subscribe_limiter.check(consumer, self.loop.time())

    def check_address(self, address: str) -> None:
        """Raise ConsumerBusy if the topic has reached its limit on consumers from an address."""
        limit = self.policies.same_address_consumers_max
        if not limit:
            return
        if sum(count_from(address, each.consumers) for each in self.all_subscriptions()) >= limit:
            raise ConsumerBusy("Topic reached max same address consumers limit")

    def find_subscription(self, name: str) -> Subscription | None:
        """Return the durable subscription of a name, or any one of a non-persistent topic."""
        found = self.subscriptions.get(name)
        if found is None and not self.name.is_persistent:
            found = self._readers.get(name)
        return found

    def reader_for(self, name: str, mark_delete: Position) -> Subscription:
        """Return a non-durable subscription, which exists as long as it has consumers."""
        self.check_open()
        found = self._readers.get(name)
        if found is not None:
            return found
        subscription = Subscription(self, name, self._reader_cursor(name, mark_delete))
        self._readers[name] = subscription
        return subscription

    def _reader_cursor(self, name: str, mark_delete: Position) -> SubscriptionCursor:
        """Return a cursor in memory for a reader."""
        raise NotImplementedError

    def drop_unused_reader(self, subscription: Subscription) -> None:
        """Drop a reader's subscription if no consumer uses it or is about to."""
        if not (subscription.consumers or subscription.arriving or subscription.closing):
            self._forget_reader(subscription)

    def _forget_reader(self, subscription: Subscription) -> None:
        if self._readers.get(subscription.name) is subscription:
            del self._readers[subscription.name]

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Delete a subscription without consumers."""
        await subscription.delete()
        if subscription.is_durable:
            self.subscriptions.pop(subscription.name, None)
        self._forget_reader(subscription)

    async def delete_subscription(self, name: str, force: bool) -> None:
        """Delete a durable subscription, even if its cursor cannot be read.

        force: disconnect its consumers. Raises SubscriptionNotFound, SubscriptionBusy,
        ServiceNotReady, MetadataError.
        """
        raise NotImplementedError

    async def clear_backlog(self, name: str) -> None:
        """Acknowledge all stored entries for a durable subscription.

        Raises CursorClosed, CursorDeleted.
        """
        raise NotImplementedError

    # --- stored entries -----------------------------------------------------------------------

    @property
    def transaction_buffer(self) -> TransactionBuffer | None:
        """The transactions of the topic; None if it cannot have any."""
        return None

    def set_source(self, source: EntrySource) -> None:
        """Let dispatchers read another entry source, with the same positions and watchers."""
        former, self.source = self.source, source
        for subscription in self.all_subscriptions():
            if subscription.dispatcher.source is former:
                subscription.dispatcher.source = source

    def wake_dispatchers(self) -> None:
        """Let all dispatchers read what their entry source has now."""
        self.call_in_slices(each.dispatcher.wake for each in self.all_subscriptions())

    @property
    def entries(self) -> int:
        """The number of stored entries."""
        return 0

    @property
    def storage_size(self) -> int:
        """The number of stored bytes."""
        return 0

    @property
    def entries_added(self) -> int:
        """The number of entries that were stored since the topic was opened."""
        return 0

    @property
    def entries_read(self) -> int:
        """The number of entries read since the topic was opened, from memory or from disk."""
        return 0

    @property
    def entries_read_from_disk(self) -> int:
        """The number of entries read that were not in memory."""
        return 0

    def backlog_time_ms(self, subscription: Subscription) -> int | None:
        """Return the publish time of a backlog's first entry, None if it has to be read first."""
        return None

    async def find_backlog_time(self, subscription: Subscription) -> None:
        """Read the publish time of a backlog's first entry, for backlog_time_ms."""

    def last_adds(self) -> tuple[int, ...]:
        """Return the latencies and sizes of the last period's appends (add_stats.pyi)."""
        return NO_ADDS

    def first_position(self) -> Position:
        """Return the position before the first stored entry."""
        raise NotImplementedError

    # --- the end ------------------------------------------------------------------------------

    async def wait_for_bookies(self) -> None:
        """Wait for a while if the topic cannot be written until more bookies are there."""

    async def check_quotas(self) -> None:
        """Raise the error for a producer that is opened while a backlog quota is exceeded."""

    def check_open(self) -> None:
        """Raise ServiceNotReady if this broker does not serve the topic any more."""
        if self.fenced:
            raise ServiceNotReady(f"Topic {self.name} is being closed; look it up again.")

    def disconnect(self) -> None:
        """Begin to disconnect all clients, over several loop iterations.

        A caller that needs all clients disconnected waits for wait_disconnected().
        """
        self.close_producers()
        self.call_in_slices(each.disconnect for each in self.all_subscriptions())

    def close_producers(self) -> None:
        """Begin to disconnect all producers, over several loop iterations.

        Their clients may open them again, and get an error if the topic cannot be written.
        """
        if self.access is not None:
            self.access.refuse_waiting(
                ServiceNotReady(f"Topic {self.name} closes its producers; open them again.")
            )
        producers = list(self.producers.values())
        self.call_in_slices(partial(self._close_if_open, each) for each in producers)

    def call_in_slices(self, calls: Iterator[Callable[[], None]]) -> None:
        """Make calls for many clients or subscriptions, in slices over several loop iterations."""
        self._calls = (*self._calls, calls)
        if len(self._calls) == 1:
            self.turn.dispatching.run(self._run_calls)

    def _run_calls(self) -> None:
        more = self.turn.dispatching
        began_ns = more.now_ns()
        while self._calls:
            for call in self._calls[0]:
                try:
                    call()
                except Exception as error:
                    # A defect in one must not affect the others.
                    log.failure("a client or subscription was not notified", error, topic=self.name)
                if more.has_used_slice(began_ns):
                    more.later(self._run_calls)
                    return
            self._calls = self._calls[1:]

    async def wait_disconnected(self) -> None:
        """Wait until all queued calls were made, and so all clients are disconnected."""
        if self._calls:
            done: asyncio.Future[None] = self.loop.create_future()
            self.call_in_slices(iter((partial(resolve, done, None),)))
            await done

    def close_waiting_producers(self) -> int:
        """Disconnect all producers with pending SENDs, immediately.

        Return the number of these SENDs.
        """
        pending = 0
        for producer in list(self.producers.values()):
            if producer.pending_sends:
                pending += producer.pending_sends
                try:
                    self.close_producer(producer)
                except Exception as error:
                    # A defect in one must not affect the others.
                    log.failure("a producer could not be closed", error, topic=self.name)
        return pending

    def _close_if_open(self, producer: Producer) -> None:
        # The client may have closed it meanwhile, and reused its id.
        if self.producers.get(producer.name) is producer:
            self.close_producer(producer)

    def close_producer(self, producer: Producer) -> None:
        """Disconnect one producer; its client may open it again."""
        producer.forget()
        self.notify_closed(replies.ClosedNotice(producer.connection, producer.producer_id, True))
        self.remove_producer(producer)

    # A client that has to look the topic up while it is being closed is refused, and waits longer
    # after each refusal. So clients are notified when the topic can be opened again.

    async def stop_publishing(self) -> None:
        """Drop further SENDs, and wait until the earlier ones are answered.

        Clients send the dropped ones again after CLOSE_PRODUCER.
        """
        async for producer in in_slices(list(self.producers.values())):
            producer.forget()
        await asyncio.sleep(0)  # in which the last SENDs are published
        pending = [each for each in self.producers.values() if each.pending_sends]
        if pending:
            idle = asyncio.ensure_future(_wait_idle(pending))
            if not (await asyncio.wait([idle], timeout=RECEIPTS_TIMEOUT_S))[0]:
                idle.cancel()

    def hold_notices(self) -> None:
        """Hold back the notices to clients until send_notices is called, or for a while."""
        self._notices = deque()
        self._notices_timer = self.loop.call_later(NOTICES_TIMEOUT_S, self.send_notices)

    @property
    def has_notices(self) -> bool:
        """True if notices to clients are held back."""
        return bool(self._notices)

    def send_notices(self, owner: OfListener | None = None) -> None:
        """Begin to send the notices that were held back. `owner`: the next broker of the topic."""
        held, self._notices = self._notices, None
        timer, self._notices_timer = self._notices_timer, None
        if timer is not None:
            timer.cancel()
        if held:
            self.call_in_slices(partial(each.send, owner) for each in held)

    def notify_closed(self, notice: replies.ClosedNotice) -> None:
        """Notify a client that a producer or consumer, whose id is not in use now, is closed."""
        if self._notices is None:
            notice.send()
        else:
            self._notices.append(notice)

    @property
    def is_gone(self) -> bool:
        """True if the log has failed or was closed, so that the topic may be opened again."""
        raise NotImplementedError

    async def settle(self) -> None:
        """Wait until no operation of a closed topic is under way."""

    async def close(self, is_moving: bool = False) -> None:
        """Answer the SENDs so far, disconnect the clients, and close the log.

        `is_moving`: the caller notifies the clients afterwards (send_notices).
        """
        self.fenced = True
        try:
            if self._answers_soon():
                await self.stop_publishing()
            self.hold_notices()
            self.disconnect()
            await self.wait_disconnected()
            await self._close_log()
        finally:
            if not is_moving:
                self.send_notices()
        await self.wait_disconnected()

    def _answers_soon(self) -> bool:
        """Return True if the SENDs so far will be answered soon."""
        return True

    async def _close_log(self) -> None:
        """Make all entries durable and close the log."""
        raise NotImplementedError

    @property
    def is_terminated(self) -> bool:
        """True if no message can be published any more; stored ones can still be read."""
        return False

    async def terminate(self) -> Position:
        """Refuse further messages for ever; return the position of the last one.

        Raises ManagedLedgerError.
        """
        raise NotImplementedError

    async def delete(self) -> None:
        """Disconnect the clients, and delete the topic with its subscriptions and messages.

        The caller fences the topic before, as TopicDeletion.delete does. Raises MetadataError or
        ManagedLedgerError; a part of the topic may remain then, and can be opened.
        """
        raise NotImplementedError

    def is_inactive(self, policies: Policies) -> bool:
        """Return True if no client has used the topic for so long that it may be deleted."""
        if self._is_used(policies.inactive_topics.mode):
            self._last_active = age_s()
            return False
        since = age_s() - self._last_active
        is_retained = self.name.is_persistent and not 0 <= policies.retention.time_s <= since
        return since >= policies.inactive_topics.max_inactive_s and not is_retained

    def idle_since(self, when_s: float) -> None:
        """Set the time of the last use, by the wall clock, of a topic that was closed since."""
        self._last_active = age_s() - max(self.wall_clock() - when_s, 0.0)

    @property
    def is_in_use(self) -> bool:
        """True if a client is connected to the topic, or about to be."""
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
        """Return the durable and the non-durable subscriptions."""
        return [*self.subscriptions.values(), *self._readers.values()]


async def _wait_idle(producers: Iterable[Producer]) -> None:
    for each in producers:
        await each.idle()


def count_from(address: str, clients: Iterable[Producer | Consumer]) -> int:
    """Return the number of clients with an address."""
    return sum(each.connection.session.address == address for each in clients)
