"""The folder of copies and change logs: the embedded store's record in addition to its database.

It is a sibling of the store's directory, so that it survives the deletion of that directory:

  0000000007.copy     the whole store as of one transaction
  0000000007.changes  every transaction from the start of copy 7 to the start of copy 8
  0000000008.copy
  0000000008.changes  the current change log

The store equals any intact copy plus all change logs from its number on. A copy is written in
slices between transactions. Rows that change meanwhile occur twice in it, and the later transaction
counts. metadata/change_log.py describes the files byte by byte.
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
    decode_head,
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
    """The newest change of each path, for nodes (including deleted ones) and counters."""

    def __init__(self) -> None:
        self.nodes: dict[str, Change] = {}
        self.counters: dict[str, Change] = {}
        self.transaction = 0

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply each change that is not older than the known one of its path."""
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
        """Return the state as changes that recreate it in any order."""
        numbers = self.counters.values()
        return [*self.nodes.values(), *(each for each in numbers if each.kind == COUNTER)]

    def live(self) -> int:
        """Return the number of existing nodes."""
        return sum(change.kind not in GONE for change in self.nodes.values())


class Recorded:
    """The content of copies and change logs. `is_complete`: no transaction is missing, except for
    the last ones after a power cut.
    """

    def __init__(
        self, state: State | None = None, is_complete: bool = False, copy: Path | None = None
    ) -> None:
        self.state = State() if state is None else state
        self.is_complete = is_complete
        self.copy = copy
        self.changes = 0  # records applied from change logs
        self.findings: list[Finding] = []


class Copies:
    """The files of the folder. Every method blocks and raises OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def copy_path(self, number: int) -> Path:
        return self.folder / f"{number:010d}.copy"

    def log_path(self, number: int) -> Path:
        return self.folder / f"{number:010d}.changes"

    def numbers(self) -> tuple[list[int], list[int]]:
        """Return the numbers of copies and of change logs, ascending."""
        found: dict[str, list[int]] = {"copy": [], "changes": []}
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 - only names are needed
        except FileNotFoundError:
            names = []
        for name in names:
            match = _NAME.fullmatch(name)
            if match:
                found[match[2]].append(int(match[1]))
        return sorted(found["copy"]), sorted(found["changes"])

    def make_folder(self) -> None:
        make_directory(self.folder)

    def load(
        self, copy: int | None = None, with_changes: bool = True, until: int | None = None
    ) -> Recorded:
        """Load the given copy, or the newest intact one, and the change logs since then, up to the
        transaction `until`.
        """
        recorded = Recorded()
        copies, logs = self.numbers()
        base = None
        for number in reversed(copies) if copy is None else [copy]:
            content = self._read(self.copy_path(number), recorded.findings)
            if content is not None and content.head.magic == COPY_MAGIC and is_whole(content):
                if until is not None and content.records[-1].transaction > until:
                    continue
                recorded.copy = self.copy_path(number)
                _take(recorded.state, content)
                base = number
                break
            if content is not None:
                recorded.findings.append(_damaged(self.copy_path(number)))
        if with_changes:
            self._load_logs(recorded, base, logs, until)
        return recorded

    def _load_logs(
        self, recorded: Recorded, base: int | None, logs: list[int], until: int | None
    ) -> None:
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
            _take(recorded.state, content, until)
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
        """Remove copies beyond the configured number and age, and change logs older than those.

        At least two copies, or one and all changes since the store began, are retained, so that one
        damaged copy loses nothing.
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
    """Return True if a copy is complete and undamaged."""
    records = content.records
    return bool(records) and records[-1].type == COPY_END and not content.damaged


def _take(state: State, content: Content, until: int | None = None) -> None:
    for record in content.records:
        if until is not None and record.transaction > until:
            return
        state.apply(decode_changes(content.data, record))
        state.transaction = max(state.transaction, record.transaction)


def _damaged(path: Path) -> Finding:
    return Finding(Severity.DAMAGED, path, f"{path} is damaged")


class CopyWriter:
    """A copy that is being written, from rows and concurrent transactions. Raises OSError."""

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
        """Add rows, each with the transaction that wrote it."""
        if changes:
            self._nodes += sum(change.kind == NODE for change in changes)
            newest = max(change.transaction for change in changes)
            self._write(encode_record(self.head.seed, newest, changes))

    def add_record(self, record: bytes) -> None:
        """Add a transaction that was committed while the copy is written."""
        self._write(record)

    def _write(self, data: bytes) -> None:
        try:
            write_fully(self._fd, data, self._end)
            self._end += len(data)
            if self._end - self._synced >= SYNC_BYTES:
                # Incrementally, so that no sync takes long.
                os.fdatasync(self._fd)
                self._synced = self._end
        except OSError as error:
            raise with_path(error, self._temporary) from None

    def finish(self, transaction: int) -> None:
        """Complete the copy and rename it to its final name, durably."""
        self._write(encode_copy_end(self.head.seed, transaction, self._nodes))
        finish_file(self._fd, self._temporary, self.path)
        self._close()

    def abandon(self) -> None:
        """Close and remove the incomplete copy, as far as the disk allows. Raises nothing."""
        try:
            self._close()
        except OSError as error:
            log.warning("closing an incomplete copy failed", file=self._temporary, error=error)
        try:
            self._temporary.unlink(missing_ok=True)
        except OSError as error:
            log.warning("an incomplete copy cannot be removed", file=self._temporary, error=error)

    def _close(self) -> None:
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


def write_copy(path: Path, head: Head, state: State) -> None:
    """Write a state as one copy. Raises OSError, and leaves no file then."""
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
    """Read a copy from any path. Raises CorruptStore if it is damaged, and OSError."""
    content = read_file(path)
    if content.head.magic != COPY_MAGIC or not is_whole(content):
        raise CorruptStore(f"{path} is not a complete copy of metadata, or it is damaged")
    state = State()
    _take(state, content)
    return content.head, state


def read_head(path: Path) -> Head:
    """Return the header of a copy or a change log. Raises CorruptStore, and OSError."""
    with path.open("rb") as file:
        return decode_head(path, file.read(HEAD_BYTES))


def size_of(path: Path) -> int:
    """Return the size of a file's records, 0 if there is no file."""
    try:
        return path.stat().st_size - HEAD_BYTES
    except FileNotFoundError:
        return 0
