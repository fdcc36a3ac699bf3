"""Floods of commands by one client: few of them in a turn, in their order, others in between."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from one_broker import TOPIC, Broker, Client, command_of, section
from oracles import wire
from pyxbroker.admin.request import Request
from pyxbroker.base.half_open import HalfOpen
from pyxbroker.base.pacing import Pace, StepQueue
from pyxbroker.broker.commands import handlers, topic_list
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.registry import TopicRegistry
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.web.request_parser import RequestParser
from pyxbroker.web.response import Response
from web_client import Served as Web
from web_client import dial
from web_client import served as web_served

BUDGET = 10  # looks at the clock, which a step takes two of
PER_TURN_MAX = 2 * BUDGET  # of the sockets, and of what was waiting
NAME = "persistent://public/default/flood"
WEB_CLIENTS = 100

Peers = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


class Turns:
    """Counts the turns of the loop, and what happens in each."""

    def __init__(self) -> None:
        self.turn = 0
        self.seen: Counter[int] = Counter()
        self._counting = asyncio.ensure_future(self._count())

    async def _count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose calls are counted."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.seen[self.turn] += 1
            return function(*args, **kwargs)

        return call

    @property
    def most(self) -> int:
        return max(self.seen.values())

    def close(self) -> None:
        self._counting.cancel()


def counted_pace() -> Pace:
    """Each look at the clock takes a time unit: what is counted does not depend on a machine."""
    looks = iter(range(10**9))
    return Pace(BUDGET, lambda: float(next(looks)))


def in_broker(path: Path, scenario: Callable[[Broker, Turns], Awaitable[None]]) -> None:
    async def run() -> None:
        broker = Broker(path)
        broker.pace = counted_pace()
        async with broker:
            turns = Turns()
            await scenario(broker, turns)
            turns.close()

    asyncio.run(run())


def flood(client: Client, *messages: Any) -> None:
    """Sends commands in one write."""
    data = b"".join(wire.frame(command_of(each)) for each in messages)
    assert client.far.send(data) == len(data)


async def until(condition: Callable[[], bool]) -> None:
    """Looks in each turn, and so sees what lasts for one."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come to be")


async def answers(client: Client, field: str, count: int) -> list[int]:
    """The request ids of so many answers."""
    return [(await client.receive(field)).request_id for _ in range(count)]


def lookup(number: int) -> Any:
    return pb.CommandLookupTopic(topic=TOPIC, request_id=number)


def subscribe(number: int, topic: str = TOPIC) -> Any:
    return pb.CommandSubscribe(
        topic=topic,
        subscription=f"s{number}",
        subType=pb.CommandSubscribe.Shared,
        consumer_id=number,
        request_id=number,
    )


def test_lookups_of_one_write_are_begun_a_few_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, turns: Turns) -> None:
        client = await broker.client()
        begun = turns.counted(handlers.Handlers.on_command)
        monkeypatch.setattr(handlers.Handlers, "on_command", begun)
        flood(client, *map(lookup, range(200)))
        assert sorted(await answers(client, "lookupTopicResponse", 200)) == list(range(200))
        assert sum(turns.seen.values()) == 200
        assert turns.most <= PER_TURN_MAX

    in_broker(tmp_path, scenario)


