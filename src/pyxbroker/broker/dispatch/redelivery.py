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

    __slots__ = ("_dispatcher", "_holders", "counts", "replay")

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.replay: Replay | None = None
        self.counts: dict[tuple[int, int], int] = {}  # of redeliveries, by position
        self._dispatcher = dispatcher
        self._holders = dispatcher.holders

    def on_added(self, consumer: Consumer) -> None:
        """A consumer came."""
        self._holders.sole = consumer
        self._dispatcher.rewind()

    def give_back(self, consumer: Consumer) -> None:
        """Takes back what a consumer that is gone has; it goes to others, or waits for one."""
        self._holders.sole = None
        self._dispatcher.rewind()

    def retire(self) -> None:
        """Its dispatcher does nothing any more, and nothing comes again by itself."""
        del self._dispatcher

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        """A consumer has acknowledged entries one by one; the cursor knows it already."""
        self._holders.settle(run, consumer, self._dispatcher.acks, self.counts)

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
        self._queue = self.replay if self._keys is None else self._keys
        self._limits = dispatcher.limits

    def on_added(self, consumer: Consumer) -> None:
        self._limits.hold_for(consumer)
        self._holders.add(consumer)

    def give_back(self, consumer: Consumer) -> None:
        self.replay.on_consumer_gone(consumer)
        if not self._consumers:
            self.counts.clear()
        if self._consumers or self._dispatcher.is_kept:
            # To read again what is set aside would be long: the next consumer finds it here.
            # It does not count as a redelivery: nobody said that the consumer failed.
            self._queue.take_back_all(consumer, self._dispatcher.acks, None)
        else:
            consumer.clear_pending()
            self._dispatcher.rewind()
        self._holders.remove(consumer)

    def retire(self) -> None:
        super().retire()
        self.replay.retire()

    def on_acknowledged(self, consumer: Consumer, run: AckRun) -> None:
        for other in self._holders.settle(run, consumer, self._dispatcher.acks, self.counts):
            # An entry may be acknowledged by another consumer than the one that has it now.
            self._limits.go_on(other)
        self._limits.on_acknowledged(consumer)
        has_news = self._keys is not None and self._keys.keys.news
        if has_news or self._dispatcher.waits_for_acks:
            self._dispatcher.wake()

    def redeliver_all(self, consumer: Consumer) -> None:
        self._queue.take_back_all(consumer, self._dispatcher.acks, self.counts)
        self._go_on()

    def redeliver(self, consumer: Consumer, positions: list[tuple[int, int]]) -> None:
        counts = self.counts
        for position in self._queue.take_back(consumer, sorted(positions), self._dispatcher.acks):
            counts[position] = counts.get(position, 0) + 1
        self._go_on()

    def _go_on(self) -> None:
        self._dispatcher.wake()
        self._limits.let_others_go_on()
