"""Entries as they travel: message ids, what SEND carries and what MESSAGE brings.

A section is the part of a SEND or MESSAGE frame behind the command: optional broker metadata,
checksum, MessageMetadata and payload. These are the bytes that a broker stores.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pyxbroker import _native
from pyxbroker.base import compression
from pyxbroker.base.signed import signed
from pyxbroker.client.errors import DamagedEntry
from pyxbroker.proto import PulsarApi as pb

CODECS = {"NONE": 0, "LZ4": 1, "ZLIB": 2, "ZSTD": 3, "SNAPPY": 4}
"""Numbers of CompressionType."""

UNPACKED_BYTES_MAX = 1 << 30
_BROKER_METADATA, _CHECKSUM = b"\x0e\x02", b"\x0e\x01"
_ID_MASK = (1 << 64) - 1


class MessageId(NamedTuple):
    """The position of a message. Negative ledger and entry ids stand for `earliest`."""

    ledger: int
    entry: int
    batch: int = -1
    """The index in a batch; -1: the entry is no batch, or the id is that of the whole entry."""
    partition: int = -1
    batch_size: int = 0

    @property
    def entry_key(self) -> tuple[int, int]:
        return self.ledger, self.entry

    def write(self, to: Any, ack_set: Sequence[int] = ()) -> None:
        """Fill a MessageIdData."""
        to.ledgerId, to.entryId = self.ledger & _ID_MASK, self.entry & _ID_MASK
        if self.partition >= 0:
            to.partition = self.partition
        if self.batch >= 0:
            to.batch_index = self.batch
        if ack_set:
            to.ack_set.extend(ack_set)

    @classmethod
    def read(cls, data: Any) -> MessageId:
        """Return the id that a MessageIdData has."""
        return cls(
            signed(data.ledgerId),
            signed(data.entryId),
            data.batch_index,
            data.partition,
            data.batch_size,
        )


EARLIEST = MessageId(-1, -1)
LATEST = MessageId((1 << 63) - 1, (1 << 63) - 1)


@dataclass
class OutgoingMessage:
    """A message to publish. Times are milliseconds since 1970."""

    value: bytes | None
    key: str | bytes | None = None
    """Bytes are marked as such in the metadata, as Java's client does."""
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int = 0
    deliver_at_ms: int = 0
    sequence_id: int | None = None
    replicate_to: Sequence[str] = ()

    def describe(self, metadata: Any) -> None:
        """Fill the fields that MessageMetadata and SingleMessageMetadata share."""
        if self.value is None:
            metadata.null_value = True
        if isinstance(self.key, bytes):
            metadata.partition_key = base64.b64encode(self.key).decode()
            metadata.partition_key_b64_encoded = True
        elif self.key is not None:
            metadata.partition_key = self.key
        if self.ordering_key is not None:
            metadata.ordering_key = self.ordering_key
        for name, text in self.properties.items():
            metadata.properties.add(key=name, value=text)
        if self.event_time_ms:
            metadata.event_time = self.event_time_ms


class Packing(NamedTuple):
    """The metadata that all messages of a producer have in common."""

    producer_name: str
    schema_version: bytes = b""
    codec: int = 0


def single_section(message: OutgoingMessage, sequence_id: int, packing: Packing) -> bytes:
    """Return the section of an entry with one message."""
    metadata = _metadata(sequence_id, packing)
    message.describe(metadata)
    if message.deliver_at_ms:
        metadata.deliver_at_time = message.deliver_at_ms
    metadata.replicate_to.extend(message.replicate_to)
    return pack_section(metadata, message.value or b"", packing.codec)


def batch_section(
    messages: Sequence[OutgoingMessage], sequence_ids: Sequence[int], packing: Packing
) -> bytes:
    """Return the section of an entry that is a batch of messages."""
    metadata = _metadata(sequence_ids[0], packing)
    metadata.highest_sequence_id = sequence_ids[-1]
    metadata.num_messages_in_batch = len(messages)
    payload = bytearray()
    for message, sequence_id in zip(messages, sequence_ids, strict=True):
        value = message.value or b""
        single = pb.SingleMessageMetadata(payload_size=len(value), sequence_id=sequence_id)
        message.describe(single)
        encoded = single.SerializeToString()
        payload += len(encoded).to_bytes(4, "big") + encoded + value
    return pack_section(metadata, bytes(payload), packing.codec)


def _metadata(sequence_id: int, packing: Packing) -> Any:
    metadata = pb.MessageMetadata(
        producer_name=packing.producer_name,
        sequence_id=sequence_id,
        publish_time=time.time_ns() // 1_000_000,
    )
    if packing.schema_version:
        metadata.schema_version = packing.schema_version
    return metadata


