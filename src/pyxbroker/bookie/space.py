"""Whether anything can be stored, and a reserve of space for the time when others filled the disk.

A file system is short when it has less free space than what is in memory needs on its way to the
disk: both generations of the write cache where entry logs are, one journal file where the journal
is, METADATA_BYTES where the metadata is; where several of them share a file system, the sum. Then
nothing more is taken from producers, so that no write that has begun meets the end of the disk. It
is short no more when there is a quarter more than that, so that it does not come and go.

The reserve is a file of blocks that are allocated and never written. It is given back when
something could not be written for want of space, and when the disk is full at the start: what it
leaves is for deleting, acknowledging, trimming, one flush and a start, which all make space. It is
made again as soon as there is space for it. What counts as free is always what would be free with
the reserve made, or the reserve that was given back would be published away.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from pyxbroker.base.directories import NO_SPACE, open_file, sync_directory
from pyxbroker.base.errors import with_reference
from pyxbroker.base.log import get_logger, reference_to
from pyxbroker.base.named_tuple import NamedTuple

log = get_logger("pyxbroker.bookie")

RESERVE_NAME = "reserve"
METADATA_BYTES = 8 << 20
"""For the change log of the metadata, and what its database grows by."""
SHARE_MAX = 0.25
"""A small file system is not short as long as this part of it is free."""
RESERVE_SHARE = 8
"""The reserve takes at most one part in this many of a file system."""
MARGIN = 1.25
"""What was short has to have this much more than is needed."""
ROOM_BYTES = 16 << 20
"""With less, the reserve is given back for a start (a first journal file, metadata) or a stop (the
flush of what is in memory)."""
_CANNOT_STORE = "messages cannot be stored"
_MIB = 1 << 20


class Usage(NamedTuple):
    """What a file system has, in bytes."""

    free: int  # for a user without privileges
    total: int

    @property
    def used_part(self) -> float:
        return 1 - self.free / self.total if self.total else 0.0


def usage_of(path: Path) -> Usage:
    """The file system that a path is on, or will be on when it is made. Raises OSError."""
    found = os.statvfs(_existing(path))
    return Usage(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


class Reserve:
    """A file of allocated blocks that is given back when there is no other space."""

    def __init__(self, directory: Path, size: int) -> None:
        self.path = directory / RESERVE_NAME
        self.size = size

    @property
    def held(self) -> int:
        """Bytes that it has on the disk now; all of it where the disk does not tell."""
        try:
            return min(self.path.stat().st_blocks * 512, self.size)
        except FileNotFoundError:
            return 0
        except OSError:
            return self.size  # so that nobody makes it anew on a disk that fails

    def make(self) -> bool:
        """Allocates it. Blocks; False when there is not enough space after all. Raises OSError."""
        descriptor = open_file(self.path)
        try:
            os.posix_fallocate(descriptor, 0, self.size)
        except OSError as error:
            self.path.unlink()
            if error.errno in NO_SPACE:
                return False
            raise
        finally:
            os.close(descriptor)
        return True

    def give_back(self) -> bool:
        """Frees its blocks; whether there were any. Any thread; blocks shortly. Raises OSError."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        # A file system with a journal gives the blocks to others when this is on the disk.
        sync_directory(self.path.parent)
        return True


