"""Acknowledgements of single messages of batches: remembered, sent along, stored, restored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import one_broker
from one_bookie import LIMITS, Node, append, until
from one_broker import Broker, Client, section
from pyxbroker.ackset import AckSet
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import AckRun, Position
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.proto import PulsarApi as pb

BATCH = section(b"ten messages", num_messages_in_batch=10)
ALL = (1 << 10) - 1
EXCLUSIVE = pb.CommandSubscribe.Exclusive
SHARED = pb.CommandSubscribe.Shared
KEY_SHARED = pb.CommandSubscribe.Key_Shared


def run(tmp_path: Path, scenario: Callable[[Broker, Client, Topic], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Broker(tmp_path / "bookie") as broker:
            topic = await broker.topic()
            await scenario(broker, await broker.client(), topic)

    asyncio.run(main())


async def ack(
    client: Client,
    *ids: tuple[tuple[int, int], list[int]],
    consumer_id: int = 1,
    batch_size: int = 10,
    cumulative: bool = False,
) -> None:
    """Acknowledges messages of batches, by what is left of them, and waits for the receipt."""
    kind = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    command = pb.CommandAck(consumer_id=consumer_id, ack_type=kind)
    for position, words in ids:
        command.message_id.add(
            ledgerId=position[0], entryId=position[1], ack_set=words, batch_size=batch_size
        )
    answer = await client.request(command, "ackResponse")
    assert not answer.HasField("error"), answer.message


def redeliver(client: Client, consumer_id: int = 1) -> None:
    client.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer_id))


async def next_batch(client: Client) -> tuple[int, tuple[int, int], list[int]]:
    """(consumer id, position, ack set) of the next MESSAGE."""
    message = await client.receive("message")
    position = (message.message_id.ledgerId, message.message_id.entryId)
    return message.consumer_id, position, list(message.ack_set)


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE])
def test_what_is_left_comes_again_with_an_ack_set(tmp_path: Path, kind: int) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position, other] = await append(topic.managed_ledger, BATCH, BATCH)
        await client.subscribe(1, permits=100, subType=kind)
        assert await next_batch(client) == (1, position, [])
        assert await next_batch(client) == (1, other, [])
        consumer = client.connection.consumers[1]
        noted = kind == SHARED  # of Exclusive nobody counts it, as in Pulsar
        await ack(client, (position, [ALL & ~0b1]))
        await ack(client, (position, [ALL & ~0b110]))
        assert topic.subscriptions["s"].cursor.backlog == 2
        assert (consumer.permits, consumer.unacked_messages) == (80, 17 * noted)
        redeliver(client)
        assert await next_batch(client) == (1, position, [ALL & ~0b111])
        assert await next_batch(client) == (1, other, [])
        assert (consumer.permits, consumer.unacked_messages) == (63, 17 * noted)
        await ack(client, (position, [0b111]))
        assert topic.subscriptions["s"].cursor.acks.mark_delete == position
        assert consumer.unacked_messages == 10 * noted
        redeliver(client)
        assert (await next_batch(client))[1] == other
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_a_batch_goes_on_to_another_consumer_without_what_is_acknowledged(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await append(topic.managed_ledger, BATCH)
        await client.subscribe(1)
        await next_batch(client)
        await ack(client, (position, [ALL & ~0b1111]))
        await client.subscribe(2)
        await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        assert await next_batch(client) == (2, position, [ALL & ~0b1111])
        consumer = client.connection.consumers[2]
        assert consumer.unacked_messages == 6
        await ack(client, (position, []), consumer_id=2)
        assert (consumer.unacked_messages, topic.subscriptions["s"].cursor.backlog) == (0, 0)

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE, KEY_SHARED])
@pytest.mark.parametrize("count", [2**31 - 1, 2**31 - 63, 0, -1, -(2**31)])
def test_a_batch_with_an_absurd_count_is_not_lost_when_a_part_of_it_is_acknowledged(
    tmp_path: Path, count: int, kind: int
) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        absurd = section(b"a few messages", num_messages_in_batch=count)
        [position] = await append(topic.managed_ledger, absurd)
        await client.subscribe(1, subType=kind)
        assert await next_batch(client) == (1, position, [])
        consumer = client.connection.consumers[1]
        noted = kind != EXCLUSIVE
        assert consumer.unacked_messages == max(count, 1) * noted
        await ack(client, (position, [ALL & ~0b1111]))
        await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        await client.subscribe(2, subType=kind)
        assert await next_batch(client) == (2, position, [ALL & ~0b1111])
        assert client.connection.consumers[2].unacked_messages == 6 * noted
        assert topic.subscriptions["s"].cursor.backlog == 1

    run(tmp_path, scenario)


def test_words_behind_the_end_of_a_batch_are_not_sent_along(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await append(topic.managed_ledger, BATCH)
        await client.subscribe(1)
        await next_batch(client)
        await ack(client, (position, [0b11, *[0] * 4000, 1]))
        redeliver(client)
        assert await next_batch(client) == (1, position, [0b11])
        assert client.connection.consumers[1].unacked_messages == 2

    run(tmp_path, scenario)


def test_messages_acknowledged_elsewhere_are_settled_where_the_batch_is(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await append(topic.managed_ledger, BATCH)
        await client.subscribe(1)
        await client.subscribe(2)
        holder = (await next_batch(client))[0]
        other = 3 - holder
        await ack(client, (position, [0b11]), consumer_id=other)
        assert client.connection.consumers[holder].unacked_messages == 2
        await ack(client, (position, [0b100]), consumer_id=other)
        assert client.connection.consumers[holder].unacked_messages == 0
        assert client.connection.consumers[holder].pending_positions() == []
        assert topic.subscriptions["s"].cursor.backlog == 0

    run(tmp_path, scenario)


def test_single_messages_unblock_a_consumer(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position, other] = await append(topic.managed_ledger, BATCH, BATCH)
        await client.subscribe(1, permits=0)
        consumer = client.connection.consumers[1]
        consumer.set_unacked_max(10)
        client.flow(100, 1)
        await next_batch(client)
        assert await client.quiet() == []
        await ack(client, (position, [ALL & ~0b1111]))
        assert await client.quiet() == [], "more than half of what it may have is left"
        await ack(client, (position, [ALL & ~0b11111]))
        assert (await next_batch(client))[1] == other

    run(tmp_path, scenario)


def test_a_cumulative_ack_within_a_batch_keeps_what_is_behind_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await append(topic.managed_ledger, BATCH, BATCH, BATCH)
        await client.subscribe(1, subType=EXCLUSIVE)
        await ack(client, (positions[1], [ALL & ~0b111]), cumulative=True)
        cursor = topic.subscriptions["s"].cursor
        assert cursor.acks.mark_delete == positions[0]
        redeliver(client)
        for _ in range(3):
            await next_batch(client)
        assert await next_batch(client) == (1, positions[1], [ALL & ~0b111])
        assert await next_batch(client) == (1, positions[2], [])
        # Behind the mark, and behind what was acknowledged: nothing changes.
        await ack(client, (positions[0], [0b1]), cumulative=True)
        await ack(client, (positions[1], [ALL & ~0b1]), cumulative=True)
        assert cursor.acks.mark_delete == positions[0]
        assert cursor.acks.unacked_in_batch(*positions[1]) == 7
        await ack(client, (positions[1], []), cumulative=True)
        assert (cursor.acks.mark_delete, cursor.acks.partial) == (positions[1], 0)

    run(tmp_path, scenario)


def test_an_ack_set_without_any_message_of_the_batch_acknowledges_it(tmp_path: Path) -> None:
    """A client may leave bits that no message has; the batch is not sent for them."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await append(topic.managed_ledger, BATCH)
        await client.subscribe(1)
        await next_batch(client)
        await ack(client, (position, [1 << 10, 1]), batch_size=0)
        assert topic.subscriptions["s"].cursor.backlog == 1
        redeliver(client)
        assert await client.quiet() == []
        assert topic.subscriptions["s"].cursor.backlog == 0

    run(tmp_path, scenario)


