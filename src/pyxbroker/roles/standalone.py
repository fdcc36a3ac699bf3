"""The composition root of a standalone process: metadata, one embedded bookie, a broker, two ports.

roles/start.py opens the data while this file and its imports load. This file creates, starts and
stops the other parts (parts.py) in order.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyxbroker import _native
from pyxbroker.add_stats import PublishLatency
from pyxbroker.broker.broker import Broker
from pyxbroker.broker.broker_port import Ports
from pyxbroker.broker.listeners import Listeners
from pyxbroker.roles import parts
from pyxbroker.roles.data import StandaloneData
from pyxbroker.roles.local_storage import LocalStorage, fit_to_one_bookie
from pyxbroker.web.server import WebServer

if TYPE_CHECKING:
    from pyxbroker.auth.authentication import Authentication
    from pyxbroker.stats.metrics import MetricsSource


class Standalone:
    """A running standalone process, created by roles/start.py."""

    def __init__(
        self,
        data: StandaloneData,
        ports: Ports,
        authentication: Authentication | None,
        listeners: Listeners,
    ) -> None:
        self.config = data.config
        self.loop = asyncio.get_running_loop()
        self.metadata = data.metadata
        self.storage_state = data.storage_state
        # Port numbers, 0 for a port that is not open; valid after the sockets are closed.
        self.broker_port = ports.broker_port
        self.broker_port_tls = ports.broker_port_tls
        self.web_port = ports.web_port
        self.web_port_tls = ports.web_port_tls
        self.broker: Broker
        self._data = data
        self._ports = ports
        self._listeners = listeners
        self._authentication = authentication
        self._storage: LocalStorage
        self._latency = PublishLatency(self.config.managedLedgerStatsPeriodSeconds)
        self._web: WebServer | None = None
        self._loop_watch: parts.LoopWatch | None = None

    async def start(self, storage: _native.Storage, bookie_id: str) -> None:
        """Create the other parts and serve the ports."""
        config, metadata = self.config, self.metadata
        fit_to_one_bookie(config)
        connections = parts.make_connections(config)
        turn = connections.turn
        local = self._storage = LocalStorage(self._data, storage, bookie_id, turn)
        ledgers = parts.make_ledgers(config, metadata, local.bookies, turn, self._latency)
        broker = self.broker = local.broker = parts.make_broker(
            *(config, metadata, ledgers, connections, local.state),
            self._listeners,
            self._authentication,
        )
        broker.backup = local.backup
        broker.spill_directory = local.layout.ledgers
        local.state.check()
        await parts.serve_ports(broker, self._ports)
        self._web = parts.serve_web(broker, self._ports, self._make_metrics)
        self._loop_watch = parts.watch_loop(turn)
        local.start()

    def _make_metrics(self) -> MetricsSource:
        # Created with the first scrape, so that the start does not wait for it.
        from pyxbroker.roles.process_metrics import ProcessMetrics

        return ProcessMetrics(
            self.broker,
            self._ports,
            self._storage,
            self._latency,
            self._web,
            self._loop_watch,
        )

    def journal_failure(self) -> str | None:
        """Return why nothing can be written until a restart, or None."""
        return self._storage.journal_failure()

    async def wait_failed(self) -> str:
        """Wait for a failure that the process cannot recover from; return its reason."""
        return await asyncio.shield(self.broker.failed)

    async def stop(self) -> None:
        """Close ports, topics, connections, storage and metadata, in this order."""
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
                await self._storage.close()
            finally:
                await self.metadata.close()

    def stop_waits_for(self) -> str:
        """Return what a stop waits for."""
        return "topics and storage to be closed"

    def stop_watch(self) -> None:
        """End the measurement of loop iterations. Must be called before the loop is closed."""
        watch, self._loop_watch = self._loop_watch, None
        if watch is not None:
            watch.close()
