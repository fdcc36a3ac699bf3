"""Partitioned topics: how many partitions each has, and how they come, grow and go.

A partitioned topic is a node in metadata that says how many partitions it has
(PartitionedTopicMetadata: {"partitions": 3, "deleted": false}); its partitions are ordinary topics
named <topic>-partition-<index>. The number only ever grows. `deleted` is set while the partitions
are being deleted, so that nobody makes one of them again; `beingMade` while many are being made, so
that an interrupted request can be completed; `growingTo` while further ones are made, so that these
are found again before clients are told of them. Mirrors PartitionedTopicResources and
BrokerService.fetchPartitionedTopicMetadataCheckAllowAutoCreationAsync.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pyxbroker.base import limits
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import (
    MetadataStoreError,
    NotAllowed,
    PartitionsNotAllowed,
    ServiceNotReady,
    TopicExists,
    TopicNotFound,
    with_reference,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import Slices
from pyxbroker.base.system_cursors import is_system_cursor
from pyxbroker.base.topic_name import TopicName
from pyxbroker.base.url_encoding import encode
from pyxbroker.broker.topics.partition_nodes import (
    each_of,
    make_nodes,
    one_batch,
    partitions_there,
)
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore, NotFound, Put
from pyxbroker.metadata.turns import Turns
from pyxbroker.policies.values import Policies
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.broker.subscriptions.subscription import Subscription
    from pyxbroker.broker.topics.topics import Topics

log = get_logger("pyxbroker.topics")

BEING_MADE = "beingMade"  # in the record until all partitions are there; Pulsar ignores it
GROWING_TO = "growingTo"  # how many partitions an update makes; Pulsar ignores it too


class PartitionedTopic(NamedTuple):
    """What metadata says of one partitioned topic."""

    partitions: int
    target: int  # more than partitions while an update makes further ones
    deleted: bool  # or about to be
    fields: dict[str, Any]  # of the record, some of which are not ours
    version: int

    @property
    def is_being_made(self) -> bool:
        """Not every partition is there yet; a request for a missing one makes it."""
        return BEING_MADE in self.fields


NOT_PARTITIONED = PartitionedTopic(0, 0, False, {}, MUST_NOT_EXIST)


class PartitionedTopics:
    """The partitioned topics of all namespaces."""

    def __init__(
        self, config: Config, store: MetadataStore, cache: MetadataCache, topics: Topics
    ) -> None:
        self._config = config
        self._store = store
        self._cache = cache
        self._topics = topics
        self._being_changed: dict[TopicName, asyncio.Event] = {}  # set when that is over
        self._asked_for_first = Turns[TopicName](store)

    # --- asking -------------------------------------------------------------------------------

    async def partitions(self, name: TopicName) -> int:
        """How many partitions a topic has; 0 when it is not partitioned. May be a moment old."""
        return (await self._cached(name)).partitions

    async def _cached(self, name: TopicName) -> PartitionedTopic:
        # Most topics are not partitioned: one list tells of all of a namespace.
        names = await self._cache.children(paths.partitioned_topics(name.namespace, name.domain))
        if encode(name.local_name) not in names:
            return NOT_PARTITIONED
        path = _path(name)
        value = await self._cache.get(path)
        return NOT_PARTITIONED if value is None else _decode(path, value, 0)

    async def read(self, name: TopicName) -> PartitionedTopic:
        """What metadata says now; NOT_PARTITIONED when there is nothing."""
        path = _path(name)
        found = await self._store.get(path)
        self._cache.forget_value(path)
        return NOT_PARTITIONED if found is None else _decode(path, found.value, found.version)

    async def metadata(self, name: TopicName, auto_create: bool) -> int:
        """The answer to PARTITIONED_METADATA: the partitions, 0 of a topic that has none.

        A topic that does not exist is made, or may be made later, if auto_create and the policies
        allow that; else this raises TopicNotFound.
        """
        policies = await self._topics.policies(name)
        count = await self.partitions(name)
        if count:
            self._check_served(name, count)
            return count
        creation = policies.auto_topic_creation
        creates = auto_create and creation.allowed
        if creates and creation.partitions == 0 and not name.is_partitioned:
            return 0
        if await self._exists(name, creates):
            return 0
        if creates and not name.is_partitioned:
            return await self._create_default(name, creation.partitions)
        raise TopicNotFound(f"Topic {name} does not exist.")

    async def _exists(self, name: TopicName, creates: bool) -> bool:
        """Whether an unpartitioned topic is there, or a partition may come to be."""
        if name.is_partitioned:
            whole = await self.read(TopicName.get(name.partitioned_topic_name))
            if whole.partitions:
                return name.partition_index < whole.partitions
            if creates:
                return True
        return await self._topics.exists(name)

    async def _create_default(self, name: TopicName, count: int) -> int:
        """The partitions of a topic that somebody asks for first, and others at the same time."""
        self._check_count(count)
        async with self._asked_for_first.turn(name):
            await self._unchanged(name)
            with self._changing(name):
                if await self._topics.comes_to_be(name):
                    return 0
                policies = await self._topics.policies(name)
                fields = {"partitions": count, "deleted": False}
                try:
                    async with self._room(name, policies, count):
                        version = await self._write(name, fields, MUST_NOT_EXIST)
                except BadVersion:
                    return (await self.read(name)).partitions
                if await self._is_taken(name):
                    await self._forget(name, version)
                    return 0
        log.info("a partitioned topic was made", topic=name, partitions=count)
        return count

    async def _unchanged(self, name: TopicName) -> None:
        """Waits until nobody makes or deletes partitions of the topic. Raises ServiceNotReady when
        that takes longer than anybody waits for the store.
        """
        until = time.monotonic() + self._store.operation_timeout_s
        while (over := self._being_changed.get(name)) is not None:
            try:
                await asyncio.wait_for(over.wait(), until - time.monotonic())
            except asyncio.TimeoutError:
                raise _being_changed(name) from None

    async def check_name(self, name: TopicName, create: bool) -> bool:
        """Whether opening a topic may make it, as far as partitions are concerned.

        create: whether the client and the policies allow that. Raises NotAllowed when there is a
        partitioned topic of the name, TopicNotFound for a partition that there is not.
        """
        if not name.is_partitioned:
            if await self.partitions(name):
                await self.check_not_partitioned(name)
            return create
        whole = TopicName.get(name.partitioned_topic_name)
        now = await self._cached(whole)
        if name.partition_index >= now.partitions:
            # What the cache has may be a moment old, and clients do not ask a second time.
            now = await self.read(whole)
        if now.deleted:
            raise TopicNotFound(f"Topic {name} does not exist: {whole} is being deleted.")
        if name.partition_index < now.partitions:
            return True
        if now.partitions:
            raise TopicNotFound(f"Topic {name} does not exist: {whole} has {now.partitions}.")
        if create and not await self._topics.exists(name):
            raise NotAllowed(f"Partition metadata not found for the partitioned topic: {name}")
        return False

    async def check_not_partitioned(self, name: TopicName) -> None:
        """Raises NotAllowed when there is a partitioned topic of the name."""
        if (await self.read(name)).partitions:
            raise NotAllowed(f"Found partitioned metadata for non-partitioned topic: {name}")

    async def existing(self, name: TopicName, count: int) -> list[int]:
        """The partitions before count that are there, in order, open or not.

        It takes a time that goes with how many topics the namespace has, not with count: that is
        whatever somebody has written.
        """
        return await partitions_there(self._store, self._topics, name, count)

    # --- changing -----------------------------------------------------------------------------

    async def create(
        self, name: TopicName, count: int, properties: dict[str, str] | None = None
    ) -> None:
        """Makes a partitioned topic with all its partitions; what was interrupted is completed.

        Raises TopicExists, PartitionsNotAllowed for a number that cannot be, NotAllowed for the
        name of a partition, TopicNotFound for a namespace that does not exist.
        """
        policies = await self._topics.policies(name)
        self._check_count(count)
        if name.is_partitioned:
            raise NotAllowed(f"{name} is the name of a partition.")
        fields: dict[str, Any] = {"partitions": count, "deleted": False}
        if properties is not None:
            fields["properties"] = properties
        with self._changing(name):
            if await self._topics.comes_to_be(name):
                raise TopicExists(f"Topic {name} exists already.")
            await self._topics.forget_former(name)
            async with self._room(name, policies, count):
                taken = await self._create(name, count, fields)
            if taken is not None:
                await self._withdraw(name, taken, count)

    def _room(
        self, name: TopicName, policies: Policies, count: int
    ) -> AbstractAsyncContextManager[None]:
        """Within it the first `count` partitions may be made, as with Topics.room."""

        async def missing() -> int:
            return count - len(await self.existing(name, count))

        return self._topics.room(name, policies, missing, count)

    async def _create(
        self, name: TopicName, count: int, fields: dict[str, Any]
    ) -> PartitionedTopic | None:
        """Makes a partitioned topic; what was made of it when another broker was first."""
        if not name.is_persistent:
            await self._claim(name, count, fields)
        elif await self._create_at_once(name, fields):
            if await self._is_taken(name):
                return await self.read(name)
        else:
            found = await self._claim(name, count, fields | {BEING_MADE: True})
            if await self._is_taken(name):
                return found
            await make_nodes(self._store, name, 0, count)
            await self._finish(name, found)
        return None

    async def _is_taken(self, name: TopicName) -> bool:
        """Whether another broker has made a topic of the name that is not partitioned, after it was
        looked for: who makes one looks for a partitioned one afterwards, as is done here.
        """
        return name.is_persistent and await self._store.exists(
            paths.managed_ledger(name.managed_ledger_name)
        )

    async def _withdraw(self, name: TopicName, found: PartitionedTopic, count: int) -> NoReturn:
        """Deletes what was made, with the partitions that are there. Raises TopicExists."""
        marked = await self._mark(name, found, {"deleted": True})
        slices = Slices()
        for index in range(count):
            await self._topics.delete_by_name(name.partition(index), force=True)
            await slices.pause()
        await self._forget(name, marked.version)
        raise TopicExists(f"Topic {name} exists already.")

    async def _create_at_once(self, name: TopicName, fields: dict[str, Any]) -> bool:
        """Makes all there is to make in one write; False when it is too much for that, or when
        something of it is there already.
        """
        path = _path(name)
        nodes = one_batch(name, fields["partitions"])
        if nodes is None:
            return False
        try:
            await self._store.put_all([Put(path, to_json(fields), MUST_NOT_EXIST), *nodes])
        except BadVersion:
            return False
        finally:
            self._cache.forget(path)
        return True

    async def _claim(self, name: TopicName, count: int, fields: dict[str, Any]) -> PartitionedTopic:
        """Writes how many partitions there are, before anybody takes the name for something else.

        Raises TopicExists, but for a topic whose creation with as many was interrupted.
        """
        try:
            version = await self._write(name, fields, MUST_NOT_EXIST)
        except BadVersion as error:
            found = await self.read(name)
            if found.is_being_made and found.partitions == count and not found.deleted:
                return found
            raise TopicExists(f"Topic {name} exists already.") from error
        return PartitionedTopic(count, count, False, fields, version)

    async def _finish(self, name: TopicName, made: PartitionedTopic) -> None:
        """All partitions are there."""
        fields = {key: value for key, value in made.fields.items() if key != BEING_MADE}
        try:
            await self._write(name, fields, made.version)
        except BadVersion as error:
            found = await self.read(name)
            if (
                found.is_being_made
                or found.deleted
                or found.partitions != made.partitions
                or found.target != made.target
            ):
                raise _being_changed(name) from error

    async def update(self, name: TopicName, count: int) -> None:
        """Makes further partitions, with the subscriptions that the topic has; what was interrupted
        is completed.

        Raises TopicNotFound when the topic is not partitioned, PartitionsNotAllowed when it has
        more or may not have so many, or so many subscriptions, ServiceNotReady while it is being
        deleted.
        """
        with self._changing(name):
            found = await self._existing(name)
            # It is not made larger while its namespace goes.
            await self._topics.policies(name)
            if found.deleted:
                raise ServiceNotReady(f"Topic {name} is being deleted.")
            limit = self._partitions_max
            if count > limit:
                raise PartitionsNotAllowed(
                    f"Desired partitions {count} can't be greater than the maximum partitions per"
                    f" topic {limit}."
                )
            if count < found.target:
                raise PartitionsNotAllowed(
                    f"Desired partitions {count} can't be less than the current partitions"
                    f" {found.target}."
                )
            if name.is_persistent:
                await self._copied(name, found.partitions, count)  # whether they may be so many
                if count > found.target:
                    # Who is interrupted leaves partitions that can be found, and deleted.
                    found = await self._mark(name, found, {GROWING_TO: count})
                # Subscriptions come before producers: these see the partitions when metadata has
                # them.
                first = 0 if found.is_being_made else found.partitions
                await make_nodes(self._store, name, first, count)
                await self._copy_subscriptions(name, found.partitions, count)
            fields = found.fields | {"partitions": count}
            fields.pop(GROWING_TO, None)
            await self._finish(name, found._replace(partitions=count, target=count, fields=fields))

    async def _copied(self, name: TopicName, first: int, count: int) -> list[Subscription]:
        """The subscriptions of the first partitions, for those from first on, up to count. Raises
        PartitionsNotAllowed where that is too much.
        """
        if first == count:
            return []
        wanted: dict[str, int] = {}  # and a partition that has it

        async def look(index: int) -> None:
            for each in await self._topics.subscription_names(name.partition(index)):
                wanted.setdefault(each, index)

        await each_of(range(first), look)
        most = limits.PARTITIONS_SUBSCRIPTIONS_MAX
        if len(wanted) * (count - first) > most:
            raise PartitionsNotAllowed(
                f"Each of {count - first} more partitions would have the {len(wanted)}"
                f" subscriptions of the topic, and one request may make {most} of them together:"
                " add fewer partitions, or delete subscriptions."
            )
        subscriptions: list[Subscription] = []
        size = 0
        slices = Slices()
        for each, index in wanted.items():
            topic = await self._topics.get(name.partition(index), create=True)
            if each in topic.subscriptions:
                subscriptions.append(topic.subscriptions[each])
                size += limits.properties_bytes(subscriptions[-1].properties)
            await slices.pause()
        trouble = limits.copies_trouble(size, count - first)
        if trouble is not None:
            raise PartitionsNotAllowed(trouble)
        return subscriptions

    async def _copy_subscriptions(self, name: TopicName, first: int, count: int) -> None:
        """Makes the subscriptions of the first partitions in those from first on, up to count."""
        # There may be others than before the partitions were made.
        subscriptions = await self._copied(name, first, count)

        from pyxbroker.broker.topics.persistent import PersistentTopic

        async def copy(index: int) -> None:
            topic = await self._topics.make(name.partition(index))
            start: Position = topic.first_position()
            for each in subscriptions:
                if is_system_cursor(each.name):
                    assert isinstance(topic, PersistentTopic)
                    await topic.compaction_subscription()
                    continue
                properties = dict(each.properties)
                await topic.subscription_for(each.name, start, properties, True, each.replicated)

        if subscriptions:
            await each_of(range(first, count), copy)

    async def create_missing(self, name: TopicName) -> None:
        """Makes the partitions that are not there. Raises TopicNotFound, ServiceNotReady."""
        with self._changing(name):
            found = await self._existing(name)
            await self._topics.policies(name)
            if found.deleted:
                raise ServiceNotReady(f"Topic {name} is being deleted.")
            if name.is_persistent:
                await make_nodes(self._store, name, 0, found.partitions)

    async def change_properties(
        self, name: TopicName, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Keeps other properties of a partitioned topic. Raises TopicNotFound, ServiceNotReady when
        somebody else changes it, and what change does.
        """
        with self._changing(name):
            found = await self._existing(name)
            properties = change(found.fields.get("properties") or {})
            await self._mark(name, found, {"properties": properties})

    async def delete(self, name: TopicName, force: bool = False) -> None:
        """Deletes a partitioned topic and its partitions; with force, even while they are in use.

        Raises TopicNotFound, TopicBusy when it is in use. Who was interrupted begins again.
        """
        with self._changing(name):
            found = await self._existing(name)
            if not force:
                slices = Slices()
                for index in await self.existing(name, found.target):
                    self._topics.check_unused(name.partition(index))
                    await slices.pause()
            marked = await self._mark(name, found, {"deleted": True})
            # None comes to be any more.
            partitions = map(name.partition, await self.existing(name, found.target))
            await each_of(partitions, partial(self._topics.delete_by_name, force=True))
            await self._topics.forget_grants(name)
            await self._topics.forget_schema(name)
            await self._forget(name, marked.version)
            await self._topics.forget_policies(name)

    async def forget_unused(self, name: TopicName) -> None:
        """Deletes the number of partitions when there is none of them any more."""
        with self._changing(name):
            found = await self.read(name)
            if not found.target:
                return
            if await self.existing(name, found.target):
                return
            await self._topics.forget_grants(name)
            await self._topics.forget_schema(name)
            await self._forget(name, found.version)
            await self._topics.forget_policies(name)
            log.info("its last partition was deleted", topic=name)

    async def _mark(
        self, name: TopicName, found: PartitionedTopic, marks: dict[str, Any]
    ) -> PartitionedTopic:
        """Adds to the record what is about to be done. Raises ServiceNotReady."""
        fields = found.fields | marks
        try:
            version = await self._write(name, fields, found.version)
        except BadVersion as error:
            raise _being_changed(name) from error
        return found._replace(fields=fields, version=version)

    @contextmanager
    def _changing(self, name: TopicName) -> Iterator[None]:
        """Partitions are made, or deleted, by one request at a time. Raises ServiceNotReady.

        Meanwhile nobody begins to make a topic of the name that is not partitioned.
        """
        self.check_unchanged(name)
        over = self._being_changed[name] = asyncio.Event()
        try:
            yield
        finally:
            del self._being_changed[name]
            over.set()

    async def settled(self, namespace: str) -> None:
        """Waits until all partitions of a namespace that somebody makes, or deletes, are there, or
        gone.
        """
        changing = self._being_changed.items()
        for over in [over for name, over in changing if name.namespace == namespace]:
            await over.wait()

    def check_unchanged(self, name: TopicName) -> None:
        """Raises ServiceNotReady while partitions of the topic are made, or deleted."""
        if name in self._being_changed:
            raise _being_changed(name)

    async def _forget(self, name: TopicName, version: int) -> None:
        """Deletes the number of partitions, unless it has changed. Raises ServiceNotReady."""
        path = _path(name)
        try:
            await self._store.delete(path, version)
        except BadVersion as error:
            raise _being_changed(name) from error
        except NotFound:
            pass  # Somebody else has done so.
        finally:
            self._cache.forget(path)

    async def _existing(self, name: TopicName) -> PartitionedTopic:
        found = await self.read(name)
        if found.partitions == 0:
            raise TopicNotFound(f"Topic {name} is not the partitioned topic.")
        return found

    async def _write(self, name: TopicName, fields: dict[str, Any], version: int) -> int:
        """The version that was written. Raises BadVersion."""
        path = _path(name)
        try:
            return (await self._store.put(path, to_json(fields), version)).version
        finally:
            self._cache.forget(path)

    def _check_count(self, count: int) -> None:
        if count <= 0:
            raise PartitionsNotAllowed("Number of partitions should be more than 0")
        limit = self._partitions_max
        if count > limit:
            raise PartitionsNotAllowed(
                f"Number of partitions should be less than or equal to {limit}"
            )

    @property
    def _partitions_max(self) -> int:
        """Of one topic that is made or grows."""
        return self._config.maxNumPartitionsPerPartitionedTopic or limits.PARTITIONS_MAX

    def _check_served(self, name: TopicName, count: int) -> None:
        """Clients are not told of more partitions than there can be: they would open them all.

        Raises PartitionsNotAllowed. What an operator may set, and once set, is served.
        """
        limit = max(self._partitions_max, limits.PARTITIONS_MAX)
        if count > limit:
            raise PartitionsNotAllowed(
                f"Topic {name} has {count} partitions by its metadata, and this broker serves at"
                f" most {limit} of one topic (maxNumPartitionsPerPartitionedTopic)."
            )


def _path(name: TopicName) -> str:
    return paths.partitioned_topic(name.namespace, name.local_name, name.domain)


def _being_changed(name: TopicName) -> ServiceNotReady:
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
        event = "the record of a partitioned topic does not say how many partitions"
        reference = log.refused(event, error, path=path)
        sentence = "The record of the topic does not say how many partitions it has."
        raise MetadataStoreError(with_reference(sentence, reference)) from error
