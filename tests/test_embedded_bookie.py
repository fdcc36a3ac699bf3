"""The bookie of this process: runs become durable in order, wait for room, and fail all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from one_bookie import MIB, Node, run, turns, until
from pyxbroker.entry import CRC32C, EntryBatch, EntryRun
from pyxbroker.ledger.bookie import (
    ADD_HIGH_PRIORITY,
    ADD_RECOVERY,
    DAMAGED,
    FENCED,
    NO_ENTRY,
    NO_LEDGER,
)
from served import Served, section, send

IO_ERROR = -5
KEY = CRC32C.master_key
SMALL = {"dirty_bytes_max": MIB, "cache_bytes_max": 2 * MIB, "journal_file_bytes": 2 * MIB}


class Adder:
    """Keeps what the bookie tells, in order."""

    digest = CRC32C

    def __init__(self) -> None:
        self.acked: list[tuple[int, int]] = []
        self.failed: list[tuple[int, int]] = []
        self.runs: list[EntryRun] = []
        self.taken_back: list[int] = []

    def on_adds_acked(self, index: int, first: int, last: int) -> None:
        self.acked.append((first, last))

    def on_adds_failed(self, index: int, first: int, code: int) -> None:
        self.failed.append((first, code))

    def on_add_taken_back(self, index: int, run: EntryRun) -> bool:
        self.taken_back.append(run.first_entry_id)
        return True

    @property
    def entries(self) -> list[int]:
        return [each for first, last in self.acked for each in range(first, last + 1)]

    def add(self, node: Node, ledger_id: int, entry_id: int, data: bytes, flags: int = 0) -> bool:
        run = EntryRun.of(data)
        run.ledger_id = ledger_id
        run.first_entry_id = entry_id
        self.runs.append(run)
        return node.bookie.add_run(self, 0, run, entry_id - 1, 0, flags)


async def read(node: Node, ledger_id: int, first: int, last: int) -> EntryBatch | int:
    results: list[EntryBatch | int] = []
    node.bookie.read(ledger_id, first, last, 1000, 1 << 30, results.append)
    assert results == [], "the answer comes later"
    await until(lambda: len(results) == 1)
    return results[0]


def test_runs_of_one_turn_share_one_commit(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adder = Adder()

        def add_all() -> None:
            for entry_id in range(100):
                assert adder.add(node, 1, entry_id, b"x")
            assert adder.acked == []

        node.turn.run(add_all)
        await until(lambda: len(adder.acked) == 100)
        assert adder.entries == list(range(100))
        assert node.storage.stats()["groups"] == 1

    run(tmp_path, scenario)


def test_a_full_cache_stalls_runs_and_takes_them_in_order(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adder = Adder()
        data = [bytes([n % 251]) * 60_000 for n in range(200)]
        taken = [adder.add(node, 1, entry_id, each) for entry_id, each in enumerate(data)]
        assert taken[0]
        # From the first one that has to wait on all wait, or their order would be lost.
        assert taken == sorted(taken, reverse=True)
        assert not taken[-1]
        assert node.full == [True]
        await until(lambda: len(adder.entries) == 200)
        assert adder.entries == list(range(200))
        assert adder.failed == []
        assert node.full[-1] is False
        for entry_id, each in enumerate(data):
            batch = await read(node, 1, entry_id, entry_id)
            assert isinstance(batch, EntryBatch)
            assert batch.data(0) == each

    run(tmp_path, scenario, **SMALL)


def test_a_failed_journal_tells_everyone_once(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adders = [Adder() for _ in range(10)]
        fenced: list[int] = []
        node.faults.rule("fdatasync", ".journal", errno=5)
        for adder in adders:
            adder.add(node, 1, adders.index(adder), b"x")
        node.bookie.fence(2, CRC32C, fenced.append)
        await until(lambda: node.bookie.failure != 0)
        assert [adder.failed for adder in adders] == [[(n, IO_ERROR)] for n in range(10)]
        assert all(adder.acked == [] for adder in adders)
        assert fenced == [IO_ERROR]
        late = Adder()
        late.add(node, 1, 10, b"x")
        node.bookie.fence(3, CRC32C, fenced.append)
        assert late.failed == [], "the answer comes later"
        await turns()
        assert late.failed == [(10, IO_ERROR)]
        assert fenced == [IO_ERROR, IO_ERROR]
        assert all(len(adder.failed) == 1 for adder in [*adders, late])

    run(tmp_path, scenario)


def test_a_journal_that_fails_while_runs_wait_for_room(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adder = Adder()
        for entry_id in range(200):
            adder.add(node, 1, entry_id, b"x" * 60_000)
        assert node.full == [True]
        node.faults.rule("fdatasync", ".journal", errno=5)
        await until(lambda: node.bookie.failure != 0)
        # What was synced before is acknowledged, in order; each of all others is told once.
        synced = len(adder.entries)
        assert adder.entries == list(range(synced))
        assert sorted(first for first, _ in adder.failed) == list(range(synced, 200))
        assert synced < 200
        assert {code for _, code in adder.failed} == {IO_ERROR}
        assert node.full[-1] is False

    run(tmp_path, scenario, **SMALL)


def test_while_the_bookie_holds_only_what_the_broker_remembers_is_stored(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        clients, cursor = Adder(), Adder()
        node.bookie.set_holding(True)
        assert not clients.add(node, 1, 0, b"held")
        assert cursor.add(node, 2, 0, b"position", ADD_HIGH_PRIORITY)
        await until(lambda: cursor.entries == [0])
        assert clients.entries == []
        node.turn.run(node.bookie.set_holding, False)
        await until(lambda: clients.entries == [0])
        assert node.full == [True, False]

    run(tmp_path, scenario)


def test_what_waits_for_room_is_taken_back_newest_first_and_cursors_wait_on(
    tmp_path: Path,
) -> None:
    async def scenario(node: Node) -> None:
        adder, cursor = Adder(), Adder()
        node.faults.rule("open", ".log.tmp", errno=28)
        entry_id = 0
        while adder.add(node, 1, entry_id, bytes(60_000)):
            entry_id += 1
        for later in range(entry_id + 1, entry_id + 4):
            adder.add(node, 1, later, b"later")
        cursor.add(node, 2, 0, b"position", ADD_HIGH_PRIORITY)
        await until(lambda: node.bookie.trouble == -28)
        node.bookie.set_holding(True)
        node.bookie.take_back()
        assert adder.taken_back == list(range(entry_id + 3, entry_id - 1, -1))
        assert cursor.taken_back == []
        node.faults.clear()
        # The ids of what was taken back are given again.
        adder.add(node, 1, entry_id, b"instead")
        await until(lambda: cursor.entries == [0])
        node.turn.run(node.bookie.set_holding, False)
        await until(lambda: adder.entries == list(range(entry_id + 1)))
        batch = await read(node, 1, entry_id, entry_id)
        assert isinstance(batch, EntryBatch)
        assert batch.data(0) == b"instead"
        await until(lambda: node.bookie.trouble == 0)

    run(tmp_path, scenario, **SMALL)


def test_a_run_that_the_storage_has_a_part_of_is_not_taken_back(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        side = Served()
        await side.write(b"".join(send(n, section(bytes(5_000))) for n in range(25)))
        adder = Adder()
        node.faults.rule("open", ".log.tmp", errno=28)
        first, has_part = 0, False
        while not has_part:
            # The same bytes again and again, until the cache is full in the middle of a run.
            await side.write(b"".join(send(n, section(bytes(5_000))) for n in range(25)))
            for each in side.producer.runs:
                each.ledger_id, each.first_entry_id = 1, first
                assert not node.bookie._stalled, "the cache was full between two runs"
                first += each.count
                if not node.bookie.add_run(adder, 0, each, each.first_entry_id - 1, 0):
                    has_part = node.last_entry(1) >= each.first_entry_id
                side.producer.settle(each)
            side.producer.runs.clear()
        assert node.last_entry(1) < first - 1
        node.bookie.take_back()
        assert adder.taken_back == []
        node.faults.clear()
        await until(lambda: adder.entries == list(range(first)))
        side.close()

    run(tmp_path, scenario, **SMALL)


def test_reads_from_the_cache_and_from_disk(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adder = Adder()
        for entry_id in range(50):
            adder.add(node, 1, entry_id, b"entry %d" % entry_id)
        await until(lambda: len(adder.entries) == 50)
        cached = node.bookie.read_cached(1, 10, 20, 100, 1 << 30)
        assert cached is not None
        for batch in (cached, await read(node, 1, 10, 20)):
            assert isinstance(batch, EntryBatch)
            assert (batch.ledger_id, len(batch)) == (1, 11)
            assert [batch.entry_id(i) for i in range(11)] == list(range(10, 21))
            assert [batch.data(i) for i in range(11)] == [b"entry %d" % n for n in range(10, 21)]
            assert batch.packaged(0)[CRC32C.header_size :] == b"entry 10"
            with pytest.raises(IndexError):
                batch.data(11)
        assert node.bookie.read_cached(1, 50, 60, 100, 1 << 30) is None
        assert await read(node, 1, 50, 60) == NO_ENTRY
        assert await read(node, 9, 0, 0) == NO_LEDGER

    run(tmp_path, scenario)


def test_a_batch_outlives_the_ledger_and_the_bookie(tmp_path: Path) -> None:
    held: list[EntryBatch] = []

    async def scenario(node: Node) -> None:
        adder = Adder()
        for entry_id in range(20):
            adder.add(node, 1, entry_id, b"%d" % entry_id * 1000)
        await until(lambda: len(adder.entries) == 20)
        cached = node.bookie.read_cached(1, 0, 9, 100, 1 << 30)
        await node.flush()
        from_disk = await read(node, 1, 10, 19)
        assert cached is not None
        assert isinstance(from_disk, EntryBatch)
        held.extend((cached, from_disk))
        node.bookie.delete_ledger(1)

    run(tmp_path, scenario)
    data = [batch.data(i) for batch in held for i in range(len(batch))]
    assert data == [b"%d" % n * 1000 for n in range(20)]


def test_a_batch_of_the_cache_keeps_its_bytes_while_the_cache_goes_round(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adder = Adder()
        for entry_id in range(10):
            adder.add(node, 1, entry_id, b"%d" % entry_id * 1000)
        await until(lambda: len(adder.entries) == 10)
        held = node.bookie.read_cached(1, 0, 9, 100, 1 << 30)
        assert held is not None
        # Several times what the cache holds goes through it.
        for entry_id in range(100):
            adder.add(node, 2, entry_id, b"y" * 100_000)
            await until(lambda count=10 + entry_id + 1: len(adder.entries) == count)
        assert node.bookie.read_cached(1, 0, 9, 100, 1 << 30) is None, "it is in no memory any more"
        assert [held.data(i) for i in range(10)] == [b"%d" % n * 1000 for n in range(10)]

    run(tmp_path, scenario, **SMALL)


def test_fencing_is_durable_and_stops_adds(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adder = Adder()
        fenced: list[int] = []
        adder.add(node, 1, 0, b"before")
        node.bookie.fence(1, CRC32C, fenced.append)
        assert fenced == []
        await until(lambda: fenced == [-1])
        assert adder.acked == [(0, 0)], "what came before the fence is durable with it"
        assert adder.add(node, 1, 1, b"after")
        assert adder.failed == [], "the answer comes later"
        await until(lambda: adder.failed == [(1, FENCED)])
        adder.add(node, 1, 1, b"recovered", ADD_RECOVERY)
        await until(lambda: len(adder.acked) == 2)
        assert node.last_entry(1) == 1
        assert node.last_entry(7) == -1

    run(tmp_path, scenario)


def test_a_fence_answers_the_last_add_confirmed(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adder = Adder()
        fenced: list[int] = []
        for entry_id in range(10):
            adder.add(node, 1, entry_id, b"x" * entry_id)
        await until(lambda: len(adder.entries) == 10)
        for _ in range(2):
            node.bookie.fence(1, CRC32C, fenced.append)
        await until(lambda: fenced == [8, 8])

    run(tmp_path, scenario)


def test_a_read_with_the_master_key_fences_first(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adder = Adder()
        answers: list[EntryBatch | int] = []
        adder.add(node, 1, 0, b"before")
        await until(lambda: adder.acked == [(0, 0)])
        node.bookie.read(1, 0, 0, 1, MIB, answers.append, KEY)
        await until(lambda: len(answers) == 1)
        assert isinstance(answers[0], EntryBatch)
        assert answers[0].data(0) == b"before"
        adder.add(node, 1, 1, b"after")
        await until(lambda: adder.failed == [(1, FENCED)])

    run(tmp_path, scenario)


def test_an_entry_that_is_too_large_fails_alone(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        adder = Adder()
        adder.add(node, 1, 0, b"x" * (MIB + 1))
        await until(lambda: [first for first, _ in adder.failed] == [0])
        adder.add(node, 2, 0, b"x")
        await until(lambda: adder.acked == [(0, 0)])

    run(tmp_path, scenario)


def test_a_damaged_entry_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    async def first(node: Node) -> None:
        adder = Adder()
        for entry_id in range(3):
            adder.add(node, 1, entry_id, b"this is entry %d" % entry_id)
        await until(lambda: len(adder.entries) == 3)

    async def second(node: Node) -> None:
        batch = await read(node, 1, 0, 2)
        assert isinstance(batch, EntryBatch)
        assert [batch.data(i) for i in range(len(batch))] == [b"this is entry 0"]
        assert await read(node, 1, 1, 2) == DAMAGED
        batch = await read(node, 1, 2, 2)
        assert isinstance(batch, EntryBatch)
        assert batch.data(0) == b"this is entry 2"

    run(tmp_path, first)
    [log] = (tmp_path / "bookie" / "ledgers").glob("*.log")
    stored = log.read_bytes()
    assert stored.count(b"this is entry 1") == 1
    log.write_bytes(stored.replace(b"this is entry 1", b"this is entry X"))
    run(tmp_path, second)
