"""Chunks on a Shared subscription: one consumer gets all of a message, and nobody waits for it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from one_bookie import append
from one_broker import Broker, Client, Message, run, section
from pyxbroker.ackset import AckSet, PositionSet
from pyxbroker.broker.dispatch import chunks
from pyxbroker.broker.dispatch.chunks import ChunkedMessages
from pyxbroker.broker.statistics import statistics
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.proto import PulsarApi as pb

Chunk = tuple[str, int, int]  # uuid, chunk id, number of chunks


async def publish(broker: Broker, *sent: Chunk) -> list[tuple[int, int]]:
    topic = await broker.topic()
    sections = [
        section(b"%s %d" % (uuid.encode(), index), uuid=uuid, num_chunks_from_msg=count,
                chunk_id=index, total_chunk_msg_size=100)
        for uuid, index, count in sent
    ]  # fmt: skip
    return await append(topic.managed_ledger, *sections)


def of(messages: list[Message], consumer_id: int) -> list[bytes]:
    return [each.data for each in messages if each.consumer_id == consumer_id]


def test_all_chunks_of_a_message_go_to_one_consumer(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for consumer_id in (1, 2):
            await client.subscribe(consumer_id)
        got = []
        for chunk in (("a", 0, 3), ("b", 0, 2), ("a", 1, 3), ("b", 1, 2), ("a", 2, 3)):
            await publish(broker, chunk)
            got += await client.messages(1)
        assert {(*of(got, 1),), (*of(got, 2),)} == {(b"a 0", b"a 1", b"a 2"), (b"b 0", b"b 1")}

    run(tmp_path, scenario)


@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared,
                                  pb.CommandSubscribe.Key_Shared])  # fmt: skip
def test_chunks_have_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    monkeypatch.setattr("pyxbroker.broker.subscriptions.consumer.RATE_WINDOW_S", 0.01)
    clock = [1_000.0]
    monkeypatch.setattr(statistics, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, subType=kind)
        await client.produce()
        topic = await broker.topic()

        async def told() -> tuple[bool, list[float], float]:
            asked = statistics.StatisticsOptions()
            found = await statistics.topic_statistics(topic, asked, "h:1", broker.node.store)
            [subscription] = found["subscriptions"].values()
            owners = [*found["publishers"], subscription, *subscription["consumers"]]
            rates = [each["chunkedMessageRate"] for each in owners]
            return found["msgChunkPublished"], rates, owners[-1]["msgRateOut"]

        assert await told() == (False, [0, 0, 0], 0)
        for index in range(3):
            # The last one is a message of its own.
            of_chunk = {} if index == 2 else {"uuid": "a", "num_chunks_from_msg": 2,
                        "chunk_id": index, "total_chunk_msg_size": 2}  # fmt: skip
            command = pb.CommandSend(producer_id=1, sequence_id=index, is_chunk=index < 2)
            client.send(command, section(b"x", **of_chunk))
        await client.messages(3)
        clock[0] += 10
        await asyncio.sleep(0.01)
        is_published, (came, went, got), messages = await told()
        assert (is_published, came) == (True, 0.2)
        assert messages > 0
        assert went == got == pytest.approx(messages * 2 / 3)

    run(tmp_path, scenario)


def test_nobody_waits_for_the_consumer_that_a_chunk_belongs_to(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.subscribe(1, permits=1)
        await publish(broker, ("a", 0, 3))
        [first] = await client.messages(1)
        await client.subscribe(2, permits=10)
        await publish(broker, ("a", 1, 3), ("b", 0, 2), ("a", 2, 3), ("b", 1, 2))
        assert of(await client.messages(2), 2) == [b"b 0", b"b 1"]
        assert "message" not in await client.quiet()
        client.flow(1, 1)
        assert of(await client.messages(1), 1) == [b"a 1"]
        client.flow(10, 1)
        assert of(await client.messages(1), 1) == [b"a 2"]
        assert first.redelivery_count == 0
        assert len((await broker.topic()).subscriptions["s"].dispatcher.chooser.chunked) == 0

    run(tmp_path, scenario)


def test_chunks_wait_for_those_that_come_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        other = await broker.client()
        await client.subscribe(1, permits=2)
        await publish(broker, ("a", 0, 4), ("a", 1, 4))
        await client.messages(2)
        await other.subscribe(2, permits=0)
        await publish(broker, ("a", 2, 4))
        client.connection.close()
        other.flow(10, 2)
        got = await other.messages(3)
        await publish(broker, ("a", 3, 4))
        got += await other.messages(1)
        assert of(got, 2) == [b"a 0", b"a 1", b"a 2", b"a 3"]

    run(tmp_path, scenario)


def test_what_is_lost_is_not_waited_for(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for consumer_id in (1, 2):
            await client.subscribe(consumer_id)
        await publish(broker, ("no beginning", 1, 2), ("no middle", 0, 3), ("no middle", 2, 3))
        await publish(broker, ("no end", 0, 2), ("whole", 0, 1))
        assert len(await client.messages(5)) == 5

    run(tmp_path, scenario)


class Reader:
    """A client that puts messages together, acknowledges whole ones, and may crash."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.parts: dict[str, list[tuple[int, tuple[int, int]]]] = {}

    async def take(self) -> list[str]:
        """Reads what is there; the messages that it has completed."""
        await self.client.quiet()
        inbox = [each for each in self.client._inbox if each[0] == "message"]
        whole = []
        for message in await self.client.messages(len(inbox)):
            uuid, index = message.data.decode().split()
            parts = self.parts.setdefault(uuid, [])
            if index == "0":
                parts.clear()
            assert int(index) == len(parts), f"{uuid}: {index} comes behind {len(parts)}"
            parts.append((int(index), message.position))
            if len(parts) == 3:
                await self.client.ack(*(position for _, position in self.parts.pop(uuid)))
                whole.append(uuid)
        return whole


