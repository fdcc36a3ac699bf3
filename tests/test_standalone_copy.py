"""Copies of a standalone to a cluster of model bookies: contents, interruptions, refusals."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import model_bookies
from model_bookies import ModelBookie, closed
from one_bookie import LIMITS, Node, append, cursor_at, entries, read_all, settled
from pyxbroker.cluster import copy_ledgers
from pyxbroker.cluster.copy_ledgers import COPIED_FROM, CopyDiffers, CopyState, batches
from pyxbroker.cluster.copy_nodes import NODE_BYTES_MAX, ROOTS, Names, NodeState, walk
from pyxbroker.cluster.copying import (
    COMPLETE,
    LEDGERS,
    NODES,
    Copying,
    CopyOptions,
    CopyRefused,
    Plan,
    Side,
    refusal,
)
from pyxbroker.cluster.initialize import ClusterSettings, initialize, namespace_policies
from pyxbroker.cluster.setup import Setup, set_up
from pyxbroker.entry import AckRun, EntryRun
from pyxbroker.ledger.bookie import DAMAGED
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.ledger.metadata import LedgerMetadataStore
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MetadataStore, StoreClosed
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import open_managed_ledger

OLD, NEW = "standalone", "east"
TOPICS = [f"public/default/persistent/t{n}" for n in range(3)]
ENTRIES = 25
LIMITS_OF_TOPICS = LIMITS._replace(entries_per_ledger_max=10, retention_s=-1, retention_bytes=-1)
INSTANCE = "00000000-0000-4000-8000-000000000001"
_trees = itertools.count()


@pytest.fixture(autouse=True)
def _quick_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_bookies, "DELAY_MAX_S", 0.0003)


class Killed:
    """Ends a process at its n-th change of the cluster, before or after the change is made. With a
    path, only nodes below it count.
    """

    def __init__(self, at: int, path: str = "") -> None:
        self.at = self.left = at
        self.path = path
        self.event = asyncio.Event()

    def is_made(self, path: str = "") -> bool:
        """Return True if the change that the process begins now still happens."""
        if self.event.is_set():
            return False
        if not path.startswith("/counters"):  # their number differs from attempt to attempt
            self.left -= path.startswith(self.path)
        if self.left == 0:
            self.event.set()
            return self.at % 2 == 0
        return True


def dead() -> asyncio.Future[Any]:
    """Return the answer to a request of a killed process."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(StoreClosed("killed"))
    return future


class MortalStore(MemoryStore):
    """A session of a process that may be killed."""

    def __init__(self, tree: str, killed: Killed) -> None:
        super().__init__(tree)
        self.killed = killed

    def put(self, *arguments: Any, **options: Any) -> Any:
        if self.killed.is_made(arguments[0]):
            return super().put(*arguments, **options)
        return dead()

    def delete(self, *arguments: Any) -> Any:
        if self.killed.is_made(arguments[0]):
            return super().delete(*arguments)
        return dead()


class MortalBookie(ModelBookie):
    """A bookie that gets requests of a process that may be killed."""

    killed = Killed(0)

    def add_run(self, *arguments: Any) -> bool:
        return super().add_run(*arguments) if self.killed.is_made() else True


class Scene:
    """A standalone with some topics, and a cluster with three bookies."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self.tree = ""
        self.bookies = [MortalBookie(directory / f"b{i}", node.turn, f"b{i}", i) for i in range(3)]
        self.said: list[str] = []

    def client(self, store: MetadataStore) -> LedgerClient:
        bookies = {each.bookie_id: each for each in self.bookies}
        return LedgerClient(store, bookies, self.node.turn, LedgerQuorums(3, 3, 2))

    async def copying(
        self,
        work: Callable[[Copying], Awaitable[Any]],
        killed: Killed | None = None,
        new: str = NEW,
    ) -> Any:
        """Run work in a process that may be killed; return None then."""
        killed = killed or Killed(0)
        store = MortalStore(self.tree, killed)
        for each in self.bookies:
            each.killed = killed
        await store.open()
        client = self.client(store)
        copying = Copying(
            Side(self.node.store, self.node.client, OLD),
            Side(store, client, new),
            INSTANCE,
            CopyOptions(in_flight=3, lock_patience_s=1.0),
            self.said.append,
        )
        task = asyncio.ensure_future(work(copying))
        death = asyncio.ensure_future(killed.event.wait())
        try:
            await asyncio.wait((task, death), return_when=asyncio.FIRST_COMPLETED)
            if killed.event.is_set():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return None
            return await task
        finally:
            task.cancel()
            death.cancel()
            await asyncio.gather(task, death, return_exceptions=True)
            await client.stop()
            await store.close()

    async def apply(self, at: int = 0, path: str = "") -> Plan | None:
        killed = Killed(at, path)
        found: Plan | None = await self.copying(lambda copying: copying.apply(), killed)
        return found

    async def plan(self) -> Plan:
        found: Plan = await self.copying(lambda copying: copying.plan())
        return found

    async def begin(self) -> None:
        """Initialize a new cluster, whose bookies may have earlier copies of the ledgers."""
        self.tree = f"copied-{next(_trees)}"
        setup = Setup(ClusterSettings(NEW, "http://east:8080", ""))
        await self.target(lambda store: set_up(store, store, setup))

    async def target(self, work: Callable[[MemoryStore], Awaitable[Any]]) -> Any:
        """Work on the cluster's metadata in a session of its own."""
        store = MemoryStore(self.tree)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()


