"""Conversion of managed ledgers and cursors to and from Pulsar's records (see records.py).

The acknowledgements after a cursor's mark are written like Pulsar does, as a list of ranges, or in
pieces with runs of words, of which a cursor ledger may have any number (cursor_ledger.py). The ack
set encodes ranges and batches itself, since there may be many. Their bytes are appended to those of
the message, which is how protobuf encodes a repeated field.

Restoring is limited by the ledgers' actual entries: an entry that does not exist cannot be
acknowledged, whatever a record contains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pyxbroker.ackset import AckSet
from pyxbroker.entry import Position
from pyxbroker.metadata.protobuf_records import MalformedRecord, text_of
from pyxbroker.mledger import records
from pyxbroker.proto import MLDataFormats

Ends = Mapping[int, int]
"""The last entry id of each ledger of a managed ledger; -1: it has none yet."""

ENTRY_ID_MAX = 2**63 - 1
_LONG_BYTES_MAX = 11  # of an encoded word
_LONGS_BYTES_MAX = 24  # of the encoded words of a ledger, without the words
_RANGE_BYTES_MAX = 50  # of an encoded range
_BATCH_BYTES_MAX = 40  # of an encoded batch, without its words
_RUNS_BYTES = 32  # overhead of the runs of a ledger
_RANGES_PER_STEP = 1000
_WORDS_PER_STEP = 16_384
_RUNS_BYTES_MIN = 128  # minimum room for beginning the runs of a ledger


def _number(message: Any, field: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].number)


_POSITION_RANGES = _number(MLDataFormats.PositionInfo, "individualDeletedMessages")
_POSITION_LONGS = _number(MLDataFormats.PositionInfo, "individualDeletedMessageRanges")
_POSITION_BATCHES = _number(MLDataFormats.PositionInfo, "batchedEntryDeletionIndexInfo")
_CURSOR_RANGES = _number(MLDataFormats.ManagedCursorInfo, "individualDeletedMessages")
_CURSOR_BATCHES = _number(MLDataFormats.ManagedCursorInfo, "batchedEntryDeletionIndexInfo")


class LedgerRecord(NamedTuple):
    """One ledger of a ManagedLedgerInfo; raw is the whole record, including unknown fields."""

    ledger_id: int
    entries: int
    size: int
    timestamp_ms: int
    raw: bytes


class LedgerInfo:
    """One ledger of the list. entries and size are valid only once the ledger is closed."""

    __slots__ = ("entries", "ledger_id", "raw", "size", "timestamp_ms")

    def __init__(
        self,
        ledger_id: int,
        entries: int = 0,
        size: int = 0,
        timestamp_ms: int = 0,
        raw: bytes = b"",
    ) -> None:
        self.ledger_id = ledger_id
        self.entries = entries
        self.size = size
        self.timestamp_ms = timestamp_ms  # when it was closed
        self.raw = raw  # the stored record, which may have unknown fields


def encode_ledger_list(
    ledgers: Iterable[LedgerRecord], properties: Mapping[str, str], terminated: Position | None
) -> bytes:
    """Encode a managed ledger's node. The ledger without a timestamp is the open one."""
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
    """Return (ledgers, properties, terminated position) of a managed ledger's node."""
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
    return ledgers, _texts((each.key, each.value) for each in info.properties), terminated


def _texts(pairs: Iterable[tuple[str | bytes, str | bytes]]) -> dict[str, str]:
    return {text_of(name): text_of(value) for name, value in pairs}


def whole_encoder(
    acks: AckSet, limit: int | None, bytes_max: int
) -> Callable[[AckSet, Mapping[str, int]], bytes] | None:
    """Return the function that encodes a whole state in Pulsar's format, as ranges or as bits,
    whichever is shorter. Return None if that may exceed bytes_max, or if the acknowledgements after
    the mark have more than `limit` ranges or batches.
    """
    ranges = acks.count_ranges()
    if limit is not None and max(ranges, acks.partial) > limit:
        return None
    as_ranges = ranges * _RANGE_BYTES_MAX
    as_longs = acks.longs_size() * _LONG_BYTES_MAX + len(acks.ledger_ids()) * _LONGS_BYTES_MAX
    if min(as_ranges, as_longs) + _batches_bytes_max(acks) > bytes_max:
        return None
    return encode_position if as_ranges <= as_longs else encode_position_as_longs


