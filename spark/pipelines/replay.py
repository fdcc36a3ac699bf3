"""The replay of an archive to a topic, in the original order of each key.

The archive is sent in slices, each about a hundred thousand consecutive messages of one topic. A
checkpoint stores the last complete slice, so a stopped replay continues after it. Ctrl-C waits for
the current slice. Within a slice one task sends the messages of a key in order, and one task those
without a key.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.base.command_line import Parser
from pyxbroker.base.directories import write_whole_file
from pyxbroker.base.topic_name import TopicName
from pyxbroker.spark.errors import TopicMissing, WrongOption
from pyxbroker.spark.pipelines.arguments import (
    POSITION,
    add_cluster,
    check_sink,
    job_parser,
    topic_name,
)
from pyxbroker.spark.pipelines.formats import FORMATS, PARQUET, read_archive
from pyxbroker.spark.pipelines.job import Job, watch_tasks
from pyxbroker.spark.pipelines.progress import number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ABOUT = """\
Write an archive back to a topic, in the original order of each key.

Keys, properties and event times are those of the archived messages. Properties
name the original message: replay.topic, replay.messageId (ledger:entry, or
ledger:entry:batch) and replay.publishTime (ms). With --checkpoint a stopped
replay continues.

Example:
  pyxbroker pipeline run replay --from /srv/archive --topic orders \\
      --service-url pulsar://localhost:6650 --to orders-again
