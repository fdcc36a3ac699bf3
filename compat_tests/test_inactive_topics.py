"""Topics without producers and subscriptions are deleted after a while; others stay."""

from __future__ import annotations

import time

import pulsar

from compat_tests.conftest import BrokerFactory, official_client
from compat_tests.messages import assert_nothing_more, receive

EARLIEST = pulsar.InitialPosition.Earliest


def test_a_topic_that_nobody_uses_goes_with_its_messages(
    own_broker: BrokerFactory, topic: str
) -> None:
    broker = own_broker(settings={"brokerDeleteInactiveTopicsFrequencySeconds": "1"})
    broker.start()
    client = official_client(broker.url)
    subscribed = topic + "-subscribed"
    client.subscribe(subscribed, "stays").close()
    for name in (topic, subscribed):
        producer = client.create_producer(name)
        producer.send(b"old")
        producer.close()
    held = client.create_producer(topic + "-held")
    held.send(b"kept")
    time.sleep(4)
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert_nothing_more(consumer)
    producer.send(b"new")
    assert receive(consumer, 1) == [b"new"]
    assert receive(client.subscribe(subscribed, "stays"), 1) == [b"old"]
    kept = client.subscribe(topic + "-held", "s", initial_position=EARLIEST)
    assert receive(kept, 1) == [b"kept"]
    client.close()
