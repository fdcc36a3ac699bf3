"""What a clean stop, a kill and a start must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.conftest import AnyClient, ClientFactory
from compat_tests.messages import assert_nothing_more, payload, publish, receive

COUNT = 3000


@pytest.fixture
def fresh(own_broker: Callable[..., Broker]) -> Broker:
    one = own_broker()
    one.start()
    return one


def again(broker: Broker, new_client: ClientFactory, how: str) -> AnyClient:
    new_client.close()
    if how == "stop":
        broker.stop()
    else:
        broker.kill()
    broker.start()
    return new_client(broker.url)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_messages_subscriptions_and_positions_survive(
    fresh: Broker, new_client: ClientFactory, topic: str, how: str
) -> None:
    client = new_client(fresh.url)
    client.subscribe(topic, "untouched").close()
    consumer = client.subscribe(topic, "half")
    bodies = [payload(number) for number in range(COUNT)]
    publish(client.create_producer(topic, block_if_queue_full=True), bodies)
    for _ in range(COUNT // 2):
        message = consumer.receive(timeout_millis=10_000)
    consumer.acknowledge_cumulative(message)
    client = again(fresh, new_client, how)
    assert receive(client.subscribe(topic, "untouched"), COUNT) == bodies
    rest = client.subscribe(topic, "half")
    if how == "stop":
        assert receive(rest, COUNT // 2) == bodies[COUNT // 2 :]
        assert_nothing_more(rest)
    else:
        # A kill may bring acknowledged messages again, but it never hides others.
        seen: list[Any] = []
        while not seen or seen[-1] != bodies[-1]:
            seen += receive(rest, 1)
        assert seen == bodies[-len(seen) :] and len(seen) >= COUNT // 2


def test_individual_acknowledgements_survive_a_stop(
    fresh: Broker, new_client: ClientFactory, topic: str
) -> None:
    client = new_client(fresh.url)
    shared = pulsar.ConsumerType.Shared
    consumer = client.subscribe(topic, "holes", consumer_type=shared, receiver_queue_size=5000)
    bodies = [payload(number) for number in range(COUNT)]
    publish(client.create_producer(topic, block_if_queue_full=True), bodies)
    for number in range(COUNT):
        message = consumer.receive(timeout_millis=10_000)
        if number % 2:
            consumer.acknowledge(message)
    client = again(fresh, new_client, "stop")
    rest = client.subscribe(topic, "holes", consumer_type=shared)
    assert receive(rest, COUNT // 2) == bodies[::2]
    assert_nothing_more(rest)


def test_an_unsubscribed_name_stays_gone(
    fresh: Broker, new_client: ClientFactory, topic: str
) -> None:
    client = new_client(fresh.url)
    consumer = client.subscribe(topic, "gone")
    publish(client.create_producer(topic), [payload(number) for number in range(10)])
    consumer.unsubscribe()
    client = again(fresh, new_client, "stop")
    late = client.subscribe(topic, "gone", initial_position=pulsar.InitialPosition.Latest)
    assert_nothing_more(late)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_connected_client_goes_on_after_a_restart(
    fresh: Broker, new_client: ClientFactory, topic: str, how: str
) -> None:
    client = new_client(fresh.url)
    consumer = client.subscribe(topic, "steady")
    producer = client.create_producer(topic, send_timeout_millis=60_000)
    producer.send(b"before")
    if how == "stop":
        fresh.stop()
    else:
        fresh.kill()
    fresh.start()
    producer.send(b"after")
    seen = [consumer.receive(timeout_millis=30_000).data()]
    while seen[-1] != b"after":
        seen += [consumer.receive(timeout_millis=30_000).data()]
    assert set(seen) == {b"before", b"after"}


def test_many_restarts_keep_the_order(fresh: Broker, new_client: ClientFactory, topic: str) -> None:
    client = new_client(fresh.url)
    for life in range(4):
        producer = client.create_producer(topic)
        publish(producer, [b"%d" % number for number in range(life * 500, life * 500 + 500)])
        client = again(fresh, new_client, "kill" if life % 2 else "stop")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    seen = [int(reader.read_next(timeout_millis=10_000).data()) for _ in range(2000)]
    assert seen == list(range(2000))
    assert not reader.has_message_available()


@pytest.mark.standalone
@pytest.mark.pyxbroker
def test_a_second_process_on_the_directory_is_refused(
    fresh: Broker, own_broker: Callable[..., Broker]
) -> None:
    second = own_broker()
    second.data = fresh.data
    second.spawn()
    assert second.process is not None
    assert second.process.wait(20) == 1
    sentence = second.output()
    assert str(fresh.data) in sentence and "Traceback" not in sentence, sentence
    assert fresh.process is not None and str(fresh.process.pid) in sentence, sentence


@pytest.mark.pyxbroker
def test_a_taken_port_is_named(fresh: Broker, own_broker: Callable[..., Broker]) -> None:
    second = own_broker()
    second.port = fresh.port
    second.spawn()
    assert second.process is not None
    assert second.process.wait(20) == 1
    sentence = second.output()
    assert str(fresh.port) in sentence and "Traceback" not in sentence, sentence
