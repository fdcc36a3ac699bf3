"""Entries that go before new ones: deliveries that were taken back, and due delayed entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.ackset import PositionSet
from pyxbroker.broker.dispatch.delayed import DelayedDelivery

if TYPE_CHECKING:
    from pyxbroker.ackset import AckSet
    from pyxbroker.broker.dispatch.chunks import ChunkedMessages
    from pyxbroker.broker.dispatch.interfaces import DispatchedTopic
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.delayed_index import DelayedIndex
    from pyxbroker.entry import Position

ENTRY_ID_MAX = 2**63 - 1


class Replay:
    """The positions of one subscription to be sent again, and its delayed entries."""

    def __init__(
        self, topic: DispatchedTopic, wake: Callable[[], None], chunked: ChunkedMessages | None
    ) -> None:
        self.positions = PositionSet()
        self.delayed: DelayedDelivery | None = None
        self.delayed_index: DelayedIndex | None = None  # its entries
        self.sets_aside = False  # the previous read brought entries that are not due
        self._aside_before = 0  # delayed entries before the last read
        self._topic = topic
        self._wake = wake
        self._chunked = chunked
        self.on_policies()

    def on_policies(self) -> None:
        """Apply the topic's changed policies, which may allow or forbid delayed delivery."""
        if self.delayed is None and self._topic.policies.delayed_delivery:
            self.delayed = DelayedDelivery(self._topic, self._wake)
            self.delayed_index = self.delayed.index
        if self.delayed is not None:
            self.delayed.on_policies()

    def retire(self) -> None:
        """Stop the timer, and break reference cycles. The next dispatcher reads delayed entries
        again.
        """
        if self.delayed is not None:
            self.delayed.stop()
        self.delayed = self.delayed_index = None
        del self._wake

    @property
    def delayed_entries(self) -> int:
        """Number of entries that were read and are not due yet."""
        return 0 if self.delayed_index is None else len(self.delayed_index)

    @property
    def is_full(self) -> bool:
        """True if no more entries can be delayed; new entries wait until some are due."""
        return self.delayed_index is not None and self.delayed_index.is_full

    @property
    def may_have_positions(self) -> bool:
        """True if fill() may find positions."""
        return (
            len(self.positions) > 0
            or (self.delayed is not None and self.delayed.is_due)
            or (self._chunked is not None and self._chunked.waits)
        )

    def fill(self) -> bool:
        """Add due entries, and chunks that no longer wait. Return False if nothing is to be
        sent.
        """
        if self._chunked is not None:
            self._chunked.release(self.positions)
        if len(self.positions) == 0 and self.delayed is not None:
            self.delayed.take_due(self.positions)
        return len(self.positions) > 0

    def update_sets_aside(self) -> bool:
        """Return True if the previous read brought delayed entries. Called before each read."""
        before, self._aside_before = self._aside_before, self.delayed_entries
        self.sets_aside = self._aside_before > before
        return self.sets_aside

    def pass_over(self, position: Position, last: int) -> None:
        """Drop entries up to the id last, which cannot be read."""
        self.positions.discard_range(*position, last)
        if self._chunked is not None:
            self._chunked.pass_over(position, last)

    def take_back(
        self, consumer: Consumer, positions: list[tuple[int, int]], acks: AckSet
    ) -> list[tuple[int, int]]:
        """Revoke deliveries of a consumer. Return those that were pending, in order."""
        taken = []
        for position in positions:
            if consumer.settle_one(*position) and not acks.is_acknowledged(*position):
                self.positions.add(*position)
                taken.append(position)
        return taken

    def on_consumer_gone(self, consumer: Consumer) -> None:
        """Let the remaining chunks of a consumer's messages go to another consumer."""
        if self._chunked is not None:
            self._chunked.forget(consumer)

    def drop_up_to(self, mark: Position) -> None:
        """Drop everything up to a mark, which is acknowledged."""
        while len(self.positions):
            ledger_id, first, _ = self.positions.first_range(1)
            if (ledger_id, first) > mark:
                break
            last = mark.entry_id if ledger_id == mark.ledger_id else ENTRY_ID_MAX
            self.positions.discard_range(ledger_id, first, last)
        if self.delayed_index is not None:
            self.delayed_index.drop_up_to(*mark)

    def clear(self, acks: AckSet) -> None:
        """Drop everything, because all entries are read again. acks are the current
        acknowledgements.
        """
        self.positions.clear()
        if self._chunked is not None:
            self._chunked.clear(acks)
        if self.delayed is not None:
            self.delayed.clear()
