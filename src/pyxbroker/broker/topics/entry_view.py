"""The decoded view of one stored entry: its metadata and its payload, decompressed.

An entry is a single message or a batch as the producer sent it, after a header of the broker
(entry_metadata.py). frames.pxd defines the layout.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.base.compression import decompress
from pyxbroker.broker.topics.messages import read_head
from pyxbroker.delivery import peek_entry
from pyxbroker.entry import EntryBatch
from pyxbroker.entry import Position as Position  # exported for callers of read_view
from pyxbroker.ledger.errors import EntryDamaged, NoSuchEntry
from pyxbroker.ledger.retries import Retries

if TYPE_CHECKING:
    from pyxbroker.broker.topics.persistent import PersistentTopic

PLAIN_BYTES_MAX = 32 << 20  # of a decompressed payload
INLINE_BYTES_MAX = 64 << 10  # larger payloads are decompressed in a thread
# A megabyte of metadata may have half a million fields, each of which becomes an object.
METADATA_BYTES_MAX = 64 << 10


class EntryView(NamedTuple):
    """A decoded entry.

    `metadata` is its MessageMetadata, `broker_metadata` a BrokerEntryMetadata or None, `payload`
    the stored bytes.
    """

    position: Position
    metadata: Any
    broker_metadata: Any
    payload: bytes

    async def plain(self) -> bytes:
        """Return the payload, decompressed unless it is encrypted.

        Raises ValueError if it is too large, or does not match its metadata.
        """
        metadata = self.metadata
        if not metadata.compression or metadata.encryption_keys:
            return self.payload
        size = metadata.uncompressed_size
        if size > PLAIN_BYTES_MAX:
            raise ValueError(
                f"the payload has {size} bytes; at most {PLAIN_BYTES_MAX} are decompressed"
            )
        if size <= INLINE_BYTES_MAX:
            return decompress(metadata.compression, self.payload, size)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            None, decompress, metadata.compression, self.payload, size
        )


def view(batch: EntryBatch) -> EntryView:
    """Return the first entry of a batch. Raises ValueError for unreadable or too long metadata."""
    from google.protobuf.message import DecodeError

    from pyxbroker.proto import PulsarApi as pb

    entry = batch.data(0)
    head, metadata, payload_at = read_head(entry, METADATA_BYTES_MAX)
    broker_metadata = pb.BrokerEntryMetadata() if head else None
    try:
        if broker_metadata is not None:
            broker_metadata.ParseFromString(head[6:])
    except DecodeError as error:
        raise ValueError(f"the metadata of the entry cannot be parsed: {error}") from error
    position = Position(batch.ledger_id, batch.entry_id(0))
    return EntryView(position, metadata, broker_metadata, entry[payload_at:])


async def read_view(topic: PersistentTopic, position: Position) -> EntryView | None:
    """Return the entry at a position, None if there is no entry.

    Raises LedgerError if the entry cannot be read now, ValueError if it cannot be decoded.
    """
    found = await _read(topic, position)
    return None if found is None else view(found)


async def read_batch_size(topic: PersistentTopic, position: Position) -> int:
    """Return the number of messages of the batch at a position, 0 if there is no batch.

    The metadata may have any length. Raises LedgerError if the entry cannot be read now.
    """
    found = await _read(topic, position)
    peeked = None if found is None else peek_entry(found, 0)
    return peeked.num_messages if peeked is not None and peeked.is_batch else 0


async def _read(topic: PersistentTopic, position: Position) -> EntryBatch | None:
    managed_ledger = topic.managed_ledger
    last = managed_ledger.last_entry(position.ledger_id)
    if last is None or not 0 <= position.entry_id <= last:
        return None
    retries = Retries(f"reading {position} of {topic.name}")
    try:
        return await retries.call(lambda: managed_ledger.read_one(position))
    except (EntryDamaged, NoSuchEntry):
        return None