def is_short(acks: AckSet, limit: int, bytes_max: int) -> bool:
    """Return True if the acknowledgements after the mark fit into `limit` ranges and `limit`
    batches, each of at most bytes_max in total.
    """
    ranges_max = min(limit, bytes_max // _RANGE_BYTES_MAX)
    return (
        acks.partial <= limit
        and _batches_bytes_max(acks) <= bytes_max
        and (acks.holes <= ranges_max or acks.count_ranges() <= ranges_max)
    )


def _batches_bytes_max(acks: AckSet) -> int:
    return acks.partial * _BATCH_BYTES_MAX + acks.partial_words * _LONG_BYTES_MAX


def encode_position(acks: AckSet, properties: Mapping[str, int]) -> bytes:
    """Encode a whole state as an entry of a cursor ledger, in Pulsar's format with ranges."""
    return (
        records.encode_position_info(_position_info(acks, properties))
        + acks.encode_ranges(_POSITION_RANGES)
        + _all_batches(acks, _POSITION_BATCHES)
    )


def encode_position_as_longs(acks: AckSet, properties: Mapping[str, int]) -> bytes:
    """Encode a whole state as an entry of a cursor ledger, in Pulsar's format with bits
    (individualDeletedMessageRanges).
    """
    return (
        records.encode_position_info(_position_info(acks, properties))
        + acks.encode_longs(_POSITION_LONGS)
        + _all_batches(acks, _POSITION_BATCHES)
    )


def encode_changes(
    acks: AckSet, properties: Mapping[str, int], piece: Piece, **place: int
) -> bytes:
    """Encode a piece as an entry of a cursor ledger; `place` is its `since` or `before`."""
    info = _position_info(acks, properties)
    info.changes.SetInParent()
    for name, value in place.items():
        setattr(info.changes, name, value)
    for ledger_id, runs in piece.runs:
        info.changes.runs.add(ledgerId=ledger_id, runs=runs)
    return records.encode_position_info(info) + piece.batches


class Piece(NamedTuple):
    """A part of the acknowledgements after the mark, encoded."""

    runs: list[tuple[int, bytes]]  # ledger id, acknowledged entries
    batches: bytes


def pieces(acks: AckSet, bytes_max: int, only_changed: bool) -> Iterator[Piece]:
    """Yield the acknowledgements after the mark, or their changes, in pieces of about bytes_max.

    A piece clears the marks of changes in it. The set may change between pieces: each of them is
    consistent, and later changes are marked.
    """
    runs: list[tuple[int, bytes]] = []
    size = 0
    for ledger_id in acks.ledger_ids():
        word = 0
        while word != -1:
            some, word = acks.encode_runs(ledger_id, word, bytes_max - size, only_changed)
            if some:
                runs.append((ledger_id, some))
                size += len(some) + _RUNS_BYTES
            if word != -1 or bytes_max - size < _RUNS_BYTES_MIN:
                yield Piece(runs, b"")
                runs, size = [], 0
    batches = bytearray()
    for ledger_id in acks.batch_ledger_ids():
        entry_id = 0
        while entry_id != -1:
            room = max(bytes_max - size - len(batches), 1)
            some, entry_id = acks.encode_batches(
                ledger_id, entry_id, _POSITION_BATCHES, room, only_changed
            )
            batches += some
            if size + len(batches) >= bytes_max:
                yield Piece(runs, bytes(batches))
                runs, size, batches = [], 0, bytearray()
    if runs or batches:
        yield Piece(runs, bytes(batches))


def _position_info(acks: AckSet, properties: Mapping[str, int]) -> Any:
    mark = acks.mark_delete
    info = MLDataFormats.PositionInfo(ledgerId=mark.ledger_id, entryId=mark.entry_id)
    _add_properties(info.properties, properties)
    return info


def restore_position(info: Any) -> tuple[AckSet, dict[str, int]]:
    """Return the mark and the properties of a decoded entry of a cursor ledger."""
    acks = _mark(info.ledgerId, info.entryId)
    return acks, {text_of(each.name): each.value for each in info.properties}


def merge_position(acks: AckSet, info: Any, ends: Ends) -> Iterator[None]:
    """Add the acknowledgements of a decoded entry of a cursor ledger, in steps of a few ms.

    Raises MalformedRecord, also if they take more memory than a cursor may have.
    """
    try:
        for ranges in _slices(info.individualDeletedMessages, _RANGES_PER_STEP):
            _restore_ranges(acks, ranges, ends)
            yield
        for longs in info.individualDeletedMessageRanges:
            end = ends.get(longs.key, -1)
            for number, words in enumerate(_slices(longs.values, _WORDS_PER_STEP)):
                acks.add_longs(longs.key, words, end, number * _WORDS_PER_STEP)
                yield
        for batches in _slices(info.batchedEntryDeletionIndexInfo, _RANGES_PER_STEP):
            _restore_batches(acks, batches, ends)
            yield
        for each in info.changes.runs:
            acks.add_runs(each.ledgerId, each.runs, ends.get(each.ledgerId, -1))
    except (ValueError, MemoryError) as error:
        raise MalformedRecord(f"not an entry of a cursor ledger: {error}") from error


def _slices(field: Any, size: int) -> Iterator[Any]:
    return (field[at : at + size] for at in range(0, len(field), size))


def _mark(ledger_id: int, entry_id: int) -> AckSet:
    """Return an ack set with only a mark. Raises MalformedRecord for a mark at the highest id."""
    if entry_id == ENTRY_ID_MAX:
        raise MalformedRecord(f"no entry follows the mark {ledger_id}:{entry_id}")
    return AckSet(ledger_id, max(entry_id, -1), tracked=True)


class CursorRecord(NamedTuple):
    """The content of a cursor's node."""

    cursors_ledger_id: int
    acks: AckSet
    properties: dict[str, int]
    cursor_properties: dict[str, str]
    last_active_ms: int  # time of the last use; 0: unknown


def encode_cursor(
    acks: AckSet,
    cursors_ledger_id: int,
    properties: Mapping[str, int],
    cursor_properties: Mapping[str, str],
    last_active_ms: int = 0,
) -> bytes:
    """Encode a cursor's node; with a cursor ledger, its mark is only a fallback."""
    mark = acks.mark_delete
    info = MLDataFormats.ManagedCursorInfo(
        cursorsLedgerId=cursors_ledger_id,
        markDeleteLedgerId=mark.ledger_id,
        markDeleteEntryId=mark.entry_id,
    )
    if last_active_ms:
        info.lastActive = last_active_ms
    _add_properties(info.properties, properties)
    for name, value in cursor_properties.items():
        info.cursorProperties.add(name=name, value=value)
    encoded = records.encode_managed_cursor_info(info)
    if cursors_ledger_id == records.NO_LEDGER:
        encoded += acks.encode_ranges(_CURSOR_RANGES) + _all_batches(acks, _CURSOR_BATCHES)
    return encoded


def decode_cursor(value: bytes, ends: Ends) -> CursorRecord:
    """Decode a cursor's node. Raises MalformedRecord."""
    info = records.decode_managed_cursor_info(value)
    acks = _mark(info.markDeleteLedgerId, info.markDeleteEntryId)
    try:
        _restore_ranges(acks, info.individualDeletedMessages, ends)
        _restore_batches(acks, info.batchedEntryDeletionIndexInfo, ends)
    except MemoryError as error:
        raise MalformedRecord(f"not a ManagedCursorInfo: {error}") from error
    return CursorRecord(
        info.cursorsLedgerId,
        acks,
        {text_of(each.name): each.value for each in info.properties},
        _texts((each.name, each.value) for each in info.cursorProperties),
        info.lastActive,
    )


def _all_batches(acks: AckSet, number: int) -> bytes:
    """Encode every partially acknowledged batch, as the repeated field `number`."""
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
            # A range across ledgers acknowledges everything in between.
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
            acks.acknowledge_batch(ledger_id, entry_id, each.deleteSet)


def _add_properties(field: Any, properties: Mapping[str, int]) -> None:
    for name, value in properties.items():
        field.add(name=name, value=value)
