"""Entries that cannot be read: an error is waited out, damage is passed over or stops."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from bad_disk import EIO, Disk, run_on
from one_bookie import append, settled, until
from one_broker import Broker, Client, data_of, section, stats_of
from pyxbroker.broker.dispatch import read_trouble
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.ledger.bookie import DAMAGED, NO_ENTRY
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb

READER = {"subType": pb.CommandSubscribe.Exclusive, "durable": False, "subscription": "reader"}
KINDS: dict[str, dict[str, Any]] = {
    "Exclusive": {"subType": pb.CommandSubscribe.Exclusive},
    "Failover": {"subType": pb.CommandSubscribe.Failover},
    "Shared": {"subType": pb.CommandSubscribe.Shared},
    "Key_Shared": {"subType": pb.CommandSubscribe.Key_Shared},
    "reader": READER,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
ENOMEM, EMFILE = -12, -24
SKIPPED = "entries that cannot be read are skipped"
FAILED_READ = "a read failed; the broker retries until it succeeds, and consumers wait"


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of the lines of an event."""
    return [getattr(each, "fields", {}) for each in caplog.records if each.message == event]


async def read(client: Client, count: int) -> list[bytes]:
    return [each.data for each in await client.messages(count)]


async def stopped(broker: Broker) -> str | None:
    [stats] = stats_of(await broker.topic()).subscriptions
    return stats.stopped_by_damage


async def stop(
    broker: Broker, disk: Disk, positions: list[tuple[int, int]], kind: str
) -> tuple[Client, Subscription]:
    """A client that has the first ten messages, and its subscription, which has stopped at the
    eighty behind them.
    """
    disk.lost = set(positions[10:90])
    client = await broker.client()
    await client.subscribe(**KINDS[kind])
    await client.messages(10)
    topic = await broker.topic()
    [found] = [each for each in topic.all_subscriptions() if each.consumers]
    await until(lambda: found.dispatcher.stopped_by_damage is not None)
    return client, found


async def seek(client: Client, position: tuple[int, int]) -> Any:
    """What is answered."""
    command = pb.CommandSeek(consumer_id=1, request_id=0)
    command.message_id.ledgerId, command.message_id.entryId = position
    return await client.request(command, "success")


@every_kind
@pytest.mark.parametrize("error", [EIO, ENOMEM, EMFILE])
def test_a_read_error_is_waited_out_and_nothing_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, error: int
) -> None:
    caplog.set_level(logging.INFO, "pyxbroker.delivery")

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client = await broker.client()
        await client.subscribe(permits=100, **KINDS[kind])
        assert await read(client, 100) == data_of(300)[:100]
        if kind in ("Exclusive", "Failover"):
            await client.ack(positions[99], cumulative=True)
        disk.fail_times(4, error)
        disk.reads.clear()
        client.flow(200)
        assert await read(client, 200) == data_of(300)[100:]
        # 50 ms, then twice as long each time: 0, 50, 150, 350, 750 ms.
        gaps = [b - a for a, b in itertools.pairwise(disk.reads[:5])]
        assert all(gap > 0.045 * 2**n for n, gap in enumerate(gaps))
        if kind in ("Exclusive", "Failover"):
            await client.ack(positions[-1], cumulative=True)
            assert (await broker.topic()).subscriptions["s"].cursor.backlog == 0

    run_on(tmp_path, data_of(300), scenario)
    [begun] = lines(caplog, FAILED_READ)
    assert os.strerror(-error) in str(begun["error"])
    [ended] = lines(caplog, "reads succeed again")
    assert ended["tries"] == 4
    assert ended["after_s"] > 0.7


def test_the_waits_begin_anew_after_a_success(tmp_path: Path) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client = await broker.client()
        await client.subscribe(permits=10)
        for part in range(3):
            assert await read(client, 10) == data_of(300)[part * 10 :][:10]
            disk.fail_times(3)
            disk.reads.clear()
            client.flow(10)
            await until(lambda: len(disk.reads) >= 4)
            if part == 2:
                # It would be a second by now.
                assert disk.reads[1] - disk.reads[0] < 0.5

    run_on(tmp_path, data_of(300), scenario)


