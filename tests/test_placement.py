"""The broker that a leader chooses for a bundle: rules, strategies, and what it expects."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from pyxbroker.cluster.cluster_load import SETTLE_MS, ClusterLoad
from pyxbroker.cluster.isolation import Isolation
from pyxbroker.cluster.load_report import BundleStats, LocalBrokerData, ResourceUsage
from pyxbroker.cluster.placement import NO_RULES, Placement, Rules, choose
from pyxbroker.settings.config import Config
from pyxbroker.settings.sections.load_balancing import LEAST_RATE, LEAST_USAGE, ROUND_ROBIN

A, B, C = "a.org:8080", "b.org:8080", "c.org:8080"
NEW = "public/default/0x00000000_0x10000000"
CONFIG = Config()


def bundles(count: int, rate: float, namespace: str = "t/n") -> dict[str, BundleStats]:
    stats = BundleStats(rate / 2, 500 * rate, rate / 2, 500 * rate, 1, 1, 10)
    return {f"{namespace}/0x{at:08x}_0x{at + 1:08x}": stats for at in range(count)}


def a_report(
    stats: dict[str, BundleStats] | None = None, percent: float = 10.0, **fields: Any
) -> LocalBrokerData:
    return LocalBrokerData(
        cpu=ResourceUsage(percent * 4, 400.0),
        last_update=1_000,
        last_stats=stats or {},
        broker_version_string="4.2.4",
    )._replace(**fields)


def a_load(config: Config = CONFIG, **reports: LocalBrokerData) -> ClusterLoad:
    load = ClusterLoad()
    for name, report in reports.items():
        load.report(f"{name}.org:8080", report, config)
    return load


def chosen(
    load: ClusterLoad,
    rules: Rules = NO_RULES,
    config: Config = CONFIG,
    bundle: str = NEW,
    **arguments: Any,
) -> set[str | None]:
    """All brokers that are chosen with 30 seeds."""
    return {
        choose(bundle, load, rules, Placement(config, Random(seed)), config, **arguments)
        for seed in range(30)
    }


def test_no_broker_is_chosen_without_one() -> None:
    assert chosen(ClusterLoad()) == {None}


# --- strategies -------------------------------------------------------------------------------


def test_the_lowest_long_term_rate_is_chosen() -> None:
    load = a_load(a=a_report(bundles(2, 100.0)), b=a_report(bundles(1, 150.0, "t/m")))
    assert chosen(load) == {B}
    assert chosen(load, config=Config(loadBalancerLoadPlacementStrategy=LEAST_RATE)) == {B}


def test_equal_rates_are_chosen_at_random() -> None:
    assert chosen(a_load(a=a_report(), b=a_report())) == {A, B}


def test_a_planned_broker_is_chosen_whichever_brokers_old_reports_show_the_bundle() -> None:
    stats = {NEW: BundleStats(1.0, 1.0, 1.0, 1.0, 1, 1, 1)}
    for shown in ("", "a", "b", "ab"):
        load = a_load(**{name: a_report(stats if name in shown else None) for name in "ab"})
        load.report(C, a_report(bundles(1, 1.0)), CONFIG)
        for at, target in enumerate((B, A, A, C, B, C, A), 2_000):
            load.plan(NEW, target, at)
            assert chosen(load) == {target}
            assert [NEW in load.brokers[each].bundles() for each in (A, B, C)] == [
                each == target for each in (A, B, C)
            ]


def test_placed_bundles_count_before_a_report_shows_them() -> None:
    load = a_load(a=a_report(), b=a_report(), c=a_report())
    placement, counts = Placement(CONFIG, Random(1)), Counter[str | None]()
    for at in range(30):
        bundle = f"t/n/0x{at:08x}_0x{at + 1:08x}"
        broker = choose(bundle, load, NO_RULES, placement, CONFIG)
        assert broker is not None
        load.place(bundle, broker, 0)
        assert choose(bundle, load, NO_RULES, placement, CONFIG) == broker
        counts[broker] += 1
    assert set(counts.values()) == {10}


def test_a_placed_bundle_that_did_not_arrive_is_chosen_anew() -> None:
    load = a_load(a=a_report(), b=a_report(bundles(1, 1_000.0)))
    load.place(NEW, B, 1_000)
    assert chosen(load) == {B}
    late = a_report(bundles(1, 1_000.0), last_update=1_000 + SETTLE_MS)
    load.report(B, late, CONFIG)
    assert chosen(load) == {B}
    load.report(B, late._replace(last_update=1_001 + SETTLE_MS), CONFIG)
    assert chosen(load) == {A}


def test_what_was_placed_at_a_broker_that_is_gone_goes_elsewhere() -> None:
    load = a_load(a=a_report(), b=a_report())
    load.place(NEW, B, 0)
    load.keep([A])
    assert chosen(load) == {A}


def test_an_overloaded_broker_is_left_out_unless_all_are() -> None:
    busy = a_report(percent=86.0)
    assert chosen(a_load(a=busy, b=a_report(bundles(9, 1_000.0)))) == {B}
    assert chosen(a_load(a=busy, b=busy)) == {A, B}
    # A broker on which few messages cost much.
    costly = a_report(bundles(1, 10.0), 86.0)
    assert chosen(a_load(a=costly, b=a_report(bundles(9, 1_000.0, "t/m")))) == {B}


def test_usage_below_the_average_is_chosen_by_weighted_usage() -> None:
    config = Config(loadBalancerLoadPlacementStrategy=LEAST_USAGE)
    some = [
        a_report(bundles(1, 9.0, f"t/{name}"), percent)
        for name, percent in (("x", 10.0), ("y", 30.0), ("z", 80.0))
    ]
    load = a_load(a=some[0], b=some[1], c=some[2])
    assert chosen(load, config=config) == {A, B}
    nothing = Config(
        loadBalancerLoadPlacementStrategy=LEAST_USAGE, loadBalancerCPUResourceWeight=0.0
    )
    assert chosen(load, config=nothing) == {A, B, C}


def test_brokers_are_chosen_in_turn() -> None:
    config = Config(loadBalancerLoadPlacementStrategy=ROUND_ROBIN)
    load = a_load(a=a_report(bundles(9, 9.0)), b=a_report(), c=a_report())
    placement = Placement(config, Random(1))
    turns = [choose(NEW, load, NO_RULES, placement, config) for _ in range(4)]
    assert turns == [A, B, C, A]


def test_namespaces_that_are_not_moved_are_placed_in_turn() -> None:
    config = Config(loadBalancerSheddingExcludedNamespaces="x/y, public/default")
    load = a_load(a=a_report(bundles(9, 9.0)), b=a_report())
    placement = Placement(config, Random(1))
    assert [choose(NEW, load, NO_RULES, placement, config) for _ in range(3)] == [A, B, A]


# --- filters ----------------------------------------------------------------------------------


def test_a_broker_with_too_many_topics_gets_no_more() -> None:
    config = Config(loadBalancerBrokerMaxTopics=19)
    load = a_load(a=a_report(bundles(2, 1.0)), b=a_report(bundles(1, 9_000.0, "t/m")))
    assert chosen(load, config=config) == {B}
    assert chosen(load) == {A}


def test_bundles_of_a_namespace_are_spread_if_that_is_set() -> None:
    ours = bundles(1, 1.0, "public/default")
    load = a_load(a=a_report(ours), b=a_report(bundles(1, 9_000.0)))
    assert chosen(load) == {A}
    assert chosen(load, config=Config(loadBalancerDistributeBundlesEvenlyEnabled=True)) == {B}


def test_bundles_of_the_system_namespace_are_spread() -> None:
    ours = bundles(1, 1.0, "pulsar/system")
    load = a_load(a=a_report(ours), b=a_report(bundles(1, 9_000.0)))
    assert chosen(load, bundle="pulsar/system/0x10000000_0x20000000") == {B}


def test_brokers_of_another_load_manager_get_nothing_while_there_is_one_of_ours() -> None:
    other = a_report(load_manager_class_name="org.x.Other")
    assert chosen(a_load(a=other, b=a_report(bundles(5, 5.0)))) == {B}
    assert chosen(a_load(a=other)) == {A}


def test_the_latest_version_is_preferred_if_that_is_set() -> None:
    load = a_load(
        a=a_report(broker_version_string="4.2.10"),
        b=a_report(broker_version_string="4.2.9-SNAPSHOT"),
    )
    assert chosen(load) == {A, B}
    assert chosen(load, config=Config(preferLaterVersions=True)) == {A}
    load.report(B, a_report(broker_version_string="next"), CONFIG)
    assert chosen(load, config=Config(preferLaterVersions=True)) == {A, B}


# --- isolation --------------------------------------------------------------------------------


def isolation(**fields: Any) -> Rules:
    parameters = {"min_limit": "1", "usage_threshold": "100"} | fields.pop("parameters", {})
    failover = {"policy_type": "min_available", "parameters": parameters}
    policy = {
        "namespaces": ["public/.*"],
        "primary": ["a.*"],
        "secondary": ["b.*"],
        "auto_failover_policy": failover,
    }
    return Rules(Isolation({"one": policy | fields}))


ALL = a_load(a=a_report(bundles(9, 900.0)), b=a_report(bundles(5, 500.0, "t/m")), c=a_report())


def test_a_policy_selects_primary_brokers_by_their_hosts() -> None:
    assert chosen(ALL, isolation()) == {A}
    assert chosen(ALL, isolation(primary=["a.org"])) == {A}
    assert chosen(ALL, isolation(primary=["a.org:8080"], secondary=["c.org"])) == {C}


def test_secondary_brokers_serve_while_primary_ones_are_too_few() -> None:
    assert chosen(ALL, isolation(parameters={"min_limit": "2"})) == {B}
    assert chosen(ALL, isolation(primary=["x.*"])) == {B}
    assert chosen(ALL, isolation(primary=["x.*"], parameters={"min_limit": "0"})) == {None}


def test_a_primary_broker_above_the_threshold_does_not_count() -> None:
    load = a_load(a=a_report(percent=50.0), b=a_report(percent=0.0))
    assert chosen(load, isolation(parameters={"usage_threshold": "60"})) == {A}
    assert chosen(load, isolation(parameters={"usage_threshold": "40"})) == {A, B}


def test_a_namespace_without_a_policy_goes_to_brokers_that_are_primary_of_none() -> None:
    assert chosen(ALL, isolation(namespaces=["other/.*"])) == {C}
    assert chosen(ALL, isolation(namespaces=["other/.*"], primary=[".*"])) == {None}


def test_the_first_policy_that_matches_counts() -> None:
    record = {
        "one": {"namespaces": ["other/.*"], "primary": ["a.*"]},
        "two": {"namespaces": ["public/.*"], "primary": ["b.*"]},
        "three": {"namespaces": ["public/default"], "primary": ["c.*"]},
        "four": "of another broker",
    }
    assert chosen(ALL, Rules(Isolation(record))) == {B}


def test_no_filter_leads_outside_of_the_policy() -> None:
    load = a_load(a=a_report(bundles(9, 9.0), 99.0, load_manager_class_name="x"), b=a_report())
    rules = isolation(secondary=[])
    assert chosen(load, rules, Config(loadBalancerBrokerMaxTopics=1)) == {A}


def test_kinds_of_topics_that_a_broker_does_not_serve_go_elsewhere() -> None:
    load = a_load(
        a=a_report(persistent_topics_enabled=False),
        b=a_report(non_persistent_topics_enabled=False),
    )
    assert chosen(load) == {B}
    assert chosen(load, is_persistent=False) == {A}


# --- anti-affinity ----------------------------------------------------------------------------

GROUP = {"t/n": "Apart", "t/m": "apart", "public/default": "APART ", "t/x": ""}


def test_namespaces_of_a_group_are_apart() -> None:
    load = a_load(
        a=a_report(bundles(1, 1.0)),
        b=a_report(bundles(1, 1.0, "t/m")),
        c=a_report(bundles(9, 99.0, "t/x")),
    )
    assert chosen(load, Rules(Isolation(), GROUP)) == {C}
    assert chosen(load) == {A, B}


def test_an_overload_does_not_bring_a_group_together() -> None:
    load = a_load(a=a_report(bundles(1, 1.0)), b=a_report(bundles(1, 1.0, "t/x"), 99.0))
    assert chosen(load, Rules(Isolation(), GROUP)) == {B}


def test_namespaces_of_a_group_are_in_the_failure_domain_with_the_fewest() -> None:
    domains = {A: "one", B: "one"}  # and C in the default domain
    load = a_load(a=a_report(bundles(1, 1.0)), b=a_report(), c=a_report(bundles(1, 1.0, "t/x")))
    rules = Rules(Isolation(), GROUP, domains)
    assert chosen(load, rules) == {B}
    assert chosen(load, rules, Config(failureDomainsEnabled=True)) == {C}


@pytest.mark.parametrize("planned", [True, False])
def test_a_moved_bundle_does_not_return_to_the_broker_that_it_leaves(planned: bool) -> None:
    stats = bundles(1, 900.0, "t/m")
    load = a_load(a=a_report(bundles(1, 1.0)), b=a_report(stats), c=a_report(bundles(5, 500.0)))
    [bundle] = stats
    load.move(bundle, B, C, 0)
    if not planned:
        load.keep([A, B])
    assert chosen(load, bundle=bundle) == {C if planned else A}
    load.keep([B])
    assert chosen(load, bundle=bundle) == {B}
