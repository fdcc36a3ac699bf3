"""A subscription: a cursor, its consumers, and the dispatcher between them."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.errors import (
    ConsumerBusy,
    MetadataStoreError,
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
from pyxbroker.broker.dispatch.key_shared import KeySharedPolicy, KeySlots
from pyxbroker.delivery import free_items
from pyxbroker.entry import AckRun, Position
from pyxbroker.metadata.store import MetadataError

if TYPE_CHECKING:
    from pyxbroker.ackset import AckSet
    from pyxbroker.base.pacing import Line
    from pyxbroker.broker.compaction.compacted import CompactedSource
    from pyxbroker.broker.dispatch.throttle import DispatchLimiter
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.broker.topics.topic import Topic

log = get_logger("pyxbroker.subscription")

# What marks a cursor whose position other clusters shall know, with the value 1.
REPLICATED_SUBSCRIPTION = "pulsar.replicated.subscription"
VERSION_END = 9  # of the protocol, from which on clients understand REACHED_END_OF_TOPIC
# The Go client, the C++ client and those made of it (Python, Node.js) have a newer protocol, do
# not know the command all the same, and close the connection; at the end of a topic they would do
# nothing but reconnect.
CLIENTS_WITHOUT_END = ("Pulsar-CPP", "Pulsar-Go")
ACKNOWLEDGED_AT_ONCE = 4096  # entries that no consumer acknowledges
COUNTED_AT_ONCE = 256  # clients, of which counters are summed up
TOLD_AT_ONCE = 32  # consumers, of the end of the topic
FREED_AT_ONCE = 32  # of what is known of entries, in a step of which many are made at once


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
INDIVIDUAL = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)  # they acknowledge one by one


class SubscriptionCursor(Protocol):
    """What a subscription asks of its cursor; that of a managed ledger is one."""

    durable: bool
    closed: bool
    acks: AckSet
    properties: dict[str, str]
    position_properties: dict[str, int]
    last_active_ms: int  # when somebody used it last

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""

    def acknowledge(self, run: AckRun) -> int:
        """Acknowledges single entries, and single messages of batches."""

    def acknowledge_positions(self, positions: Iterable[tuple[int, int]]) -> int:
        """The same for (ledger_id, entry_id) pairs."""

    def acknowledge_up_to(self, position: tuple[int, int], ack_set: Sequence[int] = ()) -> int:
        """Cumulative acknowledgement; how many entries it changed, 0 when it is behind the mark or
        beyond the last entry.
        """

    def reset(self, mark_delete: Position, ack_set: Sequence[int] = ()) -> None:
        """Moves the cursor: everything after mark_delete is unacknowledged again.

        Raises CursorClosed, CursorDeleted.
        """

    def put_property(self, key: str, value: int) -> asyncio.Future[None]:
        """Keeps a number with the position; the future resolves when it is durable."""

    def drop_property(self, key: str) -> asyncio.Future[None]:
        """Keeps a number no longer; the future resolves when that is durable."""

    def set_properties(self, properties: dict[str, str]) -> asyncio.Future[None]:
        """Keeps other texts of the subscription; the future resolves when they are durable."""

    def persist(self) -> asyncio.Future[None]:
        """A future that resolves when everything acknowledged until now is durable; it fails with
        CursorClosed, CursorDeleted.
        """

    async def created(self) -> None:
        """Waits until a new cursor is durable. Raises what kept it from that."""

    async def delete(self) -> None:
        """Removes the cursor for good. MetadataError: it is as it was, and it may be tried again.

        Raises CursorClosed.
        """


class Subscription:
    """One subscription of a topic."""

    auto_consumer_count = 0  # of its consumers, those that take whatever schema there is
    compacted: CompactedSource | None = None  # once a consumer wanted the compacted view
    # When something was done, in s since 1970; 0: never since the topic was opened.
    last_flow_s = 0.0  # by a consumer
    last_acked_s = 0.0  # by a consumer
    last_advanced_s = 0.0  # the mark
    last_expired_s = 0.0
    expired = 0  # entries
    expired_rates: Rates | None = None  # of them; once somebody asked for them
    throttled: Counter[str] | None = None  # how often which limit held it back, once one did
    drop_rates: Rates | None = None  # of what no consumer took; once somebody asked for them
    was_used = False  # a consumer came since the topic was opened
    _end_told: object | None = None  # another one each time that consumers met the end
    past_sent_ms = 0  # when consumers that are gone were sent something last
    backlog_time: tuple[Position, int] | None = None
    """The first entry of the backlog that was looked into last, and its publish time in ms."""

    def __init__(self, topic: Topic, name: str, cursor: SubscriptionCursor) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.kind = SubscriptionType.EXCLUSIVE
        self.dispatch_limiter: DispatchLimiter | None = None  # where it has a rate of its own
        """Of one dispatcher after the other: who reconnects is not sent more by that."""
        self.dispatcher = kinds.exclusive(self, KeySharedPolicy())
        self.closing = False  # it is being deleted or moved: no consumer may come
        self.move: asyncio.Future[None] | None = None  # resolves when a seek is done with it
        self.arriving = 0  # consumers that are on their way to it
        self._going: list[list[Consumer]] = []  # detached, and their clients are being told
        self.msg_drop = 0  # messages of a non-persistent topic that no consumer could take
        self._past_msg_out = 0  # to consumers that are gone
        self._past_bytes_out = 0
        self.rates: Rates | None = None  # of what goes out; once somebody asked for them

    @property
    def consumers(self) -> list[Consumer]:
        return self.dispatcher.consumers

    @property
    def acks(self) -> AckSet:
        """What is acknowledged; another one after a seek."""
        return self.cursor.acks

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.cursor.backlog

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its consumers; that of a reader does not."""
        return self.cursor.durable

    def cost_as(self, kind: SubscriptionType) -> int:
        """What it takes while it is of a kind, besides its consumers (client_memory.py): the first
        of them pays for that. A durable one is there anyway.
        """
        cost = 0 if self.is_durable else READER_BYTES
        return cost + KEY_SHARED_BYTES if kind is SubscriptionType.KEY_SHARED else cost

    @property
    def properties(self) -> dict[str, str]:
        """What the client that made it has noted about it."""
        return self.cursor.properties

    async def set_properties(self, properties: dict[str, str]) -> None:
        """Notes something else; durable when this returns. Raises LedgerError, MetadataError."""
        await self.cursor.set_properties(properties)

    @property
    def replicated(self) -> bool:
        """Whether its position is to be replicated to other clusters; kept, and not done yet."""
        return self.cursor.position_properties.get(REPLICATED_SUBSCRIPTION) == 1

    async def set_replicated(self, replicated: bool = True) -> None:
        """Notes that the position is to be replicated, or not. Raises CursorError."""
        if replicated and not self.replicated:
            await self.cursor.put_property(REPLICATED_SUBSCRIPTION, 1)
        elif not replicated and self.replicated:
            await self.cursor.drop_property(REPLICATED_SUBSCRIPTION)

    def holder(self, kind: SubscriptionType, key_shared: KeySharedPolicy) -> Consumer | None:
        """Who keeps a consumer from joining, and would not if its client were gone."""
        if kind is not self.kind or not self.consumers:
            return None
        if kind is SubscriptionType.EXCLUSIVE:
            return self.consumers[0]
        chooser = self.dispatcher.chooser
        if isinstance(chooser, KeySlots):
            return chooser.holder(key_shared.ranges)
        return None

    def check_settled(self) -> None:
        """Raises ServiceNotReady while it is moved or deleted, and once it was deleted."""
        if self.closing:
            raise ServiceNotReady("Subscription is fenced")

    def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Attaches a consumer. Raises the error that Pulsar has for one that cannot join."""
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
        if kind is not self.kind or not dispatcher.is_kept:
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
        """When somebody used it last, in ms since the epoch."""
        return self.cursor.last_active_ms

    def _note_use(self) -> None:
        self.cursor.last_active_ms = int(self.topic.wall_clock() * 1000)

    def _check_compatible(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Raises SubscriptionBusy, in Pulsar's words, for a consumer of another kind."""
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
        """Detaches a consumer; what it has not acknowledged goes to others, or waits."""
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
        """Detaches every consumer, and tells the clients of all but one, which knows.

        They are gone at once: who comes next gets what they had not acknowledged, and nothing is
        for those that go right after another. There may be a hundred thousand, so the clients are
        told bit by bit; until then the consumer is closed, and still has its id.
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
        """Goes on with a new dispatcher, which has no consumers."""
        former = self.dispatcher
        former.abandon()
        going = former.consumers[::-1]
        former.consumers.clear()
        self.topic.consumer_count -= len(going)
        self.topic.auto_consumer_count -= self.auto_consumer_count
        self.auto_consumer_count = 0
        for each in going:
            each.closed = True
        self.kind = kind
        self.dispatcher = DISPATCHERS[kind](self, policy)
        if going:
            self._going.append(going)
            run_incrementally(self._let_go(former, going, but), self.topic.turn.run)
        self._note_use()
        self.topic.on_used()
        self.topic.drop_unused_reader(self)

    def _let_go(
        self, former: Dispatcher, going: list[Consumer], but: Consumer | None
    ) -> Iterator[Line]:
        """Tells clients that their consumers are gone, from the end of the list on, and frees what
        those had.
        """
        move = self.move
        line = going[-1].connection.session.line
        while going:
            consumer = going[-1]
            line = consumer.connection.session.line
            self._let_one_go(consumer, consumer is not but, move)
            going.pop()
            unused = former.let_go(consumer)
            yield line
            while not free_items(unused, FREED_AT_ONCE):
                yield line
        self._going.remove(going)
        self.dispatcher.limits.let_others_go_on()
        unused = former.forget_notes()
        while not free_items(unused, FREED_AT_ONCE):
            yield line

    def _let_one_go(
        self, consumer: Consumer, is_told: bool, move: asyncio.Future[None] | None
    ) -> None:
        connection, consumer_id = consumer.connection, consumer.consumer_id
        self._count_past(consumer)
        consumer.release()
        if connection.consumers.get(consumer_id) is not consumer:
            return  # its client has closed it meanwhile, and may have another one of that id
        del connection.consumers[consumer_id]
        if is_told:
            connection.send_frame(replies.close_consumer(consumer_id))
        if move is not None and not move.done():
            connection.session.moves[consumer_id] = move

    def _count_past(self, consumer: Consumer) -> None:
        self._past_msg_out += consumer.msg_out
        self._past_bytes_out += consumer.bytes_out
        self.past_sent_ms = max(self.past_sent_ms, consumer.last_sent_ms)

    def send_away(self, consumer: Consumer) -> None:
        """Detaches one consumer; its client is told, and may come back."""
        connection = consumer.connection
        if connection.consumers.get(consumer.consumer_id) is consumer:
            del connection.consumers[consumer.consumer_id]
        connection.send_frame(replies.close_consumer(consumer.consumer_id))
        self.remove_consumer(consumer)

    def on_defect(self, error: Exception) -> None:
        """The dispatcher has met an error that nobody foresaw: its consumers are sent away, and
        get another one when they come back. Other subscriptions notice nothing.
        """
        log.failure(
            "a subscription cannot go on; its consumers are sent away",
            error,
            topic=self.topic.name,
            subscription=self.name,
        )
        # What meets it is in the middle of something with these consumers.
        self.topic.turn.at_end(self._begin_anew)

    def _begin_anew(self) -> None:
        self._detach_all(SubscriptionType.EXCLUSIVE, KeySharedPolicy())

    def tell_end(self, consumer: Consumer | None = None) -> None:
        """The topic is terminated: tells consumers, once each, when nothing is left for them.

        consumer: who did something, and may have come after the others were told.
        """
        if self.cursor.backlog > 0:
            self._end_told = None
        elif self._end_told is None:
            self._end_told = end = object()
            if len(self.consumers) <= TOLD_AT_ONCE:
                for each in self.consumers:
                    self._tell_one_end(each)
            else:
                self.topic.call_bit_by_bit(self._tellings_of_end(end))
        elif consumer is not None:
            # There may be a hundred thousand, each of which does something.
            self._tell_one_end(consumer)

    def _tellings_of_end(self, end: object) -> Iterator[Callable[[], None]]:
        """Calls that tell each consumer. Who comes meanwhile is told when it does something."""
        for consumer in list(self.consumers):
            if self._end_told is not end:
                return  # there is something left again, or who met the end since then tells it
            yield partial(self._tell_one_end, consumer)

    def _tell_one_end(self, consumer: Consumer) -> None:
        connection = consumer.connection
        if not (consumer.end_sent or consumer.closed) and (
            connection.protocol_version >= VERSION_END
            and not connection.session.client_version.startswith(CLIENTS_WITHOUT_END)
        ):
            consumer.end_sent = True
            connection.send_frame(replies.reached_end_of_topic(consumer.consumer_id))

    def sent(self) -> tuple[int, int]:
        """Messages and bytes sent to consumers since the topic was opened."""
        messages, size = self._past_msg_out, self._past_bytes_out
        for each in chain(self.consumers, *self._going):
            messages += each.msg_out
            size += each.bytes_out
        return messages, size

    def count_sent(self) -> Steps[tuple[int, int]]:
        """The same, of some consumers in a step: those that were there at its begin, whether they
        go meanwhile or not.
        """
        messages, size = self._past_msg_out, self._past_bytes_out
        for number, each in enumerate([*self.consumers, *chain(*self._going)], 1):
            messages += each.msg_out
            size += each.bytes_out
            if number % COUNTED_AT_ONCE == 0:
                yield
        return messages, size

    def drop_rate(self, now: float) -> float:
        """Messages per second that no consumer took, lately."""
        if self.drop_rates is None:
            self.drop_rates = Rates(now, self.msg_drop)
        [rate] = self.drop_rates.per_second(now, self.msg_drop)
        return rate

    def expired_rate(self, now: float) -> float:
        """Entries per second that expired, lately."""
        if self.expired_rates is None:
            self.expired_rates = Rates(now, self.expired)
        [rate] = self.expired_rates.per_second(now, self.expired)
        return rate

    def look_for_last_sent(self) -> Steps[int]:
        """When a consumer was sent something last, in ms since 1970; 0: never. It looks at some
        consumers in a step.
        """
        last_ms = 0
        for number, each in enumerate([*self.consumers, *chain(*self._going)], 1):
            last_ms = max(last_ms, each.last_sent_ms)
            if number % COUNTED_AT_ONCE == 0:
                yield
        return last_ms or self.past_sent_ms

    def acknowledge(
        self, consumer: Consumer, run: AckRun, cumulative: bool, has_txn: bool
    ) -> str | None:
        """Takes an ACK; returns the sentence with which it is refused, or None."""
        if has_txn:
            return "Acknowledging within a transaction is not supported by this broker."
        mark = None if self.compacted is None else self.acks.mark_delete
        if not cumulative:
            before = self.acks.mark_entry_id
            self.cursor.acknowledge(run)
            if self.acks.mark_entry_id != before:
                self.last_advanced_s = self.last_acked_s
            self.dispatcher.on_acknowledged(consumer, run)
            self._note_compacted(run, cumulative, mark)
            return None
        if self.kind in INDIVIDUAL:
            return f"A consumer of a {self.kind} subscription cannot acknowledge cumulatively."
        if len(run) != 1:
            return "A cumulative acknowledgement names exactly one message id."
        ledger_id, entry_id, _ = run.position(0)
        if entry_id >= 0:
            acked = self.cursor.acknowledge_up_to((ledger_id, entry_id), run.ack_set(0))
            if acked:
                self.last_advanced_s = self.last_acked_s
            consumer.count_acked_entries(acked)
            self._note_compacted(run, cumulative, mark)
        return None

    def _note_compacted(self, run: AckRun, cumulative: bool, before: Position | None) -> None:
        """Those of the compacted view are acknowledged, too; before: where the mark was."""
        if self.compacted is not None:
            mark = self.acks.mark_delete
            self.compacted.on_acknowledged(run, cumulative, mark if mark != before else None)

    def redeliver(
        self, consumer: Consumer, positions: list[tuple[int, int]], epoch: int | None
    ) -> bool:
        """Sends again what a consumer names, or (no positions) everything that it has not
        acknowledged. Returns whether it should name more.
        """
        if self.kind in INDIVIDUAL and positions:
            self.dispatcher.redeliver(consumer, positions)
            return True
        if self.kind not in INDIVIDUAL and epoch is not None:
            # What the client discards has an older epoch; it never goes back.
            consumer.consumer_epoch = max(epoch, consumer.consumer_epoch)
        # Of one consumer in order everything comes again, also when the client names positions.
        self.dispatcher.redeliver_all(consumer)
        return False

    def acknowledge_positions(self, positions: Iterable[tuple[int, int]]) -> None:
        """Acknowledges whole entries that no consumer shall get."""
        self.cursor.acknowledge_positions(positions)

    def acknowledge_ledger(self, ledger_id: int, last: int) -> None:
        """Acknowledges every entry of a ledger up to the id `last`."""
        for start in range(0, last + 1, ACKNOWLEDGED_AT_ONCE):
            stop = min(start + ACKNOWLEDGED_AT_ONCE, last + 1)
            self.cursor.acknowledge_positions((ledger_id, n) for n in range(start, stop))

    def persist(self) -> asyncio.Future[None]:
        """A future that resolves when everything acknowledged until now is durable."""
        return self.cursor.persist()

    async def seek(
        self,
        mark_delete: Position,
        ack_set: Sequence[int] = (),
        compacted_from: Position | None = None,
    ) -> None:
        """Moves the cursor; consumers get everything after mark_delete. Durable when it returns.

        ack_set: the messages that are wanted of the batch which comes first. compacted_from: where
        those begin that want the compacted view, if before the log. An error (LedgerError,
        MetadataError) says that the move is not durable: it holds until the topic is opened anew.
        Nothing happens once the cursor is closed or deleted. Raises CursorClosed, CursorDeleted.
        """
        self.cursor.reset(mark_delete, ack_set)
        self._end_told = None
        if self.compacted is not None:
            self.compacted.begin_at(compacted_from)
        self.dispatcher.reset()
        try:
            await self.cursor.persist()
        finally:
            self.dispatcher.wake()

    async def skip_to(self, mark_delete: Position) -> int:
        """Acknowledges everything up to a position, whoever has it; how many entries that were.

        Consumers keep what they have of it, and need not acknowledge it. Nothing happens while the
        subscription is moved or deleted. When it is moved meanwhile, that holds.
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
            for part in consumer.pending_up_to(*mark_delete, ACKNOWLEDGED_AT_ONCE):
                run(self.dispatcher.on_acknowledged, consumer, AckRun.of(part))
                await slices.pause()
                if self.acks is not acks:
                    # What is before the mark may be wanted again.
                    return acked
        run(self._go_on_after, mark_delete)
        return acked

    def _go_on_after(self, mark_delete: Position) -> None:
        self.dispatcher.skip_to(mark_delete)
        if self.topic.is_terminated:
            self.tell_end()

    async def delete(self) -> None:
        """Removes the subscription; it has no consumers any more.

        Raises MetadataError; ServiceNotReady or CursorClosed when its topic is closed meanwhile.
        """
        if self.is_durable and self.cursor.closed:
            # Its node is that of whoever opens the topic next.
            self.topic.check_open()
            raise ServiceNotReady("Subscription is fenced")
        self.closing = True
        try:
            await self.cursor.delete()
        except MetadataError:
            # Its node is still there, so it is: the client may try again.
            self.closing = False
            raise

    def check_unsubscribe(self, consumer: Consumer, force: bool) -> None:
        """Raises MetadataStoreError, as Pulsar does, while others use the subscription."""
        if not force and any(each is not consumer for each in self.consumers):
            raise MetadataStoreError("Unconnected or shared consumer attempting to unsubscribe")