async def fill(node: Node) -> None:
    """A standalone with topics in several ledgers, a cursor with holes, schemas and policies."""
    store = node.store
    await initialize(store, ClusterSettings(OLD, "http://localhost:8080", ""))
    await store.put(paths.schema("public/default/t0"), b"index")
    policies = namespace_policies(OLD, 4) | {"topicDispatchRate": {OLD: {"rate": 7}}}
    tenant = {"allowedClusters": [OLD, "west"], "adminRoles": ["root"]}
    await store.put(paths.tenant("acme"), json.dumps(tenant).encode())
    await store.put(paths.namespace_policies("acme/a"), json.dumps(policies).encode())
    await store.put(paths.namespace_policies("public/default"), json.dumps(policies).encode())
    await store.put(paths.CONFIGURATION, b"{}")
    await store.put(f"{paths.CONFIGURATION}/x", b"")
    for name in TOPICS:
        topic = await node.open(LIMITS_OF_TOPICS, name)
        for start in range(0, ENTRIES, 10):
            await append(topic, *entries(start, min(start + 10, ENTRIES)))
            await settled(topic)
        if name != TOPICS[1]:
            await acknowledge_every_second(topic)
        if name != TOPICS[2]:  # the last ledger of the third one stays open
            await topic.close()


async def acknowledge_every_second(topic: ManagedLedger) -> None:
    cursor = await cursor_at(topic, "s", topic.first_position())
    await cursor.set_properties({"color": "red"})
    acks = AckRun.of(
        (ledger_id, n) for ledger_id in list(topic.ledgers)[:2] for n in range(1, 9, 2)
    )
    acks.add(list(topic.ledgers)[2], 3, [5], 3)
    cursor.acknowledge(acks)
    await cursor.persist()


