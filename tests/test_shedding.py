"""The bundles that a leader moves, by each strategy; and the bundles that it splits."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from pyxbroker.base.bundles import Bundle
from pyxbroker.cluster.cluster_load import ClusterLoad
from pyxbroker.cluster.load_report import BundleStats, LocalBrokerData
from pyxbroker.cluster.placement import NO_RULES, Placement, Rules
from pyxbroker.cluster.shedding import Move, Shedding, shed
from pyxbroker.cluster.splitting import (
    Split,
    TopicLoad,
    at_positions,
    bundles_to_split,
    by_load,
    halves,
    halves_by_topics,
)
from pyxbroker.settings.config import Config
from pyxbroker.settings.sections.load_balancing import (
    LEAST_RATE,
    OVERLOAD_SHEDDER,
    THRESHOLD_SHEDDER,
    UNIFORM_SHEDDER,
)
from test_placement import GROUP, A, B, C, Isolation, a_load, a_report, isolation

MINUTE_MS = 60_000
CONFIG = Config()


def stats(*rates: float, namespace: str = "t/n", size: float = 1_000.0) -> dict[str, BundleStats]:
    """Bundles with these messages per second."""
    return {
        f"{namespace}/0x{at:08x}_0x{at + 1:08x}": BundleStats(
            rate / 2, size * rate / 2, rate / 2, size * rate / 2, 1, 1, 10
        )
        for at, rate in enumerate(rates)
    }


class Leader:
    """A leader that checks every minute. `moves` has those of each check."""

    def __init__(self, load: ClusterLoad, config: Config, rules: Rules = NO_RULES) -> None:
        self.load = load
        self.config = config
        self.rules = rules
        self.placement = Placement(config, Random(1))
        self.shedding = Shedding()
        self.now_ms = 0

    def check(self, minutes: int = 1) -> list[Move]:
        """Check after some minutes."""
        self.now_ms += minutes * MINUTE_MS
        return shed(self.load, self.rules, self.placement, self.shedding, self.now_ms, self.config)

    def checks(self, count: int) -> list[int]:
        """Return the number of moves of each of the next checks."""
        return [len(self.check()) for _ in range(count)]


def busy(percent: float, *rates: float, **fields: Any) -> LocalBrokerData:
    return a_report(stats(*rates, **fields), percent)


def two(high: float = 60.0, low: float = 20.0, **fields: Any) -> ClusterLoad:
    """A with 20 bundles, C with none that may be in the way."""
    return a_load(
        a=busy(high, *([3_000.0] * 20), **fields), c=busy(low, *([2_000.0] * 10), namespace="t/c")
    )


# --- AvgShedder -------------------------------------------------------------------------------


def test_half_of_the_difference_moves_to_the_lowest_broker_after_two_checks() -> None:
    leader = Leader(two(), CONFIG)
    assert leader.check() == []
    moves = leader.check()
    assert [(each.source, each.target) for each in moves] == [(A, C)] * 6  # of 60,000 and 20,000
    assert len({each.bundle for each in moves}) == 6
    assert leader.checks(10) == [0] * 10


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"loadBalancerAvgShedderHitCountLowThreshold": 4}, [0, 0, 0, 6]),
        ({"loadBalancerAvgShedderLowThreshold": 41}, [0, 0, 0, 0]),
        (
            {
                "loadBalancerAvgShedderHitCountLowThreshold": 4,
                "loadBalancerAvgShedderHighThreshold": 39,
                "loadBalancerAvgShedderHitCountHighThreshold": 1,
            },
            [6, 0, 0, 0],
        ),
        ({"maxUnloadPercentage": 0.1}, [0, 1, 0, 1]),
        ({"minUnloadMessage": 30_000, "minUnloadMessageThroughput": 10**9}, [0, 0, 0, 0]),
        ({"minUnloadMessage": 30_000}, [0, 6, 0, 0]),
        ({"loadBalancerSheddingEnabled": False}, [0, 0, 0, 0]),
        ({"loadBalancerEnabled": False}, [0, 0, 0, 0]),
        ({"loadBalancerSheddingExcludedNamespaces": "t/n"}, [0, 0, 0, 0]),
    ],
)
def test_checks_and_amounts_are_those_of_the_settings(
    settings: dict[str, Any], expected: list[int]
) -> None:
    assert Leader(two(), Config(**settings)).checks(4) == expected


def test_a_peak_in_one_check_moves_nothing() -> None:
    leader = Leader(two(), CONFIG)
    peak, calm = leader.load.brokers[A].report, busy(22.0, *([1_000.0] * 20))
    assert leader.check() == []
    for at in range(8):
        report = (calm if at % 2 == 0 else peak)._replace(last_update=(at + 3) * MINUTE_MS)
        leader.load.brokers[A].usage_per_message = 0.0
        leader.load.report(A, report, CONFIG)
        if at % 2 == 0:
            leader.load.brokers[C].usage_per_message = leader.load.usage(A, CONFIG) / 20_000
        else:
            leader.load.brokers[C].usage_per_message = 0.2 / 20_000
        assert leader.check() == []


def test_a_bundle_is_not_moved_again_within_the_grace_period() -> None:
    leader = Leader(two(), CONFIG)
    moved = leader.checks(2)[1] and {*leader.load.brokers[C].arriving}
    # The other bundles of C have more messages now.
    config = CONFIG
    leader.load.report(
        C,
        a_report(
            stats(*([9_000.0] * 10), namespace="t/c") | dict.fromkeys(moved, BundleStats(1500.0)),
            90.0,
        )._replace(last_update=10 * MINUTE_MS),
        config,
    )
    back = [each for _ in range(27) for each in leader.check()]
    assert back
    assert not moved & {each.bundle for each in back}
    later = Config(loadBalancerSheddingGracePeriodMinutes=1)
    assert leader.load.is_shed_recently(next(iter(moved)), leader.now_ms, config)
    assert not leader.load.is_shed_recently(next(iter(moved)), leader.now_ms, later)


def test_the_only_broker_keeps_its_bundles() -> None:
    assert Leader(a_load(a=busy(99.0, *([3_000.0] * 20))), CONFIG).checks(4) == [0] * 4


def test_three_brokers_are_even_after_one_check_with_moves() -> None:
    load = a_load(
        a=busy(90.0, *([3_000.0] * 30)),
        b=busy(90.0, *([3_000.0] * 30), namespace="t/m"),
        c=busy(1.0, namespace="t/c"),
    )
    leader = Leader(load, CONFIG)
    assert leader.check() == []
    moves = leader.check()
    assert {each.target for each in moves} == {C}
    assert [load.sums(each).rate for each in (A, B, C)] == [60_000.0] * 3
    assert leader.checks(10) == [0] * 10


def test_a_large_bundle_does_not_jump_to_and_fro() -> None:
    load = a_load(a=busy(60.0, 60_000.0, 10.0), c=busy(1.0, namespace="t/c"))
    assert Leader(load, CONFIG).checks(60) == [0] * 60


def test_bundles_of_heartbeats_stay() -> None:
    names = ("pulsar/a.org:8080", "sla-monitor/a.org:8080")
    some = {
        f"{name}/0x0000000{at}_0xffffffff": BundleStats(9_000.0)
        for at in range(9)
        for name in names
    }
    load = a_load(a=a_report(some, 90.0), c=a_report())
    assert Leader(load, CONFIG).checks(3) == [0] * 3


def test_a_move_that_failed_is_taken_back() -> None:
    leader = Leader(two(), CONFIG)
    moves = leader.check() or leader.check()
    before = leader.load.usage(A, CONFIG)
    for each in moves:
        leader.load.move_failed(*each)
    assert leader.load.usage(A, CONFIG) == pytest.approx(0.6)
    assert before < 0.5
    assert leader.load.sums(C).rate == 20_000.0


# --- policies ---------------------------------------------------------------------------------


def test_only_bundles_that_may_go_there_are_moved() -> None:
    load = a_load(
        a=a_report(stats(*([3_000.0] * 10)) | stats(*([3_000.0] * 10), namespace="public/x"), 60.0),
        c=busy(1.0, namespace="t/c"),
    )
    rules = isolation(secondary=[])
    assert Leader(load, CONFIG, rules).checks(3) == [0, 10, 0]
    moved = load.brokers[C].arriving
    assert {each.rpartition("/")[0] for each in moved} == {"t/n"}


def test_a_bundle_of_a_group_moves_only_where_its_group_is_less() -> None:
    rules = Rules(Isolation(), GROUP)
    one = a_load(a=busy(60.0, *([3_000.0] * 20)), c=busy(1.0, 1.0, namespace="t/m"))
    assert Leader(one, CONFIG, rules).checks(3) == [0] * 3
    both = a_report(stats(*([3_000.0] * 10)) | stats(*([3_000.0] * 10), namespace="t/m"), 60.0)
    some = a_load(a=both, c=busy(1.0, namespace="t/c"))
    moves = [each for _ in range(3) for each in Leader(some, CONFIG, rules).check()]
    assert len({each.bundle.rpartition("/")[0] for each in moves}) <= 1


# --- other strategies -------------------------------------------------------------------------


def others(name: str, **settings: Any) -> Config:
    return Config(
        loadBalancerLoadSheddingStrategy=name,
        loadBalancerLoadPlacementStrategy=LEAST_RATE,
        **settings,
    )


def test_the_threshold_shedder_follows_the_smoothed_usage() -> None:
    load = two(high=90.0, low=10.0, size=10_000.0)
    leader = Leader(load, others(THRESHOLD_SHEDDER))
    # 0.4 above the average in the end; 0.1 is reached with the third check, 0.108 of 1 - 0.9^3.
    assert [bool(each) for each in leader.checks(3)] == [False, False, True]
    slow = Leader(
        two(90.0, 10.0, size=10_000.0),
        others(THRESHOLD_SHEDDER, loadBalancerBrokerThresholdShedderPercentage=45),
    )
    assert slow.checks(30) == [0] * 30


def test_the_threshold_shedder_moves_no_less_than_its_minimum() -> None:
    config = others(THRESHOLD_SHEDDER, loadBalancerBundleUnloadMinThroughputThreshold=1_000.0)
    assert Leader(two(90.0, 10.0), config).checks(30) == [0] * 30


def test_an_idle_broker_gets_bundles_if_the_lower_boundary_counts() -> None:
    def idle() -> ClusterLoad:
        return a_load(
            a=busy(42.0, *([30_000.0] * 20)),
            b=busy(42.0, *([30_000.0] * 20), namespace="t/m"),
            c=busy(20.0, 1.0, namespace="t/c"),
        )

    history = {"loadBalancerHistoryResourcePercentage": 0.0}
    assert Leader(idle(), others(THRESHOLD_SHEDDER, **history)).checks(5) == [0] * 5
    config = others(
        THRESHOLD_SHEDDER,
        lowerBoundarySheddingEnabled=True,
        loadBalancerBundleUnloadMinThroughputThreshold=0.1,
        **history,
    )
    moves = Leader(idle(), config).check()
    assert {each.target for each in moves} == {C}


def test_the_overload_shedder_unloads_overloaded_brokers_only() -> None:
    assert Leader(two(84.0), others(OVERLOAD_SHEDDER)).check() == []
    moves = Leader(two(95.0), others(OVERLOAD_SHEDDER)).check()
    assert [(each.source, each.target) for each in moves] == [(A, C)] * 3  # 0.15 of 20 bundles


def test_the_uniform_shedder_compares_messages() -> None:
    assert Leader(two(), others(UNIFORM_SHEDDER)).check()
    same = others(UNIFORM_SHEDDER, loadBalancerMsgRateDifferenceShedderThreshold=300.0)
    assert Leader(two(), same).check() == []
    few = others(UNIFORM_SHEDDER, maxUnloadBundleNumPerShedding=2)
    assert len(Leader(two(), few).check()) == 2
    little = others(UNIFORM_SHEDDER, minUnloadMessage=20_001)
    assert Leader(two(), little).check() == []


def test_the_uniform_shedder_compares_bytes() -> None:
    def uneven() -> ClusterLoad:
        return a_load(
            a=busy(9.0, *([2_000.0] * 10), size=5_000.0),
            c=busy(9.0, *([2_000.0] * 10), namespace="t/c"),
        )

    assert Leader(uneven(), others(UNIFORM_SHEDDER)).check()
    ratio = {"loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": 5.0}
    assert Leader(uneven(), others(UNIFORM_SHEDDER, **ratio)).check() == []


def test_the_strategy_can_change() -> None:
    leader = Leader(two(95.0), CONFIG)
    leader.config.loadBalancerLoadSheddingStrategy = OVERLOAD_SHEDDER
    try:
        assert leader.check()
    finally:
        leader.config.loadBalancerLoadSheddingStrategy = Config().loadBalancerLoadSheddingStrategy


# --- splits -----------------------------------------------------------------------------------


def split(config: Config = CONFIG, count: int = 4, **fields: Any) -> list[Split]:
    busy_bundle = {"t/n/0x00000000_0xffffffff": BundleStats(topics=2)._replace(**fields)}
    load = a_load(a=a_report(busy_bundle), c=a_report())
    return bundles_to_split(load, NO_RULES, lambda namespace: count, 0, config)


ONE = [Split("t/n/0x00000000_0xffffffff", A, True)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"topics": 1_000}, []),
        ({"topics": 1_001}, ONE),
        ({"producer_count": 500, "consumer_count": 500}, []),
        ({"producer_count": 500, "consumer_count": 501}, ONE),
        ({"msg_rate_in": 30_000.0}, []),
        ({"msg_rate_in": 15_000.0, "msg_rate_out": 15_001.0}, ONE),
        ({"msg_throughput_out": 100.0 * (1 << 20)}, []),
        ({"msg_throughput_out": 100.0 * (1 << 20) + 1}, ONE),
        ({"msg_rate_in": 90_000.0, "topics": 1}, []),
    ],
)
def test_a_bundle_is_split_by_pulsars_numbers(
    fields: dict[str, Any], expected: list[Split]
) -> None:
    assert split(**fields) == expected


def test_splits_are_limited_and_can_be_off() -> None:
    assert split(topics=1_001, count=128) == []
    assert split(topics=1_001, count=127) == ONE
    assert split(Config(loadBalancerAutoBundleSplitEnabled=False), topics=1_001) == []
    no_sessions = Config(loadBalancerNamespaceBundleMaxSessions=0)
    assert split(no_sessions, producer_count=9_000) == []
    stay = Config(loadBalancerAutoUnloadSplitBundlesEnabled=False)
    assert split(stay, topics=1_001) == [ONE[0]._replace(is_unloaded=False)]


def test_a_namespace_does_not_get_more_bundles_than_allowed_in_one_check() -> None:
    large = {each: BundleStats(topics=2_000) for each in stats(*([1.0] * 5))}
    load = a_load(a=a_report(large), c=a_report())
    found = bundles_to_split(load, NO_RULES, lambda namespace: 125, 0, CONFIG)
    assert len(found) == 3


WHOLE = Bundle(0, 1_000)


def test_the_algorithms_find_boundaries() -> None:
    assert halves(WHOLE) == [500]
    assert halves_by_topics(WHOLE, [10, 20, 30, 990]) == [25]
    assert halves_by_topics(WHOLE, [10]) == []
    assert at_positions(WHOLE, 2, [0, 7, 7, 3, 1_000]) == [3, 7]
    assert at_positions(WHOLE, 1, [3]) == []


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([(100, 16_000.0), (200, 16_000.0)], []),  # within 10 % of the maximum
        ([(100, 16_000.0), (200, 17_001.0)], [151]),
        ([(100, 40_000.0)], []),
        ([(100, 40_000.0), (200, 0.0)], []),
        ([(100, 40_000.0), (200, 40_000.0), (300, 5.0)], [151, 251]),
        ([(100, 20_000.0), (200, 9_000.0), (300, 20_000.0), (400, 10_000.0)], [251]),
    ],
)
def test_a_bundle_is_split_where_its_load_exceeds_the_maximum(
    rates: list[tuple[int, float]], expected: list[int]
) -> None:
    topics = [TopicLoad(at, rate, 0.0) for at, rate in rates]
    assert by_load(WHOLE, reversed(topics), CONFIG) == expected
    in_bytes = [TopicLoad(at, 0.0, rate / 30_000 * (100 << 20)) for at, rate in rates]
    assert by_load(WHOLE, in_bytes, CONFIG) == expected
