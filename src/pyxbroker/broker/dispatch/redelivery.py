"""Redelivery when consumers leave or ask for it: everything from the mark on, or single entries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.pacing import run_incrementally
from pyxbroker.broker.dispatch.interfaces import DispatchLoop
from pyxbroker.broker.dispatch.replay import Replay
from pyxbroker.delivery import TakenBack, free_items

if TYPE_CHECKING:
    from pyxbroker.ackset import AckSet
    from pyxbroker.base.pacing import StepQueue
    from pyxbroker.broker.dispatch.choosers import Chooser
    from pyxbroker.broker.dispatch.limits import Limits
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.delivery import FreedDict, Holders
    from pyxbroker.entry import AckRun, Position

ENTRIES_PER_STEP = 1024
"""Deliveries that one step takes back or frees: a fraction of a millisecond."""
COUNTS_PER_STEP = 128  # redelivery counts that one step drops


class RedeliveringDispatcher(DispatchLoop, Protocol):
    """The dispatcher of a redelivery."""

    acks: AckSet
    chooser: Chooser
    limits: Limits
    holders: Holders
    read_position: Position
    waits_for_acks: bool

    @property
    def is_reusable(self) -> bool: ...


class RedeliverFromMark:
    """Redelivers everything that is not acknowledged, in order. Deliveries are not recorded: the
    cursor knows what comes after its mark.

    Used by Exclusive. The subclasses change it for the other types.
    """

    __slots__ = ("_dispatcher", "counts", "is_returning", "replay")

    def __init__(self, dispatcher: RedeliveringDispatcher) -> None:
        self.replay: Replay | None = None
        self.counts: dict[tuple[int, int], int] = {}  # redelivery counts by position
        self.is_returning = False  # True: deliveries are being taken back, and nothing is sent
        self._dispatcher = dispatcher

    def on_added(self, consumer: Consumer) -> None:
        """Handle a new consumer."""
        self._dispatcher.rewind()

    def on_removed(self, consumer: Consumer) -> None:
        """Take back the deliveries of a consumer that has left. Other consumers get them."""
        self._dispatcher.rewind()

    def rewound(self) -> None:
        """Stop taking deliveries back, because everything after the mark is read again."""

    def forget(self, consumers: list[Consumer]) -> None:
        """Drop the consumers' deliveries, which are read again and count as never delivered."""

    def swap_counts(self) -> FreedDict:
        """Drop all redelivery counts. Return them, for free_items()."""
        counts, self.counts = self.counts, {}
        return counts

    def forget_counts_up_to(self, mark: Position) -> None:
        """Drop the counts of positions up to a mark, which are acknowledged."""

    def retire(self) -> None:
        """Break the reference cycle with an abandoned dispatcher."""
        del self._dispatcher

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        """Handle the acknowledgement of single entries; the cursor is updated already."""
        consumer.count_acked(run)

    def settle_pending(self, consumer: Consumer, run: AckRun, acks: AckSet) -> None:
        """Handle acknowledgements in a transaction. acks: those of these entries, pending ones
        included.
        """
        consumer.count_acked(run)

    def forget_counts(self, run: AckRun) -> None:
        """Drop the counts of whole entries, which are acknowledged."""

    def release_pending(self, positions: list[tuple[int, int]]) -> None:
        """Redeliver entries whose acknowledgements were aborted. As every redelivery in order, this
        restarts at the mark.
        """
        self._dispatcher.rewind()
        self._dispatcher.wake()

    def redeliver_all(self, consumer: Consumer) -> None:
        """Redeliver all unacknowledged entries of a consumer."""
        self._dispatcher.rewind()
        self._dispatcher.wake()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        """Redeliver these positions of a consumer."""
        self.redeliver_all(consumer)


