"""The metadata of a new cluster, the checks of a broker before it uses it, and its registration."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest
from harness.brokers import free_ports

from metadata_backends import coroutine_test
from pyxbroker.cluster import registry
from pyxbroker.cluster.checks import LAYOUT, Places, UnusableCluster, check_cluster
from pyxbroker.cluster.initialize import ClusterSettings
from pyxbroker.cluster.registry import AnotherBroker, BrokerRegistration, broker_data
from pyxbroker.cluster.setup import Setup, set_up
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MetadataStore, Unavailable, open_store
from pyxbroker.roles import cluster_stores

NUMBERS = itertools.count()
PLACES = Places("zk:a", "zk:a/ledgers")
COORDINATORS = "/admin/partitioned-topics/pulsar/system/persistent/transaction_coordinator_assign"


def setup_of(cluster: str, coordinators: int = 16, **more: Any) -> Setup:
    settings = ClusterSettings(
        cluster,
        "http://h:8080",
        "pulsar://h:6650",
        namespace_bundles=4,
        transaction_coordinators=coordinators,
    )
    return Setup(settings, **more)


async def memory() -> MemoryStore:
    store = MemoryStore(f"cluster-{next(NUMBERS)}")
    await store.open()
    return store


async def record(store: MetadataStore, path: str) -> Any:
    found = await store.get(path)
    assert found is not None, path
    return json.loads(found.value)


@coroutine_test
async def test_a_second_cluster_is_added_to_what_clusters_share() -> None:
    east, west, shared = await memory(), await memory(), await memory()
    await set_up(east, shared, setup_of("east"))
    assert await set_up(east, shared, setup_of("east")) == []
    written = await set_up(west, shared, setup_of("west", coordinators=20))
    tenants = ["/admin/policies/public", "/admin/policies/pulsar"]
    namespaces = ["/admin/policies/public/default", "/admin/policies/pulsar/system"]
    assert written == [
        *("/ledgers/available/readonly", "/ledgers/INSTANCEID", "/bookies"),
        *("/admin/clusters/west", *tenants, *namespaces, COORDINATORS),
    ]
    for path in tenants:
        assert (await record(shared, path))["allowedClusters"] == ["east", "west"]
    for path in namespaces:
        assert (await record(shared, path))["replication_clusters"] == ["east", "west"]
    assert (await record(shared, namespaces[0]))["bundles"]["numBundles"] == 4
    assert await record(shared, COORDINATORS) == {"partitions": 20, "deleted": False}
    await set_up(west, shared, setup_of("west", coordinators=8))
    assert (await record(shared, COORDINATORS))["partitions"] == 20
    assert await east.children("/admin") == []


@coroutine_test
async def test_bookkeeper_elsewhere_gets_no_nodes() -> None:
    store = await memory()
    more = {"proxyServiceUrl": "pulsar+ssl://p:6651", "proxyProtocol": "SNI"}
    await set_up(store, store, setup_of("east", has_bookies=True, more_data=more))
    assert not await store.exists(paths.LEDGERS)
    assert (await record(store, "/admin/clusters/east")).items() >= more.items()


@coroutine_test
async def test_the_layout_of_bookkeepers_own_driver_is_accepted_and_others_are_not() -> None:
    store = await memory()
    await set_up(store, store, setup_of("east"))
    await check_cluster(store, "east", PLACES)
    await store.put(paths.LEDGER_LAYOUT, "\n".join(LAYOUT).encode())
    await check_cluster(store, "east", PLACES)
    for other in (b"", b"1\nhierarchical:1", b"\xff", b"2\n%b:2" % LAYOUT[1][:-2].encode()):
        await store.put(paths.LEDGER_LAYOUT, other)
        with pytest.raises(UnusableCluster, match="have the layout"):
            await check_cluster(store, "east", PLACES)


@coroutine_test
async def test_a_refusal_of_a_cluster_names_what_the_user_wrote() -> None:
    store = await memory()
    places = PLACES._replace(metadata_setting="--to", cluster_setting="--cluster")
    with pytest.raises(UnusableCluster, match=r"or correct --to$"):
        await check_cluster(store, "west", places)
    await set_up(store, store, setup_of("east"))
    with pytest.raises(UnusableCluster, match=r"--cluster must be one of east$"):
        await check_cluster(store, "west", places)


@coroutine_test
async def test_a_store_that_does_not_answer_is_reported_with_its_address_and_its_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_stores, "REPORT_AFTER_S", 0.05)
    hosts, waits = f"127.0.0.1:{free_ports(1)[0]}", list[str]()
    store = open_store(f"zk:{hosts}", connect_timeout_ms=300, setting="--to")
    with pytest.raises(Unavailable, match=rf"answers at {hosts} .* or correct --to$"):
        await cluster_stores.open_reporting(store, hosts, waits.append)
    assert waits == [f"ZooKeeper at {hosts}"]
    await cluster_stores.open_reporting(MemoryStore(""), hosts, waits.append)
    await asyncio.sleep(0.1)
    assert len(waits) == 1


def registration(
    store: MetadataStore, port: int, lost: list[str], started_ms: int = 1
) -> BrokerRegistration:
    urls = {"webServiceUrl": f"http://127.0.0.1:{port}"}
    value = broker_data(urls, "4.2.4", started_ms)
    return BrokerRegistration(store, f"127.0.0.1:{port}", value, lost.append)


@coroutine_test
async def test_a_broker_that_answers_is_not_replaced() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store, lost = await memory(), list[str]()
    first = registration(store, port, lost)
    await first.acquire(lost.append)
    with pytest.raises(AnotherBroker, match=f"broker 127.0.0.1:{port} serves this cluster"):
        await registration(store, 1, lost).acquire(lost.append)
    assert await store.children(paths.BROKERS) == [f"127.0.0.1:{port}"]
    await first.release()
    await registration(store, 1, lost).acquire(lost.append)
    assert lost == []
    server.close()


@coroutine_test
async def test_a_broker_that_is_gone_is_followed_when_its_session_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "POLL_S", 0.01)
    store = await memory()
    gone = registration(store, 1, [])
    await gone.acquire(lambda other: None)
    waits: list[str] = []
    lost: list[str] = []
    following = asyncio.ensure_future(registration(store, 2, lost).acquire(waits.append))
    await asyncio.sleep(0.1)
    assert not following.done()
    assert set(waits) == {"127.0.0.1:1"}
    await gone.release()
    await following
    assert await store.children(paths.BROKERS) == ["127.0.0.1:2"]


@coroutine_test
async def test_a_restarted_broker_takes_its_own_registration_over() -> None:
    store = await memory()
    await registration(store, 1, []).acquire(lambda other: None)
    await registration(store, 1, [], started_ms=2).acquire(lambda other: None)
    assert (await record(store, paths.broker("127.0.0.1:1")))["startTimestamp"] == 2


@coroutine_test
async def test_of_two_brokers_that_start_together_the_first_one_stays() -> None:
    store = await memory()
    outcomes = await asyncio.gather(
        *(registration(store, port, []).acquire(lambda other: None) for port in (1, 2)),
        return_exceptions=True,
    )
    refused = [each for each in outcomes if isinstance(each, AnotherBroker)]
    assert len(refused) == 1
    assert len(await store.children(paths.BROKERS)) == 1
