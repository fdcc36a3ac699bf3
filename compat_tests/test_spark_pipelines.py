"""The jobs of `pyxbroker pipeline`, each as a process of its own, against a real broker.

`make spark` runs it. Every job starts a JVM, so a test does several things with few of them.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pulsar
import pulsar.schema
import pytest
from harness.brokers import ROOT, Broker
from harness.spark_session import settings_of, spark_home

pytestmark = pytest.mark.spark

# What is archived has no subscription, and would be deleted with its topic in a minute.
BROKER_SETTINGS = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
SMALL_SPARK = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")
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


def conf_of(settings: dict[str, str]) -> list[str]:
    """The options of a command line for settings of Spark's."""
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


@dataclass
class Jobs:
    """Runs jobs by the command line."""

    environment: dict[str, str]

    def start(self, name: str, *options: str, spark: tuple[str, ...] = SMALL_SPARK) -> Running:
        beside = str(Path(sys.executable).parent / "pyxbroker")
        command = shlex.split(os.environ.get("PYXBROKER_COMMAND", beside))
        line = [*command, "pipeline", "run", name, *options, *spark]
        if spark is SMALL_SPARK:
            line += conf_of(settings_of(Path(self.environment["TMPDIR"])))
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


def test_an_archive_that_was_stopped_and_killed_has_each_message_once(
    broker: Broker, client: pulsar.Client, topic: str, jobs: Jobs, tmp_path: Path
) -> None:
    publish(client, topic, range(2_000))
    archive = tmp_path / "archive"
    options = (
        *("--service-url", broker.url, "--admin-url", broker.web_url, "--topic", topic),
        *("--to", str(archive), "--option", "maxBytesPerTrigger=2k", "--every", "0 seconds"),
    )
    running = jobs.start("archive", *options)
    wait_for_files(running, archive / "_checkpoint" / "commits")
    done = running.stop(signal.SIGINT)
    assert done.status == 0
    assert re.search(
        r"stopped: [\d,]+ messages archived; the same command continues from here$", said(done)
    )
    assert len(archived(archive)) < 1_600, "it was done, or nearly"

    running = jobs.start("archive", *options)
    batches = len(list((archive / "_checkpoint" / "commits").iterdir()))
    while len(list((archive / "_checkpoint" / "commits").iterdir())) < batches + 4:
        assert running.process.poll() is None, running.wait().err
        time.sleep(0.02)
    assert running.stop(signal.SIGKILL).status == -signal.SIGKILL

    publish(client, topic, range(2_000, 2_500))
    done = jobs.run("archive", *options, "--until-now")
    assert done.status == 0
    assert re.search(r"done up to the start: [\d,]+ messages archived$", said(done))
    found = archived(archive)
    assert sorted(each["value"] for each in found) == sorted(
        f"value {number}".encode() for number in range(2_500)
    )


def wait_for_files(running: Running, directory: Path) -> None:
    """Until a part of its work is done. Lines of progress are ten seconds apart, and the job may be
    at its end before the second one.
    """
    while not any(each.is_file() for each in directory.rglob("*")):
        assert running.process.poll() is None, running.wait().err
        time.sleep(0.02)


def archived(archive: Path) -> list[dict[str, Any]]:
    """The rows of the files that the archive's log names, in the order of their topic."""
    import pyarrow.parquet

    names = set()
    for each in (archive / "_spark_metadata").glob("[0-9]*"):
        names |= {json.loads(line)["path"] for line in each.read_text().splitlines()[1:]}
    rows: list[dict[str, Any]] = []
    for name in names:
        # Paths in the log are URLs, and the names of directories are encoded themselves.
        rows += pyarrow.parquet.ParquetFile(unquote(urlsplit(name).path)).read().to_pylist()
    return sorted(rows, key=itemgetter("__ledgerId", "__entryId", "__batchIndex"))


