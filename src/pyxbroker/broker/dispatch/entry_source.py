"""The interface through which a dispatcher reads entries.

A managed ledger implements it. So do topics that store nothing, and views of a log: those that
leave out entries, or end before the log does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyxbroker.entry import EntryBatch, Position
from pyxbroker.ledger.errors import LedgerError


class EntrySource(Protocol):
    """Entries in the order of their positions; new entries are appended."""

    # --- positions ---

    def next_position(self, position: tuple[int, int]) -> Position:
        """Return the position of the entry after a position, which may not be written yet."""

    def normalize(self, position: tuple[int, int]) -> Position | None:
        """Return the first readable entry at or after a position, or None if none exists yet."""

    def last_entry(self, ledger_id: int) -> int | None:
        """Return the id of a ledger's last entry (-1: none yet), or None for an unknown ledger."""

    # --- reads ---

    def read_cached(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch | None:
        """Return entries of one ledger from a normalized position on, at most up to the id `last`.
        Return None if they are not in memory.
        """

    def read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | LedgerError], None],
        last: int | None = None,
    ) -> None:
        """Read the same entries from memory or disk. callback gets an EntryBatch or a LedgerError,
        never within this call.
        """

    # --- notifications ---

    def watch(self, wake: Callable[[], None]) -> None:
        """Call wake at the end of each loop iteration that added entries, until unwatch(wake)."""

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Stop calling wake."""
