"""The load report of a broker: Pulsar's LocalBrokerData, the value of its registration.

Reading is lenient, as in Pulsar: unknown fields are ignored, and a field that is missing or of
another type has its default. Writing leaves missing URLs out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.broker.listeners import Listeners
from pyxbroker.cluster.addresses import listener_fields
from pyxbroker.settings.sections.cluster import MODULAR
from pyxbroker.settings.sections.load_balancing import LoadBalancing

MS_PER_MINUTE = 60_000

UNKNOWN_KBIT = -1_000.0  # Pulsar's value for interfaces of unknown speed
TYPE = "LocalBrokerData"

T = TypeVar("T")
Json = dict[str, Any]


class ResourceUsage(NamedTuple):
    """The use of one resource: CPU in percent of a core, memory in MiB, bandwidth in kbit/s."""

    usage: float = 0.0
    limit: float = 0.0

    @property
    def percent(self) -> float:
        """The used part of the limit, or 0 if the limit is unknown."""
        return 100 * self.usage / self.limit if self.limit > 0 else 0.0


class BundleStats(NamedTuple):
    """The load of one bundle: Pulsar's NamespaceBundleStats. Rates are per second."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    consumer_count: int = 0
    producer_count: int = 0
    topics: int = 0
    cache_size: int = 0

    @property
    def rate(self) -> float:
        """Messages in both directions."""
        return self.msg_rate_in + self.msg_rate_out

    @property
    def throughput(self) -> float:
        """Bytes in both directions."""
        return self.msg_throughput_in + self.msg_throughput_out

    def fields(self) -> Json:
        """Return Pulsar's fields."""
        return {_camel(name): each for name, each in zip(self._fields, self, strict=True)}


NO_USAGE = ResourceUsage()


class LocalBrokerData(NamedTuple):
    """The load report of a broker."""

    web_service_url: str = ""
    web_service_url_tls: str = ""
    pulsar_service_url: str = ""
    pulsar_service_url_tls: str = ""
    persistent_topics_enabled: bool = True
    non_persistent_topics_enabled: bool = True
    cpu: ResourceUsage = NO_USAGE
    memory: ResourceUsage = NO_USAGE
    direct_memory: ResourceUsage = NO_USAGE
    bandwidth_in: ResourceUsage = NO_USAGE
    bandwidth_out: ResourceUsage = NO_USAGE
    last_update: int = 0
    """Time of the report in ms since the epoch."""
    last_stats: Mapping[str, BundleStats] = {}
    """The load of each bundle with open topics, by its full name."""
    last_bundle_gains: tuple[str, ...] = ()
    last_bundle_losses: tuple[str, ...] = ()
    broker_version_string: str = ""
    protocols: Mapping[str, str] = {}
    advertised_listeners: Mapping[str, Any] = {}
    load_manager_class_name: str = MODULAR
    start_timestamp: int = 0
    pyxbroker_version: str = ""
    """The version of a broker of this kind; empty for others. Pulsar ignores the field."""

    @property
    def total(self) -> BundleStats:
        """The sum over the bundles."""
        if not self.last_stats:
            return BundleStats()
        return BundleStats(*map(sum, zip(*self.last_stats.values(), strict=True)))

    def usage(self, config: LoadBalancing) -> float:
        """Return the highest weighted use of a resource as a fraction of its limit."""
        return (
            max(
                self.cpu.percent * config.loadBalancerCPUResourceWeight,
                self.direct_memory.percent * config.loadBalancerDirectMemoryResourceWeight,
                self.bandwidth_in.percent * config.loadBalancerBandwidthInResourceWeight,
                self.bandwidth_out.percent * config.loadBalancerBandwidthOutResourceWeight,
            )
            / 100
        )

    @property
    def max_usage(self) -> float:
        """The highest use of a resource as a fraction of its limit."""
        parts = (self.cpu, self.direct_memory, self.bandwidth_in, self.bandwidth_out)
        return max(each.percent for each in parts) / 100

    def with_usage(
        self,
        cpu: tuple[float, float],
        memory_mib: tuple[float, float],
        kbit: tuple[float, float],
        kbit_max: float,
    ) -> LocalBrokerData:
        """Return the report with the use of the host, from pairs of usage and limit.

        `kbit` has what is received and sent, and `kbit_max` the limit of each, 0 if it is unknown.
        """
        received, sent = kbit
        return self._replace(
            cpu=ResourceUsage(*cpu),
            memory=ResourceUsage(*memory_mib),
            bandwidth_in=ResourceUsage(received, kbit_max or UNKNOWN_KBIT),
            bandwidth_out=ResourceUsage(sent, kbit_max or UNKNOWN_KBIT),
        )

    def fields(self) -> Json:
        """Return Pulsar's fields."""
        total = self.total
        urls = {name: getattr(self, name) for name in _URLS}
        bundles = sorted(self.last_stats)
        return {
            **{_camel(name): url for name, url in urls.items() if url},
            "persistentTopicsEnabled": self.persistent_topics_enabled,
            "nonPersistentTopicsEnabled": self.non_persistent_topics_enabled,
            **{_camel(name): getattr(self, name)._asdict() for name in _RESOURCES},
            "msgThroughputIn": float(total.msg_throughput_in),
            "msgThroughputOut": float(total.msg_throughput_out),
            "msgRateIn": float(total.msg_rate_in),
            "msgRateOut": float(total.msg_rate_out),
            "lastUpdate": self.last_update,
            "lastStats": {name: self.last_stats[name].fields() for name in bundles},
            "numTopics": total.topics,
            "numBundles": len(bundles),
            "numConsumers": total.consumer_count,
            "numProducers": total.producer_count,
            "bundles": bundles,
            "lastBundleGains": list(self.last_bundle_gains),
            "lastBundleLosses": list(self.last_bundle_losses),
            "brokerVersionString": self.broker_version_string,
            "protocols": dict(self.protocols),
            "advertisedListeners": dict(self.advertised_listeners),
            "loadManagerClassName": self.load_manager_class_name,
            "startTimestamp": self.start_timestamp,
            "maxResourceUsage": self.max_usage,
            "loadReportType": TYPE,
            **({"pyxbrokerVersion": self.pyxbroker_version} if self.pyxbroker_version else {}),
        }


