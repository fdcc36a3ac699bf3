"""The load generator: one process per figure, the official client, one JSON line as its result.

It talks to bench/e2e.py over its standard streams: ``mark NAME`` on stdout asks for a sample of the
broker's CPU and memory, and the line that comes back lets it go on.  So the samples surround the
measured part only.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable

import pulsar

KIB = b"\xa5" * 1024
BATCH_BYTES = 128 * 1024


def mark(name: str) -> None:
    """Ask the parent for a sample and wait until it was taken."""
    print(f"mark {name}", flush=True)
    sys.stdin.readline()


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Window:
    """Counts receipts of asynchronous sends; a failed one ends the run."""

    def __init__(self, total: int) -> None:
        self.left = total
        self.done = threading.Event()
        self.failure: object = None

    def receipt(self, result: object, _: object) -> None:
        """The send callback; the client calls it from one thread."""
        if result != pulsar.Result.Ok:
            self.failure = result
            self.done.set()
        self.left -= 1
        if self.left <= 0:
            self.done.set()

    def wait(self) -> None:
        """Until every receipt came."""
        if not self.done.wait(600) or self.failure is not None:
            raise SystemExit(f"the load failed: {self.failure or 'no receipts for 600 s'}")


def sequential(client: pulsar.Client, topic: str, count: int) -> dict[str, float]:
    """Unbatched 1 KiB, one at a time."""
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(300):
        producer.send(KIB)
    times = []
    mark("begin")
    for _ in range(count):
        began = time.perf_counter()
        producer.send(KIB)
        times.append(time.perf_counter() - began)
    mark("end")
    return {"p50_ms": percentile(times, 0.5) * 1000, "p99_ms": percentile(times, 0.99) * 1000}


def publish(
    client: pulsar.Client, topic: str, count: int, producers: int, batched: bool
) -> dict[str, float]:
    """Asynchronous sends as fast as receipts allow; one sending thread per producer."""
    options = {"batching_enabled": False, "max_pending_messages": 1000}
    if batched:
        options = {
            "batching_enabled": True,
            "batching_max_messages": 1_000_000,
            "batching_max_allowed_size_in_bytes": BATCH_BYTES,
            "batching_max_publish_delay_ms": 10,
            "max_pending_messages": 20_000,
        }
    made = [
        client.create_producer(
            topic, block_if_queue_full=True, send_timeout_millis=60_000, **options
        )
        for _ in range(producers)
    ]

    # A callback without Python code halves the client's own cost; it keeps each distinct result.
    results: dict[object, object] = {}

    def work(producer: pulsar.Producer, amount: int) -> None:
        for _ in range(amount):
            producer.send_async(KIB, results.setdefault)
        producer.flush()

    def run(amount: int) -> None:
        threads = [threading.Thread(target=work, args=(producer, amount)) for producer in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if set(results) != {pulsar.Result.Ok}:
            raise SystemExit(f"the load failed: {set(results)}")

    run(min(2000, count // 4))
    mark("begin")
    cpu, began = time.process_time(), time.perf_counter()
    run(count // producers)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    mark("end")
    total = count // producers * producers
    return {"messages": total, "rate": total / wall, "client_us": cpu / total * 1e6}


def backlog(client: pulsar.Client, topic: str, count: int, times: int = 1) -> dict[str, float]:
    """Read messages that are there already, from the first on."""
    mark("begin")
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(times):
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5000)
        for _ in range(count):
            if len(reader.read_next(timeout_millis=30_000).data()) != len(KIB):
                raise SystemExit("a message of another size came back")
        reader.close()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    mark("end")
    total = count * times
    return {"messages": total, "rate": total / wall, "client_us": cpu / total * 1e6}


def at_1000_per_second(send: Callable[[int], None], warm_up: int, count: int) -> None:
    """Send numbered messages at fixed times; the measured part begins after the warm-up."""
    began = time.perf_counter()
    for number in range(warm_up + count):
        wait = began + number / 1000 - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        if number == warm_up:
            mark("begin")
            began = time.perf_counter() - number / 1000
        send(number)


def paced(client: pulsar.Client, topic: str, count: int) -> dict[str, float]:
    """Unbatched 1 KiB at 1,000/s: from just before send until the receipt."""
    producer = client.create_producer(topic, batching_enabled=False, max_pending_messages=60_000)
    warm_up = 500
    window = Window(warm_up + count)
    times: list[float] = []

    def send(number: int) -> None:
        sent = time.perf_counter()

        def receipt(result: object, message_id: object) -> None:
            if number >= warm_up:
                times.append((time.perf_counter() - sent) * 1000)
            window.receipt(result, message_id)

        producer.send_async(KIB, receipt)

    at_1000_per_second(send, warm_up, count)
    window.wait()
    mark("end")
    return {
        "messages": count,
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
    }


def end_to_end(client: pulsar.Client, topic: str, count: int) -> dict[str, float]:
    """100-byte messages at 1,000/s: from just before send until received, in one process."""
    consumer = client.subscribe(topic, "latency")
    producer = client.create_producer(topic, batching_enabled=False)
    warm_up = 500
    times: list[float] = []

    def receive() -> None:
        for number in range(warm_up + count):
            message = consumer.receive(timeout_millis=30_000)
            now = time.perf_counter_ns()
            if number >= warm_up:
                times.append((now - int.from_bytes(message.data()[:8], "big")) / 1e6)
            consumer.acknowledge(message)

    receiver = threading.Thread(target=receive)
    receiver.start()
    window = Window(warm_up + count)

    def send(number: int) -> None:
        stamp = time.perf_counter_ns().to_bytes(8, "big")
        producer.send_async(stamp + bytes(92), window.receipt)

    at_1000_per_second(send, warm_up, count)
    window.wait()
    receiver.join()
    mark("end")
    return {
        "messages": count,
        "p50_ms": percentile(times, 0.5),
        "p99_ms": percentile(times, 0.99),
    }


def topics(client: pulsar.Client, topic: str, count: int) -> dict[str, float]:
    """New topics, one after the other, each with a producer that stays."""
    held = [client.create_producer(f"{topic}-warm-{number}") for number in range(20)]
    time.sleep(1)
    mark("begin")
    times = []
    for number in range(count):
        began = time.perf_counter()
        held.append(client.create_producer(f"{topic}-{number}"))
        times.append(time.perf_counter() - began)
    time.sleep(1)
    mark("end")
    return {
        "messages": count,
        "mean_ms": sum(times) / count * 1000,
        "p99_ms": percentile(times, 0.99) * 1000,
    }


def spread(
    client: pulsar.Client, topic: str, count: int, subscriptions: int, consumers: int
) -> dict[str, float]:
    """Unbatched 100-byte messages to subscriptions with so many consumers each; all are acked."""
    total = count * subscriptions
    left = threading.Semaphore(0)

    def on_message(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        left.release()

    kind = pulsar.ConsumerType.Shared if consumers > 1 else pulsar.ConsumerType.Exclusive
    for subscription in range(subscriptions):
        for _ in range(consumers):
            client.subscribe(
                topic,
                f"spread-{subscription}",
                consumer_type=kind,
                receiver_queue_size=100,
                message_listener=on_message,
            )
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=1000
    )
    warm_up = max(count // 20, 1)
    results: dict[object, object] = {}
    for amount in (warm_up, count):
        if amount == count:
            mark("begin")
            cpu, began = time.process_time(), time.perf_counter()
        for _ in range(amount):
            producer.send_async(bytes(100), results.setdefault)
        producer.flush()
        for _ in range(amount * subscriptions):
            if not left.acquire(timeout=30):
                raise SystemExit("a message did not arrive within 30 s")
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    mark("end")
    if set(results) != {pulsar.Result.Ok}:
        raise SystemExit(f"the load failed: {set(results)}")
    return {"messages": total, "rate": total / wall, "client_us": cpu / total * 1e6}


LOADS: dict[str, Callable[[pulsar.Client, str, int], dict[str, float]]] = {
    "sequential": sequential,
    "unbatched4": lambda client, topic, count: publish(client, topic, count, 4, False),
    "batched": lambda client, topic, count: publish(client, topic, count, 1, True),
    "backlog": backlog,
    "backlog5": lambda client, topic, count: backlog(client, topic, count, 5),
    "end_to_end": end_to_end,
    "paced": paced,
    "topics": topics,
    "shared100": lambda client, topic, count: spread(client, topic, count, 1, 100),
    "fanout100": lambda client, topic, count: spread(client, topic, count, 100, 1),
}


def main() -> None:
    """``load.py FIGURE URL TOPIC COUNT``."""
    figure, url, topic, count = sys.argv[1:]
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    result = LOADS[figure](client, topic, int(count))
    client.close()
    print("result " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