def pack_section(metadata: Any, payload: bytes, codec: int = 0) -> bytes:
    """Return a section with its checksum; a codec other than 0 compresses the payload."""
    if codec and payload:
        metadata.compression, metadata.uncompressed_size = codec, len(payload)
        payload = compression.compress(codec, payload)
    encoded = metadata.SerializeToString()
    checked = len(encoded).to_bytes(4, "big") + encoded + payload
    return _CHECKSUM + _native.crc32c(checked).to_bytes(4, "big") + checked


class Message(NamedTuple):
    """A message that was received. Times are milliseconds since 1970; 0: it has none."""

    id: MessageId
    value: bytes
    metadata: Any
    """The entry's MessageMetadata."""
    single: Any
    """The message's SingleMessageMetadata in a batch, otherwise `metadata`."""
    redelivery_count: int = 0

    @property
    def key(self) -> str | None:
        return self.single.partition_key if self.single.HasField("partition_key") else None

    @property
    def properties(self) -> dict[str, str]:
        return {each.key: each.value for each in self.single.properties}

    @property
    def event_time_ms(self) -> int:
        return int(self.single.event_time)

    @property
    def has_null_value(self) -> bool:
        return bool(self.single.null_value)


class ReceivedEntry(NamedTuple):
    """An entry as a broker sent it."""

    id: MessageId
    redelivery_count: int
    ack_set: tuple[int, ...]
    """The messages of a batch that are not acknowledged, a bit for each; empty: all."""
    section: bytes

    def messages(self) -> list[Message]:
        """Return the messages that are not acknowledged yet. Raises DamagedEntry.

        An encrypted entry is returned as one message, with the bytes that are stored. So is a chunk
        of a message: only all chunks together can be decompressed.
        """
        metadata, payload = self.split()
        if len(metadata.encryption_keys) > 0 or metadata.num_chunks_from_msg > 1:
            return [Message(self.id, bytes(payload), metadata, metadata, self.redelivery_count)]
        try:
            value = bytes(payload)
            if metadata.compression:
                size = metadata.uncompressed_size
                if size > UNPACKED_BYTES_MAX:
                    raise ValueError(f"it unpacks to {size} bytes")
                value = compression.decompress(metadata.compression, value, size)
            return list(self._messages_in(metadata, value))
        except (ValueError, DecodeError) as error:
            raise DamagedEntry(f"{self.id.ledger}:{self.id.entry}: {error}") from error

    def _messages_in(self, metadata: Any, value: bytes) -> Iterator[Message]:
        if not metadata.HasField("num_messages_in_batch"):
            yield Message(self.id, value, metadata, metadata, self.redelivery_count)
            return
        at, size = 0, metadata.num_messages_in_batch
        for index in range(size):
            end = at + 4 + int.from_bytes(value[at : at + 4], "big")
            single = pb.SingleMessageMetadata.FromString(value[at + 4 : end])
            at = end + single.payload_size
            if single.payload_size < 0 or at > len(value):
                raise ValueError("a batch runs past its end")
            if single.compacted_out or not has_bit(self.ack_set, index):
                continue
            id = MessageId(self.id.ledger, self.id.entry, index, self.id.partition, size)
            yield Message(id, value[end:at], metadata, single, self.redelivery_count)

    def split(self) -> tuple[Any, memoryview]:
        """Return (MessageMetadata, payload as it is stored). Raises DamagedEntry."""
        return split_section(self.section)


def split_section(section: bytes) -> tuple[Any, memoryview]:
    """Return (MessageMetadata, payload) of a section. Raises DamagedEntry."""
    data = memoryview(section)
    if data[:2] == _BROKER_METADATA:
        data = data[6 + int.from_bytes(data[2:6], "big") :]
    if data[:2] == _CHECKSUM:
        if _native.crc32c(data[6:]) != int.from_bytes(data[2:6], "big"):
            raise DamagedEntry("its checksum is wrong")
        data = data[6:]
    end = 4 + int.from_bytes(data[:4], "big")
    if not 4 < end <= len(data):
        raise DamagedEntry("its metadata runs past its end")
    try:
        metadata = pb.MessageMetadata.FromString(data[4:end])
    except DecodeError as error:
        raise DamagedEntry(str(error)) from error
    if not metadata.IsInitialized():
        raise DamagedEntry("its metadata cannot be read (what has to be there is missing)")
    return metadata, data[end:]


def has_bit(words: Sequence[int], index: int) -> bool:
    """Return True if a bit of an ack set is set; an empty set stands for all."""
    if not words:
        return True
    return index >> 6 < len(words) and bool(words[index >> 6] >> (index & 63) & 1)
