"""The SQLite database of the embedded store: its schema, and how it is opened and created."""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

from pyxbroker.base.directories import (
    NO_SPACE,
    finish_file,
    open_file,
    sync_directory,
    write_fully,
    write_whole_file,
)
from pyxbroker.base.log import get_logger
from pyxbroker.metadata.change_log import (
    ABSENT,
    COUNTER,
    DAMAGED,
    DELETED,
    NODE,
    Change,
    allocate,
)
from pyxbroker.metadata.damage import (
    KNOWN_DAMAGE,
    counter_checksum,
    deletion_checksum,
    error_name,
    is_damage,
    row_checksum,
)
from pyxbroker.metadata.store import CorruptStore, MetadataError, NoSpace, Unavailable

FORMAT_VERSION = 2
SET_ASIDE_MAX = 3
LOG_BYTES = 4 << 20  # about four times what the log holds when it is checkpointed
LOG_HEADER_BYTES = 32
WITH_LOG_AT = 18  # in the database header: the formats for writing and reading
WITH_LOG = b"\x02\x02"

log = get_logger(__name__)

# The texts are compared with those that SQLite stores, so that damage of the schema is detected.
SCHEMA = {
    "node": (
        "CREATE TABLE node (parent TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,"
        " created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, checksum INTEGER NOT NULL,"
        " change INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (parent, name)) WITHOUT ROWID"
    ),
    "sequence": (
        "CREATE TABLE sequence (parent TEXT PRIMARY KEY, next INTEGER NOT NULL,"
        " checksum INTEGER NOT NULL, change INTEGER NOT NULL) WITHOUT ROWID"
    ),
    "deleted": (
        "CREATE TABLE deleted (path TEXT PRIMARY KEY, change INTEGER NOT NULL,"
        " checksum INTEGER NOT NULL) WITHOUT ROWID"
    ),
    "state": "CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "unknown": "CREATE TABLE unknown (path TEXT PRIMARY KEY) WITHOUT ROWID",
}

PUT_NODE = "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
PUT_COUNTER = "INSERT OR REPLACE INTO sequence VALUES (?, ?, ?, ?)"
PUT_DELETED = "INSERT OR REPLACE INTO deleted VALUES (?, ?, ?)"
# The names of a node's children, then None after the last one, where the caller must stop. Not
# "WHERE parent=?": to find the end SQLite would read all of the next row, including its value.
CHILDREN = (
    "SELECT CASE WHEN parent=?1 THEN name END FROM node WHERE parent>=?1 ORDER BY parent, name"
)
PUT_STATE = "INSERT OR REPLACE INTO state VALUES (?, ?)"


def connect(path: Path) -> sqlite3.Connection:
    """Open or create the database, and lock it. Raises sqlite3.Error."""
    _make_file(path)
    database = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("PRAGMA wal_autocheckpoint=0")
    except BaseException:
        database.close()
        raise
    return database


def _make_file(path: Path) -> None:
    """Create an empty database with private permissions, which SQLite's log inherits."""
    if not path.exists():
        os.close(open_file(path))


def make_schema(database: sqlite3.Connection, changes: Iterable[Change], store_id: bytes) -> None:
    """Create the tables with their first rows, in one transaction."""
    statements = "; ".join(SCHEMA.values())
    database.executescript(f"BEGIN; {statements}; PRAGMA user_version={FORMAT_VERSION};")
    database.execute(PUT_STATE, store_row(store_id))
    for change in changes:
        put_change(database, change)
    database.execute("COMMIT")


