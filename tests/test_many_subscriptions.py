"""A topic with many subscriptions, or producers, takes others no more than a step at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from one_bookie import SHORT, Node, append, cursor_at, filled, settled, until
from one_bookie import run as run_node
from one_bookie import turns as some_turns
from one_broker import Broker, run
from pyxbroker.admin.resources import topic_work
from pyxbroker.base import slices
from pyxbroker.base.errors import ServiceNotReady, SubscriptionNotFound
from pyxbroker.base.pacing import Pace
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.statistics.statistics import StatisticsOptions, topic_statistics
from pyxbroker.broker.subscriptions import expiry
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics import persistent, quotas, registry
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import Position
from pyxbroker.mledger import managed_ledger as mledger
from pyxbroker.mledger import opening
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import CURSORS_PER_CLOSE, ManagedLedger
from pyxbroker.mledger.state import State
from pyxbroker.policies.values import DispatchRate
from shares import over_at_once
from test_admin_topics import P, Rest

MANY = 40


class Turns:
    """Counts the turns of the loop, and how often something was done in each."""

    def __init__(self) -> None:
        self.number = 0
        self.done: Counter[int] = Counter()
        self._loop = asyncio.get_running_loop()
        self._tick()

    def _tick(self) -> None:
        self.number += 1
        self._handle = self._loop.call_soon(self._tick)

    def stop(self) -> None:
        self._handle.cancel()

    @property
    def most(self) -> int:
        return max(self.done.values(), default=0)

    def count(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        """Calls of a method count from now on."""
        original: Callable[..., Any] = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.done[self.number] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slice is over when it is looked at."""
    monkeypatch.setattr(slices, "SLICE_S", 0.0)


async def topic_with_subscriptions(broker: Broker) -> PersistentTopic:
    topic = await broker.topic()
    assert isinstance(topic, PersistentTopic)
    for number in range(MANY):
        await topic.subscription_for(f"s{number}", topic.first_position(), {}, True)
    await broker.publish(*[b"x"] * 5)
    topic.wall_clock = lambda: 1e10
    return topic


