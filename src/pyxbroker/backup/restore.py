"""Restore of a backup to a new data directory, in which a standalone starts like any other.

The journal is empty. The entry logs name the highest group of the journal that they cover, and a
start numbers its groups behind that. The cookie is written last, as in a first start, so that an
interrupted restore is refused by a start.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

from pyxbroker.backup.create import CHUNK_BYTES, sentence_of
from pyxbroker.backup.manifest import (
    METADATA,
    BackupError,
    FileRecord,
    Manifest,
    read_manifest,
)
from pyxbroker.backup.progress import Progress
from pyxbroker.base.directories import (
    make_directory,
    open_file,
    sync_directory,
    with_path,
    write_fully,
    write_whole_file,
)
from pyxbroker.bookie.cookie import cookie_text, write_cookie
from pyxbroker.bookie.entry_logs import MANIFEST, Footer, encode_manifest, read_footer
from pyxbroker.metadata import maintenance, paths
from pyxbroker.metadata.store import MetadataError

BOOKIE = "bookie"


def restore(backup: Path, target: Path, progress: Progress) -> Manifest:
    """Create the data directory `target`, which is missing or empty, and check every file.

    Raises BackupError, and removes what was written then. So does an interruption.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BackupError(f"{target} is not an empty directory. Choose a new one.")
    is_new = not target.exists()
    try:
        manifest = read_manifest(backup)
        _restore(backup, manifest, target, progress)
    except BaseException as error:
        _remove(target, is_new)
        if isinstance(error, OSError):
            raise BackupError(sentence_of(error)) from error
        if isinstance(error, MetadataError):
            raise BackupError(f"The metadata cannot be restored: {error}.") from error
        raise
    return manifest


def _restore(backup: Path, manifest: Manifest, target: Path, progress: Progress) -> None:
    bookie = target / BOOKIE
    ledgers = bookie / "ledgers"
    make_directory(ledgers)
    make_directory(bookie / "journal")
    progress.begin(sum(each.bytes for each in manifest.files))
    footers: list[Footer] = []
    for record in manifest.files:
        source = backup / record.path
        if record.path == METADATA:
            _copy(source, record, None, progress)
            continue
        to = ledgers / source.name
        _copy(source, record, to, progress)
        footer = read_footer(to)
        if footer is not None:  # the storage rebuilds it
            footers.append(footer)
    if len(footers) == len(manifest.files) - 1:
        write_whole_file(ledgers / MANIFEST, encode_manifest(footers))
    sync_directory(ledgers)
    cookie = cookie_text(manifest.bookie_id, bookie, manifest.instance_id)
    changed = {paths.cookie(manifest.bookie_id): cookie.encode()}
    maintenance.create(target / "metadata", backup / METADATA, changed)
    write_cookie(bookie, cookie)


def _copy(source: Path, record: FileRecord, to: Path | None, progress: Progress) -> None:
    """Copy a file durably, and check it; without `to` only check it.

    The copy is not a link, because the storage punches holes into entry logs.
    """
    digest = hashlib.sha256()
    done = 0
    with source.open("rb", buffering=0) as file:
        descriptor = -1 if to is None else open_file(to, truncate=True)
        try:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                if descriptor >= 0 and chunk.count(0) < len(chunk):
                    write_fully(descriptor, chunk, done)
                done += len(chunk)
                progress.add(len(chunk))
            if descriptor >= 0:
                os.ftruncate(descriptor, done)
                os.fsync(descriptor)
        except OSError as error:
            raise with_path(error, to or source) from None
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    if (done, digest.hexdigest()) != (record.bytes, record.sha256):
        raise BackupError(
            f"{source} is damaged: its SHA-256 is not the one in backup.json. `pyxbroker backup"
            " verify` says which messages are affected; restore another backup."
        )


def _remove(target: Path, is_new: bool) -> None:
    """Remove an incomplete restore, as far as the disk allows."""
    for name in (BOOKIE, "metadata", "metadata.copies"):
        with suppress(OSError):
            shutil.rmtree(target / name)
    if is_new:
        with suppress(OSError):
            target.rmdir()
