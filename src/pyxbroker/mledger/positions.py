"""The state of managed ledgers and cursors as the records that Pulsar keeps (see records.py).

A cursor's single acknowledged entries are written as a list of ranges while there are few, else as
one bit per entry and ledger (PositionInfo.individualDeletedMessageRanges), so that a million holes
cost some hundred kilobytes and none is ever left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyxbroker.ackset import AckSet
from pyxbroker.entry import Position
from pyxbroker.mledger import records
from pyxbroker.proto import MLDataFormats


class LedgerRecord(NamedTuple):
    """One ledger of a ManagedLedgerInfo; raw is the whole record, with fields that are not ours."""

    ledger_id: int
    entries: int
    size: int
    timestamp_ms: int
    raw: bytes


def encode_ledger_list(
    ledgers: Iterable[LedgerRecord], properties: Mapping[str, str], terminated: Position | None
) -> bytes:
    """The value of a managed ledger's node. A ledger without timestamp is the one being written."""
    info = MLDataFormats.ManagedLedgerInfo()
    for ledger in ledgers:
        record = info.ledgerInfo.add()
        if ledger.raw:
            record.ParseFromString(ledger.raw)
        record.ledgerId = ledger.ledger_id
        record.timestamp = ledger.timestamp_ms
        if ledger.timestamp_ms:
            record.entries = ledger.entries
            record.size = ledger.size
    if terminated is not None:
        info.terminatedPosition.ledgerId = terminated.ledger_id
        info.terminatedPosition.entryId = terminated.entry_id
    for key, value in properties.items():
        info.properties.add(key=key, value=value)
    return records.encode_managed_ledger_info(info)


def decode_ledger_list(
    value: bytes,
) -> tuple[list[LedgerRecord], dict[str, str], Position | None]:
    """(ledgers, properties, terminated position) of a managed ledger's node."""
    info = records.decode_managed_ledger_info(value)
    ledgers = [
        LedgerRecord(
            record.ledgerId,
            record.entries,
            record.size,
            record.timestamp,
            record.SerializeToString(),
        )
        for record in info.ledgerInfo
    ]
    terminated = None
    if info.HasField("terminatedPosition"):
        position = info.terminatedPosition
        terminated = Position(position.ledgerId, position.entryId)
    return ledgers, {each.key: each.value for each in info.properties}, terminated


def ranges_exceed(acks: AckSet, limit: int) -> bool:
    """Whether the single acknowledged entries make more than limit ranges."""
    if acks.holes <= limit:
        return False
    if acks.holes > 64 * limit:
        # Counting would cost more than it saves: bits are at least as short as this many ranges.
        return True
    return sum(len(acks.ranges(ledger_id)) for ledger_id in acks.ledger_ids()) > limit


def encode_position(acks: AckSet, properties: Mapping[str, int], ranges_max: int) -> bytes:
    """The entry of a cursor ledger."""
    mark = acks.mark_delete
    info = MLDataFormats.PositionInfo(ledgerId=mark.ledger_id, entryId=mark.entry_id)
    if ranges_exceed(acks, ranges_max):
        for ledger_id in acks.ledger_ids():
            info.individualDeletedMessageRanges.add(key=ledger_id, values=acks.to_longs(ledger_id))
    else:
        _add_ranges(info.individualDeletedMessages, acks)
    _add_properties(info.properties, properties)
    return records.encode_position_info(info)


def restore_position(entry: bytes) -> tuple[AckSet, dict[str, int]]:
    """The acknowledgements and properties in an entry of a cursor ledger."""
    info = records.decode_position_info(entry)
    acks = AckSet(info.ledgerId, info.entryId)
    _restore_ranges(acks, info.individualDeletedMessages)
    for longs in info.individualDeletedMessageRanges:
        acks.restore_longs(longs.key, longs.values)
    return acks, {each.name: each.value for each in info.properties}


class CursorRecord(NamedTuple):
    """What a cursor's node says."""

    cursors_ledger_id: int
    acks: AckSet
    properties: dict[str, int]
    cursor_properties: dict[str, str]


def encode_cursor(
    acks: AckSet,
    cursors_ledger_id: int,
    properties: Mapping[str, int],
    cursor_properties: Mapping[str, str],
) -> bytes:
    """The value of a cursor's node; with a cursor ledger only the mark counts, as a last resort."""
    mark = acks.mark_delete
    info = MLDataFormats.ManagedCursorInfo(
        cursorsLedgerId=cursors_ledger_id,
        markDeleteLedgerId=mark.ledger_id,
        markDeleteEntryId=mark.entry_id,
    )
    if cursors_ledger_id == records.NO_LEDGER:
        _add_ranges(info.individualDeletedMessages, acks)
    _add_properties(info.properties, properties)
    for name, value in cursor_properties.items():
        info.cursorProperties.add(name=name, value=value)
    return records.encode_managed_cursor_info(info)


def decode_cursor(value: bytes) -> CursorRecord:
    """What a cursor's node says."""
    info = records.decode_managed_cursor_info(value)
    acks = AckSet(info.markDeleteLedgerId, info.markDeleteEntryId)
    _restore_ranges(acks, info.individualDeletedMessages)
    return CursorRecord(
        info.cursorsLedgerId,
        acks,
        {each.name: each.value for each in info.properties},
        {each.name: each.value for each in info.cursorProperties},
    )


def _add_ranges(field: Any, acks: AckSet) -> None:
    for ledger_id in acks.ledger_ids():
        for lower, upper in acks.ranges(ledger_id):
            each = field.add()
            each.lowerEndpoint.ledgerId = each.upperEndpoint.ledgerId = ledger_id
            each.lowerEndpoint.entryId = lower
            each.upperEndpoint.entryId = upper


def _restore_ranges(acks: AckSet, field: Any) -> None:
    for each in field:
        lower, upper = each.lowerEndpoint, each.upperEndpoint
        # A range may begin in the ledger before, whose end is then its lower endpoint.
        start = lower.entryId if lower.ledgerId == upper.ledgerId else -1
        acks.add_range(upper.ledgerId, start, upper.entryId)


def _add_properties(field: Any, properties: Mapping[str, int]) -> None:
    for name, value in properties.items():
        field.add(name=name, value=value)
