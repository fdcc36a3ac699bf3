"""Opening a topic while the disk or the metadata store does not answer: nothing older counts."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bad_disk import EIO, Disk
from one_bookie import Node, append, cursor_at, entries, read_all
from one_broker import Broker, data_of
from pyxbroker.entry import Position
from pyxbroker.ledger import retries
from pyxbroker.ledger.bookie import DAMAGED
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import Put, Unavailable
from pyxbroker.proto import PulsarApi as pb

NAME = "public/default/persistent/t"
Positions = list[tuple[int, int]]


def run(
    tmp_path: Path,
    scenario: Callable[[Node, Positions], Awaitable[None]],
    how: str = "kill",
) -> None:
    """Runs a scenario on what an owner left: 20 entries, of which a cursor has 10 and a hole."""

    async def main() -> None:
        async with Node(tmp_path / "bookie") as node:
            managed_ledger = await node.open()
            cursor = await cursor_at(managed_ledger, "c", managed_ledger.first_position())
            positions = await append(managed_ledger, *entries(0, 20))
            for position in [*positions[:10], positions[14]]:
                cursor.acknowledge_positions([position])
                await cursor.persist()
            assert cursor.ledger_id >= 0
            successor = node.kill()
        async with successor as node:
            if how == "on disk":
                await node.flush()
            await scenario(node, positions)

    asyncio.run(main())


def check(managed_ledger: Any, positions: Positions) -> None:
    acks = managed_ledger.cursors["c"].acks
    assert acks.mark_delete == positions[9]
    assert acks.is_acknowledged(*positions[14])
    assert acks.holes == 1
    assert managed_ledger.last_confirmed == positions[19]


@pytest.mark.parametrize("error", [EIO, -errno.ENOMEM, -errno.EMFILE])
def test_it_waits_for_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    caplog.set_level(logging.INFO, "pyxbroker.ledger")

    async def scenario(node: Node, positions: Positions) -> None:
        disk = Disk(node.bookie)
        disk.fail_for(0.4, error)
        managed_ledger = await node.open()
        check(managed_ledger, positions)
        assert await read_all(managed_ledger) == entries(0, 20)

    run(tmp_path, scenario)
    events = [each.message for each in caplog.records]
    assert events.count("a call failed; retrying") == 1
    assert "a call succeeded after retries" in events


def test_how_often_it_was_tried_again_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pyxbroker.ledger")
    failures: list[Exception] = [Unavailable("the store is away")] * 2

    async def question() -> str:
        if failures:
            raise failures.pop()
        return "answer"

    assert asyncio.run(retries.Retries("opening").call(question)) == "answer"
    told = [getattr(each, "fields", {}).get("tries") for each in caplog.records]
    assert told == [None, 2]


def test_it_waits_for_a_disk_that_fails_below_the_storage(tmp_path: Path) -> None:
    async def scenario(node: Node, positions: Positions) -> None:
        node.faults.rule("pread", ".log", errno=errno.EIO)
        asyncio.get_running_loop().call_later(0.4, node.faults.clear)
        managed_ledger = await node.open()
        assert node.faults.count("pread") > 0
        check(managed_ledger, positions)
        assert await read_all(managed_ledger) == entries(0, 20)

    run(tmp_path, scenario, "on disk")


def test_it_is_refused_when_it_takes_too_long_and_can_be_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RETRY_FOR_S", 0.3)

    async def scenario(node: Node, positions: Positions) -> None:
        path = paths.managed_ledger(NAME)
        before = await node.store.get(path), await node.store.get(f"{path}/c")
        disk = Disk(node.bookie)
        disk.error = EIO
        for _ in range(2):
            with pytest.raises(LedgerError, match="Input/output error"):
                await node.open()
        assert (await node.store.get(path), await node.store.get(f"{path}/c")) == before
        disk.error = 0
        check(await node.open(), positions)

    run(tmp_path, scenario)


def test_the_last_entry_of_a_cursor_ledger_is_not_passed_over_for_an_error(tmp_path: Path) -> None:
    """Its newest state alone cannot be read: the one before it would be older."""

    async def scenario(node: Node, positions: Positions) -> None:
        disk = Disk(node.bookie)
        found = await node.store.get(f"{paths.managed_ledger(NAME)}/c")
        assert found is not None
        bad: list[tuple[int, int]] = []
        ask = disk.read

        def read(ledger_id: int, first: int, *rest: Any) -> None:
            # The first three times that somebody asks for the end of the cursor's ledger.
            if ledger_id != positions[0][0] and len(bad) < 3:
                bad.append((ledger_id, first))
                asyncio.get_running_loop().call_soon(rest[-1], EIO)
            else:
                ask(ledger_id, first, *rest)

        node.bookie.read = read  # type: ignore[method-assign]
        check(await node.open(), positions)
        assert len(bad) == 3

    run(tmp_path, scenario)


def test_damage_costs_what_only_it_had_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(node: Node, positions: Positions) -> None:
        disk = Disk(node.bookie)
        disk.lost_code = DAMAGED
        (cursor_ledger,) = [
            each
            for each in range(positions[0][0] + 1, positions[0][0] + 20)
            if node.last_entry(each) >= 8
        ]
        last = node.last_entry(cursor_ledger)
        disk.lost = {(cursor_ledger, last), (cursor_ledger, last - 1), (cursor_ledger, last - 2)}
        managed_ledger = await node.open()
        assert managed_ledger.cursors["c"].acks.mark_delete == positions[7]

    run(tmp_path, scenario)
    told = [
        each
        for each in caplog.records
        if each.message.startswith("entries of a cursor ledger are lost")
    ]
    assert [each.fields["entries"] for each in told] == [3]


@pytest.mark.parametrize("operation", ["get", "children"])
def test_it_waits_for_the_metadata_store(tmp_path: Path, operation: str) -> None:
    async def scenario(node: Node, positions: Positions) -> None:
        ask = getattr(node.store, operation)
        refused = 0

        def away(*arguments: Any) -> asyncio.Future[Any]:
            nonlocal refused
            if refused == 4:
                return ask(*arguments)
            refused += 1
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.set_exception(Unavailable("the store is away"))
            return future

        setattr(node.store, operation, away)
        managed_ledger = await node.open()
        assert refused == 4
        check(managed_ledger, positions)

    run(tmp_path, scenario)


@pytest.mark.parametrize("is_shared", [True, False])
def test_opening_writes_a_shared_store_once(tmp_path: Path, is_shared: bool) -> None:
    """Refused writes are expensive there. Elsewhere creating it is tried first."""

    async def scenario(node: Node, positions: Positions) -> None:
        node.store.is_shared = is_shared
        put_all = node.store.put_all
        writes: list[list[str]] = []

        def noted(puts: Sequence[Put]) -> Any:
            writes.append([put.path for put in puts])
            return put_all(puts)

        node.store.put_all = noted  # type: ignore[method-assign]
        check(await node.open(), positions)
        named = [each for each in writes if paths.managed_ledger(NAME) in each]
        assert len(named) == (1 if is_shared else 2)

    run(tmp_path, scenario)


def test_a_recovery_that_metadata_interrupts_goes_on(tmp_path: Path) -> None:
    """The write that closes the ledger may have been carried out, though nobody knows."""

    async def scenario(node: Node, positions: Positions) -> None:
        put = node.store.put
        refused: list[str] = []

        def lost_answer(path: str, *arguments: Any, **named: Any) -> asyncio.Future[Any]:
            future = put(path, *arguments, **named)
            if path != paths.ledger(positions[0][0]) or len(refused) >= 2:
                return future
            refused.append(path)
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(Unavailable("the store is away"))
            return answer

        node.store.put = lost_answer  # type: ignore[method-assign]
        managed_ledger = await node.open()
        assert len(refused) == 2
        check(managed_ledger, positions)
        assert await read_all(managed_ledger) == entries(0, 20)

    run(tmp_path, scenario)


def test_the_end_of_a_ledger_is_not_moved_by_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RETRY_FOR_S", 0.2)

    async def scenario(node: Node, positions: Positions) -> None:
        ledger_id = positions[0][0]
        disk = Disk(node.bookie)
        disk.error = EIO
        with pytest.raises(LedgerError):
            await retries.Retries("x").call(lambda: node.client.recover(ledger_id))
        disk.error = 0
        disk.lost = {(ledger_id, 19), (ledger_id, 18)}
        last, length = await node.client.recover(ledger_id)
        assert (last, length) == (19, sum(map(len, entries(0, 18))))

    run(tmp_path, scenario)


def test_clients_are_told_to_come_back_and_served_at_once_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RETRY_FOR_S", 0.3)

    async def main() -> None:
        first = Broker(tmp_path / "bookie")
        async with first as broker:
            topic = await broker.topic()
            subscription = await topic.subscription_for(
                "s", topic.managed_ledger.first_position(), {}, True
            )
            positions = await broker.publish(*data_of(20))
            subscription.cursor.acknowledge_positions(positions[:5])
            await subscription.cursor.persist()
            second = Broker(tmp_path / "killed" / "bookie")
            second.node = broker.node.kill()
            # Nothing of it is closed.
            broker.topics.registry._topics.pop(topic.name)
        async with second as broker:
            disk = Disk(broker.node.bookie)
            disk.error = EIO
            client = await broker.client()
            answer = await client.subscribe(1)
            assert answer.error == pb.ServiceNotReady
            assert "Input/output error" in answer.message
            disk.error = 0
            await client.subscribe(1)
            assert [each.data for each in await client.messages(15)] == data_of(20)[5:]
            mark = (await broker.topic()).subscriptions["s"].cursor.acks.mark_delete
            assert mark == Position(*positions[4])

    asyncio.run(main())
