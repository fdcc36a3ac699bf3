"""Damage detection of the embedded metadata store, which distinguishes it from a power cut.

SQLite has checksums in its write-ahead log, but none in its pages. After a bit flip, SQLite itself
drops all later parts of the log, or returns wrong rows or too few. The checks here detect that. The
log is checked whenever the store is opened, and every row when it is read. The whole content is
checked when the store is opened, if it is small enough for that to take no noticeable time, or if
anything else is suspicious.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.metadata.change_log import COUNTER, DELETED, NODE, Change

CONTENT_CHECK_PAGES_MAX = 256
"""A check of 256 pages of 4 KiB takes about 10 ms; larger databases are checked after the start."""

KNOWN_DAMAGE = -1
"""The checksum of a row that could not be repaired, which no CRC-32 equals. The row's value is the
error message for its readers."""

_LOG_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, 2 salts, 2 checksums
_FRAME_HEADER = struct.Struct(">6I")  # page, pages after commit or 0, 2 salts, 2 checksums


def row_checksum(key: str, version: int, times: tuple[int, int], change: int, value: bytes) -> int:
    """CRC-32 (zlib) of all fields of a row. `key` is the parent, NUL and the name."""
    prefix = f"{key}\0{version}\0{times[0]}\0{times[1]}\0{change}\0"
    return zlib.crc32(value, zlib.crc32(prefix.encode()))


def counter_checksum(parent: str, following: int, change: int) -> int:
    return zlib.crc32(f"{parent}\0{following}\0{change}".encode())


def deletion_checksum(path: str, change: int) -> int:
    return zlib.crc32(f"{path}\0{change}".encode())


def row_checksum_1(key: bytes, version: int, value: bytes) -> int:
    """The row checksum of format 1, which has neither times nor transactions."""
    return zlib.crc32(value, zlib.crc32(b"%b\0%d\0" % (key, version)))


class BadRow(NamedTuple):
    """A row with a wrong checksum, as far as it is readable."""

    path: str
    version: object
    transaction: object
    sentence: str = ""


# Texts are read as bytes, because damaged ones may be invalid UTF-8.
_NODES = (
    "SELECT CAST(parent AS BLOB), CAST(name AS BLOB), version, created_ms, modified_ms, checksum,"
    " value, {change} FROM node"
)
_COUNTERS = "SELECT CAST(parent AS BLOB), next, checksum, {change} FROM sequence"
_DELETED = "SELECT CAST(path AS BLOB), change, checksum FROM deleted"


class Rows:
    """Reads a database row by row and separates intact rows from damaged ones.

    `bad` grows while the rows are read. `errors` lists SQLite's errors, after which rows may have
    been missed.
    """

    def __init__(self, database: sqlite3.Connection, database_format: int) -> None:
        self._database = database
        self._format = database_format
        self.bad: list[BadRow] = []
        self.errors: list[str] = []

    def good(self) -> Iterator[Change]:
        """Yield every intact row. Deletions come first, so that a recreated node counts."""
        change = "change" if self._format > 1 else "0"
        if self._format > 1:
            yield from self._rows_of(_DELETED, "path DESC", self._deletion)
        yield from self._rows_of(_NODES.format(change=change), "parent DESC, name DESC", self._node)
        yield from self._rows_of(_COUNTERS.format(change=change), "parent DESC", self._counter)

    def _rows_of(
        self, sql: str, backwards: str, decode: Callable[[Any], Change | None]
    ) -> Iterator[Change]:
        """Read the rows of a table; also in reverse order if a page cannot be read."""
        for order in ("", f" ORDER BY {backwards}"):
            try:
                for row in self._database.execute(sql + order):
                    change = decode(row)
                    if change is not None:
                        yield change
            except sqlite3.DatabaseError as error:
                if is_io_error(error):
                    raise
                self.errors.append(str(error))
                continue
            return

    def _node(self, row: tuple) -> Change | None:
        parent, name, version, created_ms, modified_ms, checksum, value, number = row
        key = parent + b"\0" + name
        path = path_of(parent.decode(errors="replace"), name.decode(errors="replace"))
        try:
            if self._format == 1:
                expected = row_checksum_1(key, version, value)
            else:
                times = (created_ms, modified_ms)
                expected = row_checksum(key.decode(), version, times, number, value)
        except (TypeError, ValueError):
            expected = None
        if checksum == expected and isinstance(value, bytes):
            return Change(NODE, path, number, version, created_ms, modified_ms, value)
        known = checksum == KNOWN_DAMAGE and isinstance(value, bytes)
        sentence = value.decode(errors="replace") if known else ""
        self.bad.append(BadRow(path, version, number, sentence))
        return None

    def _counter(self, row: tuple) -> Change | None:
        parent, following, checksum, number = row
        try:
            if self._format == 1:
                expected = row_checksum_1(parent + b"\0", following, b"")
            else:
                expected = counter_checksum(parent.decode(), following, number)
        except (TypeError, ValueError):
            expected = None
        if checksum == expected:
            return Change(COUNTER, parent.decode(), number, following)
        path = parent.decode(errors="replace")
        self.bad.append(BadRow(f"{path} (its counter)", following, number))
        return None

    def _deletion(self, row: tuple) -> Change | None:
        path, number, checksum = row
        try:
            expected = deletion_checksum(path.decode(), number)
        except ValueError:
            expected = None
        if checksum == expected:
            return Change(DELETED, path.decode(), number)
        self.bad.append(BadRow(f"{path.decode(errors='replace')} (its deletion)", 0, number))
        return None


def path_of(parent: str, name: str) -> str:
    """Return the path of a row; the root is the row of two empty strings."""
    if parent == "/" or not parent:
        return f"/{name}"
    return f"{parent}/{name}"


def is_small(database: sqlite3.Connection) -> bool:
    """Return True if the content is small enough to be checked when the store is opened."""
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    return pages <= CONTENT_CHECK_PAGES_MAX


def structure_error(database: sqlite3.Connection) -> str | None:
    """Return a description of damaged pages, or None if all are intact."""
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    return None if verdict == "ok" else str(verdict).replace("\n", " ")


def is_io_error(error: sqlite3.Error) -> bool:
    """Return True if the disk or the system refused, rather than the data being damaged."""
    return error_name(error).startswith(_REFUSALS)


_REFUSALS = (
    *("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_NOMEM", "SQLITE_PERM"),
    *("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_READONLY", "SQLITE_PROTOCOL", "SQLITE_INTERRUPT"),
    *("disk I/O error", "database or disk is full", "unable to open", "out of memory"),
    *("database is locked", "attempt to write a readonly"),
)


def is_damage(error: Exception) -> bool:
    """Return True if SQLite reports that the data is damaged."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    name = error_name(error)
    return (
        name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
        or "malformed" in name
        or "not a database" in name
    )


