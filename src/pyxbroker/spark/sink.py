"""The sink: rows become messages, sent by the official client. At least once.

A task that fails is run again by Spark, and a batch of a streaming query after a crash too: what it
had sent is sent again. A task is done when the broker has acknowledged all of it.

Columns: `value` (binary or string; null is a tombstone), and if there are `__key`, `__topic`,
`__eventTime`, `__messageProperties` as the source has them. `__messageId` and `__publishTime` are
left out, as a message gets new ones, so that what was read can be written as it is.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyxbroker.base.java_hash import java_hash
from pyxbroker.spark.broker_connection import BrokerConnection
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.options import Options
from pyxbroker.spark.topics import name_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Before Spark 4.1 there is none; source.py then refuses streaming.
StreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", None)

TYPES = {
    "value": ("binary", "string"),
    "__key": ("binary", "string"),
    "__topic": ("string",),
    "__eventTime": ("timestamp",),
    "__messageProperties": ("map<string,string>",),
    "__messageId": ("binary",),
    "__publishTime": ("timestamp",),
}
PENDING_MAX = 1_000
"""Messages that a producer has sent and the broker has not acknowledged."""
PRODUCERS_MAX = 1_000
"""Topics that one task writes at once."""
MESSAGES_PER_TURN = 1_000
"""Messages without a key that one partition gets before the next one's turn: a batch is of one."""


@dataclass
class Written(WriterCommitMessage):
    """What a task says when all it sent was acknowledged."""

    messages: int


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises PulsarSparkError unless these columns can be written."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in found.items():
        if name not in TYPES:
            raise PulsarSparkError(
                f"the column {name} is none that can be written; there are {', '.join(TYPES)}."
                " Schemas of columns are not built yet: make one column value of them, as with"
                " to_json(struct(*)) or to_avro."
            )
        if kind not in TYPES[name]:
            raise PulsarSparkError(
                f"the column {name} is {kind}: it has to be {' or '.join(TYPES[name])}."
            )
    if "value" not in found:
        raise PulsarSparkError("there is no column value, which has what is written.")
    if topic is None and "__topic" not in found:
        raise PulsarSparkError("give the option topic, or a column __topic.")
    if topic is not None:
        name_of(topic)


def check_broker(options: Options) -> None:
    """Raises NotReachable at once, where the official client would try for half a minute."""
    url, timeout_s = options["service.url"], options["pulsar.client.operationTimeoutMs"]
    BrokerConnection(url, timeout_s).close()


class _Writer:
    """What both sinks do in a task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises PulsarSparkError."""
        check_columns(schema, options["topic"])
        check_broker(options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        producers = Producers(self._options)
        try:
            count = 0
            for batch in iterator:
                count += producers.send_all(batch.to_pylist())
            producers.flush()
            return Written(count)
        finally:
            producers.close()


class PulsarWriter(_Writer, DataSourceArrowWriter):
    """The batch sink."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to be done: what a task has sent is there."""


if StreamArrowWriter is not None:

    class PulsarStreamWriter(_Writer, StreamArrowWriter):
        """The streaming sink."""

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """As in the batch sink."""

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            """What was sent stays; the batch is sent again."""


class Producers:
    """The official client and a producer for each topic, for one task. Close it."""

    def __init__(self, options: Options) -> None:
        import pulsar

        self._topic: str | None = options["topic"]
        self._made: dict[str, Any] = {}
        self._failed = 0
        self._reason = ""
        self._lock = threading.Lock()
        self._timeout_s: float = options["pulsar.client.operationTimeoutMs"]
        self._client = pulsar.Client(
            options["service.url"],
            operation_timeout_seconds=max(1, round(self._timeout_s)),
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def send_all(self, rows: list[dict[str, Any]]) -> int:
        """Sends rows, and waits while a broker does not keep up. Raises PulsarSparkError."""
        for row in rows:
            self._send(row)
        self._check()
        return len(rows)

    def flush(self) -> None:
        """Waits until all is acknowledged. Raises PulsarSparkError."""
        for topic, producer in self._made.items():
            self._tell_trouble(topic, producer.flush)
        self._check()

    def close(self) -> None:
        self._client.close()

    def _send(self, row: dict[str, Any]) -> None:
        topic = row.get("__topic") if self._topic is None else self._topic
        if not topic:
            raise PulsarSparkError("a row has no __topic, and the option topic is not given.")
        value, moment = row["value"], row.get("__eventTime")
        if isinstance(value, str):
            value = value.encode()
        self._producer(topic).send_async(
            value,
            self._on_answer,
            properties={key: text or "" for key, text in row.get("__messageProperties") or ()},
            partition_key=_key(row.get("__key")),
            event_timestamp=None if moment is None else round(moment.timestamp() * 1000),
        )

    def _producer(self, topic: str) -> Any:
        found = self._made.get(topic)
        if found is None:
            import pulsar

            if len(self._made) == PRODUCERS_MAX:
                raise PulsarSparkError(f"one task writes more than {PRODUCERS_MAX} topics.")
            name = str(name_of(topic))
            found = self._tell_trouble(
                topic,
                lambda: self._client.create_producer(
                    name,
                    batching_enabled=True,
                    batching_type=pulsar.BatchingType.KeyBased,
                    block_if_queue_full=True,
                    max_pending_messages=PENDING_MAX,
                    send_timeout_millis=round(self._timeout_s * 1000),
                    compression_type=pulsar.CompressionType.LZ4,
                    message_router=Router().partition_of,
                ),
            )
            self._made[topic] = found
        return found

    def _on_answer(self, result: Any, _: Any) -> None:
        """Called by a thread of the client."""
        import pulsar

        if result != pulsar.Result.Ok:
            with self._lock:
                self._failed += 1
                self._reason = self._reason or str(result)

    def _check(self) -> None:
        with self._lock:
            if self._failed:
                topics = ", ".join(self._made)
                raise PulsarSparkError(
                    f"{self._failed} messages for {topics} were not acknowledged: {self._reason}."
                )

    def _tell_trouble(self, topic: str, do: Any) -> Any:
        import pulsar

        try:
            return do()
        except pulsar.PulsarException as error:
            self._check()
            raise PulsarSparkError(f"{topic} cannot be written: {error}.") from error


class Router:
    """Which partition a message goes to: by its key as Java's client does, else in turns."""

    def __init__(self) -> None:
        self._without_key = random.randrange(1 << 16) * MESSAGES_PER_TURN

    def partition_of(self, message: Any, partitions: int) -> int:
        key = message.partition_key()
        if key:
            return java_hash(key) % partitions
        self._without_key += 1
        return self._without_key // MESSAGES_PER_TURN % partitions


def _key(key: bytes | str | None) -> str | None:
    if key is None or isinstance(key, str):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise PulsarSparkError(
            f"the __key {key[:40]!r} is no UTF-8, and other keys cannot be written yet."
        ) from error
