"""What a schema is, as clients send it and as it is kept."""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import NamedTuple

SCHEMA_BYTES_MAX = 256 << 10
VERSIONS_MAX = 10_000
"""Of one topic, deletions among them: Pulsar keeps the list of all in one node, which may have
1 MiB."""

_LENGTH = struct.Struct(">i")


class SchemaType(IntEnum):
    """The types of schemas by their numbers on the wire (Pulsar's Schema.Type); names are Java's,
    which REST and errors use.
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
"""Types whose definitions are Avro's."""
PRIMITIVES = frozenset(
    each
    for each in SchemaType
    if SchemaType.BOOLEAN <= each <= SchemaType.TIMESTAMP
    or SchemaType.INSTANT <= each <= SchemaType.LOCAL_DATE_TIME
)
"""Types that have no definition."""


class Schema(NamedTuple):
    """A schema as a client sends it."""

    type: SchemaType
    data: bytes = b""
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def hash(self) -> bytes:
        """What tells definitions apart, without their types."""
        return hashlib.sha256(self.data).digest()


class StoredSchema(NamedTuple):
    """One version of a topic's schema."""

    schema: Schema
    user: str
    timestamp_ms: int
    deleted: bool
    version: int = -1


class IndexEntry(NamedTuple):
    """Where a version is."""

    version: int
    ledger_id: int
    entry_id: int
    hash: bytes

    @property
    def is_deletion(self) -> bool:
        """Whether the schema was deleted then: what came before does not count any more."""
        return not self.hash


class NoSchema(Exception):
    """A definition is not what its type says, with what is wrong."""


def halves(schema: Schema) -> tuple[Schema, Schema]:
    """The schemas of key and value of a KEY_VALUE schema. Raises NoSchema."""
    properties = dict(schema.properties)
    found, offset = [], 0
    for which in ("key", "value"):
        if offset + _LENGTH.size > len(schema.data):
            raise NoSchema(f"the length of the {which}'s schema is missing")
        (length,) = _LENGTH.unpack_from(schema.data, offset)
        offset += _LENGTH.size
        length = max(length, 0)  # -1: there is none
        if offset + length > len(schema.data):
            raise NoSchema(f"the {which}'s schema is cut short")
        data = schema.data[offset : offset + length]
        offset += length
        found.append(Schema(_type_of(properties.get(f"{which}.schema.type")), data))
    return found[0], found[1]


def key_value_data(key: bytes, value: bytes) -> bytes:
    """The definition of a KEY_VALUE schema."""
    return b"".join((_LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value))


def _type_of(name: str | None) -> SchemaType:
    if name is None or name == "BYTES":
        return SchemaType.NONE
    try:
        return SchemaType[name]
    except KeyError:
        raise NoSchema(f"{name[:100]!r} is no type of a schema") from None


def version_bytes(version: int) -> bytes:
    """A version as it is on the wire."""
    return version.to_bytes(8, "big", signed=True)
