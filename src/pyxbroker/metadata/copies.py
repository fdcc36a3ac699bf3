"""The folder of copies: what the embedded store knows besides its database.

It lies beside the store's directory, so that it stays when somebody deletes that one:

  0000000007.copy     the whole store as it was after one transaction
  0000000007.changes  every transaction since copy 7 was begun, until copy 8 was
  0000000008.copy
  0000000008.changes  the one that is being written

So the store is any intact copy and all change logs from its number on. A copy is written in slices
between transactions: rows that change meanwhile are in it twice, and the later transaction counts.
metadata/change_log.py describes the files byte by byte.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from pyxbroker.base.directories import (
    finish_file,
    make_directory,
    open_file,
    temporary_of,
    with_path,
    write_fully,
)
from pyxbroker.base.log import get_logger
from pyxbroker.metadata.change_log import (
    ABSENT,
    BEGINS,
    CONTINUES,
    COPY_END,
    COPY_MAGIC,
    COUNTER,
    DELETED,
    HEAD_BYTES,
    NODE,
    Change,
    Content,
    Head,
    decode_changes,
    encode_copy_end,
    encode_head,
    encode_record,
    read_file,
)
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.findings import Finding, Severity
from pyxbroker.metadata.store import CorruptStore

SYNC_BYTES = 1 << 20

GONE = (DELETED, ABSENT)

_NAME = re.compile(r"(\d{10})\.(copy|changes)")

log = get_logger(__name__)


class State:
    """The newest change of each path, of nodes (also deleted ones) and of counters."""

    def __init__(self) -> None:
        self.nodes: dict[str, Change] = {}
        self.counters: dict[str, Change] = {}
        self.transaction = 0

    def apply(self, changes: Iterable[Change]) -> None:
        """Takes each change that is not older than what is known of its path."""
        nodes, counters = self.nodes, self.counters
        for change in changes:
            kind, path, transaction = change[:3]
            if transaction > self.transaction:
                self.transaction = transaction
            if kind in (COUNTER, *GONE):
                before = counters.get(path)
                if before is None or before.transaction <= transaction:
                    counters[path] = change
            if kind != COUNTER:
                before = nodes.get(path)
                if before is None or before.transaction <= transaction:
                    nodes[path] = change

    def changes(self) -> list[Change]:
        """What there is, as changes that make it again in any order."""
        numbers = self.counters.values()
        return [*self.nodes.values(), *(each for each in numbers if each.kind == COUNTER)]

    def live(self) -> int:
        """The number of nodes that are there."""
        return sum(change.kind not in GONE for change in self.nodes.values())


class Recorded:
    """What copies and change logs say. `is_complete`: they lack nothing but, after a power cut,
    the last transactions.
    """

    def __init__(
        self, state: State | None = None, is_complete: bool = False, copy: Path | None = None
    ) -> None:
        self.state = State() if state is None else state
        self.is_complete = is_complete
        self.copy = copy
        self.changes = 0  # records of change logs after the copy
        self.findings: list[Finding] = []


class Copies:
    """The files of the folder; every method blocks and raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def copy_path(self, number: int) -> Path:
        return self.folder / f"{number:010d}.copy"

    def log_path(self, number: int) -> Path:
        return self.folder / f"{number:010d}.changes"

    def numbers(self) -> tuple[list[int], list[int]]:
        """The numbers of copies and of change logs, ascending."""
        found: dict[str, list[int]] = {"copy": [], "changes": []}
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 - names are all that is wanted
        except FileNotFoundError:
            names = []
        for name in names:
            match = _NAME.fullmatch(name)
            if match:
                found[match[2]].append(int(match[1]))
        return sorted(found["copy"]), sorted(found["changes"])

    def make_folder(self) -> None:
        make_directory(self.folder)

    def load(self, copy: int | None = None, with_changes: bool = True) -> Recorded:
        """All that is recorded: the newest intact copy (or that one) and the logs since."""
        recorded = Recorded()
        copies, logs = self.numbers()
        base = None
        for number in reversed(copies) if copy is None else [copy]:
            content = self._read(self.copy_path(number), recorded.findings)
            if content is not None and content.head.magic == COPY_MAGIC and is_whole(content):
                recorded.copy = self.copy_path(number)
                _take(recorded.state, content)
                base = number
                break
            if content is not None:
                recorded.findings.append(_damaged(self.copy_path(number)))
        if with_changes:
            self._load_logs(recorded, base, logs)
        return recorded

    def _load_logs(self, recorded: Recorded, base: int | None, logs: list[int]) -> None:
        following = [number for number in logs if base is None or number >= base]
        first = following[0] if following else 0
        is_complete = following == list(range(first, first + len(following))) and bool(following)
        is_complete &= base is None or first == base
        for number in following:
            content = self._read(self.log_path(number), recorded.findings)
            if content is None:
                is_complete = False
                continue
            if number == first:
                is_complete &= base is not None or bool(content.head.flags & BEGINS)
            else:
                is_complete &= bool(content.head.flags & CONTINUES)
            if content.damaged:
                is_complete = False
                recorded.findings.append(_damaged(self.log_path(number)))
            recorded.changes += len(content.records)
            _take(recorded.state, content)
        recorded.is_complete = is_complete

    @staticmethod
    def _read(path: Path, findings: list[Finding]) -> Content | None:
        try:
            return read_file(path)
        except FileNotFoundError:
            findings.append(Finding(Severity.DAMAGED, path, f"{path} is missing"))
        except CorruptStore as error:
            findings.append(Finding(Severity.DAMAGED, path, str(error)))
        return None

    def prune(self, settings: CopySettings) -> None:
        """Removes copies that need not be kept, and the change logs that only those want.

        Two copies, or one and all changes since the beginning, are left in any case: one damaged
        copy must not cost anything.
        """
        copies, logs = self.numbers()
        if len(copies) < 2:
            return
        oldest_s = time.time() - settings.kept_s
        kept = copies[-max(settings.kept, 2) :]
        kept += [n for n in copies if self.copy_path(n).stat().st_mtime > oldest_s]
        for number in copies:
            if number not in kept:
                self.copy_path(number).unlink()
        for number in logs:
            if number < min(kept):
                self.log_path(number).unlink()


