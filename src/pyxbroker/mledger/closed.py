"""What metadata says of a managed ledger that is not open: its ledgers and where its cursors are.

Nothing is taken over for that, and nothing is read but nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from pyxbroker.base.url_encoding import decode
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore
from pyxbroker.mledger import positions
from pyxbroker.mledger.positions import LedgerRecord


class ClosedCursor(NamedTuple):
    """Where a cursor is, at least: one that was not closed may be further."""

    mark_delete: Position
    properties: dict[str, int]
    last_active_ms: int  # 0: unknown


class ClosedLedger(NamedTuple):
    """A managed ledger that is not open."""

    ledgers: list[LedgerRecord]
    cursors: dict[str, ClosedCursor]
    modified_ms: int  # when its list of ledgers was written
    is_terminated: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the ends of all ledgers are; that of one which was not closed is not."""
        return all(each.timestamp_ms for each in self.ledgers)

    @property
    def was_closed(self) -> bool:
        """By who had it last, as far as the list tells. That of a terminated one does not: it has
        no open ledger at any time.
        """
        return self.is_known and not self.is_terminated

    def slowest(self, but: Iterable[str] = ()) -> Position | None:
        """Up to here every cursor has acknowledged everything; None: there is no cursor."""
        marks = (each.mark_delete for name, each in self.cursors.items() if name not in but)
        return min(marks, default=None)

    def first_left(self, mark: Position) -> LedgerRecord | None:
        """The ledger of the first entry after a mark; one that was not closed may have some."""
        for each in self.ledgers:
            if not each.timestamp_ms or (
                each.entries and (each.ledger_id, each.entries - 1) > mark
            ):
                return each
        return None

    def bytes_after(self, mark: Position) -> int:
        """Bytes of the entries after a mark, without those of a ledger that was not closed."""
        total = 0
        for each in self.ledgers:
            if each.ledger_id > mark.ledger_id:
                total += each.size
            elif each.ledger_id == mark.ledger_id and each.entries:
                total += each.size * max(each.entries - mark.entry_id - 1, 0) // each.entries
        return total


async def read_closed(store: MetadataStore, name: str) -> ClosedLedger | None:
    """None when there is none of that name. Raises MetadataError, MalformedRecord."""
    path = paths.managed_ledger(name)
    # Together they are one way to the store.
    found, names = await asyncio.gather(store.get(path), store.children(path))
    if found is None:
        return None
    ledgers, _, terminated = positions.decode_ledger_list(found.value)
    ledgers.sort(key=lambda each: each.ledger_id)
    ends = {each.ledger_id: each.entries - 1 for each in ledgers}
    cursors = {}
    for encoded in names:
        node = await store.get(f"{path}/{encoded}")
        if node is not None:
            record = positions.decode_cursor(node.value, ends)
            acks = record.acks
            cursors[decode(encoded)] = ClosedCursor(
                acks.mark_delete, record.properties, record.last_active_ms
            )
    return ClosedLedger(ledgers, cursors, found.modified_ms, terminated is not None)
