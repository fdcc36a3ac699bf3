"""A comparison of topics of two clusters, which proves that a migration changed no message.

Message n of a topic, or of a key in a topic, is compared with message n of the other side. Entries,
batches, chunks, codecs and ids do not matter. Each side is read once: a message is reduced to its
number and a hash of the compared fields. Blocks of messages have one hash each. Single messages are
compared only in blocks that differ.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.base.command_line import Parser
from pyxbroker.base.topic_name import TopicName
from pyxbroker.spark.errors import WrongOption
from pyxbroker.spark.options import BATCH
from pyxbroker.spark.pipelines.arguments import (
    POSITION,
    add_source,
    check_source,
    job_parser,
    pair,
    source_options,
)
from pyxbroker.spark.pipelines.job import Job, watch_tasks
from pyxbroker.spark.pipelines.progress import number
from pyxbroker.spark.positions import Position
from pyxbroker.spark.topics import name_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ABOUT = """\
Compare topics of two clusters, message by message.

Ends with 0 when each topic has the same messages in the same order on both
sides, and with 1 otherwise; it names the first message that differs.
With --order key only the order of each key has to be the same, as with `replay`,
and partitions do not matter.
Batches, compression and message ids do not matter. Producers should not publish
during the audit: it compares the messages that exist at its start.

Example:
  pyxbroker pipeline run audit --service-url pulsar://old:6650 --topic orders \\
      --other-service-url pulsar://new:6650
"""

FIELDS = {
    "value": "value",
    "key": "__key",
    "eventTime": "cast(unix_millis(__eventTime) as string)",
    "properties": "to_json(array_sort(map_entries({})))",
    "publishTime": "cast(unix_millis(__publishTime) as string)",
}
"""The fields that can be compared, as SQL for bytes or text; null without a value."""
COMPARED = ["value", "key", "eventTime", "properties"]
MESSAGES_PER_BLOCK = 4_096
BLOCKS_OF_KEYS = 1_024
BLOCK = {
    "topic": f"n div {MESSAGES_PER_BLOCK}",
    "key": f"pmod(xxhash64(line), {BLOCKS_OF_KEYS})",
}
"""The block of a message: consecutive messages, or the messages of several keys."""
SAME, DIFFERENT = 0, 1
KEYLESS = "-"
_BITS = "cast(conv(substr(hash, {at}, 15), 16, 10) as bigint)"
"""60 bits of a hash, which fit into a positive bigint. A block's hash has two such parts."""


class Difference(NamedTuple):
    """The first difference of a topic."""

    key: str | None
    """The message's key, if the order of keys is compared."""
    message: int
    """Its number in the topic, or among those with the key, from 1."""
    here: str | None
    """Its position, as ledger:entry or ledger:entry:batch; None: the topic has no such message."""
    there: str | None
    fields: list[str]
    """The fields that differ."""

    def __str__(self) -> str:
        what = f"message {number(self.message)}"
        if self.key is not None:
            what = f"{what} of {self.key}"
        if self.there is None:
            return f"{what}, at {self.here} here, is missing there: the topic has ended"
        if self.here is None:
            return f"{what}, at {self.there} there, is missing here: the topic has ended"
        fields = " and ".join(self.fields)
        return f"{what}, at {self.here} here and at {self.there} there, differs in its {fields}"


class Total(NamedTuple):
    """The number of messages of a topic on one side, and their hash."""

    messages: int = 0
    hash: str = "0" * 30


class Verdict(NamedTuple):
    """The result for a topic."""

    topic: str
    here: Total
    there: Total
    difference: Difference | None


