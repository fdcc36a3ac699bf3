"""What is read and sent before what is new: deliveries that were taken back, and what is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.ackset import PositionSet
from pyxbroker.broker.dispatch.delayed import DelayedDelivery

if TYPE_CHECKING:
    from pyxbroker.ackset import AckSet
    from pyxbroker.broker.dispatch.chunks import ChunkedMessages
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.broker.topics.topic import Topic
    from pyxbroker.delayed_index import DelayedIndex
    from pyxbroker.entry import Position

ENTRY_ID_MAX = 2**63 - 1


class Replay:
    """Positions of one subscription, and the entries that are not due yet."""

    def __init__(
        self, topic: Topic, wake: Callable[[], None], chunked: ChunkedMessages | None
    ) -> None:
        self.positions = PositionSet()
        self.delayed: DelayedDelivery | None = None
        self.delayed_index: DelayedIndex | None = None  # its entries
        self.sets_aside = False  # the read before brought some more that are not due
        self._aside_before = 0  # entries that were set aside before the last read
        self._topic = topic
        self._wake = wake
        self._chunked = chunked
        self.on_policies()

    def on_policies(self) -> None:
        """Delayed delivery may be allowed by now, or not any more."""
        if self.delayed is None and self._topic.policies.delayed_delivery:
            self.delayed = DelayedDelivery(self._topic, self._wake)
            self.delayed_index = self.delayed.index
        if self.delayed is not None:
            self.delayed.on_policies()

    def retire(self) -> None:
        """Nobody is woken any more; what was set aside is read again by who comes next."""
        if self.delayed is not None:
            self.delayed.stop()
        self.delayed = self.delayed_index = None
        del self._wake

    @property
    def delayed_entries(self) -> int:
        """Entries that are known and not due yet."""
        return 0 if self.delayed_index is None else len(self.delayed_index)

    @property
    def is_full(self) -> bool:
        """Nothing more can be set aside, so nothing new is read until some of it is due."""
        return self.delayed_index is not None and self.delayed_index.is_full

    @property
    def may_have_some(self) -> bool:
        """Whether fill() may find something."""
        return (
            len(self.positions) > 0
            or (self.delayed is not None and self.delayed.is_due)
            or (self._chunked is not None and self._chunked.waits)
        )

    def fill(self) -> bool:
        """Adds what has become due, and chunks that wait no longer; False: there is nothing."""
        if self._chunked is not None:
            self._chunked.release(self.positions)
        if len(self.positions) == 0 and self.delayed is not None:
            self.delayed.take_due(self.positions)
        return len(self.positions) > 0

    def look_aside(self) -> bool:
        """Before a read: whether the one before it brought entries that are not due."""
        before, self._aside_before = self._aside_before, self.delayed_entries
        self.sets_aside = self._aside_before > before
        return self.sets_aside

    def pass_over(self, position: Position, last: int) -> None:
        """Entries up to the id last cannot be read."""
        self.positions.discard_range(*position, last)
        if self._chunked is not None:
            self._chunked.pass_over(position, last)

    def take_back(
        self, consumer: Consumer, positions: list[tuple[int, int]], acks: AckSet
    ) -> list[tuple[int, int]]:
        """Takes deliveries back; returns those that the consumer had, in order."""
        taken = []
        for position in positions:
            if consumer.settle_one(*position) and not acks.is_acknowledged(*position):
                self.positions.add(*position)
                taken.append(position)
        return taken

    def on_consumer_gone(self, consumer: Consumer) -> None:
        """The rest of the chunked messages that it had goes to another one."""
        if self._chunked is not None:
            self._chunked.forget(consumer)

    def drop_up_to(self, mark: Position) -> None:
        """Everything up to a mark is acknowledged."""
        while len(self.positions):
            ledger_id, first, _ = self.positions.first_range(1)
            if (ledger_id, first) > mark:
                break
            last = mark.entry_id if ledger_id == mark.ledger_id else ENTRY_ID_MAX
            self.positions.discard_range(ledger_id, first, last)
        if self.delayed_index is not None:
            self.delayed_index.drop_up_to(*mark)

    def clear(self, acks: AckSet) -> None:
        """Everything is read again, as the acknowledgements have it by now."""
        self.positions.clear()
        if self._chunked is not None:
            self._chunked.clear(acks)
        if self.delayed is not None:
            self.delayed.clear()
