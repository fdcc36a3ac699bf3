"""The values of messages as columns: bytes, primitives, or the fields of a record.

A record of Avro or JSON has a column for each field; other types have one column `value`.
Unsupported types are bytes. Each message is decoded by the schema version that it was written with,
and converted to the newest version. topic_schema.py selects the class.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyxbroker import entry_columns
from pyxbroker.base import compression
from pyxbroker.entry_columns import EntryColumns, Filled
from pyxbroker.schemas.values import SchemaType
from pyxbroker.spark.arrays import array_of, payloads_of, position_in, text_array
from pyxbroker.spark.avro_programs import Definitions, Programs, is_flat
from pyxbroker.spark.avro_types import NoColumn, parse, plain, reader_of, spark_type
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.json_columns import arrays_of_json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField

STRING, JSON, AVRO = 1, 2, 4
BOOLEAN, INT8, INT16, INT32, INT64, FLOAT, DOUBLE = range(5, 12)
"""Numbers of schema types on the wire (Schema.Type)."""

# The name of Spark's type, the decoding, and the width of a value.
PRIMITIVES: dict[int, tuple[str, int, int]] = {
    STRING: ("StringType", entry_columns.BYTES, entry_columns.VARIABLE),
    BOOLEAN: ("BooleanType", entry_columns.TRUTH, entry_columns.BITS),
    INT8: ("ByteType", entry_columns.NUMBER, 1),
    INT16: ("ShortType", entry_columns.NUMBER, 2),
    INT32: ("IntegerType", entry_columns.NUMBER, 4),
    INT64: ("LongType", entry_columns.NUMBER, 8),
    FLOAT: ("FloatType", entry_columns.NUMBER, 4),
    DOUBLE: ("DoubleType", entry_columns.NUMBER, 8),
}


_DAY_US = 86_400_000_000

# The name of Spark's type, the layout of the bytes (big-endian), and the conversion to Arrow's
# number: days or microseconds since 1970. Java's Date has a time of day, too.
MOMENTS: dict[int, tuple[str, struct.Struct, Callable[..., int]]] = {
    SchemaType.DATE: ("TimestampType", struct.Struct(">q"), lambda ms: ms * 1000),
    SchemaType.TIMESTAMP: ("TimestampType", struct.Struct(">q"), lambda ms: ms * 1000),
    SchemaType.INSTANT: (
        *("TimestampType", struct.Struct(">qi")),
        lambda seconds, ns: seconds * 1_000_000 + ns // 1000,
    ),
    SchemaType.LOCAL_DATE: ("DateType", struct.Struct(">q"), lambda day: day),
    SchemaType.LOCAL_DATE_TIME: (
        *("TimestampNTZType", struct.Struct(">qq")),
        lambda day, ns: day * _DAY_US + ns // 1000,
    ),
}


class Values(Protocol):
    """A conversion of payloads to columns. Can be pickled."""

    @property
    def is_record(self) -> bool:
        """True if the columns are named fields; otherwise there is at most one column."""
        ...

    @property
    def of_keys(self) -> tuple[str, ...]:
        """The columns that are decoded from message keys."""
        ...

    def fields(self) -> list[StructField]:
        """Return the columns in Spark's types."""
        ...

    def columns(self, partition: int, definitions: Definitions, kept: int) -> EntryColumns:
        """Return the buffers for decoding entries. kept: see EntryColumns."""
        ...

    def only(self, names: Sequence[str]) -> Values:
        """Return a conversion with only these columns, in this order."""
        ...

    def arrays(
        self, filled: Filled, kinds: list[pa.DataType], definitions: Definitions
    ) -> list[pa.Array]:
        """Return the columns of decoded messages. Raises PulsarSparkError."""
        ...


class Decoder(Protocol):
    """A provider of the buffers to which entries of a topic are decoded."""

    def entry_columns(self, partition: int, definitions: Definitions) -> EntryColumns:
        """Return the buffers for decoding entries."""
        ...


