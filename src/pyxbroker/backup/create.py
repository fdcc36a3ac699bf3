"""Creation of a backup from the files of a standalone, as of one moment.

The caller has chosen the moment (roles/backup_source.py), and deletions wait until the copy ends.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pyxbroker import __version__
from pyxbroker.backup.manifest import (
    LOGS,
    METADATA,
    NAME,
    BackupError,
    FileRecord,
    Manifest,
    read_manifest,
)
from pyxbroker.backup.progress import Progress
from pyxbroker.base.directories import (
    NO_SPACE,
    make_directory,
    open_file,
    sync_directory,
    with_path,
    write_fully,
)
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.bookie.entry_logs import entry_log_ids, entry_log_name, listed_logs, read_footer
from pyxbroker.metadata.copies import read_head
from pyxbroker.metadata.store import MetadataError

CHUNK_BYTES = 1 << 20
SYNC_BYTES = 64 << 20
_ZEROS = bytes(CHUNK_BYTES)
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


class Moment(NamedTuple):
    """The moment whose state is backed up, and the directories that contain it.

    The state consists of the entry logs with an id below `log_end`, and of the metadata that
    `write_metadata` writes to a file, as one copy (metadata/copies.py). It raises MetadataError.
    """

    time_ms: int
    cluster: str
    instance_id: str
    bookie_id: str
    log_end: int
    ledgers: Path
    write_metadata: Callable[[Path], object]


class Created(NamedTuple):
    """The result of a creation."""

    manifest: Manifest
    copied_bytes: int
    linked_bytes: int  # of files of the base


class _Base(NamedTuple):
    directory: Path
    manifest: Manifest
    files: dict[str, FileRecord]


def check_target(target: Path) -> None:
    """Raise BackupError unless the directory of a new backup is missing or empty."""
    if target.exists() and not target.is_dir():
        raise BackupError(f"{target} is a file; a backup needs a directory.")
    if target.is_dir() and any(target.iterdir()):
        if (target / LOGS).is_dir() and not (target / NAME).exists():
            raise BackupError(
                f"{target} contains an incomplete backup, whose creation was interrupted. Remove"
                " it, or choose another directory."
            )
        raise BackupError(f"The directory {target} is not empty. Choose a new one.")


def create(
    moment: Moment,
    target: Path,
    base: Path | None,
    progress: Progress,
    confirm: Callable[[], None],
) -> Created:
    """Create a backup in `target`, which is missing or empty, with links to files of `base`.

    `confirm` is called before the backup is complete; it raises BackupError if the files of the
    moment have not been retained. Raises BackupError, and removes what was written, as an
    interruption does.
    """
    check_target(target)
    former = None if base is None else _read_base(base, moment)
    is_new = not target.exists()
    try:
        make_directory(target / LOGS)
        created = _create(moment, target, former, progress)
        confirm()
        created.manifest.write(target)
    except BaseException as error:
        _remove(target, is_new)
        if isinstance(error, OSError):
            raise BackupError(sentence_of(error)) from error
        if isinstance(error, MetadataError):
            raise BackupError(f"The metadata cannot be backed up: {error}.") from error
        raise
    return created


def _read_base(base: Path, moment: Moment) -> _Base:
    try:
        manifest = read_manifest(base)
    except OSError as error:
        raise BackupError(sentence_of(error)) from error
    if manifest.instance_id != moment.instance_id:
        raise BackupError(
            f"The base {base} is a backup of another cluster ({manifest.cluster},"
            f" {manifest.instance_id}), not of {moment.cluster} ({moment.instance_id})."
        )
    return _Base(base, manifest, {each.path: each for each in manifest.files})


def _create(moment: Moment, target: Path, base: _Base | None, progress: Progress) -> Created:
    # The metadata first, because its change logs may be removed after two further copies.
    moment.write_metadata(target / METADATA)
    head = read_head(target / METADATA)
    store_id = head.store_id.hex()
    if base is not None and (
        base.manifest.store_id != store_id or base.manifest.transaction > head.transaction
    ):
        raise BackupError(
            f"The base {base.directory} is not an earlier backup of this data directory, which was"
            " restored or replaced since then. Create a backup without --base."
        )
    names = [entry_log_name(each) for each in _log_ids(moment)]
    progress.begin(sum(_size(moment.ledgers / name) for name in names))
    records = [_digest(target / METADATA, METADATA)]
    copied = linked = 0
    for name in names:
        path = f"{LOGS}/{name}"
        former = None if base is None else base.files.get(path)
        try:
            if base is not None and former is not None and _is_same(base, path, moment, name):
                records.append(_link(base, former, target))
                linked += former.bytes
                progress.add(former.bytes)
            else:
                records.append(_copy(moment.ledgers / name, target, path, progress))
                copied += records[-1].bytes
        except FileNotFoundError as error:
            if error.filename != str(moment.ledgers / name):
                raise
            # None of its ledgers existed in the moment of the backup.
    _check_complete(moment, records)
    for directory in (target / LOGS, target):
        sync_directory(directory)
    manifest = Manifest(
        *(__version__, moment.time_ms, moment.cluster, moment.instance_id, moment.bookie_id),
        *(store_id, head.transaction, tuple(records)),
    )
    return Created(manifest, copied + records[0].bytes, linked)


def _log_ids(moment: Moment) -> list[int]:
    return [each for each in entry_log_ids(moment.ledgers) if each < moment.log_end]


def _check_complete(moment: Moment, records: list[FileRecord]) -> None:
    """Raise BackupError if a log that must exist was deleted by something else than the broker."""
    present = {each.path for each in records}
    for log_id in listed_logs(moment.ledgers):
        name = entry_log_name(log_id)
        if log_id < moment.log_end and f"{LOGS}/{name}" not in present:
            raise BackupError(f"The entry log {moment.ledgers / name} is missing.")


def _is_same(base: _Base, path: str, moment: Moment, name: str) -> bool:
    """Return True if the base has this log. Names are unique in a data directory, unless its files
    were copied without a backup; therefore the footers are compared, too.
    """
    try:
        footer = read_footer(base.directory / path)
    except FileNotFoundError:
        return False
    return footer is not None and footer == read_footer(moment.ledgers / name)


def _link(base: _Base, record: FileRecord, target: Path) -> FileRecord:
    source, to = base.directory / record.path, target / record.path
    try:
        os.link(source, to)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copied = _copy(source, target, record.path, Progress())
        if copied != record:
            raise BackupError(f"The file {source} of the base is damaged.") from None
    return record


def _copy(source: Path, target: Path, path: str, progress: Progress) -> FileRecord:
    """Copy a file durably, with holes for its zeros."""
    digest = hashlib.sha256()
    done = synced = 0
    with source.open("rb", buffering=0) as file:
        descriptor = open_file(target / path, truncate=True)
        try:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                if chunk != _ZEROS[: len(chunk)]:
                    write_fully(descriptor, chunk, done)
                done += len(chunk)
                progress.add(len(chunk))
                if done - synced >= SYNC_BYTES:
                    os.fdatasync(descriptor)
                    synced = done
            os.ftruncate(descriptor, done)
            os.fsync(descriptor)
        except OSError as error:
            raise with_path(error, target / path) from None
        finally:
            os.close(descriptor)
    return FileRecord(path, done, digest.hexdigest())


def _digest(file: Path, path: str) -> FileRecord:
    data = file.read_bytes()
    return FileRecord(path, len(data), hashlib.sha256(data).hexdigest())


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def _remove(target: Path, is_new: bool) -> None:
    """Remove an incomplete backup, as far as the disk allows."""
    # The manifest first: a second interruption must not leave one without its files.
    for name in (NAME, f"{NAME}.tmp", METADATA, f"{METADATA}.tmp"):
        with suppress(OSError):
            (target / name).unlink()
    with suppress(OSError):
        shutil.rmtree(target / LOGS)
    if is_new:
        with suppress(OSError):
            target.rmdir()


def sentence_of(error: OSError) -> str:
    """Return the sentence for an error of the disk."""
    if error.errno in NO_SPACE:
        return f"The disk is full: {error.filename} cannot be written."
    what = f"{error.filename} cannot be used: " if error.filename else ""
    return f"{what}{error.strerror or error}."
