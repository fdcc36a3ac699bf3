"""Creating, growing and deleting partitioned topics.

The records of partitioned topics are in partition_records.py. Mirrors
BrokerService.fetchPartitionedTopicMetadataCheckAllowAutoCreationAsync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NoReturn

from pyxbroker.base import limits
from pyxbroker.base.errors import (
    NotAllowed,
    PartitionsNotAllowed,
    ServiceNotReady,
    TopicExists,
    TopicNotFound,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices
from pyxbroker.base.system_cursors import is_system_cursor
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.deletion import TopicDeletion
from pyxbroker.broker.topics.loading import TopicLoader
from pyxbroker.broker.topics.partition_nodes import create_nodes, for_each, one_batch
from pyxbroker.broker.topics.partition_records import (
    BEING_CREATED,
    GROWING_TO,
    PartitionedTopic,
    PartitionRecords,
    being_changed,
)
from pyxbroker.broker.topics.policy_access import PolicyAccess
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MUST_NOT_EXIST, BadVersion, MetadataStore
from pyxbroker.metadata.turns import Turns
from pyxbroker.policies.values import Policies
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.broker.peers import CopiedSubscription

log = get_logger("pyxbroker.topics")


class PartitionedTopics:
    """Operations on the partitioned topics of all namespaces."""

    def __init__(
        self,
        config: Config,
        store: MetadataStore,
        records: PartitionRecords,
        registry: TopicRegistry,
        loader: TopicLoader,
        deletion: TopicDeletion,
        policies: PolicyAccess,
    ) -> None:
        self._config = config
        self._store = store
        self._records = records
        self._registry = registry
        self._loader = loader
        self._deletion = deletion
        self._policies = policies
        self._creation_turns = Turns[TopicName](store)

    async def metadata(self, name: TopicName, auto_create: bool) -> int:
        """Return the number of partitions for PARTITIONED_METADATA, 0 for a topic without.

        A topic that does not exist is created now or later if auto_create and the policies allow
        that. Otherwise this raises TopicNotFound.
        """
        policies = await self._policies.of_topic(name)
        count = await self._records.partitions(name)
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
        """Return True if an unpartitioned topic exists, or if a partition may be created."""
        if name.is_partitioned:
            whole = await self._records.read(TopicName.get(name.partitioned_topic_name))
            if whole.partitions:
                return name.partition_index < whole.partitions
            if creates:
                return True
        return await self._registry.exists(name)

    async def _create_default(self, name: TopicName, count: int) -> int:
        """Create a topic with the default number of partitions, and return that number.

        Several clients may ask for the same topic at the same time, of any broker.
        """
        self._check_count(count)
        async with self._creation_turns.turn(name):
            await self._records.wait_unchanged(name)
            with self._records.changing(name):
                if await self._loader.exists_when_opened(name):
                    return 0
                policies = await self._policies.of_topic(name)
                fields = {"partitions": count, "deleted": False}
                try:
                    async with self._reservation(name, policies, count):
                        version = await self._records.write(name, fields, MUST_NOT_EXIST)
                except BadVersion:
                    return (await self._records.read(name)).partitions
                if await self._is_taken(name):
                    await self._records.delete(name, version)
                    return 0
        log.info("a partitioned topic was created", topic=name, partitions=count)
        return count

    # --- changing -----------------------------------------------------------------------------

    async def create(
        self, name: TopicName, count: int, properties: dict[str, str] | None = None
    ) -> None:
        """Create a partitioned topic with all its partitions, or complete an interrupted creation.

        Raises TopicExists, PartitionsNotAllowed for a number that is not allowed, NotAllowed for
        the name of a partition, NamespaceNotFound.
        """
        policies = await self._policies.of_topic(name)
        self._check_count(count)
        if name.is_partitioned:
            raise NotAllowed(f"{name} is the name of a partition.")
        fields: dict[str, Any] = {"partitions": count, "deleted": False}
        if properties is not None:
            fields["properties"] = properties
        with self._records.changing(name):
            if await self._loader.exists_when_opened(name):
                raise TopicExists(f"Topic {name} exists already.")
            await self._loader.forget_former(name)
            async with self._reservation(name, policies, count):
                taken = await self._create(name, count, fields)
            if taken is not None:
                await self._withdraw(name, taken, count)

    def _reservation(
        self, name: TopicName, policies: Policies, count: int
    ) -> AbstractAsyncContextManager[None]:
        """Return a context in which partitions below `count` may be created."""

        async def missing() -> int:
            return count - len(await self._records.existing(name, count))

        return self._loader.reservation(name, policies, missing, count)

    async def _create(
        self, name: TopicName, count: int, fields: dict[str, Any]
    ) -> PartitionedTopic | None:
        """Create a partitioned topic. Return its record if another broker was first, else None."""
        if not name.is_persistent:
            await self._claim(name, count, fields)
        elif await self._create_in_one_write(name, fields):
            if await self._is_taken(name):
                return await self._records.read(name)
        else:
            found = await self._claim(name, count, fields | {BEING_CREATED: True})
            if await self._is_taken(name):
                return found
            await create_nodes(self._store, name, 0, count)
            await self._finish(name, found)
        return None

    async def _is_taken(self, name: TopicName) -> bool:
        """Return True if another broker has created an unpartitioned topic of the name meanwhile.

        TopicLoader._check_alone is the other side of this check.
        """
        return name.is_persistent and await self._store.exists(
            paths.managed_ledger(name.managed_ledger_name)
        )

    async def _withdraw(self, name: TopicName, found: PartitionedTopic, count: int) -> NoReturn:
        """Delete a record and those partitions that exist. Raises TopicExists."""
        marked = await self._records.mark(name, found, {"deleted": True})
        async for index in in_slices(range(count)):
            await self._deletion.delete_anywhere(name.partition(index))
        await self._records.delete(name, marked.version)
        raise TopicExists(f"Topic {name} exists already.")

    async def _create_in_one_write(self, name: TopicName, fields: dict[str, Any]) -> bool:
        """Create record and partitions in one write.

        Return False if they are too many for that, or if one of them exists already.
        """
        nodes = one_batch(name, fields["partitions"])
        if nodes is None:
            return False
        try:
            await self._records.create_with(name, fields, nodes)
        except BadVersion:
            return False
        return True

    async def _claim(self, name: TopicName, count: int, fields: dict[str, Any]) -> PartitionedTopic:
        """Write the record first, so that no other request takes the name.

        Raises TopicExists, except for a topic whose creation with as many partitions was
        interrupted.
        """
        try:
            version = await self._records.write(name, fields, MUST_NOT_EXIST)
        except BadVersion as error:
            found = await self._records.read(name)
            if found.is_being_created and found.partitions == count and not found.deleted:
                return found
            raise TopicExists(f"Topic {name} exists already.") from error
        return PartitionedTopic(count, count, False, fields, version)

    async def _finish(self, name: TopicName, made: PartitionedTopic) -> None:
        """Remove the mark of an unfinished creation: all partitions exist."""
        fields = {key: value for key, value in made.fields.items() if key != BEING_CREATED}
        try:
            await self._records.write(name, fields, made.version)
        except BadVersion as error:
            found = await self._records.read(name)
            if (
                found.is_being_created
                or found.deleted
                or found.partitions != made.partitions
                or found.target != made.target
            ):
                raise being_changed(name) from error

    async def update(self, name: TopicName, count: int) -> None:
        """Create further partitions with the subscriptions that the topic has, or complete an
        interrupted update.

        Raises TopicNotFound for a topic that is not partitioned, PartitionsNotAllowed for a number
        that is too small or too large, or with too many subscriptions, ServiceNotReady while the
        topic is being deleted.
        """
        with self._records.changing(name):
            found = await self._records.require(name)
            # This fails while the namespace is being deleted.
            await self._policies.of_topic(name)
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
                await self._subscriptions_to_copy(
                    name, found.partitions, count
                )  # raises PartitionsNotAllowed
                if count > found.target:
                    # If this is interrupted, its partitions are found again, and deleted.
                    found = await self._records.mark(name, found, {GROWING_TO: count})
                # Subscriptions are created before the record changes, which shows the partitions to
                # producers.
                first = 0 if found.is_being_created else found.partitions
                await create_nodes(self._store, name, first, count)
                await self._copy_subscriptions(name, found.partitions, count)
            fields = found.fields | {"partitions": count}
            fields.pop(GROWING_TO, None)
            await self._finish(name, found._replace(partitions=count, target=count, fields=fields))

    async def _subscriptions_to_copy(
        self, name: TopicName, first: int, count: int
    ) -> list[CopiedSubscription]:
        """Return the subscriptions of the partitions below first, for those from first to count.

        Raises PartitionsNotAllowed if the copies would be too many or too large.
        """
        if first == count:
            return []
        wanted: dict[str, int] = {}  # and the index of a partition that has it

        async def collect(index: int) -> None:
            for each in await self._registry.subscription_names(name.partition(index)):
                wanted.setdefault(each, index)

        await for_each(range(first), collect)
        most = limits.PARTITIONS_SUBSCRIPTIONS_MAX
        if len(wanted) * (count - first) > most:
            raise PartitionsNotAllowed(
                f"Each of {count - first} more partitions would have the {len(wanted)}"
                f" subscriptions of the topic, and one request may create {most} subscriptions:"
                " add fewer partitions, or delete subscriptions."
            )
        subscriptions: list[CopiedSubscription] = []
        size = 0
        async for each, index in in_slices(wanted.items()):
            found = await self._subscription(name.partition(index), each)
            if found is not None:
                subscriptions.append(found)
                size += limits.properties_bytes(found.properties)
        trouble = limits.copies_trouble(size, count - first)
        if trouble is not None:
            raise PartitionsNotAllowed(trouble)
        return subscriptions

    async def _subscription(self, name: TopicName, subscription: str) -> CopiedSubscription | None:
        """Return a subscription of a partition, or None, whichever broker serves the partition."""
        elsewhere = self._deletion.elsewhere
        if elsewhere is not None:
            found = await elsewhere.subscriptions(name)
            if found is not None:
                return found.get(subscription)
        from pyxbroker.broker.peers import CopiedSubscription

        topic = await self._loader.get(name, create=True)
        one = topic.subscriptions.get(subscription)
        if one is None:
            return None
        return CopiedSubscription(subscription, one.properties, one.replicated)

    async def _copy_subscriptions(self, name: TopicName, first: int, count: int) -> None:
        """Copy the subscriptions of the partitions below first to those from first to count."""
        # Subscriptions may have been created or deleted since the first check.
        subscriptions = await self._subscriptions_to_copy(name, first, count)

        from pyxbroker.broker.topics.persistent import PersistentTopic

        async def copy(index: int) -> None:
            elsewhere = self._deletion.elsewhere
            partition = name.partition(index)
            if elsewhere is not None and await elsewhere.subscribe(partition, subscriptions):
                return
            topic = await self._loader.ensure(name.partition(index))
            start: Position = topic.first_position()
            for each in subscriptions:
                if is_system_cursor(each.name):
                    assert isinstance(topic, PersistentTopic)
                    await topic.compaction_subscription()
                    continue
                properties = dict(each.properties)
                await topic.subscription_for(each.name, start, properties, True, each.replicated)

        if subscriptions:
            await for_each(range(first, count), copy)

    async def create_missing(self, name: TopicName) -> None:
        """Create the partitions that do not exist. Raises TopicNotFound, ServiceNotReady."""
        with self._records.changing(name):
            found = await self._records.require(name)
            await self._policies.of_topic(name)
            if found.deleted:
                raise ServiceNotReady(f"Topic {name} is being deleted.")
            if name.is_persistent:
                await create_nodes(self._store, name, 0, found.partitions)

    async def change_properties(
        self, name: TopicName, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Change the properties of a partitioned topic.

        Raises TopicNotFound, ServiceNotReady while another request changes the topic, and the
        errors of change.
        """
        with self._records.changing(name):
            found = await self._records.require(name)
            properties = change(found.fields.get("properties") or {})
            await self._records.mark(name, found, {"properties": properties})

    async def delete(self, name: TopicName, force: bool = False) -> None:
        """Delete a partitioned topic and its partitions; with force, even while they are in use.

        Raises TopicNotFound, TopicBusy for a topic in use. An interrupted deletion can be repeated.
        """
        with self._records.changing(name):
            found = await self._records.require(name)
            if not force:
                partitions = map(name.partition, await self._existing(name, found.target))
                await for_each(partitions, self._deletion.check_unused_anywhere)
            marked = await self._records.mark(name, found, {"deleted": True})
            # From here on no partition is created any more.
            partitions = map(name.partition, await self._existing(name, found.target))
            await for_each(partitions, self._deletion.delete_anywhere)
            await self._policies.forget_grants(name)
            await self._deletion.forget_schema(name)
            await self._records.delete(name, marked.version)
            await self._policies.forget_records(name)

    async def _existing(self, name: TopicName, count: int) -> Iterable[int]:
        """Return the indexes of partitions that exist, or may exist."""
        if name.is_persistent or self._deletion.elsewhere is None:
            return await self._records.existing(name, count)
        return range(count)  # only their brokers know which non-persistent ones are open

    async def forget_unused(self, name: TopicName) -> None:
        """Delete the record of a partitioned topic that has no partitions any more."""
        with self._records.changing(name):
            found = await self._records.read(name)
            if not found.target:
                return
            if await self._records.existing(name, found.target):
                return
            await self._policies.forget_grants(name)
            await self._deletion.forget_schema(name)
            await self._records.delete(name, found.version)
            await self._policies.forget_records(name)
            log.info("a partitioned topic without partitions was deleted", topic=name)

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
        """The limit on the partitions of a topic that is created or updated."""
        return self._config.maxNumPartitionsPerPartitionedTopic or limits.PARTITIONS_MAX

    def _check_served(self, name: TopicName, count: int) -> None:
        """Raise PartitionsNotAllowed if a topic has too many partitions for clients to open all.

        A number that the operator's settings allow is served.
        """
        limit = max(self._partitions_max, limits.PARTITIONS_MAX)
        if count > limit:
            raise PartitionsNotAllowed(
                f"Topic {name} has {count} partitions by its metadata, and this broker serves at"
                f" most {limit} of one topic (maxNumPartitionsPerPartitionedTopic)."
            )
