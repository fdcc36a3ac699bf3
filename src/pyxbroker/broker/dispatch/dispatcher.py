"""The loop of every subscription: reads on from a position, and sends what it has read.

A dispatcher is woken when there may be something to do (new entries, permits, room in a socket,
redeliveries) and goes on until an entry, permits or room is missing. What is in memory is read and
sent within the same turn; a read from disk goes on when it is there. Subscription types differ in
its parts (kinds.py): a chooser says who gets what (choosers.py, key_shared.py), and a redelivery
what comes again (redelivery.py, failover.py), where the replay and the queue of Key_Shared keep it.
Mirrors PersistentDispatcherMultipleConsumers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyxbroker.broker.dispatch.limits import Limits
from pyxbroker.delivery import Holders, find_consumer
from pyxbroker.entry import AckRun, EntryBatch, Position
from pyxbroker.ledger.errors import LedgerError, is_lost

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.choosers import Chooser
    from pyxbroker.broker.dispatch.entry_source import EntrySource
    from pyxbroker.broker.dispatch.key_shared import KeyQueue
    from pyxbroker.broker.dispatch.read_trouble import ReadTrouble
    from pyxbroker.broker.dispatch.redelivery import FromMark
    from pyxbroker.broker.dispatch.replay import Replay
    from pyxbroker.broker.dispatch.throttle import Throttle
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.broker.subscriptions.subscription import Subscription
    from pyxbroker.delivery import FreedDict

STEPS_MAX = 64  # of one dispatcher within one turn
TOLD_AT_ONCE = 32  # consumers, of policies
STEPS_ASIDE_MAX = 16  # while what is read is full of what is not due


class Dispatcher:
    """What goes to the consumers of a subscription, and when."""

    __slots__ = (
        "_abandoned",
        "_reading",
        "_round",
        "_stuck",
        "acks",
        "chooser",
        "consumers",
        "holders",
        "key_queue",
        "limits",
        "on_acknowledged",
        "read_position",
        "redelivery",
        "replay",
        "source",
        "subscription",
        "throttle",
        "topic",
        "trouble",
        "waits_for_acks",
    )

    def __init__(
        self,
        subscription: Subscription,
        make_chooser: Callable[[Dispatcher], Chooser],
        make_redelivery: Callable[[Dispatcher], FromMark],
    ) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.source: EntrySource = subscription.topic.source
        self.acks = subscription.acks
        self.limits = Limits(self)
        self.chooser = make_chooser(self)
        self.consumers: list[Consumer] = self.chooser.consumers
        self.holders = Holders()  # who has which entry
        self.redelivery = make_redelivery(self)
        self.replay = self.redelivery.replay  # None: what comes again is read from the mark on
        self.key_queue = self.chooser.key_queue
        self.on_acknowledged: Callable[[Consumer, AckRun], None] = self.redelivery.on_acknowledged
        """A consumer has acknowledged entries one by one; the cursor knows it already."""
        self.read_position = self._after_mark()
        self._reading = False
        self._round = 0  # grows when a read that is under way has become useless
        self._abandoned = False
        self._stuck = False  # nobody can take what there is to be read; who can again wakes us
        self.trouble: ReadTrouble | None = None  # since a read went wrong
        self.waits_for_acks = False  # nothing new is read until some are acknowledged
        self.throttle: Throttle | None = None  # where rates limit what is sent
        self._apply_rates()

    def _after_mark(self) -> Position:
        compacted = self.subscription.compacted
        if compacted is not None:
            # Who is next wants the compacted view, or the log; both wake it alike.
            wants = self.chooser.wants_compacted
            self.source = compacted if wants else self.topic.source
        return self.source.next_position(self.acks.mark_delete)

    # --- consumers ----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy or ConsumerAssignError for a consumer that cannot join."""
        self.chooser.add(consumer)
        consumer.sent_total = None if self.throttle is None else self.throttle.sent
        self.source.watch(self.on_more)
        self.redelivery.on_added(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        del self.consumers[find_consumer(self.consumers, consumer)]
        if consumer.unacked_messages or self.key_queue is not None or not self.consumers:
            # Others may have waited for what it had, or have its keys.
            self._stuck = False
        connection = consumer.connection
        if connection.writing and all(each.connection is not connection for each in self.consumers):
            # A client that reads nothing may come and go for ever.
            connection.cancel_when_writable(self.wake)
        if not self.consumers:
            self.source.unwatch(self.on_more)
        self.redelivery.give_back(consumer)
        self.chooser.forget(consumer)
        self.limits.let_others_go_on()

    @property
    def stopped_by_damage(self) -> str | None:
        """Why nothing more is read, where that is so: too much in a row is lost."""
        return None if self.trouble is None else self.trouble.stopped

    @property
    def delayed_entries(self) -> int:
        """Entries that are known and not due yet."""
        return 0 if self.replay is None else self.replay.delayed_entries

    @property
    def is_kept(self) -> bool:
        """Whether the next consumer goes on with it, after the last one has gone."""
        return (
            self.key_queue is None
            and self.delayed_entries > 0
            and self.replay is not None
            and not self.replay.is_full
        )

    def tellings_of_policies(self) -> Iterator[Callable[[], None]]:
        """Calls by which it takes over the topic's policies, which have changed: what was blocked
        by one may go on. Consumers that come meanwhile go by what is in force.
        """
        consumers = self.consumers[:]
        if len(consumers) <= TOLD_AT_ONCE:
            yield self.on_policies
            return
        yield self._on_policies
        for at in range(0, len(consumers), TOLD_AT_ONCE):
            yield partial(self._tell_consumers, consumers[at : at + TOLD_AT_ONCE])
        yield self.wake

    def on_policies(self) -> None:
        """The same at once."""
        self._on_policies()
        self._tell_consumers(self.consumers)
        self.wake()

    def _on_policies(self) -> None:
        self.chooser.on_policies()
        if self.replay is not None:
            self.limits.on_policies()
            self.replay.on_policies()
        self._apply_rates()

    def _tell_consumers(self, consumers: list[Consumer]) -> None:
        if self._abandoned:
            return  # and they are not its own any more
        sent_total = None if self.throttle is None else self.throttle.sent
        for consumer in consumers:
            consumer.sent_total = sent_total
            if self.replay is not None:
                self.limits.tell(consumer)

    def _apply_rates(self) -> None:
        throttle = self.throttle
        if throttle is None:
            if not self.topic.limits_dispatch:
                return
            # Most topics have no rates.
            from pyxbroker.broker.dispatch.throttle import Throttle

            throttle = Throttle(self.wake)
        is_limit = throttle.on_policies(self)
        if not is_limit:
            throttle.retire()
        self.throttle = throttle if is_limit else None

    def let_go(self, consumer: Consumer) -> list[FreedDict]:
        """It is abandoned, and leaves one of those that were its consumers. What that one had, for
        free_items().
        """
        consumer.connection.cancel_when_writable(self.wake)
        self.chooser.let_go(consumer)
        taken = consumer.take_back()
        self.holders.remove(consumer)
        return taken.forget()

    def forget_notes(self) -> list[FreedDict]:
        """It is abandoned, and nobody asks what is out; for free_items()."""
        return [self.redelivery.swap_counts(), self.holders.clear()]

    # --- the loop -----------------------------------------------------------------------------

    def on_more(self) -> None:
        """There are more entries, or one consumer fewer. That is no news where nobody could take
        those before: to ask all consumers each time would take as long as they are many.
        """
        if not self._stuck:
            self.wake()

    def wake(self) -> None:
        """Reads and sends as long as that is possible."""
        self._stuck = False
        if self._abandoned or self.redelivery.is_returning:
            return
        try:
            replay, steps_max = self.replay, STEPS_MAX
            delayed = None if replay is None else replay.delayed
            if replay is not None and delayed is not None:
                delayed.look_at_clock()
                if replay.sets_aside:
                    steps_max = STEPS_ASIDE_MAX
            if self.key_queue is not None:
                self.key_queue.keys.has_new_ready = False
            more = self.topic.turn.dispatching
            began_ns = more.now_ns()
            for _ in range(steps_max):
                if self._reading or not self._step():
                    break
                if more.has_used_slice(began_ns):
                    more.later(self.wake)
                    break
            else:
                more.later(self.wake)
            if self.throttle is not None:
                self.throttle.settle(self)
            if delayed is not None:
                if self.consumers:
                    delayed.set_timer()
                else:
                    delayed.stop()
        except Exception as error:
            self._on_defect(error)

    def _on_defect(self, error: Exception) -> None:
        """What is out and what is next cannot be relied on any more."""
        if not self._abandoned:
            self._abandoned = True
            self.subscription.on_defect(error)

    def abandon(self) -> None:
        """Another dispatcher takes its place: this one does nothing any more, and no ring of
        references keeps it until the collector comes.
        """
        self._abandoned = True
        self.source.unwatch(self.on_more)
        if self.trouble is not None:
            self.trouble.forget()
            self.trouble = None
        self.redelivery.retire()
        self.limits.retire()
        if self.throttle is not None:
            self.throttle.retire()
            self.throttle = None

    def _step(self) -> bool:
        """Reads and sends once: what waits for its key, what comes again, or what is new; False
        when nothing more can be done now.
        """
        if self.key_queue is not None:
            if self._send_waiting(self.key_queue):
                return True
            if self._reading:
                # What waits is on its way from the disk; nothing else is read meanwhile.
                return False
        replay, position = self.replay, None
        if replay is None or not replay.may_have_some:
            replay, position = None, self.source.normalize(self.read_position)
            if position is None:
                return False
        worth = self.chooser.worth_reading()
        self._stuck = worth is None
        if worth is not None and self.throttle is not None:
            worth = self.throttle.allowance(self, *worth)
        if worth is None:
            return False
        if replay is not None:
            if replay.fill():
                return self._read_replay(replay, *worth)
            position = self.source.normalize(self.read_position)
        return position is not None and self._read_new(position, *worth)

    # --- what is new --------------------------------------------------------------------------

    def _read_new(self, position: Position, count: int, size: int) -> bool:
        """Reads entries, at most so many bytes of them; True when they were sent and the loop
        should go on.
        """
        if self.replay is not None:
            if self.replay.is_full or self._waits_for_acks():
                return False
            if self.replay.look_aside() and self.throttle is None:
                # What is not due needs no permits: who has few of them must not slow that down.
                count = self.topic.policies.read_batch_max
        if self.trouble is not None and self.trouble.blocks(again=False):
            return False
        batch = self.source.read_cached(position, count, size)
        if batch is not None:
            self._send_new(batch)
            return True
        self._read_from_disk(position, count, size, None, self._send_new, self._pass_over_new)
        return False

    def _waits_for_acks(self) -> bool:
        """Whether more is acknowledged one by one than is stored as a whole, where that stops it:
        what comes again fills the gaps.
        """
        self.waits_for_acks = False
        if self.topic.policies.pause_on_ack_state:
            limit = self.topic.ack_ranges_max
            # There are not more ranges than holes, which are counted already.
            self.waits_for_acks = 0 < limit < self.acks.holes and limit < self.acks.count_ranges()
        return self.waits_for_acks

    def _send_new(self, batch: EntryBatch) -> None:
        if self.trouble is not None:
            self.trouble.has_read(batch.ledger_id, batch.entry_id(0), again=False)
        self.read_position = self._send(batch, again=False)

    def _pass_over_new(self, position: Position, last: int) -> None:
        self.read_position = Position(position.ledger_id, last + 1)

    def _send(self, batch: EntryBatch, again: bool) -> Position:
        """Sends what it can of a batch; returns where to read on. again: it lies before others
        which were sent.
        """
        left_out: list[tuple[int, int]] = []
        redelivery, replay = self.redelivery, self.replay
        delayed = None if replay is None else replay.delayed_index
        acks = self.acks
        if self.subscription.compacted is not None:
            acks = self.subscription.compacted.acks_of(batch.ledger_id, acks)
        sent = self.chooser.send(batch, acks, redelivery.counts, left_out, delayed, again)
        if left_out:
            self.subscription.acknowledge_positions(left_out)
        if sent < batch.count:
            return Position(batch.ledger_id, batch.entry_id(sent))
        return Position(batch.ledger_id, batch.entry_id(batch.count - 1) + 1)

    # --- what comes again ---------------------------------------------------------------------

    def _read_replay(self, replay: Replay, count: int, size: int) -> bool:
        """Reads and sends the first ones of what goes before what is new."""
        if self.trouble is not None and self.trouble.blocks(again=True):
            return False
        ledger_id, first, last = replay.positions.first_range(count)
        position = self.source.normalize((ledger_id, first))
        if position != (ledger_id, first):
            # The ledger was trimmed meanwhile: everything in it is acknowledged.
            replay.positions.discard_range(ledger_id, first, last)
            return True

        def send(batch: EntryBatch) -> None:
            ledger_id, first = batch.ledger_id, batch.entry_id(0)
            if self.trouble is not None:
                self.trouble.has_read(ledger_id, first, again=True)
            reached = self._send(batch, again=True)
            replay.positions.discard_range(ledger_id, first, reached.entry_id - 1)

        batch = self.source.read_cached(position, count, size, last)
        if batch is not None:
            send(batch)
            return True
        self._read_from_disk(position, count, size, last, send, replay.pass_over, again=True)
        return False

    # --- what waits for its key ---------------------------------------------------------------

    def _send_waiting(self, queue: KeyQueue) -> bool:
        """Sends what waits to the next consumer that can have some of it; False: nobody can, or it
        is being read from disk, or cannot be read.
        """
        consumer = queue.next_consumer()
        if consumer is None or (self.trouble is not None and self.trouble.blocks(again=True)):
            return False

        def send(batch: EntryBatch) -> None:
            if self.trouble is not None:
                self.trouble.has_read(batch.ledger_id, batch.entry_id(0), again=True)
            left_out: list[tuple[int, int]] = []
            queue.send(batch, self.acks, self.redelivery.counts, left_out)
            if left_out:
                self.subscription.acknowledge_positions(left_out)

        policies = self.topic.policies
        count_max, size = policies.read_batch_max, policies.read_bytes_max
        count, _ = consumer.read_budget(count_max, size)
        if self.throttle is not None:
            allowed = self.throttle.allowance(self, count, size)
            if allowed is None:
                return False
            count, size = allowed
        for ledger_id, first, last in queue.plan(consumer, count):
            at = first
            while at <= last and consumer.can_deliver:
                if self.source.normalize((ledger_id, at)) != (ledger_id, at):
                    # The ledger was trimmed meanwhile: everything in it is acknowledged.
                    queue.drop_ledger(ledger_id)
                    break
                position = Position(ledger_id, at)
                batch = self.source.read_cached(position, count_max, size, last)
                if batch is None:
                    self._read_from_disk(
                        position, count_max, size, last, send, queue.pass_over, again=True
                    )
                    return False
                send(batch)
                at = batch.entry_id(batch.count - 1) + 1
        return True

    # --- reads from disk ----------------------------------------------------------------------

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
        if self.trouble is not None:
            count = self.trouble.cut(count)

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

        def in_share(result: EntryBatch | LedgerError) -> None:
            # Those of thousands of subscriptions may be read by the time of one look.
            self.topic.turn.dispatching.run(partial(on_read, result))

        self.source.read(position, count, size, in_share, last)

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
        if not again:
            self.read_position = positions[0]
            return
        assert self.replay is not None, "only what is in a replay is read again"
        for position in positions:
            self.replay.positions.add(*position)

    # --- going back ---------------------------------------------------------------------------

    def rewind(self) -> None:
        """Reads on after the mark: what was delivered and not acknowledged is sent again."""
        self.drop_read()
        self.redelivery.rewound()
        if self.replay is not None:
            self.replay.clear(self.acks)
        if self.key_queue is not None:
            self.key_queue.clear()
        if self.trouble is not None:
            self.trouble.rewound()
        self.read_position = self._after_mark()

    def drop_read(self) -> None:
        """What is being read is not used."""
        self._round += 1

    def reset(self) -> None:
        """The cursor was moved: forgets everything that was delivered."""
        self.acks = self.subscription.acks
        self.redelivery.forget(self.consumers)
        if self.trouble is not None:
            self.trouble.forget()
        self.rewind()

    def skip_to(self, mark: Position) -> None:
        """The cursor has moved on, and nobody has acknowledged what it passed: none of it is read,
        nor sent again; what consumers have of it is settled.
        """
        if self.read_position <= mark:
            self._round += 1
            self.read_position = self.source.next_position(mark)
        if self.replay is not None:
            self.replay.drop_up_to(mark)
        if self.key_queue is not None:
            self.key_queue.drop_up_to(mark)
        if self.trouble is not None:
            self.trouble.skipped(mark)
        self.redelivery.forget_counts_up_to(mark)
        self.wake()

    def redeliver_all(self, consumer: Consumer) -> None:
        """The client wants everything again that it has not acknowledged."""
        self.redelivery.redeliver_all(consumer)

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        """The client wants these positions again."""
        self.redelivery.redeliver(consumer, positions)
