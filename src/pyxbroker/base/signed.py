"""Signed 64-bit numbers, and ack sets, in fields of commands and records that have no sign."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_WRAP = 1 << 64


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as Java reads it."""
    return number - _WRAP if number >> 63 else number


def bits_of(words: Sequence[int]) -> int:
    """Return an ack set, 64-bit words with or without a sign, as one number."""
    return int.from_bytes(
        b"".join([(word % _WRAP).to_bytes(8, "little") for word in words]), "little"
    )


def words_of(bits: int) -> list[int]:
    """Return an ack set as signed 64-bit words, as the protocol has them."""
    count = word_count(bits)
    return list(struct.unpack(f"<{count}q", bits.to_bytes(8 * count, "little")))


def word_count(bits: int) -> int:
    """Return the number of words that words_of returns."""
    return (bits.bit_length() + 63) // 64
