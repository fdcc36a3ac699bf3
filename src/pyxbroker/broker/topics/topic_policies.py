"""The policies that topics set for themselves: their records in `__change_events`.

A namespace's records are read when the first of its topics is opened, and from then on followed:
what is written to that topic, by us or by whoever produces to it, is read back and in force. What
cannot be read is passed over and told in the log; Apache Pulsar opens no topic of the namespace
then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import CHANGE_EVENTS, NamespaceName, TopicName
from pyxbroker.broker.topics.messages import read_message, write_message
from pyxbroker.broker.topics.partition_records import PartitionRecords
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.errors import LedgerError
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

ENTRY_BYTES_MAX = 2 * EVENT_BYTES_MAX  # with its metadata, which has the key
RECORDS_MAX = 100_000  # of the topics of one namespace
RECORDS_BYTES_MAX = 64 << 20  # of the entries that they stand in
FIRST = Position(-1, -1)

Change = Callable[[dict[str, Any]], dict[str, Any]]


class TopicOpener(Protocol):
    """The methods of TopicLoader that open the topics of change events."""

    async def get(self, name: TopicName, create: bool) -> Topic:
        """Return a topic, opened if necessary."""

    async def ensure(self, name: TopicName) -> Topic:
        """Return a topic, created if necessary."""


class _Events:
    """One topic of change events: a partition of it, where it is partitioned."""

    def __init__(self, name: TopicName) -> None:
        self.name = name
        self.position = FIRST  # of the entry that is read next
        self.reading = asyncio.Lock()
        self.topic: PersistentTopic | None = None


class _Namespace:
    """What is known of a namespace's records."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: dict[TopicName, _Events] = {}
        # Records, and where they were read, with the size of the entry.
        self.said: dict[tuple[TopicName, bool], tuple[_Events, int]] = {}
        self.said_bytes = 0
        self.is_full = False  # a record was left out already
        self.is_loaded = False
        self.changing = asyncio.Lock()