def test_topics_of_one_write_are_opened_a_few_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for the same commits of the metadata, and go on from there one after another."""

    async def scenario(broker: Broker, turns: Turns) -> None:
        client = await broker.client()
        monkeypatch.setattr(TopicRegistry, "add", turns.counted(TopicRegistry.add))
        flood(client, *(subscribe(n, f"{NAME}-{n}") for n in range(100)))
        assert sorted(await answers(client, "success", 100)) == list(range(100))
        assert sum(turns.seen.values()) == 100
        assert turns.most <= PER_TURN_MAX

    in_broker(tmp_path, scenario)


def test_subscriptions_of_one_write_are_made_a_few_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, turns: Turns) -> None:
        client = await broker.client()
        added = turns.counted(Subscription.add_consumer)
        monkeypatch.setattr(Subscription, "add_consumer", added)
        flood(client, *map(subscribe, range(200)))
        assert sorted(await answers(client, "success", 200)) == list(range(200))
        assert sum(turns.seen.values()) == 200
        assert turns.most <= PER_TURN_MAX

    in_broker(tmp_path, scenario)


@pytest.mark.parametrize(("limit", "value"), [("LEAVE_PER_CALL", 5), ("LEAVE_PER_CALL_S", 0.0)])
def test_consumers_of_a_closed_connection_leave_a_few_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    """Also those that take long: each may have much that is taken back."""
    monkeypatch.setattr(handlers, limit, value)

    async def scenario(broker: Broker, turns: Turns) -> None:
        client = await broker.client()
        flood(client, *map(subscribe, range(200)))
        await answers(client, "success", 200)
        topic = await broker.topic()
        gone = turns.counted(Subscription.remove_consumer)
        monkeypatch.setattr(Subscription, "remove_consumer", gone)
        client.far.close()
        await until(lambda: not any(each.consumers for each in topic.subscriptions.values()))
        assert sum(turns.seen.values()) == 200
        assert turns.most <= PER_TURN_MAX

    in_broker(tmp_path, scenario)


def test_one_step_waits_for_all_that_a_closed_connection_had_open(tmp_path: Path) -> None:
    """A step for each, put into a queue at once, would take a turn as long as there are many."""

    async def scenario(broker: Broker, turns: Turns) -> None:
        client = await broker.client()
        flood(client, *map(subscribe, range(200)))
        await answers(client, "success", 200)
        topic = await broker.topic()
        queue = client.connection.session.step_queue
        client.connection.close()
        assert len(queue.waiting) == 1
        left = sum(not each.consumers for each in topic.subscriptions.values())
        assert 1 <= left <= handlers.LEAVE_PER_CALL
        await until(lambda: not queue.waiting)
        assert not any(each.consumers for each in topic.subscriptions.values())

    in_broker(tmp_path, scenario)


def test_a_watcher_that_is_asked_for_again_leaves_its_closed_connection_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "LEAVE_PER_CALL", 0)

    async def scenario(broker: Broker, turns: Turns) -> None:
        await broker.topic()
        client = await broker.client()
        watch = pb.CommandWatchTopicList(
            request_id=1,
            watcher_id=1,
            namespace="public/default",
            topics_pattern="public/default/.*",
        )
        await client.request(watch, "watchTopicListSuccess")
        session = client.connection.session
        [watcher] = session.watchers.values()
        leaving: list[Any] = []
        monkeypatch.setattr(type(session.step_queue), "wait", lambda _, call: leaving.append(call))
        client.connection.close()
        handler = client.connection.group.handlers._table[pb.BaseCommand.WATCH_TOPIC_LIST].handler
        await handler(client.connection, watch, None)
        assert list(watcher.topics.watchers) == [watcher]
        [leave] = leaving
        leave()
        assert list(watcher.topics.watchers) == []
        assert not session.watchers

    in_broker(tmp_path, scenario)


def test_who_comes_back_does_not_find_the_place_taken_by_a_connection_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what the old one had has not left yet."""
    monkeypatch.setattr(handlers, "LEAVE_PER_CALL", 0)

    async def scenario(broker: Broker, turns: Turns) -> None:
        client, other = await broker.client(), await broker.client()
        exclusive = pb.CommandSubscribe.Exclusive
        await client.subscribe(subType=exclusive)
        await client.produce(producer_name="p", user_provided_producer_name=True)
        queue = client.connection.session.step_queue
        leaving: list[Any] = []
        wait = type(queue).wait

        def held(waiting: StepQueue, call: Callable[[], object]) -> None:
            if waiting is queue:
                leaving.append(call)
            else:
                wait(waiting, call)

        monkeypatch.setattr(type(queue), "wait", held)
        client.connection.close()
        assert len(leaving) == 1
        answer = await other.subscribe(subType=exclusive)
        assert type(answer) is pb.CommandSuccess
        answer = await other.produce(producer_name="p", user_provided_producer_name=True)
        assert type(answer) is pb.CommandProducerSuccess
        while leaving:
            leaving.pop()()
        topic = await broker.topic()
        assert len(topic.producers) == len(topic.subscriptions["s"].consumers) == 1

    in_broker(tmp_path, scenario)


