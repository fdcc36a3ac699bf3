"""A report on hot topics, key skew, backlogs, sizes and latencies, with tables and plots.

It has two sources: two requests to REST for rates and backlogs, and the metadata of the messages,
which Spark counts.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.base.command_line import Parser
from pyxbroker.base.topic_name import TopicName
from pyxbroker.spark.errors import PulsarSparkError, WrongOption
from pyxbroker.spark.options import BATCH, Options
from pyxbroker.spark.pipelines import plots, topic_stats
from pyxbroker.spark.pipelines.arguments import (
    add_source,
    add_start,
    check_source,
    job_parser,
    source_options,
)
from pyxbroker.spark.pipelines.job import Job, watch_tasks
from pyxbroker.spark.pipelines.message_stats import MessageStats, count_messages
from pyxbroker.spark.pipelines.page import Page, size
from pyxbroker.spark.pipelines.progress import number
from pyxbroker.spark.pipelines.topic_stats import TopicStats

if TYPE_CHECKING:
    from argparse import Namespace

ABOUT = """\
Report hot topics, key skew, backlogs, sizes and latencies as a page.

The page is one HTML file with tables and plots, and opens without a network.
Without --topic and --topics-pattern it covers public/default.

Example:
  pyxbroker pipeline run analytics --service-url pulsar://localhost:6650 \\
      --admin-url http://localhost:8080 --to analytics.html