class TopicPolicies:
    """The records of topics, for those namespaces that have open topics."""

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
        self._can_read = False  # the library is imported

    def is_loaded(self, name: str) -> bool:
        """Whether all that the topics of a namespace say is known."""
        namespace = self._namespaces.get(name)
        return namespace is not None and namespace.is_loaded

    async def load(self, name: NamespaceName) -> _Namespace:
        """Reads what the topics of a namespace say, unless that is done.

        Raises NamespaceNotFound for one that is being deleted, ServiceNotReady when it cannot be
        read now.
        """
        namespace = self._namespaces.setdefault(str(name), _Namespace(str(name)))
        async with namespace.changing:
            if namespace.is_loaded:
                return namespace
            try:
                whole, count = await self._event_topics(name)
                slices = Slices()
                for index in range(max(count, 1)):
                    await slices.pause()
                    each = whole.partition(index) if count else whole
                    try:
                        await self._open(namespace, each, create=False)
                    except NamespaceNotFound:
                        # It may stay after all, and then with what its topics say.
                        raise
                    except TopicNotFound:
                        continue
            except NamespaceNotFound:
                raise
            except (PulsarError, LedgerError) as error:
                log.error("the policies of topics cannot be read now", namespace=name, error=error)
                raise ServiceNotReady(
                    f"The policies of the topics of namespace {name} cannot be read now."
                ) from error
            namespace.is_loaded = True
        return namespace

    def fields(self, name: TopicName, is_global: bool) -> dict[str, Any]:
        """What one of the two records of a topic says; the namespace is loaded."""
        return self._policies.fields(name, is_global)

    async def update(self, name: TopicName, is_global: bool, change: Change) -> None:
        """Writes what a change makes of one of a topic's records, and waits until it is in force.

        Raises PulsarError, ManagedLedgerError.
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
            # Of the entry's metadata the key has the most.
            size = len(value) + ENTRY_BYTES_MAX - EVENT_BYTES_MAX
            if fields and not self._has_room(namespace, (name, is_global), size):
                raise PoliciesTooLarge(
                    f"The topics of namespace {name.namespace} say as much of themselves as is"
                    f" kept: {len(namespace.said)} records, {namespace.said_bytes} bytes."
                )
            await self._write(namespace, name, is_global, value)

    async def forget(self, name: TopicName) -> None:
        """A topic is deleted, and what it says with it. Raises as update does."""
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
        events = namespace.events.setdefault(topic.name, _Events(topic.name))
        events.topic = topic
        topic.add_confirm_listener(_Listener(lambda: self._follow(events)))
        if namespace.is_loaded:
            self._follow(events)

    async def on_deleted(self, name: TopicName) -> None:
        """A topic of change events is gone with all that it said; what other partitions said
        holds.
        """
        namespace = self._namespaces.get(name.namespace)
        events = None if namespace is None else namespace.events.pop(name, None)
        if namespace is None or events is None:
            return
        events.topic = None  # Nothing more is taken in of it.
        slices = Slices()
        for key in [key for key, (where, _) in namespace.said.items() if where is events]:
            # One of its name may be there by now, and have said something new.
            if key in namespace.said and namespace.said[key][0] is events:
                self._set(namespace, events, key, None, 0)
            await slices.pause()

    def forget_namespace(self, name: str) -> None:
        """A namespace goes, and no topic is left in it."""
        namespace = self._namespaces.get(name)
        # Who reads it now finds out that it is gone.
        if namespace is not None and not namespace.changing.locked():
            del self._namespaces[name]

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- writing ------------------------------------------------------------------------------

    async def _write(
        self, namespace: _Namespace, name: TopicName, is_global: bool, value: bytes | None
    ) -> None:
        from pyxbroker.proto import PulsarApi as pb

        key = key_of(name, is_global)
        whole, count = await self._event_topics(name.namespace_name)
        target = whole.partition(java_hash(key) % count) if count else whole
        events = await self._open(namespace, target, create=True)
        metadata = pb.MessageMetadata(
            producer_name=f"{self._cluster}-policies",
            sequence_id=0,
            publish_time=int(time.time() * 1000),
            partition_key=key,
        )
        if value is None:
            metadata.null_value = True
        if not is_global:
            metadata.replicate_to.append(self._cluster)
        assert events.topic is not None
        await events.topic.append_message(write_message(metadata, value or b""))
        await self._catch_up(events)

    async def _event_topics(self, name: NamespaceName) -> tuple[TopicName, int]:
        """The topic of a namespace's events, and how many partitions it has: 0 for none."""
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

    async def _keep_up(self, events: _Events) -> None:
        try:
            await self._catch_up(events)
        except LedgerError as error:
            # The next event, or the next opening, reads on from there.
            log.error("the policies of topics cannot be read now", topic=events.name, error=error)
        except Exception as error:
            log.failure("policies of topics were not taken over", error, topic=events.name)

    async def _catch_up(self, events: _Events) -> None:
        """Takes in what was added since it was read last. Raises LedgerError."""
        await self._import()
        slices = Slices()
        async with events.reading:
            topic = events.topic
            if topic is None:
                return
            entries = topic.read_from(events.position, "policies of topics")
            async for position, entry in entries:
                if events.topic is None:
                    return
                self._take(events, position, entry)
                events.position = Position(position.ledger_id, position.entry_id + 1)
                await slices.pause()

    async def _import(self) -> None:
        """The library takes tens of milliseconds to be imported: a thread does it."""
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
            log.error("an event is about another namespace", topic=name, position=position)
            return
        namespace = self._namespaces[name.namespace]
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
                    "the topics of a namespace say more of themselves than is kept",
                    namespace=namespace.name,
                    topic=key[0],
                    records=len(namespace.said),
                    bytes=namespace.said_bytes,
                )
            return
        _, before = namespace.said.pop(key, (events, 0))
        namespace.said_bytes -= before
        if fields:
            namespace.said[key] = events, size
            namespace.said_bytes += size
        self._policies.set_record(*key, fields)

    @staticmethod
    def _has_room(namespace: _Namespace, key: tuple[TopicName, bool], size: int) -> bool:
        """Whether a record of such a size may be kept in place of what its key stood for."""
        said = namespace.said
        _, before = said.get(key, (None, 0))
        return (
            len(said) + (key not in said) <= RECORDS_MAX
            and namespace.said_bytes - before + size <= RECORDS_BYTES_MAX
        )


class _Listener:
    """A listener that follows a topic of change events."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def on_confirmed(self, run: EntryRun, first: Position) -> None:
        self._wake()