def test_a_client_that_asks_once_does_not_wait_for_a_flood(tmp_path: Path) -> None:
    async def scenario(broker: Broker, turns: Turns) -> None:
        attacker, other = await broker.client(), await broker.client()
        flood(attacker, *map(lookup, range(1000)))
        await asyncio.sleep(0)
        assert (await other.request(lookup(0), "lookupTopicResponse")).request_id
        assert len(attacker.take()) < 200
        await answers(attacker, "lookupTopicResponse", 1)

    in_broker(tmp_path, scenario)


def test_a_flood_keeps_its_order_with_sends_in_between(tmp_path: Path) -> None:
    async def scenario(broker: Broker, turns: Turns) -> None:
        client = await broker.client()
        await client.produce()
        await client.subscribe()
        data = b""
        for n in range(100):
            data += wire.frame(command_of(pb.CommandConsumerStats(consumer_id=9, request_id=n)))
            data += wire.frame(
                command_of(pb.CommandSend(producer_id=1, sequence_id=n)), section(b"%d" % n)
            )
        close = pb.CommandCloseProducer(producer_id=1, request_id=100)
        data += wire.frame(command_of(close))
        assert client.far.send(data) == len(data)
        assert await answers(client, "consumerStatsResponse", 100) == list(range(100))
        assert (await client.receive("success")).request_id == 100
        got = [each.data for each in await client.messages(100)]
        assert [each[-len(b"%d" % n) :] for n, each in enumerate(got)] == [
            b"%d" % n for n in range(100)
        ]

    in_broker(tmp_path, scenario)


def test_commands_of_one_read_are_not_more_under_way_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "COMMANDS_MAX", 10)

    async def scenario(broker: Broker, turns: Turns) -> None:
        client = await broker.client()
        tasks = client.connection.session.tasks
        answered: list[int] = []
        most = 0

        def is_answered() -> bool:
            nonlocal most
            most = max(most, len(tasks))
            answered.extend(each.request_id for _, each, _ in client.take())
            return len(answered) == 100

        flood(client, *map(lookup, range(100)))
        await until(is_answered)
        assert 0 < most <= 10
        assert sorted(answered) == list(range(100))
        assert not client.connection.is_paused

    in_broker(tmp_path, scenario)


def test_a_client_that_hangs_up_while_its_commands_wait_costs_nobody_anything(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker, turns: Turns) -> None:
        client, other = await broker.client(), await broker.client()
        flood(client, *map(lookup, range(500)))
        await until(lambda: client.connection.is_paused)
        client.far.close()
        await until(lambda: client.connection.closed)
        assert (await other.request(lookup(0), "lookupTopicResponse")).request_id
        await until(lambda: not client.connection.session.tasks)

    in_broker(tmp_path, scenario)


def test_many_that_hang_up_at_once_are_closed_a_few_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker, turns: Turns) -> None:
        clients = [await broker.client() for _ in range(100)]
        closed = turns.counted(handlers.Handlers.on_closed)
        monkeypatch.setattr(handlers.Handlers, "on_closed", closed)
        for each in clients:
            each.far.close()
        await until(lambda: not broker.node.connections.live)
        assert sum(turns.seen.values()) == 100
        assert turns.most <= PER_TURN_MAX

    in_broker(tmp_path, scenario)


def test_the_garbage_collector_does_not_look_at_the_names_that_watchers_know(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker, turns: Turns) -> None:
        await broker.topic()
        client = await broker.client()
        watch = pb.CommandWatchTopicList(
            watcher_id=1, namespace="public/default", topics_pattern="public/default/.*"
        )
        await client.request(watch, "watchTopicListSuccess")
        [watcher] = client.connection.session.watchers.values()
        await broker.topic(f"{NAME}-1")
        await client.receive("watchTopicUpdate")
        assert len(watcher.topics.names) == 2
        assert not gc.is_tracked(watcher.topics.names)

    in_broker(tmp_path, scenario)


