"""/metrics with many topics: what a scrape costs, and how long it keeps others waiting.

    python -m bench.metrics_scrape                       1,000, 20,000 and 100,000 topics, no broker
    python -m bench.metrics_scrape --topics 5000 --subscriptions 1
    python -m bench.metrics_scrape --broker --topics 5000      sends to a broker that is scraped

Without --broker the topics are real objects, non-persistent ones of a loop of their own, and the
text goes nowhere. A figure of a hold is the longest time between two turns of the loop: by the
clock, which other processes of the machine stretch, and as CPU of the loop's thread, which they
do not.

With --broker one client sends messages one at a time, first while nobody asks for anything, then
while scrapes follow each other without a pause; PYXBROKER_COMMAND names another broker to compare.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import uvloop
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from pyxbroker.add_stats import NO_ADDS
from pyxbroker.base.histogram import Histogram
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.client_memory import ClientMemory
from pyxbroker.broker.statistics.stats import read_stats
from pyxbroker.broker.topics.non_persistent import NOWHERE, NonPersistentTopic
from pyxbroker.broker.topics.shards import Shards
from pyxbroker.policies.table import of_broker
from pyxbroker.settings.config import Config
from pyxbroker.stats.broker_series import BrokerStats, LedgerErrors
from pyxbroker.stats.metrics import Collector
from pyxbroker.turn import Turn

ROUNDS = 5
SENDS = 2000
BODY = bytes(1024)
TARGET = "persistent://public/default/target"


class Sized(NonPersistentTopic):
    """A topic that says of itself that it keeps something."""

    size = 0
    adds = NO_ADDS

    def last_adds(self) -> tuple[int, ...]:
        return self.adds

    @property
    def storage_size(self) -> int:
        return self.size


class Topics:
    """A source of numbers: as many topics as one likes, and nothing else."""

    def __init__(self, count: int, subscriptions: int) -> None:
        self.config = Config()
        policies = of_broker(self.config)
        turn = Turn(asyncio.get_running_loop())
        self._topics: Shards[TopicName, Sized] = Shards()
        for number in range(count):
            name = TopicName.get(f"non-persistent://public/default/some-topic-{number:06}")
            topic = Sized(name, turn, policies)
            for each in range(subscriptions):
                topic.reader_for(f"subscription-{each}", NOWHERE)
            self._topics[name] = topic
            topic.size = 1_000_000 + number
        self.use()

    def use(self) -> None:
        """Each topic has some messages more, so that no two have the same numbers."""
        for number, topic in enumerate(self._topics.values()):
            topic._past_msg_in += 1 + number % 1009
            topic._past_bytes_in += 1000 + number
            topic.adds = tuple(number % (3 + each) for each in range(len(NO_ADDS)))

    def topic_stats(self) -> Iterator[Any]:
        return read_stats(self._topics.values())

    def storage_stats(self) -> dict[str, int]:
        return {}

    def bookie_client(self) -> None:
        return None

    def entry_cache(self) -> dict[str, int]:
        return {}

    def latencies(self) -> dict[str, Any]:
        return {}

    @property
    def latency_bounds_us(self) -> tuple[int, ...]:
        return ()

    def failure(self) -> None:
        return None

    def disk_usage(self) -> dict[str, tuple[int, int]]:
        return {}

    def refused_sends(self) -> int:
        return 0

    def client_state(self) -> ClientMemory:
        return ClientMemory()

    def refused_connections(self) -> dict[str, int]:
        return {}

    def closed_connections(self) -> dict[str, int]:
        return {}

    def stray_commands(self) -> dict[str, int]:
        return {}

    def turns(self) -> None:
        return None

    def coordinators(self) -> tuple[()]:
        return ()

    async def broker_stats(self) -> BrokerStats:
        return BrokerStats("host", {}, Histogram((inf,)), {}, LedgerErrors({}, {}))

    def unknown_ledgers(self) -> list[int]:
        return []


class Watch:
    """Has a turn of the loop as often as it can, and notes the longest times between two."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.wall_s = self.cpu_s = 0.0
        self.turns = 0
        self._last = (time.perf_counter(), time.thread_time())
        self._handle = self.loop.call_soon(self._look)

    def _look(self) -> None:
        now = (time.perf_counter(), time.thread_time())
        self.wall_s = max(self.wall_s, now[0] - self._last[0])
        self.cpu_s = max(self.cpu_s, now[1] - self._last[1])
        self.turns += 1
        self._last = now
        self._handle = self.loop.call_soon(self._look)

    def stop(self) -> None:
        self._handle.cancel()


