"""Transactions of topics: what consumers receive, before and after topics are opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from one_broker import TOPIC, Broker, Client, run, section
from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.base.topic_name import SNAPSHOT_INDEXES, SNAPSHOT_SEGMENTS, SNAPSHOTS, TopicName
from pyxbroker.broker.compaction.compaction import Status
from pyxbroker.broker.topics.loading import TopicLoader
from pyxbroker.broker.topics.messages import read_message
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.broker.transactions import topic_buffer
from pyxbroker.broker.transactions.buffer import Buffer, Snapshot
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.snapshot_records import (
    Index,
    Segment,
    decode_index,
    encode_index,
    encode_segment,
)
from pyxbroker.broker.transactions.snapshots import Snapshots, system_topic
from pyxbroker.broker.transactions.topic_buffer import State, TransactionBuffer
from pyxbroker.entry import Position
from pyxbroker.ledger.errors import LedgerError
from pyxbroker.proto import PulsarApi as pb
from test_admin_topics import P, Rest
from test_admin_topics import run as run_rest

T1, T2, T3 = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)
ON = {"transactionCoordinatorEnabled": True}
NOT_ALLOWED = 22
TOPIC_NAME = TopicName.get(TOPIC)
SEGMENTED = {
    "transactionBufferSegmentedSnapshotEnabled": True,
    "transactionBufferSnapshotSegmentSize": 8 + len(TOPIC) + 3 * 2,  # two transactions
    "transactionBufferSnapshotMaxTransactionCount": 1,
}


def send(
    client: Client, sequence_id: int, data: bytes, txn: TxnId | None = None, **fields: Any
) -> None:
    """Publish a message by producer 1."""
    command = pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1)
    if txn is not None:
        command.txnid_most_bits, command.txnid_least_bits = most, least = txn.wire()
        fields |= {"txnid_most_bits": most, "txnid_least_bits": least}
    client.send(command, section(data, sequence_id=sequence_id, **fields))


async def open_topic(broker: Broker) -> PersistentTopic:
    topic = await broker.topic()
    assert isinstance(topic, PersistentTopic)
    return topic


async def buffer_of(broker: Broker) -> TransactionBuffer:
    buffer = (await open_topic(broker)).transaction_buffer
    assert buffer is not None
    await buffer.recovered()
    return buffer


async def producing(broker: Broker) -> Client:
    client = await broker.client()
    await client.produce()
    return client


async def published(client: Client, first: int, *messages: tuple[bytes, TxnId | None]) -> None:
    for sequence_id, (data, txn) in enumerate(messages, first):
        send(client, sequence_id, data, txn)
    for _ in messages:
        await client.receive("send_receipt")


async def received(client: Client) -> list[bytes]:
    """What the consumer has received and not read yet."""
    count = (await client.quiet()).count("message")
    return [each.data for each in await client.messages(count)]


async def end(broker: Broker, txn: TxnId, commit: bool, mark: int = -1) -> None:
    await (await buffer_of(broker)).end(txn, commit, mark)


async def reopen(broker: Broker) -> None:
    await broker.topics.deletion.unload(TOPIC_NAME)


def test_messages_become_visible_at_the_commit_in_the_order_of_the_log(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        consumer = await broker.client()
        await consumer.subscribe()
        client = await producing(broker)
        await published(client, 0, (b"a", None), (b"b", T1), (b"c", None), (b"d", T2), (b"e", T1))
        assert await received(consumer) == [b"a"]
        await end(broker, T2, commit=True)
        assert await received(consumer) == []
        await end(broker, T1, commit=True)
        assert await received(consumer) == [b"b", b"c", b"d", b"e"]

    run(tmp_path, scenario, **ON)


def test_aborted_messages_are_left_out_and_acknowledged(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        consumer = await broker.client()
        await consumer.subscribe()
        client = await producing(broker)
        await published(client, 0, (b"a", T1), (b"b", T2), (b"c", T1), (b"d", None))
        await end(broker, T1, commit=False)
        await end(broker, T2, commit=True)
        assert await received(consumer) == [b"b", b"d"]
        topic = await open_topic(broker)
        assert topic.subscriptions["s"].backlog == 2, "only b and d are not acknowledged"

    run(tmp_path, scenario, **ON)


def test_an_opened_topic_continues_its_transactions(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1), (b"b", T2), (b"c", T3), (b"d", None))
        await end(broker, T1, commit=False)
        await end(broker, T2, commit=True)
        await reopen(broker)
        consumer = await broker.client()
        await consumer.subscribe()
        assert (await buffer_of(broker)).ongoing == 1
        assert await received(consumer) == [b"b"]
        await end(broker, T3, commit=True)
        assert await received(consumer) == [b"c", b"d"]

    run(tmp_path, scenario, **ON)


def test_a_topic_without_transactions_is_read_from_its_log(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", None))
        topic = await open_topic(broker)
        buffer = topic.transaction_buffer
        assert buffer is not None
        assert topic.source is topic.managed_ledger
        assert topic.publish == topic.managed_ledger.append
        await buffer.end(T1, False, -1)
        assert topic.managed_ledger.entries == 1, "no marker for a transaction without messages"
        await published(client, 1, (b"b", T2))
        assert buffer.state is State.READY
        assert topic.source is buffer.source

    run(tmp_path, scenario, **ON)


def test_sends_of_transactions_are_refused_without_a_buffer(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        send(client, 0, b"a", T1)
        error = await client.receive("send_error")
        assert (error.error, error.message) == (NOT_ALLOWED, "Transaction buffer disable!")
        await published(client, 1, (b"b", None))

    run(tmp_path, scenario)


def test_an_abort_after_a_commit_hides_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1))
        await end(broker, T1, commit=True)
        await end(broker, T1, commit=False)
        await reopen(broker)
        await end(broker, T1, commit=False)
        consumer = await broker.client()
        await consumer.subscribe()
        assert await received(consumer) == [b"a"]

    run(tmp_path, scenario, **ON)


def test_the_end_of_a_transaction_without_messages_hides_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", None), (b"b", None))
        await end(broker, T1, commit=False)
        topic = await open_topic(broker)
        assert topic.last_readable == topic.last_confirmed

    run(tmp_path, scenario, **ON)


def test_messages_of_ended_transactions_are_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1), (b"b", T2))
        await end(broker, T2, commit=True, mark=1)
        for sequence_id, txn in ((2, T1), (3, T2)):
            send(client, sequence_id, b"late", txn)
            error = await client.receive("send_error")
            assert error.error == NOT_ALLOWED
            assert f"Transaction [{txn}] has been ended." in error.message
        consumer = await broker.client()
        await consumer.subscribe()
        assert await received(consumer) == [b"b"], "a is of a transaction that has ended long ago"

    run(tmp_path, scenario, **ON)


def test_sends_of_different_producers_begin_transactions_together(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await producing(broker) for _ in range(20)]
        for client in clients:
            send(client, 0, b"a", T1)
            send(client, 1, b"b", None)
            send(client, 2, b"c", T1)
        for client in clients:
            ids = [(await client.receive("send_receipt")).sequence_id for _ in range(3)]
            assert ids == [0, 1, 2]
        await end(broker, T1, commit=True)
        consumer = await broker.client()
        await consumer.subscribe()
        assert len(await received(consumer)) == 60

    run(tmp_path, scenario, **ON)


def test_a_topic_has_a_limit_of_open_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_buffer, "TOPIC_TRANSACTIONS_MAX", 2)

    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1))
        await published(client, 1, (b"b", T2))
        send(client, 2, b"c", T3)
        error = await client.receive("send_error")
        assert (error.error, "which is the limit" in error.message) == (NOT_ALLOWED, True)
        await published(client, 3, (b"d", T1), (b"e", None))
        await end(broker, T1, commit=True)
        await published(client, 5, (b"f", T3))

    run(tmp_path, scenario, **ON)


@pytest.mark.parametrize("settings", [{}, SEGMENTED], ids=["single", "segmented"])
def test_transactions_end_on_a_terminated_topic(tmp_path: Path, settings: Any) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1), (b"b", T2), (b"c", T3), (b"d", None))
        await (await open_topic(broker)).terminate()
        consumer = await broker.client()
        await consumer.subscribe()
        await end(broker, T2, commit=False)
        with pytest.raises(ServiceNotReady, match="when the other open transactions"):
            await end(broker, T1, commit=True)
        assert await received(consumer) == [b"a"]
        await reopen(broker)
        assert list((await buffer_of(broker))._buffer.ongoing) == [T1, T3], (
            "only T2's end is stored"
        )
        with pytest.raises(ServiceNotReady):
            await end(broker, T1, commit=True)
        await end(broker, T3, commit=True)
        await end(broker, T1, commit=True)
        await reopen(broker)
        assert (await buffer_of(broker)).ongoing == 0
        consumer = await broker.client()
        await consumer.subscribe()
        assert await received(consumer) == [b"a", b"c", b"d"]

    run(tmp_path, scenario, **ON, **settings)


def test_the_end_on_a_terminated_topic_is_repeated_until_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1), (b"b", T2))
        await end(broker, T1, commit=True)
        await (await open_topic(broker)).terminate()

        async def fail(*arguments: Any) -> None:
            raise ServiceNotReady("no bookies")

        with monkeypatch.context() as patch:
            patch.setattr(Snapshots, "publish", fail)
            for _ in range(2):
                with pytest.raises(ServiceNotReady, match="no bookies"):
                    await end(broker, T2, commit=True)
        await end(broker, T2, commit=True)
        await reopen(broker)
        assert (await buffer_of(broker)).ongoing == 0

    run(tmp_path, scenario, **ON)


def test_transactions_without_messages_end_on_a_terminated_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", None))
        await (await open_topic(broker)).terminate()
        for commit in (True, False):
            await end(broker, T1, commit)

    run(tmp_path, scenario, **ON)


def test_the_last_message_is_committed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        topic = await open_topic(broker)
        await published(client, 0, (b"a", None), (b"b", T1))
        first = topic.managed_ledger.position_of(0)
        assert await topic.last_message() == (first, -1)
        await published(client, 2, (b"c", None))
        assert await topic.last_message() == (first, -1)
        await end(broker, T1, commit=False)
        assert await topic.last_message() == (topic.managed_ledger.position_of(2), -1)
        await published(client, 3, (b"d", T2))
        await end(broker, T2, commit=False)
        assert await topic.last_message() == (topic.managed_ledger.position_of(2), -1)

    run(tmp_path, scenario, **ON)


@pytest.mark.parametrize(
    "kind",
    [
        pb.CommandSubscribe.Exclusive,
        pb.CommandSubscribe.Shared,
        pb.CommandSubscribe.Failover,
        pb.CommandSubscribe.Key_Shared,
    ],
)
@pytest.mark.parametrize("durable", [True, False])
def test_redeliveries_leave_aborted_messages_out(tmp_path: Path, kind: int, durable: bool) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1), (b"b", T2), (b"c", T1), (b"d", T2), (b"e", T1))
        await end(broker, T1, commit=False)
        await end(broker, T2, commit=True)
        await reopen(broker)
        consumer = await broker.client()
        start = {} if durable else {"start_message_id": pb.MessageIdData(ledgerId=0, entryId=0)}
        await consumer.subscribe(subType=kind, durable=durable, **start)
        assert await received(consumer) == [b"b", b"d"]
        consumer.redeliver()
        assert await received(consumer) == [b"b", b"d"]

    run(tmp_path, scenario, **ON, activeConsumerFailoverDelayTimeMillis=0)


def test_compaction_has_committed_messages_only(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await open_topic(broker)
        client = await producing(broker)
        keyed = [(b"1", None, "k"), (b"2", T1, "k"), (b"3", T2, "l"), (b"4", T1, "m")]
        keyed += [(b"5", T3, "k"), (b"6", None, "l")]
        for sequence_id, (data, txn, key) in enumerate(keyed):
            send(client, sequence_id, data, txn, partition_key=key)
            await client.receive("send_receipt")
        await end(broker, T1, commit=False)
        await end(broker, T2, commit=True)
        topic.compacting.begin()
        await topic.compacting.settle()
        assert topic.compacting.status is Status.SUCCESS
        assert topic.horizon == topic.managed_ledger.position_of(3), "before the open transaction"
        consumer = await broker.client()
        await consumer.subscribe(read_compacted=True, subType=pb.CommandSubscribe.Exclusive)
        assert await received(consumer) == [b"1", b"3"]
        await end(broker, T3, commit=True)
        assert await received(consumer) == [b"5", b"6"]

    run(tmp_path, scenario, **ON)


def test_a_failed_first_snapshot_refuses_the_sends_that_waited_for_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        other = await producing(broker)
        snapshots = broker.topics.snapshots
        assert snapshots is not None
        publish, failing = snapshots.publish, asyncio.Event()

        async def fail(*_: object) -> None:
            await failing.wait()
            raise ServiceNotReady("no snapshot can be stored")

        snapshots.publish = fail  # type: ignore[method-assign]
        for sequence_id, txn in enumerate((T1, None, T1)):
            send(client, sequence_id, b"a", txn)
        await client.quiet()
        await published(other, 0, (b"b", None))
        failing.set()
        errors = [await client.receive("send_error") for _ in range(3)]
        assert [(each.sequence_id, each.error) for each in errors] == [
            (each, pb.ServiceNotReady) for each in range(3)
        ]
        topic = await open_topic(broker)
        assert topic.managed_ledger.entries == 1
        snapshots.publish = publish  # type: ignore[method-assign]
        await published(client, 3, (b"c", T1), (b"d", None))

    run(tmp_path, scenario, **ON)


def test_an_unload_during_the_first_snapshot_refuses_what_was_held(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        snapshots = broker.topics.snapshots
        assert snapshots is not None
        snapshots.publish = never  # type: ignore[method-assign]
        send(client, 0, b"a", T1)
        await client.quiet()
        await asyncio.wait_for(reopen(broker), 2)
        error = await client.receive("send_error")
        assert (error.error, error.message) == (pb.ServiceNotReady, "Topic is closed")
        await client.receive("close_producer")
        assert client.connection.pending_sends == 0

    run(tmp_path, scenario, **ON)


async def never(*_: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    "settings",
    [
        {"transactionBufferSnapshotMaxTransactionCount": 6},
        {"transactionBufferSnapshotMinTimeInMillis": 1},
    ],
    ids=["number", "time"],
)
def test_snapshots_are_stored_by_number_and_by_time(tmp_path: Path, settings: Any) -> None:
    async def scenario(broker: Broker) -> None:
        snapshots = broker.topics.snapshots
        assert snapshots is not None
        client = await producing(broker)
        await published(client, 0, (b"a", T1))
        log = (await open_topic(broker)).managed_ledger
        await found(snapshots, TOPIC_NAME, Snapshot(log.first_position()))
        await published(client, 1, *[(b"a", None)] * 4)
        await end(broker, T1, commit=False)
        aborted = ((T1, log.position_of(5)),)
        await found(snapshots, TOPIC_NAME, Snapshot(log.position_of(5), aborted))
        await published(client, 5, (b"a", None), (b"a", T2), *[(b"a", None)] * 3)
        await end(broker, T3, commit=True)
        await found(snapshots, TOPIC_NAME, Snapshot(log.position_of(6), aborted))

    run(tmp_path, scenario, **ON, **settings)


async def found(snapshots: Snapshots, name: TopicName, expected: Snapshot) -> None:
    for _ in range(100):
        stored = await snapshots.find(name)
        if stored is not None and stored[1] == expected:
            return
        await asyncio.sleep(0.02)
    assert stored is not None
    assert stored[1] == expected


def test_the_deletion_of_a_topic_deletes_its_snapshot(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        snapshots = broker.topics.snapshots
        assert snapshots is not None
        client = await producing(broker)
        await published(client, 0, (b"a", T1))
        await broker.topics.deletion.delete_by_name(TOPIC_NAME, force=True)
        assert await snapshots.find(TOPIC_NAME) is None
        assert (await buffer_of(broker)).state is State.NO_SNAPSHOT
        client = await producing(broker)
        await published(client, 0, (b"a", T1))
        snapshots.publish = refuse  # type: ignore[method-assign]
        await broker.topics.deletion.delete_by_name(TOPIC_NAME, force=True)
        assert not await broker.topics.registry.exists(TOPIC_NAME)

    run(tmp_path, scenario, **ON)


async def refuse(*_: object) -> None:
    raise ServiceNotReady("the snapshot cannot be deleted")


def test_duplicates_of_sends_in_transactions_are_not_stored(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        for _ in range(2):
            await published(client, 0, (b"a", T1), (b"b", T1))
        await end(broker, T1, commit=False)
        send(client, 1, b"b", T2)
        await client.receive("send_receipt")
        topic = await open_topic(broker)
        assert topic.managed_ledger.entries == 3, "two messages and a marker"
        await reopen(broker)
        assert (await open_topic(broker)).last_sequence_id("p") == -1
        assert (await buffer_of(broker)).ongoing == 0

    run(tmp_path, scenario, **ON, brokerDeduplicationEnabled=True)


def test_a_topic_whose_snapshot_cannot_be_read_is_read_from_its_beginning(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1), (b"b", T2))
        await end(broker, T1, commit=False)
        system = await broker.topics.loader.ensure(system_topic(TOPIC_NAME, SNAPSHOTS))
        assert isinstance(system, PersistentTopic)
        await system.append_message(section(b"\xff", partition_key=TOPIC))
        await reopen(broker)
        consumer = await broker.client()
        await consumer.subscribe()
        await end(broker, T2, commit=True)
        assert await received(consumer) == [b"b"]

    run(tmp_path, scenario, **ON)


async def found_aborted(snapshots: Snapshots, txns: list[TxnId]) -> None:
    ids: list[TxnId] = []
    for _ in range(200):
        stored = await snapshots.find(TOPIC_NAME)
        ids = [] if stored is None else [txn for txn, _ in stored[1].aborted]
        if ids == txns:
            return
        await asyncio.sleep(0.02)
    assert ids == txns


def test_aborted_transactions_are_found_in_segments(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        txns = [TxnId(3, n) for n in range(7)]
        snapshots = broker.topics.snapshots
        assert snapshots is not None
        for sequence_id, txn in enumerate(txns):
            await published(client, sequence_id, (b"%d" % txn.least, txn))
            await end(broker, txn, commit=txn.least == 3)
            await found_aborted(
                snapshots, [each for each in txns[: sequence_id + 1] if each != txns[3]]
            )
            if sequence_id == 4:
                await reopen(broker)
                client = await producing(broker)
        segments = await broker.topics.loader.get(
            system_topic(TOPIC_NAME, SNAPSHOT_SEGMENTS), False
        )
        assert isinstance(segments, PersistentTopic)
        keys = [read_message(entry)[0].partition_key async for _, entry in all_of(segments)]
        assert keys == [f"multiple-{n}-{TOPIC}" for n in range(3)]
        stored = await snapshots.find(TOPIC_NAME)
        assert stored is not None
        assert [txn for txn, _ in stored[1].aborted] == [*txns[:3], *txns[4:]]
        await reopen(broker)
        consumer = await broker.client()
        await consumer.subscribe()
        assert await received(consumer) == [b"3"]
        await broker.topics.deletion.delete_by_name(TOPIC_NAME, force=True)
        assert await snapshots.find(TOPIC_NAME) is None

    run(tmp_path, scenario, **ON, **SEGMENTED)


def test_an_index_that_repeats_an_aborted_transaction_loses_no_other(tmp_path: Path) -> None:
    """Apache Pulsar adds a transaction again with each marker that aborts it."""

    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", None))
        position = (await open_topic(broker)).last_confirmed
        snapshots = broker.topics.snapshots
        assert snapshots is not None
        segment = encode_segment(TOPIC, 0, [T1, T1], position)
        target, key = system_topic(TOPIC_NAME, SNAPSHOT_SEGMENTS), f"multiple-0-{TOPIC}"
        stored = Segment(0, position, await snapshots.publish(target, key, segment))
        index = encode_index(TOPIC, Index(position, (stored,), (T2,)))
        await snapshots.publish(system_topic(TOPIC_NAME, SNAPSHOT_INDEXES), TOPIC, index)
        await reopen(broker)
        await published(await producing(broker), 1, (b"b", T3))
        await end(broker, T3, commit=False)
        await found_aborted(snapshots, [T1, T1, T2, T3])

    run(tmp_path, scenario, **ON, **SEGMENTED)


class Published(Snapshots):
    """Snapshots that are published nowhere."""

    def __init__(self) -> None:
        opener: Any = None
        super().__init__("c", opener, lambda: opener, 8 + len(TOPIC) + 3 * 2)
        self.indexes: list[Index] = []

    async def publish(self, target: TopicName, key: str, value: bytes | None) -> Position:
        if target.local_name == SNAPSHOT_INDEXES:
            assert value is not None
            self.indexes.append(decode_index(value))
        return Position(9, 0)

    async def publish_if_exists(self, target: TopicName, key: str) -> None:
        """Nothing is there."""


def test_a_second_marker_does_not_end_the_segment_of_other_transactions() -> None:
    buffer, snapshots = Buffer(), Published()
    stored = snapshots.of(TOPIC_NAME)
    for at, txn in ((0, T1), (2, T2)):
        buffer.on_message(txn, Position(1, at))
        buffer.on_end(txn, False, Position(1, at + 1))
    buffer.on_end(T1, False, Position(2, 0))
    asyncio.run(stored.store(buffer, Position(2, 0)))
    assert [each.marker for each in snapshots.indexes[-1].segments] == [Position(1, 3)]
    buffer.trim(2)
    asyncio.run(stored.store(buffer, Position(2, 0)))
    assert snapshots.indexes[-1].segments == ()


def all_of(topic: PersistentTopic) -> AsyncIterator[tuple[Position, bytes]]:
    return topic.read_from(Position(-1, -1), "a test")


@pytest.mark.parametrize("is_segmented_first", [True, False])
def test_snapshots_of_the_other_form_are_read(tmp_path: Path, is_segmented_first: bool) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1), (b"b", T2), (b"c", T3))
        for txn in (T1, T2):
            await end(broker, txn, commit=False)
        snapshots = broker.topics.snapshots
        assert snapshots is not None
        await found_aborted(snapshots, [T1, T2])
        snapshots.segment_bytes = None if is_segmented_first else segment_bytes
        await reopen(broker)
        buffer = await buffer_of(broker)
        assert buffer.is_aborted(T1)
        assert buffer.is_aborted(T2)
        assert buffer.ongoing == 1
        await end(broker, T3, commit=False)
        await found_aborted(snapshots, [T1, T2, T3])
        await reopen(broker)
        assert (await buffer_of(broker)).is_aborted(T3)

    segment_bytes = SEGMENTED["transactionBufferSnapshotSegmentSize"]
    settings = {**SEGMENTED, "transactionBufferSegmentedSnapshotEnabled": is_segmented_first}
    run(tmp_path, scenario, **ON, **settings)


def test_rest_shows_which_entries_consumers_cannot_receive(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        client = await producing(rest.broker)
        await published(client, 0, (b"a", None), (b"b", T1), (b"c", T2))
        await end(rest.broker, T1, commit=False)
        shown = []
        for number in (1, 2, 3):
            query = f"initialPosition=earliest&messagePosition={number}"
            answer = await rest.answer("GET", f"{P}/t/examinemessage?{query}")
            headers = dict(answer.headers)
            names = ("X-Pulsar-txn-aborted", "X-Pulsar-txn-uncommitted")
            shown.append([headers.get(name) for name in names])
        assert shown == [[None, "false"], ["true", "false"], ["false", "true"]]
        answer = await rest.answer("GET", f"{P}/t/examinemessage?initialPosition=latest")
        assert dict(answer.headers)["X-Pulsar-sequence-id"] == "-1", (
            "the marker's, as Java reads it"
        )
        statistics = (await rest("GET", f"{P}/t/stats"))[1]
        counts = ("ongoingTxnCount", "abortedTxnCount", "committedTxnCount")
        assert [statistics[name] for name in counts] == [1, 1, 0]

    run_rest(tmp_path, scenario, **ON)


@pytest.mark.parametrize("settings", [{}, SEGMENTED], ids=["single", "segmented"])
def test_another_broker_may_serve_the_system_topics(tmp_path: Path, settings: Any) -> None:
    async def scenario(broker: Broker) -> None:
        loader, snapshots = broker.topics.loader, broker.topics.snapshots
        assert snapshots is not None
        other = OfAnotherBroker(loader)
        snapshots._opener = other  # type: ignore[assignment]
        snapshots.publish_elsewhere = other.publish
        client = await producing(broker)
        await published(client, 0, (b"a", T1), (b"b", T2), (b"c", T3))
        for txn in (T1, T2):
            await end(broker, txn, commit=False)
        await asyncio.sleep(0.05)
        await reopen(broker)
        buffer = await buffer_of(broker)
        assert [buffer.is_aborted(txn) for txn in (T1, T2, T3)] == [True, True, False]
        assert buffer.ongoing == 1
        assert other.read > 0

    run(tmp_path, scenario, **ON, **settings)


class OfAnotherBroker:
    """A loader of topics that serves no system topics; they are written and read from outside."""

    def __init__(self, loader: TopicLoader) -> None:
        self._loader = loader
        self.read = 0

    async def exists_when_opened(self, name: TopicName) -> bool:
        return await self._loader.exists_when_opened(name)

    async def is_served(self, name: TopicName) -> bool:
        return False

    async def get(self, name: TopicName, create: bool) -> Topic:
        raise ServiceNotReady("another broker serves it")

    async def ensure(self, name: TopicName) -> Topic:
        raise ServiceNotReady("another broker serves it")

    async def read_unowned(
        self, name: TopicName, start: Position
    ) -> AsyncIterator[tuple[Position, bytes]]:
        self.read += 1
        topic = await self._loader.get(name, create=False)
        assert isinstance(topic, PersistentTopic)
        async for each in topic.read_from(start, "a test"):
            yield each

    async def publish(
        self, name: TopicName, key: str, value: bytes | None, replicate_to: tuple[str, ...]
    ) -> Position:
        topic = await self._loader.ensure(name)
        assert isinstance(topic, PersistentTopic)
        null = {"null_value": True} if value is None else {}
        return await topic.append_message(section(value or b"", partition_key=key, **null))


def test_a_topic_without_transactions_in_its_namespace_is_opened_without_a_read(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        snapshots = broker.topics.snapshots
        assert snapshots is not None
        assert await snapshots.find(TOPIC_NAME) is None
        assert not snapshots._topics
        topic = await open_topic(broker)
        assert topic.transactions is None
        assert not [each for each in broker.topics.registry if each.name.is_system]

    run(tmp_path, scenario, **ON)


def test_a_log_that_cannot_be_read_for_recovery_closes_the_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await producing(broker)
        await published(client, 0, (b"a", T1))
        await end(broker, T1, commit=False)
        await reopen(broker)
        topic = await open_topic(broker)
        log = topic.managed_ledger

        async def fail(*_: object) -> None:
            raise LedgerError("it cannot be read")

        buffer = (buffers := topic.transaction_buffers) and buffers.create(topic)
        assert isinstance(buffer, TransactionBuffer)
        log.read_cached = lambda *_: None  # type: ignore[method-assign]
        log.read_some = fail  # type: ignore[method-assign,assignment]
        buffer.recover(Snapshot(Position(-1, -1)))
        with pytest.raises(ServiceNotReady, match="Failed to recover"):
            await buffer.recovered()
        assert topic.fenced
        consumer = await broker.client()
        await consumer.subscribe()
        assert await received(consumer) == []
        assert await open_topic(broker) is not topic

    run(tmp_path, scenario, **ON)
