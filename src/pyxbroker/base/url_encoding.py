"""Names encoded as single path elements, as Pulsar writes them into its metadata (Codec)."""

from __future__ import annotations

import re
from urllib.parse import quote_plus, unquote_plus

# A fast path: nearly all names need no encoding, and creating a topic encodes many.
_is_plain = re.compile(r"[A-Za-z0-9.*_-]*").fullmatch


def encode(name: str) -> str:
    """Encode a name as one path element, like Java's URLEncoder with UTF-8."""
    if _is_plain(name):
        return name
    return quote_plus(name, safe="*", errors="replace").replace("~", "%7E")


def decode(name: str) -> str:
    """The inverse of `encode`."""
    return unquote_plus(name) if "%" in name or "+" in name else name