class RedeliverEntries(RedeliverFromMark):
    """Redelivers single entries, before new ones (Shared and Key_Shared).

    A consumer may have a million deliveries. They leave the consumer in one call, and enter the
    replay in steps that wait in the queue of the consumer's client. Nothing is sent meanwhile,
    because it might overtake them.
    """

    def __init__(self, dispatcher: RedeliveringDispatcher) -> None:
        super().__init__(dispatcher)
        chooser = dispatcher.chooser
        self.replay: Replay = Replay(dispatcher.topic, dispatcher.wake, chooser.chunked)
        self._consumers = chooser.consumers
        self._keys = chooser.key_queue
        self._queue = self.replay if self._keys is None else self._keys
        self._limits = dispatcher.limits
        self._holders = dispatcher.holders
        # Deliveries being taken back, in order: (deliveries, counted as redelivered, queue).
        self._returning: deque[tuple[TakenBack, bool, StepQueue]] = deque()

    def on_added(self, consumer: Consumer) -> None:
        consumer.tracks_pending = self._dispatcher.topic.name.is_persistent
        self._limits.hold_for(consumer)
        self._holders.add(consumer)

    def on_removed(self, consumer: Consumer) -> None:
        self.replay.on_consumer_gone(consumer)
        if not self._consumers:
            self._free(consumer, [self.swap_counts()])
            self._returning = deque((taken, False, queue) for taken, _, queue in self._returning)
        if self._consumers or self._dispatcher.is_reusable:
            # Reading delayed entries again would take long, so the next consumer finds them here.
            # This does not count as a redelivery: the consumer has not failed.
            self._take_back(consumer, counted=False)
        else:
            self.forget([consumer])
            self._dispatcher.rewind()
        self._holders.remove(consumer)

    def forget_counts_up_to(self, mark: Position) -> None:
        if self.counts:
            # Counts exist only while consumers do.
            queue = self._consumers[0].connection.session.step_queue
            work = _forget_up_to(mark, list(self.counts), self.counts, queue)
            run_incrementally(work, self._dispatcher.topic.turn.run)

    def retire(self) -> None:
        super().retire()
        self._returning.clear()
        self.replay.retire()

    # --- taking deliveries back -----------------------------------------------------------------

    def _take_back(self, consumer: Consumer, counted: bool) -> None:
        """Let all deliveries of a consumer wait for redelivery, now or after some steps."""
        taken = consumer.take_back()
        if self._returning or not self._put_back(taken, counted):
            self._returning.append((taken, counted, consumer.connection.session.step_queue))
            if not self.is_returning:
                self.is_returning = True
                # A read in progress would be sent before the redeliveries.
                self._dispatcher.drop_read()
                self._return_later()

    def _put_back(self, taken: TakenBack, counted: bool) -> bool:
        """Put one step of deliveries back. Return True if that was the last one."""
        to = self.replay.positions if self._keys is None else None
        counts = self.counts if counted else None
        return taken.put_back(self._dispatcher.acks, to, counts, ENTRIES_PER_STEP)

    def _return_later(self) -> None:
        queue = self._returning[0][2]
        queue.wait(partial(self._dispatcher.topic.turn.run, self._return_some))

    def _return_some(self) -> None:
        if not self._returning:
            return  # a rewind reads them again instead
        taken, counted, _ = self._returning[0]
        if self._put_back(taken, counted):
            self._returning.popleft()
        if self._returning:
            self._return_later()
            return
        self.is_returning = False
        self._dispatcher.wake()

    def rewound(self) -> None:
        if self._returning:
            queue = self._returning[0][2]
            unused = [each for taken, _, _ in self._returning for each in taken.forget()]
            self._returning.clear()
            self.is_returning = False
            self._free_in(queue, unused)

    def forget(self, consumers: list[Consumer]) -> None:
        for consumer in consumers:
            self._free(consumer, consumer.take_back().forget())
        if consumers:
            self._free(consumers[0], [self.swap_counts(), self._holders.clear()])

    def _free(self, consumer: Consumer, dicts: list[FreedDict]) -> None:
        self._free_in(consumer.connection.session.step_queue, dicts)

    def _free_in(self, queue: StepQueue, dicts: list[FreedDict]) -> None:
        if not free_items(dicts, ENTRIES_PER_STEP):
            queue.wait(partial(self._free_in, queue, dicts))

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        self._settle(consumer, run, self._dispatcher.acks, self.counts)

    def settle_pending(self, consumer: Consumer, run: AckRun, acks: AckSet) -> None:
        # The counts stay, because the transaction may be aborted.
        self._settle(consumer, run, acks, {})

    def _settle(
        self,
        consumer: Consumer,
        run: AckRun,
        acks: AckSet,
        counts: dict[tuple[int, int], int],
    ) -> None:
        for other in self._holders.settle(run, consumer, acks, counts):
            # The acknowledging consumer may not be the one that has the entry now.
            self._limits.resume(other)
        self._limits.on_acknowledged(consumer)
        has_news = self._keys is not None and self._keys.keys.has_new_ready
        if has_news or self._dispatcher.waits_for_acks:
            self._dispatcher.wake()

    def forget_counts(self, run: AckRun) -> None:
        if self.counts:
            for index in range(len(run)):
                ledger_id, entry_id, _ = run.position(index)
                if self._dispatcher.acks.is_acknowledged(ledger_id, entry_id):
                    self.counts.pop((ledger_id, entry_id), None)

    def release_pending(self, positions: list[tuple[int, int]]) -> None:
        dispatcher = self._dispatcher
        for position in positions:
            if dispatcher.acks.is_acknowledged(*position):
                continue
            holder = self._holders.holder(*position)
            if holder is not None:
                # It has the other messages of the batch, which are redelivered with these.
                holder.settle_one(*position)
            if self._consumers:
                self.counts[position] = self.counts.get(position, 0) + 1
            if position < dispatcher.read_position:
                self.replay.positions.add(*position)
        self._resume()

    def redeliver_all(self, consumer: Consumer) -> None:
        self._take_back(consumer, counted=True)
        self._resume()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        counts = self.counts
        for position in self._queue.take_back(consumer, sorted(positions), self._dispatcher.acks):
            counts[position] = counts.get(position, 0) + 1
        self._resume()

    def _resume(self) -> None:
        self._dispatcher.wake()
        self._limits.wake_other_subscriptions()


def _forget_up_to(
    mark: Position,
    positions: list[tuple[int, int]],
    counts: dict[tuple[int, int], int],
    queue: StepQueue,
) -> Iterator[StepQueue]:
    """Drop counts up to a mark in steps. None of these entries is sent again meanwhile."""
    for at in range(0, len(positions), COUNTS_PER_STEP):
        for position in positions[at : at + COUNTS_PER_STEP]:
            if position <= mark:
                counts.pop(position, None)
        yield queue
