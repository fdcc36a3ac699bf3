"""The metrics source of a process with a broker, for /metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from pyxbroker.add_stats import BOUNDS_US, PublishLatency
from pyxbroker.broker.broker import Broker
from pyxbroker.broker.broker_port import Ports
from pyxbroker.stats.latencies import Latency

if TYPE_CHECKING:
    from pyxbroker.broker.client_memory import ClientMemory
    from pyxbroker.broker.statistics.stats import CoordinatorStats, TopicStats
    from pyxbroker.roles.local_storage import LocalStorage
    from pyxbroker.roles.parts import LoopWatch
    from pyxbroker.stats.bookie_client import BookieClientStats
    from pyxbroker.stats.broker_series import BrokerStats
    from pyxbroker.stats.metrics import Turns
    from pyxbroker.web.server import WebServer


class ProcessMetrics:
    """A MetricsSource (stats/metrics.py) of a process with or without its own storage."""

    def __init__(
        self,
        broker: Broker,
        ports: Ports,
        storage: LocalStorage | None,
        publish_latency: PublishLatency,
        web: WebServer | None,
        loop_watch: LoopWatch | None,
        bookie_client: Callable[[], BookieClientStats] | None = None,
    ) -> None:
        self.config = broker.config
        self._broker = broker
        self._ports = ports
        self._storage = storage
        self._publish_latency = publish_latency
        self._web = web
        self._loop_watch = loop_watch
        self._bookie_client = bookie_client

    def topic_stats(self) -> Iterator[TopicStats | None]:
        """Yield the counters of the open topics."""
        return self._broker.topic_stats()

    def failure(self) -> str | None:
        """Return why storage refuses writes, or None while it accepts them."""
        return self._broker.failure()

    def refused_sends(self) -> int:
        """Return the number of SENDs that were refused because storage refused writes."""
        return self._broker.refused_sends()

    def storage_stats(self) -> dict[str, int]:
        """Return the counters of the embedded bookie (storage.h, storage_stats)."""
        if self._storage is None:
            return {}
        return cast(dict[str, int], self._storage.bookie.storage.stats())

    def entry_cache(self) -> dict[str, int]:
        """Return the numbers of the broker's own cache of entries; empty without one."""
        cache = self._broker.entry_cache
        return {} if cache is None else cache.stats()

    def bookie_client(self) -> BookieClientStats | None:
        """Return the statistics of bookies in other processes, if the broker uses any."""
        return None if self._bookie_client is None else self._bookie_client()

    def latencies(self) -> dict[str, Latency]:
        """Return latencies: of publishes, lookups, loads, and the bookie's adds, syncs and
        reads.
        """
        storage = self._storage
        stored = {} if storage is None else storage.bookie.storage.latencies()
        latencies = {field: Latency(*each) for field, each in stored.items()}
        return {
            **latencies,
            "publish": Latency(*self._publish_latency.counts()),
            "lookup": Latency.of_us(self._broker.lookups_us),
            "load": Latency.of_us(self._broker.topics.loader.loads_us),
        }

    @property
    def latency_bounds_us(self) -> tuple[int, ...]:
        """The upper bound of each bucket of `latencies`."""
        return BOUNDS_US

    def unknown_ledgers(self) -> list[int]:
        """Return stored ledgers that have no metadata; the bookie retains them."""
        return [] if self._storage is None else self._storage.garbage.unknown_ledgers

    def client_state(self) -> ClientMemory:
        """Return the accounts of the memory that is used for clients."""
        return self._broker.client_memory

    def refused_connections(self) -> dict[str, int]:
        """Return the number of refused connections by the setting that limits them."""
        refused: Counter[str] = sum((each.refused for each in self._ports.brokers), Counter())
        if self._web is not None:
            refused["maxHttpServerConnections"] = self._web.refused
        return +refused

    def closed_connections(self) -> dict[str, int]:
        """Return the number of connections closed to make room for others, by the limiting
        setting.
        """
        closed = self._broker.evicted.copy()
        if self._web is not None:
            closed["maxHttpServerConnections"] = self._web.evicted
        return +closed

    def stray_commands(self) -> dict[str, int]:
        """Return the number of commands for unknown producers or consumers, by command."""
        return self._broker.handlers.stray_commands

    async def broker_stats(self) -> BrokerStats:
        """Return the broker's own counters."""
        from pyxbroker.stats.broker_series import BrokerStats, LedgerErrors

        broker = self._broker
        topics = broker.topics
        waiting_bytes, paused = await broker.connection_load()
        bundles: dict[str, dict[str, int | float]] = {}
        if self.config.exposeBundlesMetricsInPrometheus:
            from pyxbroker.cluster.measured_load import stats_by_bundle

            found = await stats_by_bundle(topics.registry, broker.namespaces.bundles)
            bundles = {name: each.fields() for name, each in found.items()}
        peers = [] if broker.cluster is None else list(broker.cluster.peers().values())
        numbers = {
            "connections": broker.connection_count,
            "connections_opened": broker.connections_opened,
            "connections_closed": broker.connections_closed,
            "connects_succeeded": broker.connects_succeeded,
            "connects_failed": broker.connects_failed,
            "is_healthy": int(broker.failure() is None),
            "loads_failed": topics.loader.loads_failed,
            "loads_pending": topics.loader.loads_pending,
            "garbage_ledgers_deleted": broker.garbage.deleted if broker.garbage else 0,
            "unreached_peers": sum(each["state"] != "reached" for each in peers),
            "removed_peers": 0 if broker.cluster is None else broker.cluster.removed_peers(),
            "lookups_pending": broker.lookups_pending,
            "lookups_answered": sum(broker.lookups_us.counts),
            "lookups_failed": broker.lookups_failed,
            "lookups_redirected": broker.lookups_redirected,
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
            None if broker.authentication is None else broker.authentication.counts,
            None if self._web is None else self._web.counts,
        )

    def coordinators(self) -> list[CoordinatorStats]:
        """Return the transaction coordinators that are open in this broker."""
        transactions = self._broker.transactions
        if transactions is None:
            return []
        from pyxbroker.broker.transactions.statistics import numbers_of

        return [numbers_of(each) for each in transactions.running]

    def turns(self) -> Turns | None:
        """Return the histogram of event-loop iterations, or None if they are not measured."""
        from pyxbroker.stats.metrics import Turns

        watch = self._loop_watch
        return None if watch is None else Turns(*watch.turns.histogram())

    def disk_usage(self) -> dict[str, tuple[int, int]]:
        """Return the (free, total) bytes of each file system, by the first directory on it."""
        return {} if self._storage is None else self._storage.disk_usage()
