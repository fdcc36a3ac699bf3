"""Locks that live with a session, counters, ledger ids, and the first metadata of a cluster."""

from __future__ import annotations

import asyncio
import json
import types
import uuid
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from metadata_backends import Backend, coroutine_test
from pyxbroker.base.bundles import bundles_data
from pyxbroker.cluster.initialize import (
    ClusterSettings,
    initialize,
    local_policies,
)
from pyxbroker.metadata import paths
from pyxbroker.metadata.coordination import (
    LedgerIdGenerator,
    LockBusy,
    ResourceLock,
    next_counter_value,
)
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MetadataStore, Notification, Unavailable

SETTINGS = ClusterSettings("standalone", "http://127.0.0.1:8080", "pulsar://127.0.0.1:6650")


async def _memory(name: str = "") -> MemoryStore:
    store = MemoryStore(name)
    await store.open()
    return store


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@coroutine_test
async def test_a_lock_excludes_others_until_it_is_released() -> None:
    first, second = await _memory("lock"), await _memory("lock")
    lock = ResourceLock(first, "/locks/a", b"first")
    await lock.acquire()
    rival = ResourceLock(second, "/locks/a", b"second")
    with pytest.raises(LockBusy, match="/locks/a is held by b'first'"):
        await rival.acquire()
    await lock.update(b"first, changed")
    node = await second.get("/locks/a")
    assert node is not None and node.value == b"first, changed" and node.ephemeral
    await lock.release()
    await rival.acquire()
    assert rival.is_held and not lock.is_held


@coroutine_test
async def test_a_lock_of_a_former_session_of_ours_is_taken_over() -> None:
    former, present = await _memory("former"), await _memory("former")
    await ResourceLock(former, "/locks/a", b"me").acquire()
    lock = ResourceLock(present, "/locks/a", b"me")
    await lock.acquire()
    await former.close()
    assert await present.exists("/locks/a")


@coroutine_test
async def test_a_lock_whose_node_is_of_this_session_is_not_created_again() -> None:
    store, other = await _memory("own"), await _memory("own")
    lock = ResourceLock(store, "/locks/a", b"me")
    await lock.acquire()
    changes: list[Notification] = []
    other.watch(changes.append, prefix="/locks")
    await other.get("/locks/a")
    # The deletion of an earlier node may be reported when the new one exists.
    lock.recreate()
    await _settle()
    assert changes == []
    await lock.update(b"me, changed")
    await lock.release()
    assert not await other.exists("/locks/a")


@coroutine_test
async def test_a_lock_is_taken_again_in_a_new_session() -> None:
    store = await _memory()
    lock = ResourceLock(store, "/locks/a", b"me")
    await lock.acquire()
    await lock.update(b"me, changed")
    store.expire_session()
    assert not await store.exists("/locks/a")
    await _settle()
    node = await store.get("/locks/a")
    assert node is not None and node.value == b"me, changed"
    assert lock.is_held
    await lock.release()
    store.expire_session()
    await _settle()
    assert not await store.exists("/locks/a")


@coroutine_test
async def test_a_lock_that_another_took_in_between_is_lost_once() -> None:
    store, other = await _memory("between"), await _memory("between")
    lost: list[int] = []
    lock = ResourceLock(store, "/locks/a", b"me", lambda: lost.append(1))
    await lock.acquire()
    store.expire_session()
    other.put("/locks/a", b"other", ephemeral=True)
    await _settle()
    assert lost == [1] and not lock.is_held
    store.expire_session()
    await _settle()
    assert lost == [1]
    await lock.release()
    assert await other.exists("/locks/a")


@coroutine_test
async def test_counters_never_repeat() -> None:
    store = await _memory()
    values = [await next_counter_value(store, paths.PRODUCER_NAME_COUNTER) for _ in range(5)]
    assert values == [0, 1, 2, 3, 4]
    assert await store.children(paths.PRODUCER_NAME_COUNTER) == []


@coroutine_test
async def test_ledger_ids_are_unique_over_generators_and_restarts(tmp_path: Path) -> None:
    ids: list[int] = []
    backend = Backend("embedded", tmp_path)
    for _ in range(3):
        async with backend.store() as store:
            assert await store.children("/ledgers/idgen") == []
            generators = [LedgerIdGenerator(store), LedgerIdGenerator(store)]
            for _ in range(10):
                ids += await asyncio.gather(*[each.next_id() for each in generators * 2])
            for generator in generators:
                await generator.close()
    assert len(ids) == len(set(ids)) == 120
    assert ids[0] == 0


@coroutine_test
async def test_one_ledger_id_is_fetched_ahead() -> None:
    store = await _memory()
    generator = LedgerIdGenerator(store)
    generator.prefetch()
    await _settle()
    waiting = asyncio.ensure_future(generator.next_id())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiting.done() and waiting.result() == 0
    await generator.close()


@coroutine_test
async def test_many_who_wait_for_ledger_ids_get_one_each() -> None:
    store = await _memory()
    generator = LedgerIdGenerator(store)
    ids = await asyncio.gather(*(generator.next_id() for _ in range(1000)))
    assert sorted(ids) == list(range(1000))
    generator.give_back(ids[5])
    assert await generator.next_id() == ids[5]
    assert await generator.next_id() == 1000
    await generator.close()
    assert await store.children("/ledgers/idgen") == []


