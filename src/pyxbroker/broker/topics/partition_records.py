"""Records of partitioned topics: how many partitions each of them has.

The record of a partitioned topic is a node in metadata (PartitionedTopicMetadata: {"partitions": 3,
"deleted": false}). Its partitions are ordinary topics named <topic>-partition-<index>. The number
of partitions never decreases. `deleted` is set while the partitions are being deleted, so that no
client creates one of them again. `beingMade` is set while many partitions are being created, so
that an interrupted request can be completed. `growingTo` is set while further partitions are being
created, so that they are found again before clients use them. Mirrors PartitionedTopicResources.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import (
    MetadataStoreError,
    NotAllowed,
    ServiceNotReady,
    TopicNotFound,
    with_reference,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import TopicName
from pyxbroker.base.url_encoding import encode
from pyxbroker.broker.topics.partition_nodes import existing_partitions
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore, NotFound, Put

log = get_logger("pyxbroker.topics")

BEING_CREATED = "beingMade"  # in the record until all partitions exist; Pulsar ignores it
GROWING_TO = "growingTo"  # the number of partitions that an update creates; Pulsar ignores it too


class PartitionedTopic(NamedTuple):
    """The record of one partitioned topic."""

    partitions: int
    target: int  # more than partitions while an update creates further ones
    deleted: bool  # or about to be
    fields: dict[str, Any]  # of the record, including those that this broker does not know
    version: int

    @property
    def is_being_created(self) -> bool:
        """True until every partition exists; a request for a missing one creates it."""
        return BEING_CREATED in self.fields


NOT_PARTITIONED = PartitionedTopic(0, 0, False, {}, MUST_NOT_EXIST)


class PartitionRecords:
    """The records of all namespaces, and a lock on each that is being changed."""

    def __init__(self, store: MetadataStore, cache: MetadataCache, registry: TopicRegistry) -> None:
        self._store = store
        self._cache = cache
        self._registry = registry
        self._being_changed: dict[TopicName, asyncio.Event] = {}  # set when the change is over

    # --- reading ------------------------------------------------------------------------------

    async def partitions(self, name: TopicName) -> int:
        """Return the number of partitions, which may be outdated; 0 for an unpartitioned topic."""
        return (await self._cached(name)).partitions

    async def _cached(self, name: TopicName) -> PartitionedTopic:
        # Most topics are not partitioned: one list answers for all topics of a namespace.
        names = await self._cache.children(paths.partitioned_topics(name.namespace, name.domain))
        if encode(name.local_name) not in names:
            return NOT_PARTITIONED
        path = _path(name)
        value = await self._cache.get(path)
        return NOT_PARTITIONED if value is None else _decode(path, value, 0)

    async def read(self, name: TopicName) -> PartitionedTopic:
        """Return the record as it is in metadata now; NOT_PARTITIONED if none exists."""
        path = _path(name)
        found = await self._store.get(path)
        self._cache.forget_value(path)
        return NOT_PARTITIONED if found is None else _decode(path, found.value, found.version)

    async def require(self, name: TopicName) -> PartitionedTopic:
        """Return the record of a partitioned topic. Raises TopicNotFound."""
        found = await self.read(name)
        if found.partitions == 0:
            raise TopicNotFound(f"Topic {name} is not the partitioned topic.")
        return found

    async def check_name(self, name: TopicName, create: bool) -> bool:
        """Return True if opening a topic may create it, as far as partitions are concerned.

        create: the client and the policies allow the creation. Raises NotAllowed for the name of a
        partitioned topic, TopicNotFound for a partition that does not exist.
        """
        if not name.is_partitioned:
            if await self.partitions(name):
                await self.check_not_partitioned(name)
            return create
        whole = TopicName.get(name.partitioned_topic_name)
        now = await self._cached(whole)
        if name.partition_index >= now.partitions:
            # The cached record may be out of date, and clients do not ask a second time.
            now = await self.read(whole)
        if now.deleted:
            raise TopicNotFound(f"Topic {name} does not exist: {whole} is being deleted.")
        if name.partition_index < now.partitions:
            return True
        if name.partition_index < now.target:
            return False  # the broker that adds partitions creates it
        if now.partitions:
            raise TopicNotFound(f"Topic {name} does not exist: {whole} has {now.partitions}.")
        if create and not await self._registry.exists(name):
            raise NotAllowed(f"Partition metadata not found for the partitioned topic: {name}")
        return False

    async def check_not_partitioned(self, name: TopicName) -> None:
        """Raise NotAllowed if a partitioned topic of the name exists."""
        if (await self.read(name)).partitions:
            raise NotAllowed(f"Found partitioned metadata for non-partitioned topic: {name}")

    async def existing(self, name: TopicName, count: int) -> list[int]:
        """Return the indexes below count of partitions that exist, open or not, in order.

        The time depends on the number of topics in the namespace, not on count, which may be any
        number that a client has written.
        """
        return await existing_partitions(self._store, self._registry, name, count)

    # --- changing -----------------------------------------------------------------------------

    @contextmanager
    def changing(self, name: TopicName) -> Iterator[None]:
        """Lock a record, so that one request at a time creates or deletes partitions.

        Meanwhile no request begins to create a topic of the name that is not partitioned. Raises
        ServiceNotReady if the record is locked.
        """
        self.check_unchanged(name)
        over = self._being_changed[name] = asyncio.Event()
        try:
            yield
        finally:
            del self._being_changed[name]
            over.set()

    def check_unchanged(self, name: TopicName) -> None:
        """Raise ServiceNotReady while partitions of the topic are being created or deleted."""
        if name in self._being_changed:
            raise being_changed(name)

    async def wait_unchanged(self, name: TopicName) -> None:
        """Wait while partitions of the topic are being created or deleted. Raises ServiceNotReady
        if that takes longer than an operation of the metadata store may.
        """
        until = time.monotonic() + self._store.operation_timeout_s
        while (over := self._being_changed.get(name)) is not None:
            try:
                await asyncio.wait_for(over.wait(), until - time.monotonic())
            except asyncio.TimeoutError:
                raise being_changed(name) from None

    async def wait_settled(self, namespace: str) -> None:
        """Wait until no partitions of a namespace are being created or deleted any more."""
        changing = self._being_changed.items()
        for over in [over for name, over in changing if name.namespace == namespace]:
            await over.wait()

    async def write(self, name: TopicName, fields: dict[str, Any], version: int) -> int:
        """Write a record and return its new version. Raises BadVersion."""
        path = _path(name)
        try:
            return (await self._store.put(path, to_json(fields), version)).version
        finally:
            self._cache.forget(path)

    async def create_with(self, name: TopicName, fields: dict[str, Any], nodes: list[Put]) -> None:
        """Create a record together with other nodes, in one write. Raises BadVersion."""
        path = _path(name)
        try:
            await self._store.put_all([Put(path, to_json(fields), MUST_NOT_EXIST), *nodes])
        finally:
            self._cache.forget(path)

    async def mark(
        self, name: TopicName, found: PartitionedTopic, marks: dict[str, Any]
    ) -> PartitionedTopic:
        """Add fields to a record that announce an operation. Raises ServiceNotReady."""
        fields = found.fields | marks
        try:
            version = await self.write(name, fields, found.version)
        except BadVersion as error:
            raise being_changed(name) from error
        return found._replace(fields=fields, version=version)

    async def delete(self, name: TopicName, version: int) -> None:
        """Delete a record, unless it has changed. Raises ServiceNotReady."""
        path = _path(name)
        try:
            await self._store.delete(path, version)
        except BadVersion as error:
            raise being_changed(name) from error
        except NotFound:
            pass  # Another request has deleted it.
        finally:
            self._cache.forget(path)


def _path(name: TopicName) -> str:
    return paths.partitioned_topic(name.namespace, name.local_name, name.domain)


def being_changed(name: TopicName) -> ServiceNotReady:
    """Return the error for a request that came while another one changes the partitions."""
    return ServiceNotReady(f"The partitions of {name} are being changed.")


def _decode(path: str, value: bytes, version: int) -> PartitionedTopic:
    try:
        fields = json.loads(value)
        partitions = max(int(fields["partitions"]), 0)
        target = max(partitions, int(fields.get(GROWING_TO, 0)))
        return PartitionedTopic(partitions, target, bool(fields.get("deleted")), fields, version)
    except (
        *(ValueError, OverflowError, KeyError, TypeError, AttributeError),
        RecursionError,  # nested too deeply for JSON
    ) as error:
        event = "the record of a partitioned topic has no valid number of partitions"
        reference = log.refused(event, error, path=path)
        sentence = "The record of the topic has no valid number of partitions."
        raise MetadataStoreError(with_reference(sentence, reference)) from error