class Nothing:
    """A conversion to no column, which ignores payloads."""

    is_record = False
    of_keys: tuple[str, ...] = ()

    def fields(self) -> list[StructField]:
        return []

    def columns(self, partition: int, definitions: Definitions, kept: int) -> EntryColumns:
        return EntryColumns(entry_columns.NONE, (), compression, partition, kept=kept)

    def only(self, names: Sequence[str]) -> Values:
        return self

    def arrays(
        self, filled: Filled, kinds: list[pa.DataType], definitions: Definitions
    ) -> list[pa.Array]:
        return []


class Bytes:
    """A conversion to one column `value` with the unchanged payloads; null for a tombstone."""

    is_record = False
    of_keys: tuple[str, ...] = ()

    def fields(self) -> list[StructField]:
        from pyspark.sql.types import BinaryType, StructField

        return [StructField("value", BinaryType())]

    def columns(self, partition: int, definitions: Definitions, kept: int) -> EntryColumns:
        return columns_of_bytes(partition, kept)

    def arrays(
        self, filled: Filled, kinds: list[pa.DataType], definitions: Definitions
    ) -> list[pa.Array]:
        return [array_of(kinds[0], filled.rows, filled.values[0])]

    def only(self, names: Sequence[str]) -> Values:
        return self if names else Nothing()


class Primitive:
    """A conversion to one column `value` with a number, a boolean or a string."""

    is_record = False
    of_keys: tuple[str, ...] = ()

    def __init__(self, type_: int) -> None:
        self._type = type_

    def fields(self) -> list[StructField]:
        from pyspark.sql import types

        name, _, _ = PRIMITIVES[self._type]
        return [types.StructField("value", getattr(types, name)())]

    def columns(self, partition: int, definitions: Definitions, kept: int) -> EntryColumns:
        _, decoding, width = PRIMITIVES[self._type]
        return EntryColumns(decoding, (width,), compression, partition, kept=kept)

    def only(self, names: Sequence[str]) -> Values:
        return self if names else Nothing()

    def arrays(
        self, filled: Filled, kinds: list[pa.DataType], definitions: Definitions
    ) -> list[pa.Array]:
        return [_array(filled, kinds[0], 0)]


class Moment:
    """A conversion to one column `value` with a date or a timestamp."""

    is_record = False
    of_keys: tuple[str, ...] = ()

    def __init__(self, type_: int) -> None:
        self._type = type_

    def fields(self) -> list[StructField]:
        from pyspark.sql import types

        name, _, _ = MOMENTS[self._type]
        return [types.StructField("value", getattr(types, name)())]

    def columns(self, partition: int, definitions: Definitions, kept: int) -> EntryColumns:
        return columns_of_bytes(partition, kept)

    def only(self, names: Sequence[str]) -> Values:
        return self if names else Nothing()

    def arrays(
        self, filled: Filled, kinds: list[pa.DataType], definitions: Definitions
    ) -> list[pa.Array]:
        _, layout, convert = MOMENTS[self._type]
        values = list(each_value(filled, lambda payload, _: convert(*layout.unpack(payload))))
        return [filled_array(filled, "value", values, kinds[0])]


