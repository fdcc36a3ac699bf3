"""The choice of a broker for a bundle, as in Pulsar's ModularLoadManagerImpl.

Rules narrow the brokers down one after the other, and a strategy selects one of the rest. A rule
that no broker fulfils is left out, except the isolation policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from random import Random
from typing import Protocol

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.cluster.cluster_load import ClusterLoad
from pyxbroker.cluster.isolation import Isolation
from pyxbroker.settings.sections.cluster import MODULAR
from pyxbroker.settings.sections.load_balancing import (
    AVG_SHEDDER,
    LEAST_RATE,
    LEAST_USAGE,
    ROUND_ROBIN,
    LoadBalancing,
)

SYSTEM_NAMESPACE = "pulsar/system"
DEFAULT_DOMAIN = "default"  # of brokers without a failure domain
INFINITE = float("inf")


class Rules(NamedTuple):
    """The policies that decide where a bundle may go."""

    isolation: Isolation
    anti_affinity: Mapping[str, str] = {}
    """The anti-affinity group of each namespace that has one."""
    domains: Mapping[str, str] = {}
    """The failure domain of each broker that has one."""

    def group(self, namespace: str) -> str:
        """Return the anti-affinity group of a namespace, or "". Case does not matter."""
        return self.anti_affinity.get(namespace, "").strip().lower()


NO_RULES = Rules(Isolation())


class Strategy(Protocol):
    """Selects one of the brokers that a bundle may go to."""

    def select(
        self, candidates: list[str], bundle: str, load: ClusterLoad, config: LoadBalancing
    ) -> str:
        """Return one of the candidates, of which there is at least one."""


class Placement:
    """The strategy of the settings, with a second one for namespaces that are not balanced."""

    def __init__(self, config: LoadBalancing, random: Random) -> None:
        self.strategy = STRATEGIES[config.loadBalancerLoadPlacementStrategy](random)
        self.in_turn = RoundRobin(random)

    def strategy_of(self, bundle: str, config: LoadBalancing) -> Strategy:
        """Return the strategy for a bundle."""
        excluded = namespace_of(bundle) in excluded_namespaces(config)
        return self.in_turn if excluded else self.strategy


def choose(
    bundle: str,
    load: ClusterLoad,
    rules: Rules,
    placement: Placement,
    config: LoadBalancing,
    *,
    is_persistent: bool = True,
) -> str | None:
    """Return the broker for a bundle without an owner, or None if no broker may serve it.

    The caller counts it there with ClusterLoad.place; the next choice is the same until a report
    shows the bundle. A bundle that is being moved does not return to the broker that it leaves
    while another one may serve it.
    """
    allowed = candidates(bundle, load, rules, config, is_persistent=is_persistent)
    expected, leaving = load.expected(bundle), load.left(bundle)
    if expected in allowed:
        return expected
    allowed = [each for each in allowed if each != leaving] or allowed
    if not allowed:
        return None
    left = _filtered(bundle, allowed, load, rules, config)
    broker = placement.strategy_of(bundle, config).select(left, bundle, load, config)
    if load.usage(broker, config) > overloaded(config):
        left = apart(bundle, allowed, load, rules, config)
        broker = placement.strategy.select(left, bundle, load, config)
    return broker


def candidates(
    bundle: str,
    load: ClusterLoad,
    rules: Rules,
    config: LoadBalancing,
    *,
    is_persistent: bool = True,
) -> list[str]:
    """Return the brokers that may serve a bundle by isolation policies and kind of topics."""
    brokers = load.brokers
    able = sorted(
        each
        for each, broker in brokers.items()
        if (
            broker.report.persistent_topics_enabled
            if is_persistent
            else broker.report.non_persistent_topics_enabled
        )
    )
    return rules.isolation.candidates(
        namespace_of(bundle), able, lambda each: 100 * load.usage(each, config)
    )


def namespace_of(bundle: str) -> str:
    """Return the namespace of a bundle's full name."""
    return bundle.rpartition("/")[0]


def excluded_namespaces(config: LoadBalancing) -> set[str]:
    """Return the namespaces whose bundles are not moved."""
    return {each.strip() for each in config.loadBalancerSheddingExcludedNamespaces.split(",")}


def overloaded(config: LoadBalancing) -> float:
    """Return the resource usage above which a broker is overloaded."""
    return config.loadBalancerBrokerOverloadedThresholdPercentage / 100


# --- filters ----------------------------------------------------------------------------------


