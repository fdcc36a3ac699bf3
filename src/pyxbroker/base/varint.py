"""Protobuf's numbers of any size, where a message is put together from parts."""

from __future__ import annotations


def encode_varint(value: int) -> bytes:
    """Seven bits in each byte, the lowest first; value: 0 or more."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
