"""One broker: serves the requests of clients and REST, and runs periodic tasks.

It knows neither its ports nor where entries are stored; a composition root (roles/) provides both.
The modules that serve commands and topics are imported by the first command, or just after the
ports are served, so that they do not delay the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyxbroker import __version__, ackset, delayed_index
from pyxbroker.add_stats import BOUNDS_US
from pyxbroker.base.errors import ServiceNotReady, with_reference
from pyxbroker.base.half_open import HalfOpen, PendingConnection
from pyxbroker.base.histogram import Histogram
from pyxbroker.base.log import get_logger
from pyxbroker.base.pacing import Pace
from pyxbroker.base.poller import Poller
from pyxbroker.base.slices import in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.client_memory import ClientMemory
from pyxbroker.broker.listeners import Addresses, Listeners, LoopbackHint
from pyxbroker.broker.publish_gate import PublishGate
from pyxbroker.connection import Connection, Connections
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata import paths
from pyxbroker.metadata.coordination import next_counter_value
from pyxbroker.metadata.store import MetadataError, MetadataStore
from pyxbroker.settings.config import Config
from pyxbroker.settings.schema import LONG_MAX

if TYPE_CHECKING:
    from ssl import SSLContext

    from pyxbroker.auth.audit import Audit
    from pyxbroker.auth.authentication import Authentication
    from pyxbroker.auth.failed_logins import FailedLogins
    from pyxbroker.auth.permissions import Permissions
    from pyxbroker.base.bundles import Bundle
    from pyxbroker.base.half_open import Host
    from pyxbroker.broker.backup import BackupSource
    from pyxbroker.broker.clusters import Clusters
    from pyxbroker.broker.dynamic_settings import DynamicSettings
    from pyxbroker.broker.garbage_ledgers import GarbageLedgers
    from pyxbroker.broker.grant_records import GrantRecords
    from pyxbroker.broker.lookup import Decision, Ownership, Redirect
    from pyxbroker.broker.namespaces import Namespaces
    from pyxbroker.broker.peers import ClusterView, Peers
    from pyxbroker.broker.resource_groups import ResourceGroups
    from pyxbroker.broker.revoked_rights import RevokedRights, Watcher
    from pyxbroker.broker.serving_cluster import ServingCluster
    from pyxbroker.broker.statistics.stats import TopicStats
    from pyxbroker.broker.storage_view import StorageView
    from pyxbroker.broker.stored_records import StoredRecords
    from pyxbroker.broker.subscriptions.subscription import Subscription
    from pyxbroker.broker.tenants import Tenants
    from pyxbroker.broker.topics.topics import Topics
    from pyxbroker.broker.transactions.coordinators import Transactions
    from pyxbroker.broker.why.refusals import LastRefusals
    from pyxbroker.metadata.cache import MetadataCache
    from pyxbroker.mledger.entry_cache import EntryCache

log = get_logger("pyxbroker.broker")

RATES_INTERVAL_S = 60.0  # as in Pulsar
AGE_CHECK_INTERVAL_S = 30.0
COORDINATORS_INTERVAL_S = 10.0
SWEEP_INTERVAL_S = 60.0  # after a start, clients first reconnect to their topics
CONNECTIONS_PER_STEP = 64
COMMANDS_END_S = 2.0  # time that a stop waits for commands in progress
IMPORTED_LATE = (
    "orjson",
    "pyxbroker.proto",
    "pyxbroker.broker.lookup",
    "pyxbroker.broker.commands.replies",
    "pyxbroker.policies.table",
    "pyxbroker.ledger.metadata",
    "pyxbroker.mledger.managed_ledger",
    "pyxbroker.mledger.cursor",
    "pyxbroker.broker.dispatch.kinds",
    "pyxbroker.broker.topics.topic",
    "pyxbroker.mledger.backlog",
    "pyxbroker.broker.topics.quotas",
    "pyxbroker.broker.topics.persistent",
    "pyxbroker.broker.topics.upkeep",
    "pyxbroker.broker.topics.sweep",
    "pyxbroker.broker.topics.topics",
    "pyxbroker.broker.commands.handlers",
)
"""Imports of `topics` and `handlers` in order of dependency; each takes one loop iteration."""
IMPORTED_WITH_TRANSACTIONS = (
    "pyxbroker.broker.transactions.participants",
    "pyxbroker.broker.transactions.coordinator",
    "pyxbroker.broker.transactions.coordinators",
)
"""Further imports if transactions are enabled, also one per loop iteration."""
IMPORTS_AFTER_S = 0.02  # clients that wait at a port during the start are served first
METADATA_REFUSAL_S = 30.0  # how long the health check reports a refusal by the metadata store


def publish_bytes_max(config: Config) -> int:
    """Return how many bytes of published messages may wait for the disk."""
    return config.maxMessagePublishBufferSizeInMB << 20 or LONG_MAX


def entry_cache_limits(config: Config) -> tuple[int, float, float]:
    """Return the limits of the entry cache: bytes, age in seconds, watermark."""
    return (
        config.managedLedgerCacheSizeMB << 20,
        config.managedLedgerCacheEvictionTimeThresholdMillis / 1000,
        config.managedLedgerCacheEvictionWatermark,
    )


class ProducerNames:
    """Names for unnamed producers: <cluster>-<number of this broker's start>-<n>."""

    def __init__(self, cluster: str, store: MetadataStore) -> None:
        self._cluster = cluster
        self._store = store
        self._count = 0
        self._instance: asyncio.Future[int] | None = None

    def prefetch(self) -> None:
        """Fetch the number of the start, so that the first producer need not wait for it."""
        self._instance = self._number_of_start()

    def _number_of_start(self) -> asyncio.Future[int]:
        return asyncio.ensure_future(next_counter_value(self._store, paths.PRODUCER_NAME_COUNTER))

    async def next(self) -> str:
        """Return a new name. Raises MetadataError while the store cannot be reached."""
        instance = self._instance
        if instance is None or (instance.done() and instance.exception() is not None):
            # The store could not be reached; it may be back.
            instance = self._instance = self._number_of_start()
        number = await asyncio.shield(instance)
        name = f"{self._cluster}-{number}-{self._count}"
        self._count += 1
        return name

    async def close(self) -> None:
        if self._instance is not None:
            self._instance.cancel()
            await asyncio.gather(self._instance, return_exceptions=True)


