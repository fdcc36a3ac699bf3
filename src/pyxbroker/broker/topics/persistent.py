"""A persistent topic: a managed ledger of what is published, and a cursor for each subscription.

The door to both: what needs the log is here, and all else in topic.py.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pyxbroker.base.errors import (
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
from pyxbroker.base.slices import Slices
from pyxbroker.base.system_cursors import COMPACTION, DEDUPLICATION_CURSOR, is_system_cursor
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import NO_BROKER_LIMITS, NO_ENTRY_METADATA, BrokerLimits
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from pyxbroker.broker.subscriptions import expiry
from pyxbroker.broker.subscriptions.subscription import REPLICATED_SUBSCRIPTION, Subscription
from pyxbroker.broker.topics import quotas
from pyxbroker.broker.topics.access import EPOCH_PROPERTY, stored_epoch
from pyxbroker.broker.topics.system_messages import Waiting
from pyxbroker.broker.topics.topic import SubscribeRequest, Topic
from pyxbroker.delivery import peek_entry
from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.client import LedgerQuorums
from pyxbroker.ledger.errors import LedgerError
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
    from pyxbroker.broker.topics.deduplication import Deduplication, Switch
    from pyxbroker.broker.topics.last_message import LastMessage
    from pyxbroker.broker.topics.producer import Producer

log = get_logger("pyxbroker.topic")

T = TypeVar("T")

LIMITS_MAX = 1_000  # different ones
KEEPS_ALL = Retention(-1.0, -1)
# What the broker keeps among the properties of a topic.
OWN_PROPERTIES = frozenset({EPOCH_PROPERTY, compacted_ledger.NAMES_PROPERTY})


class PersistentTopic(Topic):
    """One persistent topic that this broker serves."""

    horizon = Position(-1, -1)  # up to here the compacted ledger stands for the log
    _deduplication_switch: Switch | None = None  # made when the policy changes
    _holding: asyncio.Task[None] | None = None  # the subscription of compaction is being made
    _confirm_listeners: tuple[ConfirmListener, ...] = ()
    _last_message: LastMessage | None = None  # once somebody asked for it
    _oldest: tuple[Position, int] | None = None  # entry that was looked into last, time

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
            self.epoch = stored_epoch(managed_ledger.properties[EPOCH_PROPERTY], str(name))
        self._apply(policies)

    def on_policies(self, policies: Policies) -> None:
        before = self.policies
        super().on_policies(policies)
        if policies.retention != before.retention:
            # What is there when a topic is opened stays until somebody looks at ages: a reader that
            # comes back shall find it.
            self.managed_ledger.trim()
        if policies.message_ttl_s != before.message_ttl_s:
            self.on_ttl_changed(self)
        if policies.deduplication != before.deduplication:
            self._check_deduplication_soon()
        if policies.compaction_threshold > 0 and COMPACTION not in self.subscriptions:
            self._hold_for_compaction()

    def _apply(self, policies: Policies) -> None:
        # Nobody knows how much a policy that is refused would keep, so all is.
        retention = KEEPS_ALL if "retention" in policies.refused else policies.retention
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
            # With this code clients fail the sends that they hold, instead of trying for ever.
            raise ProducerBlockedQuotaExceededException(str(failure))
        if self.managed_ledger.state is State.TOO_FEW_BOOKIES:
            # The client tries again, until the policy or the bookies have changed.
            lack = self.managed_ledger.lack_of_bookies
            raise PersistenceError(f"Topic {self.name} cannot be written: {lack}.")

    async def keep_epoch(self, epoch: int) -> None:
        """It is durable when this returns. Raises ManagedLedgerError, MetadataError."""
        await self.managed_ledger.put_property(EPOCH_PROPERTY, str(epoch))
        await super().keep_epoch(epoch)

    def read_from(self, start: Position, what: str) -> AsyncIterator[tuple[Position, bytes]]:
        """The entries that are there from a position on, each with its own; log_reader.py."""
        from pyxbroker.broker.topics.log_reader import read_log

        return read_log(self.managed_ledger, start, what)

    async def append_message(self, entry: bytes) -> Position:
        """Adds what the broker itself says, and waits until it is durable; its position.

        Raises ManagedLedgerError.
        """
        waiting = Waiting(self)
        self.turn.run(self._append, EntryRun.of(entry, waiting))
        return await waiting.future

    async def check_quotas(self) -> None:
        if self.policies.backlog_size.limit < 0 and self.policies.backlog_age.limit <= 0:
            return
        try:
            await quotas.check_producer(self)
        except LedgerError as error:
            # Nobody knows how old the backlog is: the next look asks again.
            log.warning("a backlog quota was not looked at", topic=self.name, error=error)

    def remove_producer(self, producer: Producer) -> None:
        super().remove_producer(producer)
        if self.deduplication is not None:
            self.deduplication.on_left(producer.name)

    def add_confirm_listener(self, listener: ConfirmListener) -> None:
        """Notify a listener of each durable run, after those that were added before."""
        self._confirm_listeners = (*self._confirm_listeners, listener)
        self._resolve_confirmed()

    def remove_confirm_listener(self, listener: ConfirmListener) -> None:
        """Notify a listener no longer. Raises ValueError for one that was not added."""
        listeners = list(self._confirm_listeners)
        listeners.remove(listener)
        self._confirm_listeners = tuple(listeners)
        self._resolve_confirmed()

    def _resolve_confirmed(self) -> None:
        from pyxbroker.broker.topics.confirmed import resolve

        listen = resolve(self._confirm_listeners)
        self.managed_ledger.on_confirmed = listen
        if self.deduplication is not None:
            self.managed_ledger.on_confirmed = self.deduplication.confirming(listen)

    async def prepare(self) -> None:
        """Makes its subscriptions, and reads what it has to know before it serves anybody. Raises
        LedgerError, MetadataError.
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
            self._hold_for_compaction()
        await self.check_deduplication()

    async def check_deduplication(self) -> None:
        """Begins deduplication, or ends it, as the policy says; nothing changes when it does so
        already. Raises LedgerError, MetadataError: then it is as it was.
        """
        if self.policies.deduplication or DEDUPLICATION_CURSOR in self.managed_ledger.cursors:
            # Most topics have none.
            from pyxbroker.broker.topics.deduplication import check

            await check(self, self.managed_ledger)

    def _check_deduplication_soon(self) -> None:
        if self._deduplication_switch is None:
            from pyxbroker.broker.topics.deduplication import Switch

            self._deduplication_switch = Switch(self, self.managed_ledger)
        self._deduplication_switch.check_soon()

    async def _settle_deduplication(self) -> None:
        """Nothing of it is under way any more; what it knows goes into its cursor."""
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

    # --- compaction ---------------------------------------------------------------------------

    @property
    def compacting(self) -> Compaction:
        """Its compactions."""
        if self.compaction is None:
            from pyxbroker.broker.compaction.compaction import Compaction

            self.compaction = Compaction(self, self.managed_ledger, self.broker_limits.compaction)
        return self.compaction

    def _hold_for_compaction(self) -> None:
        if self._holding is None and not self.fenced:
            from pyxbroker.broker.compaction.compaction import hold

            self._holding = self.loop.create_task(hold(self))
            self._holding.add_done_callback(self._on_held)

    def _on_held(self, task: asyncio.Task[None]) -> None:
        self._holding = None

    async def _stop_compacting(self) -> None:
        """Nothing of it is under way any more; the view stays as it is."""
        if self._holding is not None:
            await asyncio.wait([self._holding])
        if self.compaction is not None:
            await self.compaction.stop()

    @property
    def is_compaction_due(self) -> bool:
        """Whether as much as the policy says is not compacted yet."""
        subscription = self.subscriptions[COMPACTION]
        behind = self.bytes_after(subscription.acks.mark_delete)
        return behind > self.policies.compaction_threshold and subscription.backlog > 0

    async def compaction_subscription(self) -> Subscription:
        """The one that holds what is not compacted yet, made if need be."""
        return await self._subscription_for(COMPACTION, self.first_position(), {}, True)

    def set_compacted(self, compacted: CompactedLedger | None, horizon: Position) -> None:
        """What is read of it from now on by those who want the compacted view."""
        self.compacted = compacted
        self.horizon = horizon if compacted is not None else Position(-1, -1)
        for subscription in self.all_subscriptions():
            if subscription.compacted is not None:
                subscription.dispatcher.wake()

    async def ask_compacted(self, question: Callable[[CompactedLedger], Awaitable[T]]) -> T | None:
        """What the compacted ledger answers; None: there is none. Raises LedgerError."""
        while (compacted := self.compacted) is not None:
            try:
                answer = await question(compacted)
            except LedgerError:
                if compacted is self.compacted:
                    raise
            else:
                # One that was deleted meanwhile looks as if it had nothing.
                if compacted is self.compacted:
                    return answer
        return None

    async def last_compacted_message(self) -> tuple[Position, int]:
        """The same as last_message for who reads the compacted view. Raises LedgerError."""
        source = self.managed_ledger
        behind = source.normalize(source.next_position(self.horizon))
        if self.compacted is None or behind is not None:
            last = await self.last_message()
            if last[0] > self.horizon:
                return last
        # Nothing is behind it, or nothing but markers.
        found = await self.ask_compacted(lambda compacted: compacted.last_message())
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
        if request.compacted and subscription.compacted is None:
            await self._begin_compacted(subscription, request)
        return subscription

    async def _begin_compacted(self, subscription: Subscription, request: SubscribeRequest) -> None:
        """That of a reader is not forgotten meanwhile, for another one of its name that goes."""
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
        """A name is either that of a subscription or that of a reader."""
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

    async def subscription_for(
        self,
        name: str,
        mark_delete: Position,
        properties: dict[str, str],
        create: bool,
        replicated: bool = False,
    ) -> Subscription:
        # Who could move that of compaction would lose what is not compacted yet.
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
                # It, or the topic, goes: who comes again finds what is then.
                self.check_open()
                raise ServiceNotReady("Subscription is fenced")
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
        if limit and len(self.subscriptions) >= limit and name != COMPACTION:
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
            # A client moves it first, and may want something of what is cleared then.
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
        """Where the entry is that so many entries that are kept come before."""
        return self.managed_ledger.position_of(index)

    def next_position(self, mark: Position) -> Position:
        """Where the first entry after a mark is, or will be."""
        return self.managed_ledger.next_position(mark)

    @property
    def properties(self) -> dict[str, str]:
        """What users note about the topic."""
        kept = self.managed_ledger.properties
        return {key: value for key, value in kept.items() if key not in OWN_PROPERTIES}

    async def change_properties(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Notes something else; as ManagedLedger.change_properties. What the broker itself keeps
        there is neither shown to change nor taken from it.
        """

        def change_all(kept: dict[str, str]) -> dict[str, str]:
            own = {key: value for key, value in kept.items() if key in OWN_PROPERTIES}
            others = {key: value for key, value in kept.items() if key not in OWN_PROPERTIES}
            return {**change(others), **own}

        await self.managed_ledger.change_properties(change_all)

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

    def mark_up_to(self, position: tuple[int, int]) -> Position | None:
        """The last entry that is kept at or before a position; None: there is none, or the position
        is beyond all entries.
        """
        kept = self.managed_ledger.ordinal(position)
        if position > self.managed_ledger.last_confirmed or not kept:
            return None
        return self.managed_ledger.position_of(kept - 1)

    def bytes_after(self, mark: Position) -> int:
        """Bytes of the entries after a mark, about."""
        return backlog.bytes_after(self.managed_ledger, mark)

    def mark_before_bytes(self, bytes_max: int) -> Position:
        """The first mark with at most so many bytes after it."""
        return backlog.mark_before_bytes(self.managed_ledger, bytes_max)

    def closed_before(self, mark: Position, time_ms: int) -> Position:
        """The end of the ledgers that were closed before a time, from a mark on."""
        return backlog.closed_before(self.managed_ledger, mark, time_ms)

    def first_closed_ms(self, mark: Position) -> int:
        """When the ledger of the first entry after a mark was closed; 0: it was not."""
        return backlog.first_closed_ms(self.managed_ledger, mark)

    def mark_after(self, subscription: Subscription, count: int) -> Position:
        """The mark of a subscription when it has acknowledged so many entries more."""
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
                continue  # nothing of it is kept
            if left <= before - passed:
                break
            left -= before - passed
            last_entry = managed_ledger.position_of(last - 1).entry_id
            first_entry = last_entry + 1 - (last - before)
            here = last - before - acks.acknowledged_up_to(ledger_id, first_entry, last_entry)
            if left <= here:
                return Position(
                    ledger_id, _entry_left(acks, ledger_id, first_entry, last_entry, left)
                )
            passed, left = last, left - here
        return managed_ledger.position_of(passed + left - 1)

    async def last_message(self) -> tuple[Position, int]:
        """(position, batch index) of the last message; the index is -1 outside of a batch.

        Markers are no messages. (-1, -1) when there is no message.
        """
        if self._last_message is None:
            from pyxbroker.broker.topics.last_message import LastMessage

            self._last_message = LastMessage(
                str(self.name), self.managed_ledger, lambda: self._peeking("the last message")
            )
        return await self._last_message.find()

    async def time_after(self, mark: Position) -> int | None:
        """When the first entry after a mark was published; None: there is none, or it is lost.

        Raises LedgerError when it cannot be read now.
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
        """Reads the first entry of a backlog for its publish time, which backlog_time_ms returns
        from then on. Raises LedgerError.
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
        """The last position whose entry was published before a time, by bisection; after: those up
        to there were.
        """
        managed_ledger = self.managed_ledger
        end, count = managed_ledger.last_confirmed, managed_ledger.entries
        peeking = self._peeking("the first message of a time")

        def place(index: int) -> Position | None:
            # Counted back from the end, since ledgers may be trimmed meanwhile; None: it was.
            kept = managed_ledger.ordinal(end) - count + index
            return managed_ledger.position_of(kept) if kept >= 0 else None

        low, high = 0 if after is None else managed_ledger.ordinal(after), count
        while low < high:
            middle = (low + high) // 2
            # An entry that is lost tells nothing: the one before it is asked.
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
        """Nothing more can be written: clients are sent away, and may find another owner."""
        log.error("the topic cannot be written any more", topic=self.name, error=error)
        self.fenced = True
        self.turn.at_end(self.disconnect)

    def on_managed_ledger_write_failed(self, error: ManagedLedgerError) -> None:
        """Nothing more can be written; consumers get on with what was acknowledged."""
        self.turn.at_end(self.close_producers)

    @property
    def is_gone(self) -> bool:
        return self.managed_ledger.is_dead and not self.managed_ledger.is_closing

    async def settle(self) -> None:
        await self.left()
        await self.managed_ledger.settle()

    def take_back_waiting(self) -> None:
        """Fails the SENDs that wait for the next ledger, since there is no space for one."""
        self.managed_ledger.take_back_waiting()

    def check_age(self) -> None:
        """Closes and deletes ledgers that are old enough."""
        self.managed_ledger.check_age()

    async def trim(self) -> None:
        """The same; old ledgers are gone when it returns. Raises ManagedLedgerError,
        MetadataError.
        """
        self.managed_ledger.check_age()
        await self.managed_ledger.finish_trim()

    def free_space(self) -> None:
        """Deletes what everybody has acknowledged, at once."""
        if self.deduplication is not None:
            # What it keeps goes with the next look.
            self.deduplication.begin_snapshot()
        self.managed_ledger.roll_over_if_consumed()

    async def truncate(self) -> None:
        """Acknowledges everything for all subscriptions, and deletes every ledger but the one that
        is being written. Raises CursorError, ManagedLedgerError, MetadataError.

        A kill in between leaves each subscription as it was or with nothing to come.
        """
        self.managed_ledger.check_trimmable()
        await self._stop_compacting()
        subscriptions = list(self.subscriptions.values())
        await expiry.skip_to(subscriptions, self.last_confirmed)
        await expiry.persist(subscriptions)
        if self.deduplication is not None:
            await self.deduplication.snapshot()
        await self.managed_ledger.truncate()

    async def close(self) -> None:
        self.fenced = True
        self.disconnect()
        await self.left()
        self.managed_ledger.take_back()
        await self._stop_compacting()
        await self._settle_deduplication()
        await self.managed_ledger.close()

    @property
    def is_terminated(self) -> bool:
        return self.managed_ledger.is_terminated

    async def terminate(self) -> Position:
        position = await terminate(self.managed_ledger)
        # Who asked for it may be gone before all are told.
        await asyncio.shield(self._tell_end())
        return position

    async def _tell_end(self) -> None:
        """It is terminated. Who has not acknowledged everything yet is told when that is so."""
        self.turn.run(self.close_producers)
        slices = Slices()
        for subscription in self.all_subscriptions():
            self.turn.run(subscription.notify_end)
            await slices.pause()
        await self.left()

    async def delete(self) -> None:
        assert self.fenced, "who deletes a topic has seen to it that nobody begins to use it"
        self.disconnect()
        await self.left()
        self.managed_ledger.take_back()
        await self._stop_compacting()
        await self._settle_deduplication()
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
    """The same for all topics with the same policies: a namespace may have many."""
    rate = persistence.mark_delete_per_s
    return limits.keeping(*retention)._replace(
        quorums=quorums_of(persistence),
        mark_delete_per_s=rate if rate >= 0 else broker_mark_delete_per_s,
    )


def quorums_of(persistence: Persistence) -> LedgerQuorums:
    """Of the next ledger of a topic."""
    return LedgerQuorums(persistence.ensemble, persistence.write_quorum, persistence.ack_quorum)


def _ignore(topic: PersistentTopic) -> None:
    """Nobody wants to know."""


def _entry_left(acks: AckSet, ledger_id: int, low: int, high: int, left: int) -> int:
    """Which of the entries from low on, up to high, is the left-th that is not acknowledged."""
    while low < high:
        middle = (low + high) // 2
        # Each step counts half of what the one before did: together no more than all of them.
        here = middle - low + 1 - acks.acknowledged_up_to(ledger_id, low, middle)
        if here >= left:
            high = middle
        else:
            low, left = middle + 1, left - here
    return low
