"""The promises that a cluster's clients check: a judge without any I/O.

For each topic:

* a reader finds each message that has a receipt, at the position of the receipt;
* per producer, the first copies of messages are in the order of their numbers (where a producer
  batches by key: per producer and key); with deduplication there are no other copies, and without
  it a copy is a resend after a lost connection;
* each payload is the one that its producer and number determine;
* a position that a reader has found once has the same message for ever;
* a topic has one writer: what a client sends after a receipt from a ledger is not acknowledged from
  an older ledger. A broker has one that another broker has replaced.

For each subscription: the first deliveries of messages are in order, per producer or per key, and
each message with a receipt is delivered at some time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torture.model import body_of

Place = tuple[int, int, int]  # ledger, entry, index in the batch
Message = tuple[str, int]  # producer, number
KEYS = 13


def key_of(number: int) -> str:
    """Return the key of a producer's message."""
    return f"key-{number % KEYS}"


def _stream(message: Message, order: str) -> tuple[str, str]:
    producer, number = message
    return producer, key_of(number) if order == "key" else ""


def sender_of(body: bytes) -> Message | None:
    """Return the producer and number of a payload; None if no producer sent such bytes."""
    name, number, size, _ = [*body.split(b":", 3), b"", b"", b"", b""][:4]
    try:
        message = name.decode(), int(number)
        expected = body_of(*message, int(size))
    except ValueError:
        return None
    return message if body == expected else None


@dataclass
class SubscriptionRecord:
    """The deliveries of one subscription."""

    name: str
    order: str  # producer, key or none
    delivered: set[Message] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _last: dict[tuple[str, str], int] = field(default_factory=dict)

    def take(self, body: bytes, where: Place) -> None:
        """A consumer has received a message."""
        message = sender_of(body)
        if message is None:
            self.problems.append(f"{self.name}: the message at {where} is damaged")
            return
        if message in self.delivered:
            return
        self.delivered.add(message)
        if self.order == "none":
            return
        producer, number = message
        stream = _stream(message, self.order)
        last = self._last.get(stream, -1)
        if number < last:
            self.problems.append(
                f"{self.name}: {producer}:{number} at {where} came first after {last}"
            )
        self._last[stream] = max(last, number)

    def missing(self, promised: set[Message]) -> list[Message]:
        """Return the promised messages that no consumer has received."""
        return sorted(promised - self.delivered)


@dataclass
class TopicRecord:
    """The receipts of one topic, and everything that readers have found."""

    name: str
    is_deduplicated: bool
    order: str = "producer"  # or key
    receipts: dict[Message, Place] = field(default_factory=dict)
    found: dict[Place, Message] = field(default_factory=dict)
    newest: int = -1
    """The newest ledger that a receipt names."""
    problems: list[str] = field(default_factory=list)

    def take_receipt(self, message: Message, newest: int, place: Place) -> None:
        """Note the receipt of a message; `newest` is the value before the client sent it."""
        self.receipts[message] = place
        # The receipt of a copy that deduplication discards has no position.
        if 0 <= place[0] < newest:
            self.problems.append(
                f"{self.name}: two brokers acknowledge: {message} at {place} was sent after a"
                f" receipt from ledger {newest}"
            )
        self.newest = max(self.newest, place[0])

    def check_read(self, read: list[tuple[Place, bytes]]) -> list[str]:
        """Return the broken promises of a topic that was read from its first message on."""
        problems = []
        places = [place for place, _ in read]
        if places != sorted(set(places)):
            problems.append(f"{self.name}: the positions that were read do not rise")
        now = {place: sender_of(body) for place, body in read}
        damaged = [place for place, message in now.items() if message is None]
        if damaged:
            problems.append(f"{self.name}: {len(damaged)} damaged, first {damaged[0]}")
        changed = [place for place, message in self.found.items() if now.get(place) != message]
        if changed:
            first = changed[0]
            problems.append(
                f"{self.name}: {len(changed)} positions have changed, first {first}:"
                f" {self.found[first]} became {now.get(first)}"
            )
        problems += self._check_order(now)
        problems += self._check_receipts(now)
        self.found = {place: message for place, message in now.items() if message is not None}
        return problems

    def _check_order(self, now: dict[Place, Message | None]) -> list[str]:
        seen: set[Message] = set()
        last: dict[tuple[str, str], int] = {}
        problems = []
        for place, message in now.items():
            if message is None:
                continue
            if message in seen:
                if self.is_deduplicated:
                    problems.append(f"{self.name}: {message} has a second copy at {place}")
                continue
            seen.add(message)
            stream, number = _stream(message, self.order), message[1]
            if number < last.get(stream, -1):
                problems.append(f"{self.name}: {message} at {place} follows {last[stream]}")
            last[stream] = number
        return problems[:5]

    def _check_receipts(self, now: dict[Place, Message | None]) -> list[str]:
        stored = set(now.values())
        lost = sorted(message for message in self.receipts if message not in stored)
        problems = []
        if lost:
            problems.append(
                f"{self.name}: {len(lost)} acknowledged messages lost, {lost[0]} at"
                f" {self.receipts[lost[0]]} to {lost[-1]}"
            )
        # The receipt of a copy that deduplication discards has no position.
        moved = [
            message
            for message, place in self.receipts.items()
            if message in stored and place[0] >= 0 and now.get(place) != message
        ]
        if moved:
            first = moved[0]
            problems.append(
                f"{self.name}: {len(moved)} not where the receipt says, first {first}:"
                f" {self.receipts[first]}"
            )
        return problems


@dataclass
class ReceiptClock:
    """The gaps between the receipts of a producer that always has messages to send."""

    last_s: float
    long_s: float = 0.5
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """(begin, end) of each gap longer than `long_s`."""

    def tick(self, now_s: float) -> None:
        if now_s - self.last_s > self.long_s:
            self.gaps.append((self.last_s, now_s))
        self.last_s = now_s

    def restart(self, now_s: float) -> None:
        """Forget the gaps of before."""
        self.gaps.clear()
        self.last_s = now_s

    def longest_s(self, since_s: float) -> float:
        """Return the longest time without receipts since a moment, at least `long_s`."""
        gaps = [end - max(begin, since_s) for begin, end in self.gaps]
        return max([self.long_s, *gaps])


def excess_s(gap: tuple[float, float], began_s: float, ended_s: float, has_quorum: bool) -> float:
    """Return the seconds for which sends did not continue although they could.

    With a quorum they can from the beginning of the fault on, otherwise from its end on.
    """
    begin, end = gap
    since = began_s if has_quorum else ended_s
    return end - max(begin, since)
