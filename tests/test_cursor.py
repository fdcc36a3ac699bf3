"""Cursors: acknowledgements survive every end of the process, however many holes they leave."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_bookie import LIMITS, NAME, Node, append, ledgers_of, run, until
from pyxbroker.entry import AckRun, Position
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import Unavailable
from pyxbroker.mledger import positions, records
from pyxbroker.mledger.cursor import NO_LEDGER, Cursor, CursorError
from pyxbroker.mledger.cursor_ledger import recover_position
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.managed_ledger import ManagedLedger, State

PATH = paths.cursor(NAME, "c")


async def made(
    node: Node, count: int, limits: ManagedLedgerLimits = LIMITS
) -> tuple[ManagedLedger, Cursor]:
    """A managed ledger with a cursor before the first of its entries."""
    managed_ledger = await node.open(limits)
    cursor = Cursor(managed_ledger, "c", managed_ledger.first_position())
    managed_ledger.cursors["c"] = cursor
    await cursor.create_node()
    if count:
        await append(managed_ledger, *[b"x"] * count)
    return managed_ledger, cursor


def away(*_: Any, **__: Any) -> asyncio.Future[Any]:
    """What a store answers that cannot be reached."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(Unavailable("the store is away"))
    return future


async def reopened(node: Node, limits: ManagedLedgerLimits = LIMITS) -> Cursor:
    return (await node.open(limits)).cursors["c"]


def state_of(cursor: Cursor) -> tuple[Position, dict[int, list[tuple[int, int]]]]:
    acks = cursor.acks
    return acks.mark_delete, {each: acks.ranges(each) for each in acks.ledger_ids()}


async def stored(node: Node, path: str = PATH) -> positions.CursorRecord:
    found = await node.store.get(path)
    assert found is not None
    return positions.decode_cursor(found.value, dict.fromkeys(range(1000), 1 << 40))


# --- acknowledging --------------------------------------------------------------------------------


def test_single_acks_leave_holes_and_close_them(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10)
        ledger = managed_ledger.last_confirmed.ledger_id
        assert cursor.backlog == 10
        assert cursor.acknowledge_positions([(ledger, 3), (ledger, 5), (ledger, 3)]) == 2
        assert state_of(cursor) == ((ledger, -1), {ledger: [(2, 3), (4, 5)]})
        assert cursor.backlog == 8
        assert cursor.acknowledge_positions([(ledger, n) for n in (0, 1, 2)]) == 3
        assert state_of(cursor) == ((ledger, 3), {ledger: [(4, 5)]})
        assert cursor.acknowledge_positions([(ledger, 4)]) == 1
        assert state_of(cursor) == ((ledger, 5), {})
        assert cursor.backlog == 4

    run(tmp_path, scenario)


def test_positions_that_do_not_exist_change_nothing(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 3)
        ledger = managed_ledger.last_confirmed.ledger_id
        before = state_of(cursor)
        unknown = [(ledger, 3), (ledger, -1), (ledger - 1, 0), (ledger + 1, 0), (2**62, 2**62)]
        assert cursor.acknowledge(AckRun.of(unknown)) == 0
        for position in unknown:
            assert not cursor.acknowledge_up_to(position)
        assert state_of(cursor) == before

    run(tmp_path, scenario)


def test_cumulative_acks_swallow_holes_and_never_go_back(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10)
        ledger = managed_ledger.last_confirmed.ledger_id
        cursor.acknowledge_positions([(ledger, 2), (ledger, 5), (ledger, 8)])
        assert cursor.acknowledge_up_to((ledger, 4)) == 4
        assert state_of(cursor) == ((ledger, 5), {ledger: [(7, 8)]})
        assert not cursor.acknowledge_up_to((ledger, 4))
        assert not cursor.acknowledge_up_to((ledger, 5))
        assert cursor.backlog == 3
        # How many it acknowledged, also where only ids are compared, and over ledgers.
        assert cursor.acknowledge_up_to((ledger, 8)) == 2
        assert cursor.acknowledge_up_to((ledger, 9)) == 1
        managed_ledger.roll_over()
        [*_, last] = await append(managed_ledger, b"a", b"b", b"c")
        assert last[0] > ledger
        assert cursor.acknowledge_up_to(last) == 3
        assert (cursor.backlog, cursor.acknowledge_up_to(last)) == (0, 0)

    run(tmp_path, scenario)


