"""Topics whose values are keys with values: what Java's client writes, as columns of Spark."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest
from harness.brokers import Broker
from harness.java_client import Client as JavaClient
from hypothesis import given as given_each
from hypothesis import strategies as st

from compat_tests.spark_rows import error_of, given, rows_of
from compat_tests.test_java_schemas import ADA, EVE, USER, USER_WITH_MAIL
from pyxbroker.spark.key_values import inline

pytestmark = pytest.mark.spark

BOTH = pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])


def pair_of(key: Any, value: Any, encoding: str) -> dict[str, Any]:
    return {"key": key, "value": value, "encoding": encoding}


def pairs(broker: Broker, topic: str, **options: str) -> list[tuple[Any, Any]]:
    return [(row["key"], row["value"]) for row in rows_of(broker, topic=topic, **options)]


KINDS: list[tuple[Any, Any, Any]] = [
    # The schema as the Java client has it, what is sent, and what the column has.
    ("STRING", "née", "née"),
    ("INT32", -5, -5),
    ("INT64", 1 << 40, 1 << 40),
    ("DOUBLE", 0.5, 0.5),
    ("BOOL", True, True),
    ("BYTES", b"\x00\xff", b"\x00\xff"),
    ({"AVRO": USER}, ADA, ADA),
    ({"JSON": USER}, ADA, ADA),
    ({"PROTOBUF": "com.google.protobuf.Duration"}, {"seconds": 7}, {"seconds": 7, "nanos": 0}),
    (
        {"PROTOBUF_NATIVE": "com.google.protobuf.Duration"},
        {"nanos": 3},
        {"seconds": 0, "nanos": 3},
    ),
]


@BOTH
@pytest.mark.parametrize(("schema", "sent", "found"), KINDS, ids=[str(each[0]) for each in KINDS])
def test_keys_and_values_of_each_type_are_columns(
    broker: Broker, java_client: JavaClient, topic: str, encoding: str, schema: Any, sent: Any,
    found: Any,
) -> None:  # fmt: skip
    both = pair_of(schema, schema, encoding)
    producer = java_client.create_producer(topic, both)
    producer.send_all([{"key": sent, "value": sent}] * 3)
    assert pairs(broker, topic) == [(found, found)] * 3


@BOTH
def test_the_key_and_the_value_are_chosen_like_other_columns(
    broker: Broker, java_client: JavaClient, topic: str, encoding: str
) -> None:
    producer = java_client.create_producer(topic, pair_of("INT32", {"AVRO": USER}, encoding))
    producer.send({"key": 5, "value": ADA})
    for names in ("key", "value", "value,key", "__schemaVersion,key"):
        (row,) = rows_of(broker, topic=topic, columns=names)
        assert list(row) == names.split(",")
        assert {"key": 5, "value": ADA, "__schemaVersion": 0}.items() >= row.items()
    # What the message's own key is says the encoding.
    (row,) = rows_of(broker, topic=topic)
    key = None if encoding == "INLINE" else (5).to_bytes(4, "big")
    assert row["__key"] == key
    assert rows_of(broker, topic=topic, columns="__key") == [{"__key": key}]


@BOTH
def test_keys_and_values_are_read_by_the_version_of_each_message(
    broker: Broker, java_client: JavaClient, topic: str, encoding: str
) -> None:
    old = pair_of({"AVRO": USER}, {"JSON": USER}, encoding)
    new = pair_of({"AVRO": USER_WITH_MAIL}, {"JSON": USER_WITH_MAIL}, encoding)
    first = java_client.create_producer(topic, old)
    first.send({"key": ADA, "value": ADA})
    java_client.create_producer(topic, new).send({"key": EVE, "value": EVE})
    first.send({"key": ADA, "value": ADA})
    ada = ADA | {"mail": None}
    assert pairs(broker, topic) == [(ada, ada), (EVE, EVE), (ada, ada)]


def test_keys_and_values_that_are_missing_are_null(
    broker: Broker, java_client: JavaClient, topic: str
) -> None:
    schema = pair_of("STRING", {"AVRO": USER}, "SEPARATED")
    producer = java_client.create_producer(topic, schema)
    for key, value in (("k", ADA), ("k", None), (None, ADA)):
        producer.send({"key": key, "value": value})
    assert pairs(broker, topic) == [("k", ADA), ("k", None), (None, ADA)]
    inline = f"{topic}-inline"
    producer = java_client.create_producer(inline, pair_of("BYTES", "BYTES", "INLINE"))
    producer.send({"key": b"k", "value": b""})
    ((key, value),) = pairs(broker, inline)
    assert (key, value or b"") == (b"k", b"")


def test_what_is_no_key_with_a_value_is_told(
    broker: Broker, java_client: JavaClient, client: Any, topic: str
) -> None:
    cases = (
        (b"", "ends before its key and value do"),
        (b"\x00\x00\x00\x04abc", "ends before its key and value do"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xffx", "1 bytes follow its key and value"),
        (b"\x00\x00\x00\x03abc\xff\xff\xff\xff", "its key is invalid"),
    )
    for number, (payload, sentence) in enumerate(cases):
        name = f"{topic}-{number}"
        java_client.create_producer(name, pair_of("INT32", "STRING", "INLINE")).close()
        client.create_producer(name).send(payload)
        text = error_of(partial(rows_of, broker, topic=name))
        assert "cannot be read by its schema" in text and sentence in text


def test_the_official_client_does_not_tell_keys_that_are_separated(
    broker: Broker, java_client: JavaClient, topic: str
) -> None:
    producer = java_client.create_producer(topic, pair_of("INT32", "STRING", "SEPARATED"))
    producer.send({"key": 5, "value": "v"})
    text = error_of(lambda: rows_of(broker, topic=topic, reader="client"))
    assert "does not provide key: remove it from the columns" in text
    rows = rows_of(broker, topic=topic, reader="client", columns="value")
    assert rows == [{"value": "v"}]
    inline = f"{topic}-inline"
    producer = java_client.create_producer(inline, pair_of("INT32", "STRING", "INLINE"))
    producer.send({"key": 5, "value": "v"})
    assert pairs(broker, inline, reader="client") == [(5, "v")]


@BOTH
def test_who_copies_keys_with_values_reads_them_as_bytes(
    spark: Any, broker: Broker, java_client: JavaClient, topic: str, encoding: str
) -> None:
    """As columns they cannot be written, and the error says what can be done."""
    schema = pair_of("INT32", {"AVRO": USER}, encoding)
    sent = [{"key": number, "value": ADA} for number in (5, -5)]
    java_client.create_producer(topic, schema).send_all(sent)
    copy = f"{topic}-copy"

    def write(options: dict[str, str]) -> None:
        rows = spark.read.format("pulsar").options(**given(broker, {"topic": topic} | options))
        sink = given(broker, {"topic": copy})
        rows.load().drop("__topic").write.format("pulsar").options(**sink).mode("append").save()

    text = error_of(partial(write, {}))
    assert "the column key cannot be written next to value" in text
    assert "as bytes with allowDifferentTopicSchemas=true" in text
    java_client.create_producer(copy, schema).close()  # the topic gets its schema
    write({"allowDifferentTopicSchemas": "true"})
    consumer = java_client.subscribe(copy, "s", schema)
    received = [(each.value["key"], each.value["value"]) for each in consumer.receive_all(2)]
    for found in (received, pairs(broker, copy)):
        assert sorted(found, key=str) == [(-5, ADA), (5, ADA)]


HALVES = st.none() | st.binary(min_size=1, max_size=20)


@given_each(HALVES, HALVES, st.integers(0, 60))
def test_both_halves_of_a_payload_are_found_or_it_is_refused(
    key: bytes | None, value: bytes | None, cut: int
) -> None:
    halves = (
        b"\xff" * 4 if each is None else len(each).to_bytes(4, "big") + each
        for each in (key, value)
    )
    payload = b"".join(halves)
    assert inline(payload) == (key, value)
    if cut < len(payload):
        with pytest.raises(ValueError, match="ends before"):
            inline(payload[:cut])


@given_each(st.binary(max_size=40))
def test_no_payload_of_a_stranger_is_more_than_refused(payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        key, value = inline(payload)
        assert len(key or b"") + len(value or b"") + 8 == len(payload)


@BOTH
def test_spark_has_them_as_structs(
    spark: Any, broker: Broker, java_client: JavaClient, topic: str, encoding: str
) -> None:
    schema = pair_of({"AVRO": USER}, {"JSON": USER}, encoding)
    java_client.create_producer(topic, schema).send_all([{"key": ADA, "value": EVE_OF_USER}] * 2)
    rows = spark.read.format("pulsar").options(**given(broker, {"topic": topic})).load()
    kinds = dict(rows.dtypes)
    assert kinds["key"] == kinds["value"] == "struct<age:int,name:string>"
    found = rows.where("key.age = 36").select("key.name", "value.*").collect()
    assert [tuple(row) for row in found] == [("Ada", 7, "Eve")] * 2


EVE_OF_USER = {"name": "Eve", "age": 7}