def test_a_replay_keeps_the_order_and_tells_where_messages_are_from(
    broker: Broker, client: pulsar.Client, topic: str, jobs: Jobs, tmp_path: Path
) -> None:
    publish(client, topic, range(2_500))
    archive, source = tmp_path / "archive", ("--service-url", broker.url)
    done = jobs.run(*("archive", *source, "--topic", topic, "--to", str(archive), "--until-now"))
    assert said(done) == "archive: done up to the start: 2,500 messages archived"

    done = jobs.run("replay", *source, "--from", str(archive), "--topic", f"{topic}-nosuch")
    assert done.status == 2
    assert said(done).endswith(f"has no topic {topic}-nosuch; it has {topic}.")

    again = f"{topic}-again"
    replay = (*source, "--from", str(archive), "--slice", "20", "--since", "2020-01-01")
    checkpoint = ("--checkpoint", str(tmp_path / "replayed"))
    running = jobs.start("replay", *replay, *checkpoint, "--to", again)
    wait_for_files(running, tmp_path / "replayed")
    done = running.stop(signal.SIGTERM)
    assert done.status == 0
    assert re.search(r"stopped: [\d,]+ messages sent, [\d,]+ remain; the same", said(done))
    done = jobs.run("replay", *replay, *checkpoint, "--to", again)
    assert done.status == 0 and re.search(r"[\d,]+ messages sent$", said(done))
    check_replayed(client, topic, again)

    # The proof of such a migration, for one that lost a message too.
    client.create_producer(again).send(b"one more", partition_key="key 3")
    sides = ("--service-url", broker.url, "--other-service-url", broker.url)
    ignored = [word for each in ORIGIN for word in ("--ignore-property", each)]
    done = jobs.run(
        *("audit", *sides, "--topic", topic, "--other-topic", again, "--order", "key"),
        *(*ignored, "--json"),
    )
    assert done.status == 1, done.err
    (verdict,) = json.loads(done.out)
    difference = verdict["difference"]
    assert (difference["key"], difference["here"]) == ("'key 3'", None)
    numbers = [number for number in range(2_500) if number % 7 == 3 and number % 8]
    assert difference["message"] == len(numbers) + 1


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
    packed = {"batching_max_messages": 33, "compression_type": pulsar.CompressionType.ZSTD}
    publish(client, same, range(9_000), **packed)
    sides = ("--service-url", broker.url, "--other-service-url", broker.url)
    done = jobs.run(
        *("audit", *sides, "--topic", one, "--other-topic", two, "--topic", two),
        *("--other-topic", same, "--json"),
    )
    assert done.status == 1, done.err
    verdicts = {each["topic"]: each for each in json.loads(done.out)}
    assert list(verdicts) == [one, two]
    missing = verdicts[one]["difference"]
    assert missing["message"] == 6_002 and missing["fields"] == [
        *("value", "key", "eventTime", "properties")
    ]
    assert (missing["here"], missing["there"]) == (at(client, one, 6_001), at(client, two, 6_001))
    assert verdicts[one]["here"]["messages"] == 9_000
    assert verdicts[one]["there"]["messages"] == 8_999

    done = jobs.run("audit", *sides, "--topic", one, "--other-topic", same)
    assert done.status == 0, done.out
    assert "All 9,000 messages of 1 topics are the same." in done.out


def at(client: pulsar.Client, topic: str, index: int) -> str:
    """Where a message is, as positions are written."""
    found = next(itertools.islice(read_all(client, topic), index, None)).message_id()
    text = f"{found.ledger_id()}:{found.entry_id()}"
    return f"{text}:{found.batch_index()}" if found.batch_index() >= 0 else text


