"""The ZooKeeper store when the connection, the session or the server goes away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import free_ports

from metadata_backends import Backend, coroutine_test
from pyxbroker.cluster.ownership import BundleName, BundleOwnership
from pyxbroker.cluster.registry import STARTED, BrokerRegistration
from pyxbroker.metadata import paths, zookeeper, zookeeper_client
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.coordination import LockBusy, ResourceLock
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    MetadataStore,
    Notification,
    NotificationKind,
    Put,
    SessionEvent,
    StoreClosed,
    Unavailable,
    open_store,
)
from pyxbroker.policies.records import change_namespace
from zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.interop

LOST_AND_FOUND = [
    SessionEvent.CONNECTION_LOST,
    SessionEvent.SESSION_LOST,
    SessionEvent.RECONNECTED,
    SessionEvent.SESSION_REESTABLISHED,
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path / "zookeeper")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def backend(server: ZooKeeperServer, tmp_path: Path) -> Backend:
    return Backend("zookeeper", tmp_path, server)


@coroutine_test
async def test_operations_wait_for_a_server_that_restarts_and_keep_their_order(
    backend: Backend, server: ZooKeeperServer
) -> None:
    async with backend.store(session_timeout_ms=20_000) as store:
        events = _record(store)
        before = [store.put("/order", b"%d" % index) for index in range(100)]
        await before[0]
        server.kill()
        during = [store.put("/order", b"%d" % index) for index in range(100, 400)]
        created = store.put("/created", b"me", MUST_NOT_EXIST)
        replaced = store.put("/created", b"you", 0)
        deleted = store.delete("/created")
        await _until(lambda: SessionEvent.CONNECTION_LOST in events)
        assert not during[-1].done()
        await asyncio.to_thread(server.start)
        versions = [result.version for result in await asyncio.gather(*before, *during)]
        assert versions == sorted(set(versions)), "each write replaced the one before it"
        assert (await created).version == 0
        assert (await replaced).version == 1
        await deleted
        node = await store.get("/order")
        assert node is not None and node.value == b"399"
        assert events == [SessionEvent.CONNECTION_LOST, SessionEvent.RECONNECTED]


@coroutine_test
async def test_lost_answers_of_conditional_writes_are_found_out(
    backend: Backend, server: ZooKeeperServer
) -> None:
    """Kills the server under load: no conditional write may be refused because of itself."""
    async with backend.store(session_timeout_ms=20_000) as store:
        await store.put("/n", b"start")
        for number in range(4):
            node = await store.get("/n")
            assert node is not None
            first = node.version
            chain = [store.put("/n", b"%d" % (first + i), first + i) for i in range(400)]
            creates = [store.put(f"/c/{first}-{i}", b"", MUST_NOT_EXIST) for i in range(100)]
            pairs = [
                store.put_all([Put(f"/c/{first}-a{i}", b"%d" % i), Put(f"/c/{first}-b{i}", b"")])
                for i in range(100)
            ]
            deletes = [store.delete(f"/c/{first}-{i}") for i in range(100)]
            deletes += [store.delete(f"/c/{first}-{a}{i}") for i in range(100) for a in "ab"]
            await (chain[20], pairs[20])[number % 2]
            server.kill()
            await asyncio.to_thread(server.start)
            results = await asyncio.gather(*chain)
            assert [result.version for result in results] == list(range(first + 1, first + 401))
            await asyncio.gather(*creates, *pairs, *deletes)
        assert await store.children("/c") == []


@coroutine_test
async def test_requests_are_bounded_and_two_writes_of_a_node_are_never_under_way(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend.store() as store:
        assert isinstance(store, zookeeper.ZooKeeperStore)
        monkeypatch.setattr(zookeeper, "REQUESTS_IN_FLIGHT_MAX", 10)
        under_way: dict[object, tuple[str, ...]] = {}
        most = 0
        send, leave = store._send, store._leave_path

        def note_send(operation: Any, requests: list[Any]) -> None:
            nonlocal most
            if operation not in under_way:
                assert store._in_flight < 10, "no operation is begun beyond it"
                under_way[operation] = operation.written_paths
            written = [path for paths in under_way.values() for path in paths]
            assert len(written) == len(set(written))
            send(operation, requests)
            most = max(most, store._in_flight)

        def note_end(operation: Any) -> None:
            under_way.pop(operation, None)
            leave(operation)

        monkeypatch.setattr(store, "_send", note_send)
        monkeypatch.setattr(store, "_leave_path", note_end)
        puts = [store.put(f"/n/{number % 7}/{number % 50}", b"x") for number in range(400)]
        puts += [store.put("/n/one", b"%d" % number) for number in range(100)]
        await asyncio.gather(*puts)
        assert most >= 10
        assert not under_way


@coroutine_test
async def test_operations_fail_clearly_when_the_server_stays_away(
    backend: Backend, server: ZooKeeperServer
) -> None:
    async with backend.store(operation_timeout_ms=800) as store:
        server.kill()
        began = time.monotonic()
        ended = []
        refused = store.put("/n", b"")
        refused.add_done_callback(lambda _: ended.append("refused"))
        # A busy machine makes both late, and not the later one the first.
        too_late = asyncio.ensure_future(asyncio.sleep(1.5))
        too_late.add_done_callback(lambda _: ended.append("too late"))
        with pytest.raises(Unavailable, match=f"{server.address}.* 0.8 s"):
            await refused
        assert time.monotonic() - began > 0.7
        assert ended[0] == "refused"
        too_late.cancel()
        ticks = 0
        refused = store.get("/n")
        while not refused.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert isinstance(refused.exception(), Unavailable)
        assert ticks > 40, "the loop went on"


@coroutine_test
async def test_a_server_that_answers_nothing_for_a_while(
    backend: Backend, server: ZooKeeperServer
) -> None:
    async with backend.store(session_timeout_ms=6000, operation_timeout_ms=500) as store:
        await store.put("/n", b"0")
        server.pause()
        with pytest.raises(Unavailable):
            await store.get("/n")
        server.resume()
        node = await store.get("/n")
        assert node is not None and node.value == b"0"


@coroutine_test
async def test_many_changes_of_a_record_fail_together_while_it_answers_nothing(
    backend: Backend, server: ZooKeeperServer
) -> None:
    async with backend.store(session_timeout_ms=20_000, operation_timeout_ms=1000) as store:
        cache = MetadataCache(store)
        await store.put(paths.namespace_policies("a/b"), b"{}")
        server.pause()
        began = time.monotonic()
        found = await asyncio.gather(
            *(change_namespace(store, cache, "a/b", lambda _: None) for _ in range(20)),
            return_exceptions=True,
        )
        assert all(isinstance(each, Unavailable) for each in found)
        assert time.monotonic() - began < 2
        server.resume()
        await change_namespace(store, cache, "a/b", lambda fields: fields.update(later=True))
        cache.close()


@coroutine_test
async def test_a_session_that_expires_takes_its_ephemerals_and_a_new_one_begins(
    backend: Backend, server: ZooKeeperServer
) -> None:
    async with backend.store() as witness, backend.store(session_timeout_ms=1500) as store:
        events = _record(store)
        lost: list[str] = []
        lock = ResourceLock(store, "/locks/mine", b"me", lambda: lost.append("mine"))
        await lock.acquire()
        await store.put("/plain", b"", ephemeral=True)
        await _expire_session(store, server)
        await _until(lambda: events == LOST_AND_FOUND)
        assert not await witness.exists("/plain")
        await _until_found(witness, "/locks/mine")
        assert lock.is_held
        assert lost == []
        await lock.release()
        assert not await witness.exists("/locks/mine")


@coroutine_test
async def test_a_broker_registers_once_and_keeps_its_bundles_when_its_session_has_expired(
    backend: Backend, server: ZooKeeperServer
) -> None:
    namespace = "public/default"
    bundles = [BundleName(namespace, f"0x{n}0000000_0x{n + 1}0000000") for n in range(3)]
    nodes = [paths.broker("b:1"), *(paths.bundle_owner(*each) for each in bundles)]
    parents = (paths.BROKERS, paths.bundle_owners(namespace))
    lost: list[str] = []
    closed: list[BundleName] = []

    async def close(bundle: BundleName) -> None:
        closed.append(bundle)

    async with backend.store(session_timeout_ms=1500) as store:
        registration = BrokerRegistration(store, "b:1", {STARTED: 1}, lost.append)
        await registration.acquire()
        ownership = BundleOwnership(store, b"me", close)
        ownership.start()
        for each in bundles:
            await ownership.acquire(each)
        before = await asyncio.to_thread(_child_changes, backend, parents)
        events = _record(store)
        await _expire_session(store, server)
        await _until(lambda: events == LOST_AND_FOUND)
        for each in nodes:
            await _until_own(store, each)
        await asyncio.sleep(0.5)  # for what would be written once more
        after = await asyncio.to_thread(_child_changes, backend, parents)
        # The end of each node with its session, and one creation.
        assert after == [before[0] + 2, before[1] + 2 * len(bundles)]
        assert ownership.owned() == bundles
        assert (lost, closed) == ([], [])
        await ownership.close()
        await registration.release()


async def _until_own(store: MetadataStore, path: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while (node := await store.get(path)) is None or not node.is_own:
        assert time.monotonic() < deadline, f"{path} did not get a new owner in time"
        await asyncio.sleep(0.02)


def _child_changes(backend: Backend, nodes: Sequence[str]) -> list[int]:
    """The numbers of children that nodes have got and lost."""
    from kazoo.client import KazooClient

    client = KazooClient(backend.url.removeprefix("zk:"))
    client.start()
    try:
        return [client.get(each)[1].cversion for each in nodes]
    finally:
        client.stop()
        client.close()


@coroutine_test
async def test_a_lock_that_another_took_meanwhile_is_lost(
    backend: Backend, server: ZooKeeperServer
) -> None:
    async with backend.store() as other, backend.store(session_timeout_ms=1500) as store:
        lost: list[str] = []
        lock = ResourceLock(store, "/locks/mine", b"me", lambda: lost.append("mine"))
        await lock.acquire()
        rival = ResourceLock(other, "/locks/mine", b"other")
        with pytest.raises(LockBusy):
            await rival.acquire()
        node = await other.get("/locks/mine")
        assert node is not None
        await other.delete("/locks/mine", node.version)
        await rival.acquire()
        await _expire_session(store, server)
        await _until(lambda: lost == ["mine"])
        assert not lock.is_held
        assert rival.is_held


@coroutine_test
async def test_a_session_is_taken_for_lost_when_the_server_stays_away(
    backend: Backend, server: ZooKeeperServer
) -> None:
    async with backend.store(session_timeout_ms=1200) as store:
        events = _record(store)
        server.kill()
        await _until(lambda: len(events) == 2)
        await asyncio.to_thread(server.start)
        await _until(lambda: events == LOST_AND_FOUND)
        await store.put("/n", b"again")
        node = await store.get("/n")
        assert node is not None and node.value == b"again"


@coroutine_test
async def test_watched_paths_are_reported_after_a_reconnection(
    backend: Backend, server: ZooKeeperServer
) -> None:
    async with backend.store(session_timeout_ms=20_000) as store:
        heard: list[Notification] = []
        store.watch(heard.append, prefix="/w")
        await store.put("/w/x", b"")
        await asyncio.gather(store.get("/w/x"), store.children("/w"), store.get("/v"))
        server.kill()
        await asyncio.to_thread(server.start)
        # An attempt that met the server too early on a busy machine is given up after 13 s.
        await _until(lambda: len(heard) >= 2, timeout_s=60)
        assert set(heard) == {
            Notification(NotificationKind.MODIFIED, "/w/x"),
            Notification(NotificationKind.CHILDREN_CHANGED, "/w"),
        }


@coroutine_test
async def test_what_was_read_stays_good_while_the_server_is_away_and_not_when_it_is_back(
    backend: Backend, server: ZooKeeperServer
) -> None:
    """Also when the session is lost: nothing is dropped before what has changed can be read."""
    path, other = "/admin/policies/t/n", "/admin/policies/t/other"
    async with backend.store(session_timeout_ms=1200, operation_timeout_ms=500) as store:
        cache, events = MetadataCache(store), _record(store)
        await asyncio.gather(store.put(path, b"before"), store.put(other, b"before"))
        assert await cache.get(path) == b"before"
        server.kill()
        await _until(lambda: SessionEvent.SESSION_LOST in events)
        assert await cache.get(path) == b"before"
        with pytest.raises(Unavailable):
            await cache.get(other)
        await asyncio.to_thread(server.start)
        async with backend.store() as theirs:
            await theirs.put(path, b"after")
        await _until(lambda: events == LOST_AND_FOUND)
        await _until(lambda: path not in cache._values)
        assert await cache.get(path) == b"after"
        cache.close()


@coroutine_test
async def test_callbacks_run_on_the_loops_thread(backend: Backend, server: ZooKeeperServer) -> None:
    async with backend.store() as store:
        threads: set[int] = set()
        store.watch(lambda notification: threads.add(threading.get_ident()))
        store.on_session(lambda event: threads.add(threading.get_ident()))
        read = store.get("/n")
        read.add_done_callback(lambda future: threads.add(threading.get_ident()))
        await read
        await store.put("/n", b"")
        server.kill()
        await _until(lambda: len(threads) > 0)
        await asyncio.sleep(0.2)
        assert threads == {threading.get_ident()}


@coroutine_test
async def test_opening_fails_clearly_when_nobody_answers() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    store = open_store(f"zk:{address}", connect_timeout_ms=500)
    with pytest.raises(
        Unavailable, match=f"no ZooKeeper answers at {address} .*address of the metadata store$"
    ):
        await asyncio.wait_for(store.open(), 30)
    with pytest.raises(StoreClosed):
        await store.get("/n")


@coroutine_test
async def test_closing_is_prompt_when_the_server_is_gone(
    backend: Backend, server: ZooKeeperServer
) -> None:
    for disturb in (server.pause, server.kill):
        store = open_store(backend.url)
        await store.open()
        disturb()
        waiting = store.put("/n", b"")
        await asyncio.wait_for(store.close(), 30)
        assert isinstance(waiting.exception(), StoreClosed)
        if disturb == server.pause:
            server.resume()


@coroutine_test
async def test_two_stores_contend_with_versions(backend: Backend) -> None:
    async with backend.store() as first, backend.store() as second:
        await first.put("/n", b"")
        outcomes = await asyncio.gather(
            first.put("/n", b"1", 0), second.put("/n", b"2", 0), return_exceptions=True
        )
        assert sorted(isinstance(outcome, BadVersion) for outcome in outcomes) == [False, True]
        outcomes = await asyncio.gather(
            *[store.put("/both", b"", n) for store in (first, second) for n in (None, None)]
        )
        assert sorted(result.version for result in outcomes) == [0, 1, 2, 3]


def _record(store: MetadataStore) -> list[SessionEvent]:
    events: list[SessionEvent] = []
    store.on_session(events.append)
    return events


async def _expire_session(store: MetadataStore, server: ZooKeeperServer) -> None:
    """Another connection with the store's session closes it, as an expiry at the server does."""
    from kazoo.client import KazooClient

    client = store._client  # type: ignore[attr-defined]
    thief = KazooClient(server.address, client_id=client.client_id)

    def close_session() -> None:
        thief.start()
        thief.stop()
        thief.close()

    await asyncio.to_thread(close_session)


async def _until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        await asyncio.sleep(0.02)


async def _until_found(store: MetadataStore, path: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not await store.exists(path):
        assert time.monotonic() < deadline, f"{path} did not appear in time"
        await asyncio.sleep(0.02)


@coroutine_test
async def test_a_server_that_takes_a_connection_and_never_answers_is_asked_again(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is just starting may do; a session lasts longer than a client can wait."""
    monkeypatch.setattr(zookeeper_client, "CONNECT_S_MAX", 0.5)
    taken: list[asyncio.StreamWriter] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        if len(taken) > 1:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
            taken.append(far_writer)
            await asyncio.gather(forward(reader, far_writer), forward(far_reader, writer))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as between:
        port = between.sockets[0].getsockname()[1]
        store = open_store(f"zk:127.0.0.1:{port}", session_timeout_ms=30_000)
        await store.open()
        await store.put("/there", b"x")
        assert len(taken) > 1
        await store.close()
        for each in taken:
            each.close()
