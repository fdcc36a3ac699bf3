"""How much work a text of JSON is to read, before it is read: that cannot be interrupted."""

from __future__ import annotations

import re

from pyxbroker.base.slices import Slices

CHUNK_BYTES = 64 << 10
SIGNS = (
    b",:[{"  # there is no more of values and names than of these outside of strings, but for one
)

_QUOTE = b'"'
_BACKSLASH = b"\\"
_REST_OF_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


async def is_heavy(text: bytes, signs_max: int) -> bool:
    """Whether a text has more values and names than that; a long string is one of them.

    It is looked through in slices of the loop's time, and no further than the answer is known.
    """
    signs, at, in_string = 0, 0, False
    slices = Slices()
    while at < len(text):
        end = min(at + CHUNK_BYTES, len(text))
        if in_string:
            at, in_string = _pass_string(text, at, end)
        else:
            quote = text.find(_QUOTE, at, end)
            stop = end if quote < 0 else quote
            signs += sum(text.count(sign, at, stop) for sign in SIGNS)
            if signs > signs_max:
                return True
            in_string = quote >= 0
            at = stop + in_string
        await slices.pause()
    return False


def _pass_string(text: bytes, at: int, end: int) -> tuple[int, bool]:
    """Where to go on within a chunk that begins in a string, and whether that is in it still."""
    quote = text.find(_QUOTE, at, end)
    stop = end if quote < 0 else quote
    if text.find(_BACKSLASH, at, stop) < 0:  # most strings have none, and this is much faster
        return (end, True) if quote < 0 else (quote + 1, False)
    found = _REST_OF_STRING.match(text, at, end)
    assert found is not None
    # A backslash that ends a chunk begins the next one.
    in_string = text[found.end() : found.end() + 1] != _QUOTE
    return found.end() + (not in_string or found.end() == at), in_string
