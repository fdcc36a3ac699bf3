"""Deduplication: what a producer sends again is answered, and stored once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from one_bookie import read_all, turns, until
from one_broker import TOPIC, Broker, Client, run
from oracles import wire
from pyxbroker.base.system_cursors import DEDUPLICATION_CURSOR
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics import deduplication as deduplication_module
from pyxbroker.broker.topics.deduplication import (
    NAME_BYTES,
    SNAPSHOT_BYTES_MAX,
    Deduplication,
    DeduplicationSwitch,
)
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.metadata.store import Unavailable
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.proto import PulsarApi as pb

NOWHERE = (2**64 - 1, 2**64 - 1)
NAME = TopicName.get(TOPIC)
ON = {"brokerDeduplicationEnabled": True}


def payload(name: str, sequence_id: int, data: bytes, **fields: Any) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name=name, sequence_id=sequence_id, publish_time=1, **fields
    )
    return wire.payload_section(metadata.SerializeToString(), data)


def publish(client: Client, name: str, *ids: int, producer_id: int = 1) -> None:
    for each in ids:
        client.send(
            pb.CommandSend(producer_id=producer_id, sequence_id=each),
            payload(name, each, b"%d" % each),
        )


async def receipts(client: Client, count: int) -> list[tuple[int, bool]]:
    """(sequence id, whether it was stored) of the next receipts."""
    found = []
    for _ in range(count):
        each = await client.receive("send_receipt")
        position = (each.message_id.ledgerId, each.message_id.entryId)
        found.append((each.sequence_id, position != NOWHERE))
    return found


async def sent(client: Client, name: str, *ids: int, producer_id: int = 1) -> list[bool]:
    """Publishes one after the other was answered; whether each was stored."""
    found = []
    for each in ids:
        publish(client, name, each, producer_id=producer_id)
        [(sequence_id, is_stored)] = await receipts(client, 1)
        assert sequence_id == each
        found.append(is_stored)
    return found


async def open_topic(broker: Broker) -> PersistentTopic:
    topic = await broker.topic()
    assert isinstance(topic, PersistentTopic)
    return topic


async def stored(broker: Broker) -> list[bytes]:
    topic = await open_topic(broker)
    return [each.rpartition(b"\x01")[2] for each in await read_all(topic.managed_ledger)]


async def again(broker: Broker) -> Deduplication:
    """The topic, closed and opened."""
    await broker.topics.deletion.unload(NAME)
    topic = await open_topic(broker)
    assert topic.deduplication is not None
    return topic.deduplication


# --- what is new ----------------------------------------------------------------------------------


def test_only_what_is_higher_than_anything_before_is_stored(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert (await client.produce(producer_name="p")).last_sequence_id == -1
        kept = await sent(client, "p", 0, 1, 5, 5, 3, 6, 2, 7)
        assert kept == [True, True, True, False, False, True, False, True]
        await client.subscribe()
        assert [each.data for each in await client.messages(5)] == [b"0", b"1", b"5", b"6", b"7"]
        # Another name begins anew, and the same one goes on where it was.
        other = await broker.client()
        assert (await other.produce(producer_name="q")).last_sequence_id == -1
        publish(other, "q", 3)
        assert await receipts(other, 1) == [(3, True)]
        await client.request(pb.CommandCloseProducer(producer_id=1), "success")
        assert (await other.produce(2, producer_name="p")).last_sequence_id == 7
        assert await sent(other, "p", 7, 8, producer_id=2) == [False, True]

    run(tmp_path, scenario, **ON)


def test_a_topic_without_deduplication_stores_all_and_does_no_more_for_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert (await client.produce(producer_name="p")).last_sequence_id == -1
        publish(client, "p", 1, 1, 0)
        assert await receipts(client, 3) == [(1, True), (1, True), (0, True)]
        topic = await open_topic(broker)
        assert topic.publish == topic.managed_ledger.append
        assert topic.managed_ledger.on_confirmed is None
        assert topic.managed_ledger.cursors == {}

    run(tmp_path, scenario)


def test_ids_are_signed_as_pulsars(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        assert await sent(client, "p", 2**63 - 1, 2**63, 2**64 - 1) == [True, False, False]

    run(tmp_path, scenario, **ON)


def test_a_batch_is_judged_by_its_first_id_and_counts_up_to_its_last(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")

        def batch(first: int, last: int) -> None:
            count = last - first + 1
            client.send(
                pb.CommandSend(
                    producer_id=1, sequence_id=first, highest_sequence_id=last, num_messages=count
                ),
                payload("p", first, b"x" * 100, num_messages_in_batch=count,
                        highest_sequence_id=last),
            )  # fmt: skip

        found = []
        for first, last in ((0, 9), (0, 9), (5, 14), (10, 14)):
            batch(first, last)
            found += await receipts(client, 1)
        assert found == [(0, True), (0, False), (5, False), (10, True)]
        assert (await open_topic(broker)).last_sequence_id("p") == 14
        # The entries say as much.
        deduplication = await again(broker)
        assert deduplication.last_sequence_id("p") == 14

    run(tmp_path, scenario, **ON)


def chunk(client: Client, sequence_id: int, number: int, count: int) -> None:
    client.send(
        pb.CommandSend(producer_id=1, sequence_id=sequence_id, is_chunk=True),
        payload("p", sequence_id, b"c%d" % number, uuid="u", chunk_id=number,
                num_chunks_from_msg=count),
    )  # fmt: skip


def test_of_chunks_the_last_one_counts_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        for number in range(2):
            chunk(client, 4, number, 3)
        assert await receipts(client, 2) == [(4, True)] * 2
        # The message is not whole, so that all of it is sent again.
        deduplication = await again(broker)
        assert deduplication.last_sequence_id("p") == -1
        client = await broker.client()
        await client.produce(producer_name="p")
        for number in range(3):
            chunk(client, 4, number, 3)
        assert await receipts(client, 3) == [(4, True)] * 3
        chunk(client, 4, 2, 3)
        assert await receipts(client, 1) == [(4, False)]
        assert (await again(broker)).last_sequence_id("p") == 4

    run(tmp_path, scenario, **ON)


def test_what_policies_refuse_is_not_known_as_sent(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        topic = await open_topic(broker)
        topic.on_policies(topic.policies._replace(message_bytes_max=100))
        client.send(pb.CommandSend(producer_id=1, sequence_id=5), payload("p", 5, b"x" * 200))
        assert (await client.receive("send_error")).error == pb.NotAllowedError
        assert await sent(client, "p", 1, 1, 2) == [True, False, True]

    run(tmp_path, scenario, **ON)


# --- what is not stored ---------------------------------------------------------------------------


def test_what_may_still_fail_is_neither_stored_again_nor_called_a_duplicate(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await open_topic(broker)
        client, other = await broker.client(), await broker.client()
        await client.produce(producer_name="p")
        broker.node.bookie.holding = True  # what is appended waits
        append = topic.managed_ledger.append
        held: list[Any] = []
        topic._log = type("Held", (), {"append": held.append})()  # type: ignore[assignment]
        topic._resolve_publish()
        publish(client, "p", 0, 1)
        await until(lambda: bool(held))
        client.connection.close()
        await turns()
        broker.node.bookie.holding = False
        assert (await other.produce(producer_name="p")).last_sequence_id == 1
        publish(other, "p", 1, 2)
        # A command between them ends a run: what is behind it is another one, of the same turn.
        other.send(pb.CommandPing())
        publish(other, "p", 3)
        told = await other.receive("send_error")
        assert (told.sequence_id, told.error) == (1, pb.PersistenceError)
        assert told.message == (
            f"[{TOPIC}][p]Cannot determine whether the message is a duplicate at this time"
        )
        # What came behind it is not stored before it.
        assert (await other.receive("send_error")).sequence_id == 2
        await other.receive("pong")
        await other.receive("close_producer")
        for each in held:
            broker.node.turn.run(append, each)
        await until(lambda: topic.entries == 2)
        topic._log = topic.managed_ledger
        topic._resolve_publish()
        await other.produce(2, producer_name="p")
        publish(other, "p", 1, 2, producer_id=2)
        assert await receipts(other, 2) == [(1, False), (2, True)]

    run(tmp_path, scenario, **ON)


@pytest.mark.parametrize("at_once", [True, False], ids=["refused", "failed"])
def test_what_was_not_stored_may_be_sent_again_and_nothing_overtakes_it(
    tmp_path: Path, at_once: bool
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await open_topic(broker)
        client = await broker.client()
        await client.produce(producer_name="p")
        publish(client, "p", 0)
        assert await receipts(client, 1) == [(0, True)]

        def fail(run: Any) -> None:
            error = ManagedLedgerError("it was not stored")
            if at_once:
                raise error
            run.copy_data()
            broker.loop.call_soon(run.owner.on_run_failed, run, error)

        topic._log = type("Failing", (), {"append": staticmethod(fail)})()
        topic._resolve_publish()
        publish(client, "p", 1)
        assert (await client.receive("send_error")).sequence_id == 1
        await client.receive("close_producer")
        topic._log = topic.managed_ledger
        topic._resolve_publish()
        publish(client, "p", 2)  # was on its way
        assert (await client.produce(2, producer_name="p")).last_sequence_id == 0
        publish(client, "p", 1, 2, producer_id=2)
        assert await receipts(client, 2) == [(1, True), (2, True)]

    run(tmp_path, scenario, **ON)


# --- what is kept ---------------------------------------------------------------------------------


def test_ids_outlive_a_clean_close_without_reading_entries(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        publish(client, "p", *range(10))
        await receipts(client, 10)
        deduplication = await again(broker)
        assert deduplication._entries == 0
        client = await broker.client()
        assert (await client.produce(producer_name="p")).last_sequence_id == 9

    run(tmp_path, scenario, **ON)


def test_after_a_kill_the_snapshot_and_what_comes_behind_it_are_known(tmp_path: Path) -> None:
    async def main() -> None:
        async with Broker(tmp_path / "bookie", **ON, brokerDeduplicationEntriesInterval=10) as one:
            client = await one.client()
            await client.produce(1, producer_name="early")
            await client.produce(2, producer_name="late")
            for each in range(12):
                publish(client, "early", each)
                await receipts(client, 1)
            topic = await open_topic(one)
            assert topic.deduplication is not None
            await topic.deduplication.settle()
            mark = topic.managed_ledger.cursors[DEDUPLICATION_CURSOR].acks.mark_delete
            assert mark.entry_id == 9
            for each in range(3):
                publish(client, "late", each, producer_id=2)
            await receipts(client, 3)
            one.node.copied = one.node.kill()  # type: ignore[attr-defined]
            successor = Broker(tmp_path / "unused", **ON)
            successor.node = one.node.copied  # type: ignore[attr-defined]
            async with successor as other:
                deduplication = (await open_topic(other)).deduplication
                assert deduplication is not None
                assert deduplication.last_sequence_id("early") == 11
                assert deduplication.last_sequence_id("late") == 2
                assert 5 <= deduplication._entries <= 6

    asyncio.run(main())


def test_the_cursor_keeps_what_its_snapshot_does_not_have_and_no_more(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        topic = await open_topic(broker)
        assert topic.deduplication is not None
        for each in range(35):
            publish(client, "p", each)
            await receipts(client, 1)
        await topic.deduplication.settle()
        await topic.managed_ledger.finish_tasks()
        # Nobody else keeps anything: the ledgers before the one that is written are gone.
        assert len(topic.managed_ledger.ledgers) <= 2
        cursor = topic.managed_ledger.cursors[DEDUPLICATION_CURSOR]
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        persist = cursor.persist
        before = cursor.acks.mark_delete

        def slow() -> Any:
            async def wait() -> None:
                await gate
                await persist()

            return asyncio.ensure_future(wait())

        cursor.persist = slow  # type: ignore[method-assign]
        for each in range(35, 60):
            publish(client, "p", each)
            await receipts(client, 1)
        await turns()
        # While the snapshot is not durable, what it stands for is kept.
        assert cursor.acks.mark_delete > before and cursor.needs_after == before
        assert before.ledger_id in topic.managed_ledger.ledgers or not topic.entries
        kept = len(topic.managed_ledger.ledgers)
        assert kept > 2
        gate.set_result(None)
        await topic.deduplication.settle()
        await topic.managed_ledger.finish_tasks()
        assert len(topic.managed_ledger.ledgers) < kept

    run(
        tmp_path,
        scenario,
        **ON,
        managedLedgerMaxEntriesPerLedger=10,
        brokerDeleteInactiveTopicsEnabled=False,
    )


def test_a_timed_snapshot_is_taken_where_there_is_more(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        topic = await open_topic(broker)
        deduplication = topic.deduplication
        assert deduplication is not None
        publish(client, "p", 0)
        await receipts(client, 1)
        cursor = topic.managed_ledger.cursors[DEDUPLICATION_CURSOR]
        await broker.topics.upkeep.store_sequence_ids()
        assert cursor.position_properties == {}  # it is not due
        deduplication._snapshot_s -= 121
        await broker.topics.upkeep.store_sequence_ids()
        assert cursor.position_properties == {"p": 0}
        assert cursor.acks.mark_delete == topic.last_confirmed

    run(tmp_path, scenario, **ON)


@pytest.mark.parametrize("rate", [0.0001, 0.0])
def test_entries_ask_for_no_more_snapshots_than_a_cursor_is_written(
    tmp_path: Path, rate: float
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        topic = await open_topic(broker)
        deduplication = topic.deduplication
        assert deduplication is not None
        marks = []
        for each in range(35):
            publish(client, "p", each)
            await receipts(client, 1)
            await deduplication.settle()
            marks.append(topic.managed_ledger.cursors[DEDUPLICATION_CURSOR].acks.mark_delete)
        entries = sorted({mark.entry_id for mark in marks})
        assert entries == ([-1, 9, 19, 29] if rate == 0 else [-1, 9])
        # What is not in a snapshot is read when the topic is opened, or noted when it is closed.
        assert (await again(broker)).last_sequence_id("p") == 34

    run(
        tmp_path,
        scenario,
        **ON,
        brokerDeduplicationEntriesInterval=10,
        managedLedgerDefaultMarkDeleteRateLimit=rate,
    )


# --- limits ---------------------------------------------------------------------------------------


def test_so_many_names_are_known_and_those_that_are_connected_stay(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(1, producer_name="stays")
        publish(client, "stays", 0)
        await receipts(client, 1)
        for number in range(20):
            await client.produce(2, producer_name=f"n{number}")
            publish(client, f"n{number}", 7, producer_id=2)
            await receipts(client, 1)
            await client.request(pb.CommandCloseProducer(producer_id=2), "success")
        topic = await open_topic(broker)
        assert topic.last_sequence_id("stays") == 0
        assert topic.last_sequence_id("n0") == -1 and topic.last_sequence_id("n19") == 7
        assert topic.deduplication is not None and len(topic.deduplication._ids) == 5
        deduplication = await again(broker)
        assert len(deduplication._ids) == 5
        assert deduplication.last_sequence_id("n19") == 7

    run(tmp_path, scenario, **ON, brokerDeduplicationMaxNumberOfProducers=5)


def test_a_snapshot_has_a_size_and_those_that_came_last(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await open_topic(broker)
        deduplication = topic.deduplication
        assert deduplication is not None
        for number in range(1000):
            deduplication._ids_of(f"{number:04}" + "n" * 1000).persisted = number
        found = deduplication._ids_to_store()
        assert sum(map(len, found)) <= SNAPSHOT_BYTES_MAX
        assert list(found.values()) == list(range(999, 999 - len(found), -1))
        assert len(found) > 500

    run(tmp_path, scenario, **ON)


def test_a_snapshot_has_who_is_connected_and_who_left_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not who came last: who came first may send all the time."""

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        names = ["stays", "early", "a", "b", "c"]
        for number, name in enumerate(names):
            await client.produce(number, producer_name=name)
            publish(client, name, 7, producer_id=number)
            await receipts(client, 1)
        for name in ("a", "b", "c", "early"):
            number = names.index(name)
            await client.request(pb.CommandCloseProducer(producer_id=number), "success")
        room = sum(map(len, ("stays", "early", "c"))) + 3 * NAME_BYTES
        monkeypatch.setattr(deduplication_module, "SNAPSHOT_BYTES_MAX", room)
        topic = await open_topic(broker)
        assert topic.deduplication is not None
        assert list(topic.deduplication._ids_to_store()) == ["stays", "early", "c"]
        # They are found again, and forgotten in that order.
        deduplication = await again(broker)
        assert list(deduplication._ids) == ["c", "early", "stays"]

    run(tmp_path, scenario, **ON)