def command(arguments: Sequence[str]) -> None:
    given = _parser().parse(arguments)
    job = Job("audit", given)
    verdicts: list[Verdict] = []
    with job.run():
        here, there = source_options(given), _other_options(given)
        topics = check_source(BATCH, here)
        renamed = _renamed(given, check_source(BATCH, there))
        with job.session() as spark:
            sides = [
                _side(job, spark, "here", here, {}),
                _side(job, spark, "there", there, renamed),
            ]
            with watch_tasks(job, spark, "comparing"):
                verdicts = _verdicts(given, sides, _names(given, {*topics, *renamed.values()}))
    job.progress.clear()
    _print(verdicts, given.json)
    sys.exit(DIFFERENT if any(each.difference for each in verdicts) else SAME)


def _names(given: Namespace, topics: set[str]) -> set[str]:
    """Return the topics to report. With the order of keys, a partitioned topic is one topic."""
    if given.order == "topic":
        return topics
    return {TopicName.get(each).partitioned_topic_name for each in topics}


# --- the two sides --------------------------------------------------------------------------------


def _other_options(given: Namespace) -> dict[str, str]:
    """Return the options of the other side: those of this side, with the --other- options."""
    topics = given.other_topic or given.topic
    if len(topics) != len(given.topic) or len(set(topics)) != len(set(given.topic)):
        raise WrongOption("--other-topic has to be given once for each --topic, in the same order")
    other = Namespace(**vars(given))
    other.service_url, other.admin_url = given.other_service_url, given.other_admin_url
    other.topic = topics
    other.option = given.option + given.other_option
    return source_options(other)


def _renamed(given: Namespace, topics: list[str]) -> dict[str, str]:
    """Return the name on this side of each topic of the other side."""
    pairs = zip(given.other_topic, given.topic, strict=False)
    whole = {str(name_of(other)): str(name_of(one)) for other, one in pairs}
    found = {}
    for topic in topics:
        name = TopicName.get(topic)
        one = whole.get(topic) or whole.get(name.partitioned_topic_name)
        if one is not None and topic not in whole and name.is_partitioned:
            one = str(TopicName.get(one).partition(name.partition_index))
        found[topic] = one or topic
    return found


