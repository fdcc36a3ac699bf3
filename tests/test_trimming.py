"""Trimming: ledgers that nobody needs go, all others stay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_bookie import (
    SHORT,
    Node,
    append,
    check_positions,
    cursor_at,
    entries,
    filled,
    ledgers_of,
    read_all,
    run,
    settled,
)
from pyxbroker.entry import Position
from pyxbroker.ledger.errors import NoSuchEntry
from pyxbroker.metadata.store import Unavailable

LONG = SHORT._replace(entries_per_ledger_max=50_000, rollover_min_s=600.0)


def test_without_cursors_closed_ledgers_are_deleted(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await filled(node, SHORT)
        managed_ledger.trim()
        await settled(managed_ledger)
        assert managed_ledger.current is not None
        assert list(managed_ledger.ledgers) == [managed_ledger.current.ledger_id]
        assert managed_ledger.entries == 0
        assert managed_ledger.size == 0
        assert ledgers_of(node.storage) == []
        check_positions(managed_ledger)
        await append(managed_ledger, b"next")
        check_positions(managed_ledger)
        assert await read_all(managed_ledger) == [b"next"]
        await managed_ledger.close()
        assert await read_all(await node.open(SHORT)) == [b"next"]

    run(tmp_path, scenario)


def test_the_slowest_durable_cursor_holds_ledgers(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await filled(node, SHORT)
        ids = sorted(managed_ledger.ledgers)
        slow = await cursor_at(managed_ledger, "slow", Position(ids[1], 8))
        await cursor_at(managed_ledger, "fast", Position(ids[4], 9))
        managed_ledger.trim()
        await settled(managed_ledger)
        assert sorted(managed_ledger.ledgers) == ids[1:]
        check_positions(managed_ledger)
        assert await read_all(managed_ledger) == entries(10, 50)
        assert slow.acknowledge_positions([(ids[1], 9)]) == 1
        await settled(managed_ledger)
        assert sorted(managed_ledger.ledgers) == ids[2:]
        assert slow.acknowledge_up_to(Position(ids[3], 5))
        await settled(managed_ledger)
        assert sorted(managed_ledger.ledgers) == ids[3:], "cumulatively as well"
        await slow.delete()
        await settled(managed_ledger)
        assert sorted(managed_ledger.ledgers) == ids[5:]
        check_positions(managed_ledger)

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("seconds", "size", "kept"),
    [
        (0, 0, 0),
        (3600, -1, 5),
        (-1, -1, 5),
        (3600, 0, 0),
        (0, 10_000, 0),
        (3600, 10_000, 5),
        # What is kept is at least the size that was asked for: two ledgers and a part are three.
        (3600, 200, 3),
        (-1, 200, 3),
        (-1, 160, 2),
    ],
)
def test_retention_keeps_what_is_young_and_within_its_size(
    tmp_path: Path, seconds: int, size: int, kept: int
) -> None:
    """The first of the ledgers has 70 bytes, the others have 80."""

    async def scenario(node: Node) -> None:
        limits = SHORT._replace(retention_s=seconds, retention_bytes=size)
        managed_ledger = await filled(node, limits)
        managed_ledger.trim()
        await settled(managed_ledger)
        assert len(managed_ledger.ledgers) - 1 == kept
        assert managed_ledger.size == sum(map(len, entries(50 - 10 * kept, 50)))

    run(tmp_path, scenario)


def test_ledgers_that_could_not_be_trimmed_are_trimmed_later(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await filled(node, SHORT)
        before = list(managed_ledger.ledgers)
        put = node.store.put

        def refuse(*_: Any, **__: Any) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(Unavailable("the store is away"))
            return future

        node.store.put = refuse  # type: ignore[method-assign]
        managed_ledger.trim()
        await settled(managed_ledger)
        assert list(managed_ledger.ledgers) == before
        assert await read_all(managed_ledger) == entries(0, 50)
        check_positions(managed_ledger)
        node.store.put = put  # type: ignore[method-assign]
        managed_ledger.trim()
        await settled(managed_ledger)
        assert len(managed_ledger.ledgers) == 1
        assert ledgers_of(node.storage) == []

    run(tmp_path, scenario)


def test_a_reader_behind_what_was_trimmed_goes_on_with_what_is_kept(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await filled(node, SHORT)
        ids = sorted(managed_ledger.ledgers)
        cursor = await cursor_at(managed_ledger, "c", Position(ids[2], 9))
        managed_ledger.trim()
        await settled(managed_ledger)
        assert managed_ledger.normalize((ids[0], 5)) == (ids[3], 0)
        with pytest.raises(NoSuchEntry):
            await managed_ledger.read_one(Position(ids[0], 5))
        assert not cursor.acknowledge_positions([(ids[0], 5)])

    run(tmp_path, scenario)


def test_when_space_is_short_a_consumed_ledger_goes_at_once(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(LONG)
        cursor = await cursor_at(managed_ledger, "s", managed_ledger.first_position())
        positions = await append(managed_ledger, *[b"%d" % n for n in range(20)])
        used = positions[0][0]
        cursor.acknowledge_up_to(positions[-2])
        managed_ledger.roll_over_if_consumed()
        await settled(managed_ledger)
        assert used in managed_ledger.ledgers
        cursor.acknowledge_up_to(positions[-1])
        managed_ledger.roll_over_if_consumed()
        await settled(managed_ledger)
        assert used not in managed_ledger.ledgers
        assert used not in ledgers_of(node.storage)
        # An empty one has nothing to give, and is not replaced again and again.
        kept = list(managed_ledger.ledgers)
        managed_ledger.roll_over_if_consumed()
        await settled(managed_ledger)
        assert list(managed_ledger.ledgers) == kept
        await append(managed_ledger, b"next")
        assert await read_all(managed_ledger) == [b"next"]

    run(tmp_path, scenario)


def test_when_space_is_short_retention_is_kept_all_the_same(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(LONG._replace(retention_s=60.0, retention_bytes=1 << 30))
        await append(managed_ledger, b"kept")
        kept = list(managed_ledger.ledgers)
        managed_ledger.roll_over_if_consumed()
        await settled(managed_ledger)
        assert list(managed_ledger.ledgers) == kept

    run(tmp_path, scenario)


def test_when_space_is_short_a_ledger_without_durable_cursors_goes(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(LONG)
        await append(managed_ledger, *entries(0, 10))
        managed_ledger.roll_over_if_consumed()
        await settled(managed_ledger)
        assert managed_ledger.size == 0

    run(tmp_path, scenario)
