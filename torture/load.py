"""The load on the broker, and reading everything back after a restart."""

from __future__ import annotations

import asyncio
import random
import time

from harness import wire
from harness.client import Connection, Position, Refused

from torture.model import ProducerModel, TopicCheck, TopicModel, Verdict, body_of

WINDOW = 24  # messages of one producer without a receipt
KEEPER_ID = 1000


def make_topics(generator: random.Random, life: int) -> list[TopicModel]:
    """The topics of one data directory; odd ones are acknowledged cumulatively."""
    topics = []
    for number in range(3):
        name = f"persistent://public/default/torture-{life}-{number}"
        producers = [
            ProducerModel(f"p{life}-{number}-{n}", name) for n in range(generator.randint(1, 3))
        ]
        topics.append(TopicModel(name, number % 2 == 1, producers))
    return topics


class Load:
    """Producers and consumers that run until the broker is gone or ``stop`` is called."""

    def __init__(self, topics: list[TopicModel], generator: random.Random) -> None:
        self.topics = topics
        self.random = generator
        self._producers = dict(enumerate((p for t in topics for p in t.producers), 1))
        self._room: dict[int, asyncio.Semaphore] = {}
        self._stopping = False
        self._acks: set[asyncio.Task[None]] = set()
        self.problems: list[str] = []

    async def run(self, port: int) -> None:
        """Drive the broker; returns when the connection ends."""
        try:
            sender, receiver = await Connection.open(port), await Connection.open(port)
        except OSError:
            return
        sender.on_receipt = self._on_receipt
        receiver.on_message = lambda *message: self._on_message(receiver, *message)
        try:
            await self._subscribe(receiver)
            await asyncio.gather(*(self._produce(sender, n) for n in self._producers))
        except Refused as error:
            # Nothing of the load is anything that a broker may refuse.
            self.problems.append(f"the load was refused: {error}")
        except (ConnectionError, TimeoutError, asyncio.TimeoutError):
            if not sender.closed.done() and not self._stopping:
                await asyncio.wait([sender.closed], timeout=0.2)
        finally:
            for task in self._acks:
                task.cancel()
            await asyncio.gather(*self._acks, return_exceptions=True)
            sender.close()
            receiver.close()

    def stop(self) -> None:
        """Let ``run`` end soon although the broker lives."""
        self._stopping = True

    async def _subscribe(self, receiver: Connection) -> None:
        for consumer_id, topic in enumerate(self.topics, 1):
            # Nobody ever acknowledges on the keeper, so no ledger becomes free to be deleted.
            await receiver.subscribe(topic.name, KEEPER_ID, "keeper")
            await receiver.request(wire.CLOSE_CONSUMER, 2, {1: KEEPER_ID})
            sub_type = wire.EXCLUSIVE if topic.cumulative else wire.SHARED
            await receiver.subscribe(topic.name, consumer_id, "audit", fields={3: sub_type})
            topic.subscribed = True
            receiver.flow(consumer_id, 500)

    async def _produce(self, sender: Connection, number: int) -> None:
        producer = self._producers[number]
        room = self._room[number] = asyncio.Semaphore(WINDOW)
        await sender.producer(producer.topic, number, producer.name)
        while not sender.closed.done() and not self._stopping:
            try:
                await asyncio.wait_for(room.acquire(), 0.5)
            except asyncio.TimeoutError:
                continue
            sequence = producer.next_sequence
            producer.next_sequence += 1
            body = body_of(producer.name, sequence, self._size())
            metadata = wire.metadata(producer.name, sequence, int(time.time() * 1000))
            sender.write(wire.send(number, sequence, metadata, body))
            if sequence % 8 == 7:
                await asyncio.sleep(self.random.random() * 0.01)

    def _size(self) -> int:
        dice = self.random.random()
        if dice < 0.97:
            return self.random.randint(20, 400)
        return self.random.randint(400, 20_000 if dice < 0.995 else 300_000)

    def _on_receipt(self, number: int, sequence: int, position: Position) -> None:
        self._producers[number].received[sequence] = position
        self._room[number].release()

    def _on_message(
        self, receiver: Connection, consumer_id: int, position: Position, payload: wire.Payload
    ) -> None:
        topic = self.topics[consumer_id - 1]
        receiver.flow(consumer_id, payload.messages)
        dice = self.random.random()
        if topic.cumulative:
            if dice < 0.02:
                topic.acked_up_to = max(topic.acked_up_to, position)
                if dice < 0.005:
                    self._ack_surely_soon(receiver, topic, position)
                else:
                    receiver.ack(consumer_id, [position], cumulative=True)
        elif dice < 0.5:
            topic.acked.add(position)
            if dice < 0.05:
                self._ack_surely_soon(receiver, topic, position)
            else:
                receiver.ack(consumer_id, [position])

    def _ack_surely_soon(self, to: Connection, topic: TopicModel, position: Position) -> None:
        task = asyncio.ensure_future(self._ack_surely(to, topic, position))
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    async def _ack_surely(self, to: Connection, topic: TopicModel, position: Position) -> None:
        consumer_id = self.topics.index(topic) + 1
        try:
            await to.ack_with_receipt(consumer_id, [position], cumulative=topic.cumulative)
        except (ConnectionError, TimeoutError, asyncio.TimeoutError):
            return
        except Refused as error:
            self._on_ack_refused(error)
            return
        if topic.cumulative:
            topic.acked_up_to_with_receipt = max(topic.acked_up_to_with_receipt, position)
        else:
            topic.acked_with_receipt.add(position)

    def _on_ack_refused(self, error: Refused) -> None:
        self.problems.append(f"an acknowledgement was refused: {error}")


