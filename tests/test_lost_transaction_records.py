"""Lost entries in what transactions have stored: a recovery ends, and disturbs no other one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import test_transactional_acks as acks
import test_transactions_of_topics as topics
import transactions
from bad_disk import Disk
from one_bookie import LIMITS, append, settled, until
from one_broker import TOPIC, Broker, Client
from pyxbroker.base.errors import UnknownError
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics import log_reader
from pyxbroker.broker.transactions.coordinator_log import LOST_SEQUENCES_MAX, name_of
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.ledger.bookie import DAMAGED, NO_ENTRY
from pyxbroker.ledger.errors import NoSuchLedger
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.proto import PulsarApi as pb
from test_read_trouble import lines

Scenario: TypeAlias = Callable[[Broker, Disk], Awaitable[None]]

ONE, TWO, THREE = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)
RETRY_S = 0.3
CODES = pytest.mark.parametrize("code", [NO_ENTRY, DAMAGED], ids=["missing", "damaged"])


@pytest.fixture(autouse=True)
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "LOST_RETRY_S", RETRY_S)


def run(tmp_path: Path, scenario: Scenario, skips: bool = False, code: int = NO_ENTRY) -> None:
    async def with_disk(broker: Broker) -> None:
        disk = Disk(broker.node.bookie)
        disk.lost_code = code
        await scenario(broker, disk)

    transactions.run(tmp_path, with_disk, coordinators=2, autoSkipNonRecoverableData=skips)


def lose(disk: Disk, managed_ledger: ManagedLedger, *entries: int) -> None:
    """Lose entries of the first ledger."""
    ledger_id = managed_ledger.first_position().ledger_id
    disk.lost = {(ledger_id, each) for each in entries}


async def idle(disk: Disk, seconds: float = RETRY_S * 0.6) -> None:
    """Check that nothing is read for a while."""
    reads = len(disk.reads)
    await asyncio.sleep(seconds)
    assert len(disk.reads) == reads


# --- transaction buffers --------------------------------------------------------------------------


async def reopened_without_a_marker(broker: Broker, disk: Disk) -> tuple[Client, Client]:
    """A topic without the marker of its first transaction, which is aborted: its producer and
    consumer.
    """
    client = await topics.producing(broker)
    await topics.published(client, 0, (b"a", ONE), (b"b", TWO), (b"c", None))
    await topics.end(broker, ONE, commit=False)
    await topics.end(broker, TWO, commit=True)
    lose(disk, (await topics.open_topic(broker)).managed_ledger, 3)
    await topics.reopen(broker)
    consumer = await broker.client()
    await consumer.subscribe()
    return await topics.producing(broker), consumer


@CODES
def test_a_topic_waits_before_lost_entries_that_may_end_transactions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    async def scenario(broker: Broker, disk: Disk) -> None:
        client, consumer = await reopened_without_a_marker(broker, disk)
        topic = await topics.open_topic(broker)
        buffer = topic.transactions
        assert buffer is not None
        await until(lambda: buffer.unreadable is not None)
        await idle(disk)
        assert await topics.received(consumer) == []
        topics.send(client, 0, b"d", THREE)
        refused = await client.receive("send_error")
        assert refused.error == pb.NotAllowedError
        assert TOPIC in refused.message and "cannot be read" in refused.message
        await topics.published(client, 1, (b"e", None))
        for attempt in (buffer.end(THREE, True, -1), topic.last_message()):
            with pytest.raises(UnknownError, match=r"Failed to recover .* cannot be read"):
                await attempt
        assert not topic.fenced
        # Several attempts write one line.
        await asyncio.sleep(2 * RETRY_S)
        disk.lost = set()
        await until(lambda: buffer.unreadable is None)
        assert await topics.received(consumer) == [b"b", b"c", b"e"]

    run(tmp_path, scenario, code=code)
    [line] = lines(caplog, "the transactions of a topic cannot be read; consumers wait")
    assert "autoSkipNonRecoverableData" in line["help"]


def test_a_topic_leaves_out_lost_entries_where_that_is_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its marker a transaction is open, until its end is repeated."""

    async def scenario(broker: Broker, disk: Disk) -> None:
        _, consumer = await reopened_without_a_marker(broker, disk)
        buffer = await topics.buffer_of(broker)
        assert buffer.ongoing == 1
        assert await topics.received(consumer) == []
        await topics.end(broker, ONE, commit=False)
        assert await topics.received(consumer) == [b"b", b"c"]

    run(tmp_path, scenario, skips=True)
    assert [line["entries"] for line in lines(caplog, "entries cannot be read")] == [1]


