"""The tree of the embedded metadata store: rows of a database, and ephemeral nodes in memory.

Everything here blocks, and belongs to the store's thread (metadata/embedded.py, which also says
what is in the files).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyxbroker.directories import make_directory, sync_directory
from pyxbroker.metadata.damage import (
    check_content,
    check_log_frames,
    check_log_header,
    row_checksum,
)
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    CorruptStore,
    GetResult,
    InvalidPath,
    MetadataError,
    NoChildrenForEphemerals,
    NoSpace,
    NotEmpty,
    NotFound,
    Notification,
    NotificationKind,
    Put,
    PutResult,
    Unavailable,
    check_expected,
    parent_of,
)

FORMAT_VERSION = 1
COMMITS_PER_CHECKPOINT_MAX = 256  # the log is folded in even if somebody waits
KNOWN_PARENTS_MAX = 10_000

_log = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS node (
    parent TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, checksum INTEGER NOT NULL,
    value BLOB NOT NULL, PRIMARY KEY (parent, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sequence (
    parent TEXT PRIMARY KEY, next INTEGER NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
"""


class Operation(NamedTuple):
    """What is to be done to the tree, and who waits for it."""

    apply: Callable[..., object]
    arguments: tuple[Any, ...]
    future: asyncio.Future[Any]


