"""Answers with long lists are encoded a part at a time, and read as if they had been in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oracles import wire
from pyxbroker.broker.commands import replies
from pyxbroker.proto import PulsarApi as pb

Encode = Callable[[Callable[[], Awaitable[None]]], Awaitable[bytes]]
SIZES = [0, 1, replies.TEXTS_AT_ONCE, 2 * replies.TEXTS_AT_ONCE + 7]


def encoded(encode: Encode) -> tuple[Any, int]:
    """The command of a frame, and how often others could have a turn."""
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    async def main() -> bytes:
        return await encode(pause)

    frames, consumed, error = wire.scan(frame := asyncio.run(main()), 1 << 30)
    assert (consumed, error) == (len(frame), None)
    [(data, payload)] = frames
    assert payload == b""
    command = pb.BaseCommand()
    command.ParseFromString(data)
    return command, pauses


def names(count: int) -> list[str]:
    return [f"persistent://public/default/ü{number}" for number in range(count)]


@pytest.mark.parametrize("count", SIZES)
def test_the_topics_of_a_namespace(count: int) -> None:
    command, pauses = encoded(
        lambda pause: replies.topics_of_namespace(
            2**63, names(count), True, "abc", count > 0, pause
        )
    )
    expected = pb.BaseCommand(type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    expected.getTopicsOfNamespaceResponse.CopyFrom(
        pb.CommandGetTopicsOfNamespaceResponse(
            request_id=2**63,
            topics=names(count),
            filtered=True,
            topics_hash="abc",
            changed=count > 0,
        )
    )
    assert command == expected
    assert pauses == -(-count // replies.TEXTS_AT_ONCE)


@pytest.mark.parametrize("count", SIZES)
def test_the_list_of_a_watcher(count: int) -> None:
    command, pauses = encoded(
        lambda pause: replies.watch_topic_list_success(1, 2, names(count), "abc", pause)
    )
    expected = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
    expected.watchTopicListSuccess.CopyFrom(
        pb.CommandWatchTopicListSuccess(
            request_id=1, watcher_id=2, topic=names(count), topics_hash="abc"
        )
    )
    assert command == expected
    assert pauses == -(-count // replies.TEXTS_AT_ONCE)


@pytest.mark.parametrize("count", SIZES)
def test_what_came_and_went(count: int) -> None:
    command, pauses = encoded(
        lambda pause: replies.topic_update(2, names(count), names(count + 1), "abc", pause)
    )
    expected = pb.BaseCommand(type=pb.BaseCommand.WATCH_TOPIC_UPDATE)
    expected.watchTopicUpdate.CopyFrom(
        pb.CommandWatchTopicUpdate(
            watcher_id=2,
            new_topics=names(count),
            deleted_topics=names(count + 1),
            topics_hash="abc",
        )
    )
    assert command == expected
    parts = [-(-each // replies.TEXTS_AT_ONCE) for each in (count, count + 1)]
    assert pauses == sum(parts)
