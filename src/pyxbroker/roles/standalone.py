"""The composition root: makes the parts of a standalone broker, and stops them in the right
order.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from pyxbroker import __version__, _native
from pyxbroker.admin.app import Application
from pyxbroker.admin.server import BACKLOG as WEB_BACKLOG
from pyxbroker.admin.server import WebServer
from pyxbroker.base.listening import listen
from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import TopicName
from pyxbroker.bookie.embedded import EmbeddedBookie
from pyxbroker.bookie.garbage_collection import GarbageCollector
from pyxbroker.bookie.layout import Layout
from pyxbroker.bookie.space import (
    METADATA_BYTES,
    StorageState,
    file_systems_of,
    make_reserves,
)
from pyxbroker.broker.commands.handlers import Handlers
from pyxbroker.broker.commands.session import Session
from pyxbroker.broker.publish_gate import PublishGate
from pyxbroker.broker.topics.stats import TopicStats, topic_stats
from pyxbroker.broker.topics.topics import Topics
from pyxbroker.cluster.initialize import ClusterSettings
from pyxbroker.connection import Connection, Connections
from pyxbroker.entry import ENTRY_HEADER_SIZE
from pyxbroker.frames import FRAME_PADDING
from pyxbroker.ledger.client import LedgerClient, LedgerQuorums
from pyxbroker.metadata import paths
from pyxbroker.metadata.coordination import next_counter_value
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.store import MetadataError, MetadataStore, open_store
from pyxbroker.roles.data import DataOpening, examine
from pyxbroker.settings.config import DEFAULT_METADATA_URL, Config

log = get_logger("pyxbroker.service")

BOOKIE_PORT = 3181  # part of the embedded bookie's name; nothing listens on it
LISTEN_BACKLOG = 1024
ACCEPT_RETRY_S = 1.0
AGE_CHECK_INTERVAL_S = 30.0
METADATA_REFUSAL_S = 30.0  # how long health tells that the metadata's disk refused something
SHORT_GARBAGE_INTERVAL_S = 30.0  # between two garbage collections while space is short


class LookupResult(NamedTuple):
    """Where a topic is served."""

    broker_url: str
    http_url: str


class ProducerNames:
    """Names for producers that have none: <cluster>-<number of this broker's start>-<n>."""

    def __init__(self, cluster: str, store: MetadataStore) -> None:
        self._cluster = cluster
        self._store = store
        self._count = 0
        self._instance = self._number_of_start()

    def _number_of_start(self) -> asyncio.Future[int]:
        return asyncio.ensure_future(next_counter_value(self._store, paths.PRODUCER_NAME_COUNTER))

    async def next(self) -> str:
        """Raises MetadataError while the store cannot be reached."""
        if self._instance.done() and self._instance.exception() is not None:
            # The store was away; it may have come back.
            self._instance = self._number_of_start()
        instance = await asyncio.shield(self._instance)
        name = f"{self._cluster}-{instance}-{self._count}"
        self._count += 1
        return name

    async def close(self) -> None:
        self._instance.cancel()
        await asyncio.gather(self._instance, return_exceptions=True)


