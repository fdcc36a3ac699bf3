"""The client's consumers and readers: permits, batches, lost connections, seeks, broken entries."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from typing import Any

import pytest

from pyxbroker.base.signed import words_of
from pyxbroker.client import attachment
from pyxbroker.client.client import Client
from pyxbroker.client.consumer import Consumer, ConsumerSettings
from pyxbroker.client.entries import (
    CODECS,
    EARLIEST,
    Message,
    MessageId,
    OutgoingMessage,
    Packing,
    ReceivedEntry,
    batch_section,
    has_bit,
    pack_section,
    single_section,
    split_section,
)
from pyxbroker.client.errors import BrokerRefused, ClientError, DamagedEntry
from pyxbroker.client.receive_queue import BatchAcks, ReceiveQueue
from pyxbroker.proto import PulsarApi as pb
from scripted_broker import frame_of
from scripted_server import Peer, Server, command_of, refuse, run, succeed

pytestmark = pytest.mark.usefixtures("each_loop")

TOPIC = "persistent://public/default/t"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "pauses_s", lambda: iter([0.01] * 100))


def section(*values: bytes, codec: int = 0) -> bytes:
    """A message, or a batch of several."""
    messages = [OutgoingMessage(each) for each in values]
    if len(messages) == 1:
        return single_section(messages[0], 0, Packing("p", codec=codec))
    return batch_section(messages, range(len(messages)), Packing("p", codec=codec))


def frame(
    consumer: int, entry: int, data: bytes, ack_set: list[int] | None = None, ledger: int = 3
) -> bytes:
    command = command_of(pb.BaseCommand.MESSAGE, consumer_id=consumer)
    command.message.message_id.ledgerId = ledger
    command.message.message_id.entryId = entry
    command.message.ack_set.extend(ack_set or [])
    return frame_of(command, data)


# --- without a socket -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_permits_are_never_lost_and_never_more_than_the_queue(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(1, 20)
    queue = ReceiveQueue(size)
    message = Message(MessageId(3, 0), b"", None, None)
    outstanding = queue.restart()
    for _ in range(500):
        action = chance.random()
        if action < 0.5 and outstanding > 0:
            permits = chance.randint(1, 5)
            queue.add([message] * chance.randint(0, permits), permits)
            outstanding -= permits
        elif action < 0.9 and len(queue):
            queue.pop()
        elif action < 0.92:
            outstanding = queue.restart()
        elif action < 0.95:
            outstanding += queue.drop()
        outstanding += queue.permits()
        assert outstanding <= size
        if not len(queue):
            assert outstanding > 0 or size == 1


@pytest.mark.parametrize("seed", range(20))
def test_acknowledged_messages_of_a_batch_are_left_out_of_its_ack_set(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.randint(2, 150)
    acks, left = BatchAcks(), set(range(size))
    order = list(range(size))
    chance.shuffle(order)
    for index in order:
        left.discard(index)
        words = acks.acknowledge(MessageId(3, 1, index, -1, size))
        if left:
            assert {each for each in range(size) if has_bit(words, each)} == left
    assert words == []


def test_a_cumulative_acknowledgement_within_a_batch_leaves_what_is_behind() -> None:
    acks = BatchAcks()
    acks.acknowledge(MessageId(3, 1, 8, -1, 10))
    words = acks.acknowledge_up_to(MessageId(3, 1, 5, -1, 10))
    assert [each for each in range(10) if has_bit(words, each)] == [6, 7, 9]
    assert acks.acknowledge_up_to(MessageId(3, 1, 9, -1, 10)) == []
    assert acks.acknowledge_up_to(MessageId(3, 2)) == []


def test_a_batch_that_came_in_part_is_acknowledged_with_its_last_message() -> None:
    entry = ReceivedEntry(MessageId(3, 1), 0, tuple(words_of(0b101)), section(b"a", b"b", b"c"))
    messages = entry.messages()
    assert [(each.id.batch, each.value) for each in messages] == [(0, b"a"), (2, b"c")]
    acks = BatchAcks()
    acks.arrived(messages)
    assert acks.acknowledge(messages[0].id) == [0b100]
    assert acks.acknowledge(messages[1].id) == []


@pytest.mark.parametrize("codec", CODECS.values())
def test_entries_are_unpacked(codec: int) -> None:
    for values in ((b"x" * 1000,), (b"a", b"", b"c" * 1000)):
        entry = ReceivedEntry(MessageId(3, 0), 0, (), section(*values, codec=codec))
        assert [each.value for each in entry.messages()] == list(values)


def test_an_encrypted_entry_is_one_message_as_it_is_stored() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.num_messages_in_batch = 7
    metadata.encryption_keys.add(key="k", value=b"v")
    entry = ReceivedEntry(MessageId(3, 0), 0, (), pack_section(metadata, b"secret"))
    (message,) = entry.messages()
    assert message.value == b"secret" and message.metadata.encryption_keys[0].key == "k"


@pytest.mark.parametrize("seed", range(200))
def test_damaged_entries_raise_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    whole = bytearray(section(b"a", b"b" * 50, codec=chance.choice(list(CODECS.values()))))
    # Without the checksum, which would be found wrong each time.
    data = whole[6:]
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    damaged = bytes(data[: chance.randint(0, len(data))])
    with contextlib.suppress(DamagedEntry):
        ReceivedEntry(MessageId(3, 0), 0, (), damaged).messages()
    whole[-1] ^= 1
    with pytest.raises(DamagedEntry, match="checksum"):
        ReceivedEntry(MessageId(3, 0), 0, (), bytes(whole)).messages()


def test_what_a_broker_puts_before_an_entry_is_passed_over() -> None:
    plain = single_section(OutgoingMessage(b"abc"), 7, Packing("p"))
    of_broker = pb.BrokerEntryMetadata(broker_timestamp=1, index=300).SerializeToString()
    before = b"\x0e\x02" + len(of_broker).to_bytes(4, "big") + of_broker
    metadata, payload = split_section(before + plain)
    assert (metadata.sequence_id, bytes(payload)) == (7, b"abc")


# --- against a scripted broker --------------------------------------------------------------------


async def received(consumer: Consumer) -> Message:
    found = await consumer.receive(5)
    assert found is not None
    return found


def test_permits_are_granted_again_when_half_of_them_are_used() -> None:
    async def main() -> None:
        numbers = itertools.count()

        def flow(peer: Peer, body: Any, rest: bytes) -> None:
            for _ in range(body.messagePermits):
                peer.write(frame(body.consumer_id, next(numbers), section(b"x")))

        answers = {pb.BaseCommand.FLOW: flow}
        async with Server(answers) as server, Client(server.settings()) as client:
            settings = ConsumerSettings("s", receive_queue_size=10)
            consumer = await client.consumer(TOPIC, settings)
            assert [(await received(consumer)).id.entry for _ in range(100)] == list(range(100))
            granted = [each.messagePermits for each in await server.until(pb.BaseCommand.FLOW, 21)]
            assert granted == [10] + [5] * 20

    run(main)


def test_a_reader_continues_behind_what_was_received() -> None:
    async def main() -> None:
        def flow(peer: Peer, body: Any, rest: bytes) -> None:
            # All brokers send the entry that is named, as a whole.
            start = server.said(pb.BaseCommand.SUBSCRIBE)[-1].start_message_id
            first = 0 if start.ledgerId >> 63 else start.entryId
            for entry in range(first, 3):
                values = (b"%d" % (3 * entry + index) for index in range(3))
                peer.write(frame(body.consumer_id, entry, section(*values)))

        async with Server() as server, Client(server.settings()) as client:
            server.answers[pb.BaseCommand.FLOW] = flow
            reader = await client.reader(TOPIC, EARLIEST)
            assert [(await received(reader)).value for _ in range(5)] == [
                *(b"0", b"1", b"2", b"3", b"4")
            ]
            server.peers[0].close()
            await server.until(pb.BaseCommand.SUBSCRIBE, 2)
            rest: list[bytes] = []
            while not rest or rest[-1] != b"8":
                rest.append((await received(reader)).value)
            # What was in the queue when the connection was lost may have been received still.
            assert rest[-4:] == [b"5", b"6", b"7", b"8"] and len(rest) <= 8
            assert await reader.receive(0.02) is None
            durable = [each.durable for each in server.said(pb.BaseCommand.SUBSCRIBE)]
            assert durable == [False, False]
            names = {each.subscription for each in server.said(pb.BaseCommand.SUBSCRIBE)}
            assert len(names) == 1

    run(main)


def test_a_closed_consumer_subscribes_again_where_it_was_assigned() -> None:
    async def main() -> None:
        async with Server() as first, Server() as second, Client(first.settings()) as client:
            consumer = await client.consumer(TOPIC, ConsumerSettings("s"))
            first.peers[0].write(frame(consumer.number, 0, section(b"old")))
            first.peers[0].say(
                pb.BaseCommand.CLOSE_CONSUMER,
                consumer_id=consumer.number,
                request_id=1,
                assignedBrokerServiceUrl=second.url,
            )
            await second.until(pb.BaseCommand.FLOW)
            second.peers[0].write(frame(consumer.number, 0, section(b"new")))
            assert (await received(consumer)).value == b"new"
            assert not second.said(pb.BaseCommand.LOOKUP)

    run(main)


def test_messages_from_before_a_seek_are_dropped() -> None:
    async def main() -> None:
        def seek(peer: Peer, body: Any, rest: bytes) -> None:
            peer.write(frame(body.consumer_id, 9, section(b"old")))
            peer.say(pb.BaseCommand.CLOSE_CONSUMER, consumer_id=body.consumer_id, request_id=1)
            asyncio.get_running_loop().call_later(0.05, answer, peer, body)

        def answer(peer: Peer, body: Any) -> None:
            assert len(peer.server.said(pb.BaseCommand.SUBSCRIBE)) == 1, "the seek is not over"
            succeed(peer, body, b"")

        answers = {pb.BaseCommand.SEEK: seek}
        async with Server(answers) as server, Client(server.settings()) as client:
            consumer = await client.consumer(TOPIC, ConsumerSettings("s"))
            server.peers[0].write(frame(consumer.number, 8, section(b"old")))
            await consumer.seek(MessageId(3, 2))
            (said,) = server.said(pb.BaseCommand.SEEK)
            assert (said.message_id.ledgerId, said.message_id.entryId) == (3, 2)
            await server.until(pb.BaseCommand.FLOW, 2)
            kinds = [each.type for each in server.commands]
            assert kinds.count(pb.BaseCommand.SUBSCRIBE) == 2
            server.peers[0].write(frame(consumer.number, 2, section(b"new")))
            assert (await received(consumer)).value == b"new"

    run(main)


def test_acknowledgements() -> None:
    async def main() -> None:
        def answer(peer: Peer, body: Any, rest: bytes) -> None:
            if body.HasField("request_id"):
                command = command_of(
                    pb.BaseCommand.ACK_RESPONSE,
                    consumer_id=body.consumer_id,
                    request_id=body.request_id,
                )
                if body.message_id[0].entryId == 7:
                    command.ackResponse.error, command.ackResponse.message = pb.UnknownError, "no"
                peer.write(frame_of(command))

        answers = {pb.BaseCommand.ACK: answer}
        async with Server(answers) as server, Client(server.settings()) as client:
            consumer = await client.consumer(TOPIC, ConsumerSettings("s"))
            await consumer.acknowledge(MessageId(3, 1), MessageId(3, 2, 0, -1, 2), waits=True)
            await consumer.acknowledge(MessageId(3, 5), is_cumulative=True)
            with pytest.raises(BrokerRefused):
                await consumer.acknowledge(MessageId(3, 7), waits=True)
            single, cumulative, _ = server.said(pb.BaseCommand.ACK)
            assert [list(each.ack_set) for each in single.message_id] == [[], [0b10]]
            assert cumulative.ack_type == pb.CommandAck.Cumulative
            consumer.redeliver([MessageId(3, 1)])
            (asked,) = await server.until(pb.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
            assert [each.entryId for each in asked.message_ids] == [1]

    run(main)


def test_an_entry_that_is_damaged_is_acknowledged_with_the_reason_and_passed_over() -> None:
    async def main() -> None:
        async with Server() as server, Client(server.settings()) as client:
            consumer = await client.consumer(TOPIC, ConsumerSettings("s", receive_queue_size=4))
            server.peers[0].write(frame(consumer.number, 0, b"\x0e\x01damaged"))
            server.peers[0].write(frame(consumer.number, 1, section(b"x")))
            assert (await received(consumer)).value == b"x"
            (said,) = await server.until(pb.BaseCommand.ACK)
            assert said.HasField("validation_error") and said.message_id[0].entryId == 0
            flows = [each.messagePermits for each in await server.until(pb.BaseCommand.FLOW, 2)]
            assert flows == [4, 2]

    run(main)


def test_the_end_of_a_topic_and_a_consumer_that_is_refused_end_the_waiting() -> None:
    async def main() -> None:
        async with Server() as server, Client(server.settings()) as client:
            consumer = await client.consumer(TOPIC, ConsumerSettings("s"))
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0.01)
            server.peers[0].say(pb.BaseCommand.REACHED_END_OF_TOPIC, consumer_id=consumer.number)
            assert await waiting is None
            other = await client.consumer(TOPIC, ConsumerSettings("s"))
            waiting = asyncio.create_task(other.receive())
            server.answers[pb.BaseCommand.SUBSCRIBE] = refuse(pb.AuthorizationError)
            server.peers[0].close()
            with pytest.raises(BrokerRefused, match="AuthorizationError"):
                await waiting

    run(main)


def test_tasks_that_receive_at_the_same_time_each_get_a_message() -> None:
    async def main() -> None:
        async with Server() as server, Client(server.settings()) as client:
            consumer = await client.consumer(TOPIC, ConsumerSettings("s"))
            tasks = [asyncio.create_task(consumer.receive(5)) for _ in range(3)]
            for entry in range(3):
                await asyncio.sleep(0.01)
                server.peers[0].write(frame(consumer.number, entry, section(b"x")))
            found = await asyncio.gather(*tasks)
            assert {each.id.entry for each in found if each is not None} == {0, 1, 2}
            assert await consumer.receive(0.01) is None

    run(main)


def test_a_closed_client_ends_its_consumers() -> None:
    async def main() -> None:
        async with Server() as server:
            client = Client(server.settings())
            consumer = await client.consumer(TOPIC, ConsumerSettings("s"))
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0.01)
            client.close()
            with pytest.raises(ClientError, match="closed"):
                await waiting

    run(main)