def test_a_topic_that_waits_before_lost_entries_can_be_unloaded_and_deleted(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker, disk: Disk) -> None:
        await reopened_without_a_marker(broker, disk)
        for _ in range(2):
            buffer = (await topics.open_topic(broker)).transactions
            assert buffer is not None
            await until(lambda: buffer.unreadable is not None)  # noqa: B023
            await topics.reopen(broker)
        await topics.open_topic(broker)
        await broker.topics.deletion.delete_by_name(TopicName.get(TOPIC), force=True)

    run(tmp_path, scenario)


def test_a_lost_ledger_is_left_out_in_one_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker, disk: Disk) -> None:
        managed_ledger = await broker.node.open(LIMITS._replace(retention_s=-1, retention_bytes=-1))
        await append(managed_ledger, *[b"x"] * 50)
        managed_ledger.roll_over()
        await settled(managed_ledger)
        await append(managed_ledger, b"y")
        lost, read_some = managed_ledger.first_position().ledger_id, managed_ledger.read_some
        reads = 0

        async def read(position: Any, *limits: int) -> Any:
            nonlocal reads
            reads += 1
            if position.ledger_id == lost:
                raise NoSuchLedger("a test")
            return await read_some(position, *limits)

        managed_ledger.read_some = read  # type: ignore[method-assign]
        start = managed_ledger.first_position()
        found = [data async for _, data in log_reader.read_log(managed_ledger, start, "a test")]
        assert (found, reads) == ([b"y"], 2)
        with pytest.raises(NoSuchLedger):
            async for _ in log_reader.read_log(managed_ledger, start, "a test", skips_lost=False):
                pass

    run(tmp_path, scenario)
    [line] = lines(caplog, "entries cannot be read")
    assert (line["entries"], line["last"].entry_id) == (50, 49)


# --- pending acknowledgements ---------------------------------------------------------------------


async def reopened_without_a_record(broker: Broker, disk: Disk) -> list[tuple[int, int]]:
    """The positions of a topic; the first one is acknowledged, but the record of the commit lost,
    the second one is acknowledged by an open transaction.
    """
    client, topic = await broker.client(), await broker.topic()
    positions = await broker.publish(b"a", b"b", b"c")
    await client.subscribe(1)
    await client.messages(3)
    assert await acks.ack(client, ONE, positions[0]) == (None, "")
    assert await acks.ack(client, TWO, positions[1]) == (None, "")
    await acks.end(topic, ONE, commit=True)
    managed_ledger = topic.subscriptions["s"].pending_acks.managed_ledger
    assert managed_ledger is not None
    lose(disk, managed_ledger, 2)
    await client.subscribe(2, subscription="other", permits=0)
    await acks.unloaded(broker)
    return positions


