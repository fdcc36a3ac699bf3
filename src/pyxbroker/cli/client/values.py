"""Values of messages by their schema: text into bytes, bytes into what JSON can express."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from pyxbroker.cli.client.session import InputError, UsageError
from pyxbroker.proto import PulsarApi as pb

_FORMATS = {
    pb.Schema.Int8: ">b",
    pb.Schema.Int16: ">h",
    pb.Schema.Int32: ">i",
    pb.Schema.Int64: ">q",
    pb.Schema.Float: ">f",
    pb.Schema.Double: ">d",
    pb.Schema.Date: ">q",
    pb.Schema.Time: ">q",
    pb.Schema.Timestamp: ">q",
}
"""Numbers; dates and times are milliseconds since 1970 or midnight."""

_NAMES = {
    "BYTES": pb.Schema.Type.Value("None"),
    "NONE": pb.Schema.Type.Value("None"),
    "BOOLEAN": pb.Schema.Bool,
    "KEY_VALUE": pb.Schema.KeyValue,
} | {name.upper(): number for name, number in pb.Schema.Type.items() if name != "None"}
"""Types by the names that Pulsar uses in the properties of key-value schemas."""


class Codec(NamedTuple):
    """The two directions of one schema."""

    encode: Callable[[bytes], bytes]
    """From the text of a value to its bytes; raises InputError."""
    decode: Callable[[bytes], Any]
    """From bytes to a value; raises ValueError."""
    is_structured: bool = False
    """True if values are JSON, so that a comma does not separate two of them."""


class KeyValue(NamedTuple):
    """The schema of topics whose messages have a key and a value with a schema each."""

    key: Codec
    value: Codec
    is_separated: bool
    """True if the key is the key of the message, instead of a part of its payload."""

    def encode(self, key: bytes, value: bytes) -> tuple[bytes | None, bytes]:
        """Return the key of the message and its payload. Raises InputError."""
        key, value = self.key.encode(key), self.value.encode(value)
        if self.is_separated:
            return key, value
        return None, b"".join(len(part).to_bytes(4, "big") + part for part in (key, value))

    def decode(self, key: bytes | None, payload: bytes) -> Any:
        """Return the object with both. Raises ValueError."""
        if not self.is_separated:
            key, payload = _parts(payload)
        return {
            "key": None if key is None else self.key.decode(key),
            "value": self.value.decode(payload),
        }


def codec_of(schema: Any) -> Codec | KeyValue:
    """Return the codec of a Schema of PulsarApi; None: bytes. Raises ValueError, InputError."""
    if schema is None:
        return BYTES
    if schema.type != pb.Schema.KeyValue:
        return _codec(schema.type, schema.schema_data)
    properties = {each.key: each.value for each in schema.properties}
    key, value = _parts(schema.schema_data)
    return KeyValue(
        _codec(_NAMES.get(properties.get("key.schema.type", "BYTES"), 0), key or b""),
        _codec(_NAMES.get(properties.get("value.schema.type", "BYTES"), 0), value),
        properties.get("kv.encoding.type") == "SEPARATED",
    )


def named_schema(option: str, text: str) -> Any:
    """Return the Schema for bytes, string, avro:DEFINITION or json:DEFINITION; None: bytes.

    Raises UsageError.
    """
    kind, _, definition = text.partition(":")
    if text == "bytes":
        return None
    if text == "string":
        return pb.Schema(name="String", type=pb.Schema.String, schema_data=b"")
    if kind not in ("avro", "json") or not definition:
        raise UsageError(
            f"{option} is {text!r}; expected auto, bytes, string, avro:DEFINITION or"
            " json:DEFINITION, where DEFINITION is an Avro schema."
        )
    try:
        name = json.loads(definition).get("name", "")
    except (ValueError, AttributeError):
        raise UsageError(f"{option}: the definition is no JSON object.") from None
    number = pb.Schema.Avro if kind == "avro" else pb.Schema.Json
    return pb.Schema(name=str(name), type=number, schema_data=definition.encode())


def key_value_schema(key: Any, value: Any, encoding: str) -> Any:
    """Return the Schema of a key and a value, whose schemas are given; None: bytes."""
    made = pb.Schema(name="KeyValue", type=pb.Schema.KeyValue)
    for part, schema in (("key", key), ("value", value)):
        data = b"" if schema is None else schema.schema_data
        made.schema_data += len(data).to_bytes(4, "big") + data
        kind = "BYTES" if schema is None else pb.Schema.Type.Name(schema.type).upper()
        name = "Bytes" if schema is None else schema.name
        made.properties.add(key=f"{part}.schema.name", value=name)
        made.properties.add(key=f"{part}.schema.type", value=kind)
        made.properties.add(key=f"{part}.schema.properties", value="{}")
    made.properties.add(key="kv.encoding.type", value=encoding.upper())
    return made


def _parts(data: bytes) -> tuple[bytes | None, bytes]:
    """Return two byte strings with their lengths before them. Raises ValueError."""
    size = int.from_bytes(data[:4], "big", signed=True)
    at = 4 + max(size, 0)
    length = int.from_bytes(data[at : at + 4], "big", signed=True)
    if len(data) != at + 4 + max(length, 0):
        raise ValueError("its key and its value do not fill it")
    return (None if size < 0 else data[4:at]), data[at + 4 :]


# --- one value ------------------------------------------------------------------------------------


def _codec(kind: int, definition: bytes) -> Codec:
    if kind == pb.Schema.Avro:
        return _avro(definition)
    if kind == pb.Schema.Json:
        return Codec(_checked_json, json.loads, is_structured=True)
    if kind == pb.Schema.String:
        return Codec(_utf8, bytes.decode)
    if kind == pb.Schema.Bool:
        return Codec(_boolean, lambda data: data != b"\0")
    if kind in _FORMATS:
        return _number(_FORMATS[kind])
    if kind == pb.Schema.Type.Value("None"):
        return BYTES
    name = pb.Schema.Type.Name(kind) if kind in pb.Schema.Type.values() else str(kind)

    def refuse(text: bytes) -> bytes:
        raise InputError(
            f"A topic with the schema {name} takes no text: use --value-schema bytes to send bytes"
            " as they are."
        )

    return Codec(refuse, BYTES.decode)


def _number(layout: str) -> Codec:
    convert = float if layout in (">f", ">d") else int

    def encode(text: bytes) -> bytes:
        try:
            return struct.pack(layout, convert(text))
        except (ValueError, OverflowError, struct.error):
            raise InputError(f"{_shown(text)} is not a number that the schema allows.") from None

    def decode(data: bytes) -> Any:
        try:
            return struct.unpack(layout, data)[0]
        except struct.error as error:
            raise ValueError(str(error)) from None

    return Codec(encode, decode)


def _boolean(text: bytes) -> bytes:
    if text not in (b"true", b"false"):
        raise InputError(f"{_shown(text)} is neither true nor false.")
    return b"\1" if text == b"true" else b"\0"


def _utf8(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        raise InputError(f"{_shown(text)} is not UTF-8, which the schema STRING demands.") from None
    return text


def _checked_json(text: bytes) -> bytes:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{_shown(text)} is not JSON, which the topic's schema demands: {error}."
        ) from None
    return text


def _avro(definition: bytes) -> Codec:
    import fastavro

    try:
        schema = fastavro.parse_schema(json.loads(definition))
    except KeyError as error:
        raise InputError(f"The definition of an Avro schema has no {error}.") from None
    except Exception as error:
        raise InputError(f"The definition of an Avro schema cannot be used: {error}.") from None

    def encode(text: bytes) -> bytes:
        value = json.loads(_checked_json(text))
        try:
            return _written(schema, value, strict_allow_default=True)
        except Exception as error:
            # Values as in Avro's JSON encoding, {"string": "x"} in a union.
            try:
                [found] = fastavro.json_reader(io.StringIO(text.decode()), schema)
                return _written(schema, found)
            except Exception:
                raise InputError(f"{_shown(text)} does not fit the schema: {error}.") from None

    def decode(data: bytes) -> Any:
        try:
            return fastavro.schemaless_reader(io.BytesIO(data), schema, None)
        except Exception as error:
            raise ValueError(f"it does not fit its Avro schema: {error!r}") from None

    return Codec(encode, decode, is_structured=True)


def _written(schema: Any, value: Any, **more: Any) -> bytes:
    import fastavro

    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value, **more)
    return out.getvalue()


def _shown(text: bytes) -> str:
    shown = text[:60].decode(errors="replace")
    return repr(shown + "..." if len(text) > 60 else shown)


# --- output ---------------------------------------------------------------------------------------


def in_json(value: Any) -> Any:
    """Return what json.dumps writes for a value that it does not know: text, or base64."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return str(value)


def as_java(value: Any) -> str:
    """Return a value as Java prints a map: {name=value, ...}."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={as_java(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_java, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


BYTES = Codec(lambda text: text, lambda data: data)
