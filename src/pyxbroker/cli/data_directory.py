"""The data directory: made so that it survives a power cut, and used by one process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from pyxbroker.base.directories import make_directory, open_file, retry_transient
from pyxbroker.base.log import get_logger

log = get_logger("pyxbroker.standalone")

DEFAULT_DATA = "data/standalone"
LOCK_NAME = "pyxbroker.lock"
OURS = frozenset({LOCK_NAME, "bookie", "metadata", "metadata.copies"})
"""Entries of a data directory; one of them is there as soon as it was used."""
EMPTY = frozenset({"lost+found"})
"""Entries of an empty directory that is the root of a file system, besides hidden ones."""


class DataDirectoryError(Exception):
    """The directory cannot be used; the sentence says why and what to do."""


class DataDirectory:
    """An open, locked data directory.

    The lock is the operating system's (flock), so it ends with the process however that ends. The
    lock file also holds the number of the process, only for the message that another one shows.
    """

    def __init__(self, path: Path, named: Iterable[str] = ()) -> None:
        """Makes what is missing of `path` and locks it. Raises DataDirectoryError, also for a
        directory of something else; what settings name (`named`, absolute paths) may be in it.
        """
        self.path = path.absolute()
        try:
            make_directory(self.path)
            self._check_owner(named)
            self._fd = open_file(self.path / LOCK_NAME)
        except OSError as error:
            file = "" if error.filename in (None, str(self.path)) else f" ({error.filename})"
            raise DataDirectoryError(
                f"The data directory {self.path} cannot be used: {error.strerror}{file}."
                " Choose another one with --data, or change its permissions."
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = self._owner()
            os.close(self._fd)
            by = f"the process {owner}" if owner.isdigit() else "another process"
            raise DataDirectoryError(
                f"The data directory {self.path} is in use by {by}."
                " Stop that one, or choose another directory with --data."
            ) from None
        except OSError as error:
            os.close(self._fd)
            raise DataDirectoryError(
                f"The data directory {self.path} cannot be locked: {error.strerror}."
            ) from None
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            # The lock holds without it, and a full disk must not keep a broker from starting.
            log.warning(
                "the lock file does not name this process", path=self.path / LOCK_NAME, error=error
            )

    def _check_owner(self, named: Iterable[str]) -> None:
        """Raises DataDirectoryError for a directory with files that are not the broker's."""
        found = retry_transient(os.listdir, self.path)
        if OURS.intersection(found):
            return
        places = [Path(each) for each in named if each.startswith(f"{self.path}/")]
        expected = {each.relative_to(self.path).parts[0] for each in places} | EMPTY
        others = sorted(each for each in found if each[0] != "." and each not in expected)
        if others:
            raise DataDirectoryError(
                f"The directory {self.path} is not empty and is no data directory of pyxbroker: it"
                f" has {others[0]!r}. Choose an empty or a new one with --data."
            )

    def _owner(self) -> str:
        """The number of the process that holds the lock; empty when that cannot be read."""
        try:
            return os.pread(self._fd, 32, 0).decode(errors="replace").strip()
        except OSError:
            return ""

    def close(self) -> None:
        """Gives the lock back. The lock file stays: to delete it would let two processes in."""
        os.close(self._fd)
