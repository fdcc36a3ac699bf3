"""The snapshots of transaction buffers, in system topics of each namespace.

`__transaction_buffer_snapshot` has whole snapshots. In the segmented form,
`__transaction_buffer_snapshot_indexes` has an index for each topic, and
`__transaction_buffer_snapshot_segments` the aborted transactions that the index refers to. A broker
writes the form of its settings, and reads both.

The key of a message is the name of a topic; its newest message counts, and a null value deletes the
snapshot. The broker reads a system topic when it opens the first topic of the namespace, and then
only what is new. A namespace without these topics costs nothing more than the check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyxbroker.base.errors import NamespaceNotFound, PulsarError, TopicNotFound
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import SNAPSHOT_INDEXES, SNAPSHOT_SEGMENTS, SNAPSHOTS, TopicName
from pyxbroker.broker.topics.messages import read_message, write_message
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.transactions import snapshot_records
from pyxbroker.broker.transactions.buffer import Buffer, Snapshot
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.snapshot_records import Index, Segment
from pyxbroker.entry import Position

if TYPE_CHECKING:
    from pyxbroker.broker.topics.topic_policies import PublishElsewhere, TopicOpener
    from pyxbroker.schemas.registry import SchemaRegistry

log = get_logger("pyxbroker.transactions")

VALUES_BYTES_MAX = 64 << 20
"""Limit of the snapshots of one namespace in memory. With more, each opening of a topic reads all
of them again."""
INLINE_BYTES_MAX = 16 << 10  # larger snapshots are encoded and decoded in a thread
TXN_BYTES = 16  # of an aborted transaction in a snapshot, about
T = TypeVar("T")
FIRST = Position(-1, -1)
WHOLE_LOG = Snapshot(FIRST)
"""A snapshot in place of one that cannot be read: recovery reads the whole topic."""


class Found(NamedTuple):
    """A snapshot that was read, and where its aborted transactions are stored."""

    snapshot: Snapshot
    segments: tuple[Segment, ...] = ()
    sealed: int = 0
    """The number of transactions in segments, which come first."""


class TopicSnapshots(Protocol):
    """The snapshots of one topic. The methods raise PulsarError, ManagedLedgerError, LedgerError,
    and MetadataError.
    """

    async def store(self, buffer: Buffer, max_read: Position) -> None:
        """Store the state of a buffer. max_read: the last entry before its limit."""

    async def delete(self) -> None:
        """Delete the snapshot in all its forms."""

    def segments_stats(self, buffer: Buffer, with_segments: bool) -> dict[str, Any] | None:
        """Return Pulsar's SegmentsStats, or None without segments."""


class _SystemTopic:
    """One system topic, and the newest value of each key that was read from it."""

    def __init__(self, name: TopicName) -> None:
        self.name = name
        self.reading = asyncio.Lock()
        self.forget()

    def forget(self) -> None:
        """Read the topic from the beginning next time."""
        self.position = FIRST  # of the next entry to read
        self.values: dict[str, bytes] = {}
        self.values_bytes = 0

    def put(self, key: str, value: bytes | None) -> None:
        self.values_bytes -= len(self.values.pop(key, b""))
        if value is not None:
            self.values[key] = value
            self.values_bytes += len(value)


