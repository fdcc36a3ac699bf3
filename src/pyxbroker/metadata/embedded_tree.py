"""The tree of the embedded metadata store: rows of a database, and ephemeral nodes in memory.

All methods block and run in the store's thread (metadata/embedded.py, which describes the files).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pyxbroker.base.clock import wall_s
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.metadata import damage, database
from pyxbroker.metadata.change_log import COUNTER, DELETED, NODE, Change
from pyxbroker.metadata.damage import counter_checksum, deletion_checksum, row_checksum
from pyxbroker.metadata.database import explain, split
from pyxbroker.metadata.embedded_files import COMMITS_PER_CHECKPOINT_MAX, Files
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    CorruptStore,
    GetResult,
    InvalidPath,
    MetadataError,
    NoChildrenForEphemerals,
    NotEmpty,
    NotFound,
    Notification,
    NotificationKind,
    Put,
    PutResult,
    check_expected,
    parent_of,
)

KNOWN_PARENTS_MAX = 10_000

Read = TypeVar("Read")


class Operation(NamedTuple):
    """An operation on the tree, and the future of its caller."""

    apply: Callable[..., object]
    arguments: tuple[Any, ...]
    future: asyncio.Future[Any]


class Tree(Files):
    """The tree and its transactions. A single thread uses it, from open() to close()."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._ephemerals: dict[str, GetResult] = {}
        self._known_parents: set[str] = set()  # persistent nodes that exist
        self._deleted_now: set[str] = set()  # in this transaction
        self._undo: list[tuple[str, GetResult | None]] = []
        self._changes: list[Change] = []
        self._notifications: list[Notification] = []

    @property
    def has_changed(self) -> bool:
        """True if the last transaction changed persistent data."""
        return bool(self._changes)

    def close(self) -> None:
        self._ephemerals.clear()
        self._known_parents.clear()
        super().close()

    def transact(self, batch: list[Operation]) -> tuple[list[object], list[Notification]]:
        """Apply operations as one transaction, durable when this returns.

        Each result is a value or the MetadataError of that operation alone. On any other error,
        every operation of the batch fails and has no effect. If the rollback fails too, all later
        operations fail as well (see `failure`). Raises nothing.
        """
        if self.failure is not None:
            self._changes = []
            return [copy_of(self.failure) for _ in batch], []
        results = self._attempt_batch(batch)
        if isinstance(results, Exception) and damage.is_damage(results):
            # SQLite reports a failed read as damage, too; then return the read error.
            results = self.read_error() or self._attempt_batch(batch)
        if isinstance(results, Exception) and self.failure is None and self._recover(results):
            results = self._attempt_batch(batch)
        if isinstance(results, Exception):
            explained = explain(self.path, results)
            return [copy_of(explained) for _ in batch], []
        if self._changes:
            self._record(self._changes)
        return results, self._notifications

    def _attempt_batch(self, batch: list[Operation]) -> list[object] | Exception:
        """Make one attempt; after an error it has no effect."""
        results: list[object] = []
        self._undo = []
        self._notifications = []
        self._changes = []
        self._deleted_now.clear()
        self.transaction += 1
        try:
            refusal = self.clear_log()
            self._execute("BEGIN")
            for operation in batch:
                results.append(_attempt(operation))
            if self._changes and refusal is not None:
                raise refusal
            if self._changes and self._is_closed_mark_set:
                self._execute("DELETE FROM state WHERE name='closed'")
            self._execute("COMMIT")
        except Exception as error:
            self._changes = []
            self.commits_in_log = COMMITS_PER_CHECKPOINT_MAX
            try:
                self._roll_back()
            except Exception as worse:
                self.failure = explain(self.path, worse)
            return error
        if self._changes:
            self.commits_in_log += 1
            self._is_closed_mark_set = False
        return results

    def _roll_back(self) -> None:
        if self._database is not None and self._database.in_transaction:
            self._database.rollback()
        self._undo_since(0)

    def _undo_since(self, count: int) -> None:
        """Undo all but the first `count` changes of ephemeral nodes."""
        self._known_parents.clear()
        while len(self._undo) > count:
            path, before = self._undo.pop()
            if before is None:
                self._ephemerals.pop(path, None)
            else:
                self._ephemerals[path] = before

    # The operations, with the names of MetadataStore.

    def get(self, path: str) -> GetResult | None:
        return self._ephemerals.get(path) or self._read(path)

    def exists(self, path: str) -> bool:
        return path in self._ephemerals or self._read(path) is not None

    def children(self, path: str) -> list[str]:
        # In index order: sorting a hundred thousand names would hold the GIL, and block the loop.
        rows = self._execute(database.CHILDREN, path)
        names: list[str] = []
        try:
            for (name,) in rows:
                if name is None:
                    break
                names.append(name)
        finally:
            rows.close()
        start = 1 if path == "/" else len(path) + 1
        ephemeral = [each[start:] for each in self._ephemerals if parent_of(each) == path]
        return sorted(names + ephemeral) if ephemeral else names

    def get_all(self, paths: Sequence[str]) -> list[GetResult | MetadataError | None]:
        return [_of_each(self.get, path) for path in paths]

    def children_all(self, paths: Sequence[str]) -> list[list[str] | MetadataError]:
        return [_of_each(self.children, path) for path in paths]

    def put(self, path: str, value: bytes, expected: int | None, ephemeral: bool) -> PutResult:
        if expected == MUST_NOT_EXIST and not ephemeral:
            # The most frequent write: creating the node detects an existing one.
            return self._create(path, value, ephemeral)
        node = self.get(path)
        check_expected(path, None if node is None else node.version, expected)
        if node is None:
            return self._create(path, value, ephemeral)
        version = node.version + 1
        if node.ephemeral:
            self._save_undo(path)
            changed = node._replace(value=value, version=version, modified_ms=_now_ms())
            self._ephemerals[path] = changed
        else:
            parent, name = split(path)
            number = self.transaction
            times = (node.created_ms, _now_ms())
            checksum = row_checksum(f"{parent}\0{name}", version, times, number, value)
            self._execute(
                "UPDATE node SET value=?, version=?, modified_ms=?, checksum=?, change=?"
                " WHERE parent=? AND name=?",
                *(value, version, times[1], checksum, number, parent, name),
            )
            self._changes.append(Change(NODE, path, number, version, *times, value))
        self._add_notification(NotificationKind.MODIFIED, path)
        return PutResult(path, version)

    def put_sequential(self, path: str, value: bytes, ephemeral: bool) -> PutResult:
        parent = parent_of(path)
        self._make_parents(path)
        number = self._next_sequence(parent)
        while self.exists(f"{path}{number:010d}"):
            number += 1
        following, change = number + 1, self.transaction
        checksum = counter_checksum(parent, following, change)
        self._execute(database.PUT_COUNTER, parent, following, checksum, change)
        self._changes.append(Change(COUNTER, parent, change, following))
        return self._create(f"{path}{number:010d}", value, ephemeral)

    def put_all(self, puts: Sequence[Put]) -> list[PutResult]:
        undone, notified, changes = len(self._undo), len(self._notifications), len(self._changes)
        results = []
        self._execute("SAVEPOINT together")
        for put in puts:
            try:
                results.append(self.put(put.path, put.value, put.expected_version, False))
            except MetadataError as error:
                self._execute("ROLLBACK TO together")
                self._execute("RELEASE together")
                self._undo_since(undone)
                del self._notifications[notified:]
                del self._changes[changes:]
                error.path = put.path
                raise
        self._execute("RELEASE together")
        return results

    def delete(self, path: str, expected: int | None) -> None:
        if path == "/":
            raise InvalidPath("the root of the metadata cannot be deleted")
        node = self._get_to_delete(path, expected)
        if node is None:
            raise NotFound(f"{path} does not exist")
        check_expected(path, node.version, expected)
        if node.ephemeral:
            self._save_undo(path)
            del self._ephemerals[path]
        else:
            if self._has_children(path):
                raise NotEmpty(f"{path} has children")
            self._known_parents.discard(path)
            self._deleted_now.add(path)
            number = self.transaction
            self._execute("DELETE FROM node WHERE parent=? AND name=?", *split(path))
            self._execute("DELETE FROM sequence WHERE parent=?", path)
            self._execute(database.PUT_DELETED, path, number, deletion_checksum(path, number))
            self._changes.append(Change(DELETED, path, number))
        self._add_notification(NotificationKind.DELETED, path)
        self._add_notification(NotificationKind.CHILDREN_CHANGED, parent_of(path))

    def _get_to_delete(self, path: str, expected: int | None) -> GetResult | None:
        """Return the node; a damaged one may be deleted if the caller expects no version."""
        try:
            return self.get(path)
        except CorruptStore:
            if expected is not None:
                raise
            return GetResult(b"", 0, False, 0, 0)

    def mark(self, _: None) -> int:
        """Return the number of this transaction, which ends with this operation."""
        return self.transaction

    # Operations for garbage collection.

    def was_deleted(self, paths: Sequence[str]) -> list[bool]:
        return [
            self._execute("SELECT 1 FROM deleted WHERE path=?", path).fetchone() is not None
            for path in paths
        ]

    def old_deletions(self, prefix: str) -> list[str]:
        """Return deletions by earlier processes that are needed for nothing else."""
        if self.log is None:
            return []
        before = min(self.session_start + 1, self.log.head.transaction)
        rows = self._execute(
            "SELECT path FROM deleted WHERE path >= ? AND path < ? AND change < ?",
            *(prefix, prefix[:-1] + "0", before),
        )
        return [row[0] for row in rows]

    def forget_deletions_of(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._execute("DELETE FROM deleted WHERE path=?", path)

    def note_deleted(self, paths: Sequence[str]) -> list[str]:
        """Record missing nodes as deleted, and return those that were missing."""
        gone = [path for path in paths if self._read(path) is None]
        for path in gone:
            number = self.transaction
            self._execute(database.PUT_DELETED, path, number, deletion_checksum(path, number))
            self._changes.append(Change(DELETED, path, number))
        return gone

    def set_unknown(self, paths: Sequence[str]) -> None:
        known = {row[0] for row in self._execute("SELECT path FROM unknown")}
        for path in known.difference(paths):
            self._execute("DELETE FROM unknown WHERE path=?", path)
        for path in set(paths).difference(known):
            self._execute("INSERT OR REPLACE INTO unknown VALUES (?)", path)

    def unknown(self) -> list[str]:
        return sorted(str(row[0]) for row in self._execute("SELECT path FROM unknown"))

    def _read(self, path: str) -> GetResult | None:
        parent, name = split(path)
        row = self._execute(
            "SELECT value, version, created_ms, modified_ms, change, checksum FROM node"
            " WHERE parent=? AND name=?",
            *(parent, name),
        ).fetchone()
        if row is None:
            return None
        value, version, created_ms, modified_ms, number, checksum = row
        times = (created_ms, modified_ms)
        if not isinstance(value, bytes) or checksum != row_checksum(
            f"{parent}\0{name}", version, times, number, value
        ):
            change = self._repair(path, version, number, checksum, value)
            return GetResult(
                change.value, change.version, False, change.created_ms, change.modified_ms
            )
        return GetResult(value, version, False, created_ms, modified_ms)

    def _next_sequence(self, parent: str) -> int:
        row = self._execute(
            "SELECT next, change, checksum FROM sequence WHERE parent=?", parent
        ).fetchone()
        if row is None:
            return 0
        if row[2] != counter_checksum(parent, row[0], row[1]):
            return self._repair_counter(parent, row[1])
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
            self._save_undo(path)
            self._ephemerals[path] = GetResult(value, 0, True, now_ms, now_ms, True)
        else:
            parent, name = split(path)
            number = self.transaction
            checksum = row_checksum(f"{parent}\0{name}", 0, (now_ms, now_ms), number, value)
            inserted = self._execute(
                "INSERT OR IGNORE INTO node VALUES (?, ?, 0, ?, ?, ?, ?, ?)",
                *(parent, name, now_ms, now_ms, checksum, number, value),
            )
            if inserted.rowcount == 0:
                self._read(path)  # raises CorruptStore if the node is damaged
                raise BadVersion(f"{path} exists already")
            if path in self._deleted_now:
                self._execute("DELETE FROM deleted WHERE path=?", path)
            self._changes.append(Change(NODE, path, number, 0, now_ms, now_ms, value))
        self._add_notification(NotificationKind.CREATED, path)
        self._add_notification(NotificationKind.CHILDREN_CHANGED, parent_of(path))
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

    def _save_undo(self, path: str) -> None:
        self._undo.append((path, self._ephemerals.get(path)))

    def _add_notification(self, kind: NotificationKind, path: str) -> None:
        self._notifications.append(Notification(kind, path))


def _of_each(read: Callable[[str], Read], path: str) -> Read | MetadataError:
    try:
        return read(path)
    except MetadataError as error:
        # The frames of its traceback would keep the other results in memory.
        return error.with_traceback(None)


def _attempt(operation: Operation) -> object:
    try:
        return operation.apply(*operation.arguments)
    except MetadataError as error:
        return error


def copy_of(error: MetadataError) -> MetadataError:
    """Return a new exception for each caller, since an exception stores its traceback."""
    return type(error)(*error.args)


def _now_ms() -> int:
    return int(wall_s() * 1000)
