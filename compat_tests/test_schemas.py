"""Schemas: official clients and REST; BROKER=apache asks Apache Pulsar the same."""

from __future__ import annotations

import json
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection
from pulsar.schema import (
    AvroSchema,
    Integer,
    JsonSchema,
    Record,
    String,
    StringSchema,
)

from compat_tests.test_rest_answers import ask_json, local

SCHEMAS = "/admin/v2/schemas/public/default"
INCOMPATIBLE = 18


class User(Record):
    name = String()
    age = Integer(default=3)


class UserWithMail(Record):
    name = String()
    age = Integer(default=3)
    mail = String()


class OtherUser(Record):
    name = Integer()


def path_of(topic: str, rest: str = "schema") -> str:
    return f"{SCHEMAS}/{local(topic)}/{rest}"


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_records_go_from_a_producer_to_a_consumer(
    client: pulsar.Client, broker: Broker, topic: str, kind: Any
) -> None:
    consumer = client.subscribe(topic, "s", schema=kind(User))
    producer = client.create_producer(topic, schema=kind(User))
    producer.send(User(name="Ada", age=36))
    message = consumer.receive(timeout_millis=10_000)
    assert (message.value().name, message.value().age) == ("Ada", 36)
    assert int.from_bytes(message.schema_version().encode("latin-1"), "big") == 0
    status, told = ask_json(broker, "GET", path_of(topic))
    assert status == 200
    assert (told["version"], told["type"]) == (0, "JSON" if kind is JsonSchema else "AVRO")
    assert json.loads(told["data"])["name"] == "User"
