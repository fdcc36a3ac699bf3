"""Managed ledgers while the metadata cannot be written: what waits, and what is done later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_bookie import SHORT, Node, append, cursor_at, entries, filled, read_all, run, until
from pyxbroker.ledger import retries
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import NoSpace, Unavailable
from pyxbroker.mledger.opening import delete_managed_ledger
from pyxbroker.mledger.state import State


def refuse(node: Node, operation: str, error: Exception, below: str = "/") -> list[str]:
    """From now on the store refuses an operation; the list has the paths that were asked for."""
    real = getattr(node.store, operation)
    refused: list[str] = []

    def away(*arguments: Any, **named: Any) -> asyncio.Future[Any]:
        path = str(arguments[0])
        if below != "/" and not path.startswith(below):
            answered: asyncio.Future[Any] = real(*arguments, **named)
            return answered
        refused.append(path)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_exception(error)
        return answer

    setattr(node.store, operation, away)
    return refused


def test_a_ledger_whose_deletion_was_refused_is_deleted_later(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await filled(node, SHORT)
        ids = [each for each, info in managed_ledger.ledgers.items() if info.entries]
        real = node.store.delete
        refuse(node, "delete", Unavailable("the store is away"), below="/ledgers/")
        await delete_managed_ledger(managed_ledger)
        await node.client.retry_deletions()
        assert [await node.store.exists(paths.ledger(each)) for each in ids] == [True] * len(ids)
        node.store.delete = real  # type: ignore[method-assign]
        await node.client.retry_deletions()
        assert [await node.store.exists(paths.ledger(each)) for each in ids] == [False] * len(ids)

    run(tmp_path, scenario)


@pytest.mark.parametrize("operation", ["put", "put_all"])
def test_a_roll_over_waits_for_space_and_readers_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """put closes the old ledger, put_all begins the next one."""
    # Space is waited for longer than anything else.
    monkeypatch.setattr(retries, "RETRY_FOR_S", 0.1)

    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        await cursor_at(managed_ledger, "c", managed_ledger.first_position())
        await append(managed_ledger, *entries(0, 5))
        real = getattr(node.store, operation)
        refused = refuse(node, operation, NoSpace("the disk is full"))
        managed_ledger.roll_over()
        adding = asyncio.ensure_future(append(managed_ledger, b"later"))
        await until(lambda: len(refused) >= 4)
        assert managed_ledger.state is State.CREATING_LEDGER
        assert await read_all(managed_ledger) == entries(0, 5)
        assert not adding.done()
        setattr(node.store, operation, real)
        await adding
        assert await read_all(managed_ledger) == [*entries(0, 5), b"later"]
        assert len(managed_ledger.ledgers) == 2

    run(tmp_path, scenario)


def test_a_close_does_not_wait_for_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_FOR_S", 0.1)

    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        await cursor_at(managed_ledger, "c", managed_ledger.first_position())
        await append(managed_ledger, *entries(0, 5))
        real = node.store.put_all
        refused = refuse(node, "put_all", NoSpace("the disk is full"))
        managed_ledger.roll_over()
        await until(lambda: len(refused) >= 2)
        await asyncio.wait_for(managed_ledger.close(), 5)
        node.store.put_all = real  # type: ignore[method-assign]
        assert await read_all(await node.open()) == entries(0, 5)

    run(tmp_path, scenario)


def test_a_ledger_whose_closing_was_not_answered_is_closed_all_the_same(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open()
        await cursor_at(managed_ledger, "c", managed_ledger.first_position())
        await append(managed_ledger, *entries(0, 5))
        put = node.store.put
        lost: list[str] = []

        def lost_answer(*arguments: Any, **named: Any) -> asyncio.Future[Any]:
            future = put(*arguments, **named)
            if lost:
                return future
            lost.append(arguments[0])
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(Unavailable("the store is away"))
            return answer

        node.store.put = lost_answer  # type: ignore[method-assign]
        managed_ledger.roll_over()
        await append(managed_ledger, b"later")
        assert lost == [paths.ledger(min(managed_ledger.ledgers))]
        assert await read_all(managed_ledger) == [*entries(0, 5), b"later"]

    run(tmp_path, scenario)
