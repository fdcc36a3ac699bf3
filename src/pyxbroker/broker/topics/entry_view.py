"""One entry as somebody sees it who looks into a topic: its metadata and its payload, unpacked.

An entry is what a producer sent, a single message or a batch, with what the broker put in front
of it (entry_metadata.py). The layout is that of frames.pxd.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.base.compression import decompress
from pyxbroker.broker.topics.messages import BROKER_METADATA_MAGIC, CHECKSUM_MAGIC
from pyxbroker.delivery import peek_entry
from pyxbroker.entry import EntryBatch
from pyxbroker.entry import Position as Position  # who asks for an entry needs it
from pyxbroker.ledger.errors import EntryDamaged, NoSuchEntry
from pyxbroker.ledger.retries import Retries

if TYPE_CHECKING:
    from pyxbroker.broker.topics.persistent import PersistentTopic

PLAIN_BYTES_MAX = 32 << 20  # of a payload that is unpacked
AT_ONCE_BYTES_MAX = 64 << 10  # more is unpacked beside the loop
# A megabyte of metadata may have half a million fields, each an object once it is parsed.
METADATA_BYTES_MAX = 64 << 10


class EntryView(NamedTuple):
    """An entry: `metadata` is its MessageMetadata, `broker_metadata` a BrokerEntryMetadata or None,
    `payload` its bytes as they are stored.
    """

    position: Position
    metadata: Any
    broker_metadata: Any
    payload: bytes

    async def plain(self) -> bytes:
        """The payload unpacked, or as it is when only its reader can decrypt it.

        Raises ValueError when it is not what its metadata says, or too large.
        """
        metadata = self.metadata
        if not metadata.compression or metadata.encryption_keys:
            return self.payload
        size = metadata.uncompressed_size
        if size > PLAIN_BYTES_MAX:
            raise ValueError(f"it has {size} bytes, and at most {PLAIN_BYTES_MAX} are unpacked")
        if size <= AT_ONCE_BYTES_MAX:
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
    broker_metadata = None
    metadata = pb.MessageMetadata()
    at = 0
    try:
        if entry[:2] == BROKER_METADATA_MAGIC:
            at = 6 + int.from_bytes(entry[2:6], "big")
            _check_length(at)
            broker_metadata = pb.BrokerEntryMetadata()
            broker_metadata.ParseFromString(entry[6:at])
        if entry[at : at + 2] == CHECKSUM_MAGIC:
            at += 6
        size = int.from_bytes(entry[at : at + 4], "big")
        at += 4
        if at + size > len(entry):
            raise ValueError(f"metadata of {size} bytes in an entry of {len(entry)} bytes")
        _check_length(size)
        metadata.ParseFromString(entry[at : at + size])
    except DecodeError as error:
        raise ValueError(f"its metadata cannot be read: {error}") from error
    position = Position(batch.ledger_id, batch.entry_id(0))
    return EntryView(position, metadata, broker_metadata, entry[at + size :])


def _check_length(size: int) -> None:
    if size > METADATA_BYTES_MAX:
        raise ValueError(
            f"its metadata has {size} bytes, and at most {METADATA_BYTES_MAX} are shown"
        )


async def read_view(topic: PersistentTopic, position: Position) -> EntryView | None:
    """The entry at a position; None when there is none.

    Raises LedgerError when it cannot be read now, ValueError when nobody can read it.
    """
    found = await _read(topic, position)
    return None if found is None else view(found)


async def read_batch_size(topic: PersistentTopic, position: Position) -> int:
    """How many messages the batch at a position has; 0 when there is none. Its metadata may be of
    any length. Raises LedgerError when it cannot be read now.
    """
    found = await _read(topic, position)
    peeked = None if found is None else peek_entry(found, 0)
    return peeked.num_messages if peeked is not None and peeked.is_batch else 0


async def _read(topic: PersistentTopic, position: Position) -> EntryBatch | None:
    managed_ledger = topic.managed_ledger
    last = managed_ledger.last_entry(position.ledger_id)
    if last is None or not 0 <= position.entry_id <= last:
        return None
    retries = Retries(f"looking at {position} of {topic.name}")
    try:
        return await retries.call(lambda: managed_ledger.read_one(position))
    except (EntryDamaged, NoSuchEntry):
        return None
