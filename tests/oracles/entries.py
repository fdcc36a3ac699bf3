"""What is in an entry, read message by message by protobuf: slow, and obvious."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from harness.wire import BROKER_METADATA_MAGIC, CHECKSUM_MAGIC

from compacting import UNPACK
from pyxbroker._native import crc32c
from pyxbroker.entry_columns import Damaged, Encrypted
from pyxbroker.proto import PulsarApi as pb


class Message(NamedTuple):
    """One message. Times are in ms since 1970, `event_time` 0 for none; payload None: a null."""

    batch: int
    key: bytes | None
    payload: bytes | None
    publish_time: int
    event_time: int
    properties: list[tuple[str, str]]
    schema_version: bytes


class Entry(NamedTuple):
    """An entry, its metadata read and its payload as it came."""

    metadata: Any
    payload: bytes

    @property
    def is_chunk(self) -> bool:
        return bool(self.metadata.num_chunks_from_msg > 1)

    @property
    def permits(self) -> int:
        """What its delivery cost: the messages in it."""
        return max(1, int(self.metadata.num_messages_in_batch))


def read_entry(section: bytes) -> Entry:
    """Reads the payload section of a MESSAGE. Raises Damaged, Encrypted."""
    at = 0
    if section[:2] == BROKER_METADATA_MAGIC:
        at = 6 + int.from_bytes(section[2:6], "big")
    if section[at : at + 2] == CHECKSUM_MAGIC:
        expected = int.from_bytes(section[at + 2 : at + 6], "big")
        at += 6
        if crc32c(memoryview(section)[at:]) != expected:
            raise Damaged("its checksum is wrong")
    size = int.from_bytes(section[at : at + 4], "big")
    at += 4
    if at + size > len(section):
        raise Damaged(f"metadata of {size} bytes in {len(section)} bytes")
    try:
        metadata = pb.MessageMetadata.FromString(section[at : at + size])
    except DecodeError as error:
        raise Damaged(f"its metadata cannot be read ({error})") from error
    if metadata.encryption_keys:
        raise Encrypted("it is encrypted")
    return Entry(metadata, section[at + size :])


def messages_of(entry: Entry) -> Iterator[Message]:
    """The messages of an entry that is no chunk; compacted ones left out. Raises Damaged."""
    metadata = entry.metadata
    payload = unpacked(metadata, entry.payload)
    if not metadata.HasField("num_messages_in_batch"):
        yield _message(metadata, metadata, payload, -1)
        return
    at, size = 0, len(payload)
    for index in range(metadata.num_messages_in_batch):
        single, at = _single(payload, at)
        end = at + single.payload_size
        if not at <= end <= size:
            raise Damaged(f"message {index} runs past the end of its batch")
        if not single.compacted_out:
            yield _message(metadata, single, payload[at:end], index)
        at = end


def unpacked(metadata: Any, payload: bytes) -> bytes:
    """A payload as it was before it was compressed. Raises Damaged."""
    if not metadata.compression:
        return payload
    try:
        found = UNPACK[metadata.compression](payload, metadata.uncompressed_size)
    except Exception as error:  # every codec has its own exception classes
        raise Damaged("it cannot be unpacked") from error
    if len(found) != metadata.uncompressed_size:
        raise Damaged("it has another size than was promised")
    return found


def _single(payload: bytes, at: int) -> tuple[Any, int]:
    size = int.from_bytes(payload[at : at + 4], "big")
    at += 4
    if at + size > len(payload):
        raise Damaged(f"a head of {size} bytes runs past the end of its batch")
    try:
        return pb.SingleMessageMetadata.FromString(payload[at : at + size]), at + size
    except DecodeError as error:
        raise Damaged(f"a head in its batch cannot be read ({error})") from error


def _message(metadata: Any, head: Any, payload: bytes, batch: int) -> Message:
    key = None
    if head.HasField("partition_key") and not head.null_partition_key:
        key = _key(head.partition_key, head.partition_key_b64_encoded)
    return Message(
        batch,
        key,
        None if head.null_value else payload,
        metadata.publish_time,
        head.event_time,
        [(each.key, each.value) for each in head.properties],
        metadata.schema_version,
    )


def _key(text: str, is_base64: bool) -> bytes:
    if not is_base64:
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Damaged(f"its key is no base64 ({error})") from error
