"""The load manager of a broker: its reports, where bundles go, and the duties of a leader."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from metadata_backends import coroutine_test
from pyxbroker.base.bundles import Bundle
from pyxbroker.base.compact_json import to_short_json
from pyxbroker.broker.clusters import Clusters
from pyxbroker.broker.listeners import Addresses, Listeners
from pyxbroker.cluster.addresses import owner_value
from pyxbroker.cluster.brokers import RegisteredBrokers
from pyxbroker.cluster.election import Election, Leader
from pyxbroker.cluster.load_manager import LoadManager, OwnerFailed
from pyxbroker.cluster.load_report import (
    BundleStats,
    LocalBrokerData,
    ResourceUsage,
    starting_report,
)
from pyxbroker.cluster.ownership import BundleName, BundleOwnership
from pyxbroker.cluster.registry import BrokerRegistration
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import SessionEvent
from pyxbroker.settings.config import Config
from pyxbroker.stats.load import Usage
from test_cluster_lookup import eventually

NUMBERS = itertools.count()
CLUSTER = "east"
SIZE = 1 << 28
BUNDLES = [
    BundleName("public/default", str(Bundle(at * SIZE, min((at + 1) * SIZE, 0xFFFFFFFF))))
    for at in range(16)
]
USAGE = Usage(50.0, 200.0, 100.0, 1_000.0, 8.0, 16.0, 0.0, 1_000.0)
BUSY = BundleStats(1_000.0, 1_000_000.0, 1_000.0, 1_000_000.0, 1, 1, 5)


class Member:
    """A broker of a cluster on a tree in memory. It notes the requests that it sends."""

    def __init__(self, tree: str, number: int, **settings: Any) -> None:
        self.store = MemoryStore(tree)
        self.id = f"b{number}:8080"
        self.url = f"http://{self.id}"
        listeners = Listeners(Addresses(f"pulsar://b{number}:6650", self.url))
        config = Config(clusterName=CLUSTER, **settings)
        self.cache = MetadataCache(self.store)
        broker: Any = SimpleNamespace(
            config=config,
            metadata=self.store,
            metadata_cache=self.cache,
            clusters=Clusters(self.store, self.cache, pytest.fail),
            namespaces=SimpleNamespace(boundaries=self.boundaries),
            topics=SimpleNamespace(registry=[]),
        )
        report = starting_report(listeners, "4.2.4", number)
        self.owned = BundleOwnership(self.store, owner_value(listeners), self.close_topics)
        self.election = Election(self.store, Leader(self.id, self.url))
        self.brokers = RegisteredBrokers(self.store)
        self.registration = BrokerRegistration(self.store, self.id, report.fields(), pytest.fail)
        self.requests: list[str] = []
        self.failure = ""
        self.unreached: set[str] = set()
        self.manager = LoadManager(
            *(broker, self.brokers, self.owned, self.election, self.registration, report),
            lambda: USAGE,
            self.put,
            lambda: self.unreached,
        )

    async def boundaries(self, namespace: str) -> list[int]:
        return [0, 0xFFFFFFFF]

    async def close_topics(self, bundle: BundleName) -> None: ...

    async def put(self, to: Addresses, path: str) -> None:
        self.requests.append(to.web_url + path)
        if self.failure:
            raise OwnerFailed(self.failure)

    async def start(self) -> Member:
        await self.store.open()
        await self.store.put(paths.cluster(CLUSTER), b"{}")
        await self.brokers.start()
        self.owned.start()
        self.election.start()
        await self.manager.start()
        await self.registration.acquire()
        await eventually(lambda: self.id in self.brokers.reports and self.election.leader)
        return self

    async def registered(self) -> dict[str, Any]:
        node = await self.store.get(paths.broker(self.id))
        assert node is not None
        found: dict[str, Any] = json.loads(node.value)
        return found

    async def add(self, name: str, stats: Mapping[str, BundleStats], percent: float) -> None:
        """Register another broker with a load."""
        report = LocalBrokerData(
            f"http://{name}",
            cpu=ResourceUsage(percent, 100.0),
            last_update=1,
            last_stats=stats,
            broker_version_string="4.2.4",
        )
        value = to_short_json(report.fields())
        await self.store.put(paths.broker(name), value, ephemeral=True)
        await eventually(lambda: name in self.brokers.reports)

    async def choose(self, bundle: BundleName, excluded: str = "") -> str | None:
        return await self.manager.choose(bundle, excluded, True)


async def member(number: int = 0, tree: str = "", **settings: Any) -> Member:
    return await Member(tree or f"load-{next(NUMBERS)}", number, **settings).start()


# --- reports ----------------------------------------------------------------------------------


@coroutine_test
async def test_a_broker_reports_its_use_of_the_host_since_it_has_registered() -> None:
    one = await member()
    assert (await one.registered())["cpu"] == {"usage": 0.0, "limit": 200.0}
    await one.manager.measure()
    await one.manager.report()
    found = await one.registered()
    assert found["cpu"] == {"usage": 50.0, "limit": 200.0}
    assert found["bandwidthOut"] == {"usage": 16.0, "limit": 1_000.0}
    assert (found["webServiceUrl"], found["bundles"]) == (one.url, [])


@coroutine_test
async def test_a_report_is_written_when_the_bundles_change_and_not_otherwise() -> None:
    one = await member()
    await one.owned.acquire(BUNDLES[0])
    await one.manager.report()
    found = await one.registered()
    assert found["bundles"] == found["lastBundleGains"] == [str(BUNDLES[0])]
    assert found["startTimestamp"] == 0
    before = await one.store.get(paths.broker(one.id))
    await one.manager.report()
    assert await one.store.get(paths.broker(one.id)) == before
    await one.owned.release(BUNDLES[0])
    await one.manager.report()
    assert (await one.registered())["lastBundleLosses"] == [str(BUNDLES[0])]


@coroutine_test
async def test_nothing_is_reported_or_moved_without_a_connection_to_the_store() -> None:
    one = await member()
    await one.add("x:1", {str(each): BUSY for each in BUNDLES}, 90.0)
    await one.owned.acquire(BUNDLES[0])
    one.store._notify_session(SessionEvent.CONNECTION_LOST)
    await one.manager.report()
    for _ in range(3):
        await one.manager.move_bundles()
    assert (await one.registered())["bundles"] == []
    assert one.requests == []
    one.store._notify_session(SessionEvent.RECONNECTED)
    await one.manager.report()
    assert (await one.registered())["bundles"] == [str(BUNDLES[0])]


# --- placement --------------------------------------------------------------------------------


@coroutine_test
async def test_bundles_are_spread_before_reports_show_them() -> None:
    one = await member()
    await one.add("x:1", {}, 5.0)
    found = [await one.choose(each) for each in BUNDLES]
    assert sorted(map(str, found)) == sorted([one.id, "x:1"] * 8)
    assert [await one.choose(each) for each in BUNDLES] == found


@coroutine_test
async def test_an_isolation_policy_decides_until_it_changes() -> None:
    one = await member()
    await one.add("x:1", {}, 5.0)
    path = paths.isolation_policies(CLUSTER)
    policy = {"p": {"namespaces": ["public/default"], "primary": ["x"], "secondary": []}}
    await one.store.put(path, to_short_json(policy))
    assert {await one.choose(each) for each in BUNDLES} == {"x:1"}
    elsewhere = [each._replace(namespace="public/other") for each in BUNDLES]
    assert {await one.choose(each) for each in elsewhere} == {one.id}
    policy["p"]["primary"] = ["nobody"]
    await one.store.put(path, to_short_json(policy))
    assert {await one.choose(each) for each in BUNDLES} == {None}


@coroutine_test
async def test_the_namespaces_of_an_anti_affinity_group_go_to_different_brokers() -> None:
    one = await member()
    names = [f"public/n{number}" for number in range(4)]
    for name in names:
        value = to_short_json({"namespaceAntiAffinityGroup": "g"})
        await one.store.put(paths.local_policies(name), value)
    for number in range(1, 4):
        await one.add(f"x{number}:1", {}, 5.0)
    found = {await one.choose(BUNDLES[0]._replace(namespace=name)) for name in names}
    assert found == {one.id, "x1:1", "x2:1", "x3:1"}


@coroutine_test
async def test_failure_domains_decide_if_they_are_enabled() -> None:
    one = await member(failureDomainsEnabled=True)
    await one.add("x:1", {}, 5.0)
    await one.add("y:1", {}, 5.0)
    for domain, brokers in (("d", [one.id, "x:1"]), ("e", ["y:1"])):
        value = to_short_json({"brokers": brokers})
        await one.store.put(paths.failure_domain(CLUSTER, domain), value)
    for name in ("public/n", "public/m"):
        value = to_short_json({"namespaceAntiAffinityGroup": "g"})
        await one.store.put(paths.local_policies(name), value)
    found = [await one.choose(BUNDLES[0]._replace(namespace=f"public/{each}")) for each in "nm"]
    assert found.count("y:1") == 1


@coroutine_test
async def test_a_broker_that_leaves_is_not_chosen() -> None:
    one = await member()
    assert await one.choose(BUNDLES[0], excluded=one.id) is None
    assert await one.choose(BUNDLES[0]) == one.id


@coroutine_test
async def test_a_broker_that_is_not_reached_is_chosen_only_if_no_other_one_may_be() -> None:
    one = await member()
    for each in ("x:1", "y:1"):
        await one.add(each, {}, 5.0)
    one.manager.plan(BUNDLES[0], "x:1")
    one.unreached = {"x:1"}
    assert {await one.choose(each) for each in BUNDLES} == {one.id, "y:1"}
    one.unreached = {"x:1", "y:1", one.id}
    unseen = BUNDLES[0]._replace(namespace="public/unseen")
    assert await one.choose(unseen, excluded=one.id) in ("x:1", "y:1")


@coroutine_test
async def test_a_planned_broker_is_chosen_once() -> None:
    one = await member()
    await one.add("x:1", {str(BUNDLES[0]): BUSY}, 5.0)
    one.manager.plan(BUNDLES[0], one.id)
    one.manager.plan(BUNDLES[1], "x:1")
    assert [await one.choose(each) for each in BUNDLES[:2]] == [one.id, "x:1"]
    await one.owned.acquire(BUNDLES[0])
    await one.manager.report()
    await eventually(lambda: one.manager.load.expected(str(BUNDLES[0])) == "")


@coroutine_test
async def test_the_present_broker_of_a_bundle_may_be_the_planned_one() -> None:
    one = await member()
    await one.add("x:1", {str(BUNDLES[0]): BUSY, str(BUNDLES[1]): BUSY}, 90.0)
    one.manager.plan(BUNDLES[0], "x:1")
    assert await one.choose(BUNDLES[0]) == "x:1"
    assert await one.choose(BUNDLES[1]) == one.id


@coroutine_test
async def test_a_plan_replaces_an_earlier_one_also_before_the_next_report() -> None:
    one = await member()
    await one.add("x:1", {str(BUNDLES[0]): BUSY}, 5.0)
    await one.add("y:1", {}, 5.0)
    brokers = one.manager.load.brokers
    for _ in range(2):
        for planned in ("y:1", one.id, "x:1", one.id):
            one.manager.plan(BUNDLES[0], planned)
            # A report that is older than the move, as of brokers that report rarely.
            brokers["x:1"].leaving.clear()
            assert await one.choose(BUNDLES[0]) == planned


@coroutine_test
async def test_a_report_from_before_a_plan_does_not_end_it() -> None:
    one = await member()
    await one.add("x:1", {}, 90.0)
    one.manager.plan(BUNDLES[0], "x:1")
    # This report was made before the plan, when the broker also had the bundle.
    await one.add("x:1", {str(BUNDLES[0]): BUSY}, 90.0)
    await eventually(lambda: str(BUNDLES[0]) in one.manager.load.brokers["x:1"].report.last_stats)
    assert await one.choose(BUNDLES[0]) == "x:1"


@coroutine_test
async def test_the_heartbeat_namespace_of_a_broker_goes_to_it() -> None:
    one = await member()
    await one.add("x:1", {}, 5.0)
    bundle = BundleName("pulsar/x:1", "0x00000000_0xffffffff")
    assert {await one.choose(bundle) for _ in range(10)} == {"x:1"}
    assert await one.choose(bundle._replace(namespace="pulsar/gone:1")) is None


@coroutine_test
async def test_an_unseen_bundle_has_the_load_that_is_stored() -> None:
    one = await member(loadBalancerResourceQuotaUpdateIntervalMinutes=1)
    await one.add("x:1", {}, 5.0)
    rates = {"msgRateIn": 9_000.0, "msgRateOut": 9_000.0, "maxSamples": 10, "numSamples": 10}
    data = {"shortTermData": rates, "longTermData": rates, "topics": 1}
    await one.store.put(paths.bundle_data(str(BUNDLES[0])), to_short_json(data))
    quota = {"msgRateIn": 20.0, "msgRateOut": 0.0, "bandwidthIn": 1.0, "bandwidthOut": 1.0}
    await one.store.put(paths.resource_quotas(str(BUNDLES[1])), to_short_json(quota))
    first = await one.choose(BUNDLES[0])
    others = [await one.choose(each) for each in BUNDLES[1:]]
    assert first not in others
    assert one.manager.load.data(str(BUNDLES[1])).long.rate == 20.0


# --- the leader -------------------------------------------------------------------------------


@coroutine_test
async def test_the_leader_moves_bundles_and_names_their_new_broker() -> None:
    one = await member()
    await one.add("x:1", {str(each): BUSY for each in BUNDLES}, 90.0)
    for _ in range(2):
        await one.manager.move_bundles()
    moved = [
        each for each in BUNDLES if f"http://x:1/admin/v2/namespaces/{each}/unload" in one.requests
    ]
    assert 1 < len(moved) < 16
    assert len(moved) == len(one.requests)
    assert {await one.choose(each) for each in moved} == {one.id}
    for _ in range(3):
        await one.manager.move_bundles()
    assert len(one.requests) == len(moved)


@coroutine_test
async def test_no_bundle_is_moved_to_a_broker_that_is_not_reached() -> None:
    one = await member()
    await one.add("x:1", {str(each): BUSY for each in BUNDLES}, 90.0)
    await one.add("y:1", {}, 0.0)
    one.unreached = {"y:1"}
    for _ in range(2):
        await one.manager.move_bundles()
    moved = [each for each in BUNDLES if any(str(each) in request for request in one.requests)]
    assert moved
    assert one.manager.load.sums("y:1").namespaces.total() == 0
    assert {await one.choose(each) for each in moved} == {one.id}


@coroutine_test
async def test_a_bundle_whose_broker_does_not_answer_stays_and_is_not_asked_for_again() -> None:
    one = await member()
    await one.add("x:1", {str(each): BUSY for each in BUNDLES}, 90.0)
    one.failure = "refused"
    for _ in range(2):
        await one.manager.move_bundles()
    asked = len(one.requests)
    assert asked
    assert one.manager.load.sums("x:1").namespaces.total() == 16
    assert one.manager.load.sums(one.id).namespaces.total() == 0
    for _ in range(2):
        await one.manager.move_bundles()
    assert len(set(one.requests)) == len(one.requests)


@coroutine_test
async def test_only_the_leader_moves_splits_and_stores() -> None:
    tree = f"load-{next(NUMBERS)}"
    leader = await member(0, tree)
    other = await member(1, tree)
    large = BUSY._replace(topics=2_000)
    await leader.add("x:1", {str(each): large for each in BUNDLES}, 90.0)
    await eventually(lambda: "x:1" in other.brokers.reports)
    for _ in range(2):
        await other.manager.move_bundles()
        await other.manager.split_bundles()
        await other.manager.store_averages()
    assert other.requests == []
    assert await other.store.children(paths.BROKER_AVERAGES) == []


@coroutine_test
async def test_the_leader_splits_a_large_bundle_at_its_broker() -> None:
    one = await member()
    large, small = (str(each) for each in BUNDLES[:2])
    stats = {large: BundleStats(topics=1_001), small: BundleStats(topics=1_000)}
    await one.add("x:1", stats, 5.0)
    await one.manager.split_bundles()
    assert one.requests == [f"http://x:1/admin/v2/namespaces/{large}/split?unload=true"]


@coroutine_test
async def test_the_leader_stores_average_loads_and_deletes_those_of_what_is_gone() -> None:
    one = await member()
    name = str(BUNDLES[0])
    await one.add("x:1", {name: BUSY}, 90.0)
    await one.manager.store_averages()
    node = await one.store.get(paths.bundle_data(name))
    assert node is not None
    data = json.loads(node.value)
    assert (data["longTermData"]["msgRateIn"], data["topics"]) == (1_000.0, 5)
    assert await one.store.children(paths.BROKER_AVERAGES) == [one.id, "x:1"]
    await one.store.delete(paths.broker("x:1"))
    await eventually(lambda: "x:1" not in one.brokers.reports)
    await one.manager.store_averages()
    assert await one.store.get(paths.bundle_data(name)) is None
    assert await one.store.children(paths.BROKER_AVERAGES) == [one.id]


@coroutine_test
async def test_a_report_with_impossible_numbers_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = await member()
    take = one.manager.load.report

    def fail(broker_id: str, report: LocalBrokerData, config: Config) -> None:
        if broker_id == "x:1":
            raise OverflowError
        take(broker_id, report, config)

    monkeypatch.setattr(one.manager.load, "report", fail)
    await one.add("x:1", {}, 5.0)
    await one.add("y:1", {}, 5.0)
    assert {*one.manager.load.brokers} == {one.id, "y:1"}
