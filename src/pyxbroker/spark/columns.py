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
    from pyxbroker.spark.values import Definitions, Values

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


def record_batches(
    topic: str, values: Values, reads: Iterable[Read], definitions: Definitions
) -> Iterator[pa.RecordBatch]:
    """Record batches of about BATCH_BYTES_MAX, ROWS_MAX rows at most."""
    schema = arrow_schema(values)
    partition = TopicName.get(topic).partition_index
    rows: list[Read] = []
    size = 0

    def batch() -> pa.RecordBatch:
        import pyarrow as pa

        found = values.rows(rows, definitions) | _metadata(topic, partition, rows)
        arrays = [pa.array(found[field.name], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    for read in reads:
        rows.append(read)
        size += len(read.message.payload or b"")
        if len(rows) == ROWS_MAX or size >= BATCH_BYTES_MAX:
            yield batch()
            rows = []
            size = 0
    if rows:
        yield batch()


def arrow_schema(values: Values) -> pa.Schema:
    """The columns as Spark wants them from a task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = schema_of(values)
    try:
        return to_arrow_schema(columns, timezone="UTC")
    except TypeError:  # before Spark 4.2, where it is UTC anyway
        return to_arrow_schema(columns)


def _metadata(topic: str, partition: int, rows: list[Read]) -> dict[str, list[Any]]:
    """The columns that come with each message; times in microseconds."""
    messages = [read.message for read in rows]
    return {
        "__key": [each.key for each in messages],
        "__topic": [topic] * len(rows),
        "__messageId": [message_id(each, partition) for each in rows],
        "__publishTime": [each.publish_time * 1000 for each in messages],
        "__eventTime": [each.event_time * 1000 or None for each in messages],
        "__messageProperties": [each.properties for each in messages],
    }
