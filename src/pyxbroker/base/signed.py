"""Signed 64-bit numbers, and ack sets, in fields of commands and records that have no sign."""

from __future__ import annotations

from collections.abc import Sequence

_WRAP = 1 << 64


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as Java reads it."""
    return number - _WRAP if number >> 63 else number


def bits_of(words: Sequence[int]) -> int:
    """Return an ack set, 64-bit words with or without a sign, as one number."""
    bits = 0
    for word in reversed(words):
        bits = bits << 64 | word % _WRAP
    return bits


def words_of(bits: int) -> list[int]:
    """Return an ack set as signed 64-bit words, as the protocol has them."""
    words = []
    while bits:
        words.append(signed(bits % _WRAP))
        bits >>= 64
    return words