class FileSystem:
    """One file system that something is stored on."""

    def __init__(
        self,
        device: int,
        directory: Path,
        needed: int = 0,
        reserve: Reserve | None = None,
        usage: Usage | None = None,
    ) -> None:
        self.device = device
        self.directory = directory  # the first of those on it, which the log names
        self.directories = [directory]
        self.needed = needed  # bytes, for what is in memory
        self.occupied = 0  # bytes that stay in use when every topic is deleted
        self.reserve = reserve
        self.usage = usage or Usage(0, 0)
        self.wanted = 0.0  # bytes; the same by now, and what the reserve lacks
        self.is_short = False

    def look(self, used_part_max: float) -> None:
        """Asks for its free space and decides whether it is short. Raises OSError."""
        self.usage = usage_of(self.directory)
        is_over = used_part_max < 1 and self.usage.used_part > used_part_max
        lent = 0 if self.reserve is None else self.reserve.size - self.reserve.held
        needed = min(self.needed, self.usage.total * SHARE_MAX)
        self.wanted = lent + needed * (MARGIN if self.is_short else 1)
        self.is_short = is_over or self.usage.free < self.wanted

    @property
    def lacks_reserve(self) -> bool:
        """The reserve is not there, and there is space for it, though perhaps for nothing else."""
        reserve = self.reserve
        return (
            reserve is not None
            and reserve.held < reserve.size
            and self.usage.free >= reserve.size * MARGIN
        )

    def too_small(self, reserve_bytes: int) -> str | None:
        """Return the sentence for a file system on which publishing would not resume when it was
        full and every topic is deleted; None for one that is large enough.
        """
        smallest = smallest_bytes(self.occupied, self.needed, reserve_bytes)
        if not 0 < self.usage.total < smallest:
            return None
        return (
            f"The file system of {self.directory} has {self.usage.total / _MIB:.0f} MiB, and the"
            f" storage needs at least {smallest / _MIB:.0f} MiB there; use a larger one, or set"
            " journalMaxSizeMB (which counts twice), dbStorage_writeCacheMaxSizeMb or"
            " diskReserveSizeMB lower."
        )

    def __str__(self) -> str:
        # Anybody may be told: where it is stands in the log.
        free = f"{self.usage.free / _MIB:.1f} MiB free"
        if self.usage.free < self.wanted:
            return f"{free}, {self.wanted / _MIB:.1f} MiB are needed"
        return f"{free}, {100 * self.usage.used_part:.1f} % used (diskUsageThreshold)"


def smallest_bytes(occupied: int, needed: int, reserve_bytes: int) -> int:
    """Return the size of the smallest file system that is not short while only `occupied` bytes and
    the reserve are in use; each bound of FileSystem.look and of the reserve gives a candidate.
    """
    needed_part, reserve_part = MARGIN * SHARE_MAX, 1 / RESERVE_SHARE
    fixed = MARGIN * needed
    return math.ceil(
        min(
            occupied + reserve_bytes + fixed,
            (occupied + fixed) / (1 - reserve_part),
            (occupied + reserve_bytes) / (1 - needed_part),
            occupied / (1 - reserve_part - needed_part),
        )
    )


class Need(NamedTuple):
    """What one directory needs of its file system, in bytes."""

    directory: Path
    needed: int  # for what is in memory
    occupied: int = 0  # of files that stay when every topic is deleted