"""

ENTRIES_PER_BUCKET = 100
SHOWN_MAX = 10  # topics that an error names
ORIGIN = {
    "replay.topic": "__topic",
    "replay.messageId": "concat_ws(':', __ledgerId, __entryId, nullif(__batchIndex, -1))",
    "replay.publishTime": "cast(unix_millis(__publishTime) as string)",
}
"""The properties that name the original of a message. A message that was replayed before keeps its
properties, which name the first original.
"""


class Bucket(NamedTuple):
    """Consecutive entries of a ledger up to and including `last_entry`."""

    topic: str
    ledger: int
    last_entry: int
    messages: int


class Slice(NamedTuple):
    """Consecutive messages of one topic in (begin, end], each a ledger and an entry."""

    topic: str
    begin: tuple[int, int]
    end: tuple[int, int]
    messages: int


def command(arguments: Sequence[str]) -> None:
    given = _parser().parse(arguments)
    job = Job("replay", given)
    with job.run():
        sink = dict(given.option) | {"service.url": given.service_url}
        if given.to is not None:
            sink["topic"] = given.to
        check_sink(sink)
        checkpoint = Checkpoint(given)
        with job.session() as spark:
            _replay(job, spark, sink, checkpoint)


def _replay(job: Job, spark: SparkSession, sink: dict[str, str], checkpoint: Checkpoint) -> None:
    given = job.given
    job.progress.show("reading the archive")
    archive = read_archive(spark, given.format, getattr(given, "from"))
    _check_topics(archive, given)
    archived = _wanted(archive, given)
    rows = _unsent(archived, checkpoint.done)
    slices = list(cut(_buckets(rows), given.slice))
    total = sum(each.messages for each in slices)
    sent = 0
    job.stop_by_signals("stopping after this slice")
    for at, each in enumerate(slices):
        if job.stopping:
            break
        where = f"slice {at + 1} of {len(slices)}, {number(sent)} of {number(total)} messages sent"
        writer = _messages(rows, each).write.format("pulsar").options(**sink)
        with watch_tasks(job, spark, where):
            writer.mode("append").save()
        sent += each.messages
        checkpoint.set_done(each.topic, each.end)
    summary = f"{number(sent)} messages sent"
    if not total and not checkpoint.done:
        summary = f"{summary}: the archive has none for these options"
    if sent < total:
        summary = f"stopped: {summary}, {number(total - sent)} remain"
        if checkpoint.is_stored:
            summary = f"{summary}; the same command continues from here"
    job.progress.print_line(summary)


def _check_topics(archive: DataFrame, given: Namespace) -> None:
    """Raise TopicMissing for a topic of the options that the archive does not have."""
    if not given.topic:
        return
    found = {row[0] for row in archive.select("__topic").distinct().collect()}
    whole = {TopicName.get(each).partitioned_topic_name for each in found}
    if missing := [each for each in given.topic if each not in found | whole]:
        names = sorted(whole)
        has = ", ".join(names[:SHOWN_MAX]) + (", ..." if len(names) > SHOWN_MAX else "")
        raise TopicMissing(
            f"the archive {getattr(given, 'from')} has no topic {missing[0]}; it has"
            f" {has or 'no messages'}"
        )


def _wanted(rows: DataFrame, given: Namespace) -> DataFrame:
    from pyspark.sql import functions

    if given.topic:
        whole = functions.regexp_replace("__topic", r"-partition-\d+$", "")
        own = functions.col("__topic")
        rows = rows.where(own.isin(given.topic) | whole.isin(given.topic))
    moment = functions.col("__publishTime")
    if given.since is not None:
        rows = rows.where(moment >= functions.lit(given.since))
    if given.until is not None:
        rows = rows.where(moment < functions.lit(given.until))
    return rows


def _unsent(rows: DataFrame, done: dict[str, tuple[int, int]]) -> DataFrame:
    """Return the rows that were not sent before."""
    from pyspark.sql import functions

    ledger, entry, _ = POSITION
    for topic, (last_ledger, last_entry) in done.items():
        is_later = (
            f"{ledger} > {last_ledger} or {ledger} = {last_ledger} and {entry} > {last_entry}"
        )
        rows = rows.where((functions.col("__topic") != topic) | functions.expr(is_later))
    return rows


# --- slices -------------------------------------------------------------------------------------


def _buckets(rows: DataFrame) -> list[Bucket]:
    """Return the runs of entries in order."""
    from pyspark.sql.functions import count, expr, max

    ledger, entry, _ = POSITION
    bucket = expr(f"{entry} div {ENTRIES_PER_BUCKET}")
    found = rows.groupBy("__topic", ledger, bucket).agg(max(entry), count("*")).collect()
    return sorted(Bucket(topic, ledger, last, size) for topic, ledger, _, last, size in found)


def cut(buckets: list[Bucket], messages_min: int) -> Iterator[Slice]:
    """Yield slices of at least `messages_min` messages; the last one of a topic may have fewer."""
    for topic, group in groupby(buckets, key=attrgetter("topic")):
        begin = end = (-1, -1)
        messages = 0
        for each in group:
            end = (each.ledger, each.last_entry)
            messages += each.messages
            if messages >= messages_min:
                yield Slice(topic, begin, end, messages)
                begin, messages = end, 0
        if messages:
            yield Slice(topic, begin, end, messages)


def _between(begin: tuple[int, int], end: tuple[int, int]) -> str:
    """Return a condition for (begin, end] that Parquet can evaluate by its statistics."""
    ledger, entry, _ = POSITION
    return (
        f"{ledger} between {begin[0]} and {end[0]}"
        f" and ({ledger} > {begin[0]} or {entry} > {begin[1]})"
        f" and ({ledger} < {end[0]} or {entry} <= {end[1]})"
    )


def _messages(rows: DataFrame, wanted: Slice) -> DataFrame:
    """Return the messages of a slice, in order within one task for each key and for no key."""
    from pyspark.sql import functions

    rows = rows.where(functions.col("__topic") == wanted.topic)
    rows = rows.where(_between(wanted.begin, wanted.end))
    rows = rows.repartition("__key").sortWithinPartitions(*POSITION)
    origin = ", ".join(f"'{name}', {expression}" for name, expression in ORIGIN.items())
    own = "coalesce(__messageProperties, cast(map() as map<string, string>))"
    new = f"map_filter(map({origin}), (name, value) -> not map_contains_key({own}, name))"
    return rows.selectExpr(
        "value",
        "__key",
        "__topic",
        "__eventTime",
        f"map_concat({own}, {new}) as __messageProperties",
    )


# --- the checkpoint -----------------------------------------------------------------------------


class Checkpoint:
    """The last sent ledger and entry of each topic, in a file on the driver's machine."""

    def __init__(self, given: Namespace) -> None:
        """Read the file. Raises WrongOption, also for the checkpoint of another replay."""
        self.done: dict[str, tuple[int, int]] = {}
        names = ("from", "to", "topic", "since", "until", "service_url")
        self._replay = {name: _plain(getattr(given, name)) for name in names}
        self._file = Path(given.checkpoint) / "replay.json" if given.checkpoint else None
        if self._file is not None:
            self._read(self._file)

    @property
    def is_stored(self) -> bool:
        return self._file is not None

    def set_done(self, topic: str, end: tuple[int, int]) -> None:
        self.done[topic] = end
        if self._file is not None:
            text = json.dumps({"replay": self._replay, "done": self.done}, indent=1)
            write_whole_file(self._file, text.encode())

    def _read(self, file: Path) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text() if file.exists() else ""
        except OSError as error:
            raise WrongOption(f"--checkpoint {file.parent}: {error.strerror}") from error
        if not text:
            return
        try:
            found = json.loads(text)
            replay = found["replay"]
            self.done = {topic: (int(at[0]), int(at[1])) for topic, at in found["done"].items()}
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise WrongOption(f"{file} is not a checkpoint of a replay: {error!r}") from error
        for name, value in self._replay.items():
            if replay.get(name) != value:
                raise WrongOption(
                    f"{file} is of another replay, whose {name} is {replay.get(name)!r} and not"
                    f" {value!r}; give another --checkpoint"
                )


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


# --- options ------------------------------------------------------------------------------------


def _parser() -> Parser:
    parser = job_parser("replay", ABOUT)
    add = parser.options.add_argument
    add(
        "--from",
        required=True,
        metavar="PLACE",
        help="The archive: the value of --to for `archive`.",
    )
    add("--format", choices=FORMATS, default=PARQUET, help="%(choices)s [%(default)s].")
    add(
        "--topic",
        action="append",
        default=[],
        type=topic_name,
        help="A topic of the archive; may be given several times [all topics].",
    )
    add(
        "--since",
        type=_moment,
        metavar="TIME",
        help="Only messages published then or later: 2026-01-31T12:00.",
    )
    add(
        "--until",
        type=_moment,
        metavar="TIME",
        help="Only messages published before, in UTC by default.",
    )
    add_cluster(parser)
    add(
        "--to",
        type=topic_name,
        metavar="TOPIC",
        help="The topic for all messages [each topic under its own name].",
    )
    add(
        "--slice",
        type=_count,
        default=100_000,
        metavar="N",
        help="The number of messages in a slice [%(default)s].",
    )
    add("--checkpoint", metavar="DIR", help="A directory for the progress of the replay.")
    return parser


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not a time; write it as 2026-01-31T12:00.") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a number of messages.")
    return int(text)


if __name__ == "__main__":
    command(sys.argv[1:])
