"""Cuts the power: takes back what no completed sync covers, from the undo log of powercut.c.

The rule for what a disk may have lost is strict (see powercut.c): bytes and size of a file survive
by fsync, fdatasync or a synchronous write of that file, a name survives by fsync of its directory.
Of the rest one of four things is kept, the ``Mode``:

``NOTHING``  every uncovered write is lost
``PREFIX``   the oldest uncovered changes up to a random moment are kept, the last one torn
``FILES``    the same, but each file and each directory has its own moment
``SECTORS``  each 512-byte sector of each uncovered write is kept or lost by itself, names as FILES

A torn write keeps some of its 512-byte sectors, from its start.
"""

from __future__ import annotations

import enum
import os
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR_BYTES = 512
_HEAD = struct.Struct("<IIQQQQQII")
_MAGIC = 0x31554350
OLD_BYTES, DONE, SYNC_BEGIN, SYNC_END, CREATE, MKDIR = range(1, 7)
UNLINK, RMDIR, RENAME, VOLATILE, UNCOVERED = range(7, 12)
_ZEROS, _DURABLE = 1, 2
_NAME_KINDS = (CREATE, MKDIR, UNLINK, RMDIR, RENAME)


class Mode(enum.Enum):
    """What of the uncovered changes the disk keeps."""

    NOTHING = "nothing"
    PREFIX = "prefix"
    FILES = "files"
    SECTORS = "sectors"


class UncoveredCall(Exception):
    """The program used a call that the simulator cannot follow; its verdict would be worthless."""


@dataclass
class Piece:
    """Old bytes of a part of one write; ``log_offset`` is where they lie in the log."""

    offset: int
    length: int
    zeros: bool
    log_offset: int
    log_bytes: int


@dataclass
class Change:
    """One call: a change of data and size of a file, or of names."""

    order: int
    kind: int
    inode: int  # the file, or the directory of the name
    old_size: int = 0
    durable: bool = False
    pieces: list[Piece] = field(default_factory=list)
    target: int = 0  # RENAME: inode of the folder it goes to
    entry: int = 0  # inode of the renamed or unlinked entry
    name: str = ""
    new_name: str = ""
    grave: str = ""
    done_at: int | None = None
    waits_for: set[int] = field(default_factory=set)  # folders a rename still needs synced


@dataclass
class Report:
    """What one cut did."""

    mode: Mode
    changes: int = 0
    uncovered: int = 0
    kept: int = 0
    bytes_lost: int = 0
    names_lost: list[str] = field(default_factory=list)


