"""A streaming query of Spark copies a topic to another, and everything around it is killed.

    python -m torture.spark_copy --kills 100 [--seed N] [--broker KIND]

Keyed messages are published to a topic with partitions. A query of its own process (a JVM and
Python workers) copies them to another topic with partitions and deduplication. At random moments
one of three is ended by SIGKILL: the whole query, which then goes on from its checkpoint; one of
its Python workers, whose task Spark runs again; or the broker. That one is back at once, or it is
away for longer than the query's sends may take, so that tasks give up. After each kill, and at the
end when all is copied, the copy is read by the official client: every message is there once, and
those of a key are in their order. Exit status 1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pulsar
from harness.brokers import KINDS, ROOT, Broker

SOURCE = "persistent://public/default/spark-source"
COPY = "persistent://public/default/spark-copy"
SOURCE_PARTITIONS, COPY_PARTITIONS = 3, 4
KEYS = 50
MESSAGES_PER_KILL = (2_000, 6_000)
AHEAD_MAX = 8_000
"""Messages that are not copied yet, while more are published: kills shall come within batches."""
PROGRESS_S = 240.0
"""How long a query may take until it has done a batch; it starts a JVM, perhaps beside others."""
IDLE_MAX_S = 2.0
"""The longest time between a batch's end and a kill: batches take about a second."""
KIND_WEIGHTS = {"query": 2, "worker": 2, "broker": 2, "outage": 2}
SEND_TIMEOUT_S = 1.5
"""Of the query, each time but every third, when it has the sink's own."""
AWAY_S = {"broker": (0.0, 1.0), "outage": (1.2 * SEND_TIMEOUT_S, 3.0 * SEND_TIMEOUT_S)}
"""How long the broker is not there."""

