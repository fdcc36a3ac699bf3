"""Schemas of the Java client, which has all types of them; BROKER=apache asks Apache Pulsar."""

from __future__ import annotations

import base64
import json
from typing import Any

import pulsar
import pytest
from google.protobuf import descriptor_pb2
from harness.brokers import Broker
from harness.java_client import Client, JavaError, Schema
from pulsar.schema import AvroSchema, Integer, Record, String

from compat_tests.test_rest_answers import ask_json, local

USER, USER_WITH_MAIL, USER_OF_WORDS = "User", "UserWithMail", "UserOfWords"
ADA, EVE = {"name": "Ada", "age": 36}, {"name": "Eve", "age": 7, "mail": "e@x"}
TIMESTAMP, DURATION = "com.google.protobuf.Timestamp", "com.google.protobuf.Duration"


def stored(broker: Broker, topic: str, version: int | None = None) -> Any:
    """The schema of a topic as REST tells it."""
    path = f"/admin/v2/schemas/public/default/{local(topic)}/schema"
    status, told = ask_json(broker, "GET", path if version is None else f"{path}/{version}")
    assert status == 200, told
    return told


def refused(error: pytest.ExceptionInfo[JavaError], text: str) -> None:
    """The refusal of a schema, for a reason."""
    assert error.value.name == "IncompatibleSchemaException", error.value
    assert text in error.value.text


# --- plain values -----------------------------------------------------------------------------

PLAIN: dict[str, tuple[str, list[Any]]] = {
    # How the client calls it: its type, and values with those at the ends of its range.
    "STRING": ("STRING", ["", "äöü €"]),
    "BOOL": ("BOOLEAN", [True, False]),
    "INT8": ("INT8", [-128, 127]),
    "INT16": ("INT16", [-32768, 32767]),
    "INT32": ("INT32", [-(1 << 31), (1 << 31) - 1]),
    "INT64": ("INT64", [-(1 << 63), (1 << 63) - 1]),
    "FLOAT": ("FLOAT", [0.0, -1.5]),
    "DOUBLE": ("DOUBLE", [1e300, -0.1]),
    "DATE": ("DATE", [0, 1_800_000_000_123]),
    "TIME": ("TIME", [1, 86_399_999]),
    "TIMESTAMP": ("TIMESTAMP", [-1, 1_800_000_000_123]),
    "INSTANT": ("INSTANT", ["1969-12-31T23:59:59Z", "2027-01-15T08:00:00.123456789Z"]),
    "LOCAL_DATE": ("LOCAL_DATE", ["1582-10-15", "2027-02-28"]),
    "LOCAL_TIME": ("LOCAL_TIME", ["00:00:00.000000001", "23:59:59"]),
    "LOCAL_DATE_TIME": (
        "LOCAL_DATE_TIME",
        ["1969-12-31T23:59:59", "2027-01-15T08:00:00.000000009"],
    ),
}


@pytest.mark.parametrize("schema", PLAIN)
def test_plain_values_go_from_one_end_of_their_range_to_the_other(
    java_client: Client, broker: Broker, topic: str, schema: str
) -> None:
    type_name, values = PLAIN[schema]
    consumers = [java_client.subscribe(topic, each, each) for each in (schema, "AUTO_CONSUME")]
    java_client.create_producer(topic, schema).send_all(values)
    typed, automatic = ([each.value for each in one.receive_all(2)] for one in consumers)
    assert typed == values
    assert automatic == [{"type": type_name, "value": each} for each in values]
    told = stored(broker, topic)
    assert (told["version"], told["type"], told["data"]) == (0, type_name, "")


@pytest.mark.parametrize("schema", ["BYTES", "BYTEBUFFER"])
def test_bytes_are_no_schema(java_client: Client, broker: Broker, topic: str, schema: str) -> None:
    consumer = java_client.subscribe(topic, "s", schema)
    java_client.create_producer(topic, schema).send(b"\x00\xff")
    message = consumer.receive()
    assert (message.value, message.schema_version) == (b"\x00\xff", None)
    path = f"/admin/v2/schemas/public/default/{local(topic)}/schema"
    assert broker.request("GET", path)[0] == 404


