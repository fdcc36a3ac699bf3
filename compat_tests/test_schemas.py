"""Schemas: official clients and REST; BROKER=apache asks Apache Pulsar the same."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.go_client import Client as GoClient
from harness.raw import RawConnection
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from compat_tests.conftest import BrokerFactory
from compat_tests.test_rest_answers import ask_json, local

SCHEMAS = "/admin/v2/schemas/public/default"
INCOMPATIBLE, TOPIC_NOT_FOUND = 18, 11
GET_SCHEMA_RESPONSE, GET_OR_CREATE_SCHEMA_RESPONSE = 35, 40


class User(Record):
    name = String()
    age = Integer(default=3)


class UserWithMail(Record):
    name = String()
    age = Integer(default=3)
    mail = String(required_default=True)


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


# --- what a broker answers --------------------------------------------------------------------

NONE, STRING, JSON, AVRO, INT32, KEY_VALUE, AUTO_CONSUME, EXTERNAL = 0, 1, 2, 4, 8, 15, 21, 22


def record(*fields: Any, name: str = "R") -> str:
    """An Avro record; a field is a name, or a name and what else it has."""
    made = [
        {"name": each, "type": "string"} if isinstance(each, str) else {"name": each[0], **each[1]}
        for each in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": made})


ONE, TWO = record("a"), record("a", "b")
THREE = record("a", "b", "c")
TWO_OPTIONAL = record("a", ("b", {"type": "string", "default": ""}))


def sent(data: str | bytes, kind: int, properties: dict[str, str] | None = None) -> bytes:
    """A schema in a command."""
    pairs = [wire.encode({1: key, 2: value}) for key, value in (properties or {}).items()]
    return wire.encode({1: "s", 3: data, 4: kind, 5: pairs})


class Schemas(RawConnection):
    """Asks a broker about schemas."""

    def __init__(self, broker: Broker, topic: str) -> None:
        super().__init__(broker.port, timeout_s=30)
        self.topic = topic
        self.lookup(topic)
        self._ids = itertools.count(1)

    def __enter__(self) -> Schemas:
        return self

    def produce(self, data: str | bytes | None = None, kind: int = AVRO, **more: Any) -> Any:
        """The version of a producer with a schema, None for none, or (error, text)."""
        fields: dict[int, Any] = {1: self.topic, 2: next(self._ids), 3: self.request_id()}
        if data is not None:
            fields[7] = sent(data, kind, **more)
        self.command(wire.PRODUCER, fields)
        answer = self.receive()
        if answer.type == wire.ERROR:
            return answer.number(2), answer.data(3).decode()
        version = answer.data(4)
        return int.from_bytes(version, "big") if version else None

    def consume(self, data: str | bytes | None = None, kind: int = AVRO) -> Any:
        """None for a consumer that is let in, or (error, text)."""
        number = next(self._ids)
        fields: dict[int, Any] = {1: self.topic, 2: f"s{number}", 3: 1, 4: number}
        fields[5] = self.request_id()
        if data is not None:
            fields[12] = sent(data, kind)
        self.command(wire.SUBSCRIBE, fields)
        answer = self.receive()
        if answer.type == wire.ERROR:
            return answer.number(2), answer.data(3).decode()
        assert answer.type == wire.SUCCESS, answer
        return None

    def get(self, version: bytes | None = None) -> Any:
        """(version, type, definition), or (error, text)."""
        fields: dict[int, Any] = {1: self.request_id(), 2: self.topic}
        if version is not None:
            fields[3] = version
        self.command(wire.GET_SCHEMA, fields)
        answer = self.receive()
        assert answer.type == GET_SCHEMA_RESPONSE, answer
        if 4 not in answer.fields:
            return answer.number(2), answer.data(3).decode()
        schema = wire.decode(answer.data(4))
        return (
            int.from_bytes(answer.data(5), "big"),
            schema[4][-1],
            bytes(schema.get(3, [b""])[-1]).decode(),
        )

    def get_or_create(self, data: str, kind: int = AVRO) -> Any:
        """A version, None for none, or (error, text)."""
        fields = {1: self.request_id(), 2: self.topic, 3: sent(data, kind)}
        self.command(wire.GET_OR_CREATE_SCHEMA, fields)
        answer = self.receive()
        assert answer.type == GET_OR_CREATE_SCHEMA_RESPONSE, answer
        if 3 in answer.fields:
            return answer.number(2), answer.data(3).decode()
        version = answer.data(4)
        return int.from_bytes(version, "big") if version else None


def start_with(answer: Any, text: str) -> None:
    """An answer is the refusal of a schema, for a reason."""
    assert isinstance(answer, tuple), answer
    code, sentence = answer
    assert (code, text in sentence) == (INCOMPATIBLE, True), answer


def test_versions_and_who_finds_them(broker: Broker, topic: str) -> None:
    with Schemas(broker, topic) as one:
        assert one.get()[0] == TOPIC_NOT_FOUND
        assert one.produce() is None
        assert one.produce(ONE) == 0
        assert one.produce(ONE) == 0
        # Equal by what it says, not by its bytes.
        assert one.produce(json.dumps(json.loads(ONE), indent=2)) == 0
        assert one.produce(TWO_OPTIONAL) == 1
        assert one.get() == (1, AVRO, TWO_OPTIONAL)
        assert one.get((0).to_bytes(8, "big")) == (0, AVRO, ONE)
        assert one.get((7).to_bytes(8, "big"))[0] == TOPIC_NOT_FOUND
        assert one.get(b"") == (INCOMPATIBLE, "Empty schema version")
        assert one.get_or_create(ONE) == 0
        assert one.get_or_create("", NONE) is None
        start_with(one.get_or_create(THREE), "Error during schema compatibility check")
    with Schemas(broker, topic + "-not-there") as one:
        code, text = one.get_or_create(ONE)
        assert (code, "Topic not found" in text) == (TOPIC_NOT_FOUND, True)


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (AVRO, "{}", "Invalid schema definition data for AVRO schema"),
        (AVRO, "", "Invalid schema definition data for AVRO schema"),
        (AVRO, json.dumps(["null", "string"]), "Avro schema typed [UNION] is not supported"),
        (AVRO, record("a", name="1R"), "Invalid schema definition data for AVRO schema"),
        (AVRO, record("a-b"), "Invalid schema definition data for AVRO schema"),
        (AVRO, record("a", "a"), "Invalid schema definition data for AVRO schema"),
        (AVRO, record(("a", {"type": "nobody"})), "Invalid schema definition data for AVRO"),
        (JSON, "no json", "Invalid schema definition data for JSON schema"),
        (STRING, "{}", "Invalid schema definition data for string schema : '{}'"),
        (INT32, "{}", "Invalid schema definition data for primitive schemas :length of schema"),
        (AUTO_CONSUME, "", ""),
    ],
)
def test_what_is_no_schema(broker: Broker, topic: str, kind: int, data: str, text: str) -> None:
    with Schemas(broker, topic) as one:
        start_with(one.produce(data, kind), text)
        assert one.get()[0] == TOPIC_NOT_FOUND
        assert one.produce() is None


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (AVRO, record("$a", name="R$1")),
        (AVRO, '"string"'),
        (AVRO, '{"type":"record","name":"R","namespace":null,"fields":[]}'),
        (
            AVRO,
            record(("next", {"type": ["null", "R"], "default": None}), ("i", {"type": "int"})),
        ),
        (JSON, json.dumps(["null", "string"])),
        (JSON, record(("a", {"type": "int", "default": "wrong"}))),
        (STRING, ""),
        (STRING, "null"),
        (INT32, ""),
        (NONE, ""),
        (EXTERNAL, "anything"),
    ],
)
def test_what_is_a_schema(broker: Broker, topic: str, kind: int, data: str) -> None:
    with Schemas(broker, topic) as one:
        assert one.produce(data, kind) == 0
        assert one.get() == (0, kind, data)


def test_consumers_and_producers_without_the_schema_of_the_topic(
    broker: Broker, topic: str
) -> None:
    with Schemas(broker, topic) as one:
        assert one.consume("", AUTO_CONSUME) is None
        assert one.consume(ONE) is None  # the first who says something
        assert one.get() == (0, AVRO, ONE)
        assert one.consume() is None
        assert one.consume(TWO_OPTIONAL) is None  # can read it
        start_with(one.consume(TWO), "Error during schema compatibility check")
        start_with(one.consume("", STRING), "Incompatible schema: exists schema type AVRO, new")
        assert one.produce() is None
        start_with(one.produce("", STRING), "Incompatible schema: exists schema type AVRO, new")
        start_with(one.produce(ONE, JSON), "Incompatible schema: exists schema type AVRO, new")


def test_a_consumer_brings_no_schema_to_a_topic_that_is_used_without_one(
    broker: Broker, topic: str
) -> None:
    with Schemas(broker, topic) as one:
        assert one.consume() is None
        start_with(one.consume(ONE), "Failed to add schema to an active topic with empty(BYTES)")
        assert one.produce(ONE) == 0  # a producer may
        assert one.consume(ONE) is None


def test_partitions_and_domains_share_a_schema(broker: Broker, topic: str) -> None:
    made = f"/admin/v2/persistent/public/default/{local(topic)}/partitions"
    assert broker.request("PUT", made, 2)[0] == 204
    with Schemas(broker, topic + "-partition-0") as one:
        assert one.produce(ONE) == 0
    with Schemas(broker, topic + "-partition-1") as other:
        assert other.produce(TWO_OPTIONAL) == 1
    with Schemas(broker, topic.replace("persistent:", "non-persistent:")) as third:
        assert third.produce(ONE) == 0
        assert third.get() == (1, AVRO, TWO_OPTIONAL)


def test_rest_tells_uploads_and_deletes(broker: Broker, topic: str) -> None:
    path, body = path_of(topic), {"type": "AVRO", "schema": ONE, "properties": {"a": "b"}}
    assert broker.request("GET", path)[0] == 404
    assert ask_json(broker, "POST", path, body) == (200, {"version": {"version": 0}})
    assert ask_json(broker, "POST", path, body) == (200, {"version": {"version": 0}})
    status, told = ask_json(broker, "GET", path)
    assert (status, told.pop("timestamp") > 0) == (200, True)
    assert told == {"version": 0, "type": "AVRO", "data": ONE, "properties": {"a": "b"}}
    assert broker.request("POST", path, body | {"schema": THREE})[0] == 409
    assert broker.request("POST", path, body | {"schema": "{"})[0] == 422
    assert ask_json(broker, "POST", path, body | {"schema": TWO_OPTIONAL})[0] == 200
    assert ask_json(broker, "GET", path + "/0")[1]["data"] == ONE
    assert broker.request("GET", path + "/5")[0] == 404
    status, everything = ask_json(broker, "GET", path_of(topic, "schemas"))
    assert [each["version"] for each in everything["getSchemaResponses"]] == [0, 1]
    status, metadata = ask_json(broker, "GET", path_of(topic, "metadata"))
    assert (status, metadata["info"]["version"]) == (200, 1)
    assert [each["version"] for each in metadata["index"]] == [0, 1]
    may = path_of(topic, "compatibility")
    told = {"compatibility": True, "schemaCompatibilityStrategy": "FULL"}
    assert ask_json(broker, "POST", may, body) == (202, told)
    assert broker.request("POST", may, body | {"schema": THREE})[0] == 500
    find = path_of(topic, "version")
    assert ask_json(broker, "POST", find, body) == (200, {"version": 0})
    assert ask_json(broker, "POST", find, body | {"schema": TWO}) == (200, {"version": -1})
    assert ask_json(broker, "DELETE", path) == (200, {"version": 2})
    assert broker.request("GET", path)[0] == 404
    assert ask_json(broker, "GET", path_of(topic, "schemas"))[1] == {"getSchemaResponses": []}
    with Schemas(broker, topic) as one:
        assert one.get() == (2, NONE, "")
        assert one.get((0).to_bytes(8, "big"))[0] == TOPIC_NOT_FOUND
        assert one.consume(ONE) is None  # as the first who says something
        assert one.get() == (3, AVRO, ONE)
    assert ask_json(broker, "DELETE", path + "?force=true") == (200, {"version": -1})
    assert broker.request("GET", path)[0] == 404
    with Schemas(broker, topic) as one:
        assert one.produce(ONE) == 0


def test_a_schema_goes_with_its_topic(broker: Broker, topic: str) -> None:
    with Schemas(broker, topic) as one:
        assert one.produce(ONE) == 0
    path = f"/admin/v2/persistent/public/default/{local(topic)}"
    assert broker.request("DELETE", path + "?force=true")[0] == 204
    assert broker.request("GET", path_of(topic))[0] == 404
    with Schemas(broker, topic) as one:
        assert one.produce("", STRING) == 0


# --- the rules of Avro ------------------------------------------------------------------------


def union(*branches: Any) -> str:
    """A record with one field, of a union."""
    return record(("u", {"type": list(branches)}))


def one(kind: Any, **more: Any) -> str:
    """A record with one field of a type."""
    return record(("f", {"type": kind, **more}))


def named(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record(*fields, name=name))
    return found | more


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


# What was written, what reads it, and whether it can.
RULES: dict[str, tuple[str, str, bool]] = {
    "the same": (ONE, ONE, True),
    "less": (TWO, ONE, True),
    "more": (ONE, TWO, False),
    "more with a default": (ONE, TWO_OPTIONAL, True),
    "another name": (ONE, record("a", name="S"), True),
    "int as long": (one("int"), one("long"), True),
    "int as float": (one("int"), one("float"), True),
    "int as double": (one("int"), one("double"), True),
    "long as int": (one("long"), one("int"), False),
    "long as float": (one("long"), one("float"), True),
    "long as double": (one("long"), one("double"), True),
    "float as double": (one("float"), one("double"), True),
    "float as long": (one("float"), one("long"), False),
    "double as float": (one("double"), one("float"), False),
    "string as bytes": (one("string"), one("bytes"), True),
    "bytes as string": (one("bytes"), one("string"), True),
    "int as string": (one("int"), one("string"), False),
    "boolean as int": (one("boolean"), one("int"), False),
    "null as int": (one("null"), one("int"), False),
    "items promoted": (
        one({"type": "array", "items": "int"}),
        one({"type": "array", "items": "long"}),
        True,
    ),
    "items not": (
        one({"type": "array", "items": "long"}),
        one({"type": "array", "items": "int"}),
        False,
    ),
    "values promoted": (
        one({"type": "map", "values": "int"}),
        one({"type": "map", "values": "long"}),
        True,
    ),
    "map as array": (
        one({"type": "map", "values": "int"}),
        one({"type": "array", "items": "int"}),
        False,
    ),
    "enum with more symbols": (one(enum("A")), one(enum("A", "B")), True),
    "enum with fewer symbols": (one(enum("A", "B")), one(enum("A")), True),
    "enum with a default": (one(enum("A", "B")), one(enum("A", default="A")), True),
    "enum of another name": (one(enum("A")), one(enum("A", name="G")), False),
    "enum by an alias": (one(enum("A")), one(enum("A", name="G", aliases=["E"])), True),
    "enum as string": (one(enum("A")), one("string"), False),
    "fixed of another size": (one(fixed(4)), one(fixed(8)), False),
    "fixed of another name": (one(fixed(4)), one(fixed(4, name="G")), False),
    "fixed in another namespace": (one(fixed(4)), one(fixed(4, namespace="x")), True),
    "enum in another namespace": (one(enum("A")), one(enum("A", namespace="x")), True),
    "enum in a union in another namespace": (
        one(enum("A")),
        one(["null", enum("A", namespace="x")]),
        False,
    ),
    "fixed in a union in another namespace": (
        one(fixed(4)),
        one(["null", fixed(4, namespace="x")]),
        False,
    ),
    "record in a union in another namespace": (
        one(named("X", "a")),
        one(["null", named("X", "a", "b", namespace="x")]),
        False,
    ),
    "record in a union of records": (
        one(named("X", ("i", {"type": named("Y", "a")}))),
        one(["null", named("Z", ("i", {"type": ["null", named("W", "a")]}))]),
        True,
    ),
    "record in a union of records of another shape": (
        one(named("X", ("i", {"type": named("Y", "a")}))),
        one(["null", named("Z", ("i", {"type": ["null", named("W", "b")]}))]),
        False,
    ),
    "fixed by an alias": (one(fixed(4)), one(fixed(4, name="G", aliases=["F"])), True),
    "fixed as bytes": (one(fixed(4)), one("bytes"), False),
    "type as a union of it": (one("string"), one(["null", "string"]), True),
    "union as one of it": (one(["null", "string"]), one("string"), False),
    "union as a wider one": (union("null", "int"), union("null", "int", "string"), True),
    "union as a narrower one": (union("null", "int", "string"), union("null", "int"), False),
    "union reordered": (union("null", "int"), union("int", "null"), True),
    "promoted within a union": (one("int"), one(["null", "long"]), True),
    "not promoted within a union": (one("long"), one(["null", "int"]), False),
    "union promoted": (union("null", "int"), union("null", "double"), True),
    "record in a union by its name": (
        one(named("X", "a")),
        one(["null", named("X", "a")]),
        True,
    ),
    "record in a union by its shape": (
        one(named("X", "a")),
        one(["null", named("Y", "a")]),
        True,
    ),
    "record in a union of another shape": (
        one(named("X", "a")),
        one(["null", named("Y", "b")]),
        False,
    ),
    "the record of the name though another fits": (
        one(named("X", "a")),
        one([named("Y", "a"), named("X", "a", "b")]),
        False,
    ),
    "enum in a union by its name": (one(enum("A")), one(["null", enum("A")]), True),
    "enum in a union of another name": (
        one(enum("A")),
        one(["null", enum("A", name="G")]),
        False,
    ),
    "field by an alias": (
        record("a"),
        record(("b", {"type": "string", "aliases": ["a"]})),
        True,
    ),
    "field by an alias of a record of another name": (
        record("a", name="S"),
        record(("b", {"type": "string", "aliases": ["a"]})),
        False,
    ),
    "inner record with more": (one(named("X", "a")), one(named("X", "a", "b")), False),
    "inner record of another name": (one(named("X", "a")), one(named("Y", "a")), True),
    "recursive": (
        record(("next", {"type": ["null", "R"]}), ("v", {"type": "int"})),
        record(("next", {"type": ["null", "R"]}), ("v", {"type": "long"})),
        True,
    ),
    "recursive and wrong": (
        record(("next", {"type": ["null", "R"]}), ("v", {"type": "long"})),
        record(("next", {"type": ["null", "R"]}), ("v", {"type": "int"})),
        False,
    ),
    "a logical type is its type": (
        one("long"),
        one({"type": "long", "logicalType": "timestamp-millis"}),
        True,
    ),
}


@pytest.fixture(scope="module")
def namespaces(broker: Broker) -> dict[str, str]:
    """A namespace for each strategy."""
    made = {}
    for strategy in STRATEGIES:
        name = f"strategy-{strategy.lower().replace('_', '-')}"
        assert broker.request("PUT", f"/admin/v2/namespaces/public/{name}")[0] == 204
        path = f"/admin/v2/namespaces/public/{name}/schemaCompatibilityStrategy"
        assert broker.request("PUT", path, strategy)[0] == 204
        made[strategy] = name
    return made


STRATEGIES = (
    *("ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
    *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
)


@pytest.mark.parametrize("rule", RULES)
def test_what_avro_reads(broker: Broker, topic: str, namespaces: dict[str, str], rule: str) -> None:
    written, reads, can = RULES[rule]
    for strategy, old, new in (("BACKWARD", written, reads), ("FORWARD", reads, written)):
        path = f"/admin/v2/schemas/public/{namespaces[strategy]}/{local(topic)}/"
        body = {"type": "AVRO", "schema": old, "properties": {}}
        assert broker.request("POST", path + "schema", body)[0] == 200
        status, text = broker.request("POST", path + "compatibility", body | {"schema": new})
        assert status == (202 if can else 500), text


# --- strategies -------------------------------------------------------------------------------

# What is first, and what is to follow.
STEPS = {
    "more with a default": (ONE, TWO_OPTIONAL),
    "less that had a default": (TWO_OPTIONAL, ONE),
    "more without a default": (ONE, TWO),
    "less that had none": (TWO, ONE),
    "another type": (ONE, record(("a", {"type": "int"}))),
}
MAY = {
    # Whether it may, for each of the above.
    "ALWAYS_COMPATIBLE": (True, True, True, True, True),
    "ALWAYS_INCOMPATIBLE": (False, False, False, False, False),
    "BACKWARD": (True, True, False, True, False),
    "FORWARD": (True, True, True, False, False),
    "FULL": (True, True, False, False, False),
    "BACKWARD_TRANSITIVE": (True, True, False, True, False),
    "FORWARD_TRANSITIVE": (True, True, True, False, False),
    "FULL_TRANSITIVE": (True, True, False, False, False),
}


def in_namespace(topic: str, namespace: str) -> str:
    return topic.replace("/default/", f"/{namespace}/")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_strategy_lets_in(
    broker: Broker, topic: str, namespaces: dict[str, str], strategy: str
) -> None:
    for number, (step, may) in enumerate(zip(STEPS, MAY[strategy], strict=True)):
        first, second = STEPS[step]
        name = in_namespace(f"{topic}-{number}", namespaces[strategy])
        with Schemas(broker, name) as asking:
            assert asking.produce(first) == 0
            answer = asking.produce(second)
            if may:
                assert answer == 1, step
            else:
                start_with(answer, f"with strategy {strategy}")
            assert asking.produce(first) == 0
            other = asking.produce("", STRING)
            if strategy == "ALWAYS_COMPATIBLE":
                assert other == 2, step
            else:
                start_with(other, "Incompatible schema: exists schema type AVRO, new schema type")


@pytest.mark.parametrize(
    ("plain", "versions"),
    [
        # The last one goes with the one before it, and not with the first.
        ("BACKWARD", [TWO, ONE, record("a", ("b", {"type": "int", "default": 1}))]),
        ("FORWARD", [record("a", ("b", {"type": "int", "default": 1})), ONE, TWO]),
        (
            "FULL",
            [TWO_OPTIONAL, ONE, record("a", ("b", {"type": "int", "default": 1}))],
        ),
    ],
)
def test_a_transitive_strategy_looks_at_every_version(
    broker: Broker, topic: str, namespaces: dict[str, str], plain: str, versions: list[str]
) -> None:
    for strategy, last in ((plain, 2), (plain + "_TRANSITIVE", None)):
        with Schemas(broker, in_namespace(topic, namespaces[strategy])) as asking:
            assert [asking.produce(each) for each in versions[:2]] == [0, 1]
            answer = asking.produce(versions[2])
            if last is not None:
                assert answer == last
            else:
                start_with(answer, f"with strategy {strategy}")


CONSUMERS = {
    # whether a consumer may have: what reads the newest, what reads only the older one
    "ALWAYS_COMPATIBLE": (True, True),
    "ALWAYS_INCOMPATIBLE": (False, False),
    "BACKWARD": (True, False),
    "FORWARD": (True, False),
    "FULL": (True, False),
    "BACKWARD_TRANSITIVE": (True, False),
    "FORWARD_TRANSITIVE": (True, False),
    "FULL_TRANSITIVE": (True, False),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_consumer_may_have(
    broker: Broker, topic: str, namespaces: dict[str, str], strategy: str
) -> None:
    with Schemas(broker, in_namespace(topic, namespaces[strategy])) as asking:
        assert asking.produce(TWO_OPTIONAL) == 0
        for schema, may in zip((ONE, THREE), CONSUMERS[strategy], strict=True):
            answer = asking.consume(schema)
            assert (answer is None) == may, answer


def half(name: str, kind: str) -> dict[str, str]:
    return {
        f"{name}.schema.name": "",
        f"{name}.schema.type": kind,
        f"{name}.schema.properties": "{}",
    }


def key_value(key: str, value: str, kinds: tuple[str, str], encoding: str = "INLINE") -> Any:
    """Definition and properties of a KEY_VALUE schema."""
    data = b"".join(len(each).to_bytes(4, "big") + each.encode() for each in (key, value))
    properties = half("key", kinds[0]) | half("value", kinds[1]) | {"kv.encoding.type": encoding}
    return {"data": data, "kind": KEY_VALUE, "properties": properties}


def test_keys_and_values(broker: Broker, topic: str) -> None:
    with Schemas(broker, topic) as asking:
        assert asking.produce(**key_value(ONE, TWO, ("AVRO", "AVRO"))) == 0
        # Properties are not compared.
        assert asking.produce(**key_value(ONE, TWO, ("AVRO", "AVRO"), "SEPARATED")) == 0
        assert asking.produce(**key_value(TWO_OPTIONAL, TWO, ("AVRO", "AVRO"))) == 1
        answer = asking.produce(**key_value(THREE, TWO, ("AVRO", "AVRO")))
        start_with(answer, "Error during schema compatibility check with strategy FULL")
        answer = asking.produce(**key_value(ONE, "", ("AVRO", "STRING")))
        start_with(answer, "Key schemas or Value schemas are different schema type, from key")
        start_with(asking.produce(ONE), "Incompatible schema: exists schema type KEY_VALUE, new")
    path = path_of(topic)
    status, told = ask_json(broker, "GET", path + "/0")
    assert (status, told["type"]) == (200, "KEY_VALUE")
    both = json.loads(told["data"])
    assert (both["key"], both["value"]) == (json.loads(ONE), json.loads(TWO))
    body = {"type": "KEY_VALUE", "schema": told["data"], "properties": told["properties"]}
    assert ask_json(broker, "POST", path, body)[0] == 200


def test_keys_and_values_without_definitions_are_one_schema(broker: Broker, topic: str) -> None:
    with Schemas(broker, topic) as asking:
        assert asking.produce(**key_value("", "", ("STRING", "STRING"))) == 0
        assert asking.produce(**key_value("", "", ("INT32", "INT32"))) == 0


def test_external_schemas_follow_each_other(broker: Broker, topic: str) -> None:
    with Schemas(broker, topic) as asking:
        assert asking.produce("one", EXTERNAL) == 0
        assert asking.produce("two", EXTERNAL) == 1
        start_with(asking.produce(ONE), "Incompatible schema: exists schema type EXTERNAL, new")


# --- policies ---------------------------------------------------------------------------------


def made_namespace(broker: Broker, topic: str) -> str:
    name = local(topic) + "-ns"
    assert broker.request("PUT", f"/admin/v2/namespaces/public/{name}")[0] == 204
    return name


def test_clients_may_be_kept_from_registering_schemas(broker: Broker, topic: str) -> None:
    name = made_namespace(broker, topic)
    path = f"/admin/v2/namespaces/public/{name}/isAllowAutoUpdateSchema"
    assert broker.request("POST", path, False)[0] in (200, 204)
    assert ask_json(broker, "GET", path) == (200, False)
    with Schemas(broker, in_namespace(topic, name)) as asking:
        refusal = "Schema not found and schema auto updating is disabled."
        start_with(asking.produce(ONE), refusal)
        uploading = f"/admin/v2/schemas/public/{name}/{local(topic)}/schema"
        body = {"type": "AVRO", "schema": ONE, "properties": {}}
        assert ask_json(broker, "POST", uploading, body) == (200, {"version": {"version": 0}})
        assert asking.produce(ONE) == 0
        start_with(asking.produce(TWO_OPTIONAL), refusal)


def test_producers_may_be_required_to_have_a_schema(broker: Broker, topic: str) -> None:
    name = made_namespace(broker, topic)
    path = f"/admin/v2/namespaces/public/{name}/schemaValidationEnforced"
    assert broker.request("POST", path, True)[0] == 204
    assert ask_json(broker, "GET", path) == (200, True)
    with Schemas(broker, in_namespace(topic, name)) as asking:
        assert asking.produce() is None
        assert asking.produce(ONE) == 0
        start_with(asking.produce(), "Producers cannot connect or send message without a schema")


def test_a_topic_has_a_strategy_of_its_own(broker: Broker, topic: str) -> None:
    path = f"/admin/v2/persistent/public/default/{local(topic)}"
    own = path + "/schemaCompatibilityStrategy"
    with Schemas(broker, topic) as asking:
        assert asking.produce(ONE) == 0
        assert ask_json(broker, "GET", own + "?applied=true") == (200, "FULL")
        assert broker.request("PUT", own, "ALWAYS_COMPATIBLE")[0] == 204
        assert ask_json(broker, "GET", own) == (200, "ALWAYS_COMPATIBLE")
        until = time.monotonic() + 20
        while (answer := asking.produce("", STRING)) != 1:
            # Of Apache Pulsar the topic hears of it a moment later.
            start_with(answer, "Incompatible schema: exists schema type AVRO")
            assert time.monotonic() < until
        assert broker.request("DELETE", own)[0] == 204
        while ask_json(broker, "GET", own + "?applied=true") != (200, "FULL"):
            assert time.monotonic() < until


# --- clients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_client_in_go_has_schemas(go_client: GoClient, topic: str, kind: str) -> None:
    first, second = ({"type": kind, "definition": each} for each in (ONE, TWO_OPTIONAL))
    consumer = go_client.subscribe(topic, "s", schema=first)
    go_client.create_producer(topic, schema=first).send(b"one")
    go_client.create_producer(topic, schema=second).send(b"two")
    with pytest.raises(pulsar.IncompatibleSchema):
        go_client.create_producer(topic, schema={"type": kind, "definition": THREE})
    with pytest.raises(pulsar.IncompatibleSchema):
        go_client.subscribe(topic, "t", schema={"type": "STRING"})
    bodies = [consumer.receive(timeout_millis=10_000).data() for _ in range(2)]
    assert bodies == [b"one", b"two"]


def test_what_one_client_writes_another_one_reads(
    client: pulsar.Client, go_client: GoClient, topic: str
) -> None:
    schema = JsonSchema(User)
    consumer = client.subscribe(topic, "s", schema=schema)
    of_python = schema.schema_info().schema()
    producer = go_client.create_producer(topic, schema={"type": "JSON", "definition": of_python})
    producer.send(b'{"name":"Ada","age":36}')
    message = consumer.receive(timeout_millis=10_000)
    assert (message.value().name, message.value().age) == ("Ada", 36)


def test_a_consumer_takes_the_schema_of_the_topic(client: pulsar.Client, topic: str) -> None:
    """A schema that another producer evolved is fetched by its version (GET_SCHEMA)."""
    consumer = client.subscribe(topic, "s", schema=AvroSchema(User))
    client.create_producer(topic, schema=AvroSchema(User)).send(User(name="Ada", age=36))
    evolved = client.create_producer(topic, schema=AvroSchema(UserWithMail))
    evolved.send(UserWithMail(name="Eve", age=7, mail="e@x"))
    names = [consumer.receive(timeout_millis=10_000).value().name for _ in range(2)]
    assert names == ["Ada", "Eve"]


def test_a_schema_of_another_type_is_refused_to_clients(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(User))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=JsonSchema(User))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=AvroSchema(OtherUser))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=StringSchema())


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_schemas_outlive_a_broker(own_broker: BrokerFactory, topic: str, how: str) -> None:
    broker = own_broker()
    broker.start()
    with Schemas(broker, topic) as asking:
        assert asking.produce(ONE) == 0
        assert asking.produce(TWO_OPTIONAL) == 1
    broker.stop() if how == "stop" else broker.kill()
    broker.start()
    with Schemas(broker, topic) as asking:
        assert asking.get() == (1, AVRO, TWO_OPTIONAL)
        assert asking.get(bytes(8)) == (0, AVRO, ONE)
        assert asking.produce(ONE) == 0
        start_with(asking.produce(THREE), "Error during schema compatibility check")
