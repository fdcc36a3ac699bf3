"""Topic-level policies: records in the system topic `__change_events` of each namespace.

The records of a namespace are read when the first of its topics is opened. After that, each event
that this broker or a client publishes to the system topic is read back and applied. Unreadable
events are skipped and logged. (Apache Pulsar does not open any topic of the namespace then.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from pyxbroker.base.errors import (
    NamespaceNotFound,
    NotAllowed,
    PoliciesTooLarge,
    PulsarError,
    ServiceNotReady,
    TopicNotFound,
)
from pyxbroker.base.java_hash import java_hash
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices, in_slices
from pyxbroker.base.topic_name import CHANGE_EVENTS, NamespaceName, TopicName
from pyxbroker.broker.topics.messages import read_message, write_message
from pyxbroker.broker.topics.partition_records import PartitionRecords
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata.store import MetadataError
from pyxbroker.policies.change_events import (
    EVENT_BYTES_MAX,
    TopicRecord,
    decode,
    encode,
    key_of,
    record_of_key,
    schema,
)
from pyxbroker.policies.namespaces import NamespacePolicies

log = get_logger("pyxbroker.policies")

ENTRY_BYTES_MAX = 2 * EVENT_BYTES_MAX  # an event and its metadata, which includes the key
RECORDS_MAX = 100_000  # of the topics of one namespace
RECORDS_BYTES_MAX = 64 << 20  # of the entries with these records
FIRST = Position(-1, -1)
POLL_S = 1.0
"""Time between two reads of a topic of change events that another broker serves."""

Change = Callable[[dict[str, Any]], dict[str, Any]]
PublishElsewhere = Callable[[TopicName, str, bytes | None, tuple[str, ...]], Awaitable[Position]]


class TopicOpener(Protocol):
    """The methods of TopicLoader that open the topics of change events."""

    async def exists_when_opened(self, name: TopicName) -> bool:
        """Return True if the topic exists."""

    @property
    def is_alone(self) -> bool:
        """True if this broker serves all topics."""

    async def is_served(self, name: TopicName) -> bool:
        """Return True if this broker serves a topic, as opposed to another one or none."""

    def read_unowned(
        self, name: TopicName, start: Position
    ) -> AsyncIterator[tuple[Position, bytes]]:
        """Yield the entries of a topic that another broker serves, from a position on."""

    async def get(self, name: TopicName, create: bool) -> Topic:
        """Return a topic, opened if necessary."""

    async def ensure(self, name: TopicName) -> Topic:
        """Return a topic, created if necessary."""


class _Events:
    """One topic of change events, or one partition of it."""

    def __init__(self, name: TopicName) -> None:
        self.name = name
        self.position = FIRST  # of the next entry to read
        self.reading = asyncio.Lock()
        self.topic: PersistentTopic | None = None
        """The open topic; None while another broker serves it, or none."""
        self.is_deleted = False
        self.is_failing = False  # the last attempt to follow failed, and this was logged


class _Namespace:
    """The records of one namespace that were read so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: dict[TopicName, _Events] = {}
        # For each record, the topic that it was read from and the size of its entry.
        self.records: dict[tuple[TopicName, bool], tuple[_Events, int]] = {}
        self.records_bytes = 0
        self.is_full = False  # a record was skipped for lack of space, and this was logged
        self.is_loaded = False
        self.changing = asyncio.Lock()


