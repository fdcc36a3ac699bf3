"""Batches that compaction looks into: unpacked, and packed again with what is left of them.

A batch is bytes that a stranger wrote: memory is taken for what its producer says, up to a limit,
and what does not become exactly that is not a batch that anybody could read.
"""

from __future__ import annotations

import zlib
from typing import Any

from pyxbroker.broker.topics.messages import (
    BROKER_METADATA_MAGIC,
    CHECKSUM_MAGIC,
    write_message,
)

NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)  # CompressionType

EXTENDED_AT_ONCE = 4_096  # indexes of messages

# How many bytes one compressed byte can become.
_RATIOS_MAX = {LZ4: 255, ZLIB: 1032, ZSTD: 32 << 10, SNAPPY: 22}


def unpack(compression: int, size: int, payload: bytes, size_max: int) -> bytes | None:
    """The messages of a compressed batch, of so many bytes; None: it has others, or more than
    size_max, or nobody knows how it is packed.
    """
    ratio = _RATIOS_MAX.get(compression)
    if ratio is None or size > size_max or size > len(payload) * ratio + 64:
        return None
    try:
        found = _unpack(compression, size, payload)
    except Exception:  # every codec has its own exception classes
        return None
    return found if len(found) == size else None


def _unpack(compression: int, size: int, payload: bytes) -> bytes:
    if compression == ZLIB:
        # Java's client may leave out the end mark of a stream.
        return zlib.decompressobj().decompress(payload, size + 1)
    import cramjam

    output = bytearray(size)
    if compression == LZ4:
        written = cramjam.lz4.decompress_block_into(payload, output, output_len=size)
    elif compression == ZSTD:
        written = cramjam.zstd.decompress_into(payload, output)
    else:
        written = cramjam.snappy.decompress_raw_into(payload, output)
    return bytes(output[:written])


def _pack(compression: int, messages: bytes) -> bytes:
    if compression == NONE:
        return messages
    if compression == ZLIB:
        return zlib.compress(messages)
    import cramjam

    if compression == LZ4:
        return bytes(cramjam.lz4.compress_block(messages, store_size=False))
    if compression == ZSTD:
        return bytes(cramjam.zstd.compress(messages))
    return bytes(cramjam.snappy.compress_raw(messages))


def last_index_of(entry: bytes) -> int:
    """The index of the last message that is left in a batch; -1: it is none."""
    try:
        _, metadata = _read_metadata(entry)
    except ValueError:
        return -1
    if not metadata.HasField("num_messages_in_batch"):
        return -1
    left = metadata.compacted_batch_indexes
    return int(max(left) if left else metadata.num_messages_in_batch - 1)


def with_messages(entry: bytes, messages: bytes, left: list[int]) -> bytes:
    """The entry of a batch with other messages in it: some are there, and empty places for the
    others. What the broker has put in front stays. ValueError: it is malformed.
    """
    head, metadata = _read_metadata(entry)
    metadata.uncompressed_size = len(messages)
    metadata.ClearField("compacted_batch_indexes")
    for at in range(0, len(left), EXTENDED_AT_ONCE):
        # A call for all of them would let no other thread run meanwhile.
        metadata.compacted_batch_indexes.extend(left[at : at + EXTENDED_AT_ONCE])
    return head + write_message(metadata, _pack(metadata.compression, messages))


def _read_metadata(entry: bytes) -> tuple[bytes, Any]:
    """What the broker has put in front of an entry, and its MessageMetadata. Raises ValueError."""
    from google.protobuf.message import DecodeError

    from pyxbroker.proto import PulsarApi as pb

    at = 0
    if entry[:2] == BROKER_METADATA_MAGIC:
        at = 6 + int.from_bytes(entry[2:6], "big")
    head = entry[:at]
    if entry[at : at + 2] == CHECKSUM_MAGIC:
        at += 6
    size = int.from_bytes(entry[at : at + 4], "big")
    metadata = pb.MessageMetadata()
    try:
        metadata.ParseFromString(entry[at + 4 : at + 4 + size])
    except DecodeError as error:
        raise ValueError(f"its metadata cannot be read: {error}") from error
    return head, metadata
