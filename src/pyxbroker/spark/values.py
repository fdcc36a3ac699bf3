"""The values of messages as columns: bytes, primitives, or the fields of a record.

What a topic's schema is decides. A record of Avro or JSON has a column for each field, everything
else one column `value`; types that are not decoded come as bytes. Each message is read by the
schema that it was written with (its schema version), and told in the newest one.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pyxbroker.spark.errors import PulsarSparkError

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from pyxbroker.spark.range_reader import Read

STRING, JSON, AVRO = 1, 2, 4
BOOLEAN, INT8, INT16, INT32, INT64, FLOAT, DOUBLE = range(5, 12)
"""Numbers of schema types on the wire (Schema.Type)."""

Definitions = Callable[[bytes], bytes]
"""The definition of a schema version of a topic."""

# The name of Spark's type, and how the bytes are laid out.
_PRIMITIVES: dict[int, tuple[str, str]] = {
    BOOLEAN: ("BooleanType", ">?"),
    INT8: ("ByteType", ">b"),
    INT16: ("ShortType", ">h"),
    INT32: ("IntegerType", ">i"),
    INT64: ("LongType", ">q"),
    FLOAT: ("FloatType", ">f"),
    DOUBLE: ("DoubleType", ">d"),
}


class Values(Protocol):
    """What becomes of payloads. Pickles."""

    def fields(self) -> list[StructField]:
        """The columns in Spark's types."""
        ...

    def rows(self, reads: list[Read], definitions: Definitions) -> dict[str, list[Any]]:
        """The values of each column, as pyarrow takes them. Raises PulsarSparkError."""
        ...


def values_of(type_: int, definition: bytes) -> Values:
    """What becomes of payloads with a schema."""
    if type_ in (AVRO, JSON):
        return Record.of(type_, definition) or Bytes()
    return Primitive(type_) if type_ == STRING or type_ in _PRIMITIVES else Bytes()


class Bytes:
    """One column `value` with the payloads as they are; null for a tombstone."""

    def fields(self) -> list[StructField]:
        from pyspark.sql.types import BinaryType, StructField

        return [StructField("value", BinaryType())]

    def rows(self, reads: list[Read], definitions: Definitions) -> dict[str, list[Any]]:
        return {"value": [each.message.payload for each in reads]}


class Primitive:
    """One column `value` with a number, a truth value or a text."""

    def __init__(self, type_: int) -> None:
        self._type = type_

    def fields(self) -> list[StructField]:
        from pyspark.sql import types

        name = _PRIMITIVES[self._type][0] if self._type in _PRIMITIVES else "StringType"
        return [types.StructField("value", getattr(types, name)())]

    def rows(self, reads: list[Read], definitions: Definitions) -> dict[str, list[Any]]:
        return {"value": [_decoded(each, self._decode) for each in reads]}

    def _decode(self, payload: bytes, _: bytes) -> Any:
        if self._type == STRING:
            return payload.decode()
        return struct.unpack(_PRIMITIVES[self._type][1], payload)[0]


class Record:
    """A column for each field of a record, in Avro's bytes or as JSON."""

    def __init__(self, type_: int, definition: bytes) -> None:
        """Use `of`."""
        self._type = type_
        self._definition = definition

    @classmethod
    def of(cls, type_: int, definition: bytes) -> Record | None:
        """None: this is no record, or has what columns cannot have (recursion, unions)."""
        made = cls(type_, definition)
        try:
            names = [field.name for field in made.fields()]
        except (_NoColumn, ValueError, KeyError, TypeError):
            return None
        return None if any(name.startswith("__") for name in names) else made

    def fields(self) -> list[StructField]:
        from pyspark.sql.types import StructField

        parsed = self._parsed()
        return [
            StructField(field["name"], spark_type(field["type"], self._named(), ()))
            for field in parsed["fields"]
        ]

    def rows(self, reads: list[Read], definitions: Definitions) -> dict[str, list[Any]]:
        parsed = self._parsed()
        names = [field["name"] for field in parsed["fields"]]
        decode = self._of_avro(parsed, definitions) if self._type == AVRO else self._of_json(parsed)
        found: dict[str, list[Any]] = {name: [] for name in names}
        for read in reads:
            record = _decoded(read, decode)
            for name in names:
                found[name].append(None if record is None else record.get(name))
        return found

    def _of_avro(self, parsed: Any, definitions: Definitions) -> Callable[[bytes, bytes], Any]:
        import fastavro

        writers = {b"": parsed}
        named = self._named()

        def decode(payload: bytes, version: bytes) -> Any:
            if version not in writers:
                writers[version] = _parse(definitions(version))[0]
            found = fastavro.schemaless_reader(io.BytesIO(payload), writers[version], parsed)
            return plain(found, parsed, named, is_json=False)

        return decode

    def _of_json(self, parsed: Any) -> Callable[[bytes, bytes], Any]:
        named = self._named()
        return lambda payload, _: plain(json.loads(payload), parsed, named, is_json=True)

    def _parsed(self) -> Any:
        parsed, _ = _parse(self._definition)
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise _NoColumn("no record")
        return parsed

    def _named(self) -> dict[str, Any]:
        return _parse(self._definition)[1]


