"""Directories and files that a power cut cannot take away again, and looks at files that a short
error of the disk does not fool.

What is made here is for its owner alone: messages and metadata are nobody else's to read. What is
there already keeps the permissions that it has.
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
"""What a full disk says, or one of which the user has used up the share; `disk_is_full` in C."""

PATIENCE_S = 2.0
FIRST_WAIT_S = 0.02
# What says nothing about the file: the same call may go well a moment later.
PASSING_ERRORS = frozenset({errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN})


def patiently(
    call: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Calls again, for up to 2 s, while the disk fails or the system is out of something.

    Blocks: it is for what is read at a start. Raises OSError, that of the last attempt.
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


def is_there(path: Path) -> bool:
    """Whether a file or directory exists. Raises OSError when that cannot be told."""
    try:
        patiently(path.stat)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def with_path(error: OSError, path: Path) -> OSError:
    """Return an error of a call on a descriptor, which names no file, with the file's path."""
    if error.filename is None:
        error.filename = str(path)
    return error


def write_fully(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """A write that comes up short is gone on with; the error that stops it comes then."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def make_directory(path: Path) -> None:
    """Makes a directory and those above it that are missing, durable when this returns.

    Raises OSError, NotADirectoryError where something else has the name.
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
    """Opens a file for reading and writing, and makes it when it is missing. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if truncate else 0)
    return os.open(path, flags, FILE_MODE)


def temporary_of(path: Path) -> Path:
    """The name of a file until it is whole."""
    return path.with_name(path.name + ".tmp")


def write_whole_file(path: Path, data: bytes) -> None:
    """Writes a file, durable when this returns: a power cut leaves all of it, or what was before.

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
    """Gives a file that is written the name that says that it is whole. Raises OSError."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise with_path(error, temporary) from None
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable: those that are new, and that others are gone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise with_path(error, path) from None
    finally:
        os.close(descriptor)
