"""The state of managed ledgers and cursors as the records that Pulsar keeps (see records.py).

A cursor's single acknowledged entries are written as a list of ranges while there are few, else as
one bit per entry and ledger (PositionInfo.individualDeletedMessageRanges), so that a million holes
cost some hundred kilobytes and none is ever left out. Ranges and batches are encoded by the ack set
itself, since there can be many: their bytes are put behind those of the message, which is what
protobuf makes of a repeated field.

What is restored is bounded by what the ledgers really hold: an entry that does not exist cannot be
acknowledged, whatever the bytes say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pyxbroker.ackset import AckSet
from pyxbroker.entry import Position
from pyxbroker.mledger import records
from pyxbroker.proto import MLDataFormats

Ends = Mapping[int, int]
"""Last entry id of each ledger of a managed ledger; -1: it has none yet."""


def _number(message: Any, field: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].number)


_POSITION_RANGES = _number(MLDataFormats.PositionInfo, "individualDeletedMessages")
_POSITION_BATCHES = _number(MLDataFormats.PositionInfo, "batchedEntryDeletionIndexInfo")
_CURSOR_RANGES = _number(MLDataFormats.ManagedCursorInfo, "individualDeletedMessages")
_CURSOR_BATCHES = _number(MLDataFormats.ManagedCursorInfo, "batchedEntryDeletionIndexInfo")


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


def is_short(acks: AckSet, limit: int) -> bool:
    """Whether what is acknowledged after the mark is at most limit ranges and limit batches."""
    return acks.partial <= limit and (acks.holes <= limit or acks.count_ranges() <= limit)


def encode_position(acks: AckSet, properties: Mapping[str, int], ranges_max: int) -> bytes:
    """The entry of a cursor ledger that has a whole state, as Pulsar writes it."""
    info = _position_info(acks, properties)
    if acks.holes > ranges_max and acks.count_ranges() > ranges_max:
        for ledger_id in acks.ledger_ids():
            info.individualDeletedMessageRanges.add(key=ledger_id, values=acks.to_longs(ledger_id))
        ranges = b""
    else:
        ranges = acks.encode_ranges(_POSITION_RANGES)
    return records.encode_position_info(info) + ranges + _all_batches(acks, _POSITION_BATCHES)


def _position_info(acks: AckSet, properties: Mapping[str, int]) -> Any:
    mark = acks.mark_delete
    info = MLDataFormats.PositionInfo(ledgerId=mark.ledger_id, entryId=mark.entry_id)
    _add_properties(info.properties, properties)
    return info


def restore_position(entry: bytes, ends: Ends) -> tuple[AckSet, dict[str, int]]:
    """The acknowledgements and properties in an entry of a cursor ledger."""
    info = records.decode_position_info(entry)
    acks = AckSet(info.ledgerId, info.entryId, tracked=True)
    _restore_ranges(acks, info.individualDeletedMessages, ends)
    for longs in info.individualDeletedMessageRanges:
        acks.add_longs(longs.key, longs.values, ends.get(longs.key, -1))
    _restore_batches(acks, info.batchedEntryDeletionIndexInfo, ends)
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
    _add_properties(info.properties, properties)
    for name, value in cursor_properties.items():
        info.cursorProperties.add(name=name, value=value)
    encoded = records.encode_managed_cursor_info(info)
    if cursors_ledger_id == records.NO_LEDGER:
        encoded += acks.encode_ranges(_CURSOR_RANGES) + _all_batches(acks, _CURSOR_BATCHES)
    return encoded


def decode_cursor(value: bytes, ends: Ends) -> CursorRecord:
    """What a cursor's node says."""
    info = records.decode_managed_cursor_info(value)
    acks = AckSet(info.markDeleteLedgerId, info.markDeleteEntryId, tracked=True)
    _restore_ranges(acks, info.individualDeletedMessages, ends)
    _restore_batches(acks, info.batchedEntryDeletionIndexInfo, ends)
    return CursorRecord(
        info.cursorsLedgerId,
        acks,
        {each.name: each.value for each in info.properties},
        {each.name: each.value for each in info.cursorProperties},
    )


def _all_batches(acks: AckSet, number: int) -> bytes:
    """Every batch with messages left, as the repeated field `number`."""
    encoded = b""
    for ledger_id in acks.batch_ledger_ids():
        entry_id = 0
        while entry_id != -1:
            some, entry_id = acks.encode_batches(ledger_id, entry_id, number, 1 << 20, False)
            encoded += some
    return encoded


def _restore_ranges(acks: AckSet, field: Any, ends: Ends) -> None:
    for each in field:
        lower, upper = each.lowerEndpoint, each.upperEndpoint
        start = lower.entryId
        if lower.ledgerId != upper.ledgerId:
            # The range goes on over ends of ledgers: all between is acknowledged, too.
            for ledger_id in ends:
                if lower.ledgerId <= ledger_id < upper.ledgerId:
                    after = lower.entryId if ledger_id == lower.ledgerId else -1
                    acks.add_range(ledger_id, after, ends[ledger_id], ends[ledger_id])
            start = -1
        acks.add_range(upper.ledgerId, start, upper.entryId, ends.get(upper.ledgerId, -1))


def _restore_batches(acks: AckSet, field: Any, ends: Ends) -> None:
    for each in field:
        ledger_id, entry_id = each.position.ledgerId, each.position.entryId
        if 0 <= entry_id <= ends.get(ledger_id, -1):
            acks.keep(ledger_id, entry_id, each.deleteSet)


def _add_properties(field: Any, properties: Mapping[str, int]) -> None:
    for name, value in properties.items():
        field.add(name=name, value=value)
