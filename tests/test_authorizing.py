"""A right may take its time to be looked at: what a client asks for meanwhile is in its order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from one_bookie import turns
from one_broker import TOPIC, Broker, Client, run
from pyxbroker.auth.authorization import Resource, Right
from pyxbroker.auth.principal import Principal
from pyxbroker.base.errors import AuthorizationError
from pyxbroker.proto import PulsarApi as pb


class Provider:
    """Says nothing until it is told to, and then the same to all who have asked."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[None]] = []

    async def authorize(
        self, _: object, principal: Principal, right: Right, resource: Resource
    ) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        await answer

    def allow(self, at: int = 0) -> None:
        self.asked.pop(at).set_result(None)

    def refuse(self) -> None:
        self.asked.pop(0).set_exception(AuthorizationError("not you"))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    provider = Provider()
    monkeypatch.setattr("pyxbroker.broker.commands.handlers.authorize", provider.authorize)
    yield provider
    assert provider.asked == []


def producer(request_id: int) -> pb.CommandProducer:
    return pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=request_id)


def subscribe(request_id: int) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        topic=TOPIC,
        subscription="s",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=request_id,
    )


def watch(request_id: int) -> pb.CommandWatchTopicList:
    return pb.CommandWatchTopicList(
        namespace="public/default", topics_pattern=".*", watcher_id=1, request_id=request_id
    )


async def told(client: Client, count: int = 0) -> list[tuple[str, int]]:
    """What the client was answered: (field of BaseCommand, request id); so many at least."""
    answers: list[tuple[str, int]] = []
    deadline = time.monotonic() + 30
    while True:
        await client.quiet()
        answers += [(name, message.request_id) for name, message, _ in client.take()]
        if len(answers) >= count or time.monotonic() > deadline:
            return answers


def test_a_producer_that_is_closed_while_it_is_authorized_is_closed(
    tmp_path: Path, provider: Provider
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        client.send(producer(1))
        client.send(pb.CommandCloseProducer(producer_id=1, request_id=2))
        assert await told(client) == []
        provider.allow()
        assert await told(client, 2) == [("producer_success", 1), ("success", 2)]
        assert (await broker.topic()).producers == {}
        assert client.connection.producers == {}

    run(tmp_path, scenario)


def test_a_consumer_that_is_closed_while_it_is_authorized_does_not_open(
    tmp_path: Path, provider: Provider
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        client.send(subscribe(1))
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=2))
        # The next one of the id waits for the end of the first, whoever is authorized first.
        client.send(subscribe(3))
        assert await told(client) == []
        provider.allow(1)
        assert await told(client) == []
        provider.allow()
        answers = await told(client, 3)
        assert answers[0] == ("error", 1)
        assert sorted(answers[1:]) == [("success", 2), ("success", 3)]
        assert client.connection.consumers.keys() == {1}

    run(tmp_path, scenario)


def test_a_consumer_that_is_asked_for_once_more_is_closed_while_that_is_authorized(
    tmp_path: Path, provider: Provider
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        client.send(subscribe(1))
        await turns()
        provider.allow()
        assert await told(client, 1) == [("success", 1)]
        client.send(subscribe(2))
        client.send(pb.CommandCloseConsumer(consumer_id=1, request_id=3))
        assert await told(client) == []
        provider.allow()
        assert await told(client, 2) == [("error", 2), ("success", 3)]
        assert client.connection.consumers == {}

    run(tmp_path, scenario)


def test_a_watcher_that_is_closed_while_it_is_authorized_is_closed(
    tmp_path: Path, provider: Provider
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        client.send(watch(1))
        client.send(pb.CommandWatchTopicListClose(watcher_id=1, request_id=2))
        assert await told(client) == []
        provider.allow()
        assert await told(client, 2) == [("watchTopicListSuccess", 1), ("success", 2)]
        assert client.connection.session.watchers == {}

    run(tmp_path, scenario)


@pytest.mark.parametrize("command", [producer, subscribe, watch])
def test_of_two_commands_with_one_id_the_second_is_refused_while_the_first_is_authorized(
    tmp_path: Path, provider: Provider, command: type
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        client.send(command(1))
        client.send(command(2))
        error = await client.receive("error")
        assert (error.request_id, error.error) == (2, pb.ServiceNotReady)
        assert len(provider.asked) == 1
        provider.refuse()
        error = await client.receive("error")
        assert (error.request_id, error.error) == (1, pb.AuthorizationError)
        # Nothing of it is left.
        client.send(command(3))
        await turns()
        provider.allow()
        assert [request for _, request in await told(client, 1)] == [3]

    run(tmp_path, scenario)