def _side(
    job: Job, spark: SparkSession, side: str, options: dict[str, str], renamed: dict[str, str]
) -> DataFrame:
    """Return the messages of a side with their numbers: (topic, line, n, position, fields, digest).

    A line is a sequence with an order: a key, or the whole topic (the line is empty then). The
    hashes are stored on disk, so the topics are read once.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions

    rows = spark.read.format("pulsar-raw").options(**options).load()
    rows = _hashed(rows, job.given, renamed).persist(StorageLevel.DISK_ONLY)
    with watch_tasks(job, spark, f"reading {side}, {options['service.url']}"):
        if job.given.order == "key":
            rows.count()
            return _numbered_by_key(rows)
        tasks = rows.groupBy("topic", "task").agg(
            functions.min("position"), functions.count("*"), functions.min("in_task")
        )
        found = tasks.collect()
    return _numbered(spark, rows, found)


def _hashed(rows: DataFrame, given: Namespace, renamed: dict[str, str]) -> DataFrame:
    from pyspark.sql import functions

    topic = functions.col("__topic")
    for there, here in renamed.items():
        if there != here:
            topic = functions.when(functions.col("__topic") == there, here).otherwise(topic)
    line = "''"
    if given.order == "key":
        topic = functions.regexp_replace(topic, r"-partition-\d+$", "")
        line = f"coalesce(hex(__key), '{KEYLESS}')"
    fields = [_field(name, given.ignore_property) for name in given.compare]
    hashes = (f"coalesce(sha2({each}, 256), '-')" for each in fields)
    return rows.withColumn("topic", topic).selectExpr(
        "topic",
        f"{line} as line",
        "__topic as source",
        # A task has the rows of one range in order, and their ids are consecutive.
        "spark_partition_id() as task",
        "monotonically_increasing_id() as in_task",
        f"struct({', '.join(POSITION)}) as position",
        f"array({', '.join(f'xxhash64({each})' for each in fields)}) as fields",
        f"unhex(sha2(concat_ws('|', {', '.join(hashes)}), 256)) as digest",
    )


def _field(name: str, ignored: list[str]) -> str:
    if name != "properties":
        return FIELDS[name]
    names = ", ".join(f"'{each}'" for each in ignored) or "''"
    found = "coalesce(__messageProperties, cast(map() as map<string, string>))"
    return FIELDS[name].format(f"map_filter({found}, (name, value) -> name not in ({names}))")


def _numbered(spark: SparkSession, rows: DataFrame, tasks: list[Any]) -> DataFrame:
    """Add the number of each message in its topic, which counts those of earlier tasks."""
    from pyspark.sql import functions

    before: dict[str, int] = {}
    shifts = []
    for topic, task, _, messages, first in sorted(tasks, key=itemgetter(0, 2)):
        shifts.append((task, topic, before.get(topic, 0) - first))
        before[topic] = before.get(topic, 0) + messages
    shift = spark.createDataFrame(shifts, "task int, topic string, shift bigint")
    joined = rows.join(functions.broadcast(shift), ["topic", "task"])
    return joined.selectExpr(
        "topic", "line", "in_task + shift as n", "position", "fields", "digest"
    )


def _numbered_by_key(rows: DataFrame) -> DataFrame:
    """Add the number of each message among those of its key."""
    number_of = "row_number() over (partition by topic, line order by source, position) - 1"
    return rows.selectExpr("topic", "line", f"{number_of} as n", "position", "fields", "digest")


# --- comparing ------------------------------------------------------------------------------------


def _verdicts(given: Namespace, sides: list[DataFrame], topics: set[str]) -> list[Verdict]:
    from pyspark.sql import functions

    sides = [each.withColumn("block", functions.expr(BLOCK[given.order])) for each in sides]
    here, there = (_blocks(each).persist() for each in sides)
    totals = [_totals(each) for each in (here, there)]
    both = here.alias("here").join(there.alias("there"), ["topic", "block"], "full_outer")
    differing = both.where(
        "not (struct(here.messages, here.one, here.two)"
        " <=> struct(there.messages, there.one, there.two))"
    )
    wanted = differing.select("topic", "block").persist()
    if given.order == "topic":  # blocks are ordered, so the first one has the first difference
        wanted = wanted.groupBy("topic").agg(functions.min("block").alias("block"))
    differences = _differences(given, sides, wanted) if wanted.count() else {}
    here_of, there_of = totals
    nothing = Total()
    return [
        Verdict(
            each, here_of.get(each, nothing), there_of.get(each, nothing), differences.get(each)
        )
        for each in sorted(topics)
    ]


def _blocks(rows: DataFrame) -> DataFrame:
    """Return a row for each block of messages.

    The hashes include the numbers of messages. So the order is compared, too, although xor combines
    the hashes in any order.
    """
    rows = rows.selectExpr(
        "topic", "block", "sha2(concat_ws('|', line, n, hex(digest)), 256) as hash"
    )
    rows = rows.selectExpr(
        "topic", "block", f"{_BITS.format(at=1)} as one", f"{_BITS.format(at=16)} as two"
    )
    return rows.groupBy("topic", "block").agg(*_sums("count(*)"))


def _sums(count: str) -> list[Column]:
    from pyspark.sql.functions import expr

    return [
        expr(f"{count} as messages"),
        expr("bit_xor(one) as one"),
        expr("bit_xor(two) as two"),
    ]


def _totals(blocks: DataFrame) -> dict[str, Total]:
    rows = blocks.groupBy("topic").agg(*_sums("sum(messages)")).collect()
    return {row.topic: Total(row.messages, f"{row.one:015x}{row.two:015x}") for row in rows}


def _differences(
    given: Namespace, sides: list[DataFrame], blocks: DataFrame
) -> dict[str, Difference]:
    """Return the first message that differs of each topic, searched in these blocks."""
    from pyspark.sql import functions

    wanted = functions.broadcast(blocks)
    here, there = (each.join(wanted, ["topic", "block"], "left_semi") for each in sides)
    both = here.alias("here").join(there.alias("there"), ["topic", "line", "n"], "full_outer")
    differing = both.where("not (here.digest <=> there.digest)")
    place = "n" if given.order == "topic" else "coalesce(here.position, there.position)"
    first = functions.expr(
        f"min(struct({place} as place, line, n, here.position as at_here, there.position as"
        " at_there, here.fields as fields_here, there.fields as fields_there)) as first"
    )
    found = {}
    for topic, row in differing.groupBy("topic").agg(first).collect():
        pairs = zip(given.compare, row.fields_here or (), row.fields_there or (), strict=False)
        names = [name for name, one, other in pairs if one != other]
        found[topic] = Difference(
            None if given.order == "topic" else _key(row.line),
            *(row.n + 1, _text(row.at_here), _text(row.at_there), names),
        )
    return found


def _key(line: str) -> str:
    if line == KEYLESS:
        return "those without a key"
    return repr(bytes.fromhex(line).decode(errors="backslashreplace"))


def _text(position: Sequence[int] | None) -> str | None:
    return None if position is None else str(Position(*position))


# --- output ---------------------------------------------------------------------------------------


def _print(verdicts: list[Verdict], as_json: bool) -> None:
    if as_json:
        print(json.dumps([_plain(each) for each in verdicts], indent=1))
        return
    for each in verdicts:
        if each.difference is None:
            words = f"the same {number(each.here.messages)} messages, {each.here.hash}"
        else:
            words = (
                f"DIFFERENT. {number(each.here.messages)} messages here,"
                f" {number(each.there.messages)} there; {each.difference}"
            )
        print(f"{each.topic}: {words}")
    wrong = sum(each.difference is not None for each in verdicts)
    if wrong:
        print(f"{wrong} of {len(verdicts)} topics differ.")
    else:
        messages = sum(each.here.messages for each in verdicts)
        print(f"All {number(messages)} messages of {len(verdicts)} topics are the same.")


def _plain(verdict: Verdict) -> dict[str, object]:
    difference = verdict.difference
    return {
        "topic": verdict.topic,
        "here": verdict.here._asdict(),
        "there": verdict.there._asdict(),
        "difference": None if difference is None else difference._asdict(),
    }


# --- options --------------------------------------------------------------------------------------


def _parser() -> Parser:
    parser = job_parser("audit", ABOUT)
    add_source(parser)
    add = parser.options.add_argument
    add("--other-service-url", required=True, metavar="URL", help="A broker of the other cluster.")
    add("--other-admin-url", metavar="URL", help="Its web port.")
    add(
        "--other-topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help="The topic's name on the other side, once for each --topic, in the same order.",
    )
    add(
        "--other-option",
        type=pair,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="An option of the connector for the other cluster only.",
    )
    add(
        "--order",
        choices=("topic", "key"),
        default="topic",
        help="Compare the order of messages in each topic, or of each key [%(default)s].",
    )
    add(
        "--compare",
        type=_fields,
        default=COMPARED,
        metavar="LIST",
        help=f"Some of {', '.join(FIELDS)}, separated by commas [{','.join(COMPARED)}].",
    )
    add(
        "--ignore-property",
        action="append",
        default=[],
        type=_property,
        metavar="NAME",
        help="A property that may differ, such as replay.messageId; may be given several times.",
    )
    add("--json", action="store_true", help="Print one JSON value.")
    return parser


def _fields(text: str) -> list[str]:
    found = [each.strip() for each in text.split(",") if each.strip()]
    for each in found:
        if each not in FIELDS:
            raise ArgumentTypeError(f"{each!r} is not one of {', '.join(FIELDS)}.")
    if not found:
        raise ArgumentTypeError("there is nothing to compare.")
    return found


def _property(text: str) -> str:
    if "'" in text or "\\" in text:
        raise ArgumentTypeError(f"{text!r} cannot be ignored: it has a quote or a backslash.")
    return text


if __name__ == "__main__":
    command(sys.argv[1:])