async def time_to_ready(port: int, topic: str, started_at: float) -> float:
    """Seconds from exec until CONNECTED and a topic that can be read."""
    while True:
        if time.monotonic() - started_at > 20:
            raise TimeoutError("the broker was not ready within 20 s")
        try:
            connection = await Connection.open(port)
        except OSError:
            await asyncio.sleep(0.003)
            continue
        try:
            await connection.reader(topic, 1)
            await connection.last_position(1)
            return time.monotonic() - started_at
        except (Refused, ConnectionError):
            await asyncio.sleep(0.01)
        finally:
            connection.close()


async def verify(
    port: int,
    topics: list[TopicModel],
    verdict: Verdict,
    acks_are_durable: bool,
    checks: dict[str, TopicCheck] | None = None,
) -> None:
    """Read every topic back, drain its subscription, and put what is wrong into the verdict.

    ``checks`` takes what was read, by topic.
    """
    connection = await Connection.open(port)
    try:
        for topic in topics:
            verdict.promised += sum(len(p.received) for p in topic.producers)
            check = await read_back(connection, topic)
            verdict.read_back += len(check.positions)
            if topic.subscribed:
                await drain(connection, topic, check, verdict)
            verdict.problems += check.finish(acks_are_durable)
            if checks is not None:
                checks[topic.name] = check
    finally:
        connection.close()


async def read_back(connection: Connection, topic: TopicModel, idle_s: float = 15) -> TopicCheck:
    """Read all of a topic by a reader, until ``idle_s`` pass without a message."""
    check = TopicCheck(topic)
    progress = asyncio.Event()

    def take(consumer_id: int, position: Position, payload: wire.Payload) -> None:
        check.take(position, payload)
        connection.flow(consumer_id, payload.messages)
        progress.set()

    connection.on_message = take
    await connection.reader(topic.name, 1)
    last = await connection.last_position(1)
    connection.flow(1, 1000)
    while last is not None and last not in check.positions:
        progress.clear()
        try:
            await asyncio.wait_for(progress.wait(), idle_s)
        except asyncio.TimeoutError:
            check.stopped_before = last
            break
    connection.on_message = lambda *_: None
    await connection.request(wire.CLOSE_CONSUMER, 2, {1: 1})
    return check


async def drain(
    connection: Connection, topic: TopicModel, check: TopicCheck, verdict: Verdict
) -> None:
    """Take all that the durable subscription still has, and acknowledge it."""
    wanted = {position for position in check.positions if topic.wants(position)}
    progress = asyncio.Event()

    def take(consumer_id: int, position: Position, payload: wire.Payload) -> None:
        check.delivered.add(position)
        wanted.discard(position)
        connection.flow(consumer_id, payload.messages)
        progress.set()

    connection.on_message = take
    sub_type = wire.EXCLUSIVE if topic.cumulative else wire.SHARED
    await connection.subscribe(topic.name, 2, "audit", fields={3: sub_type})
    connection.flow(2, 1000)
    while wanted or progress.is_set():
        progress.clear()
        try:
            await asyncio.wait_for(progress.wait(), 10 if wanted else 0.02)
        except asyncio.TimeoutError:
            break
    connection.on_message = lambda *_: None
    verdict.redelivered += len(check.delivered & topic.acked)
    if check.delivered and not wanted:
        if topic.cumulative:
            topic.acked_up_to = max(topic.acked_up_to, *check.delivered)
            connection.ack(2, [topic.acked_up_to], cumulative=True)
        else:
            topic.acked |= check.delivered
            connection.ack(2, sorted(check.delivered))
    await connection.request(wire.CLOSE_CONSUMER, 2, {1: 2})
