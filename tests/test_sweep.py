"""The sweep: policies hold for topics that nobody has opened, at little cost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest

from one_bookie import Node, append, until
from one_broker import TOPIC, Broker, run
from pyxbroker.base.bundles import WHOLE, Bundle
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.topics import sweep
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.sweep import due_ms
from pyxbroker.cluster import splitting
from pyxbroker.entry import Position
from pyxbroker.metadata import paths
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.mledger.closed import ClosedCursor, ClosedLedger, read_all_closed, read_closed
from pyxbroker.mledger.positions import LedgerRecord
from pyxbroker.policies.values import (
    CONSUMER_BACKLOG_EVICTION,
    DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP,
    BacklogQuota,
    InactiveTopics,
    Policies,
    Retention,
)
from pyxbroker.proto import PulsarApi as pb

NAME = "public/default/persistent/t"
KEEP = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}


@pytest.fixture(autouse=True)
def _no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PAUSE_SHARE", 0)


async def closed_topic(broker: Broker, *data: bytes, ledgers: int = 1) -> PersistentTopic:
    """A topic with a subscription that has acknowledged nothing, closed again."""
    topic = await broker.topic()
    assert isinstance(topic, PersistentTopic)
    if "s" not in topic.subscriptions:
        await topic.subscription_for("s", topic.first_position(), {}, True)
    for n in range(ledgers):
        await append(topic.managed_ledger, *data)
        if n < ledgers - 1:
            topic.managed_ledger.roll_over()
            await topic.managed_ledger.finish_tasks()
    await broker.topics.deletion.unload(topic.name)
    return topic


async def set_policies(broker: Broker, **fields: Any) -> None:
    value = json.dumps(KEEP | fields).encode()
    await broker.node.store.put(paths.namespace_policies("public/default"), value)
    # Its cache is told.
    await asyncio.sleep(0.01)


async def look(broker: Broker, later_s: float = 0.0) -> None:
    """The next look, so much later; nothing is open when it is done."""
    now = broker.topics.sweep.wall_clock()
    broker.topics.sweep.wall_clock = lambda: now + later_s
    await broker.topics.sweep.run()
    assert len(broker.topics.registry) == 0


async def found(broker: Broker) -> ClosedLedger | None:
    return await read_closed(broker.node.store, NAME)


async def backlog(broker: Broker) -> int:
    topic = await broker.topic()
    entries = topic.subscriptions["s"].backlog
    await broker.topics.deletion.unload(topic.name)
    return entries


# --- what is done -----------------------------------------------------------------------------


def test_messages_expire_and_their_space_comes_back(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await closed_topic(broker, b"x" * 1000, ledgers=3)
        await set_policies(broker, message_ttl_in_seconds=600)
        await look(broker)
        listed = await found(broker)
        assert listed is not None and len(listed.ledgers) == 3
        await set_policies(broker, message_ttl_in_seconds=600, retention_policies=None)
        await look(broker, 601)
        listed = await found(broker)
        assert listed is not None and listed.ledgers == []
        assert await backlog(broker) == 0

    run(tmp_path, scenario)


def test_only_topics_of_the_bundles_of_this_broker_are_checked(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await closed_topic(broker, b"x")
        await set_policies(broker, message_ttl_in_seconds=600)
        half = splitting.halves(WHOLE)[0]
        lower, upper = Bundle(WHOLE.lower, half), Bundle(half, WHOLE.upper)
        own, other = (lower, upper) if topic.name in lower else (upper, lower)
        checked: tuple[Bundle, ...] = (other,)

        async def bundles(namespace: str) -> tuple[Bundle, ...]:
            return checked

        broker.topics.sweep.bundles = bundles
        await look(broker, 601)
        assert await backlog(broker) == 1
        # The topic was closed since, but its bundle belongs to another broker.
        await look(broker, 10)
        assert await backlog(broker) == 1
        # All is checked when the broker has more bundles.
        checked = (own,)
        await look(broker, 10)
        assert await backlog(broker) == 0

    run(tmp_path, scenario)


def test_a_subscription_is_deleted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await closed_topic(broker)
        await set_policies(broker, subscription_expiration_time_minutes=10)
        await look(broker, 590)
        assert await broker.node.store.exists(paths.cursor(NAME, "s"))
        await look(broker, 20)
        assert not await broker.node.store.exists(paths.cursor(NAME, "s"))

    run(tmp_path, scenario, brokerDeleteInactiveTopicsEnabled=False)


def test_a_backlog_is_evicted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await closed_topic(broker, *[b"x" * 1000] * 10, ledgers=3)
        size = topic.managed_ledger.size // 30
        quota = {"limitSize": 20 * size, "policy": "consumer_backlog_eviction"}
        await set_policies(broker, backlog_quota_map={"destination_storage": quota})
        await look(broker)
        assert await backlog(broker) == 18
        age = {"limitTime": 60, "policy": "consumer_backlog_eviction"}
        await set_policies(broker, backlog_quota_map={"message_age": age})
        await look(broker, 100)
        assert await backlog(broker) == 0

    run(tmp_path, scenario)


def test_what_is_acknowledged_goes_when_it_was_retained_for_long_enough(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        topic = await broker.topic()
        assert isinstance(topic, PersistentTopic)
        await topic.subscription_for("s", topic.first_position(), {}, True)
        await append(topic.managed_ledger, b"one")
        topic.subscriptions["s"].cursor.acknowledge_up_to(topic.last_confirmed)
        await broker.topics.deletion.unload(topic.name)
        listed = await found(broker)
        assert listed is not None and len(listed.ledgers) == 1
        await set_policies(broker)
        await look(broker)
        listed = await found(broker)
        assert listed is not None and len(listed.ledgers) == 1
        await set_policies(broker, retention_policies=None)
        await look(broker)
        listed = await found(broker)
        assert listed is not None and listed.ledgers == []

    run(tmp_path, scenario)


def test_an_inactive_topic_is_deleted(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.publish(b"one")
        await broker.topics.deletion.unload(TopicName.get(TOPIC))
        policy = {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 300,
            "deleteWhileInactive": True,
        }
        await set_policies(broker, inactive_topic_policies=policy, retention_policies=None)
        await look(broker, 250)
        assert await found(broker) is not None
        await look(broker, 51)
        assert await found(broker) is not None, "somebody has opened it since: the sweep"
        await look(broker, 301)
        assert await found(broker) is None

    run(tmp_path, scenario)


def test_what_a_kill_left_is_looked_after(tmp_path: Path) -> None:
    """The topic was open, and nobody comes back to it."""

    async def main() -> None:
        async with Broker(tmp_path / "bookie") as broker:
            topic = await broker.topic()
            assert isinstance(topic, PersistentTopic)
            await topic.subscription_for("s", topic.first_position(), {}, True)
            await broker.publish(b"in 1970")
            tree, directory = broker.node.tree, broker.node.kill().directory
            successor = Broker(directory)
            successor.node = Node(directory, tree)
            async with successor:
                await set_policies(successor, message_ttl_in_seconds=60)
                await look(successor, 61)
                assert await backlog(successor) == 0

    asyncio.run(main())


# --- what is not done -------------------------------------------------------------------------


def test_who_uses_a_topic_keeps_it_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await closed_topic(broker, b"x")
        await set_policies(broker, message_ttl_in_seconds=60)
        expire = sweep.upkeep.expire_messages

        async def while_somebody_comes(topic: PersistentTopic) -> None:
            await client.produce(1)
            await expire(topic)

        monkeypatch.setattr(sweep.upkeep, "expire_messages", while_somebody_comes)
        now = broker.topics.sweep.wall_clock()
        broker.topics.sweep.wall_clock = lambda: now + 100
        await broker.topics.sweep.run()
        [topic] = broker.topics.registry
        assert topic.subscriptions["s"].backlog == 0
        assert len(topic.producers) == 1

    run(tmp_path, scenario)


def test_a_topic_that_somebody_has_just_used_is_not_inactive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He came, and left again, after the sweep had seen that the topic was not open."""

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await broker.publish(b"one")
        await broker.topics.deletion.unload(TopicName.get(TOPIC))
        policy = {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 300,
            "deleteWhileInactive": True,
        }
        retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
        await set_policies(broker, inactive_topic_policies=policy, retention_policies=retention)
        due, came = broker.topics.sweep._due_ms, []

        async def while_somebody_comes(name: TopicName) -> float:
            due_ms = await due(name)
            if not came:
                came.append(name)
                await client.produce(1)
                await broker.publish(b"two")
                await client.request(pb.CommandCloseProducer(producer_id=1), "success")
            return due_ms

        monkeypatch.setattr(broker.topics.sweep, "_due_ms", while_somebody_comes)
        now = broker.topics.sweep.wall_clock()
        broker.topics.sweep.wall_clock = lambda: now + 301
        await broker.topics.sweep.run()
        assert came
        assert (await broker.topic()).entries == 2

    run(tmp_path, scenario)


