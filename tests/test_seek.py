"""SEEK, where readers begin, and what GET_LAST_MESSAGE_ID says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append, settled, until
from one_broker import TOPIC, Broker, Client, section
from oracles import wire
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.client_memory import READER_BYTES
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import EntryBatch, Position
from pyxbroker.proto import PulsarApi as pb

EARLIEST = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
LATEST = pb.MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
EXCLUSIVE: dict[str, Any] = {"subType": pb.CommandSubscribe.Exclusive}
READER: dict[str, Any] = EXCLUSIVE | {"durable": False, "initialPosition": 0}


FOR_EVER = {"defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1}


def run(
    tmp_path: Path,
    scenario: Callable[[Broker], Awaitable[None]],
    settings: dict[str, Any] = FOR_EVER,
) -> None:
    async def main() -> None:
        async with Broker(tmp_path / "bookie", **settings) as broker:
            await scenario(broker)

    asyncio.run(main())


async def three_ledgers(broker: Broker) -> list[tuple[int, int]]:
    """Nine messages in three ledgers, three in each, the last one open."""
    positions: list[tuple[int, int]] = []
    await broker.topic(TOPIC + "-before")  # so that there is an earlier ledger
    topic = await broker.topic()
    for ledger in range(3):
        if ledger:
            former = topic.managed_ledger.current
            topic.managed_ledger.roll_over()
            await until(lambda former=former: topic.managed_ledger.current is not former)
        positions += await broker.publish(*(b"%d-%d" % (ledger, n) for n in range(3)))
    assert len({ledger_id for ledger_id, _ in positions}) == 3
    return positions


def of_time(publish_time: int) -> bytes:
    """A message that was published at a time."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time)
    return wire.payload_section(metadata.SerializeToString(), b"%d" % publish_time)


def message_id(ledger_id: int, entry_id: int, **fields: Any) -> Any:
    return pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id, **fields)


async def seek(client: Client, **fields: Any) -> Any:
    return await client.request(pb.CommandSeek(consumer_id=1, request_id=0, **fields), "success")


async def last_message(client: Client) -> Any:
    command = pb.CommandGetLastMessageId(consumer_id=1, request_id=0)
    return await client.request(command, "getLastMessageIdResponse")