class Tree:
    """The database and the ephemeral nodes. One thread uses it, from open() to close()."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commits_in_log = 0
        self.failure: MetadataError | None = None  # what every operation fails with from now on
        self._database: sqlite3.Connection | None = None
        self._ephemerals: dict[str, GetResult] = {}
        self._known_parents: set[str] = set()  # persistent nodes that are there
        self._undo: list[tuple[str, GetResult | None]] = []
        self._notifications: list[Notification] = []

    def open(self) -> None:
        """Opens or makes the database. Raises a MetadataError that names the file."""
        self.failure = None
        try:
            make_directory(self.path.parent)
            self._database = self._connect()
        except OSError as error:
            raise Unavailable(f"cannot open the metadata in {self.path.parent}: {error}") from error
        except MetadataError:
            raise
        except Exception as error:
            raise self._explain(error) from error

    def _connect(self) -> sqlite3.Connection:
        log = self.path.with_name(self.path.name + "-wal")
        check_log_header(log)
        is_new = not self.path.exists()
        database = sqlite3.connect(self.path, isolation_level=None, timeout=0)
        try:
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.execute("PRAGMA wal_autocheckpoint=0")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            check_log_frames(log, database)
            if version > FORMAT_VERSION:
                raise MetadataError(
                    f"{self.path} was written by a newer version (format {version}, this program"
                    f" knows {FORMAT_VERSION}); use that version"
                )
            if version == 0:
                self._make_schema(database)
            else:
                check_content(self.path, database)
            if is_new:
                sync_directory(self.path.parent)
        except BaseException:
            database.close()
            raise
        return database

    def _make_schema(self, database: sqlite3.Connection) -> None:
        now_ms = _now_ms()
        database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={FORMAT_VERSION};")
        database.execute(
            "INSERT OR IGNORE INTO node VALUES ('', '', 0, ?, ?, ?, x'')",
            (now_ms, now_ms, row_checksum("", "", 0, b"")),
        )
        database.execute("COMMIT")

    def close(self) -> None:
        """Folds the log in; what cannot be folded stays in it and is found by the next open.

        Raises MetadataError; it is closed all the same.
        """
        database, self._database = self._database, None
        self._ephemerals.clear()
        self._known_parents.clear()
        try:
            if database is not None:
                database.close()
        except Exception as error:
            raise self._explain(error) from error

    def checkpoint(self) -> None:
        """Moves the log's pages into the database; when the disk refuses, the log just grows on."""
        self.commits_in_log = 0
        try:
            self._execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except Exception as error:
            # Every commit is safe in the log; the next checkpoint or open takes them all.
            self.commits_in_log = 1
            _log.warning("the log of the metadata could not be folded in: %s", self._explain(error))

    def transact(self, batch: list[Operation]) -> tuple[list[object], list[Notification]]:
        """Applies operations as one transaction, durable when this returns.

        Each result is a value or the MetadataError of that operation alone. When anything else
        goes wrong, every operation of the batch fails and nothing of it is seen by later ones; if
        even that cannot be had, all later ones fail as well (see `failure`). Raises nothing.
        """
        if self.failure is not None:
            return [_copy_of(self.failure) for _ in batch], []
        results: list[object] = []
        self._undo = []
        self._notifications = []
        try:
            self._execute("BEGIN")
            for operation in batch:
                results.append(_attempt(operation))
            changes = bool(self._notifications)
            self._execute("COMMIT")
            self.commits_in_log += changes
        except Exception as error:
            self.commits_in_log = COMMITS_PER_CHECKPOINT_MAX
            explained = self._explain(error)
            try:
                self._roll_back()
            except Exception as worse:
                self.failure = self._explain(worse)
            return [_copy_of(explained) for _ in batch], []
        return results, self._notifications

    def _roll_back(self) -> None:
        if self._database is not None and self._database.in_transaction:
            self._database.rollback()
        self._undo_since(0)

    def _undo_since(self, count: int) -> None:
        """Takes back all but the first `count` changes of ephemeral nodes."""
        self._known_parents.clear()
        while len(self._undo) > count:
            path, before = self._undo.pop()
            if before is None:
                self._ephemerals.pop(path, None)
            else:
                self._ephemerals[path] = before

    def _explain(self, error: Exception) -> MetadataError:
        """The error to give to callers, in a sentence that names the file.

        What is not the disk's or the database's is a defect of ours, which the log tells of.
        """
        is_misuse = isinstance(error, (sqlite3.ProgrammingError, sqlite3.InterfaceError))
        if is_misuse or not isinstance(error, sqlite3.Error):
            _log.error("an operation on the metadata in %s failed", self.path, exc_info=error)
            return MetadataError(
                f"an operation on the metadata in {self.path} failed: {error!r}; the log says where"
            )
        # Before Python 3.11 there is only SQLite's text to tell errors apart.
        name = getattr(error, "sqlite_errorname", "") or str(error)
        is_damaged = "malformed" in name or "not a database" in name
        if is_damaged or name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return CorruptStore(
                f"the metadata file {self.path} is damaged ({error}); restore it from a backup"
            )
        if name.startswith("SQLITE_BUSY") or "locked" in name:
            return Unavailable(f"the metadata file {self.path} is in use by another process")
        if name.startswith("SQLITE_FULL") or "disk is full" in name:
            return NoSpace(f"the disk of the metadata file {self.path} is full")
        return Unavailable(f"the metadata file {self.path} cannot be read or written: {error}")

    def _execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        assert self._database is not None, "the thread ends before the database is closed"
        return self._database.execute(sql, parameters)

    # The operations, under MetadataStore's names.

    def get(self, path: str) -> GetResult | None:
        return self._ephemerals.get(path) or self._read(path)

    def exists(self, path: str) -> bool:
        return path in self._ephemerals or self._read(path) is not None

    def children(self, path: str) -> list[str]:
        names = [row[0] for row in self._execute("SELECT name FROM node WHERE parent=?", path)]
        start = 1 if path == "/" else len(path) + 1
        names += [each[start:] for each in self._ephemerals if parent_of(each) == path]
        return sorted(names)

    def put(self, path: str, value: bytes, expected: int | None, ephemeral: bool) -> PutResult:
        if expected == MUST_NOT_EXIST and not ephemeral:
            # The most frequent write; what is there already, creating it tells.
            return self._create(path, value, ephemeral)
        node = self.get(path)
        check_expected(path, None if node is None else node.version, expected)
        if node is None:
            return self._create(path, value, ephemeral)
        version = node.version + 1
        if node.ephemeral:
            self._remember(path)
            changed = node._replace(value=value, version=version, modified_ms=_now_ms())
            self._ephemerals[path] = changed
        else:
            parent, name = _split(path)
            self._execute(
                "UPDATE node SET value=?, version=?, modified_ms=?, checksum=?"
                " WHERE parent=? AND name=?",
                *(value, version, _now_ms(), row_checksum(parent, name, version, value)),
                *(parent, name),
            )
        self._tell(NotificationKind.MODIFIED, path)
        return PutResult(path, version)

    def put_sequential(self, path: str, value: bytes, ephemeral: bool) -> PutResult:
        parent = parent_of(path)
        self._make_parents(path)
        number = self._next_sequence(parent)
        while self.exists(f"{path}{number:010d}"):
            number += 1
        self._execute(
            "INSERT OR REPLACE INTO sequence VALUES (?, ?, ?)",
            *(parent, number + 1, row_checksum(parent, "", number + 1, b"")),
        )
        return self._create(f"{path}{number:010d}", value, ephemeral)

    def put_all(self, puts: Sequence[Put]) -> list[PutResult]:
        changes, told = len(self._undo), len(self._notifications)
        results = []
        self._execute("SAVEPOINT together")
        for put in puts:
            try:
                results.append(self.put(put.path, put.value, put.expected_version, False))
            except MetadataError as error:
                self._execute("ROLLBACK TO together")
                self._execute("RELEASE together")
                self._undo_since(changes)
                del self._notifications[told:]
                error.path = put.path
                raise
        self._execute("RELEASE together")
        return results

    def delete(self, path: str, expected: int | None) -> None:
        if path == "/":
            raise InvalidPath("the root of the metadata cannot be deleted")
        node = self.get(path)
        if node is None:
            raise NotFound(f"{path} does not exist")
        check_expected(path, node.version, expected)
        if node.ephemeral:
            self._remember(path)
            del self._ephemerals[path]
        else:
            if self._has_children(path):
                raise NotEmpty(f"{path} has children")
            self._known_parents.discard(path)
            self._execute("DELETE FROM node WHERE parent=? AND name=?", *_split(path))
            self._execute("DELETE FROM sequence WHERE parent=?", path)
        self._tell(NotificationKind.DELETED, path)
        self._tell(NotificationKind.CHILDREN_CHANGED, parent_of(path))

    def _read(self, path: str) -> GetResult | None:
        parent, name = _split(path)
        row = self._execute(
            "SELECT value, version, created_ms, modified_ms, checksum FROM node"
            " WHERE parent=? AND name=?",
            *(parent, name),
        ).fetchone()
        if row is None:
            return None
        value, version, created_ms, modified_ms, checksum = row
        if checksum != row_checksum(parent, name, version, value):
            raise CorruptStore(f"the node {path} in {self.path} is damaged; its checksum is wrong")
        return GetResult(value, version, False, created_ms, modified_ms)

    def _next_sequence(self, parent: str) -> int:
        row = self._execute("SELECT next, checksum FROM sequence WHERE parent=?", parent).fetchone()
        if row is None:
            return 0
        if row[1] != row_checksum(parent, "", row[0], b""):
            raise CorruptStore(f"the counter of {parent} in {self.path} is damaged")
        return row[0]

    def _has_children(self, path: str) -> bool:
        if self._execute("SELECT 1 FROM node WHERE parent=? LIMIT 1", path).fetchone():
            return True
        return any(parent_of(each) == path for each in self._ephemerals)

    def _create(self, path: str, value: bytes, ephemeral: bool) -> PutResult:
        if path in self._ephemerals:
            raise BadVersion(f"{path} exists already")
        self._make_parents(path)
        now_ms = _now_ms()
        if ephemeral:
            self._remember(path)
            self._ephemerals[path] = GetResult(value, 0, True, now_ms, now_ms)
        else:
            parent, name = _split(path)
            inserted = self._execute(
                "INSERT OR IGNORE INTO node VALUES (?, ?, 0, ?, ?, ?, ?)",
                *(parent, name, now_ms, now_ms, row_checksum(parent, name, 0, value), value),
            )
            if inserted.rowcount == 0:
                raise BadVersion(f"{path} exists already")
        self._tell(NotificationKind.CREATED, path)
        self._tell(NotificationKind.CHILDREN_CHANGED, parent_of(path))
        return PutResult(path, 0)

    def _make_parents(self, path: str) -> None:
        above = parent_of(path)
        if above in self._known_parents:
            return
        if above in self._ephemerals:
            raise NoChildrenForEphemerals(f"{above} is ephemeral and cannot have children")
        if self._read(above) is None:
            self._create(above, b"", ephemeral=False)
        if len(self._known_parents) == KNOWN_PARENTS_MAX:
            self._known_parents.clear()
        self._known_parents.add(above)

    def _remember(self, path: str) -> None:
        self._undo.append((path, self._ephemerals.get(path)))

    def _tell(self, kind: NotificationKind, path: str) -> None:
        self._notifications.append(Notification(kind, path))


def _attempt(operation: Operation) -> object:
    try:
        return operation.apply(*operation.arguments)
    except MetadataError as error:
        return error


def _copy_of(error: MetadataError) -> MetadataError:
    """One for each caller, since an exception keeps where it was raised."""
    return type(error)(*error.args)


def _split(path: str) -> tuple[str, str]:
    """Parent and name, the key of a row; the root is the row of two empty strings."""
    if path == "/":
        return "", ""
    cut = path.rfind("/")
    return path[:cut] or "/", path[cut + 1 :]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
