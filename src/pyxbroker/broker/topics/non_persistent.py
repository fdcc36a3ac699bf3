"""Non-persistent topics: what is published is handed to who is there to take it, and forgotten.

An entry goes to each subscription within the turn that brings it, and where that takes long within
several; its producer has its receipt when all had it. Who has no permits, or does not
read its socket, does not get it; it is dropped and counted. There are no positions: every message
has the id 0:0, nothing is acknowledged, redelivered or moved, and a subscription lives as long as
it has consumers. Mirrors Pulsar's NonPersistentTopic and its dispatchers, of which there are four
as for persistent topics: who is chosen is the same.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from pyxbroker.ackset import AckSet
from pyxbroker.base.errors import NotAllowed, SubscriptionNotFound
from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import NO_BROKER_LIMITS, BrokerLimits
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.broker.topics.topic import Log, SubscribeRequest, Topic
from pyxbroker.connection import Connection
from pyxbroker.entry import AckRun, EntryBatch, EntryRun, Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.policies.values import DispatchRate, Policies
from pyxbroker.turn import Turn

log = get_logger("pyxbroker.topic")

NOWHERE = Position(0, -1)  # before the only id there is
ENTRIES_AT_ONCE = 64  # that one subscription gets before the clock is looked at


class NoLedger(Log):
    """In the place of a managed ledger: keeps nothing, and hands out what is appended.

    To dispatchers it is a log that is always empty.
    """

    def __init__(self, hand_out: Callable[[EntryRun], None]) -> None:
        self.is_closed = False
        self._hand_out = hand_out

    def append(self, run: EntryRun) -> None:
        """Hands a run out; its owner is told when that is done. Raises ManagedLedgerError when
        closed.
        """
        if self.is_closed:
            raise ManagedLedgerError("The topic is closed.")
        run.copy_data()
        run.ledger_id, run.first_entry_id = 0, 0
        self._hand_out(run)

    def close(self) -> None:
        """Nothing is handed out any more; what would do that is let go, so that no ring is left."""
        self.is_closed = True
        self._hand_out = _hand_out_nothing

    def watch(self, wake: Callable[[], None]) -> None:
        """Nobody waits: entries are handed out when they come, or never."""

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Nobody waits."""

    def next_position(self, position: tuple[int, int]) -> Position:
        return Position(0, 0)

    def normalize(self, position: tuple[int, int]) -> Position | None:
        return None

    def last_entry(self, ledger_id: int) -> int | None:
        return None

    def read_cached(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch | None:
        return None

    def read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | LedgerError], None],
        last: int | None = None,
    ) -> None:
        """Nobody reads where nothing is next."""
        raise AssertionError(f"{position} of a log that keeps nothing")


