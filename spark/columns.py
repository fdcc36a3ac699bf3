"""The columns of a source and their record batches.

The value of a message comes first. The columns `__key`, `__topic`, `__messageId`, `__publishTime`,
`__eventTime` and `__messageProperties` follow, named and typed as in the JVM connector. Further
columns have to be requested. Columns that a query does not use are not decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker import entry_columns
from pyxbroker.base.suggestions import did_you_mean
from pyxbroker.entry_columns import EntryColumns, Filled
from pyxbroker.spark.arrays import (
    array_of,
    properties_of,
    repeated_text,
    sender_text,
    versions_of,
)
from pyxbroker.spark.errors import PulsarSparkError, WrongOption

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructField, StructType

    from pyxbroker.spark.avro_programs import Definitions
    from pyxbroker.spark.values import Values

ALL_USUAL = "*"
"""A name in the option `columns` that stands for the default columns."""


_Make = Callable[[str, Filled, "pa.DataType"], "pa.Array"]
"""A function that makes a column's array of a topic, decoded messages and Arrow's type."""


class _Column(NamedTuple):
    """A column of each message: Spark's type, the buffers it needs, and how its array is made."""

    kind: str
    kept: int
    array: _Make


def _collected(name: str) -> _Make:
    """Return a function that makes an array of the buffer with that name."""
    return lambda _, filled, kind: array_of(kind, filled.rows, getattr(filled, name))


_COLUMNS = {
    "__key": _Column("BinaryType", entry_columns.KEY, _collected("key")),
    "__topic": _Column("StringType", 0, lambda topic, f, _: repeated_text(topic, f.rows)),
    "__messageId": _Column("BinaryType", 0, _collected("message_id")),
    "__publishTime": _Column(
        "TimestampType", entry_columns.PUBLISH_TIME, _collected("publish_time")
    ),
    "__eventTime": _Column("TimestampType", entry_columns.EVENT_TIME, _collected("event_time")),
    "__messageProperties": _Column(
        "", entry_columns.PROPERTIES, lambda _, f, t: properties_of(f, t)
    ),
    "__orderingKey": _Column("BinaryType", entry_columns.ORDERING_KEY, _collected("ordering_key")),
    "__producerName": _Column(
        "StringType", entry_columns.PRODUCER_NAME, lambda _, f, t: sender_text(f, t)
    ),
    "__sequenceId": _Column("LongType", entry_columns.SEQUENCE_ID, _collected("sequence_id")),
    "__schemaVersion": _Column("LongType", 0, lambda _, f, t: versions_of(f, t)),
    "__ledgerId": _Column("LongType", entry_columns.POSITION, _collected("ledger_id")),
    "__entryId": _Column("LongType", entry_columns.POSITION, _collected("entry_id")),
    "__batchIndex": _Column("IntegerType", entry_columns.POSITION, _collected("batch_index")),
}
USUAL = (
    *("__key", "__topic", "__messageId"),
    *("__publishTime", "__eventTime", "__messageProperties"),
)


class Columns:
    """The columns of a DataFrame, in their order. Can be pickled."""

    def __init__(self, values: Values, names: Sequence[str]) -> None:
        """Select columns. names: existing columns only."""
        self._names = tuple(names)
        self._values = values.only([name for name in names if name not in _COLUMNS])

    @classmethod
    def requested(cls, values: Values, names: Sequence[str]) -> Columns:
        """Return the columns of the option `columns`. Raises WrongOption."""
        known = names_of(values)
        found: list[str] = []
        for name in names:
            if name != ALL_USUAL and name not in known:
                raise WrongOption(f"columns: {_unknown(name, known)}")
            found += _usual(values) if name == ALL_USUAL else [name]
        if twice := next((name for name in found if found.count(name) > 1), None):
            raise WrongOption(f"columns names {twice} twice.")
        return cls(values, found)

    @classmethod
    def of(cls, values: Values, schema: StructType) -> Columns:
        """Return the columns of a schema that Spark passes in. Raises PulsarSparkError."""
        known = {field.name: field for field in cls(values, names_of(values)).schema().fields}
        for field in schema.fields:
            if field.name not in known:
                raise PulsarSparkError(f"the given schema: {_unknown(field.name, known)}")
            found = known[field.name].dataType.simpleString()
            if field.dataType.simpleString() != found:
                raise PulsarSparkError(
                    f"the given schema has {field.name} as"
                    f" {field.dataType.simpleString()}: it is {found}. A schema only selects"
                    " columns; cast those that need another type."
                )
        return cls(values, [field.name for field in schema.fields])

    @property
    def unknown_to_client(self) -> list[str]:
        """Return the columns that the official client cannot provide."""
        return [name for name in self._names if name in ("__sequenceId", *self._values.of_keys)]

    def schema(self) -> StructType:
        """Return Spark's schema. It is built without Spark's parser, which workers do not have."""
        from pyspark.sql import types

        fields = {field.name: field for field in self._values.fields()}
        return types.StructType([fields.get(name) or _field(name) for name in self._names])

    def entry_columns(self, partition: int, definitions: Definitions) -> EntryColumns:
        """Return the buffers to which entries are decoded."""
        kept = 0
        for name in self._names:
            kept |= _COLUMNS[name].kept if name in _COLUMNS else 0
        return self._values.columns(partition, definitions, kept)

    def record_batches(
        self, topic: str, read: Iterable[Filled], definitions: Definitions
    ) -> Iterator[pa.RecordBatch]:
        """Return a record batch for each part of decoded messages. Raises PulsarSparkError."""
        import pyarrow as pa

        schema = self.arrow_schema()
        kinds = {field.name: field.type for field in schema}
        own = [field.name for field in self._values.fields()]
        for filled in read:
            arrays = self._values.arrays(filled, [kinds[name] for name in own], definitions)
            made = dict(zip(own, arrays, strict=True))
            for name in self._names:
                if name not in made:
                    made[name] = _COLUMNS[name].array(topic, filled, kinds[name])
            yield pa.RecordBatch.from_arrays([made[name] for name in self._names], schema=schema)

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema that Spark expects from a task."""
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = self.schema()
        try:
            return to_arrow_schema(columns, timezone="UTC")
        except TypeError:  # before Spark 4.2, where it is UTC anyway
            return to_arrow_schema(columns)


def names_of(values: Values) -> list[str]:
    """Return all columns that can be requested."""
    return [*(field.name for field in values.fields()), *_COLUMNS]


def _usual(values: Values) -> list[str]:
    return [*(field.name for field in values.fields()), *USUAL]


def _field(name: str) -> StructField:
    from pyspark.sql import types

    kind = _COLUMNS[name].kind
    made: DataType = types.MapType(types.StringType(), types.StringType())
    return types.StructField(name, getattr(types, kind)() if kind else made)


def _unknown(name: str, known: Iterable[str]) -> str:
    names = list(known)
    hint = did_you_mean(name, names) or f"there are {', '.join(names)}."
    return f"there is no column {name}: {hint}"
