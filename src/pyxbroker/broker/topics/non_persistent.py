"""Non-persistent topics: messages are sent to the connected consumers, and not stored.

An entry is sent to every subscription in the loop iteration that received it, or over several
iterations if that takes long. Then the producer gets its receipt. An entry is dropped and counted
for a consumer that has no permits or does not read its socket. There are no positions: every
message has the id 0:0, and nothing is acknowledged, redelivered or moved. A subscription exists
while it has consumers. Mirrors Pulsar's NonPersistentTopic and its dispatchers. The four
subscription types choose consumers as those of persistent topics do.
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

NOWHERE = Position(0, -1)  # before 0:0, the id of every message
ENTRIES_PER_STEP = 64  # entries that one subscription gets per step


class NoLedger(Log):
    """A substitute for a managed ledger, which sends appended entries and stores nothing.

    Dispatchers see a log that is always empty.
    """

    def __init__(self, send_unstored: Callable[[EntryRun], None]) -> None:
        self.is_closed = False
        self._send_run = send_unstored

    def append(self, run: EntryRun) -> None:
        """Send a run to all subscriptions, then notify its owner.

        Raises ManagedLedgerError if the log is closed.
        """
        if self.is_closed:
            raise ManagedLedgerError("The topic is closed.")
        run.copy_data()
        run.ledger_id, run.first_entry_id = 0, 0
        self._send_run(run)

    def close(self) -> None:
        """Refuse further runs. Releases the topic, so that no reference cycle remains."""
        self.is_closed = True
        self._send_run = _refuse_run

    def watch(self, wake: Callable[[], None]) -> None:
        """Do nothing: dispatchers do not read, so there is nothing to wait for."""

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Do nothing."""

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
        """Raise AssertionError: dispatchers do not read from an empty log."""
        raise AssertionError(f"read of {position} from a log that stores nothing")


class NoCursor:
    """A substitute for a cursor, without acknowledgements and positions."""

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
        """Do nothing: there are no positions."""

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
        """Return immediately: nothing has to be stored."""

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
        ledger = NoLedger(self.send_unstored)
        super().__init__(name, ledger, turn, policies, broker_limits=broker_limits)
        self._ledger = ledger
        # Runs that were not sent yet, by the connection that published them.
        self._waiting: OrderedDict[Connection | None, deque[EntryRun]] = OrderedDict()
        self._steps: Iterator[None] | None = None  # while entries are being sent
        self.on_left: Callable[[NonPersistentTopic], None] = _ignore
        """Called when a producer or consumer has left the topic; others may still use it."""
        self._apply(policies)

    def _apply(self, policies: Policies) -> None:
        super()._apply(_without_storage(policies))

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
        """Return the subscription of a name, which is deleted with its last consumer."""
        subscription = self.reader_for(name, mark_delete)
        if not subscription.consumers:
            subscription.cursor.properties = properties
        return subscription

    def _reader_cursor(self, name: str, mark_delete: Position) -> NoCursor:
        return NoCursor()

    async def delete_subscription(self, name: str, force: bool) -> None:
        self.check_open()
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {self.name}")

    def send_unstored(self, run: EntryRun) -> None:
        """Queue a run, to be sent to every subscription. Its owner is notified after that.

        Long work continues in later loop iterations.
        """
        self._waiting.setdefault(_connection_of(run), deque()).append(run)
        if self._steps is None:
            self._steps = self._send_to_all()
            self.turn.notifications.run(self._continue_sending)

    def _continue_sending(self) -> None:
        """Send queued runs until the slice of this loop iteration is used up."""
        news = self.turn.notifications
        began_ns = news.now_ns()
        assert self._steps is not None
        for _ in self._steps:
            if news.has_used_slice(began_ns):
                news.later(self._continue_sending)
                return
        self._steps = None

    def _send_to_all(self) -> Iterator[None]:
        """Send the queued runs in steps, each of some entries to one subscription.

        A run goes to the subscriptions that exist when it is sent.
        """
        while self._waiting:
            run = self._next_run()
            batch = EntryBatch.of_run(run)
            starts = range(0, batch.count, ENTRIES_PER_STEP)
            parts = [(start, min(start + ENTRIES_PER_STEP, batch.count)) for start in starts]
            for subscription in tuple(self._readers.values()):
                for start, stop in parts:
                    # The subscription may have been deleted since the last step.
                    if self._readers.get(subscription.name) is not subscription:
                        break
                    try:
                        _send(batch, start, stop, subscription)
                    except Exception as error:
                        # A defect in one subscription must not affect the others.
                        log.failure(
                            "entries were not sent to a subscription", error, topic=self.name
                        )
                    yield
            try:
                run.owner.on_run_added(run)
            except Exception as error:
                # A defect in one producer must not hold up the runs of others.
                log.failure("a producer was not notified of a run", error, topic=self.name)
            yield

    def _next_run(self) -> EntryRun:
        """Return the next run. Connections take turns, so that a busy one delays others by one
        run.
        """
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
        """Close the topic immediately if no client uses it. Return False if one does."""
        is_free = self.access is None or self.access.is_idle
        if self.fenced or self.producers or self._readers or not is_free:
            return False
        self.fenced = True
        self.access = None  # it refers to the topic: leave no reference cycle
        self._ledger.close()
        return True

    @property
    def is_gone(self) -> bool:
        return self._ledger.is_closed

    async def _close_log(self) -> None:
        self._ledger.close()

    async def terminate(self) -> Position:
        raise NotAllowed(f"Topic {self.name} is non-persistent and cannot be terminated.")

    async def delete(self) -> None:
        """Disconnect the clients. Nothing else has to be deleted."""
        assert self.fenced, "the caller fences a topic before it deletes it"
        self.disconnect()
        await self.wait_disconnected()
        self._ledger.close()


def _connection_of(run: EntryRun) -> Connection | None:
    """Return the connection that published a run, None for a run of the broker itself."""
    return run.owner.connection if isinstance(run.owner, Producer) else None


def _send(batch: EntryBatch, start: int, stop: int, subscription: Subscription) -> None:
    chooser = subscription.dispatcher.chooser
    subscription.msg_drop += chooser.send_unstored(batch, start, stop, subscription.acks)


def _refuse_run(run: EntryRun) -> None:
    raise AssertionError("a closed topic sends no runs")


def _ignore(topic: NonPersistentTopic) -> None:
    """Do nothing."""


def _without_storage(policies: Policies) -> Policies:
    """Return policies without those that need stored messages or acknowledgements."""
    return policies._replace(
        unacked_per_consumer_max=0,
        unacked_per_subscription_max=0,
        dispatch_rate=DispatchRate(),
        subscription_dispatch_rate=DispatchRate(),
        dispatch_rates_of=(),
        failover_delay_s=0.0,
        delayed_delivery=False,
    )
