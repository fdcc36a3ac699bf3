"""Verification of a backup: every byte by its checksums, and the records by their own.

backup.json has the SHA-256 of each file as it was copied. Entries, indexes and nodes have checksums
from the time when they were written, so that data that was damaged before the backup is found, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pyxbroker.backup.manifest import METADATA, FileRecord, Manifest, read_manifest
from pyxbroker.backup.progress import Progress
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.bookie.entry_logs import Damage, check_log
from pyxbroker.ledger.metadata import decode
from pyxbroker.metadata import paths
from pyxbroker.metadata.change_log import DAMAGED, NODE, decode_changes, read_file
from pyxbroker.metadata.copies import State, is_whole
from pyxbroker.metadata.store import MetadataError

CHUNK_BYTES = 1 << 20


class Finding(NamedTuple):
    """One place of damage; the ids are -1 where they are unknown or do not apply."""

    file: Path
    sentence: str
    ledger_id: int = -1
    entry_id: int = -1


class Verified(NamedTuple):
    """The result of a verification."""

    manifest: Manifest
    findings: list[Finding]


def verify(backup: Path, progress: Progress) -> Verified:
    """Read all of a backup. Raises BackupError without a manifest, and OSError."""
    manifest = read_manifest(backup)
    progress.begin(sum(each.bytes for each in manifest.files))
    owners: dict[int, str] | None = None
    findings: list[Finding] = []
    for record in sorted(manifest.files, key=lambda each: each.path != METADATA):
        file = backup / record.path
        try:
            data, is_same = _read(file, record, progress)
        except FileNotFoundError:
            findings.append(Finding(file, f"{file} is missing"))
            continue
        if record.path == METADATA:
            owners, found = _check_metadata(file, is_same)
            findings += found
        else:
            findings += _check_log(file, data, is_same, owners)
    return Verified(manifest, findings)


def _read(file: Path, record: FileRecord, progress: Progress) -> tuple[bytearray, bool]:
    digest = hashlib.sha256()
    data = bytearray()
    with file.open("rb", buffering=0) as opened:
        while chunk := opened.read(CHUNK_BYTES):
            digest.update(chunk)
            data += chunk
            progress.add(len(chunk))
    return data, (len(data), digest.hexdigest()) == (record.bytes, record.sha256)


def _check_metadata(file: Path, is_same: bool) -> tuple[dict[int, str] | None, list[Finding]]:
    """Return the names of the owners of all ledgers, None if the file is damaged; and findings."""
    try:
        content = read_file(file)
    except MetadataError as error:
        return None, [Finding(file, str(error))]
    if not is_whole(content) or content.damaged:
        places = ", ".join(map(str, content.damaged[:5])) or str(content.end)
        return None, [Finding(file, f"{file} is damaged: no valid record at offset {places}")]
    if not is_same:
        return None, [Finding(file, f"{file} is damaged: its SHA-256 is not that in backup.json")]
    state = State()
    for record in content.records:
        state.apply(decode_changes(content.data, record))
    owners = {}
    findings = []
    for path, change in state.nodes.items():
        ledger_id = paths.ledger_id(path)
        if change.kind == NODE and ledger_id is not None:
            owners[ledger_id] = _owner(change.value)
        elif change.kind == DAMAGED:
            sentence = f"the node {path} was damaged when the backup was created"
            findings.append(Finding(file, sentence))
    return owners, findings


def _owner(value: bytes) -> str:
    """Return a text about the owner of a ledger, from its metadata."""
    try:
        custom = decode(value).custom_metadata
    except MetadataError:
        return ""
    name = custom.get("pulsar/managed-ledger", b"").decode(errors="replace")
    cursor = custom.get("pulsar/cursor", b"").decode(errors="replace")
    if cursor:
        return f" (cursor {cursor} of {name})"
    return f" ({name})" if name else ""


def _check_log(
    file: Path, data: bytearray, is_same: bool, owners: dict[int, str] | None
) -> Iterator[Finding]:
    try:
        log_id = int(file.stem, 16)
    except ValueError:
        yield Finding(file, f"{file} has no name of an entry log")
        return
    # Holes are punched for deleted ledgers, and cut the records at their edges.
    damaged = [
        each
        for each in check_log(data, log_id)
        if owners is None or each.ledger_id < 0 or each.ledger_id in owners
    ]
    for each in damaged:
        yield Finding(
            file, _sentence(file, each, is_same, owners or {}), each.ledger_id, each.entry_id
        )
    if not is_same and not damaged:
        yield Finding(
            file,
            f"{file} is damaged: its SHA-256 is not that in backup.json; its entries are intact",
        )


def _sentence(file: Path, damage: Damage, is_same: bool, owners: dict[int, str]) -> str:
    owner = owners.get(damage.ledger_id, "")
    when = ", since before the backup was created" if is_same else ""
    return f"{file} is damaged at offset {damage.offset}: {damage.what}{owner}{when}"
