"""Frames and protobuf fields of the binary protocol, read as plainly as Python allows.

These decoders share no code with the product. They say what is accepted: a varint of at most ten
bytes whose bits above 64 are dropped, field numbers from 1, no groups, unknown fields passed over.
What protobuf itself makes of a command is in oracles.commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

CHECKSUM_MAGIC = b"\x0e\x01"
BROKER_ENTRY_METADATA_MAGIC = b"\x0e\x02"
VARINT_BYTES_MAX = 10
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(Exception):
    """The bytes are not what they should be."""


class Field(NamedTuple):
    """One protobuf field; value is an int for a varint and bytes for everything else."""

    number: int
    wire: int
    value: int | bytes


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CRC_OF_BYTE = [_crc_of_byte(byte) for byte in range(256)]


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C (Castagnoli), byte by byte. crc32c(b"123456789") is 0xE3069283."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ CRC_OF_BYTE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# --- frames -------------------------------------------------------------------------------------


def number(data: bytes, at: int) -> int:
    """The big-endian 32-bit number at an offset. Raises Malformed when it is not all there."""
    if at + 4 > len(data):
        raise Malformed(f"a number at {at} runs past {len(data)} bytes")
    return int.from_bytes(data[at : at + 4], "big")


def scan(data: bytes, frame_bytes_max: int) -> tuple[list[tuple[bytes, bytes]], int, str | None]:
    """The whole frames at the start of data, the bytes they take, and what is wrong with the next:
    None (nothing, or it is not all there), "too large" or "malformed"."""
    frames: list[tuple[bytes, bytes]] = []
    at = 0
    while len(data) - at >= 4:
        total = number(data, at)
        if total > frame_bytes_max:
            return frames, at, "too large"
        if total < 4:
            return frames, at, "malformed"
        if len(data) - at < 8:
            break
        command_size = number(data, at + 4)
        if not 0 < command_size <= total - 4:
            return frames, at, "malformed"
        if len(data) - at < 4 + total:
            break
        body = data[at + 8 : at + 4 + total]
        frames.append((body[:command_size], body[command_size:]))
        at += 4 + total
    return frames, at, None


def frame(command: bytes, payload: bytes = b"") -> bytes:
    """A frame around a BaseCommand and, for SEND and MESSAGE, a payload section."""
    total = 4 + len(command) + len(payload)
    return total.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + payload


def payload_section(metadata: bytes, payload: bytes, *, checksum: bool = True) -> bytes:
    """What follows the command of a SEND: checksum, metadata, payload."""
    rest = len(metadata).to_bytes(4, "big") + metadata + payload
    return CHECKSUM_MAGIC + crc32c(rest).to_bytes(4, "big") + rest if checksum else rest


def check_payload(data: bytes) -> tuple[bytes, bool]:
    """The metadata of a payload section, and whether its checksum, if any, is right."""
    if len(data) >= 6 and data.startswith(BROKER_ENTRY_METADATA_MAGIC):
        raise Malformed("only brokers put entry metadata before the checksum")
    at = 0
    right = True
    if len(data) >= 6 and data.startswith(CHECKSUM_MAGIC):
        right = crc32c(data[6:]) == number(data, 2)
        at += 6
    size = number(data, at)
    metadata = data[at + 4 : at + 4 + size]
    if len(metadata) != size:
        raise Malformed(f"metadata of {size} bytes runs past the frame's end")
    return metadata, right


# --- protobuf fields ----------------------------------------------------------------------------


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at an offset, and the offset behind it. Raises Malformed."""
    value = 0
    for i in range(VARINT_BYTES_MAX):
        if at + i >= len(data):
            raise Malformed("a varint runs past the end")
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & (2**64 - 1), at + i + 1
    raise Malformed("a varint has more than ten bytes")


def fields(data: bytes) -> Iterator[Field]:
    """All fields in their order. Raises Malformed where they end badly."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        field_number, wire = key >> 3, key & 7
        if key >= 2**32 or field_number == 0:
            raise Malformed(f"a field has the number {field_number}")
        if wire == VARINT:
            value, at = varint(data, at)
            yield Field(field_number, wire, value)
            continue
        if wire == BYTES:
            size, at = varint(data, at)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise Malformed(f"wire type {wire}")
        if size > len(data) - at:
            raise Malformed(f"a field of {size} bytes runs past the end")
        yield Field(field_number, wire, data[at : at + size])
        at += size


def varints(data: bytes) -> list[int]:
    """A packed repeated field. Raises Malformed."""
    found = []
    at = 0
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


def signed(value: int, bits: int) -> int:
    """The low bits of a number as a signed integer, as protobuf's int32 and int64 read them."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
