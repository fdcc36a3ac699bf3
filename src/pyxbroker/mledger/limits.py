"""Limits of a managed ledger; the settings are those of managedLedger..."""

from __future__ import annotations

from typing import NamedTuple

from pyxbroker.ledger.placement import Affinity, LedgerQuorums


class ManagedLedgerLimits(NamedTuple):
    """Limits of a ledger, after which the next one begins, and of retention."""

    entries_per_ledger_max: int = 50_000
    bytes_per_ledger_max: int = 2048 << 20
    rollover_min_s: float = 600.0
    rollover_max_s: float = 4 * 3600.0
    retention_s: float = 0.0
    retention_bytes: int = 0
    cursor_entries_per_ledger_max: int = 50_000
    cursor_rollover_s: float = 4 * 3600.0
    mark_delete_per_s: float = 1.0
    position_held_s: float = 60.0  # maximum delay of a write by that rate
    ranges_as_list_max: int = 1_000  # in a cursor's node
    ranges_whole_max: int = 10_000  # in each entry of a cursor ledger that only we read
    entry_bytes_max: int = 5 << 20  # that bookies store

    quorums: LedgerQuorums | None = None  # of the next ledgers; None: those of the client
    affinity: Affinity | None = None  # of the next ledgers, also of cursors

    def keeping(self, retention_s: float, retention_bytes: int) -> ManagedLedgerLimits:
        """Return a copy with another retention."""
        return self._replace(retention_s=retention_s, retention_bytes=retention_bytes)
