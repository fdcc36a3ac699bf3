"""Checks: what deduplication and a schema cost for each message.

    python -m bench.checks                      pyxbroker and Apache Pulsar
    python -m bench.checks --only pyxbroker --rounds 60

One broker has three topics that get the same messages, one for each SEND: one topic with neither,
one with deduplication, and one whose producer came with an Avro schema. (The version of a schema is
in all messages, so that they have the same bytes.) They take turns, in an order that changes; each
figure is the median of the rounds.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time

from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from bench import side_by_side
from bench.rates import take
from bench.side_by_side import Numbers

NAMESPACE = "/admin/v2/namespaces/public/checks"
BLOCK = 500  # messages in one write
BLOCKS = 40  # in a turn
PATIENCE_S = 120.0
KINDS = ("plain", "deduplication", "schema")
SIZES = (100, 1024)  # bytes of a message
AVRO = 4  # a type of schemas
DEFINITION = b'{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
SCHEMA_VERSION = {16: bytes(8)}  # a field of the metadata

ROWS = [
    row
    for size in SIZES
    for row in (
        (f"plain_{size}_us", f"CPU of a message of {size:,} bytes", "us", 3),
        (f"deduplication_{size}_us", "  with deduplication", "us", 3),
        (f"schema_{size}_us", "  with a schema", "us", 3),
        (f"deduplication_{size}", "  deduplication / without", "", 3),
        (f"schema_{size}", "  schema / without", "", 3),
    )
]


class Sender:
    """A producer of one of the topics."""

    def __init__(self, broker: Broker, kind: str, size: int) -> None:
        name = {"deduplication": "checks"}.get(kind, "default")
        topic = f"persistent://public/{name}/{kind}-{size}"
        self._raw = RawConnection(broker.port, timeout_s=PATIENCE_S)
        self._numbers = itertools.count()
        self._body = bytes(size)
        self._raw.lookup(topic)
        schema = {7: wire.encode({1: "s", 3: DEFINITION, 4: AVRO})} if kind == "schema" else {}
        fields = {1: topic, 2: 1, 3: self._raw.request_id(), 4: "p"} | schema
        self._raw.command(wire.PRODUCER, fields)
        self._raw.expect(wire.PRODUCER_SUCCESS)

    def blocks(self, count: int) -> list[bytes]:
        """So many writes of messages that were never sent."""
        now_ms = int(time.time() * 1000)
        return [b"".join(self._message(now_ms) for _ in range(BLOCK)) for _ in range(count)]

    def _message(self, now_ms: int) -> bytes:
        number = next(self._numbers)
        metadata = wire.metadata("p", number, now_ms, fields=SCHEMA_VERSION)
        return wire.send(1, number, metadata, self._body)

    def publish(self, blocks: list[bytes]) -> None:
        """Sends them and waits for all receipts."""
        left = len(blocks) * BLOCK

        def on_some(count: int) -> bool:
            nonlocal left
            left -= count
            return left > 0

        receipts = threading.Thread(target=take, args=(self._raw, wire.SEND_RECEIPT, on_some))
        receipts.start()
        for each in blocks:
            self._raw.write(each)
        receipts.join()

    def close(self) -> None:
        """Ends it."""
        self._raw.socket.close()


def cost(broker: Broker, size: int, rounds: int, blocks: int) -> Numbers:
    """CPU for a message of each kind, in us, and how they compare."""
    senders = {kind: Sender(broker, kind, size) for kind in KINDS}
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        for turn in range(len(KINDS)):
            kind = KINDS[(turn + number) % len(KINDS)]
            data = senders[kind].blocks(blocks)
            before = broker.cpu_s()
            senders[kind].publish(data)
            seconds = broker.cpu_s() - before
            if number:  # The first one is for code that is compiled while it runs.
                spent[kind].append(seconds / (blocks * BLOCK) * 1e6)
    for sender in senders.values():
        sender.close()
    medians = {kind: statistics.median(each) for kind, each in spent.items()}
    return {f"{kind}_{size}_us": each for kind, each in medians.items()} | {
        f"{kind}_{size}": medians[kind] / medians["plain"] for kind in KINDS[1:]
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--blocks", type=int, default=BLOCKS, help=f"of {BLOCK} messages, a turn")
    options = parser.parse_args(arguments)

    def one_life(broker: Broker) -> Numbers:
        broker.start()
        for path, body in ((NAMESPACE, None), (f"{NAMESPACE}/deduplication", True)):
            method = "PUT" if path == NAMESPACE else "POST"
            status, answer = broker.rest(method, path, body)
            assert status in (200, 204), answer
        numbers: Numbers = {}
        for size in SIZES:
            numbers |= cost(broker, size, options.rounds, options.blocks)
        return numbers

    side_by_side.run(options, ROWS, one_life)
    return 0


if __name__ == "__main__":
    sys.exit(main())