def test_no_value_is_no_empty_one(java_client: Client, topic: str) -> None:
    consumer = java_client.subscribe(topic, "s", "STRING")
    producer = java_client.create_producer(topic, "STRING")
    producer.send(None)
    producer.send("")
    assert [each.value for each in consumer.receive_all(2)] == [None, ""]


# --- records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_records_with_everything_in_them(java_client: Client, topic: str, kind: str) -> None:
    schema = {kind: "Everything"}
    consumer = java_client.subscribe(topic, "s", schema)
    automatic = java_client.subscribe(topic, "a", "AUTO_CONSUME")
    value = {
        "truth": True,
        "number": 1 << 62,
        "fraction": 0.5,
        "bytes": base64.b64encode(b"\x00\xff").decode(),
        "color": "GREEN",
        "names": ["a", "b"],
        "counts": {"a": 1, "b": -1},
        "user": ADA,
    }
    java_client.create_producer(topic, schema).send(value)
    assert consumer.receive().value == value
    generic = automatic.receive().value
    assert generic["type"] == kind
    fields = generic["fields"]
    assert fields.keys() == value.keys()
    assert (fields["number"], fields["color"]) == (1 << 62, "GREEN")
    assert fields["user"] == {"type": kind, "fields": ADA}


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_record_gets_a_field_more(
    java_client: Client, broker: Broker, topic: str, kind: str
) -> None:
    old = java_client.subscribe(topic, "old", {kind: USER})
    first = java_client.create_producer(topic, {kind: USER})
    first.send(ADA)
    second = java_client.create_producer(topic, {kind: USER_WITH_MAIL})
    second.send(EVE)
    first.send(ADA)
    new = java_client.subscribe(topic, "new", {kind: USER_WITH_MAIL})
    automatic = java_client.subscribe(topic, "automatic", "AUTO_CONSUME")
    found = old.receive_all(3)
    assert [each.value for each in found] == [ADA, {"name": "Eve", "age": 7}, ADA]
    assert [each.schema_version for each in found] == [0, 1, 0]
    assert [each.value for each in new.receive_all(2)] == [ADA | {"mail": None}, EVE]
    fields = [each.value["fields"] for each in automatic.receive_all(3)]
    assert fields == [ADA, EVE, ADA]
    assert [stored(broker, topic, each)["type"] for each in (0, 1)] == [kind, kind]
    assert stored(broker, topic)["version"] == 1


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_what_a_record_cannot_become_is_refused(java_client: Client, topic: str, kind: str) -> None:
    java_client.create_producer(topic, {kind: USER}).send(ADA)
    with pytest.raises(JavaError) as error:
        java_client.create_producer(topic, {kind: USER_OF_WORDS})
    refused(error, "Error during schema compatibility check")
    with pytest.raises(JavaError) as error:
        java_client.subscribe(topic, "s", {kind: USER_OF_WORDS})
    refused(error, "Error during schema compatibility check")
    for another in ("STRING", {"JSON" if kind == "AVRO" else "AVRO": USER}):
        with pytest.raises(JavaError) as error:
            java_client.create_producer(topic, another)
        refused(error, "Incompatible schema")
    consumer = java_client.subscribe(topic, "s", {kind: USER})
    assert consumer.receive().value == ADA


def test_one_producer_sends_with_several_schemas(
    java_client: Client, broker: Broker, topic: str
) -> None:
    """Each message says its version; the client registers a schema when it first meets it."""
    consumer = java_client.subscribe(topic, "s", "AUTO_CONSUME")
    producer = java_client.create_producer(topic, {"AVRO": USER})
    producer.send(ADA)
    producer.send(EVE, {"AVRO": USER_WITH_MAIL})
    producer.send_all([ADA, ADA])
    found = consumer.receive_all(4)
    assert [each.schema_version for each in found] == [0, 1, 0, 0]
    assert [each.value["fields"] for each in found] == [ADA, EVE, ADA, ADA]
    with pytest.raises(JavaError) as error:
        producer.send({"name": "x", "age": "y"}, {"AVRO": USER_OF_WORDS})
    refused(error, "incompatible schema")
    assert stored(broker, topic)["version"] == 1


