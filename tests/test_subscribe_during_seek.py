"""SUBSCRIBE, SEEK, CLOSE_CONSUMER and UNSUBSCRIBE while a seek is under way, in every order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from one_bookie import turns, until
from one_broker import TOPIC, Broker, Client, data_of, run
from pyxbroker.broker.commands import seek
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.proto import PulsarApi as pb

EARLIEST = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
FOR_EVER = {"defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1}


class Gate:
    """Holds every seek up, at the write of its cursor, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open: asyncio.Event | None = None
        persist = Cursor.persist

        async def held(cursor: Cursor) -> None:
            assert self._open is not None
            await self._open.wait()
            await persist(cursor)

        monkeypatch.setattr(Cursor, "persist", lambda cursor: asyncio.ensure_future(held(cursor)))

    def close(self) -> None:
        self._open = asyncio.Event()

    def open(self) -> None:
        assert self._open is not None
        self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def subscribe(consumer_id: int, request_id: int, topic: str = TOPIC, **fields: Any) -> Any:
    settings: dict[str, Any] = {
        "subscription": "s",
        "subType": pb.CommandSubscribe.Exclusive,
        "durable": True,
        "initialPosition": pb.CommandSubscribe.Earliest,
    }
    return pb.CommandSubscribe(
        topic=topic, consumer_id=consumer_id, request_id=request_id, **(settings | fields)
    )


def seek_to_earliest(consumer_id: int, request_id: int) -> Any:
    return pb.CommandSeek(consumer_id=consumer_id, request_id=request_id, message_id=EARLIEST)


def close(consumer_id: int, request_id: int) -> Any:
    return pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id)


def unsubscribe(consumer_id: int, request_id: int) -> Any:
    return pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id)


async def answers(client: Client) -> dict[int, int | None]:
    """What came as answers: the ServerError by request id, None for success."""
    await turns(30)
    found: dict[int, int | None] = {}
    for name, message, _ in client.take():
        if name in ("success", "error"):
            assert message.request_id not in found
            found[message.request_id] = message.error if name == "error" else None
    return found


async def idle(broker: Broker) -> None:
    """Waits until no command of a client is under way, of those that were sent."""
    await turns()
    await until(lambda: not any(each.session.tasks for each in broker.node.connections.live))


def assert_nothing_is_left(broker: Broker, subscription: Subscription) -> None:
    assert (subscription.move, subscription.arriving, subscription.closing) == (None, 0, False)
    for each in broker.node.connections.live:
        assert (each.session.opening, each.session.moves, each.session.tasks) == ({}, {}, set())


async def subscription_of(broker: Broker, name: str = TOPIC) -> Subscription:
    topic = await broker.topic(name)
    return await topic.subscription_for("s", topic.managed_ledger.first_position(), {}, True)


# --- all orders -----------------------------------------------------------------------------------

Who = tuple[int, int]  # a connection, and the id of a consumer on it


class Expected:
    """What an Exclusive subscription answers, and who is attached to it, when a seek takes long."""

    def __init__(self) -> None:
        self.attached: Who | None = None
        self.moving: int | None = None  # the request that moves it
        self.sent_away: Who | None = None
        self.waiting: list[tuple[Who, int]] = []
        self.told: dict[int, int | None] = {}
        self.told_later: dict[int, int | None] = {}

    def subscribe(self, who: Who, request_id: int) -> None:
        if who == self.attached:
            self.told[request_id] = None
        elif any(each == who for each, _ in self.waiting):
            self.told[request_id] = pb.ServiceNotReady
        elif self.moving is not None:
            self.waiting.append((who, request_id))
        elif self.attached is not None:
            self.told[request_id] = pb.ConsumerBusy
        else:
            self.attached = who
            self.told[request_id] = None

    def seek(self, who: Who, request_id: int) -> None:
        if who != self.attached:
            self.told[request_id] = pb.MetadataError
            return
        self.moving, self.sent_away, self.attached = request_id, who, None

    def close(self, who: Who, request_id: int) -> None:
        for each in list(self.waiting):
            if each[0] == who:
                self.waiting.remove(each)
                self.told[each[1]] = pb.ServiceNotReady
        if who == self.attached:
            self.attached = None
        later = who == self.sent_away
        (self.told_later if later else self.told)[request_id] = None

    def finish(self) -> None:
        """The seek ends."""
        self.told.update(self.told_later)
        if self.moving is None:
            return
        self.told[self.moving] = None
        self.moving = None
        waiting, self.waiting = self.waiting, []
        for who, request_id in waiting:
            self.subscribe(who, request_id)


COMMANDS = {"subscribe": subscribe, "seek": seek_to_earliest, "close": close}


