"""The cost of parsing a JSON text, measured before it is parsed: parsing cannot be interrupted."""

from __future__ import annotations

import json
import re
from typing import Any

from pyxbroker.base.slices import Slices

TOKENS_MAX = 20_000  # values and names of most texts: parsing that many blocks for some 2 ms
MANY_TOKENS_MAX = 100_000  # for texts that are expected to have more; at most 10 ms
CHUNK_BYTES = 64 << 10
# Each of these takes as long to parse as one value: 64 escapes, or 10 digits of a long number.
# Legitimate numbers have fewer than DIGITS digits.
ESCAPES_PER_TOKEN = 64
DIGITS = 100
TOKENS_PER_DIGITS = 10
TOKENS = b",:[{"  # outside of strings; values and names are at most one more

_QUOTE = b'"'
_BACKSLASH = b"\\"
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % DIGITS)
_REST_OF_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


async def is_heavy(text: bytes, tokens_max: int) -> bool:
    """Return True if a text has more than `tokens_max` values and names.

    A long string counts as one if it has few escapes.
    """
    return len(text) > tokens_max and await weigh(text, tokens_max) > tokens_max


async def weigh(text: bytes, tokens_max: int) -> int:
    """Return the number of values and names of a text, or any number above `tokens_max`.

    The scan runs in slices of the loop's time and stops once the limit is exceeded.
    """
    tokens, strings, escapes, at, in_string = 0, 0, 0, 0, False
    slices = Slices()
    while at < len(text):
        end = min(at + CHUNK_BYTES, len(text))
        if in_string:
            at, in_string, found = _pass_string(text, at, end)
            escapes += found
        else:
            quote = text.find(_QUOTE, at, end)
            stop = end if quote < 0 else quote
            tokens += sum(text.count(token, at, stop) for token in TOKENS)
            if stop - at >= DIGITS:
                tokens += TOKENS_PER_DIGITS * len(_LONG_NUMBER.findall(text, at, stop))
            in_string = quote >= 0
            strings += in_string
            at = stop + in_string
        # Each string costs an iteration. Valid JSON has at most one more string than tokens.
        weight = max(tokens, strings - 1) + escapes // ESCAPES_PER_TOKEN
        if weight > tokens_max:
            return weight
        await slices.pause()
    return max(tokens, strings - 1) + escapes // ESCAPES_PER_TOKEN


def too_heavy(tokens_max: int) -> str:
    """Return the error message for a text above the limit."""
    return (
        f"has more than {tokens_max} values and names, of which {ESCAPES_PER_TOKEN} escapes count"
        " as one"
    )


async def parse_light(text: str, tokens_max: int) -> Any:
    """Parse a JSON text that is embedded in another one.

    Raises ValueError, also for a text above the limit, and RecursionError.
    """
    if await is_heavy(text.encode("utf-8", "surrogatepass"), tokens_max):
        raise ValueError(f"it {too_heavy(tokens_max)}")
    return json.loads(text)


def _pass_string(text: bytes, at: int, end: int) -> tuple[int, bool, int]:
    """Skip a string, or its part in this chunk.

    Returns the next offset, True if the string continues, and the number of escapes skipped.
    """
    quote = text.find(_QUOTE, at, end)
    stop = end if quote < 0 else quote
    if text.find(_BACKSLASH, at, stop) < 0:  # most strings have none, and find() is much faster
        return (end, True, 0) if quote < 0 else (quote + 1, False, 0)
    found = _REST_OF_STRING.match(text, at, end)
    assert found is not None
    # A backslash at the end of a chunk is read with the next chunk.
    in_string = text[found.end() : found.end() + 1] != _QUOTE
    stop = found.end() + (not in_string or found.end() == at)
    return stop, in_string, text.count(_BACKSLASH, at, stop)
