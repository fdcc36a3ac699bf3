"""The sink, which sends rows as messages with the official client.

Spark repeats a failed task, and after a crash a batch of a streaming query. A stream is written
exactly once if the topic has deduplication (exactly_once.py). Otherwise, and in a batch, which has
no number, repeated messages are stored again: at least once. A task is complete when the broker has
acknowledged all its messages.
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
from pyxbroker.spark.exactly_once import ExactlyOnce, lacks_deduplication
from pyxbroker.spark.options import Options
from pyxbroker.spark.outgoing import Messages
from pyxbroker.spark.plan import cluster_of, with_retries
from pyxbroker.spark.producers import AtLeastOnce, Sender
from pyxbroker.spark.security import Security
from pyxbroker.spark.sequence import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Spark before 4.1 passes a stream's rows one by one.
ArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)
StreamWriter: Any = ArrowWriter or datasource.DataSourceStreamWriter
ROWS_PER_BATCH = 1_000
"""The size of record batches that are made of single rows."""

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""The local properties in which Spark names the query and the batch to its tasks."""

_log = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """The result of a task whose messages are all acknowledged."""

    messages: int
    without_deduplication: tuple[str, ...] = ()


def check_broker(options: Options) -> None:
    """Connect to a broker, because our errors say more than the official client's.

    Raises NotReachable within the timeout.
    """
    with cluster_of(options) as cluster:
        cluster.any_broker()


def write(sender: Sender, messages: Messages, batches: Iterator[pa.RecordBatch]) -> int:
    """Send all rows, and wait until they are acknowledged. Raises PulsarSparkError."""
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
    """Write a task's rows without deduplication. Raises PulsarSparkError."""
    sender = AtLeastOnce(options, messages.payloads.schema())
    try:
        return Written(write(sender, messages, batches))
    finally:
        sender.close()


class PulsarWriter(DataSourceArrowWriter):
    """The batch sink."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check options, schema and broker. Raises PulsarSparkError."""
        if options["exactlyOnce"] == "true":
            raise WrongOption(
                "exactlyOnce is true: only a stream can be written exactly once, because its"
                " batches have numbers."
            )
        self._messages = Messages(options, schema)
        check_broker(options)
        self._options = options

    @without_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_at_least_once(self._options, self._messages, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the messages of tasks are already stored."""


def part_of_task() -> Part | None:
    """Return the part of a batch that this task writes; None outside of a streaming query."""
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
        """Check options and schema. Raises PulsarSparkError."""
        self._messages = Messages(options, schema)
        # Only tasks connect to the broker. Spark also creates a writer for each commit and abort,
        # and an error there would hide the error of a task.
        Security(options)
        self._options = options
        self._schema = schema

    @without_traceback()
    def write(self, iterator: Iterator[Any]) -> Written:
        if ArrowWriter is None:
            iterator = batches_of(iterator, self._schema)
        with_retries(self._options, lambda: check_broker(self._options))
        mode = self._options["exactlyOnce"]
        part = part_of_task()
        if part is None and mode == "true":
            raise PulsarSparkError("Spark does not say which batch this is.")
        if part is None or mode == "false" or self._lacks_deduplication():
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
            raise PulsarSparkError(f"exactlyOnce is true, and {_deduplication_advice(lacking)}")
        return Written(count, tuple(lacking))

    def _lacks_deduplication(self) -> bool:
        return self._options["exactlyOnce"] == "auto" and lacks_deduplication(self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Warn once about topics that are not written exactly once."""
        found = [each for each in messages if isinstance(each, Written)]
        lacking = sorted({topic for each in found for topic in each.without_deduplication})
        if lacking:
            _log.warning(
                "rows are written at least once, not exactly once: %s",
                _deduplication_advice(lacking),
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: stored messages remain, and Spark repeats the batch."""


def batches_of(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Convert single rows to record batches, as newer Sparks pass them."""
    from pyspark.sql.conversion import LocalDataToArrowConversion

    while chunk := list(islice(rows, ROWS_PER_BATCH)):
        yield from LocalDataToArrowConversion.convert(chunk, schema, False).to_batches()


def _deduplication_advice(topics: Sequence[str]) -> str:
    return (
        f"{', '.join(topics)} has no deduplication, so a batch that is repeated after a failure is"
        " stored twice. Enable it (pulsar-admin topics set-deduplication --enable, or for the"
        " namespace), or accept duplicates with exactlyOnce=false."
    )
