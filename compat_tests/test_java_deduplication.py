"""Deduplication as the Java client meets it, which says what it was told."""

from __future__ import annotations

import time

import pytest
from harness.brokers import Broker
from harness.java_client import Client, Java, Producer

from compat_tests.test_java_access_modes import bodies, unload

BROKER_SETTINGS = {"brokerDeduplicationEnabled": "true"}
NOWHERE = (-1, -1)


def last_sequence_id(producer: Producer) -> int:
    found: int = producer.call("getLastSequenceId")
    return found


def test_what_is_sent_again_is_stored_once(java_client: Client, topic: str) -> None:
    producer = java_client.create_producer(topic, producerName="p", batchingEnabled=False)
    kept = []
    for number in (5, 6, 6, 3, 8, 8):
        position = producer.send(b"%d" % number, sequence=number).position
        kept.append(position != NOWHERE)
    assert kept == [True, True, False, False, True, False]
    assert last_sequence_id(producer) == 8
    assert bodies(java_client, topic) == [b"5", b"6", b"8"]


def test_a_producer_goes_on_where_its_name_left_off(java_client: Client, topic: str) -> None:
    first = java_client.create_producer(topic, producerName="p", initialSequenceId=41)
    assert last_sequence_id(first) == 41
    first.send_all([b"42", b"43"])
    first.close()
    again = java_client.create_producer(topic, producerName="p")
    assert last_sequence_id(again) == 43
    assert again.send(b"twice", sequence=43).position == NOWHERE
    again.send(b"44")
    assert last_sequence_id(again) == 44
    another = java_client.create_producer(topic, producerName="q")
    assert last_sequence_id(another) == -1
    assert bodies(java_client, topic) == [b"42", b"43", b"44"]


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_ids_are_known_when_the_topic_is_opened_again(
    java_client: Client, broker: Broker, topic: str, batched: bool
) -> None:
    producer = java_client.create_producer(topic, producerName="p", batchingEnabled=batched)
    consumer = java_client.subscribe(topic, "check")
    producer.send_all([b"%d" % number for number in range(10)])
    unload(broker, topic)
    assert last_sequence_id(producer) == 9
    assert producer.send(b"twice", sequence=9).position == NOWHERE
    producer.send_all([b"10", b"11"])
    producer.close()
    again = java_client.create_producer(topic, producerName="p")
    assert last_sequence_id(again) == 11
    assert [each.data for each in consumer.receive_all(12)] == [b"%d" % n for n in range(12)]


def test_a_batch_is_known_by_its_ids(java_client: Client, topic: str) -> None:
    one = java_client.create_producer(topic, producerName="p", batchingMaxPublishDelayMicros=10**6)
    first = one.send_all([b"0", b"1", b"2"])
    assert {each.position for each in first} == {first[0].position}
    assert [each.batch_index for each in first] == [0, 1, 2]
    one.close()
    again = java_client.create_producer(
        topic, producerName="p", batchingMaxPublishDelayMicros=10**6
    )
    sent = [again.send_later(b"again", sequence=number) for number in (0, 1, 2)]
    again.call("flush")
    assert [
        (told["ledger_id"], told["entry_id"]) for told in (each.result(60) for each in sent)
    ] == [NOWHERE] * 3
    assert bodies(java_client, topic) == [b"0", b"1", b"2"]


def test_chunks_are_known_as_one_message(java_client: Client, topic: str) -> None:
    options = {"producerName": "p", "batchingEnabled": False, "chunkingEnabled": True}
    producer = java_client.create_producer(topic, chunkMaxMessageSize=10_000, **options)
    body = bytes(range(256)) * 400
    stored = producer.send(body)
    assert stored.first_chunk_entry_id is not None
    assert stored.entry_id > stored.first_chunk_entry_id
    producer.close()
    again = java_client.create_producer(topic, chunkMaxMessageSize=10_000, **options)
    assert last_sequence_id(again) == 0
    again.send(body, sequence=0)
    again.send(b"small")
    assert bodies(java_client, topic) == [body, b"small"]


def test_partitions_know_the_ids_of_their_own(
    java_client: Client, broker: Broker, topic: str
) -> None:
    path = "/admin/v2/" + topic.replace("://", "/") + "/partitions"
    assert broker.request("PUT", path, 2)[0] == 204
    for _ in range(2):
        producer = java_client.create_producer(topic, producerName="p", batchingEnabled=False)
        for number in range(6):
            producer.send(b"%d" % number, sequence=number, key=f"k{number}")
        producer.close()
    assert sorted(bodies(java_client, topic)) == [b"%d" % number for number in range(6)]


def test_it_ends_and_begins_by_policy(java_client: Client, broker: Broker, topic: str) -> None:
    path = "/admin/v2/" + topic.replace("://", "/") + "/deduplicationEnabled"
    producer = java_client.create_producer(topic, producerName="p", batchingEnabled=False)
    producer.send(b"0", sequence=0)
    assert producer.send(b"0", sequence=0).position == NOWHERE
    for wanted in (False, True):
        assert broker.rest("POST", path, wanted)[0] == 204
        # It is in force soon after it was set.
        until = time.monotonic() + 60
        while (producer.send(b"0", sequence=0).position == NOWHERE) is not wanted:
            assert time.monotonic() < until
    producer.send(b"1", sequence=1)
    assert bodies(java_client, topic)[-1] == b"1"


def test_exclusive_producers_take_over_with_the_ids(
    java: Java, java_client: Client, broker: Broker, topic: str
) -> None:
    with java.client(broker.url) as other:
        fenced = other.create_producer(topic, producerName="p", accessMode="Exclusive")
        fenced.send(b"0")
        fenced.close()
        taker = java_client.create_producer(
            topic, producerName="p", accessMode="ExclusiveWithFencing"
        )
        assert last_sequence_id(taker) == 0
        taker.send(b"1")
    assert bodies(java_client, topic) == [b"0", b"1"]
