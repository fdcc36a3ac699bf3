"""The compacted view of a topic as the Java client has it: readers, consumers, table views."""

from __future__ import annotations

import time
from typing import Any

import pytest
from harness.brokers import Broker
from harness.java_client import Client, Reader

from compat_tests.test_java_access_modes import unload
from compat_tests.test_java_reading import partitioned

VERSIONS = (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("b", None), ("d", "5"))
NEWEST = {"a": "3", "c": "4", "d": "5"}


def compact(broker: Broker, topic: str) -> None:
    """Compacts what is in a topic by now, and waits until that is done."""
    path = "/admin/v2/" + topic.replace("://", "/") + "/compaction"
    assert broker.request("PUT", path)[0] == 204
    until = time.monotonic() + 60
    while (told := broker.rest("GET", path)[1])["status"] != "SUCCESS":
        assert told["status"] in ("NOT_RUN", "RUNNING") and time.monotonic() < until, told
        time.sleep(0.05)


def send(
    client: Client, topic: str, versions: Any, schema: Any = "STRING", **options: Any
) -> list[tuple[int, int]]:
    """Values by key; where they are."""
    producer = client.create_producer(topic, schema, **options)
    sent = [producer.send_later(value, key=key) for key, value in versions]
    producer.call("flush")
    told = [each.result(60) for each in sent]
    producer.close()
    return [(each["ledger_id"], each["entry_id"]) for each in told]


def compacted(client: Client, topic: str, schema: Any = "STRING") -> Reader:
    return client.create_reader(topic, "earliest", schema, readCompacted=True)


def read(reader: Reader) -> list[tuple[str | None, Any]]:
    """Everything, by hasMessageAvailable: if that says too much, a message is waited for."""
    return [(each.key, each.value) for each in reader.read_all()]


@pytest.mark.parametrize(
    "options",
    [{"batchingEnabled": False}, {}, {"compressionType": "LZ4"}, {"compressionType": "ZSTD"}],
    ids=["unbatched", "batched", "lz4", "zstd"],
)
def test_a_reader_has_the_newest_value_of_each_key(
    java_client: Client, broker: Broker, topic: str, options: dict[str, Any]
) -> None:
    java_client.subscribe(topic, "keeps")
    send(java_client, topic, VERSIONS, **options)
    before = read(compacted(java_client, topic))
    assert before == list(VERSIONS)
    compact(broker, topic)
    assert read(compacted(java_client, topic)) == list(NEWEST.items())
    assert read(java_client.create_reader(topic, schema="STRING")) == list(VERSIONS)
    # What comes now is not compacted yet.
    send(java_client, topic, [("a", "6"), ("c", None)], **options)
    behind = [("a", "6"), ("c", None)]
    assert read(compacted(java_client, topic)) == [*NEWEST.items(), *behind]
    compact(broker, topic)
    assert sorted(read(compacted(java_client, topic))) == [("a", "6"), ("d", "5")]


def test_messages_keep_their_ids_and_what_is_said_of_them(
    java_client: Client, broker: Broker, topic: str
) -> None:
    producer = java_client.create_producer(topic, "STRING", producerName="p")
    java_client.subscribe(topic, "keeps")
    sent = [
        producer.send_later(f"{number}", key=f"k{number % 3}", properties={"n": f"{number}"})
        for number in range(9)
    ]
    producer.call("flush")
    ids = [(each["ledger_id"], each["entry_id"]) for each in (one.result(60) for one in sent)]
    compact(broker, topic)
    found = compacted(java_client, topic).read_all()
    assert [(each.key, each.value) for each in found] == [("k0", "6"), ("k1", "7"), ("k2", "8")]
    assert [each.id.position for each in found] == ids[6:]
    assert [each.properties for each in found] == [{"n": each} for each in "678"]
    assert {each.producer_name for each in found} == {"p"}
    assert [each.sequence_id for each in found] == [6, 7, 8]


def test_of_a_topic_whose_keys_are_all_deleted_nothing_is_left(
    java_client: Client, broker: Broker, topic: str
) -> None:
    java_client.subscribe(topic, "keeps")
    send(java_client, topic, [("a", "1"), ("a", None)])
    compact(broker, topic)
    reader = compacted(java_client, topic)
    assert read(reader) == []
    send(java_client, topic, [("b", "2")])
    assert read(reader) == [("b", "2")]


def test_consumers_of_the_view_and_others(java_client: Client, broker: Broker, topic: str) -> None:
    java_client.subscribe(topic, "keeps")
    send(java_client, topic, VERSIONS)
    compact(broker, topic)
    for kind in ("Exclusive", "Failover"):
        consumer = java_client.subscribe(
            topic, kind, "STRING", subscriptionType=kind, readCompacted=True
        )
        found = consumer.receive_all(3)
        assert [(each.key, each.value) for each in found] == list(NEWEST.items())
    plain = java_client.subscribe(topic, "plain", "STRING")
    assert [each.value for each in plain.receive_all(6)] == [value for _, value in VERSIONS]


def test_a_table_view_sees_the_compacted_and_what_comes(
    java_client: Client, broker: Broker, topic: str
) -> None:
    java_client.subscribe(topic, "keeps")
    send(java_client, topic, VERSIONS)
    before = java_client.create_table_view(topic, "STRING")
    assert before.entries() == NEWEST
    compact(broker, topic)
    after = java_client.create_table_view(topic, "STRING")
    assert after.entries() == NEWEST
    send(java_client, topic, [("a", None), ("e", "7")])
    newest = {"c": "4", "d": "5", "e": "7"}
    for view in (before, after):
        view.await_entries(newest)
        assert view.call("size") == 3
    compact(broker, topic)
    unload(broker, topic)
    assert java_client.create_table_view(topic, "STRING").entries() == newest


# With brokers on two connections, Java's client may wait for a schema in the thread that reads it.
@pytest.mark.standalone
def test_a_table_view_of_records_in_partitions(
    java_client: Client, broker: Broker, topic: str
) -> None:
    partitioned(broker, topic, 2)
    java_client.subscribe(topic, "keeps")
    users = {f"k{number}": {"name": "x", "age": number} for number in range(20)}
    old = [(key, {"name": "old", "age": -1}) for key in users]
    send(java_client, topic, [*old, *users.items()], {"AVRO": "User"})
    for number in range(2):
        compact(broker, f"{topic}-partition-{number}")
    view = java_client.create_table_view(topic, {"AVRO": "User"})
    assert view.entries() == users
    mail = {"name": "y", "age": 1, "mail": "m"}
    send(java_client, topic, [("k7", None), ("k8", mail)], {"AVRO": "UserWithMail"})
    del users["k7"]
    users["k8"] = {"name": "y", "age": 1}
    view.await_entries(users)


def test_keys_in_a_schema_are_those_of_the_view(
    java_client: Client, broker: Broker, topic: str
) -> None:
    schema = {"key": "INT32", "value": "STRING", "encoding": "SEPARATED"}
    java_client.subscribe(topic, "keeps")
    producer = java_client.create_producer(topic, schema)
    for key, value in ((1, "a"), (2, "b"), (1, "c")):
        producer.send({"key": key, "value": value})
    compact(broker, topic)
    values = [each.value for each in compacted(java_client, topic, schema).read_all()]
    assert values == [{"key": 2, "value": "b"}, {"key": 1, "value": "c"}]