def test_a_connection_opens_as_many_watchers_at_once_as_it_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is open and waits for its list is one, and not two."""
    monkeypatch.setattr(topic_list, "WATCHERS_MAX", 100)
    hash_of_parts = topic_list.hash_of_parts

    async def slow(*arguments: Any) -> str:
        for _ in range(100):
            await asyncio.sleep(0)
        return await hash_of_parts(*arguments)

    monkeypatch.setattr(topic_list, "hash_of_parts", slow)

    async def scenario(broker: Broker, turns: Turns) -> None:
        await broker.topic()
        client = await broker.client()
        watches = [
            pb.CommandWatchTopicList(
                request_id=n,
                watcher_id=n,
                namespace="public/default",
                topics_pattern=f"public/default/.*({n})?",
            )
            for n in range(101)
        ]
        flood(client, *watches[:100])
        assert sorted(await answers(client, "watchTopicListSuccess", 100)) == list(range(100))
        flood(client, watches[100])
        assert "at most 100" in (await client.receive("error")).message

    in_broker(tmp_path, scenario)


def test_acknowledgements_that_wait_for_the_disk_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is not read any further, also what was read already; all are answered."""

    async def scenario(broker: Broker, turns: Turns) -> None:
        client = await broker.client()
        await client.subscribe()
        durable: list[asyncio.Future[None]] = []

        def persist(subscription: Subscription) -> asyncio.Future[None]:
            durable.append(broker.loop.create_future())
            return durable[-1]

        monkeypatch.setattr(Subscription, "persist", persist)
        position = pb.MessageIdData(ledgerId=1, entryId=1)
        kind = pb.CommandAck.Individual
        flood(
            client,
            *(
                pb.CommandAck(consumer_id=1, ack_type=kind, message_id=[position], request_id=n)
                for n in range(2500)
            ),
        )
        await until(lambda: len(durable) == 1000)
        for _ in range(100):
            await asyncio.sleep(0)
        assert (len(durable), client.connection.pending_acks) == (1000, 1000)
        assert client.connection.is_paused
        answered: list[int] = []
        while len(answered) < 2500:
            for each in durable:
                if not each.done():
                    each.set_result(None)
            await asyncio.sleep(0)
            answered += [each.request_id for _, each, _ in client.take()]
        assert answered == list(range(2500))
        assert (client.connection.pending_acks, client.connection.is_paused) == (0, False)

    in_broker(tmp_path, scenario)


def with_web_clients(
    scenario: Callable[[Turns, Web, Peers], Awaitable[None]], counts_answers: bool = False
) -> None:
    """A scenario with the web port and its clients. What it counts is done once for each of them,
    a few in a turn.
    """

    async def answer(request: Request) -> Response:
        return Response(b"")

    async def main() -> None:
        turns = Turns()
        answering = turns.counted(answer) if counts_answers else answer
        async with web_served(answering, pace=counted_pace()) as web:
            peers = [await dial(web) for _ in range(WEB_CLIENTS)]
            await scenario(turns, web, peers)
            for _, writer in peers:
                writer.close()
        assert sum(turns.seen.values()) == WEB_CLIENTS
        assert turns.most <= PER_TURN_MAX
        turns.close()

    asyncio.run(main())


async def ask_at_once(peers: Peers, request: bytes) -> None:
    for _, writer in peers:
        writer.write(request)
    for reader, _ in peers:
        assert b"200 OK" in await reader.readline()


def test_requests_of_many_connections_are_answered_a_few_in_a_turn() -> None:
    async def scenario(turns: Turns, web: Web, peers: Peers) -> None:
        await ask_at_once(peers, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

    with_web_clients(scenario, counts_answers=True)


def test_requests_of_many_clients_that_come_at_once_are_read_a_few_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(turns: Turns, web: Web, peers: Peers) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(RequestParser, "receive", turns.counted(RequestParser.receive))
            post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"
            await ask_at_once(peers, post)

    with_web_clients(scenario)


def test_web_clients_that_hang_up_at_once_are_closed_a_few_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(turns: Turns, web: Web, peers: Peers) -> None:
        await until(lambda: len(web.server._silent) == WEB_CLIENTS)
        monkeypatch.setattr(HalfOpen, "disconnect", turns.counted(HalfOpen.disconnect))
        for _, writer in peers:
            writer.close()
        await until(lambda: not web.server._silent)
        await until(lambda: not web.server._connections)

    with_web_clients(scenario)
