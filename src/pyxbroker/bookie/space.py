"""The check that entries can be stored, and a reserve of space for a full disk.

A file system is short of space when its free space is less than what the data in memory needs on
its way to the disk: both generations of the write cache for entry logs, one journal file for the
journal, METADATA_BYTES for the metadata, or the sum where they share a file system. Then the broker
accepts no more messages from producers, so that no write in progress meets a full disk. To avoid
oscillation, the state ends only with a quarter more free space.

The reserve is a file of allocated blocks that are never written. It is released when a write failed
for lack of space, and when the disk is full at the start. Its space is for deleting, acknowledging,
trimming, one flush and a start, all of which free space. It is allocated again as soon as there is
space for it. Free space is always computed as if the reserve were allocated; otherwise producers
would fill the released reserve.
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
"""Space for the change log of the metadata, and for the growth of its database."""
SHARE_MAX = 0.25
"""A small file system is not short while this share of it is free."""
RESERVE_SHARE = 8
"""The reserve takes at most the share 1 / RESERVE_SHARE of a file system."""
MARGIN = 1.25
"""A file system that was short must have this factor of the needed space."""
ROOM_BYTES = 16 << 20
"""With less free space, the reserve is released for a start (a first journal file, metadata) or a
stop (the flush of the write cache)."""
_CANNOT_STORE = "messages cannot be stored"
_MIB = 1 << 20


class Usage(NamedTuple):
    """The size and free space of a file system, in bytes."""

    free: int  # for a user without privileges
    total: int

    @property
    def used_part(self) -> float:
        return 1 - self.free / self.total if self.total else 0.0


def usage_of(path: Path) -> Usage:
    """Return the usage of the file system of a path, which may not exist yet. Raises OSError."""
    found = os.statvfs(_existing(path))
    return Usage(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


class Reserve:
    """A file of allocated blocks that is removed when there is no other space."""

    def __init__(self, directory: Path, size: int) -> None:
        self.path = directory / RESERVE_NAME
        self.size = size

    @property
    def held(self) -> int:
        """Bytes allocated now; all of them when the disk returns an error."""
        try:
            return min(self.path.stat().st_blocks * 512, self.size)
        except FileNotFoundError:
            return 0
        except OSError:
            return self.size  # so that it is not allocated again on a failing disk

    def make(self) -> bool:
        """Allocate the reserve. Blocks; return False without enough space. Raises OSError."""
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

    def release(self) -> bool:
        """Free the blocks; return True if there were any. Any thread; blocks. Raises OSError."""
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        # Journaling file systems reuse the blocks only after the removal is on the disk.
        sync_directory(self.path.parent)
        return True


class FileSystem:
    """One file system with storage directories."""

    def __init__(
        self,
        device: int,
        directory: Path,
        needed: int = 0,
        reserve: Reserve | None = None,
        usage: Usage | None = None,
    ) -> None:
        self.device = device
        self.directory = directory  # the first of its directories, which the log names
        self.directories = [directory]
        self.needed = needed  # bytes, for the data in memory
        self.occupied = 0  # bytes that stay in use when all topics are deleted
        self.reserve = reserve
        self.usage = usage or Usage(0, 0)
        self.wanted = 0.0  # bytes that must be free, including the missing part of the reserve
        self.is_short = False

    def update(self, used_part_max: float) -> None:
        """Query the free space and decide whether it is short. Raises OSError."""
        self.usage = usage_of(self.directory)
        is_over = used_part_max < 1 and self.usage.used_part > used_part_max
        released_bytes = 0 if self.reserve is None else self.reserve.size - self.reserve.held
        needed = min(self.needed, self.usage.total * SHARE_MAX)
        self.wanted = released_bytes + needed * (MARGIN if self.is_short else 1)
        self.is_short = is_over or self.usage.free < self.wanted

    @property
    def lacks_reserve(self) -> bool:
        """True if the reserve is not allocated, and there is space for it."""
        reserve = self.reserve
        return (
            reserve is not None
            and reserve.held < reserve.size
            and self.usage.free >= reserve.size * MARGIN
        )

    def too_small(self, reserve_bytes: int) -> str | None:
        """Return an error message if publishing could not resume on this file system after it was
        full and every topic was deleted; None if it is large enough.
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
        # Any client may see this text, so the directory appears only in the log.
        free = f"{self.usage.free / _MIB:.1f} MiB free"
        if self.usage.free < self.wanted:
            return f"{free}, {self.wanted / _MIB:.1f} MiB are needed"
        return f"{free}, {100 * self.usage.used_part:.1f} % used (diskUsageThreshold)"


