"""The conversion of payloads to columns, selected by the topic's schema."""

from __future__ import annotations

import json
from typing import Any

from pyxbroker.schemas.values import MalformedSchema, Schema, SchemaType, halves
from pyxbroker.spark.key_values import KEY, VALUE, KeyValues
from pyxbroker.spark.protobuf_messages import ProtobufMessage
from pyxbroker.spark.values import (
    AVRO,
    JSON,
    MOMENTS,
    PRIMITIVES,
    Bytes,
    Moment,
    Primitive,
    Record,
    Values,
)

_WITH_PROPERTIES = (SchemaType.KEY_VALUE, SchemaType.PROTOBUF)
"""Types whose properties say how values are encoded."""
_ENCODING = "kv.encoding.type"


def schema_of(schema: Any) -> Schema:
    """Return the parts of a broker's Schema that determine how payloads are read."""
    type_ = SchemaType(schema.type)
    properties: tuple[tuple[str, str], ...] = ()
    if type_ in _WITH_PROPERTIES:
        properties = tuple(sorted((each.key, each.value) for each in schema.properties))
    return Schema(type_, schema.schema_data, properties)


def values_of(schema: Schema) -> Values:
    """Return the conversion of payloads with a schema."""
    if schema.type is SchemaType.KEY_VALUE:
        return _key_values(schema) or Bytes()
    if schema.type in (AVRO, JSON):
        return Record.of(schema.type, schema.data) or Bytes()
    if schema.type is SchemaType.PROTOBUF_NATIVE:
        return ProtobufMessage.of_native(schema.data) or Bytes()
    if schema.type is SchemaType.PROTOBUF:
        return ProtobufMessage.of_avro(schema.data, dict(schema.properties)) or Bytes()
    if schema.type in MOMENTS:
        return Moment(schema.type)
    return Primitive(schema.type) if schema.type in PRIMITIVES else Bytes()


def _key_values(schema: Schema) -> KeyValues | None:
    """Return the conversion of KEY_VALUE, or None if the schema is malformed."""
    properties = dict(schema.properties)
    try:
        parts = [
            part._replace(properties=_properties_of(properties, name))
            for name, part in zip((KEY, VALUE), halves(schema), strict=True)
        ]
    except (MalformedSchema, ValueError):
        return None
    if any(part.type is SchemaType.KEY_VALUE for part in parts):
        return None
    key, value = map(values_of, parts)
    return KeyValues(key, value, properties.get(_ENCODING) == "SEPARATED")


def _properties_of(properties: dict[str, str], which: str) -> tuple[tuple[str, str], ...]:
    """Return the properties of the schema of a half. Raises ValueError."""
    found = json.loads(properties.get(f"{which}.schema.properties") or "{}")
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError("properties have to be strings")
    return tuple(found.items())