_parsed_before: dict[bytes, tuple[Any, dict[str, Any]]] = {}


def _parse(definition: bytes) -> tuple[Any, dict[str, Any]]:
    """(the schema, its named types) as fastavro has them."""
    found = _parsed_before.get(definition)
    if found is None:
        import fastavro

        named: dict[str, Any] = {}
        found = fastavro.parse_schema(json.loads(definition), named), named
        _parsed_before[definition] = found
    return found


def _decoded(read: Read, decode: Callable[[bytes, bytes], Any]) -> Any:
    """The value of a message, by its payload and schema version. Raises PulsarSparkError."""
    if read.message.payload is None:
        return None
    try:
        return decode(read.message.payload, read.message.schema_version)
    except PulsarSparkError:
        raise
    except Exception as error:  # fastavro's are of many classes
        raise PulsarSparkError(
            f"the message {read.position} cannot be read by its schema: {error!r}."
        ) from error


# --- Avro's types as Spark's ----------------------------------------------------------------------


class _NoColumn(Exception):
    """A type that has no place in a table."""


_SIMPLE = {
    "boolean": "BooleanType",
    "int": "IntegerType",
    "long": "LongType",
    "float": "FloatType",
    "double": "DoubleType",
    "bytes": "BinaryType",
    "string": "StringType",
    "enum": "StringType",
    "fixed": "BinaryType",
    "date": "DateType",
    "timestamp-millis": "TimestampType",
    "timestamp-micros": "TimestampType",
    "uuid": "StringType",
}
_REFUSED_LOGICAL = ("decimal", "time-millis", "time-micros", "duration")


def _resolve(schema: Any, named: dict[str, Any]) -> tuple[str, Any]:
    """(kind, the schema itself) of a type: of a union with null that of the other branch."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise _NoColumn("a union")
        return _resolve(others[0], named)
    if isinstance(schema, str):
        return (schema, schema) if schema not in named else _resolve(named[schema], named)
    logical = schema.get("logicalType", "")
    if logical in _SIMPLE:
        return logical, schema
    if logical in _REFUSED_LOGICAL or logical.startswith("local-"):
        raise _NoColumn(logical)
    return (
        (schema["type"], schema)
        if isinstance(schema["type"], str)
        else _resolve(schema["type"], named)
    )


def spark_type(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> Any:
    """Spark's type for one of Avro. Raises _NoColumn."""
    from pyspark.sql import types

    kind, schema = _resolve(schema, named)
    if kind == "record":
        if schema["name"] in within:
            raise _NoColumn("a record within itself")
        within = (*within, schema["name"])
        return types.StructType(
            [
                types.StructField(field["name"], spark_type(field["type"], named, within))
                for field in schema["fields"]
            ]
        )
    if kind == "array":
        return types.ArrayType(spark_type(schema["items"], named, within))
    if kind == "map":
        return types.MapType(types.StringType(), spark_type(schema["values"], named, within))
    if kind not in _SIMPLE:
        raise _NoColumn(kind)
    return getattr(types, _SIMPLE[kind])()


def plain(value: Any, schema: Any, named: dict[str, Any], is_json: bool) -> Any:
    """A decoded value as pyarrow takes it: maps as pairs, and what JSON has no type for."""
    if value is None:
        return None
    kind, schema = _resolve(schema, named)
    if kind == "record":
        return {
            field["name"]: plain(value.get(field["name"]), field["type"], named, is_json)
            for field in schema["fields"]
        }
    if kind == "array":
        return [plain(each, schema["items"], named, is_json) for each in value]
    if kind == "map":
        of_one = schema["values"]
        return [(key, plain(each, of_one, named, is_json)) for key, each in value.items()]
    if kind == "uuid":
        return str(value)
    if is_json and kind in ("bytes", "fixed"):
        return base64.b64decode(value)
    if is_json and kind == "timestamp-millis":
        return value * 1000
    return value