def orders(again: int) -> Iterator[tuple[tuple[str, int, int], ...]]:
    """Every order of the four commands, on every mix of two connections: (command, connection,
    consumer id).
    """
    four = (("subscribe", 1), ("seek", 1), ("close", 1), ("subscribe", again))
    for order in sorted(set(itertools.permutations(four))):
        for connections in itertools.product(range(2), repeat=4):
            if connections[0] == 0:
                yield tuple(
                    (name, connection, consumer_id)
                    for (name, consumer_id), connection in zip(order, connections, strict=True)
                )


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("is_open", [False, True])
def test_every_order_of_the_commands(tmp_path: Path, gate: Gate, again: int, is_open: bool) -> None:
    """again: the consumer id of the second SUBSCRIBE; is_open: consumer 1 is there before."""

    async def scenario(broker: Broker) -> None:
        for number, order in enumerate(orders(again)):
            name = f"{TOPIC}-{number}"
            subscription = await subscription_of(broker, name)
            clients = [await broker.client() for _ in range(2)]
            expected = Expected()
            gate.close()
            if is_open:
                clients[0].send(subscribe(1, 0, name))
                expected.subscribe((0, 1), 0)
            said: dict[int, int | None] = {}
            for request_id, (command, connection, consumer_id) in enumerate(order, start=1):
                said.update(await answers(clients[0]) | await answers(clients[1]))
                assert said == expected.told, order
                more = {"topic": name} if command == "subscribe" else {}
                clients[connection].send(COMMANDS[command](consumer_id, request_id, **more))
                getattr(expected, command)((connection, consumer_id), request_id)
            said.update(await answers(clients[0]) | await answers(clients[1]))
            assert said == expected.told, order
            gate.open()
            await idle(broker)
            expected.finish()
            said.update(await answers(clients[0]) | await answers(clients[1]))
            assert said == expected.told, order
            attached = [
                (connection, consumer_id)
                for connection, client in enumerate(clients)
                for consumer_id in client.connection.consumers
            ]
            assert attached == ([expected.attached] if expected.attached else []), order
            assert len(subscription.consumers) == len(attached), order
            assert_nothing_is_left(broker, subscription)
            for client in clients:
                client.connection.close()
                client.far.close()
            assert subscription.consumers == []

    run(tmp_path, scenario)


def test_all_at_once_every_command_is_answered_in_the_end(tmp_path: Path, gate: Gate) -> None:
    """The commands of a connection come in one piece, as from a client that waits for nothing."""

    async def scenario(broker: Broker) -> None:
        for again in (1, 2):
            for number, order in enumerate(orders(again)):
                name = f"{TOPIC}-{again}-{number}"
                subscription = await subscription_of(broker, name)
                clients = [await broker.client() for _ in range(2)]
                await clients[0].subscribe(1, topic=name, subType=pb.CommandSubscribe.Exclusive)
                gate.close()
                for request_id, (command, connection, consumer_id) in enumerate(order, start=10):
                    more = {"topic": name} if command == "subscribe" else {}
                    clients[connection].send(COMMANDS[command](consumer_id, request_id, **more))
                await turns(20)
                gate.open()
                await idle(broker)
                said = await answers(clients[0]) | await answers(clients[1])
                assert set(said) == {10, 11, 12, 13}, order
                assert_nothing_is_left(broker, subscription)
                held = sum(len(each.connection.consumers) for each in clients)
                assert len(subscription.consumers) == held <= 1, order
                for client in clients:
                    client.connection.close()
                    client.far.close()
                assert subscription.consumers == []

    run(tmp_path, scenario)


# --- one connection -------------------------------------------------------------------------------


def test_subscribe_seek_close_again_and_again(tmp_path: Path) -> None:
    """As a client does that closes while it seeks: the next one is told nothing of that seek."""

    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(3))
        subscription = await subscription_of(broker)
        client = await broker.client()
        tasks = len(asyncio.all_tasks())
        for consumer_id in range(1, 301):
            answer = await client.request(subscribe(consumer_id, 0), "success")
            assert not hasattr(answer, "error")
            client.send(seek_to_earliest(consumer_id, 10_000 + consumer_id))
            client.send(close(consumer_id, 20_000 + consumer_id))
            if consumer_id % 3 == 0:
                # The client brings a consumer back that was sent away, and closes it then.
                client.send(subscribe(consumer_id, 30_000 + consumer_id))
                client.send(close(consumer_id, 40_000 + consumer_id))
        await idle(broker)
        assert_nothing_is_left(broker, subscription)
        assert subscription.consumers == []
        assert len(asyncio.all_tasks()) == tasks
        said = await answers(client)
        assert len(said) == 2 * 300 + 2 * 100
        assert not any(error for request_id, error in said.items() if request_id < 30_000)
        await client.subscribe(1, subType=pb.CommandSubscribe.Exclusive)
        assert [each.position for each in await client.messages(3)] == positions

    run(tmp_path, scenario, **FOR_EVER)


