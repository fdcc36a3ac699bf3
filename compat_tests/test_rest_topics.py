"""Messages that are published by REST, and received by the official clients."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pulsar
from harness.brokers import Broker

from compat_tests.conftest import AnyClient
from compat_tests.messages import assert_nothing_more

EARLIEST = pulsar.InitialPosition.Earliest
DEFINITION = '{"type":"record","name":"U","fields":[{"name":"a","type":"int"}]}'


def path(topic: str) -> str:
    """Where a topic is published to."""
    return "/topics/" + topic.replace("://", "/")


def made(broker: Broker, topic: str, partitions: int = 0) -> None:
    admin = "/admin/v2/" + topic.replace("://", "/")
    asked = ("/partitions", partitions) if partitions else ("", None)
    assert broker.rest("PUT", admin + asked[0], asked[1])[0] == 204


def posted(broker: Broker, where: str, *messages: Any, **fields: Any) -> list[dict[str, Any]]:
    """The results of messages that are all published."""
    status, answer = broker.rest("POST", where, {"messages": messages} | fields)
    assert status == 200, answer
    results = answer["messagePublishResults"]
    assert [each["errorCode"] for each in results] == [0] * len(messages)
    assert {each["schemaVersion"] for each in results} == {answer["schemaVersion"]}
    return list(results)


def info(kind: str, definition: str = "") -> str:
    data = base64.b64encode(definition.encode()).decode()
    return json.dumps({"name": "x", "schema": data, "type": kind, "properties": {}})


def test_what_is_published_comes(broker: Broker, any_client: AnyClient, topic: str) -> None:
    made(broker, topic)
    consumer = any_client.subscribe(topic, "s", initial_position=EARLIEST)
    message = {"payload": "v\u00e4l", "key": "k", "properties": {"p": "1"}, "eventTime": "123"}
    results = posted(broker, path(topic), message, {"payload": "b"}, producerName="me")
    first = consumer.receive(timeout_millis=10_000)
    assert (first.data(), first.partition_key()) == ("v\u00e4l".encode(), "k")
    assert (first.properties(), first.event_timestamp()) == ({"p": "1"}, 123)
    assert first.producer_name() == "me"
    found = first.message_id()
    assert results[0]["messageId"] == f"{found.ledger_id()}:{found.entry_id()}:-1"
    assert consumer.receive(timeout_millis=10_000).data() == b"b"
    assert_nothing_more(consumer)


def test_partitions_take_turns(broker: Broker, any_client: AnyClient, topic: str) -> None:
    made(broker, topic, 2)
    consumer = any_client.subscribe(topic, "s", initial_position=EARLIEST)
    results = posted(broker, path(topic), *({"payload": str(n)} for n in range(4)))
    assert [each["messageId"].split(":")[2] for each in results] == ["0", "1", "0", "1"]
    [one] = posted(broker, path(topic) + "/partitions/1", {"payload": "4"})
    assert one["messageId"].endswith(":1")
    bodies = [consumer.receive(timeout_millis=10_000).data() for _ in range(5)]
    assert sorted(bodies) == [b"0", b"1", b"2", b"3", b"4"]


def test_schemas_are_registered_and_used(broker: Broker, any_client: AnyClient, topic: str) -> None:
    made(broker, topic)
    posted(broker, path(topic), {"payload": '{"a":1}'}, valueSchema=info("JSON", DEFINITION))
    posted(broker, path(topic), {"payload": '{"a":2}'}, schemaVersion=0)
    local = topic.partition("://")[2]
    status, schema = broker.rest("GET", f"/admin/v2/schemas/{local}/schema")
    assert (status, schema["type"], schema["version"]) == (200, "JSON", 0)
    assert json.loads(schema["data"]) == json.loads(DEFINITION)
    consumer = any_client.subscribe(topic, "s", initial_position=EARLIEST)
    bodies = [json.loads(consumer.receive(timeout_millis=10_000).data()) for _ in range(2)]
    assert bodies == [{"a": 1}, {"a": 2}]


def test_numbers_are_encoded(broker: Broker, any_client: AnyClient, topic: str) -> None:
    made(broker, topic)
    posted(broker, path(topic), {"payload": "7"}, valueSchema=info("INT32"))
    consumer = any_client.subscribe(topic, "s", initial_position=EARLIEST)
    assert consumer.receive(timeout_millis=10_000).data() == b"\0\0\0\7"


def test_one_that_is_too_large_is_told_in_its_place(broker: Broker, topic: str) -> None:
    made(broker, topic)
    admin = "/admin/v2/" + topic.replace("://", "/")
    assert broker.rest("POST", admin + "/maxMessageSize", 1_000)[0] == 204
    deadline = time.monotonic() + 10
    while True:  # Apache Pulsar has it in force after its answer
        messages = [{"payload": "x" * 2_000}, {"payload": "b"}]
        status, answer = broker.rest("POST", path(topic), {"messages": messages})
        assert status == 200
        large, small = answer["messagePublishResults"]
        assert small["errorCode"] == 0
        if large["errorCode"] or time.monotonic() > deadline:
            break
    assert (large["errorCode"], large["messageId"]) == (2, "-1")
    assert "Exceed maximum message size" in large["errorMsg"]
