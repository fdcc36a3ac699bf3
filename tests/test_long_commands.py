"""Commands as long as a frame may be do not hold up the loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pyxbroker.base.errors import NotAllowed
from pyxbroker.base.limits import PROPERTIES_MAX
from pyxbroker.broker.commands.border import check_text
from pyxbroker.broker.commands.topic_commands import REDELIVERED_PER_PART, TopicCommands
from pyxbroker.broker.topics.subscription import SubscriptionType
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import Config


def test_too_many_properties_are_refused_before_any_is_looked_at() -> None:
    command = pb.CommandLookupTopic(topic="t", request_id=1)
    command.MergeFromString(b"\x42\x05\x0a\x01\xff\x12\x00")  # a key that is no text
    for _ in range(PROPERTIES_MAX):
        command.properties.add(key="", value="")
    with pytest.raises(NotAllowed, match="too many: 1001"):
        check_text(command)
    del command.properties[-1]
    with pytest.raises(NotAllowed, match="not UTF-8"):
        check_text(command)


class Redelivered:
    """A connection with one Shared consumer; keeps what its dispatcher is told."""

    def __init__(self) -> None:
        self.parts: list[list[tuple[int, int]]] = []
        self.paused: list[bool] = []
        self.closed = False
        dispatcher = SimpleNamespace(redeliver=lambda _, part: self.parts.append(part))
        subscription = SimpleNamespace(dispatcher=dispatcher, kind=SubscriptionType.SHARED)
        self.consumers = {1: SimpleNamespace(consumer_id=1, subscription=subscription)}

    def pause_commands(self, on: bool) -> None:
        self.paused.append(on)


def redeliver(connection: Any, count: int, *, consumer_goes: bool = False) -> None:
    command = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
    for entry_id in range(count):
        command.message_ids.add(ledgerId=7, entryId=entry_id)
    broker: Any = SimpleNamespace(config=Config())
    commands = TopicCommands(broker, lambda name: None)
    waiting = commands.handle_redeliver(connection, command)
    if consumer_goes:
        connection.consumers.clear()
    if waiting is not None:
        asyncio.run(waiting)  # type: ignore[arg-type]


def test_many_redeliveries_are_done_in_parts_and_what_follows_waits() -> None:
    connection = Redelivered()
    count = 20 * REDELIVERED_PER_PART + 1
    redeliver(connection, count)
    assert max(map(len, connection.parts)) == REDELIVERED_PER_PART
    assert [each for part in connection.parts for each in part] == [(7, i) for i in range(count)]
    assert connection.paused == [True, False]


def test_few_redeliveries_are_done_at_once() -> None:
    connection = Redelivered()
    redeliver(connection, REDELIVERED_PER_PART)
    assert list(map(len, connection.parts)) == [REDELIVERED_PER_PART]
    assert not connection.paused


def test_redeliveries_end_with_their_consumer() -> None:
    connection = Redelivered()
    redeliver(connection, 2 * REDELIVERED_PER_PART, consumer_goes=True)
    assert not connection.parts and connection.paused == [True, False]