def _filtered(
    bundle: str, allowed: list[str], load: ClusterLoad, rules: Rules, config: LoadBalancing
) -> list[str]:
    """Return the brokers that fulfil all other rules, or else all allowed ones."""
    most = config.loadBalancerBrokerMaxTopics
    left = [each for each in allowed if load.sums(each).topics <= most] or allowed
    left = apart(bundle, left, load, rules, config)
    namespace = namespace_of(bundle)
    if config.loadBalancerDistributeBundlesEvenlyEnabled or namespace == SYSTEM_NAMESPACE:
        left = _least(left, {each: load.sums(each).namespaces[namespace] for each in left})
    left = [
        each for each in left if load.brokers[each].report.load_manager_class_name == MODULAR
    ] or left
    if config.preferLaterVersions:
        left = _latest({each: load.brokers[each].report.broker_version_string for each in left})
    return left or allowed


def apart(
    bundle: str, brokers: list[str], load: ClusterLoad, rules: Rules, config: LoadBalancing
) -> list[str]:
    """Return the brokers with the fewest namespaces of the bundle's anti-affinity group.

    With failureDomainsEnabled, only brokers of the domains with the fewest of them are left.
    """
    counts = group_counts(bundle, brokers, load, rules)
    if counts is None:
        return brokers
    if config.failureDomainsEnabled and rules.domains:
        domains = {each: rules.domains.get(each, DEFAULT_DOMAIN) for each in brokers}
        of_domain = dict.fromkeys(domains.values(), 0)
        for each in brokers:
            of_domain[domains[each]] += counts[each]
        brokers = _least(brokers, {each: of_domain[domains[each]] for each in brokers})
    return _least(brokers, counts)


def group_counts(
    bundle: str, brokers: Iterable[str], load: ClusterLoad, rules: Rules
) -> dict[str, int] | None:
    """Return the number of namespaces of the bundle's anti-affinity group on each broker.

    None: the namespace has no group. Bundles of the namespace itself count, too.
    """
    group = rules.group(namespace_of(bundle))
    if not group:
        return None
    members = [each for each in rules.anti_affinity if rules.group(each) == group]
    return {
        each: sum(load.sums(each).namespaces[member] > 0 for member in members) for each in brokers
    }


def _least(brokers: list[str], counts: Mapping[str, float]) -> list[str]:
    least = min((counts[each] for each in brokers), default=0)
    return [each for each in brokers if counts[each] == least]


_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def _latest(versions: Mapping[str, str]) -> list[str]:
    """Return the brokers with the latest version; all of them if one cannot be read."""
    found = {each: _VERSION.match(version) for each, version in versions.items()}
    if None in found.values():
        return list(versions)
    numbers = {
        each: tuple(int(part or 0) for part in match.groups())
        for each, match in found.items()
        if match is not None
    }
    latest = max(numbers.values(), default=())
    return [each for each in versions if numbers[each] == latest]


# --- strategies -------------------------------------------------------------------------------


class LeastRate:
    """LeastLongTermMessageRate: the lowest long-term rate, without overloaded brokers."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def select(
        self, candidates: list[str], bundle: str, load: ClusterLoad, config: LoadBalancing
    ) -> str:
        """Return one of the candidates with the lowest rate, at random."""
        most = overloaded(config)
        scores = {
            each: INFINITE if load.usage(each, config) > most else load.sums(each).long_rate
            for each in candidates
        }
        return self._random.choice(_least(candidates, scores))


class LeastUsage:
    """LeastResourceUsageWithWeight: usage below the average, smoothed over the selections."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._averages: dict[str, float] = {}

    def select(
        self, candidates: list[str], bundle: str, load: ClusterLoad, config: LoadBalancing
    ) -> str:
        """Return one of the candidates below the average, at random; else any of them."""
        for each in self._averages.keys() - load.brokers.keys():
            del self._averages[each]
        for each in candidates:
            report = load.brokers[each].report
            before = self._averages.get(each)
            now = report.usage(config)
            if before is not None and report.total.rate:
                history = config.loadBalancerHistoryResourcePercentage
                now = before * history + (1 - history) * now
            self._averages[each] = now
        average = sum(self._averages[each] for each in candidates) / len(candidates)
        gap = config.loadBalancerAverageResourceUsageDifferenceThresholdPercentage / 100
        best = [each for each in candidates if self._averages[each] + gap <= average]
        return self._random.choice(best or candidates)


class RoundRobin:
    """RoundRobinBrokerSelector: the candidates in turn."""

    def __init__(self, random: Random) -> None:
        self._next = 0

    def select(
        self, candidates: list[str], bundle: str, load: ClusterLoad, config: LoadBalancing
    ) -> str:
        """Return the next of the candidates."""
        self._next += 1
        return sorted(candidates)[(self._next - 1) % len(candidates)]


STRATEGIES: dict[str, type[LeastRate | LeastUsage | RoundRobin]] = {
    # Pulsar's AvgShedder places unplanned bundles at random. The rate spreads those of a broker
    # that has ended, so that they need not be moved afterwards. Planned bundles are moved with the
    # name of their target.
    AVG_SHEDDER: LeastRate,
    LEAST_RATE: LeastRate,
    LEAST_USAGE: LeastUsage,
    ROUND_ROBIN: RoundRobin,
}
