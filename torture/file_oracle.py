"""Which entry a byte of an undamaged storage file belongs to, by docs/formats.md alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from harness.client import Position

BLOCK = 4096
_RECORD = struct.Struct("<IIIB3xqq")
_GROUP_LENGTH_AT, _GROUP_HEADER_BYTES = 40, 64
_ENTRY = 1
_FOOTER_BYTES, _TABLE_AT, _LEDGERS_AT = 128, 40, 48
_ROW_BYTES, _ROW_RECORDS_AT = 80, 24


def entries_at(path: Path, offset: int) -> set[Position]:
    """The entries whose record has the byte; of a journal group's header, all in that group."""
    data = path.read_bytes()
    if path.suffix == ".journal":
        return _in_journal(data, offset)
    if path.suffix == ".log":
        return _in_entry_log(data, offset)
    return set()


def _in_journal(data: bytes, offset: int) -> set[Position]:
    for block in range(offset // BLOCK * BLOCK, 0, -BLOCK):
        if data[block : block + 4] == b"PBJG":
            [length] = struct.unpack_from("<I", data, block + _GROUP_LENGTH_AT)
            records = list(_records(data, block + _GROUP_HEADER_BYTES, block + length))
            if offset < block + _GROUP_HEADER_BYTES:
                return {position for _, _, position in records if position}
            return _of_records(iter(records), offset)
    return set()


def _in_entry_log(data: bytes, offset: int) -> set[Position]:
    [table] = struct.unpack_from("<Q", data, len(data) - _FOOTER_BYTES + _TABLE_AT)
    [ledgers] = struct.unpack_from("<I", data, len(data) - _FOOTER_BYTES + _LEDGERS_AT)
    for number in range(ledgers):
        at = table + number * _ROW_BYTES + _ROW_RECORDS_AT
        begin, size = struct.unpack_from("<QQ", data, at)
        if begin <= offset < begin + size:
            return _of_records(_records(data, begin, begin + size), offset)
    return set()


def _of_records(records: Iterator[tuple[int, int, Position | None]], offset: int) -> set[Position]:
    return {p for begin, end, p in records if p is not None and begin <= offset < end}


def _records(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, Position | None]]:
    """Begin, end and entry (None: a fence or a key) of the records from ``at`` on."""
    while at + _RECORD.size <= end:
        _, _, length, kind, ledger, entry = _RECORD.unpack_from(data, at)
        if kind not in (1, 2, 3):
            return
        after = at + (_RECORD.size + length + 7) // 8 * 8
        yield at, after, (ledger, entry) if kind == _ENTRY else None
        at = after