def test_windows_are_told_once_when_they_are_complete(
    broker: Broker, client: pulsar.Client, topic: str, jobs: Jobs, tmp_path: Path
) -> None:
    begin = 1_700_000_040_000  # a whole minute
    producer = client.create_producer(topic)

    def send(second: int, customer: str, amount: float) -> None:
        text = json.dumps({"customer": customer, "amount": amount})
        producer.send(text.encode(), event_timestamp=begin + second * 1_000)

    for second, amount in ((1, 10), (59, 20), (61, 5)):
        send(second, "ann", amount)
    send(30, "bob", 7)
    send(200, "ann", 1)
    options = (
        *("--service-url", broker.url, "--topic", topic, "--to", f"{topic}-out"),
        *("--fields", "customer string, amount double", "--group-by", "customer"),
        *("--select", "sum(amount) as amount", "--select", "count(*) as orders"),
        *("--window", "1 minute", "--watermark", "10 seconds", "--until-now"),
        *("--checkpoint", str(tmp_path / "checkpoint")),
    )
    done = jobs.run("aggregate", *options, "--where", "nosuch > 0")
    assert done.status == 2
    assert "with name `nosuch` cannot be resolved" in said(done), done.err
    done = jobs.run("aggregate", *options)
    assert done.status == 0, done.err
    assert said(done).endswith("done up to the start: 5 messages aggregated")
    send(5, "ann", 1_000)  # too late
    send(400, "bob", 2)
    assert jobs.run("aggregate", *options).status == 0
    found = sorted(
        (message.event_timestamp() - begin, message.partition_key(), json.loads(message.data()))
        for message in read_all(client, f"{topic}-out")
    )
    # Whoever reads the text sees the window first, from its start to its end.
    assert list(found[0][2])[:3] == ["windowStart", "windowEnd", "customer"]
    assert found[0][2]["windowStart"] == "2023-11-14T22:14:00.000Z"
    assert found[0][2]["windowEnd"] == "2023-11-14T22:15:00.000Z"
    assert [
        (end, key, value["customer"], value["amount"], value["orders"]) for end, key, value in found
    ] == [
        (60_000, "ann", "ann", 30.0, 2),
        (60_000, "bob", "bob", 7.0, 1),
        (120_000, "ann", "ann", 5.0, 1),
        (240_000, "ann", "ann", 1.0, 1),
    ]


def test_a_page_of_analytics_has_all_it_needs(
    broker: Broker, client: pulsar.Client, topic: str, jobs: Jobs, tmp_path: Path
) -> None:
    hot, cold = f"{topic}-hot", f"{topic}-<cold>"
    client.subscribe(hot, "billing").close()
    publish(client, hot, range(3_000))
    publish(client, cold, range(5), batching_enabled=False)
    page = tmp_path / "page.html"
    pattern = re.escape(topic.rpartition("/")[2]) + "-.*"
    done = jobs.run(
        *("analytics", "--service-url", broker.url, "--admin-url", broker.web_url),
        *("--topics-pattern", f"public/default/{pattern}", "--to", str(page), "--watch", "1"),
    )
    assert done.status == 0, done.err
    told = done.out.splitlines()
    assert f"2 topics, 3,005 messages: {page}" in told
    hottest, skewed, backlog = told[-3:]
    assert re.fullmatch(r"highest rate: \S+, [\d,.]+ messages/s", hottest)
    assert re.fullmatch(r"most frequent key: key \d, 20\.0% of \S+-<cold>", skewed)
    growing = r"fastest growing backlog: billing of \S+-hot, [\d,]+"
    assert re.fullmatch(rf"{growing}, [+-][\d,.]+/s", backlog)
    text = page.read_text()
    assert not re.search(r"https?://|<script|<link|src=", text.replace(broker.url, ""))
    assert "&lt;cold&gt;" in text and "<cold>" not in text
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        ElementTree.fromstring(svg)
    rows = rows_of(text)
    hot_name = hot.rpartition("/")[2]
    assert rows["Key skew"][hot_name][0:3] == ["3,000", "375", "7"]
    assert rows["Backlogs"][hot_name][0] == "billing"
    assert rows["Sizes"][hot_name][-1] == "10 B"
    assert {"Hot topics", "Latencies", "When messages were published"} <= set(rows)


def rows_of(text: str) -> dict[str, dict[str, list[str]]]:
    """Each section's table: the cells of a row by its first one."""
    found: dict[str, dict[str, list[str]]] = {}
    for section in text.split("<h2>")[1:]:
        rows = re.findall(r"<tr>(<td>.*?)</tr>", section)
        cells = [re.findall(r"<td>(.*?)</td>", row) for row in rows]
        found[section.partition("</h2>")[0]] = {first: rest for first, *rest in cells}
    return found


