"""Schemas, as clients send them and as they are stored."""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import NamedTuple

SCHEMA_BYTES_MAX = 256 << 10
VERSIONS_MAX = 10_000
"""Versions of one topic, including deletions: Pulsar stores the list of all in one node, which is
limited to 1 MiB."""

_LENGTH = struct.Struct(">i")


class SchemaType(IntEnum):
    """The types of schemas, by their numbers on the wire (Pulsar's Schema.Type). The names are
    Java's, which REST and errors use.
    """

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22

    def __str__(self) -> str:
        return self.name


AVRO_FAMILY = frozenset((SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF))
"""Types with Avro definitions."""
PRIMITIVES = frozenset(
    each
    for each in SchemaType
    if SchemaType.BOOLEAN <= each <= SchemaType.TIMESTAMP
    or SchemaType.INSTANT <= each <= SchemaType.LOCAL_DATE_TIME
)
"""Types without a definition."""


class Schema(NamedTuple):
    """A schema as a client sends it."""

    type: SchemaType
    data: bytes = b""
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def hash(self) -> bytes:
        """A hash of the definition, without the type."""
        return hashlib.sha256(self.data).digest()


class StoredSchema(NamedTuple):
    """One version of a topic's schema."""

    schema: Schema
    user: str
    timestamp_ms: int
    deleted: bool
    version: int = -1


class IndexEntry(NamedTuple):
    """The location of a version."""

    version: int
    ledger_id: int
    entry_id: int
    hash: bytes

    @property
    def is_deletion(self) -> bool:
        """True if this version deletes the schema, so that earlier ones do not count."""
        return not self.hash


class MalformedSchema(Exception):
    """A definition is invalid for its type; the message describes what is wrong."""


def halves(schema: Schema) -> tuple[Schema, Schema]:
    """Return the schemas of key and value of a KEY_VALUE schema. Raises MalformedSchema."""
    properties = dict(schema.properties)
    found, offset = [], 0
    for which in ("key", "value"):
        if offset + _LENGTH.size > len(schema.data):
            raise MalformedSchema(f"the length of the {which}'s schema is missing")
        (length,) = _LENGTH.unpack_from(schema.data, offset)
        offset += _LENGTH.size
        length = max(length, 0)  # -1: no definition
        if offset + length > len(schema.data):
            raise MalformedSchema(f"the {which}'s schema is truncated")
        data = schema.data[offset : offset + length]
        offset += length
        found.append(Schema(_type_of(properties.get(f"{which}.schema.type")), data))
    return found[0], found[1]


def key_value_data(key: bytes, value: bytes) -> bytes:
    """Return the definition of a KEY_VALUE schema."""
    return b"".join((_LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value))


def _type_of(name: str | None) -> SchemaType:
    if name is None or name == "BYTES":
        return SchemaType.NONE
    try:
        return SchemaType[name]
    except KeyError:
        raise MalformedSchema(f"{name[:100]!r} is not a schema type") from None


def version_bytes(version: int) -> bytes:
    """Encode a version as on the wire."""
    return version.to_bytes(8, "big", signed=True)
