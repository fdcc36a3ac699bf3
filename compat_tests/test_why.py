"""`pyxbroker why`, about what official clients do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker

from compat_tests.conftest import ClientFactory
from compat_tests.messages import publish

pytestmark = pytest.mark.pyxbroker

NO_BATCHES = {"batching_enabled": False}


def ask(broker: Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyxbroker", "why", "--admin-url", broker.web_url, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def answer(broker: Broker, *arguments: str) -> dict[str, Any]:
    asked = ask(broker, *arguments, "--output", "json")
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert isinstance(found, dict)
    return found


def test_a_client_whose_queue_is_full(
    broker: Broker, new_client: ClientFactory, topic: str
) -> None:
    client = new_client()
    consumer = client.subscribe(topic, "s", receiver_queue_size=10)
    producer = client.create_producer(topic, **NO_BATCHES)
    publish(producer, [b"%d" % number for number in range(50)])
    found = answer(broker, topic, "s")
    assert found["reason"] == "no_permits"
    assert found["evidence"]["backlog"] == 50
    [only] = found["evidence"]["consumers"]
    assert (only["reason"], only["availablePermits"]) == ("no_permits", 0)
    for _ in range(50):
        consumer.acknowledge(consumer.receive(timeout_millis=10_000))


def test_a_key_whose_consumer_has_not_acknowledged(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    shared = {"consumer_type": pulsar.ConsumerType.KeyShared}
    first = client.subscribe(topic, "s", consumer_name="first", **shared)
    producer = client.create_producer(topic, **NO_BATCHES)
    for number in range(100):
        producer.send(b"x", partition_key=f"key-{number % 50}")
        if number == 49:
            held = [first.receive(timeout_millis=10_000) for _ in range(50)]
            second = client.subscribe(topic, "s", consumer_name="second", **shared)
    found = answer(broker, topic, "s")
    assert found["reason"] == "blocked_key"
    assert found["evidence"]["blockingConsumer"] == "first"
    text = ask(broker, topic, "s").stdout
    assert text.startswith(found["sentence"]) and "\nbacklog" in text
    for message in held:
        first.acknowledge(message)
    assert second.receive(timeout_millis=10_000).data() == b"x"


def test_what_does_not_exist_and_who_does_not_answer(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    missing = ask(broker, topic)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"Topic {topic} does not exist." in missing.stderr
    client.create_producer(topic)
    assert ask(broker, topic).stdout.startswith("Nothing prevents the connected producers (1)")
    no_subscription = ask(broker, topic, "s")
    assert no_subscription.returncode == 1
    assert "Subscription s not found" in no_subscription.stderr
    away = ask(broker, topic, "--admin-url", "http://127.0.0.1:9")
    assert away.returncode == 1 and "No broker answers" in away.stderr
    assert ask(broker).returncode == 2
