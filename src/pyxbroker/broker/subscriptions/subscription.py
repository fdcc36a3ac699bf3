"""A subscription: a cursor, its consumers, and the dispatcher between them."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol, cast

from pyxbroker.base.errors import (
    ConsumerBusy,
    MetadataStoreError,
    NotAllowed,
    PersistenceError,
    ServiceNotReady,
    SubscriptionBusy,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.pacing import run_incrementally
from pyxbroker.base.rates import Rates
from pyxbroker.base.slices import Slices, Steps
from pyxbroker.broker.client_memory import KEY_SHARED_BYTES, READER_BYTES
from pyxbroker.broker.commands import replies
from pyxbroker.broker.dispatch import kinds
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.dispatch.key_shared import KeySlots
from pyxbroker.broker.dispatch.selectors import KeySharedPolicy
from pyxbroker.delivery import free_items
from pyxbroker.entry import AckRun, Position
from pyxbroker.metadata.store import MetadataError

if TYPE_CHECKING:
    from pyxbroker.ackset import AckSet
    from pyxbroker.base.pacing import StepQueue
    from pyxbroker.broker.compaction.compacted import CompactedSource
    from pyxbroker.broker.dispatch.dispatch_limiter import DispatchLimiter
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.broker.topics.topic import Topic
    from pyxbroker.broker.transactions.ids import TxnId
    from pyxbroker.broker.transactions.pending_ack_handle import PendingAckHandle, PendingAckStores
    from pyxbroker.mledger.cursor import Cursor

log = get_logger("pyxbroker.subscription")

# Property of cursors whose position is replicated to other clusters; its value is 1.
REPLICATED_SUBSCRIPTION = "pulsar.replicated.subscription"
VERSION_END = 9  # first protocol version with REACHED_END_OF_TOPIC
# The C++ client, the clients based on it (Python, Node.js) and the Go client announce a newer
# protocol version, but do not know the command. They close the connection, and would reconnect
# forever at the end of a topic.
CLIENTS_WITHOUT_END = ("Pulsar-CPP", "Pulsar-Go")
NO_TRANSACTIONS = "Server don't support transaction ack!"  # Pulsar's text
ACKNOWLEDGED_PER_STEP = 4096  # entries per step, acknowledged without a consumer
COUNTED_PER_STEP = 256  # consumers per step when counters are summed
NOTIFIED_PER_CALL = 32  # consumers notified of the end of the topic in one call
FREED_PER_STEP = 32  # notes about entries freed per step


class SubscriptionType(enum.IntEnum):
    """CommandSubscribe.SubType."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    def __str__(self) -> str:
        return TYPE_NAMES[self]


TYPE_NAMES = ("Exclusive", "Shared", "Failover", "Key_Shared")
DISPATCHERS: dict[SubscriptionType, Callable[[Subscription, KeySharedPolicy], Dispatcher]] = {
    SubscriptionType.EXCLUSIVE: kinds.exclusive,
    SubscriptionType.SHARED: kinds.shared,
    SubscriptionType.FAILOVER: kinds.failover,
    SubscriptionType.KEY_SHARED: kinds.key_shared,
}
INDIVIDUAL = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)  # acknowledge single messages


class SubscriptionCursor(Protocol):
    """The cursor of a subscription; that of a managed ledger implements this."""

    durable: bool
    closed: bool
    acks: AckSet
    properties: dict[str, str]
    position_properties: dict[str, int]
    last_active_ms: int  # time of the last use

    @property
    def backlog(self) -> int:
        """Number of unacknowledged entries."""

    def acknowledge(self, run: AckRun) -> int:
        """Acknowledge single entries, and single messages of batches."""

    def acknowledge_positions(self, positions: Iterable[tuple[int, int]]) -> int:
        """Acknowledge entries by (ledger_id, entry_id)."""

    def acknowledge_up_to(self, position: tuple[int, int], ack_set: Sequence[int] = ()) -> int:
        """Acknowledge cumulatively. Return the number of entries that became acknowledged, 0 for a
        position before the mark or beyond the last entry.
        """

    def reset(self, mark_delete: Position, ack_set: Sequence[int] = ()) -> None:
        """Move the cursor; everything after mark_delete becomes unacknowledged.

        Raises CursorClosed, CursorDeleted.
        """

    def put_property(self, key: str, value: int) -> asyncio.Future[None]:
        """Store a number with the position; the future resolves when it is durable."""

    def drop_property(self, key: str) -> asyncio.Future[None]:
        """Remove a stored number; the future resolves when that is durable."""

    def set_properties(self, properties: dict[str, str]) -> asyncio.Future[None]:
        """Replace the subscription's properties; the future resolves when they are durable."""

    def persist(self) -> asyncio.Future[None]:
        """Return a future that resolves when all acknowledgements until now are durable. It fails
        with CursorClosed, CursorDeleted.
        """

    async def created(self) -> None:
        """Wait until a new cursor is durable. Raises the error that prevents it."""

    async def delete(self) -> None:
        """Delete the cursor. After a MetadataError it is unchanged, and the caller may retry.

        Raises CursorClosed.
        """


