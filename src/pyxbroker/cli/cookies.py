"""Check and repair of the cookie in a bookie's directory, for `pyxbroker metadata`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyxbroker.base.directories import exists
from pyxbroker.bookie.cookie import (
    FILE,
    Cookie,
    find_copy,
    parse_cookie,
    read_cookie,
    write_cookie,
)
from pyxbroker.bookie.errors import DamagedCookie
from pyxbroker.metadata import paths
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.metadata.findings import Finding, Severity

MISSING = "the cookie is missing"
DAMAGED = "the cookie is damaged"
FLIPPED_CHARACTERS_MAX = 2


def check_cookie_file(bookie: Path) -> list[Finding]:
    """Return the problem of the cookie's file, if any. Raise OSError or NewerFormat."""
    trouble = _read(bookie)[1] if exists(bookie) else None
    if trouble is None:
        return []
    sentence = f"{trouble}; `pyxbroker metadata repair` restores it"
    return [Finding(Severity.DAMAGED, bookie / FILE, sentence)]


def repair_cookie_file(bookie: Path, metadata: Path) -> list[Finding]:
    """Restore the file if it is missing, damaged or different from its copy in the metadata.

    Raise OSError, NewerFormat or MetadataError.
    """
    if not exists(bookie):
        return []
    file = bookie / FILE
    cookie, trouble = _read(bookie)
    copy = asyncio.run(_find_copy(metadata, cookie))
    if copy is None:
        sentence = f"{trouble}, and the metadata has no copy of it"
        return [] if trouble is None else [Finding(Severity.DAMAGED, file, sentence)]
    if cookie is not None and cookie.text == copy.text:
        return []
    if cookie is not None and not (
        _is_nearly(cookie.instance_id, copy.instance_id)
        and _is_nearly(cookie.bookie_id, copy.bookie_id)
    ):
        sentence = (
            f"the cookie belongs to bookie {cookie.bookie_id} of cluster {cookie.instance_id}, but"
            f" the metadata to bookie {copy.bookie_id} of cluster {copy.instance_id}; they do not"
            " belong together, so neither was changed"
        )
        return [Finding(Severity.DAMAGED, file, sentence)]
    write_cookie(bookie, copy.text)
    trouble = trouble or "the cookie differed from its copy in the metadata"
    return [Finding(Severity.REPAIRED, file, f"{trouble}; it was restored from its copy")]


def _is_nearly(one: str, other: str) -> bool:
    """Return True if flipped bits explain the difference, rather than another cluster."""
    differing = sum(a != b for a, b in zip(one, other, strict=False))
    return len(one) == len(other) and differing <= FLIPPED_CHARACTERS_MAX


def _read(bookie: Path) -> tuple[Cookie | None, str | None]:
    """Return the cookie, and its problem."""
    try:
        cookie = read_cookie(bookie)
    except DamagedCookie:
        return None, DAMAGED
    return cookie, MISSING if cookie is None else None


async def _find_copy(metadata: Path, cookie: Cookie | None) -> Cookie | None:
    """Return the copy of this cookie, or of an unreadable one the only or the last copy."""
    store = EmbeddedStore(metadata)
    await store.open()
    try:
        if cookie is not None:
            found = await store.get(paths.cookie(cookie.bookie_id))
            if found is not None:
                return parse_cookie(found.value, "The copy of the cookie in the metadata")
        # The store belongs to a single bookie, so the bookie's current name does not matter.
        return await find_copy(store, "", alone=True)
    finally:
        await store.close()
