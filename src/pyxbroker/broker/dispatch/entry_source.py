"""Where a dispatcher's entries come from, as far as it knows.

A managed ledger is one. So is what a topic keeps nothing in, and whatever else can say what comes
next: a view of a log that leaves entries out, or that ends before the log does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyxbroker.entry import EntryBatch, Position
from pyxbroker.ledger.errors import LedgerError


class EntrySource(Protocol):
    """Entries in the order of their positions, and more of them from time to time."""

    # --- what is next ---

    def next_position(self, position: tuple[int, int]) -> Position:
        """Where the entry after a position is, or will be."""

    def normalize(self, position: tuple[int, int]) -> Position | None:
        """The first entry at or after a position that may be read; None when there is none yet."""

    def last_entry(self, ledger_id: int) -> int | None:
        """Id of the last entry of a ledger (-1: none yet), None for a ledger that is not here."""

    # --- read so many ---

    def read_cached(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch | None:
        """Entries of one ledger from a normalized position on, at most up to the id `last`, when
        they are in memory.
        """

    def read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | LedgerError], None],
        last: int | None = None,
    ) -> None:
        """The same from wherever they are; callback gets an EntryBatch or a LedgerError, never
        within this call.
        """

    # --- tell me when there is more ---

    def watch(self, wake: Callable[[], None]) -> None:
        """Calls wake once in each turn that brought entries, at its end, until unwatch(wake)."""

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Nobody is there to take entries any more."""
