"""Hot topics, key skew, backlogs, sizes and latencies: a page of tables and plots.

Two sources of knowledge: REST, asked twice, for what comes and goes now and for what subscriptions
have before them; and the messages themselves, whose metadata Spark counts.
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
from pyxbroker.spark.pipelines.message_stats import MessageStats, look_at_messages
from pyxbroker.spark.pipelines.page import Page, size
from pyxbroker.spark.pipelines.progress import number
from pyxbroker.spark.pipelines.topic_stats import TopicStats

if TYPE_CHECKING:
    from argparse import Namespace

ABOUT = """\
Hot topics, key skew, backlogs, sizes and latencies: a page of tables and plots.

The page is one file, with its plots in it, and opens without a network. Without
--topic and --topics-pattern it is about public/default.

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
    """What the page is about."""

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
        findings = _look(job, source, topics)
        text = _page(given, findings).html()
        _write(given.to, text)
        job.progress.clear()
        _print(given.to, findings)


def _look(job: Job, source: dict[str, str], topics: list[str]) -> Findings:
    options, tell = Options(BATCH, source), job.progress.show
    # Who names a partition wants to see partitions.
    is_summed = not any(TopicName.get(each).is_partitioned for each in job.given.topic)
    first = topic_stats.look(options, topics, tell)
    with job.session() as spark:
        with watch_tasks(job, spark, "reading messages"):
            messages = look_at_messages(spark, source, is_summed)
        while (left := first.at_s + job.given.watch - time.monotonic()) > 0:
            tell(f"waiting {left:.0f} s, to see what grows")
            time.sleep(min(1.0, left))
        second = topic_stats.look(options, topics, tell)
    compared = topic_stats.compared(first, second)
    if is_summed:
        compared = topic_stats.summed(compared)
    return Findings(compared, messages, second.at_s - first.at_s)


def _check_place(place: str) -> None:
    """Before anything is read. Raises WrongOption."""
    if not Path(place).parent.is_dir() or Path(place).is_dir():
        raise WrongOption(f"--to {place}: it has to be a file in a directory that is there")


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
        f" {number(found.messages.messages)} messages, looked at {now:%Y-%m-%d %H:%M} UTC;"
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
        "Those with most messages that come now, then those with most messages. An entry is what"
        " a producer sent at once; few messages in each cost a broker more.",
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
    _tell_left(page, len(hottest))


def _backlogs(page: Page, topics: list[TopicStats]) -> None:
    backlogs = [each for topic in topics for each in topic.backlogs]
    backlogs.sort(key=lambda each: (-each.growth, -each.entries, each.topic, each.subscription))
    page.section(
        "Backlogs",
        "What subscriptions have before them, those that grow fastest first. Growth below zero is"
        " a backlog that is worked off; the time to its end is at that speed.",
    )
    largest = sorted(backlogs, key=lambda each: -each.entries)[:PLOTTED_MAX]
    rows = [(f"{_name(each.topic)} · {each.subscription}", each.entries) for each in largest]
    page.plot(plots.bars(rows, "in the backlog"))
    heads = ("topic", "subscription", "consumers", "backlog", "growth, 1/s", "out, msg/s")
    page.table(
        (*heads, "holes", "worked off in"),
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
    _tell_left(page, len(backlogs))


def _over_time(page: Page, found: MessageStats) -> None:
    page.section("When messages were published", "Of those that are kept; times are in UTC.")
    page.plot(plots.columns(found.over_time, "messages"))
    if not found.over_time:
        page.note(NO_MESSAGES)


def _keys(page: Page, found: MessageStats) -> None:
    page.section(
        "Key skew",
        "How messages spread over keys: a key is one consumer's (Key_Shared) and one partition's,"
        " so the share of the most frequent one bounds how far work can be spread. Numbers of keys"
        " are estimates within a few percent.",
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
    _tell_left(page, len(found.topics))


def _sizes(page: Page, found: MessageStats) -> None:
    page.section("Sizes", "Bytes of payloads, as they are unpacked: how many have up to so many.")
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
    _tell_left(page, len(found.topics))


def _latencies(page: Page, found: MessageStats) -> None:
    page.section(
        "Latencies",
        "From an event (its event time) to its publishing: how many took up to so long."
        " Messages without an event time are left out; those with one behind their publishing are"
        " told by themselves: a clock is wrong.",
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
    _tell_left(page, len(found.topics))


def _tell_left(page: Page, count: int) -> None:
    if count > SHOWN_MAX:
        page.note(f"{number(count - SHOWN_MAX)} more are left out.")


def _name(topic: str) -> str:
    return topic.removeprefix("persistent://").removeprefix("public/default/")


def _latency(ms: float | None) -> str:
    return "" if ms is None else _span(ms / 1000)


def _span(seconds: float) -> str:
    """A time span as people say it."""
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= size_s:
            return f"{seconds / size_s:,.0f} {unit}"
    return f"{seconds * 1000:,.0f} ms"


# --- the terminal ---------------------------------------------------------------------------------


def _print(place: str, found: Findings) -> None:
    hottest = _hottest(found)[0]
    print(f"{len(found.topics)} topics, {number(found.messages.messages)} messages: {place}")
    print(f"most comes to: {_name(hottest.topic)}, {hottest.rate_in:,.1f} messages/s")
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
        print("backlog that grows most: no topic has a subscription")
    elif growing := max(backlogs, key=lambda each: each.growth, default=None):
        print(
            f"backlog that grows most: {growing.subscription} of {_name(growing.topic)},"
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
        help="How far the two looks at statistics are apart at least [%(default)s].",
    )
    return parser


def _seconds(text: str) -> float:
    if not (text.isdecimal() and 0 < int(text) <= 86_400):
        raise ArgumentTypeError(f"{text!r} is no number of seconds.")
    return float(text)


if __name__ == "__main__":
    command(sys.argv[1:])
