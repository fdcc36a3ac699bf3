"""Batches in compaction: unpacking, and packing with the remaining messages.

The contents of a batch are not trusted. Unpacking allocates the declared size, up to a limit, and
rejects a batch whose size differs from it.
"""

from __future__ import annotations

from typing import Any

from pyxbroker.base.compression import compress, decompress
from pyxbroker.broker.topics.messages import (
    BROKER_METADATA_MAGIC,
    CHECKSUM_MAGIC,
    write_message,
)

INDEXES_PER_CALL = 4_096  # indexes of messages, per call


def unpack(compression: int, size: int, payload: bytes, size_max: int) -> bytes | None:
    """Decompress the messages of a batch to the declared size. Return None if the size differs or
    exceeds size_max, or the compression is unknown.
    """
    if size > size_max:
        return None
    try:
        return decompress(compression, payload, size)
    except ValueError:
        return None


def last_index_of(entry: bytes) -> int:
    """Return the index of the last remaining message in a batch; -1: the entry is no batch."""
    try:
        _, metadata = _read_metadata(entry)
    except ValueError:
        return -1
    if not metadata.HasField("num_messages_in_batch"):
        return -1
    left = metadata.compacted_batch_indexes
    return int(max(left) if left else metadata.num_messages_in_batch - 1)


def with_messages(entry: bytes, messages: bytes, left: list[int]) -> bytes:
    """Return the entry of a batch with only the messages `left`, and empty places for the others.
    The broker entry metadata is preserved. Raises ValueError if the entry is malformed.
    """
    head, metadata = _read_metadata(entry)
    metadata.uncompressed_size = len(messages)
    metadata.ClearField("compacted_batch_indexes")
    for at in range(0, len(left), INDEXES_PER_CALL):
        # One call for all would hold the GIL for long.
        metadata.compacted_batch_indexes.extend(left[at : at + INDEXES_PER_CALL])
    return head + write_message(metadata, compress(metadata.compression, messages))


def _read_metadata(entry: bytes) -> tuple[bytes, Any]:
    """Return the broker entry metadata of an entry, and its MessageMetadata. Raises ValueError."""
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
