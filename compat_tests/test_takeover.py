"""A client that was stopped in its tracks gives way to one that comes for its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.conftest import ClientFactory

# Holds a producer's name and an exclusive subscription until it is killed.
HOLDER = """
import sys, pulsar
url, topic = sys.argv[1:]
client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
producer = client.create_producer(topic, producer_name="mine")
consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Exclusive)
producer.send(b"first")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(broker: Broker, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, broker.url, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.communicate()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stops a process: one of its threads gets the signal first, and the others a little later."""
    os.kill(process.pid, signal.SIGSTOP)
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        while ") T " not in (thread / "stat").read_text():
            time.sleep(0.001)


def test_the_place_of_a_stopped_client_is_taken(
    new_client: ClientFactory, topic: str, holder: subprocess.Popen[bytes]
) -> None:
    client = new_client(operation_timeout_seconds=20)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Exclusive)
    stop(holder)
    began = time.monotonic()
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Exclusive)
    assert time.monotonic() - began < 12
    producer = client.create_producer(topic, producer_name="mine")
    producer.send(b"second")
    assert [consumer.receive(timeout_millis=10_000).data() for _ in range(2)] == [
        b"first",
        b"second",
    ]
