"""The watch of brokers over each other: what a failed one loses, and a living one gets back."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from metadata_backends import coroutine_test
from pyxbroker.broker.listeners import Addresses, Listeners
from pyxbroker.broker.lookup import Redirect
from pyxbroker.broker.peers import Ask
from pyxbroker.client.errors import ConnectFailed, ConnectionFailed
from pyxbroker.cluster.addresses import owner_value
from pyxbroker.cluster.brokers import RegisteredBrokers
from pyxbroker.cluster.election import Election, Leader
from pyxbroker.cluster.load_report import starting_report
from pyxbroker.cluster.ownership import BundleName, BundleOwnership
from pyxbroker.cluster.peer_watch import PeerWatch
from pyxbroker.cluster.registry import BrokerRegistration
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore

NUMBERS = itertools.count()
PATIENCE_S = 5.0
TIMEOUT_S = 0.2


class Connection:
    """A connection of the simulated network."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def wait_ended(self) -> Exception:
        return await asyncio.shield(self.ended)

    def close(self) -> None:
        self.ended.cancel()


class Network:
    """The connections between brokers; `refusing`, `silent` and `unknown` (without an address) have
    those that are not reached.
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}  # by web URL
        self.refusing: set[str] = set()
        self.silent: set[str] = set()
        self.unknown: set[str] = set()
        self.connections: dict[str, list[Connection]] = {}

    def lose(self, url: str, states: set[str]) -> None:
        """End the connections to a broker, which is in a state from now on."""
        states.add(url)
        for each in self.connections.pop(url, []):
            if not each.ended.done():
                each.ended.set_result(ConnectionFailed(url, "reset"))

    async def connect(self, to: Addresses, timeout_s: float) -> Connection:
        if to.web_url in self.refusing:
            raise ConnectFailed(to.web_url, "refused") from ConnectionRefusedError()
        if to.web_url in self.unknown:
            raise ConnectFailed(to.web_url, "unknown") from OSError("unknown")
        if to.web_url in self.silent:
            await asyncio.sleep(timeout_s)
            raise ConnectFailed(to.web_url, "timed out")
        made = Connection()
        self.connections.setdefault(to.web_url, []).append(made)
        return made

    async def ask(self, to: Redirect, request: Ask) -> Any:
        return self.members[to.urls.web_url].watch.sights()


class Member:
    """One broker of a cluster on a tree in memory, without topics."""

    def __init__(self, tree: str, number: int, network: Network) -> None:
        self.store = MemoryStore(tree)
        self.id = f"b{number}:8080"
        self.addresses = Addresses(f"pulsar://b{number}:6650", f"http://b{number}:8080")
        listeners = Listeners(self.addresses)
        self.owned = BundleOwnership(self.store, owner_value(listeners), self.close_topics)
        self.election = Election(self.store, Leader(self.id, self.addresses.web_url))
        self.brokers = RegisteredBrokers(self.store)
        report = starting_report(listeners, "4.2.4", number)._replace(pyxbroker_version="1")
        self.registration = BrokerRegistration(self.store, self.id, report.fields(), [].append)
        self.closed: list[BundleName] = []
        network.members[self.addresses.web_url] = self
        self.watch = PeerWatch(
            *(self.store, self.id, self.brokers, self.election),
            network,  # type: ignore[arg-type]
            TIMEOUT_S,
        )

    async def close_topics(self, bundle: BundleName) -> None:
        self.closed.append(bundle)

    async def start(self) -> None:
        await self.store.open()
        await self.brokers.start()
        self.owned.start()
        self.election.start()
        await self.registration.acquire()
        await self.owned.acquire(BundleName("public/default", self.id))
        self.watch.start()

    async def stop(self) -> None:
        self.watch.close()
        await self.election.close()
        await self.owned.close()
        await self.brokers.close()
        await self.store.close()

    async def freeze(self) -> None:
        """Do nothing more; the session lasts."""
        self.watch.close()
        await self.brokers.close()
        self.registration._lock.is_held = False
        self.owned._nodes.clear()
        for unsubscribe in self.election._unsubscribe:
            unsubscribe()

    def has_peers(self, count: int) -> bool:
        states = [each["state"] for each in self.watch.sights().values()]
        return states == ["reached"] * count


async def cluster(count: int) -> tuple[Network, list[Member]]:
    """Start brokers, of which the first one is the leader."""
    network, tree = Network(), f"watch-{next(NUMBERS)}"
    members = [Member(tree, number, network) for number in range(count)]
    for each in members:
        await each.start()
    await eventually(lambda: all(each.has_peers(count - 1) for each in members))
    assert members[0].election.is_leader
    return network, members


async def eventually(check: Any) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not check():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


async def owners(store: MemoryStore) -> list[str]:
    return await store.children(paths.bundle_owners("public/default"))


def fields_of(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(each)["fields"] for each in caplog.records if each.getMessage() == event]


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the brokers that are not reached, and why they are not removed."""
    found = fields_of(caplog, "a broker is not reached")
    return sorted((each["broker"], each["not_removed"]) for each in found)


