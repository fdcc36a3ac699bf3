"""Encoding of the protobuf messages of managed ledgers and cursors.

A value is the bare message, or compressed if the operator of the cluster configured it
(managedLedgerInfoCompressionType, managedCursorInfoCompressionType). Then it is

  offset  size  content (integers big-endian)
  0       2     magic 0x4778, which cannot begin a bare message
  2       4     n, the size of the header
  6       n     ManagedLedgerInfoMetadata or ManagedCursorInfoMetadata (the same two fields)
  6+n     rest  the compressed message; LZ4 and Snappy are raw blocks

Both forms are read, and the bare one is written. The source is Pulsar's MetaStoreImpl.
"""

from __future__ import annotations

import struct
from typing import Any

from pyxbroker.base.compression import decompress
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
    """Decode a ManagedLedgerInfo; a new topic's empty value is an empty message."""
    return _decode(MLDataFormats.ManagedLedgerInfo, value)


def encode_managed_cursor_info(info: Any) -> bytes:
    return info.SerializeToString()


def decode_managed_cursor_info(value: bytes) -> Any:
    """Decode a ManagedCursorInfo."""
    return _decode(MLDataFormats.ManagedCursorInfo, value)


def encode_position_info(info: Any) -> bytes:
    return info.SerializeToString()


def decode_position_info(entry: bytes) -> Any:
    """Decode a PositionInfo, an entry of a cursor ledger, which is never compressed."""
    return parse(MLDataFormats.PositionInfo, entry)


def _decode(message_class: Any, value: bytes) -> Any:
    if len(value) < _ENVELOPE.size:
        return parse(message_class, value)
    magic, header_size = _ENVELOPE.unpack_from(value)
    if magic != COMPRESSED_MAGIC:
        return parse(message_class, value)
    body = _ENVELOPE.size + header_size
    if body > len(value):
        raise MalformedRecord(f"a compressed {message_class.__name__} is truncated")
    header = parse(MLDataFormats.ManagedLedgerInfoMetadata, value[_ENVELOPE.size : body])
    if not 0 <= header.uncompressedSize <= UNCOMPRESSED_BYTES_MAX:
        raise MalformedRecord(f"a {message_class.__name__} claims {header.uncompressedSize} bytes")
    try:
        data = decompress(header.compressionType, value[body:], header.uncompressedSize)
    except ValueError as error:
        raise MalformedRecord(f"a compressed {message_class.__name__}: {error}") from error
    return parse(message_class, data)