"""

ALL = "public/default/.*"
NO_MESSAGES = (
    "No messages are stored from --start on. Pulsar deletes those that every subscription has"
    " acknowledged, and those of a topic without subscriptions, unless retention keeps them."
)
NO_SUBSCRIPTIONS = "None of these topics has a subscription, so there is no backlog."
SHOWN_MAX = 50
PLOTTED_MAX = 20


class Findings(NamedTuple):
    """The results that the page shows."""

    topics: list[TopicStats]
    messages: MessageStats
    seconds: float


def command(arguments: Sequence[str]) -> None:
    given = _parser().parse(arguments)
    job = Job("analytics", given)
    with job.run():
        if not given.topic and given.topics_pattern is None:
            given.topics_pattern = ALL
        source = source_options(given) | {"startingOffsets": given.start}
        topics = check_source(BATCH, source)
        _check_place(given.to)
        findings = _collect(job, source, topics)
        text = _page(given, findings).html()
        _write(given.to, text)
        job.progress.clear()
        _print(given.to, findings)


def _collect(job: Job, source: dict[str, str], topics: list[str]) -> Findings:
    options, show = Options(BATCH, source), job.progress.show
    # If the user names a partition, partitions are shown separately.
    is_summed = not any(TopicName.get(each).is_partitioned for each in job.given.topic)
    first = topic_stats.request_statistics(options, topics, show)
    with job.session() as spark:
        with watch_tasks(job, spark, "reading messages"):
            messages = count_messages(spark, source, is_summed)
        while (left := first.at_s + job.given.watch - time.monotonic()) > 0:
            show(f"waiting {left:.0f} s, to measure growth")
            time.sleep(min(1.0, left))
        second = topic_stats.request_statistics(options, topics, show)
    compared = topic_stats.compare(first, second)
    if is_summed:
        compared = topic_stats.sum_partitions(compared)
    return Findings(compared, messages, second.at_s - first.at_s)


def _check_place(place: str) -> None:
    """Check the path of the page before topics are read. Raises WrongOption."""
    if not Path(place).parent.is_dir() or Path(place).is_dir():
        raise WrongOption(f"--to {place}: it has to be a file in an existing directory")


def _write(place: str, text: str) -> None:
    try:
        Path(place).write_text(text)
    except OSError as error:
        raise PulsarSparkError(f"{place} cannot be written: {error.strerror}") from error


# --- the page -------------------------------------------------------------------------------------


def _page(given: Namespace, found: Findings) -> Page:
    now = datetime.now(timezone.utc)
    page = Page(
        "Topics",
        f"{len(found.topics)} topics of {given.service_url} with"
        f" {number(found.messages.messages)} messages, measured at {now:%Y-%m-%d %H:%M} UTC;"
        f" rates are over {found.seconds:.0f} s.",
    )
    _hot_topics(page, found)
    _backlogs(page, found.topics)
    _over_time(page, found.messages)
    _keys(page, found.messages)
    _sizes(page, found.messages)
    _latencies(page, found.messages)
    return page


def _hottest(found: Findings) -> list[TopicStats]:
    counted = {each.topic: each.messages for each in found.messages.topics}
    return sorted(
        found.topics, key=lambda each: (-each.rate_in, -counted.get(each.topic, 0), each.topic)
    )


def _hot_topics(page: Page, found: Findings) -> None:
    hottest = _hottest(found)
    counted = {each.topic: each for each in found.messages.topics}
    page.section(
        "Hot topics",
        "Sorted by current rate, then by stored messages. An entry is a batch of a producer;"
        " small batches cost a broker more.",
    )
    rows = [
        (_name(each.topic), counted[each.topic].messages)
        for each in hottest
        if each.topic in counted
    ]
    page.plot(plots.bars(rows[:PLOTTED_MAX], "messages"))
    heads = ("topic", "in, msg/s", "in, bytes/s", "out, msg/s", "producers", "stored", "ledgers")
    more = ("messages", "payloads", "messages per entry")
    page.table(
        heads + more,
        [
            (
                *(_name(each.topic), each.rate_in, size(each.bytes_in), each.rate_out),
                *(each.producers, size(each.storage), each.ledgers),
                *(
                    (of.messages, size(of.bytes), of.messages / max(1, of.entries))
                    if (of := counted.get(each.topic))
                    else (0, "", None)
                ),
            )
            for each in hottest[:SHOWN_MAX]
        ],
    )
    _note_omitted(page, len(hottest))


def _backlogs(page: Page, topics: list[TopicStats]) -> None:
    backlogs = [each for topic in topics for each in topic.backlogs]
    backlogs.sort(key=lambda each: (-each.growth, -each.entries, each.topic, each.subscription))
    page.section(
        "Backlogs",
        "Unacknowledged entries of subscriptions, the fastest growing first. A backlog with"
        " negative growth shrinks; the last column is the time until it is empty at that rate.",
    )
    largest = sorted(backlogs, key=lambda each: -each.entries)[:PLOTTED_MAX]
    rows = [(f"{_name(each.topic)} · {each.subscription}", each.entries) for each in largest]
    page.plot(plots.bars(rows, "in the backlog"))
    heads = ("topic", "subscription", "consumers", "backlog", "growth, 1/s", "out, msg/s")
    page.table(
        (*heads, "gaps", "empty in"),
        [
            (
                *(_name(each.topic), each.subscription, each.consumers, each.entries),
                *(each.growth, each.rate_out, each.holes),
                _span(each.entries / -each.growth) if each.growth < 0 else "",
            )
            for each in backlogs[:SHOWN_MAX]
        ],
        NO_SUBSCRIPTIONS,
    )
    _note_omitted(page, len(backlogs))


def _over_time(page: Page, found: MessageStats) -> None:
    page.section("When messages were published", "Stored messages by publish time, in UTC.")
    page.plot(plots.columns(found.over_time, "messages"))
    if not found.over_time:
        page.note(NO_MESSAGES)


def _keys(page: Page, found: MessageStats) -> None:
    page.section(
        "Key skew",
        "The distribution of messages over keys. All messages of a key go to one consumer"
        " (Key_Shared) and one partition, so the share of the most frequent key limits parallelism."
        " Numbers of keys are estimates within a few percent.",
    )
    rows = [(f"{each.key} · {_name(each.topic)}", each.messages) for each in found.top_keys]
    page.plot(plots.bars(rows[:PLOTTED_MAX], "messages"))
    if found.messages and not rows:
        page.note("No message has a key.")
    page.table(
        (
            "topic",
            "messages",
            "without a key",
            "keys",
            "most frequent",
            "its messages",
            "its share",
        ),
        [
            (
                *(_name(each.topic), each.messages, each.keyless, each.keys),
                *(each.top_key, each.top_messages, f"{each.top_share:.1%}"),
            )
            for each in sorted(found.topics, key=lambda each: -each.top_share)[:SHOWN_MAX]
        ],
        NO_MESSAGES,
    )
    _note_omitted(page, len(found.topics))


def _sizes(page: Page, found: MessageStats) -> None:
    page.section("Sizes", "Uncompressed payloads. Each column has the messages up to its size.")
    page.plot(plots.columns([(size(most), count) for most, count in found.sizes], "messages"))
    page.table(
        ("topic", "messages", "tombstones", "median", "99%", "largest"),
        [
            (
                *(_name(each.topic), each.messages, each.tombstones),
                *(size(value) for value in (each.size_p50, each.size_p99, each.size_max)),
            )
            for each in sorted(found.topics, key=lambda each: -each.bytes)[:SHOWN_MAX]
        ],
        NO_MESSAGES,
    )
    _note_omitted(page, len(found.topics))


def _latencies(page: Page, found: MessageStats) -> None:
    page.section(
        "Latencies",
        "From the event time of a message to its publish time. Each column has the messages up to"
        " its latency. Messages without an event time are left out. Those published before their"
        " event are counted separately: a clock is wrong.",
    )
    page.plot(plots.columns([(_span(ms / 1000), n) for ms, n in found.latencies], "messages"))
    if found.messages and not any(each.timed for each in found.topics):
        page.note("No message has an event time.")
    page.table(
        ("topic", "with an event time", "median", "99%", "longest", "before the event"),
        [
            (
                *(_name(each.topic), each.timed, _latency(each.latency_p50)),
                *(_latency(each.latency_p99), _latency(each.latency_max), each.too_early),
            )
            for each in sorted(found.topics, key=lambda each: -(each.latency_p99 or 0))[:SHOWN_MAX]
        ],
        NO_MESSAGES,
    )
    _note_omitted(page, len(found.topics))


def _note_omitted(page: Page, count: int) -> None:
    if count > SHOWN_MAX:
        page.note(f"{number(count - SHOWN_MAX)} more are not shown.")


def _name(topic: str) -> str:
    return topic.removeprefix("persistent://").removeprefix("public/default/")


def _latency(ms: float | None) -> str:
    return "" if ms is None else _span(ms / 1000)


def _span(seconds: float) -> str:
    """Return a time span with a readable unit."""
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= size_s:
            return f"{seconds / size_s:,.0f} {unit}"
    return f"{seconds * 1000:,.0f} ms"


# --- the terminal ---------------------------------------------------------------------------------


def _print(place: str, found: Findings) -> None:
    hottest = _hottest(found)[0]
    print(f"{len(found.topics)} topics, {number(found.messages.messages)} messages: {place}")
    print(f"highest rate: {_name(hottest.topic)}, {hottest.rate_in:,.1f} messages/s")
    skewed = max(found.messages.topics, key=lambda each: each.top_share, default=None)
    if skewed is None:
        print(NO_MESSAGES)
    elif not skewed.top_messages:
        print("most frequent key: no message has a key")
    else:
        share = f"{skewed.top_share:.1%} of {_name(skewed.topic)}"
        print(f"most frequent key: {skewed.top_key}, {share}")
    backlogs = [each for topic in found.topics for each in topic.backlogs]
    if not backlogs:
        print("fastest growing backlog: no topic has a subscription")
    elif growing := max(backlogs, key=lambda each: each.growth, default=None):
        print(
            f"fastest growing backlog: {growing.subscription} of {_name(growing.topic)},"
            f" {number(growing.entries)}, {growing.growth:+,.1f}/s"
        )


def _parser() -> Parser:
    parser = job_parser("analytics", ABOUT)
    add_source(parser, is_admin_required=True)
    add_start(parser)
    add = parser.options.add_argument
    add("--to", default="analytics.html", metavar="FILE", help="The page [%(default)s].")
    add(
        "--watch",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="The minimum time between the two requests of statistics [%(default)s].",
    )
    return parser


def _seconds(text: str) -> float:
    if not (text.isdecimal() and 0 < int(text) <= 86_400):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400.")
    return float(text)


if __name__ == "__main__":
    command(sys.argv[1:])