async def has_owners(store: MemoryStore, expected: list[str]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    found: list[str] = []
    while asyncio.get_running_loop().time() < deadline and found != expected:
        await asyncio.sleep(0.01)
        found = await owners(store)
    assert found == expected


@coroutine_test
async def test_a_leader_whose_process_has_ended_loses_what_it_holds_and_the_others_nothing() -> (
    None
):
    network, (dead, *others) = await cluster(3)
    await dead.freeze()
    network.lose(dead.addresses.web_url, network.refusing)
    await eventually(lambda: others[0].watch.removed == 1)
    left = {each.id for each in others}
    await eventually(lambda: all(each.brokers.reports.keys() == left for each in others))
    await eventually(lambda: any(each.election.is_leader for each in others))
    await has_owners(others[0].store, [others[0].id, others[1].id])
    assert (others[1].watch.removed, others[0].closed, others[1].closed) == (0, [], [])
    for each in (*others, dead):
        await each.stop()


@coroutine_test
async def test_a_living_broker_that_nobody_reaches_registers_again_and_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    network, (leader, other, silent) = await cluster(3)
    network.lose(silent.addresses.web_url, network.silent)
    await eventually(lambda: leader.watch.removed == 1)
    await eventually(lambda: silent.id in leader.brokers.reports)
    await eventually(lambda: len(warnings(caplog)) == 2)
    await asyncio.sleep(5 * TIMEOUT_S)
    assert (leader.watch.removed, other.watch.removed, silent.watch.removed) == (1, 0, 0)
    assert sorted(await owners(leader.store)) == ["b0:8080", "b1:8080", "b2:8080"]
    network.silent.clear()
    await eventually(lambda: leader.has_peers(2))
    assert warnings(caplog) == [
        (silent.id, "another broker decides"),
        (silent.id, "it was removed before, and has registered again"),
    ]
    assert "a broker is reached again" in caplog.messages
    assert any(
        "check that the others reach its advertisedAddress" in each for each in caplog.messages
    )
    for each in (leader, other, silent):
        await each.stop()


@coroutine_test
async def test_the_log_shows_why_a_silent_broker_is_not_removed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyxbroker.cluster.peer_watch.WARN_AGAIN_S", 0.1)
    network, (leader, other) = await cluster(2)
    network.lose(other.addresses.web_url, network.silent)
    await eventually(lambda: len(warnings(caplog)) == 2)
    assert set(warnings(caplog)) == {(other.id, "1 of 2 brokers are no majority")}
    assert fields_of(caplog, "a broker is not reached")[0]["error"] == "http://b1:8080: timed out"
    for each in (leader, other):
        await each.stop()


@coroutine_test
async def test_a_broker_is_silent_only_when_attempts_have_failed_for_the_whole_time() -> None:
    network, (leader, *others) = await cluster(3)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for other, states in zip(others, (network.silent, network.unknown), strict=True):
        network.lose(other.addresses.web_url, states)
    await eventually(leader.watch.unreached)
    assert loop.time() - began > 0.9 * TIMEOUT_S
    await eventually(lambda: len(leader.watch.unreached()) == 2)
    for each in (leader, *others):
        await each.stop()


@coroutine_test
async def test_a_broker_that_another_one_reaches_is_not_removed() -> None:
    network, (leader, other, third) = await cluster(3)
    url = third.addresses.web_url
    to_third = network.connections[url]
    network.silent.add(url)
    to_third[0].ended.set_result(ConnectionFailed(url, "reset"))
    pair = (leader.watch, other.watch)
    await eventually(lambda: "silent" in {each.sights()[third.id]["state"] for each in pair})
    await asyncio.sleep(3 * TIMEOUT_S)
    assert (leader.watch.removed, other.watch.removed) == (0, 0)
    for each in (leader, other, third):
        await each.stop()