def test_the_mark_moves_over_the_end_of_a_ledger(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 3)
        first = managed_ledger.last_confirmed.ledger_id
        managed_ledger.roll_over()
        await until(lambda: managed_ledger.state is State.OPEN)
        await append(managed_ledger, b"y", b"y")
        second = managed_ledger.last_confirmed.ledger_id
        cursor.acknowledge_positions([(second, 0), (first, 1), (first, 2)])
        assert cursor.acks.mark_delete == (first, -1)
        cursor.acknowledge_positions([(first, 0)])
        assert state_of(cursor) == ((second, 0), {})
        assert cursor.backlog == 1

    run(tmp_path, scenario)


# --- what survives --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "kill"])
def test_holes_survive(tmp_path: Path, how: str) -> None:
    """Also when several generations add to them."""

    async def scenario() -> None:
        node = Node(tmp_path / "bookie")
        expected = None
        for generation in range(4):
            async with node:
                if generation == 0:
                    managed_ledger, cursor = await made(node, 40)
                else:
                    managed_ledger = await node.open()
                    cursor = managed_ledger.cursors["c"]
                    assert state_of(cursor) == expected
                ledger = min(managed_ledger.ledgers)
                cursor.acknowledge_positions(
                    [(ledger, generation), (ledger, 10 + 3 * generation), (ledger, 39)]
                )
                expected = state_of(cursor)
                if how == "close":
                    await managed_ledger.close()
                    record = await stored(node)
                    assert record.cursors_ledger_id == NO_LEDGER, "the state is in the node alone"
                    node = Node(node.directory, node.tree)
                else:
                    await cursor.persist()
                    node = node.kill(f"killed-{generation}")
        assert expected == ((ledger, 3), {ledger: [(n - 1, n) for n in (10, 13, 16, 19, 39)]})

    asyncio.run(scenario())


def test_what_was_not_persisted_is_lost_by_a_kill_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await made(node, 10)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions([(ledger, 0), (ledger, 4)])
            await cursor.persist()
            cursor.acknowledge_positions([(ledger, 1), (ledger, 6)])
            successor = node.kill()
        async with successor as node:
            cursor = await reopened(node)
            assert state_of(cursor) == ((ledger, 0), {ledger: [(3, 4)]})

    asyncio.run(scenario())


def test_acks_are_written_without_being_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = LIMITS._replace(mark_delete_per_s=100.0)
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await made(node, 10, limits)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions([(ledger, 0)])
            await until(lambda: cursor.ledger_id != NO_LEDGER)
            cursor.acknowledge_positions([(ledger, 4)])
            cursor_ledger = cursor._ledger
            assert cursor_ledger is not None
            await until(lambda: cursor_ledger.handle.last_add_confirmed == 1)
            expected = state_of(cursor)
            successor = node.kill()
        async with successor as node:
            assert state_of(await reopened(node)) == expected

    asyncio.run(scenario())


def test_acks_that_go_on_are_written_at_the_rate_that_was_set(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 2000, LIMITS._replace(mark_delete_per_s=20.0))
        ledger = managed_ledger.last_confirmed.ledger_id
        loop = asyncio.get_running_loop()
        started = loop.time()
        entry_id = 0
        while loop.time() < started + 0.5 and entry_id < 2000:
            cursor.acknowledge_positions([(ledger, entry_id)])
            entry_id += 1
            await asyncio.sleep(0.0005)
        assert cursor._ledger is not None
        handle = cursor._ledger.handle
        # 20 a second, for the time that it took; one more may be on its way.
        assert 1 <= handle.pending.next <= (loop.time() - started) * 20 + 2
        before = handle.pending.next
        await until(lambda: handle.pending.next > before and not cursor._dirty)

    run(tmp_path, scenario)