class TopicPolicies:
    """The policies of topics, in the namespaces that have open topics."""

    def __init__(
        self,
        cluster: str,
        opener: TopicOpener,
        partitions: PartitionRecords,
        policies: NamespacePolicies,
    ) -> None:
        self._cluster = cluster
        self._opener = opener
        self._partitions = partitions
        self._policies = policies
        self._namespaces: dict[str, _Namespace] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._can_read = False  # the Avro library is imported
        self._polling: asyncio.Task[None] | None = None
        self.publish_elsewhere: PublishElsewhere | None = None
        """A function that publishes to a topic of change events which another broker serves; None
        if this broker serves all topics. Raises ServiceNotReady."""

    def is_loaded(self, name: str) -> bool:
        """Return True if all records of a namespace were read."""
        namespace = self._namespaces.get(name)
        return namespace is not None and namespace.is_loaded

    async def load(self, name: NamespaceName) -> _Namespace:
        """Read the records of a namespace, unless that was done before.

        Raises NamespaceNotFound if the namespace is being deleted, ServiceNotReady if the records
        cannot be read now.
        """
        namespace = self._namespaces.setdefault(str(name), _Namespace(str(name)))
        async with namespace.changing:
            if namespace.is_loaded:
                return namespace
            try:
                whole, count = await self._event_topics(name)
                async for index in in_slices(range(max(count, 1))):
                    each = whole.partition(index) if count else whole
                    if not await self._opener.exists_when_opened(each):
                        continue
                    if not await self._opener.is_served(each):
                        await self._catch_up(_events_of(namespace, each))
                        continue
                    try:
                        await self._open(namespace, each, create=False)
                    except NamespaceNotFound:
                        # The deletion may be abandoned, so no record is skipped for it.
                        raise
                    except TopicNotFound:
                        continue
            except NamespaceNotFound:
                raise
            except (PulsarError, LedgerError, MetadataError) as error:
                log.error("the policies of topics cannot be read now", namespace=name, error=error)
                raise ServiceNotReady(
                    f"The policies of the topics of namespace {name} cannot be read now."
                ) from error
            namespace.is_loaded = True
        if self._polling is None and not self._opener.is_alone:
            self._polling = asyncio.ensure_future(self._poll())
        return namespace

    def fields(self, name: TopicName, is_global: bool) -> dict[str, Any]:
        """Return the fields of one of a topic's two records. The namespace must be loaded."""
        return self._policies.fields(name, is_global)

    async def update(self, name: TopicName, is_global: bool, change: Change) -> None:
        """Change one of a topic's two records, and wait until the change is applied.

        change: returns the new fields. Raises PulsarError, ManagedLedgerError.
        """
        if name.is_partitioned or name.is_system:
            raise NotAllowed(f"Topic {name} has no policies of its own.")
        namespace = await self.load(name.namespace_name)
        await self._import()
        async with namespace.changing:
            before = self._policies.fields(name, is_global)
            fields = change(dict(before))
            if fields == before:
                return
            value = encode(TopicRecord(name, is_global, fields), self._cluster)
            # The key is the largest part of the entry's metadata.
            size = len(value) + ENTRY_BYTES_MAX - EVENT_BYTES_MAX
            if fields and not self._has_room(namespace, (name, is_global), size):
                raise PoliciesTooLarge(
                    f"Namespace {name.namespace} has reached the limit on topic policies with"
                    f" {len(namespace.records)} records of {namespace.records_bytes} bytes. Remove"
                    " the policies of some topics first."
                )
            await self._write(namespace, name, is_global, value)

    async def forget(self, name: TopicName) -> None:
        """Delete the records of a deleted topic. Raises as update does."""
        if name.is_system or name.is_partitioned:
            return
        namespace = await self.load(name.namespace_name)
        async with namespace.changing:
            for is_global in (False, True):
                if self._policies.fields(name, is_global):
                    await self._write(namespace, name, is_global, None)

    def on_opened(self, topic: Topic) -> None:
        """Follow a topic of change events that was opened; ignore other topics."""
        if not topic.name.is_change_events:
            return
        assert isinstance(topic, PersistentTopic)
        namespace = self._namespaces.setdefault(
            topic.name.namespace, _Namespace(topic.name.namespace)
        )
        events = _events_of(namespace, topic.name)
        events.topic = topic
        topic.add_confirm_listener(_Listener(lambda: self._follow(events)))
        if namespace.is_loaded:
            self._follow(events)

    def on_closed(self, topic: Topic) -> None:
        """Note that a topic of change events was closed; another broker may serve it now."""
        namespace = self._namespaces.get(topic.name.namespace)
        events = None if namespace is None else namespace.events.get(topic.name)
        if events is not None and events.topic is topic:
            events.topic = None

    async def on_deleted(self, name: TopicName) -> None:
        """Drop the records that were read from a deleted topic of change events.

        Records from other partitions stay in force.
        """
        namespace = self._namespaces.get(name.namespace)
        events = None if namespace is None else namespace.events.pop(name, None)
        if namespace is None or events is None:
            return
        events.topic = None
        events.is_deleted = True  # ends reading
        async for key in in_slices(
            [key for key, (where, _) in namespace.records.items() if where is events]
        ):
            # A new topic of the name may exist by now, with a new record for the key.
            if key in namespace.records and namespace.records[key][0] is events:
                self._set(namespace, events, key, None, 0)

    def forget_namespace(self, name: str) -> None:
        """Forget a namespace that is being deleted and has no topics left."""
        namespace = self._namespaces.get(name)
        # A task that is reading it will find that it does not exist.
        if namespace is not None and not namespace.changing.locked():
            del self._namespaces[name]

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._polling] if self._polling is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- writing ------------------------------------------------------------------------------

    async def _write(
        self, namespace: _Namespace, name: TopicName, is_global: bool, value: bytes | None
    ) -> None:
        key = key_of(name, is_global)
        whole, count = await self._event_topics(name.namespace_name)
        target = whole.partition(java_hash(key) % count) if count else whole
        replicate_to = () if is_global else (self._cluster,)
        try:
            events = await self._open(namespace, target, create=True)
        except ServiceNotReady:
            if self.publish_elsewhere is None or await self._opener.is_served(target):
                raise
            await self.publish_elsewhere(target, key, value, replicate_to)
            events = _events_of(namespace, target)
        else:
            await self._append(events, key, value, replicate_to)
        await self._catch_up(events)

    async def _append(
        self, events: _Events, key: str, value: bytes | None, replicate_to: tuple[str, ...]
    ) -> None:
        from pyxbroker.proto import PulsarApi as pb

        metadata = pb.MessageMetadata(
            producer_name=f"{self._cluster}-policies",
            sequence_id=0,
            publish_time=int(time.time() * 1000),
            partition_key=key,
        )
        if value is None:
            metadata.null_value = True
        metadata.replicate_to.extend(replicate_to)
        assert events.topic is not None
        await events.topic.append_message(write_message(metadata, value or b""))

    async def _event_topics(self, name: NamespaceName) -> tuple[TopicName, int]:
        """Return the topic of a namespace's events, and its number of partitions (0 for none)."""
        whole = TopicName.get(f"persistent://{name}/{CHANGE_EVENTS}")
        return whole, (await self._partitions.read(whole)).partitions

    async def _open(self, namespace: _Namespace, name: TopicName, create: bool) -> _Events:
        opener = self._opener
        topic = await (opener.ensure(name) if create else opener.get(name, create=False))
        assert isinstance(topic, PersistentTopic)
        events = namespace.events[name]
        assert events.topic is topic
        await self._catch_up(events)
        return events

    # --- reading ------------------------------------------------------------------------------

    def _follow(self, events: _Events) -> None:
        task = asyncio.ensure_future(self._keep_up(events))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self) -> None:
        """Follow the topics of change events that other brokers serve."""
        while True:
            await asyncio.sleep(POLL_S)
            async for namespace in in_slices(list(self._namespaces.values())):
                if not namespace.is_loaded:
                    continue
                try:
                    await self._follow_unowned(namespace)
                except (PulsarError, MetadataError) as error:
                    log.warning("topic policies may be outdated", namespace=namespace.name,
                                error=error)  # fmt: skip

    async def _follow_unowned(self, namespace: _Namespace) -> None:
        whole, count = await self._event_topics(NamespaceName.get(namespace.name))
        for index in range(max(count, 1)):
            name = whole.partition(index) if count else whole
            events = namespace.events.get(name)
            if events is not None and (events.topic is not None or events.reading.locked()):
                continue
            if await self._opener.exists_when_opened(name):
                self._follow(_events_of(namespace, name))
            elif events is not None:
                await self.on_deleted(name)

    async def _keep_up(self, events: _Events) -> None:
        try:
            await self._catch_up(events)
            events.is_failing = False
        except (LedgerError, MetadataError) as error:
            # Reading resumes from there with the next event, opening or poll.
            if not events.is_failing:
                log.error(
                    "the policies of topics cannot be read now", topic=events.name, error=error
                )
            events.is_failing = True
        except Exception as error:
            log.failure("policies of topics were not applied", error, topic=events.name)

    async def _catch_up(self, events: _Events) -> None:
        """Read and apply the events since the last call. Raises LedgerError."""
        await self._import()
        slices = Slices()
        async with events.reading:
            topic = events.topic
            if topic is not None:
                entries = topic.read_from(events.position, "policies of topics")
            else:
                entries = self._opener.read_unowned(events.name, events.position)
            async for position, entry in entries:
                if events.is_deleted or events.topic is not topic:
                    return
                self._take(events, position, entry)
                events.position = Position(position.ledger_id, position.entry_id + 1)
                await slices.pause()

    async def _import(self) -> None:
        """Import the Avro library in a thread, since that takes tens of milliseconds."""
        if not self._can_read:
            await asyncio.to_thread(schema)
            self._can_read = True

    def _take(self, events: _Events, position: Position, entry: bytes) -> None:
        name = events.name
        try:
            if len(entry) > ENTRY_BYTES_MAX:
                raise ValueError(f"an entry of {len(entry)} bytes is larger than {ENTRY_BYTES_MAX}")
            metadata, payload = read_message(entry)
            if metadata.HasField("marker_type"):
                return
            topic, is_global = record_of_key(metadata.partition_key)
            record = None if metadata.null_value or not payload else decode(payload)
        except (ValueError, PulsarError) as error:
            log.error("an event cannot be read", topic=name, position=position, error=error)
            return
        if topic.namespace != name.namespace:
            log.error("an event names a topic of another namespace", topic=name, position=position)
            return
        namespace = self._namespaces.get(name.namespace)
        if namespace is None:
            return
        fields = None if record is None else record.fields
        self._set(namespace, events, (topic, is_global), fields, len(entry))

    def _set(
        self,
        namespace: _Namespace,
        events: _Events,
        key: tuple[TopicName, bool],
        fields: dict[str, Any] | None,
        size: int,
    ) -> None:
        if fields and not self._has_room(namespace, key, size):
            if not namespace.is_full:
                namespace.is_full = True
                log.error(
                    "topic policies of a namespace exceed the limit, and are ignored",
                    namespace=namespace.name,
                    topic=key[0],
                    records=len(namespace.records),
                    bytes=namespace.records_bytes,
                )
            return
        _, before = namespace.records.pop(key, (events, 0))
        namespace.records_bytes -= before
        if fields:
            namespace.records[key] = events, size
            namespace.records_bytes += size
        self._policies.set_record(*key, fields)

    @staticmethod
    def _has_room(namespace: _Namespace, key: tuple[TopicName, bool], size: int) -> bool:
        """Return True if a record of a size may replace the record of its key, if any."""
        records = namespace.records
        _, before = records.get(key, (None, 0))
        return (
            len(records) + (key not in records) <= RECORDS_MAX
            and namespace.records_bytes - before + size <= RECORDS_BYTES_MAX
        )


def _events_of(namespace: _Namespace, name: TopicName) -> _Events:
    return namespace.events.setdefault(name, _Events(name))


class _Listener:
    """A listener that follows a topic of change events."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def on_confirmed(self, run: EntryRun, first: Position) -> None:
        self._wake()