def test_a_producer_of_one_schema_refuses_another_one_itself(
    java_client: Client, topic: str
) -> None:
    producer = java_client.create_producer(topic, {"AVRO": USER}, multiSchema=False)
    producer.send(ADA)
    with pytest.raises(JavaError) as error:
        producer.send(EVE, {"AVRO": USER_WITH_MAIL})
    assert error.value.name == "InvalidMessageException"


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_records_without_a_class(java_client: Client, topic: str, kind: str) -> None:
    fields = [{"name": "name", "type": "string"}, {"name": "age", "type": "int"}]
    definition = json.dumps({"type": "record", "name": "User", "fields": fields})
    schema = {"generic": kind, "definition": definition}
    java_client.create_producer(topic, schema).send(ADA)
    consumer = java_client.subscribe(topic, "s", schema)
    message = consumer.receive()
    assert message.value == {"type": kind, "fields": ADA}


# --- without knowing the schema ---------------------------------------------------------------


def test_bytes_are_checked_against_the_schema_of_the_topic(java_client: Client, topic: str) -> None:
    source = topic + "-source"
    java_client.create_producer(source, {"AVRO": USER}).send(ADA)
    java_client.create_producer(topic, {"AVRO": USER})
    copied = java_client.create_reader(source, schema="AUTO_CONSUME").read_next()
    producer = java_client.create_producer(topic, "AUTO_PRODUCE_BYTES")
    producer.send(copied.data)
    with pytest.raises(JavaError) as error:
        producer.send(b"")
    assert error.value.name == "SchemaSerializationException"
    consumer = java_client.subscribe(topic, "s", {"AVRO": USER})
    message = consumer.receive()
    assert (message.value, message.schema_version) == (ADA, 0)


def test_bytes_of_a_schema_register_it(java_client: Client, broker: Broker, topic: str) -> None:
    producer = java_client.create_producer(topic, {"auto_produce": {"JSON": USER}})
    producer.send(b'{"name":"Ada","age":36}')
    assert stored(broker, topic)["type"] == "JSON"
    assert java_client.subscribe(topic, "s", {"JSON": USER}).receive().value == ADA


def test_bytes_go_to_a_topic_without_a_schema(java_client: Client, topic: str) -> None:
    consumer = java_client.subscribe(topic, "s", "AUTO_CONSUME")
    java_client.create_producer(topic, "AUTO_PRODUCE_BYTES").send(b"anything")
    message = consumer.receive()
    assert (message.value, message.data) == ({"type": "BYTES", "value": b"anything"}, b"anything")


def test_bytes_in_avro_bring_their_own_schema(java_client: Client, topic: str) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    consumer = java_client.subscribe(topic, "s", "AUTO_CONSUME")
    schema = {"native_avro": json.dumps(definition)}
    java_client.create_producer(topic, schema).send(b"\x06abc")
    assert consumer.receive().value == {"type": "AVRO", "fields": {"a": "abc"}}


def test_a_consumer_of_everything_waits_for_the_first_schema(
    java_client: Client, topic: str
) -> None:
    consumer = java_client.subscribe(topic, "s", "AUTO_CONSUME")
    java_client.create_producer(topic).send(b"plain")
    java_client.create_producer(topic, {"JSON": USER}).send(ADA)
    assert consumer.receive().data == b"plain"
    assert consumer.receive().value == {"type": "JSON", "fields": ADA}


