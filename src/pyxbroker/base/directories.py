"""Directories that a power cut cannot take away again: their names are synced as well. And looks at
files that a short error of the disk does not fool.
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
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable: those that are new, and that others are gone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