async def scrape(collector: Collector, source: Topics) -> int:
    """Bytes of the text."""
    sample = await collector.sample(source)
    return sum([len(piece) async for piece in sample.pieces()])


async def without_broker(count: int, subscriptions: int) -> None:
    source, collector = Topics(count, subscriptions), Collector()
    gc.collect()
    gc.freeze()
    # The first one makes what rates are computed from.
    await scrape(collector, source)
    cpu_us, walls, holds, size = [], [], [], 0
    for _ in range(ROUNDS):
        source.use()
        began = time.process_time()
        size = await scrape(collector, source)
        cpu_us.append((time.process_time() - began) / count * 1e6)
        watch = Watch()
        await scrape(collector, source)
        await asyncio.sleep(0)
        watch.stop()
        walls.append(watch.wall_s * 1000)
        holds.append(watch.cpu_s * 1000)
    gc.unfreeze()
    print(
        f"| {count:,} | {subscriptions} | {size / 2**20:.1f} | {statistics.median(cpu_us):.1f}"
        f" | {statistics.median(walls):.2f} ({max(walls):.2f})"
        f" | {statistics.median(holds):.2f} ({max(holds):.2f}) |",
        flush=True,
    )


def with_broker(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="pyxbroker-bench-") as folder:
        broker = Broker("pyxbroker", Path(folder))
        try:
            broker.start()
            with RawConnection(broker.port, timeout_s=60.0) as many:
                for number in range(count):
                    many.producer(f"persistent://public/default/some-topic-{number:06}", number)
                with RawConnection(broker.port, timeout_s=60.0) as sender:
                    sender.producer(TARGET)
                    _sends(sender, "nobody asks")
                    for encoding in ("identity", "gzip"):
                        scraping = Scraping(broker, encoding)
                        _sends(sender, f"scrapes, {encoding}")
                        print("  " + scraping.end())
        finally:
            broker.close()


class Scraping:
    """Scrapes that follow each other, in a process of their own: they share nothing with sends."""

    def __init__(self, broker: Broker, encoding: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._end = context.Event()
        self._answers, theirs = context.Pipe()
        arguments = (f"{broker.web_url}/metrics", encoding, self._end, theirs)
        self._process = context.Process(target=_scrape_on, args=arguments, daemon=True)
        self._process.start()
        self._answers.recv()

    def end(self) -> str:
        """Waits for the last one; what they were."""
        self._end.set()
        times, size = self._answers.recv()
        self._process.join()
        return (
            f"{len(times)} scrapes of {size / 2**20:.2f} MiB,"
            f" {statistics.median(times) * 1000:.0f} ms each"
        )


def _scrape_on(url: str, encoding: str, end: Any, answers: Any) -> None:
    request = urllib.request.Request(url, headers={"Accept-Encoding": encoding})
    times, size = [], 0
    answers.send("begun")
    while not end.is_set():
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as answer:
            size = sum(map(len, iter(lambda: answer.read(1 << 20), b"")))
        times.append(time.perf_counter() - began)
    answers.send((times, size))


def _sends(connection: RawConnection, title: str) -> None:
    times = []
    for number in range(SENDS):
        began = time.perf_counter()
        connection.send(BODY, number)
        connection.wait_for(wire.SEND_RECEIPT)
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    p50, p99 = times[SENDS // 2], times[SENDS * 99 // 100]
    print(f"{title}: sends p50 {p50:.2f} ms, p99 {p99:.2f} ms, at most {times[-1]:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, action="append", help="how many (repeatable)")
    parser.add_argument("--subscriptions", type=int, default=0, help="of each topic [0]")
    parser.add_argument("--broker", action="store_true", help="start a broker, and send to it")
    options = parser.parse_args()
    if options.broker:
        for count in options.topics or [5000]:
            with_broker(count)
        return
    print("| topics | subscriptions of each | MiB | CPU, us per topic | held, ms | CPU of it, ms |")
    print("|---|---|---|---|---|---|")
    for count in options.topics or [1_000, 20_000, 100_000]:
        uvloop.run(without_broker(count, options.subscriptions))


if __name__ == "__main__":
    main()
