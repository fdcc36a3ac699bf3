"""Many consumers of one subscription: who comes or goes costs its own, and all are sent away bit by
bit.
"""

from __future__ import annotations

import pkgutil
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dispatching import ENTRIES, Desk, opened
from one_broker import Broker, Client, run
from pyxbroker import _native
from pyxbroker.base import pacing
from pyxbroker.broker.commands import seek
from pyxbroker.broker.commands.topic_commands import TopicCommands
from pyxbroker.broker.dispatch import kinds, redelivery
from pyxbroker.broker.dispatch.choosers import RoundRobin, SingleActive
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.dispatch.selectors import ConsistentHashing, FailoverRing, KeySharedPolicy
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.delivery import BlockedConsumers, total_read_budget
from pyxbroker.entry import Position
from pyxbroker.proto import PulsarApi as pb
from stored import LEDGER

__all__ = ["opened"]

FEW, MANY = 100, 3_000
RATIO_MAX = 3  # of what it takes among many and among few; it grew with their number, or worse
SOME = 200  # consumers that are sent away, of a subscription of a broker

KINDS = [
    pb.CommandSubscribe.Shared,
    pb.CommandSubscribe.Failover,
    pb.CommandSubscribe.Key_Shared,
]


# --- who comes and goes one by one ----------------------------------------------------------------


def seconds(act: Callable[[], object]) -> float:
    before = time.process_time()
    act()
    return time.process_time() - before


@pytest.mark.parametrize(
    "kind", [kinds.shared, kinds.failover, kinds.key_shared], ids=lambda it: it.__name__
)
def test_who_comes_or_goes_costs_the_same_however_many_there_are(
    opened: _native.Storage, kind: Callable[[Any, KeySharedPolicy], Dispatcher]
) -> None:
    desk = Desk(opened, lambda it: kind(it, KeySharedPolicy()))
    try:
        joined = [desk.join(f"consumer-{number}") for number in range(FEW)]

        def some_come_and_go() -> None:
            came = [desk.join(f"another-{number}") for number in range(20)]
            # The oldest one of the others, too: it is not only quick for who came last.
            for consumer in [*came, joined.pop(0)]:
                desk.leave(consumer)

        few = min(seconds(some_come_and_go) for _ in range(5))
        joined += [desk.join(f"more-{number}") for number in range(MANY)]
        many = min(seconds(some_come_and_go) for _ in range(5))
        assert many < few * RATIO_MAX
    finally:
        desk.close()


def test_the_next_active_consumer_is_told_to_all_once_though_bit_by_bit(
    opened: _native.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "STEPS_PER_BATCH", 7)
    told: list[tuple[int, bool]] = []

    def note(consumer_id: int, is_active: bool) -> bytes:
        told.append((consumer_id, is_active))
        return b"x"

    monkeypatch.setattr("pyxbroker.broker.commands.replies.active_consumer_change", note)
    desk = Desk(opened, lambda it: kinds.failover(it, KeySharedPolicy()), failover_delay_s=0)
    try:
        desk.connection.protocol_version = 12
        steps: list[Callable[[], None]] = []
        desk.connection.session.step_queue.wait = steps.append

        def tell() -> None:
            told.clear()
            while steps:
                before = len(told)
                steps.pop(0)()
                assert len(told) <= before + 7

        joined = [desk.join(f"consumer-{number}", priority=1) for number in range(30)]
        tell()
        # While they are told, another one is active, and then another.
        first = desk.join("a", priority=0)
        assert len(steps) == 1
        desk.leave(first)
        assert len(steps) == 1
        tell()
        last = dict(told)
        assert isinstance(desk.dispatcher.chooser, SingleActive)
        chosen = desk.dispatcher.chooser.active
        assert {each.consumer_id: each is chosen for each in joined} == last
        assert max(Counter(each for each, _ in told).values()) == 1
    finally:
        desk.close()


