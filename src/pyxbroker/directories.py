"""Directories that a power cut cannot take away again: their names are synced as well."""

from __future__ import annotations

import errno
import os
from pathlib import Path


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
