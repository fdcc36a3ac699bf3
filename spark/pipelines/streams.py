"""Runs a streaming query to its end: its progress, and Ctrl-C between two batches.

A query that is stopped goes on by its checkpoint when the job is run again. It is stopped behind a
batch where that is possible: a batch that is broken off is done again, and where it goes to a topic
what was sent of it comes twice.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

from pyxbroker.base.command_line import Parser
from pyxbroker.spark.pipelines.job import Job
from pyxbroker.spark.pipelines.progress import number

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

LOOK_S = 0.3
_DURATION = re.compile(r"\d+ (millisecond|second|minute|hour|day)s?", re.ASCII)


def add_stream(parser: Parser, is_checkpoint_required: bool = False) -> None:
    """The options of jobs that go on until they are stopped."""
    add = parser.options.add_argument
    add(
        "--checkpoint",
        required=is_checkpoint_required,
        metavar="DIR",
        help="Where it is kept how far the job is.",
    )
    add(
        "--every",
        type=duration,
        default="5 seconds",
        metavar="TIME",
        help="How often a batch is begun, such as '1 minute' [%(default)s].",
    )
    add(
        "--until-now",
        action="store_true",
        help="End when all that was there at the start is done; else it goes on until Ctrl-C.",
    )


def duration(text: str) -> str:
    """A time span of Spark's with one unit."""
    if not _DURATION.fullmatch(text.strip()):
        raise ArgumentTypeError(f"{text!r} is no time span; write it as '10 seconds' or '1 hour'.")
    return text.strip()


def run_stream(job: Job, writer: DataStreamWriter, done: str, table: str | None = None) -> None:
    """Run the query until it is done or stopped.

    done: what happened to a message; table: where the rows go, if that has a name of its own.
    """
    given = job.given
    if given.until_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=given.every)
    job.stop_by_signals("stopping behind this batch")
    writer = writer.option("checkpointLocation", given.checkpoint)
    query = writer.start() if table is None else writer.toTable(table)
    count = Counted(job, done)
    asked_at = None
    try:
        while not query.awaitTermination(LOOK_S):
            count.look(query)
            if job.stopping and asked_at is None:
                asked_at = count.batch
            if asked_at is not None and (count.batch != asked_at or not _is_busy(query)):
                break
    except KeyboardInterrupt:
        pass  # asked twice: what is broken off is done again by the next run
    finally:
        query.stop()
    count.look(query)
    told = f"{number(count.messages)} messages {done}"
    if job.stopping:
        job.progress.say(f"stopped: {told}; the same command goes on from here")
    else:
        job.progress.say(f"all that was there is done: {told}")


def _is_busy(query: StreamingQuery) -> bool:
    return bool(query.status["isTriggerActive"])


class Counted:
    """What a query did in this run, by what Spark keeps of its last batches."""

    def __init__(self, job: Job, done: str) -> None:
        self.messages = 0
        self.batch = -1
        self._job = job
        self._done = done

    def look(self, query: StreamingQuery) -> None:
        for each in query.recentProgress:
            if each["batchId"] > self.batch:
                self.batch = each["batchId"]
                self.messages += each["numInputRows"]
                self._show(each)

    def _show(self, progress: Any) -> None:
        rate = progress["processedRowsPerSecond"]
        speed = f", {number(rate)}/s" if progress["numInputRows"] else ", waiting for more"
        text = f"batch {self.batch}, {number(self.messages)} messages {self._done}{speed}"
        self._job.progress.show(text)
