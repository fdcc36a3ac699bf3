"""Acknowledgements of transactions: pending, committed, aborted, conflicting, replayed."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append, until
from one_broker import TOPIC, Broker, Client, section
from pyxbroker.base import limits
from pyxbroker.base.errors import NotAllowed, PersistenceError
from pyxbroker.base.slices import Slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.broker.transactions import pending_ack_handle
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.pending_ack_log import (
    LogRecord,
    Operation,
    PendingAckLog,
    encode_record,
    name_of,
)
from pyxbroker.broker.transactions.pending_acks import Ack
from pyxbroker.entry import AckRun, Position
from pyxbroker.ledger.errors import LedgerError, NotEnoughBookies
from pyxbroker.metadata import paths
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.opening import open_managed_ledger
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.proto import TransactionPendingAck as pb_acks

ALL = (1 << 10) - 1
BATCH = section(b"ten messages", num_messages_in_batch=10)
EXCLUSIVE = pb.CommandSubscribe.Exclusive
SHARED = pb.CommandSubscribe.Shared
FAILOVER = pb.CommandSubscribe.Failover
KEY_SHARED = pb.CommandSubscribe.Key_Shared
KINDS = pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
ONE, TWO, THREE = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)
CONFLICT, NOT_ALLOWED = 23, 22
PREFIX = f"[{TOPIC}][s] Transaction:"

Scenario = Callable[[Broker, Client, Topic], Awaitable[None]]


def run(tmp_path: Path, scenario: Scenario, enabled: bool = True, **settings: Any) -> None:
    async def main() -> None:
        settings.setdefault("activeConsumerFailoverDelayTimeMillis", 0)
        async with Broker(
            tmp_path / "bookie", transactionCoordinatorEnabled=enabled, **settings
        ) as broker:
            await scenario(broker, await broker.client(), await broker.topic())

    asyncio.run(main())


async def ack(
    client: Client, txn: TxnId | None, *positions: tuple[int, int], **what: Any
) -> tuple[int | None, str]:
    """The error code and the text of the answer."""
    answer = await client.request(ack_command(txn, *positions, **what), "ackResponse")
    return (answer.error if answer.HasField("error") else None), answer.message


def ack_command(
    txn: TxnId | None,
    *positions: tuple[int, int],
    consumer_id: int = 1,
    cumulative: bool = False,
    ack_set: int = 0,
    batch_size: int = 10,
) -> Any:
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    command = pb.CommandAck(consumer_id=consumer_id, ack_type=kind)
    if txn is not None:
        command.txnid_most_bits, command.txnid_least_bits = txn.wire()
    for ledger_id, entry_id in positions:
        added = command.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        if ack_set:
            added.ack_set.append(ack_set)
            if batch_size:
                added.batch_size = batch_size
    return command


async def end(topic: Topic, txn: TxnId, commit: bool, low_water_mark: int = -1) -> None:
    await topic.subscriptions["s"].end_transaction(txn, commit, low_water_mark)


async def received(client: Client, count: int) -> list[tuple[tuple[int, int], int, list[int]]]:
    """(position, redelivery count, ack set) of the next messages."""
    found = []
    for _ in range(count):
        message = await client.receive("message")
        position = (message.message_id.ledgerId, message.message_id.entryId)
        found.append((position, message.redelivery_count, list(message.ack_set)))
    return found


async def positions_of(client: Client, count: int) -> list[tuple[int, int]]:
    return sorted(position for position, _, _ in await received(client, count))


async def consumed(
    broker: Broker, client: Client, *bodies: bytes, **subscribe: Any
) -> list[tuple[int, int]]:
    """Publish messages and let consumer 1 receive them; return their positions."""
    positions = await broker.publish(*bodies)
    await client.subscribe(1, **subscribe)
    await received(client, len(positions))
    return positions


async def unloaded(broker: Broker) -> Topic:
    """The topic after it was closed and opened again."""
    await broker.topics.deletion.unload(TopicName.get(TOPIC))
    return await broker.topic()


@KINDS
def test_what_an_open_transaction_has_acknowledged_is_redelivered_after_its_abort_only(
    tmp_path: Path, kind: int
) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await broker.publish(b"a", b"b", b"c")
        await client.subscribe(1, subType=kind)
        assert await positions_of(client, 3) == positions
        assert await ack(client, ONE, *positions[:2]) == (None, "")
        client.redeliver()
        assert await positions_of(client, 1) == positions[2:]
        assert await client.quiet() == ["active_consumer_change"] * (kind == FAILOVER)
        assert topic.subscriptions["s"].backlog == 3
        await ack(client, None, positions[2])
        await end(topic, ONE, commit=False)
        again = await received(client, 2)
        assert sorted(position for position, _, _ in again) == positions[:2]
        individual = kind in (SHARED, KEY_SHARED)
        assert [count for _, count, _ in again] == [int(individual)] * 2
        assert topic.subscriptions["s"].pending_acks.acks.is_empty

    run(tmp_path, scenario)


@KINDS
def test_the_commit_acknowledges_for_good(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c", subType=kind)
        assert await ack(client, ONE, positions[0], positions[2]) == (None, "")
        await end(topic, ONE, commit=True)
        assert topic.subscriptions["s"].backlog == 1
        await end(topic, ONE, commit=True)
        await end(topic, ONE, commit=False)
        client.redeliver()
        assert await positions_of(client, 1) == positions[1:2]
        assert topic.subscriptions["s"].acks.is_acknowledged(*positions[2])

    run(tmp_path, scenario)


def test_pending_acknowledgements_outlive_the_topic_and_the_consumer(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c", b"d")
        await ack(client, ONE, positions[0])
        await ack(client, TWO, positions[1])
        await ack(client, THREE, positions[2])
        await end(topic, TWO, commit=True)
        await end(topic, THREE, commit=False)
        topic = await unloaded(broker)
        other = await broker.client()
        await other.subscribe(1)
        assert await positions_of(other, 2) == positions[2:]
        assert await other.quiet() == []
        assert (await ack(other, TxnId(0, 4), positions[0]))[0] == CONFLICT
        await end(topic, ONE, commit=False)
        assert await received(other, 1) == [(positions[0], 1, [])]

    run(tmp_path, scenario)


def test_a_crash_keeps_pending_and_committed_acknowledgements(tmp_path: Path) -> None:
    """The cursor's own state is written much later, so the log has to bring back the commit."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c")
        await ack(client, ONE, positions[0])
        await ack(client, TWO, positions[1])
        await end(topic, TWO, commit=True)
        successor = Broker(tmp_path / "unused", transactionCoordinatorEnabled=True)
        successor.node = broker.node.kill()
        async with successor as other:
            topic = await other.topic()
            client = await other.client()
            await client.subscribe(1)
            assert await positions_of(client, 1) == positions[2:]
            assert await client.quiet() == []
            subscription = topic.subscriptions["s"]
            assert subscription.acks.is_acknowledged(*positions[1])
            await end(topic, ONE, commit=True)
            assert subscription.acks.mark_delete == positions[1]

    run(tmp_path, scenario)


