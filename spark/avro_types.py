"""Spark's types for Avro's types, and the conversion of decoded values to pyarrow's input."""

from __future__ import annotations

import base64
import json
from typing import Any

_parsed_before: dict[bytes, tuple[Any, dict[str, Any]]] = {}


def parse(definition: bytes) -> tuple[Any, dict[str, Any]]:
    """Return (the schema, its named types) as fastavro parses them."""
    found = _parsed_before.get(definition)
    if found is None:
        import fastavro

        named: dict[str, Any] = {}
        found = fastavro.parse_schema(json.loads(definition), named), named
        _parsed_before[definition] = found
    return found


def reader_of(newest: Any, writer: Any) -> Any:
    """Return the newest schema in a form that reads payloads of another version.

    Java's client and brokers compare the fields of records and ignore the names of records. Avro
    compares the names, so a renamed record needs an alias.
    """
    if not isinstance(writer, dict) or writer["name"] == newest["name"]:
        return newest
    return newest | {"aliases": [*newest.get("aliases", ()), writer["name"]]}


class NoColumn(Exception):
    """An Avro type for which Spark has no column type."""


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
_REFUSED_LOGICAL = ("time-millis", "time-micros", "duration")
_DECIMAL = "decimal"
_PRECISION_MAX = 38
"""The largest precision of Spark's decimals."""


def resolve(schema: Any, named: dict[str, Any]) -> tuple[str, Any]:
    """Return (kind, schema) of a type. A union with null counts as its other branch."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise NoColumn("a union")
        return resolve(others[0], named)
    if isinstance(schema, str):
        return (schema, schema) if schema not in named else resolve(named[schema], named)
    logical = schema.get("logicalType", "")
    if logical in _SIMPLE or logical == _DECIMAL:
        return logical, schema
    if logical in _REFUSED_LOGICAL or logical.startswith("local-"):
        raise NoColumn(logical)
    return (
        (schema["type"], schema)
        if isinstance(schema["type"], str)
        else resolve(schema["type"], named)
    )


def spark_type(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> Any:
    """Return Spark's type for an Avro type. Raises NoColumn."""
    from pyspark.sql import types

    kind, schema = resolve(schema, named)
    if kind == "record":
        if schema["name"] in within:
            raise NoColumn("a record within itself")
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
    if kind == _DECIMAL and schema["precision"] <= _PRECISION_MAX:
        return types.DecimalType(schema["precision"], schema.get("scale", 0))
    if kind not in _SIMPLE:
        raise NoColumn(kind)
    return getattr(types, _SIMPLE[kind])()


def plain(value: Any, schema: Any, named: dict[str, Any], is_json: bool) -> Any:
    """Return a decoded value as pyarrow accepts it: maps as pairs, JSON's base64 as bytes."""
    if value is None:
        return None
    kind, schema = resolve(schema, named)
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
