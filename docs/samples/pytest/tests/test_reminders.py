"""Tests of reminders against a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pulsar
import pytest
from reminders import Reminders

from pyxbroker.testing import Broker
from pyxbroker.testing.factories import Namespace

Connect = Callable[[Namespace], pulsar.Client]


class Mail:
    """Stores what it is to send; the first sends may fail."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.failures = 0

    def send(self, user: str, text: str) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError
        self.sent.append((user, text))


@pytest.fixture
def mail() -> Mail:
    return Mail()


def deliver_one(reminders: Reminders, mail: Mail) -> None:
    """Deliver until a reminder is sent."""
    deadline = time.monotonic() + 20
    while reminders.deliver(mail.send) == 0:
        assert time.monotonic() < deadline


def test_a_reminder_without_delay_is_sent(
    pulsar_namespace: Namespace, connect: Connect, mail: Mail
) -> None:
    reminders = Reminders(connect(pulsar_namespace), pulsar_namespace.topic("reminders"))
    reminders.add("ada", "tea", timedelta(0))
    deliver_one(reminders, mail)
    assert mail.sent == [("ada", "tea")]


def test_a_reminder_that_cannot_be_sent_is_retried(
    pulsar_namespace: Namespace, connect: Connect, mail: Mail
) -> None:
    reminders = Reminders(connect(pulsar_namespace), pulsar_namespace.topic("reminders"))
    reminders.add("ada", "tea", timedelta(0))
    mail.failures = 1
    deliver_one(reminders, mail)
    assert mail.sent == [("ada", "tea")]


def test_a_reminder_is_sent_when_it_is_due_and_not_before(
    own_broker: Broker, own_namespace: Namespace, connect: Connect, mail: Mail
) -> None:
    reminders = Reminders(connect(own_namespace), own_namespace.topic("reminders"))
    reminders.add("ada", "tea", timedelta(hours=1))
    own_broker.advance(minutes=59)
    assert reminders.deliver(mail.send) == 0
    own_broker.advance(minutes=1)
    deliver_one(reminders, mail)
    assert mail.sent == [("ada", "tea")]


def test_reminders_survive_a_crash_of_the_broker(
    own_broker: Broker, own_namespace: Namespace, connect: Connect, mail: Mail
) -> None:
    reminders = Reminders(connect(own_namespace), own_namespace.topic("reminders"))
    reminders.add("ada", "tea", timedelta(0))
    own_broker.kill()
    own_broker.restart()
    deliver_one(reminders, mail)
    # The worker may have received it before the crash, too: delivery is at least once.
    assert set(mail.sent) == {("ada", "tea")}


def test_reminders_expire_with_the_ttl_of_the_namespace(
    own_broker: Broker, brief_namespace: Namespace, connect: Connect, mail: Mail
) -> None:
    client, topic = connect(brief_namespace), brief_namespace.topic("reminders")
    reminders = Reminders(client, topic)
    reminders.add("ada", "tea", timedelta(0))
    reminders.close()  # before the reminder is delivered
    own_broker.advance(seconds=61)
    assert Reminders(client, topic).deliver(mail.send) == 0
