"""The sink: rows become messages, sent by the official client.

A task that fails is run again by Spark, and a batch of a streaming query after a crash too. A
stream is written exactly once where the topic has deduplication (exactly_once.py); else, and in a
batch, which has no number by which it could be known again, what a task had sent is sent again: at
least once. A task is done when the broker has acknowledged all it sent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyxbroker.spark.errors import PulsarSparkError, WrongOption, without_traceback
from pyxbroker.spark.exactly_once import ExactlyOnce, is_known_to_lack
from pyxbroker.spark.options import Options
from pyxbroker.spark.outgoing import Messages
from pyxbroker.spark.plan import cluster_of, patiently
from pyxbroker.spark.producers import AtLeastOnce, Sender
from pyxbroker.spark.security import Security
from pyxbroker.spark.sequence import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Before Spark 4.1 a stream's rows come one by one.
ArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)
StreamWriter: Any = ArrowWriter or datasource.DataSourceStreamWriter
ROWS_PER_BATCH = 1_000
"""Of rows that come one by one."""

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark tells its tasks (local properties)."""

_log = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """What a task says when all it sent was acknowledged."""

    messages: int
    without_deduplication: tuple[str, ...] = ()


def check_broker(options: Options) -> None:
    """Raises NotReachable in time, and says more than the official client would."""
    with cluster_of(options) as cluster:
        cluster.any_broker()


def write(sender: Sender, messages: Messages, batches: Iterator[pa.RecordBatch]) -> int:
    """Send all rows, and waits until they are acknowledged. Raises PulsarSparkError."""
    count = 0
    for batch in batches:
        for row in batch.to_pylist():
            sender.send(messages.of(row))
        count += batch.num_rows
    sender.finish()
    return count


def write_at_least_once(
    options: Options, messages: Messages, batches: Iterator[pa.RecordBatch]
) -> Written:
    """What a task does where nothing says what it had sent before. Raises PulsarSparkError."""
    sender = AtLeastOnce(options, messages.payloads.schema())
    try:
        return Written(write(sender, messages, batches))
    finally:
        sender.close()


class PulsarWriter(DataSourceArrowWriter):
    """The batch sink."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises PulsarSparkError."""
        if options["exactlyOnce"] == "true":
            raise WrongOption(
                "exactlyOnce is true: only a stream can be written exactly once, whose batches"
                " have numbers."
            )
        self._messages = Messages(options, schema)
        check_broker(options)
        self._options = options

    @without_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_at_least_once(self._options, self._messages, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to be done: what a task has sent is there."""


def part_of_task() -> Part | None:
    """What Spark says this task is a part of. None: of no streaming query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(QUERY) if context is not None else None
    batch = context.getLocalProperty(BATCH) if context is not None else None
    if context is None or query is None or batch is None:
        return None
    return Part(query, context.partitionId(), int(batch))


class PulsarStreamWriter(StreamWriter):
    """The streaming sink."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises PulsarSparkError."""
        self._messages = Messages(options, schema)
        # Not the broker, which tasks ask: Spark makes a writer for each commit and abort, too, and
        # does not tell why a task failed where the batch cannot be given up.
        Security(options)
        self._options = options
        self._schema = schema

    @without_traceback()
    def write(self, iterator: Iterator[Any]) -> Written:
        if ArrowWriter is None:
            iterator = batches_of(iterator, self._schema)
        patiently(self._options, lambda: check_broker(self._options))
        wish = self._options["exactlyOnce"]
        part = part_of_task()
        if part is None and wish == "true":
            raise PulsarSparkError("Spark does not say which batch this is.")
        if part is None or wish == "false" or self._is_known_to_lack():
            return write_at_least_once(self._options, self._messages, iterator)
        return self._write_once(part, iterator)

    def _write_once(self, part: Part, iterator: Iterator[pa.RecordBatch]) -> Written:
        sender = ExactlyOnce(self._options, self._messages.payloads.schema(), part)
        try:
            count = write(sender, self._messages, iterator)
            lacking = sender.without_deduplication()
        finally:
            sender.close()
        if lacking and self._options["exactlyOnce"] == "true":
            raise PulsarSparkError(f"exactlyOnce is true, and {_lacks(lacking)}")
        return Written(count, tuple(lacking))

    def _is_known_to_lack(self) -> bool:
        return self._options["exactlyOnce"] == "auto" and is_known_to_lack(self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Warn, the first time, of what is not exactly once."""
        found = [each for each in messages if isinstance(each, Written)]
        lacking = sorted({topic for each in found for topic in each.without_deduplication})
        if lacking:
            _log.warning("written at least once, not exactly once: %s", _lacks(lacking))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent stays; the batch is sent again."""


def batches_of(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Spark's rows as it would give them by Arrow."""
    from pyspark.sql.conversion import LocalDataToArrowConversion

    while some := list(islice(rows, ROWS_PER_BATCH)):
        yield from LocalDataToArrowConversion.convert(some, schema, False).to_batches()


def _lacks(topics: Sequence[str]) -> str:
    return (
        f"{', '.join(topics)} has no deduplication, so a batch that is repeated after a failure is"
        " there twice. Turn it on (pulsar-admin topics set-deduplication --enable, or for the"
        " namespace), or say that this is well with exactlyOnce=false."
    )