def test_a_low_rate_keeps_no_position_longer_than_it_may(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        # By the rate alone it would be written after a quarter of an hour.
        limits = LIMITS._replace(mark_delete_per_s=0.001, position_held_s=0.2)
        managed_ledger, cursor = await made(node, 10, limits)
        cursor.acknowledge_positions([(managed_ledger.last_confirmed.ledger_id, 0)])
        await until(lambda: cursor._ledger is not None and not cursor._dirty)
        assert cursor._ledger is not None
        assert cursor._ledger.handle.last_add_confirmed == 0

    run(tmp_path, scenario)


def test_every_persist_is_answered(tmp_path: Path) -> None:
    """Also one that is asked for at the very moment when the write before it is done."""

    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 200)
        ledger = managed_ledger.last_confirmed.ledger_id
        await cursor.persist()

        async def one(start: int) -> None:
            for entry_id in range(start, 200, 4):
                cursor.acknowledge_positions([(ledger, entry_id)])
                await cursor.persist()
                await cursor.persist()

        await asyncio.wait_for(asyncio.gather(*map(one, range(4))), 10.0)
        assert cursor.backlog == 0
        cursor.acknowledge_positions([(ledger, 0)])
        await asyncio.wait_for(cursor.persist(), 10.0)

    run(tmp_path, scenario)