class Snapshots:
    """Reads and writes the snapshots of all topics of this broker."""

    def __init__(
        self,
        cluster: str,
        opener: TopicOpener,
        schemas: Callable[[], SchemaRegistry],
        segment_bytes: int | None = None,
    ) -> None:
        """segment_bytes: the size of a segment; None: snapshots are written as a whole.

        schemas: returns the registry of schemas, which clients need to read the snapshots.
        """
        self._schemas = schemas
        self._versions: dict[TopicName, bytes] = {}  # schema versions of system topics
        self._cluster = cluster
        self._opener = opener
        self.segment_bytes = segment_bytes
        self._topics: dict[TopicName, _SystemTopic] = {}
        self._has_library = False  # the Avro library is imported
        self.publish_elsewhere: PublishElsewhere | None = None
        """A function that publishes to a system topic which another broker serves; None if this
        broker serves all topics. Raises ServiceNotReady."""

    async def find(self, name: TopicName) -> tuple[TopicSnapshots, Snapshot] | None:
        """Return the snapshots of a topic and the last one; None if it never had a transaction.

        Raises PulsarError, LedgerError, MetadataError if that cannot be read now.
        """
        forms = [self._find_segmented, self._find_single]
        for find in forms if self.segment_bytes is not None else reversed(forms):
            try:
                found = await find(name)
            except ValueError as error:
                log.error("a snapshot cannot be read; all is read", topic=name, error=error)
                found = Found(WHOLE_LOG)
            if found is not None:
                return self._of(name, found), found.snapshot
        return None

    def of(self, name: TopicName) -> TopicSnapshots:
        """Return the snapshots of a topic that has none yet."""
        return self._of(name, Found(WHOLE_LOG))

    def _of(self, name: TopicName, found: Found) -> TopicSnapshots:
        if self.segment_bytes is None:
            return _Single(self, name, found.segments)
        # As in Pulsar: each transaction takes about three bytes.
        capacity = max((self.segment_bytes - 8 - len(str(name))) // 3, 1)
        return _Segmented(self, name, capacity, found)

    def forget_namespace(self, namespace: str) -> None:
        """Forget a namespace that is being deleted and has no topics left."""
        for known in (self._topics, self._versions):
            for name in [each for each in known if each.namespace == namespace]:
                known.pop(name, None)

    # --- reading ------------------------------------------------------------------------------

    async def _find_single(self, name: TopicName) -> Found | None:
        value = await self._newest(name, SNAPSHOTS)
        if value is None:
            return None
        return Found(await self.convert(len(value), snapshot_records.decode, value))

    async def _find_segmented(self, name: TopicName) -> Found | None:
        """Return a snapshot whose transactions have the last marker of their segment."""
        value = await self._newest(name, SNAPSHOT_INDEXES)
        if value is None:
            return None
        index = await self.convert(len(value), snapshot_records.decode_index, value)
        aborted: list[tuple[TxnId, Position]] = []
        for segment in index.segments:
            txns = await self._read_segment(name, segment)
            aborted += ((txn, segment.marker) for txn in txns)
        sealed = len({txn for txn, _ in aborted})  # Apache Pulsar may repeat one
        # Markers after max_read are read again.
        aborted += ((txn, index.max_read) for txn in index.unsealed)
        return Found(Snapshot(index.max_read, tuple(aborted)), index.segments, sealed)

    async def _read_segment(self, name: TopicName, segment: Segment) -> list[TxnId]:
        entries = await self._entries(system_topic(name, SNAPSHOT_SEGMENTS), segment.position)
        async for position, entry in entries or _no_entries():
            if position == segment.position:
                value = read_message(entry)[1]
                return await self.convert(len(value), snapshot_records.decode_segment, value)
            break
        raise ValueError(f"segment {segment.sequence_id} at {segment.position} is missing")

    async def _entries(
        self, topic: TopicName, start: Position
    ) -> AsyncIterator[tuple[Position, bytes]] | None:
        """Return the entries of a system topic from a position on; None if it does not exist."""
        if not await self._opener.is_served(topic):
            return self._opener.read_unowned(topic, start)
        try:
            opened = await self._opener.get(topic, create=False)
        except TopicNotFound:
            return None
        assert isinstance(opened, PersistentTopic)
        return opened.read_from(start, "snapshots of transactions")

    async def _newest(self, name: TopicName, local_name: str) -> bytes | None:
        """Return the newest value of a topic in a system topic."""
        whole = system_topic(name, local_name)
        if not await self._opener.exists_when_opened(whole):
            self._topics.pop(whole, None)
            return None
        topic = self._topics.setdefault(whole, _SystemTopic(whole))
        async with topic.reading:
            entries = await self._entries(topic.name, topic.position)
            if entries is None:
                topic.forget()
                return None
            slices = Slices()
            async for position, entry in entries:
                _take(topic, position, entry)
                topic.position = Position(position.ledger_id, position.entry_id + 1)
                await slices.pause()
            value = topic.values.get(str(name))
            if topic.values_bytes > VALUES_BYTES_MAX:
                topic.forget()
        return value

    async def convert(self, size: int, work: Callable[..., T], *arguments: Any) -> T:
        """Encode or decode a snapshot of about that many bytes: a large one in a thread, and the
        first one, too, because importing the Avro library takes tens of milliseconds.
        """
        if self._has_library and size <= INLINE_BYTES_MAX:
            return work(*arguments)
        self._has_library = True
        return await asyncio.to_thread(work, *arguments)

    # --- writing ------------------------------------------------------------------------------

    async def publish(self, target: TopicName, key: str, value: bytes | None) -> Position:
        """Publish a message to a system topic, which is created with its schema if necessary."""
        version = self._versions.get(target) or await self._register(target)
        try:
            topic = await self._opener.ensure(target)
        except NamespaceNotFound:
            raise
        except PulsarError:
            if self.publish_elsewhere is None or await self._opener.is_served(target):
                raise
            return await self.publish_elsewhere(target, key, value, (self._cluster,))
        assert isinstance(topic, PersistentTopic)
        metadata = self._metadata(key, value, version)
        return await topic.append_message(write_message(metadata, value or b""))

    async def _register(self, target: TopicName) -> bytes:
        """Register the schema of a system topic, and return its version."""
        from pyxbroker.schemas.compatibility import ALWAYS_COMPATIBLE
        from pyxbroker.schemas.registry import Rules
        from pyxbroker.schemas.values import Schema, SchemaType

        data = snapshot_records.definition(target.local_name)
        schema = Schema(SchemaType.AVRO, data, snapshot_records.PROPERTIES)
        registry = self._schemas()
        rules = Rules(ALWAYS_COMPATIBLE)
        version = await registry.find_or_create(target.schema_name, schema, rules)
        self._versions[target] = found = version.to_bytes(8, "big")
        return found

    async def publish_if_exists(self, target: TopicName, key: str) -> None:
        """Delete the value of a key in a system topic, if the topic exists."""
        if await self._opener.exists_when_opened(target):
            await self.publish(target, key, None)

    def _metadata(self, key: str, value: bytes | None, schema_version: bytes) -> object:
        from pyxbroker.proto import PulsarApi as pb

        metadata = pb.MessageMetadata(
            producer_name=f"{self._cluster}-transactions",
            sequence_id=0,
            publish_time=int(time.time() * 1000),
            partition_key=key,
            schema_version=schema_version,
        )
        if value is None:
            metadata.null_value = True
        metadata.replicate_to.append(self._cluster)
        return metadata


class _Single:
    """Snapshots of one topic, each written as a whole."""

    def __init__(
        self, snapshots: Snapshots, name: TopicName, segments: tuple[Segment, ...] = ()
    ) -> None:
        self._snapshots = snapshots
        self._name = name
        self._segments = segments  # of an index that was read

    async def store(self, buffer: Buffer, max_read: Position) -> None:
        snapshot = buffer.snapshot(max_read)
        size = len(snapshot.aborted) * TXN_BYTES
        encode = snapshot_records.encode
        value = await self._snapshots.convert(size, encode, str(self._name), snapshot)
        await self._snapshots.publish(system_topic(self._name, SNAPSHOTS), str(self._name), value)

    async def delete(self) -> None:
        await _delete(self._snapshots, self._name, self._segments)

    def segments_stats(self, buffer: Buffer, with_segments: bool) -> None:
        return None


class _Segmented:
    """Snapshots of one topic, written as an index with segments.

    The aborted transactions of a buffer are in the order of their markers, and the oldest ones are
    forgotten first. So those in segments, sealed ones, come before the others.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        name: TopicName,
        capacity: int,
        found: Found,
    ) -> None:
        self._snapshots = snapshots
        self._name = name
        self._capacity = capacity  # transactions in a segment
        self._segments = list(found.segments)
        self._sealed = found.sealed  # transactions in segments, since the buffer was opened
        self._next_id = found.segments[-1].sequence_id + 1 if found.segments else 0
        self._sealed_ms = 0  # when the last segment was stored; 0: none since the buffer was opened

    async def store(self, buffer: Buffer, max_read: Position) -> None:
        count = buffer.aborted_since_opening - self._sealed
        # No await before the state is complete, so that it is that of one moment.
        unsealed = list(islice(reversed(buffer.aborted.items()), max(count, 0)))[::-1]
        first_ledger_id = buffer.first_ledger_id
        while len(unsealed) >= self._capacity:
            await self._seal(unsealed[: self._capacity])
            del unsealed[: self._capacity]
        kept = [each for each in self._segments if each.marker.ledger_id >= first_ledger_id]
        gone = self._segments[: len(self._segments) - len(kept)]
        index = Index(max_read, tuple(kept), tuple(txn for txn, _ in unsealed))
        size = len(unsealed) * TXN_BYTES
        encode = snapshot_records.encode_index
        value = await self._snapshots.convert(size, encode, str(self._name), index)
        target = system_topic(self._name, SNAPSHOT_INDEXES)
        await self._snapshots.publish(target, str(self._name), value)
        self._segments = kept
        await _delete_segments(self._snapshots, self._name, gone)

    async def _seal(self, aborted: list[tuple[TxnId, Position]]) -> None:
        sequence_id, marker = self._next_id, aborted[-1][1]
        txns = [txn for txn, _ in aborted]
        size = len(txns) * TXN_BYTES
        encode = snapshot_records.encode_segment
        value = await self._snapshots.convert(
            *(size, encode, str(self._name), sequence_id, txns, marker)
        )
        target = system_topic(self._name, SNAPSHOT_SEGMENTS)
        position = await self._snapshots.publish(target, _key(self._name, sequence_id), value)
        self._next_id += 1
        self._sealed_ms = int(time.time() * 1000)
        self._segments.append(Segment(sequence_id, marker, position))
        self._sealed += len(aborted)

    async def delete(self) -> None:
        await _delete(self._snapshots, self._name, self._segments)

    def segments_stats(self, buffer: Buffer, with_segments: bool) -> dict[str, Any]:
        stats: dict[str, Any] = {
            "segmentsSize": len(self._segments),
            "currentSegmentCapacity": self._capacity,
            "unsealedAbortTxnIDSize": max(buffer.aborted_since_opening - self._sealed, 0),
        }
        if with_segments:
            last = {marker: txn for txn, marker in buffer.aborted.items()}
            stats["segmentStats"] = [
                {
                    "lastTxnID": str(last.get(each.marker, "")),
                    "persistentPosition": f"{each.marker.ledger_id}:{each.marker.entry_id}",
                }
                for each in self._segments
            ]
        return stats | {"lastTookSnapshotSegmentTimestamp": self._sealed_ms}


async def _delete(
    snapshots: Snapshots, name: TopicName, segments: list[Segment] | tuple[Segment, ...]
) -> None:
    for local_name in (SNAPSHOTS, SNAPSHOT_INDEXES):
        await snapshots.publish_if_exists(system_topic(name, local_name), str(name))
    await _delete_segments(snapshots, name, segments)


async def _delete_segments(
    snapshots: Snapshots, name: TopicName, segments: list[Segment] | tuple[Segment, ...]
) -> None:
    for each in segments:
        target = system_topic(name, SNAPSHOT_SEGMENTS)
        await snapshots.publish_if_exists(target, _key(name, each.sequence_id))


def _take(topic: _SystemTopic, position: Position, entry: bytes) -> None:
    try:
        metadata, payload = read_message(entry)
    except ValueError as error:
        log.error("a snapshot cannot be read", topic=topic.name, position=position, error=error)
        return
    if not metadata.HasField("marker_type"):
        is_deleted = metadata.null_value or not payload
        topic.put(metadata.partition_key, None if is_deleted else payload)


async def _no_entries() -> AsyncIterator[tuple[Position, bytes]]:
    return
    yield


def _key(name: TopicName, sequence_id: int) -> str:
    return f"multiple-{sequence_id}-{name}"


def system_topic(name: TopicName, local_name: str) -> TopicName:
    """Return a system topic of the namespace of a topic."""
    return TopicName.get(f"persistent://{name.namespace}/{local_name}")