def test_who_waited_gets_messages_from_where_it_was_moved_to(tmp_path: Path, gate: Gate) -> None:
    async def scenario(broker: Broker) -> None:
        positions = await broker.publish(*data_of(3))
        one, two = await broker.client(), await broker.client()
        gate.close()
        await one.subscribe(1)
        assert len(await one.messages(3)) == 3
        one.send(seek_to_earliest(1, 70))
        two.send(subscribe(5, 71, subType=pb.CommandSubscribe.Shared))
        two.flow(10, 5)
        assert await answers(two) == {}
        gate.open()
        assert (await one.receive("success")).request_id == 70
        assert (await two.receive("success")).request_id == 71
        two.flow(10, 5)
        assert [each.position for each in await two.messages(3)] == positions

    run(tmp_path, scenario, **FOR_EVER)


def test_a_consumer_that_is_closed_and_opened_again_while_it_waits_is_open(
    tmp_path: Path, gate: Gate
) -> None:
    """Each CLOSE_CONSUMER is for the SUBSCRIBE before it, however fast they come."""

    async def scenario(broker: Broker) -> None:
        subscription = await subscription_of(broker)
        client = await broker.client()
        for closes_last in (False, True):
            gate.close()
            await client.subscribe(1, subType=pb.CommandSubscribe.Exclusive)
            client.send(seek_to_earliest(1, 70))
            for number in range(3):
                client.send(subscribe(1, 80 + number))
                client.send(subscribe(1, 90 + number))
                if closes_last or number < 2:
                    client.send(close(1, 100 + number))
            await turns(20)
            gate.open()
            await idle(broker)
            said = await answers(client)
            assert said[70] is None
            refused = [n for n, error in said.items() if error is not None]
            assert {said[n] for n in refused} == {pb.ServiceNotReady}
            last = [] if closes_last else [82]
            assert sorted(set(said) - set(refused) - {70, 100, 101, 102}) == last
            assert len(subscription.consumers) == len(client.connection.consumers) == len(last)
            assert_nothing_is_left(broker, subscription)
            client.send(close(1, 200))
            await client.receive("success")

    run(tmp_path, scenario)


def test_unsubscribe_waits_for_a_seek(tmp_path: Path, gate: Gate) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        gate.close()
        client.send(subscribe(1, 1))
        await client.receive("success")
        client.send(seek_to_earliest(1, 2))
        client.send(unsubscribe(1, 3))
        assert await answers(client) == {}
        gate.open()
        await idle(broker)
        # The consumer that it names was sent away, and had not come back when it was asked for.
        assert await answers(client) == {2: None, 3: pb.MetadataError}
        assert list(topic.subscriptions) == ["s"]
        gate.close()
        client.send(subscribe(1, 4))
        client.send(subscribe(2, 5))
        await answers(client)
        client.send(seek_to_earliest(1, 6))
        client.send(subscribe(1, 7))
        client.send(unsubscribe(1, 8))
        assert await answers(client) == {}
        gate.open()
        await idle(broker)
        assert await answers(client) == {6: None, 7: None, 8: None}
        assert topic.subscriptions == {}

    run(tmp_path, scenario)


# --- it does not end well -------------------------------------------------------------------------


def test_a_connection_that_closes_midway_leaves_nothing(tmp_path: Path, gate: Gate) -> None:
    async def scenario(broker: Broker) -> None:
        subscription = await subscription_of(broker)
        tasks = len(asyncio.all_tasks())
        for seeker_closes in (True, False):
            seeker, waiter = await broker.client(), await broker.client()
            gate.close()
            await seeker.subscribe(1, subType=pb.CommandSubscribe.Exclusive)
            before = len(asyncio.all_tasks())
            seeker.send(seek_to_earliest(1, 2))
            await turns()
            seeking = len(asyncio.all_tasks()) - before
            for client in (seeker, waiter):
                client.send(subscribe(1, 3))
                client.send(subscribe(2, 4))
                client.send(close(1, 5))
                client.send(unsubscribe(7, 6))
            await turns()
            closed, stays = (seeker, waiter) if seeker_closes else (waiter, seeker)
            other = len(stays.connection.session.tasks)
            closed.connection.close()
            await turns()
            # Nothing of it waits any more, besides the seek, which has begun and ends.
            assert len(closed.connection.session.tasks) == (1 if seeker_closes else 0)
            assert len(stays.connection.session.tasks) == other
            assert closed.connection.session.opening == {}
            assert seeking >= 1
            gate.open()
            await idle(broker)
            left = closed.connection.session.tasks
            await until(lambda left=left: not left)
            assert [each.connection for each in subscription.consumers] == [stays.connection]
            assert (await answers(stays))[4] is None
            assert_nothing_is_left(broker, subscription)
            stays.connection.close()
            await turns()
            assert subscription.consumers == []
            assert len(asyncio.all_tasks()) == tasks
            for client in (seeker, waiter):
                client.far.close()

    run(tmp_path, scenario)


