"""What every metadata store promises, held to the memory, embedded and ZooKeeper stores alike."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from metadata_backends import Backend, coroutine_test
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    GetResult,
    InvalidPath,
    MetadataError,
    MetadataStore,
    NoChildrenForEphemerals,
    NotEmpty,
    NotFound,
    Notification,
    NotificationKind,
    Put,
    PutResult,
    StoreClosed,
    open_store,
)


@coroutine_test
async def test_a_new_node_is_read_back(backend: Backend) -> None:
    async with backend.store() as store:
        before_ms = int(time.time() * 1000)
        assert await store.get("/a/b") is None
        assert await store.put("/a/b", b"\x00value\xff") == PutResult("/a/b", 0)
        node = await store.get("/a/b")
        assert node is not None
        assert (node.value, node.version, node.ephemeral) == (b"\x00value\xff", 0, False)
        assert before_ms - 1000 <= node.created_ms <= before_ms + 10_000
        assert node.modified_ms == node.created_ms


@coroutine_test
async def test_each_write_raises_the_version_by_one(backend: Backend) -> None:
    async with backend.store() as store:
        assert (await store.put("/node", b"0")).version == 0
        created_ms = (await _read(store, "/node")).created_ms
        await asyncio.sleep(0.005)
        assert (await store.put("/node", b"1")).version == 1
        assert (await store.put("/node", b"2", 1)).version == 2
        node = await _read(store, "/node")
        assert (node.value, node.version, node.created_ms) == (b"2", 2, created_ms)
        assert node.modified_ms > created_ms


@coroutine_test
async def test_a_write_with_a_wrong_expectation_changes_nothing(backend: Backend) -> None:
    async with backend.store() as store:
        await store.put("/node", b"0")
        for expected in (MUST_NOT_EXIST, 1, 7):
            with pytest.raises(BadVersion):
                await store.put("/node", b"wrong", expected)
        with pytest.raises(BadVersion, match=r"^/node exists already$"):
            await store.put("/node", b"wrong", MUST_NOT_EXIST)
        with pytest.raises(BadVersion):
            await store.put("/absent/child", b"wrong", 0)
        assert (await _read(store, "/node")).value == b"0"
        assert not await store.exists("/absent/child")
        assert not await store.exists("/absent")


@coroutine_test
async def test_missing_parents_are_made_empty_and_persistent(backend: Backend) -> None:
    async with backend.store() as store:
        await store.put("/a/b/c", b"leaf", MUST_NOT_EXIST, ephemeral=True)
        for path in ("/a", "/a/b"):
            node = await _read(store, path)
            assert (node.value, node.version, node.ephemeral) == (b"", 0, False)
        assert (await _read(store, "/a/b/c")).ephemeral


@coroutine_test
async def test_parents_that_were_deleted_are_made_again(backend: Backend) -> None:
    async with AsyncExitStack() as stack:
        store = deleter = await stack.enter_async_context(backend.store())
        if backend.kind != "embedded":
            deleter = await stack.enter_async_context(backend.store())
        await store.put("/a/b/c", b"")
        for path in ("/a/b/c", "/a/b", "/a"):
            await deleter.delete(path)
        assert (await store.put("/a/b/c", b"again", MUST_NOT_EXIST)).version == 0
        for path in ("/a/b/c", "/a/b", "/a"):
            await deleter.delete(path)
        assert (await store.put("/a/b/c", b"once more")).version == 0
        assert (await _read(store, "/a/b/c")).value == b"once more"


@coroutine_test
async def test_children_are_names_and_sorted(backend: Backend) -> None:
    async with backend.store() as store:
        assert await store.children("/nothing") == []
        for name in ("b", "a", "a+b", "%C3%BC", "ü", "C"):
            await store.put(f"/p/{name}", b"")
        await store.put("/p/a/below", b"")
        await store.put("/p/z", b"", ephemeral=True)
        await store.put("/pp", b"")
        assert await store.children("/p") == sorted(["b", "a", "a+b", "%C3%BC", "ü", "C", "z"])
        assert await store.children("/p/b") == []
        assert {"p", "pp"} <= set(await store.children("/"))


@coroutine_test
async def test_several_nodes_are_read_as_one_operation(backend: Backend) -> None:
    async with backend.store() as store:
        for name in ("a", "b/z", "b/y"):
            await store.put(f"/several/{name}", name.encode())
        asked = [f"/several/{name}" for name in ("b/y", "none", "a", "b")]
        found = await store.get_all(asked)
        values = [each if each is None else getattr(each, "value", each) for each in found]
        assert values == [b"b/y", None, b"a", b""]
        assert found == [await store.get(path) for path in asked]
        assert await store.children_all(asked) == [[], [], [], ["y", "z"]]
        assert await store.get_all([]) == []


@coroutine_test
async def test_delete_has_its_conditions(backend: Backend) -> None:
    async with backend.store() as store:
        await store.put("/a/b", b"")
        with pytest.raises(NotEmpty):
            await store.delete("/a")
        with pytest.raises(BadVersion):
            await store.delete("/a/b", 3)
        with pytest.raises(NotFound):
            await store.delete("/a/c")
        await store.delete("/a/b", 0)
        await store.delete("/a")
        assert not await store.exists("/a")
        assert (await store.put("/a", b"new life")).version == 0


@coroutine_test
async def test_paths_are_checked(backend: Backend) -> None:
    async with backend.store() as store:
        for path in ("", "a", "/a/", "/a//b", "a/b", "/a/../b", "/a/.", "/a\0b"):
            with pytest.raises(InvalidPath):
                await store.put(path, b"")
            with pytest.raises(InvalidPath):
                await store.get(path)
        with pytest.raises(InvalidPath):
            await store.delete("/")
        assert await store.exists("/")


@coroutine_test
async def test_sequential_nodes_are_numbered_and_no_number_comes_twice(backend: Backend) -> None:
    async with backend.store() as store:
        results = await asyncio.gather(
            *[store.put("/ids/ID-", b"", ephemeral=True, sequential=True) for _ in range(20)]
        )
        numbers = [int(result.path.removeprefix("/ids/ID-")) for result in results]
        assert [len(result.path) for result in results] == [len("/ids/ID-") + 10] * 20
        assert numbers == sorted(set(numbers))
        for result in results:
            await store.delete(result.path)
        later = await store.put("/ids/ID-", b"x", sequential=True)
        assert int(later.path.removeprefix("/ids/ID-")) > numbers[-1]
        assert (await _read(store, later.path)).value == b"x"
    async with backend.store() as store:
        after_restart = await store.put("/ids/ID-", b"", ephemeral=True, sequential=True)
        assert after_restart.path > later.path


@coroutine_test
async def test_ephemeral_nodes_end_with_their_session(backend: Backend) -> None:
    async with backend.store() as store:
        await store.put("/live/me", b"1", ephemeral=True)
        await store.put("/live/me", b"2")
        await store.put("/live/gone", b"", ephemeral=True)
        await store.delete("/live/gone")
        node = await _read(store, "/live/me")
        assert (node.value, node.version, node.ephemeral) == (b"2", 1, True)
        with pytest.raises(BadVersion):
            await store.put("/live/me", b"", MUST_NOT_EXIST, ephemeral=True)
        with pytest.raises(NotEmpty):
            await store.delete("/live")
    async with backend.store() as store:
        assert await store.children("/live") == []
        assert (await _read(store, "/live")).version == 0


@coroutine_test
async def test_ephemeral_nodes_have_no_children(backend: Backend) -> None:
    async with backend.store() as store:
        await store.put("/e", b"", ephemeral=True)
        for path in ("/e/child", "/e/deep/child"):
            with pytest.raises(NoChildrenForEphemerals):
                await store.put(path, b"")
            with pytest.raises(NoChildrenForEphemerals):
                await store.put(path, b"", MUST_NOT_EXIST)
        with pytest.raises(NoChildrenForEphemerals):
            await store.put("/e/n-", b"", sequential=True)
        await store.delete("/e")
        assert (await store.put("/e/child", b"")).version == 0


@coroutine_test
async def test_operations_are_applied_in_the_order_of_issue(backend: Backend) -> None:
    async with backend.store() as store:
        chain = [store.put("/order", b"%d" % index) for index in range(500)]
        read = store.get("/order")
        gone = store.delete("/order")
        absent = store.get("/order")
        again = store.put("/order/below", b"")
        refused = store.delete("/order")
        listed = store.children("/order")
        assert [result.version for result in await asyncio.gather(*chain)] == list(range(500))
        node = await read
        assert node is not None and (node.value, node.version) == (b"499", 499)
        await gone
        assert await absent is None
        assert (await again).version == 0
        with pytest.raises(NotEmpty):
            await refused
        assert await listed == ["below"]


@coroutine_test
async def test_a_refused_operation_does_not_disturb_its_neighbours(backend: Backend) -> None:
    async with backend.store() as store:
        await store.put("/n", b"")
        futures = [
            store.put("/n", b"1", 0),
            store.put("/n", b"bad", 0),
            store.delete("/absent"),
            store.put("/m", b"", MUST_NOT_EXIST),
            store.put("/m", b"bad", MUST_NOT_EXIST),
            store.put("/n", b"2", 1),
        ]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [
            *(PutResult, BadVersion, NotFound, PutResult, BadVersion, PutResult),
        ]
        assert (await _read(store, "/n")).value == b"2"


@coroutine_test
async def test_several_writes_go_as_one(backend: Backend) -> None:
    async with backend.store() as store:
        await store.put("/n", b"0")
        first = store.put_all([Put("/n", b"1", 0), Put("/a/b/c", b"new"), Put("/a/d", b"")])
        second = store.put_all([Put("/a/b/c", b"newer", 0), Put("/n", b"2", 1)])
        assert await first == [PutResult("/n", 1), PutResult("/a/b/c", 0), PutResult("/a/d", 0)]
        assert await second == [PutResult("/a/b/c", 1), PutResult("/n", 2)]
        assert (await _read(store, "/n")).value == b"2"
        assert (await _read(store, "/a/b/c")).value == b"newer"
        assert await store.children("/a") == ["b", "d"]


@coroutine_test
async def test_of_several_writes_all_or_none_is_done(backend: Backend) -> None:
    async with backend.store() as store:
        await store.put("/n", b"0")
        await store.put("/e", b"", ephemeral=True)
        heard: list[Notification] = []
        store.watch(heard.append, prefix="/n")
        await store.get("/n")
        new = Put("/new", b"")
        over = Put("/n", b"wrong", 0)
        refusals = [
            ([over, new, Put("/n2", b"", 0)], BadVersion, "/n2"),
            ([new, over, Put("/e", b"")], BadVersion, "/e"),
            ([new, Put("/n", b"wrong", 1), over._replace(path="/n3")], BadVersion, "/n"),
            ([over, new, Put("/e/child", b"")], NoChildrenForEphemerals, "/e/child"),
        ]
        futures = [store.put_all(puts) for puts, _, _ in refusals]
        other = store.put("/other", b"")
        for future, (_, kind, path) in zip(futures, refusals, strict=True):
            with pytest.raises(kind) as caught:
                await future
            assert caught.value.path == path
        assert (await other).version == 0
        node = await _read(store, "/n")
        assert (node.value, node.version) == (b"0", 0)
        assert not await store.exists("/new")
        assert heard == []


@coroutine_test
async def test_an_ephemeral_node_is_as_before_when_a_write_beside_it_is_refused(
    backend: Backend,
) -> None:
    async with backend.store() as store:
        await store.put("/e", b"0", ephemeral=True)
        with pytest.raises(BadVersion):
            await store.put_all([Put("/e", b"1", 0), Put("/absent", b"", 3)])
        node = await _read(store, "/e")
        assert (node.value, node.version, node.ephemeral) == (b"0", 0, True)
        assert (await store.put_all([Put("/e", b"1", 0)]))[0].version == 1


@coroutine_test
async def test_writes_that_go_as_one_are_of_separate_nodes(backend: Backend) -> None:
    async with backend.store() as store:
        for paths in (["/a", "/b", "/a"], ["/a/b/c", "/a"], ["/a", "/a/b"], ["/a", "b"]):
            with pytest.raises(InvalidPath):
                await store.put_all([Put(path, b"") for path in paths])
        assert not await store.exists("/a")


@coroutine_test
async def test_an_operation_whose_caller_gave_up_is_carried_out(backend: Backend) -> None:
    async with backend.store() as store:
        store.put("/given-up", b"done").cancel()
        await store.put("/other", b"")
        assert (await _read(store, "/given-up")).value == b"done"


@coroutine_test
async def test_persistent_nodes_survive_a_restart(backend: Backend) -> None:
    async with backend.store() as store:
        for index in range(50):
            await store.put(f"/keep/{index}", b"%d" % index)
        await store.put("/keep/7", b"changed", 0)
        await store.delete("/keep/8")
    async with backend.store() as store:
        assert len(await store.children("/keep")) == 49
        node = await _read(store, "/keep/7")
        assert (node.value, node.version) == (b"changed", 1)


@coroutine_test
async def test_large_values_and_many_children(backend: Backend) -> None:
    async with backend.store() as store:
        value = bytes(range(256)) * 3000
        await store.put("/large", value)
        await asyncio.gather(*[store.put(f"/many/{index:04}", b"") for index in range(1500)])
        assert (await _read(store, "/large")).value == value
        assert await store.children("/many") == [f"{index:04}" for index in range(1500)]


@coroutine_test
async def test_watchers_hear_of_changes(backend: Backend) -> None:
    async with backend.store() as store:
        heard: list[Notification] = []
        elsewhere: list[Notification] = []
        unsubscribe = store.watch(heard.append, prefix="/w")
        store.watch(elsewhere.append, prefix="/other")
        await store.put("/w", b"")
        await _hear(heard, store)
        assert not await store.exists("/w/x", watch=True)
        assert await store.get("/w/x") is None
        await store.children("/w")
        await store.put("/w/x", b"0")
        assert await _hear(heard, store) == {
            Notification(NotificationKind.CREATED, "/w/x"),
            Notification(NotificationKind.CHILDREN_CHANGED, "/w"),
        }
        await store.get("/w/x")
        await store.put("/w/x", b"1")
        assert await _hear(heard, store) == {Notification(NotificationKind.MODIFIED, "/w/x")}
        await store.exists("/w/x", watch=True)
        await store.children("/w")
        await store.delete("/w/x")
        assert await _hear(heard, store) == {
            Notification(NotificationKind.DELETED, "/w/x"),
            Notification(NotificationKind.CHILDREN_CHANGED, "/w"),
        }
        unsubscribe()
        await store.get("/w")
        await store.put("/w", b"unheard")
        assert await _hear(heard, store) == set()
        assert elsewhere == []


@coroutine_test
async def test_a_subscriber_that_fails_does_not_disturb_the_others(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    async with backend.store() as store:
        heard: list[Notification] = []

        def fail(notification: Notification) -> None:
            raise RuntimeError("a mistake")

        store.watch(fail)
        store.watch(heard.append)
        await store.exists("/n", watch=True)
        await store.put("/n", b"")
        assert Notification(NotificationKind.CREATED, "/n") in await _hear(heard, store)
        assert "a mistake" in caplog.text


@coroutine_test
async def test_a_closed_store_refuses_operations(backend: Backend) -> None:
    async with backend.store() as store:
        await store.put("/n", b"")
    with pytest.raises(StoreClosed):
        await store.get("/n")
    await store.close()
    unopened = open_store(backend.url, data_directory=backend.directory)
    with pytest.raises(StoreClosed):
        await unopened.put("/n", b"")


@coroutine_test
async def test_what_was_issued_before_close_is_carried_out(backend: Backend) -> None:
    async with backend.store() as store:
        futures = [store.put(f"/last/{index}", b"") for index in range(20)]
    await asyncio.gather(*futures)
    async with backend.store() as store:
        assert len(await store.children("/last")) == 20


@coroutine_test
async def test_a_store_can_be_opened_again(backend: Backend) -> None:
    store = open_store(backend.url, data_directory=backend.directory)
    for version in range(3):
        await store.open()
        assert (await store.put("/n", b"")).version == version
        await store.close()


def test_an_unknown_url_names_the_known_forms() -> None:
    for url in ("etcd:http://127.0.0.1", "nonsense", "", "oxia://127.0.0.1:6648"):
        with pytest.raises(MetadataError, match=r"embedded:PATH.*zk:HOST.*memory:NAME"):
            open_store(url)


def test_pulsars_older_url_forms_are_known(tmp_path: Path) -> None:
    rocksdb = open_store("rocksdb://sub/dir", data_directory=tmp_path)
    assert rocksdb.directory == tmp_path / "sub/dir"  # type: ignore[attr-defined]
    default = open_store("embedded:", data_directory=tmp_path)
    assert default.directory == tmp_path / "metadata"  # type: ignore[attr-defined]
    for url in ("zk:a:2181,b:2181/chroot", "a:2181,b:2181/chroot"):
        assert open_store(url).hosts == "a:2181,b:2181/chroot"  # type: ignore[attr-defined]


async def _read(store: MetadataStore, path: str) -> GetResult:
    node = await store.get(path)
    assert node is not None, f"{path} exists"
    return node


async def _hear(heard: list[Notification], store: MetadataStore) -> set[Notification]:
    """What has been heard so far; gives the news of what is done some time to come in."""
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        await asyncio.sleep(0.02)
        if len(heard) >= 2:
            break
    news = set(heard)
    heard.clear()
    return news


@pytest.mark.parametrize("hosts", ["h:99999", "h:0", "h:abc", "[::1:2181", "h:2181,,", "", ":2181"])
def test_an_address_that_zookeeper_cannot_have_is_refused_with_a_sentence(hosts: str) -> None:
    with pytest.raises(MetadataError, match=r"is no address of ZooKeeper: expected zk:HOST:PORT"):
        open_store(f"zk:{hosts}")


@pytest.mark.parametrize("hosts", ["h", "h:1,i:65535/chroot", "[::1]:2181", "10.0.0.1:2181/a/b"])
def test_addresses_of_zookeeper_may_leave_the_port_out(hosts: str) -> None:
    open_store(f"zk:{hosts}")
