"""The parts that a process with a broker creates after its data is open: one function for each
part.

They are imported while other threads open the data (roles/start.py). The parts before them are in
early_parts.py, the embedded bookie and its disks in local_storage.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyxbroker.add_stats import PublishLatency
from pyxbroker.admin.app import Application
from pyxbroker.base.log import get_role_logger
from pyxbroker.broker.broker import Broker, publish_bytes_max
from pyxbroker.broker.broker_port import Ports
from pyxbroker.broker.listeners import Listeners
from pyxbroker.connection import Connections
from pyxbroker.frames import FRAME_PADDING
from pyxbroker.ledger.bookie import Bookie
from pyxbroker.ledger.client import LedgerClient, LedgerProtection
from pyxbroker.ledger.metadata import DigestType
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.ledger.reader import ReadSettings
from pyxbroker.metadata.store import MetadataError, MetadataStore
from pyxbroker.settings.config import Config
from pyxbroker.stats.stalls import STALL_S, StallLog
from pyxbroker.turn import Turn
from pyxbroker.turn_watch import ENDED, STALLED, TurnWatch
from pyxbroker.web.server import WebServer

if TYPE_CHECKING:
    from pyxbroker.auth.authentication import Authentication
    from pyxbroker.broker.storage_view import StorageView
    from pyxbroker.ledger.placement import Placement
    from pyxbroker.ledger.pool import BookiePool
    from pyxbroker.ledger.rack_placement import RackPlacement
    from pyxbroker.ledger.registered_bookies import RegisteredBookies
    from pyxbroker.stats.metrics import MetricsSource
    from pyxbroker.web.request import Request
    from pyxbroker.web.response import Response

    Answering = Callable[[Request[Any]], Awaitable[Response]]

log = get_role_logger()


def make_connections(config: Config) -> Connections:
    """Return the connections of the binary protocol, and log exceptions that no task handles.

    Ports are served from `serve_ports` on.
    """
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_loop_error)
    return Connections(
        loop,
        None,
        frame_bytes_max=config.maxMessageSize + FRAME_PADDING,
        sends_max=config.maxPendingPublishRequestsPerConnection,
        publish_bytes_max=publish_bytes_max(config),
    )


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that neither a callback nor a task has handled."""
    what = {key: context[key] for key in ("handle", "future", "task") if key in context}
    error = context.get("exception")
    if isinstance(error, Exception):
        log.failure("a callback failed", error, message=context["message"], **what)
    else:
        log.error(
            "the event loop reports an error", message=context["message"], **what, error=error
        )


def make_ledgers(
    config: Config,
    metadata: MetadataStore,
    bookies: Mapping[str, Bookie],
    turn: Turn,
    publish_latency: PublishLatency,
    placement: Placement | None = None,
) -> LedgerClient:
    """Return a client for ledgers on the given bookies, by bookie id. `placement` chooses among
    them; None for bookies that do not change.
    """
    quorums = LedgerQuorums(
        config.managedLedgerDefaultEnsembleSize,
        config.managedLedgerDefaultWriteQuorum,
        config.managedLedgerDefaultAckQuorum,
    )
    protection = LedgerProtection(
        DigestType[config.managedLedgerDigestType], config.managedLedgerPassword.encode()
    )
    reads = ReadSettings(
        config.bookkeeperClientSpeculativeReadTimeoutInMillis / 1000,
        config.bookkeeperClientTimeoutInSeconds,
        is_sticky=config.bookkeeperEnableStickyReads,
    )
    if placement is None:
        bookies = dict(bookies)
    return LedgerClient(
        *(metadata, bookies, turn, quorums, protection, publish_latency, placement),
        read_settings=reads,
        add_timeout_s=config.bookkeeper_addEntryTimeoutSec,
    )


def make_pool(
    config: Config, bookies: RegisteredBookies, turn: Turn, on_full: Callable[[bool], None]
) -> BookiePool:
    """Return the connections to the bookies of a cluster. Raises ConfigError for TLS files."""
    from pyxbroker.ledger.bookie_tls import make_contexts
    from pyxbroker.ledger.pool import BookiePool
    from pyxbroker.ledger.remote import RemoteSettings

    tls = make_contexts(config)
    settings = RemoteSettings(
        frame_bytes_max=config.maxMessageSize + FRAME_PADDING,
        add_timeout_s=config.bookkeeperClientTimeoutInSeconds,
        read_timeout_s=config.bookkeeperClientTimeoutInSeconds,
        tls=None if tls is None else tls.current,
    )
    return BookiePool(turn, bookies.address_of, on_full, settings)