def error_name(error: Exception) -> str:
    """Return SQLite's name of an error; before Python 3.11 only the text identifies it."""
    return getattr(error, "sqlite_errorname", "") or str(error)


def header_error(path: Path) -> str | None:
    """Return a description of a damaged database header, or None if it is intact. Raises OSError.

    SQLite mistakes some bit flips in it for a read-only file or a future format.
    """
    with path.open("rb") as file:
        header = file.read(100)
    if not header:
        return None  # The file was created, and nothing has been written yet.
    wrong = [
        name
        for name, start, end, allowed in _HEADER
        if header[start:end] not in allowed or len(header) < 100
    ]
    return f"its header is damaged: {', '.join(wrong)}" if wrong else None


_HEADER = (
    ("name", 0, 16, (b"SQLite format 3\0",)),
    ("page size", 16, 18, (b"\x10\0",)),
    ("versions", 18, 20, (b"\1\1", b"\2\2")),
    ("fixed values", 20, 24, (bytes([0, 64, 32, 32]),)),
    ("schema format", 44, 48, (b"\0\0\0\4", bytes(4))),  # 0: no table exists yet
    ("text encoding", 56, 60, (b"\0\0\0\1", bytes(4))),
    ("reserved bytes", 72, 92, (bytes(20),)),
)


