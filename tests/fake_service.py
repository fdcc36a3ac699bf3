"""A broker service that is not one: what the web side asks for, with numbers of the test's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast

from pyxbroker.add_stats import BOUNDS_US, NO_ADDS
from pyxbroker.auth.audit import Audit
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.failed_logins import FailedLogins
from pyxbroker.auth.permissions import Permissions
from pyxbroker.base.errors import PulsarError
from pyxbroker.base.histogram import Histogram
from pyxbroker.base.rates import Rates
from pyxbroker.broker.client_memory import ClientMemory
from pyxbroker.broker.clusters import Clusters
from pyxbroker.broker.listeners import Addresses, Listeners
from pyxbroker.broker.lookup import SERVE_ALL
from pyxbroker.broker.tenants import Tenants
from pyxbroker.broker.topics.upkeep import QUOTA_CHECK_BOUNDS_S
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.settings.config import Config
from pyxbroker.stats.broker_series import BrokerStats, LedgerErrors
from pyxbroker.stats.latencies import Latency
from pyxbroker.stats.metrics import Turns

STORAGE = dict.fromkeys(
    "adds add_bytes groups syncs sync_ns_total sync_ns_max journal_bytes queue_adds flushes"
    " flush_bytes cache_bytes dirty_bytes entry_logs entry_log_bytes ledgers entries cache_hits"
    " disk_reads damaged_entries replayed_entries trouble waiting_groups disk_read_bytes".split(),
    0,
)


@dataclass
class Subscription:
    name: str
    consumers: int = 0
    backlog: int = 0
    unacked_messages: int = 0
    msg_out: int = 0
    bytes_out: int = 0
    delayed: int = 0
    stopped_by_damage: str | None = None
    consumer_stats: tuple[Any, ...] = ()
    rate_out: float = 0.0
    throughput_out: float = 0.0
    rates: Rates | None = None
    is_blocked: int = 0
    in_replay: int = 0
    delayed_index_bytes: int = 0
    rate_redelivered: float = 0.0
    rate_acked: float = 0.0
    rate_dropped: float = 0.0
    rate_expired: float = 0.0
    expired: int = 0
    last_expired_ms: int = 0
    last_acked_ms: int = 0
    last_flow_ms: int = 0
    last_sent_ms: int = 0
    last_advanced_ms: int = 0
    backlog_age_s: int = -1
    throttled: Any = None
    ack_ranges: int = 0

    @property
    def due_backlog(self) -> int:
        return self.backlog - self.delayed

    def look(self, now: float) -> None:
        """Brings the rates up to date."""
        self.rates = self.rates or Rates(now, self.msg_out, self.bytes_out)
        rates = self.rates.per_second(now, self.msg_out, self.bytes_out)
        self.rate_out, self.throughput_out = rates


@dataclass
class Topic:
    name: str
    namespace: str
    producers: int = 0
    consumers: int = 0
    subscriptions: list[Subscription] = field(default_factory=list)
    msg_in: int = 0
    bytes_in: int = 0
    msg_out: int = 0
    bytes_out: int = 0
    storage_size: int = 0
    backlog_size: int = 0
    publish_rate_limited: int = 0
    storage_write_rate: float = 0.0
    storage_read_rate: float = 0.0
    backlog_size_limit: int = -1
    backlog_age_limit: int = -1
    last_adds: tuple[int, ...] = NO_ADDS
    producer_stats: tuple[Any, ...] = ()
    rate_in: float = 0.0
    throughput_in: float = 0.0
    rates: Rates | None = None
    compaction: Any = None
    is_system: bool = False
    read_miss_rate: float = 0.0
    mean_size: float = 0.0
    backlog_age_s: int = -1
    delayed_index_bytes: int = 0
    evictions: Any = None
    transactions: Any = None

    def look(self, now: float) -> None:
        """Brings the rates up to date."""
        self.rates = self.rates or Rates(now, self.msg_in, self.bytes_in)
        self.rate_in, self.throughput_in = self.rates.per_second(now, self.msg_in, self.bytes_in)
        for each in self.subscriptions:
            each.look(now)

    @property
    def subscription_count(self) -> int:
        return len(self.subscriptions)

    @property
    def backlog(self) -> int:
        return sum(each.backlog for each in self.subscriptions)

    @property
    def delayed(self) -> int:
        return sum(each.delayed for each in self.subscriptions)

    @property
    def in_replay(self) -> int:
        return sum(each.in_replay for each in self.subscriptions)

    @property
    def rate_acked(self) -> float:
        return sum(each.rate_acked for each in self.subscriptions)

    @property
    def rate_out(self) -> float:
        return sum(each.rate_out for each in self.subscriptions)

    @property
    def throughput_out(self) -> float:
        return sum(each.throughput_out for each in self.subscriptions)


class FakeService:
    """Answers lookups of any topic, unless `refusal` is set; is well, unless `broken` is set."""

    def __init__(self, metadata: MemoryStore, config: Config | None = None) -> None:
        self.config = config or Config()
        self.metadata = metadata
        self.authentication: Authentication | None = None
        self.permissions: Permissions | None = None
        self.audit = Audit(self.config)
        self.failed_logins = FailedLogins(self.config)
        self.topics: Any = None  # nothing that the tests of this service ask for
        self.clusters = Clusters(metadata, MetadataCache(metadata), lambda: cast(Tenants, None))
        self.loaded: list[Topic] = []
        self.running: list[Any] = []  # transaction coordinators
        self.client_memory = ClientMemory()
        self.storage: Mapping[str, int] = dict(STORAGE)
        self.took: Mapping[str, Latency] = {}
        self.stats = BrokerStats(
            "host", {}, Histogram(QUOTA_CHECK_BOUNDS_S), {}, LedgerErrors({}, {})
        )
        self.broken: str | None = None
        self.refusal: PulsarError | None = None
        self.ownership = SERVE_ALL
        self.peers = self.cluster = None
        self.looked_up: list[str] = []
        self.clock: Callable[[], float] = time.monotonic

    async def lookup(
        self, topic_name: str, listener: str = "", client: str = "", authoritative: bool = False
    ) -> Addresses:
        self.looked_up.append(topic_name)
        if self.refusal is not None:
            raise self.refusal
        return Listeners(Addresses("pulsar://localhost:6650", "http://localhost:8080")).of(listener)

    @property
    def broker_id(self) -> str:
        return "host:8080"

    def failure(self) -> str | None:
        return self.broken

    def topic_stats(self) -> Iterator[Topic]:
        for each in self.loaded:
            each.look(self.clock())
            yield each

    def disk_usage(self) -> Mapping[str, tuple[int, int]]:
        return {"/data/bookie-1": (75, 100)}

    def refused_sends(self) -> int:
        return 3

    def client_state(self) -> ClientMemory:
        state = ClientMemory()
        state.used, state.refused, state.closed = 4096, 5, 1
        return state

    def refused_connections(self) -> Mapping[str, int]:
        return {"brokerMaxConnections": 4}

    def closed_connections(self) -> Mapping[str, int]:
        return {"maxHalfOpenConnections": 5}

    def stray_commands(self) -> Mapping[str, int]:
        return {"FLOW": 2}

    async def broker_stats(self) -> BrokerStats:
        return self.stats

    def coordinators(self) -> Sequence[Any]:
        return self.running

    def turns(self) -> Turns:
        return Turns([(0.001, 5), (0.1, 2), (inf, 1)], 0.75)

    def unknown_ledgers(self) -> list[int]:
        return [7, 8]

    def entry_cache(self) -> Mapping[str, int]:
        return {}

    def bookie_client(self) -> None:
        return None

    def storage_stats(self) -> Mapping[str, int]:
        return self.storage

    def latencies(self) -> Mapping[str, Latency]:
        return self.took

    @property
    def latency_bounds_us(self) -> Sequence[int]:
        return BOUNDS_US