@CODES
def test_a_subscription_with_lost_records_refuses_its_own_consumers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    async def scenario(broker: Broker, disk: Disk) -> None:
        positions = await reopened_without_a_record(broker, disk)
        client = await broker.client()
        reads: set[int] = set()
        for attempt in range(3):
            answer = await client.subscribe(attempt)
            assert answer.error == pb.UnknownError
            assert f"[{TOPIC}][s] Failed to init transaction pending ack." in answer.message
            assert "lost" in answer.message
            reads.add(len(disk.reads))
        assert len(reads) == 1
        await client.subscribe(7, subscription="other", permits=10)
        assert await acks.positions_of(client, 3) == positions
        subscription = (await broker.topic()).subscriptions["s"]
        with pytest.raises(UnknownError, match="Failed to init"):
            await subscription.end_transaction(TWO, True, -1)
        disk.lost = set()
        await asyncio.sleep(RETRY_S)
        await client.subscribe(8)
        assert await acks.positions_of(client, 1) == positions[2:]

    run(tmp_path, scenario, code=code)
    event = "the pending acknowledgements of a subscription cannot be read now"
    [line] = lines(caplog, event)
    assert "autoSkipNonRecoverableData" in line["help"]


def test_a_subscription_leaves_out_lost_records_where_that_is_allowed(tmp_path: Path) -> None:
    async def scenario(broker: Broker, disk: Disk) -> None:
        positions = await reopened_without_a_record(broker, disk)
        client = await broker.client()
        await client.subscribe(1)
        # The commit has acknowledged the first message for good; the cursor says so.
        assert await acks.positions_of(client, 1) == positions[2:]
        await acks.end(await broker.topic(), TWO, commit=False)
        assert await acks.positions_of(client, 1) == positions[1:2]

    run(tmp_path, scenario, skips=True)


# --- coordinators ---------------------------------------------------------------------------------


async def without_records(broker: Broker, disk: Disk, *entries: int) -> tuple[Client, list[TxnId]]:
    """A client, and the transactions that it has begun. Some records of coordinator 0 are lost."""
    client = await broker.client()
    begun = [await transactions.new(client) for _ in range(3)]
    await transactions.transactions_of(broker).unload(lambda name: True)
    managed_ledger = await broker.node.open(name=name_of(0))
    lose(disk, managed_ledger, *entries)
    await managed_ledger.close()
    return client, begun


@CODES
@pytest.mark.parametrize("entry", [0, 2], ids=["first", "last"])
def test_a_coordinator_with_lost_records_refuses_its_own_commands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int, entry: int
) -> None:
    async def scenario(broker: Broker, disk: Disk) -> None:
        client, begun = await without_records(broker, disk, entry)
        reads: set[int] = set()
        for _ in range(3):
            command = pb.CommandTcClientConnectRequest(tc_id=0)
            answer = await client.request(command, "tcClientConnectResponse")
            assert not answer.HasField("error"), answer.message
            for answer in (
                await client.request(pb.CommandNewTxn(tc_id=0), "newTxnResponse"),
                await transactions.end(client, begun[0]),
                await transactions.add_partition(client, begun[1], "t"),
            ):
                assert answer.error == pb.UnknownError
                assert "Transaction coordinator 0 cannot be opened" in answer.message
            reads.add(len(disk.reads))
        assert len(reads) == 1
        assert await transactions.new(client, 1) == TxnId(1, 0)
        disk.lost = set()
        await asyncio.sleep(RETRY_S)
        for txn in begun:
            assert not (await transactions.end(client, txn)).HasField("error")
        assert await transactions.new(client) == TxnId(0, 3)

    run(tmp_path, scenario, code=code)
    [line] = lines(caplog, "a coordinator cannot be opened now")
    assert "autoSkipNonRecoverableData" in line["help"]


def test_a_coordinator_gives_no_number_again_that_a_lost_record_may_have(tmp_path: Path) -> None:
    async def scenario(broker: Broker, disk: Disk) -> None:
        client, begun = await without_records(broker, disk, 0, 2)
        answer = await transactions.end(client, begun[0])
        assert answer.error == pb.TransactionNotFound
        assert not (await transactions.end(client, begun[1])).HasField("error")
        assert (await transactions.new(client)).least > LOST_SEQUENCES_MAX

    run(tmp_path, scenario, skips=True)
