"""The columns of a source, and Arrow's record batches of what was read.

`__key`, `__topic`, `__messageId`, `__publishTime`, `__eventTime` and `__messageProperties` come
with each message, named and typed as the JVM connector does; before them is the message's value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyxbroker.base.topic_name import TopicName
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyxbroker.spark.range_reader import Read
    from pyxbroker.spark.values import Values

ROWS_MAX = 10_000
BATCH_BYTES_MAX = 8 << 20
"""Of the payloads in one record batch, about."""


def schema_of(values: Values) -> StructType:
    """The columns in Spark's types. Made without Spark's parser, which workers do not have."""
    from pyspark.sql import types

    metadata = {
        "__key": types.BinaryType(),
        "__topic": types.StringType(),
        "__messageId": types.BinaryType(),
        "__publishTime": types.TimestampType(),
        "__eventTime": types.TimestampType(),
        "__messageProperties": types.MapType(types.StringType(), types.StringType()),
    }
    own = [types.StructField(name, kind) for name, kind in metadata.items()]
    return types.StructType([*values.fields(), *own])


def message_id(read: Read, partition: int) -> bytes:
    """As clients serialize it (MessageIdData)."""
    found = pb.MessageIdData(ledgerId=read.position.ledger, entryId=read.position.entry)
    if partition >= 0:
        found.partition = partition
    if read.position.batch >= 0:
        found.batch_index = read.position.batch
        found.batch_size = read.batch_size
    return bytes(found.SerializeToString())


def record_batches(topic: str, values: Values, reads: Iterable[Read]) -> Iterator[pa.RecordBatch]:
    """Record batches of about BATCH_BYTES_MAX, ROWS_MAX rows at most."""
    rows: list[Read] = []
    size = 0
    for read in reads:
        rows.append(read)
        size += len(read.message.payload or b"")
        if len(rows) == ROWS_MAX or size >= BATCH_BYTES_MAX:
            yield _record_batch(topic, values, rows)
            rows = []
            size = 0
    if rows:
        yield _record_batch(topic, values, rows)


def _record_batch(topic: str, values: Values, rows: list[Read]) -> pa.RecordBatch:
    import pyarrow as pa

    partition = TopicName.get(topic).partition_index
    messages = [read.message for read in rows]
    moment = pa.timestamp("us", tz="UTC")
    columns: dict[str, Any] = dict(values.columns(rows))
    columns["__key"] = pa.array([each.key for each in messages], pa.binary())
    columns["__topic"] = pa.array([topic] * len(rows), pa.string())
    columns["__messageId"] = pa.array([message_id(each, partition) for each in rows], pa.binary())
    columns["__publishTime"] = pa.array([each.publish_time * 1000 for each in messages], moment)
    times = [each.event_time * 1000 if each.event_time else None for each in messages]
    columns["__eventTime"] = pa.array(times, moment)
    properties = [each.properties for each in messages]
    columns["__messageProperties"] = pa.array(properties, pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
