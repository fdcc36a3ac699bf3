"""Lookups among several brokers: the owner, the leader, and what happens without either."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Collection

import pytest

from metadata_backends import coroutine_test
from pyxbroker.base.bundles import WHOLE, Bundle
from pyxbroker.base.errors import MetadataStoreError, UnknownListener
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses, Listeners
from pyxbroker.broker.lookup import SERVE, Redirect, Refuse
from pyxbroker.cluster import lookup
from pyxbroker.cluster.addresses import owner_value
from pyxbroker.cluster.brokers import RegisteredBrokers
from pyxbroker.cluster.election import Election, Leader
from pyxbroker.cluster.isolation import Isolation
from pyxbroker.cluster.load_report import starting_report
from pyxbroker.cluster.lookup import ClusterOwnership
from pyxbroker.cluster.ownership import BundleName, BundleOwnership
from pyxbroker.cluster.registry import BrokerRegistration
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore

NUMBERS = itertools.count()
TOPIC = TopicName.get("persistent://public/default/t")
BUNDLE = BundleName("public/default", str(WHOLE))
PATIENCE_S = 5.0


class Member:
    """One broker of a cluster on a tree in memory, without topics."""

    def __init__(self, tree: str, number: int) -> None:
        self.store = MemoryStore(tree)
        self.addresses = Addresses(f"pulsar://b{number}:6650", f"http://b{number}:8080")
        self.id = f"b{number}:8080"
        inside = Addresses(f"pulsar://in{number}:6650")
        self.listeners = Listeners(self.addresses, {"inside": inside})
        self.closing = asyncio.Event()
        self.closing.set()
        self.closed: list[BundleName] = []
        self.chosen: dict[BundleName, str | None] = {}
        self.policies: dict[str, object] = {}
        self.owned = BundleOwnership(self.store, owner_value(self.listeners), self.close_topics)
        self.election = Election(self.store, Leader(self.id, self.addresses.web_url))
        self.brokers = RegisteredBrokers(self.store)
        fields = starting_report(self.listeners, "4.2.4", number).fields()
        self.lost: list[str] = []  # messages about the end of the registration
        self.registration = BrokerRegistration(self.store, self.id, fields, self.lost.append)
        self.rule = ClusterOwnership(
            *(self.id, self.boundaries, self.owned, self.election, self.brokers, self.choose),
            self.plan,
            self.explain,
        )

    async def boundaries(self, namespace: str) -> list[int]:
        return list(WHOLE)

    async def choose(self, bundle: BundleName, excluded: str, is_persistent: bool) -> str | None:
        """Choose the brokers in turn, and for a bundle that is to get an owner the same again."""
        names = sorted(self.brokers.reports.keys() - {excluded})
        if self.chosen.get(bundle) not in names:
            self.chosen[bundle] = names[len(self.chosen) % len(names)] if names else None
        return self.chosen[bundle]

    def plan(self, bundle: BundleName, broker_id: str) -> None:
        self.chosen[bundle] = broker_id

    async def explain(self, namespace: str, broker_ids: Collection[str]) -> str:
        return Isolation(self.policies).reason(namespace, broker_ids)

    async def close_topics(self, bundle: BundleName) -> None:
        await self.closing.wait()
        self.closed.append(bundle)

    async def start(self) -> Member:
        await self.store.open()
        await self.brokers.start()
        self.owned.start()
        self.election.start()
        await self.registration.acquire()
        return self

    async def stop(self) -> None:
        await self.election.close()
        await self.owned.close()
        await self.brokers.close()
        await self.store.close()

    async def die(self) -> None:
        """End the session without a word to the others."""
        await self.brokers.close()
        await self.store.close()


async def cluster(count: int) -> list[Member]:
    """Start brokers, of which the first one is the leader."""
    tree = f"lookup-{next(NUMBERS)}"
    members = [await Member(tree, number).start() for number in range(count)]
    for each in members:
        await eventually(lambda each=each: len(each.brokers.reports) == count)
        await eventually(lambda each=each: each.election.leader == members[0].election.candidate)
    return members


async def eventually(check: object) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not check():  # type: ignore[operator]
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


@coroutine_test
async def test_the_leader_places_a_bundle_and_all_brokers_name_its_owner() -> None:
    leader, other = await cluster(2)
    asked = await other.rule.find(TOPIC, authoritative=False)
    assert asked == Redirect(leader.addresses, authoritative=False)
    assert not leader.owned.owned() and not other.owned.owned()
    assert await leader.rule.find(TOPIC, authoritative=False) == SERVE
    owner = Redirect(leader.addresses, authoritative=False, is_owner=True)
    assert await other.rule.find(TOPIC, authoritative=True) == owner
    assert await other.rule.check(TOPIC) == owner


@coroutine_test
async def test_the_leader_redirects_to_the_broker_that_is_chosen() -> None:
    leader, other = await cluster(2)
    halves = [Bundle(0, 1 << 31), Bundle(1 << 31, WHOLE.upper)]
    found = [
        await leader.rule.find_of_bundle("public/default", each, False, acquires=True)
        for each in halves
    ]
    assert found == [SERVE, Redirect(other.addresses, authoritative=True)]
    # The chosen one takes it, as the redirect says.
    assert await other.rule.find_of_bundle("public/default", halves[1], True, True) == SERVE


@coroutine_test
async def test_only_the_leader_plans_the_next_owner_of_a_bundle() -> None:
    leader, other = await cluster(2)
    assert await leader.rule.find(TOPIC, False) == SERVE
    assert other.rule.plan("public/default", WHOLE, "gone:8080") is None
    to_leader = Redirect(leader.addresses, authoritative=False)
    assert other.rule.plan("public/default", WHOLE, other.id) == to_leader
    assert leader.rule.plan("public/default", WHOLE, other.id) == SERVE
    await leader.owned.release(BUNDLE)
    assert await leader.rule.find(TOPIC, False) == Redirect(other.addresses, authoritative=True)


@coroutine_test
async def test_a_bundle_without_an_owner_stays_so_unless_it_is_to_be_acquired() -> None:
    (one,) = await cluster(1)
    assert await one.rule.find_of_bundle("public/default", WHOLE, False, acquires=False) == SERVE
    assert isinstance(await one.rule.check(TOPIC), Redirect)
    assert await one.store.children(paths.OWNERS) == []
    assert await one.rule.check(TOPIC, acquires=True) == SERVE


@coroutine_test
async def test_lookups_of_one_bundle_at_the_same_time_acquire_it_once() -> None:
    leader, other = await cluster(2)
    asked = [leader.rule.find(TOPIC, False) for _ in range(50)]
    asked += [other.rule.find(TOPIC, True) for _ in range(50)]
    found = await asyncio.gather(*asked)
    assert sum(len(each.owned.owned()) for each in (leader, other)) == 1
    # Both chose at the same moment; the broker that lost answers with the winner.
    owner = leader if leader.owned.owned() else other
    theirs = found[50:] if owner is leader else found[:50]
    assert all(each == SERVE for each in found if each not in theirs)
    assert {each.urls for each in theirs if isinstance(each, Redirect)} == {owner.addresses}


@coroutine_test
async def test_a_released_bundle_is_placed_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    leader, other = await cluster(2)
    assert await other.rule.find(TOPIC, authoritative=True) == SERVE
    await other.rule.release("public/default", WHOLE, pytest.fail)
    assert other.closed == [BUNDLE]
    assert await leader.rule.find(TOPIC, authoritative=False) == SERVE
    taken, given_up = "this broker has taken a bundle", "this broker has given a bundle up"
    lines = [each.getMessage() for each in caplog.records]
    assert [each for each in lines if each in (taken, given_up)] == [taken, given_up, taken]


@coroutine_test
async def test_while_a_bundle_is_given_up_its_topics_are_refused_and_lookups_wait() -> None:
    (one,) = await cluster(1)
    assert await one.rule.find(TOPIC, False) == SERVE
    one.closing.clear()
    releasing = asyncio.ensure_future(one.owned.release(BUNDLE))
    await asyncio.sleep(0)
    # A topic that is being opened asks this, and is waited for.
    assert isinstance(await one.rule.check(TOPIC, acquires=True), Redirect)
    looking = asyncio.ensure_future(one.rule.find(TOPIC, False))
    await asyncio.sleep(0.02)
    assert not looking.done()
    one.closing.set()
    await releasing
    assert await looking == SERVE


@coroutine_test
async def test_another_broker_leads_when_the_leader_is_gone() -> None:
    leader, other = await cluster(2)
    assert await leader.rule.find(TOPIC, False) == SERVE
    await leader.die()
    await eventually(lambda: other.election.is_leader and len(other.brokers.reports) == 1)
    assert await other.rule.find(TOPIC, False) == SERVE


@coroutine_test
async def test_a_broker_that_leaves_names_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "ELECTION_TIMEOUT_S", 0.05)
    leader, other = await cluster(2)
    await leader.registration.release()
    await leader.owned.release_all()
    await eventually(lambda: len(leader.brokers.reports) == 1)
    assert await leader.rule.find(TOPIC, True) == Redirect(other.addresses, authoritative=True)
    await other.registration.release()
    await eventually(lambda: not leader.brokers.reports)
    refused = await leader.rule.find(TOPIC, True)
    assert isinstance(refused, Refuse)
    assert str(refused.error) == "No available broker found."


@coroutine_test
async def test_a_refusal_says_which_isolation_policy_allows_no_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader, _ = await cluster(2)

    async def choose_none(*arguments: object) -> None:
        return None

    leader.rule._choose = choose_none
    trial = {"namespaces": ["public/.*"], "primary": ["nosuchhost"], "secondary": []}
    leader.policies = {"trial": trial}
    refused = await leader.rule.find(TOPIC, False)
    assert isinstance(refused, Refuse)
    reason = "solation policy 'trial' allows [nosuchhost], and none of the 2 brokers matches"
    assert str(refused.error) == f"No available broker found. I{reason}."
    (line,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert line.__dict__["fields"] == {"bundle": BUNDLE, "reason": f"i{reason}"}
    leader.policies = {"trial": trial | {"namespaces": ["other/.*"], "primary": ["b[01]"]}}
    refused = await leader.rule.find(TOPIC, False)
    assert isinstance(refused, Refuse)
    assert str(refused.error) == (
        "No available broker found. No isolation policy applies to public/default, and isolation"
        " policies reserve the 2 brokers for other namespaces."
    )


@coroutine_test
async def test_clients_of_a_listener_get_its_addresses() -> None:
    leader, other = await cluster(2)
    inside = leader.listeners.advertised["inside"]._replace(web_url=leader.addresses.web_url)
    assert await other.rule.find(TOPIC, False, "inside") == Redirect(inside, False)
    assert await leader.rule.find(TOPIC, False, "inside") == SERVE
    assert await other.rule.find(TOPIC, False, "inside") == Redirect(inside, False, is_owner=True)
    unknown = await other.rule.find(TOPIC, False, "outside")
    assert isinstance(unknown, Refuse) and isinstance(unknown.error, UnknownListener)


@coroutine_test
async def test_a_disabled_owner_is_refused_as_in_pulsar() -> None:
    (one,) = await cluster(1)
    value = json.dumps({"nativeUrl": "pulsar://x:1", "disabled": True}).encode()
    await one.store.put(paths.bundle_owner(*BUNDLE), value)
    found = await one.rule.find(TOPIC, False)
    assert isinstance(found, Refuse) and isinstance(found.error, MetadataStoreError)
    assert str(found.error) == f"Namespace bundle {BUNDLE} is being unloaded"


@coroutine_test
async def test_a_lost_session_keeps_bundles_that_no_other_broker_has_taken() -> None:
    leader, _ = await cluster(2)
    assert await leader.rule.find(TOPIC, False) == SERVE
    leader.store.expire_session()
    assert leader.owned.is_owned(BUNDLE)
    await asyncio.sleep(0.1)
    node = await leader.store.get(paths.bundle_owner(*BUNDLE))
    assert node is not None and node.is_own
    assert leader.owned.is_owned(BUNDLE)
    assert leader.closed == []


@coroutine_test
async def test_a_broker_closes_the_topics_of_a_bundle_that_another_one_has_taken() -> None:
    leader, other = await cluster(2)
    assert await leader.rule.find(TOPIC, False) == SERVE
    path = paths.bundle_owner(*BUNDLE)
    await other.store.delete(path)
    await other.store.put(path, owner_value(other.listeners), ephemeral=True)
    await eventually(lambda: leader.closed == [BUNDLE])
    assert not leader.owned.is_owned(BUNDLE)
    owner = Redirect(other.addresses, authoritative=True, is_owner=True)
    assert await leader.rule.find(TOPIC, False) == owner
