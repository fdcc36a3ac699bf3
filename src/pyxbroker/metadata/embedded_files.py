"""The files of the embedded metadata store, kept consistent: database, change log and copies.

All methods block and run in the store's thread (metadata/embedded.py).
"""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from pyxbroker.base.log import get_logger
from pyxbroker.metadata import damage, database
from pyxbroker.metadata.change_log import (
    COUNTER,
    DAMAGED,
    DELETED,
    NODE,
    Change,
    ChangeLog,
    encode_record,
)
from pyxbroker.metadata.copies import Copies, CopyWriter, Recorded
from pyxbroker.metadata.damage import KNOWN_DAMAGE, BadRow, row_checksum
from pyxbroker.metadata.database import explain
from pyxbroker.metadata.findings import Finding, Severity
from pyxbroker.metadata.opening import Doubtful, Opening
from pyxbroker.metadata.store import CorruptStore, MetadataError, Unavailable

COMMITS_PER_CHECKPOINT_MAX = 256  # then the log is checkpointed even if operations are queued
OPEN_RETRY_S = 2.0
OPEN_RETRY_INTERVAL_S = 0.05
ROWS_PER_SLICE = 256
BYTES_PER_SLICE = 256 << 10  # of values; the last one may exceed it. Operations wait for a slice
FINDINGS_MAX = 1000

_ROWS = "SELECT parent, name, version, created_ms, modified_ms, checksum, change, value FROM node"
_LEDGERS = ("/ledgers/", "/ledgers0")  # range of paths: `0` follows the slash in ASCII
_SYNC_REFUSALS = ("SQLITE_IOERR_FSYNC", "disk I/O error")  # the latter before Python 3.11
_PASSING = (errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR)

log = get_logger(__name__)