class NoCursor:
    """In the place of a cursor: there is nothing to acknowledge, and nowhere to go."""

    durable = False

    def __init__(self) -> None:
        self.closed = False
        self.acks = AckSet(*NOWHERE, tracked=False)
        self.properties: dict[str, str] = {}
        self.position_properties: dict[str, int] = {}
        self.last_active_ms = 0

    @property
    def backlog(self) -> int:
        return 0

    def acknowledge(self, run: AckRun) -> int:
        return 0

    def acknowledge_positions(self, positions: Iterable[tuple[int, int]]) -> int:
        return 0

    def acknowledge_up_to(self, position: tuple[int, int], ack_set: Sequence[int] = ()) -> int:
        return 0

    def reset(self, mark_delete: Position, ack_set: Sequence[int] = ()) -> None:
        """It is there already."""

    def put_property(self, key: str, value: int) -> asyncio.Future[None]:
        self.position_properties[key] = value
        return self.persist()

    def drop_property(self, key: str) -> asyncio.Future[None]:
        self.position_properties.pop(key, None)
        return self.persist()

    def set_properties(self, properties: dict[str, str]) -> asyncio.Future[None]:
        self.properties = properties
        return self.persist()

    def persist(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    async def created(self) -> None:
        """It is kept nowhere."""

    async def delete(self) -> None:
        self.closed = True


class NonPersistentTopic(Topic):
    """One non-persistent topic that this broker serves."""

    def __init__(
        self,
        name: TopicName,
        turn: Turn,
        policies: Policies,
        broker_limits: BrokerLimits = NO_BROKER_LIMITS,
    ) -> None:
        ledger = NoLedger(self.hand_out)
        super().__init__(name, ledger, turn, policies, broker_limits=broker_limits)
        self._ledger = ledger
        # By whose they are: entries whose turn has not come, with no list of who will get them.
        self._waiting: OrderedDict[Connection | None, deque[EntryRun]] = OrderedDict()
        self._steps: Iterator[None] | None = None  # while entries are handed out
        self.on_left: Callable[[NonPersistentTopic], None] = _ignore
        """Somebody who used it is gone; others may be there."""
        self._apply(policies)

    def _apply(self, policies: Policies) -> None:
        super()._apply(_of_its_own(policies))

    @property
    def limits_dispatch(self) -> bool:
        return False

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        self.check_consumers()
        if request.durable:
            return await self.subscription_for(
                request.subscription, NOWHERE, dict(request.properties), True
            )
        return self.reader_for(request.subscription, NOWHERE)

    async def subscription_for(
        self,
        name: str,
        mark_delete: Position,
        properties: dict[str, str],
        create: bool,
        replicated: bool = False,
    ) -> Subscription:
        """The subscription of that name, which goes with its last consumer."""
        subscription = self.reader_for(name, mark_delete)
        if not subscription.consumers:
            subscription.cursor.properties = properties
        return subscription

    def _reader_cursor(self, name: str, mark_delete: Position) -> NoCursor:
        return NoCursor()

    async def delete_subscription(self, name: str, force: bool) -> None:
        self.check_open()
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {self.name}")

    def hand_out(self, run: EntryRun) -> None:
        """Has entries go to every subscription, and their owner told then; where that takes long,
        in several turns.
        """
        self._waiting.setdefault(_whose(run), deque()).append(run)
        if self._steps is None:
            self._steps = self._give_to_all()
            self.turn.notifications.run(self._go_on)

    def _go_on(self) -> None:
        """Some steps of what is under way."""
        news = self.turn.notifications
        began_ns = news.now_ns()
        assert self._steps is not None
        for _ in self._steps:
            if news.has_used_slice(began_ns):
                news.later(self._go_on)
                return
        self._steps = None

    def _give_to_all(self) -> Iterator[None]:
        """Gives what waits to who subscribes when its turn comes: some entries to one subscription
        in each step.
        """
        while self._waiting:
            run = self._next_run()
            batch = EntryBatch.of_run(run)
            starts = range(0, batch.count, ENTRIES_AT_ONCE)
            parts = [(start, min(start + ENTRIES_AT_ONCE, batch.count)) for start in starts]
            for subscription in tuple(self._readers.values()):
                for start, stop in parts:
                    # Some may have gone meanwhile.
                    if self._readers.get(subscription.name) is not subscription:
                        break
                    try:
                        _give(batch, start, stop, subscription)
                    except Exception as error:
                        # A defect of one must keep the entries from nobody else.
                        log.failure("entries were not handed out", error, topic=self.name)
                    yield
            try:
                run.owner.on_run_added(run)
            except Exception as error:
                # Of one producer: others wait for what is behind.
                log.failure("what was handed out was not taken in", error, topic=self.name)
            yield

    def _next_run(self) -> EntryRun:
        """Connections take turns: who publishes much holds up the others for one run of it."""
        whose = next(iter(self._waiting))
        runs = self._waiting.pop(whose)
        run = runs.popleft()
        if runs:
            self._waiting[whose] = runs
        return run

    def first_position(self) -> Position:
        return NOWHERE

    def on_used(self) -> None:
        super().on_used()
        self.on_left(self)

    def _forget_reader(self, subscription: Subscription) -> None:
        super()._forget_reader(subscription)
        self.on_left(self)

    def close_unused(self) -> bool:
        """Closes it at once if nobody uses it, or is about to; whether it did."""
        is_free = self.access is None or self.access.is_idle
        if self.fenced or self.producers or self._readers or not is_free:
            return False
        self.fenced = True
        self.access = None  # no ring is left of what is closed
        self._ledger.close()
        return True

    @property
    def is_gone(self) -> bool:
        return self._ledger.is_closed

    async def close(self) -> None:
        """Sends the clients away; there is nothing to make durable."""
        self.fenced = True
        await self.delete()

    async def terminate(self) -> Position:
        raise NotAllowed(f"Topic {self.name} is non-persistent; it has no end.")

    async def delete(self) -> None:
        """Sends the clients away; there is nothing else to delete."""
        assert self.fenced, "who deletes a topic has seen to it that nobody begins to use it"
        self.disconnect()
        await self.left()
        self._ledger.close()


def _whose(run: EntryRun) -> Connection | None:
    """The connection that a run came by; None: it is the broker's own."""
    return run.owner.connection if isinstance(run.owner, Producer) else None


def _give(batch: EntryBatch, start: int, stop: int, subscription: Subscription) -> None:
    chooser = subscription.dispatcher.chooser
    subscription.msg_drop += chooser.hand_out(batch, start, stop, subscription.acks)


def _hand_out_nothing(run: EntryRun) -> None:
    raise AssertionError("a topic that is closed hands nothing out")


def _ignore(topic: NonPersistentTopic) -> None:
    """Nobody wants to know."""


def _of_its_own(policies: Policies) -> Policies:
    """What is not kept is not limited either, and nobody waits for what another has not
    acknowledged.
    """
    return policies._replace(
        unacked_per_consumer_max=0,
        unacked_per_subscription_max=0,
        dispatch_rate=DispatchRate(),
        subscription_dispatch_rate=DispatchRate(),
        dispatch_rates_of=(),
        failover_delay_s=0.0,
        delayed_delivery=False,
    )
