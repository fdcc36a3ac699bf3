"""Many messages through each codec, batched and not, come back byte for byte and in order."""

from __future__ import annotations

import os
import threading
from typing import Any

import pulsar
import pytest
from harness.go_client import Client as GoClient

from compat_tests.conftest import AnyClient
from compat_tests.messages import CODECS, assert_nothing_more, payload

COUNT = int(os.environ.get("COMPAT_MESSAGES", "100000"))
# Each message of the Go client passes two pipes as JSON.
GO_COUNT = COUNT // 25


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_message_comes_back(
    python_client: pulsar.Client, topic: str, codec: str, batched: bool
) -> None:
    check_all_come_back(python_client, topic, CODECS[codec], batched, COUNT)


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_message_comes_back_to_the_go_client(
    go_client: GoClient, topic: str, codec: str, batched: bool
) -> None:
    check_all_come_back(go_client, topic, CODECS[codec], batched, GO_COUNT)


def check_all_come_back(client: AnyClient, topic: str, codec: Any, batched: bool, n: int) -> None:
    """Send and receive at the same time; the consumer acknowledges every 1,000 messages."""
    consumer = client.subscribe(topic, "check", receiver_queue_size=5000)
    producer = client.create_producer(
        topic,
        compression_type=codec,
        batching_enabled=batched,
        batching_max_publish_delay_ms=5,
        batching_max_messages=1000,
        block_if_queue_full=True,
        max_pending_messages=5000,
        send_timeout_millis=60_000,
    )
    refused: list[object] = []

    def done(result: pulsar.Result, _: object) -> None:
        if result != pulsar.Result.Ok:
            refused.append(result)

    def produce() -> None:
        for number in range(n):
            producer.send_async(payload(number), done)
        producer.flush()

    sender = threading.Thread(target=produce)
    sender.start()
    for number in range(n):
        message = consumer.receive(timeout_millis=30_000)
        assert message.data() == payload(number), f"message {number} differs"
        if number % 1000 == 999:
            consumer.acknowledge_cumulative(message)
    sender.join()
    assert not refused
    assert_nothing_more(consumer)


def test_properties_keys_and_times_come_back(any_client: AnyClient, topic: str) -> None:
    consumer = any_client.subscribe(topic, "check")
    producer = any_client.create_producer(topic, producer_name=None)
    sent_id = producer.send(
        b"body",
        properties={"a": "1", "schlüssel": "wert ✓"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=1_700_000_000_123,
    )
    message = consumer.receive(timeout_millis=10_000)
    assert message.data() == b"body"
    assert message.properties() == {"a": "1", "schlüssel": "wert ✓"}
    assert message.partition_key() == "key"
    assert message.ordering_key() == "order"
    assert message.event_timestamp() == 1_700_000_000_123
    assert message.publish_timestamp() > 1_700_000_000_000
    assert message.topic_name() == topic
    assert message.producer_name() == producer.producer_name()
    assert message.message_id().entry_id() == sent_id.entry_id()
    assert message.message_id().ledger_id() == sent_id.ledger_id()
