"""The composition root of a standalone process: metadata, one embedded bookie, a broker, two ports.

roles/start.py opens the data while this file and what it needs are imported; here the other parts
are made, started, and stopped in the right order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from pyxbroker import _native
from pyxbroker.add_stats import BOUNDS_US, PublishLatency
from pyxbroker.admin.app import Application
from pyxbroker.admin.server import WebServer
from pyxbroker.base.log import get_logger
from pyxbroker.bookie.embedded import EmbeddedBookie
from pyxbroker.bookie.garbage_collection import GarbageCollector
from pyxbroker.bookie.space import make_reserves
from pyxbroker.broker.broker import Broker, publish_bytes_max
from pyxbroker.broker.broker_port import Ports
from pyxbroker.broker.listeners import Listeners
from pyxbroker.connection import Connections
from pyxbroker.frames import FRAME_PADDING
from pyxbroker.ledger.client import LedgerClient, LedgerProtection, LedgerQuorums
from pyxbroker.ledger.metadata import DigestType
from pyxbroker.metadata.store import MetadataError
from pyxbroker.roles.data import StandaloneData
from pyxbroker.settings.config import Config
from pyxbroker.stats.stalls import STALL_S, StallLog
from pyxbroker.turn import Turn
from pyxbroker.turn_watch import ENDED, STALLED, TurnWatch

if TYPE_CHECKING:
    from pyxbroker.auth.authentication import Authentication
    from pyxbroker.broker.client_memory import ClientMemory
    from pyxbroker.broker.statistics.stats import TopicStats
    from pyxbroker.stats.broker_series import BrokerStats
    from pyxbroker.stats.latencies import Latency
    from pyxbroker.stats.metrics import Turns

log = get_logger("pyxbroker.standalone")

BOOKIES = 1
QUORUMS = (
    "managedLedgerDefaultEnsembleSize",
    "managedLedgerDefaultWriteQuorum",
    "managedLedgerDefaultAckQuorum",
)
SHORT_GARBAGE_INTERVAL_S = 30.0  # between two garbage collections while space is short


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback or a task met a defect that nobody else has caught: it costs what it was for."""
    what = {key: context[key] for key in ("handle", "future", "task") if key in context}
    error = context.get("exception")
    if isinstance(error, Exception):
        log.failure("a callback failed", error, message=context["message"], **what)
    else:
        log.error("the event loop complains", message=context["message"], **what, error=error)


