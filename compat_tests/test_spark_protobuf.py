"""Topics of messages of Protocol Buffers, as columns of Spark."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pulsar
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from harness.brokers import Broker
from harness.java_client import Client as JavaClient

from compat_tests.spark_rows import error_of, given, rows_of
from compat_tests.test_java_schemas import DURATION, NUMBER, TEXT, protobuf
from pyxbroker.spark.protobuf_messages import ProtobufMessage

pytestmark = pytest.mark.spark

TYPE, LABEL = descriptor_pb2.FieldDescriptorProto.Type, descriptor_pb2.FieldDescriptorProto.Label
REPEATED = LABEL.LABEL_REPEATED

SIMPLE: dict[str, tuple[str, Any, Any]] = {
    # By the name of a type: Spark's one, a value, and what a field has that was not set.
    "DOUBLE": ("double", 0.1, 0.0),
    "FLOAT": ("float", 0.5, 0.0),
    "INT64": ("bigint", -(1 << 63), 0),
    "UINT64": ("decimal(20,0)", Decimal((1 << 64) - 1), Decimal(0)),
    "INT32": ("int", -(1 << 31), 0),
    "FIXED64": ("decimal(20,0)", Decimal(1 << 63), Decimal(0)),
    "FIXED32": ("bigint", (1 << 32) - 1, 0),
    "BOOL": ("boolean", True, False),
    "STRING": ("string", "née", ""),
    "BYTES": ("binary", b"\x00\xff", b""),
    "UINT32": ("bigint", 1 << 31, 0),
    "SFIXED32": ("int", -2, 0),
    "SFIXED64": ("bigint", -3, 0),
    "SINT32": ("int", -4, 0),
    "SINT64": ("bigint", -5, 0),
}
MOMENT = datetime(2027, 1, 15, 8, 0, 0, 123456, timezone.utc)


def file_of() -> descriptor_pb2.FileDescriptorProto:
    """A file whose message `All` has every kind of field."""
    file = descriptor_pb2.FileDescriptorProto(name="all.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    colour = file.enum_type.add(name="Colour")
    for number, name in enumerate(("RED", "GREEN")):
        colour.value.add(name=name, number=number)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=TYPE.TYPE_INT32, label=LABEL.LABEL_OPTIONAL)
    message = file.message_type.add(name="All")

    def add(name: str, type_: str, *, within: Any = message, repeated: bool = False) -> Any:
        label = REPEATED if repeated else LABEL.LABEL_OPTIONAL
        field = within.field.add(name=name, number=len(within.field) + 1, label=label)
        if type_.startswith("."):
            field.type = TYPE.TYPE_ENUM if type_.endswith("Colour") else TYPE.TYPE_MESSAGE
            field.type_name = type_
        else:
            field.type = TYPE.Value(f"TYPE_{type_}")
        return field

    for each in SIMPLE:
        add(each.lower(), each)
    add("colour", ".p.Colour")
    add("inner", ".p.Inner")
    add("at", ".google.protobuf.Timestamp")
    add("numbers", "INT32", repeated=True)
    add("inners", ".p.Inner", repeated=True)
    pair = message.nested_type.add(name="CountsEntry")
    pair.options.map_entry = True
    add("key", "STRING", within=pair)
    add("value", ".p.Inner", within=pair)
    add("counts", ".p.All.CountsEntry", repeated=True)
    message.oneof_decl.add(name="one")
    for name in ("this", "that"):
        add(name, "INT32").oneof_index = 0
    message.oneof_decl.add(name="_maybe")
    maybe = add("maybe", "STRING")
    maybe.oneof_index, maybe.proto3_optional = 1, True
    return file


def registered(broker: Broker, topic: str, root: str, *files: Any) -> None:
    """Gives a topic a schema of PROTOBUF_NATIVE."""
    every = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    definition = {
        "fileDescriptorSet": base64.b64encode(every).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": files[0].name,
    }
    told(broker, topic, "PROTOBUF_NATIVE", definition)


def told(broker: Broker, topic: str, kind: str, definition: Any, **properties: str) -> None:
    path = f"/admin/v2/schemas/{topic.removeprefix('persistent://')}/schema"
    body = {"type": kind, "schema": json.dumps(definition), "properties": properties}
    assert broker.rest("POST", path, body)[0] == 200


@pytest.fixture
def every() -> Any:
    """The files of `All`, and its class."""
    pool = descriptor_pool.DescriptorPool()
    file = file_of()
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    for each in (timestamp, file):
        pool.AddSerializedFile(each.SerializeToString())
    return (file, timestamp), message_factory.GetMessageClass(pool.FindMessageTypeByName("p.All"))


def values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("__")}


def full(make: Any) -> tuple[bytes, dict[str, Any]]:
    """A message with everything, and its columns."""
    simple = {name.lower(): value for name, (_, value, _) in SIMPLE.items()}
    numbers = {name: int(v) if isinstance(v, Decimal) else v for name, v in simple.items()}
    message = make(**numbers, colour=1, inner={"n": 7}, numbers=[3, 1], this=0, maybe="")
    message.at.FromDatetime(MOMENT)
    message.inners.add(n=1)
    message.inners.add()
    message.counts["a"].n = 5
    found = simple | {"colour": "GREEN", "inner": {"n": 7}, "at": MOMENT, "numbers": [3, 1]}
    found |= {"inners": [{"n": 1}, {"n": 0}], "counts": [("a", {"n": 5})]}
    return message.SerializeToString(), found | {"this": 0, "that": None, "maybe": ""}


def test_fields_of_every_type_are_columns(
    broker: Broker, client: pulsar.Client, topic: str, every: Any
) -> None:
    files, make = every
    registered(broker, topic, "p.All", *files)
    payload, found = full(make)
    producer = client.create_producer(topic)
    for each in (payload, b"", make(colour=9).SerializeToString()):
        producer.send(each)
    producer.send(None)
    unset = {name.lower(): default for name, (_, _, default) in SIMPLE.items()}
    unset |= {"colour": "RED", "inner": None, "at": None, "numbers": [], "inners": []}
    unset |= {"counts": [], "this": None, "that": None, "maybe": None}
    assert [values(row) for row in rows_of(broker, topic=topic)] == [
        found,
        unset,
        unset | {"colour": "9"},
        dict.fromkeys(unset),
    ]
    rows = rows_of(broker, topic=topic, columns="maybe,colour")
    assert list(rows[0].items()) == [("maybe", ""), ("colour", "GREEN")]


def test_spark_has_them_by_its_own_types(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str, every: Any
) -> None:
    files, make = every
    registered(broker, topic, "p.All", *files)
    payload, _ = full(make)
    client.create_producer(topic).send(payload)
    rows = spark.read.format("pulsar").options(**given(broker, {"topic": topic})).load()
    kinds = dict(rows.dtypes)
    assert {name: kinds[name.lower()] for name in SIMPLE} == {
        n: k for n, (k, _, _) in SIMPLE.items()
    }
    assert kinds["counts"] == "map<string,struct<n:int>>"
    (row,) = rows.select("inner.n", "counts.a.n", "at", "uint64", "inners").collect()
    assert (row[0], row[1], row.uint64) == (7, 5, Decimal((1 << 64) - 1))
    assert row.at.replace(tzinfo=timezone.utc).timestamp() == pytest.approx(MOMENT.timestamp())
    assert [each.n for each in row.inners] == [1, 0]


@pytest.mark.parametrize("kind", ["PROTOBUF", "PROTOBUF_NATIVE"])
def test_what_javas_client_writes_has_columns(
    broker: Broker, java_client: JavaClient, topic: str, kind: str
) -> None:
    producer = java_client.create_producer(topic, {kind: DURATION})
    producer.send_all([{"seconds": -7, "nanos": 5}, {"seconds": 1 << 40}])
    assert [values(row) for row in rows_of(broker, topic=topic)] == [
        {"seconds": -7, "nanos": 5},
        {"seconds": 1 << 40, "nanos": 0},
    ]


def test_older_messages_are_read_by_the_numbers_of_fields(
    broker: Broker, java_client: JavaClient, topic: str
) -> None:
    old, new = protobuf(("a", 1, TEXT)), protobuf(("renamed", 1, TEXT), ("b", 2, NUMBER))
    java_client.create_producer(topic, old).send({"a": "x"})
    java_client.create_producer(topic, new).send({"renamed": "y", "b": 2})
    rows = rows_of(broker, topic=topic, columns="renamed,b,__schemaVersion")
    assert [tuple(row.values()) for row in rows] == [("x", 0, 0), ("y", 2, 1)]


def test_what_has_no_columns_is_bytes(broker: Broker, client: pulsar.Client, topic: str) -> None:
    within = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    message = within.message_type.add(name="M")
    message.field.add(
        name="next", number=1, type=TYPE.TYPE_MESSAGE, label=LABEL.LABEL_OPTIONAL, type_name=".p.M"
    )
    registered(broker, f"{topic}-within", "p.M", within)
    # Avro's schema of one that has an enum does not tell the numbers of its values.
    avro: dict[str, Any] = {"type": "record", "name": "M", "fields": [{"name": "a", "type": "int"}]}
    info = [{"number": 1, "name": "a", "type": "ENUM", "label": "LABEL_OPTIONAL"}]
    told(broker, f"{topic}-enum", "PROTOBUF", avro, __PARSING_INFO__=json.dumps(info))
    told(broker, f"{topic}-untold", "PROTOBUF", avro)
    avro["fields"][0]["default"] = 5
    info[0]["type"] = "INT32"
    told(broker, f"{topic}-default", "PROTOBUF", avro, __PARSING_INFO__=json.dumps(info))
    for name in ("within", "enum", "untold", "default"):
        client.create_producer(f"{topic}-{name}").send(b"\x08\x05")
        (row,) = rows_of(broker, topic=f"{topic}-{name}")
        assert values(row) == {"value": b"\x08\x05"}


def test_what_is_no_such_message_is_told(
    broker: Broker, client: pulsar.Client, topic: str, every: Any
) -> None:
    files, _ = every
    registered(broker, topic, "p.All", *files)
    client.create_producer(topic).send(b"\xff\xff")
    assert "cannot be read by its schema" in error_of(lambda: rows_of(broker, topic=topic))


@pytest.mark.parametrize(
    "definition",
    [
        b"",
        b"[]",
        b"{}",
        b'{"fileDescriptorSet": 5, "rootMessageTypeName": "M"}',
        b'{"fileDescriptorSet": "//8=", "rootMessageTypeName": "M"}',
        b'{"fileDescriptorSet": "", "rootMessageTypeName": "M"}',
        b'{"fileDescriptorSet": "", "rootMessageTypeName": ["M"]}',
    ],
)
def test_definitions_that_are_none_have_no_columns(definition: bytes) -> None:
    assert ProtobufMessage.of_native(definition) is None


def test_descriptors_that_a_stranger_made_up_have_no_columns() -> None:
    """A file that needs itself, a type that is nowhere, and messages that double in each other."""

    def native(root: str, *files: Any) -> ProtobufMessage | None:
        every = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
        text = base64.b64encode(every).decode()
        told = {"fileDescriptorSet": text, "rootMessageTypeName": root}
        return ProtobufMessage.of_native(json.dumps(told).encode())

    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto3")
    for number in range(40):
        message = file.message_type.add(name=f"M{number}")
        for name in ("a", "b"):
            field = message.field.add(name=name, number=len(message.field) + 1)
            field.label = LABEL.LABEL_OPTIONAL
            field.type = TYPE.TYPE_MESSAGE if number else TYPE.TYPE_INT32
            if number:
                field.type_name = f".M{number - 1}"
    assert native("M3", file) is not None
    assert native("M39", file) is None
    for message in file.message_type[1:]:
        del message.field[1]
    assert native("M20", file) is not None
    assert native("M39", file) is None, "each in one more"
    assert native("M99", file) is None
    file.dependency.append("m.proto")
    assert native("M3", file) is None
    del file.dependency[:]
    file.message_type[0].field[0].type = TYPE.TYPE_MESSAGE
    file.message_type[0].field[0].type_name = ".nowhere"
    assert native("M3", file) is None