# Message ids as functions of the nine positions, and the index of the first message after them.
PLACES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "earliest": (lambda p: EARLIEST, 0),
    "latest": (lambda p: LATEST, 9),
    "first": (lambda p: message_id(*p[0]), 0),
    "middle": (lambda p: message_id(*p[4]), 4),
    "first of a ledger": (lambda p: message_id(*p[3]), 3),
    "before a ledger": (lambda p: message_id(p[3][0], 2**64 - 1), 3),
    "behind the end of a ledger": (lambda p: message_id(p[2][0], 50), 3),
    "last": (lambda p: message_id(*p[8]), 8),
    "behind the last": (lambda p: message_id(p[8][0], 50), 9),
    "later ledger": (lambda p: message_id(p[8][0] + 50, 0), 9),
    "earlier ledger": (lambda p: message_id(p[0][0] - 1, 7), 0),
    "batch": (lambda p: message_id(*p[4], batch_index=3), 4),
    "chunks": (
        lambda p: message_id(*p[6], first_chunk_message_id=message_id(*p[5])),
        5,
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_seek_goes_to_a_message(tmp_path: Path, place: str) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await three_ledgers(broker)
        where, first = PLACES[place]
        client = await broker.client()
        await client.subscribe(permits=0, **EXCLUSIVE)
        assert not hasattr(await seek(client, message_id=where(positions)), "error")
        await client.receive("close_consumer")
        await client.subscribe(**EXCLUSIVE)
        found = await client.messages(9 - first)
        assert [each.position for each in found] == positions[first:]
        assert (await broker.publish(b"new"))[0] == (await client.messages(1))[0].position

    run(tmp_path, scenario)


@pytest.mark.parametrize("place", PLACES)
def test_a_reader_begins_at_a_message(tmp_path: Path, place: str) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await three_ledgers(broker)
        where, first = PLACES[place]
        client = await broker.client()
        await client.subscribe(**READER, start_message_id=where(positions))
        found = await client.messages(9 - first)
        assert [each.position for each in found] == positions[first:]
        mark = (await last_message(client)).consumer_mark_delete_position
        assert (mark.ledgerId, mark.entryId) <= positions[8]

    run(tmp_path, scenario)


def test_a_reader_without_a_message_begins_where_it_says(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await three_ledgers(broker)
        client = await broker.client()
        await client.subscribe(1, subscription="late", **READER)
        await client.subscribe(2, subscription="early", **(READER | {"initialPosition": 1}))
        found = await client.messages(9)
        assert [(each.consumer_id, each.position) for each in found] == [
            (2, position) for position in positions
        ]
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_a_seek_into_a_batch_keeps_its_first_messages_away(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        batch = section(b"batch", num_messages_in_batch=10)
        one, two, _ = await append(topic.managed_ledger, batch, batch, section(b"single"))
        client = await broker.client()
        await client.subscribe(**EXCLUSIVE)
        await client.messages(3)
        left = 0b1111111000
        await seek(client, message_id=message_id(*two, batch_index=3, ack_set=[left]))
        await client.receive("close_consumer")
        await client.subscribe(**EXCLUSIVE)
        found = [await client.receive("message") for _ in range(2)]
        assert [list(each.ack_set) for each in found] == [[left], []]
        assert (found[0].message_id.ledgerId, found[0].message_id.entryId) == two
        await seek(client, message_id=message_id(*one))
        await client.receive("close_consumer")
        await client.subscribe(**EXCLUSIVE)
        found = [await client.receive("message") for _ in range(3)]
        assert [list(each.ack_set) for each in found] == [[], [], []]

    run(tmp_path, scenario)


def test_a_seek_by_time(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        sections = [of_time(time) for time in (10, 20, 20, 30)]
        positions = await append(topic.managed_ledger, *sections)
        client = await broker.client()
        for time, first in ((0, 0), (10, 0), (11, 1), (20, 1), (21, 3), (31, 4)):
            await client.subscribe(permits=0, **EXCLUSIVE)
            await seek(client, message_publish_time=time)
            await client.receive("close_consumer")
            await client.subscribe(**EXCLUSIVE)
            found = await client.messages(4 - first)
            assert [each.position for each in found] == positions[first:], time
            client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=999))
            await client.receive("success")

    run(tmp_path, scenario)


def test_a_reader_comes_back_to_where_it_was_moved(tmp_path: Path) -> None:
    """Its client asks for the earliest message then, since it moved to a time."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        sections = [of_time(time) for time in (10, 20, 30)]
        positions = await append(topic.managed_ledger, *sections)
        client = await broker.client()
        await client.subscribe(**READER, start_message_id=LATEST)
        await seek(client, message_publish_time=20)
        await client.receive("close_consumer")
        await client.subscribe(**READER, start_message_id=EARLIEST)
        assert [each.position for each in await client.messages(2)] == positions[1:]
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=999))
        await client.receive("success")
        assert topic.all_subscriptions() == []

    run(tmp_path, scenario)


def test_a_reader_that_does_not_come_back_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyxbroker.broker.commands.seek.READER_KEPT_S", 0.05)

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe(**READER)
        await seek(client, message_id=EARLIEST)
        assert len(topic.all_subscriptions()) == 1
        await until(lambda: topic.all_subscriptions() == [])

    run(tmp_path, scenario)


def test_who_moved_a_reader_pays_for_it_until_it_is_back(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        memory = broker.service.client_memory
        topic = await broker.topic()
        client, other = await broker.client(), await broker.client()

        async def used() -> int:
            await until(lambda: not client.connection.session.tasks)
            assert memory.used == client.connection.session.memory.used
            return memory.used

        await client.subscribe(**READER, start_message_id=EARLIEST)
        open_bytes = await used()
        for _ in range(3):
            await seek(client, message_id=EARLIEST)
            assert await used() == READER_BYTES
            await client.subscribe(**READER, start_message_id=EARLIEST)
            assert await used() == open_bytes
        await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        assert await used() == 0
        assert topic.all_subscriptions() == []
        assert not hasattr(await other.subscribe(**READER), "error")

    run(tmp_path, scenario)


def test_readers_that_are_moved_and_left_are_limited_and_go_with_their_client(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        for number in range(1_000):
            answer = await client.subscribe(**READER | {"subscription": f"r{number}"})
            if hasattr(answer, "error"):
                break
            await seek(client, message_id=EARLIEST)
            await client.receive("close_consumer")
        assert answer.error == pb.NotAllowedError
        # 1 MiB of those that are left, and of a consumer.
        assert 450 < number <= (1 << 20) // READER_BYTES
        assert len(topic.all_subscriptions()) == number
        client.far.close()
        await until(lambda: client.connection.closed)
        await until(lambda: topic.all_subscriptions() == [])
        assert broker.service.client_memory.used == 0

    run(tmp_path, scenario, {"maxClientStateSizeInMBPerConnection": 1})


def test_a_reader_whose_client_goes_while_it_is_moved_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe(**READER)
        [reader] = topic.all_subscriptions()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow(*_: Any) -> None:
            begun.set()
            await go_on.wait()

        monkeypatch.setattr(reader, "seek", slow)
        client.send(pb.CommandSeek(consumer_id=1, request_id=7, message_id=EARLIEST))
        await begun.wait()
        client.far.close()
        await until(lambda: client.connection.closed)
        go_on.set()
        await until(lambda: topic.all_subscriptions() == [])

    run(tmp_path, scenario)


def test_a_seek_sends_all_consumers_away(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await three_ledgers(broker)
        client, other = [await broker.client() for _ in range(2)]
        await client.subscribe(1)
        await other.subscribe(1)
        await seek(client, message_id=message_id(*positions[8]))
        for each in (client, other):
            closed = await each.receive("close_consumer")
            assert (closed.consumer_id, closed.request_id) == (1, 2**64 - 1)
            assert each.connection.consumers == {}
        assert (await last_message(other)).error == pb.MetadataError

    run(tmp_path, scenario)


def test_while_it_is_moved_a_subscription_takes_nothing_else(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await three_ledgers(broker)
        client, other = [await broker.client() for _ in range(2)]
        await client.subscribe(1)
        await client.subscribe(2)
        for consumer_id, place in ((1, 4), (2, 6)):
            where = message_id(*positions[place])
            client.send(
                pb.CommandSeek(consumer_id=consumer_id, request_id=70 + place, message_id=where)
            )
        # The second one finds that its consumer was sent away by the first.
        error = await client.receive("error")
        assert (error.request_id, error.error) == (76, pb.MetadataError)
        assert (await client.receive("success")).request_id == 74
        topic = await broker.topic()
        subscription = topic.subscriptions["s"]
        await client.subscribe(1)
        subscription.closing = True
        answer = await seek(client, message_id=EARLIEST)
        assert answer.error == pb.UnknownError
        assert "Failed to fence subscription" in answer.message
        assert hasattr(await other.subscribe(1), "error")
        subscription.closing = False
        assert not hasattr(await other.subscribe(1), "error")

    run(tmp_path, scenario)


def test_what_is_no_seek(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for answer in (
            await seek(client, message_id=EARLIEST),
            await last_message(client),
            await client.request(pb.CommandUnsubscribe(consumer_id=1, request_id=0), "success"),
        ):
            assert (answer.error, answer.message) == (pb.MetadataError, "Consumer not found")
        await client.subscribe()
        answer = await seek(client)
        assert answer.error == pb.MetadataError
        assert "not present" in answer.message
        assert len(client.connection.consumers) == 1

    run(tmp_path, scenario)


def test_a_seek_is_kept_over_a_restart(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await three_ledgers(broker)
        client = await broker.client()
        await client.subscribe(**EXCLUSIVE)
        await client.messages(9)
        await client.ack(positions[8], cumulative=True)
        await seek(client, message_id=message_id(*positions[8]))
        topic: Topic = await broker.topic()
        await topic.close()
        client = await broker.client()
        await client.subscribe(**EXCLUSIVE)
        assert [each.position for each in await client.messages(1)] == positions[8:]

    run(tmp_path, scenario)


# --- the last message -----------------------------------------------------------------------------


def places(answer: Any) -> tuple[tuple[int, int, int], tuple[int, int]]:
    last, mark = answer.last_message_id, answer.consumer_mark_delete_position
    signed = [value - 2**64 if value >= 2**63 else value for value in (last.ledgerId, last.entryId)]
    entry = mark.entryId - 2**64 if mark.entryId >= 2**63 else mark.entryId
    return (signed[0], signed[1], last.batch_index), (mark.ledgerId, entry)


def test_the_last_message_of_a_topic_that_was_trimmed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(**EXCLUSIVE)
        positions = await three_ledgers(broker)
        topic = await broker.topic()
        await client.messages(9)
        assert places(await last_message(client)) == ((*positions[8], -1), (positions[0][0], -1))
        await client.ack(positions[8], cumulative=True)
        assert places(await last_message(client)) == ((*positions[8], -1), positions[8])
        topic.managed_ledger.roll_over()
        await until(lambda: max(topic.managed_ledger.ledgers) > positions[8][0])
        await until(lambda: len(topic.managed_ledger.ledgers) == 1)
        last, mark = places(await last_message(client))
        assert last == (-1, -1, -1)
        assert mark >= positions[8]
        [position] = await broker.publish(b"new")
        assert places(await last_message(client))[0] == (*position, -1)

    run(tmp_path, scenario, {})


def test_markers_are_not_the_last_message(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe()
        marker = section(b"marker", marker_type=10)
        await append(topic.managed_ledger, marker)
        assert places(await last_message(client))[0] == (-1, -1, -1)
        batch = section(b"batch", num_messages_in_batch=3)
        [position, *_] = await append(topic.managed_ledger, batch, marker, marker)
        assert places(await last_message(client))[0] == (*position, 2)

    run(tmp_path, scenario)


def counted_reads(topic: Topic) -> list[Position]:
    """The entries that are looked into from now on."""
    managed_ledger: Any = topic.managed_ledger  # type: ignore[attr-defined]
    read_one, read = managed_ledger.read_one, []

    async def read_and_count(position: Position) -> EntryBatch:
        read.append(position)
        found: EntryBatch = await read_one(position)
        return found

    managed_ledger.read_one = read_and_count
    return read


def test_what_is_behind_the_last_message_is_looked_into_once(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        await client.subscribe()
        marker = section(b"marker", marker_type=10)
        [first, *_] = await append(topic.managed_ledger, section(b"first"), *[marker] * 50)
        read = counted_reads(topic)
        for _ in range(20):
            assert places(await last_message(client))[0] == (*first, -1)
        assert len(read) == 51
        # Of what is stored since, nothing before it is looked into again.
        await append(topic.managed_ledger, *[marker] * 10)
        for _ in range(20):
            assert places(await last_message(client))[0] == (*first, -1)
        assert len(read) == 61
        [last, _] = await append(topic.managed_ledger, section(b"last"), marker)
        assert places(await last_message(client))[0] == (*last, -1)
        assert len(read) == 63

    run(tmp_path, scenario)


def test_all_who_ask_for_the_last_message_share_one_look(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        clients = [await broker.client() for _ in range(2)]
        for client in clients:
            await client.subscribe()
        marker = section(b"marker", marker_type=10)
        [first, *_] = await append(topic.managed_ledger, section(b"first"), *[marker] * 50)
        read = counted_reads(topic)
        for number in range(100):
            for client in clients:
                client.send(pb.CommandGetLastMessageId(consumer_id=1, request_id=number))
        for client in clients:
            for _ in range(100):
                answer = await client.receive("getLastMessageIdResponse")
                assert places(answer)[0] == (*first, -1)
        assert len(read) == 51

    run(tmp_path, scenario)


def test_who_asks_during_a_look_is_told_what_was_stored_since(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        [first] = await append(topic.managed_ledger, section(b"first"))
        read_one, begun, go_on = topic.managed_ledger.read_one, asyncio.Event(), asyncio.Event()

        async def slow(position: Position) -> EntryBatch:
            begun.set()
            await go_on.wait()
            return await read_one(position)

        topic.managed_ledger.read_one = slow
        early = asyncio.ensure_future(topic.last_message())
        await begun.wait()
        [last] = await append(topic.managed_ledger, section(b"last"))
        late = asyncio.ensure_future(topic.last_message())
        await asyncio.sleep(0)
        go_on.set()
        assert (await early, await late) == ((first, -1), (last, -1))

    run(tmp_path, scenario)


def test_the_last_message_is_looked_for_again_after_an_error(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        [first] = await append(topic.managed_ledger, section(b"first"))
        read_one = topic.managed_ledger.read_one

        async def broken(position: Position) -> EntryBatch:
            raise RuntimeError("a defect")

        topic.managed_ledger.read_one = broken
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a defect"):
                await topic.last_message()
        topic.managed_ledger.read_one = read_one
        assert await topic.last_message() == (first, -1)

    run(tmp_path, scenario)


# --- while ledgers are trimmed --------------------------------------------------------------------


def trim_at_next_read(topic: Topic, mark: tuple[int, int]) -> None:
    """Everything up to a mark is acknowledged, and gone, when the next entry is read."""
    managed_ledger = topic.managed_ledger
    read_one = managed_ledger.read_one

    async def read_and_trim(position: Position) -> EntryBatch:
        managed_ledger.read_one = read_one  # type: ignore[method-assign]
        found = await read_one(position)
        topic.subscriptions["s"].cursor.acknowledge_up_to(mark)
        await managed_ledger.finish_tasks()
        assert mark[0] not in managed_ledger.ledgers
        return found

    managed_ledger.read_one = read_and_trim  # type: ignore[method-assign]


def test_a_time_is_found_while_ledgers_are_trimmed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        managed_ledger = topic.managed_ledger
        await topic.subscription_for("s", managed_ledger.first_position(), {}, True)
        positions = []
        for n in range(30):
            positions += await append(managed_ledger, of_time(n * 10))
            await settled(managed_ledger)
        trim_at_next_read(topic, positions[9])
        assert await topic.position_before_time(200) == positions[19]

    run(tmp_path, scenario, {"managedLedgerMaxEntriesPerLedger": 5})


def test_the_last_message_is_found_while_ledgers_are_trimmed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        managed_ledger = topic.managed_ledger
        await topic.subscription_for("s", managed_ledger.first_position(), {}, True)
        positions = await three_ledgers(broker)
        await append(managed_ledger, section(b"marker", marker_type=10))
        trim_at_next_read(topic, positions[5])
        assert await topic.last_message() == (positions[8], -1)

    run(tmp_path, scenario, {})


def test_a_partition_says_which_it_is(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = TopicName.get(TOPIC)
        await broker.topics.partitioned.create(name, 2)
        client = await broker.client()
        await client.subscribe(topic=str(name.partition(1)))
        assert (await last_message(client)).last_message_id.partition == 1

    run(tmp_path, scenario)