class Record:
    """A conversion of Avro or JSON records to a column for each field."""

    is_record = True
    of_keys: tuple[str, ...] = ()

    def __init__(self, type_: int, definition: bytes) -> None:
        """Use `of`."""
        self._type = type_
        self._definition = definition
        self._only: tuple[str, ...] | None = None

    @classmethod
    def of(cls, type_: int, definition: bytes) -> Record | None:
        """Return the conversion, or None for schemas without columns (recursion, unions)."""
        made = cls(type_, definition)
        try:
            fields = made.fields()
        except (NoColumn, ValueError, KeyError, TypeError):
            return None
        if type_ == JSON and any('"decimal(' in field.json() for field in fields):
            return None  # the form of decimals in JSON is not specified
        return None if any(field.name.startswith("__") for field in fields) else made

    def fields(self) -> list[StructField]:
        from pyspark.sql.types import StructField

        named = self._named()
        return [
            StructField(field["name"], spark_type(field["type"], named, ()))
            for field in self._fields()
        ]

    def only(self, names: Sequence[str]) -> Values:
        if not names:
            return Nothing()
        made = Record(self._type, self._definition)
        made._only = tuple(names)
        return made

    def columns(self, partition: int, definitions: Definitions, kept: int) -> EntryColumns:
        if self._is_flat:
            programs = Programs(self._definition, definitions, self._only)
            return programs.columns(partition, kept)
        return columns_of_bytes(partition, kept)

    def arrays(
        self, filled: Filled, kinds: list[pa.DataType], definitions: Definitions
    ) -> list[pa.Array]:
        if self._is_flat:
            return [_array(filled, kind, index) for index, kind in enumerate(kinds)]
        found = None
        if self._type == JSON:
            found = arrays_of_json(filled, self._fields(), self._named(), kinds)
        return found or self._decoded(filled, kinds, definitions)

    @property
    def _is_flat(self) -> bool:
        """True if the fields are decoded together with the entries."""
        return self._type == AVRO and is_flat(self._definition)

    def _decoded(
        self, filled: Filled, kinds: list[pa.DataType], definitions: Definitions
    ) -> list[pa.Array]:
        """Decode message by message: nested records, and JSON that Arrow rejects."""
        fields, named = self._fields(), self._named()
        decode = self._of_avro(definitions) if self._type == AVRO else _of_json
        is_json = self._type == JSON
        found: list[list[Any]] = [[] for _ in fields]

        def fields_of(payload: bytes, version: bytes) -> list[Any] | None:
            record = decode(payload, version)
            if record is None:
                return None
            return [plain(record.get(f["name"]), f["type"], named, is_json) for f in fields]

        nothing = [None] * len(fields)
        for row in each_value(filled, fields_of):
            for column, value in zip(found, nothing if row is None else row, strict=True):
                column.append(value)
        return [
            filled_array(filled, field["name"], column, kind)
            for field, column, kind in zip(fields, found, kinds, strict=True)
        ]

    def _of_avro(self, definitions: Definitions) -> Callable[[bytes, bytes], Any]:
        import fastavro

        newest = self._parsed()
        schemas = {b"": (newest, newest)}

        def decode(payload: bytes, version: bytes) -> Any:
            if version not in schemas:
                writer = parse(definitions(version))[0]
                schemas[version] = writer, reader_of(newest, writer)
            return fastavro.schemaless_reader(io.BytesIO(payload), *schemas[version])

        return decode

    def _fields(self) -> list[dict[str, Any]]:
        """Return the selected fields of the record."""
        every = {field["name"]: field for field in self._parsed()["fields"]}
        return list(every.values()) if self._only is None else [every[name] for name in self._only]

    def _parsed(self) -> Any:
        parsed, _ = parse(self._definition)
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise NoColumn("not a record")
        return parsed

    def _named(self) -> dict[str, Any]:
        return parse(self._definition)[1]


def _of_json(payload: bytes, _: bytes) -> Any:
    found = json.loads(payload)
    if found is not None and not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def columns_of_bytes(partition: int, kept: int = entry_columns.DEFAULT) -> EntryColumns:
    """Return buffers for one column of unchanged payloads."""
    widths = (entry_columns.VARIABLE,)
    return EntryColumns(entry_columns.BYTES, widths, compression, partition, kept=kept)


def _array(filled: Filled, kind: pa.DataType, index: int) -> pa.Array:
    import pyarrow as pa

    column = filled.values[index]
    if pa.types.is_string(kind):
        return text_array(filled, kind, column)
    return array_of(kind, filled.rows, column)


def filled_array(filled: Filled, name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of decoded values. Raises PulsarSparkError if a value has another type."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for row, value in enumerate(values):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise PulsarSparkError(
                    f"the message {position_in(filled, row)} cannot be read by its schema: the"
                    f" field {name} is not {kind} ({error})."
                ) from error
        raise


def each_value(filled: Filled, decode: Callable[[bytes, bytes], Any]) -> Iterator[Any]:
    """Yield the value of each message, decoded by its schema version. Raises PulsarSparkError."""
    versions = dict(filled.versions)
    version = b""
    for row, payload in enumerate(payloads_of(filled)):
        version = versions.get(row, version)
        try:
            yield None if payload is None else decode(payload, version)
        except PulsarSparkError:
            raise
        except Exception as error:  # fastavro raises many classes
            raise PulsarSparkError(
                f"the message {position_in(filled, row)} cannot be read by its schema: {error!r}."
            ) from error
