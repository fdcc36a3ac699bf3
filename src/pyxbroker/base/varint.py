"""Protobuf varints, for messages that are assembled from parts."""

from __future__ import annotations


def encode_varint(value: int) -> bytes:
    """Encode a number of 0 or more, seven bits per byte, lowest first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