# --- who can take nothing -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "asks"),
    [
        (kinds.shared, "choosers.RoundRobin.next_consumer"),
        (kinds.key_shared, "key_shared.total_read_budget"),
        (kinds.failover, "choosers.SingleActive.next_consumer"),
    ],
)
def test_what_is_published_asks_nobody_while_nobody_can_take_any(
    opened: _native.Storage,
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[[Any, KeySharedPolicy], Dispatcher],
    asks: str,
) -> None:
    desk = Desk(
        opened,
        lambda it: kind(it, KeySharedPolicy()),
        unacked_per_consumer_max=1,
        failover_delay_s=0,
        delayed_delivery=False,
    )
    calls: Counter[str] = Counter()
    name = f"pyxbroker.broker.dispatch.{asks}"
    ask = pkgutil.resolve_name(name)

    def counted(*args: Any) -> Any:
        calls["asked"] += 1
        return ask(*args)

    monkeypatch.setattr(name, counted)
    try:
        joined = [desk.join(f"consumer-{number}") for number in range(10)]
        for consumer in joined:
            # They stop at their limits, or for want of permits.
            consumer.on_flow(2 if kind is not kinds.failover else 30)
        desk.publish(30)
        desk.send()
        out = sum(each.msg_out for each in joined)
        assert out > 0
        if kind is kinds.key_shared:
            # Those that own no key could take some still, so what there is is read for them.
            for consumer in joined:
                consumer.permits = 0
        calls.clear()
        for _ in range(100):
            desk.publish(1)
        assert calls["asked"] <= 1
        # Who can take some again gets it at once.
        for consumer in joined:
            held = [entry for _, entry in consumer.pending_positions()]
            desk.acknowledge(consumer, held)
            consumer.on_flow(10)
        desk.send()
        assert sum(each.msg_out for each in joined) > out
    finally:
        desk.close()


def test_choosing_asks_few_however_many_cannot_take_any(opened: _native.Storage) -> None:
    """Neither one of the best level without permits nor one that has left makes it ask all."""
    desk = Desk(
        opened,
        lambda it: kinds.shared(it, KeySharedPolicy()),
        unacked_per_subscription_max=250,
        round_robin_max=1,
        delayed_delivery=False,
    )
    try:
        chooser = desk.dispatcher.chooser
        assert isinstance(chooser, RoundRobin)
        rotation = chooser._rotation
        desk.join("first", 0)
        desk.leave(desk.join("gone", 0))
        joined = [desk.join(f"consumer-{number}", 1) for number in range(SOME)]
        asked = rotation.eligibility_checks

        def asks_at_most(count: int) -> None:
            nonlocal asked
            assert rotation.eligibility_checks - asked <= count
            asked = rotation.eligibility_checks

        for consumer in joined:
            consumer.on_flow(1)
        desk.publish(100)
        desk.send()
        assert sum(each.msg_out for each in joined) == 100
        asks_at_most(3 * 100)
        # None of them has permits at the end: each is found out once.
        desk.publish(200)
        desk.send()
        assert [each.msg_out for each in joined] == [1] * SOME
        asks_at_most(4 * SOME)
        for consumer in joined:
            consumer.on_flow(1)
        desk.send()
        assert desk.dispatcher.limits.unacked.blocked
        asks_at_most(5 * SOME)
        # Where all have too much unacknowledged together, one of them says so for all.
        for consumer in joined:
            consumer.on_flow(1)
            desk.dispatcher.redeliver(consumer, [(LEDGER, 399)])
        asks_at_most(3 * SOME)
        held = [(each, entry) for each in joined for _, entry in each.pending_positions()]
        for consumer, entry in held:
            desk.acknowledge(consumer, [entry])
        desk.send()
        assert sum(each.msg_out for each in joined) == 300
        asks_at_most(5 * SOME)
    finally:
        desk.close()


@pytest.mark.parametrize("seed", range(5))
def test_what_consumers_can_take_together_is_the_sum_of_what_each_can(
    opened: _native.Storage, seed: int
) -> None:
    random = Random(seed)
    desk = Desk(opened, lambda it: kinds.key_shared(it, KeySharedPolicy()))
    try:
        joined = [desk.join(f"consumer-{number}") for number in range(20)]
        for consumer in joined:
            consumer.permits = random.choice([-1, 0, 1, 5])
            consumer.set_unacked_max(random.choice([0, 0, 1]))
            consumer.closed = random.random() < 0.1
        for count_max, size_max in ((1000, 1 << 40), (12, 1 << 40), (3, 1)):
            each = [it.read_budget(count_max, size_max) for it in joined if it.can_deliver]
            blocked = BlockedConsumers()
            assert total_read_budget(joined, count_max, size_max, blocked) == (
                min(sum(count for count, _ in each), count_max),
                min(sum(size for _, size in each), size_max),
            )
            assert blocked.consumers == []
    finally:
        desk.close()


