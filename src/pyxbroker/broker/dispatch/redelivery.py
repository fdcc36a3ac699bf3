"""What comes again when consumers go or ask for it: everything from the mark on, or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.broker.dispatch.replay import Replay

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.dispatcher import Dispatcher
    from pyxbroker.broker.topics.consumer import Consumer
    from pyxbroker.entry import AckRun


class FromMark:
    """Order is kept: everything that is not acknowledged comes again, as Pulsar does.

    That of Exclusive, and what the others change.
    """

    __slots__ = ("_dispatcher", "counts", "replay")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.replay: Replay | None = None
        self.counts: dict[tuple[int, int], int] = {}  # of redeliveries, by position
        self._dispatcher = dispatcher

    def on_added(self, consumer: Consumer) -> None:
        """A consumer came."""
        self._dispatcher.rewind()

    def give_back(self, consumer: Consumer) -> None:
        """Takes back what a consumer that is gone has; it goes to others, or waits for one."""
        self._dispatcher.rewind()

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        """A consumer has acknowledged entries one by one; the cursor knows it already."""
        consumer.settle(run)
        if run.partial:
            self._dispatcher.settle_batches(run)

    def redeliver_all(self, consumer: Consumer) -> None:
        """The client wants everything again that it has not acknowledged."""
        consumer.clear_pending()
        self._dispatcher.rewind()
        self._dispatcher.wake()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        """The client wants these positions again."""
        self.redeliver_all(consumer)


class OneByOne(FromMark):
    """Shared and Key_Shared: what was taken back comes again before what is new."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__(dispatcher)
        chooser = dispatcher.chooser
        self.replay: Replay = Replay(dispatcher.topic, dispatcher.wake, chooser.chunked)
        self._consumers = chooser.consumers
        self._keys = chooser.key_queue
        self._limits = dispatcher.limits

    def on_added(self, consumer: Consumer) -> None:
        self._limits.hold_for(consumer)

    def give_back(self, consumer: Consumer) -> None:
        self.replay.on_consumer_gone(consumer)
        if not self._consumers:
            self.counts.clear()
        if self._consumers or self._dispatcher.is_kept:
            # To read again what is set aside would be long: the next consumer finds it here.
            self._take_back(consumer, consumer.pending_positions())
        else:
            consumer.clear_pending()
            self._dispatcher.rewind()

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        strangers: list[tuple[int, int]] = []
        consumer.settle(run, strangers)
        for position in strangers:
            # An entry may be acknowledged by another consumer than the one that has it now.
            for other in self._consumers:
                if other.settle_one(*position):
                    self._limits.go_on(other)
                    break
        if self.counts:
            for i in range(len(run)):
                ledger_id, entry_id, left = run.position(i)
                if not left:
                    self.counts.pop((ledger_id, entry_id), None)
        if run.partial:
            self._dispatcher.settle_batches(run)
        self._limits.on_acknowledged(consumer)
        if self._keys is not None and self._keys.keys.news:
            self._dispatcher.wake()

    def redeliver_all(self, consumer: Consumer) -> None:
        self._redeliver(consumer, consumer.pending_positions())

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        self._redeliver(consumer, sorted(positions))

    def _redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        counts = self.counts
        for position in self._take_back(consumer, positions):
            counts[position] = counts.get(position, 0) + 1
        self._dispatcher.wake()
        self._limits.let_others_go_on()

    def _take_back(
        self, consumer: Consumer, positions: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Takes deliveries back, to send them again; returns those that a consumer had, in order.

        A consumer that goes away does not count as a redelivery: nobody said that it failed.
        """
        queue = self.replay if self._keys is None else self._keys
        return queue.take_back(consumer, positions, self._dispatcher.acks)
