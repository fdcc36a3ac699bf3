"""Names as single path elements, as Pulsar writes them into its metadata (Codec)."""

from __future__ import annotations

from urllib.parse import quote_plus, unquote_plus


def encode(name: str) -> str:
    """A name as one path element, by the rules of Java's URLEncoder with UTF-8."""
    return quote_plus(name, safe="*", errors="replace").replace("~", "%7E")


def decode(name: str) -> str:
    """The inverse of `encode`."""
    return unquote_plus(name)
