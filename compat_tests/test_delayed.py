"""Delayed delivery: whom it does not hold up, and what comes of times that have passed.

Only Shared and Key_Shared subscriptions wait for a message's time; all others get it at once.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from compat_tests.conftest import AnyClient
from compat_tests.messages import assert_nothing_more, receive

HOUR_MS = 3_600_000


@pytest.fixture
def client(any_client: AnyClient) -> AnyClient:
    return any_client


def in_an_hour(how: str) -> dict[str, Any]:
    """The option that delays a message by an hour: relative, or as an absolute time."""
    if how == "deliver_after":
        return {how: timedelta(hours=1)}
    return {how: round(time.time() * 1000) + HOUR_MS}


@pytest.mark.parametrize("how", ["deliver_after", "deliver_at"])
def test_an_exclusive_consumer_gets_delayed_messages_at_once(
    client: AnyClient, topic: str, how: str
) -> None:
    consumer = client.subscribe(topic, "exclusive")
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number, **(in_an_hour(how) if number % 2 else {}))
    assert receive(consumer, 20) == [b"%d" % number for number in range(20)]


def test_a_reader_gets_delayed_messages_at_once(client: AnyClient, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"delayed", deliver_after=timedelta(hours=1))
    producer.send(b"behind it")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(timeout_millis=10_000).data() == b"delayed"
    assert reader.read_next(timeout_millis=10_000).data() == b"behind it"


def test_a_time_that_has_passed_delays_nothing(client: AnyClient, topic: str) -> None:
    consumer = client.subscribe(topic, "shared", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    producer.send(b"an hour late", deliver_at=round(time.time() * 1000) - HOUR_MS)
    producer.send(b"not delayed")
    assert receive(consumer, 2) == [b"an hour late", b"not delayed"]
    assert_nothing_more(consumer)


def test_delayed_messages_of_a_batching_producer_stand_alone(client: AnyClient, topic: str) -> None:
    consumer = client.subscribe(topic, "exclusive")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=200
    )
    for number in range(6):
        options = {"deliver_after": timedelta(hours=1)} if number % 3 == 1 else {}
        producer.send_async(b"%d" % number, None, **options)
    producer.flush()
    got = [consumer.receive(timeout_millis=10_000) for _ in range(6)]
    assert sorted(message.data() for message in got) == [b"%d" % number for number in range(6)]
    places = [message.message_id() for message in got]
    alone = {b"1", b"4"}
    for message, place in zip(got, places, strict=True):
        entry = (place.ledger_id(), place.entry_id())
        others = [one for one in places if (one.ledger_id(), one.entry_id()) == entry]
        if message.data() in alone:
            assert len(others) == 1
