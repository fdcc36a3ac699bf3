"""A load that expects refusals: it goes on, comes again, and remembers what each consumer got.

What the broker refuses is promised nothing.  Everything else is held to the same promises as in
``torture.load``, and to one more: while a consumer is connected nothing is passed over.  Whoever
gets messages in order (an Exclusive consumer, a reader) gets each one above where it began; whoever
shares gets all in the end.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

from harness import wire
from harness.client import Connection, Position, Refused

from torture.load import KEEPER_ID, WINDOW, Load
from torture.model import ProducerModel, TopicModel, body_of, sent_as

READER_ID = 500  # of the first topic's reader; the others count on from it
RETRY_S = 0.05
GONE = (ConnectionError, OSError, TimeoutError, asyncio.TimeoutError)


@dataclass
class Session:
    """What one consumer got between its subscribe and the end of its connection."""

    topic: TopicModel
    what: str
    in_order: bool
    floor: Position  # everything above it was to come, but for ...
    acked: frozenset[Position]  # ... these, which were acknowledged one by one
    got: list[Position] = field(default_factory=list)
    seen: set[Position] = field(default_factory=set)

    def take(self, position: Position) -> None:
        """One message came."""
        self.got.append(position)
        self.seen.add(position)

    def missing(self, promised: set[Position]) -> set[Position]:
        """What should have come and did not, of all that was promised."""
        above = {p for p in promised if p > self.floor and p not in self.acked}
        return above - self.seen

    def judge(self, positions: set[Position]) -> list[str]:
        """``positions`` is all that can be read now: what was passed over, or came in disorder?"""
        if not self.in_order or not self.got:
            return []
        wrong = []
        if self.got != sorted(self.seen):
            wrong.append(f"{self.topic.name}: {self.what} got messages out of order or twice")
        passed = {p for p in self.missing(positions) if p < self.got[-1]}
        if passed:
            wrong.append(
                f"{self.topic.name}: {self.what} got {len(self.got)} messages and was passed over "
                f"{len(passed)}, first {min(passed)}"
            )
        return wrong


class StubbornLoad(Load):
    """Runs until ``stop``; connects again and again while the broker is there or comes back."""

    def __init__(self, topics: list[TopicModel], generator: random.Random) -> None:
        super().__init__(topics, generator)
        self.sessions: list[Session] = []
        self.live: dict[int, Session] = {}  # consumer id -> its session while it is connected
        self.refusals: list[str] = []
        self.sending = True
        self._closed_consumers: dict[int, asyncio.Event] = {}
        self._closed_producers: dict[int, asyncio.Event] = {}
        self._receipts = dict.fromkeys(self._producers, 0)
        self._wrong_bytes: set[str] = set()
        self._subscribed = [asyncio.Event() for _ in topics]
        for topic, event in zip(topics, self._subscribed, strict=True):
            if topic.subscribed:
                event.set()

    async def run(self, port: int) -> None:
        """Drive the broker until ``stop``."""
        while not self._stopping:
            try:
                sender = await Connection.open(port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            try:
                receiver = await Connection.open(port)
            except OSError:
                sender.close()
                continue
            sender.on_receipt = self._on_receipt
            sender.on_send_error = self._on_send_error
            sender.on_close_producer = lambda number: self._closed_producers[number].set()
            receiver.on_message = functools.partial(self._on_message, receiver)
            receiver.on_close_consumer = lambda number: self._closed_consumers[number].set()
            tasks = [
                asyncio.ensure_future(self._work(sender, receiver, number))
                for number in range(len(self.topics))
            ]
            ends = [sender.closed, receiver.closed]
            while not self._stopping and not any(end.done() for end in ends):
                await asyncio.wait(ends, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(sender.end(), receiver.end())
            self.live.clear()
            for task in (*tasks, *self._acks):
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, GONE):
                    raise result
            await asyncio.gather(*self._acks, return_exceptions=True)

    # --- what the judge asks ------------------------------------------------------------------

    async def resumed(self, timeout_s: float) -> list[str]:
        """Wait until every producer had a receipt from now on; the names of those that had none."""
        before = {n: self._receipts[n] for n in self._producers}
        deadline = time.monotonic() + timeout_s
        while True:
            late = [n for n, count in before.items() if self._receipts[n] == count]
            if not late or time.monotonic() > deadline:
                return [self._producers[n].name for n in late]
            await asyncio.sleep(0.01)

    async def settled(self, timeout_s: float) -> list[str]:
        """Wait until every consumer and reader got all that is promised to it; what is missing."""
        self.sending = False
        deadline = time.monotonic() + timeout_s
        while True:
            await asyncio.sleep(0.02)
            wrong = []
            for index, topic in enumerate(self.topics):
                promised = {p for each in topic.producers for p in each.received.values()}
                for consumer_id in (index + 1, READER_ID + index):
                    session = self.live.get(consumer_id)
                    who = "consumer" if consumer_id < READER_ID else "reader"
                    if session is None:
                        wrong.append(f"{topic.name}: the {who} cannot subscribe")
                    elif lost := session.missing(promised):
                        wrong.append(
                            f"{topic.name}: the {who} still waits for {len(lost)} messages after "
                            f"{timeout_s:g} s, first {min(lost)}, {len(session.got)} came"
                        )
            if not wrong or time.monotonic() > deadline:
                return wrong

    def judge(self, positions: dict[str, set[Position]]) -> list[str]:
        """``positions``: by topic, all that can be read now.  What did the consumers see wrong?"""
        wrong = [*self.problems, *sorted(self._wrong_bytes)]
        for session in self.sessions:
            wrong += session.judge(positions.get(session.topic.name, set()))
        return wrong

    # --- one connection -----------------------------------------------------------------------

    async def _work(self, sender: Connection, receiver: Connection, index: int) -> None:
        topic = self.topics[index]
        consuming = asyncio.ensure_future(self._consume(receiver, index))
        reading = asyncio.ensure_future(self._read(receiver, index))
        numbers = [n for n, p in self._producers.items() if p in topic.producers]
        tasks = [consuming, reading]
        try:
            await self._subscribed[index].wait()
            tasks += [asyncio.ensure_future(self._produce(sender, n)) for n in numbers]
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, GONE):
                raise result

    async def _again(self, what: str, call: Awaitable[object]) -> bool:
        """Ask once; False, after a pause, when that was refused."""
        try:
            await call
            return True
        except Refused as error:
            self.refusals.append(f"{what}: {error}")
            await asyncio.sleep(RETRY_S)
            return False

    async def _consume(self, receiver: Connection, index: int) -> None:
        topic, consumer_id = self.topics[index], index + 1
        sub_type = wire.EXCLUSIVE if topic.cumulative else wire.SHARED
        keeper_id = KEEPER_ID + index
        while True:
            closed = self._closed_consumers[consumer_id] = asyncio.Event()
            if not topic.subscribed:
                keeping = receiver.subscribe(topic.name, keeper_id, "keeper")
                if not await self._again("keeper", keeping):
                    continue
                closing = receiver.request(wire.CLOSE_CONSUMER, 2, {1: keeper_id})
                await self._again("closing the keeper", closing)
            floor = topic.acked_up_to
            session = Session(topic, "a consumer", topic.cumulative, floor, frozenset(topic.acked))
            self.live[consumer_id] = session
            subscribing = receiver.subscribe(topic.name, consumer_id, "audit", fields={3: sub_type})
            if await self._again("subscribe", subscribing):
                topic.subscribed = True
                self._subscribed[index].set()
                self.sessions.append(session)
                receiver.flow(consumer_id, 500)
                await closed.wait()
            self.live.pop(consumer_id, None)

    async def _read(self, receiver: Connection, index: int) -> None:
        """A reader from the first message on, beside the consumer."""
        topic, consumer_id = self.topics[index], READER_ID + index
        while True:
            closed = self._closed_consumers[consumer_id] = asyncio.Event()
            session = Session(topic, "a reader", True, (-1, -1), frozenset())
            self.live[consumer_id] = session
            if await self._again("reader", receiver.reader(topic.name, consumer_id)):
                self.sessions.append(session)
                receiver.flow(consumer_id, 500)
                await closed.wait()
            self.live.pop(consumer_id, None)

    async def _produce(self, sender: Connection, number: int) -> None:
        producer = self._producers[number]
        # A wait_for that ends just now may swallow a cancellation, so the connection counts too.
        while not sender.closed.done():
            closed = self._closed_producers[number] = asyncio.Event()
            creating = sender.producer(producer.topic, number, producer.name)
            if not await self._again("producer", creating):
                continue
            self._room[number] = asyncio.Semaphore(WINDOW)
            while not closed.is_set() and not sender.closed.done():
                await self._send(sender, number, producer)

    async def _send(self, sender: Connection, number: int, producer: ProducerModel) -> None:
        if not self.sending:
            await asyncio.sleep(0.02)
            return
        try:
            await asyncio.wait_for(self._room[number].acquire(), 0.1)
        except (TimeoutError, asyncio.TimeoutError):
            return
        sequence = producer.next_sequence
        producer.next_sequence += 1
        body = body_of(producer.name, sequence, self._size())
        metadata = wire.metadata(producer.name, sequence, int(time.time() * 1000))
        sender.write(wire.send(number, sequence, metadata, body))
        if sequence % 8 == 7:
            await asyncio.sleep(self.random.random() * 0.01)

    # --- what comes ---------------------------------------------------------------------------

    def _on_receipt(self, number: int, sequence: int, position: Position) -> None:
        super()._on_receipt(number, sequence, position)
        self._receipts[number] += 1

    def _on_send_error(self, number: int, sequence: int) -> None:
        self.refusals.append(f"send {sequence} of {self._producers[number].name}")
        self._room[number].release()

    def _on_ack_refused(self, error: Refused) -> None:
        self.refusals.append(f"acknowledgement: {error}")

    def _on_message(
        self, receiver: Connection, consumer_id: int, position: Position, payload: wire.Payload
    ) -> None:
        session = self.live.get(consumer_id)
        if session is None:
            return  # of a consumer that the broker has closed meanwhile
        session.take(position)
        topic = session.topic
        if sent_as(payload) is None:
            self._wrong_bytes.add(f"{topic.name}: {position} came with wrong bytes")
        if consumer_id >= READER_ID:
            receiver.flow(consumer_id, 1)
            return
        if topic.is_done(position):
            self.problems.append(
                f"{topic.name}: {position} came again although its acknowledgement was answered"
            )
        super()._on_message(receiver, consumer_id, position, payload)
