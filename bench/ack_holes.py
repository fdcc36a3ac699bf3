"""A million acknowledgements out of order: what they cost, and what is left of them after a kill.

    python -m bench.ack_holes                           pyxbroker and Apache Pulsar, a million holes
    python -m bench.ack_holes --only pyxbroker --holes 5000000
    python -m bench.ack_holes --set managedLedgerMaxUnackedRangesToPersist=2000000

Each broker gets twice as many messages as there are to be holes, one by one, then acknowledgements
of every second message, a thousand in a command, then some single ones that ask for a receipt.
After time enough to store what is stored lazily it is killed with -9 and started again.

What counts:

- how long the acknowledgements take, and how many bytes they make the broker write;
- how long the subscription takes to be opened again;
- how many messages come again although they were acknowledged.

Bytes are those that the process handed to the file system (write_bytes of /proc/PID/io), so what
journals are padded to counts.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from compat_tests import holes
from harness.brokers import Broker
from harness.raw import RawConnection

from bench import side_by_side
from bench.side_by_side import Numbers

# As many ledgers of 50,000 entries as a topic has after hours: what is here sent in one minute
# would otherwise be in one ledger.
SETTINGS = ["managedLedgerMinLedgerRolloverTimeMinutes=0"]
TOPIC = "persistent://public/default/ack-holes"
RECEIPTS = 500
LAZY_S = 5.0

# (number, title, unit, decimals)
ROWS = [
    ("acks_s", "acknowledging every second message, out of order", "s", 2),
    ("acks_cpu_us", "  broker CPU per acknowledgement", "us", 2),
    ("acks_mib", "  written until 5 s later", "MiB", 1),
    ("acks_grown_mib", "  memory grown", "MiB", 1),
    ("receipt_p50_ms", "one more, with a receipt, p50", "ms", 2),
    ("receipt_p99_ms", "one more, with a receipt, p99", "ms", 2),
    ("receipt_kib", "  written for each", "KiB", 1),
    ("start_s", "start after kill -9", "s", 2),
    ("open_s", "opening the topic and its subscription again", "s", 3),
    ("opened_mib", "  memory then", "MiB", 1),
    ("again", "acknowledged messages that come again", "", 0),
    ("missing", "other messages that do not come", "", 0),
]


def one_life(broker: Broker, count: int) -> Numbers:
    """All numbers of one broker on a fresh data directory."""
    broker.start()
    with RawConnection(broker.port) as raw:
        # Without a subscription, old ledgers would not be kept.
        holes.subscribe(raw, TOPIC)
    with RawConnection(broker.port) as raw:
        positions = holes.positions_of(holes.publish(raw, TOPIC, 2 * count))
    if len(positions) != 2 * count:
        raise SystemExit(f"{broker.kind} has {len(positions)} of {2 * count} messages")
    acknowledged = positions[1::2]
    random.Random(1).shuffle(acknowledged)
    settle(broker)
    with RawConnection(broker.port) as raw:
        holes.subscribe(raw, TOPIC)
        numbers = acknowledge(broker, raw, acknowledged)
        numbers |= receipts(broker, raw, acknowledged[-RECEIPTS:])
        time.sleep(LAZY_S)
    broker.kill()
    numbers["start_s"] = broker.start()
    with RawConnection(broker.port, timeout_s=120.0) as raw:
        began = time.perf_counter()
        holes.subscribe(raw, TOPIC)
        numbers["open_s"] = time.perf_counter() - began
        numbers["opened_mib"] = broker.memory_kib() / 1024
        delivered = holes.deliver(raw, len(positions) - len(acknowledged))
    numbers["again"] = len(delivered & set(acknowledged))
    numbers["missing"] = len(set(positions) - set(acknowledged) - delivered)
    return numbers


def settle(broker: Broker) -> None:
    """Waits until the broker has written what publishing left it to write."""
    before = -1
    while broker.written_bytes() != before:
        before = broker.written_bytes()
        time.sleep(LAZY_S)


def acknowledge(broker: Broker, raw: RawConnection, acknowledged: list[tuple[int, int]]) -> Numbers:
    """All but the last acknowledgements, as fast as they are taken."""
    cpu, memory, written = broker.cpu_s(), broker.memory_kib(), broker.written_bytes()
    some = acknowledged[: -RECEIPTS - 1]
    began = time.perf_counter()
    holes.acknowledge(raw, some)
    # The answer to the last one comes behind all others.
    holes.acknowledge_and_wait(raw, acknowledged[-RECEIPTS - 1])
    seconds = time.perf_counter() - began
    cpu = broker.cpu_s() - cpu
    time.sleep(LAZY_S)
    return {
        "acks_s": seconds,
        "acks_cpu_us": cpu / len(some) * 1e6,
        "acks_mib": (broker.written_bytes() - written) / (1 << 20),
        "acks_grown_mib": (broker.memory_kib() - memory) / 1024,
    }


def receipts(broker: Broker, raw: RawConnection, positions: list[tuple[int, int]]) -> Numbers:
    """Single acknowledgements, each waited for."""
    written = broker.written_bytes()
    times = sorted(holes.acknowledge_and_wait(raw, each) * 1000 for each in positions)
    time.sleep(LAZY_S)
    return {
        "receipt_p50_ms": statistics.median(times),
        "receipt_p99_ms": times[int(len(times) * 0.99)],
        "receipt_kib": (broker.written_bytes() - written) / len(positions) / 1024,
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--holes", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    options.set = [*SETTINGS, *options.set]
    side_by_side.run(options, ROWS, lambda broker: one_life(broker, options.holes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