def test_a_seek_that_takes_too_long_is_refused_as_ever(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seek.SEEK_MAX_S == 25.0
    monkeypatch.setattr(seek, "SEEK_MAX_S", 0.1)

    async def scenario(broker: Broker) -> None:
        subscription = await subscription_of(broker)
        client = await broker.client()
        gate.close()
        await client.subscribe(1)
        client.send(seek_to_earliest(1, 70))
        client.send(close(1, 71))
        client.send(subscribe(2, 72))
        assert await answers(client) == {}
        error = await client.receive("error")
        assert (error.request_id, error.error) == (72, pb.ServiceNotReady)
        assert error.message == "Subscription is fenced"
        assert (await client.receive("success")).request_id == 71
        gate.open()
        assert (await client.receive("success")).request_id == 70
        await idle(broker)
        assert_nothing_is_left(broker, subscription)

    run(tmp_path, scenario)


def test_who_waits_is_served_when_the_seek_fails(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        subscription = await subscription_of(broker)
        client = await broker.client()
        await client.subscribe(1)
        failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(Cursor, "persist", lambda _: failing)
        client.send(seek_to_earliest(1, 70))
        client.send(subscribe(2, 71))
        assert await answers(client) == {}
        failing.set_exception(OSError("the disk is gone"))
        await idle(broker)
        assert await answers(client) == {70: pb.UnknownError, 71: None}
        assert_nothing_is_left(broker, subscription)

    run(tmp_path, scenario)


def test_a_topic_that_is_closed_meanwhile_is_looked_up_again(tmp_path: Path, gate: Gate) -> None:
    async def scenario(broker: Broker) -> None:
        await subscription_of(broker)
        client = await broker.client()
        gate.close()
        await client.subscribe(1)
        client.send(seek_to_earliest(1, 70))
        client.send(subscribe(2, 71))
        assert await answers(client) == {}
        topic = await broker.topic()
        topic.fenced = True
        gate.open()
        error = await client.receive("error")
        assert (error.request_id, error.error) == (71, pb.ServiceNotReady)
        assert "look it up again" in error.message
        assert client.connection.consumers == {}

    run(tmp_path, scenario)


# --- readers --------------------------------------------------------------------------------------


def reader_of(topic: Topic) -> list[Subscription]:
    return [each for each in topic.all_subscriptions() if not each.cursor.durable]


def test_a_reader_that_waits_is_not_forgotten_for_another_that_does_not(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seek, "READER_KEPT_S", 0.0)

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        one, two = await broker.client(), await broker.client()
        gate.close()
        one.send(subscribe(1, 1, durable=False))
        await one.receive("success")
        one.send(seek_to_earliest(1, 2))
        one.send(subscribe(2, 3, durable=False))
        two.send(subscribe(1, 4, durable=False))
        await answers(two)
        one.send(close(2, 5))
        await answers(one)
        gate.open()
        assert (await two.receive("success")).request_id == 4
        await asyncio.sleep(0.01)
        assert [len(each.consumers) for each in reader_of(topic)] == [1]
        two.flow(10)
        [position] = await broker.publish(b"new")
        assert [each.position for each in await two.messages(1)] == [position]

    run(tmp_path, scenario)


def test_a_reader_that_takes_its_place_back_gets_new_messages(tmp_path: Path) -> None:
    """Its old connection turns out to be gone while it waits, and with it its last consumer."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        old, new = await broker.client(), await broker.client()
        reader: dict[str, Any] = {"durable": False, "subType": pb.CommandSubscribe.Exclusive}
        await old.subscribe(1, **reader)
        answer = await new.subscribe(1, **reader)
        assert not hasattr(answer, "error")
        assert [len(each.consumers) for each in reader_of(topic)] == [1]
        [position] = await broker.publish(b"new")
        assert [each.position for each in await new.messages(1)] == [position]

    run(tmp_path, scenario, connectionLivenessCheckTimeoutMillis=50)
