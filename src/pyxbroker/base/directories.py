"""Directories and files that survive a power cut, and file access that retries transient errors.

New files and directories are accessible to their owner only, since they hold messages and metadata.
Existing ones keep their permissions.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

DIRECTORY_MODE = 0o700  # DISK_DIRECTORY_MODE and DISK_FILE_MODE of disk.h are the same
FILE_MODE = 0o600

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors of a full disk and of an exceeded quota; `disk_is_full` in C."""

PATIENCE_S = 2.0
FIRST_WAIT_S = 0.02
# Errors that say nothing about the file: the same call may succeed a moment later.
PASSING_ERRORS = frozenset({errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN})


def retry_transient(
    call: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Retry a call for up to 2 s while the disk fails or the system lacks resources.

    Blocks, so use it only for reads at startup. Raises the OSError of the last attempt.
    """
    deadline = time.monotonic() + PATIENCE_S
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            left_s = deadline - time.monotonic()
            if error.errno not in PASSING_ERRORS or left_s <= 0:
                raise
        time.sleep(min(wait_s, left_s))
        wait_s *= 2


def exists(path: Path) -> bool:
    """Return True if a file or directory exists. Raises OSError if that cannot be determined."""
    try:
        retry_transient(path.stat)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def with_path(error: OSError, path: Path) -> OSError:
    """Return an error of a call on a descriptor, which names no file, with the file's path."""
    if error.filename is None:
        error.filename = str(path)
    return error


def write_fully(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all bytes, continuing after short writes. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably.

    Raises OSError; NotADirectoryError if the name belongs to something else.
    """
    missing = []
    while not path.is_dir():
        if path.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        each.mkdir(DIRECTORY_MODE, exist_ok=True)
        sync_directory(each.parent)


def open_file(path: Path, *, truncate: bool = False) -> int:
    """Open a file for reading and writing, and create it if it is missing. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if truncate else 0)
    return os.open(path, flags, FILE_MODE)


def temporary_of(path: Path) -> Path:
    """Return the name under which a file is written until it is complete."""
    return path.with_name(path.name + ".tmp")


def write_whole_file(path: Path, data: bytes) -> None:
    """Write a file durably and atomically: a power cut leaves the new content or the old one.

    Raises OSError.
    """
    temporary = temporary_of(path)
    descriptor = open_file(temporary, truncate=True)
    try:
        write_fully(descriptor, data, 0)
        finish_file(descriptor, temporary, path)
    except OSError as error:
        raise with_path(error, temporary) from None
    finally:
        os.close(descriptor)


def finish_file(descriptor: int, temporary: Path, path: Path) -> None:
    """Sync a complete temporary file and rename it to its final name. Raises OSError."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise with_path(error, temporary) from None
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make creations, renames and deletions in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise with_path(error, path) from None
    finally:
        os.close(descriptor)
