"""Entry logs as files (docs/formats.md): names, footers, manifest, and a check of all records.

The storage in C writes and reads them. This module is for backups, which copy, check and restore
whole files.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyxbroker import _native
from pyxbroker.base.named_tuple import NamedTuple

BLOCK_BYTES = 4096
MANIFEST = "manifest"

_NAME = re.compile(r"([0-9a-f]{16})\.log")
_FOOTER = struct.Struct("<8sIIQQQQIIQQ56x")
_FOOTER_MAGIC = b"PYXEFTR1"
_ROW = struct.Struct("<qqqQQQIII20x")
_INDEX_ENTRY = struct.Struct("<qII")
_MANIFEST_HEADER = struct.Struct("<8sIIQI4x")
_MANIFEST_MAGIC = b"PYXMNFS1"
_MANIFEST_ROW = struct.Struct("<QQQQ")
_CHECKED_FROM = 12  # in footers and in the manifest, whose checksum is at 8


class Footer(NamedTuple):
    """The fields of the last bytes of an entry log."""

    log_id: int
    checkpoint: int
    table_at: int
    ledgers: int
    table_checksum: int
    entries: int
    bytes: int


class Damage(NamedTuple):
    """Damaged bytes of an entry log. `ledger_id` and `entry_id` are -1 where they are unknown."""

    offset: int
    bytes: int
    ledger_id: int
    entry_id: int
    what: str


def entry_log_name(log_id: int) -> str:
    return f"{log_id:016x}.log"


def entry_log_ids(directory: Path) -> list[int]:
    """Return the ids of the entry logs of a directory, ascending. Raises OSError."""
    found = (_NAME.fullmatch(name) for name in os.listdir(directory))  # noqa: PTH208 - only names
    return sorted(int(each[1], 16) for each in found if each)


def decode_footer(data: bytes | bytearray) -> Footer | None:
    """Return the footer at the end of the bytes of an entry log, or None if it is damaged."""
    if len(data) < _FOOTER.size:
        return None
    footer = data[-_FOOTER.size :]
    magic, checksum, _, log_id, checkpoint, _, *rest = _FOOTER.unpack(footer)
    if magic != _FOOTER_MAGIC or checksum != _native.crc32c(footer[_CHECKED_FROM:]):
        return None
    return Footer(log_id, checkpoint, *rest)


def read_footer(path: Path) -> Footer | None:
    """Return the footer of an entry log, or None if it is damaged. Raises OSError."""
    with path.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _FOOTER.size, 0))
        return decode_footer(file.read())


def listed_logs(directory: Path) -> list[int]:
    """Return the ids of the logs that the manifest of a directory names; none if it is damaged.

    Raises OSError.
    """
    try:
        data = (directory / MANIFEST).read_bytes()
    except FileNotFoundError:
        return []
    if len(data) < _MANIFEST_HEADER.size:
        return []
    magic, _, _, count, checksum = _MANIFEST_HEADER.unpack_from(data)
    rows = data[_MANIFEST_HEADER.size : _MANIFEST_HEADER.size + count * _MANIFEST_ROW.size]
    if magic != _MANIFEST_MAGIC or checksum != _native.crc32c(rows):
        return []
    return [row[0] for row in _MANIFEST_ROW.iter_unpack(rows)]


def encode_manifest(footers: Iterable[Footer]) -> bytes:
    """Encode the manifest of a directory that has the logs of these footers, ascending."""
    rows = [_MANIFEST_ROW.pack(each.log_id, each.bytes, each.ledgers, each.entries)
            for each in footers]  # fmt: skip
    body = b"".join(rows)
    header = bytearray(
        _MANIFEST_HEADER.pack(_MANIFEST_MAGIC, 0, 1, len(rows), _native.crc32c(body))
    )
    header[8:12] = _native.crc32c(memoryview(header)[_CHECKED_FROM:]).to_bytes(4, "little")
    data = bytes(header) + body
    return data + bytes(-len(data) % BLOCK_BYTES)


def check_log(data: bytes | bytearray, log_id: int) -> Iterator[Damage]:
    """Check everything in an entry log that has a checksum; yield what is damaged.

    A record whose header is damaged is named by the index of its ledger. The blocks of deleted
    ledgers may be zeros; the records at their edges are yielded, too.
    """
    if not _header_is_intact(data, log_id):
        yield Damage(0, BLOCK_BYTES, -1, -1, "its header")
    footer = decode_footer(data)
    if footer is None or footer.log_id != log_id or footer.bytes != len(data):
        yield Damage(len(data) - _FOOTER.size, _FOOTER.size, -1, -1, "its footer")
        return
    table_end = footer.table_at + footer.ledgers * _ROW.size
    table = data[footer.table_at : table_end]
    if footer.table_checksum != _native.crc32c(table):
        yield Damage(footer.table_at, len(table), -1, -1, "its ledger table")
        return
    rows = list(_ROW.iter_unpack(table))
    entry_at: dict[int, tuple[int, int]] = {}
    for ledger_id, _, _, _, _, index_at, count, checksum, _ in rows:
        index = data[index_at : index_at + count * _INDEX_ENTRY.size]
        if checksum != _native.crc32c(index):
            yield Damage(index_at, len(index), ledger_id, -1, f"the index of ledger {ledger_id}")
            continue
        for entry_id, at, _ in _INDEX_ENTRY.iter_unpack(index):
            entry_at[at * 8] = (ledger_id, entry_id)
    end = min((row[5] for row in rows), default=footer.table_at)
    _, damaged = _native.check_records(memoryview(data)[BLOCK_BYTES:end], log_id)
    for offset, size, ledger_id, entry_id in damaged:
        start = BLOCK_BYTES + offset
        if ledger_id < 0:
            ledger_id, entry_id = entry_at.get(start, (-1, -1))
        yield Damage(start, size, ledger_id, entry_id, _named(ledger_id, entry_id))


def _named(ledger_id: int, entry_id: int) -> str:
    if ledger_id < 0:
        return "bytes that are not a record"
    return f"entry {entry_id} of ledger {ledger_id}"


def _header_is_intact(data: bytes | bytearray, log_id: int) -> bool:
    checksum = int.from_bytes(data[8:12], "little")
    own_id = int.from_bytes(data[16:24], "little")
    is_ours = data[:8] == b"PYXELOG1" and own_id == log_id
    return is_ours and checksum == _native.crc32c(data[12:40])
