"""Opening the embedded store: its checks, and repairs before the first read.

  clean stop      database and change log record the same transaction as the last one before they
                  were closed: only two blocks of the change log are read
  kill            the change log names the last transaction. If the database lacks it, acknowledged
                  data was lost: its log was deleted, or damaged in a way that SQLite takes for the
                  end of the log
  power cut       the change log may lack the last transactions, but the database has them
  damage          a row, a page, a header, the log: in any case the database is rebuilt from the
                  records and its intact rows, and the damaged file stays next to it

A database is never patched: after damage of SQLite's log it may contain pages of different ages.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyxbroker.base.directories import make_directory, sync_directory
from pyxbroker.base.log import get_logger
from pyxbroker.metadata import damage, database
from pyxbroker.metadata.change_log import (
    BEGINS,
    CHANGES_MAGIC,
    CONTINUES,
    COUNTER,
    HEAD_BYTES,
    NODE,
    Change,
    ChangeLog,
    Content,
    Head,
    closed_at,
    decode_changes,
    decode_head,
    encode_record,
    read_file,
)
from pyxbroker.metadata.copies import Copies, Recorded, State, write_copy
from pyxbroker.metadata.database import FORMAT_VERSION, finish_swap, log_of, split
from pyxbroker.metadata.findings import Finding, Severity
from pyxbroker.metadata.store import CorruptStore, MetadataError

if TYPE_CHECKING:
    from pyxbroker.metadata import salvage

SESSION_STEP = 1 << 32
"""Gap in the numbers of transactions after an unclean stop. It exceeds the number of transactions
that a power cut can remove from the change log."""

FIRST_TRANSACTION = 1

log = get_logger(__name__)


class Doubtful(Exception):
    """The database seems to be damaged, which SQLite also reports if the disk cannot read."""


class Opening:
    """One attempt to open a store; its attributes are the result.

    `open()` raises MetadataError, sqlite3.Error and OSError, after closing everything.
    """

    def __init__(
        self,
        path: Path,
        copies: Copies,
        reason: str | None = None,
        is_log_behind: bool = False,
    ) -> None:
        """`reason`: treat the database as damaged. `is_log_behind`: the change log lacks
        transactions, because it could no longer be written.
        """
        self.path = path
        self.copies = copies
        self.database: sqlite3.Connection | None = None
        self.log: ChangeLog | None = None
        self.transaction = 0  # the last one
        self.store_id = b""
        self.findings: list[Finding] = []
        self.wants_copy = False
        self.is_closed_mark_set = False
        self.is_checked = False
        self.reason = reason  # why the database must be rebuilt
        self._is_log_behind = is_log_behind
        self._is_check = False
        self._is_behind = False
        self._newest: Path | None = None  # the newest change log
        self._closed: tuple[Head, int, int] | None = None  # its state after a clean stop
        self._content: Content | None = None  # its content after any other stop
        self._format = FORMAT_VERSION
        self._log_aside: Path | None = None  # copy of a damaged SQLite log, which SQLite deletes

    def open(self, accept_loss: bool = False, is_certain: bool = True) -> None:
        """Open the store. `accept_loss`: retain what is readable instead of refusing the store.

        Without `is_certain`, raise Doubtful instead of rebuilding the database.
        """
        try:
            self.inspect()
            if self.reason is not None and not is_certain:
                database.read_everything(self.path)
                raise Doubtful(self.reason)
            if self.reason is not None:
                self._rebuild(accept_loss)
            elif self._format < FORMAT_VERSION:
                self._upgrade()
            if self.log is None:
                self._resume_log()
        except BaseException:
            self.close_database()
            if self.log is not None:
                self.log.close()
            if self._log_aside is not None:
                # Restore the log, so that the next start detects the damage again.
                self._log_aside.replace(log_of(self.path))
            raise

    # Checks.

    def inspect(self, is_check: bool = False) -> None:
        """Open the database as it is; afterwards `reason` is set if it must be rebuilt.

        `is_check`: check everything, and do not continue change logs.
        """
        self._is_check = is_check
        make_directory(self.path.parent)
        finish_swap(self.path)
        self._check_presence()
        self._read_newest()
        database.use_reserve(self.path)
        self._inspect()

    def plan(self, accept_loss: bool = False) -> tuple[salvage.Merged, Recorded]:
        """Return the content of a rebuilt database. Raises CorruptStore if it is insufficient."""
        from pyxbroker.metadata import salvage

        found = self._salvage()
        recorded = self.copies.load()
        recorded.is_complete &= not self._is_log_behind
        try:
            merged = salvage.merge(self.path, found, recorded, self._is_behind)
        except CorruptStore:
            if not accept_loss or (found is None and not recorded.state.nodes):
                raise
            merged = salvage.merge_incomplete(found, recorded)
        return merged, recorded

    def _check_presence(self) -> None:
        if self.path.exists():
            return
        copies, logs = self.copies.numbers()
        if copies or logs:
            raise MetadataError(
                f"the metadata database {self.path} is missing, and with it all topics and"
                f" subscriptions; {self.copies.folder} has copies of it, from which `pyxbroker"
                " metadata restore` rebuilds it"
            )
        if damage.log_has_content(log_of(self.path)):
            raise MetadataError(
                f"the metadata database {self.path} is missing, but its log {log_of(self.path)}"
                " exists; restore both from a backup"
            )

    def _read_newest(self) -> None:
        """Read the newest change log before anything is changed, because the read may fail."""
        _, logs = self.copies.numbers()
        if not logs:
            return
        self._newest = self.copies.log_path(logs[-1])
        self._closed = closed_at(self._newest)
        if self._closed is None:
            self._content = self._read_log(self._newest)

    def _inspect(self) -> None:
        """Open the database and check its state."""
        wal = log_of(self.path)
        had_log = damage.log_has_content(wal)
        is_suspicious = False
        if damage.log_header_is_damaged(wal):
            self._log_aside = database.copy_aside(wal)
            self.reason = f"the header of its log {wal.name} is damaged"
            self._is_behind = True
        try:
            if self.path.exists():
                self.reason = damage.header_error(self.path) or self.reason
            elif self.reason is None:
                self._make_file()
                return
            self.database = database.connect(self.path)
            stored = self._read_schema()
            if stored is None:
                return
            if had_log:
                commits, frames = self._rejected(wal)
                is_suspicious = frames > 0
                if commits > 1:
                    self.reason = f"its log {wal.name} is damaged before its end"
                    self._is_behind = True
            is_clean = self._compare(stored, had_log)
            is_suspicious |= not (is_clean or had_log)
            self._check_content(is_suspicious or self._is_check)
        except sqlite3.Error as error:
            if not damage.is_damage(error):
                raise
            self.reason = str(error)
            self._is_behind = True  # It is unreadable, so its content may be outdated.

    def _read_schema(self) -> dict[str, str] | None:
        """Return the `state` table; None if the database is new or needs an upgrade."""
        assert self.database is not None
        (version,) = self.database.execute("PRAGMA user_version").fetchone()
        schema = database.schema_of(self.database)
        if not schema and version == 0:
            if self.reason is None and not any(self.copies.numbers()):
                self._make()
            else:
                self.reason = self.reason or "it is empty"
            return None
        if schema == database.SCHEMA and version != FORMAT_VERSION and self._is_flip(version):
            self.reason = self.reason or f"its format number is damaged: it says {version}"
        elif version > FORMAT_VERSION:
            raise MetadataError(
                f"{self.path} was written by a newer pyxbroker (format {version}; this one reads up"
                f" to {FORMAT_VERSION})"
            )
        elif version == 1 and schema.keys() == {"node", "sequence"}:
            self._format = 1
            self._check_format_1()
            return None
        elif schema != database.SCHEMA:
            self.reason = self.reason or "its tables are not those of metadata"
            return None
        stored = database.state_of(self.database)
        self.store_id = database.decode_store_id(stored.get("store", ""))
        if not self.store_id:
            head = self._newest_head()
            self.store_id = os.urandom(16) if head is None else head.store_id
            self.database.execute(database.PUT_STATE, database.store_row(self.store_id))
        return stored

    def _is_flip(self, version: int) -> bool:
        """Return True if a single bit flip explains the number: all else has our format."""
        head = self._newest_head()
        is_ours = head is None or head.database_format == FORMAT_VERSION
        return is_ours and bin((version ^ FORMAT_VERSION) & 0xFFFFFFFF).count("1") == 1

    def _newest_head(self) -> Head | None:
        _, logs = self.copies.numbers()
        if not logs:
            return None
        path = self.copies.log_path(logs[-1])
        with path.open("rb") as file, suppress(CorruptStore):
            return decode_head(path, file.read(HEAD_BYTES))
        return None

    def _make_file(self) -> None:
        """Create a new store. A kill meanwhile leaves no database, or a complete one."""
        self.store_id = os.urandom(16)
        first = database.root(FIRST_TRANSACTION)
        database.make(self.path, self.path, [first], self.store_id)
        self.database = database.connect(self.path)
        self.transaction = FIRST_TRANSACTION
        self._begin_log(1, BEGINS, [first])

    def _make(self) -> None:
        """Create a new store in an empty database that another program created."""
        assert self.database is not None
        self.store_id = os.urandom(16)
        first = database.root(FIRST_TRANSACTION)
        database.make_schema(self.database, [first], self.store_id)
        sync_directory(self.path.parent)
        self.transaction = FIRST_TRANSACTION
        self._begin_log(1, BEGINS, [first])

    def _check_format_1(self) -> None:
        """Check a store of format 1, which has no second record to compare it with."""
        assert self.database is not None
        commits, _ = self._rejected(log_of(self.path))
        if self.reason is not None or commits > 1:
            raise CorruptStore(
                f"the metadata log {log_of(self.path)} is damaged before its end; restore"
                f" {self.path.parent} from a backup"
            )
        error = damage.structure_error(self.database)
        if error is not None:
            raise CorruptStore(f"the metadata file {self.path} is damaged ({error})")

    def _rejected(self, wal: Path) -> tuple[int, int]:
        """Return the ends of transactions and the frames of its log that SQLite did not accept."""
        assert self.database is not None
        # A passive checkpoint returns the number of frames that SQLite accepted.
        _, accepted, _ = self.database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        commits, frames = damage.rejected_commits(wal, accepted)
        if commits > 1 and self._log_aside is None:
            self._log_aside = database.copy_aside(wal)
        return commits, frames

    def _compare(self, stored: dict[str, str], had_log: bool) -> bool:
        """Compare the database with the newest change log. Return True after a clean stop."""
        path, closed = self._newest, self._closed
        if path is None:
            self._handle_missing_log()
            return False
        if closed is not None and not had_log and stored.get("closed") == str(closed[1]):
            self._check_owner(closed[0])
            if not self._is_check:
                self.log = ChangeLog.append_to(path, closed[0], closed[2])
            self.transaction = closed[1]
            self.is_closed_mark_set = True
            return True
        if closed is not None:
            self._content = self._read_log(path)
        if self._content is not None:
            self._check_owner(self._content.head)
            if not self._has_last(self._content):
                self.reason = self.reason or "it lost transactions that were answered"
                self._is_behind = True
        return False

    def _handle_missing_log(self) -> None:
        """Handle a missing change log: the first start was interrupted, or it was deleted."""
        assert self.database is not None
        (count,) = self.database.execute(
            "SELECT count(*) FROM (SELECT 1 FROM node LIMIT 2)"
        ).fetchone()
        if count > 1:
            folder = self.copies.folder
            self._report(
                folder,
                f"the copies and change logs of the metadata in {folder} are missing; making a new"
                " copy",
            )
        elif self.reason is None and not any(self.copies.numbers()):
            self.transaction = FIRST_TRANSACTION
            self._begin_log(1, BEGINS, [self._root()])

    def _check_owner(self, head: Head) -> None:
        if head.store_id != self.store_id and self.reason is None:
            raise MetadataError(
                f"the copies in {self.copies.folder} belong to another metadata store than"
                f" {self.path}; move them away, or put the matching ones there"
            )

    def _read_log(self, path: Path) -> Content | None:
        try:
            content = read_file(path)
        except CorruptStore as error:
            self._report(path, str(error))
            return None
        if content.damaged:
            self._report(path, f"the change log {path} is damaged before its end")
            # Its last transaction is still good for the comparison, but it is not continued.
            self.wants_copy = True
        return content

    def _has_last(self, content: Content) -> bool:
        """Return True if the database has the last transaction of the change log."""
        if not content.records:
            return True
        last = content.records[-1]
        return all(
            self._transaction_of(change) >= change.transaction
            for change in decode_changes(content.data, last)
        )

    def _transaction_of(self, change: Change) -> int:
        """Return the transaction of the database's state of a change's path, or -1."""
        assert self.database is not None
        if change.kind == COUNTER:
            own = self.database.execute(
                "SELECT change FROM sequence WHERE parent=?", (change.path,)
            )
        else:
            own = self.database.execute(
                "SELECT change FROM node WHERE parent=? AND name=?", split(change.path)
            )
        gone = self.database.execute("SELECT change FROM deleted WHERE path=?", (change.path,))
        found = [own.fetchone(), gone.fetchone()]
        numbers = [row[0] for row in found if row is not None]
        return max((each for each in numbers if isinstance(each, int)), default=-1)

    def _check_content(self, is_suspicious: bool) -> None:
        """Check every page and row, if the database is small or suspicious."""
        assert self.database is not None
        if self.reason is not None or not (is_suspicious or damage.is_small(self.database)):
            return
        self.reason = damage.structure_error(self.database)
        if self.reason is not None:
            return
        self.is_checked = True
        rows = damage.Rows(self.database, self._format)
        newest = self._newest_transaction()
        newer = [change for change in rows.good() if change.transaction > newest >= 0]
        bad = [row for row in rows.bad if not row.sentence]
        if bad or rows.errors:
            what = rows.errors[0] if rows.errors else f"the row of {bad[0].path}"
            self.reason = f"damaged: {what}"
        elif newest >= 0:
            self._continue_log(newer)

    def _newest_transaction(self) -> int:
        """Return the last transaction of the newest change log, or -1 if it cannot be continued."""
        content = self._content
        if content is None or not content.records or content.damaged:
            return -1
        return content.records[-1].transaction

    # Repairs.

    def _rebuild(self, accept_loss: bool) -> None:
        """Rebuild the database from all intact data, and open it."""
        merged, recorded = self.plan(accept_loss)
        self.close_database()
        head = self._newest_head()
        self.store_id = head.store_id if head is not None else self.store_id
        self.store_id = self.store_id or os.urandom(16)
        self.is_closed_mark_set = False
        state = merged.state
        database.build(self.path, state.changes(), self.store_id)
        aside = finish_swap(self.path)
        self._log_aside = None
        severity = Severity.DAMAGED if merged.lost else Severity.REPAIRED
        sentence = (
            f"the metadata in {self.path} was damaged ({self.reason}) and was rebuilt:"
            f" {merged.summary()}; the damaged file is {aside}"
        )
        self.findings += recorded.findings
        self._report(self.path, sentence, severity)
        self.database = database.connect(self.path)
        self._resume_after_rebuild(state, recorded)

    def _salvage(self) -> salvage.Found | None:
        """Return the readable rows of the damaged database, or None if none exist."""
        from pyxbroker.metadata import salvage

        if self.database is None or self.reason is None:
            return None
        try:
            if self._format == FORMAT_VERSION and "node" in database.schema_of(self.database):
                return salvage.read_rows(self.database, self._format)
        except sqlite3.Error as error:
            if damage.is_io_error(error):
                raise
        return None

    def _resume_after_rebuild(self, state: State, recorded: Recorded) -> None:
        if recorded.is_complete and self._content is None:
            _, logs = self.copies.numbers()
            self._content = self._read_log(self.copies.log_path(logs[-1]))
        newest = self._newest_transaction() if recorded.is_complete else -1
        self.transaction = state.transaction
        self.wants_copy = True
        if newest >= 0:
            self._continue_log([each for each in state.changes() if each.transaction > newest])

    def _continue_log(self, newer: list[Change]) -> None:
        """Continue the newest change log, after adding what a power cut removed from it."""
        content = self._content
        assert content is not None
        if self.log is not None or self._is_check:
            return
        path = self.copies.log_path(content.head.number)
        self.log = ChangeLog.append_to(path, content.head, content.end, content.is_torn)
        newest = max([change.transaction for change in newer], default=0)
        last = max(content.records[-1].transaction, newest, self.transaction)
        if newer:
            newer.sort(key=lambda change: change.transaction)
            self.log.append(encode_record(content.head.seed, last, newer))
            self.log.sync()
        self.transaction = last + SESSION_STEP

    def _resume_log(self) -> None:
        """Start a new change log, since the previous one is missing, damaged or incomplete."""
        assert self.database is not None
        copies, logs = self.copies.numbers()
        queries = ("node", "sequence", "deleted")
        numbers = [
            self.database.execute(f"SELECT max(change) FROM {table}").fetchone()[0] or 0
            for table in queries
        ]
        content = self._content
        recorded = content.records[-1].transaction if content and content.records else 0
        self.transaction = max(*numbers, recorded, self.transaction) + SESSION_STEP
        self.wants_copy = True
        self._begin_log(max([0, *copies, *logs]) + 1, 0, [self._root()])

    def _root(self) -> Change:
        assert self.database is not None
        row = self.database.execute(
            "SELECT change, version, created_ms, modified_ms, value FROM node"
            " WHERE parent='' AND name=''"
        ).fetchone()
        return database.root(0) if row is None else Change(NODE, "/", *row)

    def _begin_log(self, number: int, flags: int, first: list[Change]) -> None:
        """Start a change log; without disk space for it the store runs without one."""
        assert self.database is not None
        try:
            self.log = begin_log(self.copies, number, flags, self.store_id, self.transaction, first)
        except OSError as error:
            self.wants_copy = True
            self._report(self.copies.folder, f"no change log can be written: {error}")

    def _upgrade(self) -> None:
        """Upgrade format 1 to 2: copy the store, then build a new database."""
        from pyxbroker.metadata import salvage

        assert self.database is not None
        found = salvage.read_rows(self.database, 1)
        merged = salvage.merge_incomplete(found, Recorded())
        state = merged.state
        for table in (state.nodes, state.counters):
            for path, change in table.items():
                table[path] = change._replace(transaction=FIRST_TRANSACTION)
        state.transaction = self.transaction = FIRST_TRANSACTION
        self.store_id = os.urandom(16)
        copies, logs = self.copies.numbers()
        number = max([0, *copies, *logs]) + 1
        self.copies.make_folder()
        write_copy(
            self.copies.copy_path(number),
            new_head(number, 0, self.store_id, FIRST_TRANSACTION),
            state,
        )
        self.close_database()
        database.build(self.path, state.changes(), self.store_id)
        aside = finish_swap(self.path, "before-format-2")
        sentence = f"the metadata in {self.path} now has format 2; the previous database is {aside}"
        if merged.lost:
            sentence += f"; {merged.summary()}"
        self._report(self.path, sentence, Severity.DAMAGED if merged.lost else Severity.NOTE)
        self.database = database.connect(self.path)
        self._begin_log(number, 0, [state.nodes["/"]])

    def _report(self, file: Path, sentence: str, severity: Severity = Severity.NOTE) -> None:
        self.findings.append(Finding(severity, file, sentence))
        write = log.warning if severity is Severity.NOTE else log.error
        write(sentence)

    def close_database(self) -> None:
        opened, self.database = self.database, None
        if opened is not None:
            with suppress(sqlite3.Error):  # The file is damaged, or another error is being raised.
                opened.close()


def begin_log(
    copies: Copies,
    number: int,
    flags: int,
    store_id: bytes,
    transaction: int,
    first: list[Change],
) -> ChangeLog:
    """Create a change log whose first record repeats one in the database. Raises OSError."""
    copies.make_folder()
    head = new_head(number, flags, store_id, transaction)
    record = encode_record(head.seed, transaction, first)
    return ChangeLog.create(copies.log_path(number), head, record)


def continue_log(
    copies: Copies, former: ChangeLog, transaction: int, first: list[Change]
) -> ChangeLog:
    """Create the change log that follows another one without a gap. Raises OSError."""
    number = former.head.number + 1
    return begin_log(copies, number, CONTINUES, former.head.store_id, transaction, first)


def new_head(number: int, flags: int, store_id: bytes, transaction: int) -> Head:
    begun_ms = time.time_ns() // 1_000_000
    return Head(CHANGES_MAGIC, FORMAT_VERSION, flags, number, transaction, begun_ms, store_id)
