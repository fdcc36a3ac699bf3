"""The manifest of a backup, `backup.json`: what the backup has, with the checksum of each file.

It is written last, atomically. A directory without it is not a backup.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pyxbroker.base.directories import write_whole_file
from pyxbroker.base.named_tuple import NamedTuple

NAME = "backup.json"
LOGS = "entry-logs"
METADATA = "metadata.copy"
FORMAT = 1


class BackupError(Exception):
    """Raised with a sentence for the operator."""


class FileRecord(NamedTuple):
    """One file of a backup; `path` is relative to its directory."""

    path: str
    bytes: int
    sha256: str


class Manifest(NamedTuple):
    """The content of `backup.json`. `transaction` is the last one of the metadata in the backup."""

    version: str  # of pyxbroker
    time_ms: int  # the moment, since 1970
    cluster: str
    instance_id: str
    bookie_id: str
    store_id: str  # of the metadata, which determines the data directory
    transaction: int
    files: tuple[FileRecord, ...]

    def write(self, directory: Path) -> None:
        """Write the manifest durably. Raises OSError."""
        document = {
            "format": FORMAT,
            "version": self.version,
            "timeMs": self.time_ms,
            "cluster": self.cluster,
            "instanceId": self.instance_id,
            "bookieId": self.bookie_id,
            "storeId": self.store_id,
            "transaction": self.transaction,
            "files": [each._asdict() for each in self.files],
        }
        document["sha256"] = _digest(document)
        write_whole_file(directory / NAME, json.dumps(document, indent=1).encode() + b"\n")


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a backup. Raises BackupError, and OSError."""
    path = directory / NAME
    if not directory.is_dir():
        raise BackupError(f"The directory {directory} does not exist.")
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise BackupError(
            f"{directory} is not a complete backup: it has no {NAME}, which is written last."
            " Its creation was interrupted, or it is another directory."
        ) from None
    try:
        document = json.loads(text)
        expected = document.pop("sha256")
        is_intact = expected == _digest(document)
    except (ValueError, AttributeError, KeyError, TypeError):
        is_intact = False
    if not is_intact:
        raise BackupError(f"{path} is damaged: it does not match its own checksum.")
    if document["format"] > FORMAT:
        raise BackupError(
            f"{path} was written by a newer pyxbroker (format {document['format']}; this one reads"
            f" up to {FORMAT})."
        )
    return Manifest(
        *(document["version"], document["timeMs"], document["cluster"], document["instanceId"]),
        *(document["bookieId"], document["storeId"], document["transaction"]),
        tuple(FileRecord(**each) for each in document["files"]),
    )


def _digest(document: dict[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
