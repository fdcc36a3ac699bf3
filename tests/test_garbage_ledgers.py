"""Ledgers that a crash has left behind are deleted, and never one that a node names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from model_bookies import ModelBookie, closed
from one_bookie import LIMITS, NAME, Node, Runs, entries, read_all, until
from pyxbroker.broker.garbage_ledgers import GarbageLedgers
from pyxbroker.entry import EntryRun, Position
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.metadata import NAMED_IN_STORE, LedgerMetadata, decode
from pyxbroker.ledger.placement import LedgerQuorums
from pyxbroker.ledger.reader import ReadSettings
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import SessionEvent
from pyxbroker.mledger import compacted_ledger
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.mledger.opening import delete_managed_ledger, open_managed_ledger
from pyxbroker.proto import MLDataFormats
from pyxbroker.schemas.storage import SchemaStorage
from pyxbroker.schemas.values import Schema, SchemaType, StoredSchema

OTHER = "public/default/persistent/other"
SCHEMA = "public/default/t"
STORED = StoredSchema(Schema(SchemaType.STRING, b"", ()), "", 1, False, 0)


class Listener:
    """The owner of a ledger that a test writes."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.error: LedgerError | None = None

    def on_run_confirmed(self, run: EntryRun) -> None:
        self.confirmed += 1

    def on_run_taken_back(self, run: EntryRun) -> None: ...

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        self.error = error


