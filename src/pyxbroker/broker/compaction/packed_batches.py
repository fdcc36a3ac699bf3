"""Batches that compaction looks into: unpacked, and packed again with what is left of them.

A batch is bytes that a stranger wrote: memory is taken for what its producer says, up to a limit,
and what does not become exactly that is not a batch that anybody could read.
"""

from __future__ import annotations

from typing import Any

from pyxbroker.base.compression import compress, decompress
from pyxbroker.broker.topics.messages import (
    BROKER_METADATA_MAGIC,
    CHECKSUM_MAGIC,
    write_message,
)

EXTENDED_AT_ONCE = 4_096  # indexes of messages


def unpack(compression: int, size: int, payload: bytes, size_max: int) -> bytes | None:
    """The messages of a compressed batch, of so many bytes; None: it has others, or more than
    size_max, or nobody knows how it is packed.
    """
    if size > size_max:
        return None
    try:
        return decompress(compression, payload, size)
    except ValueError:
        return None


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
    return head + write_message(metadata, compress(metadata.compression, messages))


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
