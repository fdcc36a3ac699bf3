"""How the embedded metadata store tells damaged files from those that a power cut left.

SQLite has checksums in its write-ahead log and none in its pages. What it does by itself with a
flipped bit is to drop all that comes after it in the log, or to return wrong rows or too few. The
checks here turn that into an error with the file's name. The log is checked whenever the store is
opened; every row when it is read; and the whole content when the store is opened and small enough
for that to take no time.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import zlib
from pathlib import Path

from pyxbroker.metadata.store import CorruptStore

CONTENT_CHECK_PAGES_MAX = 256
"""A check of 256 pages of 4 KiB takes about 10 ms; beyond that only rows that are read are."""

_LOG_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, 2 salts, 2 checksums
_FRAME_HEADER = struct.Struct(">6I")  # page, pages after commit or 0, 2 salts, 2 checksums


def row_checksum(parent: str, name: str, version: int, value: bytes) -> int:
    """CRC-32 (zlib) of the row's key, its version and its value."""
    return zlib.crc32(value, zlib.crc32(f"{parent}\0{name}\0{version}\0".encode()))


def check_content(path: Path, database: sqlite3.Connection) -> None:
    """Raises CorruptStore when the database is damaged anywhere, if it is small enough to look."""
    if database.execute("PRAGMA page_count").fetchone()[0] > CONTENT_CHECK_PAGES_MAX:
        return
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise CorruptStore(f"the metadata file {path} is damaged ({verdict}); restore a backup")
    database.create_function("row_checksum", 4, row_checksum, deterministic=True)
    damaged = database.execute(
        "SELECT parent || '/' || name FROM node"
        " WHERE checksum != row_checksum(parent, name, version, value)"
        " UNION ALL SELECT parent FROM sequence"
        " WHERE checksum != row_checksum(parent, '', next, x'') LIMIT 1"
    ).fetchone()
    if damaged is not None:
        raise CorruptStore(
            f"the node {damaged[0]} in the metadata file {path} is damaged; restore a backup"
        )


def check_log_header(log: Path) -> None:
    """Raises CorruptStore when the log's header is damaged: SQLite would drop the whole log.

    A power cut cannot do it: the header lies within one sector and is synced before any frame.
    This has to come before SQLite opens the log.
    """
    aside = _aside(log)
    if aside.exists():
        aside.replace(log)
    try:
        with log.open("rb") as file:
            header = file.read(_LOG_HEADER.size + 1)
    except FileNotFoundError:
        return
    if len(header) <= _LOG_HEADER.size:
        return
    fields = _LOG_HEADER.unpack_from(header)
    if _log_header_checksum(header[:24], fields[0]) != fields[6:]:
        raise _damaged(log)


def check_log_frames(log: Path, database: sqlite3.Connection) -> None:
    """Raises CorruptStore when frames are damaged, rather than the log only cut short.

    SQLite takes the log up to the first frame whose checksum fails. A power cut can only have hit
    the last transaction, because each is synced before the next is written: so at most one frame
    behind that point can be the end of a transaction of this log's life (which its salts tell).
    """
    try:
        data = log.read_bytes()
    except FileNotFoundError:
        return
    if len(data) <= _LOG_HEADER.size:
        return
    _, _, page_size, _, *salts, _, _ = _LOG_HEADER.unpack_from(data)
    # A passive checkpoint tells how many frames SQLite accepted.
    _, accepted, _ = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    frame_size = _FRAME_HEADER.size + page_size
    commits = 0
    for offset in range(_LOG_HEADER.size + accepted * frame_size, len(data) - 23, frame_size):
        _, pages_after_commit, *frame_salts, _, _ = _FRAME_HEADER.unpack_from(data, offset)
        commits += bool(pages_after_commit) and frame_salts == salts
    if commits > 1:
        # SQLite deletes the log when the database is closed, and the next open would find nothing
        # wrong. A second name keeps it; `check_log_header` gives it its first name back.
        os.link(log, _aside(log))
        raise _damaged(log)


def _damaged(log: Path) -> CorruptStore:
    return CorruptStore(
        f"the metadata log {log} is damaged before its end; restore {log.parent} from a backup"
    )


def _aside(log: Path) -> Path:
    return log.with_name(log.name + ".damaged")


def _log_header_checksum(header: bytes, magic: int) -> tuple[int, int]:
    """SQLite's checksum of the log's first 24 bytes; the magic's last bit tells the byte order."""
    words = struct.unpack(">6I" if magic & 1 else "<6I", header)
    sum_1 = sum_2 = 0
    for first, second in zip(words[::2], words[1::2], strict=True):
        sum_1 = (sum_1 + first + sum_2) & 0xFFFFFFFF
        sum_2 = (sum_2 + second + sum_1) & 0xFFFFFFFF
    return sum_1, sum_2