def test_a_million_holes_survive_a_kill(tmp_path: Path) -> None:
    """In a bit each: the state is written in some hundred kilobytes."""

    async def scenario() -> None:
        sizes: list[int] = []
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await made(node, 0)
            current = managed_ledger.current
            assert current is not None
            # Two million entries that only the ledger's counter knows: their bytes do not matter.
            current.pending.add(2_000_000)
            current.pending.on_ack(0, 0, 1_999_999)
            managed_ledger.last_confirmed = Position(current.ledger_id, 1_999_999)
            holes = ((current.ledger_id, n) for n in range(1, 2_000_000, 2))
            assert cursor.acknowledge_positions(holes) == 1_000_000
            await cursor.persist()
            assert cursor._ledger is not None
            sizes.append(cursor._ledger.handle.length)
            successor = node.kill()
        async with successor as node:
            record = await stored(node)
            ends = {current.ledger_id: 1_999_999}
            found = await recover_position(node.client, record.cursors_ledger_id, ends)
            assert found is not None
            acks, _ = found
            assert acks.holes == 1_000_000
            assert acks.mark_delete == (current.ledger_id, -1)
            assert acks.is_acknowledged(current.ledger_id, 1_999_999)
            assert not acks.is_acknowledged(current.ledger_id, 1_999_998)
        assert sizes[0] < 400_000

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["close", "kill"])
def test_more_holes_than_a_node_takes_stay_in_the_cursor_ledger(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        limits = LIMITS._replace(ranges_as_list_max=10)
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await made(node, 100, limits)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions([(ledger, n) for n in range(1, 100, 2)])
            expected = state_of(cursor)
            if how == "close":
                await managed_ledger.close()
                assert (await stored(node)).cursors_ledger_id != NO_LEDGER
                successor = Node(node.directory, node.tree)
            else:
                await cursor.persist()
                successor = node.kill()
        async with successor as node:
            cursor = await reopened(node, limits)
            assert state_of(cursor) == expected
            cursor.acknowledge_up_to((ledger, 97))
            await cursor.managed_ledger.close()
            assert (await stored(node)).cursors_ledger_id == NO_LEDGER

    asyncio.run(scenario())


def test_a_full_cursor_ledger_is_replaced_and_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = LIMITS._replace(cursor_entries_per_ledger_max=3)
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await made(node, 20, limits)
            ledger = managed_ledger.last_confirmed.ledger_id
            used = set()
            for entry_id in range(10):
                cursor.acknowledge_positions([(ledger, entry_id)])
                await cursor.persist()
                used.add(cursor.ledger_id)
                assert (await stored(node)).cursors_ledger_id == cursor.ledger_id
            assert len(used) == 4
            assert ledgers_of(node.storage) == [ledger, cursor.ledger_id]
            successor = node.kill()
        async with successor as node:
            assert (await reopened(node, limits)).acks.mark_delete == (ledger, 9)

    asyncio.run(scenario())


def test_an_old_cursor_ledger_is_replaced_and_deleted(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        used = []
        managed_ledger, cursor = await made(node, 20, LIMITS._replace(cursor_rollover_s=1.0))
        ledger = managed_ledger.last_confirmed.ledger_id
        for entry_id, pause_s in enumerate((0.0, 1.1, 0.0)):
            await asyncio.sleep(pause_s)
            cursor.acknowledge_positions([(ledger, entry_id)])
            await cursor.persist()
            used.append(cursor.ledger_id)
        assert used[0] != used[1]
        assert used[0] not in ledgers_of(node.storage)
        assert (await stored(node)).cursors_ledger_id == used[-1]

    run(tmp_path, scenario)


def test_a_new_cursor_ledger_is_named_only_when_it_has_what_was_acknowledged(
    tmp_path: Path,
) -> None:
    """A kill at the very moment of the switch loses no hole that was persisted before."""

    async def scenario() -> None:
        limits = LIMITS._replace(cursor_entries_per_ledger_max=1)
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await made(node, 20, limits)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions([(ledger, 1), (ledger, 3)])
            await cursor.persist()
            before, named = cursor.ledger_id, asyncio.Event()
            put = node.store.put

            async def put_and_stop(path: str, *arguments: Any) -> Any:
                result = await put(path, *arguments)
                if path == PATH:
                    named.set()
                    await asyncio.Event().wait()
                return result

            node.store.put = put_and_stop  # type: ignore[method-assign, assignment]
            cursor.acknowledge_positions([(ledger, 5)])
            writing = asyncio.ensure_future(cursor.persist())
            await asyncio.wait_for(named.wait(), 5)
            assert (await stored(node)).cursors_ledger_id not in (before, NO_LEDGER)
            successor = node.kill()
            writing.cancel()
        async with successor as node:
            found = await reopened(node, limits)
            assert found.acks.ranges(ledger) == [(0, 1), (2, 3), (4, 5)]

    asyncio.run(scenario())


def test_a_cursor_ledger_that_is_left_over_refuses_no_acknowledgement(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        short = LIMITS._replace(cursor_entries_per_ledger_max=1)
        managed_ledger, cursor = await made(node, 3, short)
        ledger = managed_ledger.last_confirmed.ledger_id

        node.store.delete = away  # type: ignore[method-assign]
        for entry_id in range(3):
            cursor.acknowledge_positions([(ledger, entry_id)])
            await cursor.persist()
        assert (await stored(node)).cursors_ledger_id == cursor.ledger_id
        await cursor.close()
        assert (await stored(node)).acks.mark_delete == (ledger, 2)

    run(tmp_path, scenario)


def test_the_newest_state_that_is_whole_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await made(node, 20)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions([(ledger, n) for n in range(5)])
            await cursor.persist()
            cursor.acknowledge_positions([(ledger, n) for n in range(5, 10)])
            newest = positions.encode_position(cursor.acks, {})
            await cursor.persist()
        [log] = (tmp_path / "bookie" / "ledgers").glob("*.log")
        bytes_of_log = log.read_bytes()
        assert bytes_of_log.count(newest) == 1
        log.write_bytes(bytes_of_log.replace(newest, bytes(len(newest))))
        async with Node(tmp_path / "bookie", node.tree) as node:
            assert (await reopened(node)).acks.mark_delete == (ledger, 4)

    asyncio.run(scenario())


def test_a_mark_beyond_the_end_is_moved_back(tmp_path: Path) -> None:
    """As when a store kept a position whose entry was never synced (journalSyncData=false)."""

    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 5)
        ledger = managed_ledger.last_confirmed.ledger_id
        cursor.acks.mark_delete_to(ledger, 50)
        cursor._dirty = True
        await managed_ledger.close()
        cursor = await reopened(node)
        assert cursor.acks.mark_delete == (ledger, 4)
        assert cursor.backlog == 0
        await append(cursor.managed_ledger, b"new")
        assert cursor.backlog == 1

    run(tmp_path, scenario)


# --- moving, deleting -----------------------------------------------------------------------------


def test_a_reset_is_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await made(node, 10)
            ledger = managed_ledger.last_confirmed.ledger_id
            cursor.acknowledge_positions([(ledger, n) for n in (0, 1, 2, 7)])
            await cursor.persist()
            cursor.reset(Position(ledger, 0))
            assert cursor.backlog == 9
            await cursor.persist()
            successor = node.kill()
        async with successor as node:
            assert state_of(await reopened(node)) == ((ledger, 0), {})

    asyncio.run(scenario())


def test_a_deleted_cursor_is_gone(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10)
        ledger = managed_ledger.last_confirmed.ledger_id
        cursor.acknowledge_positions([(ledger, 3)])
        await cursor.persist()
        assert len(ledgers_of(node.storage)) == 2
        await cursor.delete()
        assert managed_ledger.cursors == {}
        assert not await node.store.exists(PATH)
        assert ledgers_of(node.storage) == [ledger]
        await managed_ledger.close()
        assert (await node.open()).cursors == {}

    run(tmp_path, scenario)


def test_a_cursor_without_a_name_on_disk_writes_nothing(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(LIMITS._replace(mark_delete_per_s=1000.0))
        cursor = Cursor(managed_ledger, "reader", managed_ledger.first_position(), durable=False)
        await append(managed_ledger, *[b"x"] * 5)
        cursor.acknowledge_positions([(managed_ledger.last_confirmed.ledger_id, 2)])
        await cursor.persist()
        await asyncio.sleep(0.01)
        await cursor.close()
        await cursor.delete()
        assert await node.store.children(paths.managed_ledger(NAME)) == []
        assert len(ledgers_of(node.storage)) == 1

    run(tmp_path, scenario)


def test_a_reader_that_goes_leaves_a_cursor_of_its_name_alone(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 1)
        await Cursor(managed_ledger, "c", Position(-1, -1), durable=False).delete()
        assert managed_ledger.cursors == {"c": cursor}

    run(tmp_path, scenario)


def test_names_and_properties_of_any_kind_survive(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        names = ["a/b", "ümlaut %2F", "...", "x" * 200]
        for name in names:
            cursor = Cursor(managed_ledger, name, managed_ledger.first_position())
            cursor.properties = {"kind": name}
            cursor.position_properties = {"n": len(name)}
            managed_ledger.cursors[name] = cursor
            await cursor.create_node()
        await managed_ledger.close()
        found = (await node.open()).cursors
        assert sorted(found) == sorted(names)
        for name, cursor in found.items():
            assert cursor.properties == {"kind": name}
            assert cursor.position_properties == {"n": len(name)}

    run(tmp_path, scenario)


# --- failures -------------------------------------------------------------------------------------


def test_a_node_that_another_broker_changed_is_left_alone(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10)
        ledger = managed_ledger.last_confirmed.ledger_id
        await node.store.put(PATH, b"somebody else's")
        cursor.acknowledge_positions([(ledger, 0)])
        with pytest.raises(CursorError, match="another broker"):
            await cursor.persist()
        found = await node.store.get(PATH)
        assert found is not None
        assert found.value == b"somebody else's"

    run(tmp_path, scenario)


def test_a_store_that_was_away_is_written_when_it_is_back(tmp_path: Path) -> None:
    """The first state needs a new cursor ledger, and so the metadata store."""

    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            limits = LIMITS._replace(mark_delete_per_s=200.0)
            managed_ledger, cursor = await made(node, 10, limits)
            ledger = managed_ledger.last_confirmed.ledger_id
            put = node.store.put
            refused = 0

            def refuse(*_: Any, **__: Any) -> asyncio.Future[Any]:
                nonlocal refused
                refused += 1
                return away()

            node.store.put = refuse  # type: ignore[method-assign]
            cursor.acknowledge_positions([(ledger, 0)])
            with pytest.raises(CursorError, match="metadata store cannot take it"):
                await cursor.persist()
            cursor.acknowledge_positions([(ledger, 1)])
            assert cursor.acks.mark_delete == (ledger, 1)
            seen = refused
            await until(lambda: refused > seen + 1)
            node.store.put = put  # type: ignore[method-assign]
            # Nobody asks: it is written because it was not yet.
            await until(lambda: cursor.ledger_id != NO_LEDGER)
            await cursor.persist()
            successor = node.kill()
        async with successor as node:
            assert (await reopened(node)).acks.mark_delete == (ledger, 1)

    asyncio.run(scenario())


def test_a_node_that_could_not_be_written_does_not_hide_later_states(tmp_path: Path) -> None:
    """The new cursor ledger counts only once the node names it."""

    async def scenario() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger, cursor = await made(node, 10)
            ledger = managed_ledger.last_confirmed.ledger_id
            put = node.store.put

            def refuse_the_node(path: str, *arguments: Any, **named: Any) -> asyncio.Future[Any]:
                if path != PATH:
                    return put(path, *arguments, **named)
                return away()

            node.store.put = refuse_the_node  # type: ignore[method-assign]
            cursor.acknowledge_positions([(ledger, 0)])
            with pytest.raises(CursorError):
                await cursor.persist()
            node.store.put = put  # type: ignore[method-assign]
            cursor.acknowledge_positions([(ledger, 1)])
            await cursor.persist()
            successor = node.kill()
        async with successor as node:
            assert (await reopened(node)).acks.mark_delete == (ledger, 1)

    asyncio.run(scenario())


def test_a_cursor_ledger_that_is_gone_leaves_the_mark_of_the_node(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 10)
        ledger = managed_ledger.last_confirmed.ledger_id
        cursor.acknowledge_positions([(ledger, 0), (ledger, 1)])
        await cursor.persist()
        cursor.acknowledge_positions([(ledger, 2)])
        await cursor.persist()
        await node.client.delete(cursor.ledger_id)
        cursor = await reopened(node)
        assert cursor.acks.mark_delete == (ledger, 1)

    run(tmp_path, scenario)


def test_what_is_written_is_in_the_order_of_the_acks(tmp_path: Path) -> None:
    """States are whole: each later entry of the cursor ledger has all that an earlier one has."""

    async def scenario(node: Node) -> None:
        managed_ledger, cursor = await made(node, 60)
        ledger = managed_ledger.last_confirmed.ledger_id
        for entry_id in range(0, 60, 3):
            cursor.acknowledge_positions([(ledger, entry_id)])
            await cursor.persist()
        assert cursor._ledger is not None
        handle = cursor._ledger.handle
        holes = -1
        for entry_id in range(handle.last_add_confirmed + 1):
            batch = await handle.read_future(entry_id, entry_id)
            info = records.decode_position_info(batch.data(0))
            acks, _ = positions.restore_position(info)
            for _ in positions.merge_position(acks, info, {ledger: 59}):
                pass
            assert acks.holes > holes
            holes = acks.holes
        assert holes == 19

    run(tmp_path, scenario)


# --- while its node is being made -----------------------------------------------------------------


def test_a_cursor_that_is_closed_while_it_is_made_is_no_other_owners(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        cursor = Cursor(managed_ledger, "c", managed_ledger.first_position())
        managed_ledger.cursors["c"] = cursor
        making = asyncio.create_task(cursor.create_node())
        await asyncio.sleep(0)
        await managed_ledger.close()
        await making
        assert managed_ledger.state is State.CLOSED
        assert state_of(await reopened(node)) == state_of(cursor)

    run(tmp_path, scenario)
