"""What the Spark connector reads in a second, next to a plain loop of the official Python client.

    python -m bench.spark                     both brokers, 1,000,000 messages
    python -m bench.spark --only pyxbroker --messages 10000000 --job

A topic of 16 partitions has messages of 1 KiB in batches, compressed by lz4. Each reader is a
process of its own, whose CPU (all of its threads) is counted: a loop of `consumer.receive()`; the
connector's range reader alone, up to Arrow's record batches; the same messages one by one in
Python, as rows of Parquet by pyarrow, and with --job a Spark job that writes them to Parquet. A
reader is started and connected before it is measured; so is Spark's session.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pulsar
from harness.brokers import Broker

from bench import side_by_side
from bench.side_by_side import Numbers, Row

PARTITIONS = 16
MESSAGE_BYTES = 1024
TOPIC = "persistent://public/default/orders"
ROWS_AT_ONCE = 8_192
LOOK_S = 0.05

READERS = {
    "loop": "plain loop of the official client",
    "ranges": "range reader to record batches",
    "loop_parquet": "plain loop, and pyarrow to Parquet",
    "job": "Spark job to Parquet",
}


class Reading(NamedTuple):
    """What a reader of all messages took."""

    messages: int
    seconds: float
    cpu_s: float
    peak_bytes: int


def payloads() -> list[bytes]:
    """Texts that compress to about a half, as orders in JSON might."""
    chance = random.Random(1)
    words = [f"{chance.getrandbits(32):08x}" for _ in range(300)]
    found = []
    for _ in range(997):
        text = ",".join(f'"{chance.choice(words)}":{chance.random():.12f}' for _ in range(60))
        found.append(text.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"."))
    return found


def fill(url: str, count: int) -> None:
    """Sends so many messages to the topic."""
    client = _client(url)
    producer = client.create_producer(
        TOPIC,
        compression_type=pulsar.CompressionType.LZ4,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_allowed_size_in_bytes=128 << 10,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        block_if_queue_full=True,
        max_pending_messages=5000,
    )
    bodies = payloads()
    for number in range(count):
        producer.send_async(bodies[number % len(bodies)], None)
    producer.flush()
    client.close()


def _client(url: str) -> pulsar.Client:
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


# --- readers, each in a process of its own --------------------------------------------------------


def measured(read: Callable[[], int]) -> Reading:
    """Runs what reads, in this process."""
    cpu_before, began = time.process_time(), time.perf_counter()
    count = read()
    cpu_s, seconds = time.process_time() - cpu_before, time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return Reading(count, seconds, cpu_s, peak)


def read_by_loop(url: str, count: int, _: str) -> Reading:
    client = _client(url)
    consumer = client.subscribe(
        TOPIC, f"loop-{os.getpid()}", initial_position=pulsar.InitialPosition.Earliest
    )

    def read() -> int:
        size = 0
        for _ in range(count):
            size += len(consumer.receive().data())
        assert size == count * MESSAGE_BYTES
        return count

    found = measured(read)
    client.close()
    return found


def read_by_ranges(url: str, count: int, _: str) -> Reading:
    import pyspark.sql.pandas.types  # noqa: F401  # it is loaded before a task begins

    from pyxbroker.spark import plan
    from pyxbroker.spark.columns import ALL_USUAL, Columns
    from pyxbroker.spark.options import BATCH, Options
    from pyxbroker.spark.range_reader import RangeReader

    options = Options(BATCH, {"service.url": url, "topic": TOPIC})

    def read() -> int:
        ends = plan.ends_of(options)
        columns = Columns.requested(plan.values_of_topics(options), [ALL_USUAL])
        rows = size = 0
        for wanted in plan.ranges_of(
            options, plan.starts_of(options, ends), plan.stops_of(options, ends)
        ):
            reader = RangeReader(options, wanted, columns)
            for batch in columns.record_batches(wanted.topic, reader, reader.definition):
                rows += batch.num_rows
                size += batch.column(0).buffers()[2].size
            reader.close()
        assert size == count * MESSAGE_BYTES
        return rows

    return measured(read)


def read_by_loop_to_parquet(url: str, count: int, place: str) -> Reading:
    import pyarrow as pa
    import pyarrow.parquet as pq

    client = _client(url)
    consumer = client.subscribe(
        TOPIC, f"parquet-{os.getpid()}", initial_position=pulsar.InitialPosition.Earliest
    )
    us = pa.timestamp("us", tz="UTC")
    schema = pa.schema(
        {
            "value": pa.binary(),
            "__key": pa.binary(),
            "__topic": pa.string(),
            "__messageId": pa.binary(),
            "__publishTime": us,
            "__eventTime": us,
            "__messageProperties": pa.map_(pa.string(), pa.string()),
        }
    )

    def row(message: Any) -> tuple[Any, ...]:
        return (
            message.data(),
            message.partition_key().encode() or None,
            message.topic_name(),
            message.message_id().serialize(),
            message.publish_timestamp() * 1000,
            message.event_timestamp() * 1000 or None,
            list(message.properties().items()),
        )

    def read() -> int:
        with pq.ParquetWriter(f"{place}/loop.parquet", schema) as writer:
            left = count
            while left:
                rows = [row(consumer.receive()) for _ in range(min(left, ROWS_AT_ONCE))]
                left -= len(rows)
                columns = zip(*rows, strict=True)
                arrays = [
                    pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return count

    found = measured(read)
    client.close()
    return found


def read_by_job(url: str, count: int, place: str) -> Reading:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    from pyxbroker.spark import register

    session = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.warehouse.dir", f"{place}/warehouse")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    session.range(1).count()
    workers = _Workers()
    began = time.perf_counter()
    frame = session.read.format("pulsar").options(**{"service.url": url, "topic": TOPIC}).load()
    frame.write.parquet(f"{place}/job.parquet")
    seconds = time.perf_counter() - began
    cpu_s, peak = workers.stop()
    rows = session.read.parquet(f"{place}/job.parquet").count()
    session.stop()
    assert rows == count, f"{rows} rows of {count} messages"
    return Reading(rows, seconds, cpu_s, peak)


class _Workers:
    """Watches the processes below this one: their CPU, and the peak memory of Python's."""

    def __init__(self) -> None:
        self._before = _cpu_s_below()
        self._peak = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> tuple[float, int]:
        """CPU since the start, in s, and peak bytes."""
        cpu_s = _cpu_s_below() - self._before
        self._is_over.set()
        self._thread.join()
        return cpu_s, self._peak

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_S):
            for each in psutil.Process().children(recursive=True):
                if "java" not in _name_of(each):
                    self._peak = max(self._peak, _peak_bytes(each.pid))


