"""The topics that this broker serves: opened when they are first asked for."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyxbroker.add_stats import BOUNDS_US
from pyxbroker.base.errors import (
    NamespaceNotFound,
    NotAllowed,
    PersistenceError,
    PulsarError,
    ServiceNotReady,
    SubscriptionNotFound,
    TopicBusy,
    TopicNotFound,
)
from pyxbroker.base.histogram import Histogram
from pyxbroker.base.log import get_logger
from pyxbroker.base.pacing import paced
from pyxbroker.base.slices import Slices
from pyxbroker.base.system_cursors import DEDUPLICATION_CURSOR
from pyxbroker.base.topic_name import NamespaceName, TopicName
from pyxbroker.base.url_encoding import decode
from pyxbroker.broker.broker_limits import broker_limits
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from pyxbroker.broker.topics.non_persistent import NonPersistentTopic
from pyxbroker.broker.topics.partitioned_topics import PartitionedTopics
from pyxbroker.broker.topics.persistent import PersistentTopic, quorums_of
from pyxbroker.broker.topics.shards import Shards
from pyxbroker.broker.topics.sweep import Sweep
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.broker.topics.topic_counts import TopicCounts
from pyxbroker.broker.topics.topic_policies import TopicPolicies
from pyxbroker.broker.topics.upkeep import Upkeep
from pyxbroker.entry import Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.ledger.retries import is_temporary
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.store import MetadataError, MetadataStore, Unavailable
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import NONE, delete_managed_ledger, open_managed_ledger
from pyxbroker.policies.grants import forget_topic, has_grants
from pyxbroker.policies.namespaces import NamespacePolicies
from pyxbroker.policies.records import Change, Fields, change_namespace
from pyxbroker.policies.table import of_broker
from pyxbroker.policies.values import Policies
from pyxbroker.settings.config import Config
from pyxbroker.turn import Turn

if TYPE_CHECKING:
    from asyncio import Future

    from pyxbroker.schemas.registry import SchemaRegistry
    from pyxbroker.schemas.schema_counts import NamespaceCounts

log = get_logger("pyxbroker.topics")

DELETED_MAX = 1_000  # deleted topics whose names are kept in memory for the error message
UNUSED_MAX = 10_000  # non-persistent topics that nobody uses any more and that stay open
CLOSING_MAX = 128  # topics at a time, when the broker stops: a turn closes no more
UNLIMITED = nullcontext()
REFUSED_LOADS = (TopicNotFound, NotAllowed)  # by a policy, or since there is nothing to open
WHAT_DELETES = {"inactive_topics", "retention"}  # policies


def limits_of(config: Config) -> ManagedLedgerLimits:
    """The settings of managed ledgers. Retention is a policy: until it is in force all is kept."""
    return ManagedLedgerLimits(
        entries_per_ledger_max=config.managedLedgerMaxEntriesPerLedger,
        bytes_per_ledger_max=config.managedLedgerMaxSizePerLedgerMbytes << 20,
        rollover_min_s=config.managedLedgerMinLedgerRolloverTimeMinutes * 60,
        rollover_max_s=config.managedLedgerMaxLedgerRolloverTimeMinutes * 60,
        retention_s=-1,
        retention_bytes=-1,
        cursor_entries_per_ledger_max=config.managedLedgerCursorMaxEntriesPerLedger,
        cursor_rollover_s=config.managedLedgerCursorRolloverTimeInSeconds,
        mark_delete_per_s=config.managedLedgerDefaultMarkDeleteRateLimit,
        position_held_s=config.managedLedgerCursorPositionFlushSeconds,
        ranges_as_list_max=config.managedLedgerMaxUnackedRangesToPersistInMetadataStore,
        ranges_whole_max=config.managedLedgerMaxUnackedRangesToPersist,
    )


class Topics:
    """Open topics by name, and those that are being opened."""

    def __init__(
        self,
        config: Config,
        store: MetadataStore,
        cache: MetadataCache,
        ledgers: LedgerClient,
        turn: Turn,
    ) -> None:
        self._config = config
        self._store = store
        self._ledgers = ledgers
        self._turn = turn
        self.cache = cache
        self._ledger_limits = limits_of(config)
        broker = of_broker(config)
        self._policies = NamespacePolicies(broker, store, self.cache, turn.run, config.clusterName)
        self._unacked: BrokerUnacked | None = None
        if broker.unacked_in_broker_max:
            self._unacked = BrokerUnacked(broker.unacked_in_broker_max, turn.dispatching)
        self.broker_limits = broker_limits(config, turn)
        self._topics: Shards[TopicName, Topic] = Shards()
        self._opening: dict[TopicName, tuple[Future[Topic], bool]] = {}  # and whether to make it
        # Non-persistent topics that nobody may use any more, who was left last comes last.
        self._unused: OrderedDict[NonPersistentTopic, None] = OrderedDict()
        self._deleted_as_inactive: dict[TopicName, None] = {}
        self._closing = False
        self.persistent_count = 0  # open topics that have a managed ledger
        self.loads_us = Histogram(BOUNDS_US)  # how long topics took to be opened
        self.loads_failed = 0
        self._limit_loading()
        self.partitioned = PartitionedTopics(config, store, self.cache, self)
        self._counts = TopicCounts(store)
        self._records: TopicPolicies | None = None
        if config.topicLevelPoliciesEnabled and config.systemTopicEnabled:
            self._records = TopicPolicies(config.clusterName, self, self._policies)
        self.check_space: Callable[[], None] = lambda: None
        """Raises what who cannot store anything now is told."""
        self.upkeep = Upkeep(self.__iter__)
        self.sweep = Sweep(self, store, ledgers.started_ms)

    @cached_property
    def schemas(self) -> SchemaRegistry:
        """The schemas of all topics; partitions share one, and so do both domains."""
        # With the first schema: most brokers have none.
        from pyxbroker.schemas.registry import SchemaRegistry

        return SchemaRegistry(self._store, self._ledgers, self.check_space)

    @property
    def schema_counts(self) -> Mapping[str, NamespaceCounts]:
        """What was done to the schemas of each namespace."""
        return self.schemas.counts.namespaces if "schemas" in self.__dict__ else {}

    def on_settings(self) -> None:
        """The settings have changed: what they say of all topics is in force now."""
        self._policies.set_broker(of_broker(self._config))
        if self._loads_max != self._config.maxConcurrentTopicLoadRequest:
            self._limit_loading()
        if self.broker_limits.set_rates(self._config, self._turn):
            self.upkeep.on_broker_rates()

    def _limit_loading(self) -> None:
        """As in Pulsar: topics that are being opened, or wait for that, do not count any more."""
        self._loads_max = self._config.maxConcurrentTopicLoadRequest
        self._loading = asyncio.Semaphore(self._loads_max)

    def __iter__(self) -> Iterator[Topic]:
        return self._topics.values()

    def __len__(self) -> int:
        return len(self._topics)

    async def get(self, name: TopicName, create: bool) -> Topic:
        """The topic, opened if need be; made if it does not exist and create allows it."""
        while True:
            topic = self._topics.get(name)
            if topic is not None and not topic.fenced:
                return topic
            self._check_settled(name, create)
            under_way = self._opening.get(name)
            if under_way is None:
                under_way = (self._begin(name, self._open(name, create), create), create)
            opening, creates = under_way
            if creates or not create:
                try:
                    return await asyncio.shield(opening)
                finally:
                    del opening, under_way  # what they hold has this frame in its traceback
            # Who asked for it would not make it; a topic is opened once at a time.
            await asyncio.wait([opening])

    def _begin(
        self, name: TopicName, opening: Coroutine[Any, Any, Topic], create: bool
    ) -> Future[Topic]:
        future = asyncio.ensure_future(paced(opening))
        self._opening[name] = (future, create)
        future.add_done_callback(partial(self._on_opened, name, time.perf_counter()))
        return future

    def _on_opened(self, name: TopicName, began_s: float, opening: Future[Topic]) -> None:
        self._opening.pop(name, None)
        error = None if opening.cancelled() else opening.exception()
        if error is None:
            self.loads_us.add((time.perf_counter() - began_s) * 1e6)
        elif not isinstance(error, REFUSED_LOADS):
            self.loads_failed += 1

    @property
    def loads_pending(self) -> int:
        """Topics that are being opened, or wait for that."""
        return len(self._opening)

    def _check_settled(self, name: TopicName, create: bool) -> None:
        """Raises ServiceNotReady while a topic is closed or deleted: it is not opened again yet.

        Nor is it made while it may become a partitioned one.
        """
        topic = self._topics.get(name)
        if self._closing or (topic is not None and (topic.being_deleted or not topic.is_gone)):
            raise ServiceNotReady(f"Topic {name} is being closed; look it up again.")
        if create:
            self.partitioned.check_unchanged(name)

    async def make(self, name: TopicName, properties: Mapping[str, str] = NONE) -> Topic:
        """The topic, made if need be, whatever the policies say of clients that would do that.

        properties are those of a new one. Raises NotAllowed where there is a partitioned topic.
        """
        topic = self._topics.get(name)
        if topic is not None and not topic.fenced:
            return topic
        found = self._opening.get(name)
        if found is not None:
            await asyncio.wait([found[0]])
            return await self.make(name, properties)
        self._check_settled(name, create=True)
        return await asyncio.shield(self._begin(name, self._make(name, properties), create=True))

    async def _make(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        # Who asked may have looked before a partitioned topic was made; one that is there already
        # is opened, if only to be deleted.
        if await self.exists(name):
            await self._policies_of(name)
        else:
            await self.policies(name)
            if not name.is_partitioned:
                await self.partitioned.check_not_partitioned(name)
        return await self._load(name, create=True, properties=properties)

    async def _open(self, name: TopicName, create: bool) -> Topic:
        policies = await self.check_name(name)
        may_create = await self.partitioned.check_name(
            name, create and policies.auto_topic_creation.allowed
        )
        is_forbidden = create and not may_create
        return await self._load(name, create and may_create, is_forbidden=is_forbidden)

    async def _load(
        self,
        name: TopicName,
        create: bool,
        properties: Mapping[str, str] = NONE,
        is_forbidden: bool = False,
    ) -> Topic:
        """Its policies were asked for: that may have opened topics itself, and who waits for it
        must not hold one of those places.
        """
        if create:
            await self.forget_former(name)
        async with self._loading:
            former = self._topics.get(name)
            if former is not None and not former.fenced:
                return former
            if former is not None:
                # What it has under way must not meet what its successor does.
                await former.settle()
                self._forget(former)
            # Of one that is being deleted, too: what is in it is opened for that.
            policies = await self._policies.get(name)
            if await self._lacks_records(name):
                # The namespace was being deleted a moment ago, and stays after all.
                raise ServiceNotReady(f"The policies of topic {name} are not read yet.")
            if not name.is_persistent:
                return self._load_non_persistent(name, create, policies, is_forbidden)
            limits = self._ledger_limits._replace(quorums=quorums_of(policies.persistence))

            async def missing() -> int:
                return int(create and not await self.exists(name))

            async with self.room(name, policies, missing):
                managed_ledger = await self._open_managed_ledger(name, limits, create, properties)
        if managed_ledger is None:
            raise self._not_found(name, is_forbidden)
        made = create and managed_ledger.version == 0
        # Within one broker, a lock of the name keeps both from being made.
        if made and not name.is_partitioned and self._store.is_shared:
            await self._check_alone(name, managed_ledger)
        topic = PersistentTopic(
            name, managed_ledger, self._turn, policies, self._unacked, self.broker_limits
        )
        topic.on_ttl_changed = self.upkeep.expire_soon
        await self._prepare(topic)
        return self._add(topic)

    async def _prepare(self, topic: PersistentTopic) -> None:
        """Raises ServiceNotReady when what it has to know cannot be read now."""
        try:
            await topic.prepare()
        except Exception as error:
            log.error("a topic cannot be opened now", topic=topic.name, error=error)
            with suppress(LedgerError, MetadataError, ManagedLedgerError):
                await topic.close()
            raise ServiceNotReady(
                f"Topic {topic.name} cannot be opened now: its last entries cannot be read."
            ) from error

    async def _check_alone(self, name: TopicName, made: ManagedLedger) -> None:
        """Raises NotAllowed when another broker has made a partitioned topic of the name meanwhile.

        Either of the two is written first and then looks for the other, so that at least one of
        them sees it and gives way.
        """
        try:
            await self.partitioned.check_not_partitioned(name)
        except NotAllowed:
            await delete_managed_ledger(made)
            raise

    def _add(self, topic: Topic) -> Topic:
        self._topics[topic.name] = topic
        self.persistent_count += topic.name.is_persistent
        if self._deleted_as_inactive:
            for name in self._and_whole(topic.name):
                self._deleted_as_inactive.pop(name, None)
        self._policies.follow(topic.name.namespace, topic)
        if self._records is not None and topic.name.is_change_events:
            assert isinstance(topic, PersistentTopic)
            self._records.on_opened(topic)
        return topic

    def _forget(self, topic: Topic) -> None:
        if isinstance(topic, NonPersistentTopic):
            self._unused.pop(topic, None)
        self._policies.unfollow(topic.name.namespace, topic)
        if self._topics.get(topic.name) is topic:
            self._topics.pop(topic.name)
            if topic.name.is_persistent:
                self.persistent_count -= 1
                self.sweep.on_closed(topic.name)

    async def _open_managed_ledger(
        self,
        name: TopicName,
        limits: ManagedLedgerLimits,
        create: bool,
        properties: Mapping[str, str],
    ) -> ManagedLedger | None:
        try:
            return await open_managed_ledger(
                name.managed_ledger_name,
                self._store,
                self._ledgers,
                limits,
                create,
                properties,
            )
        except (LedgerError, Unavailable) as error:
            if not is_temporary(error):
                raise PersistenceError(f"Topic {name} cannot be opened: {error}.") from error
            # Nothing of it is kept: the next request begins anew.
            log.error("a topic cannot be opened now", topic=name, error=error)
            why = "the metadata store cannot answer" if isinstance(error, Unavailable) else error
            raise ServiceNotReady(f"Topic {name} cannot be opened now: {why}.") from error

    def room(
        self,
        name: TopicName,
        policies: Policies,
        missing: Callable[[], Awaitable[int]],
        partitions: int = 0,
    ) -> AbstractAsyncContextManager[None]:
        """Within it a topic, or so many partitions of it, may be made: those that are `missing`, of
        which persistent ones count.

        Raises TopicsLimitReached when the namespace has as many as it may have.
        """
        if not policies.topics_max or name.is_system:
            return UNLIMITED
        return self._counts.room(name, policies.topics_max, missing, partitions)

    def _load_non_persistent(
        self, name: TopicName, create: bool, policies: Policies, is_forbidden: bool
    ) -> Topic:
        if not create:
            raise self._not_found(name, is_forbidden)
        topic = NonPersistentTopic(name, self._turn, policies, self.broker_limits)
        topic.on_left = self._note_left
        self._add(topic)
        self._note_left(topic)
        return topic

    def _note_left(self, topic: NonPersistentTopic) -> None:
        """Nobody may use a topic any more. A client may make thousands in a second and leave them:
        of those that nobody uses the oldest are closed, before they are old enough to be deleted.
        """
        if topic.fenced:
            return
        self._unused[topic] = None
        self._unused.move_to_end(topic)
        while len(self._unused) > UNUSED_MAX:
            oldest, _ = self._unused.popitem(last=False)
            # One that is used comes back when somebody leaves it.
            if oldest.close_unused():
                self._forget(oldest)

    async def check_name(self, name: TopicName) -> Policies:
        """The policies for the topic. Raises NotAllowed or TopicNotFound when it cannot be here."""
        config = self._config
        if name.is_persistent and not config.enablePersistentTopics:
            raise NotAllowed(
                f"Broker is unable to load persistent topic {name} (enablePersistentTopics)."
            )
        if not name.is_persistent and not config.enableNonPersistentTopics:
            raise NotAllowed(
                f"Broker is unable to load non-persistent topic {name} (enableNonPersistentTopics)."
            )
        return await self.policies(name)

    async def exists(self, name: TopicName) -> bool:
        """Whether there is a topic that is not partitioned, open or not."""
        topic = self._topics.get(name)
        if topic is not None and not topic.fenced:
            return True
        if not name.is_persistent:
            return False
        return await self._store.exists(paths.managed_ledger(name.managed_ledger_name))

    async def comes_to_be(self, name: TopicName) -> bool:
        """As exists, but waits while the topic is being opened, and perhaps made."""
        opening = self._opening.get(name)
        if opening is not None:
            await asyncio.wait([opening[0]])
        return await self.exists(name)

    async def subscription_names(self, name: TopicName) -> list[str]:
        """The durable subscriptions of a persistent topic, open or not."""
        topic = self._topics.get(name)
        if topic is not None and not topic.fenced:
            return list(topic.subscriptions)
        [found] = await self.subscriptions_of_closed([name])
        return found

    async def subscriptions_of_closed(self, topics: Sequence[TopicName]) -> list[list[str]]:
        """The durable subscriptions of some persistent topics by their nodes, of which the store is
        asked together: of what is open these say the same.
        """
        nodes = [paths.managed_ledger(topic.managed_ledger_name) for topic in topics]
        slices = Slices()
        found: list[list[str]] = []
        for cursors in await self._store.children_all(nodes):
            if isinstance(cursors, BaseException):
                raise cursors
            names: list[str] = []
            found.append(names)
            for cursor in cursors:
                # Decoding a long name takes a quarter of a millisecond.
                name = decode(cursor)
                if name != DEDUPLICATION_CURSOR:
                    names.append(name)
                await slices.pause()
            await slices.pause()
        return found

    def loaded(self, name: TopicName) -> Topic | None:
        """The topic, if it is open here."""
        topic = self._topics.get(name)
        return None if topic is None or topic.fenced else topic

    def is_open(self, name: TopicName) -> bool:
        """Whether a topic is open here, or about to be."""
        return name in self._opening or self._topics.get(name) is not None

    async def namespace_policies(self, name: NamespaceName) -> tuple[Policies, int]:
        """What holds for topics of a namespace that say nothing, and how often what topics say has
        changed. Raises NamespaceNotFound when there is none, or when it is being deleted;
        ServiceNotReady.
        """
        await self._policies.check_open(str(name))
        policies = await self._policies.of_namespace(str(name))
        if self._records is not None and not self._records.is_loaded(str(name)):
            await self._records.load(name)
        return policies, self._policies.changes(str(name))

    async def policies(self, name: TopicName) -> Policies:
        """What holds for a topic.

        Raises NamespaceNotFound when there is no such namespace, or when it is being deleted.
        """
        if await self._lacks_records(name):
            await self.namespace_policies(name.namespace_name)
        return await self._policies.get_open(name)

    async def _policies_of(self, name: TopicName) -> Policies:
        """The same, also while the namespace is being deleted."""
        if await self._lacks_records(name):
            await self.namespace_policies(name.namespace_name)
        return await self._policies.get(name)

    async def _lacks_records(self, name: TopicName) -> bool:
        """Whether it must be read first what the topics of a namespace say."""
        # What system topics say is not asked for; one of them has what the others say.
        return (
            self._records is not None
            and not (name.is_system or self._records.is_loaded(name.namespace))
            and not await self._policies.is_deleted(name.namespace)
        )

    async def namespace_fields(self, name: str) -> Fields:
        """What a namespace's record says, which is not to be changed. Raises NamespaceNotFound,
        MetadataStoreError.
        """
        return await self._policies.record(name)

    async def change_namespace(self, name: str, change: Change) -> None:
        """Changes a namespace's record. Raises what policies.records does."""
        await change_namespace(self._store, self.cache, name, change)

    @property
    def has_records(self) -> bool:
        """Whether topics may say something of themselves."""
        return self._records is not None

    @property
    def records(self) -> TopicPolicies:
        """What topics say of themselves. Raises NotAllowed where they may not."""
        if self._records is None:
            raise NotAllowed(
                "Topic level policies is disabled, to enable the topic level policy and retry."
            )
        return self._records

    # --- namespaces ---------------------------------------------------------------------------

    def in_namespace(self, namespace: str) -> list[TopicName]:
        """The topics of a namespace that are open here."""
        return self._policies.followers(namespace)

    async def settled(self, namespace: str) -> None:
        """Waits until all of a namespace that somebody began to open, or make, is there or not."""
        of_it = (name for name in self._opening if name.namespace == namespace)
        opening = [self._opening[name][0] for name in of_it]
        if opening:
            await asyncio.wait(opening)
        await self.partitioned.settled(namespace)

    def forget_namespace(self, name: str) -> None:
        """A namespace goes, and no topic is left in it: nothing of it is remembered."""
        self._counts.forget(name)
        self.sweep.forget(name)
        if self._records is not None:
            self._records.forget_namespace(name)

    # --- deleting -----------------------------------------------------------------------------

    def check_unused(self, name: TopicName) -> None:
        """Raises TopicBusy when somebody is connected to a topic."""
        topic = self._topics.get(name)
        if topic is None:
            return
        producers = len(topic.producers)
        consumers = sum(len(each.consumers) for each in topic.all_subscriptions())
        clients = producers + consumers
        if clients and not name.is_persistent:
            raise TopicBusy(f"Topic has {clients} connected producers/consumers")
        if clients:
            raise TopicBusy(
                f"Topic has {clients} client{'s' if clients > 1 else ''} connected"
                f" Including {consumers} consumers, {producers} producers, and 0 replicators."
            )

    async def delete_by_name(self, name: TopicName, force: bool = False) -> None:
        """Deletes a topic, open or not, if it is there; with force, whoever is connected.

        Raises TopicBusy when somebody is, and force is not set; PersistenceError.
        """
        if not force:
            self.check_unused(name)
        if await self.exists(name):
            await self.delete(await self.make(name))

    async def delete(self, topic: Topic) -> None:
        """Deletes an open topic with everything in it; its clients are sent away.

        Its grants and its schema go first: who is interrupted deletes the topic again. Raises
        ServiceNotReady while somebody else deletes it, PersistenceError, MetadataError.
        """
        if topic.being_deleted:
            raise ServiceNotReady(f"Topic {topic.name} is being deleted; look it up again.")
        was_fenced = topic.fenced
        # In the turn of whoever has seen that nobody uses it: nobody begins to meanwhile.
        topic.fenced = topic.being_deleted = True
        try:
            try:
                await self.forget_grants(topic.name)
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
        self._forget(topic)
        if self._records is not None:
            if topic.name.is_change_events:
                await self._records.on_deleted(topic.name)
            else:
                await self.forget_policies(topic.name)

    async def forget_grants(self, name: TopicName) -> None:
        """A topic, partitioned or not, is deleted: nobody may do more with one of its name than
        anywhere in the namespace. Raises MetadataError.
        """
        with suppress(NamespaceNotFound):
            if has_grants(await self.namespace_fields(name.namespace), str(name)):
                await self.change_namespace(
                    name.namespace, lambda fields: forget_topic(fields, str(name))
                )

    async def forget_schema(self, name: TopicName) -> None:
        """A topic, partitioned or not, is deleted: its schema goes, unless a topic of the other
        domain has the same name, and so the same schema. Raises LedgerError, MetadataError.
        """
        if not await self._store.exists(paths.schema(name.schema_name)):
            return
        other = name.in_other_domain
        if not await self.exists(other) and not (await self.partitioned.read(other)).target:
            await self.schemas.delete_storage(name.schema_name)

    async def forget_policies(self, name: TopicName) -> None:
        """A topic, partitioned or not, is deleted: it says nothing any more."""
        if self._records is None:
            return
        try:
            await self._records.forget(name)
        except (PulsarError, ManagedLedgerError, LedgerError, MetadataError) as error:
            # The topic is gone. Before one is made with its name again they go.
            log.warning("the policies of a topic were not deleted", topic=name, error=error)

    async def forget_former(self, name: TopicName) -> None:
        """A topic is about to be made: what one of its name said goes, if it was deleted by
        somebody who was interrupted then. Policies are not set before a topic is there.

        Of non-persistent topics nobody knows: they are not there either after a start. Raises
        PulsarError, MetadataError.
        """
        if (
            self._records is None
            or name.is_partitioned
            or not (name.is_persistent and self._policies.has_records(name))
            or await self.exists(name)
            or (await self.partitioned.read(name)).target
        ):
            return
        log.warning("policies of a topic that was deleted are deleted, too", topic=name)
        try:
            await self._records.forget(name)
        except (ManagedLedgerError, LedgerError) as error:
            raise PersistenceError(
                f"Topic {name} is not made: the policies of a former one cannot be deleted: {error}"
            ) from error

    async def delete_subscription(self, name: TopicName, subscription: str, force: bool) -> None:
        """Deletes a subscription of a topic, or of every partition of a partitioned one.

        Raises TopicNotFound, and what Topic.delete_subscription does.
        """
        count = (await self.partitioned.read(name)).partitions
        if count == 0:
            await (await self.get(name, create=False)).delete_subscription(subscription, force)
            return
        missing: PulsarError = self._not_found(name.partition(0))
        is_found = False
        slices = Slices()
        for index in await self.partitioned.existing(name, count):
            try:
                topic = await self.get(name.partition(index), create=False)
                await topic.delete_subscription(subscription, force)
                is_found = True
            # Partitions are made when they are used, and may have been used by others only.
            except TopicNotFound as error:
                missing = error
            except SubscriptionNotFound:
                missing = SubscriptionNotFound("Subscription not found")  # of any partition
            await slices.pause()
        try:
            if not is_found:
                raise missing
        finally:
            del missing  # whose traceback has this frame

    async def unload(self, name: TopicName) -> None:
        """Closes a topic if it is open; its clients open it again. Raises PersistenceError."""
        opening = self._opening.get(name)
        if opening is not None:
            await asyncio.wait([opening[0]])
        topic = self._topics.get(name)
        if topic is None or topic.fenced:
            return
        try:
            await topic.close()
        except (LedgerError, ManagedLedgerError, MetadataError) as error:
            raise PersistenceError(f"Topic {name} was not closed cleanly: {error}") from error
        self._forget(topic)

    async def terminate(self, name: TopicName) -> Position:
        """Lets nothing be added to a topic any more; the last position there will ever be.

        Raises TopicNotFound, ServiceNotReady while somebody else closes it, PersistenceError.
        """
        topic = await self.get(name, create=False)
        try:
            return await topic.terminate()
        except ManagedLedgerError as error:
            if topic.fenced:
                raise ServiceNotReady(f"Topic {name} is being closed; look it up again.") from error
            raise PersistenceError(f"Topic {name} was not terminated: {error}") from error

    async def open_names(self, namespace: str, domain: str) -> list[TopicName]:
        """The topics of a namespace that are open here."""
        slices = Slices()
        found = []
        for name in self.in_namespace(namespace):
            topic = self._topics.get(name) if name.domain == domain else None
            if topic is not None and not topic.fenced:
                found.append(name)
            await slices.pause()
        return found

    async def _in_slices(self) -> AsyncIterator[Topic]:
        """The topics that are open; between them others have a turn."""
        slices = Slices()
        for topic in self:
            yield topic
            await slices.pause()

    async def delete_inactive(self) -> None:
        """Called now and then: deletes the topics that nobody has used for long enough."""
        async for topic in self._in_slices():
            try:
                await self.delete_if_inactive(topic)
            except (PulsarError, MetadataError) as error:
                log.warning("an inactive topic was not deleted", topic=topic.name, error=error)
            except Exception as error:
                log.failure("an inactive topic was not deleted", error, topic=topic.name)

    async def delete_if_inactive(self, topic: Topic) -> None:
        """Deletes a topic if nobody has used it for long enough. Raises what delete does."""
        policies = await self._policies_of(topic.name)
        if policies.refused & WHAT_DELETES:
            # Nobody knows what is to be kept; the log has said so.
            return
        if policies.inactive_topics.delete and not topic.fenced and topic.is_inactive(policies):
            await self.delete(topic)
            log.info("deleted, since nobody uses it", topic=topic.name)
            for name in self._and_whole(topic.name):
                self._deleted_as_inactive[name] = None
            while len(self._deleted_as_inactive) > DELETED_MAX:
                del self._deleted_as_inactive[next(iter(self._deleted_as_inactive))]
            await self._forget_partitions(topic.name)

    @staticmethod
    def _and_whole(name: TopicName) -> set[TopicName]:
        """Return the name, and for a partition also the name of its partitioned topic."""
        return {name, TopicName.get(name.partitioned_topic_name)}

    async def _forget_partitions(self, name: TopicName) -> None:
        """Deletes the number of partitions when the last partition was deleted."""
        config = self._config
        if not name.is_partitioned or (
            not config.brokerDeleteInactivePartitionedTopicMetadataEnabled
        ):
            return
        whole = TopicName.get(name.partitioned_topic_name)
        try:
            await self.partitioned.forget_unused(whole)
        except (PulsarError, MetadataError) as error:
            log.warning("the number of partitions was not deleted", topic=whole, error=error)

    def _not_found(self, name: TopicName, is_forbidden: bool = False) -> TopicNotFound:
        """Return the error for a topic that does not exist.

        is_forbidden: the client asked for the topic to be created, and policies forbid that.
        """
        if name in self._deleted_as_inactive:
            return TopicNotFound(
                f"Topic {name} does not exist: the broker deleted it as inactive, because no client"
                " used it, no subscription had messages left to receive, and no retention policy"
                " kept it any longer. Set a retention policy, or create a subscription first."
            )
        if is_forbidden:
            return TopicNotFound(
                f"Topic {name} does not exist, and it may not be created by a client"
                " (allowAutoTopicCreation)."
            )
        return TopicNotFound(f"Topic {name} does not exist.")

    async def close(self) -> None:
        """Closes every topic; those that fail are logged, and recovered at the next start."""
        self._closing = True
        self.upkeep.close()
        self.sweep.close()
        while self._opening:
            await asyncio.wait([opening for opening, _ in self._opening.values()])
        left = iter(list(self._topics.values()))
        await asyncio.gather(*(self._close_each(left) for _ in range(CLOSING_MAX)))
        if self._records is not None:
            await self._records.close()
        self._policies.close()
        self._counts.close()
        self.cache.close()

    @staticmethod
    async def _close_each(topics: Iterator[Topic]) -> None:
        """One of those who close topics side by side: each takes the next one."""
        for topic in topics:
            [error] = await asyncio.gather(topic.close(), return_exceptions=True)
            if error is not None:
                log.error("a topic was not closed cleanly", topic=topic.name, error=error)
