"""The load of all brokers and bundles of a cluster, as a leader knows it from the load reports.

A report is up to 15 minutes old and does not have what the leader has decided since. So the leader
adds each bundle that it places or moves to the load of its new broker, and takes a moved bundle
from the load of its old one, until their reports show the change.

This is a machine without input and output: the caller passes reports and times.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.cluster.load_report import BundleStats, LocalBrokerData
from pyxbroker.cluster.time_averages import UNSEEN, BundleData
from pyxbroker.settings.sections.load_balancing import LoadBalancing

SETTLE_MS = 120_000
"""Time after which a report shows a placed or moved bundle with its load, and the broker without.

Brokers measure once a minute over the minute before.
"""
HISTORY = 0.5  # weight of earlier reports in the usage per message
MS_PER_MINUTE = 60_000


class Sums(NamedTuple):
    """The sums over the bundles of a broker. Rates are per second, in both directions."""

    rate: float
    """Messages, as a short average."""
    throughput: float
    """Bytes, as a short average."""
    long_rate: float
    """Messages, as a long average."""
    topics: int
    namespaces: Counter[str]
    """The number of bundles in each namespace."""


class BrokerLoad:
    """The load of one broker."""

    def __init__(self, report: LocalBrokerData) -> None:
        self.report = report
        self.sums: Sums | None = None  # None: not computed since the last change
        # Bundles that the report does not show yet, with the times in ms of their changes.
        self.arriving: dict[str, int] = {}
        self.leaving: dict[str, int] = {}
        # When the broker got or lost a bundle.
        self.gained_ms = report.last_update
        self.lost_ms = -SETTLE_MS
        self.usage_per_message = 0.0
        self._is_settled = False

    def bundles(self) -> Iterator[str]:
        """Yield the full names of the bundles that the broker has or gets."""
        for each in self.report.last_stats:
            if each not in self.leaving and each not in self.arriving:
                yield each
        yield from self.arriving

    def measure(self, config: LoadBalancing) -> None:
        """Take the usage per message from a new report.

        After a loss, the report has usage by bundles that have left. After a gain it has few of
        their messages, so that it counts only while nothing better is known.
        """
        usage, rate = self.report.usage(config), self.report.total.rate
        before, settled_ms = self.usage_per_message, self.report.last_update - SETTLE_MS
        if not rate or (before and settled_ms < self.lost_ms):
            return
        if settled_ms < self.gained_ms:
            self.usage_per_message = before if self._is_settled else usage / rate
            return
        history = HISTORY if self._is_settled else 0.0
        self.usage_per_message = history * before + (1 - history) * usage / rate
        self._is_settled = True


class ClusterLoad:
    """The load of the brokers of a cluster and of their bundles."""

    def __init__(self) -> None:
        self.brokers: dict[str, BrokerLoad] = {}
        self.bundles: dict[str, BundleData] = {}
        self._shed: dict[str, tuple[int, str]] = {}  # when, and the broker it left
        self._gained: dict[str, int] = {}  # when its broker got it

    # --- reports ------------------------------------------------------------------------------

    def report(self, broker_id: str, report: LocalBrokerData, config: LoadBalancing) -> None:
        """Take a broker's report. One that equals the report before changes nothing."""
        broker = self.brokers.get(broker_id)
        if broker is None:
            broker = self.brokers[broker_id] = BrokerLoad(report)
        elif report == broker.report:
            return
        before, after = broker.report.last_stats.keys(), report.last_stats.keys()
        if after - before:
            broker.gained_ms = report.last_update
        if before - after:
            broker.lost_ms = report.last_update
        broker.report = report
        for each in self.brokers.values():
            each.sums = None
        for name, stats in report.last_stats.items():
            self._sample(name, stats, report.last_update)
        self._settle(broker)
        broker.measure(config)

    def keep(self, broker_ids: Iterable[str]) -> None:
        """Forget the brokers that are not registered, and what was to move to or from them."""
        kept = set(broker_ids)
        for broker_id in self.brokers.keys() - kept:
            del self.brokers[broker_id]

    @contextlib.contextmanager
    def without(self, broker_ids: Iterable[str]) -> Iterator[None]:
        """Leave brokers out of the decisions that the body of a `with` statement takes."""
        left_out = {each: self.brokers.pop(each) for each in broker_ids if each in self.brokers}
        try:
            yield
        finally:
            self.brokers |= left_out

    def forget_inactive(self) -> list[str]:
        """Forget the bundles that no broker has, and return their names."""
        active = {name for each in self.brokers.values() for name in each.bundles()}
        inactive = sorted(self.bundles.keys() - active)
        for name in inactive:
            del self.bundles[name]
            self._gained.pop(name, None)
        return inactive

    def _sample(self, bundle: str, stats: BundleStats, at_ms: int) -> None:
        """Add a sample to the averages of a bundle.

        The first samples at a broker cover less than a minute. They count only while nothing better
        is known, and each replaces the one before.
        """
        data = self.bundles.get(bundle, UNSEEN)
        if at_ms >= self._gained.setdefault(bundle, at_ms) + SETTLE_MS:
            self.bundles[bundle] = data.updated(stats)
        elif data.long.samples <= 1 and bundle not in self._shed:
            self.bundles[bundle] = UNSEEN.updated(stats)

    def _settle(self, broker: BrokerLoad) -> None:
        """Drop the changes that the report of a broker shows, and those that did not happen."""
        stats = broker.report.last_stats
        at_ms = broker.report.last_update
        for name, since_ms in list(broker.arriving.items()):
            # An earlier report may show a bundle that has left since, and returns.
            if (name in stats and at_ms >= since_ms) or at_ms > since_ms + SETTLE_MS:
                del broker.arriving[name]
        for name, since_ms in list(broker.leaving.items()):
            if name not in stats or at_ms > since_ms + SETTLE_MS:
                del broker.leaving[name]

    # --- decisions ----------------------------------------------------------------------------

    def data(self, bundle: str) -> BundleData:
        """Return the average load of a bundle."""
        return self.bundles.get(bundle, UNSEEN)

    def set_data(self, bundle: str, data: BundleData) -> None:
        """Set the average load of an unseen bundle, as an earlier leader has stored it."""
        self.bundles.setdefault(bundle, data)

    def place(self, bundle: str, broker_id: str, now_ms: int) -> None:
        """Count a bundle without an owner as one of a broker."""
        broker = self.brokers[broker_id]
        if bundle in broker.report.last_stats or bundle in broker.arriving:
            return
        data, sums = self.data(bundle), self.sums(broker_id)
        broker.arriving[bundle] = self._gained[bundle] = now_ms
        sums.namespaces[bundle.rpartition("/")[0]] += 1
        broker.sums = Sums(
            sums.rate + data.short.rate,
            sums.throughput + data.short.throughput,
            sums.long_rate + data.long.rate,
            sums.topics + data.topics,
            sums.namespaces,
        )

    def move(self, bundle: str, source: str, target: str, now_ms: int) -> None:
        """Count a bundle as one of the target instead of the source."""
        old, new = self.brokers[source], self.brokers[target]
        if old.arriving.pop(bundle, None) is None or bundle in old.report.last_stats:
            old.leaving[bundle] = now_ms
        new.leaving.pop(bundle, None)
        new.arriving[bundle] = self._gained[bundle] = now_ms
        old.lost_ms = new.gained_ms = now_ms
        old.sums = new.sums = None
        self._shed[bundle] = (now_ms, source)

    def plan(self, bundle: str, target: str, now_ms: int) -> None:
        """Count a bundle as one of the target. Old reports may show it at any broker."""
        new = self.brokers[target]
        for source, broker in self.brokers.items():
            if source != target and bundle in broker.bundles():
                self.move(bundle, source, target, now_ms)
        if bundle not in new.arriving:
            new.leaving.pop(bundle, None)
            new.arriving[bundle] = self._gained[bundle] = new.gained_ms = now_ms
            new.sums = None

    def move_failed(self, bundle: str, source: str, target: str) -> None:
        """Count a bundle as one of the source again. It is not moved again in the grace period."""
        for broker_id in (source, target):
            if broker_id in self.brokers:
                self.brokers[broker_id].leaving.pop(bundle, None)
                self.brokers[broker_id].arriving.pop(bundle, None)
                self.brokers[broker_id].sums = None

    def is_shed_recently(self, bundle: str, now_ms: int, config: LoadBalancing) -> bool:
        """Return True within loadBalancerSheddingGracePeriodMinutes after a move."""
        shed = self._shed.get(bundle)
        grace_ms = config.loadBalancerSheddingGracePeriodMinutes * MS_PER_MINUTE
        if shed is not None and now_ms - shed[0] >= grace_ms:
            del self._shed[bundle]
            shed = None
        return shed is not None

    def expected(self, bundle: str) -> str:
        """Return the broker where a bundle is placed or moved to, or "" if reports show it."""
        for broker_id, broker in self.brokers.items():
            if bundle in broker.arriving:
                return broker_id
        return ""

    def left(self, bundle: str) -> str:
        """Return the broker that a bundle leaves, or "" if it is not being moved."""
        shed = self._shed.get(bundle)
        if shed is None or shed[1] not in self.brokers:
            return ""
        return shed[1] if bundle in self.brokers[shed[1]].leaving else ""

    # --- sums ---------------------------------------------------------------------------------

    def sums(self, broker_id: str) -> Sums:
        """Return the sums over the bundles that a broker has or gets."""
        broker = self.brokers[broker_id]
        if broker.sums is None:
            names = list(broker.bundles())
            found = [self.data(name) for name in names]
            broker.sums = Sums(
                sum(each.short.rate for each in found),
                sum(each.short.throughput for each in found),
                sum(each.long.rate for each in found),
                sum(each.topics for each in found),
                Counter(name.rpartition("/")[0] for name in names),
            )
        return broker.sums

    def usage(self, broker_id: str, config: LoadBalancing) -> float:
        """Return the highest weighted use of a resource as a fraction of its limit.

        It follows from the messages of the bundles that the broker has now.
        """
        broker = self.brokers[broker_id]
        rate = self.sums(broker_id).rate
        if broker.usage_per_message:
            return broker.usage_per_message * rate
        # It has had no messages yet: those that it gets cost as much as at the others.
        known = [each.usage_per_message for each in self.brokers.values() if each.usage_per_message]
        return broker.report.usage(config) + rate * sum(known) / max(len(known), 1)

    def largest(self, config: LoadBalancing, excluded: Iterable[str] = ()) -> list[str]:
        """Return the bundles whose averages the leader stores, largest first."""
        count = config.loadBalancerMaxNumberOfBundlesInBundleLoadReport * len(self.brokers)
        out = frozenset(excluded)
        names = [each for each in self.bundles if each.rpartition("/")[0] not in out]
        names.sort(key=lambda each: self.bundles[each].short.throughput, reverse=True)
        return names[:count] if count else names
