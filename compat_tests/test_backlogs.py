"""Quotas, expiry and unloading, as official clients meet them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.conftest import ClientFactory, broker_kind
from compat_tests.messages import assert_nothing_more, receive

LIMIT = 100_000
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture(scope="module", params=["producer_request_hold", "producer_exception"])
def limited(request: pytest.FixtureRequest, module_directory: Path) -> Iterator[Broker]:
    settings = {
        "backlogQuotaDefaultLimitBytes": str(LIMIT),
        "backlogQuotaDefaultLimitGB": "-1",
        "backlogQuotaDefaultRetentionPolicy": request.param,
        "backlogQuotaCheckIntervalInSeconds": "1",
    }
    one = Broker(broker_kind(), module_directory / request.param, settings=settings)
    try:
        one.start()
        yield one
    finally:
        one.close()


def rest_path(topic: str, *parts: object) -> str:
    return "/admin/v2/" + "/".join([topic.replace("://", "/"), *map(str, parts)])


def post(broker: Broker, topic: str, *parts: object) -> None:
    status, body = broker.rest("POST", rest_path(topic, *parts))
    assert status == 204, body


def test_who_publishes_too_much_waits_or_is_refused_and_goes_on(
    limited: Broker, new_client: ClientFactory, topic: str
) -> None:
    client = new_client(limited.url)
    client.subscribe(topic, "slow", initial_position=EARLIEST).close()
    producer = client.create_producer(topic)
    # The second one is over the limit: a look in between would refuse a third one.
    for _ in range(2):
        producer.send(b"x" * (LIMIT * 3 // 5))
    time.sleep(3)
    policy = limited.settings["backlogQuotaDefaultRetentionPolicy"]
    sent: list[Any] = []
    if policy == "producer_request_hold":
        # Its producer was disconnected, and the message waits in the client.
        sending = threading.Thread(target=lambda: sent.append(producer.send(b"later")))
        sending.start()
        sending.join(1.0)
        assert sending.is_alive()
    else:
        impatient = new_client(limited.url, operation_timeout_seconds=5)
        with pytest.raises(Exception):  # noqa: B017 each client has its own
            impatient.create_producer(topic)
    post(limited, topic, "subscription", "slow", "skip_all")
    if policy == "producer_request_hold":
        sending.join(30.0)
        assert len(sent) == 1
    else:
        client.create_producer(topic).send(b"later")
    consumer = client.subscribe(topic, "slow")
    assert receive(consumer, 1) == [b"later"]


def test_what_is_old_does_not_come(broker: Broker, new_client: ClientFactory, topic: str) -> None:
    client = new_client()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for n in range(10):
        producer.send(b"old %d" % n)
    assert len(receive(consumer, 10)) == 10
    consumer.close()
    time.sleep(3)
    for n in range(5):
        producer.send(b"new %d" % n)
    post(broker, topic, "subscription", "s", "expireMessages", 2)
    time.sleep(1)
    consumer = client.subscribe(topic, "s")
    assert receive(consumer, 5) == [b"new %d" % n for n in range(5)]
    assert_nothing_more(consumer)


def test_an_unloaded_topic_goes_on(broker: Broker, new_client: ClientFactory, topic: str) -> None:
    client = new_client()
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"before")
    assert receive(consumer, 1) == [b"before"]
    status, body = broker.rest("PUT", rest_path(topic, "unload"))
    assert status == 204, body
    producer.send(b"after")
    # An acknowledgement may have been on its way: then the first one comes again.
    found = receive(consumer, 1)
    assert found == [b"after"] or receive(consumer, 1) == [b"after"]
