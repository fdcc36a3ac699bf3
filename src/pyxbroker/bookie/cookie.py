"""The cookie, which records the bookie that a data directory belongs to (BookKeeper's Cookie).

The same text is in the directory (current/VERSION) and in metadata (/ledgers/cookies/<bookieId>):
a line with the layout version, then protobuf text of CookieFormat. A start refuses a directory of
another cluster, and one whose cookie is missing, damaged or of a newer layout. Creating a new
cookie silently would make the stored entries unreachable.

The file is written under another name, synced and renamed, and the directory is synced, so that a
power cut leaves a complete cookie or none. It is written after the metadata store and the
directories of journal and entry logs exist, and before the first entry. So if the cookie exists,
the others must exist too (bookie/layout.py).
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
LAYOUT_VERSION_MIN = 3  # first version in which BookKeeper's cookies are text
FILE = Path("current") / "VERSION"


class Cookie(NamedTuple):
    """The parsed fields of a cookie, and its text."""

    text: str
    bookie_id: str
    instance_id: str


def cookie_text(bookie_id: str, directory: Path, instance_id: str) -> str:
    """Return the text of the cookie of a bookie with one directory."""
    return (
        f"{LAYOUT_VERSION}\n"
        f'bookieHost: "{bookie_id}"\n'
        f'journalDir: "{directory / "journal"}"\n'
        f'ledgerDirs: "1\\t{directory / "ledgers"}"\n'
        f'instanceId: "{instance_id}"\n'
    )


def parse_cookie(data: bytes, place: str) -> Cookie:
    """Parse a cookie; `place` is its location for error messages.

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
    """Return the cookie of a directory, or None. I/O errors are retried for 2 s.

    Raises OSError, DamagedCookie and NewerFormat.
    """
    file = directory / FILE
    try:
        data = retry_transient(file.read_bytes)
    except FileNotFoundError:
        return None
    return parse_cookie(data, f"The cookie {file}")


def write_cookie(directory: Path, text: str) -> None:
    """Write the cookie of a directory durably. Raises OSError."""
    file = directory / FILE
    make_directory(file.parent)
    write_whole_file(file, text.encode())


async def check_cookie(
    cookie: Cookie, directory: Path, instance_id: str, store: MetadataStore, *, alone: bool
) -> None:
    """Compare the cookie of a directory with its copy in metadata; create a missing copy.

    If `alone`, the store belongs to this bookie only, so a cookie under any other id means that the
    id in the file is damaged. Raises CookieMismatch and DamagedCookie.
    """
    path = paths.cookie(cookie.bookie_id)
    found = await store.get(path)
    if cookie.instance_id != instance_id:
        if found is not None and f'instanceId: "{instance_id}"' in found.value.decode("latin-1"):
            raise DamagedCookie(f"The cookie {directory / FILE}")
        raise CookieMismatch(
            f"The data in {directory} belongs to the cluster {cookie.instance_id}, but the"
            f" metadata store is that of the cluster {instance_id}; use the metadata store that the"
            " data was created with, or another data directory."
        )
    if found is None:
        if alone and await store.children(paths.COOKIES):
            raise DamagedCookie(f"The cookie {directory / FILE}")
        await store.put(path, cookie.text.encode())
    elif found.value != cookie.text.encode():
        log.warning(
            "the cookie and its copy in the metadata differ in fields that are not checked",
            file=directory / FILE,
            copy=path,
        )


async def find_copy(store: MetadataStore, default_bookie_id: str, *, alone: bool) -> Cookie | None:
    """Return the copy in metadata of the cookie of a directory without one, or None.

    In a store of a single bookie this is the last one written, whatever the bookie id is now.
    """
    ids = await store.children(paths.COOKIES) if alone else [default_bookie_id]
    found = [(each, await store.get(paths.cookie(each))) for each in ids]
    copies = [(result.modified_ms, each, result) for each, result in found if result is not None]
    if not copies:
        return None
    _, bookie_id, last = max(copies, key=lambda each: each[:2])
    return parse_cookie(last.value, f"The copy of the cookie at {paths.cookie(bookie_id)}")


async def store_copy(bookie_id: str, text: str, store: MetadataStore) -> None:
    """Store the copy of a new cookie, unless a copy exists."""
    if await store.get(paths.cookie(bookie_id)) is None:
        await store.put(paths.cookie(bookie_id), text.encode())
