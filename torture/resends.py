"""A load of producers that come back and send again, on topics with deduplication.

Each producer has a list of entries, single messages and batches, whose sequence ids have gaps. It
leaves now and then, politely or with messages under way, and comes back under its name: it goes on
after what the broker says was its last id, or it sends again from somewhere before its first
message without a receipt. One topic's producers want it each for themselves, in turn.

What is stored of a producer is then a beginning of its list, each entry once; what it was told of
its last id is in the list, and not before what it has a receipt for; and no epoch is given twice.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness import wire
from harness.client import Connection, Position, Refused

from torture.load import WINDOW, Load, verify
from torture.model import ProducerModel, TopicCheck, TopicModel, Verdict, body_of
from torture.rounds import Torture

EXCLUSIVE, WAIT, FENCING = 1, 2, 3  # access modes
PRODUCER_BUSY, PRODUCER_FENCED = 16, 25
LAST_SEQUENCE_ID, EPOCH = 3, 5  # fields of PRODUCER_SUCCESS
NOWHERE = (wire.MAX_UINT64, wire.MAX_UINT64)  # where a duplicate is
GONE = (ConnectionError, OSError, TimeoutError, asyncio.TimeoutError)
RETRY_S = 0.01
ENTRIES_MAX = 60  # of one visit
BACK_MAX = 20  # entries with a receipt that are sent again

# Snapshots and ledgers' ends come often.
SETTINGS = {
    "brokerDeduplicationEnabled": "true",
    "brokerDeduplicationEntriesInterval": "20",
    "managedLedgerDefaultMarkDeleteRateLimit": "50",
    "managedLedgerMaxEntriesPerLedger": "400",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}


@dataclass(frozen=True)
class Entry:
    """A message, or a batch."""

    first: int  # sequence id
    messages: int
    size: int

    @property
    def last(self) -> int:
        """Its highest sequence id."""
        return self.first + self.messages - 1


@dataclass
class ResendingProducer(ProducerModel):
    """What one producer has sent, and what it was told; over any number of connections."""

    entries: list[Entry] = field(default_factory=list)
    answered: int = 0  # so many of them are stored
    epoch: int | None = None  # that it had last
    trusted: list[int] = field(default_factory=list)  # where it went on as the broker said
    _first: dict[int, int] = field(default_factory=dict)  # sequence id -> index of its entry
    _last: dict[int, int] = field(default_factory=lambda: {-1: -1})

    def add(self, entry: Entry) -> None:
        """One more is sent."""
        self._first[entry.first] = self._last[entry.last] = len(self.entries)
        self.entries.append(entry)
        self.next_sequence = entry.last + 1

    def take_receipt(self, sequence: int, position: Position) -> str | None:
        """A SEND was answered; what is wrong with that."""
        index = self._first.get(sequence)
        if index is None:
            return f"{self.name}: a receipt for {sequence}, which was never sent"
        self.answered = max(self.answered, index + 1)
        if position != NOWHERE and self.received.setdefault(sequence, position) != position:
            return f"{self.name}: {sequence} is stored twice, at {self.received[sequence]} as well"
        return None

    def take_last_id(self, last: int) -> str | None:
        """The broker said which id was the last; what is wrong with that."""
        index = self._last.get(last)
        if index is None or index + 1 < self.answered:
            wanted = [each.last for each in self.entries[max(0, self.answered - 1) :]]
            return f"{self.name}: the last id is {last}, not one of {wanted[:5]}"
        return None

    def after(self, last: int) -> int:
        """The index of what comes after an id."""
        return self._last[last] + 1

    def judge(self, read: list[tuple[int, Position]]) -> list[str]:
        """The first sequence ids of all entries that are stored, in their order."""
        stored = [sequence for sequence, _ in read]
        wanted = [each.first for each in self.entries[: len(stored)]]
        wrong = []
        if stored != wanted:
            pairs = zip(stored, wanted, strict=False)
            at = next((n for n, (here, there) in enumerate(pairs) if here != there), len(wanted))
            passed = self._first.get(stored[at], at) - at
            wrong.append(
                f"{self.name}: after {at} entries, the last at {read[at - 1][1] if at else None},"
                f" {stored[at]} is stored at {read[at][1]} and {passed} of {len(self.entries)}"
                f" before it are not; {self.answered} were answered, and what the broker called"
                f" the last was before {self.trusted[-3:]}"
            )
        if len(stored) < self.answered:
            wrong.append(f"{self.name}: {self.answered} were answered, {len(stored)} are stored")
        self.answered = max(self.answered, len(stored))
        return wrong


@dataclass
class ResendTopic(TopicModel):
    """A topic, perhaps one that is one producer's at a time."""

    exclusive: bool = False
    epochs: dict[int, str] = field(default_factory=dict)  # epoch -> the producer that has it

    def take_epoch(self, name: str, asked: int | None, epoch: int, floor: int) -> str | None:
        """A producer got an epoch; ``floor`` was the highest when it asked. What is wrong."""
        if epoch == asked and self.epochs.get(epoch) == name:
            return None
        if epoch in self.epochs or epoch <= floor:
            return f"{self.name}: epoch {epoch} for {name} after {floor}"
        self.epochs[epoch] = name
        return None