@coroutine_test
async def test_who_waits_for_a_ledger_id_is_woken_once_however_many_do() -> None:
    steps = 0

    @types.coroutine
    def counted(waiting: Coroutine[Any, Any, int]) -> Generator[Any, None, int]:
        nonlocal steps
        while True:
            steps += 1
            try:
                waits_for = waiting.send(None)
            except StopIteration as end:
                return int(end.value)
            yield waits_for

    async def one() -> int:
        return await counted(generator.next_id())

    store = await _memory()
    generator = LedgerIdGenerator(store)
    ids = await asyncio.gather(*(one() for _ in range(2000)))
    assert ids == list(range(2000)), "in the order in which they asked"
    assert steps == 2 * 2000
    await generator.close()


@coroutine_test
async def test_the_ledger_id_of_who_gives_up_is_for_the_next() -> None:
    store = await _memory()
    generator = LedgerIdGenerator(store)
    early, told, other = (asyncio.ensure_future(generator.next_id()) for _ in range(3))
    await asyncio.sleep(0)
    early.cancel()
    for _ in range(100):
        if not generator._ahead:
            await asyncio.sleep(0)
    told.cancel()  # it has one, and does not know yet
    assert await other == 1
    assert await generator.next_id() == 0
    assert told.cancelled()
    await generator.close()


@coroutine_test
async def test_nobody_waits_for_ledger_ids_when_no_more_are_fetched() -> None:
    store = await _memory()
    generator = LedgerIdGenerator(store)
    waiting = asyncio.ensure_future(generator.next_id())
    await asyncio.sleep(0)
    await generator.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@coroutine_test
async def test_a_failed_fetch_is_tried_again_by_the_next_caller() -> None:
    class Unreachable(MemoryStore):
        is_away = False

        def exists(self, path: str, *, watch: bool = False) -> asyncio.Future[bool]:
            if self.is_away:
                future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                future.set_exception(Unavailable("away"))
                return future
            return super().exists(path)

    store = Unreachable()
    await store.open()
    generator = LedgerIdGenerator(store)
    store.is_away = True
    with pytest.raises(Unavailable):
        await generator.next_id()
    store.is_away = False
    assert await generator.next_id() == 0
    await generator.close()


@coroutine_test
async def test_ledger_ids_grow_beyond_31_bits_below_idgen_long() -> None:
    store = await _memory()
    await store.put("/ledgers/idgen-long/HOB-0000000001", b"")
    generator = LedgerIdGenerator(store)
    assert [await generator.next_id() for _ in range(2)] == [2**32, 2**32 + 1]
    await generator.close()


@coroutine_test
async def test_a_stray_node_below_idgen_long_costs_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = await _memory()
    strays = ["HOB-", "HOB-x", "HOB-12", "HOB--000000001", "HOB-\u0661000000000", "HOB-9999999999",
              "notes"]  # fmt: skip
    for name in strays:
        await store.put(f"/ledgers/idgen-long/{name}", b"")
    await store.put("/ledgers/idgen-long/HOB-0000000003", b"")
    generator = LedgerIdGenerator(store)
    assert [await generator.next_id() for _ in range(2)] == [3 << 32, (3 << 32) + 1]
    told = [vars(each)["fields"]["name"] for each in caplog.records]
    assert sorted(set(told)) == sorted(strays)
    await generator.close()


@coroutine_test
async def test_a_cluster_is_initialized_with_pulsars_bytes() -> None:
    store = await _memory()
    identity = await initialize(store, SETTINGS)
    assert identity.created
    assert str(uuid.UUID(identity.instance_id)) == identity.instance_id
    expected = json.loads((Path(__file__).parent / "data" / "pulsar_cluster.json").read_text())
    found = await _dump(store)
    del found[paths.INSTANCE_ID]
    assert found == expected


@coroutine_test
async def test_initializing_again_changes_nothing() -> None:
    store, other = await _memory("again"), await _memory("again")
    first, second = await asyncio.gather(initialize(store, SETTINGS), initialize(other, SETTINGS))
    assert first.instance_id == second.instance_id
    await store.put(paths.cluster("standalone"), b'{"serviceUrl":"http://changed"}')
    before = await _dump(store)
    again = await initialize(store, SETTINGS)
    assert (again.instance_id, again.created) == (first.instance_id, False)
    assert await _dump(store) == before


@coroutine_test
async def test_what_is_missing_is_made_again() -> None:
    store = await _memory()
    first = await initialize(store, SETTINGS)
    await store.delete(paths.namespace_policies("public/default"))
    second = await initialize(store, SETTINGS)
    assert second.instance_id == first.instance_id
    assert await store.exists(paths.namespace_policies("public/default"))


def test_bundles_divide_the_hash_space_evenly() -> None:
    assert bundles_data(1)["boundaries"] == ["0x00000000", "0xffffffff"]
    assert bundles_data(4)["boundaries"] == [
        *("0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"),
    ]
    assert bundles_data(3)["boundaries"] == [
        *("0x00000000", "0x55555555", "0xaaaaaaaa", "0xffffffff"),
    ]
    with pytest.raises(ValueError, match="0 bundles"):
        bundles_data(0)
    assert local_policies(1)["bundles"]["numBundles"] == 1


async def _dump(store: MetadataStore) -> dict[str, str]:
    """Path to value of every node below the root."""
    found: dict[str, str] = {}
    pending = ["/"]
    while pending:
        path = pending.pop()
        for name in await store.children(path):
            below = f"{path.rstrip('/')}/{name}"
            node = await store.get(below)
            assert node is not None
            found[below] = node.value.decode()
            pending.append(below)
    return found
