"""The dispatch loop of every subscription: reads from a position on, and sends the entries.

A dispatcher is woken when there may be something to do: new entries, permits, room in a socket,
redeliveries. It continues until entries, permits or room are missing. It sends entries from memory
within the same loop iteration, and entries from disk when the read completes.

Subscription types differ in the parts of the dispatcher (kinds.py). A chooser selects consumers
(choosers.py, key_shared.py). A redelivery decides which entries are sent again (redelivery.py,
failover.py). These wait in the replay, or in the queue of Key_Shared. Mirrors
PersistentDispatcherMultipleConsumers.
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
    from pyxbroker.ackset import AckSet
    from pyxbroker.broker.dispatch.choosers import Chooser
    from pyxbroker.broker.dispatch.entry_source import EntrySource
    from pyxbroker.broker.dispatch.interfaces import DispatchedSubscription, DispatchedTopic
    from pyxbroker.broker.dispatch.key_shared import KeyQueue
    from pyxbroker.broker.dispatch.read_trouble import ReadTrouble
    from pyxbroker.broker.dispatch.redelivery import RedeliverFromMark
    from pyxbroker.broker.dispatch.replay import Replay
    from pyxbroker.broker.dispatch.throttle import Throttle
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.delivery import FreedDict

STEPS_MAX = 64  # of one dispatcher per loop iteration
UPDATED_PER_STEP = 32  # consumers that apply changed policies per step
STEPS_ASIDE_MAX = 16  # per loop iteration, while most entries read are not due


class Dispatcher:
    """Decides which entries the consumers of a subscription get, and when."""

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
        subscription: DispatchedSubscription,
        make_chooser: Callable[[DispatchedTopic, Limits, AckSet], Chooser],
        make_redelivery: Callable[[Dispatcher], RedeliverFromMark],
    ) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.source: EntrySource = subscription.topic.source
        self.acks = subscription.acks
        self.limits = Limits(self)
        self.chooser = make_chooser(self.topic, self.limits, self.acks)
        self.consumers: list[Consumer] = self.chooser.consumers
        self.holders = Holders()  # the consumer of each delivered entry
        self.redelivery = make_redelivery(self)
        self.replay = self.redelivery.replay  # None: redelivery reads again from the mark on
        self.key_queue = self.chooser.key_queue
        self.on_acknowledged: Callable[[Consumer, AckRun], None] = self.redelivery.on_acknowledged
        """Called when a consumer has acknowledged single entries, after the cursor was updated."""
        self.read_position = self._after_mark()
        self._reading = False
        self._round = 0  # incremented to discard the result of a read in progress
        self._abandoned = False
        # No consumer can take entries; a consumer that can again wakes the dispatcher.
        self._stuck = False
        self.trouble: ReadTrouble | None = None  # None until a read fails
        self.waits_for_acks = False  # True: new entries wait for acknowledgements
        self.throttle: Throttle | None = None  # None without a dispatch rate
        self._apply_rates()

    def _after_mark(self) -> Position:
        compacted = self.subscription.compacted
        if compacted is not None:
            # The next consumer decides: the compacted view or the log. Both wake the dispatcher.
            wants = self.chooser.wants_compacted
            self.source = compacted if wants else self.topic.source
        return self.source.next_position(self.acks.mark_delete)

    # --- consumers ----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer. Raises ConsumerBusy or ConsumerAssignError if it cannot join."""
        self.chooser.add(consumer)
        consumer.sent_total = None if self.throttle is None else self.throttle.sent
        self.source.watch(self.on_more)
        self.redelivery.on_added(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        del self.consumers[find_consumer(self.consumers, consumer)]
        if consumer.unacked_messages or self.key_queue is not None or not self.consumers:
            # Other consumers may have waited for its unacknowledged messages or its keys.
            self._stuck = False
        connection = consumer.connection
        if connection.writing and all(each.connection is not connection for each in self.consumers):
            # Otherwise a client that reads nothing could add callbacks without end.
            connection.cancel_when_writable(self.wake)
        if not self.consumers:
            self.source.unwatch(self.on_more)
        self.redelivery.on_removed(consumer)
        self.chooser.forget(consumer)
        self.limits.wake_other_subscriptions()

    @property
    def stopped_by_damage(self) -> str | None:
        """Reason why the subscription has stopped (too many lost entries in a row), or None."""
        return None if self.trouble is None else self.trouble.stopped

    @property
    def is_reading(self) -> bool:
        """True while entries are read from disk, or a failed read waits for its retry."""
        return self._reading

    @property
    def delayed_entries(self) -> int:
        """Number of entries that were read and are not due yet."""
        return 0 if self.replay is None else self.replay.delayed_entries

    @property
    def is_reusable(self) -> bool:
        """True if the next consumer reuses this dispatcher after the last consumer has left."""
        return (
            self.key_queue is None
            and self.delayed_entries > 0
            and self.replay is not None
            and not self.replay.is_full
        )

    def policy_update_steps(self) -> Iterator[Callable[[], None]]:
        """Return calls that apply the topic's changed policies, and resume what a policy blocked.
        Consumers that subscribe meanwhile use the new policies.
        """
        consumers = self.consumers[:]
        if len(consumers) <= UPDATED_PER_STEP:
            yield self.on_policies
            return
        yield self._on_policies
        for at in range(0, len(consumers), UPDATED_PER_STEP):
            yield partial(self._update_consumers, consumers[at : at + UPDATED_PER_STEP])
        yield self.wake

    def on_policies(self) -> None:
        """Apply the topic's changed policies in one call."""
        self._on_policies()
        self._update_consumers(self.consumers)
        self.wake()

    def _on_policies(self) -> None:
        self.chooser.on_policies()
        if self.replay is not None:
            self.limits.on_policies()
            self.replay.on_policies()
        self._apply_rates()

    def _update_consumers(self, consumers: list[Consumer]) -> None:
        if self._abandoned:
            return  # the consumers have another dispatcher now
        sent_total = None if self.throttle is None else self.throttle.sent
        for consumer in consumers:
            consumer.sent_total = sent_total
            if self.replay is not None:
                self.limits.apply_policies(consumer)

    def _apply_rates(self) -> None:
        throttle = self.throttle
        if throttle is None:
            if not self.topic.limits_dispatch:
                return
            # Imported here: most topics have no rates.
            from pyxbroker.broker.dispatch.throttle import Throttle

            throttle = Throttle(self.wake)
        is_limit = throttle.on_policies(self.subscription)
        if not is_limit:
            throttle.retire()
        self.throttle = throttle if is_limit else None

    def detach(self, consumer: Consumer) -> list[FreedDict]:
        """Detach one of the former consumers of an abandoned dispatcher. Return its deliveries, for
        free_items().
        """
        consumer.connection.cancel_when_writable(self.wake)
        self.chooser.detach(consumer)
        taken = consumer.take_back()
        self.holders.remove(consumer)
        return taken.forget()

    def clear_notes(self) -> list[FreedDict]:
        """Return the notes about deliveries of an abandoned dispatcher, for free_items()."""
        return [self.redelivery.swap_counts(), self.holders.clear()]

    # --- the loop -----------------------------------------------------------------------------

    def on_more(self) -> None:
        """Wake the dispatcher for new entries, unless no consumer could take the previous ones.
        Asking all consumers for each entry would cost time in proportion to their number.
        """
        if not self._stuck:
            self.wake()

    def wake(self) -> None:
        """Read and send as long as possible."""
        self._stuck = False
        if self._abandoned or self.redelivery.is_returning:
            return
        try:
            replay, steps_max = self.replay, STEPS_MAX
            delayed = None if replay is None else replay.delayed
            if replay is not None and delayed is not None:
                delayed.update_now()
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
                self.throttle.settle(self.subscription)
            if delayed is not None:
                if self.consumers:
                    delayed.set_timer()
                else:
                    delayed.stop()
        except Exception as error:
            self._on_defect(error)

    def _on_defect(self, error: Exception) -> None:
        """Abandon the dispatcher: its notes about deliveries are not reliable any more."""
        if not self._abandoned:
            self._abandoned = True
            self.subscription.on_defect(error)

    def abandon(self) -> None:
        """Stop for good, because another dispatcher replaces this one. Break reference cycles, so
        that reference counting frees it.
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
        """Read and send once: entries that wait for their key, then the replay, then new entries.
        Return False if nothing more can be done now.
        """
        if self.key_queue is not None:
            if self._send_waiting(self.key_queue):
                return True
            if self._reading:
                # The waiting entries are being read from disk; nothing else is read meanwhile.
                return False
        replay, position = self.replay, None
        if replay is None or not replay.may_have_positions:
            replay, position = None, self.source.normalize(self.read_position)
            if position is None:
                return False
        budget = self.chooser.read_budget()
        self._stuck = budget is None
        if budget is not None and self.throttle is not None:
            budget = self.throttle.allowance(self.subscription, *budget)
        if budget is None:
            return False
        if replay is not None:
            if replay.fill():
                return self._read_replay(replay, *budget)
            position = self.source.normalize(self.read_position)
        return position is not None and self._read_new(position, *budget)

    # --- new entries --------------------------------------------------------------------------

    def _read_new(self, position: Position, count: int, size: int) -> bool:
        """Read new entries within these limits. Return True if they were sent, and the loop shall
        continue.
        """
        if self.replay is not None:
            if self.replay.is_full or self._waits_for_acks():
                return False
            if self.replay.update_sets_aside() and self.throttle is None:
                # Entries that are not due need no permits, so few permits must not slow their
                # reads.
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
        """Return True if the acknowledged ranges are too many to store and new entries must wait.
        Redeliveries continue, and fill the gaps.
        """
        self.waits_for_acks = False
        if self.topic.policies.pause_on_ack_state:
            limit = self.topic.ack_ranges_max
            # The number of holes is known, and an upper bound of the number of ranges.
            self.waits_for_acks = 0 < limit < self.acks.holes and limit < self.acks.count_ranges()
        return self.waits_for_acks

    def _send_new(self, batch: EntryBatch) -> None:
        if self.trouble is not None:
            self.trouble.has_read(batch.ledger_id, batch.entry_id(0), again=False)
        self.read_position = self._send(batch, again=False)

    def _pass_over_new(self, position: Position, last: int) -> None:
        self.read_position = Position(position.ledger_id, last + 1)

    def _send(self, batch: EntryBatch, again: bool) -> Position:
        """Send what consumers can take of a batch. Return the position to read next. again: the
        entries lie before entries that were already sent.
        """
        undeliverable: list[tuple[int, int]] = []
        redelivery, replay = self.redelivery, self.replay
        delayed = None if replay is None else replay.delayed_index
        acks = self.acks
        if self.subscription.compacted is not None:
            acks = self.subscription.compacted.acks_of(batch.ledger_id, acks)
        pending = self.subscription.pending_acks
        if pending is not None:
            acks = pending.view(batch, acks)
        sent = self.chooser.send(batch, acks, redelivery.counts, undeliverable, delayed, again)
        if undeliverable:
            self._acknowledge(undeliverable)
        if sent < batch.count:
            return Position(batch.ledger_id, batch.entry_id(sent))
        return Position(batch.ledger_id, batch.entry_id(batch.count - 1) + 1)

    def _acknowledge(self, undeliverable: list[tuple[int, int]]) -> None:
        """Acknowledge entries that no consumer shall get, unless a transaction holds them."""
        pending = self.subscription.pending_acks
        if pending is not None:
            undeliverable = pending.without_pending(undeliverable)
        self.subscription.acknowledge_positions(undeliverable)

    # --- replay -------------------------------------------------------------------------------

    def _read_replay(self, replay: Replay, count: int, size: int) -> bool:
        """Read and send the first entries of the replay."""
        if self.trouble is not None and self.trouble.blocks(again=True):
            return False
        ledger_id, first, last = replay.positions.first_range(count)
        position = self.source.normalize((ledger_id, first))
        if position != (ledger_id, first):
            # The ledger was trimmed meanwhile, so all of its entries are acknowledged.
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

    # --- entries that wait for their key ------------------------------------------------------

    def _send_waiting(self, queue: KeyQueue) -> bool:
        """Send waiting entries to the next consumer that can take some. Return False if no consumer
        can, or if they must be read from disk, or cannot be read.
        """
        consumer = queue.next_consumer()
        if consumer is None or (self.trouble is not None and self.trouble.blocks(again=True)):
            return False

        def send(batch: EntryBatch) -> None:
            if self.trouble is not None:
                self.trouble.has_read(batch.ledger_id, batch.entry_id(0), again=True)
            undeliverable: list[tuple[int, int]] = []
            pending = self.subscription.pending_acks
            acks = self.acks if pending is None else pending.view(batch, self.acks)
            queue.send(batch, acks, self.redelivery.counts, undeliverable)
            if undeliverable:
                self._acknowledge(undeliverable)

        policies = self.topic.policies
        count_max, size = policies.read_batch_max, policies.read_bytes_max
        count, _ = consumer.read_budget(count_max, size)
        if self.throttle is not None:
            allowed = self.throttle.allowance(self.subscription, count, size)
            if allowed is None:
                return False
            count, size = allowed
        for ledger_id, first, last in queue.plan(consumer, count):
            at = first
            while at <= last and consumer.can_deliver:
                if self.source.normalize((ledger_id, at)) != (ledger_id, at):
                    # The ledger was trimmed meanwhile, so all of its entries are acknowledged.
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
        """Read entries up to last, or to the end of the ledger. pass_over(position, last entry id)
        is called for lost entries. again: the entries were read before.
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
                    trouble = self.trouble = self._create_read_trouble()
                if not is_lost(result):
                    # Nothing else is read until the retry, however often the dispatcher is woken.
                    trouble.try_again(position, result)
                    return
                self._reading = False
                trouble.answered()
                if self._round == started_in:
                    self._on_lost(trouble, position, result, pass_over, again)
            self.wake()

        def in_share(result: EntryBatch | LedgerError) -> None:
            # Reads of thousands of subscriptions may complete in one loop iteration.
            self.topic.turn.dispatching.run(partial(on_read, result))

        self.source.read(position, count, size, in_share, last)

    def _create_read_trouble(self) -> ReadTrouble:
        # Imported here: most brokers never need it, and it would slow the start.
        from pyxbroker.broker.dispatch.read_trouble import ReadTrouble

        return ReadTrouble(self)

    def retry_read(self) -> None:
        """Retry a failed read, after its delay."""
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
        """Handle an entry that is damaged or missing."""
        if self.source.normalize(position) != position:
            # The ledger was trimmed meanwhile; the next read starts at the first stored entry.
            return
        if self.acks.is_acknowledged(*position):
            trouble.is_acknowledged(position)
            pass_over(position, position.entry_id)
        elif self.topic.policies.skips_lost_data:
            pass_over(position, trouble.skip(position, error, again))
        elif trouble.pass_over(position, error, again):
            # Only this entry is lost. It stays in the backlog, for the operator to decide.
            pass_over(position, position.entry_id)

    def put_back(self, positions: list[Position], again: bool) -> None:
        """Read positions again that were passed over."""
        if not again:
            self.read_position = positions[0]
            return
        assert self.replay is not None, "only entries of a replay are read again"
        for position in positions:
            self.replay.positions.add(*position)

    # --- rewinding --------------------------------------------------------------------------

    def rewind(self) -> None:
        """Read again from the mark on, and redeliver everything that is not acknowledged."""
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
        """Discard the result of the read in progress."""
        self._round += 1

    def reset(self) -> None:
        """Drop all notes about deliveries, after the cursor was moved."""
        self.acks = self.subscription.acks
        self.redelivery.forget(self.consumers)
        if self.trouble is not None:
            self.trouble.forget()
        self.rewind()

    def skip_to(self, mark: Position) -> None:
        """Settle all entries up to the mark, to which the cursor has moved without acknowledgements
        of a consumer. None of them is read or sent again.
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
        """Redeliver all unacknowledged entries of a consumer."""
        self.redelivery.redeliver_all(consumer)

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        """Redeliver these positions of a consumer."""
        self.redelivery.redeliver(consumer, positions)

    # --- transactions -------------------------------------------------------------------------

    def settle_pending(self, consumer: Consumer, run: AckRun, acks: AckSet) -> None:
        """Settle what a consumer has acknowledged in a transaction. acks: the acknowledgements of
        these entries, pending ones included.
        """
        self.redelivery.settle_pending(consumer, run, acks)

    def on_committed(self, run: AckRun) -> None:
        """Handle the commit of settled acknowledgements; the cursor is updated already."""
        self.redelivery.forget_counts(run)
        if self.waits_for_acks:
            self.wake()

    def release_pending(self, positions: list[tuple[int, int]]) -> None:
        """Redeliver entries that were acknowledged in a transaction, which is aborted. Those that
        were not read yet are not pending any more when they are.
        """
        if any(position < self.read_position for position in positions):
            self.redelivery.release_pending(positions)