def run(tmp_path: Path, scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Node(tmp_path / "standalone") as node:
            scene = Scene(node, tmp_path)
            try:
                await fill(node)
                await scene.begin()
                await scenario(scene)
            finally:
                await closed(scene.bookies)

    asyncio.run(asyncio.wait_for(main(), 120))


async def nodes_of(store: MetadataStore, names: Names) -> dict[str, bytes]:
    """Return all nodes that are copied, with the values that they have in the cluster."""
    found = {}
    for root in ROOTS:
        async for batch in walk(store, root):
            found |= {path: names.value(path, value) for path, value in batch}
    return found


async def contents(store: MetadataStore, client: LedgerClient) -> dict[int, list[bytes]]:
    """Return the entries of all ledgers."""
    found = {}
    async for ledger_id in LedgerMetadataStore(store).ledger_ids():
        metadata, reader = await client.open_any(ledger_id)
        found[ledger_id] = [
            each async for data in batches(reader, metadata.last_entry_id) for each in data
        ]
    return found


async def check_equal(scene: Scene) -> None:
    """The cluster has the standalone's ledgers and nodes, and continues its numbers."""

    async def check(store: MemoryStore) -> None:
        client = scene.client(store)
        expected = await contents(scene.node.store, scene.node.client)
        assert await contents(store, client) == expected
        assert sum(map(len, expected.values())) > 3 * ENTRIES
        wanted = await nodes_of(scene.node.store, Names(OLD, NEW))
        there = await nodes_of(store, Names(NEW, NEW))
        assert {path: there.get(path) for path in wanted} == wanted
        ledgers = LedgerMetadataStore(store)
        for ledger_id in expected:
            metadata = (await ledgers.read(ledger_id)).metadata
            original = (await LedgerMetadataStore(scene.node.store).read(ledger_id)).metadata
            assert metadata.is_closed
            assert metadata.length == sum(map(len, expected[ledger_id]))
            assert metadata.custom_metadata == {
                **original.custom_metadata,
                COPIED_FROM: INSTANCE.encode(),
            }
            assert len(metadata.ensembles[0]) == 3
        assert await client._ids.next_id() > max(expected)
        await client.stop()

    await scene.target(check)


def test_a_standalone_is_copied_with_its_ids_states_and_policies(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        done = await scene.apply()
        assert done is not None
        assert done.ledgers == {CopyState.MISSING: len(await contents_of(scene))}
        assert done.left_out == [f"dynamic settings of the broker ({paths.CONFIGURATION})"]
        await check_equal(scene)

        async def check(store: MemoryStore) -> None:
            policies = json.loads((await store.get(paths.namespace_policies("acme/a"))).value)
            assert policies["replication_clusters"] == [NEW]
            assert policies["topicDispatchRate"] == {NEW: {"rate": 7}}
            tenant = json.loads((await store.get(paths.tenant("acme"))).value)
            assert tenant == {"allowedClusters": [NEW, "west"], "adminRoles": ["root"]}
            cluster = json.loads((await store.get(paths.cluster(NEW))).value)
            assert cluster["serviceUrl"] == "http://east:8080"
            client = scene.client(store)
            topic = await open_managed_ledger(TOPICS[0], store, client, LIMITS_OF_TOPICS)
            assert topic is not None
            assert await read_all(topic) == entries(0, ENTRIES)
            cursor = topic.cursors["s"]
            assert cursor.properties == {"color": "red"}
            assert cursor.backlog == ENTRIES - 8
            await append(topic, b"next")
            await topic.close()
            await client.stop()

        await scene.target(check)

    run(tmp_path, scenario)


async def contents_of(scene: Scene) -> dict[int, list[bytes]]:
    return await contents(scene.node.store, scene.node.client)


def test_a_copy_that_is_killed_at_any_change_is_continued(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        attempts = 0
        for at in itertools.count(1):
            await scene.begin()
            if await scene.apply(at) is not None:
                break
            attempts += 1
            assert await scene.apply() is not None
            await check_equal(scene)
        assert attempts > 60

    run(tmp_path, scenario)


def test_a_copy_that_is_killed_again_and_again_completes(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        attempts = itertools.count(1)
        while await scene.apply(next(attempts)) is None:
            pass
        assert next(attempts) > 10
        await check_equal(scene)
        assert (await scene.plan()).phase == COMPLETE
        again = await scene.apply()
        assert again is not None
        assert set(again.ledgers) == {CopyState.COMPLETE}

    run(tmp_path, scenario)


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        async def tree(store: MemoryStore) -> dict[str, int]:
            return {path: node.version for path, node in store._tree.nodes.items()}

        before = await scene.target(tree), await tree(scene.node.store)
        plan = await scene.plan()
        assert plan.entries == sum(map(len, (await contents_of(scene)).values()))
        assert plan.node_states[NodeState.REPLACEABLE] == 1
        assert plan.collision_count == 0
        assert (await scene.target(tree), await tree(scene.node.store)) == before

    run(tmp_path, scenario)


async def own_ledger(store: MemoryStore, scene: Scene) -> None:
    client = scene.client(store)
    await client.close(await client.create_for_schema(Listener(), "x"))
    await client.stop()


class Listener:
    def on_run_confirmed(self, run: Any) -> None: ...

    def on_run_taken_back(self, run: Any) -> None: ...

    def on_ledger_failed(self, handle: Any, error: Any) -> None: ...


async def own_tenant(store: MemoryStore, scene: Scene) -> None:
    await store.put(paths.tenant("acme"), b"{}")


async def own_topic(store: MemoryStore, scene: Scene) -> None:
    await store.put(paths.managed_ledger("public/default/persistent/mine"), b"")


async def a_broker(store: MemoryStore, scene: Scene) -> None:
    await store.put(paths.broker("host:8080"), b"{}")


async def another_copy(store: MemoryStore, scene: Scene) -> None:
    await store.put(paths.COPY, b'{"source": "other", "phase": "ledgers"}')


async def a_running_copy(store: MemoryStore, scene: Scene) -> None:
    await store.put(paths.COPY_LOCK, b"")


REMEDY = r"\. Copy to a new cluster, or delete .* on one side"
REFUSED = {
    own_ledger: r"1 conflict: ledger 0 is another ledger in the cluster" + REMEDY,
    own_tenant: r"1 conflict: /admin/policies/acme has another value in the cluster" + REMEDY,
    own_topic: r"1 conflict: /admin/policies/public/default has another value .*" + REMEDY,
    a_broker: r"broker host:8080 serves the cluster, or its session has not ended yet: stop all .*",
    another_copy: r"the copy of another standalone \(other\) is not complete: finish that one .*",
    a_running_copy: r"another copy to this cluster is running",
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_copy_that_would_change_the_clusters_own_data_is_refused(
    tmp_path: Path, what: Callable[[MemoryStore, Scene], Awaitable[None]]
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.target(lambda store: what(store, scene))

        async def tree(store: MemoryStore) -> dict[str, bytes]:
            return {path: node.value for path, node in store._tree.nodes.items()}

        before = await scene.target(tree)
        with pytest.raises(CopyRefused) as refused:
            await scene.apply()
        assert re.fullmatch(REFUSED[what], str(refused.value))
        assert await scene.target(tree) == {"/pyxbroker": b""} | before

    run(tmp_path, scenario)


def test_a_refusal_names_the_first_conflicts_and_their_number() -> None:
    plan = Plan()
    for number in range(30):
        plan.add_collision(f"ledger {number} is another ledger")
    sentence = refusal(plan)
    assert sentence.startswith("30 conflicts: ledger 0 is another ledger; ledger 1 is")
    assert "; and 27 more. Copy to a new cluster" in sentence and "ledger 3" not in sentence


def test_an_interrupted_copy_gives_its_ledgers_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = []
    create = LedgerClient.create_copy

    async def create_copy(*arguments: Any) -> Any:
        handles.append(await create(*arguments))
        return handles[-1]

    async def interrupt(*arguments: Any) -> int:
        raise asyncio.CancelledError

    async def scenario(scene: Scene) -> None:
        monkeypatch.setattr(LedgerClient, "create_copy", create_copy)
        monkeypatch.setattr(copy_ledgers, "checksum_of", interrupt)
        with pytest.raises(asyncio.CancelledError):
            await scene.apply()
        # A bookie whose connection is closed is not replaced.
        assert handles and all(each.failure is not None for each in handles)

    run(tmp_path, scenario)


def test_the_name_of_a_cluster_that_was_not_initialized_is_refused(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        with pytest.raises(CopyRefused, match="no metadata of a cluster 'west', only of: east"):
            await scene.copying(lambda copying: copying.plan(), new="west")

    run(tmp_path, scenario)


def test_a_standalone_that_was_used_meanwhile(tmp_path: Path) -> None:
    """New entries are copied as long as the copy has written no topics."""

    async def scenario(scene: Scene) -> None:
        assert await scene.apply(3, f"{paths.LEDGERS}/00") is None
        assert (await scene.plan()).phase == LEDGERS
        topic = await scene.node.open(LIMITS_OF_TOPICS, "public/default/persistent/new")
        await append(topic, b"new")
        assert await scene.apply(3, paths.MANAGED_LEDGERS) is None
        assert (await scene.plan()).phase == NODES
        await append(topic, b"newer")
        await scene.node.store.put(paths.tenant("late"), b"{}")
        with pytest.raises(CopyRefused, match="the standalone was used since an earlier copy"):
            await scene.apply()

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_verification_finds_a_changed_entry(tmp_path: Path, is_changed: bool) -> None:
    async def scenario(scene: Scene) -> None:
        async def write(store: MemoryStore) -> None:
            client = scene.client(store)
            original = (await scene.node.client.open_any(1))[0]
            custom = {COPIED_FROM: INSTANCE.encode()}
            handle = await client.create_copy(Listener(), 1, original, custom)
            handle.append(EntryRun.of_all([b"other"] * (original.last_entry_id + 1)))
            await handle.drain()
            await client.close(handle)
            await client.stop()

        if is_changed:
            await scene.target(write)
        await scene.apply()
        if not is_changed:
            count = await scene.copying(lambda copying: copying.verify())
            assert count == len(await contents_of(scene))
            return
        with pytest.raises(CopyDiffers, match="the copy of ledger 1 has other entries"):
            await scene.copying(lambda copying: copying.verify())

    run(tmp_path, scenario)


def test_a_lost_entry_of_the_standalone_names_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(scene: Scene) -> None:
        read = scene.node.bookie.read

        def read_damaged(ledger_id: int, first: int, last: int, *rest: Any) -> None:
            if ledger_id == 1 and first <= 5 <= last:
                asyncio.get_running_loop().call_soon(rest[2], DAMAGED)
            else:
                read(ledger_id, first, last, *rest)

        monkeypatch.setattr(scene.node.bookie, "read", read_damaged)
        with pytest.raises(LedgerError, match=f"the standalone has lost messages of {TOPICS[0]}"):
            await scene.apply()
        assert (await scene.plan()).phase == LEDGERS

    run(tmp_path, scenario)


def test_a_node_that_zookeeper_refuses_is_found_before_the_copy(tmp_path: Path) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.node.store.put(paths.schema("public/default/t1"), bytes(NODE_BYTES_MAX + 1))
        plan = await scene.plan()
        assert plan.collisions == [
            "/schemas/public/default/t1 has 1000001 bytes, too many for ZooKeeper"
        ]

    run(tmp_path, scenario)
