"""What clients make the broker remember has a limit, for each connection and for all of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from one_bookie import until
from one_broker import TOPIC, Broker, Client, run
from pyxbroker.base import memory_budget
from pyxbroker.base.errors import TooManyRequests
from pyxbroker.base.memory_budget import ConnectionMemory
from pyxbroker.broker import client_memory
from pyxbroker.broker.client_memory import (
    CONSUMER_BYTES,
    KEY_SHARED_BYTES,
    READER_BYTES,
    ClientMemory,
)
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.proto import PulsarApi as pb

PREFIX = "persistent://public/default/"
LONG = [pb.KeyValue(key=f"k{n}", value="v" * 50_000) for n in range(2)]
NOT_ALLOWED, TOO_MANY_REQUESTS = 22, 14


def memory(broker: Broker) -> ClientMemory:
    return broker.service.client_memory


async def watch(client: Client, watcher_id: int, pattern: str = PREFIX + "a.*") -> Any:
    command = pb.CommandWatchTopicList(
        request_id=0, watcher_id=watcher_id, namespace="public/default", topics_pattern=pattern
    )
    return await client.request(command, "watchTopicListSuccess")


async def open_many(client: Client, kind: str, most: int = 100) -> tuple[int, Any]:
    """Opens producers or consumers with long properties until one is refused."""
    for number in range(most):
        if kind == "producer":
            answer = await client.produce(number, metadata=LONG)
        else:
            answer = await client.subscribe(number, permits=0, metadata=LONG)
        if hasattr(answer, "error"):
            return number, answer
    raise AssertionError(f"{most} were opened")


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_a_connection_opens_no_more_than_its_memory_allows(tmp_path: Path, kind: str) -> None:
    async def scenario(broker: Broker) -> None:
        greedy, other = await broker.client(), await broker.client()
        count, answer = await open_many(greedy, kind)
        assert 10 < count < 20  # 100,000 bytes each, of 2 MiB
        assert answer.error == NOT_ALLOWED
        assert "maxClientStateSizeInMBPerConnection" in answer.message
        assert memory(broker).refused == 1
        # What it has goes on, and what it closes makes room.
        assert not greedy.connection.closed
        if kind == "producer":
            await greedy.request(pb.CommandCloseProducer(producer_id=0), "success")
        else:
            await greedy.request(pb.CommandCloseConsumer(consumer_id=0), "success")
        assert not hasattr(await other.produce(), "error")
        assert (await open_many(greedy, kind))[0] > 0

    run(tmp_path, scenario, maxClientStateSizeInMBPerConnection=2)


def test_without_settings_there_is_no_limit() -> None:
    budget = ClientMemory()
    one = ConnectionMemory(budget, "address")
    one.charge(1 << 40)
    assert budget.charge_answer(1 << 40) == 0
    assert (budget.used, budget.refused, budget.answers_refused) == (1 << 40, 0, 0)


@pytest.mark.parametrize(
    ("topic", "kind", "cost"),
    [
        ("persistent://public/default/t", pb.CommandSubscribe.Exclusive, READER_BYTES),
        (
            "persistent://public/default/t",
            pb.CommandSubscribe.Key_Shared,
            READER_BYTES + KEY_SHARED_BYTES,
        ),
        ("non-persistent://public/default/t", pb.CommandSubscribe.Shared, READER_BYTES),
        (
            "non-persistent://public/default/t",
            pb.CommandSubscribe.Key_Shared,
            READER_BYTES + KEY_SHARED_BYTES,
        ),
    ],
)
def test_a_subscription_that_goes_with_its_consumers_is_paid_for(
    tmp_path: Path, topic: str, kind: int, cost: int
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for number in range(3):
            answer = await client.subscribe(
                number,
                permits=0,
                topic=topic,
                subscription=f"s{number}",
                subType=kind,
                durable=False,
            )
            assert not hasattr(answer, "error")
            await until(lambda: not client.connection.session.tasks)
            assert memory(broker).used == (number + 1) * (CONSUMER_BYTES + cost)
        for number in range(3):
            await client.request(pb.CommandCloseConsumer(consumer_id=number), "success")
        await until(lambda: not client.connection.session.tasks)
        assert memory(broker).used == 0

    run(tmp_path, scenario)


def test_who_is_left_of_a_subscription_pays_for_it(tmp_path: Path) -> None:
    """Also where that is another connection's."""

    async def scenario(broker: Broker) -> None:
        cost = READER_BYTES + KEY_SHARED_BYTES
        clients = [await broker.client() for _ in range(3)]
        for client in clients:
            await client.subscribe(permits=0, durable=False, subType=pb.CommandSubscribe.Key_Shared)
        for number, client in enumerate(clients):
            await until(lambda: not any(each.connection.session.tasks for each in clients))
            assert memory(broker).used == cost + (3 - number) * CONSUMER_BYTES
            assert client.connection.session.memory.used == cost + CONSUMER_BYTES
            if number == 1:
                client.far.close()
                await until(lambda: clients[1].connection.closed)
            else:
                await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
        await until(lambda: not clients[2].connection.session.tasks)
        assert memory(broker).used == 0

    run(tmp_path, scenario)


