"""The cookie: which bookie a data directory belongs to (BookKeeper's Cookie).

The same text is in the directory (current/VERSION) and in metadata (/ledgers/cookies/<bookieId>):
a line with the layout version, then protobuf text of CookieFormat. A directory of another cluster
is refused, and so is one whose cookie is gone, damaged or of a newer layout: a new cookie made in
silence would give the entries that are there to nobody.

The file is written under another name, synced, renamed, and the directory synced, so that a power
cut leaves the whole cookie or none. It is written after the metadata store and the directories of
journal and entry logs exist, and before the first entry: whoever finds a cookie has to find them as
well (bookie/layout.py).
"""

from __future__ import annotations

from pathlib import Path

from pyxbroker.base.directories import make_directory, retry_transient, write_whole_file
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.bookie.errors import CookieMismatch, DamagedCookie, NewerFormat
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataStore

log = get_logger("pyxbroker.bookie")

LAYOUT_VERSION = 5
VERSION_DIGITS_MAX = 9
LAYOUT_VERSION_MIN = 3  # the first one of BookKeeper that is text
FILE = Path("current") / "VERSION"


class Cookie(NamedTuple):
    """What a cookie says, and its text."""

    text: str
    bookie_id: str
    instance_id: str


def cookie_text(bookie_id: str, directory: Path, instance_id: str) -> str:
    """The cookie of a bookie with one directory."""
    return (
        f"{LAYOUT_VERSION}\n"
        f'bookieHost: "{bookie_id}"\n'
        f'journalDir: "{directory / "journal"}"\n'
        f'ledgerDirs: "1\\t{directory / "ledgers"}"\n'
        f'instanceId: "{instance_id}"\n'
    )


def parse_cookie(data: bytes, place: str) -> Cookie:
    """Reads a cookie; `place` says in a refusal where it is.

    Raises DamagedCookie and NewerFormat.
    """
    text = data.decode(errors="replace")
    version, _, rest = text.partition("\n")
    is_number = version.isascii() and version.isdigit() and len(version) <= VERSION_DIGITS_MAX
    if not is_number or int(version) < LAYOUT_VERSION_MIN:
        raise DamagedCookie(place)
    if int(version) > LAYOUT_VERSION:
        raise NewerFormat(place, int(version), LAYOUT_VERSION)
    fields = {}
    for line in rest.splitlines():
        name, separator, value = line.partition(': "')
        if not (name.isidentifier() and separator and value.endswith('"')) or '"' in value[:-1]:
            raise DamagedCookie(place)
        fields[name] = value[:-1]
    bookie_id, instance_id = fields.get("bookieHost"), fields.get("instanceId")
    if "\ufffd" in text or not bookie_id or not instance_id:
        raise DamagedCookie(place)
    return Cookie(text, bookie_id, instance_id)


def read_cookie(directory: Path) -> Cookie | None:
    """The cookie of a directory; None when it has none. An I/O error is tried again for 2 s.

    Raises OSError, DamagedCookie and NewerFormat.
    """
    file = directory / FILE
    try:
        data = retry_transient(file.read_bytes)
    except FileNotFoundError:
        return None
    return parse_cookie(data, f"The cookie {file}")


def write_cookie(directory: Path, text: str) -> None:
    """Writes the cookie of a directory, durable when this returns. Raises OSError."""
    file = directory / FILE
    make_directory(file.parent)
    write_whole_file(file, text.encode())


async def check_cookie(
    cookie: Cookie, directory: Path, instance_id: str, store: MetadataStore, *, alone: bool
) -> None:
    """Holds the cookie of a directory against its copy in metadata, which is made when missing.

    `alone` says that the store is of this bookie only, so that any other cookie in it means that
    the id in the file is not what was written. Raises CookieMismatch and DamagedCookie.
    """
    path = paths.cookie(cookie.bookie_id)
    found = await store.get(path)
    if cookie.instance_id != instance_id:
        if found is not None and f'instanceId: "{instance_id}"' in found.value.decode("latin-1"):
            raise DamagedCookie(f"The cookie {directory / FILE}")
        raise CookieMismatch(
            f"The data in {directory} belongs to the cluster {cookie.instance_id}, but the"
            f" metadata store is that of the cluster {instance_id}; use the metadata store that it"
            " was made with, or another data directory."
        )
    if found is None:
        if alone and await store.children(paths.COOKIES):
            raise DamagedCookie(f"The cookie {directory / FILE}")
        await store.put(path, cookie.text.encode())
    elif found.value != cookie.text.encode():
        log.warning(
            "the cookie and its copy in the metadata differ, though not in what they are for",
            file=directory / FILE,
            copy=path,
        )


async def find_copy(store: MetadataStore, default_bookie_id: str, *, alone: bool) -> Cookie | None:
    """The copy in metadata of the cookie of a directory that has none, None when there is none.

    In a store of its own that is the last one written, whatever the bookie is called now.
    """
    ids = await store.children(paths.COOKIES) if alone else [default_bookie_id]
    found = [(each, await store.get(paths.cookie(each))) for each in ids]
    copies = [(result.modified_ms, each, result) for each, result in found if result is not None]
    if not copies:
        return None
    _, bookie_id, last = max(copies, key=lambda each: each[:2])
    return parse_cookie(last.value, f"The copy of the cookie at {paths.cookie(bookie_id)}")


async def keep_copy(bookie_id: str, text: str, store: MetadataStore) -> None:
    """Stores the copy of a new cookie, unless there is one."""
    if await store.get(paths.cookie(bookie_id)) is None:
        await store.put(paths.cookie(bookie_id), text.encode())