def make_topics(generator: random.Random, life: int) -> list[ResendTopic]:
    """The topics of one data directory; the second one is for one producer at a time."""
    topics = []
    for number in range(3):
        name = f"persistent://public/default/resends-{life}-{number}"
        producers: list[ProducerModel] = [
            ResendingProducer(f"p{life}-{number}-{n}", name) for n in range(generator.randint(2, 3))
        ]
        topics.append(ResendTopic(name, number == 1, producers, exclusive=number == 1))
    return topics


class ResendLoad(Load):
    """Producers that come and go until the broker is gone or ``stop`` is called."""

    def __init__(
        self, topics: list[ResendTopic], generator: random.Random, verdict: Verdict
    ) -> None:
        super().__init__(list(topics), generator)
        self._topic_of = {topic.name: topic for topic in topics}
        self._verdict = verdict
        self._port = 0

    async def run(self, port: int) -> None:
        """Drive the broker; returns when it is gone."""
        self._port = port
        await super().run(port)

    def _count(self, what: str) -> None:
        self._verdict.counts["resends", what] += 1

    def _note(self, wrong: str | None) -> None:
        if wrong is not None:
            self.problems.append(wrong)

    async def _produce(self, sender: Connection, number: int) -> None:
        producer = self._producers[number]
        assert isinstance(producer, ResendingProducer)
        while not sender.closed.done() and not self._stopping:
            try:
                await self._visit(producer)
            except Refused as error:
                # Its connection of before, or another one, is still there; or it came too late.
                if error.code not in (PRODUCER_BUSY, PRODUCER_FENCED):
                    raise
                producer.epoch = None
                await asyncio.sleep(RETRY_S)
            except GONE:
                await asyncio.sleep(RETRY_S)

    async def _visit(self, producer: ResendingProducer) -> None:
        connection = await Connection.open(self._port)
        try:
            last = await self._enter(producer, connection)
            trusts = self.random.random() < 0.3
            back = self.random.randint(0, BACK_MAX)
            at = producer.after(last) if trusts else max(0, producer.answered - back)
            if trusts:
                producer.trusted.append(at)
            visit = _Visit(self, producer, connection)
            await visit.send(at, self.random.randint(1, ENTRIES_MAX))
            if self.random.random() < 0.5 and await visit.settle():
                await connection.request(wire.CLOSE_PRODUCER, 2, {1: 1})
        finally:
            connection.close()

    async def _enter(self, producer: ResendingProducer, connection: Connection) -> int:
        """Opens the producer; what it has sent last."""
        topic = self._topic_of[producer.topic]
        asked = producer.epoch if self.random.random() < 0.5 else None
        fields: dict = {}
        if topic.exclusive:
            fields = {10: self.random.choice((EXCLUSIVE, EXCLUSIVE, WAIT, FENCING))}
            fields |= {} if asked is None else {11: asked}
        floor = max(topic.epochs, default=-1)
        answer = await connection.producer(producer.topic, 1, producer.name, fields=fields)
        if topic.exclusive:
            producer.epoch = answer.number(EPOCH)
            self._note(topic.take_epoch(producer.name, asked, producer.epoch, floor))
            self._count("epochs")
        last = answer.number(LAST_SEQUENCE_ID)
        last -= 1 << 64 if last >> 63 else 0
        self._note(producer.take_last_id(last))
        self._count("visits")
        return last if producer.take_last_id(last) is None else -1

    def next_entry(self, producer: ResendingProducer) -> Entry:
        """One more that was never sent."""
        gap = self.random.choice((0, 0, 0, 1, 7))
        messages = self.random.choice((1, 1, 1, 5))
        entry = Entry(producer.next_sequence + gap, messages, self._size() + 100)
        producer.add(entry)
        return entry

    def on_receipt(self, producer: ResendingProducer, sequence: int, position: Position) -> None:
        """A SEND was answered."""
        self._note(producer.take_receipt(sequence, position))
        self._count("duplicates" if position == NOWHERE else "stored")

    @property
    def stopping(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._stopping


class _Visit:
    """One connection of a producer."""

    def __init__(
        self, load: ResendLoad, producer: ResendingProducer, connection: Connection
    ) -> None:
        self._load = load
        self._producer = producer
        self._connection = connection
        self._room = asyncio.Semaphore(WINDOW)
        self._is_over = False
        connection.on_receipt = self._on_receipt
        connection.on_send_error = lambda *_: self._end()
        connection.on_close_producer = lambda _: self._end()
        connection.closed.add_done_callback(lambda _: self._end())

    def _on_receipt(self, _: int, sequence: int, position: Position) -> None:
        self._load.on_receipt(self._producer, sequence, position)
        self._room.release()

    def _end(self) -> None:
        self._is_over = True
        for _ in range(WINDOW):
            self._room.release()

    async def send(self, start: int, count: int) -> None:
        """So many entries from an index on."""
        producer = self._producer
        for index in range(start, start + count):
            await asyncio.wait_for(self._room.acquire(), 15)
            if self._is_over or self._load.stopping:
                return
            known = index < len(producer.entries)
            entry = producer.entries[index] if known else self._load.next_entry(producer)
            self._connection.write(_frame(producer.name, entry))
            if index % 8 == 7:
                await asyncio.sleep(self._load.random.random() * 0.01)

    async def settle(self) -> bool:
        """Whether all that was sent is answered."""
        for _ in range(WINDOW):
            if self._is_over:
                return False
            await asyncio.wait_for(self._room.acquire(), 15)
        return not self._is_over


@functools.lru_cache(maxsize=256)
def _frame(name: str, entry: Entry) -> bytes:
    """The same bytes each time, as a client sends them that has kept them."""
    batch = {11: entry.messages, 24: entry.last} if entry.messages > 1 else {}
    send_fields = {3: entry.messages, 6: entry.last} if entry.messages > 1 else {}
    metadata = wire.metadata(name, entry.first, int(time.time() * 1000), fields=batch)
    body = body_of(name, entry.first, entry.size)
    return wire.send(1, entry.first, metadata, body, send_fields=send_fields)


class ResendTorture(Torture):
    """Rounds of kills or power cuts with this load."""

    name = "resends"
    settings = SETTINGS

    def __init__(self, options: argparse.Namespace, workspace: Path, cut: bool) -> None:
        super().__init__(options, workspace, cut)
        self._topics: list[ResendTopic] = []

    def make_topics(self) -> list[TopicModel]:
        """Those of a data directory."""
        self._topics = make_topics(self.random, self.life)
        return list(self._topics)

    def make_load(self) -> Load:
        """What works until the broker ends."""
        return ResendLoad(self._topics, self.random, self.verdict)

    async def check(self, port: int, acks_are_durable: bool) -> None:
        """Asks for everything, and puts what is wrong into the verdict."""
        checks: dict[str, TopicCheck] = {}
        await verify(port, self.topics, self.verdict, acks_are_durable, checks)
        for topic in self._topics:
            for producer in topic.producers:
                assert isinstance(producer, ResendingProducer)
                read = checks[topic.name].read.get(producer.name, [])
                self.verdict.problems += producer.judge(read)