def test_nobody_is_asked_behind_those_who_can_take_enough(opened: _native.Storage) -> None:
    """Reading for one costs the same however many others there are."""
    desk = Desk(
        opened,
        lambda it: kinds.key_shared(it, KeySharedPolicy()),
        unacked_per_consumer_max=1,
        delayed_delivery=False,
    )
    try:
        full = desk.join("full")
        full.on_flow(5)
        desk.publish(1)
        desk.send()
        assert full.permits == 4 and full.is_blocked
        others = [desk.join(f"consumer-{number}") for number in range(2)]
        for consumer in others:
            consumer.permits = 5
        entries, size = others[0].read_budget(100, 1 << 40)
        # Where all have to be asked, who is full is.
        for entries_max, size_max, asked in (
            (entries, size, []),
            (2 * entries, size, []),
            (2 * entries + 1, size, [full]),
            (entries, 2 * size + 1, [full]),
        ):
            blocked = BlockedConsumers()
            total_read_budget([*others, full], entries_max, size_max, blocked)
            assert blocked.consumers == asked
    finally:
        desk.close()


# --- what is skipped ------------------------------------------------------------------------------


def test_what_was_redelivered_and_is_skipped_is_forgotten_bit_by_bit(
    opened: _native.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "COUNTS_PER_STEP", 1)
    desk = Desk(opened, lambda it: kinds.shared(it, KeySharedPolicy()), delayed_delivery=False)
    try:
        steps: list[Callable[[], None]] = []
        desk.connection.session.step_queue.wait = steps.append
        consumer = desk.join("c")
        consumer.on_flow(ENTRIES)
        desk.publish(ENTRIES)
        desk.dispatcher.redeliver_all(consumer)
        counts = desk.dispatcher.redelivery.counts
        assert len(counts) == ENTRIES
        desk.dispatcher.skip_to(Position(LEDGER, ENTRIES - 11))
        assert len(counts) >= ENTRIES - pacing.STEPS_PER_BATCH
        before = len(counts)
        while steps:
            steps.pop(0)()
            assert len(counts) >= before - pacing.STEPS_PER_BATCH
            before = len(counts)
        assert sorted(counts) == [(LEDGER, entry) for entry in range(ENTRIES - 10, ENTRIES)]
    finally:
        desk.close()


def test_what_a_consumer_has_up_to_a_position_comes_in_parts(opened: _native.Storage) -> None:
    desk = Desk(opened, lambda it: kinds.shared(it, KeySharedPolicy()), delayed_delivery=False)
    try:
        consumer = desk.join("c")
        consumer.on_flow(50)
        desk.publish(50)
        desk.acknowledge(consumer, [3, 40])
        parts = list(consumer.pending_up_to(LEDGER, 41, 16))
        assert [len(each) for each in parts] == [16, 16, 8]
        assert list(chain(*parts)) == [
            each for each in consumer.pending_positions() if each[1] <= 41
        ]
        assert list(chain(*consumer.pending_up_to(LEDGER - 1, 99, 16))) == []
        assert (
            list(chain(*consumer.pending_up_to(LEDGER + 1, 0, 99))) == consumer.pending_positions()
        )
        # What is settled meanwhile changes nothing but what follows.
        for part in consumer.pending_up_to(LEDGER, 41, 16):
            desk.acknowledge(consumer, [entry for _, entry in part])
        assert {entry for _, entry in consumer.pending_positions()} == set(range(42, 50))
    finally:
        desk.close()


# --- all who go at once ---------------------------------------------------------------------------


async def subscribed(client: Client, kind: int, count: int) -> None:
    for consumer_id in range(1, count + 1):
        await client.subscribe(consumer_id, permits=0, subType=kind)


