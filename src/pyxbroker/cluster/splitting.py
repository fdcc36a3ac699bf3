"""Splits of bundles: the conditions of Pulsar's BundleSplitterTask, and its four algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from pyxbroker.base.bundles import Bundle
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.cluster.cluster_load import ClusterLoad
from pyxbroker.cluster.placement import Rules
from pyxbroker.cluster.shedding import View
from pyxbroker.settings.sections.load_balancing import LoadBalancing

MIB = 1 << 20


class TopicLoad(NamedTuple):
    """The load of a topic, per second and in both directions."""

    hash: int
    rate: float
    """Messages."""
    throughput: float
    """Bytes."""


class Split(NamedTuple):
    """A bundle to split."""

    bundle: str
    broker_id: str
    is_unloaded: bool
    """Other brokers may take the parts."""


def bundles_to_split(
    load: ClusterLoad, rules: Rules, count: Callable[[str], int], now_ms: int, config: LoadBalancing
) -> list[Split]:
    """Return the bundles to split. `count` returns the number of bundles of a namespace.

    A namespace does not get more than loadBalancerNamespaceMaximumBundles.
    """
    if not (config.loadBalancerEnabled and config.loadBalancerAutoBundleSplitEnabled):
        return []
    if len(load.brokers) < 2:
        return []
    found = []
    view = View(load, rules, now_ms, config)
    free: dict[str, int] = {}
    most = config.loadBalancerNamespaceMaximumBundles
    for broker_id, broker in load.brokers.items():
        for bundle in broker.report.last_stats:
            if bundle in broker.leaving or not _is_large(bundle, broker_id, load, config):
                continue
            namespace = bundle.rpartition("/")[0]
            left = free.setdefault(namespace, most - count(namespace))
            if left > 0:
                free[namespace] = left - 1
                is_unloaded = config.loadBalancerAutoUnloadSplitBundlesEnabled and bool(
                    view.targets(bundle, broker_id)
                )
                found.append(Split(bundle, broker_id, is_unloaded))
    return found


def _is_large(bundle: str, broker_id: str, load: ClusterLoad, config: LoadBalancing) -> bool:
    stats = load.brokers[broker_id].report.last_stats[bundle]
    average = load.data(bundle).long
    sessions = config.loadBalancerNamespaceBundleMaxSessions
    return stats.topics >= 2 and (
        stats.topics > config.loadBalancerNamespaceBundleMaxTopics
        or 0 < sessions < stats.producer_count + stats.consumer_count
        or average.rate > config.loadBalancerNamespaceBundleMaxMsgRate
        or average.throughput > config.loadBalancerNamespaceBundleMaxBandwidthMbytes * MIB
    )


# --- algorithms -------------------------------------------------------------------------------


def halves(bundle: Bundle) -> list[int]:
    """Return the boundary that splits a bundle into equal ranges; empty if it has one hash."""
    middle = bundle.lower + (bundle.upper - bundle.lower) // 2
    return [middle] if middle > bundle.lower else []


def halves_by_topics(bundle: Bundle, hashes: list[int]) -> list[int]:
    """Return the boundary that splits a bundle into halves with equally many topics.

    `hashes` are those of its topics, sorted. The result is empty for fewer than two topics.
    """
    if len(hashes) <= 1:
        return []
    before, behind = hashes[len(hashes) // 2 - 1], hashes[len(hashes) // 2]
    middle = before + (behind - before) // 2
    return [middle] if bundle.lower < middle < bundle.upper else []


def at_positions(bundle: Bundle, topics: int, positions: list[int]) -> list[int]:
    """Return the given positions that lie within the bundle; empty for fewer than two topics."""
    if topics <= 1:
        return []
    return sorted({each for each in positions if bundle.lower < each < bundle.upper})


def by_load(bundle: Bundle, topics: Iterable[TopicLoad], config: LoadBalancing) -> list[int]:
    """Return boundaries between which no range exceeds the rates of a bundle, if topics allow.

    Empty for fewer than two topics with load, and up to the maximum rates plus
    flowOrQpsDifferenceThresholdPercentage.
    """
    busy = sorted(each for each in topics if each.rate > 0 or each.throughput > 0)
    most_rate = config.loadBalancerNamespaceBundleMaxMsgRate
    most_bytes = config.loadBalancerNamespaceBundleMaxBandwidthMbytes * MIB
    excess = 1 + config.flowOrQpsDifferenceThresholdPercentage / 100
    if len(busy) < 2 or (
        sum(each.rate for each in busy) < most_rate * excess
        and sum(each.throughput for each in busy) < most_bytes * excess
    ):
        return []
    found = []
    rate, throughput = busy[0].rate, busy[0].throughput
    for before, each in pairwise(busy):
        if rate + each.rate > most_rate or throughput + each.throughput > most_bytes:
            middle = before.hash + (each.hash - before.hash) // 2 + 1
            if bundle.lower < middle < bundle.upper:
                found.append(middle)
            rate = throughput = 0.0
        rate += each.rate
        throughput += each.throughput
    return sorted(set(found))
