"""Deleting, terminating and unloading topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyxbroker.base.errors import (
    PersistenceError,
    PulsarError,
    ServiceNotReady,
    SubscriptionNotFound,
    TooFewBookies,
    TopicBusy,
    TopicNotFound,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.loading import TopicLoader
from pyxbroker.broker.topics.partition_records import PartitionRecords
from pyxbroker.broker.topics.policy_access import PolicyAccess
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataError, MetadataStore
from pyxbroker.mledger.errors import ManagedLedgerError, ManagedLedgerTooFewBookies

if TYPE_CHECKING:
    from pyxbroker.broker.peers import TopicsElsewhere
    from pyxbroker.schemas.registry import SchemaRegistry

log = get_logger("pyxbroker.topics")

CLOSING_MAX = 128  # topics that are closed in parallel when the broker stops


class TopicDeletion:
    """Operations that end topics: with their data (delete), or only in this broker (unload)."""

    def __init__(
        self,
        store: MetadataStore,
        registry: TopicRegistry,
        loader: TopicLoader,
        policies: PolicyAccess,
        partitions: PartitionRecords,
        schemas: Callable[[], SchemaRegistry],
    ) -> None:
        self._store = store
        self._registry = registry
        self._loader = loader
        self._policies = policies
        self._partitions = partitions
        self._schemas = schemas
        self.elsewhere: TopicsElsewhere | None = None
        """The topics of other brokers; None if this broker serves all topics."""

    async def check_unused_anywhere(self, name: TopicName) -> None:
        """Raise TopicBusy if clients are connected to a topic, whichever broker serves it."""
        counts = None if self.elsewhere is None else await self.elsewhere.clients(name)
        if counts is None:
            self.check_unused(name)
        else:
            _check_no_clients(name, *counts)

    async def delete_anywhere(self, name: TopicName) -> None:
        """Delete a topic, if it exists, even if clients are connected, whichever broker serves it.

        Raises PulsarError.
        """
        if self.elsewhere is None or not await self.elsewhere.delete(name):
            await self.delete_by_name(name, force=True)

    def check_unused(self, name: TopicName) -> None:
        """Raise TopicBusy if clients are connected to a topic."""
        topic = self._registry.find(name)
        if topic is None:
            return
        consumers = sum(len(each.consumers) for each in topic.all_subscriptions())
        _check_no_clients(name, len(topic.producers), consumers)

    async def delete_by_name(self, name: TopicName, force: bool = False) -> None:
        """Delete a topic, open or not, if it exists; with force, even if clients are connected.

        Raises TopicBusy if clients are connected and force is not set; PersistenceError.
        """
        if not force:
            self.check_unused(name)
        if await self._registry.exists(name):
            await self.delete(await self._loader.ensure(name))

    async def delete(self, topic: Topic) -> None:
        """Delete an open topic with its subscriptions and messages, and disconnect its clients.

        Grants and schema are deleted first, so that an interrupted deletion can be repeated. Raises
        ServiceNotReady while another request deletes the topic, PersistenceError, MetadataError.
        """
        if topic.being_deleted:
            raise ServiceNotReady(f"Topic {topic.name} is being deleted; look it up again.")
        was_fenced = topic.fenced
        # No await since the caller saw that the topic is unused: no client can have come.
        topic.fenced = topic.being_deleted = True
        try:
            try:
                await self._policies.forget_grants(topic.name)
                if not topic.name.is_partitioned:
                    await self.forget_schema(topic.name)
            except BaseException:
                topic.fenced = was_fenced
                raise
            await topic.delete()
        except (LedgerError, ManagedLedgerError) as error:
            raise PersistenceError(f"Topic {topic.name} was not deleted: {error}") from error
        finally:
            topic.being_deleted = False
        self._registry.remove(topic)
        await self._policies.on_deleted(topic.name)

    async def forget_schema(self, name: TopicName) -> None:
        """Delete the schema of a topic, partitioned or not, that is being deleted.

        The schema stays while a topic of the other domain has the same name, and so the same
        schema. Raises LedgerError, MetadataError.
        """
        if not await self._store.exists(paths.schema(name.schema_name)):
            return
        other = name.in_other_domain
        if not await self._registry.exists(other) and not (
            (await self._partitions.read(other)).target
        ):
            await self._schemas().delete_storage(name.schema_name)

    async def delete_subscription(self, name: TopicName, subscription: str, force: bool) -> None:
        """Delete a subscription of a topic, or of every partition of a partitioned topic.

        Raises TopicNotFound, and the errors of Topic.delete_subscription.
        """
        count = (await self._partitions.read(name)).partitions
        if count == 0:
            topic = await self._loader.get(name, create=False)
            await topic.delete_subscription(subscription, force)
            return
        missing: PulsarError = self._loader.not_found(name.partition(0))
        is_found = False
        async for index in in_slices(await self._partitions.existing(name, count)):
            try:
                topic = await self._loader.get(name.partition(index), create=False)
                await topic.delete_subscription(subscription, force)
                is_found = True
            # Partitions are created at first use, and each has the subscriptions of its consumers.
            except TopicNotFound as error:
                missing = error
            except SubscriptionNotFound:
                missing = SubscriptionNotFound("Subscription not found")  # of any partition
        try:
            if not is_found:
                raise missing
        finally:
            del missing  # leave no cycle of the error and this frame

    async def unload(self, name: TopicName, moving: list[Topic] | None = None) -> None:
        """Close a topic if it is open; its clients open it again. Raises PersistenceError.

        With `moving`, the topic is added there, and the caller notifies its clients.
        """
        await self._loader.wait_opened(name)
        topic = self._registry.loaded(name)
        if topic is None:
            return
        if moving is not None:
            moving.append(topic)
        try:
            await topic.close(is_moving=moving is not None)
        except (LedgerError, ManagedLedgerError, MetadataError) as error:
            raise PersistenceError(f"Topic {name} was not closed cleanly: {error}") from error
        self._registry.remove(topic)

    async def terminate(self, name: TopicName) -> Position:
        """Refuse further messages for a topic for ever; return the position of the last message.

        Raises TopicNotFound, ServiceNotReady while the topic is being closed, PersistenceError.
        """
        topic = await self._loader.get(name, create=False)
        try:
            return await topic.terminate()
        except ManagedLedgerError as error:
            if topic.fenced:
                raise ServiceNotReady(f"Topic {name} is being closed; look it up again.") from error
            lacks_bookies = isinstance(error, ManagedLedgerTooFewBookies)
            refusal = TooFewBookies if lacks_bookies else PersistenceError
            raise refusal(f"Topic {name} was not terminated: {error}") from error

    async def close_all(self) -> None:
        """Close every topic. Failures are logged, and recovered from at the next start."""
        topics = iter(list(self._registry))
        await asyncio.gather(*(self._close_each(topics) for _ in range(CLOSING_MAX)))

    @staticmethod
    async def _close_each(topics: Iterator[Topic]) -> None:
        """Close topics one after the other, taking each from an iterator that workers share."""
        for topic in topics:
            [error] = await asyncio.gather(topic.close(), return_exceptions=True)
            if error is not None:
                log.error("a topic was not closed cleanly", topic=topic.name, error=error)


def _check_no_clients(name: TopicName, producers: int, consumers: int) -> None:
    """Raise TopicBusy if a topic has clients."""
    clients = producers + consumers
    if clients and not name.is_persistent:
        raise TopicBusy(f"Topic has {clients} connected producers/consumers")
    if clients:
        raise TopicBusy(
            f"Topic has {clients} client{'s' if clients > 1 else ''} connected"
            f" Including {consumers} consumers, {producers} producers, and 0 replicators."
        )
