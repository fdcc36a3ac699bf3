"""The composition root of a standalone process: metadata, one embedded bookie, a broker, two ports.

It makes the parts, starts them, and stops them in the right order.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

from pyxbroker import _native
from pyxbroker.admin.app import Application
from pyxbroker.admin.server import BACKLOG as WEB_BACKLOG
from pyxbroker.admin.server import WebServer
from pyxbroker.base.listening import listen
from pyxbroker.base.log import get_logger
from pyxbroker.bookie.embedded import EmbeddedBookie
from pyxbroker.bookie.garbage_collection import GarbageCollector
from pyxbroker.bookie.layout import Layout
from pyxbroker.bookie.space import (
    METADATA_BYTES,
    StorageState,
    file_systems_of,
    make_reserves,
)
from pyxbroker.broker.broker import Addresses, Broker
from pyxbroker.broker.broker_port import BrokerPort
from pyxbroker.broker.topics.stats import TopicStats
from pyxbroker.cluster.initialize import ClusterSettings
from pyxbroker.connection import Connections
from pyxbroker.entry import ENTRY_HEADER_SIZE
from pyxbroker.frames import FRAME_PADDING
from pyxbroker.ledger.client import LedgerClient, LedgerQuorums
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.store import MetadataError, MetadataStore, open_store
from pyxbroker.roles.data import DataOpening, examine
from pyxbroker.settings.config import DEFAULT_METADATA_URL, Config

log = get_logger("pyxbroker.service")

BOOKIE_PORT = 3181  # part of the embedded bookie's name; nothing listens on it
SHORT_GARBAGE_INTERVAL_S = 30.0  # between two garbage collections while space is short


class Standalone:
    """One running standalone process. Made by start_standalone."""

    def __init__(self, config: Config, data_directory: Path, accept_loss: bool = False) -> None:
        self.config = config
        self.data_directory = data_directory
        self.accept_loss = accept_loss
        self.loop = asyncio.get_running_loop()
        self.broker: Broker
        self.broker_port = 0
        self.web_port = 0  # 0: none is served
        self.metadata: MetadataStore
        self.storage_state: StorageState
        self._bookie: EmbeddedBookie
        self._garbage: GarbageCollector
        self._port: BrokerPort
        self._web_socket: socket.socket | None = None
        self._web: WebServer | None = None

    # --- starting -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens storage and metadata side by side, then the ports."""
        config = self.config
        self._port = BrokerPort(config.bindAddress, config.brokerServicePort or 0)
        self.broker_port = self._port.port
        if config.webServicePort is not None:
            self._web_socket = listen(config.bindAddress, config.webServicePort, WEB_BACKLOG)
            self.web_port = self._web_socket.getsockname()[1]
        storage, bookie_id = await self._open_data()
        connections = Connections(
            self.loop,
            None,
            frame_bytes_max=config.maxMessageSize + FRAME_PADDING,
            sends_max=config.maxPendingPublishRequestsPerConnection,
            publish_bytes_max=config.maxMessagePublishBufferSizeInMB << 20,
        )
        turn = connections.turn
        self._bookie = EmbeddedBookie(
            storage, turn, bookie_id, self._on_full, self.storage_state.check
        )
        self._garbage = GarbageCollector(storage, self.metadata)
        quorums = LedgerQuorums(
            config.managedLedgerDefaultEnsembleSize,
            config.managedLedgerDefaultWriteQuorum,
            config.managedLedgerDefaultAckQuorum,
        )
        ledgers = LedgerClient(self.metadata, {bookie_id: self._bookie}, turn, quorums)
        self.broker = Broker(
            config, self.metadata, ledgers, connections, self.storage_state, self._addresses()
        )
        self.metadata.on_failure(self._on_metadata_failed)
        self.storage_state.trouble = lambda: self._bookie.trouble
        self.storage_state.failure = self.journal_failure
        self.storage_state.check()
        self.broker.start()
        self._port.serve(self.broker)
        if self._web_socket is not None:
            application = Application(self.broker, self)
            self._web = WebServer(application.answer, config.maxHttpServerConnections)
            await self._web.start(self._web_socket)
        self.broker.spawn(self._collect_garbage())
        self.broker.spawn(self._watch_space())

    async def _open_data(self) -> tuple[_native.Storage, str]:
        """Opens metadata and storage; returns the storage and its bookie's id."""
        config = self.config
        self.metadata = open_store(
            config.metadataStoreUrl or DEFAULT_METADATA_URL,
            data_directory=self.data_directory,
            session_timeout_ms=config.metadataStoreSessionTimeoutMillis,
            operation_timeout_ms=config.metadataStoreOperationTimeoutSeconds * 1000,
            copies=_copy_settings(config),
        )
        layout = self._layout()
        cookie = examine(layout, self.accept_loss)
        self.storage_state = self._make_storage_state(layout)
        self.storage_state.make_room("the disk is full at the start")
        self.storage_state.aside = partial(self.loop.run_in_executor, None)
        self.metadata.on_no_space = self._make_space_for_metadata
        addresses = self._addresses()
        return await DataOpening(
            layout=layout,
            cookie=cookie,
            metadata=self.metadata,
            open_storage=partial(self._open_storage, layout),
            cluster=ClusterSettings(
                cluster=config.clusterName,
                web_service_url=addresses.web_url,
                broker_service_url=addresses.broker_url,
            ),
            bookie_id=f"{config.advertisedAddress}:{BOOKIE_PORT}",
            accept_loss=self.accept_loss,
        ).run()

    def _make_storage_state(self, layout: Layout) -> StorageState:
        config = self.config
        cache_bytes = config.dbStorage_writeCacheMaxSizeMb << 20
        needs = [
            (layout.ledgers, 2 * cache_bytes),
            (layout.journal, config.journalMaxSizeMB << 20),
        ]
        if self.metadata.directory is not None:
            needs.append((self.metadata.directory, METADATA_BYTES))
        reserve_bytes = config.diskReserveSizeMB << 20
        return StorageState(file_systems_of(needs, reserve_bytes), config.diskUsageThreshold)

    def _on_full(self, full: bool) -> None:
        self.broker.publish_gate.set_full(full)

    def _make_space_for_metadata(self) -> bool:
        """Called by the metadata's thread when its disk is full."""
        directory = self.metadata.directory
        assert directory is not None, "a store without files has no disk"
        return self.storage_state.give_back_on(directory, "the metadata could not be written")

    def _layout(self) -> Layout:
        config = self.config
        bookie = self.data_directory / "bookie"
        return Layout(
            bookie,
            journal=_directory(config.journalDirectories, bookie / "journal"),
            ledgers=_directory(config.ledgerDirectories, bookie / "ledgers"),
            metadata=self.metadata.directory,
        )

    def _open_storage(self, layout: Layout) -> _native.Storage:
        """Blocking: replays the journal. Runs in a thread of its own."""
        config = self.config
        dirty = config.dbStorage_writeCacheMaxSizeMb << 20
        return _native.Storage(
            str(layout.journal),
            str(layout.ledgers),
            journal_file_bytes=config.journalMaxSizeMB << 20,
            dirty_bytes_max=dirty,
            cache_bytes_max=2 * dirty + (config.dbStorage_readAheadCacheMaxSizeMb << 20),
            entry_bytes_max=config.maxMessageSize + FRAME_PADDING + ENTRY_HEADER_SIZE,
            journal_sync_data=config.journalSyncData,
            accept_loss=self.accept_loss,
        )

    # --- what others ask ----------------------------------------------------------------------

    def _addresses(self) -> Addresses:
        host = self.config.advertisedAddress
        return Addresses(f"pulsar://{host}:{self.broker_port}", f"http://{host}:{self.web_port}")

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

    def unknown_ledgers(self) -> list[int]:
        """Ledgers that are stored, that metadata does not know, and that are kept for that."""
        return self._garbage.unknown_ledgers

    def disk_usage(self) -> dict[str, tuple[int, int]]:
        """(free, total) bytes of each file system, by the first directory that is on it."""
        return {
            str(each.directory): (each.usage.free, each.usage.total)
            for each in self.storage_state.file_systems
        }

    # --- in the background --------------------------------------------------------------------

    async def _collect_garbage(self) -> None:
        while True:
            await asyncio.sleep(max(self.config.gcWaitTime / 1000, 1.0))
            await self._collect_garbage_now()

    async def _collect_garbage_now(self) -> None:
        try:
            await self._garbage.collect()
        except MetadataError as error:
            log.warning("garbage collection is put off", error=error)

    async def _watch_space(self) -> None:
        """Looks at the disks; while one is short, frees what nobody needs any more."""
        state = self.storage_state
        next_garbage = 0.0
        while True:
            await asyncio.sleep(self.config.diskCheckInterval / 1000)
            state.check()
            if state.is_short:
                await self.broker.topics.free_space()
                if self.loop.time() >= next_garbage:
                    next_garbage = self.loop.time() + SHORT_GARBAGE_INTERVAL_S
                    await self._collect_garbage_now()
            if reserves := state.missing_reserves():
                await self.loop.run_in_executor(None, make_reserves, reserves)

    # --- stopping -----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Closes ports, topics, connections, storage and metadata, in that order."""
        broker = self.broker
        await broker.stop_background()
        self._port.close()
        if self._web is not None:
            await self._web.stop()
        broker.publish_gate.close()
        self.storage_state.make_room("the disk is full, and the broker stops")
        try:
            await broker.stop()
        finally:
            try:
                self._bookie.close()
            finally:
                await self.metadata.close()


def _directory(setting: str, default: Path) -> Path:
    """The directory that a setting names (the first of a list), or the default."""
    first = setting.split(",")[0].strip()
    return Path(first).absolute() if first else default


def _copy_settings(config: Config) -> CopySettings:
    return CopySettings(
        interval_s=config.metadataCopyIntervalSeconds,
        kept=config.metadataCopiesKept,
        kept_s=config.metadataCopiesKeptHours * 3600,
    )


async def start_standalone(
    config: Config, data_directory: Path, accept_loss: bool = False
) -> Standalone:
    """Starts broker, embedded bookie and metadata; returns when the broker port is served.

    With accept_loss it starts without what is missing of its data; the log says what that is.
    """
    standalone = Standalone(config, data_directory, accept_loss)
    await standalone.start()
    return standalone
