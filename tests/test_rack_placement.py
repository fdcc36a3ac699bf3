"""The bookies of new ledgers and their replacements, by racks, regions, groups and health."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyxbroker.broker.topics.persistent import quorums_of
from pyxbroker.ledger.bookie import DISCONNECTED, FAILED, TIMED_OUT
from pyxbroker.ledger.errors import NotEnoughBookies
from pyxbroker.ledger.placement import (
    ANY_GROUP,
    Affinity,
    LedgerQuorums,
    affinity_of,
    custom_metadata_of,
)
from pyxbroker.ledger.quarantine import HealthCheck
from pyxbroker.ledger.rack_placement import RackPlacement, RackSettings
from pyxbroker.ledger.registered_bookies import BookiesView
from pyxbroker.ledger.writer import FindBookies
from pyxbroker.policies.table import TABLE
from pyxbroker.settings.config import Config

E3 = LedgerQuorums(3, 3, 2)
E2 = LedgerQuorums(2, 2, 2)
ENFORCED = RackSettings(is_enforced=True)


class Known:
    """Bookies that a test names, as {bookie: rack}, and a clock."""

    def __init__(
        self,
        racks: dict[str, str],
        settings: RackSettings | None = None,
        groups: dict[str, set[str]] | None = None,
        read_only: tuple[str, ...] = (),
        seed: int = 1,
        check: HealthCheck | None = None,
    ) -> None:
        named = {name: rack for name, rack in racks.items() if rack}
        self.groups = groups or {"default": set(named)}
        self.view = BookiesView(
            dict.fromkeys(racks),
            dict.fromkeys(read_only),
            frozenset(racks) | {*read_only},
            {name: frozenset(bookies) for name, bookies in self.groups.items()},
            named,
        )
        self.now = 0.0
        self.placement = RackPlacement(
            self,
            settings or RackSettings(),
            random.Random(seed),
            lambda: self.now,
            check or HealthCheck(),
        )

    def new(self, quorums: LedgerQuorums, affinity: Affinity | None = None) -> tuple[str, ...]:
        found = self.placement.new_ensemble(quorums, affinity)
        assert len(set(found)) == len(found) == quorums.ensemble
        assert set(found) <= set(self.view.writable)
        return found

    def replacements(
        self,
        indexes: set[int],
        ensemble: tuple[str, ...],
        quorums: LedgerQuorums,
        affinity: Affinity | None = None,
    ) -> dict[int, str]:
        failed = frozenset(ensemble[index] for index in indexes)
        wanted = FindBookies(frozenset(indexes), ensemble, failed)
        return self.placement.replacements(wanted, quorums, affinity)


def racks_in_windows(racks: list[str], quorum: int) -> int:
    """Return the fewest racks of a write quorum."""
    size = len(racks)
    windows = ([racks[(first + i) % size] for i in range(quorum)] for first in range(size))
    return min(len(set(window)) for window in windows)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, str], LedgerQuorums, int, int]:
    """Racks by bookie, quorums, the minimum of racks, a seed."""
    count = draw(st.integers(1, 9))
    rack = st.sampled_from(["r0", "/r1", "r2/", "/r3"])
    racks = {f"b{i}": draw(rack) for i in range(count)}
    size = draw(st.integers(1, min(5, count)))
    quorum = draw(st.integers(1, size))
    return (
        racks,
        LedgerQuorums(size, quorum, quorum),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 99)),
    )


def best_racks(racks: dict[str, str], quorums: LedgerQuorums) -> int:
    """Return the most racks that every write quorum can have, by trying all ensembles."""
    left = Counter(racks.values())
    return max(
        racks_in_windows(list(each), quorums.write)
        for each in itertools.product(left, repeat=quorums.ensemble)
        if not Counter(each) - left
    )


@given(clusters())
def test_an_ensemble_has_the_racks_that_are_possible(
    cluster: tuple[dict[str, str], LedgerQuorums, int, int],
) -> None:
    racks, quorums, racks_min, seed = cluster
    best = best_racks(racks, quorums)
    wanted = min(racks_min, quorums.write)
    ensemble = Known(racks, RackSettings(racks_min=racks_min), seed=seed).new(quorums)
    found = racks_in_windows([racks[each] for each in ensemble], quorums.write)
    assert found >= min(wanted, best)
    enforcing = Known(racks, RackSettings(racks_min=racks_min, is_enforced=True), seed=seed)
    if best >= wanted:
        enforced = enforcing.new(quorums)
        assert racks_in_windows([racks[each] for each in enforced], quorums.write) >= wanted
    else:
        with pytest.raises(NotEnoughBookies, match="MinNumRacksPerWriteQuorum"):
            enforcing.new(quorums)


@given(clusters(), st.data())
def test_replacements_are_new_and_keep_an_enforced_minimum(
    cluster: tuple[dict[str, str], LedgerQuorums, int, int], data: st.DataObject
) -> None:
    racks, quorums, racks_min, seed = cluster
    known = Known(racks, RackSettings(racks_min=racks_min), seed=seed)
    ensemble = known.new(quorums)
    indexes = data.draw(st.sets(st.sampled_from(range(quorums.ensemble)), min_size=1))
    found = known.replacements(indexes, ensemble, quorums)
    assert len(found) == min(len(indexes), len(racks) - quorums.ensemble)
    assert set(found) <= indexes
    assert not set(found.values()) & set(ensemble)
    assert len(set(found.values())) == len(found)
    wanted = min(racks_min, quorums.write)
    before = racks_in_windows([racks[each] for each in ensemble], quorums.write)
    if before >= wanted:
        enforcing = Known(racks, RackSettings(racks_min=racks_min, is_enforced=True), seed=seed)
        found = enforcing.replacements(indexes, ensemble, quorums)
        # Of several, the later ones complete what the earlier ones left possible.
        if len(found) == len(indexes):
            after = [racks[found.get(i, each)] for i, each in enumerate(ensemble)]
            assert racks_in_windows(after, quorums.write) >= wanted


def test_the_choice_depends_only_on_the_seed() -> None:
    racks = {f"b{i}": f"r{i % 3}" for i in range(12)}
    first, second, other = (
        [known.new(E3) for _ in range(20)]
        for known in (Known(racks), Known(racks), Known(racks, seed=2))
    )
    assert first == second != other


def test_every_bookie_gets_ledgers() -> None:
    known = Known({f"b{i}": f"r{i % 3}" for i in range(9)})
    counts = Counter(each for _ in range(300) for each in known.new(E3))
    assert len(counts) == 9
    assert min(counts.values()) > 50


def test_ensembles_of_hundreds_of_bookies_in_one_rack_are_found_quickly() -> None:
    racks = {f"b{i}": "r" for i in range(400)} | {"z": "other"}
    assert len(Known(racks).new(LedgerQuorums(300, 3, 2))) == 300


def test_bookies_without_a_rack_share_the_default_one() -> None:
    racks = {"a": "", "b": "", "c": "", "d": "r"}
    for seed in range(20):
        assert "d" in Known(racks, seed=seed).new(E2), "two racks for each write quorum"


def test_bookies_without_a_rack_are_not_used_where_racks_are_enforced() -> None:
    racks = {"a": "", "b": "", "c": "r1", "d": "r2"}
    for seed in range(20):
        assert set(Known(racks, ENFORCED, seed=seed).new(E2)) == {"c", "d"}
    with pytest.raises(NotEnoughBookies, match="only 2 of them have a known rack"):
        Known(racks, ENFORCED).new(E3)


def test_racks_are_spread_as_far_as_possible_where_there_are_too_few() -> None:
    racks = {f"a{i}": "a" for i in range(8)} | {"b": "b"}
    for seed in range(20):
        assert "b" in Known(racks, seed=seed).new(LedgerQuorums(3, 2, 2))


def test_neighbours_are_in_different_racks_beyond_the_minimum_of_a_write_quorum() -> None:
    racks = {f"b{i}": f"r{i % 3}" for i in range(30)}
    for seed in range(20):
        used = [racks[each] for each in Known(racks, seed=seed).new(LedgerQuorums(6, 3, 2))]
        assert all(first != second for first, second in itertools.pairwise([*used, used[0]]))


def test_changed_racks_count_for_the_next_ledger() -> None:
    known = Known({"a": "1", "b": "1", "c": "2"})
    assert "c" in known.new(E2)
    known.view = known.view._replace(racks={"a": "1", "b": "2", "c": "2"})
    for _ in range(20):
        assert "a" in known.new(E2)


def test_racks_do_not_matter_without_the_policy() -> None:
    racks = {"a": "r1", "b": "r1", "c": "r2"}
    unaware = RackSettings(is_rack_aware=False, is_enforced=True)
    chosen = {frozenset(Known(racks, unaware, seed=seed).new(E2)) for seed in range(40)}
    assert frozenset({"a", "b"}) in chosen


def test_regions_share_an_ensemble_evenly() -> None:
    racks = {f"{region}{i}": f"/{region}/r{i % 2}" for region in "xyz" for i in range(4)}
    aware = RackSettings(is_region_aware=True)
    for seed in range(20):
        known = Known(racks, aware, seed=seed)
        ensemble = known.new(LedgerQuorums(5, 3, 2))
        assert sorted(Counter(each[0] for each in ensemble).values()) == [1, 2, 2]
        for region in "xyz":
            used = [racks[each] for each in ensemble if each[0] == region]
            assert len(set(used)) == len(used), "two racks of the region"


def test_a_replacement_comes_from_the_same_rack_then_from_an_unused_one() -> None:
    racks = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "c1": "c"}
    for seed in range(20):
        assert Known(racks, seed=seed).replacements({0}, ("a1", "b1"), E2) == {0: "a2"}
        without_a2 = {each: rack for each, rack in racks.items() if each != "a2"}
        known = Known(without_a2, seed=seed)
        assert known.replacements({0}, ("a1", "b1"), E2) == {0: "c1"}
        without_c = {each: rack for each, rack in without_a2.items() if rack != "c"}
        assert Known(without_c, seed=seed).replacements({0}, ("a1", "b1"), E2) == {0: "b2"}
        enforcing = Known(without_c, ENFORCED, seed=seed)
        assert enforcing.replacements({0}, ("a1", "b1"), E2) == {}


def test_a_bookie_that_has_left_is_replaced_from_its_rack() -> None:
    known = Known({"a2": "a", "b1": "b", "c1": "c"})
    known.view = known.view._replace(racks={**known.view.racks, "a1": "a"})
    assert known.replacements({0}, ("a1", "b1"), E2) == {0: "a2"}


# --- groups -------------------------------------------------------------------------------------

GROUPS = {"g1": {"a", "b"}, "g2": {"c", "d"}, "other": {"e", "f"}}
RACKS = {"a": "1", "b": "2", "c": "1", "d": "2", "e": "1", "f": "2", "loose": "3"}


@pytest.mark.parametrize(
    ("affinity", "size", "used"),
    [
        (Affinity("g1"), 2, {"a", "b"}),
        (Affinity("g1", "g2"), 2, {"a", "b"}),
        (Affinity("g1", "g2"), 3, {"a", "b", "c", "d"}),
        (Affinity("g1, g2"), 4, {"a", "b", "c", "d"}),
        (Affinity("g1", "g2"), 5, {"a", "b", "c", "d", "loose"}),
        (Affinity("g1"), 3, {"a", "b", "loose"}),
        (Affinity(), 1, {"loose"}),
        (Affinity("missing"), 1, {"loose"}),
        (ANY_GROUP, 7, set(RACKS)),
        (None, 7, set(RACKS)),
    ],
)
def test_groups_are_tried_in_order(affinity: Affinity | None, size: int, used: set[str]) -> None:
    chosen: set[str] = set()
    for seed in range(30):
        known = Known(RACKS, groups=GROUPS, seed=seed)
        chosen.update(known.new(LedgerQuorums(size, size, 1), affinity))
    assert chosen == used


def test_isolation_groups_of_the_client_apply_to_ledgers_without_their_own() -> None:
    settings = RackSettings(groups=Affinity("g2"))
    known = Known(RACKS, settings, GROUPS)
    assert set(known.new(E2)) == {"c", "d"}
    assert set(known.new(E2, Affinity("g1"))) == {"a", "b"}


def test_groups_without_any_racks_known_are_no_restriction() -> None:
    known = Known({"a": "", "b": ""}, groups=None)
    known.view = known.view._replace(groups={})
    assert set(known.new(E2, Affinity("g1"))) == {"a", "b"}


def test_replacements_stay_in_the_groups() -> None:
    for seed in range(20):
        known = Known(RACKS, groups=GROUPS | {"g1": {"a", "b", "e"}}, seed=seed)
        assert known.replacements({1}, ("a", "b"), E2, Affinity("g1")) == {1: "e"}


def test_the_affinity_is_in_the_metadata_as_pulsar_writes_it() -> None:
    custom = custom_metadata_of(Affinity("g1", "g2"))
    assert custom == {
        "EnsemblePlacementPolicyConfig": b"""{
  "policyClass" : "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",
  "properties" : {
    "isolationBookieGroups" : "g1",
    "secondaryIsolationBookieGroups" : "g2"
  }
}"""
    }
    assert affinity_of(custom) == Affinity("g1", "g2")
    assert affinity_of(custom_metadata_of(Affinity("g1"))) == Affinity("g1")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"policyClass": "a.Other", "properties": {}}', b"null", b"\xff"],
)
def test_another_policy_in_the_metadata_is_no_affinity(text: bytes) -> None:
    assert affinity_of({"EnsemblePlacementPolicyConfig": text}) is None
    assert affinity_of({}) is None


# --- health -------------------------------------------------------------------------------------


def fail(known: Known, bookie_id: str, times: int, code: int = FAILED) -> None:
    for _ in range(times):
        known.placement.on_error(bookie_id, code)


def chosen_of(known: Known, quorums: LedgerQuorums = E2) -> set[str]:
    return {each for _ in range(40) for each in known.new(quorums)}


def test_a_bookie_that_keeps_failing_is_quarantined_for_a_time() -> None:
    known = Known({"a": "1", "b": "2", "c": "3"})
    fail(known, "a", 4)
    assert "a" in chosen_of(known)
    fail(known, "a", 1)
    assert chosen_of(known) == {"b", "c"}
    assert known.replacements({0}, ("b", "x"), E2) == {0: "c"}
    known.now = 1799.0
    assert chosen_of(known) == {"b", "c"}
    known.now = 1801.0
    assert "a" in chosen_of(known)


def test_errors_of_different_intervals_do_not_add_up() -> None:
    known = Known({"a": "1", "b": "2", "c": "3"})
    for interval in range(5):
        known.now = 60.0 * interval
        fail(known, "a", 4)
    assert "a" in chosen_of(known)


def test_time_outs_of_one_pause_count_once_and_those_of_a_long_one_add_up() -> None:
    known = Known({"a": "1", "b": "2", "c": "3"})
    for known.now in (0.0, 4.9):  # a pause of ten seconds, which 100 ledgers notice
        fail(known, "a", 100, TIMED_OUT)
        assert "a" in chosen_of(known)
    for known.now in (5.0, 10.0, 15.0):
        fail(known, "a", 100, TIMED_OUT)
        assert "a" in chosen_of(known)
    known.now = 20.0
    fail(known, "a", 1, TIMED_OUT)
    assert chosen_of(known) == {"b", "c"}
    # It is usable again where too few of the others remain.
    assert set(known.new(E3)) == {"a", "b", "c"}


def test_a_bookie_without_a_connection_is_not_quarantined() -> None:
    known = Known({"a": "1", "b": "2", "c": "3"})
    fail(known, "a", 100, DISCONNECTED)
    assert "a" in chosen_of(known)


@pytest.mark.parametrize("check", [HealthCheck(is_enabled=False), HealthCheck(ratio=0.0)])
def test_the_health_check_can_be_switched_off(check: HealthCheck) -> None:
    known = Known({"a": "1", "b": "2", "c": "3"}, check=check)
    fail(known, "a", 100)
    assert "a" in chosen_of(known)


def test_quarantined_bookies_are_used_where_the_others_do_not_suffice() -> None:
    known = Known({"a": "1", "b": "2", "c": "3"})
    fail(known, "a", 5)
    assert set(known.new(E3)) == {"a", "b", "c"}
    assert known.replacements({0}, ("b", "c"), E2) == {0: "a"}


# --- refusals -----------------------------------------------------------------------------------


def refusal(known: Known, quorums: LedgerQuorums, affinity: Affinity | None = None) -> str:
    with pytest.raises(NotEnoughBookies) as raised:
        known.new(quorums, affinity)
    return str(raised.value)


def test_a_refusal_names_what_is_needed_what_is_there_and_what_decides() -> None:
    settings = RackSettings()
    two = {"a": "1", "b": "2"}
    assert refusal(Known(two, settings, read_only=("c",)), E3) == (
        "a ledger needs 3 bookies (managedLedgerDefaultEnsembleSize), but there are 2 writable"
        " and 1 read-only: start more bookies, or lower it"
    )
    assert refusal(Known({"a": "1"}, settings), LedgerQuorums(2, 2, 2, is_policy=True)) == (
        "a ledger needs 2 bookies (the persistence policy of the topic or its namespace), but"
        " there is 1 writable: start more bookies, or change the policy with 'pulsar-admin topics"
        " (or namespaces) set-persistence'"
    )
    grouped = Known({"a": "1", "b": "2", "c": "3"}, settings, {"g1": {"a"}, "g2": {"b", "c"}})
    assert refusal(grouped, E3, Affinity("g1")) == (
        "a ledger needs 3 bookies (managedLedgerDefaultEnsembleSize), but there are 3 writable,"
        " and only 1 of them may be used by the bookie affinity group of the namespace: add"
        " bookies to its groups, or change it"
    )
    one_rack = Known({"a": "1", "b": "1"}, ENFORCED)
    assert refusal(one_rack, E2) == (
        "each write quorum needs 2 racks (bookkeeperClientMinNumRacksPerWriteQuorum, which"
        " bookkeeperClientEnforceMinNumRacksPerWriteQuorum enforces), but the 2 usable bookies in"
        " 1 racks do not allow an ensemble of 2 with that: start bookies in other racks, or lower"
        " it"
    )


def test_the_quorums_of_a_policy_are_known_as_such_also_where_the_settings_are_the_same() -> None:
    (row,) = (each for each in TABLE if each.name == "persistence")
    of_settings = quorums_of(row.broker(Config()))
    of_policy = quorums_of(row.make(*of_settings[:3], 1.0))
    assert of_policy == of_settings._replace(is_policy=True)
    assert "(the persistence policy of" in refusal(Known({}), of_policy)
    assert "(managedLedgerDefaultEnsembleSize)" in refusal(Known({}), of_settings)


def test_no_bookies_are_a_refusal_too() -> None:
    assert "there are 0 writable" in refusal(Known({}), E2)
    assert Known({}).replacements({0}, ("a", "b"), E2) == {}
