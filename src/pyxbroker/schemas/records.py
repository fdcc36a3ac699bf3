"""Encoding of stored schemas as Pulsar's protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyxbroker.base.slices import Steps
from pyxbroker.metadata.protobuf_records import MalformedRecord, parse, text_of
from pyxbroker.proto import SchemaRegistryFormat, SchemaStorageFormat
from pyxbroker.schemas.values import IndexEntry, Schema, SchemaType, StoredSchema

FIRST = IndexEntry(0, -1, -1, b"")
"""The predecessor that the entry of a first version names."""
INDEX_IN_ENTRY_MAX = 100
"""Earlier versions that an entry names. Pulsar names all, which would take 3 GB for 10,000
versions. It reads them only for versions that the node lacks, and the node has all."""
ENTRIES_PER_STEP = 500

# On the wire 21 is AUTO_CONSUME, which only clients use; stored numbers have no gap there.
_EXTERNAL_STORED = 22


def encode_schema(schema_id: str, stored: StoredSchema) -> bytes:
    """Encode a SchemaInfo."""
    info = SchemaRegistryFormat.SchemaInfo()
    schema = stored.schema
    info.schema_id = schema_id
    info.user = stored.user
    is_external = schema.type is SchemaType.EXTERNAL
    info.type = _EXTERNAL_STORED if is_external else schema.type + 1
    info.schema = schema.data
    info.timestamp = stored.timestamp_ms
    info.deleted = stored.deleted
    for key, value in schema.properties:
        info.props.add(key=key, value=value)
    data: bytes = info.SerializeToString()
    return data


def decode_schema(data: bytes, version: int) -> StoredSchema:
    """Decode the version in a SchemaInfo. Raises MalformedRecord."""
    info = parse(SchemaRegistryFormat.SchemaInfo, data)
    is_external = info.type == _EXTERNAL_STORED
    kind = SchemaType.EXTERNAL if is_external else SchemaType(info.type - 1)
    properties = tuple((text_of(each.key), text_of(each.value)) for each in info.props)
    schema = Schema(kind, info.schema, properties)
    return StoredSchema(schema, text_of(info.user), info.timestamp, info.deleted, version)


def encode_entry(schema_data: bytes, before: Sequence[IndexEntry]) -> bytes:
    """Encode a SchemaEntry, the entry of a version's ledger."""
    entry = SchemaStorageFormat.SchemaEntry()
    entry.schema_data = schema_data
    for each in before[-INDEX_IN_ENTRY_MAX:] or (FIRST,):
        _put(entry.index.add(), each)
    data: bytes = entry.SerializeToString()
    return data


def decode_entry(data: bytes) -> bytes:
    """Return the SchemaInfo in a SchemaEntry. Raises MalformedRecord."""
    found: bytes = parse(SchemaStorageFormat.SchemaEntry, data).schema_data
    return found


def encode_locator(newest: IndexEntry, index: bytes) -> bytes:
    """Encode a SchemaLocator with one more version than those of an index (index_of)."""
    locator = SchemaStorageFormat.SchemaLocator()
    _put(locator.info, newest)
    last = SchemaStorageFormat.SchemaLocator()
    _put(last.index.add(), newest)
    parts: tuple[bytes, ...] = (
        locator.SerializeToString(), index, last.SerializePartialToString()
    )  # fmt: skip
    return b"".join(parts)


def index_of(value: bytes) -> bytes:
    """Return the encoded versions of a SchemaLocator without decoding them, so that adding one
    takes constant time.
    """
    # The newest version comes first, as the field with the lowest number.
    if value[:1] != b"\x0a" or value[1] >= 0x80:
        locator = parse(SchemaStorageFormat.SchemaLocator, value)
        locator.ClearField("info")
        data: bytes = locator.SerializePartialToString()
        return data
    return value[2 + value[1] :]


def decode_locator(value: bytes) -> Steps[list[IndexEntry]]:
    """Return the versions in a SchemaLocator, ascending. Raises MalformedRecord."""
    locator = parse(SchemaStorageFormat.SchemaLocator, value)
    entries: list[IndexEntry] = []
    for each in locator.index:
        at = each.position
        entries.append(IndexEntry(each.version, at.ledgerId, at.entryId, each.hash))
        if len(entries) % ENTRIES_PER_STEP == 0:
            yield
    if not entries:
        raise MalformedRecord("the record of a schema names no version")
    return entries


def _put(message: Any, entry: IndexEntry) -> None:
    message.version = entry.version
    message.position.ledgerId = entry.ledger_id
    message.position.entryId = entry.entry_id
    message.hash = entry.hash
