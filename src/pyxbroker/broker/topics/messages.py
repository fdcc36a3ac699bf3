"""Messages that the broker itself writes and reads: one per entry, uncompressed and unencrypted.

frames.pxd defines the layout of an entry.
"""

from __future__ import annotations

import sys
from typing import Any

from pyxbroker._native import crc32c
from pyxbroker.base.named_tuple import NamedTuple

CHECKSUM_MAGIC = b"\x0e\x01"
BROKER_METADATA_MAGIC = b"\x0e\x02"


def write_message(metadata: Any, payload: bytes) -> bytes:
    """Return an entry that consists of one message."""
    head = metadata.SerializeToString()
    body = len(head).to_bytes(4, "big") + head + payload
    return CHECKSUM_MAGIC + crc32c(body).to_bytes(4, "big") + body


class EntryHead(NamedTuple):
    """The parts of an entry before its payload."""

    broker_metadata: bytes
    """Serialized, with its header; empty if the entry has none."""
    metadata: Any
    payload_at: int


def read_head(entry: bytes, metadata_bytes_max: int = sys.maxsize) -> EntryHead:
    """Parse the parts of an entry before its payload. Raises ValueError if they cannot be."""
    from google.protobuf.message import DecodeError

    from pyxbroker.proto import PulsarApi as pb

    at = 0
    if entry[:2] == BROKER_METADATA_MAGIC:
        at = 6 + int.from_bytes(entry[2:6], "big")
    broker_metadata = entry[:at]
    if entry[at : at + 2] == CHECKSUM_MAGIC:
        at += 6
    size = int.from_bytes(entry[at : at + 4], "big")
    longest = max(len(broker_metadata), size)
    at += 4
    if at + size > len(entry):
        raise ValueError(f"metadata of {size} bytes in an entry of {len(entry)} bytes")
    if longest > metadata_bytes_max:
        raise ValueError(
            f"the metadata of the entry has {longest} bytes; at most {metadata_bytes_max} are shown"
        )
    metadata = pb.MessageMetadata()
    try:
        metadata.ParseFromString(entry[at : at + size])
    except DecodeError as error:
        raise ValueError(f"the metadata of the entry cannot be parsed: {error}") from error
    return EntryHead(broker_metadata, metadata, at + size)


def read_message(entry: bytes) -> tuple[Any, bytes]:
    """Return the metadata and payload of the message in an entry.

    Raises ValueError if the entry is a batch, compressed, encrypted or malformed.
    """
    _, metadata, payload_at = read_head(entry)
    if (
        metadata.HasField("num_messages_in_batch")
        or metadata.compression
        or (metadata.encryption_keys)
    ):
        raise ValueError("the entry is a batch, compressed or encrypted")
    return metadata, entry[payload_at:]
