"""Compaction: how long it takes, in how much memory, and what others notice of it.

    python -m bench.compaction                               pyxbroker and Apache Pulsar
    python -m bench.compaction --only pyxbroker --messages 10000000 --keys 1000000

The official Python client publishes messages of 1 KiB that do not compress, in batches, each with
the key that its turn gives it: with as many keys as messages all of them are left, with fewer the
latest ones. Meanwhile another client sends a message of 100 bytes every few milliseconds to a topic
of its own, before the compaction and while it lasts.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from functools import partial

import pulsar
from harness.brokers import Broker

from bench import side_by_side
from bench.side_by_side import Numbers

TOPIC = "persistent/public/default/compacted"
BODY_BYTES = 1024
POOL_BYTES = 8 << 20
PENDING_MAX = 20_000
PROBE_BODY = bytes(100)
PROBE_INTERVAL_S = 0.005
QUIET_S = 10.0
LOOK_S = 0.1
PATIENCE_S = 3600.0

# (number, title, unit, decimals)
ROWS = [
    ("compaction_s", "compaction", "s", 1),
    ("cpu_s", "  CPU of it", "s", 1),
    ("memory_mib", "  most resident memory meanwhile", "MiB", 0),
    ("left", "  messages left", "messages", 0),
    ("p99_before_ms", "sending to another topic before, p99", "ms", 2),
    ("p99_meanwhile_ms", "  meanwhile, p99", "ms", 2),
    ("p50_meanwhile_ms", "  meanwhile, p50", "ms", 2),
]


def fill(client: pulsar.Client, messages: int, keys: int) -> None:
    """Publishes the messages, and waits until they are stored."""
    pool = os.urandom(POOL_BYTES)
    producer = client.create_producer(
        "persistent://" + TOPIC.removeprefix("persistent/"),
        batching_enabled=True,
        batching_max_messages=100,
        batching_max_publish_delay_ms=10,
        max_pending_messages=PENDING_MAX,
        block_if_queue_full=True,
    )
    failed: list[pulsar.Result] = []

    def on_sent(result: pulsar.Result, _: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for number in range(messages):
        at = number * 997 % (POOL_BYTES - BODY_BYTES)
        body = pool[at : at + BODY_BYTES]
        producer.send_async(body, on_sent, partition_key=f"key-{number % keys}")
    producer.flush()
    producer.close()
    assert not failed, failed[0]


class Probe:
    """Somebody else's messages, one at a time; how long each took."""

    def __init__(self, client: pulsar.Client) -> None:
        self._producer = client.create_producer("probe", batching_enabled=False)
        self._over = threading.Event()
        self._took_ms: list[float] = []
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._over.wait(PROBE_INTERVAL_S):
            began = time.perf_counter()
            self._producer.send(PROBE_BODY)
            self._took_ms.append((time.perf_counter() - began) * 1000)

    def take(self) -> list[float]:
        """What was measured since this was asked last, in ms."""
        taken, self._took_ms = self._took_ms, []
        return taken

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def status(broker: Broker) -> str:
    code, answer = broker.rest("GET", f"/admin/v2/{TOPIC}/compaction")
    assert code == 200, answer
    assert answer["status"] != "ERROR", answer
    return str(answer["status"])


def count_left(client: pulsar.Client) -> int:
    """Messages that a reader of the compacted view gets."""
    name = "persistent://" + TOPIC.removeprefix("persistent/")
    reader = client.create_reader(name, pulsar.MessageId.earliest, is_read_compacted=True)
    count = 0
    while reader.has_message_available():
        # The client hands out the places that are empty in a batch, too.
        count += bool(reader.read_next(30_000).data())
    reader.close()
    return count


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def one_life(broker: Broker, messages: int, keys: int) -> Numbers:
    """Fills a topic of a fresh broker, and compacts it."""
    client = probe = None
    try:
        broker.start()
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(broker.url, logger=quiet)
        fill(client, messages, keys)
        probe = Probe(client)
        time.sleep(1.0)
        probe.take()
        time.sleep(QUIET_S)
        before = probe.take()
        cpu, began = broker.cpu_s(), time.perf_counter()
        code, answer = broker.rest("PUT", f"/admin/v2/{TOPIC}/compaction")
        assert code == 204, answer
        memory = 0
        while status(broker) == "RUNNING":
            memory = max(memory, broker.memory_kib())
            assert time.perf_counter() - began < PATIENCE_S
            time.sleep(LOOK_S)
        seconds = time.perf_counter() - began
        cpu = broker.cpu_s() - cpu
        meanwhile = probe.take()
        probe.stop()
        left = count_left(client)
        assert left == min(messages, keys), left
    finally:
        if probe is not None:
            probe.stop()
        if client is not None:
            client.close()
    return {
        "compaction_s": seconds,
        "cpu_s": cpu,
        "memory_mib": memory / 1024,
        "left": left,
        "p99_before_ms": p99(before),
        "p99_meanwhile_ms": p99(meanwhile),
        "p50_meanwhile_ms": statistics.median(meanwhile),
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    life = partial(one_life, messages=options.messages, keys=options.keys)
    side_by_side.run(options, ROWS, life)
    return 0


if __name__ == "__main__":
    sys.exit(main())