JOB = """\
import sys
from pyspark.sql import SparkSession
from pyxbroker.spark import register

url, topic = sys.argv[1:3]
builder = SparkSession.builder.master("local[2]")
for name, value in (each.split("=", 1) for each in sys.argv[3:]):
    builder = builder.config(name, value)
spark = builder.getOrCreate()
register(spark)
rows = spark.createDataFrame([("apple",), ("pear",)], "value string")
options = {"service.url": url, "topic": topic}
rows.write.format("pulsar").options(**options).mode("append").save()
print(spark.read.format("pulsar").options(**options).load().count())
"""


def test_a_job_in_an_environment_that_is_not_active_finds_its_packages(
    broker: Broker, topic: str, environment: dict[str, str], tmp_path: Path
) -> None:
    """The first python3 of PATH, which Spark would take for its workers, has none of them."""
    bare = tmp_path / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    environment = environment | {"PATH": f"{bare.parent}:{environment['PATH']}"}
    del environment["PYSPARK_PYTHON"]
    program = tmp_path / "job.py"
    program.write_text(JOB)
    settings = [f"{name}={value}" for name, value in settings_of(tmp_path).items()]
    line = [sys.executable, str(program), broker.url, topic, *settings]
    done = Running.start(line, environment).wait()
    assert (done.status, done.out.strip()) == (0, "2"), done.err
    # One that was chosen is not replaced.
    done = Running.start(line, environment | {"PYSPARK_PYTHON": str(bare)}).wait()
    assert done.status == 1
    assert f"workers run {bare}, which does not have pyxbroker" in done.err.splitlines()[-1]


def test_an_archive_of_decoded_records_and_what_spark_does_not_have_are_told(
    broker: Broker, client: pulsar.Client, topic: str, jobs: Jobs, tmp_path: Path
) -> None:
    import pyarrow.dataset

    class Fruit(pulsar.schema.Record):  # type: ignore[misc]
        name = pulsar.schema.String()
        count = pulsar.schema.Integer()

    producer = client.create_producer(topic, schema=pulsar.schema.JsonSchema(Fruit))
    for number in range(3):
        producer.send(Fruit(name="fig", count=number))
    source = ("--service-url", broker.url, "--topic", topic, "--until-now")
    archive = tmp_path / "archive"
    done = jobs.run(
        *("archive", *source, "--to", str(archive), "--decode", "--partition-by", "date"),
        *("--write-option", "compression=zstd"),
    )
    assert done.status == 0, done.err
    files = [str(each) for each in archive.rglob("*.zstd.parquet")]
    found = pyarrow.dataset.dataset(files).to_table().sort_by("count").to_pylist()
    assert [(each["name"], each["count"], each["__topic"]) for each in found] == [
        ("fig", number, topic) for number in range(3)
    ]
    assert all(re.search(r"/__date=20\d\d-\d\d-\d\d/", each) for each in files)

    done = jobs.run("replay", "--service-url", broker.url, "--from", str(archive), "--to", "again")
    assert done.status == 2
    assert said(done) == f"pyxbroker: {archive} was not written by `archive`: it has no value."

    checkpoint = ("--checkpoint", str(tmp_path / "other"))
    done = jobs.run(
        *("archive", *source, "--to", str(tmp_path / "table"), "--format", "delta", *checkpoint)
    )
    assert done.status == 2
    assert said(done).startswith("pyxbroker: --format delta: this Spark does not have it; give its")


def test_spark_submit_runs_a_job_as_it_is(
    broker: Broker,
    client: pulsar.Client,
    topic: str,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    publish(client, topic, range(100))
    program = ROOT / "spark" / "pipelines" / "archive.py"
    submit = Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"
    line = [str(submit), "--master", "local[2]", "--driver-memory", "512m"]
    line += [*conf_of(settings_of(Path(environment["TMPDIR"]))), str(program)]
    line += ["--service-url", broker.url, "--topic", topic, "--until-now"]
    environment = environment | {"PYSPARK_DRIVER_PYTHON": sys.executable}
    done = Running.start([*line, "--to", str(tmp_path / "archive")], environment).wait()
    assert done.status == 0, done.err
    # spark-submit hands what a program says on stderr on as stdout.
    assert "archive: done up to the start: 100 messages archived" in done.out
    assert (tmp_path / "archive" / "_spark_metadata" / "0").exists()
