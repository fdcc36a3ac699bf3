"""What Arrow's columns say of entries. It needs PySpark's types and pyarrow, but neither Java nor a
broker.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2

from one_broker import section
from pyxbroker.schemas.values import Schema, SchemaType, key_value_data
from pyxbroker.spark.columns import Columns
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.key_values import KeyValues
from pyxbroker.spark.positions import Position
from pyxbroker.spark.protobuf_messages import ProtobufMessage
from pyxbroker.spark.topic_schema import values_of
from pyxbroker.spark.values import AVRO, INT32, JSON, Bytes, Primitive, Record, Values

pytestmark = pytest.mark.spark


def rows(values: Values, names: Sequence[str], *stored: bytes) -> list[dict[str, Any]]:
    """The rows of entries 3:0 and on, of a topic `t`."""
    columns = Columns.requested(values, names)
    read = columns.entry_columns(-1, lambda _: b"")
    read.set_range(Position(3, -1), Position(4, 0))
    for number, each in enumerate(stored):
        read.take_entry(3, number, each)
    (batch,) = columns.record_batches("t", [read.finish()], lambda _: b"")
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_each_column_has_its_part_of_a_message() -> None:
    moment = datetime(2027, 1, 15, 8, 0, 0, 123000, timezone.utc)
    ms = round(moment.timestamp() * 1000)
    sent = {
        "value": b"apple",
        "__key": b"k",
        "__orderingKey": b"o",
        "__producerName": "née",
        "__sequenceId": 7,
        "__schemaVersion": 2,
        "__publishTime": moment,
        "__eventTime": moment,
        "__messageProperties": [("a", "1"), ("b", "2")],
    }
    full = section(
        b"apple",
        partition_key="k",
        ordering_key=b"o",
        producer_name="née",
        sequence_id=7,
        schema_version=struct.pack(">q", 2),
        publish_time=ms,
        event_time=ms,
        properties=[{"key": "a", "value": "1"}, {"key": "b", "value": "2"}],
    )
    bare = section(b"pear", publish_time=ms)
    places = ("__topic", "__ledgerId", "__entryId", "__batchIndex")
    found = rows(Bytes(), [*sent, *places], full, bare, full)
    place = {"__topic": "t", "__ledgerId": 3, "__batchIndex": -1}
    nothing = dict.fromkeys(("__key", "__orderingKey", "__eventTime", "__schemaVersion"))
    assert found == [
        sent | place | {"__entryId": 0},
        {
            **(sent | nothing | place | {"__entryId": 1}),
            **{"value": b"pear", "__producerName": "p", "__sequenceId": 0},
            "__messageProperties": [],
        },
        sent | place | {"__entryId": 2},
    ]


@pytest.mark.parametrize(
    ("column", "what"),
    [
        ("__producerName", "the producer of the message 3:1 has a name that is not UTF-8"),
        ("__messageProperties", "properties of a message between 3:0 and 3:1 are not UTF-8"),
    ],
)
def test_text_that_is_none_is_told_with_its_place(column: str, what: str) -> None:
    fields = {"producer_name": "née", "properties": [{"key": "née", "value": ""}]}
    broken = section(b"x", **fields).replace("é".encode(), b"\xff\xfe")
    # Its checksum is that of other bytes; what has none is read as it is.
    assert broken[:2] == b"\x0e\x01"
    with pytest.raises(PulsarSparkError, match=what):
        rows(Bytes(), [column], section(b"x"), broken[6:])


# --- records that are decoded message by message --------------------------------------------------

INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [
        {"name": "data", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
OUTER = {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": INNER}]}
MOMENT = datetime(2027, 1, 15, 8, 0, 0, 5000, timezone.utc)


def test_records_within_records_are_the_same_by_avro_and_by_json() -> None:
    """JSON has bytes in base64, and moments as numbers."""
    inner = {"data": b"fish", "at": MOMENT}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(OUTER), {"inner": inner})
    told = {
        "data": base64.b64encode(b"fish").decode(),
        "at": round(MOMENT.timestamp() * 1000),
    }
    for type_, payload in (
        (AVRO, out.getvalue()),
        (JSON, json.dumps({"inner": told}).encode()),
    ):
        record = Record.of(type_, json.dumps(OUTER).encode())
        assert record is not None
        assert rows(record, ["inner"], section(payload)) == [{"inner": inner}]


def test_repeated_fields_of_a_protobuf_message_are_lists() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    file.name, file.package, file.syntax = "t.proto", "t", "proto3"
    message = file.message_type.add(name="Told")
    types = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="n", number=1, type=types.TYPE_INT32, label=types.LABEL_OPTIONAL)
    message.field.add(name="many", number=2, type=types.TYPE_INT32, label=types.LABEL_REPEATED)
    message.field.add(name="names", number=3, type=types.TYPE_STRING, label=types.LABEL_REPEATED)
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    definition = {
        "fileDescriptorSet": base64.b64encode(files).decode(),
        "rootMessageTypeName": "t.Told",
    }
    values = ProtobufMessage.of_native(json.dumps(definition).encode())
    assert values is not None
    payload = b"\x08\x07\x12\x02\x05\x06\x1a\x01a\x1a\x01b"
    assert rows(values, ["n", "many", "names"], section(payload), section(b"")) == [
        {"n": 7, "many": [5, 6], "names": ["a", "b"]},
        {"n": 0, "many": [], "names": []},
    ]


@pytest.mark.parametrize("is_separated", [True, False])
def test_the_key_of_a_pair_is_where_its_encoding_says(is_separated: bool) -> None:
    values = KeyValues(Primitive(INT32), Bytes(), is_separated)
    key, value = struct.pack(">i", 5), b"apple"
    payload = value if is_separated else struct.pack(">i", 4) + key + struct.pack(">i", 5) + value
    encoded = base64.b64encode(key).decode()
    stored = section(payload, partition_key=encoded, partition_key_b64_encoded=True)
    assert rows(values, ["key", "value"], stored) == [{"key": 5, "value": value}]
    assert rows(values, ["value"], stored) == [{"value": value}]
    told_otherwise = Columns.requested(values, ["key", "value"]).unknown_to_client
    assert told_otherwise == (["key"] if is_separated else [])


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({}, KeyValues),
        ({"key.schema.properties": '{"a": "1"}'}, KeyValues),
        ({"key.schema.properties": '{"a": 1}'}, Bytes),
        ({"value.schema.properties": '["a"]'}, Bytes),
        ({"value.schema.properties": "a"}, Bytes),
        ({"key.schema.type": "KEY_VALUE"}, Bytes),
        ({"key.schema.type": "COLOUR"}, Bytes),
    ],
)
def test_pairs_whose_schema_makes_no_sense_are_bytes(told: dict[str, str], kind: type) -> None:
    properties = {"key.schema.type": "INT32", "value.schema.type": "STRING"} | told
    data = key_value_data(b"", b"")
    schema = Schema(SchemaType.KEY_VALUE, data, tuple(properties.items()))
    assert type(values_of(schema)) is kind
