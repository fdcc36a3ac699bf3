"""The payloads of written rows, and the schema that the topic gets for them.

A column `value` of bytes or text is the payload, without a schema. A `value` that is a number or a
boolean has Pulsar's schema of that type. Other columns become the fields of a record, in Avro or
JSON; its definition follows from their types, and each field may be null. It is the inverse of
values.py, which reads such messages.
"""

from __future__ import annotations

import base64
import io
import json
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any, Protocol

from pyxbroker.spark.errors import PulsarSparkError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField

PRIMITIVES = {
    "boolean": ("BOOLEAN", ">?"),
    "tinyint": ("INT8", ">b"),
    "smallint": ("INT16", ">h"),
    "int": ("INT32", ">i"),
    "bigint": ("INT64", ">q"),
    "float": ("FLOAT", ">f"),
    "double": ("DOUBLE", ">d"),
}
"""Spark's name of a type, to Pulsar's name and the layout of its bytes."""
NUMBERS = {name: 5 + index for index, (name, _) in enumerate(PRIMITIVES.values())}
"""The numbers of these types on the wire (Schema.Type)."""

RECORD = "topLevelRecord"
"""The name of records, as in Spark's own to_avro."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_EPOCH = date(1970, 1, 1)


class Payloads(Protocol):
    """A converter of rows to payloads. Can be pickled."""

    def schema(self) -> tuple[str, str] | None:
        """Return (Pulsar's type, definition) of the schema to register, or None for no schema."""
        ...

    def encode(self, row: dict[str, Any]) -> bytes | None:
        """Return the payload, or None for a tombstone. Raises PulsarSparkError."""
        ...


class Primitive:
    """A converter of the column `value`."""

    def __init__(self, kind: str) -> None:
        """Create the converter. kind: Spark's name of the column's type."""
        self._name, self._layout = PRIMITIVES.get(kind, ("", ""))

    def schema(self) -> tuple[str, str] | None:
        return (self._name, "") if self._name else None

    def encode(self, row: dict[str, Any]) -> bytes | None:
        value = row["value"]
        if value is None or isinstance(value, bytes):
            return value
        return value.encode() if isinstance(value, str) else struct.pack(self._layout, value)


class Record:
    """A converter of columns to a record."""

    def __init__(self, fields: list[StructField], kind: str) -> None:
        """Define the record. kind: avro or json. Raises PulsarSparkError for unsupported types."""
        self._is_json = kind == "json"
        self._names = [field.name for field in fields]
        self._definition = _record([(field.name, field.dataType) for field in fields], RECORD)
        self._kinds = {made["name"]: made["type"][1] for made in self._definition["fields"]}

    def schema(self) -> tuple[str, str] | None:
        return "JSON" if self._is_json else "AVRO", json.dumps(self._definition)

    def encode(self, row: dict[str, Any]) -> bytes | None:
        value = {name: _plain(row[name], self._kinds[name], self._is_json) for name in self._names}
        if self._is_json:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        import fastavro

        output = io.BytesIO()
        fastavro.schemaless_writer(output, self._parsed(), value)
        return output.getvalue()

    def _parsed(self) -> Any:
        text = json.dumps(self._definition)
        found = _parsed_before.get(text)
        if found is None:
            import fastavro

            found = _parsed_before[text] = fastavro.parse_schema(json.loads(text))
        return found


_parsed_before: dict[str, Any] = {}

# --- Spark's types as Avro's ----------------------------------------------------------------------

_SIMPLE: dict[str, Any] = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}


def _record(fields: list[tuple[str, DataType]], name: str) -> dict[str, Any]:
    for field, _ in fields:
        if not _NAME.fullmatch(field):
            raise PulsarSparkError(
                f"the column {field!r} cannot be a field of a record: names have letters, digits"
                " and _, and do not begin with a digit. Rename it by withColumnRenamed."
            )
    made = [
        {"name": field, "type": ["null", _type(kind, f"{name}_{field}")], "default": None}
        for field, kind in fields
    ]
    return {"type": "record", "name": name, "fields": made}


def _type(kind: DataType, name: str) -> Any:
    """Return Avro's type for a Spark type. Nested records are named by their path."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return _record([(field.name, field.dataType) for field in kind.fields], name)
    if isinstance(kind, types.ArrayType):
        return {"type": "array", "items": ["null", _type(kind.elementType, name)]}
    if isinstance(kind, types.MapType) and isinstance(kind.keyType, types.StringType):
        return {"type": "map", "values": ["null", _type(kind.valueType, name)]}
    found = _SIMPLE.get(kind.simpleString())
    if found is None:
        raise PulsarSparkError(
            f"{name.partition('_')[2]} is {kind.simpleString()}, which is not supported in a"
            " record: cast it to one of "
            + ", ".join(_SIMPLE)
            + ", or to arrays, maps by string or structs"
            " of them."
        )
    return found


def _plain(value: Any, kind: Any, is_json: bool) -> Any:
    """Convert a value of pyarrow, which has maps as pairs, for fastavro or JSON."""
    if value is None or (isinstance(kind, str) and kind != "bytes"):
        return value
    if kind == "bytes":
        return base64.b64encode(value).decode() if is_json else value
    convert = _OF_KIND.get(kind.get("logicalType", kind["type"]))
    return value if convert is None else convert(value, kind, is_json)


def _plain_record(value: dict[str, Any], kind: Any, is_json: bool) -> Any:
    return {
        field["name"]: _plain(value[field["name"]], field["type"][1], is_json)
        for field in kind["fields"]
    }


def _plain_array(value: list[Any], kind: Any, is_json: bool) -> Any:
    return [_plain(each, kind["items"][1], is_json) for each in value]


def _plain_map(value: list[tuple[str, Any]], kind: Any, is_json: bool) -> Any:
    return {key: _plain(each, kind["values"][1], is_json) for key, each in value}


def _plain_moment(value: datetime, kind: Any, is_json: bool) -> Any:
    """Return microseconds since 1970."""
    since = value.astimezone(timezone.utc) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _plain_date(value: date, kind: Any, is_json: bool) -> Any:
    """Return days since 1970."""
    return (value - _EPOCH).days


_OF_KIND: dict[str, Callable[[Any, Any, bool], Any]] = {
    "record": _plain_record,
    "array": _plain_array,
    "map": _plain_map,
    "timestamp-micros": _plain_moment,
    "date": _plain_date,
}