def test_messages_of_unknown_positions_are_ignored(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        [position] = await append(topic.managed_ledger, BATCH)
        await client.subscribe(1)
        ledger, entry = position
        unknown = [(ledger, entry + 1), (ledger + 1, 0), (ledger, 1 << 62), (1 << 62, 0)]
        await ack(client, *[(each, [1]) for each in unknown])
        await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        await client.subscribe(1, subType=EXCLUSIVE)
        for each in unknown:
            await ack(client, (each, [1]), cumulative=True)
        acks = topic.subscriptions["s"].cursor.acks
        assert (acks.mark_delete, acks.partial) == (topic.managed_ledger.first_position(), 0)

    run(tmp_path, scenario)


# --- what survives --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "close to the ledger", "kill"])
def test_single_messages_survive(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        limits = LIMITS._replace(ranges_as_list_max=1000 if how == "close" else 2)
        async with Node(tmp_path / "bookie") as node:
            managed_ledger = await node.open(limits)
            cursor = Cursor(managed_ledger, "c", managed_ledger.first_position())
            managed_ledger.cursors["c"] = cursor
            await cursor.create_node()
            positions = await append(managed_ledger, *[BATCH] * 20)
            run = AckRun()
            for n, position in enumerate(positions[4:]):
                run.add(*position, [1 << n, -1, n])
            assert cursor.acknowledge(run) == 16
            assert cursor.acknowledge_up_to(positions[3], [0, 0b101])
            expected = {position: cursor.acks.ack_set(*position) for position in positions}
            if how == "kill":
                await cursor.persist()
                successor = node.kill()
            else:
                await managed_ledger.close()
                successor = Node(node.directory, node.tree)
        async with successor as node:
            acks = (await node.open(limits)).cursors["c"].acks
            assert acks.mark_delete == positions[2]
            assert {position: acks.ack_set(*position) for position in positions} == expected
            assert (acks.holes, acks.partial) == (0, 17)
            assert acks.ack_set(*positions[3]) == [0, 0b101]
            assert acks.ack_set(*positions[4]) == [1, -1]

    asyncio.run(scenario())


def test_what_is_known_of_many_batches_is_forgotten_in_later_turns(tmp_path: Path) -> None:
    """Of those that a cumulative acknowledgement passes, and of all at a seek."""

    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await append(topic.managed_ledger, *[BATCH] * 2500)
        await client.subscribe(1, subType=EXCLUSIVE)
        cursor = topic.subscriptions["s"].cursor

        def acknowledge_parts() -> AckSet:
            run = AckRun()
            for position in positions:
                run.add(*position, [0b11], 10)
            assert cursor.acknowledge(run) == 2500
            acks: AckSet = cursor.acks
            return acks

        acks = acknowledge_parts()
        assert cursor.acknowledge_up_to(positions[-1]) == 2500
        assert cursor.backlog == 0
        assert 0 < acks.partial < 2500
        await until(lambda: acks.partial == 0)
        cursor.reset(Position(positions[0][0], -1))
        acks = acknowledge_parts()
        cursor.reset(Position(positions[0][0], -1))
        assert cursor.acks.partial == 0
        assert 0 < acks.partial < 2500
        await until(lambda: acks.partial == 0)

    run(tmp_path, scenario)


def test_a_seek_into_a_batch_leaves_out_what_is_before(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        positions = await append(topic.managed_ledger, BATCH, BATCH, BATCH)
        await client.subscribe(1)
        cursor = topic.subscriptions["s"].cursor
        cursor.acknowledge_up_to(positions[2])
        ledger, entry = positions[1]
        cursor.reset(Position(ledger, entry - 1), [ALL & ~0b11])
        assert cursor.backlog == 2
        assert cursor.acks.ack_set(*positions[1]) == [ALL & ~0b11]
        cursor.reset(topic.managed_ledger.last_confirmed, [0b1])
        assert (cursor.backlog, cursor.acks.partial) == (0, 0), "there is no batch to leave out of"

    run(tmp_path, scenario)


def test_who_asks_for_a_receipt_is_told_when_a_part_of_a_batch_is_not_remembered(
    tmp_path: Path,
) -> None:
    left = [-1] * 4096  # 32 KiB of each batch

    async def scenario(broker: Broker) -> None:
        broker.node.store.is_shared = False  # else each state is one entry, too long for the bookie
        topic = await broker.topic()
        placed = await append(topic.managed_ledger, *[BATCH] * 50)
        client = await broker.client()
        await client.subscribe(1, subType=SHARED)
        acks = topic.subscriptions["s"].acks
        answers = []
        for number, position in enumerate(placed):
            command = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
            # Of one the client wants no receipt: it gets no answer.
            command.message_id.add(ledgerId=position[0], entryId=position[1], ack_set=left)
            if number == 45:
                client.send(command)
            else:
                answers.append(await client.request(command, "ackResponse"))
        refused = [each for each in answers if each.HasField("error")]
        assert 10 < len(refused) == len(answers) - acks.partial == acks.refused - 1
        assert {each.error for each in refused} == {pb.TooManyRequests}
        assert "maxBatchAckStateSizeInMB" in refused[0].message
        # What the same ACK names besides is acknowledged.
        command = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
        command.message_id.add(ledgerId=placed[48][0], entryId=placed[48][1])
        command.message_id.add(ledgerId=placed[49][0], entryId=placed[49][1], ack_set=left)
        answer = await client.request(command, "ackResponse")
        assert answer.error == pb.TooManyRequests
        assert acks.is_acknowledged(*placed[48]) and not acks.is_acknowledged(*placed[49])
        assert "error" not in [kind for kind in await client.quiet() if kind != "message"]

    one_broker.run(tmp_path, scenario, maxBatchAckStateSizeInMB=1)


def test_of_a_closed_consumer_only_an_ack_that_wants_an_answer_has_one(tmp_path: Path) -> None:
    async def scenario(broker: Broker, client: Client, topic: Topic) -> None:
        (position,) = await broker.publish(b"a")
        await client.subscribe(1)
        # As those of a subscription are that is disconnected, until their clients are told.
        client.connection.consumers[1].closed = True
        ids = [pb.MessageIdData(ledgerId=position[0], entryId=position[1])]
        client.send(pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids))
        answer = await client.ack(position)
        assert (answer.error, answer.message) == (pb.ConsumerNotFound, "The consumer is closed.")
        assert all(name != "ackResponse" for name, _, _ in client._inbox)
        client.connection.consumers[1].closed = False

    run(tmp_path, scenario)
