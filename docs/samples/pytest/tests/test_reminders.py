"""Tests of reminders against a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pulsar
import pytest
from reminders import Reminders

from conftest import new_client
from pyxbroker.testing import Broker
from pyxbroker.testing.factories import Namespace

Sent = list[tuple[str, str]]


def wait_for(deliver: Callable[[], int]) -> None:
    """Call `deliver` until it has delivered a reminder."""
    deadline = time.monotonic() + 20
    while deliver() == 0:
        assert time.monotonic() < deadline


@pytest.fixture
def sent() -> Sent:
    return []


def test_a_reminder_without_delay_is_sent(
    client: pulsar.Client, pulsar_namespace: Namespace, sent: Sent
) -> None:
    reminders = Reminders(client, pulsar_namespace.topic("reminders"))
    reminders.add("ada", "tea", timedelta(0))
    assert reminders.deliver(lambda user, text: sent.append((user, text))) == 1
    assert sent == [("ada", "tea")]


def test_a_reminder_that_cannot_be_sent_is_retried(
    client: pulsar.Client, pulsar_namespace: Namespace, sent: Sent
) -> None:
    reminders = Reminders(client, pulsar_namespace.topic("reminders"))
    reminders.add("ada", "tea", timedelta(0))
    failures = 1

    def send(user: str, text: str) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ConnectionError
        sent.append((user, text))

    wait_for(lambda: reminders.deliver(send))
    assert sent == [("ada", "tea")]


def test_a_reminder_is_sent_when_it_is_due_and_not_before(
    own_broker: Broker, own_client: pulsar.Client, own_namespace: Namespace, sent: Sent
) -> None:
    reminders = Reminders(own_client, own_namespace.topic("reminders"))
    reminders.add("ada", "tea", timedelta(hours=1))
    own_broker.advance(minutes=59)
    assert reminders.deliver(lambda user, text: sent.append((user, text))) == 0
    own_broker.advance(minutes=1)
    wait_for(lambda: reminders.deliver(lambda user, text: sent.append((user, text))))
    assert sent == [("ada", "tea")]


def test_reminders_survive_a_crash_of_the_broker(
    own_broker: Broker, own_client: pulsar.Client, own_namespace: Namespace, sent: Sent
) -> None:
    reminders = Reminders(own_client, own_namespace.topic("reminders"))
    reminders.add("ada", "tea", timedelta(0))
    own_broker.kill()
    own_broker.restart()
    wait_for(lambda: reminders.deliver(lambda user, text: sent.append((user, text))))
    assert sent == [("ada", "tea")]


def test_reminders_expire_with_the_ttl_of_the_namespace(
    own_broker: Broker, brief_namespace: Namespace
) -> None:
    client = new_client(brief_namespace)
    topic = brief_namespace.topic("reminders")
    client.subscribe(topic, "workers").close()
    client.create_producer(topic).send(b"{}")
    own_broker.advance(seconds=61)
    reminders = Reminders(client, topic)
    assert reminders.deliver(lambda user, text: None) == 0
    client.close()