def put_change(database: sqlite3.Connection, change: Change) -> None:
    """Write the row that a change describes."""
    kind, path, number, version, created_ms, modified_ms, value = change
    if kind == COUNTER:
        checksum = counter_checksum(path, version, number)
        database.execute(PUT_COUNTER, (path, version, checksum, number))
    elif kind in (DELETED, ABSENT):
        database.execute("DELETE FROM node WHERE parent=? AND name=?", split(path))
        database.execute("DELETE FROM sequence WHERE parent=?", (path,))
        if kind == DELETED:
            database.execute(PUT_DELETED, (path, number, deletion_checksum(path, number)))
    else:
        parent, name = split(path)
        times = (created_ms, modified_ms)
        checksum = row_checksum(f"{parent}\0{name}", version, times, number, value)
        checksum = KNOWN_DAMAGE if kind == DAMAGED else checksum
        row = (parent, name, version, created_ms, modified_ms, checksum, number, value)
        database.execute(PUT_NODE, row)


def root(transaction: int) -> Change:
    now_ms = time.time_ns() // 1_000_000
    return Change(NODE, "/", transaction, 0, now_ms, now_ms)


def state_of(database: sqlite3.Connection) -> dict[str, str]:
    """Return the key-value pairs that the store records about itself."""
    return {str(name): str(value) for name, value in database.execute("SELECT * FROM state")}


def store_row(store_id: bytes) -> tuple[str, str]:
    """Return the row that identifies this store, with a checksum of its own."""
    return "store", f"{store_id.hex()} {zlib.crc32(store_id):08x}"


def decode_store_id(text: str) -> bytes:
    """Return the id in a `store_row`, or empty bytes if it is damaged."""
    digits, _, checksum = text.partition(" ")
    try:
        store_id = bytes.fromhex(digits)
    except ValueError:
        return b""
    return store_id if checksum == f"{zlib.crc32(store_id):08x}" else b""


def schema_of(database: sqlite3.Connection) -> dict[str, str]:
    """Return the tables of a database with their SQL texts."""
    rows = database.execute("SELECT name, sql FROM sqlite_master WHERE type='table'")
    return {str(name): str(sql) for name, sql in rows}


def split(path: str) -> tuple[str, str]:
    """Return parent and name, the key of a row; the root is the row of two empty strings."""
    if path == "/":
        return "", ""
    cut = path.rfind("/")
    return path[:cut] or "/", path[cut + 1 :]


def log_of(path: Path) -> Path:
    """Return the path of a database's write-ahead log."""
    return path.with_name(path.name + "-wal")


def reserve_of(path: Path) -> Path:
    """Return the path of the reserve: the log of the previous session, whose blocks are reused."""
    return path.with_name("metadata.reserve")


def use_reserve(path: Path) -> None:
    """Turn the reserve into the log of the next session. Raises OSError."""
    reserve, wal = reserve_of(path), log_of(path)
    if not reserve.exists():
        return
    if wal.exists() and wal.stat().st_size:
        reserve.unlink()
        return
    descriptor = os.open(reserve, os.O_RDWR | os.O_CLOEXEC)
    try:
        # A log with a header of zeros is empty. If a power cut brings the old header back, the
        # database already contains its frames.
        os.pwrite(descriptor, bytes(LOG_HEADER_BYTES), 0)
    finally:
        os.close(descriptor)
    reserve.rename(wal)


def allocate_log(path: Path) -> None:
    """Preallocate the log, so that commits succeed when the disk is full. Raises OSError."""
    descriptor = os.open(log_of(path), os.O_RDWR | os.O_CLOEXEC)
    try:
        allocate(descriptor, LOG_BYTES)
    finally:
        os.close(descriptor)


def read_everything(path: Path) -> None:
    """Read the database and its log completely. Raises OSError if the disk fails.

    SQLite reports a read that failed with EIO as a malformed database.
    """
    for file in (path, log_of(path)):
        if file.exists():
            with file.open("rb") as opened:
                while opened.read(1 << 20):
                    continue