def test_nothing_is_opened_and_nothing_is_read_before_something_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        store = broker.node.store
        for n in range(20):
            topic = await broker.topic(f"{TOPIC}-{n}")
            assert isinstance(topic, PersistentTopic)
            await topic.subscription_for("s", topic.first_position(), {}, True)
            await append(topic.managed_ledger, b"x")
            await broker.topics.deletion.unload(topic.name)
        await set_policies(broker, message_ttl_in_seconds=600)
        got: list[str] = []
        get_all = store.get_all

        def noting(asked: Sequence[str]) -> Any:
            got.extend(asked)
            return get_all(asked)

        monkeypatch.setattr(store, "get_all", noting)
        versions = [await _version(broker, n) for n in range(20)]
        await look(broker)
        assert len([path for path in got if path.startswith(paths.MANAGED_LEDGERS)]) == 40
        got.clear()
        for _ in range(10):
            await look(broker, 50)
        assert [path for path in got if path.startswith(paths.MANAGED_LEDGERS)] == []
        assert [await _version(broker, n) for n in range(20)] == versions
        # A change of the policies, and a topic that was closed, are looked at.
        await set_policies(broker, message_ttl_in_seconds=10)
        await look(broker)
        assert [await _version(broker, n) for n in range(20)] != versions
        await set_policies(broker, message_ttl_in_seconds=1000)
        await look(broker)
        await closed_topic(broker, b"x")
        got.clear()
        await look(broker)
        # The others of its namespace are not.
        read = {path for path in got if path.startswith(paths.MANAGED_LEDGERS)}
        assert read == {paths.managed_ledger(NAME), paths.cursor(NAME, "s")}
        # Nor is it forgotten until it is due.
        got.clear()
        await look(broker, 1001)
        assert paths.managed_ledger(NAME) in got

    run(tmp_path, scenario)