def _name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _peak_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) << 10 if found else 0


def _cpu_s_below() -> float:
    """Of the processes below this one, with that of those that they have waited for."""
    total = 0.0
    for each in psutil.Process().children(recursive=True):
        try:
            total += sum(each.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


BY_NAME = {
    "loop": read_by_loop,
    "ranges": read_by_ranges,
    "loop_parquet": read_by_loop_to_parquet,
    "job": read_by_job,
}


# --- figures --------------------------------------------------------------------------------------


def one_life(broker: Broker, options: argparse.Namespace) -> Numbers:
    """All numbers of one broker on a fresh data directory."""
    broker.start()
    path = TOPIC.replace("://", "/")
    assert broker.rest("PUT", f"/admin/v2/{path}/partitions", PARTITIONS)[0] == 204
    fill(broker.url, options.messages)
    names = ["loop", "ranges", *(["loop_parquet", "job"] if options.job else [])]
    numbers: Numbers = {}
    spawn = multiprocessing.get_context("spawn")
    for name in names:
        with tempfile.TemporaryDirectory(dir=broker.directory) as place:
            # A process has one peak of memory, so each reader has one of its own.
            with ProcessPoolExecutor(1, mp_context=spawn) as pool:
                task = pool.submit(BY_NAME[name], broker.url, options.messages, place)
                found = task.result()
            shutil.rmtree(place, ignore_errors=True)
        numbers |= {
            f"{name}_rate": found.messages / found.seconds,
            f"{name}_cpu_rate": found.messages / found.cpu_s,
            f"{name}_cpu_us": found.cpu_s / found.messages * 1e6,
            f"{name}_peak": found.peak_bytes / (1 << 20),
        }
    numbers["ranges_ratio"] = numbers["ranges_cpu_rate"] / numbers["loop_cpu_rate"]
    if options.job:
        numbers["job_ratio"] = numbers["job_rate"] / numbers["loop_parquet_rate"]
    return numbers


def rows() -> list[Row]:
    """Of the table."""
    found: list[Row] = []
    for name, title in READERS.items():
        found += [
            (f"{name}_rate", title, "messages/s", 0),
            (f"{name}_cpu_rate", "  in a second of CPU", "messages", 0),
            (f"{name}_cpu_us", "  CPU of a message", "us", 2),
            (f"{name}_peak", "  peak memory of a process", "MiB", 0),
        ]
        if name == "ranges":
            found.append(("ranges_ratio", "  CPU: times the plain loop", "", 2))
    return [*found, ("job_ratio", "  rate: times the plain loop and pyarrow", "", 2)]


def main(arguments: list[str] | None = None) -> int:
    """Runs the brokers one after the other and prints the table."""
    parser: argparse.ArgumentParser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--job", action="store_true", help="a Spark job, too (wants Java)")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("pyspark") is None:
        parser.error(
            f"this interpreter ({sys.executable}) has no PySpark. `make .venv/.spark` installs it"
            " into .venv; run this with .venv/bin/python."
        )
    if options.job and shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        parser.error("--job needs Java 17: there is no `java` in PATH, and JAVA_HOME is not set.")
    side_by_side.run(options, rows(), lambda broker: one_life(broker, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