class Standalone:
    """One running standalone process. Made by roles/start.py."""

    def __init__(
        self,
        data: StandaloneData,
        ports: Ports,
        authentication: Authentication | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        self.config = data.config
        self.loop = asyncio.get_running_loop()
        self.metadata = data.metadata
        self.storage_state = data.storage_state
        self._layout = data.layout()
        # Their numbers, 0 where one is not served; kept, since the sockets will be closed.
        self.broker_port = ports.broker_port
        self.web_port = ports.web_port
        self.broker: Broker
        self._listeners = listeners or Listeners(data.addresses)
        self._authentication = authentication
        self._ports = ports
        self._web: WebServer | None = None
        self._bookie: EmbeddedBookie
        self._garbage: GarbageCollector
        self._publish_latency: PublishLatency
        self._turns: TurnWatch | None = None
        self._stalls: StallLog | None = None
        self._next_garbage = 0.0  # by the loop's clock, while space is short

    # --- starting -----------------------------------------------------------------------------

    async def start(self, storage: _native.Storage, bookie_id: str) -> None:
        """Makes the other parts, and serves the ports."""
        config = self.config
        _fit_to_bookies(config)
        self.loop.set_exception_handler(_on_loop_error)
        connections = Connections(
            self.loop,
            None,
            frame_bytes_max=config.maxMessageSize + FRAME_PADDING,
            sends_max=config.maxPendingPublishRequestsPerConnection,
            publish_bytes_max=publish_bytes_max(config),
        )
        turn = connections.turn
        self._bookie = EmbeddedBookie(
            storage, turn, bookie_id, self._on_full, self.storage_state.check, self._layout
        )
        self._garbage = GarbageCollector(storage, self.metadata)
        quorums = LedgerQuorums(
            config.managedLedgerDefaultEnsembleSize,
            config.managedLedgerDefaultWriteQuorum,
            config.managedLedgerDefaultAckQuorum,
        )
        protection = LedgerProtection(
            DigestType[config.managedLedgerDigestType], config.managedLedgerPassword.encode()
        )
        self._publish_latency = PublishLatency(config.managedLedgerStatsPeriodSeconds)
        ledgers = LedgerClient(
            self.metadata,
            {bookie_id: self._bookie},
            turn,
            quorums,
            protection,
            self._publish_latency,
        )
        self.broker = Broker(
            *(config, self.metadata, ledgers, connections, self.storage_state),
            self._listeners.own,
            self._listeners,
        )
        self.broker.authentication = self._authentication
        self.broker.spill_directory = self._layout.ledgers
        self.metadata.on_failure(self._on_metadata_failed)
        self.storage_state.trouble = lambda: self._bookie.trouble
        self.storage_state.failure = self.journal_failure
        self.storage_state.set_holding = self._bookie.set_holding
        self.storage_state.take_back = self._bookie.take_back
        self.storage_state.check()
        await self.broker.dynamic_settings.open()
        self.broker.start()
        for port in self._ports.brokers:
            port.serve(self.broker)
        self._start_web()
        self._watch_turns(turn)
        self.broker.repeat("garbage", max(config.gcWaitTime / 1000, 1.0), self._collect_garbage)
        self.broker.repeat("space", config.diskCheckInterval / 1000, self._look_at_space)

    def _start_web(self) -> None:
        ports = self._ports
        if ports.web is not None or ports.web_tls is not None:
            application = Application(self.broker, self)
            self._web = WebServer(
                application.answer,
                self.config.maxHttpServerConnections,
                self.broker.pace,
                self.broker.client_memory,
                self.config.connectionHandshakeTimeoutSeconds,
                self.broker.poller,
            )
            if ports.web is not None:
                self._web.start(ports.web)
            if ports.web_tls is not None and ports.tls is not None:
                self._web.start(ports.web_tls, ports.tls.current)

    def _watch_turns(self, turn: Turn) -> None:
        try:
            self._turns = TurnWatch(self.loop, STALL_S)
        except RuntimeError as error:
            # Another loop, or a libuv that uvloop keeps to itself; all else goes on without it.
            log.warning("the turns of the event loop are not measured", error=error)
            return
        turn.watch = self._turns
        self._stalls = StallLog(self._turns, stalled=STALLED, ended=ENDED)
        self._stalls.start()

    def _on_full(self, full: bool) -> None:
        self.broker.publish_gate.set_full(full)

    # --- what others ask ----------------------------------------------------------------------

    def journal_failure(self) -> str | None:
        """Why nothing can be written any more until a restart, or None."""
        code = self._bookie.failure
        if code:
            return f"the journal failed (error {-code}); a restart recovers what was acknowledged"
        return None

    async def wait_failed(self) -> str:
        """Waits for a failure that the process cannot go on with."""
        return await asyncio.shield(self.broker.failed)

    def _on_metadata_failed(self, error: MetadataError) -> None:
        self.broker.fail(f"the metadata store failed: {error}")

    # --- what /metrics tells ------------------------------------------------------------------

    def topic_stats(self) -> Iterator[TopicStats | None]:
        """The counters of the open topics."""
        return self.broker.topic_stats()

    def failure(self) -> str | None:
        """Why nothing can be stored now, or None."""
        return self.broker.failure()

    def refused_sends(self) -> int:
        """SENDs that were refused because nothing could be stored."""
        return self.broker.refused_sends()

    def storage_stats(self) -> dict[str, int]:
        """The counters of the embedded bookie (storage.h, storage_stats)."""
        return cast(dict[str, int], self._bookie.storage.stats())

    def latencies(self) -> dict[str, Latency]:
        """How long messages took to be stored, and the bookie's adds, syncs and reads."""
        from pyxbroker.stats.latencies import Latency

        stored = self._bookie.storage.latencies()
        latencies = {field: Latency(*each) for field, each in stored.items()}
        return {
            **latencies,
            "publish": Latency(*self._publish_latency.counts()),
            "lookup": Latency.of_us(self.broker.lookups_us),
            "load": Latency.of_us(self.broker.topics.loader.loads_us),
        }

    @property
    def latency_bounds_us(self) -> tuple[int, ...]:
        """The longest time of each bucket of `latencies`."""
        return BOUNDS_US

    def unknown_ledgers(self) -> list[int]:
        """Ledgers that are stored, that metadata does not know, and that are kept for that."""
        return self._garbage.unknown_ledgers

    def client_state(self) -> ClientMemory:
        """What is remembered for clients."""
        return self.broker.client_memory

    def refused_connections(self) -> dict[str, int]:
        """Connections that were refused, by the setting that forbade them."""
        refused: Counter[str] = sum((each.refused for each in self._ports.brokers), Counter())
        if self._web is not None:
            refused["maxHttpServerConnections"] = self._web.refused
        return +refused

    def closed_connections(self) -> dict[str, int]:
        """Connections that were closed for others, by the setting that allows no more."""
        closed = self.broker.gave_way.copy()
        if self._web is not None:
            closed["maxHttpServerConnections"] = self._web.gave_way
        return +closed

    def stray_commands(self) -> dict[str, int]:
        """Commands that came for what is not open on their connection, by their names."""
        return self.broker.handlers.stray_commands

    async def broker_stats(self) -> BrokerStats:
        """What the broker counts of itself."""
        from pyxbroker.stats.broker_series import BrokerStats, LedgerErrors

        broker = self.broker
        topics = broker.topics
        waiting_bytes, paused = await broker.load_of_connections()
        bundles: dict[str, dict[str, int | float]] = {}
        if self.config.exposeBundlesMetricsInPrometheus:
            from pyxbroker.admin.resources.broker_stats import stats_by_bundle

            bundles = await stats_by_bundle(broker)
        numbers = {
            "connections": broker.connection_count,
            "connections_opened": broker.connections_opened,
            "connections_closed": broker.connections_closed,
            "connects_succeeded": broker.connects_succeeded,
            "connects_failed": broker.connects_failed,
            "is_healthy": int(broker.failure() is None),
            "loads_failed": topics.loader.loads_failed,
            "loads_pending": topics.loader.loads_pending,
            "lookups_pending": broker.lookups_pending,
            "lookups_answered": sum(broker.lookups_us.counts),
            "lookups_failed": broker.lookups_failed,
            "lookups_redirected": 0,
            "managed_ledgers": topics.registry.persistent_count,
            "waiting_bytes": waiting_bytes,
            "paused_connections": paused,
        }
        return BrokerStats(
            broker.broker_id.rpartition(":")[0],
            numbers,
            topics.upkeep.quota_checks_s,
            topics.schema_counts,
            LedgerErrors(*broker.ledger_errors),
            bundles,
            None if self._authentication is None else self._authentication.counts,
            None if self._web is None else self._web.counts,
        )

    def turns(self) -> Turns | None:
        """How long the turns of the event loop took, where that is measured."""
        from pyxbroker.stats.metrics import Turns

        return None if self._turns is None else Turns(*self._turns.histogram())

    def disk_usage(self) -> dict[str, tuple[int, int]]:
        """(free, total) bytes of each file system, by the first directory that is on it."""
        return {
            str(each.directory): (each.usage.free, each.usage.total)
            for each in self.storage_state.file_systems
        }

    # --- in the background --------------------------------------------------------------------

    async def _collect_garbage(self) -> None:
        try:
            await self._garbage.collect()
        except MetadataError as error:
            log.warning("garbage collection is put off", error=error)

    async def _look_at_space(self) -> None:
        """Looks at the disks; while one is short, frees what nobody needs any more."""
        state = self.storage_state
        state.check()
        self._bookie.save_space(state.is_short_on(self._layout.journal))
        if state.is_short:
            await self.broker.topics.upkeep.free_space()
            if self.loop.time() >= self._next_garbage:
                self._next_garbage = self.loop.time() + SHORT_GARBAGE_INTERVAL_S
                await self._collect_garbage()
        if reserves := state.missing_reserves():
            await self.loop.run_in_executor(None, make_reserves, reserves)

    # --- stopping -----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Closes ports, topics, connections, storage and metadata, in that order."""
        try:
            await self._stop()
        finally:
            self.stop_watch()

    async def _stop(self) -> None:
        broker = self.broker
        await broker.stop_background()
        for port in self._ports.brokers:
            port.close()
        if self._web is not None:
            await self._web.stop()
        broker.publish_gate.close()
        self.storage_state.make_room("the disk is full, and the broker stops")
        try:
            await broker.stop()
        finally:
            try:
                await self._bookie.close()
            finally:
                await self.metadata.close()

    def stop_watch(self) -> None:
        """Turns are not measured any more. Comes before the loop is closed."""
        if self._turns is not None and self._stalls is not None:
            self._turns.close()
            self._stalls.join()


def _fit_to_bookies(config: Config) -> None:
    """Pulsar's broker.conf asks for two copies of each entry, and here one bookie keeps them all:
    it is used as it is, and the log says what that means.
    """
    wanted = {name: getattr(config, name) for name in QUORUMS}
    if max(wanted.values()) > BOOKIES:
        log.warning("entries have fewer copies than the settings ask for: there is one bookie",
                    **wanted)  # fmt: skip
        for name, count in wanted.items():
            setattr(config, name, min(count, BOOKIES))