def send_seek(client: Client, consumer_id: int, request_id: int) -> None:
    client.send(
        pb.CommandSeek(consumer_id=consumer_id, request_id=request_id, message_publish_time=1)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_seek_chooses_rebuilds_and_wakes_once_however_many_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    calls: Counter[str] = Counter()

    def counted(cls: type, name: str) -> None:
        method = getattr(cls, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return method(*args)

        monkeypatch.setattr(cls, name, call)

    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        await broker.publish(b"1", b"2")
        await subscribed(client, kind, SOME)
        await other.subscribe(1, permits=0, subType=kind)
        for cls, name in (
            (Dispatcher, "wake"),
            (Dispatcher, "rewind"),
            (FailoverRing, "first"),
            (ConsistentHashing, "owners"),
        ):
            counted(cls, name)
        at_once: list[int] = []
        disconnect = Subscription.disconnect

        def watched(subscription: Subscription, *args: Any) -> None:
            disconnect(subscription, *args)
            at_once.append(SOME + 1 - len(client.connection.consumers))

        monkeypatch.setattr(Subscription, "disconnect", watched)
        send_seek(other, 1, 99)
        told = {(await client.receive("close_consumer")).consumer_id for _ in range(SOME)}
        assert told == set(range(1, SOME + 1))
        assert (await other.receive("success")).request_id == 99
        assert sum(calls.values()) < 10
        assert at_once[0] <= pacing.STEPS_PER_BATCH + 1
        for each in (client, other):
            assert each.connection.consumers == {}
            assert each.connection.session.moves == {}
        # Who comes back is served.
        await client.subscribe(1, permits=10, subType=kind)
        assert [each.data for each in await client.messages(2)] == [b"1", b"2"]

    run(tmp_path, scenario)


def test_what_is_closed_and_not_told_yet_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "STEPS_PER_BATCH", 1)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await broker.publish(*[b"%d" % number for number in range(20)])
        used = client.connection.session.memory.used
        await subscribed(client, pb.CommandSubscribe.Shared, 5)
        for consumer_id in range(1, 6):
            client.flow(4, consumer_id)
        await client.messages(20)
        subscription = (await broker.topic()).subscriptions["s"]
        sent, connection = subscription.sent(), client.connection
        with seek.moving(subscription):
            # One is told; the others keep their ids, and nothing comes to them.
            assert sorted(connection.consumers) == [2, 3, 4, 5]
            assert (subscription.consumers, subscription.sent()) == ([], sent)
            assert subscription.dispatcher.limits.unacked.messages == 0
            for consumer_id in (1, 2):
                assert seek.move_of(connection, consumer_id) is subscription.move
            client.send(pb.CommandUnsubscribe(consumer_id=4, request_id=50))
            client.send(pb.CommandSeek(consumer_id=5, request_id=51, message_publish_time=1))
            client.flow(5, 3)
            # Its client closes it, and is not told what it knows.
            TopicCommands._close_consumer(connection, 2)
        errors = {(await client.receive("error")).request_id for _ in range(2)}
        assert errors == {50, 51}
        told = {(await client.receive("close_consumer")).consumer_id for _ in range(4)}
        assert told == {1, 3, 4, 5}
        assert (subscription.sent(), subscription._detached) == (sent, [])
        assert (connection.consumers, connection.session.moves) == ({}, {})
        assert connection.session.memory.used == used
        assert (await client.quiet()) == []
        await client.subscribe(1, subType=pb.CommandSubscribe.Shared)
        assert {each.redelivery_count for each in await client.messages(20)} == {0}

    run(tmp_path, scenario)


def test_a_client_that_hangs_up_before_it_is_told_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "STEPS_PER_BATCH", 1)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await subscribed(client, pb.CommandSubscribe.Key_Shared, 5)
        subscription = (await broker.topic()).subscriptions["s"]
        subscription.disconnect()
        client.connection.close()
        await (await broker.client()).subscribe(1, subType=pb.CommandSubscribe.Shared)
        assert [each.connection is client.connection for each in subscription.consumers] == [False]
        assert (subscription._detached, client.connection.consumers) == ([], {})

    run(tmp_path, scenario)