class CommandHandlers(Protocol):
    """The handlers of client commands (commands/handlers.py), as the broker calls them."""

    stray_commands: Counter[str]

    def check_alive(self, live: list[Connection]) -> None: ...
    def check_credentials(self, live: list[Connection]) -> None: ...
    def watchers(self) -> Sequence[tuple[str, Watcher]]: ...


class PeriodicWork:
    """Work that a broker does at intervals. Only one call runs at a time."""

    def __init__(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        self._what = what
        self._work = work
        self._lock = asyncio.Lock()

    async def run(self) -> None:
        """Do the work, after a call that is running. An exception is logged."""
        async with self._lock:
            try:
                await self._work()
            except MetadataError as error:
                log.warning("a periodic task is postponed", what=self._what, error=error)
            except Exception as error:
                log.failure("a periodic task failed", error, what=self._what)


class Broker:
    """Serves topics to the clients of its connections.

    The broker does not close the parts that it was given.
    """

    def __init__(
        self,
        config: Config,
        metadata: MetadataStore,
        ledgers: LedgerClient,
        connections: Connections,
        storage: StorageView,
        addresses: Addresses,
        listeners: Listeners | None = None,
    ) -> None:
        self.config = config
        self.metadata = metadata
        self.connections = connections
        self.storage = storage
        self.listeners = listeners or Listeners(addresses)
        self.addresses = addresses
        self._loopback_hint = LoopbackHint()
        self.server_version = f"Pulsar Server {__version__}"
        self.is_ready = False
        self.failed: asyncio.Future[str] = connections.loop.create_future()
        """Completed with the reason when the broker cannot continue."""
        self.authentication: Authentication | None = None
        """Authenticates clients; None admits all."""
        self.entry_cache: EntryCache | None = None  # for bookies in other processes
        self.garbage: GarbageLedgers | None = None  # likewise
        self.peers: Peers | None = None
        """The requests to the other brokers of the cluster; None in a broker without a cluster."""
        self.cluster: ClusterView | None = None  # likewise
        self.backup: Callable[[], BackupSource] | None = None
        """A function that returns the source of backups; None in a broker without local files."""
        self.spill_directory: Path | None = None  # for large temporary files of background tasks
        self._connections_of: Counter[str] = Counter()
        self.pace = Pace()
        ackset.set_batches_bytes_max(config.maxBatchAckStateSizeInMB << 20)
        delayed_index.set_bytes_max(config.maxDelayedDeliveryStateSizeInMB << 20)
        self.client_memory = ClientMemory(
            config.maxClientStateSizeInMB << 20,
            config.maxClientStateSizeInMBPerConnection << 20,
            lambda: connections.live,
        )
        self.poller = Poller(connections.loop)
        connections.serve_unauthenticated_from(self.poller)
        self.half_open = HalfOpen(
            self.poller,
            config.connectionHandshakeTimeoutSeconds,
            lambda connection: connections.turn.run(connection.close),
            lambda late: log.info("closed: no CONNECT for too long", peer=late.peer),
        )
        # Connections closed to admit others, by the setting that limits their number.
        self.evicted: Counter[str] = Counter()
        self.connections_opened = self.connections_closed = 0
        self.connects_succeeded = self.connects_failed = 0  # answers to CONNECT
        self.lookups_us = Histogram(BOUNDS_US)  # of answered lookups, in microseconds
        self.lookups_failed = self.lookups_redirected = self.lookups_pending = 0
        self.publish_gate = PublishGate(
            storage,
            connections,
            lambda: self.topics.registry,
            config.storageUnavailableTimeoutMs / 1000,
        )
        self.producer_names = ProducerNames(config.clusterName, metadata)
        self._ledgers = ledgers
        self._background: list[asyncio.Task[None]] = []
        self._work_by_age: list[PeriodicWork] = []
        self._time_search: asyncio.Task[None] | None = None  # reads times of backlogs
        self._settings_changed = asyncio.Event()  # replaced after each change

    @cached_property
    def metadata_cache(self) -> MetadataCache:
        """Records of the metadata that were read lately."""
        from pyxbroker.metadata.cache import MetadataCache

        return MetadataCache(self.metadata)

    @cached_property
    def topics(self) -> Topics:
        """The topics that this broker serves."""
        from pyxbroker.broker.topics.topics import Topics

        topics = Topics(
            *(self.config, self.metadata, self.metadata_cache),
            *(self._ledgers, self.connections.turn, self.entry_cache),
        )
        topics.check_space = self.publish_gate.check
        topics.broker_limits.spill_directory = self.spill_directory
        return topics

    @cached_property
    def namespaces(self) -> Namespaces:
        """The namespaces, and operations on all topics of one."""
        from pyxbroker.broker.namespaces import Namespaces

        return Namespaces(self.config, self.metadata, self.metadata_cache, self.topics)

    @cached_property
    def transactions(self) -> Transactions | None:
        """The transaction coordinators of this broker; None if transactions are switched off."""
        if not self.config.transactionCoordinatorEnabled:
            return None
        from pyxbroker.broker.transactions.coordinators import Transactions

        transactions = Transactions(self, self._ledgers)
        self.namespaces.unload_coordinators = transactions.unload
        return transactions

    @property
    def _open_transactions(self) -> Transactions | None:
        return self.__dict__.get("transactions")

    @cached_property
    def tenants(self) -> Tenants:
        """The tenants of this instance."""
        from pyxbroker.broker.tenants import Tenants

        return Tenants(self.config, self.metadata, self.metadata_cache, self.namespaces)

    @cached_property
    def clusters(self) -> Clusters:
        """The clusters of this instance."""
        from pyxbroker.broker.clusters import Clusters

        return Clusters(self.metadata, self.metadata_cache, lambda: self.tenants)

    @cached_property
    def serving_cluster(self) -> ServingCluster:
        """The peer clusters that serve namespaces instead of this cluster."""
        from pyxbroker.broker.serving_cluster import ServingCluster

        return ServingCluster(self.config.clusterName, self.metadata_cache)

    @cached_property
    def resource_groups(self) -> ResourceGroups:
        """The resource groups of this instance and their namespaces."""
        from pyxbroker.broker.resource_groups import ResourceGroups

        return ResourceGroups(self.metadata, self.metadata_cache, self.tenants, self.namespaces)

    @cached_property
    def permissions(self) -> Permissions | None:
        """The rights of roles; None while authorization is off. Raises ConfigError if it cannot be
        on.
        """
        if not self.config.authorizationEnabled:
            return None
        from pyxbroker.auth.permissions import Permissions

        return Permissions(self.config, self._grant_records)

    @cached_property
    def _grant_records(self) -> GrantRecords:
        from pyxbroker.broker.grant_records import GrantRecords

        return GrantRecords(self.metadata_cache)

    @cached_property
    def revoked_rights(self) -> RevokedRights | None:
        """Closes producers and consumers that lose their right; None while authorization is off."""
        if self.permissions is None:
            return None
        from pyxbroker.broker.revoked_rights import RevokedRights

        return RevokedRights(
            self.metadata,
            self.permissions,
            self._grant_records,
            self.topics.registry,
            self._watchers,
            self.audit,
        )

    def _watchers(self) -> Sequence[tuple[str, Watcher]]:
        return self.handlers.watchers()

    @cached_property
    def audit(self) -> Audit:
        """The log of changes, refusals and failed logins."""
        from pyxbroker.auth.audit import Audit

        return Audit(self.config)

    @cached_property
    def failed_logins(self) -> FailedLogins:
        """Failed logins by address; too many of them block the address for a while."""
        from pyxbroker.auth.failed_logins import FailedLogins

        return FailedLogins(self.config)

    @cached_property
    def stored_records(self) -> StoredRecords:
        """Records that an operator stores for the whole cluster."""
        from pyxbroker.broker.stored_records import StoredRecords

        return StoredRecords(self.metadata)

    @cached_property
    def dynamic_settings(self) -> DynamicSettings:
        """The settings that can be changed while the broker runs."""
        from pyxbroker.broker.dynamic_settings import DynamicSettings

        return DynamicSettings(self.config, self.metadata, self.stored_records, self._on_settings)

    def _on_settings(self) -> None:
        self.connections.publish_bytes_max = publish_bytes_max(self.config)
        self._settings_changed.set()
        self._settings_changed = asyncio.Event()
        if self.entry_cache is not None:
            self.entry_cache.set_limits(*entry_cache_limits(self.config))
        if "topics" in self.__dict__:
            self.topics.on_settings()
        permissions: Permissions | None = self.__dict__.get("permissions")
        if permissions is not None and permissions.read_superusers():
            revoked: RevokedRights | None = self.__dict__.get("revoked_rights")
            if revoked is not None:
                revoked.check_all()

    @cached_property
    def ownership(self) -> Ownership:
        """Decides which topics this broker serves: all, unless its role sets another rule."""
        from pyxbroker.broker.lookup import SERVE_ALL

        return SERVE_ALL

    @cached_property
    def last_refusals(self) -> LastRefusals:
        """The errors with which producers and consumers were refused lately."""
        from pyxbroker.broker.why.refusals import LastRefusals

        return LastRefusals()

    @cached_property
    def handlers(self) -> CommandHandlers:
        """The handlers of client commands, called by connections."""
        from pyxbroker.broker.commands.handlers import Handlers

        return Handlers(self)

    def start(self) -> None:
        """Begin to serve clients, and start the periodic tasks."""
        self._ledgers.prefetch()
        self.producer_names.prefetch()
        self.is_ready = True
        config = self.config
        self.repeat("clients", config.keepAliveIntervalSeconds, self._check_alive)
        self.repeat("rates", RATES_INTERVAL_S, self._note_rates)
        by_age = partial(self.repeat, by_age=True)
        if self.authentication is not None:
            by_age("credentials", config.authenticationRefreshCheckSeconds, self._check_credentials)
        by_age(
            "expired messages",
            config.messageExpiryCheckIntervalInMinutes * 60,
            self._expire_messages,
        )
        if config.backlogQuotaCheckEnabled:
            by_age("backlog quotas", config.backlogQuotaCheckIntervalInSeconds, self._check_quotas)
        by_age(
            "expired subscriptions",
            config.subscriptionExpiryCheckIntervalInMinutes * 60,
            self._expire_subscriptions,
        )
        by_age("ages", AGE_CHECK_INTERVAL_S, self._check_ages)
        by_age(
            "inactive topics",
            lambda: config.brokerDeleteInactiveTopicsFrequencySeconds,
            self._delete_inactive,
        )
        by_age(
            "inactive producers",
            config.brokerDeduplicationProducerInactivityTimeoutMinutes * 20,
            self._forget_producers,
        )
        by_age(
            "sequence ids",
            config.brokerDeduplicationSnapshotFrequencyInSeconds,
            self._store_sequence_ids,
        )
        by_age(
            "compaction",
            config.brokerServiceCompactionMonitorIntervalInSeconds,
            self._compact,
        )
        by_age("closed topics", SWEEP_INTERVAL_S, self._sweep)
        if config.transactionCoordinatorEnabled:
            self.repeat("transactions", COORDINATORS_INTERVAL_S, self._open_coordinators)

    async def import_late(self) -> None:
        """Import what the first client needs, unless a client was faster."""
        await asyncio.sleep(IMPORTS_AFTER_S)
        further = IMPORTED_WITH_TRANSACTIONS if self.config.transactionCoordinatorEnabled else ()
        for name in (*IMPORTED_LATE, *further):
            importlib.import_module(name)
            await asyncio.sleep(0)

    # --- for REST and handlers ----------------------------------------------------------------

    @property
    def broker_id(self) -> str:
        """The id of this broker in its cluster: host and web port."""
        return self.addresses.web_name

    async def lookup(
        self, topic: str, listener: str = "", client: str = "", authoritative: bool = False
    ) -> Addresses | Redirect:
        """Return the addresses of this broker as clients of a listener reach it, or the broker to
        ask instead.

        Raises PulsarError for an invalid topic or listener, and if no broker can be
        named. `client` is the address of the client that asks.
        """
        from pyxbroker.broker.lookup import Redirect, Refuse

        began_s = time.perf_counter()
        self.lookups_pending += 1
        try:
            name = TopicName.get(topic)
            await self.topics.loader.check_name(name)
            found = self.listeners.of(listener)
            peer = await self.peer_cluster_of(name.namespace)
            if peer is not None:
                decision: Decision = Redirect(peer, authoritative=True)
            else:
                decision = await self.ownership.find(name, authoritative, listener)
            if isinstance(decision, Refuse):
                raise decision.error
        except BaseException:
            self.lookups_failed += 1
            raise
        finally:
            self.lookups_pending -= 1
        if isinstance(decision, Redirect):
            if decision.is_owner:
                return decision.urls
            self.lookups_redirected += 1
            return decision
        self.lookups_us.add((time.perf_counter() - began_s) * 1e6)
        self._loopback_hint.check(client, found)
        return found

    async def peer_cluster_of(self, namespace: str) -> Addresses | None:
        """Return the addresses of the peer cluster that serves a namespace instead of this one, or
        None. A standalone broker serves all of its namespaces. Raises NamespaceOfOtherClusters.
        """
        return None if self.cluster is None else await self.serving_cluster.peer_of(namespace)

    async def unload_bundle(self, namespace: str, bundle: Bundle) -> None:
        """Close the topics of a bundle, and own it no more. Clients look the topics up again.

        Raises NamespaceNotFound, PersistenceError.
        """
        await self.ownership.release(
            namespace, bundle, lambda: self.namespaces.unload(namespace, bundle)
        )

    async def check_served(self, topic: TopicName, acquires: bool = False) -> None:
        """Raise PulsarError for a topic that this broker does not serve: its client has to look the
        topic up again. With `acquires`, this broker takes the topic's bundle if no broker owns it.
        """
        from pyxbroker.base.bundles import bundle_of
        from pyxbroker.broker.lookup import redirect_of

        if redirect_of(await self.ownership.check(topic, acquires)) is not None:
            bundle = bundle_of(topic, await self.namespaces.bundles(topic.namespace))
            raise ServiceNotReady(
                f"Namespace bundle ({topic.namespace}/{bundle}) for topic ({topic}) not served by"
                f" this instance:{self.broker_id}. Please redo the lookup."
            )

    def failure(self) -> str | None:
        """Return the reason why nothing can be stored now, or None."""
        return self.storage.refusal or self.storage.shortage or self._metadata_refusal()

    def _metadata_refusal(self) -> str | None:
        refused = self.metadata.refused
        if refused is None or time.monotonic() - refused[0] > METADATA_REFUSAL_S:
            return None
        # Unauthenticated clients can read this, and the error may name files.
        reference = log.refused("the metadata store refused a request lately", refused[1])
        return with_reference("The metadata store refused a request lately.", reference)

    def topic_stats(self) -> Iterator[TopicStats | None]:
        """Yield the counters of the open topics; None marks a point where the caller may pause."""
        # Imported by the first scrape, so that it does not delay the start.
        from pyxbroker.broker.statistics.stats import Detail, read_stats

        config = self.config
        each = config.exposeTopicLevelMetricsInPrometheus
        detail = Detail(
            producers=each and config.exposeProducerLevelMetricsInPrometheus,
            consumers=each and config.exposeConsumerLevelMetricsInPrometheus,
            cursors=each and config.exposeManagedCursorMetricsInPrometheus,
        )
        undated: list[Subscription] = []
        yield from read_stats(self.topics.registry, detail, undated)
        if undated and (self._time_search is None or self._time_search.done()):
            self._time_search = asyncio.ensure_future(self._find_backlog_times(undated))

    async def connection_load(self) -> tuple[int, int]:
        """Return the bytes that wait to be sent, and the number of paused connections."""
        waiting_bytes = paused = 0
        live = list(self.connections.live)
        async for first in in_slices(range(0, len(live), CONNECTIONS_PER_STEP)):
            for connection in live[first : first + CONNECTIONS_PER_STEP]:
                waiting_bytes += connection.pending_bytes
                paused += connection.is_paused
        return waiting_bytes, paused

    async def _find_backlog_times(self, subscriptions: list[Subscription]) -> None:
        """Read the publish times that the last scrape lacked, for the next one."""
        async for subscription in in_slices(subscriptions):
            if not subscription.topic.fenced:
                with contextlib.suppress(LedgerError):
                    await subscription.topic.find_backlog_time(subscription)

    @property
    def ledger_errors(self) -> tuple[Counter[str], Counter[str]]:
        """Failed writes and reads of managed ledgers, by namespace with domain."""
        return self._ledgers.add_errors, self._ledgers.read_errors

    def refused_sends(self) -> int:
        """Return the number of SENDs refused because nothing could be stored."""
        return self.publish_gate.refused_sends

    def add_half_open(
        self, port: Host, sock: socket.socket, address: str, number: int
    ) -> PendingConnection:
        """Register an accepted connection, which is served when its first bytes arrive. If there
        are too many half-open connections, close one of them.
        """
        most = self.config.maxHalfOpenConnections
        if most and len(self.half_open) >= most:
            self.evict_half_open("maxHalfOpenConnections")
        pending = self.half_open.add(port, sock, address, number)
        self._connections_of[address] += 1
        self.connections_opened += 1
        return pending

    def evict_half_open(self, setting: str) -> bool:
        """Close the oldest half-open connection of the network that has most of them. Return False
        if none exists.
        """
        if not len(self.half_open):
            return False
        closed = self.half_open.evict()
        self.evicted[setting] += 1
        log.warning(f"closed by {setting}", peer=closed.peer, limit=getattr(self.config, setting))
        return True

    def accept(
        self, pending: PendingConnection, tls: SSLContext | None = None, listener: str = ""
    ) -> Connection:
        """Serve a connection accepted by a listener's port, after its first bytes have arrived."""
        from pyxbroker.broker.commands.session import Session

        self.connections.handlers = self.handlers
        session = Session(pending.address, self.client_memory, self.poller.pace, listener)
        session.pending_connection = pending
        pending.connection = self.connections.accept(pending.sock, pending.peer, session, tls)
        connection: Connection = pending.connection
        return connection

    def on_disconnected(self, address: str) -> None:
        """Count a connection as closed."""
        self.connections_closed += 1
        self._connections_of[address] -= 1
        if self._connections_of[address] <= 0:
            del self._connections_of[address]

    @property
    def connection_count(self) -> int:
        """Number of connections to the ports of the binary protocol."""
        return len(self.connections.live) + self.half_open.silent

    def connections_of(self, address: str) -> int:
        """Return the number of binary protocol connections from an address."""
        return self._connections_of[address]

    # --- periodic tasks -----------------------------------------------------------------------

    def repeat(
        self,
        what: str,
        interval_s: float | Callable[[], float],
        work: Callable[[], Awaitable[None]],
        *,
        by_age: bool = False,
    ) -> None:
        """Call work at intervals until the broker stops, and if `by_age` when the clock is set.

        A callable interval is evaluated again when settings have changed. A number that is not
        positive means never.

        An exception ends only the current call of work.
        """
        if not callable(interval_s) and interval_s <= 0:
            return
        periodic = PeriodicWork(what, work)
        if by_age:
            self._work_by_age.append(periodic)
        repeating = self._repeat(periodic, interval_s)
        self._background.append(self.connections.loop.create_task(repeating))

    async def _repeat(
        self, periodic: PeriodicWork, interval_s: float | Callable[[], float]
    ) -> None:
        while True:
            if callable(interval_s):
                await self._pause(interval_s)
            else:
                await asyncio.sleep(interval_s)
            await periodic.run()

    async def on_clock_set(self) -> None:
        """Do what is due by the clock (base/clock.py), which was set ahead."""
        from pyxbroker.broker.dispatch.delayed import ClockWatch

        ClockWatch.of(self.connections.loop).check()
        if self._open_transactions is not None:
            self._open_transactions.check_timeouts()
        for periodic in self._work_by_age:
            await periodic.run()

    async def _pause(self, interval_s: Callable[[], float]) -> None:
        loop = self.connections.loop
        began = loop.time()
        while (left := began + interval_s() - loop.time()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._settings_changed.wait(), left)

    def fail(self, reason: str) -> None:
        """Report that the broker cannot continue, because stored data is not safe with it any
        more.
        """
        if not self.failed.done():
            self.failed.set_result(reason)

    async def _check_alive(self) -> None:
        await self._check_connections(self.handlers.check_alive)

    async def _check_credentials(self) -> None:
        await self._check_connections(self.handlers.check_credentials)

    async def _check_connections(self, check: Callable[[list[Connection]], None]) -> None:
        live = list(self.connections.live)
        async for first in in_slices(range(0, len(live), CONNECTIONS_PER_STEP)):
            some = live[first : first + CONNECTIONS_PER_STEP]
            self.connections.turn.run(check, some)

    async def _delete_inactive(self) -> None:
        await self.topics.inactive.delete_all()

    async def _note_rates(self) -> None:
        await self.topics.upkeep.note_rates()

    async def _expire_messages(self) -> None:
        await self.topics.upkeep.expire_messages()

    async def _expire_subscriptions(self) -> None:
        await self.topics.upkeep.expire_subscriptions()

    async def _store_sequence_ids(self) -> None:
        await self.topics.upkeep.store_sequence_ids()

    async def _compact(self) -> None:
        await self.topics.upkeep.compact()

    async def _forget_producers(self) -> None:
        await self.topics.upkeep.forget_producers()

    async def _check_quotas(self) -> None:
        await self.topics.upkeep.check_quotas()

    async def _open_coordinators(self) -> None:
        if self.transactions is not None:
            await self.transactions.open_all()

    async def _sweep(self) -> None:
        await self.topics.sweep.run()

    async def _check_ages(self) -> None:
        await self.topics.upkeep.check_ages()
        if self._open_transactions is not None:
            self._open_transactions.check_ages()
        await self._ledgers.retry_deletions()

    # --- stopping -----------------------------------------------------------------------------

    async def stop_background(self) -> None:
        """Stop periodic tasks and begin nothing new. Clients of open connections are still
        served.
        """
        self.is_ready = False
        if "revoked_rights" in self.__dict__ and self.revoked_rights is not None:
            self.revoked_rights.stop()
        if "dynamic_settings" in self.__dict__:
            await self.dynamic_settings.close()
        if self._time_search is not None:
            self._background.append(self._time_search)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def stop(self) -> None:
        """Close topics and connections, and wait for pending writes."""
        self.half_open.stop()
        if self._open_transactions is not None:
            await self._open_transactions.close()
        await self.topics.close()
        await self.producer_names.close()
        live = list(self.connections.live)
        if tasks := [task for each in live for task in each.session.tasks]:
            # The tasks complete changes of metadata, then find the topics closed and end.
            await asyncio.wait(tasks, timeout=COMMANDS_END_S)
        self.connections.turn.run(self._close_connections)
        await self._ledgers.stop()

    def _close_connections(self) -> None:
        connection: Connection
        for connection in list(self.connections.live):
            connection.close()
