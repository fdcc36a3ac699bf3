"""Dispatchers: which consumer gets which entry, and when the next ones are read.

A dispatcher is woken when there may be something to do (new entries, permits, room in a socket,
redeliveries) and goes on until an entry, permits or room is missing. What is in memory is read and
sent within the same turn; a read from disk goes on when it is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.ackset import PositionSet
from pyxbroker.entry import EntryBatch, Position
from pyxbroker.ledger.handle import EntryDamaged, LedgerError, NoSuchEntry
from pyxbroker.log import get_logger

if TYPE_CHECKING:
    from pyxbroker.broker.consumer import Consumer
    from pyxbroker.broker.subscription import Subscription

log = get_logger("pyxbroker.dispatch")

RETRY_READ_S = 1.0


class Dispatcher:
    """What every way of dispatching shares: reading on from a position."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.managed_ledger = subscription.topic.managed_ledger
        self.consumers: list[Consumer] = []
        self.read_position = self._after_mark()
        self._reading = False
        self._round = 0  # grows when a read that is under way has become useless
        self._redelivery_counts: dict[tuple[int, int], int] = {}

    def _after_mark(self) -> Position:
        return self.managed_ledger.next_position(self.subscription.cursor.acks.mark_delete)

    # --- consumers ----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)

    def next_consumer(self) -> Consumer | None:
        """The consumer that gets the next entries, or None when none can take any."""
        raise NotImplementedError

    # --- the loop -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Reads and sends as long as that is possible."""
        while not self._reading:
            consumer = self.next_consumer()
            if consumer is None or not self._read_some(consumer):
                return

    def _read_some(self, consumer: Consumer) -> bool:
        """Reads entries for a consumer; True when they were sent and the loop should go on."""
        position = self.managed_ledger.normalize(self.read_position)
        if position is None:
            return False
        count, size = self._worth_reading(consumer)
        batch = self.managed_ledger.read_cached(position, count, size)
        if batch is not None:
            self.read_position = self._send(batch)
            return True
        self._read_from_disk(position, count, size)
        return False

    def _worth_reading(self, consumer: Consumer) -> tuple[int, int]:
        limits = self.topic.limits
        return consumer.worth_reading(limits.read_batch_max, limits.read_bytes_max)

    def _read_from_disk(self, position: Position, count: int, size: int) -> None:
        self._reading = True
        started_in = self._round

        def on_read(result: EntryBatch | LedgerError) -> None:
            self._reading = False
            if self._round == started_in:
                if isinstance(result, EntryBatch):
                    self.read_position = self._send(result)
                elif not self._on_read_failed(position, result):
                    return
            self.wake()

        self.managed_ledger.read(position, count, size, on_read)

    def _on_read_failed(self, position: Position, error: LedgerError) -> bool:
        """True when the dispatcher can go on behind the entry, False when it tries again later."""
        where = {
            "topic": self.topic.name,
            "subscription": self.subscription.name,
            "entry": position,
        }
        if isinstance(error, (EntryDamaged, NoSuchEntry)):
            # It costs this entry only. It stays in the backlog: an operator decides what to do.
            log.error("an entry cannot be delivered", **where, error=error)
            self.read_position = Position(position.ledger_id, position.entry_id + 1)
            return True
        log.warning("a read failed, it is tried again in 1 s", **where, error=error)
        # Nothing else is read until then, however often the dispatcher is woken.
        self._reading = True
        self.topic.loop.call_later(RETRY_READ_S, self.topic.turn.run, self._retry_read)
        return False

    def _retry_read(self) -> None:
        self._reading = False
        self.wake()

    def _send(self, batch: EntryBatch) -> Position:
        """Sends what it can of a batch; returns where to read on."""
        sent = 0
        left_out: list[tuple[int, int]] = []
        while sent < batch.count:
            consumer = self.next_consumer()
            if consumer is None:
                break
            stop = min(batch.count, sent + self._share(consumer))
            sent = consumer.deliver(
                batch, sent, stop, self.subscription.cursor.acks, self._redelivery_counts, left_out
            )
            self._served(consumer)
        if left_out:
            self.subscription.cursor.acknowledge_positions(left_out)
        if sent < batch.count:
            return Position(batch.ledger_id, batch.entry_id(sent))
        return Position(batch.ledger_id, batch.entry_id(batch.count - 1) + 1)

    def _share(self, consumer: Consumer) -> int:
        """How many entries one consumer gets before the next has its turn."""
        return self.topic.limits.read_batch_max

    def _served(self, consumer: Consumer) -> None:
        """The consumer has had its share."""

    def _can_take(self, consumer: Consumer) -> bool:
        """Whether a consumer can get entries now; if only its socket is full, it wakes us later."""
        if consumer.can_deliver:
            return True
        if consumer.is_blocked or consumer.permits <= 0 or consumer.closed:
            return False
        if not consumer.connection.closed:
            consumer.connection.when_writable(self.wake)
        return False

    # --- going back ---------------------------------------------------------------------------

    def rewind(self) -> None:
        """Reads on after the mark: what was delivered and not acknowledged is sent again."""
        self._round += 1
        self.read_position = self._after_mark()

    def reset(self) -> None:
        """The cursor was moved: forgets everything that was delivered."""
        for consumer in self.consumers:
            consumer.clear_pending()
        self._redelivery_counts.clear()
        self.rewind()

    def redeliver_all(self, consumer: Consumer) -> None:
        """The client wants everything again that it has not acknowledged."""
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        """The client wants these positions again."""
        raise NotImplementedError

    def settled(self, position: tuple[int, int]) -> None:
        """A position was acknowledged: nothing about its redelivery is kept."""
        self._redelivery_counts.pop(position, None)