class Cluster:
    """Three model bookies, a broker's ledger client, and the collection of garbage."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self.store = node.store
        self.bookies = [
            ModelBookie(directory / f"b{i}", node.turn, f"b{i}", seed=i) for i in range(3)
        ]
        self.client = self.new_client()
        self.client.custom_metadata = {NAMED_IN_STORE: b"1"}
        self.garbage = GarbageLedgers(self.store, self.client, pause_s=0.0)

    def new_client(self) -> LedgerClient:
        by_id = {each.bookie_id: each for each in self.bookies}
        reads = ReadSettings(speculative_s=0.05, timeout_s=0.1)
        return LedgerClient(
            self.store, by_id, self.node.turn, LedgerQuorums(3, 3, 2), read_settings=reads
        )

    async def open(self, name: str = NAME) -> ManagedLedger:
        opened = await open_managed_ledger(name, self.store, self.client, LIMITS)
        assert opened is not None
        return opened

    async def leave(self, custom: Mapping[str, bytes] | None = None, count: int = 0) -> int:
        """Create a ledger that no node names, with confirmed entries; return its id."""
        handle, _ = await self.create(custom, count)
        return handle.ledger_id

    async def create(
        self, custom: Mapping[str, bytes] | None = None, count: int = 0
    ) -> tuple[LedgerHandle, Listener]:
        listener = Listener()
        found = topic() if custom is None else dict(custom)
        handle = await self.client._create(listener, found, 0)
        for number in range(count):
            self.node.turn.run(handle.append, EntryRun.of(b"%d" % number, listener))
        await until(lambda: listener.confirmed == count)
        return handle, listener

    async def ids(self) -> set[int]:
        """Return the ledgers of the cluster."""
        return {each async for each in self.garbage._metadata.ledger_ids()}

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        node = await self.store.get(paths.ledger(ledger_id))
        assert node is not None
        return decode(node.value)


def topic(name: str = NAME, **more: str) -> dict[str, bytes]:
    found = {"component": b"managed-ledger", "pulsar/managed-ledger": name.encode()}
    return found | {f"pulsar/{key}": value.encode() for key, value in more.items()}


def run(tmp_path: Path, scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Node(tmp_path / "node") as node:
            cluster = Cluster(node, tmp_path)
            try:
                await scenario(cluster)
            finally:
                await cluster.client.stop()
                await closed(cluster.bookies)

    asyncio.run(main())


async def append(cluster: Cluster, managed_ledger: ManagedLedger, data: list[bytes]) -> None:
    runs = Runs()
    for each in data:
        cluster.node.turn.run(managed_ledger.append, runs.run(each))
    await until(lambda: runs.answered == len(data))
    assert runs.added == data


async def new_cursor(managed_ledger: ManagedLedger, name: str) -> Cursor:
    cursor = Cursor(managed_ledger, name, managed_ledger.first_position())
    managed_ledger.cursors[name] = cursor
    await cursor.create_node()
    return cursor


async def in_use(cluster: Cluster) -> ManagedLedger:
    """Return a topic with two ledgers, a cursor ledger, a compacted ledger, and a schema."""
    managed_ledger = await cluster.open()
    cursor = await new_cursor(managed_ledger, "s/1")
    await append(cluster, managed_ledger, entries(0, 10))
    old = managed_ledger.current
    managed_ledger.roll_over()
    await until(lambda: managed_ledger.current not in (None, old))
    await append(cluster, managed_ledger, entries(10, 20))
    assert old is not None
    cursor.acknowledge_up_to(Position(old.ledger_id, 3))
    await cursor.persist()
    full_name = "persistent://public/default/t"
    await compacted_ledger.create(managed_ledger, Listener(), full_name, b"")
    assert await SchemaStorage(cluster.store, cluster.client).append(SCHEMA, None, STORED)
    assert len(await cluster.ids()) == 5
    return managed_ledger


def test_what_a_crash_leaves_is_deleted_by_the_second_scan_and_nothing_else(
    tmp_path: Path,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await in_use(cluster)
        used = await cluster.ids()
        left = {
            await cluster.leave(topic(), count=3),
            await cluster.leave(topic(OTHER)),
            await cluster.leave(topic(cursor="s/1"), count=1),
            await cluster.leave(topic(cursor="gone")),
            await cluster.leave({"component": b"schema", "pulsar/schemaId": SCHEMA.encode()}),
            await cluster.leave({"component": b"schema", "pulsar/schemaId": b"public/default/o"}),
            await cluster.leave(
                {
                    "component": b"compacted-ledger",
                    "pulsar/compactedTopic": b"persistent://public/default/o",
                }
            ),
        }
        await cluster.garbage.collect()
        assert await cluster.ids() == used | left, "it may be named soon"
        await cluster.garbage.collect()
        assert await cluster.ids() == used
        assert cluster.garbage.deleted == len(left)
        await append(cluster, managed_ledger, entries(20, 30))
        assert await read_all(managed_ledger) == entries(0, 30)
        for _ in range(2):
            await cluster.garbage.collect()
        assert await cluster.ids() == used
        await managed_ledger.close()
        await delete_managed_ledger(await cluster.open(), "persistent://public/default/t")

    run(tmp_path, scenario)


FOREIGN: list[dict[str, bytes]] = [
    {"component": b"delayed-index-bucket", "pulsar/delayedIndexBucketTopic": b"t"},
    {"component": b"function", "pulsar/managed-ledger": NAME.encode()},
    {"component": b"managed-ledger"},
    {"component": b"managed-ledger", "pulsar/managed-ledger": b"\xff"},
    {"component": b"managed-ledger", "pulsar/managed-ledger": b"//"},
    {"component": b"managed-ledger", "pulsar/managed-ledger": NAME.encode(), "application": b"dl"},
    {"component": b"schema"},
    {"component": b"compacted-ledger", "pulsar/compactedTopic": b"persistent://a"},
    # The topic exists: it finds its compacted ledgers when it opens.
    {"component": b"compacted-ledger", "pulsar/compactedTopic": b"persistent://public/default/t"},
    {},
]


def test_ledgers_of_other_applications_are_never_touched(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        garbage = GarbageLedgers(cluster.store, cluster.client, all_brokers=True, pause_s=0.0)
        for each in FOREIGN:
            await cluster.leave(each)
        await cluster.store.put(paths.ledger(10**12), b"nothing that can be read")
        ids = await cluster.ids()
        for _ in range(3):
            await garbage.collect()
        assert await cluster.ids() == ids
        for each in ids - {10**12}:
            assert not (await cluster.metadata(each)).is_closed, "no bookie of it is fenced"
        await managed_ledger.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("all_brokers", [False, True])
def test_ledgers_of_other_brokers_are_judged_only_on_request(
    tmp_path: Path, all_brokers: bool
) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.client.custom_metadata = {}
        schema = {"component": b"schema", "pulsar/schemaId": SCHEMA.encode()}
        compacted = {
            "component": b"compacted-ledger",
            "pulsar/compactedTopic": b"persistent://public/default/o",
        }
        closed_before_named = {await cluster.leave(schema), await cluster.leave(compacted)}
        left = {await cluster.leave(), await cluster.leave(topic(cursor="s"))}
        garbage = GarbageLedgers(cluster.store, cluster.client, all_brokers, pause_s=0.0)
        for _ in range(3):
            await garbage.collect()
        assert await cluster.ids() == closed_before_named | (set() if all_brokers else left)

    run(tmp_path, scenario)


def test_a_ledger_that_another_node_names_stays(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        by_topic = await cluster.leave(topic(OTHER), count=2)
        by_cursor = await cluster.leave(topic(cursor="gone"))
        by_property = await cluster.leave(topic(OTHER, cursor="gone"))
        left = await cluster.leave(topic(OTHER))
        shadow = MLDataFormats.ManagedLedgerInfo()
        shadow.ledgerInfo.add(ledgerId=by_topic)
        shadow.properties.add(key="k", value=f"1,{by_property},2")
        place = "/managed-ledgers/a/b/persistent/shadow"
        await cluster.store.put(place, shadow.SerializeToString())
        cursor = MLDataFormats.ManagedCursorInfo(cursorsLedgerId=by_cursor)
        await cluster.store.put(f"{place}/c", cursor.SerializeToString())
        for _ in range(3):
            await cluster.garbage.collect()
        assert await cluster.ids() == {by_topic, by_cursor, by_property}
        assert left not in await cluster.ids()

    run(tmp_path, scenario)


@pytest.mark.parametrize("root", [paths.MANAGED_LEDGERS, paths.SCHEMAS])
def test_nothing_is_deleted_while_a_node_cannot_be_read(tmp_path: Path, root: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        left = await cluster.leave()
        await cluster.store.put(f"{root}/a/b/persistent/t", b"\x07\x07")
        for _ in range(3):
            await cluster.garbage.collect()
        assert await cluster.ids() == {left}
        await cluster.store.delete(f"{root}/a/b/persistent/t")
        await cluster.garbage.collect()
        assert await cluster.ids() == set()

    run(tmp_path, scenario)


def test_nothing_is_deleted_before_a_copy_is_complete(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        left = await cluster.leave()
        await cluster.garbage.collect()
        for phase in ("ledgers", "nodes"):
            await cluster.store.put(paths.COPY, json.dumps({"phase": phase}).encode())
            for _ in range(2):
                await cluster.garbage.collect()
            assert await cluster.ids() == {left}
        await cluster.store.put(paths.COPY, b'{"phase": "complete"}')
        await cluster.garbage.collect()
        assert await cluster.ids() == {left}, "scans before the copy do not count"
        await cluster.garbage.collect()
        assert await cluster.ids() == set()

    run(tmp_path, scenario)


# --- schedules ----------------------------------------------------------------------------------


def test_a_creator_that_pauses_for_one_scan_keeps_its_ledger(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.client.custom_metadata = {}
        garbage = GarbageLedgers(cluster.store, cluster.client, all_brokers=True, pause_s=0.0)
        handle, listener = await cluster.create()
        await garbage.collect()
        info = MLDataFormats.ManagedLedgerInfo()
        info.ledgerInfo.add(ledgerId=handle.ledger_id)
        await cluster.store.put(paths.managed_ledger(NAME), info.SerializeToString())
        for _ in range(3):
            await garbage.collect()
        cluster.node.turn.run(handle.append, EntryRun.of(b"x", listener))
        await until(lambda: listener.confirmed == 1)
        assert (await cluster.metadata(handle.ledger_id)).state.name == "OPEN"

    run(tmp_path, scenario)


def test_a_creator_that_pauses_too_long_confirms_nothing_in_its_ledger(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        handle, listener = await cluster.create(count=2)
        for _ in range(2):
            await cluster.garbage.collect()
        assert await cluster.ids() == set()
        cluster.node.turn.run(handle.append, EntryRun.of(b"x", listener))
        await until(lambda: listener.error is not None)
        assert listener.confirmed == 2

    run(tmp_path, scenario)


def test_a_ledger_that_is_named_while_it_is_closed_stays(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        ledger_id = await cluster.leave(count=2)
        await cluster.garbage.collect()
        recover = cluster.client.recover

        async def recover_and_name(which: int) -> tuple[int, int]:
            end = await recover(which)
            info = MLDataFormats.ManagedLedgerInfo()
            info.ledgerInfo.add(ledgerId=which)
            await cluster.store.put(paths.managed_ledger(NAME), info.SerializeToString())
            return end

        cluster.client.recover = recover_and_name  # type: ignore[method-assign]
        await cluster.garbage.collect()
        cluster.client.recover = recover  # type: ignore[method-assign]
        assert await cluster.ids() == {ledger_id}
        managed_ledger = await cluster.open()
        assert await read_all(managed_ledger) == [b"0", b"1"]
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_ledger_that_changes_after_it_was_closed_stays(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        left = await cluster.leave()
        await cluster.garbage.collect()
        children_all = cluster.store.children_all
        changes = []

        def change(names: Any) -> Any:
            if not changes:
                node = cluster.store._tree.nodes[paths.ledger(left)]
                changes.append(cluster.store.put(paths.ledger(left), node.value))
            return children_all(names)

        cluster.store.children_all = change  # type: ignore[method-assign]
        await cluster.garbage.collect()
        assert changes and await cluster.ids() == {left}
        await cluster.garbage.collect()
        assert await cluster.ids() == set()

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_cursor_whose_ledger_is_taken_for_garbage_writes_another_one(
    tmp_path: Path, is_deleted: bool
) -> None:
    """The second scan ends before the cursor's node names the ledger, or after."""

    async def scenario(cluster: Cluster) -> None:
        managed_ledger = await cluster.open()
        cursor = await new_cursor(managed_ledger, "s")
        await append(cluster, managed_ledger, entries(0, 10))
        assert managed_ledger.current is not None
        cursor.acknowledge_up_to(Position(managed_ledger.current.ledger_id, 5))
        write_node = cursor._write_node
        taken = []

        async def pause_and_write(ledger_id: int) -> None:
            if not taken:
                taken.append(ledger_id)
                await cluster.garbage.collect()
                if is_deleted:
                    await cluster.garbage.collect()
                else:
                    await cluster.client.recover(ledger_id)
            await write_node(ledger_id)

        cursor._write_node = pause_and_write  # type: ignore[method-assign]
        await cursor.persist()
        assert cursor.ledger_id not in taken
        assert taken[0] not in await cluster.ids()
        cursor.acknowledge_up_to(Position(managed_ledger.current.ledger_id, 7))
        await cursor.persist()
        managed_ledger = await cluster.open()  # as after a kill
        assert managed_ledger.cursors["s"].acks.mark_delete.entry_id == 7
        await managed_ledger.close()

    run(tmp_path, scenario)


