"""The parts of a data directory, and the check that all of them exist.

    bookie/current/VERSION   the cookie: written once, when everything else exists
    bookie/journal           the journal, unless journalDirectories names another directory
    bookie/ledgers           the entry logs, unless ledgerDirectories names another directory
    metadata/metadata.db     the embedded metadata store, unless an external one is used
    metadata.copies          copies of that store, created after it

A first start creates them in this order: metadata, journal and entry logs, the cookie, then the
first entry. So with a cookie all others must exist, and without one there can be no entry. A kill
during a first start leaves one of these states. Anything else is a loss: the start is refused with
the name of the missing part, before any file is created.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from pyxbroker.base.directories import exists, retry_transient, sync_directory
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.bookie.cookie import FILE, Cookie, read_cookie
from pyxbroker.bookie.errors import (
    CookieMissing,
    DamagedCookie,
    DataError,
    DirectoryMissing,
    MetadataMissing,
)

DATABASE_NAME = "metadata.db"
JOURNAL_BLOCK_BYTES = 4096
GROUP_MAGIC = b"PBJG"

# The names of files and directories in the storage's messages.
_PLACES = re.compile(
    r"(?<![/\w])(?:[0-9a-f]{16}\.(?:log|journal)|journal\.manifest|the manifest of entry logs"
    r"|the (?:journal|ledger) directory)"
)


class Layout(NamedTuple):
    """The paths of a data directory; `metadata` is None when the store is external."""

    bookie: Path
    journal: Path
    ledgers: Path
    metadata: Path | None

    @property
    def database(self) -> Path | None:
        return None if self.metadata is None else self.metadata / DATABASE_NAME

    @property
    def copies(self) -> Path | None:
        """The directory with the copies of the embedded store."""
        if self.metadata is None:
            return None
        return self.metadata.with_name(f"{self.metadata.name}.copies")

    def with_paths(self, sentence: str) -> str:
        """Return a message of the storage with the paths of the files that it names."""

        def with_path(found: re.Match[str]) -> str:
            path = self._path_of(found[0])
            return f"{found[0]} {path}" if found[0].startswith("the ") else str(path)

        return _PLACES.sub(with_path, sentence)

    def path_in(self, sentence: str) -> Path | None:
        """Return the path of the file or directory that a message of the storage names."""
        found = _PLACES.search(sentence)
        if found is not None:
            return self._path_of(found[0])
        if "journal" in sentence:
            return self.journal
        return self.ledgers if "entry log" in sentence else None

    def _path_of(self, name: str) -> Path:
        if name.startswith("the "):
            if "directory" in name:
                return self.journal if "journal" in name else self.ledgers
            return self.ledgers / "manifest"
        return (self.ledgers if name.endswith(".log") else self.journal) / name

    def is_new(self) -> bool:
        """Return True if this directory was never used, as far as local files and metadata show.

        Raises OSError.
        """
        is_known = self._has_any(self.bookie / FILE) or self._has_database()
        return not is_known and not self.has_entries()

    def has_entries(self) -> bool:
        """Return True if an entry was ever stored: an entry log, or a group in a journal file."""
        if any(name.endswith(".log") for name in _names(self.ledgers)):
            return True
        files = [self.journal / each for each in _names(self.journal) if each.endswith(".journal")]
        return any(retry_transient(_has_group, each) for each in files)

    def examine(self) -> Cookie | None:
        """Return the cookie, or None for a directory that was never used. Changes nothing.

        Raises DataError when a part is missing, and OSError.
        """
        cookie = read_cookie(self.bookie)
        if cookie is None and not self._is_used():
            return None
        for missing in self._missing():
            raise missing
        if cookie is None and self.has_entries():
            raise CookieMissing(self.bookie, self.bookie / FILE)
        return cookie

    def accept_losses(self) -> tuple[Cookie | None, list[str]]:
        """Check like `examine`, but prepare to start without missing parts; return those too.

        Without the metadata the owners of the entries are unknown. The entries are moved aside, so
        that ledger ids of the new store cannot collide with old ones.

        Raises errors that are not losses, such as a newer format, and OSError.
        """
        losses: list[str] = []
        cookie: Cookie | None = None
        is_used = True
        try:
            cookie = read_cookie(self.bookie)
            is_used = cookie is not None or self._is_used()
        except DamagedCookie as damaged:
            losses.append(str(damaged))
        missing = list(self._missing()) if is_used else []
        losses += map(str, missing)
        if any(isinstance(each, MetadataMissing) for each in missing):
            return None, losses + self._move_aside()
        if cookie is None and not losses and self.has_entries():
            losses.append(str(CookieMissing(self.bookie, self.bookie / FILE)))
        return cookie, losses

    def _is_used(self) -> bool:
        """Return True if a directory without a cookie was used: it has entries, or only copies."""
        has_only_copies = self._has_any(self.copies) and not self._has_database()
        return has_only_copies or self.has_entries()

    def _missing(self) -> Iterator[DataError]:
        """Yield the missing parts of a data directory that was used."""
        if self.database is not None and not self._has_database():
            copies = self.copies if self._has_any(self.copies) else None
            yield MetadataMissing(self.database, self.bookie, copies)
        if not self._has_any(self.ledgers):
            yield DirectoryMissing("entry log", self.ledgers, "all messages but the newest")
        if not self._has_any(self.journal):
            loses = "the newest messages, those that were in no entry log yet"
            yield DirectoryMissing("journal", self.journal, loses)

    def _has_database(self) -> bool:
        """Return True if the database exists, or a new one that a kill kept from being renamed.

        A start renames the latter.
        """
        path = self.database
        return path is None or self._has_any(path, path.with_name(f"{path.name}.new"))

    def _has_any(self, *files: Path | None) -> bool:
        return any(each is not None and exists(each) for each in files)

    def _move_aside(self) -> list[str]:
        """Rename data that has become unreadable. Return a message for each rename."""
        moved = []
        ending = time.strftime(".lost-%Y%m%d-%H%M%S", time.gmtime())
        parts = [self.bookie, self.journal, self.ledgers, self.metadata, self.copies]
        for path in parts:
            if path is None or not exists(path):
                continue
            aside = path.with_name(path.name + ending)
            path.rename(aside)
            sync_directory(path.parent)
            moved.append(f"{path} was renamed to {aside}.")
        return moved


def _names(directory: Path) -> list[str]:
    try:
        return retry_transient(os.listdir, directory)
    except FileNotFoundError:
        return []


def _has_group(file: Path) -> bool:
    with file.open("rb") as journal:
        journal.seek(JOURNAL_BLOCK_BYTES)
        return journal.read(len(GROUP_MAGIC)) == GROUP_MAGIC
