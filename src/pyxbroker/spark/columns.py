"""The columns of a source, and Arrow's record batches of what was read.

`__key`, `__topic`, `__messageId`, `__publishTime`, `__eventTime` and `__messageProperties` come
with each message, named and typed as the JVM connector does; before them is the message's value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyxbroker.entry_columns import Filled
from pyxbroker.spark.arrays import array_of, properties_of, repeated_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyxbroker.spark.avro_programs import Definitions
    from pyxbroker.spark.values import Values


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


def record_batches(
    topic: str, values: Values, read: Iterable[Filled], definitions: Definitions
) -> Iterator[pa.RecordBatch]:
    """A record batch of each part of what was read. Raises PulsarSparkError."""
    import pyarrow as pa

    schema = arrow_schema(values)
    for filled in read:
        count = len(schema) - 6
        kinds = [field.type for field in schema]
        arrays = values.arrays(filled, kinds[:count], definitions)
        yield pa.RecordBatch.from_arrays(
            [*arrays, *_metadata(topic, filled, kinds[count:])], schema=schema
        )


def arrow_schema(values: Values) -> pa.Schema:
    """The columns as Spark wants them from a task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = schema_of(values)
    try:
        return to_arrow_schema(columns, timezone="UTC")
    except TypeError:  # before Spark 4.2, where it is UTC anyway
        return to_arrow_schema(columns)


def _metadata(topic: str, filled: Filled, kinds: list[pa.DataType]) -> list[pa.Array]:
    """The columns that come with each message."""
    key, _, message_id, publish_time, event_time, properties = kinds
    return [
        array_of(key, filled.rows, filled.key),
        repeated_text(topic, filled.rows),
        array_of(message_id, filled.rows, filled.message_id),
        array_of(publish_time, filled.rows, filled.publish_time),
        array_of(event_time, filled.rows, filled.event_time),
        properties_of(filled, properties),
    ]
