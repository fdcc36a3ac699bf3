"""Trimming: choosing the ledgers that are acknowledged by all cursors and not retained."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.clock import wall_s
from pyxbroker.entry import Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyxbroker.ledger.handle import LedgerHandle
    from pyxbroker.mledger.limits import ManagedLedgerLimits
    from pyxbroker.mledger.positions import LedgerInfo


class TrimmedCursor(Protocol):
    """A cursor that may need ledgers (cursor.py)."""

    name: str
    durable: bool

    @property
    def needs_after(self) -> Position: ...


class TrimmedLedger(Protocol):
    """A managed ledger that is trimmed (managed_ledger.py)."""

    limits: ManagedLedgerLimits
    ledgers: dict[int, LedgerInfo]
    size: int
    unreadable: set[str]
    current: LedgerHandle | None
    last_confirmed: Position
    holder: TrimmedCursor | None

    @property
    def cursors(self) -> Mapping[str, TrimmedCursor]: ...


def victims(managed_ledger: TrimmedLedger, closed: Sequence[int]) -> list[int]:
    """Return the ids of the ledgers that can be deleted, out of the closed ones in order."""
    # The cheap checks come first, since there may be many cursors or ledgers.
    if not closed or _is_retained_now(managed_ledger, closed[0]):
        return []
    if _is_needed(managed_ledger, closed[0]):
        return []
    slowest = _slowest(managed_ledger)
    found: list[int] = []
    kept_bytes = managed_ledger.size
    now_ms = wall_s() * 1000
    for ledger_id in closed:
        info = managed_ledger.ledgers[ledger_id]
        kept_bytes -= info.size
        if slowest < (ledger_id, info.entries - 1) or _is_retained(
            managed_ledger.limits, now_ms - info.timestamp_ms, kept_bytes
        ):
            break
        found.append(ledger_id)
    return found


def _is_retained_now(managed_ledger: TrimmedLedger, oldest: int) -> bool:
    """Return True if retention covers the oldest ledger."""
    info = managed_ledger.ledgers[oldest]
    age_ms = wall_s() * 1000 - info.timestamp_ms
    return _is_retained(managed_ledger.limits, age_ms, managed_ledger.size - info.size)


def _is_needed(managed_ledger: TrimmedLedger, oldest: int) -> bool:
    """Return True if a durable cursor needs the oldest ledger.

    Every acknowledgement that passes a ledger checks this. The cursor found last mostly answers it.
    Out of several cursors a random one is chosen: if it were always the first one to advance, each
    advance would check all cursors again.
    """
    end = (oldest, managed_ledger.ledgers[oldest].entries - 1)
    holder = managed_ledger.holder
    if (
        holder is not None
        and managed_ledger.cursors.get(holder.name) is holder
        and holder.needs_after < end
    ):
        return True
    cursors = managed_ledger.cursors.values()
    holding = [each for each in cursors if each.durable and each.needs_after < end]
    managed_ledger.holder = random.choice(holding) if holding else None
    return bool(holding)


def is_consumed(managed_ledger: TrimmedLedger) -> bool:
    """Return True if the current ledger could be deleted, if it were closed."""
    current = managed_ledger.current
    if current is None or managed_ledger.unreadable or current.last_add_confirmed < 0:
        return False
    if _is_retained(managed_ledger.limits, 0.0, 0):
        return False
    return _slowest(managed_ledger) >= managed_ledger.last_confirmed


def _slowest(managed_ledger: TrimmedLedger) -> Position:
    """Return the position up to which every durable cursor has acknowledged everything."""
    cursors = managed_ledger.cursors.values()
    return min(
        (cursor.needs_after for cursor in cursors if cursor.durable),
        default=managed_ledger.last_confirmed,
    )


def _is_retained(limits: ManagedLedgerLimits, age_ms: float, rest_bytes: int) -> bool:
    """Return True if retention covers a ledger, given its age and the bytes of all later ledgers.

    It does while the ledger is young enough and the later ledgers are below the size limit. A
    negative limit means no limit (ManagedLedgerImpl, isLedgerRetentionOverSizeQuota).
    """
    is_young = limits.retention_s < 0 or age_ms < limits.retention_s * 1000
    is_within = limits.retention_bytes < 0 or rest_bytes < limits.retention_bytes
    return is_young and is_within