def test_what_is_closed_is_not_counted_any_more(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert memory(broker).used == 0
        for _ in range(3):
            await client.produce(1, metadata=LONG)
            await client.subscribe(1, metadata=LONG)
            await watch(client, 1)
            await watch(client, 2)
            await until(lambda: not client.connection.session.tasks)
            assert memory(broker).used > 200_000
            await client.request(pb.CommandCloseProducer(producer_id=1), "success")
            await client.request(pb.CommandCloseConsumer(consumer_id=1), "success")
            for watcher_id in (1, 2):
                close = pb.CommandWatchTopicListClose(watcher_id=watcher_id)
                await client.request(close, "success")
            await until(lambda: not client.connection.session.tasks)
            assert memory(broker).used == 0
        await client.produce(1, metadata=LONG)
        await client.subscribe(1, metadata=LONG)
        await broker.topics.close()
        await until(lambda: not client.connection.session.tasks)
        assert memory(broker).used == 0

    run(tmp_path, scenario)


def test_what_a_connection_had_is_forgotten_with_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(1, metadata=LONG)
        await client.subscribe(1, metadata=LONG)
        await watch(client, 1)
        client.far.close()
        await until(lambda: client.connection.closed)
        assert memory(broker).used == 0

    run(tmp_path, scenario)


def test_the_costliest_connection_makes_room_for_those_with_little(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker) -> None:
        greedy, modest, late = [await broker.client() for _ in range(3)]
        await modest.produce(1, metadata=LONG[:1])
        _, answer = await open_many(greedy, "consumer")
        # It has most, so it is refused, and nobody else is.
        assert answer.error == TOO_MANY_REQUESTS
        assert "maxClientStateSizeInMB)" in answer.message
        assert not greedy.connection.closed
        for number in range(8):
            assert not hasattr(await late.produce(number, metadata=LONG[:1]), "error")
        await until(lambda: greedy.connection.closed)
        assert memory(broker).closed == 1
        # It is told why, and those with little go on.
        told = await greedy.receive("error")
        assert told.error == NOT_ALLOWED and "maxClientStateSizeInMB)" in told.message
        await greedy.closed()
        assert not modest.connection.closed and not late.connection.closed
        modest.publish(0, b"go on")
        assert (await modest.receive("send_receipt")).sequence_id == 0

    run(tmp_path, scenario, maxClientStateSizeInMB=2)
    assert "closed: it uses too much memory" in [each.getMessage() for each in caplog.records]


def test_commands_under_way_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        held = asyncio.Event()

        async def wait(*_: Any, **__: Any) -> Any:
            await held.wait()
            raise AssertionError("nobody gets here")

        monkeypatch.setattr(broker.service.topics.loader, "get", wait)
        for number in range(3):
            await asyncio.sleep(0.05)
            command = pb.CommandProducer(
                producer_id=number, request_id=number, topic=PREFIX + "a", metadata=LONG
            )
            client.send(command)
        refused = await client.receive("error")
        assert (refused.request_id, refused.error) == (2, NOT_ALLOWED)
        assert len(client.connection.session.tasks) == 2
        client.connection.close()
        assert memory(broker).used == 0
        for task in client.connection.session.tasks:
            task.cancel()

    run(tmp_path, scenario, maxClientStateSizeInMBPerConnection=1)


def test_watchers_of_one_pattern_share_their_names(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        first, second = await broker.client(), await broker.client()
        for number in range(10):
            await broker.topic(f"{PREFIX}a{number}")
        for number in range(20):
            await watch(first, number)
        await watch(second, 1)
        assert len({id(each.topics.names) for client in (first, second)
                    for each in client.connection.session.watchers.values()}) == 1  # fmt: skip
        await until(lambda: not first.connection.session.tasks)
        assert first.connection.session.memory.used < 20 * 2048
        # Those that are left hear of what comes, and pay for it.
        paid = second.connection.session.memory.used
        first.far.close()
        await until(lambda: first.connection.closed)
        heir = second.connection.session.memory
        assert heir.used == paid + 10 * client_memory.WATCHED_NAME_BYTES
        await broker.topic(PREFIX + "a10")
        assert list((await second.receive("watchTopicUpdate")).new_topics) == [PREFIX + "a10"]
        assert heir.used == paid + 11 * client_memory.WATCHED_NAME_BYTES
        await second.request(pb.CommandWatchTopicListClose(watcher_id=1), "success")
        await until(lambda: not second.connection.session.tasks)
        assert memory(broker).used == 0

    run(tmp_path, scenario)


def test_names_that_are_too_many_for_a_connection_are_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_budget, "CONNECTION_SETTING", "the limit")
    monkeypatch.setattr("pyxbroker.broker.commands.topic_list.WATCHED_NAME_BYTES", 1 << 20)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for number in range(2):
            await broker.topic(f"{PREFIX}a{number}")
        refused = await watch(client, 1)
        assert (refused.error, "the limit" in refused.message) == (NOT_ALLOWED, True)
        assert not hasattr(await watch(client, 2, PREFIX + "a1"), "error")

    run(tmp_path, scenario, maxClientStateSizeInMBPerConnection=2)


def test_ids_of_closed_producers_count_a_thousand_at_a_time(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for number in range(2_500):
            await client.produce(number)
            await client.request(pb.CommandCloseProducer(producer_id=number), "success")
        await until(lambda: not client.connection.session.tasks)
        assert memory(broker).used == 2_048 * client_memory.CLOSED_PRODUCER_BYTES
        client.far.close()
        await until(lambda: client.connection.closed)
        assert memory(broker).used == 0

    run(tmp_path, scenario)


def test_commands_about_what_is_open_count_while_they_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await client.produce(1)
        await until(lambda: not client.connection.session.tasks)
        before, held = memory(broker).used, asyncio.Event()

        async def idle(self: Producer) -> None:
            await held.wait()

        monkeypatch.setattr(Producer, "idle", idle)
        for number in range(100):
            client.send(pb.CommandCloseProducer(producer_id=1, request_id=number))
        await until(lambda: len(client.connection.session.tasks) == 100)
        assert memory(broker).used > before + 100 * memory_budget.COMMAND_BYTES
        held.set()
        for _ in range(100):
            await client.receive("success")
        await until(lambda: not client.connection.session.tasks)
        assert memory(broker).used == 0

    run(tmp_path, scenario)


def test_consumers_that_come_and_go_while_nothing_is_read_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    def dispatchers() -> int:
        gc.collect()
        return sum(isinstance(each, Dispatcher) for each in gc.get_objects())

    async def scenario(broker: Broker) -> None:
        await broker.publish(*[bytes(100_000)] * 60)
        client = await broker.client()
        await client.subscribe(1, subscription="first")
        await until(lambda: client.connection.pending_bytes > 3 << 20)
        before = dispatchers()
        for number in range(100):
            command = pb.CommandSubscribe(topic=TOPIC, subscription="s", consumer_id=2)
            command.request_id = number
            command.subType = pb.CommandSubscribe.Exclusive
            command.initialPosition = pb.CommandSubscribe.Earliest
            client.send(command)
            await until(lambda: 2 in client.connection.consumers)
            client.flow(10, 2)
            await until(lambda: client.connection.consumers[2].permits > 0)
            client.send(pb.CommandCloseConsumer(consumer_id=2, request_id=number))
            await until(lambda: 2 not in client.connection.consumers)
        assert dispatchers() <= before + 5

    run(tmp_path, scenario)


class Closing(ClientMemory):
    """A budget of connections that have nothing but their memory."""

    def __init__(self, total_max: int, live: Callable[[], Any]) -> None:
        super().__init__(total_max, 0, live)
        self.gone: list[Any] = []

    def close(self, connection: Any, setting: str) -> None:
        self.gone.append(connection)
        self.forget_unauthenticated(connection)
        connection.session.memory.release(connection.session.memory.used)


def with_memory(memory: ConnectionMemory) -> Any:
    memory.is_known = True
    return SimpleNamespace(session=SimpleNamespace(memory=memory))


def test_no_further_stranger_is_closed_when_just_enough_is_left() -> None:
    budget = Closing(10_000, lambda: [])
    memory = ConnectionMemory(budget, "address")
    memory.is_known = True
    strangers = [
        Mock(session=SimpleNamespace(memory=ConnectionMemory(budget, "address"))) for _ in range(2)
    ]
    for stranger, size in zip(strangers, (100, 50), strict=True):
        budget.charge_unauthenticated(stranger, size)
    memory.charge(9_850)
    memory.charge(100)
    assert budget.gone == [strangers[0]] and budget.used == 10_000


def test_who_has_most_and_asks_for_more_is_refused_without_a_look_at_all() -> None:
    looks = 0

    def live() -> list[Any]:
        nonlocal looks
        looks += 1
        return connections

    budget = Closing(10_000, live)
    connections = [with_memory(ConnectionMemory(budget, "address")) for _ in range(4)]
    for connection, size in zip(connections, (100, 4_000, 5_000, 900), strict=True):
        connection.session.memory.charge(size)
    small, second, most = (each.session.memory for each in connections[:3])
    for _ in range(10):
        with pytest.raises(TooManyRequests):
            most.charge(100)
    assert looks <= 1
    # Who has less now is not taken for who had most; who has more than it had is.
    most.release(4_000)
    second.charge(3_900)
    small.charge(200)
    assert budget.gone == [connections[1]]
    assert budget.used == 100 + 1_000 + 900 + 200


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-400, 600)), max_size=60))
def test_who_is_refused_is_who_has_most_whatever_came_before(steps: list[tuple[int, int]]) -> None:
    budget = Closing(1_000, lambda: connections)
    memories = [ConnectionMemory(budget, "address") for _ in range(5)]
    connections = [with_memory(each) for each in memories]
    for number, size in steps:
        memory = memories[number]
        if size < 0:
            memory.release(min(-size, memory.used))
            continue
        most = max(each.used for each in memories)
        had = budget.used
        try:
            memory.charge(size)
        except TooManyRequests:
            assert had + size > 1_000 and memory.used + size >= max(each.used for each in memories)
        else:
            assert had + size <= 1_000 or most > memory.used - size
        assert budget.used <= 1_000
