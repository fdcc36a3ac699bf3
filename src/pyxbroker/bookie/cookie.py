"""The cookie: which bookie a data directory belongs to (BookKeeper's Cookie).

The same text is in the directory (current/VERSION) and in metadata (/ledgers/cookies/<bookieId>):
a line with the layout version, then protobuf text of CookieFormat. A directory of another cluster
is refused.

The file is written under another name, synced, renamed, and the directory synced, so that a power
cut leaves the whole cookie or none; none is made again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyxbroker.directories import make_directory, sync_directory
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

LAYOUT_VERSION = 5
FILE = Path("current") / "VERSION"


class CookieMismatch(Exception):
    """The data directory belongs to another cluster."""


def cookie_text(bookie_id: str, directory: Path, instance_id: str) -> str:
    """The cookie of a bookie with one directory."""
    return (
        f"{LAYOUT_VERSION}\n"
        f'bookieHost: "{bookie_id}"\n'
        f'journalDir: "{directory / "journal"}"\n'
        f'ledgerDirs: "1\\t{directory / "ledgers"}"\n'
        f'instanceId: "{instance_id}"\n'
    )


def _field(text: str, name: str) -> str | None:
    found = re.search(rf'^{name}: "([^"]*)"$', text, re.MULTILINE)
    return None if found is None else found[1]


async def check_cookie(
    directory: Path, default_bookie_id: str, instance_id: str, store: MetadataStore
) -> str:
    """Returns the bookie id that a directory was made for; makes the cookie of a new one.

    Raises CookieMismatch when the directory belongs to another cluster.
    """
    file = directory / FILE
    text = file.read_text() if file.exists() else ""
    bookie_id = _field(text, "bookieHost")
    if bookie_id is None:
        bookie_id = default_bookie_id
        text = cookie_text(bookie_id, directory, instance_id)
        _write_durably(file, text)
    elif _field(text, "instanceId") != instance_id:
        raise CookieMismatch(
            f"The data in {directory} belongs to the cluster {_field(text, 'instanceId')}, but the"
            f" metadata store is that of the cluster {instance_id}. Use the metadata store that it"
            " was made with, or another data directory."
        )
    path = paths.cookie(bookie_id)
    found = await store.get(path)
    if found is None:
        await store.put(path, text.encode())
    return bookie_id


def _write_durably(file: Path, text: str) -> None:
    make_directory(file.parent)
    temporary = file.with_suffix(".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.replace(file)
    sync_directory(file.parent)
