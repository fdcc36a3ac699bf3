"""Slow readers and fast writers: memory stays bounded and nobody else waits."""

from __future__ import annotations

import time

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.conftest import AnyClient
from compat_tests.messages import payload, publish

MIB = 1024


def test_a_slow_consumer_does_not_stop_producers(any_client: AnyClient, topic: str) -> None:
    client = any_client
    slow = client.subscribe(topic, "slow", receiver_queue_size=1)
    fast = client.subscribe(topic, "fast", receiver_queue_size=1000)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    bodies = [payload(number, 1024) for number in range(5000)]
    publish(producer, bodies)
    got = []
    for _ in bodies:
        message = fast.receive(timeout_millis=10_000)
        got.append(message.data())
    assert got == bodies
    assert slow.receive(timeout_millis=10_000).data() == bodies[0]


@pytest.mark.pyxbroker
def test_a_reader_that_stops_reading_its_socket_costs_bounded_memory(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=False, block_if_queue_full=True, max_pending_messages=200
    )
    body = payload(1, 64 * 1024)
    publish(producer, [body] * 50)
    with RawConnection(broker.port) as stuck:
        assert stuck.subscribe(topic, "stuck").type == wire.SUCCESS
        publish(producer, [body] * 2000)
        before = broker.memory_kib()
        stuck.flow(2000)
        time.sleep(1.5)
        grown = broker.memory_kib() - before
        assert grown < 48 * MIB, f"{grown} KiB more for one consumer that does not read"
        assert producer.send(b"others go on") is not None
        got = sum(1 for _ in range(2000) if stuck.wait_for(wire.MESSAGE, 20))
        assert got == 2000


@pytest.mark.pyxbroker
def test_publishing_faster_than_the_disk_costs_bounded_memory(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port, timeout_s=60) as one:
        one.producer(topic)
        body = payload(3, 256 * 1024)
        frame = wire.send(1, 0, wire.metadata("p", 0, 1), body, checksum=False)
        before = broker.memory_kib()
        count = 1500  # about 375 MiB without waiting for one receipt
        for _ in range(count):
            one.write(frame)
        for _ in range(count):
            one.wait_for(wire.SEND_RECEIPT)
        grown = broker.peak_memory_kib() - before
        assert grown < 320 * MIB, f"{grown} KiB more while publishing"


def test_one_blocked_connection_does_not_hold_up_another(
    broker: Broker, any_client: AnyClient, topic: str
) -> None:
    client = any_client
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, [payload(1, 32 * 1024)] * 500)
    with RawConnection(broker.port) as stuck:
        assert stuck.subscribe(topic, "stuck").type == wire.SUCCESS
        stuck.flow(1000)
        other = client.subscribe(topic + "-other", "quick")
        quick = client.create_producer(topic + "-other")
        for _ in range(50):
            quick.send(b"ping")
            assert other.receive(timeout_millis=30_000).data() == b"ping"  # that one never reads
