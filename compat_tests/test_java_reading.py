"""What the Java client reads, and how: readers, table views, all that consumers can."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness.brokers import Broker
from harness.java_client import Client, Consumer, Java, JavaError, Message

from compat_tests.test_entry_metadata import SETTINGS

BROKER_SETTINGS = SETTINGS
NUMBERS = [b"%d" % number for number in range(10)]


def data(messages: list[Any]) -> list[bytes]:
    return [each.data for each in messages]


def assert_nothing_more(consumer: Consumer) -> None:
    with pytest.raises(JavaError, match="TimeoutException: no message came"):
        consumer.receive(timeout_ms=500)


def gather(consumers: list[Consumer], count: int) -> Iterator[tuple[int, Message]]:
    """So many messages, each acknowledged, and which consumer got them."""
    until = time.monotonic() + 60
    while count:
        for number, consumer in enumerate(consumers):
            with contextlib.suppress(JavaError):
                while count:
                    message = consumer.receive(timeout_ms=100)
                    consumer.acknowledge(message)
                    yield number, message
                    count -= 1
        assert time.monotonic() < until, f"{count} messages did not come"


def partitioned(broker: Broker, topic: str, count: int) -> None:
    path = "/admin/v2/" + topic.replace("://", "/") + "/partitions"
    assert broker.request("PUT", path, count)[0] == 204


# --- readers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_a_reader_starts_where_it_is_told(java_client: Client, topic: str, batched: bool) -> None:
    producer = java_client.create_producer(topic, batchingEnabled=batched)
    ids = producer.send_all(NUMBERS)
    latest = java_client.create_reader(topic, "latest")
    assert data(java_client.create_reader(topic, "earliest").read_all()) == NUMBERS
    assert data(java_client.create_reader(topic, ids[3]).read_all()) == NUMBERS[4:]
    head = java_client.create_reader(topic, ids[3], resetIncludeHead=True)
    assert data(head.read_all()) == NUMBERS[3:]
    assert data(java_client.create_reader(topic, ids[3].bytes).read_all()) == NUMBERS[4:]
    last = java_client.create_reader(topic, "latest", resetIncludeHead=True)
    assert data(last.read_all()) == NUMBERS[9:]
    assert latest.read_all() == []
    producer.send(b"new")
    assert data(latest.read_all()) == [b"new"]


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_a_reader_goes_back_and_forth(java_client: Client, topic: str, batched: bool) -> None:
    producer = java_client.create_producer(topic, batchingEnabled=batched)
    ids = producer.send_all(NUMBERS)
    reader = java_client.create_reader(topic)
    assert data(reader.read_all()) == NUMBERS
    assert not reader.call("hasMessageAvailable")
    reader.seek("earliest")
    assert reader.call("hasMessageAvailable")
    assert data(reader.read_all()) == NUMBERS
    reader.seek("latest")
    assert not reader.call("hasMessageAvailable")
    reader.seek(ids[5])
    assert data(reader.read_all()) == NUMBERS[6:]
    reader.seek(0)  # a time
    assert data(reader.read_all()) == NUMBERS


def test_last_ids_are_those_of_what_was_sent_last(
    java_client: Client, broker: Broker, topic: str
) -> None:
    reader, consumer = java_client.create_reader(topic), java_client.subscribe(topic, "s")
    assert reader.last_ids()[0].entry_id == -1
    ids = java_client.create_producer(topic).send_all(NUMBERS)
    for one in (reader, consumer):
        (last,) = one.last_ids()
        assert (last.position, last.topic) == (ids[-1].position, topic)
    several = topic + "-several"
    partitioned(broker, several, 2)
    ids = java_client.create_producer(several, batchingEnabled=False).send_all(NUMBERS)
    found = java_client.subscribe(several, "s").last_ids()
    assert {each.topic for each in found} == {f"{several}-partition-{n}" for n in range(2)}
    newest = {each.partition: each.position for each in ids}
    assert {each.partition: each.position for each in found} == newest


def test_a_reader_of_partitions_reads_them_all(
    java_client: Client, broker: Broker, topic: str
) -> None:
    partitioned(broker, topic, 3)
    assert len(java_client.partitions(topic)) == 3
    java_client.create_producer(topic).send_all(NUMBERS)
    assert sorted(data(java_client.create_reader(topic).read_all())) == NUMBERS


def test_a_reader_starts_so_long_ago(java_client: Client, topic: str) -> None:
    java_client.subscribe(topic, "keeps")
    java_client.create_producer(topic).send_all(NUMBERS)
    reader = java_client.create_reader(topic, rollback_s=3600)
    assert data(reader.read_all()) == NUMBERS


# --- table views ------------------------------------------------------------------------------


def test_a_table_view_has_the_newest_value_of_each_key(java_client: Client, topic: str) -> None:
    """Of a topic that keeps nothing: a view of another one reads what is compacted."""
    topic = topic.replace("persistent:", "non-persistent:")
    view = java_client.create_table_view(topic, {"AVRO": "User"})
    assert view.call("isEmpty")
    producer = java_client.create_producer(topic, {"AVRO": "User"})
    users = {f"k{number}": {"name": "x", "age": number} for number in range(20)}
    for key, user in users.items():
        producer.send({"name": "old", "age": -1}, key=key)
        producer.send(user, key=key)
    producer.send(None, key="k7")
    del users["k7"]
    until = time.monotonic() + 60
    while view.entries() != users:  # there is nothing to be refreshed from
        assert time.monotonic() < until, view.entries()
    assert set(view.call("keySet")) == set(users)


# --- subscriptions ----------------------------------------------------------------------------


def test_a_key_goes_to_one_consumer(java_client: Client, topic: str) -> None:
    consumers = [
        java_client.subscribe(topic, "s", subscriptionType="Key_Shared", receiverQueueSize=50)
        for _ in range(2)
    ]
    producer = java_client.create_producer(topic, key_based_batches=True)
    sent = [(f"k{number % 8}", b"%d" % number) for number in range(80)]
    for key, body in sent:
        producer.send_later(body, key=key)
    producer.call("flush")
    owners: dict[str, int] = {}
    found: dict[str, list[bytes]] = {}
    for number, message in gather(consumers, len(sent)):
        assert message.key is not None
        assert owners.setdefault(message.key, number) == number
        found.setdefault(message.key, []).append(message.data)
    assert set(owners.values()) == {0, 1}
    assert found == {f"k{key}": [b"%d" % n for n in range(key, 80, 8)] for key in range(8)}


def test_ranges_of_hashes_belong_to_consumers(java_client: Client, topic: str) -> None:
    def subscribe(*ranges: tuple[int, int]) -> Consumer:
        return java_client.subscribe(
            topic, "s", subscriptionType="Key_Shared", sticky_ranges=list(ranges)
        )

    low, high = subscribe((0, 32767)), subscribe((32768, 65535))
    producer = java_client.create_producer(topic, batchingEnabled=False)
    for number in range(40):
        producer.send_later(b"%d" % number, ordering_key=b"o%d" % number)
    producer.call("flush")
    with pytest.raises(JavaError) as error:
        subscribe((100, 200))
    assert error.value.name == "ConsumerAssignException"
    found = list(gather([low, high], 40))
    assert sorted(message.data for _, message in found) == sorted(b"%d" % n for n in range(40))
    assert {number for number, _ in found} == {0, 1}


def test_one_consumer_has_several_topics(java_client: Client, broker: Broker, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    partitioned(broker, topics[2], 2)
    consumer = java_client.subscribe(topics, "s")
    for number, name in enumerate(topics):
        java_client.create_producer(name).send_all([b"%d" % number] * 4)
    found = consumer.receive_all(12)
    assert sorted(data(found)) == sorted([b"0", b"1", b"2"] * 4)
    assert {each.topic.split("-partition-")[0] for each in found} == set(topics)


def test_a_pattern_finds_topics_that_are_there_and_that_come(
    java_client: Client, topic: str
) -> None:
    java_client.create_producer(f"{topic}-a").send(b"a")
    java_client.create_producer(f"{topic}.other").send(b"other")
    consumer = java_client.subscribe(
        None, "s", pattern=f"{topic}-.*", patternAutoDiscoveryPeriod=3600
    )
    assert consumer.receive().data == b"a"
    # By the watcher, for the next look would be in an hour.
    java_client.create_producer(f"{topic}-b").send(b"b")
    assert consumer.receive().data == b"b"


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_a_consumer_goes_back_and_forth(java_client: Client, topic: str, kind: str) -> None:
    # Acknowledgements that wait to be sent together would come behind the seek.
    consumer = java_client.subscribe(
        topic, "s", subscriptionType=kind, acknowledgementsGroupTimeMicros=0
    )
    producer = java_client.create_producer(topic)
    ids = producer.send_all(NUMBERS)
    assert data(consumer.receive_all(10)) == NUMBERS
    consumer.seek(ids[7])
    assert data(consumer.receive_all(2)) == NUMBERS[8:]
    consumer.seek("earliest")
    assert data(consumer.receive_all(10)) == NUMBERS
    consumer.seek(0)
    assert data(consumer.receive_all(10)) == NUMBERS
    consumer.seek("latest")
    producer.send(b"new")
    assert consumer.receive().data == b"new"


def test_a_single_message_of_a_batch_comes_again(java_client: Client, topic: str) -> None:
    options = {"batchIndexAckEnabled": True, "subscriptionType": "Shared"}
    consumer = java_client.subscribe(
        topic, "s", negativeAckRedeliveryDelayMicros=100_000, ackReceiptEnabled=True, **options
    )
    producer = java_client.create_producer(topic, batchingMaxPublishDelayMicros=1_000_000)
    producer.send_all(NUMBERS)
    first = [consumer.receive() for _ in range(10)]
    assert {each.id.position for each in first} == {first[0].id.position}
    consumer.acknowledge(*first[:2], *first[3:])
    consumer.negative_acknowledge(first[2])
    (again,) = consumer.receive_all(1)
    assert (again.data, again.redelivery_count) == (b"2", 1)
    assert_nothing_more(consumer)


def test_what_is_not_acknowledged_in_time_comes_again(java_client: Client, topic: str) -> None:
    consumer = java_client.subscribe(
        topic, "s", subscriptionType="Shared", ackTimeoutMillis=1000, tickDurationMillis=100
    )
    java_client.create_producer(topic).send(b"late")
    assert consumer.receive().redelivery_count == 0
    message = consumer.receive()
    assert (message.data, message.redelivery_count) == (b"late", 1)
    consumer.acknowledge(message)


def test_what_was_tried_often_enough_is_a_dead_letter(java_client: Client, topic: str) -> None:
    letters = {"max_redeliver_count": 2, "initial_subscription": "dead"}
    consumer = java_client.subscribe(
        *(topic, "s", "STRING"),
        subscriptionType="Shared",
        negativeAckRedeliveryDelayMicros=50_000,
        dead_letters=letters,
    )
    java_client.create_producer(topic, "STRING").send("x", key="k", properties={"a": "b"})
    for count in range(3):
        message = consumer.receive()
        assert message.redelivery_count == count
        consumer.negative_acknowledge(message)
    assert_nothing_more(consumer)
    dead = java_client.subscribe(f"{topic}-s-DLQ", "dead", "STRING").receive()
    assert (dead.value, dead.key, dead.properties["a"]) == ("x", "k", "b")
    assert dead.properties["REAL_TOPIC"] == topic


def test_what_is_to_be_tried_later_comes_by_the_retry_topic(
    java_client: Client, topic: str
) -> None:
    consumer = java_client.subscribe(
        *(topic, "s"),
        subscriptionType="Shared",
        retryEnable=True,
        dead_letters={"max_redeliver_count": 1, "initial_subscription": "dead"},
    )
    java_client.create_producer(topic).send(b"x")
    consumer.reconsume_later(consumer.receive(), 100)
    again = consumer.receive()
    assert (again.topic, again.properties["RECONSUMETIMES"]) == (f"{topic}-s-RETRY", "1")
    consumer.reconsume_later(again, 100)
    dead = java_client.subscribe(f"{topic}-s-DLQ", "dead").receive()
    assert dead.data == b"x"


def test_a_message_comes_when_it_is_due(java_client: Client, topic: str) -> None:
    consumer = java_client.subscribe(topic, "s", subscriptionType="Shared")
    producer = java_client.create_producer(topic)
    due = int(time.time() * 1000) + 1500
    producer.send_later(b"later", deliver_at=due)
    producer.send(b"now")
    came = {}
    for _ in range(2):
        body = consumer.receive().data
        came[body] = time.time() * 1000
    # Apache Pulsar's may come a tick of a second early.
    assert came.keys() == {b"now", b"later"} and came[b"later"] >= due - 1000


def test_a_large_message_goes_in_chunks(java_client: Client, topic: str) -> None:
    options = {"batchingEnabled": False, "chunkingEnabled": True, "chunkMaxMessageSize": 5000}
    producer = java_client.create_producer(topic, compressionType="LZ4", **options)
    consumer = java_client.subscribe(topic, "s")
    body = b"".join(b"%d" % (number * number) for number in range(50_000))
    producer.send(b"first")
    sent = producer.send(body)
    producer.send(b"last")
    found = consumer.receive_all(3)
    assert data(found) == [b"first", body, b"last"]
    assert sent.first_chunk_entry_id == found[1].id.first_chunk_entry_id
    assert found[1].id.position == sent.position
    reader = java_client.create_reader(topic, found[1], resetIncludeHead=True)
    assert data(reader.read_all()) == [body, b"last"]
    assert [each.position for each in reader.last_ids()] == [found[2].id.position]


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_what_the_broker_adds_comes_with_each_codec(
    java_client: Client, topic: str, codec: str
) -> None:
    """When the broker stored a message, and how many were in the topic before."""
    consumer = java_client.subscribe(topic, "s")
    producer = java_client.create_producer(topic, compressionType=codec)
    before = int(time.time() * 1000)
    producer.send_all(NUMBERS, properties={"a": "b"}, event_time=7)
    found = consumer.receive_all(10)
    assert data(found) == NUMBERS
    assert [each.index for each in found] == list(range(10))
    for each in found:
        assert each.broker_publish_time is not None
        assert abs(each.broker_publish_time - before) < 60_000
        assert (each.properties, each.event_time) == ({"a": "b"}, 7)


def test_what_is_encrypted_is_for_those_with_the_key(
    java: Java, java_client: Client, topic: str
) -> None:
    keys, other = java.keys(), java.keys()
    producer = java_client.create_producer(topic, "STRING", encrypt=keys["public"])
    producer.send_all(["a", "b"])
    consumer = java_client.subscribe(topic, "s", "STRING", decrypt=keys["private"])
    found = consumer.receive_all(2)
    assert [each.value for each in found] == ["a", "b"]
    assert found[0].is_encrypted
    strangers = {
        action: java_client.subscribe(
            topic, action, decrypt=other["private"], cryptoFailureAction=action
        )
        for action in ("CONSUME", "DISCARD", "FAIL")
    }
    message = strangers["CONSUME"].receive()
    assert message.is_encrypted and message.data != b"a"
    for action in ("DISCARD", "FAIL"):
        assert_nothing_more(strangers[action])


# --- endings and refusals ---------------------------------------------------------------------


def test_the_end_of_a_topic_is_told(java_client: Client, broker: Broker, topic: str) -> None:
    consumer, producer = java_client.subscribe(topic, "s"), java_client.create_producer(topic)
    producer.send(b"last")
    path = "/admin/v2/" + topic.replace("://", "/") + "/terminate"
    assert broker.request("POST", path)[0] == 200
    assert data(consumer.receive_all(1)) == [b"last"]
    until = time.monotonic() + 60
    while not consumer.call("hasReachedEndOfTopic"):
        assert time.monotonic() < until
    with pytest.raises(JavaError) as error:
        producer.send(b"more")
    assert error.value.name == "TopicTerminatedException"
    with pytest.raises(JavaError) as error:
        java_client.create_producer(topic)
    assert error.value.name == "TopicTerminatedException"


def test_consumers_that_are_refused(java_client: Client, broker: Broker, topic: str) -> None:
    consumer = java_client.subscribe(topic, "s")
    for kind in ("Exclusive", "Shared"):
        with pytest.raises(JavaError) as error:
            java_client.subscribe(topic, "s", subscriptionType=kind)
        assert error.value.name == "ConsumerBusyException"
    consumer.call("unsubscribe")
    java_client.subscribe(topic, "s", subscriptionType="Shared")
    with pytest.raises(JavaError) as error:
        java_client.subscribe("persistent://public/nowhere/topic", "s")
    assert error.value.name == "TopicDoesNotExistException", error.value


def test_a_client_that_wants_transactions_is_refused(java: Java, broker: Broker) -> None:
    """When it is made; of a broker that refuses it later it would wait without an end."""
    ours, of_the_client = "Transactions are not enabled", "doesn't enable the transaction coord"
    with pytest.raises(JavaError, match=f"{ours}|{of_the_client}"):
        java.client(broker.url, enableTransaction=True)
