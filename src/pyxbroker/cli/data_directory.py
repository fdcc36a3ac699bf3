"""The data directory: creation that survives a power cut, and a lock for one process."""

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
"""Entries of a data directory; each used one has at least one of them."""
EMPTY = frozenset({"lost+found"})
"""Entries that an empty directory may have in addition to hidden ones."""


class DataDirectoryError(Exception):
    """Raised when the directory cannot be used; the message says why and what to do."""


class DataDirectoryInUse(DataDirectoryError):
    """Raised when another process has locked the directory."""


class DataDirectory:
    """An open, locked data directory.

    The lock is one of the operating system (flock), so it ends with the process in any case. The
    lock file contains the process id, which is only used for messages.
    """

    def __init__(self, path: Path, named: Iterable[str] = (), option: str = "--data") -> None:
        """Create and lock the directory, which `option` of the command line names.

        Raise DataDirectoryError if that fails or if another program uses the directory. Files that
        settings name may be in it: `named` has their absolute paths.
        """
        self.path = path.absolute()
        self._option = option
        try:
            make_directory(self.path)
            self._check_owner(named)
            self._was_used = (self.path / LOCK_NAME).is_file()
            self._fd = open_file(self.path / LOCK_NAME)
        except OSError as error:
            file = "" if error.filename in (None, str(self.path)) else f" ({error.filename})"
            raise DataDirectoryError(
                f"The data directory {self.path} cannot be used: {error.strerror}{file}."
                f" Choose another one with {option}, or change its permissions."
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = self._owner()
            os.close(self._fd)
            by = f"process {owner}" if owner.isdigit() else "another process"
            raise DataDirectoryInUse(
                f"The data directory {self.path} is in use by {by}."
                f" Stop that process, or choose another directory with {option}."
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
            # The lock works without it, and a broker must be able to start on a full disk.
            log.warning(
                "cannot write the process id to the lock file",
                path=self.path / LOCK_NAME,
                error=error,
            )

    def _check_owner(self, named: Iterable[str]) -> None:
        """Raise DataDirectoryError if the directory has files that are not the broker's."""
        found = retry_transient(os.listdir, self.path)
        if OURS.intersection(found):
            return
        places = [Path(each) for each in named if each.startswith(f"{self.path}/")]
        expected = {each.relative_to(self.path).parts[0] for each in places} | EMPTY
        others = sorted(each for each in found if each[0] != "." and each not in expected)
        if others:
            raise DataDirectoryError(
                f"The directory {self.path} is not a data directory of pyxbroker and not empty: it"
                f" contains {others[0]!r}. Choose an empty or new directory with"
                f" {self._option}."
            )

    def wipe(self) -> None:
        """Delete all messages and metadata. Raise DataDirectoryError if that fails, or if the
        directory may be another program's.
        """
        import shutil

        data = [self.path / each for each in sorted(OURS - {LOCK_NAME})]
        data = [each for each in data if os.path.lexists(each)]
        if data and not self._was_used:
            raise DataDirectoryError(
                f"The directory {self.path} is not wiped: pyxbroker has not used it, because"
                f" {LOCK_NAME} is missing. Delete {data[0]} yourself."
            )
        try:
            for each in data:
                shutil.rmtree(each)
        except OSError as error:
            raise DataDirectoryError(
                f"The data directory {self.path} cannot be wiped:"
                f" {error.strerror or error} ({error.filename or each})."
            ) from None
        if data:
            log.warning("the data directory was wiped", path=self.path)

    def _owner(self) -> str:
        """Return the id of the process that holds the lock, or an empty text."""
        try:
            return os.pread(self._fd, 32, 0).decode(errors="replace").strip()
        except OSError:
            return ""

    def close(self) -> None:
        """Release the lock. Deleting the lock file would allow two processes to lock it."""
        os.close(self._fd)


def lock_used(path: Path, option: str) -> DataDirectory:
    """Lock a directory that a broker has used. Raise DataDirectoryError without a new file."""
    path = path.absolute()
    if not path.is_dir():
        raise DataDirectoryError(f"The data directory {path} ({option}) does not exist.")
    if not OURS.intersection(retry_transient(os.listdir, path)):
        raise DataDirectoryError(
            f"The directory {path} was never used by pyxbroker standalone: {option} names the"
            " directory that --data of the standalone named."
        )
    return DataDirectory(path, option=option)
