"""Opening topics, when the first client asks for them, and creating those that do not exist."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from pyxbroker.add_stats import BOUNDS_US
from pyxbroker.base.errors import (
    NotAllowed,
    PersistenceError,
    PulsarError,
    ServiceNotReady,
    TooFewBookies,
    TopicNotFound,
)
from pyxbroker.base.histogram import Histogram
from pyxbroker.base.log import get_logger
from pyxbroker.base.pacing import paced
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.broker_limits import BrokerLimits
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from pyxbroker.broker.topics.non_persistent import NonPersistentTopic
from pyxbroker.broker.topics.partition_records import PartitionRecords
from pyxbroker.broker.topics.persistent import PersistentTopic, quorums_of
from pyxbroker.broker.topics.policy_access import PolicyAccess
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.broker.topics.topic_counts import TopicCounts
from pyxbroker.broker.topics.unused_topics import UnusedTopics
from pyxbroker.entry import Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError, NotEnoughBookies
from pyxbroker.ledger.retries import is_temporary
from pyxbroker.metadata.store import MetadataError, MetadataStore, Unavailable
from pyxbroker.mledger import compacted_ledger
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import NONE, delete_managed_ledger, open_managed_ledger
from pyxbroker.mledger.unowned_log import first_unowned, read_unowned
from pyxbroker.policies.values import Policies
from pyxbroker.settings.config import Config
from pyxbroker.turn import Turn

if TYPE_CHECKING:
    from asyncio import Future

    from pyxbroker.broker.topics.bookie_affinity import BookieAffinity
    from pyxbroker.broker.topics.transactional import TransactionBuffers
    from pyxbroker.broker.transactions.pending_ack_handle import PendingAckStores
    from pyxbroker.mledger.entry_cache import EntryCache

log = get_logger("pyxbroker.topics")

DELETED_MAX = 1_000  # deleted topics whose names stay in memory for the error message
UNLIMITED = nullcontext()
CheckServed = Callable[[TopicName, bool], Awaitable[None]]
REFUSED_LOADS = (TopicNotFound, NotAllowed)  # by a policy, or because the topic does not exist


def limits_of(config: Config) -> ManagedLedgerLimits:
    """Return the settings of managed ledgers. Until a retention policy applies, all is retained."""
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
        entry_bytes_max=config.maxMessageSize,
    )


class OpeningStep(Enum):
    """A step of the task that opens a topic."""

    POLICIES = "reads its policies"
    QUEUE = "waits for the opening of other topics"
    FORMER = "waits for the end of the topic that was closed"
    RECOVERY = "opens its ledgers and recovers the last one"
    PREPARATION = "reads the state that publishing and reading need"


class Opening:
    """The progress of a task that opens a topic."""

    __slots__ = ("since_s", "step")

    def __init__(self) -> None:
        self.step = OpeningStep.POLICIES
        self.since_s = time.time()  # since 1970


class TopicLoader:
    """Topics that are being opened, each by one task however many requests wait for it."""

    def __init__(
        self,
        config: Config,
        store: MetadataStore,
        ledgers: LedgerClient,
        turn: Turn,
        registry: TopicRegistry,
        policies: PolicyAccess,
        partitions: PartitionRecords,
        broker_limits: BrokerLimits,
        unacked: BrokerUnacked | None,
        on_ttl_changed: Callable[[PersistentTopic], None],
        affinity: BookieAffinity | None = None,
        entry_cache: EntryCache | None = None,
    ) -> None:
        self._entry_cache = entry_cache  # None: the embedded bookie has one
        self._affinity = affinity  # None: all ledgers are on the same bookies
        self._config = config
        self._store = store
        self._ledgers = ledgers
        self._turn = turn
        self._registry = registry
        self._policies = policies
        self._partitions = partitions
        self._broker_limits = broker_limits
        self._unacked = unacked
        self._ledger_limits = limits_of(config)
        self._opening: dict[TopicName, tuple[Future[Topic], bool]] = {}  # True: may create it
        self._progress: dict[TopicName, Opening] = {}  # of the same names
        self._compacted_read: dict[TopicName, int] = {}  # of topics that others serve
        self._unused = UnusedTopics(registry)
        self._deleted_as_inactive: dict[TopicName, None] = {}
        self._closing = False
        self.check_served: CheckServed | None = None
        """A function that raises ServiceNotReady for a topic of another broker, and takes the
        bundle of the topic if that is asked for; None: all topics are served here."""
        self.transaction_buffers: TransactionBuffers | None = None
        """Creates the transaction buffers of topics; None: transactions are switched off."""
        self.pending_ack_stores: PendingAckStores | None = None
        """The logs of transactional acknowledgements; None if transactions are switched off."""
        self.counts = TopicCounts(store)
        self.loads_us = Histogram(BOUNDS_US)  # time to open a topic
        self.loads_failed = 0
        self._on_ttl_changed = on_ttl_changed
        self._limit_loading()
        registry.on_opened.append(self._on_registered)

    def on_settings(self) -> None:
        """Apply a changed limit on loads in parallel."""
        if self._loads_max != self._config.maxConcurrentTopicLoadRequest:
            self._limit_loading()

    def _limit_loading(self) -> None:
        # As in Pulsar, loads that are under way or wait do not count against a new limit.
        self._loads_max = self._config.maxConcurrentTopicLoadRequest
        self._loading = asyncio.Semaphore(self._loads_max)

    async def get(self, name: TopicName, create: bool) -> Topic:
        """Return a topic, opened if necessary. If create is set and the policies allow it, a topic
        that does not exist is created.
        """
        while True:
            topic = self._registry.loaded(name)
            if topic is not None:
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
                    del opening, under_way  # leave no cycle of the error and this frame
            # The task under way must not create the topic; a second one starts after it.
            await asyncio.wait([opening])

    def _begin(
        self, name: TopicName, opening: Coroutine[Any, Any, Topic], create: bool
    ) -> Future[Topic]:
        future = asyncio.ensure_future(paced(opening))
        self._opening[name] = (future, create)
        self._progress[name] = Opening()
        future.add_done_callback(partial(self._on_opened, name, time.perf_counter()))
        return future

    def _on_opened(self, name: TopicName, began_s: float, opening: Future[Topic]) -> None:
        self._opening.pop(name, None)
        self._progress.pop(name, None)
        error = None if opening.cancelled() else opening.exception()
        if error is None:
            self.loads_us.add((time.perf_counter() - began_s) * 1e6)
        elif not isinstance(error, REFUSED_LOADS):
            self.loads_failed += 1

    @property
    def loads_pending(self) -> int:
        """The number of topics that are being opened, or wait for that."""
        return len(self._opening)

    @property
    def loads_max(self) -> int:
        """The number of topics that are opened in parallel."""
        return self._loads_max

    def opening_of(self, name: TopicName) -> Opening | None:
        """Return the progress of the task that opens a topic, or None."""
        return self._progress.get(name)

    @property
    def is_alone(self) -> bool:
        """True if this broker serves all topics."""
        return self.check_served is None

    async def check_owned(self, name: TopicName) -> None:
        """Raise ServiceNotReady unless this broker serves a topic."""
        if self.check_served is not None:
            await self.check_served(name, False)

    async def is_served(self, name: TopicName) -> bool:
        """Return True if this broker serves a topic, as opposed to another one or none."""
        if self.check_served is None:
            return True
        try:
            await self.check_served(name, False)
        except ServiceNotReady:
            return False
        return True

    async def read_unowned(
        self, name: TopicName, start: Position
    ) -> AsyncIterator[tuple[Position, bytes]]:
        """Yield the entries of a persistent topic that another broker serves, from a position on;
        those that only its compacted ledger has come first. Raises LedgerError and MetadataError.
        """
        path, store, ledgers = name.managed_ledger_name, self._store, self._ledgers
        log = partial(read_unowned, path, store, ledgers)
        entries = log(start)
        if start < await first_unowned(path, store):
            compacted = await compacted_ledger.current_unowned(store, ledgers, path)
            # A reader whose newest entry was compacted stays before the log until one follows.
            is_new = start.ledger_id < 0 or compacted != self._compacted_read.get(name)
            if compacted is not None and is_new:
                from pyxbroker.broker.compaction.compacted import read_with_compacted

                entries = read_with_compacted(ledgers, compacted, start, log)
                self._compacted_read[name] = compacted
        async for position, entry in entries:
            yield position, entry

    def opening_in(self, namespace: str) -> list[TopicName]:
        """Return the topics of a namespace that are being opened."""
        return [name for name in self._opening if name.namespace == namespace]

    def is_open(self, name: TopicName) -> bool:
        """Return True if a topic is open here, or is being opened."""
        return name in self._opening or self._registry.find(name) is not None

    async def wait_opened(self, name: TopicName) -> None:
        """Wait while a topic is being opened, whatever comes of it."""
        opening = self._opening.get(name)
        if opening is not None:
            await asyncio.wait([opening[0]])

    async def exists_when_opened(self, name: TopicName) -> bool:
        """Return True if the topic exists, after waiting for a task that may be creating it."""
        await self.wait_opened(name)
        return await self._registry.exists(name)

    async def wait_settled(self, namespace: str) -> None:
        """Wait until no topic of a namespace is being opened, created or partitioned any more."""
        opening = [self._opening[name][0] for name in self.opening_in(namespace)]
        if opening:
            await asyncio.wait(opening)
        await self._partitions.wait_settled(namespace)

    def _check_settled(self, name: TopicName, create: bool) -> None:
        """Raise ServiceNotReady while a topic is being closed or deleted; with create, also while
        partitions of that name are being created or deleted.
        """
        topic = self._registry.find(name)
        if self._closing or (topic is not None and (topic.being_deleted or not topic.is_gone)):
            raise ServiceNotReady(f"Topic {name} is being closed; look it up again.")
        if create:
            self._partitions.check_unchanged(name)

    async def ensure(self, name: TopicName, properties: Mapping[str, str] = NONE) -> Topic:
        """Return a topic, created if necessary, whatever the policies allow clients to create.

        properties are those of a new topic. Raises NotAllowed for the name of a partitioned topic.
        """
        topic = self._registry.loaded(name)
        if topic is not None:
            return topic
        if name in self._opening:
            await self.wait_opened(name)
            return await self.ensure(name, properties)
        self._check_settled(name, create=True)
        creation = self._open_or_create(name, properties)
        return await asyncio.shield(self._begin(name, creation, create=True))

    async def _open_or_create(self, name: TopicName, properties: Mapping[str, str]) -> Topic:
        # A partitioned topic of that name may have been created since the caller checked. An
        # existing topic is opened nevertheless, if only to be deleted.
        if await self._registry.exists(name):
            await self._policies.of_existing(name)
        elif name.is_transaction_internal:
            raise _internal(name)
        else:
            await self._policies.of_topic(name)
            if not name.is_partitioned:
                await self._partitions.check_not_partitioned(name)
        return await self._load(name, create=True, properties=properties)

    async def check_name(self, name: TopicName) -> Policies:
        """Return the policies for a topic of that name.

        Raises NotAllowed or NamespaceNotFound if this broker cannot serve such a topic.
        """
        config = self._config
        if name.is_persistent and not config.enablePersistentTopics:
            raise NotAllowed(
                f"Broker is unable to load persistent topic {name} (enablePersistentTopics)."
            )
        if not name.is_persistent and not config.enableNonPersistentTopics:
            raise NotAllowed(
                f"Broker is unable to load non-persistent topic {name} (enableNonPersistentTopics)."
            )
        return await self._policies.of_topic(name)

    async def _open(self, name: TopicName, create: bool) -> Topic:
        if name.is_transaction_internal:
            raise _internal(name)
        policies = await self.check_name(name)
        may_create = await self._partitions.check_name(
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
        if self.check_served is not None:
            await self.check_served(name, True)
        # The caller has read the policies, because reading them may open system topics: a task
        # that waits for those must not hold one of the places of self._loading.
        if create:
            await self.forget_former(name)
        progress = self._progress.get(name) or Opening()
        progress.step = OpeningStep.QUEUE
        async with self._loading:
            progress.step = OpeningStep.POLICIES
            former = self._registry.find(name)
            if former is not None and not former.fenced:
                return former
            if former is not None:
                # The operations of the closed topic must end before those of its successor begin.
                progress.step = OpeningStep.FORMER
                await former.settle()
                self._registry.remove(former)
            # A topic whose namespace is being deleted is opened as well, to be deleted.
            policies = await self._policies.of_opening(name)
            if await self._policies.lacks_records(name):
                # The deletion of the namespace was given up since the policies were read.
                raise ServiceNotReady(f"The policies of topic {name} are not read yet.")
            if not name.is_persistent:
                if self.check_served is not None:
                    await self.check_served(name, False)
                return self._load_non_persistent(name, create, policies, is_forbidden)
            limits = self._ledger_limits._replace(quorums=quorums_of(policies.persistence))
            if self._affinity is not None:
                limits = limits._replace(affinity=await self._affinity.of(name))

            async def missing() -> int:
                return int(create and not await self._registry.exists(name))

            progress.step = OpeningStep.RECOVERY
            async with self.reservation(name, policies, missing):
                managed_ledger = await self._open_managed_ledger(name, limits, create, properties)
        if managed_ledger is None:
            raise self.not_found(name, is_forbidden)
        created = create and managed_ledger.version == 0
        # Within one broker, a lock on the name prevents the creation of both kinds of topic.
        if created and not name.is_partitioned and self._store.is_shared:
            await self._check_alone(name, managed_ledger)
        topic = PersistentTopic(
            name, managed_ledger, self._turn, policies, self._unacked, self._broker_limits
        )
        topic.on_ttl_changed = self._on_ttl_changed
        if self.transaction_buffers is not None and not name.is_system:
            topic.transaction_buffers = self.transaction_buffers
        if not name.is_system:
            topic.pending_ack_stores = self.pending_ack_stores
        progress.step = OpeningStep.PREPARATION
        await self._prepare(topic)
        if self.check_served is not None:
            await self._check_still_served(topic)
        self._registry.add(topic)
        if topic.pending_ack_stores is not None:
            topic.pending_ack_stores.recover_soon(topic.subscriptions.values())
        return topic

    async def _prepare(self, topic: PersistentTopic) -> None:
        """Raise ServiceNotReady if data that the topic needs cannot be read now."""
        try:
            await topic.prepare()
        except Exception as error:
            log.error("a topic cannot be opened now", topic=topic.name, error=error)
            with suppress(LedgerError, MetadataError, ManagedLedgerError):
                await topic.close()
            raise ServiceNotReady(
                f"Topic {topic.name} cannot be opened now: its last entries cannot be read."
            ) from error

    async def _check_still_served(self, topic: PersistentTopic) -> None:
        """Close a topic whose bundle was given up meanwhile, and raise ServiceNotReady."""
        assert self.check_served is not None
        try:
            await self.check_served(topic.name, False)
        except PulsarError:
            with suppress(LedgerError, MetadataError, ManagedLedgerError):
                await topic.close()
            raise

    async def _check_alone(self, name: TopicName, created: ManagedLedger) -> None:
        """Raise NotAllowed if another broker has created a partitioned topic of the name meanwhile.

        Each broker writes its topic first and then looks for one of the other kind. So at least
        one of the two brokers finds the other's topic and deletes its own.
        """
        try:
            await self._partitions.check_not_partitioned(name)
        except NotAllowed:
            await delete_managed_ledger(created)
            raise

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
                self._entry_cache,
            )
        except (LedgerError, Unavailable) as error:
            if not is_temporary(error):
                lacks_bookies = isinstance(error, NotEnoughBookies)
                refusal = TooFewBookies if lacks_bookies else PersistenceError
                raise refusal(f"Topic {name} cannot be opened: {error}.") from error
            # Nothing of this attempt stays in memory: the next request starts again.
            log.error("a topic cannot be opened now", topic=name, error=error)
            why = "the metadata store cannot answer" if isinstance(error, Unavailable) else error
            raise ServiceNotReady(f"Topic {name} cannot be opened now: {why}.") from error

    def _load_non_persistent(
        self, name: TopicName, create: bool, policies: Policies, is_forbidden: bool
    ) -> Topic:
        if not create:
            raise self.not_found(name, is_forbidden)
        topic = NonPersistentTopic(name, self._turn, policies, self._broker_limits)
        topic.on_left = self._unused.note_left
        self._registry.add(topic)
        self._unused.note_left(topic)
        return topic

    def reservation(
        self,
        name: TopicName,
        policies: Policies,
        missing: Callable[[], Awaitable[int]],
        partitions: int = 0,
    ) -> AbstractAsyncContextManager[None]:
        """Return a context in which a topic, or that many partitions of it, may be created.

        missing counts those that do not exist yet; only persistent ones count. Entering the context
        raises TopicsLimitReached if the namespace would have more topics than its limit.
        """
        if not policies.topics_max or name.is_system:
            return UNLIMITED
        return self.counts.reservation(name, policies.topics_max, missing, partitions)

    async def forget_former(self, name: TopicName) -> None:
        """Delete policies of a former topic of that name whose deletion was interrupted.

        A new topic must not inherit them; policies cannot be set before their topic exists. After a
        restart the broker knows no non-persistent topic, so theirs stay. Raises PulsarError,
        MetadataError.
        """
        if (
            name.is_partitioned
            or not (name.is_persistent and self._policies.may_have_records(name))
            or await self._registry.exists(name)
            or (await self._partitions.read(name)).target
        ):
            return
        log.warning("policies of a topic that was deleted are deleted, too", topic=name)
        try:
            await self._policies.records.forget(name)
        except (ManagedLedgerError, LedgerError) as error:
            raise PersistenceError(
                f"Topic {name} is not made: the policies of a former one cannot be deleted: {error}"
            ) from error

    # --- topics that were deleted as inactive -------------------------------------------------

    def note_deleted_as_inactive(self, name: TopicName) -> None:
        """Remember a name, so that the error for a missing topic has the reason."""
        for each in _with_whole(name):
            self._deleted_as_inactive[each] = None
        while len(self._deleted_as_inactive) > DELETED_MAX:
            del self._deleted_as_inactive[next(iter(self._deleted_as_inactive))]

    def _on_registered(self, topic: Topic) -> None:
        if self._deleted_as_inactive:
            for name in _with_whole(topic.name):
                self._deleted_as_inactive.pop(name, None)

    def not_found(self, name: TopicName, is_forbidden: bool = False) -> TopicNotFound:
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

    # --- the end ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Refuse to open further topics."""
        self._closing = True

    async def wait_all_opened(self) -> None:
        """Wait until no topic is being opened any more."""
        while self._opening:
            await asyncio.wait([opening for opening, _ in self._opening.values()])


def _internal(name: TopicName) -> NotAllowed:
    return NotAllowed(f"Can not create transaction system topic {name}")


def _with_whole(name: TopicName) -> set[TopicName]:
    """Return the name, and for a partition also the name of its partitioned topic."""
    return {name, TopicName.get(name.partitioned_topic_name)}
