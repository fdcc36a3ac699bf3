"""The snapshots of transaction buffers, in the system topic `__transaction_buffer_snapshot`.

Each namespace has one such topic, once a topic of it had a transaction. The key of a message is the
name of a topic; its newest message counts, and a null value deletes the snapshot. The broker reads
the system topic when it opens the first topic of the namespace, and then only what is new.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pyxbroker.base.errors import NamespaceNotFound, PulsarError, TopicNotFound
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import SNAPSHOTS, TopicName
from pyxbroker.broker.topics.messages import read_message, write_message
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.transactions import snapshot_records
from pyxbroker.broker.transactions.buffer import Snapshot
from pyxbroker.entry import Position

if TYPE_CHECKING:
    from pyxbroker.broker.topics.topic_policies import PublishElsewhere, TopicOpener

log = get_logger("pyxbroker.transactions")

VALUES_BYTES_MAX = 64 << 20
"""Limit of the snapshots of one namespace in memory. With more, each opening of a topic reads all
of them again."""
FIRST = Position(-1, -1)
WHOLE_LOG = Snapshot(FIRST)
"""A snapshot in place of one that cannot be read: recovery reads the whole topic."""


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

    def __init__(self, cluster: str, opener: TopicOpener) -> None:
        self._cluster = cluster
        self._opener = opener
        self._topics: dict[TopicName, _SystemTopic] = {}
        self._can_encode = False  # the Avro library is imported
        self.publish_elsewhere: PublishElsewhere | None = None
        """A function that publishes to a system topic which another broker serves; None if this
        broker serves all topics. Raises ServiceNotReady."""

    async def find(self, name: TopicName) -> Snapshot | None:
        """Return the snapshot of a topic; None if it never had a transaction.

        Raises PulsarError, LedgerError, MetadataError if that cannot be read now.
        """
        topic = _system_topic(name)
        if not await self._opener.exists_when_opened(topic):
            self._topics.pop(topic, None)
            return None
        values = self._topics.setdefault(topic, _SystemTopic(topic))
        value = await self._newest(values, str(name))
        if value is None:
            return None
        await self._import()
        try:
            return snapshot_records.decode(value)
        except ValueError as error:
            log.error("a snapshot cannot be read; the whole topic is read", topic=name, error=error)
            return WHOLE_LOG

    async def write(self, name: TopicName, snapshot: Snapshot) -> None:
        """Store the snapshot of a topic. Raises PulsarError, ManagedLedgerError, LedgerError,
        MetadataError.
        """
        await self._import()
        await self._publish(name, snapshot_records.encode(str(name), snapshot))

    async def delete(self, name: TopicName) -> None:
        """Delete the snapshot of a topic. Raises as `write` does."""
        await self._publish(name, None)

    def forget_namespace(self, namespace: str) -> None:
        """Forget a namespace that is being deleted and has no topics left."""
        for name in [each for each in self._topics if each.namespace == namespace]:
            del self._topics[name]

    # --- reading ------------------------------------------------------------------------------

    async def _newest(self, topic: _SystemTopic, key: str) -> bytes | None:
        """Return the newest value of a key, after reading the messages since the last call."""
        async with topic.reading:
            if await self._opener.is_served(topic.name):
                try:
                    opened = await self._opener.get(topic.name, create=False)
                except TopicNotFound:
                    topic.forget()
                    return None
                assert isinstance(opened, PersistentTopic)
                entries = opened.read_from(topic.position, "snapshots of transactions")
            else:
                entries = self._opener.read_unowned(topic.name, topic.position)
            slices = Slices()
            async for position, entry in entries:
                self._take(topic, position, entry)
                topic.position = Position(position.ledger_id, position.entry_id + 1)
                await slices.pause()
            value = topic.values.get(key)
            if topic.values_bytes > VALUES_BYTES_MAX:
                topic.forget()
            return value

    @staticmethod
    def _take(topic: _SystemTopic, position: Position, entry: bytes) -> None:
        try:
            metadata, payload = read_message(entry)
        except ValueError as error:
            log.error("a snapshot cannot be read", topic=topic.name, position=position, error=error)
            return
        if not metadata.HasField("marker_type"):
            is_deleted = metadata.null_value or not payload
            topic.put(metadata.partition_key, None if is_deleted else payload)

    async def _import(self) -> None:
        """Import the Avro library in a thread, since that takes tens of milliseconds."""
        if not self._can_encode:
            await asyncio.to_thread(snapshot_records.schema)
            self._can_encode = True

    # --- writing ------------------------------------------------------------------------------

    async def _publish(self, name: TopicName, value: bytes | None) -> None:
        target, key = _system_topic(name), str(name)
        try:
            topic = await self._opener.ensure(target)
        except NamespaceNotFound:
            raise
        except PulsarError:
            if self.publish_elsewhere is None or await self._opener.is_served(target):
                raise
            await self.publish_elsewhere(target, key, value, (self._cluster,))
        else:
            assert isinstance(topic, PersistentTopic)
            await topic.append_message(write_message(self._metadata(key, value), value or b""))

    def _metadata(self, key: str, value: bytes | None) -> object:
        from pyxbroker.proto import PulsarApi as pb

        metadata = pb.MessageMetadata(
            producer_name=f"{self._cluster}-transactions",
            sequence_id=0,
            publish_time=int(time.time() * 1000),
            partition_key=key,
        )
        if value is None:
            metadata.null_value = True
        metadata.replicate_to.append(self._cluster)
        return metadata


def _system_topic(name: TopicName) -> TopicName:
    return TopicName.get(f"persistent://{name.namespace}/{SNAPSHOTS}")
