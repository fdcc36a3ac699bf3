"""What every dispatcher does: reads on from a position, and sends what it has read.

A dispatcher is woken when there may be something to do (new entries, permits, room in a socket,
redeliveries) and goes on until an entry, permits or room is missing. What is in memory is read and
sent within the same turn; a read from disk goes on when it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.delivery import UnackedCount
from pyxbroker.entry import AckRun, EntryBatch, Position
from pyxbroker.ledger.handle import LedgerError, is_lost

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.chunks import ChunkedMessages
    from pyxbroker.broker.dispatch.entry_source import EntrySource
    from pyxbroker.broker.dispatch.read_trouble import ReadTrouble
    from pyxbroker.broker.topics.consumer import Consumer
    from pyxbroker.broker.topics.subscription import Subscription
    from pyxbroker.delayed_index import DelayedIndex

STEPS_MAX = 64  # of one dispatcher within one turn


class Dispatcher:
    """The consumers of a subscription, and what they share."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.source: EntrySource = subscription.topic.source
        self.acks = subscription.acks
        self.consumers: list[Consumer] = []
        self.read_position = self._after_mark()
        self._reading = False
        self._round = 0  # grows when a read that is under way has become useless
        self._redelivery_counts: dict[tuple[int, int], int] = {}
        self._goes_on = False  # a later turn does
        self._abandoned = False
        self.delayed_index: DelayedIndex | None = None  # entries that are not due yet
        self.chunked: ChunkedMessages | None = None  # who gets their chunks, if that is a question
        # What consumers may have unacknowledged together, and whether that kept somebody from
        # getting more when it was last asked for.
        self.unacked = UnackedCount()
        self._limited = False
        self._stopped = False
        self.trouble: ReadTrouble | None = None  # since a read went wrong

    def _after_mark(self) -> Position:
        return self.source.next_position(self.acks.mark_delete)

    # --- consumers ----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.source.watch(self.wake)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        if not self.consumers:
            self.source.unwatch(self.wake)

    def next_consumer(self) -> Consumer | None:
        """The consumer that gets the next entries, or None when none can take any."""
        raise NotImplementedError

    @property
    def stopped_by_damage(self) -> str | None:
        """Why nothing more is read, where that is so: too much in a row is lost."""
        return None if self.trouble is None else self.trouble.stopped

    @property
    def is_kept(self) -> bool:
        """Whether the next consumer goes on with it, after the last one has gone."""
        return False

    def on_policies(self) -> None:
        """The topic's policies have changed: what was blocked by one may go on."""
        self.wake()

    # --- the loop -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Reads and sends as long as that is possible."""
        if self._abandoned:
            return
        try:
            self._do_what_is_possible()
        except Exception as error:
            self._on_defect(error)

    def _on_defect(self, error: Exception) -> None:
        """What is out and what is next cannot be relied on any more."""
        if not self._abandoned:
            self._abandoned = True
            self.subscription.on_defect(error)

    def abandon(self) -> None:
        """Another dispatcher takes its place: this one does nothing any more."""
        self._abandoned = True
        self.source.unwatch(self.wake)

    def _do_what_is_possible(self) -> None:
        for _ in range(self._steps_max()):
            if self._reading or not self._step():
                return
        if not self._goes_on:
            # Others have their turn first.
            self._goes_on = True
            self.topic.loop.call_soon(self.topic.turn.run, self._go_on_now)

    def _steps_max(self) -> int:
        return STEPS_MAX

    def _go_on_now(self) -> None:
        self._goes_on = False
        self.wake()

    def _step(self) -> bool:
        """Reads and sends once; False when nothing more can be done now."""
        consumer = self.next_consumer()
        return consumer is not None and self._read_some(*self._worth_reading(consumer))

    def _read_some(self, count: int, size: int) -> bool:
        """Reads entries, at most so many bytes of them; True when they were sent and the loop
        should go on.
        """
        position = self.source.normalize(self.read_position)
        if position is None or (self.trouble is not None and self.trouble.blocks(again=False)):
            return False
        batch = self.source.read_cached(position, count, size)
        if batch is not None:
            self._send_new(batch)
            return True
        self._read_from_disk(position, count, size, None, self._send_new, self._pass_over_new)
        return False

    def _send_new(self, batch: EntryBatch) -> None:
        if self.trouble is not None:
            self.trouble.has_read(batch.ledger_id, batch.entry_id(0), again=False)
        self.read_position = self._send(batch)

    def _pass_over_new(self, position: Position, last: int) -> None:
        self.read_position = Position(position.ledger_id, last + 1)

    def _worth_reading(self, consumer: Consumer) -> tuple[int, int]:
        policies = self.topic.policies
        return consumer.worth_reading(policies.read_batch_max, policies.read_bytes_max)

    def _read_from_disk(
        self,
        position: Position,
        count: int,
        size: int,
        last: int | None,
        use: Callable[[EntryBatch], None],
        pass_over: Callable[[Position, int], None],
        again: bool = False,
    ) -> None:
        """Reads entries up to last, or to the ledger's end; pass_over(position, last entry id): it
        has none of these. again: they were read before.
        """
        self._reading = True
        started_in = self._round

        def on_read(result: EntryBatch | LedgerError) -> None:
            if self._abandoned:
                return
            try:
                take(result)
            except Exception as error:
                self._on_defect(error)

        def take(result: EntryBatch | LedgerError) -> None:
            trouble = self.trouble
            if isinstance(result, EntryBatch):
                self._reading = False
                if trouble is not None:
                    trouble.answered()
                if self._round == started_in:
                    use(result)
            else:
                if trouble is None:
                    trouble = self.trouble = self._make_trouble()
                if not is_lost(result):
                    # Nothing else is read until then, however often the dispatcher is woken.
                    trouble.try_again(position, result)
                    return
                self._reading = False
                trouble.answered()
                if self._round == started_in:
                    self._on_lost(trouble, position, result, pass_over, again)
            self.wake()

        self.source.read(position, count, size, on_read, last)

    def _make_trouble(self) -> ReadTrouble:
        # Most brokers never need it, and a start shall not wait for it.
        from pyxbroker.broker.dispatch.read_trouble import ReadTrouble

        return ReadTrouble(self)

    def retry_read(self) -> None:
        """The time has come to try a read again."""
        self._reading = False
        self.wake()

    def _on_lost(
        self,
        trouble: ReadTrouble,
        position: Position,
        error: LedgerError,
        pass_over: Callable[[Position, int], None],
        again: bool,
    ) -> None:
        """An entry cannot be read at all."""
        if self.source.normalize(position) != position:
            # It was trimmed meanwhile: whoever reads on finds what is kept.
            return
        if self.acks.is_acknowledged(*position):
            trouble.is_acknowledged(position)
            pass_over(position, position.entry_id)
        elif self.topic.policies.skips_lost_data:
            pass_over(position, trouble.skip(position, error, again))
        elif trouble.pass_over(position, error, again):
            # It costs this entry only. It stays in the backlog: an operator decides what to do.
            pass_over(position, position.entry_id)

    def put_back(self, positions: list[Position], again: bool) -> None:
        """These were passed over, and are read next all the same."""
        self.read_position = positions[0]

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
                batch,
                sent,
                stop,
                self.acks,
                self._redelivery_counts,
                left_out,
                self.delayed_index,
                self.chunked,
            )
            self.served(consumer)
        if left_out:
            self.subscription.acknowledge_positions(left_out)
        if sent < batch.count:
            return Position(batch.ledger_id, batch.entry_id(sent))
        return Position(batch.ledger_id, batch.entry_id(batch.count - 1) + 1)

    def _share(self, consumer: Consumer) -> int:
        """How many entries one consumer gets before the next has its turn."""
        return self.topic.policies.read_batch_max

    def served(self, consumer: Consumer) -> None:
        """The consumer has had its share."""

    def _can_take(self, consumer: Consumer) -> bool:
        """Whether a consumer can get entries now; if not for its permits, it wakes us later."""
        if consumer.can_deliver:
            return True
        if consumer.permits <= 0 or consumer.closed:
            return False
        if consumer.is_blocked:
            self._limited = True
            self._stopped = self.unacked.is_stopped
            in_broker = self.topic.unacked_in_broker
            if in_broker is not None and in_broker.blocked:
                in_broker.on_unblocked(self.wake)
        elif not consumer.connection.closed:
            consumer.connection.when_writable(self.wake)
        return False

    # --- going back ---------------------------------------------------------------------------

    def rewind(self) -> None:
        """Reads on after the mark: what was delivered and not acknowledged is sent again."""
        self._round += 1
        if self.trouble is not None:
            self.trouble.rewound()
        self.read_position = self._after_mark()

    def reset(self) -> None:
        """The cursor was moved: forgets everything that was delivered."""
        self.acks = self.subscription.acks
        for consumer in self.consumers:
            consumer.clear_pending()
        self._redelivery_counts.clear()
        if self.trouble is not None:
            self.trouble.forget()
        self.rewind()

    def redeliver_all(self, consumer: Consumer) -> None:
        """The client wants everything again that it has not acknowledged."""
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        """The client wants these positions again."""
        raise NotImplementedError

    # --- acknowledgements ---------------------------------------------------------------------

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        """A consumer has acknowledged entries one by one; the cursor knows it already."""
        consumer.settle(run)
        if run.partial:
            self.settle_batches(run)

    def settle_batches(self, run: AckRun) -> None:
        """Of the batches of which messages are left, the others are settled; who has the batch is
        sent nothing of it again but those.
        """
        acks = self.acks
        for i in range(len(run)):
            ledger_id, entry_id, left = run.position(i)
            if left == 0:
                continue
            if acks.is_acknowledged(ledger_id, entry_id):
                # Earlier acknowledgements had what this one left out.
                self._redelivery_counts.pop((ledger_id, entry_id), None)
                for each in self.consumers:
                    each.settle_one(ledger_id, entry_id)
                continue
            known = acks.messages_left(ledger_id, entry_id)
            if known is not None:
                for each in self.consumers:
                    each.settle_all_but(ledger_id, entry_id, known)

    def _go_on(self, consumer: Consumer) -> None:
        """A consumer has less unacknowledged: sends what waited for that."""
        if not self._limited:
            return
        if not consumer.is_blocked or (self._stopped and not self.unacked.is_stopped):
            self._limited = False
            self.wake()
