"""What the broker has promised so far, and the check that it kept every promise.

The rules, for one data directory over any number of kills and cuts:

* every message with a SEND_RECEIPT is read back, at the position the receipt named;
* per producer the sequence numbers that are read rise; nothing comes twice;
* every payload is what that producer sent under that number;
* a subscription that was confirmed delivers every such message that no consumer acknowledged;
* it delivers none that was acknowledged with a receipt; another broker than pyxbroker is held to
  that only after a clean stop.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
from dataclasses import dataclass, field

from harness import wire
from harness.client import Position


def body_of(producer: str, sequence: int, size: int) -> bytes:
    """The payload: who sent it under which number and size, then bytes those determine."""
    head = f"{producer}:{sequence}:{size}:".encode()
    seed = hashlib.blake2b(head).digest()
    return (head + seed * (size // len(seed) + 1))[: max(size, len(head))]


def sent_as(payload: wire.Payload) -> tuple[str, int] | None:
    """Who sent these bytes under which number; None when nobody sent such bytes."""
    name, number, size, _ = [*payload.body.split(b":", 3), b"", b"", b"", b""][:4]
    try:
        sequence = int(number)
        expected = body_of(name.decode(), sequence, int(size))
    except ValueError:
        return None
    if payload.body != expected or payload.metadata.get(2) != [sequence]:
        return None
    return name.decode(), sequence


@dataclass
class ProducerModel:
    """One producer's promises."""

    name: str
    topic: str
    next_sequence: int = 0
    received: dict[int, Position] = field(default_factory=dict)


@dataclass
class TopicModel:
    """One topic with its producers and its durable subscription."""

    name: str
    cumulative: bool
    producers: list[ProducerModel]
    subscribed: bool = False
    acked: set[Position] = field(default_factory=set)  # sent, with or without an answer
    acked_with_receipt: set[Position] = field(default_factory=set)
    acked_up_to: Position = (-1, -1)
    acked_up_to_with_receipt: Position = (-1, -1)

    def wants(self, position: Position) -> bool:
        """Whether nobody has acknowledged the message, with or without an answer."""
        return position not in self.acked and position > self.acked_up_to

    def is_done(self, position: Position) -> bool:
        """Whether its acknowledgement was answered."""
        return position in self.acked_with_receipt or position <= self.acked_up_to_with_receipt


@dataclass
class Verdict:
    """Counts over all rounds; ``problems`` lists the broken promises."""

    rounds: int = 0
    promised: int = 0
    read_back: int = 0
    redelivered: int = 0
    problems: list[str] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    # What happened how often; by (row, column) of a table.
    counts: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)

    def add(self, other: Verdict) -> None:
        """Put another's counts to ours."""
        self.rounds += other.rounds
        self.promised += other.promised
        self.read_back += other.read_back
        self.redelivered += other.redelivered
        self.problems += other.problems
        self.ready_s += other.ready_s
        self.counts += other.counts

    def table(self) -> list[str]:
        """The counts, a line for each row."""
        rows = list(dict.fromkeys(row for row, _ in sorted(self.counts)))
        columns = list(dict.fromkeys(column for _, column in sorted(self.counts)))
        if not rows:
            return []
        lines = [["", *columns]]
        lines += [[row, *(str(self.counts[row, each]) for each in columns)] for row in rows]
        widths = [max(len(line[at]) for line in lines) for at in range(len(columns) + 1)]
        return [
            "  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
            for line in lines
        ]


class TopicCheck:
    """Reads one topic back and compares."""

    def __init__(self, topic: TopicModel) -> None:
        self.topic = topic
        self.problems: list[str] = []
        self.read: dict[str, list[tuple[int, Position]]] = {}
        self.positions: set[Position] = set()
        self.delivered: set[Position] = set()
        self.repeated: list[Position] = []
        self.damaged: list[Position] = []
        self.stopped_before: Position | None = None  # the last one, when reading never came there

    def take(self, position: Position, payload: wire.Payload) -> None:
        """One message that the reader got."""
        if position in self.positions:
            self.repeated.append(position)
        self.positions.add(position)
        sent = sent_as(payload)
        if sent is None:
            self.damaged.append(position)
            return
        name, sequence = sent
        self.read.setdefault(name, []).append((sequence, position))

    def finish(self, acks_are_durable: bool) -> list[str]:
        """All messages were read and the subscription is drained: what is wrong?"""
        if self.stopped_before is not None:
            self.problems.append(f"{self.topic.name}: reading stopped before {self.stopped_before}")
        for what, where in (("repeated", self.repeated), ("damaged", self.damaged)):
            if where:
                self.problems.append(
                    f"{self.topic.name}: {len(where)} positions {what}, first {where[0]}"
                )
        for producer in self.topic.producers:
            self._check_producer(producer)
        if self.topic.subscribed:
            self.check_subscription(acks_are_durable)
        return self.problems

    def excuse(self, entries: set[Position]) -> set[Position]:
        """Take entries off the promises; returns those that were promised and cannot be read."""
        lost = set()
        for producer in self.topic.producers:
            for number, position in list(producer.received.items()):
                if position in entries and position not in self.positions:
                    del producer.received[number]
                    lost.add(position)
        if self.stopped_before in entries:
            self.stopped_before = None
        return lost

    def _check_producer(self, producer: ProducerModel) -> None:
        read = self.read.get(producer.name, [])
        sequences = [sequence for sequence, _ in read]
        if sequences != sorted(set(sequences)):
            wrong = [b for a, b in itertools.pairwise(sequences) if b <= a]
            self.problems.append(
                f"{producer.name}: out of order or repeated at {wrong[:5]} ({len(wrong)} in all)"
            )
        places = dict(read)
        lost = [number for number in producer.received if number not in places]
        if lost:
            self.problems.append(
                f"{producer.name}: {len(lost)} acknowledged messages lost, {lost[0]} to {lost[-1]}"
                f" of {producer.next_sequence}, first at {producer.received[lost[0]]}"
            )
        moved = [n for n, p in producer.received.items() if n in places and places[n] != p]
        if moved:
            self.problems.append(f"{producer.name}: {len(moved)} not where the receipt said")
        # What was stored without a receipt is promised from now on: a reader has seen it.
        producer.received |= places

    def check_subscription(self, acks_are_durable: bool) -> None:
        topic = self.topic
        promised = {p for producer in topic.producers for p in producer.received.values()}
        open_ones = {p for p in promised if topic.wants(p)}
        missing = open_ones - self.delivered
        if missing:
            self.problems.append(
                f"{topic.name}: {len(missing)} unacknowledged messages were not delivered, "
                f"first {min(missing)}"
            )
        again = {p for p in self.delivered if topic.is_done(p)}
        if acks_are_durable and again:
            self.problems.append(
                f"{topic.name}: {len(again)} messages came again whose acknowledgement was"
                f" answered, first {min(again)}"
            )
