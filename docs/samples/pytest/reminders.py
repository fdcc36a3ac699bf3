"""Reminders: each is a delayed message, which a worker delivers when it is due."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import pulsar


class Reminders:
    """Reminders in one topic. Several workers may share it."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._producer = client.create_producer(topic)
        self._consumer = client.subscribe(
            topic,
            "workers",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
        )

    def add(self, user: str, text: str, after: timedelta) -> None:
        """Store a reminder that is due after a time."""
        data = json.dumps({"user": user, "text": text}).encode()
        self._producer.send(data, deliver_after=after)

    def deliver(self, send: Callable[[str, str], None], wait_s: float = 0.3) -> int:
        """Send the reminders that are due; return their number. One that fails is retried."""
        count = 0
        while True:
            try:
                message = self._consumer.receive(timeout_millis=int(wait_s * 1000))
            except pulsar.Timeout:
                return count
            reminder = json.loads(message.data())
            try:
                send(reminder["user"], reminder["text"])
            except ConnectionError:
                self._consumer.negative_acknowledge(message)
            else:
                self._consumer.acknowledge(message)
                count += 1

    def close(self) -> None:
        """Stop to receive reminders. Those that were not delivered stay in the topic."""
        self._consumer.close()
        self._producer.close()