SETTINGS = {
    "brokerDeduplicationEnabled": "true",
    "brokerDeduplicationEntriesInterval": "50",
    "managedLedgerMaxEntriesPerLedger": "400",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    # Nothing else holds what the query has not read.
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


class Feed:
    """Publishes numbered messages of keys; each is in the source once, as the broker drops what a
    reconnecting client sends again.
    """

    def __init__(self, url: str) -> None:
        self._client = quiet_client(url)
        self._producer = self._client.create_producer(
            SOURCE,
            producer_name="feed",
            batching_enabled=True,
            batching_max_messages=20,
            block_if_queue_full=True,
            send_timeout_millis=0,
        )
        self.sent: Counter[str] = Counter()
        self.failed = 0

    def publish(self, generator: random.Random) -> None:
        for _ in range(generator.randint(*MESSAGES_PER_KILL)):
            key = f"key {generator.randrange(KEYS)}"
            self._producer.send_async(
                f"{key}:{self.sent[key]}:".encode() + b"." * generator.randrange(100),
                self._on_answer,
                partition_key=key,
            )
            self.sent[key] += 1

    def close(self) -> None:
        self._producer.flush()
        self._client.close()

    def _on_answer(self, result: Any, _: Any) -> None:
        if result != pulsar.Result.Ok:
            self.failed += 1


class Judge:
    """Reads the copy on, and says what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.copied: Counter[str] = Counter()
        self._at = [pulsar.MessageId.earliest] * COPY_PARTITIONS

    def look(self, url: str) -> None:
        """What is new in each partition."""
        client = quiet_client(url)
        try:
            for index in range(COPY_PARTITIONS):
                reader = client.create_reader(f"{COPY}-partition-{index}", self._at[index])
                while reader.has_message_available():
                    message = reader.read_next(30_000)
                    self._at[index] = message.message_id()
                    self._take(index, message)
                reader.close()
        finally:
            client.close()

    def _take(self, index: int, message: Any) -> None:
        key, number, _ = message.data().decode().split(":")
        if key != message.partition_key():
            self.problems.append(f"{key}:{number} has the key {message.partition_key()}")
        if int(number) != self.copied[key]:
            what = "is there twice" if int(number) < self.copied[key] else "comes too soon"
            self.problems.append(
                f"{key}:{number} {what}: {self.copied[key]} is next, at {message.message_id()} of"
                f" partition {index}"
            )
        self.copied[key] = max(self.copied[key], int(number) + 1)


class Query:
    """The process that copies; this file with `--copy`."""

    def __init__(self, directory: Path, broker: Broker, exactly_once: str) -> None:
        self._directory = directory
        self._exactly_once = exactly_once
        self._broker = broker
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.failures: list[str] = []

    @property
    def output(self) -> Path:
        return self._directory / "query.log"

    def ensure(self) -> None:
        """Starts it if it does not run."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self.failures.append(self._last_words())
        self.starts += 1
        place = self._directory / f"session-{self.starts}"
        place.mkdir(parents=True)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "torture.spark_copy", "--copy", str(place)),
                    *(str(self._directory / "checkpoint"), self._broker.url, self._broker.web_url),
                    self._exactly_once,
                    "" if self.starts % 3 == 0 else f"{1000 * SEND_TIMEOUT_S:.0f}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env=os.environ
                | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
                start_new_session=True,
            )

    def batches(self) -> int:
        """The number of the last batch that is done; -1: none."""
        done = [
            int(each.name)
            for each in (self._directory / "checkpoint" / "commits").glob("[0-9]*")
            if each.name.isdigit()
        ]
        return max(done, default=-1)

    def kill(self) -> None:
        """The whole of it: the driver, the JVM, the workers."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            members = psutil.Process(self._process.pid).children(recursive=True)
            os.killpg(self._process.pid, signal.SIGKILL)
            for each in members:  # workers have groups of their own
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self._process.wait()
        self._process = None

    def kill_worker(self, generator: random.Random) -> bool:
        """One Python process that runs tasks; False: there is none."""
        if self._process is None or self._process.poll() is not None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            workers = [
                each
                for daemon in psutil.Process(self._process.pid).children(recursive=True)
                if "pyspark.daemon" in " ".join(daemon.cmdline())
                for each in daemon.children()
            ]
            if workers:
                generator.choice(workers).kill()
                return True
        return False

    def _last_words(self) -> str:
        lines = self.output.read_text(errors="replace").strip().splitlines()
        said = [each for each in lines if "Error" in each or "Exception" in each]
        return (said or lines or ["nothing"])[-1][:3000]


class Torture:
    """One broker, one query, and what happens to them."""

    def __init__(self, options: argparse.Namespace, workspace: Path) -> None:
        self.random = random.Random(options.seed)
        self.broker = Broker(options.broker, workspace / "broker", settings=SETTINGS)
        self.query = Query(workspace / "spark", self.broker, options.exactly_once)
        self.judge = Judge()
        self.kills: Counter[str] = Counter()
        self.batches = 0
        self._is_verbose = options.verbose

    def run(self, kills: int) -> list[str]:
        """The problems."""
        self.broker.start()
        for topic, count in ((SOURCE, SOURCE_PARTITIONS), (COPY, COPY_PARTITIONS)):
            path = f"/admin/v2/{topic.replace('://', '/')}/partitions"
            assert self.broker.rest("PUT", path, count)[0] == 204
        feed = Feed(self.broker.url)
        try:
            while sum(self.kills.values()) < kills and not self.judge.problems:
                if feed.sent.total() - self.judge.copied.total() < AHEAD_MAX:
                    feed.publish(self.random)
                if not self._wait_for_batch():
                    return [*self.judge.problems, f"no batch was done in {PROGRESS_S:g} s"]
                time.sleep(self.random.uniform(0, IDLE_MAX_S))
                self._kill()
                self.judge.look(self.broker.url)
            feed.close()
            self._finish(feed)
        finally:
            self.query.kill()
            self.batches = self.query.batches() + 1
        if feed.failed:
            self.judge.problems.append(f"{feed.failed} messages were not taken by the source")
        return self.judge.problems

    def close(self) -> None:
        self.query.kill()
        self.broker.close()

    def _wait_for_batch(self) -> bool:
        before, deadline = self.query.batches(), time.monotonic() + PROGRESS_S
        while self.query.batches() <= before:
            self.query.ensure()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def _kill(self) -> None:
        (kind,) = self.random.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))
        if kind == "worker" and not self.query.kill_worker(self.random):
            kind = "query"
        if kind == "query":
            self.query.kill()
        if kind in AWAY_S:
            self.broker.kill()
            time.sleep(self.random.uniform(*AWAY_S[kind]))
            self.broker.start(60)
        self.kills[kind] += 1
        if self._is_verbose:
            number = sum(self.kills.values())
            print(f"{number}: {kind} at batch {self.query.batches()}", flush=True)

    def _finish(self, feed: Feed) -> None:
        deadline = time.monotonic() + 2 * PROGRESS_S
        while not self.judge.problems and self.judge.copied != feed.sent:
            self.query.ensure()
            if time.monotonic() > deadline:
                missing = feed.sent - self.judge.copied
                self.judge.problems.append(f"{missing.total()} messages are missing: {missing}")
            time.sleep(1)
            self.judge.look(self.broker.url)


def quiet_client(url: str) -> Any:
    """A client whose words about brokers that are gone nobody reads."""
    logger = logging.getLogger("torture.spark_copy.client")
    logger.setLevel(logging.CRITICAL)
    return pulsar.Client(url, logger=logger)


def copy(
    place: Path, checkpoint: str, url: str, web_url: str, exactly_once: str, send_timeout_ms: str
) -> None:
    """The query's own process; it ends when it fails."""
    from harness.spark_session import make_session

    limits = {"pulsar.producer.sendTimeoutMs": send_timeout_ms} if send_timeout_ms else {}

    # A task whose worker was killed is run again, three times.
    session = make_session(place, spark_master="local[2,4]")
    try:
        rows = (
            session.readStream.format("pulsar")
            .option("service.url", url)
            .option("admin.url", web_url)
            .option("topic", SOURCE)
            .option("startingOffsets", "earliest")
            .option("maxBytesPerTrigger", "100k")
            # One task for each partition: rows of two tasks have no order.
            .option("bytesPerTask", "1g")
            .load()
        )
        copied = rows.drop("__topic").writeStream.format("pulsar").option("service.url", url)
        copied = copied.option("topic", COPY).option("exactlyOnce", exactly_once).options(**limits)
        copied = copied.option("checkpointLocation", checkpoint)
        copied.trigger(processingTime="0 seconds").start().awaitTermination()
    finally:
        session.stop()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--broker", choices=KINDS, default="pyxbroker")
    parser.add_argument("--workspace", help="folder for the data (default: a temporary one)")
    parser.add_argument("--verbose", action="store_true", help="one line per kill")
    parser.add_argument(
        "--exactly-once", choices=("true", "false"), default="true", help="false: is it found out?"
    )
    parser.add_argument("--copy", nargs=6, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.copy:
        copy(Path(options.copy[0]), *options.copy[1:])
        return 0
    workspace = Path(options.workspace or tempfile.mkdtemp(prefix="spark-copy-"))
    torture = Torture(options, workspace)
    try:
        problems = torture.run(options.kills)
    finally:
        torture.close()
        if not options.workspace:
            shutil.rmtree(workspace, ignore_errors=True)
    for each in problems[:20]:
        print(each)
    for each in torture.query.failures:
        print(f"the query ended by itself: {each}")
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(torture.kills.items()))
    print(
        f"seed {options.seed}: {torture.kills.total()} kills ({kinds}),"
        f" {torture.judge.copied.total()} messages in {torture.batches} batches,"
        f" {torture.query.starts} starts of the query, {len(torture.query.failures)} of which ended"
        f" by themselves, {len(problems)} problems"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