# --- keys with values -------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_keys_with_values(java_client: Client, broker: Broker, topic: str, encoding: str) -> None:
    schema = {"key": "INT32", "value": {"AVRO": USER}, "encoding": encoding}
    consumer = java_client.subscribe(topic, "s", schema)
    automatic = java_client.subscribe(topic, "a", "AUTO_CONSUME")
    pair = {"key": 5, "value": ADA}
    java_client.create_producer(topic, schema).send(pair)
    message = consumer.receive()
    assert message.value == pair
    number = (5).to_bytes(4, "big")
    if encoding == "SEPARATED":
        assert message.key_bytes == number
    else:
        assert message.key is None and number in message.data
    told = automatic.receive().value
    assert told["type"] == "KEY_VALUE"
    assert told["value"]["key"] == 5
    assert told["value"]["value"] == {"type": "AVRO", "fields": ADA}
    kept = stored(broker, topic)
    assert kept["type"] == "KEY_VALUE"
    assert kept["properties"]["kv.encoding.type"] == encoding
    assert kept["properties"]["value.schema.type"] == "AVRO"


def test_keys_and_values_may_be_missing_where_they_are_separated(
    java_client: Client, topic: str
) -> None:
    schema = {"key": "STRING", "value": "STRING", "encoding": "SEPARATED"}
    consumer = java_client.subscribe(topic, "s", schema)
    producer = java_client.create_producer(topic, schema)
    pairs = [{"key": "k", "value": "v"}, {"key": "k", "value": None}, {"key": None, "value": "v"}]
    for pair in pairs:
        producer.send(pair)
    assert [each.value for each in consumer.receive_all(3)] == pairs


def test_keys_and_values_evolve_and_their_refusals(java_client: Client, topic: str) -> None:
    def pair(key: str, value: Schema) -> Schema:
        return {"key": {"AVRO": key}, "value": value}

    java_client.create_producer(topic, pair(USER, "STRING")).send({"key": ADA, "value": "1"})
    second = java_client.create_producer(topic, pair(USER_WITH_MAIL, "STRING"))
    second.send({"key": EVE, "value": "2"})
    consumer = java_client.subscribe(topic, "s", pair(USER_WITH_MAIL, "STRING"))
    keys = [each.value["key"] for each in consumer.receive_all(2)]
    assert keys == [ADA | {"mail": None}, EVE]
    with pytest.raises(JavaError) as error:
        java_client.create_producer(topic, pair(USER_OF_WORDS, "STRING"))
    refused(error, "Error during schema compatibility check")
    with pytest.raises(JavaError) as error:
        java_client.create_producer(topic, pair(USER, {"AVRO": USER}))
    refused(error, "Key schemas or Value schemas are different schema type")


# --- Protocol Buffers -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PROTOBUF", "PROTOBUF_NATIVE"])
def test_messages_of_protocol_buffers(
    java_client: Client, broker: Broker, topic: str, kind: str
) -> None:
    schema = {kind: TIMESTAMP}
    consumer = java_client.subscribe(topic, "s", schema)
    value = {"seconds": 1_800_000_000, "nanos": 5}
    java_client.create_producer(topic, schema).send(value)
    message = consumer.receive()
    assert (message.value, message.schema_version) == (value, 0)
    assert stored(broker, topic)["type"] == kind
    with pytest.raises(JavaError) as error:
        java_client.create_producer(topic, "STRING")
    refused(error, "Incompatible schema")


def test_messages_of_protocol_buffers_are_read_without_their_class(
    java_client: Client, topic: str
) -> None:
    consumer = java_client.subscribe(topic, "s", "AUTO_CONSUME")
    producer = java_client.create_producer(topic, {"PROTOBUF_NATIVE": TIMESTAMP})
    producer.send({"seconds": 7})
    value = consumer.receive().value
    assert value == {"type": "PROTOBUF_NATIVE", "fields": {"seconds": 7, "nanos": 0}}


def protobuf(*fields: tuple[str, int, int], name: str = "M") -> Schema:
    """A schema for messages with fields (name, number, type)."""
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    message = file.message_type.add(name=name)
    for field, number, kind in fields:
        message.field.add(name=field, number=number, type=kind, label=1)  # type: ignore[arg-type]
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    definition = {
        "fileDescriptorSet": base64.b64encode(files).decode(),
        "rootMessageTypeName": f"p.{name}",
        "rootFileDescriptorName": "m.proto",
    }
    return {"generic": "PROTOBUF_NATIVE", "definition": json.dumps(definition)}


