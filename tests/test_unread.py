"""Answers and news that a client asks for and does not read: few are made, and they cost it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from one_bookie import until
from one_broker import Broker, Client, run
from pyxbroker.base.errors import NotAllowed
from pyxbroker.broker.client_memory import ClientMemory
from pyxbroker.broker.commands.session import Session
from pyxbroker.broker.commands.unread import UNREAD_FREE_BYTES, note_unread
from pyxbroker.connection import Connection
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb

NAMESPACE = "public/default"
TOPICS = 1_000
NAME = "t" * 990
LIST_BYTES = TOPICS * (len(NAME) + 40)  # about what a list of all of them has
ASKED = 30


async def with_long_lists(broker: Broker) -> None:
    """Topics with names that are as long as they may be."""
    for n in range(TOPICS):
        path = f"{paths.managed_ledgers(NAMESPACE, 'persistent')}/{NAME}{n:04}"
        await broker.service.metadata.put(path, b"")


def ask(client: Client, request_id: int) -> None:
    client.send(pb.CommandGetTopicsOfNamespace(request_id=request_id, namespace=NAMESPACE))


def watch(client: Client, watcher_id: int) -> None:
    client.send(
        pb.CommandWatchTopicList(
            request_id=watcher_id,
            watcher_id=watcher_id,
            namespace=NAMESPACE,
            topics_pattern="persistent://public/default/.*",
        )
    )


async def reading_nothing(broker: Broker, asked: Callable[[Client, int], None]) -> Client:
    """A client that has asked for long lists; as much as may be waits for it."""
    await with_long_lists(broker)
    client = await broker.client()
    for request_id in range(ASKED):
        asked(client, request_id)
    await until(lambda: client.connection.pending_bytes > UNREAD_FREE_BYTES)
    return client


@pytest.mark.parametrize(
    ("asked", "answer", "names"),
    [
        (ask, "getTopicsOfNamespaceResponse", "topics"),
        (watch, "watchTopicListSuccess", "topic"),
    ],
    ids=["lists", "watchers"],
)
def test_lists_that_nobody_reads_are_not_made(
    tmp_path: Path, asked: Callable[[Client, int], None], answer: str, names: str
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await reading_nothing(broker, asked)
        await asyncio.sleep(0.1)
        assert client.connection.pending_bytes < UNREAD_FREE_BYTES + 2 * LIST_BYTES
        # A client that asks for little is served meanwhile, one that reads gets all.
        other = await broker.client()
        assert not hasattr(await other.produce(), "error")
        found = [await client.receive(answer) for _ in range(ASKED)]
        assert {each.request_id for each in found} == set(range(ASKED))
        assert min(len(getattr(each, names)) for each in found) == TOPICS

    run(tmp_path, scenario)


def test_a_client_that_has_gone_gets_no_more_lists(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await reading_nothing(broker, ask)
        client.far.close()
        await until(lambda: not client.connection.session.tasks)
        assert broker.service.client_memory.used == 0

    run(tmp_path, scenario)


def test_lists_that_are_made_cost_their_client_until_it_reads_them(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await reading_nothing(broker, ask)
        connection, session = client.connection, client.connection.session
        await until(lambda: session.unread == connection.pending_bytes - UNREAD_FREE_BYTES)
        assert broker.service.client_memory.used > session.unread
        for _ in range(ASKED):
            await client.receive("getTopicsOfNamespaceResponse")
        await until(lambda: (session.unread, broker.service.client_memory.used) == (0, 0))

    run(tmp_path, scenario)


def test_a_list_costs_its_client_while_it_is_made(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        for n in range(4_000):
            path = f"{paths.managed_ledgers(NAMESPACE, 'persistent')}/t{n}"
            await broker.service.metadata.put(path, b"")
        client = await broker.client()
        command = pb.CommandGetTopicsOfNamespace(namespace=NAMESPACE)
        answer = await client.request(command, "getTopicsOfNamespaceResponse")
        assert answer.error == NotAllowed.code
        assert "maxClientStateSizeInMBPerConnection" in answer.message
        assert broker.service.client_memory.used == 0

    run(tmp_path, scenario, maxClientStateSizeInMBPerConnection=2)


class Unread:
    """As much of a connection as is looked at."""

    def __init__(self, budget: ClientMemory) -> None:
        self.session = Session("address", budget)
        self.peer = "peer"
        self.closed = False
        self.pending_bytes = 0
        self.calls: list[Callable[[], None]] = []
        self.sent: list[bytes] = []
        self.when_writable = self.calls.append
        self.send_frame = self.sent.append
        self.group = SimpleNamespace(turn=SimpleNamespace(run=lambda call: call()))

    def close(self) -> None:
        self.closed = True
        self.session.memory.end()

    def has(self, pending_bytes: int, budget: ClientMemory) -> None:
        self.pending_bytes = pending_bytes
        note_unread(cast(Connection, self), budget)


def test_what_waits_to_be_read_is_charged_until_it_is_read() -> None:
    budget = ClientMemory(total_max=100 << 20)
    one = Unread(budget)
    one.has(UNREAD_FREE_BYTES, budget)
    assert (budget.used, one.calls) == (0, [])
    one.has(UNREAD_FREE_BYTES + 1000, budget)
    one.has(UNREAD_FREE_BYTES + 5000, budget)
    assert (budget.used, len(one.calls)) == (5000, 1)
    one.has(UNREAD_FREE_BYTES + 2000, budget)
    assert budget.used == 2000
    one.pending_bytes = 10
    one.calls.pop()()
    assert (budget.used, one.calls) == (0, [])


def test_who_reads_too_little_of_it_is_sent_away() -> None:
    for limits in ({"total_max": 20 << 20}, {"connection_max": 20 << 20}):
        budget = ClientMemory(**limits)
        one = Unread(budget)
        one.has(UNREAD_FREE_BYTES + (20 << 20), budget)
        assert not one.closed
        one.has(UNREAD_FREE_BYTES + (20 << 20) + 1, budget)
        assert one.closed and budget.used == 0
        [told] = one.sent
        assert b"the broker remembers" in told


def test_news_that_a_watcher_does_not_read_cost_its_client(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        watch(client, 1)
        await client.receive("watchTopicListSuccess")
        for watcher_id in range(2, 20):
            watch(client, watcher_id)
            await client.receive("watchTopicListSuccess")
        memory: Any = client.connection.session.memory
        before = memory.used
        await with_long_lists(broker)
        await until(lambda: memory.used > before + (1 << 20))
        while client.connection.pending_bytes:
            client.take()
            await asyncio.sleep(0.001)
        await until(lambda: client.connection.session.unread == 0)

    run(tmp_path, scenario)