def test_a_schema_never_names_a_ledger_that_was_taken_for_garbage(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        storage = SchemaStorage(cluster.store, cluster.client)
        close_named = cluster.client.close_named

        async def pause_and_close(*arguments: Any) -> int:
            for _ in range(2):
                await cluster.garbage.collect()
            return await close_named(*arguments)

        cluster.client.close_named = pause_and_close  # type: ignore[method-assign]
        with pytest.raises(LedgerError, match="taken over"):
            await storage.append(SCHEMA, None, STORED)
        assert await storage.versions(SCHEMA) is None
        cluster.client.close_named = close_named  # type: ignore[method-assign]
        entry = await storage.append(SCHEMA, None, STORED)
        assert entry is not None and await storage.read(entry) == STORED
        assert await cluster.ids() == {entry.ledger_id}

    run(tmp_path, scenario)


def test_a_ledger_whose_bookies_do_not_answer_stays(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        left = await cluster.leave(count=2)
        for each in cluster.bookies[1:]:
            each.is_down = True
        for _ in range(3):
            await cluster.garbage.collect()
        assert await cluster.ids() == {left}
        for each in cluster.bookies[1:]:
            each.is_down = False
        await cluster.garbage.collect()
        assert await cluster.ids() == set()

    run(tmp_path, scenario)


def test_a_scan_that_loses_its_session_deletes_nothing(tmp_path: Path) -> None:
    """What it reads in the next session may be older than the end of its recoveries."""

    async def scenario(cluster: Cluster) -> None:
        left = await cluster.leave()
        await cluster.garbage.collect()
        children_all = cluster.store.children_all

        def lose_session(names: Any) -> Any:
            cluster.store._notify_session(SessionEvent.SESSION_LOST)
            return children_all(names)

        cluster.store.children_all = lose_session  # type: ignore[method-assign]
        await cluster.garbage.collect()
        assert await cluster.ids() == {left}
        cluster.store.children_all = children_all  # type: ignore[method-assign]
        await cluster.garbage.collect()
        assert await cluster.ids() == set()

    run(tmp_path, scenario)


# --- the end of a ledger ------------------------------------------------------------------------


def test_the_end_of_a_ledger_on_several_bookies_is_found_by_recovery(tmp_path: Path) -> None:
    """An entry that one bookie has was never confirmed. Readers agree on it only after it was
    written back, whichever bookie fails next.
    """

    async def scenario(cluster: Cluster) -> None:
        handle, listener = await cluster.create(count=3)
        for each in cluster.bookies[1:]:
            each.held_adds = []
        cluster.node.turn.run(handle.append, EntryRun.of(b"3", listener))
        await asyncio.sleep(0.05)
        for each in cluster.bookies[1:]:
            each.held_adds = None  # the requests are lost
        with pytest.raises(LedgerError, match="is open"):
            await cluster.client.open_any(handle.ledger_id)
        last, length = await cluster.client.end_of(handle.ledger_id)
        metadata = await cluster.metadata(handle.ledger_id)
        assert metadata.is_closed and (metadata.last_entry_id, metadata.length) == (last, length)
        cluster.bookies[0].is_down = True
        reader = await cluster.client.open_read(handle.ledger_id)
        for entry_id in range(last + 1):
            assert (await reader.read_future(entry_id, entry_id)).data(0) == b"%d" % entry_id

    run(tmp_path, scenario)