def make_placement(config: Config, bookies: RegisteredBookies) -> RackPlacement:
    """Return the placement of ledgers on the registered bookies of a cluster."""
    import random
    import time

    from pyxbroker.ledger.placement import Affinity
    from pyxbroker.ledger.quarantine import HealthCheck
    from pyxbroker.ledger.rack_placement import RackPlacement, RackSettings

    groups = None
    if config.bookkeeperClientIsolationGroups:
        groups = Affinity(
            config.bookkeeperClientIsolationGroups, config.bookkeeperClientSecondaryIsolationGroups
        )
    return RackPlacement(
        bookies,
        RackSettings(
            config.bookkeeperClientRackawarePolicyEnabled,
            config.bookkeeperClientRegionawarePolicyEnabled,
            config.bookkeeperClientMinNumRacksPerWriteQuorum,
            config.bookkeeperClientEnforceMinNumRacksPerWriteQuorum,
            groups,
        ),
        random.Random(),
        time.monotonic,
        HealthCheck(
            config.bookkeeperClientHealthCheckEnabled,
            config.bookkeeperClientHealthCheckIntervalSeconds,
            config.bookkeeperClientHealthCheckErrorThresholdPerInterval,
            config.bookkeeperClientHealthCheckQuarantineTimeInSeconds,
            config.bookkeeperClientQuarantineRatio,
        ),
    )


def make_broker(
    config: Config,
    metadata: MetadataStore,
    ledgers: LedgerClient,
    connections: Connections,
    storage: StorageView,
    listeners: Listeners,
    authentication: Authentication | None,
) -> Broker:
    """Return a broker that fails when its metadata store fails. It serves no port yet."""
    broker = Broker(config, metadata, ledgers, connections, storage, listeners.own, listeners)
    broker.authentication = authentication

    def on_metadata_failed(error: MetadataError) -> None:
        broker.fail(f"the metadata store failed: {error}")

    metadata.on_failure(on_metadata_failed)
    return broker


async def serve_ports(broker: Broker, ports: Ports) -> None:
    """Start to serve clients of the binary protocol."""
    await broker.dynamic_settings.open()
    broker.start()
    for port in ports.brokers:
        port.serve(broker)


def serve_web(
    broker: Broker,
    ports: Ports,
    make_metrics: Callable[[], MetricsSource],
    waits_for: Callable[[], str | None] | None = None,
) -> WebServer | None:
    """Start to serve REST and /metrics; return None if no web port is open.

    `waits_for` returns what the start of the broker waits for. Until it returns None, all requests
    are refused with that.
    """
    if ports.web is None and ports.web_tls is None:
        return None
    answer = Application(broker, make_metrics).answer
    web = WebServer(
        answer if waits_for is None else _refusing(answer, waits_for),
        broker.config.maxHttpServerConnections,
        broker.pace,
        broker.client_memory,
        broker.config.connectionHandshakeTimeoutSeconds,
        broker.poller,
    )
    if ports.web is not None:
        web.start(ports.web)
    if ports.web_tls is not None and ports.tls is not None:
        web.start(ports.web_tls, ports.tls.current)
    return web


def _refusing(answer: Answering, waits_for: Callable[[], str | None]) -> Answering:
    from pyxbroker.web.errors import refusal

    async def refuse_or_answer(request: Request[Any]) -> Response:
        reason = waits_for()
        if reason is not None:
            return refusal(503, f"The broker is not ready: it waits for {reason}.")
        return await answer(request)

    return refuse_or_answer


class LoopWatch:
    """The measurement of event-loop iterations, with a log of long ones."""

    def __init__(self, turns: TurnWatch) -> None:
        self.turns = turns
        self._stalls = StallLog(turns, stalled=STALLED, ended=ENDED)
        self._stalls.start()

    def close(self) -> None:
        """End the measurement. Must be called before the loop is closed."""
        self.turns.close()
        self._stalls.join()


def watch_loop(turn: Turn) -> LoopWatch | None:
    """Measure event-loop iterations; return None if the loop does not support it."""
    try:
        turns = TurnWatch(asyncio.get_running_loop(), STALL_S)
    except RuntimeError as error:
        # Another loop, or a libuv that uvloop does not export. The broker works without it.
        log.warning("the turns of the event loop are not measured", error=error)
        return None
    turn.watch = turns
    return LoopWatch(turns)