class Service:
    """One running standalone broker. Made by start_standalone."""

    def __init__(self, config: Config, data_directory: Path, accept_loss: bool = False) -> None:
        self.config = config
        self.data_directory = data_directory
        self.accept_loss = accept_loss
        self.loop = asyncio.get_running_loop()
        self.server_version = f"Pulsar Server {__version__}"
        self.is_ready = False
        self.started_at = time.time()
        self.handlers = Handlers(self)
        self.connections = Connections(
            self.loop,
            self.handlers,
            frame_bytes_max=config.maxMessageSize + FRAME_PADDING,
            sends_max=config.maxPendingPublishRequestsPerConnection,
            publish_bytes_max=config.maxMessagePublishBufferSizeInMB << 20,
        )
        self.broker_port = 0
        self.web_port = 0
        self.metadata: MetadataStore
        self.topics: Topics
        self.producer_names: ProducerNames
        self.storage_state: StorageState
        self.publish_gate: PublishGate
        self._bookie: EmbeddedBookie
        self._garbage: GarbageCollector
        self._ledgers: LedgerClient
        self._listener: socket.socket | None = None
        self._web_socket: socket.socket | None = None
        self._web: WebServer | None = None
        self._background: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[str] = self.loop.create_future()

    # --- starting -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens storage and metadata side by side, then the ports."""
        config = self.config
        self._listener = listen(config.bindAddress, config.brokerServicePort or 0, LISTEN_BACKLOG)
        self.broker_port = self._listener.getsockname()[1]
        if config.webServicePort is not None:
            self._web_socket = listen(config.bindAddress, config.webServicePort, WEB_BACKLOG)
            self.web_port = self._web_socket.getsockname()[1]
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
        storage, bookie_id = await DataOpening(
            layout=layout,
            cookie=cookie,
            metadata=self.metadata,
            open_storage=partial(self._open_storage, layout),
            cluster=self._cluster_settings(),
            bookie_id=f"{config.advertisedAddress}:{BOOKIE_PORT}",
            accept_loss=self.accept_loss,
        ).run()
        self.metadata.on_failure(self._on_metadata_failed)
        turn = self.connections.turn
        self._bookie = EmbeddedBookie(
            storage, turn, bookie_id, self._on_full, self.storage_state.check
        )
        self._garbage = GarbageCollector(storage, self.metadata)
        self._ledgers = LedgerClient(
            self.metadata,
            {bookie_id: self._bookie},
            turn,
            LedgerQuorums(
                config.managedLedgerDefaultEnsembleSize,
                config.managedLedgerDefaultWriteQuorum,
                config.managedLedgerDefaultAckQuorum,
            ),
        )
        self.topics = Topics(config, self.metadata, self._ledgers, turn)
        self._open_publish_gate()
        self.producer_names = ProducerNames(config.clusterName, self.metadata)
        self._ledgers.prefetch()
        self.is_ready = True
        self.loop.add_reader(self._listener, self._on_connection)
        if self._web_socket is not None:
            self._web = WebServer(Application(self).answer, config.maxHttpServerConnections)
            await self._web.start(self._web_socket)
        self._spawn(self._check_alive())
        self._spawn(self._check_ages())
        self._spawn(self._delete_inactive_topics())
        self._spawn(self._collect_garbage())
        self._spawn(self._watch_space())

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
        self.publish_gate.set_full(full)

    def _open_publish_gate(self) -> None:
        config = self.config
        self.publish_gate = PublishGate(
            self.storage_state,
            self.connections,
            self._ledgers,
            lambda: self.topics,
            config.storageUnavailableTimeoutMs / 1000,
        )
        self.storage_state.trouble = lambda: self._bookie.trouble
        self.storage_state.failure = self.journal_failure
        self.storage_state.check()

    def _make_space_for_metadata(self) -> bool:
        """Called by the metadata's thread when its disk is full."""
        directory = self.metadata.directory
        assert directory is not None, "a store without files has no disk"
        return self.storage_state.give_back_on(directory, "the metadata could not be written")

    def _cluster_settings(self) -> ClusterSettings:
        return ClusterSettings(
            cluster=self.config.clusterName,
            web_service_url=self.web_url,
            broker_service_url=self.broker_url,
        )

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

    # --- connections --------------------------------------------------------------------------

    def _on_connection(self) -> None:
        assert self._listener is not None
        try:
            sock, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors, most likely: those that wait in the backlog are asked for again
            # later.
            log.error("a connection could not be accepted", error=error)
            self.loop.remove_reader(self._listener)
            self.loop.call_later(ACCEPT_RETRY_S, self._accept_again)
            return
        peer = f"{address[0]}:{address[1]}"
        limit = self.config.brokerMaxConnections
        if limit and len(self.connections.live) >= limit:
            log.warning("refused by brokerMaxConnections", peer=peer, limit=limit)
            sock.close()
            return
        limit = self.config.brokerMaxConnectionsPerIp
        if limit and self._connections_of(address[0]) >= limit:
            log.warning("refused by brokerMaxConnectionsPerIp", peer=peer, limit=limit)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections.accept(sock, peer, Session())

    def _accept_again(self) -> None:
        if self.is_ready and self._listener is not None:
            self.loop.add_reader(self._listener, self._on_connection)

    def _connections_of(self, address: str) -> int:
        prefix = address + ":"
        return sum(each.peer.startswith(prefix) for each in self.connections.live)

    # --- what REST and handlers ask -----------------------------------------------------------

    @property
    def broker_url(self) -> str:
        return f"pulsar://{self.config.advertisedAddress}:{self.broker_port}"

    @property
    def web_url(self) -> str:
        return f"http://{self.config.advertisedAddress}:{self.web_port}"

    async def lookup(self, topic: str) -> LookupResult:
        """Where a topic is served: here. Raises PulsarError for a topic that cannot be."""
        await self.topics.check_name(TopicName.get(topic))
        return LookupResult(self.broker_url, self.web_url)

    def failure(self) -> str | None:
        """Why nothing can be stored now, or None."""
        return self.storage_state.refusal or self._metadata_refusal()

    def _metadata_refusal(self) -> str | None:
        refused = self.metadata.refused
        if refused is None or time.monotonic() - refused[0] > METADATA_REFUSAL_S:
            return None
        return f"The metadata store refused a request lately: {refused[1]}"

    def journal_failure(self) -> str | None:
        """Why nothing can be written any more until a restart, or None."""
        code = self._bookie.failure
        if code:
            return f"the journal failed (error {-code}); a restart recovers what was acknowledged"
        return None

    def topic_stats(self) -> Iterator[TopicStats]:
        """The counters of the open topics."""
        return (topic_stats(each) for each in self.topics)

    def storage_stats(self) -> dict[str, int]:
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

    def refused_sends(self) -> int:
        """SENDs that were refused because nothing could be stored."""
        return self.publish_gate.refused_sends

    async def wait_failed(self) -> str:
        """Waits for a failure that the process cannot go on with."""
        return await asyncio.shield(self._failed)

    def _on_metadata_failed(self, error: MetadataError) -> None:
        if not self._failed.done():
            self._failed.set_result(f"the metadata store failed: {error}")

    # --- in the background --------------------------------------------------------------------

    def _spawn(self, coroutine: Any) -> None:
        task = self.loop.create_task(coroutine)
        task.add_done_callback(self._on_background_done)
        self._background.append(task)

    def _on_background_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.failure("a background task failed", error)
            if not self._failed.done():
                self._failed.set_result(f"{error!r}")

    async def _check_alive(self) -> None:
        interval = self.config.keepAliveIntervalSeconds
        if interval <= 0:
            return
        while True:
            await asyncio.sleep(interval)
            self.connections.turn.run(self.handlers.check_alive, list(self.connections.live))

    async def _check_ages(self) -> None:
        while True:
            await asyncio.sleep(AGE_CHECK_INTERVAL_S)
            await self.topics.check_ages()
            await self._ledgers.delete_again()

    async def _delete_inactive_topics(self) -> None:
        while True:
            await asyncio.sleep(self.config.brokerDeleteInactiveTopicsFrequencySeconds)
            await self.topics.delete_inactive()

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
                await self.topics.free_space()
                if self.loop.time() >= next_garbage:
                    next_garbage = self.loop.time() + SHORT_GARBAGE_INTERVAL_S
                    await self._collect_garbage_now()
            if reserves := state.missing_reserves():
                await self.loop.run_in_executor(None, make_reserves, reserves)

    # --- stopping -----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Closes ports, topics, connections, storage and metadata, in that order."""
        self.is_ready = False
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._listener is not None:
            self.loop.remove_reader(self._listener)
            self._listener.close()
        if self._web is not None:
            await self._web.stop()
        elif self._web_socket is not None:
            self._web_socket.close()
        self.publish_gate.close()
        self.storage_state.make_room("the disk is full, and the broker stops")
        try:
            await self.topics.close()
            await self.producer_names.close()
            self.connections.turn.run(self._close_connections)
            await self._ledgers.stop()
        finally:
            try:
                self._bookie.close()
            finally:
                await self.metadata.close()

    def _close_connections(self) -> None:
        connection: Connection
        for connection in list(self.connections.live):
            connection.close()


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
) -> Service:
    """Starts broker, embedded bookie and metadata; returns when the broker port is served.

    With accept_loss it starts without what is missing of its data; the log says what that is.
    """
    service = Service(config, data_directory, accept_loss)
    await service.start()
    return service