def is_whole(content: Content) -> bool:
    """Whether a copy goes to its end and nothing of it is damaged."""
    records = content.records
    return bool(records) and records[-1].type == COPY_END and not content.damaged


def _take(state: State, content: Content) -> None:
    for record in content.records:
        state.apply(decode_changes(content.data, record))
        state.transaction = max(state.transaction, record.transaction)


def _damaged(path: Path) -> Finding:
    return Finding(Severity.DAMAGED, path, f"{path} is damaged")


class CopyWriter:
    """A copy on its way: rows and the transactions that come meanwhile. Raises OSError."""

    def __init__(self, path: Path, head: Head) -> None:
        self.path = path
        self.head = head._replace(magic=COPY_MAGIC)
        self._temporary = temporary_of(path)
        self._fd = open_file(self._temporary, truncate=True)
        self._end = 0
        self._synced = 0
        self._nodes = 0
        try:
            self._write(encode_head(self.head))
        except BaseException:
            self.abandon()
            raise

    def add(self, changes: list[Change]) -> None:
        """Adds rows, each with the transaction that wrote it."""
        if changes:
            self._nodes += sum(change.kind == NODE for change in changes)
            newest = max(change.transaction for change in changes)
            self._write(encode_record(self.head.seed, newest, changes))

    def add_record(self, record: bytes) -> None:
        """Adds a transaction that the store made meanwhile."""
        self._write(record)

    def _write(self, data: bytes) -> None:
        try:
            write_fully(self._fd, data, self._end)
            self._end += len(data)
            if self._end - self._synced >= SYNC_BYTES:
                # In steps, so that no sync takes long.
                os.fdatasync(self._fd)
                self._synced = self._end
        except OSError as error:
            raise with_path(error, self._temporary) from None

    def finish(self, transaction: int) -> None:
        """Gives the copy its name; it is durable when this returns."""
        self._write(encode_copy_end(self.head.seed, transaction, self._nodes))
        finish_file(self._fd, self._temporary, self.path)
        self._close()

    def abandon(self) -> None:
        """Removes what was written, unless the disk refuses even that. Raises nothing."""
        try:
            self._close()
        except OSError as error:
            log.warning("a copy was not closed well", file=self._temporary, error=error)
        try:
            self._temporary.unlink(missing_ok=True)
        except OSError as error:
            log.warning("what was written of a copy stays", file=self._temporary, error=error)

    def _close(self) -> None:
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


def write_copy(path: Path, head: Head, state: State) -> None:
    """Writes a whole state as one copy. Raises OSError, and leaves nothing then."""
    writer = CopyWriter(path, head)
    try:
        changes = state.changes()
        for start in range(0, len(changes), 256):
            writer.add(changes[start : start + 256])
        writer.finish(state.transaction)
    except BaseException:
        writer.abandon()
        raise


def read_copy(path: Path) -> tuple[Head, State]:
    """A copy, wherever it is. Raises CorruptStore when it is damaged, and OSError."""
    content = read_file(path)
    if content.head.magic != COPY_MAGIC or not is_whole(content):
        raise CorruptStore(f"{path} is not a whole copy of metadata, or it is damaged")
    state = State()
    _take(state, content)
    return content.head, state


def size_of(path: Path) -> int:
    """The size of a file's records, 0 when there is no file."""
    try:
        return path.stat().st_size - HEAD_BYTES
    except FileNotFoundError:
        return 0