def smallest_bytes(occupied: int, needed: int, reserve_bytes: int) -> int:
    """Return the size of the smallest file system that is not short while only `occupied` bytes and
    the reserve are in use; each bound of FileSystem.update and of the reserve gives a candidate.
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
    """The space that one directory needs, in bytes."""

    directory: Path
    needed: int  # for the data in memory
    occupied: int = 0  # by files that stay when all topics are deleted


def file_systems_of(needs: Iterable[Need], reserve_bytes: int) -> list[FileSystem]:
    """Return the file systems of directories with the sum of their needs.

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

    trouble() returns the storage's trouble (0, or a negative errno); failure() the reason why it
    will store nothing until a restart, or None.
    """

    def __init__(self, file_systems: list[FileSystem], used_part_max: float = 1.0) -> None:
        self.file_systems = file_systems
        self.run_blocking: Callable[..., object] = lambda call, *arguments: call(*arguments)
        """Runs a call that blocks on the disk; with an event loop, on another thread."""
        self.refusal: str | None = None
        self.shortage: str | None = None
        """Human-readable reason why storage refuses writes, or None while it accepts them."""
        self.has_failed = False
        """True if the refusal lasts until a restart."""
        self.trouble: Callable[[], int] = lambda: 0
        self.failure: Callable[[], str | None] = lambda: None
        self.set_holding: Callable[[bool], None] = lambda on: None
        """EmbeddedBookie.set_holding, when there is a bookie."""
        self.take_back: Callable[[], None] = lambda: None
        """EmbeddedBookie.take_back, when there is a bookie."""
        self._used_part_max = used_part_max
        self._callbacks: list[Callable[[], None]] = []

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register a callback for changes of `refusal`."""
        self._callbacks.append(callback)

    @property
    def is_short(self) -> bool:
        """True if space is short, so that data that is no longer needed must be freed urgently."""
        return any(each.is_short for each in self.file_systems) or -self.trouble() in NO_SPACE

    def is_short_on(self, directory: Path) -> bool:
        """Return True if the file system of a directory is short, or the storage met a full one."""
        if -self.trouble() in NO_SPACE:
            return True
        return any(each.is_short for each in self.file_systems if directory in each.directories)

    def check(self) -> None:
        """Check everything. Called periodically, and when the storage's trouble changes."""
        for each in self.file_systems:
            try:
                each.update(self._used_part_max)
            except OSError as error:
                log.warning(
                    "cannot query free space", directory=each.directory, error=error.strerror
                )
        if -self.trouble() in NO_SPACE:
            reason = "the storage could not write for lack of space"
            self.run_blocking(self.release_reserves, reason)
        self._set_refusal(*self._find_refusal())

    def _find_refusal(self) -> tuple[str | None, bool]:
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
                f"The storage cannot write ({os.strerror(trouble)}); it retries automatically.",
                False,
            )
        return None, False

    def _set_refusal(self, refusal: str | None, has_failed: bool) -> None:
        before, self.refusal = self.refusal, refusal
        had_failed, self.has_failed = self.has_failed, has_failed
        if (before is None) == (refusal is None) and had_failed == has_failed:
            return  # at most the numbers in the message have changed
        if refusal is None:
            log.info("messages can be stored again")
        else:
            short = [str(each.directory) for each in self.file_systems if each.is_short]
            log.error(_CANNOT_STORE, reason=refusal, full=", ".join(short) or None)
        for callback in self._callbacks:
            callback()

    # --- the reserve ------------------------------------------------------------------------------

    def make_room(self, reason: str) -> None:
        """Release the reserve where a start or a stop would fail for lack of space."""
        for each in self.file_systems:
            try:
                free = usage_of(each.directory).free
            except OSError as error:
                log.warning(
                    "cannot query free space", directory=each.directory, error=error.strerror
                )
                continue
            if free < ROOM_BYTES:
                self._release(each, reason)

    def release_reserves(self, reason: str) -> bool:
        """Release the reserves of the file systems that are short, or all if none is known to be.

        Return True if there was one. Any thread.
        """
        short = [each for each in self.file_systems if each.is_short] or self.file_systems
        released = [self._release(each, reason) for each in short]
        return any(released)

    def release_reserve_on(self, directory: Path, reason: str) -> bool:
        """Release the reserve on the file system of a directory without space. Any thread."""
        device = _existing(directory).stat().st_dev
        there = [each for each in self.file_systems if each.device == device]
        released = [self._release(each, reason) for each in there]
        return any(released)

    def _release(self, file_system: FileSystem, reason: str) -> bool:
        reserve = file_system.reserve
        try:
            released = reserve is not None and reserve.release()
        except OSError as error:
            path = None if reserve is None else reserve.path
            log.error("cannot release the reserve", file=path, error=error.strerror)
            return False
        if released and reserve is not None:
            log.warning("the reserve was released", file=reserve.path, reason=reason)
        return released

    def missing_reserves(self) -> list[Reserve]:
        """Return the missing reserves that there is space for; make() blocks."""
        if self.trouble():
            return []
        return [
            each.reserve
            for each in self.file_systems
            if each.reserve is not None and each.lacks_reserve
        ]


def make_reserves(reserves: Iterable[Reserve]) -> None:
    """Allocate reserves. Blocks."""
    for each in reserves:
        try:
            each.make()
        except OSError as error:
            log.warning("cannot allocate the reserve", file=each.path, error=error.strerror)