def test_names_that_nobody_was_connected_with_for_long_are_forgotten(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for number, name in enumerate(("here", "gone"), start=1):
            await client.produce(number, producer_name=name)
            publish(client, name, 3, producer_id=number)
        await receipts(client, 2)
        await client.request(pb.CommandCloseProducer(producer_id=2), "success")
        topic = await open_topic(broker)
        deduplication = topic.deduplication
        assert deduplication is not None
        await broker.topics.upkeep.forget_producers()
        assert set(deduplication._ids) == {"here", "gone"}
        for ids in deduplication._ids.values():
            ids.last_seen -= 61
        await broker.topics.upkeep.forget_producers()
        assert set(deduplication._ids) == {"here"}
        cursor = topic.managed_ledger.cursors[DEDUPLICATION_CURSOR]
        assert cursor.position_properties == {"here": 3}

    run(tmp_path, scenario, **ON, brokerDeduplicationProducerInactivityTimeoutMinutes=1)


# --- coming and going -----------------------------------------------------------------------------


async def set_policy(broker: Broker, on: bool) -> PersistentTopic:
    topic = await open_topic(broker)
    topic.on_policies(topic.policies._replace(deduplication=on))
    await settled(topic)
    return topic


def is_settled(switch: DeduplicationSwitch) -> bool:
    """Return True if no change is under way or waits for another try."""
    return switch._task is None and switch._timer is None


async def settled(topic: PersistentTopic) -> None:
    """Nothing is done for a change of the policy any more."""
    switch = topic._deduplication_switch
    assert switch is not None
    await until(lambda: is_settled(switch))


def test_it_begins_and_ends_with_its_policy_while_the_topic_is_open(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        assert await sent(client, "p", 5, 5) == [True, True]
        topic = await set_policy(broker, True)
        # What was stored before is not looked at, as with Pulsar.
        assert await sent(client, "p", 5, 5) == [True, False]
        await set_policy(broker, False)
        assert topic.managed_ledger.cursors == {}
        assert await broker.topics.registry.subscription_names(NAME) == []
        publish(client, "p", 5)
        assert await receipts(client, 1) == [(5, True)]
        assert topic.publish == topic.managed_ledger.append
        # One change comes while the other is under way.
        topic.on_policies(topic.policies._replace(deduplication=True))
        topic.on_policies(topic.policies._replace(deduplication=False))
        topic.on_policies(topic.policies._replace(deduplication=True))
        await settled(topic)
        assert topic.deduplication is not None
        assert await sent(client, "p", 5, 5) == [True, False]

    run(tmp_path, scenario)


@pytest.mark.parametrize("on", [True, False])
def test_a_change_that_fails_is_tried_again_until_it_is_in_force(
    on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(deduplication_module, "RETRY_MIN_S", 0.01)
        topic = await open_topic(broker) if on else await set_policy(broker, True)
        name = "create_node" if on else "delete"
        work, left = getattr(Cursor, name), 3

        async def sometimes(cursor: Cursor) -> None:
            nonlocal left
            if left:
                left -= 1
                raise Unavailable("the disk had a hiccup")
            await work(cursor)

        monkeypatch.setattr(Cursor, name, sometimes)
        await set_policy(broker, on)
        assert left == 0
        assert (topic.deduplication is not None) == on
        assert list(topic.managed_ledger.cursors) == ([DEDUPLICATION_CURSOR] if on else [])

    run(tmp_path, scenario)


def test_a_topic_closes_while_a_change_is_to_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        asked = 0

        async def never(cursor: Cursor) -> None:
            nonlocal asked
            asked += 1
            raise Unavailable("the metadata is away")

        topic = await open_topic(broker)
        monkeypatch.setattr(deduplication_module, "RETRY_MIN_S", 1000.0)
        monkeypatch.setattr(Cursor, "create_node", never)
        topic.on_policies(topic.policies._replace(deduplication=True))
        switch = topic._deduplication_switch
        assert switch is not None
        await until(lambda: switch._timer is not None)
        # Another change is looked at at once.
        topic.on_policies(topic.policies._replace(deduplication=False))
        await until(lambda: is_settled(switch))
        topic.on_policies(topic.policies._replace(deduplication=True))
        await until(lambda: switch._timer is not None)
        assert asked == 2
        await broker.topics.deletion.unload(NAME)
        assert is_settled(switch)
        topic.on_policies(topic.policies._replace(deduplication=False))
        assert is_settled(switch)

    run(tmp_path, scenario)


def test_a_change_while_the_topic_is_being_deleted_is_in_force_when_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(deduplication_module, "RETRY_MIN_S", 0.01)
        monkeypatch.setattr(deduplication_module, "RETRY_MAX_S", 0.01)
        topic = await open_topic(broker)

        async def fails(name: TopicName) -> None:
            topic.on_policies(topic.policies._replace(deduplication=True))
            await asyncio.sleep(0.05)
            raise Unavailable("the metadata is away")

        monkeypatch.setattr(broker.topics.deletion, "forget_schema", fails)
        with pytest.raises(Unavailable):
            await broker.topics.deletion.delete(topic)
        assert topic.deduplication is None
        await settled(topic)
        assert topic.deduplication is not None

    run(tmp_path, scenario)


def test_nothing_is_tried_again_for_a_topic_whose_log_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(deduplication_module, "RETRY_MIN_S", 0.01)
        topic = await open_topic(broker)
        topic.managed_ledger.fence("another broker has it")
        assert topic.fenced and topic.is_gone
        topic.on_policies(topic.policies._replace(deduplication=True))
        await settled(topic)
        assert topic.deduplication is None

    run(tmp_path, scenario)


def test_its_cursor_is_nobodys_subscription(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        publish(client, "p", 0)
        await receipts(client, 1)
        for name in (DEDUPLICATION_CURSOR, "pulsar.repl.x"):
            told = await client.subscribe(subscription=name, permits=0)
            assert told.error == pb.ProducerBusy
            assert told.message == "Subscription with reserved subscription name attempted"
        for _ in range(2):
            topic = await open_topic(broker)
            assert topic.subscriptions == {}
            await broker.topics.deletion.unload(NAME)
            assert await broker.topics.registry.subscription_names(NAME) == []
        assert not (await open_topic(broker))._is_used("delete_when_no_subscriptions")
        await broker.topics.deletion.delete_by_name(NAME)
        assert not await broker.topics.registry.exists(NAME)

    run(tmp_path, scenario, **ON)


def test_system_topics_have_none(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic: Any = await broker.topic("persistent://public/default/__change_events")
        assert topic.deduplication is None

    run(tmp_path, scenario, **ON)


def test_a_topic_that_is_truncated_keeps_the_ids(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        for each in range(25):
            publish(client, "p", each)
            await receipts(client, 1)
        topic = await open_topic(broker)
        await topic.truncate()
        assert len(topic.managed_ledger.ledgers) == 1
        assert topic.last_sequence_id("p") == 24
        assert (await again(broker)).last_sequence_id("p") == 24

    run(
        tmp_path,
        scenario,
        **ON,
        managedLedgerMaxEntriesPerLedger=10,
        defaultRetentionTimeInMinutes=-1,
        defaultRetentionSizeInMB=-1,
    )


def test_a_topic_that_has_ended_keeps_nothing_for_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(producer_name="p")
        await sent(client, "p", *range(5))
        topic = await open_topic(broker)
        await topic.terminate()
        await broker.topics.deletion.unload(NAME)
        topic = await open_topic(broker)
        assert topic.deduplication is None and topic.managed_ledger.cursors == {}
        assert topic.is_terminated

    run(tmp_path, scenario, **ON)
