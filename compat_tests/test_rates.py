"""Rates, as clients feel them: what is too much waits, and nothing is lost or sent twice."""

from __future__ import annotations

import time

import pulsar
import pytest

from compat_tests.conftest import BrokerFactory, official_client
from compat_tests.messages import TYPES, payload, publish, receive

RATE = 200  # messages in a second
COUNT = 800
BODIES = [payload(number) for number in range(COUNT)]
BROKER_SETTINGS = {"dispatchThrottlingRatePerTopicInMsg": str(RATE)}
# Some may be saved up before. How much longer it takes is up to the machine.
SECONDS_MIN = (COUNT - RATE) / RATE
SECONDS_MAX = 8 * COUNT / RATE


def test_a_publish_rate_holds_a_producer_back_and_no_other_client(
    own_broker: BrokerFactory, topic: str
) -> None:
    broker = own_broker(settings={"maxPublishRatePerTopicInMessages": str(RATE)})
    broker.start()
    client, other, fast = (official_client(broker.url) for _ in range(3))
    consumer = client.subscribe(topic, "s")
    producer = fast.create_producer(topic, batching_enabled=False)
    quick = other.create_producer(topic + "-other", batching_enabled=False)
    began = time.monotonic()
    for body in BODIES:
        producer.send_async(body, None)
    # The other client's topic has the same rate, and most of it is left.
    for number in range(20):
        quick.send(payload(number))
    others_s = time.monotonic() - began
    assert receive(consumer, COUNT) == BODIES
    seconds = time.monotonic() - began
    assert SECONDS_MIN <= seconds <= SECONDS_MAX
    assert others_s < seconds / 2
    for each in (client, other, fast):
        each.close()


@pytest.mark.parametrize("type_name", TYPES)
def test_a_dispatch_rate_spreads_a_backlog(
    python_client: pulsar.Client, topic: str, type_name: str
) -> None:
    client = python_client
    publish(client.create_producer(topic, batching_enabled=False), BODIES)
    began = time.monotonic()
    consumer = client.subscribe(
        topic, "s", TYPES[type_name], initial_position=pulsar.InitialPosition.Earliest
    )
    assert sorted(receive(consumer, COUNT)) == sorted(BODIES)
    assert SECONDS_MIN <= time.monotonic() - began <= SECONDS_MAX