def explain(path: Path, error: Exception) -> MetadataError:
    """Return the error for callers, with a message that names the file.

    An error of neither the disk nor the database is an internal one, and is logged.
    """
    if isinstance(error, MetadataError):
        return error
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return NoSpace(f"the disk of the metadata in {path.parent} is full: {error}")
    if isinstance(error, OSError):
        return Unavailable(f"the metadata in {path.parent} cannot be read or written: {error}")
    is_misuse = isinstance(error, (sqlite3.ProgrammingError, sqlite3.InterfaceError))
    if is_misuse or not isinstance(error, sqlite3.Error):
        log.failure("an operation on the metadata failed", error, path=path)
        return MetadataError(
            f"an operation on the metadata in {path} failed: {error!r}; see the log for details"
        )
    if is_damage(error):
        return CorruptStore(f"the metadata file {path} is damaged ({error})")
    name = error_name(error)
    if name.startswith("SQLITE_BUSY") or "locked" in name:
        return InUse(f"the metadata file {path} is in use by another process")
    if name.startswith("SQLITE_FULL") or "disk is full" in name:
        return NoSpace(f"the disk of the metadata file {path} is full")
    return Unavailable(f"the metadata file {path} cannot be read or written: {error}")


class InUse(Unavailable):
    """Another process has the store open; a retry does not help."""


def build(path: Path, changes: Iterable[Change], store_id: bytes) -> None:
    """Build a new database next to that of `path`, for `finish_swap` to put into its place.

    Raises sqlite3.Error and OSError, and leaves no file then.
    """
    make(path, path.with_name(path.name + ".new"), changes, store_id)


def make(path: Path, to: Path, changes: Iterable[Change], store_id: bytes) -> None:
    """Build a database for `path` under the name `to`, durably and atomically.

    Raises sqlite3.Error and OSError, and leaves no file then.
    """
    building = path.with_name(path.name + ".building")
    building.unlink(missing_ok=True)
    try:
        _make_file(building)
        database = sqlite3.connect(building, isolation_level=None, timeout=0)
        try:
            # An incomplete file is discarded, and a complete one is synced at the end.
            database.execute("PRAGMA journal_mode=OFF")
            database.execute("PRAGMA synchronous=OFF")
            make_schema(database, changes, store_id)
        finally:
            database.close()
        descriptor = open_file(building)
        try:
            # Mark the database as one with a write-ahead log: SQLite needs four syncs for it.
            write_fully(descriptor, WITH_LOG, WITH_LOG_AT)
            finish_file(descriptor, building, to)
        finally:
            os.close(descriptor)
    except BaseException:
        building.unlink(missing_ok=True)
        raise


def finish_swap(path: Path, label: str = "damaged") -> Path | None:
    """Move a database that `build` made into place. Return the new name of the previous one.

    Once `build` has succeeded, this is completed here or by the next start. A log must never lie
    next to a database that it does not belong to, so the old log is moved first and the new
    database last.
    """
    new = path.with_name(path.name + ".new")
    if not new.exists():
        return None
    aside = _free_name(path, label)
    wal = log_of(path)
    if wal.exists():
        wal.rename(log_of(aside))
    is_replaced = path.exists()
    if is_replaced:
        path.rename(aside)
    sync_directory(path.parent)
    new.rename(path)
    sync_directory(path.parent)
    _remove_old(path)
    return aside if is_replaced else None


def copy_aside(file: Path) -> Path:
    """Copy a damaged file before anything is done about it, and return the copy's path."""
    copy = _free_name(file, "damaged")
    write_whole_file(copy, file.read_bytes())
    return copy


def _free_name(path: Path, label: str) -> Path:
    stamp = _stamp()
    name = f"{path.name}.{label}-{stamp}"
    tries = 1
    while path.with_name(name).exists():
        tries += 1
        name = f"{path.name}.{label}-{stamp}.{tries}"
    return path.with_name(name)


def _stamp() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def _remove_old(path: Path) -> None:
    """Remove all but the last few files that were set aside."""
    aside = [
        *path.parent.glob(f"{path.name}*.damaged-*"),
        *path.parent.glob(f"{path.name}.before-*"),
    ]
    aside.sort(key=lambda each: each.stat().st_mtime_ns)
    for each in aside[: -2 * SET_ASIDE_MAX]:
        each.unlink()