def file_systems_of(needs: Iterable[Need], reserve_bytes: int) -> list[FileSystem]:
    """The file systems of some directories and what each directory needs of its own.

    The reserve of a file system is in the first of its directories.
    """
    found: dict[int, FileSystem] = {}
    for directory, needed, occupied in needs:
        device = _existing(directory).stat().st_dev
        if device not in found:
            usage = usage_of(directory)
            size = min(reserve_bytes, usage.total // RESERVE_SHARE)
            reserve = Reserve(directory, size) if size else None
            found[device] = FileSystem(device, directory, reserve=reserve, usage=usage)
        else:
            found[device].directories.append(directory)
        found[device].needed += needed
        found[device].occupied += occupied
    return list(found.values())


class StorageState:
    """The state of the disks and of the storage on them (a StorageView); one for each process, on
    the loop's thread.

    trouble() is what the storage reports of itself (0, or a negative errno), failure() the reason
    why it will never store anything again, or None.
    """

    def __init__(self, file_systems: list[FileSystem], used_part_max: float = 1.0) -> None:
        self.file_systems = file_systems
        self.run_blocking: Callable[..., object] = lambda call, *arguments: call(*arguments)
        """Makes a call that waits for the disk; with an event loop, on another thread."""
        self.refusal: str | None = None
        """Why nothing can be stored now, for anybody to read; None: all is well."""
        self.has_failed = False
        """The refusal is for good, until a restart."""
        self.trouble: Callable[[], int] = lambda: 0
        self.failure: Callable[[], str | None] = lambda: None
        self.set_holding: Callable[[bool], None] = lambda on: None
        """EmbeddedBookie.set_holding, once there is a bookie."""
        self.take_back: Callable[[], None] = lambda: None
        """EmbeddedBookie.take_back, once there is a bookie."""
        self._used_part_max = used_part_max
        self._callbacks: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls callback() after each change of `refusal`."""
        self._callbacks.append(callback)

    @property
    def is_short(self) -> bool:
        """There is not enough space: what is not needed any more has to go at once."""
        return any(each.is_short for each in self.file_systems) or -self.trouble() in NO_SPACE

    def is_short_on(self, directory: Path) -> bool:
        """Return True if the file system of a directory is short, or the storage met a full one."""
        if -self.trouble() in NO_SPACE:
            return True
        return any(each.is_short for each in self.file_systems if directory in each.directories)

    def check(self) -> None:
        """Looks at everything anew. Called at intervals, and when the storage's trouble changed."""
        for each in self.file_systems:
            try:
                each.look(self._used_part_max)
            except OSError as error:
                log.warning(
                    "free space is not known", directory=each.directory, error=error.strerror
                )
        if -self.trouble() in NO_SPACE:
            reason = "the storage could not write for want of space"
            self.run_blocking(self.give_back_reserves, reason)
        self._tell(*self._judge())

    def _judge(self) -> tuple[str | None, bool]:
        failure = self.failure()
        if failure is not None:
            return failure, True
        trouble = -self.trouble()
        short = [str(each) for each in self.file_systems if each.is_short]
        if short or trouble in NO_SPACE:
            where = ", ".join(short) or os.strerror(trouble)
            full = (
                f"The disk of the storage is full ({where}); free some space, delete topics or"
                " acknowledge messages."
            )
            return with_reference(full, reference_to(_CANNOT_STORE)), False
        if trouble:
            return (
                f"The storage cannot write ({os.strerror(trouble)}); it tries again by itself.",
                False,
            )
        return None, False

    def _tell(self, refusal: str | None, has_failed: bool) -> None:
        before, self.refusal = self.refusal, refusal
        had_failed, self.has_failed = self.has_failed, has_failed
        if (before is None) == (refusal is None) and had_failed == has_failed:
            return  # at most the numbers in the sentence have changed
        if refusal is None:
            log.info("messages can be stored again")
        else:
            short = [str(each.directory) for each in self.file_systems if each.is_short]
            log.error(_CANNOT_STORE, reason=refusal, full=", ".join(short) or None)
        for callback in self._callbacks:
            callback()

    # --- the reserve ------------------------------------------------------------------------------

    def make_room(self, reason: str) -> None:
        """Gives the reserve back where a start, or a stop, would fail for want of space."""
        for each in self.file_systems:
            try:
                free = usage_of(each.directory).free
            except OSError as error:
                log.warning(
                    "free space is not known", directory=each.directory, error=error.strerror
                )
                continue
            if free < ROOM_BYTES:
                self._give_back(each, reason)

    def give_back_reserves(self, reason: str) -> bool:
        """Gives back the reserves where space is short, or all if nobody knows where; whether there
        was one. Any thread.
        """
        short = [each for each in self.file_systems if each.is_short] or self.file_systems
        given = [self._give_back(each, reason) for each in short]
        return any(given)

    def give_back_on(self, directory: Path, reason: str) -> bool:
        """The same on the file system of a directory where there was no space. Any thread."""
        device = _existing(directory).stat().st_dev
        there = [each for each in self.file_systems if each.device == device]
        given = [self._give_back(each, reason) for each in there]
        return any(given)

    def _give_back(self, file_system: FileSystem, reason: str) -> bool:
        reserve = file_system.reserve
        try:
            given = reserve is not None and reserve.give_back()
        except OSError as error:
            path = None if reserve is None else reserve.path
            log.error("the reserve cannot be given back", file=path, error=error.strerror)
            return False
        if given and reserve is not None:
            log.warning("the reserve is given back", file=reserve.path, reason=reason)
        return given

    def missing_reserves(self) -> list[Reserve]:
        """Those that there is space for by now; make() blocks."""
        if self.trouble():
            return []
        return [
            each.reserve
            for each in self.file_systems
            if each.reserve is not None and each.lacks_reserve
        ]


def make_reserves(reserves: Iterable[Reserve]) -> None:
    """Allocates reserves. Blocks."""
    for each in reserves:
        try:
            each.make()
        except OSError as error:
            log.warning("the reserve cannot be made", file=each.path, error=error.strerror)
