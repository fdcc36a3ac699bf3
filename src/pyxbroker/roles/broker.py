"""The composition root of a broker of a cluster: metadata on ZooKeeper, ledgers on bookies.

It has no data of its own. Its ports are open from the beginning: clients wait for the start, and
REST answers what the start waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from pyxbroker.add_stats import PublishLatency
from pyxbroker.base.log import get_logger
from pyxbroker.base.properties import ConfigError
from pyxbroker.broker.broker import Broker, entry_cache_limits
from pyxbroker.broker.garbage_ledgers import GarbageLedgers
from pyxbroker.cluster.checks import StartRefused as StartRefused
from pyxbroker.cluster.checks import check_cluster
from pyxbroker.cluster.load_manager import CONNECTED
from pyxbroker.ledger.registered_bookies import RegisteredBookies
from pyxbroker.metadata.store import SessionEvent, Unavailable
from pyxbroker.mledger.entry_cache import EntryCache
from pyxbroker.roles import parts
from pyxbroker.roles.cluster_member import ClusterMember
from pyxbroker.roles.cluster_stores import ClusterStores, open_reporting
from pyxbroker.roles.early_parts import authentication_of, listeners_of, open_ports
from pyxbroker.roles.remote_storage import RemoteStorage
from pyxbroker.settings.config import Config
from pyxbroker.stats.bookie_client import BookieClientStats
from pyxbroker.stats.metrics import MetricsSource
from pyxbroker.web.server import WebServer

log = get_logger("pyxbroker.cluster")

RETRY_S = 1.0
BOOKIES_PATIENCE_S = 10.0
"""With some bookies, but fewer than new ledgers need, stored messages are served after this time.
"""
PROBE_INTERVAL_S = 1.0


class ClusterBroker:
    """A running broker of a cluster, created by `start_broker`."""

    def __init__(self, config: Config) -> None:
        # First, so that invalid settings fail the start before a port is open.
        self._authentication = authentication_of(config)
        self._stores = ClusterStores(config)
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.metadata = self._stores.store
        self._waits_for: str | None = "its parts"
        self._is_connected = True  # to ZooKeeper, once it was
        self._owns_nothing = False  # its nodes have ended with the session
        self._latency = PublishLatency(config.managedLedgerStatsPeriodSeconds)
        connections = parts.make_connections(config)
        self._bookies = RegisteredBookies(self.metadata)
        self._pool = parts.make_pool(config, self._bookies, connections.turn, self._on_full)
        self._ports = ports = open_ports(config)
        listeners = listeners_of(config, ports)
        self._placement = parts.make_placement(config, self._bookies)
        self._ledgers = ledgers = parts.make_ledgers(
            *(config, self.metadata, self._pool, connections.turn, self._latency), self._placement
        )
        ledgers.custom_metadata = self._stores.custom_metadata
        self._storage = RemoteStorage(
            self._bookies, self._pool, config.managedLedgerDefaultEnsembleSize
        )
        self.broker: Broker = parts.make_broker(
            *(config, self.metadata, ledgers, connections),
            self._storage,
            listeners,
            self._authentication,
        )
        self.broker.entry_cache = EntryCache(*entry_cache_limits(config))
        if self._stores.has_own_ledgers:
            self.broker.garbage = GarbageLedgers(
                *(self.metadata, ledgers, config.ledgerGarbageCollectionOfOtherBrokers)
            )
        # Port numbers, 0 for a port that is not open; valid after the sockets are closed.
        self.broker_port = ports.broker_port
        self.broker_port_tls = ports.broker_port_tls
        self.web_port = ports.web_port
        self.web_port_tls = ports.web_port_tls
        self._member = ClusterMember(self.broker, self.metadata)
        self._web: WebServer | None = None
        self._loop_watch: parts.LoopWatch | None = None

    async def start(self) -> None:
        """Wait for ZooKeeper and the bookies, register, and serve the ports. Raises ConfigError,
        MetadataError, UnusableCluster and AnotherBroker.
        """
        config, broker = self.config, self.broker
        self._web = parts.serve_web(broker, self._ports, self._make_metrics, self._reason)
        await self._open_metadata()
        self._wait_for("an answer of the metadata store")
        await check_cluster(self.metadata, config.clusterName, self._stores.places)
        await self._stores.check_password()
        await self._member.check(
            lambda other: self._wait_for(f"the end of the session of broker {other}, which is gone")
        )
        self.metadata.on_session(self._on_session_event)
        self._bookies.start()
        await self._find_bookies()
        await self._member.join()
        await parts.serve_ports(broker, self._ports)
        self._waits_for = None
        self._loop_watch = parts.watch_loop(broker.connections.turn)
        self._member.load_manager.work()
        broker.repeat("bookies", PROBE_INTERVAL_S, self._storage.probe)
        if broker.garbage is not None:
            interval_s = config.ledgerGarbageCollectionIntervalInSeconds
            collect = partial(self._member.duties.collect_garbage, broker.garbage.collect)
            broker.repeat("garbage", interval_s, collect)

    def _reason(self) -> str | None:
        return self._waits_for

    def _wait_for(self, what: str) -> None:
        """Note and log what the start waits for."""
        if what != self._waits_for:
            self._waits_for = what
            log.info("the broker is starting", waits_for=what)

    async def _open_metadata(self) -> None:
        self._wait_for(f"ZooKeeper at {self._stores.hosts}")
        while True:
            try:
                await open_reporting(self.metadata, self._stores.hosts, self._wait_for)
                return
            except Unavailable as error:
                log.warning("ZooKeeper cannot be reached yet", error=error)
                await asyncio.sleep(RETRY_S)

    def _on_session_event(self, event: SessionEvent) -> None:
        self._is_connected = event in CONNECTED
        policy = self.config.zookeeperSessionExpiredPolicy
        if event is SessionEvent.SESSION_LOST and policy == "shutdown":
            self._owns_nothing = True
            self.broker.fail("the session with ZooKeeper is lost (zookeeperSessionExpiredPolicy)")

    async def _find_bookies(self) -> None:
        """Wait until new ledgers can be created, or for a while if stored ones can be read."""
        self._wait_for("the list of bookies")
        await self._bookies.wait_read()
        changed = asyncio.Event()
        unsubscribe = self._bookies.on_change(changed.set)
        needed = self.config.managedLedgerDefaultEnsembleSize
        deadline = self.loop.time() + BOOKIES_PATIENCE_S
        try:
            while len(writable := self._bookies.view.writable) < needed:
                view = self._bookies.view
                has_some = bool(writable or view.read_only)
                left_s = deadline - self.loop.time()
                if has_some and left_s <= 0:
                    log.warning("the broker starts with too few bookies for new ledgers",
                                writable=len(writable), needed=needed)  # fmt: skip
                    return
                self._wait_for(
                    f"writable bookies: new ledgers need {needed}"
                    f" (managedLedgerDefaultEnsembleSize), {len(writable)} are registered"
                )
                changed.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), max(left_s, 0.0) if has_some else None)
        finally:
            unsubscribe()

    def _on_full(self, full: bool) -> None:
        self.broker.publish_gate.set_full(full)

    def _make_metrics(self) -> MetricsSource:
        from pyxbroker.roles.process_metrics import ProcessMetrics

        return ProcessMetrics(
            *(self.broker, self._ports, None, self._latency, self._web, self._loop_watch),
            self._bookie_client,
        )

    def _bookie_client(self) -> BookieClientStats:
        view, ledgers = self._bookies.view, self._ledgers
        policy = ledgers.read_policy()
        states = {
            "writable": len(view.writable),
            "quarantined": len(self._placement.quarantined() & view.writable.keys()),
            "read_only": len(view.read_only),
        }
        return BookieClientStats(
            dict(self._pool),
            policy.damaged,
            states,
            ledgers.ensemble_changes,
            policy.speculative_reads,
        )

    def journal_failure(self) -> str | None:
        """Return None: the broker has no journal."""
        return None

    async def wait_failed(self) -> str:
        """Wait for a failure that the process cannot recover from; return its reason."""
        return await asyncio.shield(self.broker.failed)

    async def stop(self) -> None:
        """Give up all bundles, then close ports, topics, connections and metadata, in this order.
        Until the bundles have other owners, clients are served.
        """
        broker = self.broker
        try:
            if not self._owns_nothing:
                await self._member.leave()
            await broker.stop_background()
            for port in self._ports.brokers:
                port.close()
            if self._web is not None:
                await self._web.stop()
            broker.publish_gate.close()
            await broker.stop()
        finally:
            await self._close_stores()
            self.stop_watch()

    async def abandon(self) -> None:
        """Close what a start that failed has opened."""
        if self._web is not None:
            await self._web.stop()
        await self._close_stores()

    async def _close_stores(self) -> None:
        await self._pool.close()
        await self._bookies.close()
        await self._member.close()
        await self.metadata.close()

    def stop_waits_for(self) -> str:
        """Return what a stop waits for."""
        bundles = len(self._member.owned.owned())
        what = f"the release of bundles ({bundles})" if bundles else "topics and connections"
        away = "" if self._is_connected else f"; ZooKeeper at {self._stores.hosts} is away"
        return what + away

    def stop_watch(self) -> None:
        """End the measurement of loop iterations. Must be called before the loop is closed."""
        watch, self._loop_watch = self._loop_watch, None
        if watch is not None:
            watch.close()


async def start_broker(config: Config) -> ClusterBroker:
    """Start a broker of a cluster; return when its ports are served. Raises ConfigError,
    MetadataError, UnusableCluster and AnotherBroker.
    """
    if config.webServicePort is None and config.webServicePortTls is None:
        raise ConfigError(
            "webServicePort and webServicePortTls are empty: a broker of a cluster is named by its"
            " web port. Set one of them."
        )
    service = ClusterBroker(config)
    try:
        await service.start()
    except BaseException:
        await service.abandon()
        raise
    return service
