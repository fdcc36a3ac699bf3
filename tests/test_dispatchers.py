"""Dispatchers: who gets which entry, in which order, and what comes again."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append, until
from one_broker import TOPIC, Broker, Client, data_of, run, section
from pyxbroker.entry import EntryBatch, Position
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb

# --- any ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", pb.CommandSubscribe.SubType.values())
def test_a_dispatcher_waits_for_entries_while_it_has_consumers(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        waiting = topic.managed_ledger._watchers._calls
        client = await broker.client()
        for _ in range(2):
            await client.subscribe(1, subType=pb.CommandSubscribe.Exclusive)
            await client.request(pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success")
            assert len(waiting) == 0
            await client.subscribe(1, subType=kind)
            await client.subscribe(2, subscription="other", subType=kind)
            assert len(waiting) == 2
            await broker.publish(b"x")
            messages = await client.messages(2)
            assert {each.consumer_id for each in messages} == {1, 2}
            for consumer_id in (1, 2):
                await client.ack(messages[0].position, consumer_id=consumer_id)
                command = pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=0)
                await client.request(command, "success")
            assert len(waiting) == 0

    run(tmp_path, scenario)


# --- Shared ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumers", [1, 2, 3, 4, 5])
def test_single_messages_go_round(tmp_path: Path, consumers: int) -> None:
    """However slowly they come, and however many consumers there are."""

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for consumer_id in range(consumers):
            await client.subscribe(consumer_id)
        got: Counter[int] = Counter()
        for data in data_of(12 * consumers):
            await broker.publish(data)
            [message] = await client.messages(1)
            assert message.data == data
            got[message.consumer_id] += 1
        assert got == dict.fromkeys(range(consumers), 12)

    run(tmp_path, scenario)


def test_a_backlog_is_shared_in_portions(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(120))
        client = await broker.client()
        for consumer_id in range(3):
            await client.subscribe(consumer_id, permits=0)
        assert await client.quiet() == []
        for consumer_id in range(3):
            client.flow(40, consumer_id)
        messages = await client.messages(120)
        assert sorted(each.position for each in messages) == positions
        assert Counter(each.consumer_id for each in messages) == dict.fromkeys(range(3), 40)
        for consumer_id in range(3):
            mine = [each.position for each in messages if each.consumer_id == consumer_id]
            assert mine == sorted(mine)

    run(tmp_path, scenario)


def test_permits_are_never_exceeded(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(50))
        client = await broker.client()
        await client.subscribe(1, permits=3)
        await client.subscribe(2, permits=5)
        messages = await client.messages(8)
        assert await client.quiet() == []
        assert Counter(each.consumer_id for each in messages) == {1: 3, 2: 5}
        client.flow(1, 1)
        [message] = await client.messages(1)
        assert message.consumer_id == 1
        assert message.data == b"message 8"
        assert await client.quiet() == []

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Shared, pb.CommandSubscribe.Exclusive])
def test_no_more_is_read_than_there_are_permits(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(*data_of(500))
        topic = await broker.topic()
        asked: list[int] = []
        log = topic.managed_ledger
        read_cached, read = log.read_cached, log.read

        def note_cached(position: Position, count_max: int, *rest: Any) -> EntryBatch | None:
            asked.append(count_max)
            return read_cached(position, count_max, *rest)

        def note(position: Position, count_max: int, *rest: Any) -> None:
            asked.append(count_max)
            read(position, count_max, *rest)

        log.read_cached, log.read = note_cached, note  # type: ignore[method-assign]
        client = await broker.client()
        await client.subscribe(1, permits=3, subType=kind)
        assert len(await client.messages(3)) == 3
        client.flow(40, 1)
        assert len(await client.messages(40)) == 40
        await client.quiet()
        assert max(asked) <= 40
        assert asked[0] == 3

    run(tmp_path, scenario)


def test_a_batch_takes_as_many_permits_as_it_has_messages(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        batch = section(b"ten", num_messages_in_batch=10)
        await append(topic.managed_ledger, batch, batch, batch)
        client = await broker.client()
        await client.subscribe(1, permits=11)
        await client.messages(2)
        assert await client.quiet() == []
        consumer = client.connection.consumers[1]
        assert (consumer.permits, consumer.unacked_messages, consumer.msg_out) == (-9, 20, 20)
        client.flow(9, 1)
        assert await client.quiet() == [], "0 permits are none"
        client.flow(1, 1)
        await client.messages(1)

    run(tmp_path, scenario)


def test_the_best_priority_level_comes_first(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=0, priority_level=1)
        await client.subscribe(2, permits=0, priority_level=0)
        await client.subscribe(3, permits=0, priority_level=0)
        for consumer_id, permits in ((2, 4), (3, 4), (1, 100)):
            client.flow(permits, consumer_id)
        await client.quiet()
        await broker.publish(*data_of(8))
        first = Counter(each.consumer_id for each in await client.messages(8))
        assert first == {2: 4, 3: 4}
        await broker.publish(*data_of(5))
        assert {each.consumer_id for each in await client.messages(5)} == {1}
        client.flow(2, 3)
        await client.quiet()
        await broker.publish(*data_of(3))
        assert sorted(each.consumer_id for each in await client.messages(3)) == [1, 3, 3]

    run(tmp_path, scenario)


def test_redeliveries_come_first_and_are_counted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(20))
        client = await broker.client()
        await client.subscribe(1, permits=10)
        assert [each.position for each in await client.messages(10)] == positions[:10]
        client.redeliver(*positions[2:5], positions[7])
        assert await client.quiet() == []
        client.flow(6)
        again = await client.messages(6)
        assert [each.position for each in again] == [
            *positions[2:5],
            positions[7],
            *positions[10:12],
        ]
        assert [each.redelivery_count for each in again] == [1, 1, 1, 1, 0, 0]
        assert [each.data for each in again[:2]] == [b"message 2", b"message 3"]
        client.redeliver(positions[7])
        client.flow(1)
        [message] = await client.messages(1)
        assert (message.position, message.redelivery_count) == (positions[7], 2)

    run(tmp_path, scenario)


def test_what_is_not_pending_is_not_redelivered(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(5))
        client = await broker.client()
        await client.subscribe(1)
        await client.messages(5)
        await client.ack(positions[1])
        client.redeliver(positions[1], (positions[0][0], 77), (2**40, 0), (2**64 - 1, 2**64 - 1))
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_all_unacknowledged_messages_come_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(10))
        client = await broker.client()
        await client.subscribe(1)
        await client.messages(10)
        await client.ack(*positions[3:6])
        client.redeliver()
        again = await client.messages(7)
        assert [each.position for each in again] == positions[:3] + positions[6:]
        assert {each.redelivery_count for each in again} == {1}
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_what_a_consumer_leaves_goes_to_the_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(10))
        leaver = await broker.client()
        stayer = await broker.client()
        await leaver.subscribe(1)
        await leaver.messages(10)
        await stayer.subscribe(2)
        await leaver.ack(positions[4])
        leaver.far.close()
        messages = await stayer.messages(9)
        assert [each.position for each in messages] == positions[:4] + positions[5:]
        assert {each.redelivery_count for each in messages} == {0}, "nobody said that they failed"
        await stayer.ack(*positions, consumer_id=2)
        topic = await broker.topic()
        assert topic.subscriptions["s"].cursor.backlog == 0

    run(tmp_path, scenario)


def test_when_the_last_consumer_leaves_everything_waits_for_the_next(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(10))
        for _ in range(3):
            client = await broker.client()
            await client.subscribe(1)
            assert [each.position for each in await client.messages(10)] == positions
            answer = await client.request(
                pb.CommandCloseConsumer(consumer_id=1, request_id=0), "success"
            )
            assert answer.request_id
        client = await broker.client()
        await client.subscribe(1)
        await client.messages(10)
        await client.ack(*positions[:8])
        client.far.close()
        await until(lambda: client.connection.closed)
        client = await broker.client()
        await client.subscribe(1)
        assert [each.position for each in await client.messages(2)] == positions[8:]
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_an_ack_of_another_consumers_message_counts(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(4))
        client = await broker.client()
        await client.subscribe(1)
        await client.messages(4)
        await client.subscribe(2)
        await client.ack(positions[0], consumer_id=2)
        assert client.connection.consumers[1].unacked_messages == 3
        client.redeliver()
        assert [each.position for each in await client.messages(3)] == positions[1:]

    run(tmp_path, scenario)


def test_a_shared_consumer_cannot_acknowledge_cumulatively(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(4))
        client = await broker.client()
        await client.subscribe(1)
        await client.messages(4)
        answer = await client.ack(positions[2], cumulative=True)
        assert "cannot acknowledge cumulatively" in answer.message
        client.redeliver()
        assert len(await client.messages(4)) == 4

    run(tmp_path, scenario)


# --- Exclusive ------------------------------------------------------------------------------------

EXCLUSIVE = {"subType": pb.CommandSubscribe.Exclusive}


def test_an_exclusive_consumer_gets_everything_in_order(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(250))
        client = await broker.client()
        await client.subscribe(1, **EXCLUSIVE)
        assert [each.position for each in await client.messages(250)] == positions
        more = await broker.publish(*data_of(250))
        assert [each.position for each in await client.messages(250)] == more
        other = await broker.client()
        answer = await other.subscribe(2, **EXCLUSIVE)
        assert "already connected" in answer.message

    run(tmp_path, scenario)


def test_an_exclusive_consumer_gets_everything_after_the_mark_again(tmp_path: Path) -> None:
    """Also what it named alone: its order is kept."""

    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(10))
        client = await broker.client()
        await client.subscribe(1, **EXCLUSIVE)
        await client.messages(10)
        await client.ack(positions[3], cumulative=True)
        await client.ack(positions[6])
        for named in ((), (positions[8],)):
            client.redeliver(*named)
            again = [each.position for each in await client.messages(5)]
            assert again == positions[4:6] + positions[7:]
            assert await client.quiet() == []

    run(tmp_path, scenario)


def test_the_next_exclusive_consumer_starts_after_the_mark(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(10))
        client = await broker.client()
        await client.subscribe(1, **EXCLUSIVE)
        await client.messages(10)
        await client.ack(positions[3], cumulative=True)
        client.far.close()
        await until(lambda: client.connection.closed)
        client = await broker.client()
        await client.subscribe(1, **EXCLUSIVE)
        assert [each.position for each in await client.messages(6)] == positions[4:]

    run(tmp_path, scenario)


def test_a_cumulative_ack_within_a_batch_takes_all_before_it(tmp_path: Path) -> None:
    """Also when the batch is the first entry of a ledger, and so all before it is elsewhere."""

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, **EXCLUSIVE)
        first = await broker.publish(*data_of(5))
        topic = await broker.topic()
        topic.managed_ledger.roll_over()
        batch = section(b"batch", num_messages_in_batch=3)
        [position] = await append(topic.managed_ledger, batch)
        assert position[0] > first[0][0]
        await client.messages(6)
        message_id = pb.MessageIdData(
            ledgerId=position[0], entryId=position[1], ack_set=[0b100], batch_size=3
        )
        await client.request(
            pb.CommandAck(
                consumer_id=1, ack_type=pb.CommandAck.Cumulative, message_id=[message_id]
            ),
            "ackResponse",
        )
        assert topic.subscriptions["s"].cursor.backlog == 1
        client.redeliver()
        [message] = await client.messages(1)
        assert message.position == position
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_a_cumulative_ack_of_no_entry_changes_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, **EXCLUSIVE)
        positions = await broker.publish(*data_of(5))
        await client.messages(5)
        topic = await broker.topic()
        mark = topic.subscriptions["s"].cursor.acks.mark_delete
        ledger_id = positions[0][0]
        for entry_id in (2**64 - 1, 2**64 - 5, 2**63, 2**62, 5):
            await client.ack((ledger_id, entry_id), cumulative=True)
            await client.ack((ledger_id + 1, entry_id), cumulative=True)
            assert topic.subscriptions["s"].cursor.acks.mark_delete == mark
            assert topic.subscriptions["s"].cursor.backlog == 5

    run(tmp_path, scenario)


# --- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Shared", "Exclusive", "Failover", "Key_Shared"])
def test_entries_of_many_ledgers_come_from_disk_in_order(tmp_path: Path, kind: str) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        await topic.subscription_for("s", topic.managed_ledger.first_position(), {}, True)
        positions = []
        for _ in range(6):
            positions += await broker.publish(*data_of(25))
        assert len({ledger_id for ledger_id, _ in positions}) > 3
        await topic.close()
        client = await broker.client()
        await client.subscribe(1, subType=getattr(pb.CommandSubscribe, kind))
        messages = await client.messages(150)
        assert [each.position for each in messages] == positions
        assert [each.data for each in messages] == data_of(25) * 6
        client.redeliver()
        assert [each.position for each in await client.messages(150)] == positions

    run(tmp_path, scenario, managedLedgerMaxEntriesPerLedger=20)


@pytest.mark.parametrize("kind", ["Shared", "Exclusive", "Failover", "Key_Shared"])
def test_a_damaged_entry_is_passed_over(tmp_path: Path, kind: str) -> None:
    kinds = {"subType": getattr(pb.CommandSubscribe, kind)}

    async def write(broker: Broker) -> None:
        await broker.publish(*data_of(20))
        topic = await broker.topic()
        await topic.subscription_for("s", topic.managed_ledger.first_position(), {}, True)

    async def read(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, **kinds)
        expected = [each for each in data_of(20) if each != b"message 13"]
        assert [each.data for each in await client.messages(19)] == expected
        topic = await broker.topic()
        assert topic.subscriptions["s"].cursor.backlog == 20
        client.redeliver()
        assert [each.data for each in await client.messages(19)] == expected
        [position] = await broker.publish(b"new")
        [message] = await client.messages(1)
        assert (message.position, message.data) == (position, b"new")
        assert "message" not in await client.quiet()

    async def main() -> None:
        first = Broker(tmp_path / "bookie")
        async with first as broker:
            await write(broker)
        [log] = (tmp_path / "bookie" / "ledgers").glob("*.log")
        stored = log.read_bytes()
        assert stored.count(b"message 13") == 1
        log.write_bytes(stored.replace(b"message 13", b"message XX"))
        second = Broker(tmp_path / "bookie")
        second.node.tree = first.node.tree
        async with second as broker:
            await read(broker)

    asyncio.run(main())


def test_what_no_client_may_see_is_passed_over_and_acknowledged(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe(1)
        await append(
            topic.managed_ledger,
            section(b"one"),
            section(b"", marker_type=10),
            b"not a message at all",
            section(b"two"),
        )
        messages = await client.messages(2)
        assert [each.data for each in messages] == [b"one", b"two"]
        await client.ack(*(each.position for each in messages))
        assert topic.subscriptions["s"].cursor.backlog == 0

    run(tmp_path, scenario)


def test_a_peer_that_does_not_read_gets_no_more_than_its_share(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        for _ in range(20):
            await append(topic.managed_ledger, *[section(b"x" * 100_000)] * 20)
        client = await broker.client()
        other = await broker.client()
        await client.subscribe(1, permits=100_000, **EXCLUSIVE)
        await until(lambda: client.connection.pending_bytes > 0)
        assert client.connection.pending_bytes < 4 << 20
        # Others are served meanwhile, and this one gets the rest when it reads.
        await other.subscribe(2, subscription="t", **EXCLUSIVE)
        assert len(await other.messages(400)) == 400
        assert client.connection.pending_bytes < 4 << 20
        messages = await client.messages(400)
        assert [each.position for each in messages] == sorted(each.position for each in messages)
        assert client.connection.pending_bytes == 0

    run(tmp_path, scenario)


def test_a_seek_forgets_what_was_delivered(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(10))
        client = await broker.client()
        await client.subscribe(1)
        await client.messages(10)
        await client.ack(*positions[:5])
        client.redeliver(positions[7])
        await client.messages(1)
        seek = pb.CommandSeek(
            consumer_id=1,
            request_id=0,
            message_id=pb.MessageIdData(ledgerId=positions[3][0], entryId=positions[3][1]),
        )
        await client.request(seek, "success")
        await client.receive("close_consumer")
        assert client.connection.consumers == {}
        await client.subscribe(1)
        again = await client.messages(7)
        assert [each.position for each in again] == positions[3:]
        assert {each.redelivery_count for each in again} == {0}

    run(tmp_path, scenario)


def test_two_subscriptions_do_not_know_of_each_other(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client: Client = await broker.client()
        await client.subscribe(1)
        await client.subscribe(2, subscription="other", **EXCLUSIVE)
        positions = await broker.publish(*data_of(10))
        messages = await client.messages(20)
        for consumer_id in (1, 2):
            mine = [each.position for each in messages if each.consumer_id == consumer_id]
            assert mine == positions
        await client.ack(*positions)
        topic = await broker.topic(TOPIC)
        backlogs = {name: each.cursor.backlog for name, each in topic.subscriptions.items()}
        assert backlogs == {"s": 0, "other": 10}
        name = topic.name.managed_ledger_name
        assert sorted(await broker.node.store.children(paths.managed_ledger(name))) == [
            "other",
            "s",
        ]

    run(tmp_path, scenario)