_URLS = LocalBrokerData._fields[:4]
_RESOURCES = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")


def starting_report(listeners: Listeners, version: str, started_ms: int) -> LocalBrokerData:
    """Return the report of a broker without load."""
    own = listeners.own
    return LocalBrokerData(
        own.web_url,
        own.web_url_tls,
        own.broker_url,
        own.broker_url_tls,
        last_update=started_ms,
        broker_version_string=version,
        advertised_listeners=listener_fields(listeners),
        start_timestamp=started_ms,
    )


def read_report(value: bytes) -> LocalBrokerData | None:
    """Return the load report in a registration, or None if it is not a JSON object."""
    try:
        found: Any = json.loads(value)
    except ValueError:
        return None
    return report_of(found) if isinstance(found, dict) else None


def report_of(fields: Mapping[str, Any]) -> LocalBrokerData:
    """Return the load report with Pulsar's fields."""
    defaults = LocalBrokerData(
        persistent_topics_enabled=False, non_persistent_topics_enabled=False
    )._replace(load_manager_class_name="")
    values = {
        name: _value(fields.get(_camel(name)), default)
        for name, default in zip(LocalBrokerData._fields, defaults, strict=True)
    }
    stats = {
        name: _read(each, BundleStats())
        for name, each in values["last_stats"].items()
        if "/" in name
    }
    return LocalBrokerData(**(values | {"last_stats": stats}))


def is_report_due(
    written: LocalBrokerData, now: LocalBrokerData, now_ms: int, config: LoadBalancing
) -> bool:
    """Return True if a broker that wrote a report has to write the current one.

    The caller asks every loadBalancerReportUpdateMinIntervalMillis while it is connected to the
    metadata store.
    """
    longest_ms = config.loadBalancerReportUpdateMaxIntervalMinutes * MS_PER_MINUTE
    if now_ms - written.last_update > longest_ms:
        return True
    before, after = written.total, now.total
    change = max(
        _change(before.rate, after.rate),
        _change(before.throughput, after.throughput),
        _change(len(written.last_stats), len(now.last_stats)),
        100 * abs(written.usage(config) - now.usage(config)),
    )
    return change > config.loadBalancerReportUpdateThresholdPercentage


def gains_and_losses(
    written: LocalBrokerData, now: LocalBrokerData
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the bundles that a report has in addition to the one before, and those it lacks."""
    before, after = written.last_stats.keys(), now.last_stats.keys()
    return tuple(sorted(after - before)), tuple(sorted(before - after))


def _change(before: float, after: float) -> float:
    """Return the change in percent."""
    if before == 0:
        return 0.0 if after == 0 else float("inf")
    return 100 * abs(before - after) / before


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(each.capitalize() for each in rest)


def _read(found: object, default: T) -> T:
    """Return a named tuple with the fields of a JSON object, or its default."""
    fields: Any = default
    if not isinstance(found, dict):
        return default
    values = (
        _value(found.get(_camel(name)), each)
        for name, each in zip(fields._fields, fields, strict=True)
    )
    made: T = type(fields)(*values)
    return made


def _value(found: object, default: Any) -> Any:
    """Return a value of a JSON object if it has the type of the default."""
    if isinstance(default, ResourceUsage):
        return _read(found, default)
    if isinstance(default, tuple):
        texts = found if isinstance(found, list) else []
        return tuple(each for each in texts if isinstance(each, str))
    if isinstance(default, bool) or isinstance(found, bool):
        return found if isinstance(found, bool) and isinstance(default, bool) else default
    if isinstance(default, float):
        return float(found) if isinstance(found, int | float) else default
    return found if isinstance(found, type(default)) else default
