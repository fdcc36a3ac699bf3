"""Connections that end with a reset: noticed at once, whatever was sent or is owed before it."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.messages import payload, publish

NOTICED_S = 15.0  # half of what a keep-alive takes, on a machine that others use
ROUNDS = 5


def reset(connection: RawConnection) -> None:
    """Close with a reset instead of an end of the stream."""
    option = struct.pack("ii", 1, 0)
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
    connection.socket.close()


def takes_all(port: int, topic: str, count: int) -> float:
    """Seconds until a new consumer of the subscription has all messages."""
    began = time.monotonic()
    with RawConnection(port) as next_one:
        assert next_one.subscribe(topic, "s", sub_type=wire.SHARED).type == wire.SUCCESS
        next_one.flow(1000)
        for _ in range(count):
            next_one.wait_for(wire.MESSAGE, 20)
        return time.monotonic() - began


@pytest.mark.pyxbroker
@pytest.mark.parametrize("last_words", [0, 1, 1000, 50_000])
def test_what_a_reset_consumer_held_goes_to_the_next_at_once(
    broker: Broker, client: pulsar.Client, topic: str, last_words: int
) -> None:
    publish(client.create_producer(topic, batching_enabled=False), [b"x"] * 20)
    assert broker.process is not None
    for _ in range(ROUNDS):
        gone = RawConnection(broker.port)
        assert gone.subscribe(topic, "s", sub_type=wire.SHARED).type == wire.SUCCESS
        gone.flow(100)
        for _ in range(20):
            gone.wait_for(wire.MESSAGE)
        # The broker finds the words and the reset in one turn; they may be more than one read.
        os.killpg(broker.process.pid, signal.SIGSTOP)
        gone.write(wire.command(wire.FLOW, {1: 1, 2: 1}) * last_words)
        reset(gone)
        os.killpg(broker.process.pid, signal.SIGCONT)
        assert takes_all(broker.port, topic, 20) < NOTICED_S


def test_a_reset_consumer_that_was_owed_megabytes_is_noticed_at_once(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    body = payload(1, 64 * 1024)
    publish(client.create_producer(topic, batching_enabled=False), [body] * 300)
    for _ in range(5):
        gone = RawConnection(broker.port)
        assert gone.subscribe(topic, "s", sub_type=wire.SHARED).type == wire.SUCCESS
        gone.flow(1000)
        gone.wait_for(wire.MESSAGE)
        time.sleep(0.2)  # the broker has filled the socket and waits for it to take more
        reset(gone)
        assert takes_all(broker.port, topic, 300) < NOTICED_S + 1