class Files:
    """Database, change log and copies of one store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.copies = Copies(path.parent.with_name(f"{path.parent.name}.copies"))
        self.commits_in_log = 0
        self.failure: MetadataError | None = None  # set: every later operation fails with it
        self.findings: list[Finding] = []
        self.wants_copy = False
        self.log: ChangeLog | None = None  # None: it failed, and the next copy starts a new one
        self.copy: CopyWriter | None = None  # the copy being written; it gets every transaction
        self.transaction = 0  # the last one
        self.session_start = 0  # the last transaction of earlier processes
        self.store_id = b""
        self.is_checked = False  # the start has checked the whole content
        self._last_changes: list[Change] = []
        self._is_closed_mark_set = False
        self._has_rejected_frames = False  # frames of a commit that the disk refused remain
        # Rows that could not be repaired: searching all records again would find no more.
        self._lost: set[tuple[str, object]] = set()
        self._recorded: Recorded | None = None  # cached during a pass over all rows
        self._database: sqlite3.Connection | None = None

    def open(self, accept_loss: bool = False) -> None:
        """Open or create the database. Raises a MetadataError that names the file.

        `accept_loss`: open the readable rest of a store that would be refused for its damage.

        Disk errors are retried for a while: they indicate neither damage nor an older state.
        """
        self.failure = None
        self.findings = []
        self._take(self._open_with_retries(None, False, accept_loss))

    def _open_with_retries(
        self, reason: str | None, is_log_behind: bool, accept_loss: bool
    ) -> Opening:
        end = time.monotonic() + OPEN_RETRY_S
        while True:
            try:
                return self._open_files(reason, is_log_behind, accept_loss)
            except Exception as error:
                explained = explain(self.path, error)
                is_passing = type(explained) is Unavailable and _may_pass(error)
                if not is_passing or time.monotonic() > end:
                    raise explained from error
            time.sleep(OPEN_RETRY_INTERVAL_S)

    def _open_files(self, reason: str | None, is_log_behind: bool, accept_loss: bool) -> Opening:
        opening = Opening(self.path, self.copies, reason, is_log_behind)
        if reason is None:
            try:
                opening.open(accept_loss, is_certain=False)
                return opening
            except Doubtful:
                # Possibly a transient read error: if the disk can read now, there is no damage.
                opening = Opening(self.path, self.copies)
        opening.open(accept_loss)
        return opening

    def _take(self, opening: Opening) -> None:
        self._database = opening.database
        self.log = opening.log
        self.transaction = self.session_start = opening.transaction
        self.store_id = opening.store_id
        self.findings += opening.findings
        self.wants_copy = opening.wants_copy or opening.log is None
        self.is_checked = opening.is_checked
        self._is_closed_mark_set = opening.is_closed_mark_set
        self._has_rejected_frames = False
        self._last_changes = []
        self._lost.clear()
        self._recorded = None

    def close(self) -> None:
        """Checkpoint the log and close. What cannot be checkpointed stays for the next open.

        Raises MetadataError; the files are closed in any case.
        """
        if self._database is None:
            return
        try:
            self._mark_closed()
            self._keep_reserve()
        finally:
            opened, self._database = self._database, None
            try:
                if self.log is not None:
                    self.log.close()
                    self.log = None
                opened.close()
            except Exception as error:
                raise explain(self.path, error) from error

    def _mark_closed(self) -> None:
        """Record in database and change log the transaction after which they were closed."""
        if self.copy is not None:
            self.copy.abandon()
            self.copy = None
        if self.log is None or self._is_closed_mark_set or self.failure is not None:
            return
        try:
            self._execute(database.PUT_STATE, "closed", str(self.transaction))
            self.log.close_cleanly(self.transaction)
        except (sqlite3.Error, OSError) as error:
            # Without the mark the next start compares the two, as it does after a kill.
            log.warning("the metadata could not be closed cleanly", error=explain(self.path, error))

    def _keep_reserve(self) -> None:
        """Retain the blocks of SQLite's log for the next start, which may find the disk full.

        SQLite deletes the log when it closes the database, unless the log was renamed before. All
        of its content must be in the database by then.
        """
        self.checkpoint()
        reserve, wal = database.reserve_of(self.path), database.log_of(self.path)
        try:
            _, frames, moved = self._execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if frames == moved and wal.exists():
                wal.replace(reserve)
        except (sqlite3.Error, OSError) as error:
            log.warning("the log of the metadata cannot be reserved", error=self._describe(error))

    def checkpoint(self) -> None:
        """Move the log's pages into the database; if the disk refuses, the log keeps growing."""
        self.commits_in_log = 0
        if self._database is None:
            return  # It could not be reopened after damage; `failure` is set.
        try:
            self._execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except Exception as error:
            # Every commit is safe in the log; the next checkpoint or open moves them all.
            self.commits_in_log = 1
            log.warning(
                "the log of the metadata cannot be checkpointed", error=self._describe(error)
            )

    def clear_log(self) -> Exception | None:
        """Remove from SQLite's log what refused commits left after its end.

        The next start would mistake several of them for damage. Returns the error of a disk that
        cannot sync or write the log. Reads still work then, but nothing may be committed.
        """
        if not self._has_rejected_frames:
            return None
        try:
            _, accepted, _ = self._execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            damage.clear_rejected(database.log_of(self.path), accepted)
        except sqlite3.Error as error:
            # If only the database cannot be written, the log may still have room.
            is_of_log = damage.error_name(error).startswith(_SYNC_REFUSALS)
            return error if is_of_log else None
        except OSError as error:
            return error
        self._has_rejected_frames = False
        return None

    def _describe(self, error: Exception) -> object:
        """Describe why something is deferred. What SQLite calls damage may be a transient read
        error; the next reader examines and reports it.
        """
        return f"SQLite says {error}" if damage.is_damage(error) else explain(self.path, error)

    def _recover(self, error: Exception) -> bool:
        """Try to remove the cause of a failed attempt. Return True if a retry is worthwhile."""
        if damage.is_damage(error):
            return self.heal(str(error))
        if damage.error_name(error).startswith(("SQLITE_FULL", "database or disk is full")):
            # The log had no room to grow; after a checkpoint it is reused from its beginning.
            self.checkpoint()
            return True
        return False

    def read_error(self) -> OSError | None:
        """Return the error of a disk that cannot read the database, or None."""
        try:
            database.read_everything(self.path)
        except OSError as error:
            return error
        return None

    def heal(self, reason: str) -> bool:
        """Rebuild the database, as a start does that finds it damaged."""
        assert self._database is not None
        is_log_behind = self.log is None
        try:
            if self.log is not None:
                self.log.sync()
        except OSError as error:
            self._lose_log(error)
            is_log_behind = True
        self._drop_log()
        opened, self._database = self._database, None
        with suppress(sqlite3.Error):  # It is closed because it is damaged.
            opened.close()
        start = self.session_start
        try:
            self._take(self._open_with_retries(reason, is_log_behind, False))
        except Exception as error:
            self.failure = explain(self.path, error)
            return False
        self.session_start = start
        return True

    def _record(self, changes: list[Change]) -> None:
        """Add the transaction to the change log, and to the copy that is being written."""
        self._last_changes = changes
        if self._recorded is not None:
            self._recorded.state.apply(changes)
        if self.log is None:
            return
        seed, synced = self.log.head.seed, self.log.synced
        record = encode_record(seed, self.transaction, changes, synced)
        try:
            self.log.append(record)
        except OSError as error:
            self._lose_log(error)
        if self.copy is not None:
            try:
                self.copy.add_record(record)
            except OSError as error:
                log.warning("making a copy of the metadata was abandoned", error=error)
                self.copy.abandon()
                self.copy = None
                self.wants_copy = True

    def _lose_log(self, error: OSError) -> None:
        """Continue without a change log: an end of it is better than a gap in it."""
        log.warning(
            "the change log of the metadata ends here, and the next copy starts a new one",
            error=error,
        )
        self._drop_log()
        self.wants_copy = True

    def _drop_log(self) -> None:
        if self.copy is not None:
            self.copy.abandon()
            self.copy = None
        if self.log is not None:
            self.log.close()
            self.log = None

    def sync_log(self) -> None:
        """Make the change log durable."""
        if self.log is not None and not self.log.is_synced:
            try:
                self.log.sync()
            except OSError as error:
                self._lose_log(error)

    def report(self, finding: Finding) -> None:
        """Record a finding, for callers and in the log."""
        self.findings.append(finding)
        del self.findings[:-FINDINGS_MAX]
        log.error(finding.sentence)

    # Methods for maintenance. They raise sqlite3.Error and OSError.

    def check_structure(self, pages_max: int) -> None:
        """Check the pages of a database that is small enough for one call."""
        (pages,) = self._execute("PRAGMA page_count").fetchone()
        if pages <= pages_max:
            error = damage.structure_error(self._opened())
            if error is not None:
                raise sqlite3.DatabaseError(f"malformed: {error}")

    def keep_free_pages(self, low: int, count: int) -> None:
        """Provide unused pages in the database that have blocks on disk.

        They must be written once: otherwise the file system has not allocated their blocks.
        """
        (free,) = self._execute("PRAGMA freelist_count").fetchone()
        if free < low:
            self._execute("INSERT OR REPLACE INTO unknown VALUES (zeroblob(?))", count * 4096)
            self.checkpoint()
            self._execute("DELETE FROM unknown WHERE typeof(path)='blob'")
            self._execute("PRAGMA shrink_memory")  # This drops the pages from SQLite's cache.

    def forget_deletions(self) -> None:
        """Forget deletions that precede all change logs, except for those of ledgers."""
        if self.log is not None:
            self._execute(
                "DELETE FROM deleted WHERE change < ? AND (path < ? OR path >= ?)",
                *(self.log.head.transaction, *_LEDGERS),
            )

    def last_changes(self) -> list[Change]:
        """Return rows of the newest transaction, for the first record of a change log."""
        if self._last_changes:
            return self._last_changes
        row = self._execute(
            "SELECT change, version, created_ms, modified_ms, value FROM node"
            " WHERE parent='' AND name=''"
        ).fetchone()
        return [database.root(0) if row is None else Change(NODE, "/", *row)]

    def slices(self) -> Iterator[list[Change]]:
        """Yield all rows in batches, each row intact, repaired or marked as damaged.

        Transactions may run between two batches. Raises sqlite3.Error and OSError.
        """
        try:
            yield from self._slices()
        finally:
            self._recorded = None

    def _slices(self) -> Iterator[list[Change]]:
        parent, name, compare = "", "", ">="
        while True:
            rows = self._next_rows(parent, name, compare)
            if not rows:
                break
            yield [self._checked(row) for row in rows]
            parent, name, compare = rows[-1][0], rows[-1][1], ">"
        yield [
            Change(COUNTER, *row)
            for row in self._execute("SELECT parent, change, next FROM sequence")
        ]
        path = ""
        while True:
            rows = self._execute(
                f"SELECT path, change FROM deleted WHERE path > ? ORDER BY path"
                f" LIMIT {ROWS_PER_SLICE}",
                path,
            ).fetchall()
            if not rows:
                return
            yield [Change(DELETED, *row) for row in rows]
            path = rows[-1][0]

    def _next_rows(self, parent: str, name: str, compare: str) -> list[tuple[Any, ...]]:
        """Return the next rows, as many as fit into a slice, and at least one if any is left."""
        rows = []
        size = 0
        with closing(
            self._execute(
                f"{_ROWS} WHERE (parent, name) {compare} (?, ?) ORDER BY parent, name"
                f" LIMIT {ROWS_PER_SLICE}",
                *(parent, name),
            )
        ) as found:
            for row in found:
                rows.append(row)
                value = row[-1]  # not always bytes in a damaged row
                size += len(value) if isinstance(value, bytes) else 0
                if size >= BYTES_PER_SLICE:
                    break
        return rows

    def _checked(self, row: tuple[Any, ...]) -> Change:
        parent, name, version, created_ms, modified_ms, checksum, number, value = row
        path = damage.path_of(parent, name)
        times = (created_ms, modified_ms)
        if isinstance(value, bytes) and checksum == row_checksum(
            f"{parent}\0{name}", version, times, number, value
        ):
            return Change(NODE, path, number, version, created_ms, modified_ms, value)
        try:
            node = self._repair(path, version, number, checksum, value, is_in_pass=True)
        except CorruptStore as error:
            return Change(DAMAGED, path, number, value=str(error).encode())
        return node

    def _repair(
        self,
        path: str,
        version: object,
        number: object,
        checksum: object,
        value: object,
        is_in_pass: bool = False,
    ) -> Change:
        """Return a damaged row as recorded in change logs and copies, and restore it in the
        database.

        `is_in_pass`: cache the records for the next row of this pass. Raises CorruptStore if
        the records do not determine the row.
        """
        if checksum == KNOWN_DAMAGE and isinstance(value, bytes):
            raise CorruptStore(f"the node {path} cannot be read: {value.decode(errors='replace')}")
        from pyxbroker.metadata.salvage import newest_of

        change = None
        if (path, number) not in self._lost:
            recorded = self._load(is_in_pass)
            change = newest_of(BadRow(path, version, number), recorded)
        if change is None:
            self._lost.add((path, number))
            raise CorruptStore(
                f"the node {path} in {self.path} is damaged: its checksum is wrong, and it is in"
                " neither change logs nor copies"
            )
        database.put_change(self._opened(), change)
        sentence = (
            f"the node {path} in {self.path} was damaged; it was repaired from {self.copies.folder}"
        )
        self.report(Finding(Severity.REPAIRED, self.path, sentence))
        return change

    def _repair_counter(self, parent: str, number: object) -> int:
        """Return the next number of a damaged counter. An outdated record could yield duplicates.

        `number`: the transaction that the row names.
        """
        change = None
        if (counter := (f"{parent} (its counter)", number)) not in self._lost:
            recorded = self._load()
            change = recorded.state.counters.get(parent) if recorded.is_complete else None
        if change is None or change.kind != COUNTER:
            self._lost.add(counter)
            raise CorruptStore(f"the counter of {parent} in {self.path} is damaged")
        database.put_change(self._opened(), change)
        return change.version

    def _load(self, is_kept: bool = False) -> Recorded:
        """Return the records of copies and change logs, which a pass reads only once."""
        recorded = self._recorded or self.copies.load()
        if is_kept:
            self._recorded = recorded
        recorded.is_complete &= self.log is not None
        return recorded

    def _opened(self) -> sqlite3.Connection:
        assert self._database is not None, "the database is closed"
        return self._database

    def _execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        assert self._database is not None, "the database is closed"
        try:
            return self._database.execute(sql, parameters)
        except sqlite3.OperationalError:
            self._has_rejected_frames = True
            raise


def _may_pass(error: Exception) -> bool:
    """Return True if the error may be transient, so that a retry is worthwhile."""
    if isinstance(error, OSError):
        return error.errno in _PASSING
    name = damage.error_name(error)
    return name.startswith(("SQLITE_IOERR", "SQLITE_NOMEM", "SQLITE_CANTOPEN", "disk I/O error"))