class Subscription:
    """One subscription of a topic."""

    auto_consumer_count = 0  # consumers that accept any schema
    compacted: CompactedSource | None = None  # once a consumer has asked for the compacted view
    pending_acks: PendingAckHandle | None = None  # of transactions; None until the first use
    lacks_pending_acks = False  # True: no log of pending acknowledgements is stored
    # Times of events, in s since 1970; 0: never since the topic was loaded.
    last_flow_s = 0.0  # by a consumer
    last_acked_s = 0.0  # by a consumer
    last_advanced_s = 0.0  # the mark
    last_expired_s = 0.0
    expired = 0  # number of expired entries
    expired_rates: Rates | None = None  # of expired entries, since the first request
    throttled: Counter[str] | None = None  # by limit: how often it delayed deliveries
    drop_rates: Rates | None = None  # of dropped messages, since the first request
    was_used = False  # a consumer has subscribed since the topic was loaded
    _end_round: object | None = None  # identifies the current round of notifications
    past_sent_ms = 0  # time of the last delivery to a consumer that has left
    backlog_time: tuple[Position, int] | None = None
    """Result of the last search for the first backlog entry: its position and publish time in
    ms.
    """

    def __init__(self, topic: Topic, name: str, cursor: SubscriptionCursor) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.kind = SubscriptionType.EXCLUSIVE
        self.dispatch_limiter: DispatchLimiter | None = None  # None without a rate of its own
        """Outlives dispatchers, so that reconnecting does not circumvent the rate."""
        self.dispatcher = kinds.exclusive(self, KeySharedPolicy())
        self.closing = False  # being deleted or moved: no consumer may join
        self.move: asyncio.Future[None] | None = None  # the seek in progress
        self.arriving = 0  # consumers about to join
        self._detached: list[list[Consumer]] = []  # detached, clients not notified yet
        self.msg_drop = 0  # messages dropped (non-persistent topic)
        self._past_msg_out = 0  # to consumers that have left
        self._past_bytes_out = 0
        self.rates: Rates | None = None  # of deliveries, since the first request

    @property
    def consumers(self) -> list[Consumer]:
        return self.dispatcher.consumers

    @property
    def acks(self) -> AckSet:
        """The acknowledged entries. A seek replaces the object."""
        return self.cursor.acks

    @property
    def backlog(self) -> int:
        """Number of unacknowledged entries."""
        return self.cursor.backlog

    @property
    def is_durable(self) -> bool:
        """True if the subscription outlives its consumers; that of a reader does not."""
        return self.cursor.durable

    def cost_as(self, kind: SubscriptionType) -> int:
        """Return its memory use as a subscription of this type, without consumers
        (client_memory.py). The first consumer is charged for it. A durable subscription costs
        nothing, because it exists anyway.
        """
        cost = 0 if self.is_durable else READER_BYTES
        return cost + KEY_SHARED_BYTES if kind is SubscriptionType.KEY_SHARED else cost

    @property
    def properties(self) -> dict[str, str]:
        """The properties set by the client that created it."""
        return self.cursor.properties

    async def set_properties(self, properties: dict[str, str]) -> None:
        """Replace the properties; durable on return. Raises LedgerError, MetadataError."""
        await self.cursor.set_properties(properties)

    @property
    def replicated(self) -> bool:
        """True if the position should be replicated to other clusters. Stored, but without
        effect.
        """
        return self.cursor.position_properties.get(REPLICATED_SUBSCRIPTION) == 1

    async def set_replicated(self, replicated: bool = True) -> None:
        """Store if the position should be replicated. Raises CursorError."""
        if replicated and not self.replicated:
            await self.cursor.put_property(REPLICATED_SUBSCRIPTION, 1)
        elif not replicated and self.replicated:
            await self.cursor.drop_property(REPLICATED_SUBSCRIPTION)

    def holder(self, kind: SubscriptionType, key_shared: KeySharedPolicy) -> Consumer | None:
        """Return the consumer that prevents another one from joining. Its client may be dead."""
        if kind is not self.kind or not self.consumers:
            return None
        if kind is SubscriptionType.EXCLUSIVE:
            return self.consumers[0]
        chooser = self.dispatcher.chooser
        if isinstance(chooser, KeySlots):
            return chooser.holder(key_shared.ranges)
        return None

    def check_settled(self) -> None:
        """Raise ServiceNotReady while the subscription is moved or deleted, or after its
        deletion.
        """
        if self.closing:
            raise ServiceNotReady("Subscription is fenced")

    def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Attach a consumer. Raises Pulsar's error for a consumer that cannot join."""
        self.check_settled()
        self._note_use()
        self.was_used = True
        if self.consumers:
            self._check_compatible(consumer, kind)
            limit = self.topic.policies.consumers_per_subscription_max
            if limit and kind is not SubscriptionType.EXCLUSIVE and len(self.consumers) >= limit:
                raise ConsumerBusy(
                    "Subscription reached max consumers limit (maxConsumersPerSubscription)"
                )
            self.dispatcher.add_consumer(consumer)
            self._count(consumer, 1)
            return
        former = dispatcher = self.dispatcher
        if kind is not self.kind or not dispatcher.is_reusable:
            dispatcher.rewind()
            dispatcher = DISPATCHERS[kind](self, consumer.key_shared)
        dispatcher.add_consumer(consumer)
        self._count(consumer, 1)
        self.kind = kind
        self.dispatcher = dispatcher
        if dispatcher is not former:
            former.abandon()

    def _count(self, consumer: Consumer, change: int) -> None:
        self.topic.consumer_count += change
        if consumer.auto_consume:
            self.auto_consumer_count += change
            self.topic.auto_consumer_count += change

    @property
    def last_active_ms(self) -> int:
        """Time of the last use, in ms since the epoch."""
        return self.cursor.last_active_ms

    def _note_use(self) -> None:
        self.cursor.last_active_ms = int(self.topic.wall_clock() * 1000)

    def _check_compatible(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Raise SubscriptionBusy, with Pulsar's text, for a consumer of another type."""
        different = "Subscription is of different type. "
        if kind is not self.kind:
            raise SubscriptionBusy(
                f"{different}Active subscription type of '{self.kind}' is different than the"
                f" connecting consumer's type '{kind}'."
            )
        chooser = self.dispatcher.chooser
        if not isinstance(chooser, KeySlots):
            return
        here, wanted = chooser.policy, consumer.key_shared
        if here.mode is not wanted.mode:
            raise SubscriptionBusy(
                f"{different}Active subscription key_shared mode of '{here.mode.name}' is different"
                f" than the connecting consumer's key_shared mode '{wanted.mode.name}'."
            )
        if here.out_of_order and not wanted.out_of_order:
            raise SubscriptionBusy(
                f"{different}Active subscription allows out of order delivery while the connecting"
                " consumer does not allow it."
            )
        if wanted.out_of_order and not here.out_of_order:
            raise SubscriptionBusy(
                f"{different}Active subscription does not allow out of order delivery while the"
                " connecting consumer allows it."
            )

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer. Its unacknowledged entries go to other consumers, or wait."""
        if not consumer.closed:
            consumer.closed = True
            cost = consumer.subscription_cost
            consumer.release()
            self._count_past(consumer)
            self.dispatcher.remove_consumer(consumer)
            if cost and self.consumers:
                self.consumers[0].take_over(cost)
            self._count(consumer, -1)
            self.dispatcher.on_more()
            self._note_use()
            self.topic.on_used()
        self.topic.drop_unused_reader(self)

    def disconnect(self, but: Consumer | None = None) -> None:
        """Detach every consumer, and notify all clients but that of one consumer.

        The consumers are detached in one call: new consumers get their unacknowledged entries, and
        later commands for them have no effect. There may be a hundred thousand, so the clients are
        notified in steps. Until then a consumer is closed, and still has its id.
        """
        if not self.consumers:
            self.dispatcher.rewind()
            return
        chooser = self.dispatcher.chooser
        policy = chooser.policy if isinstance(chooser, KeySlots) else KeySharedPolicy()
        self._detach_all(self.kind, policy, but)

    def _detach_all(
        self, kind: SubscriptionType, policy: KeySharedPolicy, but: Consumer | None = None
    ) -> None:
        """Replace the dispatcher by a new one without consumers."""
        former = self.dispatcher
        former.abandon()
        detached = former.consumers[::-1]
        former.consumers.clear()
        self.topic.consumer_count -= len(detached)
        self.topic.auto_consumer_count -= self.auto_consumer_count
        self.auto_consumer_count = 0
        for each in detached:
            each.closed = True
        self.kind = kind
        self.dispatcher = DISPATCHERS[kind](self, policy)
        if detached:
            self._detached.append(detached)
            run_incrementally(self._release_detached(former, detached, but), self.topic.turn.run)
        self._note_use()
        self.topic.on_used()
        self.topic.drop_unused_reader(self)

    def _release_detached(
        self, former: Dispatcher, detached: list[Consumer], but: Consumer | None
    ) -> Iterator[StepQueue]:
        """Notify clients that their consumers are closed, from the end of the list on, and free the
        consumers' deliveries.
        """
        move = self.move
        queue = detached[-1].connection.session.step_queue
        while detached:
            consumer = detached[-1]
            queue = consumer.connection.session.step_queue
            self._release_one(consumer, consumer is not but, move)
            detached.pop()
            unused = former.detach(consumer)
            yield queue
            while not free_items(unused, FREED_PER_STEP):
                yield queue
        self._detached.remove(detached)
        self.dispatcher.limits.wake_other_subscriptions()
        unused = former.clear_notes()
        while not free_items(unused, FREED_PER_STEP):
            yield queue

    def _release_one(
        self, consumer: Consumer, is_notified: bool, move: asyncio.Future[None] | None
    ) -> None:
        connection, consumer_id = consumer.connection, consumer.consumer_id
        self._count_past(consumer)
        consumer.release()
        if connection.consumers.get(consumer_id) is not consumer:
            return  # its client has closed it, and may have another consumer with that id
        del connection.consumers[consumer_id]
        if is_notified:
            self.topic.notify_closed(replies.ClosedNotice(connection, consumer_id, False))
        if move is not None and not move.done():
            connection.session.moves[consumer_id] = move

    def _count_past(self, consumer: Consumer) -> None:
        self._past_msg_out += consumer.msg_out
        self._past_bytes_out += consumer.bytes_out
        self.past_sent_ms = max(self.past_sent_ms, consumer.last_sent_ms)

    def disconnect_one(self, consumer: Consumer) -> None:
        """Detach one consumer and notify its client, which may subscribe again."""
        connection = consumer.connection
        if connection.consumers.get(consumer.consumer_id) is consumer:
            del connection.consumers[consumer.consumer_id]
        self.topic.notify_closed(replies.ClosedNotice(connection, consumer.consumer_id, False))
        self.remove_consumer(consumer)

    def on_defect(self, error: Exception) -> None:
        """Replace a dispatcher that has raised an unexpected exception. Its consumers are
        disconnected, and get a new dispatcher when they subscribe again. Other subscriptions are
        not affected.
        """
        log.failure(
            "a subscription cannot continue; its consumers are disconnected",
            error,
            topic=self.topic.name,
            subscription=self.name,
        )
        # The failed code may still be working with these consumers.
        self.topic.turn.at_end(self._replace_dispatcher)

    def _replace_dispatcher(self) -> None:
        self._detach_all(SubscriptionType.EXCLUSIVE, KeySharedPolicy())

    def notify_end(self, consumer: Consumer | None = None) -> None:
        """Notify consumers once that the topic is terminated and they have no backlog.

        consumer: the one that caused the call; it may have joined after the others were notified.
        """
        if self.cursor.backlog > 0:
            self._end_round = None
        elif self._end_round is None:
            self._end_round = end = object()
            if len(self.consumers) <= NOTIFIED_PER_CALL:
                for each in self.consumers:
                    self._notify_one_of_end(each)
            else:
                self.topic.call_in_slices(self._end_notifications(end))
        elif consumer is not None:
            # Not all consumers: there may be a hundred thousand, and each causes a call.
            self._notify_one_of_end(consumer)

    def _end_notifications(self, end: object) -> Iterator[Callable[[], None]]:
        """Return calls that notify each consumer. New consumers are notified at their next
        command.
        """
        for consumer in list(self.consumers):
            if self._end_round is not end:
                return  # there is a backlog again, or a newer round of notifications
            yield partial(self._notify_one_of_end, consumer)

    def _notify_one_of_end(self, consumer: Consumer) -> None:
        connection = consumer.connection
        if not (consumer.end_sent or consumer.closed) and (
            connection.protocol_version >= VERSION_END
            and not connection.session.client_version.startswith(CLIENTS_WITHOUT_END)
        ):
            consumer.end_sent = True
            connection.send_frame(replies.reached_end_of_topic(consumer.consumer_id))

    def sent(self) -> tuple[int, int]:
        """Return messages and bytes sent to consumers since the topic was loaded."""
        messages, size = self._past_msg_out, self._past_bytes_out
        for each in chain(self.consumers, *self._detached):
            messages += each.msg_out
            size += each.bytes_out
        return messages, size

    def count_sent(self) -> Steps[tuple[int, int]]:
        """Return the result of sent(), counting some consumers per step: those attached at the
        start, even if they leave meanwhile.
        """
        messages, size = self._past_msg_out, self._past_bytes_out
        for number, each in enumerate([*self.consumers, *chain(*self._detached)], 1):
            messages += each.msg_out
            size += each.bytes_out
            if number % COUNTED_PER_STEP == 0:
                yield
        return messages, size

    def drop_rate(self, now: float) -> float:
        """Return the recent rate of dropped messages per second."""
        if self.drop_rates is None:
            self.drop_rates = Rates(now, self.msg_drop)
        [rate] = self.drop_rates.per_second(now, self.msg_drop)
        return rate

    def expired_rate(self, now: float) -> float:
        """Return the recent rate of expired entries per second."""
        if self.expired_rates is None:
            self.expired_rates = Rates(now, self.expired)
        [rate] = self.expired_rates.per_second(now, self.expired)
        return rate

    def find_last_sent(self) -> Steps[int]:
        """Return the time of the last delivery to a consumer, in ms since 1970; 0: never. Checks
        some consumers per step.
        """
        last_ms = 0
        for number, each in enumerate([*self.consumers, *chain(*self._detached)], 1):
            last_ms = max(last_ms, each.last_sent_ms)
            if number % COUNTED_PER_STEP == 0:
                yield
        return last_ms or self.past_sent_ms

    def acknowledge(self, consumer: Consumer, run: AckRun, cumulative: bool) -> str | None:
        """Handle an ACK. Return the error text if it is refused, or None."""
        mark = None if self.compacted is None else self.acks.mark_delete
        if not cumulative:
            before = self.acks.mark_entry_id
            self.cursor.acknowledge(run)
            if self.acks.mark_entry_id != before:
                self.last_advanced_s = self.last_acked_s
            if self.pending_acks is not None and run.partial:
                # Transactions may hold the other messages of these batches.
                self.settle_pending(consumer, run, self.pending_acks.view_of(run))
                self.dispatcher.on_committed(run)
            else:
                self.dispatcher.on_acknowledged(consumer, run)
            self._note_compacted(run, cumulative, mark)
            return None
        if self.kind in INDIVIDUAL:
            return f"A consumer of a {self.kind} subscription cannot acknowledge cumulatively."
        if len(run) != 1:
            return "A cumulative acknowledgement names exactly one message id."
        ledger_id, entry_id, _ = run.position(0)
        if entry_id >= -1:
            # -1 acknowledges all earlier ledgers. Clients name it for a part of a ledger's first
            # batch, if they do not acknowledge single messages of batches.
            acked = self.cursor.acknowledge_up_to((ledger_id, entry_id), run.ack_set(0))
            if acked:
                self.last_advanced_s = self.last_acked_s
            consumer.count_acked_entries(acked)
            self._note_compacted(run, cumulative, mark)
        return None

    def _note_compacted(self, run: AckRun, cumulative: bool, before: Position | None) -> None:
        """Forward acknowledgements to the compacted view. before: the previous mark."""
        if self.compacted is not None:
            mark = self.acks.mark_delete
            self.compacted.on_acknowledged(run, cumulative, mark if mark != before else None)

    # --- transactions -------------------------------------------------------------------------

    @property
    def _pending_ack_stores(self) -> PendingAckStores | None:
        return self.topic.pending_ack_stores if self.is_durable else None

    def acknowledge_in_transaction(
        self, consumer: Consumer, txn: tuple[int, int], run: AckRun, cumulative: bool
    ) -> asyncio.Future[None]:
        """Handle an ACK of a transaction, whose id is as in the command. The future is done when
        the acknowledgement is pending durably, or has the PulsarError.
        """
        from pyxbroker.broker.transactions.ids import TxnId

        stores = self._pending_ack_stores
        answer: asyncio.Future[None] = self.topic.loop.create_future()
        if stores is None:
            answer.set_exception(NotAllowed(NO_TRANSACTIONS))
        elif cumulative and self.kind in INDIVIDUAL:
            answer.set_result(None)  # as in Pulsar, the acknowledgement has no effect
        else:
            handle = self.pending_acks or stores.begin(self)
            return handle.acknowledge(consumer, TxnId.of_wire(*txn), run, cumulative)
        return answer

    @property
    def durable_cursor(self) -> Cursor:
        """The cursor of a durable subscription, which is in the topic's managed ledger."""
        return cast("Cursor", self.cursor)

    async def recover_pending_acks(self) -> PendingAckHandle | None:
        """Wait until the acknowledgements of open transactions are read from their log; return None
        if there is no log. Raises PulsarError.
        """
        stores = self._pending_ack_stores
        return None if stores is None else await stores.recover(self)

    async def end_transaction(self, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """Commit or abort the acknowledgements of a transaction. The transactions of its
        coordinator up to low_water_mark have ended. Durable on return. Raises PulsarError.
        """
        if self._pending_ack_stores is None:
            raise NotAllowed(NO_TRANSACTIONS)
        handle = await self.recover_pending_acks()
        if handle is not None:
            await handle.end(txn, commit, low_water_mark)

    def settle_pending(self, consumer: Consumer, run: AckRun, acks: AckSet) -> None:
        """Settle the deliveries that an ACK of a transaction names. acks: the acknowledgements of
        these entries, pending ones included.
        """
        self.dispatcher.settle_pending(consumer, run, acks)

    def acknowledge_committed(self, run: AckRun, cumulative: bool) -> None:
        """Acknowledge what a transaction has acknowledged that is committed now."""
        mark = self.acks.mark_delete
        if cumulative:
            ledger_id, entry_id, _ = run.position(0)
            self.cursor.acknowledge_up_to((ledger_id, entry_id), run.ack_set(0))
        else:
            self.cursor.acknowledge(run)
        if self.acks.mark_delete != mark:
            self.last_advanced_s = self.topic.wall_clock()
        self._note_compacted(run, cumulative, mark)
        self.dispatcher.on_committed(run)
        if self.topic.is_terminated:
            self.notify_end()

    def release_pending(self, positions: list[tuple[int, int]]) -> None:
        """Redeliver what a transaction has acknowledged that is aborted now."""
        self.dispatcher.release_pending(positions)

    def redeliver(
        self, consumer: Consumer, positions: list[tuple[int, int]], epoch: int | None
    ) -> bool:
        """Redeliver the named positions, or everything unacknowledged (no positions). Return False
        if further positions are not needed.
        """
        if self.kind in INDIVIDUAL and positions:
            self.dispatcher.redeliver(consumer, positions)
            return True
        if self.kind not in INDIVIDUAL and epoch is not None:
            # The client discards messages of older epochs; the epoch never decreases.
            consumer.consumer_epoch = max(epoch, consumer.consumer_epoch)
        # Deliveries in order can only restart at the mark, even if the client names positions.
        self.dispatcher.redeliver_all(consumer)
        return False

    def acknowledge_positions(self, positions: Iterable[tuple[int, int]]) -> None:
        """Acknowledge whole entries that no consumer shall get."""
        self.cursor.acknowledge_positions(positions)

    def acknowledge_ledger(self, ledger_id: int, last: int) -> None:
        """Acknowledge every entry of a ledger up to the id `last`."""
        for start in range(0, last + 1, ACKNOWLEDGED_PER_STEP):
            stop = min(start + ACKNOWLEDGED_PER_STEP, last + 1)
            self.cursor.acknowledge_positions((ledger_id, n) for n in range(start, stop))

    def persist(self) -> asyncio.Future[None]:
        """Return a future that resolves when all acknowledgements until now are durable."""
        return self.cursor.persist()

    async def seek(
        self,
        mark_delete: Position,
        ack_set: Sequence[int] = (),
        compacted_from: Position | None = None,
    ) -> None:
        """Move the cursor; consumers get everything after mark_delete. Durable on return.

        ack_set: the wanted messages of the first batch. compacted_from: start of the compacted
        view, if it is before the log. After a LedgerError or MetadataError the move is in effect,
        but not durable: it lasts until the topic is loaded again. A closed or deleted cursor does
        not move. Raises CursorClosed, CursorDeleted.
        """
        self.cursor.reset(mark_delete, ack_set)
        self._end_round = None
        if self.compacted is not None:
            self.compacted.begin_at(compacted_from)
        self.dispatcher.reset()
        try:
            await self.cursor.persist()
        finally:
            self.dispatcher.wake()

    async def skip_to(self, mark_delete: Position) -> int:
        """Acknowledge everything up to a position for all consumers. Return the number of entries.

        Consumers keep their messages, and need not acknowledge them. Nothing happens while the
        subscription is moved or deleted. A concurrent move takes precedence.
        """
        if self.closing or self.cursor.closed or mark_delete.entry_id < 0:
            return 0
        acked = self.cursor.acknowledge_up_to(mark_delete)
        if not acked:
            return 0
        acks = self.acks
        run = self.topic.turn.run
        slices = Slices()
        for consumer in list(self.consumers):
            await slices.pause()
            for part in consumer.pending_up_to(*mark_delete, ACKNOWLEDGED_PER_STEP):
                run(self.dispatcher.on_acknowledged, consumer, AckRun.of(part))
                await slices.pause()
                if self.acks is not acks:
                    # After a seek, entries before the mark may be needed again.
                    return acked
        run(self._resume_after, mark_delete)
        return acked

    def _resume_after(self, mark_delete: Position) -> None:
        self.dispatcher.skip_to(mark_delete)
        if self.topic.is_terminated:
            self.notify_end()

    async def delete(self) -> None:
        """Delete the subscription, which has no consumers any more.

        Raises MetadataError; ServiceNotReady or CursorClosed if its topic is closed meanwhile.
        """
        if self.is_durable and self.cursor.closed:
            # The node belongs to the broker that loads the topic next.
            self.topic.check_open()
            raise ServiceNotReady("Subscription is fenced")
        self.closing = True
        try:
            if self._pending_ack_stores is not None:
                await self._pending_ack_stores.delete(self)
            await self.cursor.delete()
        except (MetadataError, PersistenceError):
            # The node still exists, and so does the subscription; the client may retry.
            self.closing = False
            raise

    def check_unsubscribe(self, consumer: Consumer, force: bool) -> None:
        """Raise MetadataStoreError, as Pulsar does, while other consumers use the subscription."""
        if not force and any(each is not consumer for each in self.consumers):
            raise MetadataStoreError("Unconnected or shared consumer attempting to unsubscribe")