def test_conflicts_are_refused_with_the_texts_of_pulsar(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [a, b, c] = await append(topic.managed_ledger, section(b"a"), section(b"b"), BATCH)
        await client.subscribe(1)
        await received(client, 3)

        async def refused(txn: TxnId, position: tuple[int, int], text: str, **what: Any) -> None:
            ack_set = "with long[] size of 1" if "ack_set" in what else "is null"
            named = text.replace("P", f"{position[0]}:{position[1]} (ackSet {ack_set})")
            assert await ack(client, txn, position, **what) == (CONFLICT, f"{PREFIX}{txn} {named}")

        await ack(client, None, a)
        await refused(ONE, a, "try to ack message:P already acked before.")
        assert await ack(client, ONE, b) == (None, "")
        await refused(TWO, b, "try to ack message:P in pending ack status.")
        await refused(ONE, b, "try to ack message:P in pending ack status.")
        assert await ack(client, ONE, c, ack_set=ALL & ~0b11) == (None, "")
        assert await ack(client, TWO, c, ack_set=ALL & ~0b100) == (None, "")
        batch = "try to ack batch message:P in pending ack status."
        await refused(TWO, c, batch, ack_set=ALL & ~0b110)
        await refused(TWO, c, batch, ack_set=ALL & ~0b10, batch_size=0)
        await refused(THREE, c, "try to ack message:P in pending ack status.")
        await ack(client, None, c, ack_set=ALL & ~0b1000000)
        await refused(
            THREE, c, "try to ack message:P already acked before.", ack_set=ALL & ~0b1000000
        )
        # The first conflict refuses the whole command.
        [d] = await broker.publish(b"d")
        assert (await ack(client, TWO, d, b))[0] == CONFLICT
        assert await ack(client, THREE, d) == (None, "")
        assert topic.subscriptions["s"].pending_acks.managed_ledger.entries == 4

    run(tmp_path, scenario)


def test_cumulative_acknowledgements_conflict_as_in_pulsar(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c", b"d", subType=FAILOVER)
        mark = f"{positions[0][0]}:{positions[0][1]}"
        [a, b, c, d] = [f"{ledger}:{entry} (ackSet is null)" for ledger, entry in positions]
        await ack(client, None, positions[0], cumulative=True)

        async def ack_to(txn: TxnId, number: int) -> tuple[int | None, str]:
            return await ack(client, txn, positions[number], cumulative=True)

        within = (
            "try to cumulative ack position: {} within range of cursor's markDeletePosition: {}"
        )
        assert await ack_to(ONE, 0) == (CONFLICT, f"{PREFIX}{ONE} {within.format(a, mark)}")
        assert await ack_to(ONE, 1) == (None, "")
        assert await ack_to(ONE, 2) == (None, "")
        text = (
            "try to cumulative batch ack position: {} within range of current currentPosition: {}"
        )
        assert await ack_to(ONE, 2) == (CONFLICT, f"{PREFIX}{ONE} {text.format(c, c)}")
        assert await ack_to(ONE, 1) == (CONFLICT, f"{PREFIX}{ONE} {text.format(b, c)}")
        assert await ack_to(TWO, 3) == (CONFLICT, f"{PREFIX}{TWO} {text.format(d, c)}")
        client.redeliver()
        assert await positions_of(client, 1) == positions[3:]
        await end(topic, ONE, commit=True)
        assert topic.subscriptions["s"].acks.mark_delete == positions[2]

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_what_a_cumulative_acknowledgement_has_hidden_is_delivered_after_its_abort(
    tmp_path: Path, kind: int
) -> None:
    """A client that has the messages already has to ask for them, as in Pulsar."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c", subType=kind)
        assert await ack(client, ONE, positions[1], cumulative=True) == (None, "")
        await end(topic, ONE, commit=False)
        assert "message" not in await client.quiet()
        assert await ack(client, TWO, positions[1], cumulative=True) == (None, "")
        await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        await client.subscribe(2, subType=kind)
        assert [position for position, _, _ in await received(client, 1)] == positions[2:]
        await end(topic, TWO, commit=False)
        assert [position for position, _, _ in await received(client, 3)] == positions

    run(tmp_path, scenario)


def test_individual_and_cumulative_acknowledgements_of_several_transactions_end_on_their_own(
    tmp_path: Path,
) -> None:
    """In Pulsar a commit loses the individual ones while another transaction has a cumulative."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c", b"d", b"e", subType=FAILOVER)
        assert await ack(client, ONE, positions[1], cumulative=True) == (None, "")
        assert await ack(client, ONE, positions[3]) == (None, "")
        assert await ack(client, TWO, positions[4]) == (None, "")
        topic = await unloaded(broker)
        subscription = topic.subscriptions["s"]
        await end(topic, TWO, commit=True)
        assert subscription.acks.is_acknowledged(*positions[4])
        assert subscription.backlog == 4
        await end(topic, ONE, commit=True)
        assert subscription.acks.mark_delete == positions[1]
        assert subscription.backlog == 1

    run(tmp_path, scenario)


def test_messages_of_a_batch_are_pending_one_by_one(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await append(topic.managed_ledger, BATCH)
        await client.subscribe(1)
        await received(client, 1)
        consumer = client.connection.consumers[1]
        assert consumer.unacked_messages == 10
        await ack(client, ONE, position, ack_set=ALL & ~0b111)
        assert consumer.unacked_messages == 7
        await ack(client, TWO, position, ack_set=ALL & ~0b111000, batch_size=0)
        assert consumer.unacked_messages == 4
        await ack(client, None, position, ack_set=0b111111)
        assert consumer.unacked_messages == 0
        assert topic.subscriptions["s"].backlog == 1
        client.redeliver()
        assert await client.quiet() == []
        await end(topic, TWO, commit=False)
        assert await received(client, 1) == [(position, 1, [0b111000])]
        assert consumer.unacked_messages == 3
        topic = await unloaded(broker)
        await client.receive("close_consumer")
        await client.subscribe(2)
        [(_, _, left)] = await received(client, 1)
        # The plain acknowledgement was made durable by its answer.
        assert left == [0b111000]
        await end(topic, ONE, commit=True)
        await ack(client, None, position, consumer_id=2)
        assert topic.subscriptions["s"].backlog == 0

    run(tmp_path, scenario)


def test_pending_messages_at_the_head_do_not_stop_later_ones(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, *(b"%d" % n for n in range(300)))
        assert await ack(client, ONE, *positions[:200]) == (None, "")
        await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        await client.subscribe(2, permits=10)
        assert await positions_of(client, 10) == positions[200:210]
        assert client.connection.consumers[2].unacked_messages == 10

    run(tmp_path, scenario)


def test_a_transaction_that_has_ended_acknowledges_nothing_more(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c")
        await ack(client, ONE, positions[0])
        await end(topic, ONE, commit=True)
        refusal = "Transaction [{}] has been ended. Please use a new transaction to acknowledge."
        assert await ack(client, ONE, positions[1]) == (22, refusal.format(ONE))
        topic = await unloaded(broker)
        await client.subscribe(1)
        await received(client, 2)
        assert await ack(client, ONE, positions[1]) == (22, refusal.format(ONE))
        await ack(client, TWO, positions[1])
        await end(topic, TWO, commit=True, low_water_mark=7)
        below = TxnId(0, 7)
        assert await ack(client, below, positions[2]) == (22, refusal.format(below))
        assert topic.subscriptions["s"].backlog == 1

    run(tmp_path, scenario)


def test_acknowledgements_that_come_after_the_end_go_with_the_next_end(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b")
        await end(topic, ONE, commit=True)
        await ack(client, ONE, positions[0])
        await ack(client, TxnId(5, 1), positions[1])
        await end(topic, TWO, commit=True, low_water_mark=1)
        assert await received(client, 1) == [(positions[0], 1, [])]
        handle = topic.subscriptions["s"].pending_acks
        assert handle.acks.transactions() == [TxnId(5, 1)]
        assert handle.acks.low_water_marks == {0: 1}

    run(tmp_path, scenario)


def test_plain_acknowledgements_prevail(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b")
        await ack(client, ONE, *positions)
        assert await ack(client, None, positions[0]) == (None, "")
        await end(topic, ONE, commit=False)
        assert await received(client, 1) == [(positions[1], 1, [])]
        assert await client.quiet() == []
        assert topic.subscriptions["s"].backlog == 1

    run(tmp_path, scenario)


def test_redelivery_counts_grow_with_each_abort(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await broker.publish(b"a")
        await client.subscribe(1)
        for count in range(4):
            assert await received(client, 1) == [(position, count, [])]
            txn = TxnId(0, count)
            await ack(client, txn, position)
            await end(topic, txn, commit=False)

    run(tmp_path, scenario)


def test_an_abort_without_a_consumer_succeeds(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await consumed(broker, client, b"a")
        await ack(client, ONE, position)
        await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        await end(topic, ONE, commit=False)
        await client.subscribe(2)
        assert await received(client, 1) == [(position, 0, [])]

    run(tmp_path, scenario)


def test_positions_that_do_not_exist_are_ignored(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [(ledger_id, entry_id)] = await broker.publish(b"a")
        await client.subscribe(1)
        assert await ack(client, ONE, (ledger_id, entry_id + 7), (77, 3)) == (None, "")
        assert topic.subscriptions["s"].pending_acks.acks.is_empty
        await end(topic, ONE, commit=True)
        assert topic.subscriptions["s"].backlog == 1

    run(tmp_path, scenario)


def test_a_subscription_without_transactional_acknowledgements_has_no_log(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        await client.subscribe(1)
        await end(topic, ONE, commit=True)
        await end(topic, TWO, commit=False)
        subscription = topic.subscriptions["s"]
        assert subscription.pending_acks is None
        node = paths.managed_ledger(name_of(topic.name, "s"))
        assert not await broker.node.store.exists(node)

    run(tmp_path, scenario)


def test_the_log_goes_with_the_subscription_and_with_the_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        store = broker.node.store
        positions = await broker.publish(b"a", b"b")
        names = ["s", "with/slash and space"]
        for number, name in enumerate(names):
            await client.subscribe(number, subscription=name)
            assert await ack(client, ONE, positions[0], consumer_id=number) == (None, "")
        nodes = [paths.managed_ledger(name_of(topic.name, name)) for name in names]
        assert [await store.exists(node) for node in nodes] == [True, True]
        assert "persistent/t-with%252Fslash%2Band%2Bspace__transaction_pending_ack" in nodes[1]
        assert await broker.topics.registry.exists(topic.name)
        answer = await client.request(
            pb.CommandGetTopicsOfNamespace(
                namespace="public/default", mode=pb.CommandGetTopicsOfNamespace.ALL
            ),
            "getTopicsOfNamespaceResponse",
        )
        assert list(answer.topics) == [TOPIC]
        await client.request(pb.CommandUnsubscribe(consumer_id=0), "success")
        assert [await store.exists(node) for node in nodes] == [False, True]
        topic = await unloaded(broker)
        await broker.topics.deletion.delete(topic)
        assert [await store.exists(node) for node in nodes] == [False, False]

    run(tmp_path, scenario)


def test_without_transactions_the_acknowledgement_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await broker.publish(b"a")
        await client.subscribe(1)
        refusal = (NOT_ALLOWED, "Server don't support transaction ack!")
        assert await ack(client, ONE, position) == refusal
        with pytest.raises(NotAllowed):
            await end(topic, ONE, commit=True)
        await client.subscribe(2, topic="non-persistent://public/default/n")
        assert await ack(client, ONE, (0, 0), consumer_id=2) == refusal
        await client.subscribe(3, subscription="reader", durable=False)
        assert await ack(client, ONE, position, consumer_id=3) == refusal

    run(tmp_path, scenario, enabled=False)


def test_a_cumulative_acknowledgement_without_a_meaning_has_no_effect(tmp_path: Path) -> None:
    """As in Pulsar, it succeeds nevertheless."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await broker.publish(b"a", b"b")
        await client.subscribe(1, subType=SHARED)
        assert await ack(client, ONE, positions[0], cumulative=True) == (None, "")
        await client.subscribe(2, subType=EXCLUSIVE, subscription="e")
        several = await ack(client, ONE, *positions, cumulative=True, consumer_id=2)
        assert several == (None, "")
        assert topic.subscriptions["s"].pending_acks is None
        assert topic.subscriptions["e"].pending_acks.acks.is_empty

    run(tmp_path, scenario)


def test_a_closed_consumer_gets_an_answer(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await broker.publish(b"a")
        await client.subscribe(1)
        await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        assert (await ack(client, ONE, position))[0] is not None

    run(tmp_path, scenario)


def test_the_log_is_trimmed_when_the_subscription_has_passed_its_positions(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        await client.subscribe(1)
        for number in range(30):
            [position] = await broker.publish(b"%d" % number)
            assert await ack(client, TxnId(0, number), position) == (None, "")
            await end(topic, TxnId(0, number), commit=True)
        log = topic.subscriptions["s"].pending_acks.managed_ledger
        cursor = log.cursors["__pending_ack_state"]
        assert cursor.backlog <= 5
        [position] = await broker.publish(b"open")
        await ack(client, TxnId(0, 50), position)
        topic = await unloaded(broker)
        await client.receive("close_consumer")
        await client.subscribe(2)
        assert topic.subscriptions["s"].pending_acks.acks.transactions() == [TxnId(0, 50)]

    run(tmp_path, scenario, transactionPendingAckLogIndexMinLag=1)


def test_a_log_that_cannot_be_written_is_opened_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b")
        await ack(client, ONE, positions[0])
        handle = topic.subscriptions["s"].pending_acks
        log = handle.managed_ledger
        log.fence("a test")
        assert await ack(client, TWO, positions[1]) == (None, "")
        assert handle.managed_ledger is not log
        assert handle.acks.transactions() == [ONE, TWO]
        await end(topic, ONE, commit=False)
        assert await received(client, 1) == [(positions[0], 1, [])]

    run(tmp_path, scenario)


def test_an_acknowledgement_that_is_not_stored_for_lack_of_bookies_can_be_repeated(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b")
        await ack(client, ONE, positions[0])
        handle = topic.subscriptions["s"].pending_acks
        lost = asyncio.get_running_loop().create_future()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PendingAckLog, "append", lambda self, record: lost)
            answer = asyncio.create_task(ack(client, TWO, positions[1]))
            await until(lambda: TWO in handle.acks.transactions())
        error = NotEnoughBookies("a test")
        handle.managed_ledger.refuse_for_bookies(error)
        lost.set_exception(ManagedLedgerError(str(error)))
        assert (await answer)[0] == pb.PersistenceError
        assert await ack(client, TWO, positions[1]) == (None, "")
        assert handle.acks.transactions() == [ONE, TWO]

    run(tmp_path, scenario)


def test_a_failed_journal_leaves_the_pending_acknowledgements_readable(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c", subType=SHARED)
        await ack(client, ONE, positions[0])
        broker.node.faults.rule("fdatasync", ".journal", errno=5)
        assert (await ack(client, TWO, positions[1]))[0] == pb.PersistenceError
        client.redeliver()
        other = await broker.client()
        await other.subscribe(1, subType=SHARED)
        assert (await ack(other, THREE, positions[2]))[0] == pb.PersistenceError
        handle = topic.subscriptions["s"].pending_acks
        assert handle.acks.transactions() == [ONE]

    run(tmp_path, scenario)


def test_a_repeated_end_is_answered_once_its_record_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a")
        await ack(client, ONE, positions[0])
        appended: list[tuple[LogRecord, asyncio.Future[Position]]] = []

        def append_later(self: PendingAckLog, record: LogRecord) -> asyncio.Future[Position]:
            appended.append((record, asyncio.get_running_loop().create_future()))
            return appended[-1][1]

        monkeypatch.setattr(PendingAckLog, "append", append_later)
        first = asyncio.create_task(end(topic, ONE, commit=True))
        again = asyncio.create_task(end(topic, ONE, commit=True))
        await asyncio.wait([first, again], timeout=0.05)
        assert (first.done(), again.done()) == (False, False)
        appended[0][1].set_exception(ManagedLedgerError("a test"))
        for attempt in (first, again):
            with pytest.raises(PersistenceError):
                await attempt
        third = asyncio.create_task(end(topic, ONE, commit=True))
        await asyncio.wait([third], timeout=0.05)
        assert not third.done()
        appended[1][1].set_result(Position(0, 1))
        await third
        await end(topic, ONE, commit=True)
        assert [record for record, _ in appended] == [LogRecord(Operation.COMMIT, ONE, False)] * 2

    run(tmp_path, scenario)


def test_a_long_acknowledgement_is_refused_for_each_of_its_parts(tmp_path: Path) -> None:
    """An ACK with many ids is handled in parts, and has one answer."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await broker.publish(*(b"%d" % number for number in range(3000)))
        await client.subscribe(1, permits=0)
        await ack(client, None, positions[0], positions[2000])
        assert (await ack(client, ONE, *positions))[0] == CONFLICT
        await end(topic, ONE, commit=False)
        del positions[2000]
        log = topic.subscriptions["s"].pending_acks.managed_ledger
        before = log.entries
        assert await ack(client, TWO, *positions[1:]) == (None, "")
        assert log.entries > before + 1
        await end(topic, TWO, commit=True)
        assert topic.subscriptions["s"].backlog == 0

    run(tmp_path, scenario)


def test_a_refusal_that_the_client_does_not_ask_for_is_not_the_answer_to_the_next_acknowledgement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await broker.publish(*(b"%d" % number for number in range(3000)))
        await client.subscribe(1, permits=0)
        await ack(client, None, *positions[:-1])
        client.send(ack_command(ONE, *positions[:-1]))
        assert await ack(client, ONE, positions[-1]) == (None, "")
        assert (await ack(client, ONE, *positions[:-1]))[0] == CONFLICT

    run(tmp_path, scenario)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_long_transaction_ends_in_steps(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        count = 5000
        positions = await consumed(
            broker, client, *(b"%d" % number for number in range(count)), permits=count
        )
        for at in range(0, count, 1000):
            assert await ack(client, ONE, *positions[at : at + 1000]) == (None, "")
        await end(topic, ONE, commit=False)
        client.flow(count)
        assert await positions_of(client, count) == positions
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_a_seek_leaves_out_what_is_pending(tmp_path: Path) -> None:
    """As in Pulsar. The end of the transaction applies to the new place of the cursor."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c")
        await ack(client, None, positions[0])
        await ack(client, ONE, positions[1])
        await topic.subscriptions["s"].seek(topic.first_position())
        assert await positions_of(client, 2) == [positions[0], positions[2]]
        await end(topic, ONE, commit=True)
        assert topic.subscriptions["s"].backlog == 2

    run(tmp_path, scenario)


def test_the_messages_of_a_key_stay_in_order_after_an_abort(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        entries = [section(b"%d" % number, partition_key="k") for number in range(4)]
        positions = await append(topic.managed_ledger, *entries)
        await client.subscribe(1, permits=4, subType=KEY_SHARED)
        await received(client, 4)
        await ack(client, ONE, *positions[:3])
        await append(topic.managed_ledger, section(b"last", partition_key="k"))
        await end(topic, ONE, commit=False)
        assert await client.quiet() == []
        client.flow(10)
        found = [position for position, _, _ in await received(client, 4)]
        assert found[:3] == positions[:3]

    run(tmp_path, scenario)


def test_another_holder_of_a_batch_gives_it_back_with_the_abort(tmp_path: Path) -> None:
    """The released messages and those that the other consumer has are delivered together."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await append(topic.managed_ledger, BATCH)
        await client.subscribe(1)
        await received(client, 1)
        await ack(client, ONE, position, ack_set=ALL & ~0b11)
        client.redeliver()
        assert await received(client, 1) == [(position, 1, [ALL & ~0b11])]
        consumer = client.connection.consumers[1]
        assert consumer.unacked_messages == 8
        await end(topic, ONE, commit=False)
        assert await received(client, 1) == [(position, 2, [])]
        assert consumer.unacked_messages == 10
        await ack(client, None, position)
        assert consumer.unacked_messages == 0

    run(tmp_path, scenario)


def test_a_log_that_cannot_be_read_delays_its_own_subscription_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b")
        await ack(client, ONE, positions[0])
        await client.subscribe(2, subscription="other", permits=0)
        is_broken = True

        async def opened(*what: Any, **options: Any) -> Any:
            if is_broken and "-s__" in what[0]:
                raise LedgerError("a test")
            return await open_managed_ledger(*what, **options)

        monkeypatch.setattr(pending_ack_handle, "open_managed_ledger", opened)
        await unloaded(broker)
        other = await broker.client()
        answer = await other.subscribe(1, permits=0)
        assert (answer.error, answer.message) == (
            pb.ServiceNotReady,
            "PendingAckHandle not replay error!",
        )
        await other.subscribe(2, subscription="other", permits=10)
        assert await positions_of(other, 2) == positions
        is_broken = False
        await other.subscribe(3)
        assert await positions_of(other, 1) == positions[1:]

    run(tmp_path, scenario)


def test_acknowledgements_that_wait_for_the_log_are_handled_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_ack_handle, "Slices", partial(Slices, 0.0))
    may_open = asyncio.Event()

    async def opened(*what: Any, **options: Any) -> Any:
        await may_open.wait()
        return await open_managed_ledger(*what, **options)

    monkeypatch.setattr(pending_ack_handle, "open_managed_ledger", opened)

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await broker.publish(*[b"x"] * 50)
        await client.subscribe(1, subType=SHARED, permits=50)
        await received(client, 50)
        subscription = topic.subscriptions["s"]
        [consumer] = subscription.consumers
        answers = [
            subscription.acknowledge_in_transaction(
                consumer, ONE.wire(), AckRun.of([Position(*each)]), False
            )
            for each in positions
        ]
        waiting = [len(subscription.pending_acks._waiting)]
        may_open.set()
        while waiting[-1]:
            await asyncio.sleep(0)
            waiting.append(len(subscription.pending_acks._waiting))
        assert waiting[0] == 50
        assert max(a - b for a, b in itertools.pairwise(waiting)) < 5
        await asyncio.gather(*answers)
        await end(topic, ONE, commit=True)
        assert subscription.backlog == 0

    run(tmp_path, scenario)


def test_the_log_is_replayed_though_no_consumer_comes(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b")
        await ack(client, ONE, positions[0])
        await end(topic, ONE, commit=True)
        successor = Broker(tmp_path / "unused", transactionCoordinatorEnabled=True)
        successor.node = broker.node.kill()
        async with successor as other:
            subscription = (await other.topic()).subscriptions["s"]
            await until(lambda: subscription.backlog == 1)

    run(tmp_path, scenario)


def test_the_log_of_pulsar_with_rejected_acknowledgements_is_read(tmp_path: Path) -> None:
    """Pulsar stores the record before it looks for conflicts, and may store records in batches."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await consumed(broker, client, b"a", b"b", b"c")
        assert await ack(client, ONE, positions[0]) == (None, "")
        log = topic.subscriptions["s"].pending_acks.managed_ledger
        rejected, taken = (
            pb_acks.PendingAckMetadataEntry.FromString(
                encode_record(LogRecord(Operation.ACK, TWO, False, [Ack(*each) for each in some]))
            )
            for some in ([positions[1], positions[0]], [positions[2]])
        )
        batch = pb_acks.BatchedPendingAckMetadataEntry(pending_ack_logs=[rejected, taken])
        await append(log, b"\x0e\x01\x00\x01" + batch.SerializeToString())
        topic = await unloaded(broker)
        other = await broker.client()
        await other.subscribe(1)
        assert await positions_of(other, 1) == positions[1:2]
        await end(topic, TWO, commit=True)
        assert topic.subscriptions["s"].acks.is_acknowledged(*positions[2])

    run(tmp_path, scenario)


def test_the_numbers_for_operators(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await append(
            topic.managed_ledger, *map(section, (b"a", b"b")), BATCH, section(b"c")
        )
        await client.subscribe(1, subType=FAILOVER)
        await received(client, 4)
        await ack(client, None, positions[0])
        await ack(client, ONE, positions[1])
        await ack(client, TWO, positions[2], ack_set=ALL & ~0b10)
        handle = topic.subscriptions["s"].pending_acks
        state = handle.position_state
        assert state(*positions[0], None) == "MarkDelete"
        assert state(*positions[1], None) == "PendingAck"
        assert [state(*positions[2], at) for at in (0, 1, 10)] == [
            *("NotInPendingAck", "PendingAck", "InvalidPosition")
        ]
        assert state(*positions[3], None) == "NotInPendingAck"
        assert handle.holders(*positions[2]) == [TWO]
        assert handle.cumulative_position(THREE) is None
        await ack(client, THREE, positions[2], ack_set=ALL & ~0b111, cumulative=True)
        assert handle.cumulative_position(THREE) == f"{positions[2][0]}:{positions[2][1]}:2"
        assert handle.holders(*positions[1]) == [THREE, ONE]
        assert handle.state.value == "Ready"
        assert 0 < handle.recover_start_ms <= handle.recover_end_ms
        await end(topic, ONE, commit=True)
        await end(topic, TWO, commit=False)
        assert (handle.committed, handle.aborted) == (1, 1)
        assert handle.acks.transactions() == [THREE]

    run(tmp_path, scenario)


def test_open_transactions_of_a_subscription_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        monkeypatch.setattr(limits, "PENDING_ACK_TRANSACTIONS_MAX", 2)
        monkeypatch.setattr(limits, "PENDING_ACK_WORDS_MAX", 1)
        [a, b, c] = await append(topic.managed_ledger, section(b"a"), section(b"b"), BATCH)
        [d, e] = await broker.publish(b"d", b"e")
        await client.subscribe(1)
        assert await ack(client, ONE, a) == (None, "")
        assert await ack(client, TWO, b) == (None, "")
        assert (await ack(client, THREE, d))[0] == pb.TooManyRequests
        assert await ack(client, TWO, d) == (None, "")
        assert await ack(client, TWO, c, ack_set=ALL & ~0b1) == (None, "")
        assert (await ack(client, ONE, e))[0] == pb.TooManyRequests
        await end(topic, TWO, commit=True)
        assert await ack(client, THREE, e) == (None, "")

    run(tmp_path, scenario)


def test_all_chunks_of_a_message_are_redelivered_to_one_consumer(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        chunks = [section(b"%d" % n, uuid="u", chunk_id=n, num_chunks_from_msg=3) for n in range(3)]
        positions = await append(topic.managed_ledger, *chunks)
        await client.subscribe(1)
        await client.subscribe(2)
        first = [await client.receive("message") for _ in range(3)]
        [holder] = {each.consumer_id for each in first}
        await ack(client, ONE, *positions, consumer_id=holder)
        await end(topic, ONE, commit=False)
        again = [await client.receive("message") for _ in range(3)]
        assert len({each.consumer_id for each in again}) == 1
        assert [each.message_id.entryId for each in again] == [entry for _, entry in positions]

    run(tmp_path, scenario)