def test_reads_begin_small_after_a_failure_and_grow(tmp_path: Path) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client = await broker.client()
        await client.subscribe(permits=100)
        assert await read(client, 100) == data_of(300)[:100]
        disk.fail_times(2)
        disk.counts.clear()
        client.flow(200)
        assert await read(client, 200) == data_of(300)[100:]
        # The second attempt fails, too. Then it doubles, until it is what it was before.
        assert disk.counts[:8] == [50, 3, 3, 6, 12, 24, 48, 50]

    settings = {"dispatcherMinReadBatchSize": 3, "dispatcherMaxReadBatchSize": 50}
    run_on(tmp_path, data_of(300), scenario, **settings)


def test_what_is_sent_again_waits_for_the_disk_too(tmp_path: Path) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client = await broker.client()
        await client.subscribe()
        await client.messages(20)
        disk.fail_for(0.2)
        client.redeliver(*positions[5:8])
        again = await client.messages(3)
        assert [each.position for each in again] == positions[5:8]

    run_on(tmp_path, data_of(20), scenario)


@every_kind
@pytest.mark.parametrize("code", [NO_ENTRY, DAMAGED])
def test_64_lost_entries_in_a_row_are_passed_over_and_told_in_one_line(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    code: int,
) -> None:
    monkeypatch.setattr(read_trouble, "REPORT_S", 1.0)

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        disk.lost = set(positions[10:74])
        disk.lost_code = code
        client = await broker.client()
        await client.subscribe(**KINDS[kind])
        assert await read(client, 136) == data_of(200)[:10] + data_of(200)[74:]
        topic = await broker.topic()
        assert topic.subscriptions["s"].cursor.backlog == 200
        if kind != "reader":
            assert await stopped(broker) is None
        for _ in range(2):
            client.redeliver()
            await client.messages(136)
        await until(lambda: bool(lines(caplog, "entries cannot be delivered")))
        client.redeliver()
        await client.messages(136)
        await asyncio.sleep(1.2)

    run_on(tmp_path, data_of(200), scenario)
    [line] = lines(caplog, "entries cannot be delivered")
    assert (line["entries"], line["last"].entry_id - line["first"].entry_id) == (64, 63)


