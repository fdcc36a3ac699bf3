"""Maintenance of the embedded metadata store, done by its thread while no operation is queued.

In order of urgency: sync the change log, checkpoint SQLite's log, write the next slice of a copy,
begin a copy, reserve space, and check everything once after the start. Each step is short, and
operations run in between. The change log is synced and SQLite's log is checkpointed when no commit
has arrived for a moment. Overdue work is done even while operations are queued.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pyxbroker.base.log import get_logger
from pyxbroker.metadata import damage, database
from pyxbroker.metadata.change_log import Change, read_file
from pyxbroker.metadata.copies import CopyWriter, is_whole, size_of
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.database import explain
from pyxbroker.metadata.embedded_files import Files
from pyxbroker.metadata.findings import Finding, Severity
from pyxbroker.metadata.opening import begin_log, continue_log
from pyxbroker.metadata.store import CorruptStore, MetadataError

SYNC_IDLE_S = 0.1
CHECKPOINT_IDLE_S = 0.2
COMMITS_PER_CHECKPOINT = 64
OVERDUE_S = 1.0
FIRST_COPY_S = 1.0
RESERVE_S = 2.0
CHECK_S = 3.0
RETRY_S = 60.0
DOUBT_S = 1.0
LOG_BYTES_PER_COPY_MIN = 1 << 20
FREE_PAGES_MIN = 32
FREE_PAGES = 64
STRUCTURE_CHECK_PAGES_MAX = 65_536  # 256 MiB, which takes half a second

log = get_logger(__name__)

CopyMade = Callable[[Path | MetadataError], None]


class Upkeep:
    """The maintenance of one open store; it runs on the store's thread."""

    def __init__(self, files: Files, settings: CopySettings) -> None:
        self._files = files
        self._settings = settings
        self._waiting: list[CopyMade] = []
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        self.due: float | None = now  # when `run` must be called at the latest; None: never
        self._last_commit = now
        self._unsynced_since: float | None = None
        self._uncheckpointed_since = now
        self._not_before = now + FIRST_COPY_S  # copies
        self._copy_due = 0.0
        self._plan_due: float | None = None
        self._copy_size = 0
        self._slices: Iterator[list[Change]] | None = None
        self._slice_due = 0.0
        self._reserve_due: float | None = now + RESERVE_S
        self._checking: Iterator[None] | None = None
        self._check_due: float | None = now + CHECK_S
        self._is_failure_logged = False
        self._is_doubted = False

    def start(self) -> None:
        """Schedule the work, after each open."""
        now = time.monotonic()
        self._begin(now)
        self._plan_copy()
        self.due, _ = self._next_step()

    def stop(self) -> None:
        """Fail pending requests for a copy, before the files are closed."""
        self._fail_copy(MetadataError("the metadata store was closed before the copy was finished"))

    def on_commit(self) -> None:
        """Schedule the work that a transaction with changes requires."""
        self._last_commit = now = time.monotonic()
        if self._unsynced_since is None:
            self._unsynced_since = now
        if self._files.commits_in_log <= 1:
            self._uncheckpointed_since = now
        if self.due is None or self.due > now + SYNC_IDLE_S:
            self.due = now + SYNC_IDLE_S

    def request_copy(self, made: CopyMade) -> None:
        """Make a copy as soon as possible; `made` receives its path, or the error."""
        self._waiting.append(made)
        self._not_before = self.due = 0.0
        if self._slices is None:
            self._files.wants_copy = True

    def do_everything(self) -> None:
        """Check everything and make a copy, in one call. Raises sqlite3.Error and OSError."""
        for _ in self._steps():
            continue
        self._begin_copy()
        while self._slices is not None:
            self._write_slice()

    def run(self) -> None:
        """Do the most urgent step that is due, if any. Raises nothing."""
        due, step = self._next_step()
        if due is not None and due <= time.monotonic():
            try:
                step()
            except Exception as error:
                self._on_error(error)
            due, _ = self._next_step()
        self.due = due

    def _next_step(self) -> tuple[float | None, Callable[[], None]]:
        files = self._files
        change_log = files.log
        if files.failure is not None:
            return None, _nothing
        candidates: list[tuple[float, Callable[[], None]]] = []
        if change_log is not None and not change_log.is_synced:
            late = (self._unsynced_since or self._last_commit) + OVERDUE_S
            candidates.append((min(self._last_commit + SYNC_IDLE_S, late), self._sync))
        if files.commits_in_log >= COMMITS_PER_CHECKPOINT:
            late = self._uncheckpointed_since + OVERDUE_S
            candidates.append((min(self._last_commit + CHECKPOINT_IDLE_S, late), self._checkpoint))
        if self._slices is not None:
            candidates.append((self._slice_due, self._write_slice))
        elif files.wants_copy or (
            change_log is not None and change_log.added_bytes > self._log_bytes_max()
        ):
            candidates.append((self._not_before, self._begin_copy))
        elif change_log is not None and change_log.added_bytes and self._settings.interval_s:
            candidates.append((max(self._copy_due, self._not_before), self._begin_copy))
        if self._plan_due is not None:
            candidates.append((self._plan_due, self._plan_copy))
        if self._reserve_due is not None:
            candidates.append((self._reserve_due, self._reserve))
        if self._check_due is not None:
            candidates.append((self._check_due, self._check_next))
        if not candidates:
            return None, _nothing
        return min(candidates, key=_due_of)

    def _sync(self) -> None:
        self._unsynced_since = None
        self._files.sync_log()

    def _checkpoint(self) -> None:
        self._sync()
        self._files.checkpoint()

    # Copies.

    def _log_bytes_max(self) -> int:
        """Return the size of the change log, half of the last copy, at which a copy is due."""
        return max(LOG_BYTES_PER_COPY_MIN, self._copy_size // 2)

    def _plan_copy(self) -> None:
        """Determine when the next copy begins, and after how many changes at the latest."""
        files = self._files
        now = time.monotonic()
        self._copy_due = now + self._settings.interval_s
        try:
            copies, _ = files.copies.numbers()
            self._copy_size = size_of(files.copies.copy_path(copies[-1])) if copies else 0
            self._plan_due = None
        except OSError as error:
            self._plan_due = now + RETRY_S
            log.warning("the folder of metadata copies cannot be read, retrying", error=error)
        if files.log is not None:
            age_s = time.time() - files.log.head.begun_ms / 1000
            left_s = min(max(self._settings.interval_s - age_s, 0), self._settings.interval_s)
            self._copy_due = now + left_s

    def _begin_copy(self) -> None:
        """Start a new change log, then a copy of the state before it."""
        files = self._files
        changes = files.last_changes()
        transaction = max(change.transaction for change in changes)
        self._sync()
        if files.log is not None:
            change_log = continue_log(files.copies, files.log, transaction, changes)
            files.log.close()
        else:
            copies, logs = files.copies.numbers()
            number = max([0, *copies, *logs]) + 1
            change_log = begin_log(files.copies, number, 0, files.store_id, transaction, changes)
        files.log = change_log
        files.copy = CopyWriter(files.copies.copy_path(change_log.head.number), change_log.head)
        files.wants_copy = False
        self._slices = files.slices()
        self._slice_due = time.monotonic()

    def _write_slice(self) -> None:
        files = self._files
        assert self._slices is not None
        if files.copy is None:  # It was abandoned and is started again later.
            self._slices = None
            self._not_before = time.monotonic() + RETRY_S
            files.wants_copy = True
            return
        rows = next(self._slices, None)
        if rows is not None:
            files.copy.add(rows)
            self._slice_due = time.monotonic()
            return
        self._sync()
        copy, files.copy, self._slices = files.copy, None, None
        copy.finish(files.transaction)
        self._is_failure_logged = False
        files.copies.prune(self._settings)
        files.forget_deletions()
        self._plan_copy()
        self._reserve_due = time.monotonic()
        waiting, self._waiting = self._waiting, []
        for made in waiting:
            made(copy.path)

    def _fail_copy(self, error: MetadataError) -> None:
        files = self._files
        self._slices = None
        if files.copy is not None:
            files.copy.abandon()
            files.copy = None
        waiting, self._waiting = self._waiting, []
        for made in waiting:
            made(error)

    # Reserved space, and the check of everything.

    def _reserve(self) -> None:
        """Allocate SQLite's log and unused pages in the database, for use when the disk is full."""
        self._reserve_due = time.monotonic() + RETRY_S  # if it fails
        files = self._files
        database.allocate_log(files.path)
        files.keep_free_pages(FREE_PAGES_MIN, FREE_PAGES)
        self._reserve_due = None

    def _check_next(self) -> None:
        if self._checking is None:
            self._checking = self._steps()
        if next(self._checking, self) is self:
            self._check_due = self._checking = None
        else:
            self._check_due = time.monotonic()

    def _steps(self) -> Iterator[None]:
        """Check everything that the start did not check; repair and report damage."""
        files = self._files
        if not files.is_checked:
            files.check_structure(STRUCTURE_CHECK_PAGES_MAX)
            yield
            for _ in files.slices():
                yield
            files.is_checked = True
        copies, logs = files.copies.numbers()
        for number in copies:
            self._check_file(files.copies.copy_path(number), is_copy=True)
            yield
        for number in logs:
            self._check_file(files.copies.log_path(number), is_copy=False)
            yield

    def _check_file(self, path: Path, is_copy: bool) -> None:
        try:
            content = read_file(path)
        except FileNotFoundError:
            return
        except CorruptStore as error:
            sentence = str(error)
        else:
            if not content.damaged and (not is_copy or is_whole(content)):
                return
            sentence = f"the metadata file {path} is damaged"
        self._files.report(
            Finding(Severity.REPAIRED, path, f"{sentence}; making a new copy of the metadata")
        )
        if is_copy:
            path.replace(path.with_name(path.name + ".damaged"))
        self._files.wants_copy = True

    def _on_error(self, error: Exception) -> None:
        if damage.is_damage(error):
            error = self._files.read_error() or error
        if damage.is_damage(error) and self._is_doubted:
            self._is_doubted = False
            self._fail_copy(explain(self._files.path, error))
            self._checking = None
            self._files.heal(str(error))
            return
        # Possibly a failed read; a second failure is taken for damage.
        self._is_doubted = damage.is_damage(error)
        explained = explain(self._files.path, error)
        if isinstance(error, (OSError, sqlite3.Error)) and self._is_failure_logged:
            log.debug("maintenance of the metadata failed again", error=explained)
        else:
            log.warning("maintenance of the metadata failed", retry_s=RETRY_S, error=explained)
        self._is_failure_logged = True
        is_copying = self._slices is not None
        self._fail_copy(explained)
        self._not_before = time.monotonic() + (DOUBT_S if self._is_doubted else RETRY_S)
        if is_copying:
            self._files.wants_copy = True
        if self._check_due is not None:
            self._checking = None
            self._check_due = time.monotonic() + (DOUBT_S if self._is_doubted else RETRY_S)


def _due_of(candidate: tuple[float, Callable[[], None]]) -> float:
    return candidate[0]


def _nothing() -> None:
    """Do nothing."""