def test_many_topics_are_read_in_few_ways_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be read is told of itself alone."""

    async def scenario(broker: Broker) -> None:
        store = broker.node.store
        for n in range(20):
            topic = await broker.topic(f"{TOPIC}-{n}")
            assert isinstance(topic, PersistentTopic)
            for name in ("a", "b"):
                await topic.subscription_for(name, topic.first_position(), {}, True)
            await append(topic.managed_ledger, b"x")
            await broker.topics.deletion.unload(topic.name)
        names = [f"{NAME}-{n}" for n in range(20)]
        one_by_one = [await read_closed(store, name) for name in names]
        await store.put(paths.managed_ledger(names[3]), b"\xff")
        await store.put(paths.cursor(names[5], "b"), b"\xff")
        asked: list[int] = []

        def noting(ask: Any) -> Any:
            def issue(paths_of: Sequence[str]) -> Any:
                asked.append(len(paths_of))
                return ask(paths_of)

            return issue

        monkeypatch.setattr(store, "get_all", noting(store.get_all))
        monkeypatch.setattr(store, "children_all", noting(store.children_all))
        together = await read_all_closed(store, [*names, "public/default/persistent/none"])
        assert isinstance(together[3], MalformedRecord)
        assert isinstance(together[5], MalformedRecord)
        assert together[20] is None
        for n in set(range(20)) - {3, 5}:
            assert together[n] == one_by_one[n]
        assert asked == [21, 21, 40], "their nodes, the names of their cursors, and those"

    run(tmp_path, scenario)


def test_a_topic_that_cannot_be_judged_does_not_keep_those_that_are_read_with_it(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        await closed_topic(broker, b"x")
        for name in ("a", "z"):
            path = paths.managed_ledger(f"public/default/persistent/{name}")
            await broker.node.store.put(path, b"\xff")
        await set_policies(broker, message_ttl_in_seconds=60)
        await look(broker, 61)
        assert await backlog(broker) == 0

    run(tmp_path, scenario)


async def _version(broker: Broker, n: int) -> int:
    node = await broker.node.store.get(paths.managed_ledger(f"{NAME}-{n}"))
    assert node is not None
    return node.version


def test_a_topic_that_takes_for_ever_does_not_keep_the_sweep_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(sweep, "TOPIC_S", 0.05)
        names = [TopicName.get(f"{TOPIC}-{n}") for n in range(3)]
        for name in names:
            topic = await broker.topic(str(name))
            assert isinstance(topic, PersistentTopic)
            await topic.subscription_for("s", topic.first_position(), {}, True)
            await append(topic.managed_ledger, b"x")
            await broker.topics.deletion.unload(topic.name)
        await set_policies(broker, message_ttl_in_seconds=60)
        expire, answer = sweep.upkeep.expire_messages, asyncio.Event()
        begun: list[TopicName] = []

        async def while_a_disk_does_not_answer(topic: PersistentTopic) -> None:
            begun.append(topic.name)
            if topic.name == begun[0]:
                await answer.wait()
            await expire(topic)

        monkeypatch.setattr(sweep.upkeep, "expire_messages", while_a_disk_does_not_answer)
        now = broker.topics.sweep.wall_clock()
        broker.topics.sweep.wall_clock = lambda: now + 100
        await asyncio.wait_for(broker.topics.sweep.run(), 5)
        assert len(begun) == 3
        assert set(begun) == set(names)
        assert await broker.topics.registry.open_names("public/default", "persistent") == [begun[0]]
        # Nor is it begun twice.
        broker.topics.sweep.wall_clock = lambda: now + 1000
        await asyncio.wait_for(broker.topics.sweep.run(), 5)
        assert begun.count(begun[0]) == 1
        answer.set()
        await until(lambda: len(broker.topics.registry) == 0)
        for name in names:
            topic = await broker.topic(str(name))
            assert topic.subscriptions["s"].backlog == 0

    run(tmp_path, scenario)


def test_the_sweep_rests_for_what_it_did_and_less_for_what_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    worked_s, at_s = 0.0, 0.0

    async def scenario(broker: Broker) -> None:
        monkeypatch.setattr(sweep, "PAUSE_SHARE", 30)

        async def noting(seconds: float) -> None:
            slept.append(seconds)

        async def rest(worked: float, lasted: float) -> list[float]:
            nonlocal worked_s, at_s
            slept.clear()
            broker.topics.sweep._begin_work()
            worked_s, at_s = worked_s + worked, at_s + lasted
            await broker.topics.sweep._pause()
            return [round(each, 6) for each in slept]

        with monkeypatch.context() as patch:
            patch.setattr(sweep.asyncio, "sleep", noting)
            patch.setattr(sweep.time, "thread_time", lambda: worked_s)
            patch.setattr(sweep.time, "monotonic", lambda: at_s)
            assert await rest(0.001, 0.001) == []
            assert await rest(0.02, 0.03) == [0.6]
            assert await rest(0.001, 0.5) == [0.5]
            assert await rest(1.0, 60.0) == [sweep.PAUSE_MAX_S]

    run(tmp_path, scenario)


def test_the_sweep_rests_most_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def scenario(broker: Broker) -> None:
        await closed_topic(broker, b"x")
        await set_policies(broker)
        monkeypatch.setattr(sweep, "PAUSE_SHARE", 30)
        monkeypatch.setattr(sweep, "WORK_S", 0.0)
        sleep = asyncio.sleep

        async def noting(seconds: float) -> None:
            slept.append(seconds)
            await sleep(0)

        monkeypatch.setattr(sweep.asyncio, "sleep", noting)
        began = time.thread_time()
        await broker.topics.sweep.run()
        worked_s = time.thread_time() - began
        assert sum(slept) > worked_s * 15

    run(tmp_path, scenario)


# --- when something is due --------------------------------------------------------------------

STARTED_MS = 1_000_000
HOUR_MS = 3_600_000
NOTHING = Policies(inactive_topics=InactiveTopics(delete=False), retention=Retention(-1.0, -1))


def ledger(ledger_id: int, entries: int, size: int, timestamp_ms: int) -> LedgerRecord:
    return LedgerRecord(ledger_id, entries, size, timestamp_ms, b"")


def closed(*cursors: tuple[int, int], is_open: bool = False, **more: Any) -> ClosedLedger:
    """Ledgers 1 (closed at 10 s) and 2 (closed at 20 s, or not) with ten entries of ten bytes."""
    last = ledger(2, 0, 0, 0) if is_open else ledger(2, 10, 100, 20_000)
    marks = {f"c{n}": Position(*mark) for n, mark in enumerate(cursors)}
    made = {name: ClosedCursor(mark, {}, more.get("active", 0)) for name, mark in marks.items()}
    return ClosedLedger([ledger(1, 10, 100, 10_000), last], made, 15_000)


@pytest.mark.parametrize(
    ("about", "topic", "policies", "due"),
    [
        ("nothing is asked for", closed((1, 0)), NOTHING, inf),
        ("TTL", closed((1, 0)), NOTHING._replace(message_ttl_s=60), 70_000),
        ("of the slowest", closed((1, 9), (1, 3)), NOTHING._replace(message_ttl_s=60), 70_000),
        ("of the next ledger", closed((1, 9)), NOTHING._replace(message_ttl_s=60), 80_000),
        ("caught up", closed((2, 9)), NOTHING._replace(message_ttl_s=60), inf),
        ("no cursor", closed(), NOTHING._replace(message_ttl_s=60), inf),
        (
            "not closed: what it has is younger than the list",
            closed((1, 9), is_open=True),
            NOTHING._replace(message_ttl_s=60),
            75_000,
        ),
        (
            "a subscription, since it was used",
            closed((1, 0), active=2_000_000),
            NOTHING._replace(subscription_expiry_s=60),
            2_060_000,
        ),
        (
            "a subscription of a topic that was killed, since the start",
            closed((1, 0), is_open=True, active=500_000),
            NOTHING._replace(subscription_expiry_s=60),
            1_060_000,
        ),
        (
            "a subscription of a terminated topic, which may have been killed",
            closed((1, 0), active=500_000)._replace(is_terminated=True),
            NOTHING._replace(subscription_expiry_s=60),
            1_060_000,
        ),
        (
            "within the quota",
            closed((1, 4)),
            NOTHING._replace(backlog_size=BacklogQuota(151, CONSUMER_BACKLOG_EVICTION)),
            inf,
        ),
        (
            "over the quota",
            closed((1, 4)),
            NOTHING._replace(backlog_size=BacklogQuota(150, CONSUMER_BACKLOG_EVICTION)),
            0,
        ),
        ("no eviction", closed((1, 4)), NOTHING._replace(backlog_size=BacklogQuota(150)), inf),
        (
            "age",
            closed((1, 4)),
            NOTHING._replace(backlog_age=BacklogQuota(60, CONSUMER_BACKLOG_EVICTION)),
            70_000,
        ),
        ("not acknowledged", closed((1, 4)), NOTHING._replace(retention=Retention()), inf),
        ("acknowledged", closed((1, 9)), NOTHING._replace(retention=Retention()), 0),
        ("for a time", closed((1, 9)), NOTHING._replace(retention=Retention(60.0, -1)), 70_000),
        ("within a size", closed((1, 9)), NOTHING._replace(retention=Retention(-1, 101)), inf),
        ("over a size", closed((1, 9)), NOTHING._replace(retention=Retention(-1, 100)), 0),
        (
            "inactive",
            closed(),
            NOTHING._replace(inactive_topics=InactiveTopics(), retention=Retention(HOUR_MS, -1)),
            HOUR_MS * 1000 + 10_000,
        ),
        (
            "inactive, with nothing to keep",
            ClosedLedger([], {}, 2_000_000),
            NOTHING._replace(inactive_topics=InactiveTopics(), retention=Retention()),
            2_060_000,
        ),
        (
            "a subscription keeps it",
            ClosedLedger([], {"s": ClosedCursor(Position(1, 1), {}, 0)}, 0),
            NOTHING._replace(inactive_topics=InactiveTopics(), retention=Retention()),
            inf,
        ),
        (
            "unless it has caught up",
            ClosedLedger([], {"s": ClosedCursor(Position(1, 1), {}, 0)}, 0),
            NOTHING._replace(
                inactive_topics=InactiveTopics(mode=DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP),
                retention=Retention(),
            ),
            1_060_000,
        ),
    ],
)
def test_when_a_topic_is_due(
    about: str, topic: ClosedLedger, policies: Policies, due: float
) -> None:
    assert due_ms(topic, policies, STARTED_MS) == due, about