@pytest.mark.parametrize("seed", range(12))
def test_consumers_come_and_go_between_chunks(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def scenario(broker: Broker) -> None:
        readers: list[Reader] = []
        waiting = [(f"m{number}", index) for number in range(12) for index in range(3)]
        # The messages of several producers, each with its chunks in order.
        lines = [[each for each in waiting if int(each[0][1:]) % 4 == line] for line in range(4)]
        done: list[str] = []
        while any(lines):
            choice = rng.random()
            if choice < 0.5:
                line = rng.choice([each for each in lines if each])
                uuid, index = line.pop(0)
                await publish(broker, (uuid, index, 3))
            elif choice < 0.65 and len(readers) < 4:
                readers.append(Reader(await broker.client()))
                await readers[-1].client.subscribe(1, permits=rng.randrange(3))
            elif choice < 0.72 and readers:
                readers.pop(rng.randrange(len(readers))).client.connection.close()
            elif readers:
                reader = rng.choice(readers)
                reader.client.flow(rng.randrange(1, 4))
                if rng.random() < 0.5:
                    done += await reader.take()
        readers.append(Reader(await broker.client()))
        await readers[-1].client.subscribe(1)
        for _ in range(4):
            for reader in readers:
                reader.client.flow(100)
                done += await reader.take()
        assert sorted(done) == sorted(f"m{number}" for number in range(12))
        subscription = (await broker.topic()).subscriptions["s"]
        assert subscription.cursor.backlog == 0

    run(tmp_path, scenario)


class Someone:
    can_deliver = True


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MESSAGES_MAX", 3)
    monkeypatch.setattr(chunks, "POSITIONS_MAX", 5)
    known = ChunkedMessages(AckSet(0, -1))
    one: Any = Someone()
    other: Any = Someone()
    for number in range(10):
        assert known.consumer_for(b"%d" % number, (0, number), False, one) is one
        assert len(known) <= 3
    one.can_deliver = False
    for number in range(10):
        known.consumer_for(b"long", (1, number), False, one if number == 0 else other)
        assert len(known) <= 3
    replay = PositionSet()
    known.release(replay)
    assert len(replay) > 0, "what waited for a message that is forgotten waits no longer"


def test_what_is_kept_of_chunks_is_bounded_over_all_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks, "PLACES_MAX", 40)
    monkeypatch.setattr(chunks, "PLACES_LEFT", 30)
    known = ChunkedMessages(AckSet(0, -1))
    one: Any = Someone()
    for number in range(20):
        for chunk in range(20):
            assert known.consumer_for(b"%d" % number, (number, chunk), False, one) is one
        assert len(known) <= 3
    # The newest one is known all the while: its chunks go to who has the others.
    assert known.consumer_for(b"19", (19, 20), False, Someone()) is one  # type: ignore[arg-type]


def test_a_long_uuid_is_kept_as_its_hash() -> None:
    known = ChunkedMessages(AckSet(0, -1))
    one: Any = Someone()
    other: Any = Someone()
    for uuid in (b"a" * 1_000, b"a" * 999 + b"b"):
        taker = one if uuid.endswith(b"a") else other
        assert known.consumer_for(uuid, (0, 0), False, taker) is taker
        assert known.consumer_for(uuid, (0, 1), False, Someone()) is taker  # type: ignore[arg-type]
    assert max(map(len, known._messages)) == 32
    known.consumer_for(b"a" * 1_000, (0, 2), True, one)
    assert len(known) == 1


class CountedAcks:
    """Nothing is acknowledged; counts how often that is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        self.asked += 1
        return False


@pytest.mark.parametrize(("messages", "each"), [(990, 20), (20, 990)])
def test_each_chunk_that_comes_again_costs_the_same_however_many_wait(
    messages: int, each: int
) -> None:
    acks, count = CountedAcks(), messages * each
    chunked = ChunkedMessages(cast(AckSet, acks))
    first, second = (cast(Consumer, SimpleNamespace(can_deliver=True)) for _ in range(2))
    for entry in range(count):
        assert chunked.consumer_for(b"%d" % (entry // each), (1, entry), False, first) is first
    chunked.forget(first)
    acks.asked = 0
    replay, taken, at_once = PositionSet(), list[int](), 0
    while chunked.waits or len(replay):
        before = len(replay)
        chunked.release(replay)
        at_once = max(at_once, len(replay) - before)
        _, first_entry, last = replay.first_range(100)
        for entry in range(first_entry, last + 1):
            assert (
                chunked.consumer_for(b"%d" % (entry // each), (1, entry), False, second) is second
            )
            taken.append(entry)
        replay.discard_range(1, first_entry, last)
    assert sorted(taken) == list(range(count))
    assert at_once <= chunks.RELEASED_PER_CALL + each
    assert acks.asked <= 4 * count