def log_header_is_damaged(log: Path) -> bool:
    """Return True if the header of SQLite's log is damaged, so that SQLite would drop the log.

    A power cut cannot cause that: the header lies within one sector and is synced before any frame.
    A log of zeros is an empty one. Check this before SQLite opens the log. Raises OSError.
    """
    header = _read_log_header(log)
    if len(header) <= _LOG_HEADER.size or not header.strip(b"\0"):
        return False
    fields = _LOG_HEADER.unpack_from(header)
    return _log_header_checksum(header[:24], fields[0]) != fields[6:]


def log_has_content(log: Path) -> bool:
    """Return True if SQLite's log exists and was written to. Raises OSError."""
    header = _read_log_header(log)
    return len(header) > _LOG_HEADER.size and bool(header.strip(b"\0"))


def _read_log_header(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            return file.read(_LOG_HEADER.size + 1)
    except FileNotFoundError:
        return b""


def rejected_commits(log: Path, accepted: int) -> tuple[int, int]:
    """Return (ends of transactions, frames) of this log's life that SQLite did not accept.

    SQLite accepts the log up to the first frame with a wrong checksum. A power cut can only affect
    the last transaction: each is synced before the next is written, and the remains of refused
    transactions were removed (`clear_rejected`). So at most one end of a transaction can follow
    that frame. More is damage. Raises OSError.
    """
    try:
        file = log.open("rb", buffering=0)
    except FileNotFoundError:
        return 0, 0
    with file:
        rejected = list(_rejected(file.fileno(), accepted))
    return sum(ends for _, ends in rejected), len(rejected)


def clear_rejected(log: Path, accepted: int) -> None:
    """Invalidate the frames of this log's life that SQLite did not accept. Blocks stay allocated.

    A commit that the disk refused leaves its end there if the next commit is shorter. Only the
    owner of the open database may call this. Raises OSError.
    """
    with suppress(FileNotFoundError), log.open("r+b", buffering=0) as file:
        for offset, _ in _rejected(file.fileno(), accepted):
            os.pwrite(file.fileno(), bytes(_FRAME_HEADER.size), offset)


def _rejected(file: int, accepted: int) -> Iterator[tuple[int, bool]]:
    """Yield the offset of each frame of this log's life after `accepted`, and whether it ends a
    transaction.

    Only the header in front of each page is read.
    """
    header = os.pread(file, _LOG_HEADER.size, 0)
    if len(header) < _LOG_HEADER.size:
        return
    _, _, page_size, _, *salts, _, _ = _LOG_HEADER.unpack(header)
    if not 512 <= page_size <= 65536 or not any(salts):
        return
    frame_size = _FRAME_HEADER.size + page_size
    first = _LOG_HEADER.size + accepted * frame_size
    end = os.fstat(file).st_size - _FRAME_HEADER.size + 1
    for offset in range(first, end, frame_size):
        frame = os.pread(file, _FRAME_HEADER.size, offset)
        _, pages_after_commit, *frame_salts, _, _ = _FRAME_HEADER.unpack(frame)
        if frame_salts == salts:
            yield offset, bool(pages_after_commit)


def _log_header_checksum(header: bytes, magic: int) -> tuple[int, int]:
    """Return SQLite's checksum of the log's first 24 bytes; the magic's last bit is byte order."""
    words = struct.unpack(">6I" if magic & 1 else "<6I", header)
    sum_1 = sum_2 = 0
    for first, second in zip(words[::2], words[1::2], strict=True):
        sum_1 = (sum_1 + first + sum_2) & 0xFFFFFFFF
        sum_2 = (sum_2 + second + sum_1) & 0xFFFFFFFF
    return sum_1, sum_2
