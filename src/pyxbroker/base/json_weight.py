"""How much work a text of JSON is to read, before it is read: that cannot be interrupted."""

from __future__ import annotations

import json
import re
from typing import Any

from pyxbroker.base.slices import Slices

SIGNS_MAX = 20_000  # values and names of most texts: to read so many takes some 2 ms at once
MANY_SIGNS_MAX = 100_000  # of those that may well have more; at most 10 ms
CHUNK_BYTES = 64 << 10
# What takes as long to read as a value does: so many escapes, and a tenth of so many digits of one
# number, of which no one that is meant has as many.
ESCAPES_PER_SIGN = 64
DIGITS = 100
SIGNS_PER_DIGITS = 10
SIGNS = (
    b",:[{"  # there is no more of values and names than of these outside of strings, but for one
)

_QUOTE = b'"'
_BACKSLASH = b"\\"
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % DIGITS)
_REST_OF_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


async def is_heavy(text: bytes, signs_max: int) -> bool:
    """Whether a text has more values and names than that; a long string is one of them, where it
    has few escapes.
    """
    return len(text) > signs_max and await weigh(text, signs_max) > signs_max


async def weigh(text: bytes, signs_max: int) -> int:
    """How many values and names a text has; where those are more than `signs_max`, any number that
    is more, too.

    It is looked through in slices of the loop's time, and no further than that.
    """
    signs, strings, escapes, at, in_string = 0, 0, 0, 0, False
    slices = Slices()
    while at < len(text):
        end = min(at + CHUNK_BYTES, len(text))
        if in_string:
            at, in_string, found = _pass_string(text, at, end)
            escapes += found
        else:
            quote = text.find(_QUOTE, at, end)
            stop = end if quote < 0 else quote
            signs += sum(text.count(sign, at, stop) for sign in SIGNS)
            if stop - at >= DIGITS:
                signs += SIGNS_PER_DIGITS * len(_LONG_NUMBER.findall(text, at, stop))
            in_string = quote >= 0
            strings += in_string
            at = stop + in_string
        # Each string costs a turn of this loop, and more than one to a sign are no JSON.
        weight = max(signs, strings - 1) + escapes // ESCAPES_PER_SIGN
        if weight > signs_max:
            return weight
        await slices.pause()
    return max(signs, strings - 1) + escapes // ESCAPES_PER_SIGN


def too_heavy(signs_max: int) -> str:
    """What is wrong with a text that weighs more than that."""
    return (
        f"has more than {signs_max} values and names, of which {ESCAPES_PER_SIGN} escapes count as"
        " one"
    )


async def parse_light(text: str, signs_max: int) -> Any:
    """The value of a text within another one. Raises ValueError, also for one that is heavy, and
    RecursionError.
    """
    if await is_heavy(text.encode("utf-8", "surrogatepass"), signs_max):
        raise ValueError(f"it {too_heavy(signs_max)}")
    return json.loads(text)


def _pass_string(text: bytes, at: int, end: int) -> tuple[int, bool, int]:
    """Where to go on within a chunk that begins in a string, whether that is in it still, and how
    many escapes were passed.
    """
    quote = text.find(_QUOTE, at, end)
    stop = end if quote < 0 else quote
    if text.find(_BACKSLASH, at, stop) < 0:  # most strings have none, and this is much faster
        return (end, True, 0) if quote < 0 else (quote + 1, False, 0)
    found = _REST_OF_STRING.match(text, at, end)
    assert found is not None
    # A backslash that ends a chunk begins the next one.
    in_string = text[found.end() : found.end() + 1] != _QUOTE
    stop = found.end() + (not in_string or found.end() == at)
    return stop, in_string, text.count(_BACKSLASH, at, stop)