@every_kind
def test_a_longer_run_stops_the_subscription_until_it_can_be_read(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(read_trouble, "RETRY_STOPPED_S", 0.1)
    caplog.set_level(logging.INFO, "pyxbroker.delivery")

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        disk.lost = set(positions[10:75])
        client = await broker.client()
        await client.subscribe(**KINDS[kind])
        assert await read(client, 10) == data_of(200)[:10]
        await asyncio.sleep(0.5)  # it looks again meanwhile, in vain
        assert set(await client.quiet()) <= {"active_consumer_change"}
        topic = await broker.topic()
        [found] = [each for each in topic.all_subscriptions() if each.consumers]
        sentence = found.dispatcher.stopped_by_damage
        assert sentence is not None
        ledger = positions[0][0]
        assert f"65 entries in a row, from {ledger}:10 to {ledger}:74," in sentence
        assert "is not on its bookie" in sentence
        disk.lost = set()
        assert await read(client, 190) == data_of(200)[10:]
        assert found.dispatcher.stopped_by_damage is None

    run_on(tmp_path, data_of(200), scenario)
    [line] = lines(caplog, "a subscription stops: too many entries in a row cannot be read")
    assert line["entries"] == 65
    assert "autoSkipNonRecoverableData" in line["help"]
    assert len(lines(caplog, "a stopped subscription resumes")) == 1
    assert lines(caplog, "entries cannot be delivered") == []


def test_a_subscription_that_stopped_still_sends_again_what_is_before_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        disk.lost = set(positions[10:])
        client = await broker.client()
        await client.subscribe()
        await client.messages(10)
        await until(lambda: len(disk.reads) > 65)
        assert await stopped(broker) is not None
        client.redeliver(*positions[3:5])
        assert [each.position for each in await client.messages(2)] == positions[3:5]

    run_on(tmp_path, data_of(100), scenario)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_who_comes_back_gets_again_what_is_before_the_damage(tmp_path: Path, kind: str) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        disk.lost = set(positions[10:])
        for _ in range(2):
            client = await broker.client()
            await client.subscribe(**KINDS[kind])
            assert await read(client, 10) == data_of(100)[:10]
            await client.ack(positions[1], cumulative=True)
            client.redeliver()
            assert await read(client, 8) == data_of(100)[2:10]
            assert "message" not in await client.quiet()
            assert await stopped(broker) is not None
            assert not hasattr(await seek(client, positions[0]), "error")

    run_on(tmp_path, data_of(100), scenario)


@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_nothing_more_is_passed_over_while_it_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of what is sent again, when some of it is set aside and the rest waits for its turn."""
    monkeypatch.setattr(read_trouble, "RETRY_STOPPED_S", 0.05)

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client = await broker.client()
        await client.subscribe(**KINDS[kind])
        await client.messages(100)
        topic = await broker.topic()
        disk.lost = set(positions)
        client.redeliver(*positions)
        dispatcher = topic.subscriptions["s"].dispatcher
        await until(lambda: dispatcher.stopped_by_damage is not None)
        await asyncio.sleep(0.5)
        disk.lost = set()
        again = await client.messages(100)
        assert sorted(each.position for each in again) == positions
        assert dispatcher.stopped_by_damage is None

    run_on(tmp_path, data_of(100), scenario)


@every_kind
def test_a_seek_behind_the_damage_lets_it_go_on(tmp_path: Path, kind: str) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client, _ = await stop(broker, disk, positions, kind)
        await seek(client, positions[90])
        await client.receive("close_consumer")
        await client.subscribe(consumer_id=2, **KINDS[kind])
        assert await read(client, 10) == data_of(100)[90:]

    run_on(tmp_path, data_of(100), scenario)


@every_kind
def test_a_seek_before_the_damage_meets_it_anew(tmp_path: Path, kind: str) -> None:
    """Less of it is left meanwhile: that is passed over, as if nobody had ever stopped there."""

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client, found = await stop(broker, disk, positions, kind)
        disk.lost = set(positions[10:50])
        await seek(client, positions[5])
        assert found.dispatcher.stopped_by_damage is None
        await client.receive("close_consumer")
        await client.subscribe(consumer_id=2, **KINDS[kind])
        assert await read(client, 55) == data_of(100)[5:10] + data_of(100)[50:]

    run_on(tmp_path, data_of(100), scenario)


@every_kind
def test_auto_skip_acknowledges_what_is_lost_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        disk.lost = set(positions[10:190])
        client = await broker.client()
        await client.subscribe(**KINDS[kind])
        assert await read(client, 20) == data_of(200)[:10] + data_of(200)[190:]
        topic = await broker.topic()
        if kind != "reader":
            assert topic.subscriptions["s"].cursor.backlog == 20
        # The last line of the run has all of it.
        await until(lambda: any(each["entries"] == 180 for each in lines(caplog, SKIPPED)))

    run_on(tmp_path, data_of(200), scenario, autoSkipNonRecoverableData=True)
    assert len(lines(caplog, SKIPPED)) < 5


@every_kind
def test_auto_skip_passes_over_a_lost_ledger_in_one_step(tmp_path: Path, kind: str) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        topic = await broker.topic()
        managed_ledger = topic.managed_ledger
        other = await topic.subscription_for("o", managed_ledger.first_position(), {}, True)
        await settled(managed_ledger)
        lost, *_ = managed_ledger.ledgers
        # As an open that comes later finds it.
        managed_ledger._readers.pop(lost)
        await broker.node.store.delete(paths.ledger(lost))
        client = await broker.client()
        await client.subscribe(**KINDS[kind])
        here = len([each for each in positions if each[0] == lost])
        assert here == 100
        assert await read(client, 150) == data_of(250)[100:]
        assert other.cursor.backlog == 150
        if kind != "reader":
            assert topic.subscriptions["s"].cursor.backlog == 150
        assert len(disk.reads) < 10

    run_on(
        tmp_path,
        data_of(250),
        scenario,
        autoSkipNonRecoverableData=True,
        managedLedgerMaxEntriesPerLedger=100,
    )


# --- what is asked about a topic ------------------------------------------------------------------


def last_message_id() -> Any:
    return pb.CommandGetLastMessageId(consumer_id=1, request_id=0)


def test_the_last_message_is_read_when_the_disk_can(tmp_path: Path) -> None:
    """The number of messages in the last batch is in it."""

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client = await broker.client()
        await client.subscribe(permits=0)
        disk.fail_for(0.3)
        answer = await client.request(last_message_id(), "getLastMessageIdResponse")
        assert answer.last_message_id.entryId == positions[-1][1]

    run_on(tmp_path, data_of(10), scenario)


def test_the_last_message_is_not_one_that_is_lost(tmp_path: Path) -> None:
    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client = await broker.client()
        await client.subscribe(permits=0)
        disk.lost = set(positions[36:])
        answer = await client.request(last_message_id(), "getLastMessageIdResponse")
        assert answer.last_message_id.entryId == positions[35][1]
        disk.lost = set(positions[35:])
        answer = await client.request(last_message_id(), "getLastMessageIdResponse")
        assert answer.error == pb.PersistenceError
        assert "cannot be read" in answer.message

    run_on(tmp_path, data_of(100), scenario)


def test_a_time_is_sought_when_the_disk_can(tmp_path: Path) -> None:
    """Nothing that cannot be read now is taken for older or younger than the time."""

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.produce()
        for n in range(20):
            client.publish(n, b"x")
        for _ in range(20):
            await client.receive("send_receipt")
        disk.fail_for(0.3)
        assert await topic.position_before_time(0) == topic.managed_ledger.first_position()
        disk.fail_for(0.3)
        last = topic.managed_ledger.last_confirmed
        assert await topic.position_before_time(2) == last

    run_on(tmp_path, data_of(10), scenario)


def test_a_key_that_waited_for_its_turn_and_is_lost_stops_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that were read, and cannot be read again when their consumer can take them."""
    monkeypatch.setattr(read_trouble, "RETRY_STOPPED_S", 0.1)

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=0, subType=pb.CommandSubscribe.Key_Shared)
        await client.subscribe(2, permits=1000, subType=pb.CommandSubscribe.Key_Shared)
        topic = await broker.topic()
        keyed = [section(b"%d" % n, partition_key=f"k{n}") for n in range(400)]
        sent = await append(topic.managed_ledger, *keyed)
        dispatcher: Any = topic.subscriptions["s"].dispatcher
        await until(lambda: dispatcher.read_position > sent[-1])
        waiting = dispatcher.chooser.keys.waiting
        assert waiting > 100
        got = [each.position for each in await client.messages(len(positions) + 400 - waiting)]
        mine = [each for each in [*positions, *sent] if each not in set(got)]
        disk.lost = set(mine)
        client.flow(1000)
        await until(lambda: dispatcher.stopped_by_damage is not None)
        await asyncio.sleep(0.3)
        assert "message" not in await client.quiet()
        disk.lost = set()
        rest = await client.messages(len(mine))
        assert sorted(each.position for each in rest) == mine
        assert {each.consumer_id for each in rest} == {1}
        assert dispatcher.stopped_by_damage is None
        assert "message" not in await client.quiet()

    run_on(tmp_path, data_of(10), scenario)


def test_what_is_lost_and_acknowledged_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_trouble, "RETRY_STOPPED_S", 0.1)

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        disk.lost = set(positions[10:90])
        client = await broker.client()
        await client.subscribe(permits=20)
        await client.messages(10)
        await until(lambda: len(disk.reads) > 65)
        assert await stopped(broker) is not None
        # As an operator who skips them does.
        topic = await broker.topic()
        topic.subscriptions["s"].cursor.acknowledge_positions(positions[10:90])
        assert await read(client, 10) == data_of(100)[90:]
        assert await stopped(broker) is None

    run_on(tmp_path, data_of(100), scenario)


def test_looking_again_costs_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_trouble, "RETRY_STOPPED_S", 0.05)

    async def scenario(broker: Broker, disk: Disk, positions: list[tuple[int, int]]) -> None:
        disk.lost = set(positions)
        client = await broker.client()
        await client.subscribe(permits=20)
        await until(lambda: len(disk.reads) >= 66)
        disk.reads.clear()
        await asyncio.sleep(0.5)
        assert 3 <= len(disk.reads) <= 11

    run_on(tmp_path, data_of(100), scenario)
