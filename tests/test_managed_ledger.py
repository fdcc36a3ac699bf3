"""Managed ledgers: one endless log over many ledgers, for one owner, without loss."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from late_store import HeldAnswers
from one_bookie import (
    LIMITS,
    MIB,
    NAME,
    SHORT,
    Node,
    Runs,
    append,
    check_positions,
    cursor_at,
    entries,
    filled,
    ledgers_of,
    read_all,
    run,
    settled,
    turns,
    until,
)
from pyxbroker.base import log
from pyxbroker.entry import EntryRun
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import Unavailable
from pyxbroker.mledger import positions
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.errors import ManagedLedgerError, ManagedLedgerFenced
from pyxbroker.mledger.managed_ledger import State
from pyxbroker.mledger.opening import delete_managed_ledger, open_managed_ledger

# --- opening and closing --------------------------------------------------------------------------


def test_a_new_one_is_empty_and_takes_entries(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        assert managed_ledger.state is State.OPEN
        assert managed_ledger.entries == 0
        assert managed_ledger.last_confirmed == managed_ledger.first_position()
        assert await read_all(managed_ledger) == []
        check_positions(managed_ledger)
        positions = await append(managed_ledger, *entries(0, 5))
        assert positions == [(managed_ledger.last_confirmed.ledger_id, n) for n in range(5)]
        assert managed_ledger.entries == 5
        assert managed_ledger.size == sum(map(len, entries(0, 5)))
        assert await read_all(managed_ledger) == entries(0, 5)
        check_positions(managed_ledger)

    run(tmp_path, scenario)


def test_none_is_made_unless_that_is_wanted(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        found = await open_managed_ledger(NAME, node.store, node.client, LIMITS, create=False)
        assert found is None
        assert not await node.store.exists(paths.managed_ledger(NAME))

    run(tmp_path, scenario)


@pytest.mark.parametrize("how", ["close", "kill"])
def test_entries_survive_reopening(tmp_path: Path, how: str) -> None:
    """Several times in a row, so that ledgers of earlier owners are there as well."""

    async def scenario() -> None:
        node = Node(tmp_path / "bookie")
        expected: list[bytes] = []
        for generation in range(4):
            async with node:
                managed_ledger = await node.open()
                assert await read_all(managed_ledger) == expected
                assert managed_ledger.size == sum(map(len, expected))
                check_positions(managed_ledger)
                data = entries(generation * 7, generation * 7 + 7)
                await append(managed_ledger, *data)
                expected += data
                if how == "close":
                    await managed_ledger.close()
                    assert managed_ledger.is_dead
                    node = Node(node.directory, node.tree)
                else:
                    node = node.kill(f"killed-{generation}")

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["close", "kill"])
def test_ledgers_without_entries_are_dropped(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        node = Node(tmp_path / "bookie")
        for generation in range(4):
            async with node:
                managed_ledger = await node.open()
                if generation == 1:
                    await append(managed_ledger, b"the only one")
                # The one that is written now, and the one with the entry.
                assert len(managed_ledger.ledgers) == (1 if generation < 2 else 2)
                stored = await node.store.children(f"{paths.LEDGERS}/00/0000")
                assert len(stored) == len(managed_ledger.ledgers)
                if how == "close":
                    await managed_ledger.close()
                    node = Node(node.directory, node.tree)
                else:
                    node = node.kill(f"killed-{generation}")
        async with node:
            assert await read_all(await node.open()) == [b"the only one"]

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["the list", "properties", "a ledger beside"])
def test_who_gives_up_a_write_of_the_list_takes_nothing_from_the_next(
    tmp_path: Path, what: str
) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        client = node.client
        created = await cursor_at(managed_ledger, "c", managed_ledger.first_position())
        writes = {
            "the list": managed_ledger.write_info,
            "properties": partial(managed_ledger.put_property, "a", "1"),
            "a ledger beside": partial(
                managed_ledger.create_with_property,
                lambda naming: client.create_compacted(Runs(), NAME, b"", naming),
                "a",
                str,
            ),
        }
        held = HeldAnswers(node.store, "put_all" if what == "a ledger beside" else "put")
        write = asyncio.ensure_future(writes[what]())
        await held.asked.wait()
        following = asyncio.ensure_future(managed_ledger.put_property("b", "2"))
        write.cancel()
        await turns(5)
        held.let_go()
        with pytest.raises(asyncio.CancelledError):
            await write
        await following
        managed_ledger.roll_over()
        await append(managed_ledger, b"x")
        await created.persist()
        await managed_ledger.close()
        assert managed_ledger.state is State.CLOSED
        again = await node.open()
        assert ("a" in again.properties) is (what != "the list")
        assert again.properties["b"] == "2"

    run(tmp_path, scenario)


def test_what_fails_in_a_close_keeps_nothing_else_from_being_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        names = ["a", "b", "c"]
        for name in names:
            await cursor_at(managed_ledger, name, managed_ledger.first_position())
        await append(managed_ledger, *entries(0, 3))

        async def fail() -> None:
            raise Unavailable("the store was away")

        async def fail_otherwise() -> None:
            raise ZeroDivisionError

        managed_ledger.cursors["a"].close = fail  # type: ignore[method-assign]
        managed_ledger.cursors["b"].close = fail_otherwise  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await managed_ledger.close()
        assert [each for each in caplog.records if "another part was not closed" in each.message]
        assert managed_ledger.cursors["c"].closed
        assert managed_ledger.state is State.CLOSED
        stored = await node.store.get(paths.managed_ledger(NAME))
        assert stored is not None
        (ledger,), _, _ = positions.decode_ledger_list(stored.value)
        assert (ledger.entries, bool(ledger.timestamp_ms)) == (3, True)

    run(tmp_path, scenario)


def test_of_many_cursors_some_are_closed_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyxbroker.mledger.managed_ledger.CURSORS_PER_CLOSE", 4)
    under_way, most = 0, 0
    close = Cursor.close

    async def counted(cursor: Cursor) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        await close(cursor)
        under_way -= 1

    monkeypatch.setattr(Cursor, "close", counted)

    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        await append(managed_ledger, b"1")
        mark = managed_ledger.first_position()
        cursors = [await cursor_at(managed_ledger, f"c{i}", mark) for i in range(10)]
        await managed_ledger.close()
        assert all(each.closed for each in cursors)
        assert most == 4
        again = await node.open()
        assert len(again.cursors) == 10

    run(tmp_path, scenario)


def test_runs_under_way_are_confirmed_before_a_close_ends(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(SHORT)
        await cursor_at(managed_ledger, "holds everything", managed_ledger.first_position())
        runs = Runs()
        for data in entries(0, 37):
            managed_ledger.append(runs.run(data))
        await managed_ledger.close()
        assert runs.added == entries(0, 37)
        with pytest.raises(ManagedLedgerError, match="closed"):
            managed_ledger.append(runs.run(b"late"))
        assert await read_all(await node.open()) == entries(0, 37)

    run(tmp_path, scenario)


def test_a_close_waits_for_work_that_its_work_began(tmp_path: Path) -> None:
    """The next ledger is created, after which old ones are deleted: all of that is done."""

    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(SHORT)
        for start in range(0, 50, 10):
            await append(managed_ledger, *entries(start, start + 10))
        managed_ledger.roll_over()
        await managed_ledger.close()
        assert managed_ledger._tasks == set()
        assert managed_ledger.state is State.CLOSED

    run(tmp_path, scenario)


# --- ledgers come and go --------------------------------------------------------------------------


def test_rolling_over_keeps_order_and_loses_nothing(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(SHORT)
        await cursor_at(managed_ledger, "holds everything", managed_ledger.first_position())
        runs = Runs()
        data = entries(0, 1000)
        for n, each in enumerate(data):
            managed_ledger.append(runs.run(each))
            if n % 7 == 0:
                await asyncio.sleep(0)
            if n % 70 == 0:
                await until(lambda: managed_ledger.state is State.OPEN)
        await until(lambda: runs.answered == 1000)
        assert runs.added == data
        assert runs.positions == sorted(runs.positions)
        assert len(managed_ledger.ledgers) > 10
        await settled(managed_ledger)
        assert await read_all(managed_ledger) == data
        check_positions(managed_ledger)
        await managed_ledger.close()
        reopened = await node.open(SHORT)
        assert await read_all(reopened) == data

    run(tmp_path, scenario)


def test_runs_that_come_while_a_ledger_is_created_wait_and_keep_their_bytes(
    tmp_path: Path,
) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        runs = Runs()
        managed_ledger.append(runs.run(b"before"))
        managed_ledger.roll_over()
        assert managed_ledger.state is State.CREATING_LEDGER
        managed_ledger.roll_over()
        for data in entries(0, 20):
            managed_ledger.append(runs.run(data))
        await until(lambda: runs.answered == 21)
        assert runs.added == [b"before", *entries(0, 20)]
        first, second = sorted({ledger_id for ledger_id, _ in runs.positions})
        assert runs.positions == [(first, 0)] + [(second, n) for n in range(20)]

    run(tmp_path, scenario)


def test_a_ledger_rolls_over_by_size_and_by_age(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        by_size = await node.open(LIMITS._replace(bytes_per_ledger_max=1000), "t/p/persistent/a")
        await append(by_size, *[b"x" * 100] * 9)
        assert by_size.state is State.OPEN
        by_size.append(Runs().run(b"x" * 100))
        assert by_size.state is State.CREATING_LEDGER
        young = LIMITS._replace(entries_per_ledger_max=2, rollover_min_s=3600.0)
        by_age = await node.open(young, "t/p/persistent/b")
        await append(by_age, *entries(0, 5))
        by_age.check_age()
        assert by_age.state is State.OPEN, "it is too young, however full"
        by_age.limits = young._replace(rollover_max_s=0.0)
        by_age.check_age()
        assert by_age.state is State.CREATING_LEDGER
        await settled(by_age)
        by_age.check_age()
        assert by_age.state is State.OPEN, "an empty ledger is never too old"
        await settled(by_size)

    run(tmp_path, scenario)


# --- reading --------------------------------------------------------------------------------------


def test_entries_of_earlier_ledgers_are_read_from_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = SHORT._replace(retention_s=-1, retention_bytes=-1)
        async with Node(tmp_path / "bookie") as node:
            managed_ledger = await node.open(limits)
            for start in range(0, 50, 10):
                await append(managed_ledger, *entries(start, start + 10))
                await settled(managed_ledger)
            await managed_ledger.close()
        async with Node(tmp_path / "bookie", node.tree) as node:
            managed_ledger = await node.open(limits)
            first = managed_ledger.normalize((-1, -1))
            assert first is not None
            assert managed_ledger.read_cached(first, 100, MIB) is None, "nobody has opened it yet"
            began_ns = time.monotonic_ns()
            assert await read_all(managed_ledger) == entries(0, 50)
            reads = node.storage.stats()["disk_reads"]
            assert reads > 0
            took_ns, _ = node.storage.latencies()["read"]
            assert 0 < took_ns <= reads * (time.monotonic_ns() - began_ns)

    asyncio.run(scenario())


# --- the end of ownership -------------------------------------------------------------------------


class Told:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.failures: list[ManagedLedgerError] = []
        self.write_failures: list[ManagedLedgerError] = []

    def on_managed_ledger_failed(self, error: ManagedLedgerError) -> None:
        self.failures.append(error)

    def on_managed_ledger_write_failed(self, error: ManagedLedgerError) -> None:
        self.write_failures.append(error)


def test_a_new_owner_takes_everything_that_the_old_one_confirmed(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        old = await node.open()
        old.listener = told = Told()
        await append(old, *entries(0, 5))
        new = await node.open()
        runs = Runs()
        for data in entries(5, 8):
            old.append(runs.run(data))
        await until(lambda: runs.answered == 3)
        assert runs.added == []
        assert old.is_dead
        assert len(told.failures) == 1
        with pytest.raises(ManagedLedgerError, match="another writer"):
            old.append(runs.run(b"late"))
        await append(new, *entries(5, 10))
        assert await read_all(new) == entries(0, 10)

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_new_owner_continues_behind_a_dropped_ledger_with_a_higher_id(
    tmp_path: Path, is_closed: bool
) -> None:
    """The new owner has fetched ids before the former owner created its ledger."""

    async def scenario(node: Node) -> None:
        low = await node.client._ids.next_id()
        former = await node.open()
        mark = former.first_position()
        await cursor_at(former, "s", mark)
        assert mark.ledger_id > low
        if is_closed:
            await former.close()
        node.client._ids.give_back(low)
        managed_ledger = await node.open()
        assert mark.ledger_id not in managed_ledger.ledgers
        positions = await append(managed_ledger, *entries(0, 3))
        assert positions[0] > mark
        assert managed_ledger.cursors["s"].backlog == 3

    run(tmp_path, scenario)


def test_the_old_owner_cannot_change_the_list(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        old = await node.open()
        old.listener = told = Told()
        new = await node.open()
        await append(new, b"one")
        with pytest.raises(ManagedLedgerFenced):
            await old.write_info()
        assert old.state is State.FENCED
        assert len(told.failures) == 1
        runs = Runs()
        with pytest.raises(ManagedLedgerFenced):
            old.append(runs.run(b"late"))
        assert await read_all(new) == [b"one"]

    run(tmp_path, scenario)


def test_the_list_never_names_a_ledger_whose_id_was_taken(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        for ledger_id in (0, 1, 3):
            await node.store.put(paths.ledger(ledger_id), b"of somebody else")
        managed_ledger = await node.open()
        await append(managed_ledger, b"one")
        await cursor_at(managed_ledger, "holds everything", managed_ledger.first_position())
        assert list(managed_ledger.ledgers) == [2]
        stored = await node.store.get(paths.managed_ledger(NAME))
        assert stored is not None and stored.version == 0
        managed_ledger.roll_over()
        await settled(managed_ledger)
        assert list(managed_ledger.ledgers) == [2, 4]
        stored = await node.store.get(paths.managed_ledger(NAME))
        assert stored is not None and stored.version == 1
        for ledger_id in (0, 1, 3):
            other = await node.store.get(paths.ledger(ledger_id))
            assert other is not None and (other.value, other.version) == (b"of somebody else", 0)

    run(tmp_path, scenario)


def test_a_refused_list_leaves_no_ledger_behind(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        old = await node.open()
        await append(old, b"one")
        new = await node.open()
        before = await node.store.children(f"{paths.LEDGERS}/00/0000")
        with pytest.raises(ManagedLedgerFenced):
            await old.begin_ledger()
        assert await node.store.children(f"{paths.LEDGERS}/00/0000") == before
        await append(new, b"two")

    run(tmp_path, scenario)


def test_runs_that_wait_for_a_ledger_fail_when_another_owner_comes(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        old = await node.open()
        await append(old, b"one")
        new = await node.open()
        runs = Runs()
        old.roll_over()
        for data in entries(0, 5):
            old.append(runs.run(data))
        await until(lambda: runs.answered == 5)
        assert [data for data, _ in runs.failed] == entries(0, 5)
        assert old.is_dead
        assert await read_all(new) == [b"one"]

    run(tmp_path, scenario)


def test_who_was_fenced_while_a_ledger_was_created_stays_fenced(tmp_path: Path) -> None:
    """A cursor may be the first to notice another owner; the topic can then be opened anew."""

    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        managed_ledger.listener = told = Told()
        await append(managed_ledger, b"one")
        runs = Runs()
        managed_ledger.roll_over()
        managed_ledger.append(runs.run(b"waiting"))
        managed_ledger.fence("somebody else changed a cursor")
        await managed_ledger.finish_tasks()
        assert managed_ledger.state is State.FENCED
        assert managed_ledger.is_dead
        with pytest.raises(ManagedLedgerFenced):
            managed_ledger.append(runs.run(b"late"))
        assert [data for data, _ in runs.failed] == [b"waiting"]
        assert len(told.failures) == 1
        assert await read_all(await node.open()) == [b"one"]

    run(tmp_path, scenario)


def test_a_failed_journal_fails_each_run_and_acknowledges_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger = await node.open()
            managed_ledger.listener = told = Told()
            await append(managed_ledger, b"kept")
            node.faults.rule("fdatasync", ".journal", errno=5)
            runs = Runs()
            for data in entries(0, 30):
                managed_ledger.append(runs.run(data))
            await until(lambda: runs.answered == 30)
            assert runs.added == []
            assert [data for data, _ in runs.failed] == entries(0, 30)
            assert managed_ledger.state is State.WRITE_FAILED
            assert not managed_ledger.is_dead
            assert managed_ledger.last_confirmed.entry_id == 0
            assert (len(told.failures), len(told.write_failures)) == (0, 1)
            with pytest.raises(ManagedLedgerError, match=r"cannot be written.*Input/output error"):
                managed_ledger.append(runs.run(b"late"))
            assert await read_all(managed_ledger) == [b"kept"]
            successor = node.kill()
        async with successor as node:
            found = await read_all(await node.open())
            assert found[:1] == [b"kept"]
            # Entries that nobody acknowledged may be there or not, but only as a whole prefix.
            assert found[1:] == entries(0, len(found) - 1)

    asyncio.run(scenario())


def test_a_journal_that_fails_while_a_ledger_is_changed(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        runs = Runs()
        node.faults.rule("fdatasync", ".journal", errno=5)
        managed_ledger.append(runs.run(b"in the old ledger"))
        managed_ledger.roll_over()
        managed_ledger.append(runs.run(b"waiting"))
        await until(lambda: runs.answered == 2)
        assert [data for data, _ in runs.failed] == [b"in the old ledger", b"waiting"]
        await until(lambda: not managed_ledger._tasks)
        assert managed_ledger.state is State.WRITE_FAILED

    run(tmp_path, scenario)


def test_who_is_told_of_what_is_confirmed(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        told: list[EntryRun] = []
        managed_ledger.on_confirmed = told.append
        positions = await append(managed_ledger, *entries(0, 3))
        assert [(each.ledger_id, each.first_entry_id) for each in told] == positions
        assert managed_ledger.entries_added == 3
        managed_ledger.on_confirmed = None
        await append(managed_ledger, *entries(3, 4))
        assert len(told) == 3

    run(tmp_path, scenario)


def test_watchers_are_woken_once_in_a_turn_that_brought_entries(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        confirmed: list[EntryRun] = []
        seen: list[tuple[str, int]] = []
        managed_ledger.on_confirmed = confirmed.append

        def first() -> None:
            seen.append(("first", len(confirmed)))

        def second() -> None:
            seen.append(("second", len(confirmed)))
            managed_ledger.unwatch(second)

        managed_ledger.watch(first)
        managed_ledger.watch(second)
        managed_ledger.watch(first)
        # What one group of the journal makes durable is confirmed in one turn.
        await append(managed_ledger, *entries(0, 3))
        await turns()
        assert seen[:2] == [("first", seen[0][1]), ("second", seen[0][1])]
        assert [name for name, _ in seen[2:]] == ["first"] * (len(seen) - 2)
        counts = [count for name, count in seen if name == "first"]
        assert counts == sorted(set(counts)), "each time there was more"
        assert counts[-1] == 3
        managed_ledger.unwatch(first)
        managed_ledger.unwatch(first)
        del seen[:]
        await append(managed_ledger, *entries(3, 6))
        await turns()
        assert seen == []

    run(tmp_path, scenario)


def test_deleting_leaves_nothing(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await filled(node, SHORT)
        await cursor_at(managed_ledger, "c", managed_ledger.first_position())
        await managed_ledger.close()
        await delete_managed_ledger(managed_ledger)
        await turns()
        assert not await node.store.exists(paths.managed_ledger(NAME))
        assert await node.store.children(f"{paths.LEDGERS}/00/0000") == []
        assert ledgers_of(node.storage) == []
        assert await read_all(await node.open()) == []

    run(tmp_path, scenario)


def test_nothing_is_kept_of_managed_ledgers_that_failed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:

            def kept() -> int:
                return sum(len(each) for each in vars(node.client).values() if hasattr(each, "pop"))

            before = kept()
            for number in range(20):
                name = f"{NAME}-{number}"
                managed_ledger = await open_managed_ledger(name, node.store, node.client, LIMITS)
                assert managed_ledger is not None
                managed_ledger.fence("somebody else has it")
                await managed_ledger.settle()
            assert kept() == before

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["failed", "taken back"])
def test_a_defect_of_one_who_waits_keeps_no_other_from_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    met = Counter(log.defects)
    monkeypatch.setattr(log, "defects", met)

    class Broken(Runs):
        def on_run_failed(self, run: EntryRun, error: Exception) -> None:
            raise ZeroDivisionError("a defect")

    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        await append(managed_ledger, b"one")
        broken, runs = Broken(), Runs()
        managed_ledger.roll_over()
        for number, data in enumerate(entries(0, 6)):
            managed_ledger.append((broken if number in (0, 3, 5) else runs).run(data))
        if how == "failed":
            managed_ledger.fail(State.FAILED, ManagedLedgerError("it cannot be written"))
        else:
            managed_ledger.take_back_waiting()
        assert sorted(data for data, _ in runs.failed) == [entries(0, 6)[n] for n in (1, 2, 4)]

    before = met["mledger"]
    run(tmp_path, scenario)
    assert met["mledger"] == before + 3
