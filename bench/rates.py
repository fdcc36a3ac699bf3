"""Rates: what one that is not reached costs, and how even one is that is reached.

    python -m bench.rates                       pyxbroker and Apache Pulsar
    python -m bench.rates --only pyxbroker --rounds 20

The cost: two brokers at once, one of them with a publish rate that nobody reaches, get the same
messages of 100 bytes in alternating rounds; what each spends for a message is the median of the
rounds. The evenness: one client sends as fast as it can, and another one reads a backlog, for ten
seconds; counted is what came in them, and the longest time in which nothing did.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed, RawConnection

from bench import side_by_side
from bench.side_by_side import Numbers

TOPIC = "persistent://public/default/rates"
BODY = bytes(100)
BLOCK = 500  # messages in one write
BLOCKS = 100  # in a round
RATE = 5000
SECONDS = 10.0
LEAD_S = 1.0  # before the ten seconds
PATIENCE_S = 60.0

# (number, title, unit, decimals)
ROWS = [
    ("without_us", "CPU of a message without a publish rate", "us", 3),
    ("with_us", "  with one that is not reached", "us", 3),
    ("publish_rate", f"publishing with a rate of {RATE}, for 10 s", "msg/s", 0),
    ("publish_gap_ms", "  longest time without a receipt", "ms", 1),
    ("publish_most", "  most in 100 ms", "messages", 0),
    ("dispatch_rate", f"reading a backlog with a rate of {RATE}, for 10 s", "msg/s", 0),
    ("dispatch_gap_ms", "  longest time without a message", "ms", 1),
    ("dispatch_most", "  most in 100 ms", "messages", 0),
]


def block(count: int = BLOCK) -> bytes:
    return wire.send(1, 0, wire.metadata("p", 0, 1), BODY) * count


def take(raw: RawConnection, kind: int, on_some: Callable[[int], bool]) -> None:
    """Reads frames, and tells how many of a kind each read brought, until on_some says no."""
    left = b""
    while True:
        data = left + raw.socket.recv(1 << 20)
        if len(data) == len(left):
            raise ConnectionClosed
        at = count = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            # Byte 9 is the type of the command; a PING has to be answered.
            count += data[at + 9] == kind
            if data[at + 9] == wire.PING:
                raw.command(wire.PONG, {})
            at = end
        left = data[at:]
        if count and not on_some(count):
            return


def publish(raw: RawConnection, blocks: int) -> None:
    """Sends so many blocks and waits for all receipts."""
    left = blocks * BLOCK

    def on_some(count: int) -> bool:
        nonlocal left
        left -= count
        return left > 0

    receipts = threading.Thread(target=take, args=(raw, wire.SEND_RECEIPT, on_some))
    receipts.start()
    data = block()
    for _ in range(blocks):
        raw.write(data)
    receipts.join()


def cost(kind: str, workspace: Path, settings: dict[str, str], rounds: int) -> Numbers:
    """CPU for a message, without a rate and with one."""
    unreached = {"maxPublishRatePerTopicInMessages": "2000000000"}
    brokers = [
        Broker(kind, workspace / "without", settings=settings),
        Broker(kind, workspace / "with", settings=settings | unreached),
    ]
    spent: list[list[float]] = [[], []]
    try:
        connections = []
        for broker in brokers:
            broker.start()
            connections.append(RawConnection(broker.port, timeout_s=PATIENCE_S))
            connections[-1].producer(TOPIC)
            publish(connections[-1], BLOCKS)
        for number in range(rounds):
            for at in (0, 1) if number % 2 else (1, 0):
                before = brokers[at].cpu_s()
                publish(connections[at], BLOCKS)
                seconds = brokers[at].cpu_s() - before
                spent[at].append(seconds / (BLOCKS * BLOCK) * 1e6)
        for connection in connections:
            connection.socket.close()
    finally:
        for broker in brokers:
            broker.close()
    return {"without_us": statistics.median(spent[0]), "with_us": statistics.median(spent[1])}


class Evenness:
    """How much came when, after a lead."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begins = time.perf_counter() + LEAD_S
        self._came: list[tuple[float, int]] = []

    def __call__(self, count: int) -> bool:
        now = time.perf_counter()
        if now >= self._begins:
            self._came.append((now, count))
        return now < self._begins + self._seconds

    def numbers(self, what: str) -> Numbers:
        times = [self._begins, *(at for at, _ in self._came)]
        slots: dict[int, int] = {}
        for at, count in self._came:
            slot = int((at - self._begins) * 10)
            slots[slot] = slots.get(slot, 0) + count
        gaps = (after - before for before, after in itertools.pairwise(times))
        return {
            f"{what}_rate": sum(count for _, count in self._came) / (times[-1] - self._begins),
            f"{what}_gap_ms": max(gaps) * 1000,
            f"{what}_most": max(slots.values()),
        }


def flood(broker: Broker, topic: str = TOPIC, seconds: float = SECONDS) -> Numbers:
    """Publishes as fast as the rate lets it."""
    with RawConnection(broker.port, timeout_s=PATIENCE_S) as raw:
        raw.producer(topic)
        evenness = Evenness(seconds)
        is_over = threading.Event()

        def write() -> None:
            data = block()
            try:
                while not is_over.is_set():
                    raw.write(data)
            except OSError:
                # The reader is done and has closed the socket, while this one waited to write.
                assert is_over.is_set()

        writing = threading.Thread(target=write)
        writing.start()
        take(raw, wire.SEND_RECEIPT, evenness)
        is_over.set()
        raw.socket.shutdown(2)
        writing.join()
    return evenness.numbers("publish")


def drain(broker: Broker, topic: str = TOPIC, seconds: float = SECONDS) -> Numbers:
    """Reads a backlog as fast as the rate lets it."""
    with RawConnection(broker.port, timeout_s=PATIENCE_S) as raw:
        answer = raw.subscribe(topic, "s")
        assert answer.type == wire.SUCCESS, answer
        with RawConnection(broker.port, timeout_s=PATIENCE_S) as producer:
            producer.producer(topic)
            publish(producer, int(RATE * (seconds + LEAD_S + 2) / BLOCK))
        raw.flow(1_000_000)
        evenness = Evenness(seconds)
        take(raw, wire.MESSAGE, evenness)
    return evenness.numbers("dispatch")


def one_kind(kind: str, workspace: Path, settings: dict[str, str], rounds: int) -> Numbers:
    numbers = cost(kind, workspace, settings, rounds)
    for name, key, measure in (
        ("publish", "maxPublishRatePerTopicInMessages", flood),
        ("dispatch", "dispatchThrottlingRatePerTopicInMsg", drain),
    ):
        broker = Broker(kind, workspace / name, settings=settings | {key: str(RATE)})
        try:
            broker.start()
            numbers |= measure(broker)
        finally:
            broker.close()
    return numbers


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)

    def one_life(broker: Broker) -> Numbers:
        return one_kind(broker.kind, broker.directory, broker.settings, options.rounds)

    side_by_side.run(options, ROWS, one_life)
    return 0


if __name__ == "__main__":
    sys.exit(main())
