"""Batches in compaction: unpacking, and packing with the remaining messages.

The contents of a batch are not trusted. Unpacking allocates the declared size, up to a limit, and
rejects a batch whose size differs from it.
"""

from __future__ import annotations

from pyxbroker.base.compression import compress, decompress
from pyxbroker.broker.topics.messages import read_head, write_message

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
        metadata = read_head(entry).metadata
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
    head, metadata, _ = read_head(entry)
    metadata.uncompressed_size = len(messages)
    metadata.ClearField("compacted_batch_indexes")
    for at in range(0, len(left), INDEXES_PER_CALL):
        # One call for all would hold the GIL for long.
        metadata.compacted_batch_indexes.extend(left[at : at + INDEXES_PER_CALL])
    return head + write_message(metadata, compress(metadata.compression, messages))
