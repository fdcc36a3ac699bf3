"""The choice of bundles to move from loaded brokers to others, as Pulsar's shedding strategies.

The leader asks every loadBalancerSheddingIntervalMinutes. A bundle is not moved again within
loadBalancerSheddingGracePeriodMinutes. Only bundles that another broker may serve are selected; in
Pulsar a bundle that may not move counts as moved load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.cluster.cluster_load import ClusterLoad
from pyxbroker.cluster.placement import (
    Placement,
    Rules,
    apart,
    candidates,
    choose,
    excluded_namespaces,
    group_counts,
    namespace_of,
    overloaded,
)
from pyxbroker.settings.sections.load_balancing import (
    AVG_SHEDDER,
    OVERLOAD_SHEDDER,
    THRESHOLD_SHEDDER,
    UNIFORM_SHEDDER,
    LoadBalancing,
)

MARGIN = 0.05  # of the usage, in excess of what brings a broker to its threshold
LOWER_BOUNDARY_PART = 0.5  # of the largest broker's load that moves towards an idle one
UNIFORM_DELTA = 1_000  # that a bundle may exceed the load to move
SLIVER = 0.05  # of the load to move; smaller bundles stay
MIB = 1 << 20
MIN_RATE = 1.0  # that an idle broker counts as


class Move(NamedTuple):
    """A bundle that moves from a broker to another one."""

    bundle: str
    source: str
    target: str


class Selection(NamedTuple):
    """A bundle to move, and its target if the strategy has chosen one."""

    bundle: str
    source: str
    target: str | None = None


class Shedding:
    """The shedding strategy of the settings, which can change while the broker runs."""

    def __init__(self) -> None:
        self._name = ""
        self._shedder: Shedder = AvgShedder()

    def shedder(self, config: LoadBalancing) -> Shedder:
        """Return the strategy. A new one has no history."""
        if config.loadBalancerLoadSheddingStrategy != self._name:
            self._name = config.loadBalancerLoadSheddingStrategy
            self._shedder = SHEDDERS[self._name]()
        return self._shedder


class Shedder(Protocol):
    """Selects the bundles to move."""

    def select(self, view: View) -> Iterator[Selection]:
        """Yield bundles in the order of their moves. A bundle that is yielded may be left."""


def shed(
    load: ClusterLoad,
    rules: Rules,
    placement: Placement,
    shedding: Shedding,
    now_ms: int,
    config: LoadBalancing,
) -> list[Move]:
    """Return the moves of one check, and count each bundle at its new broker.

    The caller reports a move that fails with ClusterLoad.move_failed.
    """
    if not (config.loadBalancerEnabled and config.loadBalancerSheddingEnabled):
        return []
    if len(load.brokers) < 2:
        return []
    view = View(load, rules, now_ms, config)
    moves = []
    for bundle, source, planned in shedding.shedder(config).select(view):
        targets = view.targets(bundle, source)
        target = planned
        if target is None and targets:
            target = _choose_other(bundle, source, view, placement)
        if target in targets:
            moves.append(Move(bundle, source, target))
            load.move(bundle, source, target, now_ms)
    return moves


class View:
    """The load as a strategy sees it, and the bundles that may move."""

    def __init__(self, load: ClusterLoad, rules: Rules, now_ms: int, config: LoadBalancing) -> None:
        self.load = load
        self.rules = rules
        self.config = config
        self._now_ms = now_ms
        self._excluded = excluded_namespaces(config)

    def usage(self, broker_id: str) -> float:
        """Return the resource usage of a broker as a fraction of its limit."""
        return self.load.usage(broker_id, self.config)

    def count(self, broker_id: str) -> int:
        """Return the number of bundles of a broker."""
        return self.load.sums(broker_id).namespaces.total()

    def movable(
        self, source: str, is_by_rate: bool, target: str | None = None
    ) -> list[tuple[str, float]]:
        """Return the bundles of a broker that may move, with their loads, largest first.

        With a target, only those that may move there.
        """
        found = []
        for bundle in self.load.brokers[source].bundles():
            namespace = namespace_of(bundle)
            if namespace in self._excluded or is_of_one_broker(namespace):
                continue
            if self.load.is_shed_recently(bundle, self._now_ms, self.config):
                continue
            targets = self.targets(bundle, source)
            if targets and (target is None or target in targets):
                average = self.load.data(bundle).short
                found.append((bundle, average.rate if is_by_rate else average.throughput))
        found.sort(key=lambda each: -each[1])
        return found

    def targets(self, bundle: str, source: str) -> list[str]:
        """Return the other brokers that may serve a bundle.

        A bundle of an anti-affinity group moves only where its namespaces stay spread.
        """
        config = self.config
        allowed = candidates(bundle, self.load, self.rules, config)
        others = [each for each in allowed if each != source]
        counts = group_counts(bundle, allowed, self.load, self.rules)
        if counts is None or not others:
            return others
        if source in counts and counts[source] == min(counts.values()):
            return []
        return apart(bundle, others, self.load, self.rules, config)


def heartbeat_namespace(broker_id: str) -> str:
    """Return the namespace that only one broker serves."""
    return f"pulsar/{broker_id}"


def is_of_one_broker(namespace: str) -> bool:
    """Return True for a heartbeat or SLA namespace, whose broker is part of its name."""
    tenant, _, name = namespace.partition("/")
    return tenant == "sla-monitor" or (tenant == "pulsar" and ":" in name)


def _choose_other(bundle: str, source: str, view: View, placement: Placement) -> str | None:
    """Return the broker that placement chooses, as if the source were not there."""
    broker = view.load.brokers.pop(source)
    try:
        return choose(bundle, view.load, view.rules, placement, view.config)
    finally:
        view.load.brokers[source] = broker


# --- strategies -------------------------------------------------------------------------------


class AvgShedder:
    """Evens the usage of the highest and the lowest broker, of the next pair, and so on.

    A pair that differs in enough consecutive checks moves maxUnloadPercentage of its difference.
    Differences from Pulsar, so that few moves are enough: a move takes no broker past the average
    of all. The check continues with the pair that is the highest and the lowest after the moves.
    Bundles below a small part of the difference stay.
    """

    def __init__(self) -> None:
        self._low_hits: dict[str, int] = {}
        self._high_hits: dict[str, int] = {}

    def select(self, view: View) -> Iterator[Selection]:
        """Yield bundles with the lower broker of their pair as their target."""
        config = view.config
        scores = {each: view.usage(each) for each in view.load.brokers}
        low = config.loadBalancerAvgShedderLowThreshold / 100
        high = config.loadBalancerAvgShedderHighThreshold / 100
        is_hit = False
        for lower, higher in _pairs(scores):
            gap = scores[higher] - scores[lower]
            low_hits = _count(self._low_hits, lower, higher, gap >= low)
            high_hits = _count(self._high_hits, lower, higher, gap >= high)
            is_hit |= (
                low_hits >= config.loadBalancerAvgShedderHitCountLowThreshold
                or high_hits >= config.loadBalancerAvgShedderHitCountHighThreshold
            )
        if not is_hit:
            return
        self._low_hits, self._high_hits = {}, {}
        done: set[tuple[str, str]] = set()
        for _ in scores:
            scores = {each: view.usage(each) for each in view.load.brokers}
            for pair in _pairs(scores):
                lower, higher = pair
                if pair not in done and scores[higher] - scores[lower] >= low:
                    done.add(pair)
                    yield from _even(view, lower, higher)


def _pairs(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the lowest and the highest broker, the second lowest and highest, and so on."""
    ranked = sorted(scores, key=lambda each: (scores[each], each))
    return list(zip(ranked, reversed(ranked), strict=True))[: (len(ranked) + 1) // 2]


def _count(hits: dict[str, int], lower: str, higher: str, is_hit: bool) -> int:
    """Count a check for a pair, and return the higher one of its counts."""
    for each in {lower, higher}:
        if is_hit:
            hits[each] = hits.get(each, 0) + 1
        else:
            hits.pop(each, None)
    return max(hits.get(lower, 0), hits.get(higher, 0))


def _even(view: View, lower: str, higher: str) -> Iterator[Selection]:
    """Yield bundles that even the messages of two brokers, or else their bytes, largest first."""
    config = view.config
    sums = {each: view.load.sums(each) for each in view.load.brokers}
    left = _excess({each: found.rate for each, found in sums.items()}, lower, higher, config)
    is_by_rate = left > config.minUnloadMessage
    if not is_by_rate:
        left = _excess(
            {each: found.throughput for each, found in sums.items()}, lower, higher, config
        )
        if left <= config.minUnloadMessageThroughput:
            return
    least = left * SLIVER
    for bundle, traffic in view.movable(higher, is_by_rate, lower):
        if least < traffic <= left:
            left -= traffic
            yield Selection(bundle, higher, lower)


def _excess(loads: Mapping[str, float], lower: str, higher: str, config: LoadBalancing) -> float:
    """Return the load to move, which takes neither broker past the average."""
    gap = loads[higher] - loads[lower]
    average = sum(loads.values()) / len(loads)
    excess = min(loads[higher] - average, average - loads[lower])
    return min(gap * config.maxUnloadPercentage, excess if excess > 0 else gap)


class ThresholdShedder:
    """Unloads brokers whose smoothed usage exceeds the average of all by a threshold."""

    def __init__(self) -> None:
        self._averages: dict[str, float] = {}

    def select(self, view: View) -> Iterator[Selection]:
        """Yield bundles of each broker above the threshold."""
        config = view.config
        history = config.loadBalancerHistoryResourcePercentage
        self._averages = {
            each: self._averages.get(each, 0.0) * history + (1 - history) * view.usage(each)
            for each in view.load.brokers
        }
        average = sum(self._averages.values()) / len(self._averages)
        threshold = config.loadBalancerBrokerThresholdShedderPercentage / 100
        is_any = False
        for broker, usage in self._averages.items():
            if usage >= average + threshold:
                part = usage - average - threshold + MARGIN
                for each in _largest(view, broker, part, _least_throughput(config)):
                    is_any = True
                    yield each
        if not is_any and config.lowerBoundarySheddingEnabled:
            lowest = min(self._averages.values())
            highest = max(self._averages, key=lambda each: self._averages[each])
            if lowest < average - threshold:
                least = _least_throughput(config)
                yield from _largest(view, highest, threshold * LOWER_BOUNDARY_PART, least)


class OverloadShedder:
    """Unloads brokers whose usage is above the overload threshold."""

    def select(self, view: View) -> Iterator[Selection]:
        """Yield bundles of each overloaded broker."""
        most = overloaded(view.config)
        for broker in list(view.load.brokers):
            usage = view.usage(broker)
            if usage >= most:
                yield from _largest(view, broker, usage - most + MARGIN, 0.0)


def _least_throughput(config: LoadBalancing) -> float:
    return config.loadBalancerBundleUnloadMinThroughputThreshold * MIB


def _largest(view: View, broker: str, part: float, least: float) -> Iterator[Selection]:
    """Yield the largest bundles that make up a part of a broker's bytes, at least one.

    None if that is less than `least` bytes per second, or if the broker has only one bundle.
    """
    left = view.load.sums(broker).throughput * part
    if left < least or view.count(broker) < 2:
        return
    for bundle, traffic in view.movable(broker, is_by_rate=False):
        yield Selection(bundle, broker)
        left -= traffic
        if left <= 0:
            return


class UniformLoadShedder:
    """Unloads the broker with the most messages or bytes if another has much less."""

    def select(self, view: View) -> Iterator[Selection]:
        """Yield bundles of the broker with the most messages, or else with the most bytes."""
        config = view.config
        sums = {each: view.load.sums(each) for each in view.load.brokers}
        rates = {each: found.rate for each, found in sums.items()}
        bytes_ = {each: found.throughput for each, found in sums.items()}
        high, low = max(rates.values()), min(rates.values()) or MIN_RATE
        gap = config.loadBalancerMsgRateDifferenceShedderThreshold
        if gap > 0 and 100 * (high - low) / low > gap:
            yield from _uniform(view, rates, True, config.minUnloadMessage)
            return
        high, low = max(bytes_.values()), min(bytes_.values()) or MIN_RATE
        ratio = config.loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold
        if ratio > 0 and high / low > ratio:
            yield from _uniform(view, bytes_, False, config.minUnloadMessageThroughput)


def _uniform(
    view: View, loads: dict[str, float], is_by_rate: bool, least: float
) -> Iterator[Selection]:
    source = max(loads, key=lambda each: loads[each])
    left = (loads[source] - min(loads.values())) * view.config.maxUnloadPercentage
    if view.count(source) < 2 or left < least:
        return
    most = view.config.maxUnloadBundleNumPerShedding
    for bundle, traffic in view.movable(source, is_by_rate):
        if most == 0:
            return
        if 0 < traffic <= left + UNIFORM_DELTA:
            left -= traffic
            most -= 1
            yield Selection(bundle, source)


SHEDDERS: dict[str, type[AvgShedder | ThresholdShedder | OverloadShedder | UniformLoadShedder]] = {
    AVG_SHEDDER: AvgShedder,
    THRESHOLD_SHEDDER: ThresholdShedder,
    OVERLOAD_SHEDDER: OverloadShedder,
    UNIFORM_SHEDDER: UniformLoadShedder,
}
