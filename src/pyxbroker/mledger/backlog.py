"""The part of a managed ledger after a position, in bytes and by the ages of its ledgers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.entry import Position

if TYPE_CHECKING:
    from pyxbroker.mledger.managed_ledger import ManagedLedger


def bytes_after(managed_ledger: ManagedLedger, mark: Position) -> int:
    """Return the bytes of the entries after a mark. Entries of the mark's own ledger count with
    their average size (ManagedLedgerImpl, getEstimatedBacklogSize).
    """
    total = 0
    for ledger_id in reversed(managed_ledger.ledger_ids):
        if ledger_id < mark.ledger_id:
            break
        entries, size = _extent(managed_ledger, ledger_id)
        if ledger_id == mark.ledger_id:
            left = max(entries - mark.entry_id - 1, 0)
            size = size * left // entries if left else 0
        total += size
    return total


def mark_before_bytes(managed_ledger: ManagedLedger, bytes_max: int) -> Position:
    """Return the first mark with at most `bytes_max` bytes after it."""
    for ledger_id in reversed(managed_ledger.ledger_ids):
        entries, size = _extent(managed_ledger, ledger_id)
        if size > bytes_max:
            return Position(ledger_id, entries - entries * bytes_max // size - 1)
        bytes_max -= size
    return managed_ledger.first_position()


def closed_before(managed_ledger: ManagedLedger, mark: Position, time_ms: int) -> Position:
    """Return the end of the last consecutive ledger, from a mark on, that was closed before a time.

    Return the mark itself if its ledger was not.
    """
    for ledger_id in managed_ledger.ledger_ids:
        if ledger_id < mark.ledger_id:
            continue
        info = managed_ledger.ledgers[ledger_id]
        if not 0 < info.timestamp_ms < time_ms:
            break
        if info.entries > 0:
            mark = max(mark, Position(ledger_id, info.entries - 1))
    return mark


def first_closed_ms(managed_ledger: ManagedLedger, mark: Position) -> int:
    """Return when the ledger of the first entry after a mark was closed.

    Return 0 if it is still open or there is no such entry.
    """
    following = managed_ledger.normalize(managed_ledger.next_position(mark))
    return 0 if following is None else managed_ledger.ledgers[following.ledger_id].timestamp_ms


def _extent(managed_ledger: ManagedLedger, ledger_id: int) -> tuple[int, int]:
    """Return (entries, bytes) of a ledger."""
    current = managed_ledger.current
    if current is not None and current.ledger_id == ledger_id:
        return current.last_add_confirmed + 1, current.length
    info = managed_ledger.ledgers[ledger_id]
    return info.entries, info.size