class ExclusiveDispatcher(Dispatcher):
    """One consumer gets everything, in order (PersistentDispatcherSingleActiveConsumer)."""

    def add_consumer(self, consumer: Consumer) -> None:
        super().add_consumer(consumer)
        self.rewind()

    def remove_consumer(self, consumer: Consumer) -> None:
        super().remove_consumer(consumer)
        self.rewind()

    def next_consumer(self) -> Consumer | None:
        for consumer in self.consumers:
            return consumer if self._can_take(consumer) else None
        return None

    def redeliver_all(self, consumer: Consumer) -> None:
        consumer.clear_pending()
        self.rewind()
        self.wake()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        # Order is kept: everything from the mark on comes again, as Pulsar does.
        self.redeliver_all(consumer)


class SharedDispatcher(Dispatcher):
    """Entries go round between consumers with permits; redeliveries first.

    Mirrors PersistentDispatcherMultipleConsumers.
    """

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._replay = PositionSet()
        self._turn_of = 0

    def remove_consumer(self, consumer: Consumer) -> None:
        super().remove_consumer(consumer)
        self._take_back(consumer, consumer.pending_positions())
        consumer.clear_pending()
        if not self.consumers:
            self._replay.clear()
            self._redelivery_counts.clear()
            self.rewind()

    def next_consumer(self) -> Consumer | None:
        """The next one in turn among those of the best priority level that can take entries."""
        best: Consumer | None = None
        count = len(self.consumers)
        for step in range(count):
            consumer = self.consumers[(self._turn_of + step) % count]
            if (best is None or consumer.priority_level < best.priority_level) and (
                self._can_take(consumer)
            ):
                best = consumer
        return best

    def _served(self, consumer: Consumer) -> None:
        # Only who got something has had its turn: choosing one to read for is not enough.
        self._turn_of = self.consumers.index(consumer) + 1

    def _share(self, consumer: Consumer) -> int:
        if len(self.consumers) == 1:
            return self.topic.limits.read_batch_max
        return self.topic.limits.round_robin_max

    def _read_some(self, consumer: Consumer) -> bool:
        if len(self._replay) == 0:
            return super()._read_some(consumer)
        count, size = self._worth_reading(consumer)
        ledger_id, first, last = self._replay.first_range(count)
        position = self.managed_ledger.normalize((ledger_id, first))
        if position != (ledger_id, first):
            # The ledger was trimmed meanwhile: everything in it is acknowledged.
            self._replay.discard_range(ledger_id, first, last)
            return True
        batch = self.managed_ledger.read_cached(position, count, size, last)
        if batch is not None:
            self._send_replay(batch)
            return True
        self._read_replay_from_disk(position, last, count, size)
        return False

    def _read_replay_from_disk(
        self, position: Position, last: int, count: int, size: int
    ) -> None:
        self._reading = True
        started_in = self._round

        def on_read(result: EntryBatch | LedgerError) -> None:
            self._reading = False
            if self._round == started_in:
                if isinstance(result, EntryBatch):
                    self._send_replay(result)
                elif self._on_read_failed(position, result):
                    self._replay.discard_range(*position, position.entry_id)
                else:
                    return
            self.wake()

        self.managed_ledger.read(position, count, size, on_read, last)

    def _send_replay(self, batch: EntryBatch) -> None:
        reached = self._send(batch)
        self._replay.discard_range(batch.ledger_id, batch.entry_id(0), reached.entry_id - 1)

    def _on_read_failed(self, position: Position, error: LedgerError) -> bool:
        before = self.read_position
        go_on = super()._on_read_failed(position, error)
        if position < before:
            self.read_position = before
        return go_on

    def redeliver_all(self, consumer: Consumer) -> None:
        positions = consumer.pending_positions()
        self._take_back(consumer, positions)
        consumer.clear_pending()
        self.wake()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        mine = [each for each in positions if consumer.settle_one(*each)]
        self._take_back(consumer, mine)
        self.wake()

    def _take_back(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        acks = self.subscription.cursor.acks
        for position in positions:
            if not acks.is_acknowledged(*position):
                self._replay.add(*position)
                self._redelivery_counts[position] = self._redelivery_counts.get(position, 0) + 1

    def reset(self) -> None:
        self._replay.clear()
        super().reset()
