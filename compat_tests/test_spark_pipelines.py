"""The jobs of `pyxbroker pipeline`, each as a process of its own, against a real broker.

`make spark` runs it. Every job starts a JVM, so a test does several things with few of them.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest
from harness.brokers import ROOT, Broker

from compat_tests.conftest import BrokerFactory, official_client
from compat_tests.test_spark import spark_home

pytestmark = pytest.mark.spark

# What is archived has no subscription, and would be deleted with its topic in a minute.
BROKER_SETTINGS = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
SMALL_SPARK = ("--master", "local[2]", "--conf", "spark.driver.memory=512m")
JOB_TIMEOUT_S = 240
ORIGIN = ("replay.topic", "replay.messageId", "replay.publishTime")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of the jobs: their temporary files are in a directory of its own."""
    return os.environ | {
        "SPARK_HOME": str(spark_home(tmp_path_factory.mktemp("spark"))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(tmp_path_factory.mktemp("temporary")),
    }


@dataclass
class Jobs:
    """Runs jobs by the command line."""

    environment: dict[str, str]

    def start(self, name: str, *options: str, spark: tuple[str, ...] = SMALL_SPARK) -> Running:
        beside = str(Path(sys.executable).parent / "pyxbroker")
        command = shlex.split(os.environ.get("PYXBROKER_COMMAND", beside))
        line = [*command, "pipeline", "run", name, *options, *spark]
        return Running.start(line, self.environment)

    def run(self, name: str, *options: str, spark: tuple[str, ...] = SMALL_SPARK) -> Done:
        return self.start(name, *options, spark=spark).wait()


@dataclass
class Done:
    status: int
    out: str
    err: str


class Running:
    """A job that runs; what it says is in files, so that it never waits for who reads."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self._out = out
        self._err = err

    @classmethod
    def start(cls, line: list[str], environment: dict[str, str]) -> Running:
        number = time.monotonic_ns()
        out, err = (Path(environment["TMPDIR"]) / f"{number}.{each}" for each in ("out", "err"))
        with out.open("wb") as one, err.open("wb") as two:
            process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=one, stderr=two, env=environment
            )
        return cls(process, out, err)

    def wait_for(self, pattern: str) -> None:
        """Until stderr has it."""
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while not re.search(pattern, self._err.read_text()):
            assert self.process.poll() is None, self._err.read_text()
            assert time.monotonic() < deadline, self._err.read_text()
            time.sleep(0.05)

    def stop(self, number: int) -> Done:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> Done:
        try:
            self.process.wait(JOB_TIMEOUT_S)
        finally:
            self.process.kill()
        return Done(self.process.returncode, self._out.read_text(), self._err.read_text())


@pytest.fixture
def jobs(environment: dict[str, str]) -> Jobs:
    return Jobs(environment)


def publish(client: pulsar.Client, topic: str, numbers: range, **settings: object) -> None:
    settings = {"batching_enabled": True, "batching_max_messages": 10} | settings
    producer = client.create_producer(topic, block_if_queue_full=True, **settings)
    for number in numbers:
        producer.send_async(
            f"value {number}".encode(),
            None,
            partition_key=f"key {number % 7}" if number % 8 else None,
            properties={"number": str(number)},
            event_timestamp=1_700_000_000_000 + number,
        )
    producer.flush()
    producer.close()


def read_all(client: pulsar.Client, topic: str) -> Iterator[pulsar.Message]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        yield reader.read_next(10_000)
    reader.close()


def said(done: Done) -> str:
    """The last line on stderr, where nothing is that a Java program or a trace would say."""
    lines = done.err.strip().splitlines()
    assert not re.search(r"Traceback|Exception|^\s+at |WARN|ERROR", done.err, re.M), done.err
    return lines[-1]


def test_an_archive_that_was_stopped_and_killed_has_each_message_once_and_comes_back(
    broker: Broker, client: pulsar.Client, topic: str, jobs: Jobs, tmp_path: Path
) -> None:
    publish(client, topic, range(2_000))
    archive = tmp_path / "archive"
    options = (
        *("--service-url", broker.url, "--admin-url", broker.web_url, "--topic", topic),
        *("--to", str(archive), "--option", "maxBytesPerTrigger=8k", "--every", "0 seconds"),
    )
    running = jobs.start("archive", *options)
    running.wait_for("batch 0, [0-9]+ messages archived")
    done = running.stop(signal.SIGINT)
    assert done.status == 0
    assert re.search(
        r"stopped: [\d,]+ messages archived; the same command goes on from here$", said(done)
    )
    assert len(list((archive / "_spark_metadata").iterdir())) < 60, "it was done before"

    running = jobs.start("archive", *options)
    batches = len(list((archive / "_checkpoint" / "commits").iterdir()))
    while len(list((archive / "_checkpoint" / "commits").iterdir())) < batches + 4:
        assert running.process.poll() is None, running.wait().err
        time.sleep(0.02)
    assert running.stop(signal.SIGKILL).status == -signal.SIGKILL

    publish(client, topic, range(2_000, 2_500))
    done = jobs.run("archive", *options, "--until-now")
    assert done.status == 0
    assert re.search(r"all that was there is done: [\d,]+ messages archived$", said(done))

    again, ordered = f"{topic}-again", f"{topic}-ordered"
    replay = ("--from", str(archive), "--service-url", broker.url, "--slice", "700")
    checkpoint = ("--checkpoint", str(tmp_path / "replayed"))
    running = jobs.start("replay", *replay, *checkpoint, "--to", again)
    running.wait_for("slice 1 of")
    done = running.stop(signal.SIGTERM)
    assert done.status == 0
    assert re.search(r"stopped: [\d,]+ messages sent, [\d,]+ are left; the same", said(done))
    done = jobs.run("replay", *replay, *checkpoint, "--to", again)
    assert done.status == 0 and re.search(r"[\d,]+ messages sent$", said(done))
    check_replayed(client, topic, again)

    done = jobs.run("replay", *replay, "--to", ordered, "--order", "topic")
    assert said(done) == "replay: 2,500 messages sent"
    ignored = [word for each in ORIGIN for word in ("--ignore-property", each)]
    sides = ("--service-url", broker.url, "--other-service-url", broker.url)
    done = jobs.run("audit", *sides, "--topic", topic, "--other-topic", ordered, *ignored)
    assert done.status == 0, done.out
    assert "All 2,500 messages of 1 topics are the same." in done.out


def check_replayed(client: pulsar.Client, topic: str, again: str) -> None:
    """Each message once, those of one key in their order, and where they are from."""
    before = {each.data(): each for each in read_all(client, topic)}
    found = list(read_all(client, again))
    assert len(found) == 2_500
    of_key: dict[str, list[int]] = {}
    for each in found:
        old = before.pop(each.data())
        assert each.partition_key() == old.partition_key()
        assert each.event_timestamp() == old.event_timestamp()
        properties = each.properties()
        origin = [properties.pop(name) for name in ORIGIN]
        assert properties == old.properties()
        of_key.setdefault(each.partition_key(), []).append(int(properties["number"]))
        at = old.message_id()
        assert origin == [
            topic,
            f"{at.ledger_id()}:{at.entry_id()}:{at.batch_index()}",
            str(old.publish_timestamp()),
        ]
    assert len(of_key) == 8 and all(numbers == sorted(numbers) for numbers in of_key.values())


def test_an_audit_names_the_first_message_that_differs_however_they_are_batched(
    broker: Broker, client: pulsar.Client, topic: str, jobs: Jobs
) -> None:
    one, two, same = f"{topic}-one", f"{topic}-two", f"{topic}-same"
    publish(client, one, range(9_000))
    publish(client, two, range(6_001), batching_max_messages=7)
    publish(client, two, range(6_002, 9_000), batching_enabled=False)
    publish(
        client, same, range(9_000), batching_max_messages=33,
        compression_type=pulsar.CompressionType.ZSTD,
    )
    sides = ("--service-url", broker.url, "--other-service-url", broker.url)
    topics = ("--topic", one, "--other-topic", two, "--topic", two, "--other-topic", two)
    done = jobs.run("audit", *sides, *topics)
    print(done.out, done.err)
    assert done.status == 2
    done = jobs.run("audit", *sides, "--topic", one, "--other-topic", two, "--json")
    assert done.status == 1
