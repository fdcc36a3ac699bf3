"""What tests of compaction publish, and what is left of it by the rules, slowly."""

from __future__ import annotations

import asyncio
import zlib
from functools import partial
from typing import Any, NamedTuple

import cramjam

from one_broker import Broker, section
from pyxbroker.broker.compaction.compacted import FIRST, CompactedSource
from pyxbroker.broker.compaction.compaction import Status
from pyxbroker.entry import EntryBatch, Position
from pyxbroker.metadata.store import resolve
from pyxbroker.proto import PulsarApi as pb

PACK = {
    pb.NONE: bytes,
    pb.LZ4: lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False)),
    pb.ZLIB: zlib.compress,
    pb.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
    pb.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
}
UNPACK = {
    pb.NONE: lambda data, size: data,
    pb.LZ4: lambda data, size: bytes(cramjam.lz4.decompress_block(data, output_len=size)),
    # Apache's own encoder does not finish its streams.
    pb.ZLIB: lambda data, size: zlib.decompressobj().decompress(data),
    pb.ZSTD: lambda data, size: bytes(cramjam.zstd.decompress(data)),
    pb.SNAPPY: lambda data, size: bytes(cramjam.snappy.decompress_raw(data)),
}


class Sent(NamedTuple):
    """One message: without a key, or (b"") without a value."""

    key: str | None
    value: bytes


def single(key: str | None, value: bytes, **fields: Any) -> bytes:
    """An entry of one message."""
    if key is not None:
        fields["partition_key"] = key
    return section(value, **fields)


def batch(*messages: Sent, compression: int = 0, **fields: Any) -> bytes:
    """An entry of several."""
    return packed_batch(batched(*messages), len(messages), compression, **fields)


def batched(*messages: Sent) -> bytes:
    """What is in a batch, before it is packed."""
    plain = b""
    for each in messages:
        head = pb.SingleMessageMetadata(payload_size=len(each.value))
        if each.key is not None:
            head.partition_key = each.key
        data = head.SerializeToString()
        plain += len(data).to_bytes(4, "big") + data + each.value
    return plain


def packed_batch(plain: bytes, count: int, compression: int, **fields: Any) -> bytes:
    """An entry that says to have so many messages."""
    if compression:
        fields |= {"compression": compression}
    fields.setdefault("uncompressed_size", len(plain))
    return section(PACK[compression](plain), num_messages_in_batch=count, **fields)


def messages_of(entry: bytes) -> list[Sent | None]:
    """The messages of an entry; None: a place that compaction has emptied."""
    at = 6 + int.from_bytes(entry[2:6], "big") if entry[:2] == b"\x0e\x02" else 0
    assert entry[at : at + 2] == b"\x0e\x01"
    size = int.from_bytes(entry[at + 6 : at + 10], "big")
    metadata = pb.MessageMetadata.FromString(entry[at + 10 : at + 10 + size])
    payload = entry[at + 10 + size :]
    if not metadata.HasField("num_messages_in_batch"):
        key = metadata.partition_key if metadata.HasField("partition_key") else None
        return [Sent(key, payload)]
    plain = UNPACK[metadata.compression](payload, metadata.uncompressed_size)
    found: list[Sent | None] = []
    at = 0
    for _ in range(metadata.num_messages_in_batch):
        size = int.from_bytes(plain[at : at + 4], "big")
        head = pb.SingleMessageMetadata.FromString(plain[at + 4 : at + 4 + size])
        at += 4 + size
        value = plain[at : at + head.payload_size]
        at += head.payload_size
        key = head.partition_key if head.HasField("partition_key") else None
        found.append(None if head.compacted_out else Sent(key, value))
    assert at == len(plain)
    left = [index for index, each in enumerate(found) if each is not None]
    if None in found:
        assert list(metadata.compacted_batch_indexes) == left
    return found


Left = dict[tuple[int, int], Sent]  # by number of the entry and index in it


def left_of(entries: list[list[Sent]], retains_keyless: bool = False) -> Left:
    """What compaction leaves of messages."""
    newest: dict[str, tuple[int, int]] = {}
    left: Left = {}
    for number, messages in enumerate(entries):
        for index, each in enumerate(messages):
            if each.key is not None:
                newest[each.key] = number, index
            elif retains_keyless:
                left[number, index] = each
    for number, index in newest.values():
        if entries[number][index].value:
            left[number, index] = entries[number][index]
    return dict(sorted(left.items()))


async def compact(topic: Any) -> None:
    """Compacts a topic, which goes well."""
    topic.compacting.begin()
    await topic.compacting.settle()
    assert topic.compacting.status is Status.SUCCESS, topic.compacting.last_error


async def view(topic: Any) -> list[tuple[Position, bytes]]:
    """The entries that a reader of the compacted view gets from the beginning."""
    source = CompactedSource(topic, topic.managed_ledger)
    source.begin_at(FIRST)
    found = []
    position = source.normalize(source.next_position(topic.first_position()))
    while position is not None:
        future: asyncio.Future[EntryBatch] = asyncio.get_running_loop().create_future()
        source.read(position, 3, 1 << 20, partial(resolve, future))
        batch_read = await future
        for index in range(len(batch_read)):
            at = Position(batch_read.ledger_id, batch_read.entry_id(index))
            found.append((at, batch_read.data(index)))
        position = source.normalize((found[-1][0].ledger_id, found[-1][0].entry_id + 1))
    return found


async def values(topic: Any) -> dict[str | None, bytes]:
    """Of each key in the view, the value that comes last."""
    found = {}
    for _, entry in await view(topic):
        for each in messages_of(entry):
            if each is not None:
                found[each.key] = each.value
    return found


async def compacted_ledgers(broker: Broker) -> list[int]:
    """All compacted ledgers that metadata has."""
    client = broker.node.client
    await client.delete_again()
    return [each for each in range(100) if await client.compacted_topic(each) is not None]
