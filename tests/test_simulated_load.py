"""Balancing of a skewed load in virtual time, and bugs that the simulation finds.

The goal: 200 bundles over 3 brokers are within 10 % of the mean after 5 minutes and at most 20
moves, and no bundle moves in the 10 minutes after that.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from pyxbroker.cluster import shedding
from pyxbroker.cluster.cluster_load import MS_PER_MINUTE, ClusterLoad
from pyxbroker.cluster.isolation import Isolation, host_of
from pyxbroker.cluster.placement import NO_RULES, Rules
from pyxbroker.settings.config import Config
from pyxbroker.settings.sections.load_balancing import LEAST_RATE, THRESHOLD_SHEDDER
from simulate_load import SimulatedBroker, SimulatedCluster, names_of, zipf

SEEDS = range(40)
TOTAL = 100_000.0  # messages per second
USAGE = 0.5  # mean of the brokers
FIVE_MINUTES_S, TEN_MINUTES_S = 300, 600
MOVES_MAX = 20
DISTANCE_MAX = 0.1
PULSAR_5 = {
    "loadBalancerAvgShedderLowThreshold": 15,
    "loadBalancerAvgShedderHitCountLowThreshold": 8,
}
PULSAR_4 = {
    "loadBalancerLoadSheddingStrategy": THRESHOLD_SHEDDER,
    "loadBalancerLoadPlacementStrategy": LEAST_RATE,
    "loadBalancerDistributeBundlesEvenlyEnabled": True,
}


def a_cluster(
    seed: int,
    config: Config | None = None,
    rates: dict[str, float] | None = None,
    rules: Rules = NO_RULES,
    apache: int = 0,
) -> SimulatedCluster:
    random = Random(seed)
    config = config or Config()
    rates = rates or zipf(names_of(200), TOTAL, random)
    capacity = sum(rates.values()) / 3 / USAGE
    brokers = [
        SimulatedBroker(f"b{at}:8080", config, random, capacity, is_apache=at < apache)
        for at in range(3)
    ]
    return SimulatedCluster(config, rates, brokers, random, rules)


def fault(cluster: SimulatedCluster) -> str:
    """Return the part of the goal that a started cluster misses, or ""."""
    for _ in cluster.run(FIVE_MINUTES_S):
        pass
    moves = len(cluster.moves)
    if cluster.imbalance() > DISTANCE_MAX:
        return f"{cluster.imbalance():.3f} from the mean after {moves} moves"
    if moves > MOVES_MAX:
        return f"{moves} moves"
    for _ in cluster.run(TEN_MINUTES_S):
        pass
    return f"{len(cluster.moves) - moves} later moves" if len(cluster.moves) > moves else ""


def faults(**settings: object) -> list[str]:
    """Return what each seed misses."""
    found = []
    for seed in SEEDS:
        cluster = a_cluster(seed, Config(**settings))  # type: ignore[arg-type]
        cluster.start()
        found.append(fault(cluster))
    return [each for each in found if each]


@pytest.mark.parametrize("apache", [0, 2])
def test_a_skewed_load_is_balanced_in_five_minutes_and_stays(apache: int) -> None:
    skewed = 0
    for seed in SEEDS:
        cluster = a_cluster(seed, apache=apache)
        cluster.start()
        skewed += cluster.imbalance() > DISTANCE_MAX
        assert fault(cluster) == "", f"seed {seed}"
    assert skewed > len(SEEDS) / 2, "there was little to balance"


@pytest.mark.parametrize("numbers", [PULSAR_5, PULSAR_4], ids=["5.0", "4.2"])
def test_pulsars_own_numbers_take_longer(numbers: dict[str, object]) -> None:
    assert len(faults(**numbers)) > len(SEEDS) / 2


def test_a_new_broker_gets_its_part_in_few_moves_and_only_it() -> None:
    for seed in SEEDS:
        cluster = a_cluster(seed)
        new = cluster.brokers.pop("b2:8080")
        cluster.start()
        for _ in cluster.run(TEN_MINUTES_S):
            pass
        cluster.moves.clear()
        cluster.add(new)
        for _ in cluster.run(FIVE_MINUTES_S):
            pass
        assert {each.move.target for each in cluster.moves} == {"b2:8080"}
        assert len(cluster.moves) < 40
        assert cluster.imbalance() < 0.2


# --- policies ---------------------------------------------------------------------------------

ISOLATED = {
    "one": {
        "namespaces": ["t/isolated"],
        "primary": ["b[01]"],
        "secondary": ["b2"],
        "auto_failover_policy": {"parameters": {"min_limit": "1", "usage_threshold": "100"}},
    },
    # A broker that is primary of a policy serves no namespace without one.
    "two": {"namespaces": ["public/.*", "t/apart.*"], "primary": ["b.*"]},
}
GROUP = {f"t/apart{at}": "group" for at in range(6)}


def broken_rule(cluster: SimulatedCluster) -> str:
    """Return the rule that the owners break, or ""."""
    of_group = dict.fromkeys(cluster.brokers, 0)
    for broker in cluster.brokers.values():
        namespaces = {each.rpartition("/")[0] for each in broker.bundles}
        of_group[broker.id] += len(namespaces & set(GROUP))
        if "t/isolated" in namespaces and host_of(broker.id) == "b2":
            return "isolation"
    return "group" if max(of_group.values()) - min(of_group.values()) > 1 else ""


def rule_that_breaks(seed: int) -> str:
    """Return the rule that is broken in half an hour of changing load, or ""."""
    random = Random(seed)
    names = [*names_of(60), *names_of(60, "t/isolated")]
    names += [f"{namespace}/0x00000000_0xffffffff" for namespace in GROUP]
    rules = Rules(Isolation(ISOLATED), GROUP)
    cluster = a_cluster(seed, rates=zipf(names, TOTAL, random), rules=rules)
    cluster.start()
    moves = 0
    for _ in range(6):
        cluster.rates = zipf(random.sample(names, len(names)), TOTAL, random)
        for found in cluster.run(FIVE_MINUTES_S):
            moves += len(found)
            broken = broken_rule(cluster)
            if broken:
                return broken
    assert moves, "nothing was moved"
    return ""


def test_isolation_and_groups_hold_at_each_step() -> None:
    assert [rule_that_breaks(seed) for seed in range(15)] == [""] * 15


# --- oscillation ------------------------------------------------------------------------------


def moved_twice(seed: int) -> bool:
    """Return True if a bundle moves twice in the grace period, while the load changes."""
    random = Random(seed)
    cluster = a_cluster(seed)
    cluster.start()
    last_s: dict[str, int] = {}
    grace_s = cluster.config.loadBalancerSheddingGracePeriodMinutes * MS_PER_MINUTE // 1_000
    for _ in range(12):
        cluster.rates = zipf(list(cluster.rates), TOTAL, random)
        for moves in cluster.run(FIVE_MINUTES_S):
            for each in moves:
                if cluster.at_s - last_s.get(each.bundle, -grace_s) < grace_s:
                    return True
                last_s[each.bundle] = cluster.at_s
    return False


def test_no_bundle_moves_twice_in_the_grace_period() -> None:
    assert not any(moved_twice(seed) for seed in range(10))


# --- planted bugs -----------------------------------------------------------------------------


def ignore_the_grace_period(patch: pytest.MonkeyPatch) -> bool:
    patch.setattr(ClusterLoad, "is_shed_recently", lambda *_: False)
    return any(moved_twice(seed) for seed in range(10))


def trust_reports_alone(patch: pytest.MonkeyPatch) -> bool:
    patch.setattr(
        ClusterLoad, "usage", lambda self, broker, config: self.brokers[broker].report.usage(config)
    )
    return bool(faults())


def forget_what_was_moved(patch: pytest.MonkeyPatch) -> bool:
    patch.setattr(ClusterLoad, "move", lambda *_: None)
    return bool(faults())


def count_the_first_part_of_a_minute(patch: pytest.MonkeyPatch) -> bool:
    patch.setattr("pyxbroker.cluster.cluster_load.SETTLE_MS", 0)
    return bool(faults())


def move_the_whole_difference(patch: pytest.MonkeyPatch) -> bool:
    patch.setattr(shedding, "_excess", lambda loads, low, high, _: loads[high] - loads[low])
    return bool(faults())


def move_slivers(patch: pytest.MonkeyPatch) -> bool:
    patch.setattr(shedding, "SLIVER", 0.0)
    return bool(faults())


def ignore_policies(patch: pytest.MonkeyPatch) -> bool:
    patch.setattr(
        shedding.View,
        "targets",
        lambda self, bundle, source: [each for each in self.load.brokers if each != source],
    )
    return any(rule_that_breaks(seed) == "isolation" for seed in range(15))


def ignore_groups(patch: pytest.MonkeyPatch) -> bool:
    patch.setattr(shedding, "group_counts", lambda *_: None)
    return any(rule_that_breaks(seed) == "group" for seed in range(15))


@pytest.mark.parametrize(
    "plant",
    [
        ignore_the_grace_period,
        trust_reports_alone,
        forget_what_was_moved,
        count_the_first_part_of_a_minute,
        move_the_whole_difference,
        move_slivers,
        ignore_policies,
        ignore_groups,
    ],
)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plant(monkeypatch)
