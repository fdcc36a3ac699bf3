"""What a managed ledger and its cursors store: protobuf messages to bytes and back.

A value is the bare message, or compressed when the operator of the cluster asked for it
(managedLedgerInfoCompressionType, managedCursorInfoCompressionType). Then it is

  offset  size  content (integers big-endian)
  0       2     magic 0x4778, which cannot begin a bare message
  2       4     n, the size of the header
  6       n     ManagedLedgerInfoMetadata or ManagedCursorInfoMetadata (the same two fields)
  6+n     rest  the compressed message; LZ4 and Snappy are raw blocks

We read both forms and write the bare one. The source is Pulsar's MetaStoreImpl.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from pyxbroker.metadata.protobuf_records import MalformedRecord, parse
from pyxbroker.proto import MLDataFormats

COMPRESSED_MAGIC = 0x4778
UNCOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
NO_LEDGER = -1
"""The cursorsLedgerId of a cursor whose position is in its ManagedCursorInfo itself."""

_ENVELOPE = struct.Struct(">HI")


def encode_managed_ledger_info(info: Any) -> bytes:
    return info.SerializeToString()


def decode_managed_ledger_info(value: bytes) -> Any:
    """A ManagedLedgerInfo; an empty one for the empty value that a topic is created with."""
    return _decode(MLDataFormats.ManagedLedgerInfo, value)


def encode_managed_cursor_info(info: Any) -> bytes:
    return info.SerializeToString()


def decode_managed_cursor_info(value: bytes) -> Any:
    """A ManagedCursorInfo."""
    return _decode(MLDataFormats.ManagedCursorInfo, value)


def encode_position_info(info: Any) -> bytes:
    return info.SerializeToString()


def decode_position_info(entry: bytes) -> Any:
    """A PositionInfo, the entry of a cursor ledger; entries are never compressed."""
    return parse(MLDataFormats.PositionInfo, entry)


def _decode(message_class: Any, value: bytes) -> Any:
    if len(value) < _ENVELOPE.size:
        return parse(message_class, value)
    magic, header_size = _ENVELOPE.unpack_from(value)
    if magic != COMPRESSED_MAGIC:
        return parse(message_class, value)
    body = _ENVELOPE.size + header_size
    if body > len(value):
        raise MalformedRecord(f"a compressed {message_class.__name__} is cut short")
    header = parse(MLDataFormats.ManagedLedgerInfoMetadata, value[_ENVELOPE.size : body])
    if not 0 <= header.uncompressedSize <= UNCOMPRESSED_BYTES_MAX:
        raise MalformedRecord(f"a {message_class.__name__} claims {header.uncompressedSize} bytes")
    if header.uncompressedSize > (len(value) - body) * _RATIOS_MAX.get(header.compressionType, 0):
        raise MalformedRecord(f"{len(value)} bytes claim to be {header.uncompressedSize}")
    data = _decompress(header.compressionType, value[body:], header.uncompressedSize)
    return parse(message_class, data)


def _decompress(compression: int, data: bytes, size: int) -> bytes:
    """The `size` bytes that `data` was compressed from."""
    try:
        plain = _DECOMPRESSORS[compression](data, size)
    except Exception as error:  # every codec has its own exception classes
        raise MalformedRecord(f"a compressed record cannot be expanded: {error}") from error
    if len(plain) != size:
        raise MalformedRecord(f"a compressed record has {len(plain)} bytes, {size} were promised")
    return plain


def _decompress_zlib(data: bytes, size: int) -> bytes:
    decompressor = zlib.decompressobj()
    plain = decompressor.decompress(data, size + 1)
    if not decompressor.eof:
        raise MalformedRecord("a compressed record is cut short")
    return plain


def _decompress_lz4(data: bytes, size: int) -> bytes:
    import cramjam

    return bytes(cramjam.lz4.decompress_block(data, output_len=size))


def _decompress_zstd(data: bytes, size: int) -> bytes:
    import cramjam

    output = bytearray(size)
    written = cramjam.zstd.decompress_into(data, output)
    return bytes(output[:written])


def _decompress_snappy(data: bytes, size: int) -> bytes:
    import cramjam

    output = bytearray(size)
    written = cramjam.snappy.decompress_raw_into(data, output)
    return bytes(output[:written])


# How many bytes one compressed byte can become: memory is taken for what can be there.
_RATIOS_MAX = {0: 1, 1: 255, 2: 1032, 3: 32 << 10, 4: 22}

_DECOMPRESSORS = {
    0: lambda data, size: data,
    1: _decompress_lz4,
    2: _decompress_zlib,
    3: _decompress_zstd,
    4: _decompress_snappy,
}
