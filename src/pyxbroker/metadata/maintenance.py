"""What `pyxbroker metadata` does to an embedded store that is not open: check, back up, restore,
repair.

`directory` is always the store's own (`<data>/metadata`); its copies and change logs are beside it,
in `<data>/metadata.copies`. The caller holds the lock of the data directory: none of this may run
beside a broker. All of it blocks. What a broker repairs by itself when it starts (docs/metadata.md)
is repaired here by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pyxbroker.metadata.findings import Finding


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """One copy: its file, when it was finished, how far it goes, and whether it can be used."""

    path: Path
    number: int
    made_ms: int  # since 1970
    transaction: int
    nodes: int
    size_bytes: int
    is_intact: bool


@dataclass(frozen=True, slots=True)
class RestoreSummary:
    """What a restore brought back."""

    copy: Path | None  # None: there was none, the change logs began with the store
    nodes: int
    changes: int  # transactions of the change logs that were applied after the copy
    deleted: int  # nodes that were there before and are not any more
    set_aside: Path | None  # the database that was there before, kept beside the new one
    findings: list[Finding]


def list_copies(directory: Path) -> list[CopyInfo]:
    """The copies of the store, the newest first. Reads each of them from end to end."""
    raise NotImplementedError


def check(directory: Path) -> list[Finding]:
    """Looks at every byte of the database, its log, the copies and the change logs.

    Reads only. An empty list: nothing is wrong. Raises Unavailable when a file cannot be read.
    """
    raise NotImplementedError


def backup(directory: Path, to: Path) -> Path:
    """Writes a copy of the store into `to`: a file, or a directory that gets a file with a name
    of its own. Returns the file, which is durable. Raises MetadataError.
    """
    raise NotImplementedError


def restore(directory: Path, copy: Path | None = None, with_changes: bool = True) -> RestoreSummary:
    """Builds the database from a copy: that of `copy`, or the newest one that is intact.

    With `with_changes` the change logs since that copy are applied, so that nothing is lost; without,
    the store is what it was when the copy was made. `copy` may also be a file of `backup()`, which
    has no change logs of its own. The database that was there stays beside it under another name.
    Raises MetadataError and changes nothing when there is no copy that can be used.
    """
    raise NotImplementedError


def repair(directory: Path) -> list[Finding]:
    """Does what a start would do, and more: looks at everything however large, repairs what a
    second source has, and makes a new copy. Returns what was found, each with what was done.

    Raises CorruptStore when neither the database nor the copies can be used.
    """
    raise NotImplementedError


def unknown_ledgers(directory: Path) -> list[int]:
    """Ledgers that garbage collection found in the storage, and whose deletion nobody knows of."""
    raise NotImplementedError


def forget_unknown_ledgers(directory: Path, ledger_ids: Iterable[int] | None = None) -> list[int]:
    """Records these ledgers (all of `unknown_ledgers()`) as deleted; the next garbage collection
    frees their space. Returns those that were recorded: none that has metadata.
    """
    raise NotImplementedError


def set_copies_aside(directory: Path) -> Path | None:
    """Renames the folder of copies, so that a missing database is a new store (`--accept-loss`).

    Returns its new name, None when there was none.
    """
    raise NotImplementedError
