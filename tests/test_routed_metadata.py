"""A store whose subtrees are in other stores, and how the settings of a cluster name them."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from metadata_backends import coroutine_test
from pyxbroker.base.properties import ConfigError
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.routed import Route, RoutedStore
from pyxbroker.metadata.store import BadVersion, MetadataStore, Notification, Put
from pyxbroker.roles.cluster_stores import Place, ledgers_place, place_of

NUMBERS = itertools.count()
MAIN = Place("one:2181,two:2181", "/pulsar")


async def opened() -> tuple[RoutedStore, MetadataStore, MetadataStore]:
    number = next(NUMBERS)
    main, other = MemoryStore(f"main-{number}"), MemoryStore(f"other-{number}")
    store = RoutedStore(main, [Route("", main, ""), Route("/ledgers", other, "/far/away")])
    await store.open()
    return store, main, other


@coroutine_test
async def test_nodes_are_where_their_route_leads() -> None:
    store, main, other = await opened()
    await store.put("/ledgers/00/L1", b"ledger")
    await store.put("/topic", b"topic")
    created = await store.put("/ledgers/idgen/ID-", b"", sequential=True)
    assert created.path == "/ledgers/idgen/ID-0000000000"
    for where, path in ((other, "/far/away/00/L1"), (main, "/topic")):
        assert await where.get(path) is not None
    assert await store.children("/ledgers") == ["00", "idgen"]
    assert not await main.exists("/ledgers")
    await store.delete("/ledgers/00/L1")
    assert not await other.exists("/far/away/00/L1")
    await store.close()


@coroutine_test
async def test_changes_have_the_paths_of_the_caller() -> None:
    store, main, other = await opened()
    heard: dict[str, list[str]] = {"/": [], "/ledgers/available": [], "/topic": []}
    for prefix, paths in heard.items():

        def hear(notification: Notification, paths: list[str] = paths) -> None:
            paths.append(notification.path)

        store.watch(hear, prefix=prefix)
    await other.put("/far/away/available/b", b"")
    await other.put("/far/elsewhere", b"")
    await main.put("/topic", b"")
    await main.put("/ledgers", b"hidden by the route")
    await asyncio.sleep(0)
    assert {"/ledgers/available/b", "/topic"} <= set(heard["/"])
    assert set(heard["/ledgers/available"]) == {"/ledgers/available", "/ledgers/available/b"}
    assert set(heard["/topic"]) == {"/topic"}
    assert not any("far" in path for path in heard["/"])
    await store.close()


@coroutine_test
async def test_a_refused_write_leaves_nothing_in_the_other_store() -> None:
    store, _, other = await opened()
    await store.put("/topic", b"there")
    puts = [Put("/topic", b"new"), Put("/ledgers/00/L1", b"ledger")]
    with pytest.raises(BadVersion) as caught:
        await store.put_all(puts)
    assert caught.value.path == "/topic"
    assert not await other.exists("/far/away/00/L1")
    puts[0] = puts[0]._replace(expected_version=0)
    assert [(each.path, each.version) for each in await store.put_all(puts)] == [
        ("/topic", 1),
        ("/ledgers/00/L1", 0),
    ]
    await store.close()


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("", Place(MAIN.hosts, "/pulsar/ledgers")),
        ("zk+hierarchical://a:1;b:2/x/ledgers", Place("a:1,b:2", "/x/ledgers")),
        ("zk://a:1/ledgers/", Place("a:1", "/ledgers")),
        ("metadata-store:zk:a:1,b:2/chroot", Place("a:1,b:2", "/chroot/ledgers")),
        ("metadata-store:a:1", Place("a:1", "/ledgers")),
    ],
)
def test_the_place_of_ledgers_has_bookkeepers_and_pulsars_forms(uri: str, place: Place) -> None:
    assert ledgers_place(uri, MAIN) == place


@pytest.mark.parametrize(
    "uri", ["zk+flat://a:1/ledgers", "zk://a:1", "zk:a:1/ledgers", "etcd://a:1/ledgers", "/ledgers"]
)
def test_another_place_of_ledgers_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="bookkeeperMetadataServiceUri is"):
        ledgers_place(uri, MAIN)


@pytest.mark.parametrize("url", ["memory:x", "rocksdb:x", "oxia://a:1", "zk:", ""])
def test_a_store_that_is_not_zookeeper_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=f"metadataStoreUrl is {url!r}: a broker of a cluster"):
        place_of(url, "metadataStoreUrl")
