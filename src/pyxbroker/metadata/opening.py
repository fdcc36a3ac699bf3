"""How the embedded store is opened: what is looked at, and what is repaired before anybody reads.

  clean stop      the database and the change log both say that the store was closed after the same
                  transaction: nothing is read of the change log but two blocks
  kill            the change log names the last transaction; the database has it, or it lost what it
                  had answered (its log was deleted, or damaged at the end, which SQLite takes for
                  the end)
  power cut       the change log may lack the last transactions: the database has them
  damage          a row, a page, a header, the log: whatever it is, the database is built anew from
                  the records and its intact rows, and the damaged one is kept beside it

A database is never patched: after damage of SQLite's log, pages of different ages may stand in it.
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
"""Transactions are numbered on from here after an unclean stop: those that a power cut took from
the change log cannot be as many."""

FIRST_TRANSACTION = 1

log = get_logger(__name__)


class Doubtful(Exception):
    """The database seems to be damaged; SQLite says so also when the disk could not read."""


class Opening:
    """One attempt to open a store; its attributes are the result.

    `open()` raises MetadataError, sqlite3.Error and OSError; everything is closed then.
    """

    def __init__(
        self,
        path: Path,
        copies: Copies,
        reason: str | None = None,
        is_log_behind: bool = False,
    ) -> None:
        """With a `reason` the database is taken for damaged; `is_log_behind`: the change log lacks
        transactions, because it could not be written any more.
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
        self.reason = reason  # why the database cannot be used as it is
        self._is_log_behind = is_log_behind
        self._is_check = False
        self._is_behind = False
        self._newest: Path | None = None  # the newest change log
        self._closed: tuple[Head, int, int] | None = None  # what it says of a clean stop
        self._content: Content | None = None  # what it says otherwise
        self._format = FORMAT_VERSION
        self._log_aside: Path | None = None  # a damaged log of SQLite, which would delete it

    def open(self, keep_rest: bool = False, is_certain: bool = True) -> None:
        """`keep_rest`: what can be read is kept where otherwise the store is refused.

        Without `is_certain` it raises Doubtful where it would build the database anew.
        """
        try:
            self.look()
            if self.reason is not None and not is_certain:
                database.read_everything(self.path)
                raise Doubtful(self.reason)
            if self.reason is not None:
                self._rebuild(keep_rest)
            elif self._format < FORMAT_VERSION:
                self._upgrade()
            if self.log is None:
                self._resume_log()
        except BaseException:
            self.close_database()
            if self.log is not None:
                self.log.close()
            if self._log_aside is not None:
                # The next start has to refuse as well, or to do better.
                self._log_aside.replace(log_of(self.path))
            raise

    # Looking.

    def look(self, is_check: bool = False) -> None:
        """Opens the database as it is; `reason` then says why it has to be built anew, if so.

        `is_check`: everything is looked at, and change logs are not gone on with.
        """
        self._is_check = is_check
        make_directory(self.path.parent)
        finish_swap(self.path)
        self._check_presence()
        self._read_newest()
        database.use_reserve(self.path)
        self._look()

    def plan(self, keep_rest: bool = False) -> tuple[salvage.Merged, Recorded]:
        """What a database that is built anew has. Raises CorruptStore when that is too little."""
        from pyxbroker.metadata import salvage

        found = self._salvage()
        recorded = self.copies.load()
        recorded.is_complete &= not self._is_log_behind
        try:
            merged = salvage.merge(self.path, found, recorded, self._is_behind)
        except CorruptStore:
            if not keep_rest or (found is None and not recorded.state.nodes):
                raise
            merged = salvage.keep_what_is_left(found, recorded)
        return merged, recorded

    def _check_presence(self) -> None:
        if self.path.exists():
            return
        copies, logs = self.copies.numbers()
        if copies or logs:
            raise MetadataError(
                f"the metadata database {self.path} is missing, and with it what topics and"
                f" subscriptions there are; {self.copies.folder} has copies of it: `pyxbroker"
                " metadata restore` builds it again from them"
            )
        if damage.log_has_content(log_of(self.path)):
            raise MetadataError(
                f"the metadata database {self.path} is missing, but its log {log_of(self.path)} is"
                " there; restore both from a backup"
            )

    def _read_newest(self) -> None:
        """Reads the newest change log, before anything is changed: the disk may refuse."""
        _, logs = self.copies.numbers()
        if not logs:
            return
        self._newest = self.copies.log_path(logs[-1])
        self._closed = closed_at(self._newest)
        if self._closed is None:
            self._content = self._read_log(self._newest)

    def _look(self) -> None:
        """Opens the database and finds out whether it is what it should be."""
        wal = log_of(self.path)
        had_log = damage.log_has_content(wal)
        is_suspicious = False
        if damage.log_header_is_damaged(wal):
            self._log_aside = database.keep_aside(wal)
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
            self._is_behind = True  # It cannot be asked, so whatever it has may be old.

    def _read_schema(self) -> dict[str, str] | None:
        """What the store says of itself; None when it was made now, or is one to be upgraded."""
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
        """Whether only a bit of the number was hit: the tables, and the change log, are ours."""
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
        """A new store; a kill on the way leaves no database, or one that is gone on with."""
        self.store_id = os.urandom(16)
        first = database.root(FIRST_TRANSACTION)
        database.make(self.path, self.path, [first], self.store_id)
        self.database = database.connect(self.path)
        self.transaction = FIRST_TRANSACTION
        self._begin_log(1, BEGINS, [first])

    def _make(self) -> None:
        """A new store in an empty database, which another program made."""
        assert self.database is not None
        self.store_id = os.urandom(16)
        first = database.root(FIRST_TRANSACTION)
        database.make_schema(self.database, [first], self.store_id)
        sync_directory(self.path.parent)
        self.transaction = FIRST_TRANSACTION
        self._begin_log(1, BEGINS, [first])

    def _check_format_1(self) -> None:
        """A store of format 1 has no records: only what it has itself can be told from damage."""
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
        """Ends of transactions and frames of SQLite's log that it passed over."""
        assert self.database is not None
        # A passive checkpoint tells how many frames SQLite accepted.
        _, accepted, _ = self.database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        commits, frames = damage.rejected_commits(wal, accepted)
        if commits > 1 and self._log_aside is None:
            self._log_aside = database.keep_aside(wal)
        return commits, frames

    def _compare(self, stored: dict[str, str], had_log: bool) -> bool:
        """Compares the database with the newest change log; whether both were closed cleanly."""
        path, closed = self._newest, self._closed
        if path is None:
            self._begin_again()
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

    def _begin_again(self) -> None:
        """There is no change log: a first start ended before it made one, or it was deleted."""
        assert self.database is not None
        (count,) = self.database.execute(
            "SELECT count(*) FROM (SELECT 1 FROM node LIMIT 2)"
        ).fetchone()
        if count > 1:
            folder = self.copies.folder
            self._tell(
                folder,
                f"the copies and change logs of the metadata in {folder} are missing; a new copy"
                " is made",
            )
        elif self.reason is None and not any(self.copies.numbers()):
            self.transaction = FIRST_TRANSACTION
            self._begin_log(1, BEGINS, [self._root()])

    def _check_owner(self, head: Head) -> None:
        if head.store_id != self.store_id and self.reason is None:
            raise MetadataError(
                f"the copies in {self.copies.folder} belong to another metadata store than"
                f" {self.path}; move them away, or put the right ones there"
            )

    def _read_log(self, path: Path) -> Content | None:
        try:
            content = read_file(path)
        except CorruptStore as error:
            self._tell(path, str(error))
            return None
        if content.damaged:
            self._tell(path, f"the change log {path} is damaged before its end")
            # Its last transaction is as good as ever to compare with; it is not gone on with.
            self.wants_copy = True
        return content

    def _has_last(self, content: Content) -> bool:
        """Whether the database has the last transaction that the change log has."""
        if not content.records:
            return True
        last = content.records[-1]
        return all(
            self._transaction_of(change) >= change.transaction
            for change in decode_changes(content.data, last)
        )

    def _transaction_of(self, change: Change) -> int:
        """The transaction by which the database has what a change is about; -1: it has nothing."""
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
        """Every page and row, if there are not many or there is a reason to."""
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
            self._go_on(newer)

    def _newest_transaction(self) -> int:
        """The last one of the newest change log, -1 when that log cannot be gone on with."""
        content = self._content
        if content is None or not content.records or content.damaged:
            return -1
        return content.records[-1].transaction

    # Doing.

    def _rebuild(self, keep_rest: bool) -> None:
        """Builds the database anew from all that is left, and opens it."""
        merged, recorded = self.plan(keep_rest)
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
            f"the metadata in {self.path} was damaged ({self.reason}) and was built anew:"
            f" {merged.summary()}; the damaged file is {aside}"
        )
        self.findings += recorded.findings
        self._tell(self.path, sentence, severity)
        self.database = database.connect(self.path)
        self._resume_after_rebuild(state, recorded)

    def _salvage(self) -> salvage.Found | None:
        """What can be read of the damaged database; None when that is nothing."""
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
            self._go_on([each for each in state.changes() if each.transaction > newest])

    def _go_on(self, newer: list[Change]) -> None:
        """Goes on with the newest change log, which gets what a power cut took from it."""
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
        """A new change log, because the one before is missing, damaged, or may lack something."""
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
        """Begins a change log; a disk that has no room for it leaves the store without one."""
        assert self.database is not None
        try:
            self.log = begin_log(self.copies, number, flags, self.store_id, self.transaction, first)
        except OSError as error:
            self.wants_copy = True
            self._tell(self.copies.folder, f"no change log can be written: {error}")

    def _upgrade(self) -> None:
        """Format 1 to 2: a copy of what there is, then a new database."""
        from pyxbroker.metadata import salvage

        assert self.database is not None
        found = salvage.read_rows(self.database, 1)
        merged = salvage.keep_what_is_left(found, Recorded())
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
        sentence = f"the metadata in {self.path} has the format 2 now; {aside} is how it was before"
        if merged.lost:
            sentence += f"; {merged.summary()}"
        self._tell(self.path, sentence, Severity.DAMAGED if merged.lost else Severity.NOTE)
        self.database = database.connect(self.path)
        self._begin_log(number, 0, [state.nodes["/"]])

    def _tell(self, file: Path, sentence: str, severity: Severity = Severity.NOTE) -> None:
        self.findings.append(Finding(severity, file, sentence))
        write = log.warning if severity is Severity.NOTE else log.error
        write(sentence)

    def close_database(self) -> None:
        opened, self.database = self.database, None
        if opened is not None:
            with suppress(sqlite3.Error):  # Of a damaged file, or the error is on its way already.
                opened.close()


def begin_log(
    copies: Copies,
    number: int,
    flags: int,
    store_id: bytes,
    transaction: int,
    first: list[Change],
) -> ChangeLog:
    """Makes a change log whose first record is one that the database has. Raises OSError."""
    copies.make_folder()
    head = new_head(number, flags, store_id, transaction)
    record = encode_record(head.seed, transaction, first)
    return ChangeLog.create(copies.log_path(number), head, record)


def continue_log(
    copies: Copies, former: ChangeLog, transaction: int, first: list[Change]
) -> ChangeLog:
    """The change log that follows another one without a gap. Raises OSError."""
    number = former.head.number + 1
    return begin_log(copies, number, CONTINUES, former.head.store_id, transaction, first)


def new_head(number: int, flags: int, store_id: bytes, transaction: int) -> Head:
    begun_ms = time.time_ns() // 1_000_000
    return Head(CHANGES_MAGIC, FORMAT_VERSION, flags, number, transaction, begun_ms, store_id)
