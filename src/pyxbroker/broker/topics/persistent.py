"""A persistent topic: a managed ledger that stores messages, and a cursor for each subscription.

topic.py has the parts that do not depend on the managed ledger.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from pyxbroker.base.errors import (
    NotAllowed,
    PersistenceError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ServiceNotReady,
    SubscriptionBusy,
    SubscriptionNotFound,
    TooFewBookies,
    TopicTerminated,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.base.system_cursors import COMPACTION, DEDUPLICATION_CURSOR, is_system_cursor
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import NO_BROKER_LIMITS, NO_ENTRY_METADATA, BrokerLimits
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from pyxbroker.broker.subscriptions import expiry
from pyxbroker.broker.subscriptions.subscription import REPLICATED_SUBSCRIPTION, Subscription
from pyxbroker.broker.topics import quotas
from pyxbroker.broker.topics.access import EPOCH_PROPERTY, parse_epoch
from pyxbroker.broker.topics.system_messages import PendingMessage
from pyxbroker.broker.topics.topic import SubscribeRequest, Topic
from pyxbroker.delivery import peek_entry, transactions_of
from pyxbroker.entry import EntryBatch, EntryRun, Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.mledger import backlog, compacted_ledger
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import delete_managed_ledger, delete_unreadable_cursor
from pyxbroker.mledger.positions import ENTRY_ID_MAX
from pyxbroker.mledger.state import State
from pyxbroker.mledger.termination import terminate
from pyxbroker.policies.values import Persistence, Policies, Retention
from pyxbroker.turn import Turn

if TYPE_CHECKING:
    from pyxbroker.ackset import AckSet
    from pyxbroker.broker.compaction.compacted import CompactedLedger
    from pyxbroker.broker.compaction.compaction import Compaction
    from pyxbroker.broker.subscriptions.peeking import Peeking
    from pyxbroker.broker.topics.confirmed import ConfirmListener
    from pyxbroker.broker.topics.deduplication import Deduplication, DeduplicationSwitch
    from pyxbroker.broker.topics.last_message import LastMessage
    from pyxbroker.broker.topics.producer import Producer
    from pyxbroker.broker.topics.transactional import TransactionBuffer, TransactionBuffers

log = get_logger("pyxbroker.topic")

T = TypeVar("T")

LIMITS_MAX = 1_000  # different limits that are cached
BOOKIES_WAIT_S = 20.0
"""The time that a new producer waits for bookies before it is refused: less than clients wait for
an answer. After a refusal a client comes back later and later.
"""
RETAIN_ALL = Retention(-1.0, -1)
# Properties of the managed ledger that the broker uses itself.
OWN_PROPERTIES = frozenset({EPOCH_PROPERTY, compacted_ledger.NAMES_PROPERTY})


class PersistentTopic(Topic):
    """One persistent topic that this broker serves."""

    horizon = Position(-1, -1)  # the last entry that the compacted ledger replaces
    _deduplication_switch: DeduplicationSwitch | None = None  # created when the policy changes
    _subscription_task: asyncio.Task[None] | None = None  # creates the subscription of compaction
    _confirm_listeners: tuple[ConfirmListener, ...] = ()
    _last_message: LastMessage | None = None  # created by the first request
    _oldest: tuple[Position, int] | None = None  # the last result of time_after, with its position
    transaction_buffers: TransactionBuffers | None = None  # None: transactions are switched off

    def __init__(
        self,
        name: TopicName,
        managed_ledger: ManagedLedger,
        turn: Turn,
        policies: Policies,
        unacked_in_broker: BrokerUnacked | None = None,
        broker_limits: BrokerLimits = NO_BROKER_LIMITS,
    ) -> None:
        super().__init__(name, managed_ledger, turn, policies, unacked_in_broker, broker_limits)
        self.managed_ledger = managed_ledger
        self.ack_ranges_max = managed_ledger.limits.ranges_whole_max
        self.on_ttl_changed: Callable[[PersistentTopic], None] = _ignore
        self._broker_mark_delete_per_s = managed_ledger.limits.mark_delete_per_s
        managed_ledger.listener = self
        if EPOCH_PROPERTY in managed_ledger.properties:
            self.epoch = parse_epoch(managed_ledger.properties[EPOCH_PROPERTY], str(name))
        self._apply(policies)

    def on_policies(self, policies: Policies) -> None:
        before = self.policies
        super().on_policies(policies)
        if policies.retention != before.retention:
            # Opening a topic does not trim it: a reader that reconnects must find its position.
            self.managed_ledger.trim()
        if policies.message_ttl_s != before.message_ttl_s:
            self.on_ttl_changed(self)
        if policies.deduplication != before.deduplication:
            self._check_deduplication_soon()
        if policies.compaction_threshold > 0 and COMPACTION not in self.subscriptions:
            self._create_compaction_subscription()

    def _apply(self, policies: Policies) -> None:
        # A policy that cannot be read might retain everything.
        retention = RETAIN_ALL if "retention" in policies.refused else policies.retention
        limits = self.managed_ledger.limits
        self.managed_ledger.set_limits(
            _limits_of(limits, retention, policies.persistence, self._broker_mark_delete_per_s)
        )
        super()._apply(policies)

    # --- producers ----------------------------------------------------------------------------

    def _check_writable(self) -> None:
        if self.is_terminated:
            raise TopicTerminated("Topic was already terminated")
        failure = self.managed_ledger.write_failure
        if failure is not None:
            # With this code clients fail their pending sends, instead of retrying for ever.
            raise ProducerBlockedQuotaExceededException(str(failure))
        if self.managed_ledger.state is State.TOO_FEW_BOOKIES:
            # The client retries until the policy or the bookies have changed.
            lack = self.managed_ledger.lack_of_bookies
            raise TooFewBookies(f"Topic {self.name} cannot be written: {lack}.")

    async def wait_for_bookies(self) -> None:
        await self.managed_ledger.wait_for_bookies(BOOKIES_WAIT_S)

    async def store_epoch(self, epoch: int) -> None:
        """Store an epoch durably. Raises ManagedLedgerError, MetadataError."""
        await self.managed_ledger.put_property(EPOCH_PROPERTY, str(epoch))
        await super().store_epoch(epoch)

    def read_from(self, start: Position, what: str) -> AsyncIterator[tuple[Position, bytes]]:
        """Yield the stored entries from a position on, as read_log does; those that only the
        compacted ledger has come first.
        """
        from pyxbroker.broker.topics.log_reader import read_log

        log = self.managed_ledger
        ledger_id = compacted_ledger.current(log)
        if ledger_id is None or start > log.first_position():
            return read_log(log, start, what)
        from pyxbroker.broker.compaction.compacted import read_with_compacted

        return read_with_compacted(
            log.client, ledger_id, start, lambda position: read_log(log, position, what)
        )

    async def append_message(self, entry: bytes, owner: PendingMessage | None = None) -> Position:
        """Append a message of the broker itself; return its position when it is durable.

        Raises ManagedLedgerError.
        """
        waiting = owner or PendingMessage(self)
        self.turn.run(self._append, EntryRun.of(entry, waiting))
        return await waiting.future

    async def check_quotas(self) -> None:
        if self.policies.backlog_size.limit < 0 and self.policies.backlog_age.limit <= 0:
            return
        try:
            await quotas.check_producer(self)
        except LedgerError as error:
            # The age of the backlog is unknown. The next periodic check reads it again.
            log.warning("a backlog quota was not checked", topic=self.name, error=error)

    def remove_producer(self, producer: Producer) -> None:
        super().remove_producer(producer)
        if self.deduplication is not None:
            self.deduplication.on_left(producer.name)

    def add_confirm_listener(self, listener: ConfirmListener) -> None:
        """Notify a listener of each durable run, after those that were added before."""
        self._confirm_listeners = (*self._confirm_listeners, listener)
        self._resolve_confirmed()

    def remove_confirm_listener(self, listener: ConfirmListener) -> None:
        """Remove a listener. Raises ValueError if it was not added."""
        listeners = list(self._confirm_listeners)
        listeners.remove(listener)
        self._confirm_listeners = tuple(listeners)
        self._resolve_confirmed()

    def _resolve_confirmed(self) -> None:
        from pyxbroker.broker.topics.confirmed import resolve

        listen = resolve(self._confirm_listeners)
        self.managed_ledger.on_confirmed = listen
        if self.deduplication is not None:
            self.managed_ledger.on_confirmed = self.deduplication.confirm_function(listen)

    async def prepare(self) -> None:
        """Create the subscriptions, and load the state that publishing and reading need.

        The topic serves no client before that. Raises LedgerError, MetadataError.
        """
        slices = Slices()
        for cursor in list(self.managed_ledger.cursors.values()):
            if cursor.name != DEDUPLICATION_CURSOR:
                self.subscriptions[cursor.name] = Subscription(self, cursor.name, cursor)
            await slices.pause()
        if self.broker_limits.entry_metadata != NO_ENTRY_METADATA:
            from pyxbroker.broker.topics.entry_metadata import EntryMetadata

            entry_metadata = EntryMetadata(
                self.managed_ledger, self.broker_limits.entry_metadata, self.wall_clock
            )
            await entry_metadata.open()
            self.entry_metadata = entry_metadata
            self._resolve_publish()
        if COMPACTION in self.managed_ledger.cursors or (
            compacted_ledger.NAMES_PROPERTY in self.managed_ledger.properties
        ):
            from pyxbroker.broker.compaction import compaction

            await compaction.open_topic(self, self.managed_ledger)
        if self.policies.compaction_threshold > 0 and COMPACTION not in self.subscriptions:
            self._create_compaction_subscription()
        if self.transaction_buffers is not None:
            self.transactions = await self.transaction_buffers.open(self)
        await self.check_deduplication()

    async def check_deduplication(self) -> None:
        """Begin or end deduplication as the policy requires.

        Raises LedgerError, MetadataError; nothing has changed then.
        """
        if self.policies.deduplication or DEDUPLICATION_CURSOR in self.managed_ledger.cursors:
            # Most topics have none.
            from pyxbroker.broker.topics.deduplication import check

            await check(self, self.managed_ledger)

    def _check_deduplication_soon(self) -> None:
        if self._deduplication_switch is None:
            from pyxbroker.broker.topics.deduplication import DeduplicationSwitch

            self._deduplication_switch = DeduplicationSwitch(self, self.managed_ledger)
        self._deduplication_switch.check_soon()

    async def _settle_deduplication(self) -> None:
        """Wait for running work of deduplication, and put its state into its cursor."""
        if self._deduplication_switch is not None:
            await self._deduplication_switch.close()
        if self.deduplication is not None:
            await self.deduplication.settle()
            self.deduplication.prepare_close()

    def set_deduplication(self, deduplication: Deduplication | None) -> None:
        """Use, replace or end the deduplication of what is published."""
        self.deduplication = deduplication
        self._resolve_publish()
        self._resolve_confirmed()

    # --- transactions -------------------------------------------------------------------------

    @property
    def transaction_buffer(self) -> TransactionBuffer | None:
        if self.transactions is None and self.transaction_buffers is not None:
            self.transactions = self.transaction_buffers.create(self)
        return self.transactions

    def publish_transactional(self, run: EntryRun) -> None:
        buffer = self.transaction_buffer
        if buffer is None:
            super().publish_transactional(run)
        else:
            buffer.publish(run)

    async def stop_publishing(self) -> None:
        self._stop_transactions()
        await super().stop_publishing()

    def _stop_transactions(self) -> None:
        if self.transactions is not None:
            self.transactions.stop()

    @property
    def last_readable(self) -> Position:
        """The position of the last entry that consumers may receive."""
        return self.last_confirmed if self.transactions is None else self.transactions.max_read

    def is_aborted(self, transaction: tuple[int, int] | None) -> bool:
        """Return True for an aborted transaction, whose messages consumers never receive."""
        return (
            transaction is not None
            and self.transactions is not None
            and self.transactions.is_aborted(transaction)
        )

    def without_aborted(self, batch: EntryBatch) -> Iterator[EntryBatch]:
        """Yield the parts of a batch between the messages of aborted transactions."""
        if self.transactions is None:
            yield batch
            return
        start = 0
        for index, transaction, _ in transactions_of(batch):
            if self.is_aborted(transaction):
                if index > start:
                    yield EntryBatch.join([(batch, start, index - start)])
                start = index + 1
        if start == 0:
            yield batch
        elif start < len(batch):
            yield EntryBatch.join([(batch, start, len(batch) - start)])

    # --- compaction ---------------------------------------------------------------------------

    @property
    def compacting(self) -> Compaction:
        """The compaction of the topic, created at first use."""
        if self.compaction is None:
            from pyxbroker.broker.compaction.compaction import Compaction

            self.compaction = Compaction(self, self.managed_ledger, self.broker_limits.compaction)
        return self.compaction

    def _create_compaction_subscription(self) -> None:
        if self._subscription_task is None and not self.fenced:
            from pyxbroker.broker.compaction.compaction import create_subscription

            self._subscription_task = self.loop.create_task(create_subscription(self))
            self._subscription_task.add_done_callback(self._on_subscription_created)

    def _on_subscription_created(self, task: asyncio.Task[None]) -> None:
        self._subscription_task = None

    async def _stop_compacting(self) -> None:
        """Stop a running compaction and wait for its end; the compacted ledger stays."""
        if self._subscription_task is not None:
            await asyncio.wait([self._subscription_task])
        if self.compaction is not None:
            await self.compaction.stop()

    @property
    def is_compaction_due(self) -> bool:
        """True if more bytes than the policy's threshold are not compacted yet."""
        subscription = self.subscriptions[COMPACTION]
        behind = self.bytes_after(subscription.acks.mark_delete)
        return behind > self.policies.compaction_threshold and subscription.backlog > 0

    async def compaction_subscription(self) -> Subscription:
        """Return the subscription that retains uncompacted entries, created if it is missing."""
        return await self._subscription_for(COMPACTION, self.first_position(), {}, True)

    def set_compacted(self, compacted: CompactedLedger | None, horizon: Position) -> None:
        """Set the compacted ledger that consumers with readCompacted read from now on."""
        self.compacted = compacted
        self.horizon = horizon if compacted is not None else Position(-1, -1)
        for subscription in self.all_subscriptions():
            if subscription.compacted is not None:
                subscription.dispatcher.wake()

    async def query_compacted(
        self, question: Callable[[CompactedLedger], Awaitable[T]]
    ) -> T | None:
        """Return question(compacted ledger), None if no compacted ledger exists.

        Raises LedgerError.
        """
        while (compacted := self.compacted) is not None:
            try:
                answer = await question(compacted)
            except LedgerError:
                if compacted is self.compacted:
                    raise
            else:
                # A ledger that was replaced meanwhile may have answered as if it were empty.
                if compacted is self.compacted:
                    return answer
        return None

    async def last_compacted_message(self) -> tuple[Position, int]:
        """Return the last message as consumers with readCompacted see it; as last_message.

        Raises LedgerError.
        """
        source = self.managed_ledger
        behind = source.normalize(source.next_position(self.horizon))
        if self.compacted is None or behind is not None:
            last = await self.last_message()
            if last[0] > self.horizon:
                return last
        # The log has nothing but markers after the compacted ledger.
        found = await self.query_compacted(lambda compacted: compacted.last_message())
        return await self.last_message() if found is None else found

    async def unsubscribe(self, subscription: Subscription) -> None:
        if subscription.name != COMPACTION or not subscription.is_durable:
            await super().unsubscribe(subscription)
            return
        await self._stop_compacting()
        left = compacted_ledger.known(self.managed_ledger)
        await super().unsubscribe(subscription)
        self.set_compacted(None, self.horizon)
        await compacted_ledger.delete(self.managed_ledger, str(self.name), left)

    # --- subscriptions ------------------------------------------------------------------------

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        self.check_consumers()
        self._check_durability(request)
        if not request.durable:
            start = await self._reader_start(request)
            subscription = self.reader_for(request.subscription, start)
        else:
            start = self.first_position() if request.earliest else self.last_confirmed
            subscription = await self.subscription_for(
                request.subscription,
                start,
                dict(request.properties),
                self.policies.auto_subscription_creation,
                request.replicated,
            )
            if self.pending_ack_stores is not None:
                await subscription.recover_pending_acks()
                self.check_open()
        if request.compacted and subscription.compacted is None:
            await self._begin_compacted(subscription, request)
        return subscription

    async def _begin_compacted(self, subscription: Subscription, request: SubscribeRequest) -> None:
        """Give a subscription the compacted view.

        Meanwhile it is not dropped when another reader of the same name leaves.
        """
        subscription.arriving += 1
        try:
            await self._read_compacted(subscription, request)
        except BaseException:
            subscription.arriving -= 1
            self.drop_unused_reader(subscription)
            raise
        subscription.arriving -= 1

    async def _read_compacted(self, subscription: Subscription, request: SubscribeRequest) -> None:
        from pyxbroker.broker.compaction.compacted import FIRST, CompactedSource

        source = CompactedSource(self, self.managed_ledger)
        if request.since_ms is not None:
            source.begin_at(await source.first_since(request.since_ms))
        elif request.start is not None and request.start.ledger_id >= 0:
            source.begin_at(request.start)
        elif request.earliest or request.start is not None:
            source.begin_at(FIRST)
        if subscription.compacted is None:
            subscription.compacted = source

    def _check_durability(self, request: SubscribeRequest) -> None:
        """Raise NotAllowed if the name belongs to a subscription of the other durability."""
        if request.subscription in (self._readers if request.durable else self.subscriptions):
            kind = "NonDurable" if request.durable else "Durable"
            raise NotAllowed(f"{kind} subscription with the same name already exists.")

    async def _reader_start(self, request: SubscribeRequest) -> Position:
        """Return the position after which a reader begins."""
        if request.since_ms is not None:
            return await self.position_before_time(request.since_ms)
        if request.start is not None:
            return self.mark_before(request.start)
        return self.first_position() if request.earliest else self.last_confirmed

    async def subscription_for(
        self,
        name: str,
        mark_delete: Position,
        properties: dict[str, str],
        create: bool,
        replicated: bool = False,
    ) -> Subscription:
        # A client that moves the cursor of compaction would lose uncompacted entries.
        if is_system_cursor(name):
            raise ProducerBusy("Subscription with reserved subscription name attempted")
        return await self._subscription_for(name, mark_delete, properties, create, replicated)

    async def _subscription_for(
        self,
        name: str,
        mark_delete: Position,
        properties: dict[str, str],
        create: bool,
        replicated: bool = False,
    ) -> Subscription:
        self.check_open()
        found = self.subscriptions.get(name)
        if found is not None:
            await found.cursor.created()
            if found.cursor.closed:
                # The subscription or the topic is being deleted: the client has to retry.
                self.check_open()
                raise ServiceNotReady("Subscription is fenced")
            if replicated:
                await found.set_replicated()
            return found
        if name in self.managed_ledger.unreadable:
            raise PersistenceError(
                f"The state of subscription {name} of {self.name} cannot be read. See the broker's"
                " log for the reason."
            )
        if not create:
            raise SubscriptionNotFound(
                f"Subscription {name} of {self.name} does not exist, and consumers may not create"
                " it (allowAutoSubscriptionCreation)."
            )
        limit = self.policies.subscriptions_max
        if limit and len(self.subscriptions) >= limit and name != COMPACTION:
            raise NotAllowed(
                f"Topic {self.name} has {limit} subscriptions, which is its limit"
                " (maxSubscriptionsPerTopic)."
            )
        cursor = Cursor(self.managed_ledger, name, mark_delete)
        cursor.properties = properties
        if replicated:
            cursor.position_properties[REPLICATED_SUBSCRIPTION] = 1
        # Registered before its node is stored: a second consumer of the name must not create it
        # again, and entries after its position must not be trimmed.
        subscription = Subscription(self, name, cursor)
        self.subscriptions[name] = subscription
        self.managed_ledger.cursors[name] = cursor
        try:
            await cursor.create_node()
        except Exception:
            # The topic may have been deleted meanwhile, and these with it.
            self.subscriptions.pop(name, None)
            self.managed_ledger.cursors.pop(name, None)
            raise
        return subscription

    def _reader_cursor(self, name: str, mark_delete: Position) -> Cursor:
        return Cursor(self.managed_ledger, name, mark_delete, durable=False)

    async def delete_subscription(self, name: str, force: bool) -> None:
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
        subscription.check_settled()
        subscription.closing = True
        subscription.disconnect()
        await self.unsubscribe(subscription)

    async def clear_backlog(self, name: str) -> None:
        self.check_open()
        subscription = self.subscriptions[name]
        await subscription.cursor.created()
        while subscription.move is not None:
            # A seek that began earlier is completed first.
            await asyncio.wait([subscription.move])
        await subscription.seek(self.last_confirmed)

    # --- positions ----------------------------------------------------------------------------

    @property
    def entries(self) -> int:
        return self.managed_ledger.entries

    @property
    def storage_size(self) -> int:
        return self.managed_ledger.size

    @property
    def entries_added(self) -> int:
        return self.managed_ledger.entries_added

    @property
    def entries_read(self) -> int:
        return self.managed_ledger.entries_read

    @property
    def entries_read_from_disk(self) -> int:
        return self.managed_ledger.entries_read_from_disk

    def last_adds(self) -> tuple[int, ...]:
        return self.managed_ledger.last_adds()

    def first_position(self) -> Position:
        return self.managed_ledger.first_position()

    def position_of(self, index: int) -> Position:
        """Return the position of the entry with an index among the stored entries."""
        return self.managed_ledger.position_of(index)

    def next_position(self, mark: Position) -> Position:
        """Return the position of the first entry after a mark, which may not exist yet."""
        return self.managed_ledger.next_position(mark)

    @property
    def properties(self) -> dict[str, str]:
        """The properties that users have set on the topic."""
        kept = self.managed_ledger.properties
        return {key: value for key, value in kept.items() if key not in OWN_PROPERTIES}

    async def change_properties(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change the properties that users have set; as ManagedLedger.change_properties.

        `change` neither sees nor changes the broker's own properties.
        """

        def change_all(kept: dict[str, str]) -> dict[str, str]:
            own = {key: value for key, value in kept.items() if key in OWN_PROPERTIES}
            others = {key: value for key, value in kept.items() if key not in OWN_PROPERTIES}
            return {**change(others), **own}

        await self.managed_ledger.change_properties(change_all)

    @property
    def last_confirmed(self) -> Position:
        """The position of the last durable entry."""
        return self.managed_ledger.last_confirmed

    def mark_before(self, position: Position) -> Position:
        """Return the mark-delete position whose next entry is the one at a position.

        If that entry is not stored, the next entry is the first stored one after it, or else the
        next one that is published. For a negative ledger id it is the first stored entry.
        """
        if position.ledger_id < 0:
            return self.managed_ledger.first_position()
        following = self.managed_ledger.normalize(position)
        if following is None:
            return self.managed_ledger.last_confirmed
        return Position(following.ledger_id, following.entry_id - 1)

    def mark_up_to(self, position: tuple[int, int]) -> Position | None:
        """Return the last stored entry at or before a position.

        Return None if none exists, or if the position is after the last entry.
        """
        kept = self.managed_ledger.ordinal(position)
        if position > self.managed_ledger.last_confirmed or not kept:
            return None
        return self.managed_ledger.position_of(kept - 1)

    def bytes_after(self, mark: Position) -> int:
        """Return the approximate number of bytes of the entries after a mark."""
        return backlog.bytes_after(self.managed_ledger, mark)

    def mark_before_bytes(self, bytes_max: int) -> Position:
        """Return the first mark that has at most bytes_max bytes after it."""
        return backlog.mark_before_bytes(self.managed_ledger, bytes_max)

    def closed_before(self, mark: Position, time_ms: int) -> Position:
        """Return the end of the ledgers after a mark that were closed before a time."""
        return backlog.closed_before(self.managed_ledger, mark, time_ms)

    def first_closed_ms(self, mark: Position) -> int:
        """Return when the ledger of the first entry after a mark was closed, 0 if it is open."""
        return backlog.first_closed_ms(self.managed_ledger, mark)

    def mark_after(self, subscription: Subscription, count: int) -> Position:
        """Return the mark of a subscription after it acknowledges its first `count` entries."""
        managed_ledger, acks = self.managed_ledger, subscription.acks
        mark = acks.mark_delete
        if count >= subscription.backlog:
            return managed_ledger.last_confirmed
        if count <= 0:
            return mark
        # Each ledger is counted once, until it is known which one has the entry.
        passed, left = managed_ledger.ordinal(mark), count
        for ledger_id in acks.ledger_ids():
            last = managed_ledger.ordinal((ledger_id, ENTRY_ID_MAX))
            before = max(managed_ledger.ordinal((ledger_id, -1)), passed)
            if last <= before:
                continue  # no entry of the ledger is stored
            if left <= before - passed:
                break
            left -= before - passed
            last_entry = managed_ledger.position_of(last - 1).entry_id
            first_entry = last_entry + 1 - (last - before)
            here = last - before - acks.acknowledged_up_to(ledger_id, first_entry, last_entry)
            if left <= here:
                return Position(
                    ledger_id, _nth_unacknowledged(acks, ledger_id, first_entry, last_entry, left)
                )
            passed, left = last, left - here
        return managed_ledger.position_of(passed + left - 1)

    async def last_message(self) -> tuple[Position, int]:
        """Return the position of the last message, and its index in its batch.

        The index is -1 outside of a batch. Markers are not messages. The position is (-1, -1) if
        there is no message.
        """
        if self._last_message is None:
            from pyxbroker.broker.topics.last_message import LastMessage

            self._last_message = LastMessage(
                self, self.managed_ledger, lambda: self._peeking("the last message")
            )
        if self.transactions is not None:
            await self.transactions.recovered()
        return await self._last_message.find()

    async def time_after(self, mark: Position) -> int | None:
        """Return the publish time of the first entry after a mark, None if none exists or it is
        lost.

        Raises LedgerError if the entry cannot be read now.
        """
        managed_ledger = self.managed_ledger
        position = managed_ledger.normalize(managed_ledger.next_position(mark))
        if position is None:
            return None
        if self._oldest is None or self._oldest[0] != position:
            peeked = await self._peeking("the oldest message").at(position)
            if peeked is None:
                return None
            self._oldest = position, peeked.time
        return self._oldest[1]

    def backlog_time_ms(self, subscription: Subscription) -> int | None:
        position = self._backlog_begin(subscription)
        known = subscription.backlog_time
        if position is None:
            return None
        if known is not None and known[0] == position:
            return known[1]
        batch = self.managed_ledger.peek_cached(position)
        peeked = None if batch is None else peek_entry(batch, 0)
        if peeked is None:
            return None
        subscription.backlog_time = position, peeked.time
        return peeked.time

    async def find_backlog_time(self, subscription: Subscription) -> None:
        """Read the publish time of the first entry of a backlog, for backlog_time_ms.

        Raises LedgerError.
        """
        position = self._backlog_begin(subscription)
        if position is not None:
            peeked = await self._peeking("the oldest message").at(position)
            if peeked is not None:
                subscription.backlog_time = position, peeked.time

    def _backlog_begin(self, subscription: Subscription) -> Position | None:
        managed_ledger = self.managed_ledger
        mark = subscription.acks.mark_delete
        return managed_ledger.normalize(managed_ledger.next_position(mark))

    async def position_before_time(self, time_ms: int, after: Position | None = None) -> Position:
        """Return the position of the last entry that was published before a time, by bisection.

        after: entries up to here are known to be older.
        """
        managed_ledger = self.managed_ledger
        end, count = managed_ledger.last_confirmed, managed_ledger.entries
        peeking = self._peeking("the first message of a time")

        def place(index: int) -> Position | None:
            # Indexes count from the end, since ledgers may be trimmed meanwhile.
            kept = managed_ledger.ordinal(end) - count + index
            return managed_ledger.position_of(kept) if kept >= 0 else None

        low, high = 0 if after is None else managed_ledger.ordinal(after), count
        while low < high:
            middle = (low + high) // 2
            # A lost entry has no time: use the entry before it.
            at = middle
            while (peeked := await peeking.at(place(at))) is None and at > low:
                at -= 1
            if peeked is not None and peeked.time >= time_ms:
                high = at
            else:
                low = middle + 1
        peeking.report()
        before = place(low - 1) if low else None
        return before or managed_ledger.first_position()

    def _peeking(self, what: str) -> Peeking:
        from pyxbroker.broker.subscriptions.peeking import Peeking

        return Peeking(self.managed_ledger, self.name, what)

    # --- the end ------------------------------------------------------------------------------

    def on_managed_ledger_failed(self, error: ManagedLedgerError) -> None:
        """Fence the topic and disconnect its clients, which look up its owner again."""
        log.error("the topic cannot be written any more", topic=self.name, error=error)
        self.fenced = True
        self._stop_transactions()
        self.turn.at_end(self.disconnect)

    def on_managed_ledger_write_failed(self, error: ManagedLedgerError) -> None:
        """Disconnect the producers. Consumers can still read and acknowledge."""
        self.turn.at_end(self.close_producers)

    @property
    def is_gone(self) -> bool:
        return self.managed_ledger.is_dead and not self.managed_ledger.is_closing

    async def settle(self) -> None:
        await self.wait_disconnected()
        if self.transactions is not None:
            await self.transactions.close()
        await self._close_pending_acks()
        await self.managed_ledger.settle()

    def take_back_waiting(self) -> None:
        """Fail the SENDs that wait for the next ledger, since there is no space for one."""
        self.managed_ledger.take_back_waiting()

    def check_age(self) -> None:
        """Close the open ledger if it is old enough, and begin to delete expired ledgers."""
        self.managed_ledger.check_age()

    async def trim(self) -> None:
        """Close and delete ledgers as check_age does, and wait for the end.

        Raises ManagedLedgerError, MetadataError.
        """
        self.managed_ledger.check_age()
        await self.managed_ledger.finish_trim()

    def free_space(self) -> None:
        """Begin to delete all entries that every subscription has acknowledged."""
        if self.deduplication is not None:
            # After the snapshot, the next check can delete the entries that deduplication retains.
            self.deduplication.begin_snapshot()
        self.managed_ledger.roll_over_if_consumed()

    async def truncate(self) -> None:
        """Acknowledge all entries for all subscriptions, and delete all ledgers but the open one.

        If the process is killed meanwhile, each subscription has its previous position or an empty
        backlog. Raises CursorError, ManagedLedgerError, MetadataError.
        """
        self.managed_ledger.check_trimmable()
        await self._stop_compacting()
        subscriptions = list(self.subscriptions.values())
        await expiry.skip_to(subscriptions, self.last_confirmed)
        await expiry.persist(subscriptions)
        if self.deduplication is not None:
            await self.deduplication.snapshot()
        await self.managed_ledger.truncate()

    def _answers_soon(self) -> bool:
        managed_ledger = self.managed_ledger
        return managed_ledger.failure is None and not managed_ledger.client.is_holding

    async def _close_log(self) -> None:
        self.managed_ledger.take_back()
        if self.transactions is not None:
            await self.transactions.close()
        await self._stop_compacting()
        await self._settle_deduplication()
        await self._close_pending_acks()
        await self.managed_ledger.close()

    async def _close_pending_acks(self) -> None:
        async for subscription in in_slices(list(self.subscriptions.values())):
            if subscription.pending_acks is not None:
                await subscription.pending_acks.close()

    @property
    def is_terminated(self) -> bool:
        return self.managed_ledger.is_terminated

    async def terminate(self) -> Position:
        position = await terminate(self.managed_ledger)
        # All clients are notified, even if the request is cancelled.
        await asyncio.shield(self._notify_end())
        return position

    async def _notify_end(self) -> None:
        """Disconnect producers, and notify consumers that have acknowledged everything.

        Other subscriptions notify their consumers when they have acknowledged everything.
        """
        self.turn.run(self.close_producers)
        async for subscription in in_slices(self.all_subscriptions()):
            self.turn.run(subscription.notify_end)
        await self.wait_disconnected()

    async def delete(self) -> None:
        assert self.fenced, "the caller fences a topic before it deletes it"
        self.disconnect()
        await self.wait_disconnected()
        self.managed_ledger.take_back()
        if self.transactions is not None:
            await self.transactions.delete()
        await self._stop_compacting()
        await self._settle_deduplication()
        if self.pending_ack_stores is not None:
            async for subscription in in_slices(list(self.subscriptions.values())):
                await self.pending_ack_stores.delete(subscription)
        await delete_managed_ledger(self.managed_ledger, str(self.name))

    def _is_used(self, mode: str) -> bool:
        return bool(self.managed_ledger.unreadable) or super()._is_used(mode)


@functools.lru_cache(LIMITS_MAX)
def _limits_of(
    limits: ManagedLedgerLimits,
    retention: Retention,
    persistence: Persistence,
    broker_mark_delete_per_s: float,
) -> ManagedLedgerLimits:
    """Return the limits of a managed ledger. Topics with the same policies share one object."""
    rate = persistence.mark_delete_per_s
    return limits.keeping(*retention)._replace(
        quorums=quorums_of(persistence),
        mark_delete_per_s=rate if rate >= 0 else broker_mark_delete_per_s,
    )


def quorums_of(persistence: Persistence) -> LedgerQuorums:
    """Return the quorums for the next ledger of a topic."""
    ensemble, write, ack, _, is_policy = persistence
    return LedgerQuorums(ensemble, write, ack, is_policy)


def _ignore(topic: PersistentTopic) -> None:
    """Do nothing."""


def _nth_unacknowledged(acks: AckSet, ledger_id: int, low: int, high: int, n: int) -> int:
    """Return the id of the n-th unacknowledged entry from low to high."""
    while low < high:
        middle = (low + high) // 2
        # Each step counts half as many entries as the one before: the total is at most all of them.
        here = middle - low + 1 - acks.acknowledged_up_to(ledger_id, low, middle)
        if here >= n:
            high = middle
        else:
            low, n = middle + 1, n - here
    return low
