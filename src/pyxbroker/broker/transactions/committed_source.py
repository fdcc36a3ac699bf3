"""The entries of a topic that its consumers may receive: an entry source over a managed ledger.

It ends before the first message of the oldest open transaction. Its batches name the aborted
transactions, whose messages are not delivered (delivery.pyx).
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING

from pyxbroker.entry import EntryBatch, Position
from pyxbroker.ledger.errors import LedgerError

if TYPE_CHECKING:
    from pyxbroker.mledger.managed_ledger import ManagedLedger

NOTHING = Position(-1, -1)


class CommittedSource:
    """The entry source of the dispatchers of one topic."""

    def __init__(self, managed_ledger: ManagedLedger, aborted: Container[tuple[int, int]]) -> None:
        self.limit: Position | None = NOTHING
        """The first entry that must not be read; None: all may be read."""
        self.aborted = aborted
        self._log = managed_ledger

    # --- positions ---

    def next_position(self, position: tuple[int, int]) -> Position:
        return self._log.next_position(position)

    def normalize(self, position: tuple[int, int]) -> Position | None:
        found = self._log.normalize(position)
        return None if found is None or not self._is_readable(found) else found

    def _is_readable(self, position: Position) -> bool:
        return self.limit is None or position < self.limit

    def last_entry(self, ledger_id: int) -> int | None:
        return self._last(ledger_id, self._log.last_entry(ledger_id))

    def _last(self, ledger_id: int, last: int | None) -> int | None:
        """Return the id of the last entry of a ledger to be read: `last`, or less."""
        limit = self.limit
        if limit is None or ledger_id < limit.ledger_id:
            return last
        if ledger_id > limit.ledger_id:
            return -1
        return limit.entry_id - 1 if last is None else min(last, limit.entry_id - 1)

    # --- reads ---

    def read_cached(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch | None:
        last = self._last(position.ledger_id, last)
        batch = self._log.read_cached(position, count_max, bytes_max, last)
        if batch is not None:
            batch.aborted = self.aborted
        return batch

    def read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | LedgerError], None],
        last: int | None = None,
    ) -> None:
        last = self._last(position.ledger_id, last)
        self._log.read(position, count_max, bytes_max, partial(self._on_read, callback), last)

    def _on_read(
        self,
        callback: Callable[[EntryBatch | LedgerError], None],
        result: EntryBatch | LedgerError,
    ) -> None:
        if isinstance(result, EntryBatch):
            result.aborted = self.aborted
        callback(result)

    # --- notifications ---

    def watch(self, wake: Callable[[], None]) -> None:
        self._log.watch(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        self._log.unwatch(wake)