@pytest.mark.usefixtures("no_time")
@pytest.mark.parametrize("how", ["expire", "skip"])
def test_messages_of_many_subscriptions_expire_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        some = list(topic.subscriptions.values())
        turns = Turns()
        turns.count(monkeypatch, type(some[0]), "skip_to")
        if how == "expire":
            assert await expiry.expire(topic, 10.0) == 5 * MANY
        else:
            assert await expiry.skip_to(some, topic.last_confirmed) == 5 * MANY
        turns.stop()
        assert sum(turns.done.values()) == MANY
        assert turns.most == 1
        assert {each.backlog for each in some} == {0}

    run(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_what_goes_back_while_others_expire_loses_nothing_that_is_not_old(tmp_path: Path) -> None:
    """It was looked at, and found to be further than that."""

    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        topic.wall_clock = lambda: 0.001  # entries were published at 1 ms: none is older
        some = list(topic.subscriptions.values())
        start = some[0].acks.mark_delete
        middle = Position(topic.last_confirmed.ledger_id, topic.last_confirmed.entry_id - 2)
        await expiry.skip_to(some, middle)
        expiring = asyncio.ensure_future(expiry.expire(topic, 0.0))
        await asyncio.sleep(0)
        await some[0].seek(start)
        assert await expiring == 0
        assert some[0].backlog == 5

    run(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_the_slowest_of_many_is_looked_for_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        some = list(topic.subscriptions.values())
        monkeypatch.setattr(expiry, "COMPARED_PER_STEP", 3)
        for each in some:
            if each is not some[17]:
                await each.skip_to(topic.last_confirmed)
        turns = Turns()
        turns.count(monkeypatch, expiry, "_mark_of")
        slowest = await expiry.slowest_of(some)
        turns.stop()
        assert slowest is not None
        assert (slowest.subscription, slowest.mark) == (some[17], some[17].acks.mark_delete)
        assert turns.most <= 2 * 3
        assert await expiry.slowest_of([]) is None
        assert not await quotas.is_size_exceeded(topic)

    run(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_consumers_of_many_subscriptions_are_told_of_the_end_whoever_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        client = await broker.client()
        for number, each in enumerate(list(topic.subscriptions.values())):
            await each.skip_to(topic.last_confirmed)
            await client.subscribe(number, subscription=each.name)
        turns = Turns()
        turns.count(monkeypatch, type(each), "notify_end")
        asking = asyncio.ensure_future(topic.terminate())
        await until(lambda: bool(turns.done))
        asking.cancel()
        ended = {(await client.receive("reachedEndOfTopic")).consumer_id for _ in range(MANY)}
        turns.stop()
        assert ended == set(range(MANY))
        assert turns.most == 1

    run(tmp_path, scenario)


def test_clients_of_many_subscriptions_and_producers_are_sent_away_a_few_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        client = await broker.client()
        for number in range(MANY):
            await client.subscribe(number, subscription=f"s{number}")
            await client.produce(number)
        over_at_once(broker.node.turn.dispatching)
        turns = Turns()
        turns.count(monkeypatch, topic, "close_producer")
        turns.count(monkeypatch, type(topic.subscriptions["s0"]), "disconnect")
        await topic.close()
        turns.stop()
        # Nothing of it is left when the log is closed.
        assert not topic.producers
        assert not any(each.consumers for each in topic.subscriptions.values())
        assert sum(turns.done.values()) == 2 * MANY
        assert turns.most == 1
        for kind in ("close_producer", "close_consumer"):
            for _ in range(MANY):
                await client.receive(kind)

    run(tmp_path, scenario)


def test_a_producer_that_its_client_has_closed_is_not_sent_away(tmp_path: Path) -> None:
    """Its id may be that of another one by then."""

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        for number in (1, 2):
            await client.produce(number)
        over_at_once(broker.node.turn.dispatching)
        topic.close_producers()
        [kept] = topic.producers.values()
        topic.remove_producer(kept)
        await topic.wait_disconnected()
        assert (await client.receive("close_producer")).producer_id == 1
        assert "close_producer" not in await client.quiet()

    run(tmp_path, scenario)


def test_who_cannot_be_sent_away_keeps_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        for number in (1, 2, 3):
            await client.produce(number)
        over_at_once(broker.node.turn.dispatching)
        close_producer = topic.close_producer

        def one_fails(producer: Any) -> None:
            if producer.producer_id == 2:
                raise ValueError("2")
            close_producer(producer)

        monkeypatch.setattr(topic, "close_producer", one_fails)
        topic.disconnect()
        topic.disconnect()
        await topic.wait_disconnected()
        assert {each.producer_id for each in topic.producers.values()} == {2}

    run(tmp_path, scenario)


def test_publishers_are_told_of_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyxbroker.broker.statistics.statistics.SORTED_PER_STEP", 3)

    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        client = await broker.client()
        names = [f"p{number * 7 % 10}" for number in range(10)]
        for number, name in enumerate(names):
            await client.produce(number, producer_name=name)
        told = await topic_statistics(topic, StatisticsOptions(), "here:1", broker.node.store)
        assert [each["producerName"] for each in told["publishers"]] == sorted(names)
        without = StatisticsOptions(publishers=False)
        told = await topic_statistics(topic, without, "here:1", broker.node.store)
        assert told["publishers"] == []

    run(tmp_path, scenario)


def test_cursors_that_are_written_lazily_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them have the same time; who waits for an answer does not wait for them."""

    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(SHORT._replace(mark_delete_per_s=0))
        [position] = await append(managed_ledger, b"x")
        start = managed_ledger.first_position()
        cursors = [await cursor_at(managed_ledger, f"c{n}", start) for n in range(MANY)]
        # Each step that is made is one too many for its turn.
        node.client.cursor_pace = Pace(1e-9)
        turns = Turns()
        turns.count(monkeypatch, Cursor, "_write_once")
        written: list[Cursor] = []
        write_once = Cursor._write_once

        async def noted(cursor: Cursor, urgent: bool) -> None:
            written.append(cursor)
            await write_once(cursor, urgent)

        monkeypatch.setattr(Cursor, "_write_once", noted)
        for each in cursors[1:]:
            each.acknowledge_positions([position])
        cursors[0].acknowledge_positions([position])
        await cursors[0].persist()
        assert cursors[0] in written[:3]
        await until(lambda: len(written) == MANY)
        turns.stop()
        # One of those that wait, and the one that somebody waits for.
        assert turns.most <= 2
        for each in cursors:
            await each.persist()
        await managed_ledger.close()
        opened = await node.open(SHORT)
        assert {each.backlog for each in opened.cursors.values()} == {0}

    run_node(tmp_path, scenario)


def test_cursors_that_have_to_be_written_at_the_same_time_begin_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(SHORT._replace(mark_delete_per_s=0))
        [position] = await append(managed_ledger, b"x")
        start = managed_ledger.first_position()
        cursors = [await cursor_at(managed_ledger, f"c{n}", start) for n in range(MANY)]
        # Each step that is made is one too many for its turn.
        node.client.cursor_pace = Pace(1e-9)
        turns = Turns()
        turns.count(monkeypatch, Cursor, "_start_writer")
        for each in cursors:
            each.acknowledge_positions([position])
        await some_turns(5)
        assert cursors[-1]._timer is not None
        cursors[-1].abandon()
        await until(lambda: sum(turns.done.values()) == MANY - 1)
        turns.stop()
        assert turns.most == 1
        await settled(managed_ledger)
        assert cursors[-1].ledger_id == -1, "it was stopped before its turn came"
        for each in cursors[:-1]:
            await each.persist()
            assert each.ledger_id >= 0

    run_node(tmp_path, scenario)


def test_many_cursors_are_closed_some_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(SHORT)
        start = managed_ledger.first_position()
        count = CURSORS_PER_CLOSE + 20
        for number in range(count):
            await cursor_at(managed_ledger, f"c{number}", start)
        turns = Turns()
        turns.count(monkeypatch, Cursor, "close")
        await managed_ledger.close()
        turns.stop()
        assert sum(turns.done.values()) == count
        assert turns.most <= CURSORS_PER_CLOSE

    run_node(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_many_cursors_are_opened_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(SHORT)
        start = managed_ledger.first_position()
        names = {f"c{number}" for number in range(opening.CURSORS_PER_READ + 20)}
        for name in names:
            await cursor_at(managed_ledger, name, start)
        await managed_ledger.close()
        turns, reads = Turns(), Turns()
        turns.count(monkeypatch, opening, "recover_cursor")
        reads.count(monkeypatch, node.store, "get")
        opened = await node.open(SHORT)
        turns.stop()
        reads.stop()
        assert set(opened.cursors) == names
        assert turns.most == 1
        assert reads.most <= opening.CURSORS_PER_READ

    run_node(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_many_cursors_are_placed_one_after_the_other_and_learn_that_the_log_fails_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(SHORT)
        start = managed_ledger.first_position()
        names = {f"c{number}" for number in range(MANY)}
        for name in names:
            await cursor_at(managed_ledger, name, start)
        await managed_ledger.close()
        turns = Turns()
        place = opening.place_cursor

        def failing(log: ManagedLedger, cursor: Cursor) -> None:
            place(log, cursor)
            if sum(turns.done.values()) == MANY // 2:
                log.fail(State.FAILED, ManagedLedgerError("it failed"))

        monkeypatch.setattr(opening, "place_cursor", failing)
        turns.count(monkeypatch, opening, "place_cursor")
        opened = await node.open(SHORT)
        turns.stop()
        assert sum(turns.done.values()) == MANY
        assert turns.most == 1
        assert set(opened.cursors) == names
        assert all(each.closed for each in opened.cursors.values())

    run_node(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_many_cursors_are_told_of_limits_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mledger, "CURSORS_PER_CALL", MANY - 1)

    async def scenario(node: Node) -> None:
        managed_ledger = await node.open(SHORT)
        start = managed_ledger.first_position()
        for number in range(MANY):
            await cursor_at(managed_ledger, f"c{number}", start)
        told: dict[str, float] = {}
        on_limits = Cursor.on_limits

        def noted(cursor: Cursor) -> None:
            rate = told[cursor.name] = managed_ledger.limits.mark_delete_per_s
            on_limits(cursor)
            if cursor.name == "c7" and rate == 3.0:
                managed_ledger.cursors.pop("c8")  # it goes

        monkeypatch.setattr(Cursor, "on_limits", noted)
        turns = Turns()
        turns.count(monkeypatch, Cursor, "on_limits")
        managed_ledger.set_limits(managed_ledger.limits._replace(mark_delete_per_s=2.0))
        await some_turns(5)
        assert 0 < len(told) < MANY
        # Another comes, one goes, and the rate is another one before all are told of the first.
        await cursor_at(managed_ledger, "late", start)
        await managed_ledger.cursors[f"c{MANY - 1}"].delete()
        before = len(told)
        managed_ledger.set_limits(managed_ledger.limits._replace(mark_delete_per_s=3.0))
        await managed_ledger.finish_tasks()
        turns.stop()
        assert before < MANY
        assert {told[name] for name in managed_ledger.cursors} == {3.0}
        assert turns.most <= 2  # of the first rate, which ends there, and of the second

    run_node(tmp_path, scenario)


def test_a_request_about_one_of_many_subscriptions_looks_at_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        topic.reader_for("reader", topic.last_confirmed)
        other = await broker.topic("non-persistent://public/default/t")
        reader = other.reader_for("s1", topic.last_confirmed)

        def found(name: str, of: Topic = topic) -> Subscription:
            request = SimpleNamespace(parameters={"subName": name})
            return topic_work.subscription_of(cast(Any, request), of)

        turns = Turns()
        turns.count(monkeypatch, Topic, "all_subscriptions")
        assert found("s1") is topic.subscriptions["s1"]
        assert found("s1", other) is reader
        for name in ("reader", "s"):
            with pytest.raises(SubscriptionNotFound):
                found(name)
        topic.subscriptions["s1"].closing = True
        with pytest.raises(ServiceNotReady):
            found("s1")
        topic.subscriptions["s1"].closing = False
        turns.stop()
        assert turns.most == 0

    run(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_the_subscriptions_of_a_topic_are_made_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        names = set(topic.subscriptions)
        await broker.topics.deletion.unload(topic.name)
        turns = Turns()
        turns.count(monkeypatch, persistent, "Subscription")
        opened = await broker.topic()
        turns.stop()
        assert set(opened.subscriptions) == names
        assert {each.backlog for each in opened.subscriptions.values()} == {5}
        assert turns.most == 1

    run(tmp_path, scenario)


def test_acknowledgements_that_pass_a_ledger_do_not_look_at_all_cursors_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 300
    looked_at = 0
    needs_after = Cursor.needs_after

    def counted(cursor: Cursor) -> Position:
        nonlocal looked_at
        looked_at += 1
        return needs_after.__get__(cursor)

    async def scenario(node: Node) -> None:
        managed_ledger = await filled(node, SHORT)
        ids = sorted(managed_ledger.ledgers)
        start = Position(ids[0], -1)
        cursors = [await cursor_at(managed_ledger, f"c{number}", start) for number in range(count)]
        monkeypatch.setattr(Cursor, "needs_after", property(counted))
        end = Position(ids[1], 0)
        for each in cursors[:-1]:
            assert each.acknowledge_up_to(end)
        assert sorted(managed_ledger.ledgers) == ids
        # Each of them asked; what one in a hundred thousand tests sees is 40 for each.
        assert looked_at < 40 * count
        assert cursors[-1].acknowledge_up_to(end)
        await settled(managed_ledger)
        assert sorted(managed_ledger.ledgers) == ids[1:]

    run_node(tmp_path, scenario)


def test_no_cursor_is_looked_at_while_retention_keeps_the_oldest_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    needs_after = Cursor.needs_after

    def noted(cursor: Cursor) -> Position:
        looked_at.append(cursor.name)
        return needs_after.__get__(cursor)

    async def scenario(node: Node) -> None:
        managed_ledger = await filled(node, SHORT)
        ids = sorted(managed_ledger.ledgers)
        end = managed_ledger.last_confirmed
        cursors = [await cursor_at(managed_ledger, f"c{number}", end) for number in range(MANY)]
        managed_ledger.set_limits(managed_ledger.limits.keeping(3600, -1))
        monkeypatch.setattr(Cursor, "needs_after", property(noted))
        for each in cursors[:-1]:
            await each.delete()
        managed_ledger.roll_over_if_consumed()
        await settled(managed_ledger)
        assert looked_at == []
        assert sorted(managed_ledger.ledgers) == ids
        managed_ledger.set_limits(managed_ledger.limits.keeping(0, 0))
        await cursors[-1].delete()
        await settled(managed_ledger)
        assert sorted(managed_ledger.ledgers) == ids[-1:]

    run_node(tmp_path, scenario)


@pytest.mark.usefixtures("no_time")
def test_subscriptions_of_a_closed_topic_are_named_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may be long, and what its node is called takes some time to decode."""

    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        wanted = set(topic.subscriptions)
        await broker.topics.deletion.unload(topic.name)
        turns = Turns()
        turns.count(monkeypatch, registry, "decode")
        assert set(await broker.topics.registry.subscription_names(topic.name)) == wanted
        assert (sum(turns.done.values()), turns.most) == (MANY, 1)
        before = turns.number
        status, names = await Rest(broker)("GET", f"{P}/t/subscriptions")
        turns.stop()
        assert (status, set(names)) == (200, wanted)
        assert turns.most == 1
        assert turns.number - before > 2 * MANY, "each is decoded, and put with the others"

    run(tmp_path, scenario)


def test_policies_reach_many_subscriptions_some_in_each_turn_and_the_newest_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        over_at_once(topic.turn.dispatching)
        turns = Turns()
        turns.count(monkeypatch, Dispatcher, "on_policies")

        def begin(messages: int) -> None:
            rate = DispatchRate(messages)
            topic.on_policies(topic.policies._replace(subscription_dispatch_rate=rate))

        begin(1)
        await some_turns(MANY // 2)
        before = sum(turns.done.values())
        assert 0 < before < MANY
        begin(2)
        made = await topic.subscription_for("new", topic.first_position(), {}, True)
        await topic.wait_disconnected()
        turns.stop()
        told = sum(turns.done.values()) - before
        assert told in (MANY, MANY + 1), "of the older ones nobody is told any more"
        assert turns.most == 1
        assert made is topic.subscriptions["new"]
        rates = [each.dispatch_limiter for each in topic.subscriptions.values()]
        assert [each.rate.messages for each in rates if each] == [2] * (MANY + 1)

    run(tmp_path, scenario)


def test_a_topic_that_closes_while_many_subscriptions_are_told_of_policies_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await topic_with_subscriptions(broker)
        over_at_once(topic.turn.dispatching)
        turns = Turns()
        turns.count(monkeypatch, Dispatcher, "on_policies")
        topic.on_policies(topic.policies._replace(subscription_dispatch_rate=DispatchRate(1)))
        await topic.close()
        told = sum(turns.done.values())
        await asyncio.sleep(0.01)
        turns.stop()
        assert sum(turns.done.values()) == told, "nobody is told of anything afterwards"
        assert turns.most == 1

    run(tmp_path, scenario)
