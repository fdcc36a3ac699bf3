"""The execution of streaming queries, with progress and a stop after the current batch.

A stopped query continues from its checkpoint when the job runs again. It stops after a batch if
possible, because an interrupted batch is repeated: messages that it sent to a topic are sent twice.
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

CHECK_S = 0.3
_DURATION = re.compile(r"\d+ (millisecond|second|minute|hour|day)s?", re.ASCII)


def add_stream(parser: Parser, is_checkpoint_required: bool = False) -> None:
    """Add the options of jobs that run until they are stopped."""
    add = parser.options.add_argument
    add(
        "--checkpoint",
        required=is_checkpoint_required,
        metavar="DIR",
        help="The directory with the progress of the job.",
    )
    add(
        "--every",
        type=duration,
        default="5 seconds",
        metavar="TIME",
        help="How often a batch starts, such as '1 minute' [%(default)s].",
    )
    add(
        "--until-now",
        action="store_true",
        help="End when all messages from before the start are done, instead of at Ctrl-C.",
    )


def duration(text: str) -> str:
    """Parse a time span of Spark with one unit."""
    if not _DURATION.fullmatch(text.strip()):
        raise ArgumentTypeError(f"{text!r} is not a time span; write '10 seconds' or '1 hour'.")
    return text.strip()


def run_stream(job: Job, writer: DataStreamWriter, done: str, table: str | None = None) -> None:
    """Run the query until it is done or stopped.

    done: the participle for progress, such as "archived". table: the table for rows of Iceberg.
    """
    given = job.given
    if given.until_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=given.every)
    job.stop_by_signals("stopping after this batch")
    writer = writer.option("checkpointLocation", given.checkpoint)
    query = writer.start() if table is None else writer.toTable(table)
    progress = QueryProgress(job, done)
    stopping_at = None
    try:
        while not query.awaitTermination(CHECK_S):
            progress.update(query)
            if job.stopping and stopping_at is None:
                stopping_at = progress.batch
            if stopping_at is not None and (progress.batch != stopping_at or not _is_busy(query)):
                break
    except KeyboardInterrupt:
        pass  # the second Ctrl-C: the next run repeats the interrupted batch
    finally:
        query.stop()
    progress.update(query)
    summary = f"{number(progress.messages)} messages {done}"
    if job.stopping:
        job.progress.print_line(f"stopped: {summary}; the same command continues from here")
    else:
        job.progress.print_line(f"done up to the start: {summary}")


def _is_busy(query: StreamingQuery) -> bool:
    return bool(query.status["isTriggerActive"])


class QueryProgress:
    """The progress of a query in this run, from Spark's list of recent batches."""

    def __init__(self, job: Job, done: str) -> None:
        self.messages = 0
        self.batch = -1
        self._job = job
        self._done = done

    def update(self, query: StreamingQuery) -> None:
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
