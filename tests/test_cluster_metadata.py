"""The metadata of a new cluster, the checks of a broker before it uses it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import Any

import pytest
from harness.brokers import free_ports

from metadata_backends import coroutine_test
from pyxbroker.base.properties import ConfigError
from pyxbroker.cluster.checks import LAYOUT, Places, UnusableCluster, check_cluster
from pyxbroker.cluster.initialize import ClusterSettings
from pyxbroker.cluster.setup import Setup, set_up, set_up_transactions
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MetadataStore, Unavailable, open_store
from pyxbroker.roles import cluster_stores
from pyxbroker.roles.cluster_stores import ClusterStores
from pyxbroker.settings.config import Config

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
        *("/admin/clusters/west", tenants[0], namespaces[0], tenants[1], namespaces[1]),
        COORDINATORS,
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
async def test_the_metadata_of_transactions_is_added_to_a_cluster_without_it() -> None:
    store = await memory()
    await set_up(store, store, setup_of("east", coordinators=0))
    assert await set_up_transactions(store, "east", 4) == [COORDINATORS]
    for count, written in ((4, []), (2, []), (6, [COORDINATORS])):
        assert await set_up_transactions(store, "east", count) == written
    assert await record(store, COORDINATORS) == {"partitions": 6, "deleted": False}


@coroutine_test
async def test_the_local_store_of_another_cluster_is_refused_and_not_changed() -> None:
    async def nodes(store: MetadataStore, path: str = "") -> list[Any]:
        found = []
        for name in await store.children(path or "/"):
            found += [(path, name, await store.get(f"{path}/{name}"))]
            found += await nodes(store, f"{path}/{name}")
        return found

    east, west = await memory(), await memory()
    await set_up(east, east, setup_of("east"))
    before = await nodes(east)
    for shared in (east, west):
        with pytest.raises(ConfigError, match=r"has the metadata of cluster east, and each"):
            await set_up(east, shared, setup_of("west"))
    assert (await nodes(east), await nodes(west)) == (before, [])
    await set_up(west, east, setup_of("west"))  # which shares the configuration store
    await set_up(east, east, setup_of("east"))
    assert await east.children(paths.CLUSTERS) == ["east", "west"]


@coroutine_test
async def test_the_store_with_the_records_of_other_clusters_can_be_the_local_one_of_a_new_one() -> (
    None
):
    east, shared = await memory(), await memory()
    await set_up(east, shared, setup_of("east"))
    await set_up(shared, shared, setup_of("west"))
    assert await shared.exists(paths.BOOKIE_RACKS)


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
    places = PLACES._replace(clusters_setting="--to", cluster_setting="--cluster")
    with pytest.raises(UnusableCluster, match=r"or correct --to$"):
        await check_cluster(store, "west", places)
    await set_up(store, store, setup_of("east"))
    with pytest.raises(UnusableCluster, match=r"--cluster must be one of east$"):
        await check_cluster(store, "west", places)


def test_places_name_the_settings_from_which_they_come() -> None:
    config = Config.load(overrides={"metadataStoreUrl": "zk:a:1/x"}, is_cluster=True)
    assert ClusterStores(config).places == Places(
        "zk:a:1/x", "zk:a:1/x/ledgers", "metadataStoreUrl", "metadataStoreUrl"
    )
    config = Config.load(
        overrides={
            "metadataStoreUrl": "zk:a:1",
            "configurationMetadataStoreUrl": "zk:b:1/nothing",
            "bookkeeperMetadataServiceUri": "zk+hierarchical://c:1/ledgers",
        },
        is_cluster=True,
    )
    assert ClusterStores(config).places == Places(
        *("zk:b:1/nothing", "zk:c:1/ledgers"),
        *("configurationMetadataStoreUrl", "bookkeeperMetadataServiceUri"),
    )


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
    hosts = f"no-such-host.invalid:1,{hosts}"
    unknown = r"the host name no-such-host\.invalid cannot be resolved: .+"
    store = open_store(f"zk:{hosts}", connect_timeout_ms=300, setting="--to")
    with pytest.raises(Unavailable, match=rf"\(waited 0.3 s; {unknown}\)\. Start it"):
        await cluster_stores.open_reporting(store, hosts, waits.append)
    assert re.fullmatch(rf"ZooKeeper at {hosts} \({unknown}\)", waits.pop())
    await cluster_stores.open_reporting(MemoryStore(""), hosts, waits.append)
    await asyncio.sleep(0.1)
    assert len(waits) == 1
