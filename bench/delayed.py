"""Ten million delayed messages: memory, the time to know them again, and what others feel of it.

    python -m bench.delayed                          pyxbroker and Apache Pulsar, a million messages
    python -m bench.delayed --only pyxbroker --count 10000000

Each broker gets so many messages of 100 bytes that are due in a day, at random seconds, and one
behind them that is due at once. A Shared consumer with few permits then gets that one as soon as
the broker knows which of the others are not due. The broker is stopped and started, and the same is
timed again, while messages of another topic are sent one at a time.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time

from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from bench import side_by_side
from bench.side_by_side import Numbers

TOPIC = "persistent://public/default/delayed"
OTHER = "persistent://public/default/not-delayed"
DAY_MS = 86_400_000
TEMPLATES = 1000  # different times; one write has all of them
PERMITS = 10
PATIENCE_S = 600.0

# (number, title, unit, decimals)
ROWS = [
    ("publish_rate", "publishing", "msg/s", 0),
    ("written_mib", "  written", "MiB", 0),
    ("first_s", "reading all, until the message that is due came", "s", 2),
    ("first_cpu_s", "  broker CPU", "s", 2),
    ("grown_mib", "  memory grown", "MiB", 0),
    ("memory_mib", "  memory then", "MiB", 0),
    ("again_s", "the same after a restart", "s", 2),
    ("again_cpu_s", "  broker CPU", "s", 2),
    ("again_mib", "  memory then", "MiB", 0),
    ("other_p50_ms", "another topic meanwhile, one send at a time, p50", "ms", 2),
    ("other_p99_ms", "  p99", "ms", 2),
]


def publish(broker: Broker, count: int) -> float:
    """Sends the delayed messages and the last one; returns messages per second."""
    now = int(time.time() * 1000)
    choose = random.Random(1)
    frames = [
        wire.send(
            1, 0, wire.metadata("p", 0, now, fields={19: now + DAY_MS + choose.randrange(DAY_MS)}),
            bytes(100),
        )
        for _ in range(TEMPLATES)
    ]  # fmt: skip
    with RawConnection(broker.port, timeout_s=PATIENCE_S) as raw:
        raw.producer(TOPIC)
        receipts = threading.Thread(target=_drain, args=(raw, count))
        receipts.start()
        began = time.perf_counter()
        block = b"".join(frames)
        for _ in range(count // TEMPLATES):
            raw.write(block)
        receipts.join()
        seconds = time.perf_counter() - began
        raw.send(b"due", 1)
        raw.expect(wire.SEND_RECEIPT)
    return count / seconds


def _drain(raw: RawConnection, count: int) -> None:
    """Takes so many receipts, without a look at more than their sizes."""
    left = b""
    while count:
        data = left + raw.socket.recv(1 << 20)
        at = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            # Byte 9 is the type of the command; a PING has to be answered.
            if data[at + 9] == wire.SEND_RECEIPT:
                count -= 1
            elif data[at + 9] == wire.PING:
                raw.command(wire.PONG, {})
            at = end
        left = data[at:]


def subscribe(raw: RawConnection) -> None:
    answer = raw.subscribe(TOPIC, "s", sub_type=wire.SHARED)
    assert answer.type == wire.SUCCESS, answer


def read_all(broker: Broker) -> Numbers:
    """Subscribes and waits for the message that is due."""
    cpu, began = broker.cpu_s(), time.perf_counter()
    with RawConnection(broker.port, timeout_s=PATIENCE_S) as raw:
        subscribe(raw)
        raw.flow(PERMITS)
        message = raw.wait_for(wire.MESSAGE, PATIENCE_S)
        assert wire.parse_payload(message.rest).body == b"due"
        seconds = time.perf_counter() - began
        return {
            "s": seconds,
            "cpu_s": broker.cpu_s() - cpu,
            "mib": broker.memory_kib() / 1024,
        }


class Others:
    """Sends to another topic, one message at a time, until it is stopped."""

    def __init__(self, broker: Broker) -> None:
        self.times: list[float] = []
        self._stop = threading.Event()
        self._raw = RawConnection(broker.port, timeout_s=PATIENCE_S)
        self._raw.producer(OTHER)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            began = time.perf_counter()
            self._raw.send(bytes(100), number)
            self._raw.expect(wire.SEND_RECEIPT)
            self.times.append((time.perf_counter() - began) * 1000)
            number += 1
            time.sleep(0.005)

    def stop(self) -> Numbers:
        self._stop.set()
        self._thread.join()
        self._raw.socket.close()
        ordered = sorted(self.times)
        return {
            "other_p50_ms": statistics.median(ordered),
            "other_p99_ms": ordered[int(len(ordered) * 0.99)],
        }


def one_life(broker: Broker, count: int) -> Numbers:
    """All numbers of one broker on a fresh data directory."""
    broker.start()
    with RawConnection(broker.port) as raw:
        subscribe(raw)
    written = broker.written_bytes()
    numbers = {"publish_rate": publish(broker, count)}
    numbers["written_mib"] = (broker.written_bytes() - written) / (1 << 20)
    before = broker.memory_kib() / 1024
    first = read_all(broker)
    numbers |= {
        "first_s": first["s"],
        "first_cpu_s": first["cpu_s"],
        "grown_mib": first["mib"] - before,
        "memory_mib": first["mib"],
    }
    broker.stop(120)
    broker.start()
    others = Others(broker)
    again = read_all(broker)
    numbers |= others.stop()
    return numbers | {f"again_{key}": value for key, value in again.items()}


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    side_by_side.run(options, ROWS, lambda broker: one_life(broker, options.count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
