"""What comes again when consumers go or ask for it: everything from the mark on, or one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyxbroker.base.pacing import run_incrementally
from pyxbroker.broker.dispatch.replay import Replay
from pyxbroker.delivery import TakenBack, free_items

if TYPE_CHECKING:
    from pyxbroker.base.pacing import Line
    from pyxbroker.broker.dispatch.dispatcher import Dispatcher
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.delivery import FreedDict
    from pyxbroker.entry import AckRun, Position

ENTRIES_AT_ONCE = 1024
"""How many deliveries are taken back, or freed, in one step: a fraction of a millisecond."""
COUNTS_AT_ONCE = 128  # that are forgotten in a step of which many are made at once


class FromMark:
    """Order is kept: everything that is not acknowledged comes again, as Pulsar does. So nobody
    notes what is delivered: what comes again is what the cursor has after its mark.

    That of Exclusive, and what the others change.
    """

    __slots__ = ("_dispatcher", "counts", "is_returning", "replay")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.replay: Replay | None = None
        self.counts: dict[tuple[int, int], int] = {}  # of redeliveries, by position
        self.is_returning = False  # deliveries are being taken back: nothing is sent meanwhile
        self._dispatcher = dispatcher

    def on_added(self, consumer: Consumer) -> None:
        """A consumer came."""
        self._dispatcher.rewind()

    def give_back(self, consumer: Consumer) -> None:
        """Takes back what a consumer that is gone has; it goes to others, or waits for one."""
        self._dispatcher.rewind()

    def rewound(self) -> None:
        """Everything is read again after the mark: nothing has to be taken back any more."""

    def forget(self, consumers: list[Consumer]) -> None:
        """All that consumers have is going to be read again, and counts as never delivered."""

    def swap_counts(self) -> FreedDict:
        """Nothing counts as redelivered any more; what did, for free_items()."""
        counts, self.counts = self.counts, {}
        return counts

    def forget_counts_up_to(self, mark: Position) -> None:
        """Everything up to a mark is acknowledged."""

    def retire(self) -> None:
        """Its dispatcher does nothing any more, and nothing comes again by itself."""
        del self._dispatcher

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        """A consumer has acknowledged entries one by one; the cursor knows it already."""
        consumer.count_acked(run)

    def redeliver_all(self, consumer: Consumer) -> None:
        """The client wants everything again that it has not acknowledged."""
        self._dispatcher.rewind()
        self._dispatcher.wake()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        """The client wants these positions again."""
        self.redeliver_all(consumer)


class OneByOne(FromMark):
    """Shared and Key_Shared: what was taken back comes again before what is new.

    A consumer may have had a million entries. They are taken from it at once, and wait to be sent
    again bit by bit, in the line of its client; what is sent meanwhile might overtake them, so
    nothing is.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        chooser = dispatcher.chooser
        self.replay: Replay = Replay(dispatcher.topic, dispatcher.wake, chooser.chunked)
        self._consumers = chooser.consumers
        self._keys = chooser.key_queue
        self._queue = self.replay if self._keys is None else self._keys
        self._limits = dispatcher.limits
        self._holders = dispatcher.holders
        # What is being taken back, in order: whether it counts as redelivered, and whose line.
        self._returning: deque[tuple[TakenBack, bool, Line]] = deque()

    def on_added(self, consumer: Consumer) -> None:
        consumer.tracks_pending = self._dispatcher.topic.name.is_persistent
        self._limits.hold_for(consumer)
        self._holders.add(consumer)

    def give_back(self, consumer: Consumer) -> None:
        self.replay.on_consumer_gone(consumer)
        if not self._consumers:
            self._free(consumer, [self.swap_counts()])
            self._returning = deque((taken, False, line) for taken, _, line in self._returning)
        if self._consumers or self._dispatcher.is_kept:
            # To read again what is set aside would be long: the next consumer finds it here.
            # It does not count as a redelivery: nobody said that the consumer failed.
            self._take_back(consumer, counted=False)
        else:
            self.forget([consumer])
            self._dispatcher.rewind()
        self._holders.remove(consumer)

    def forget_counts_up_to(self, mark: Position) -> None:
        if self.counts:
            # There are some as long as there are consumers.
            line = self._consumers[0].connection.session.line
            work = _forget_up_to(mark, list(self.counts), self.counts, line)
            run_incrementally(work, self._dispatcher.topic.turn.run)

    def retire(self) -> None:
        super().retire()
        self._returning.clear()
        self.replay.retire()

    # --- what is taken back ---------------------------------------------------------------------

    def _take_back(self, consumer: Consumer, counted: bool) -> None:
        """All that a consumer has waits to be sent again, now or after a few turns."""
        taken = consumer.take_back()
        if self._returning or not self._put_back(taken, counted):
            self._returning.append((taken, counted, consumer.connection.session.line))
            if not self.is_returning:
                self.is_returning = True
                # What is being read would be sent before what comes again.
                self._dispatcher.drop_read()
                self._return_later()

    def _put_back(self, taken: TakenBack, counted: bool) -> bool:
        """True: that was all."""
        to = self.replay.positions if self._keys is None else None
        counts = self.counts if counted else None
        return taken.put_back(self._dispatcher.acks, to, counts, ENTRIES_AT_ONCE)

    def _return_later(self) -> None:
        line = self._returning[0][2]
        line.wait(partial(self._dispatcher.topic.turn.run, self._return_some))

    def _return_some(self) -> None:
        if not self._returning:
            return  # they are read again instead
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
            line = self._returning[0][2]
            unused = [each for taken, _, _ in self._returning for each in taken.forget()]
            self._returning.clear()
            self.is_returning = False
            self._free_in(line, unused)

    def forget(self, consumers: list[Consumer]) -> None:
        for consumer in consumers:
            self._free(consumer, consumer.take_back().forget())
        if consumers:
            self._free(consumers[0], [self.swap_counts(), self._holders.clear()])

    def _free(self, consumer: Consumer, dicts: list[FreedDict]) -> None:
        self._free_in(consumer.connection.session.line, dicts)

    def _free_in(self, line: Line, dicts: list[FreedDict]) -> None:
        if not free_items(dicts, ENTRIES_AT_ONCE):
            line.wait(partial(self._free_in, line, dicts))

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        for other in self._holders.settle(run, consumer, self._dispatcher.acks, self.counts):
            # An entry may be acknowledged by another consumer than the one that has it now.
            self._limits.go_on(other)
        self._limits.on_acknowledged(consumer)
        has_news = self._keys is not None and self._keys.keys.has_new_ready
        if has_news or self._dispatcher.waits_for_acks:
            self._dispatcher.wake()

    def redeliver_all(self, consumer: Consumer) -> None:
        self._take_back(consumer, counted=True)
        self._go_on()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        counts = self.counts
        for position in self._queue.take_back(consumer, sorted(positions), self._dispatcher.acks):
            counts[position] = counts.get(position, 0) + 1
        self._go_on()

    def _go_on(self) -> None:
        self._dispatcher.wake()
        self._limits.let_others_go_on()


def _forget_up_to(
    mark: Position,
    positions: list[tuple[int, int]],
    counts: dict[tuple[int, int], int],
    line: Line,
) -> Iterator[Line]:
    """Nothing of it is sent again, so nobody asks how often it was while this goes on."""
    for at in range(0, len(positions), COUNTS_AT_ONCE):
        for position in positions[at : at + COUNTS_AT_ONCE]:
            if position <= mark:
                counts.pop(position, None)
        yield line