class UndoLog:
    """The log of one life of the program: all changes, and which of them a sync covers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes: list[Change] = []
        self.volatile: set[int] = set()
        self.uncovered_calls: list[str] = []
        self._open: dict[int, Change] = {}
        self._syncs: dict[int, int] = {}
        self._pending: dict[int, list[Change]] = {}
        for order, record in enumerate(self._records()):
            self._take(order, *record)

    def _records(self) -> Iterator[tuple[tuple[int, ...], int, bytes]]:
        with self.path.open("rb") as log:
            while True:
                raw = log.read(_HEAD.size)
                # A kill may have cut the last record short; its call had not begun.
                if len(raw) < _HEAD.size:
                    return
                head = _HEAD.unpack(raw)
                assert head[0] == _MAGIC, "the undo log is damaged"
                at, size = log.tell(), head[8]
                if head[1] == OLD_BYTES:
                    log.seek(size, os.SEEK_CUR)
                    yield head, at, b""
                else:
                    tail = log.read(size)
                    if len(tail) < size:
                        return
                    yield head, at, tail

    def _take(self, order: int, head: tuple[int, ...], at: int, tail: bytes) -> None:
        _, kind, operation, inode, offset, length, old_size, flags, size = head
        if kind == OLD_BYTES:
            change = self._open.get(operation)
            if change is None:
                change = Change(order, kind, inode, old_size, bool(flags & _DURABLE))
                self._begin(operation, change, inode)
            change.pieces.append(Piece(offset, length, bool(flags & _ZEROS), at, size))
        elif kind in _NAME_KINDS:
            name, new_name, grave = (part.decode() for part in tail.split(b"\0"))
            change = Change(order, kind, inode, target=length, entry=offset, name=name)
            change.new_name, change.grave = new_name, grave
            self._begin(operation, change, inode)
            if length and length != inode:
                change.waits_for = {inode, length}
                self._pending.setdefault(length, []).append(change)
        elif kind == DONE:
            self._open.pop(operation).done_at = order
        elif kind == SYNC_BEGIN:
            self._syncs[operation] = order
        elif kind == SYNC_END:
            self._cover(self._syncs.pop(operation), inode)
        elif kind == VOLATILE:
            self.volatile.add(inode)
        elif kind == UNCOVERED:
            self.uncovered_calls.append(tail.decode())

    def _begin(self, operation: int, change: Change, inode: int) -> None:
        self._open[operation] = change
        self.changes.append(change)
        self._pending.setdefault(inode, []).append(change)

    def _cover(self, began: int, inode: int) -> None:
        """A sync that began at ``began`` ended: what was done before it is durable."""
        for one in list(self._pending) if inode == 0 else [inode]:
            left = []
            for change in self._pending.get(one, ()):
                if change.done_at is not None and change.done_at < began:
                    change.waits_for.discard(one)
                    change.durable = not change.waits_for
                else:
                    left.append(change)
            self._pending[one] = left


class PowerCut:
    """Applies one cut to the tree ``root`` after the program was killed."""

    def __init__(self, root: Path, log: Path, generator: random.Random, mode: Mode) -> None:
        self.root = root
        self.random = generator
        self.report = Report(mode)
        self.log = UndoLog(log)
        self._kept: set[int] = set()
        self._torn: int | None = None

    def forget_syncs(self) -> None:
        """Take back everything since the start, which proves that the log missed nothing."""
        for change in self.log.changes:
            change.durable = False

    def apply(self) -> Report:
        """Undo; raises ``UncoveredCall`` when the log cannot tell the whole truth."""
        if self.log.uncovered_calls:
            raise UncoveredCall("; ".join(sorted(set(self.log.uncovered_calls))))
        lost = [change for change in self.log.changes if not change.durable]
        self.report.changes = len(self.log.changes)
        self.report.uncovered = len(lost)
        self._choose(lost)
        self.report.kept = len(self._kept)
        self._undo_data()
        for change in reversed(lost):
            if change.kind in _NAME_KINDS and change.order not in self._kept:
                self._undo_name(change)
        return self.report

    def _choose(self, lost: list[Change]) -> None:
        """Fill the set of uncovered changes that the disk happens to keep."""
        mode = self.report.mode
        if mode is Mode.NOTHING or not lost:
            return
        if mode is Mode.PREFIX:
            kept = lost[: self.random.randint(0, len(lost))]
            self._kept = {change.order for change in kept}
            if kept and kept[-1].kind == OLD_BYTES:
                self._torn = kept[-1].order
            return
        groups: dict[int, list[Change]] = {}
        for change in lost:
            groups.setdefault(self._group(change), []).append(change)
        for group in groups.values():
            kept = group[: self.random.randint(0, len(group))]
            self._kept.update(change.order for change in kept)
        if mode is Mode.FILES:
            last = [c for c in lost if c.order in self._kept and c.kind == OLD_BYTES]
            self._torn = last[-1].order if last else None

    def _group(self, change: Change) -> int:
        # A rename from one folder to another ties the two, so names share one moment.
        return change.inode if change.kind == OLD_BYTES else 0

    def _paths(self) -> dict[int, list[Path]]:
        paths: dict[int, list[Path]] = {self.root.stat().st_ino: [self.root]}
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = Path(folder, name)
                paths.setdefault(path.lstat().st_ino, []).append(path)
        return paths

    def _undo_data(self) -> None:
        """Restore files while their present names and graves still lead to them."""
        places = self._paths()
        for change in self.log.changes:
            if change.grave and Path(change.grave).exists():
                places.setdefault(Path(change.grave).stat().st_ino, []).append(Path(change.grave))
        files: dict[int, list[Change]] = {}
        for change in self.log.changes:
            if change.kind == OLD_BYTES:
                files.setdefault(change.inode, []).append(change)
        for inode, changes in files.items():
            if inode in places and not all(change.durable for change in changes):
                self._undo_file(places[inode][0], changes)
        for inode in self.log.volatile & places.keys():
            for path in places[inode]:
                os.truncate(path, 0)

    def _undo_file(self, path: Path, changes: list[Change]) -> None:
        sectors = self.report.mode is Mode.SECTORS
        held = [change.durable or change.order in self._kept for change in changes]
        last = max((n for n, keep in enumerate(held) if keep), default=-1)
        with path.open("r+b") as file, self.log.path.open("rb") as log:
            now = os.fstat(file.fileno()).st_size
            size = changes[last + 1].old_size if last + 1 < len(changes) else now
            pinned: set[int] = set()
            needs_pins = sectors or any(
                keep and not all(held[:number]) for number, keep in enumerate(held)
            )
            for number in reversed(range(len(changes))):
                change = changes[number]
                if all(held[: number + 1]) and change.order != self._torn:
                    break
                files = (file.fileno(), log.fileno())
                self._undo_write(files, change, not held[number], size, pinned, needs_pins)
            os.ftruncate(file.fileno(), size)

    def _undo_write(
        self,
        files: tuple[int, int],
        change: Change,
        lose: bool,
        size: int,
        pinned: set[int],
        needs_pins: bool,
    ) -> None:
        """Take one write back, sector by sector where the mode wants that."""
        file, log = files
        by_sector = self.report.mode is Mode.SECTORS and not change.durable
        tear = change.order == self._torn
        start = change.pieces[0].offset if change.pieces else 0
        total = sum(piece.length for piece in change.pieces)
        sectors = total // SECTOR_BYTES
        torn_at = start - start % SECTOR_BYTES + self.random.randint(0, sectors) * SECTOR_BYTES
        whole = lose and not by_sector and not tear and not needs_pins
        for piece in change.pieces:
            old = os.pread(log, piece.log_bytes, piece.log_offset)
            if whole:
                part = old.ljust(piece.length, b"\0")[: max(0, size - piece.offset)]
                os.pwrite(file, part, piece.offset)
                self.report.bytes_lost += len(part)
                continue
            for at, part in _sectors(piece, old, min(piece.offset + piece.length, size)):
                sector = at // SECTOR_BYTES
                if sector in pinned:
                    continue
                if by_sector:
                    gone = self.random.random() < 0.5
                elif tear:
                    gone = at >= torn_at
                else:
                    gone = lose
                if gone:
                    os.pwrite(file, part, at)
                    self.report.bytes_lost += len(part)
                elif needs_pins:
                    pinned.add(sector)

    def _folder(self, inode: int) -> Path | None:
        return self._paths().get(inode, [None])[0]

    def _undo_name(self, change: Change) -> None:
        folder = self._folder(change.inode)
        if folder is None:
            return  # The folder itself was lost with everything in it.
        path = folder / change.name
        if change.kind == CREATE:
            path.unlink(missing_ok=True)
        elif change.kind == MKDIR:
            if path.exists():
                shutil.rmtree(path)
        elif change.kind == RMDIR:
            path.mkdir(exist_ok=True)
        elif change.kind == UNLINK:
            if change.grave and not path.exists():
                os.link(change.grave, path)
        elif change.kind == RENAME:
            self._undo_rename(change, path)
        self.report.names_lost.append(f"{_KIND_NAMES[change.kind]} {path.relative_to(self.root)}")

    def _undo_rename(self, change: Change, old: Path) -> None:
        folder = self._folder(change.target)
        if folder is None:
            return
        new = folder / change.new_name
        # A rename that the kill stopped before it ran has nothing to undo.
        if new.exists() and new.stat().st_ino == change.entry:
            new.rename(old)
            if change.grave:
                os.link(change.grave, new)


_KIND_NAMES = {CREATE: "create", MKDIR: "mkdir", UNLINK: "unlink", RMDIR: "rmdir", RENAME: "rename"}


def _sectors(piece: Piece, old: bytes, end: int) -> Iterator[tuple[int, bytes]]:
    """The piece below ``end``, cut at sector borders, with the bytes it held before."""
    at = piece.offset
    while at < end:
        step = min(SECTOR_BYTES - at % SECTOR_BYTES, end - at)
        begin = at - piece.offset
        part = old[begin : begin + step]
        yield at, part + bytes(step - len(part))
        at += step
