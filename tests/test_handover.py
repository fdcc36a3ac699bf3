"""Handover of bundles: a next owner has a bundle before the clients of its topics are notified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from metadata_backends import coroutine_test
from pyxbroker.base.bundles import WHOLE, Bundle, hash_of
from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import SERVE, Redirect
from pyxbroker.broker.peers import Ask
from pyxbroker.cluster import handover
from pyxbroker.cluster.handover import Handovers
from pyxbroker.cluster.ownership import BundleName
from pyxbroker.metadata import paths
from test_cluster_lookup import BUNDLE, TOPIC, Member, cluster, eventually

HALVES = [Bundle(0, 1 << 31), Bundle(1 << 31, WHOLE.upper)]


class Notified:
    """A closed topic with clients, whose notices name a broker."""

    has_notices = True

    def __init__(self, name: TopicName = TOPIC) -> None:
        self.name = name
        self.told: list[Addresses] = []

    def send_notices(self, owner: Callable[[str], Addresses] | None = None) -> None:
        names = ("", "inside", "none")
        self.told = [Addresses()] if owner is None else [owner(name) for name in names]


class Lookups:
    """Requests to brokers, by their web URLs, which answer with the rule of lookups."""

    def __init__(self, members: list[Member]) -> None:
        self.rules = {each.addresses.web_url: each.rule for each in members}
        self.asked: list[str] = []
        self.is_down = False

    async def ask(self, to: Redirect, request: Ask) -> Any:
        if self.is_down:
            raise ServiceNotReady("The broker cannot be asked.")
        self.asked.append(to.urls.web_url)
        url = urlsplit(request.target)
        assert request.method == "GET"
        assert url.path == "/lookup/v2/topic/persistent/public/default/t"
        rule = self.rules[to.urls.web_url]
        found = await rule.find(TOPIC, url.query == "authoritative=true")
        if isinstance(found, Redirect) and not found.is_owner:
            return await self.ask(found, request._replace(target=f"{url.path}?{query(found)}"))
        return {}

    async def publish(self, *_: object) -> None:
        raise AssertionError("nothing is published")


def query(to: Redirect) -> str:
    return f"authoritative={str(to.authoritative).lower()}"


def handovers(members: list[Member], of: Member) -> tuple[Handovers, Lookups]:
    lookups = Lookups(members)
    return Handovers(of.rule, of.boundaries, of.owned, lookups, of.listeners), lookups


def named(member: Member) -> list[Addresses]:
    """Return the addresses that clients of no listener, of one, and of an unknown one get."""
    inside = member.addresses._replace(broker_url=member.listeners.advertised["inside"].broker_url)
    return [member.addresses, inside, Addresses()]


@pytest.mark.parametrize("leads", [True, False])
def test_clients_get_the_addresses_of_the_broker_that_has_taken_the_bundle(leads: bool) -> None:
    @coroutine_test
    async def scenario() -> None:
        members = await cluster(2)
        leaving, following = members if leads else reversed(members)
        await leaving.owned.acquire(BUNDLE)
        members[0].plan(BUNDLE, following.id)
        moves, _ = handovers(members, leaving)
        topics = [Notified(), Notified()]
        await leaving.owned.release(BUNDLE)
        moves.begin(BUNDLE, topics)  # type: ignore[arg-type]
        await moves.finish()
        assert following.owned.is_owned(BUNDLE)
        assert [each.told for each in topics] == [named(following)] * 2
        assert await following.rule.check(TOPIC) == SERVE

    scenario()


@coroutine_test
async def test_a_broker_that_is_chosen_again_names_itself() -> None:
    (alone,) = await cluster(1)
    await alone.owned.acquire(BUNDLE)
    await alone.owned.release(BUNDLE)
    moves, lookups = handovers([alone], alone)
    topic = Notified()
    moves.begin(BUNDLE, [topic])  # type: ignore[list-item]
    await moves.finish()
    assert topic.told == named(alone) and lookups.asked == []


@coroutine_test
async def test_a_bundle_that_another_broker_has_taken_names_that_broker() -> None:
    leader, other = await cluster(2)
    await leader.owned.acquire(BUNDLE)
    moves, lookups = handovers([leader, other], other)
    topic = Notified()
    moves.begin(BUNDLE, [topic])  # type: ignore[list-item]
    await moves.finish()
    assert topic.told == named(leader) and lookups.asked == []


@coroutine_test
async def test_a_broker_is_asked_again_until_it_has_seen_that_the_former_owner_left() -> None:
    leader, other = members = await cluster(2)
    await leader.owned.acquire(BUNDLE)
    leader.plan(BUNDLE, other.id)
    assert isinstance(await other.rule.find(TOPIC, False), Redirect)
    unsubscribe, *_ = other.owned._unsubscribe
    unsubscribe()  # the answers of the other broker are from memory
    await leader.owned.release(BUNDLE)
    moves, lookups = handovers(members, leader)
    topic = Notified()
    moves.begin(BUNDLE, [topic])  # type: ignore[list-item]
    await eventually(lambda: len(lookups.asked) > 1)
    assert topic.told == []
    other.owned._check(BUNDLE)
    await moves.finish()
    assert topic.told == named(other)


@coroutine_test
async def test_clients_look_up_if_no_broker_takes_the_bundle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = await cluster(2)
    leader, other = members
    leader.plan(BUNDLE, other.id)
    moves, lookups = handovers(members, leader)
    lookups.is_down = True
    topic = Notified()
    moves.begin(BUNDLE, [topic])  # type: ignore[list-item]
    await moves.finish()
    assert topic.told == [Addresses()]

    # A broker that always answers with an owner that is gone.
    monkeypatch.setattr(handover, "TIMEOUT_S", 0.1)
    lookups.is_down = False
    lookups.rules[other.addresses.web_url] = other.rule
    monkeypatch.setattr(other.owned, "acquire", other.owned.find)
    topic = Notified()
    moves.begin(BUNDLE, [topic])  # type: ignore[list-item]
    await moves.finish()
    assert topic.told == [Addresses()]


@coroutine_test
async def test_without_clients_a_bundle_stays_without_an_owner() -> None:
    leader, other = await cluster(2)
    moves, _ = handovers([leader, other], leader)
    topic = Notified()
    topic.has_notices = False
    moves.begin(BUNDLE, [topic])  # type: ignore[list-item]
    await moves.finish()
    assert topic.told == []
    assert await leader.store.get(paths.bundle_owner(*BUNDLE)) is None


@coroutine_test
async def test_topics_of_a_bundle_that_was_split_are_handed_over_with_their_parts() -> None:
    leader, other = members = await cluster(2)
    for each in members:
        each.boundaries = split_boundaries  # type: ignore[method-assign]
        each.rule._boundaries = split_boundaries
    parts = [BundleName("public/default", str(each)) for each in HALVES]
    part = parts[hash_of(TOPIC) >= HALVES[1].lower]
    leader.plan(part, other.id)
    moves, _ = handovers(members, leader)
    topic = Notified()
    moves.begin(BUNDLE, [topic])  # type: ignore[list-item]
    await moves.finish()
    assert other.owned.owned() == [part]
    assert topic.told == named(other)


async def split_boundaries(namespace: str) -> list[int]:
    return [HALVES[0].lower, HALVES[1].lower, HALVES[1].upper]