TEXT, NUMBER = 9, 5  # of FieldDescriptorProto.Type


def test_messages_of_protocol_buffers_evolve(java_client: Client, topic: str) -> None:
    old, new = protobuf(("a", 1, TEXT)), protobuf(("a", 1, TEXT), ("b", 2, NUMBER))
    java_client.create_producer(topic, old).send({"a": "x"})
    java_client.create_producer(topic, new).send({"a": "y", "b": 2})
    automatic = java_client.subscribe(topic, "s", "AUTO_CONSUME")
    found = automatic.receive_all(2)
    assert [each.schema_version for each in found] == [0, 1]
    assert [each.value["fields"] for each in found] == [{"a": "x"}, {"a": "y", "b": 2}]
    with pytest.raises(JavaError) as error:
        java_client.create_producer(topic, protobuf(("a", 1, TEXT), name="N"))
    refused(error, "Protobuf root message change is not allowed")


# --- schemas that are elsewhere ---------------------------------------------------------------


def test_a_message_names_its_schema_of_another_registry(
    java_client: Client, broker: Broker, topic: str
) -> None:
    schema = {"external": "registry-7"}
    consumer = java_client.subscribe(topic, "s", schema)
    java_client.create_producer(topic, schema).send("text")
    message = consumer.receive()
    assert (message.value, message.data) == ("registry-7:text", b"text")
    assert message.schema_id == b"\xffregistry-7"  # as it is sent, behind the client's mark
    assert stored(broker, topic)["type"] == "EXTERNAL"
    with pytest.raises(JavaError) as error:
        java_client.create_producer(topic, "STRING")
    refused(error, "Incompatible schema")


# --- where schemas are shared -----------------------------------------------------------------


def test_partitions_have_one_schema(java_client: Client, broker: Broker, topic: str) -> None:
    path = f"/admin/v2/persistent/public/default/{local(topic)}/partitions"
    assert broker.request("PUT", path, 3)[0] == 204
    consumer = java_client.subscribe(topic, "s", {"AVRO": USER_WITH_MAIL})
    java_client.create_producer(topic, {"AVRO": USER}).send_all([ADA] * 6)
    found = consumer.receive_all(6)
    assert {each.schema_version for each in found} == {1}
    assert [each.value for each in found] == [ADA | {"mail": None}] * 6


def test_topics_that_are_not_persistent_have_schemas(java_client: Client, topic: str) -> None:
    topic = topic.replace("persistent:", "non-persistent:")
    consumer = java_client.subscribe(topic, "s", {"JSON": USER})
    java_client.create_producer(topic, {"JSON": USER}).send(ADA)
    assert consumer.receive().value == ADA
    with pytest.raises(JavaError) as error:
        java_client.create_producer(topic, {"JSON": USER_OF_WORDS})
    refused(error, "Error during schema compatibility check")


class PythonUser(Record):
    _avro_namespace = "Types"
    name = String()
    age = Integer()


def test_what_python_writes_java_reads_and_back(
    java_client: Client, python_client: pulsar.Client, topic: str
) -> None:
    schema = AvroSchema(PythonUser)
    to_java = java_client.subscribe(topic, "java", "AUTO_CONSUME")
    python_client.create_producer(topic, schema=schema).send(PythonUser(name="Ada", age=36))
    assert to_java.receive().value["fields"] == ADA
    of_python = {"generic": "AVRO", "definition": schema.schema_info().schema()}
    to_python = python_client.subscribe(topic, "python", schema=schema)
    java_client.create_producer(topic, of_python).send({"name": "Eve", "age": 7})
    value = to_python.receive(timeout_millis=20_000).value()
    assert (value.name, value.age) == ("Eve", 7)
