"""What an ACK costs: the same for each position, however many consumers there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dispatching import ENTRIES, MAKERS, Desk, opened
from pyxbroker import _native
from pyxbroker.broker.dispatch import kinds, redelivery
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.dispatch.selectors import KeySharedPolicy
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.entry import AckRun
from stored import LEDGER

__all__ = ["opened"]

MANY = 200
IDS = 20_000
RATIO_MAX = 5  # of what it takes with many consumers and with one; it was more than a hundred


def best_time(
    opened: _native.Storage,
    make: Callable[[Any], Dispatcher],
    consumers: int,
    act: Callable[[Desk, Consumer], None],
) -> float:
    """Seconds of CPU that an action of the last consumer takes, the best of a few."""
    desk = Desk(opened, make)
    try:
        joined = [desk.join(f"consumer-{number:03}") for number in range(consumers)]
        best = float("inf")
        for _ in range(3):
            before = time.process_time()
            act(desk, joined[-1])
            best = min(best, time.process_time() - before)
        return best
    finally:
        desk.close()


def unknown() -> AckRun:
    return AckRun.of([(LEDGER, 10_000_000 + number) for number in range(IDS)])


def parts_of_batches() -> AckRun:
    run = AckRun()
    for number in range(IDS):
        run.add(LEDGER, 10_000_000 + number, [0b1011], 10)
    return run


def remembered(desk: Desk, run: AckRun) -> None:
    """As a cursor does, which knows the acknowledgements before the dispatcher."""
    desk.acks.add_run(run, lambda ledger_id: 2**40)


def costs_the_same(
    opened: _native.Storage,
    make: Callable[[Any], Dispatcher],
    act: Callable[[Desk, Consumer], None],
) -> None:
    alone = best_time(opened, make, 1, act)
    assert best_time(opened, make, MANY, act) < alone * RATIO_MAX + 0.005


@pytest.mark.parametrize("make", MAKERS)
def test_positions_that_nobody_has_cost_the_same_however_many_consumers_there_are(
    opened: _native.Storage, make: Callable[[Any], Dispatcher]
) -> None:
    run = unknown()
    costs_the_same(
        opened, make, lambda desk, consumer: desk.dispatcher.on_acknowledged(consumer, run)
    )


@pytest.mark.parametrize("make", MAKERS)
def test_parts_of_batches_cost_the_same_however_many_consumers_there_are(
    opened: _native.Storage, make: Callable[[Any], Dispatcher]
) -> None:
    run = parts_of_batches()

    def act(desk: Desk, consumer: Consumer) -> None:
        remembered(desk, run)
        desk.dispatcher.on_acknowledged(consumer, run)

    costs_the_same(opened, make, act)


@pytest.mark.parametrize("make", MAKERS)
def test_redelivery_of_unknown_positions_costs_the_same_however_many_consumers_there_are(
    opened: _native.Storage, make: Callable[[Any], Dispatcher]
) -> None:
    positions = [(LEDGER, 10_000_000 + number) for number in range(IDS)]
    costs_the_same(
        opened, make, lambda desk, consumer: desk.dispatcher.redeliver(consumer, positions)
    )


@pytest.mark.parametrize("make", MAKERS[:2])
def test_what_others_have_is_noted_until_it_is_settled(
    opened: _native.Storage, make: Callable[[Any], Dispatcher]
) -> None:
    desk = Desk(opened, make, delayed_delivery=False)
    try:
        joined = [desk.join(f"consumer-{number}") for number in range(5)]
        for consumer in joined:
            consumer.on_flow(1000)
        desk.publish(ENTRIES)
        desk.send()
        holders = desk.dispatcher.holders
        out = {each: consumer for consumer in joined for each in consumer.pending_positions()}
        assert len(out) == len(holders) == ENTRIES
        assert {each: holders.holder(*each) for each in out} == out
        # One consumer acknowledges what the others have, as well.
        desk.acknowledge(joined[0], list(range(0, ENTRIES, 3)))
        left = [(LEDGER, entry) for entry in range(ENTRIES) if entry % 3]
        assert sorted(p for each in joined for p in each.pending_positions()) == left
        assert len(holders) == len(left)
        # What one leaves behind goes to the others, and the next one gets its number.
        desk.leave(joined[1])
        desk.send()
        joined[1] = desk.join("another")
        joined[1].on_flow(1000)
        for consumer in (joined[2], joined[3]):
            consumer.subscription.dispatcher.redeliver_all(consumer)
        desk.send()
        out = {each: consumer for consumer in joined for each in consumer.pending_positions()}
        assert sorted(out) == left
        assert {each: holders.holder(*each) for each in out} == out
        assert holders.holder(LEDGER, 0) is holders.holder(LEDGER, -1) is None
        desk.acknowledge(joined[0], list(range(ENTRIES)))
        assert len(holders) == 0
        assert [each.unacked_messages for each in joined] == [0] * 5
    finally:
        desk.close()


# --- what one consumer has ------------------------------------------------------------------------

AT_ONCE = 50


@pytest.mark.parametrize("kind", [kinds.exclusive, kinds.failover])
def test_what_comes_again_in_order_is_not_noted_entry_by_entry(
    opened: _native.Storage, kind: Callable[[Any, KeySharedPolicy], Dispatcher]
) -> None:
    desk = Desk(opened, lambda it: kind(it, KeySharedPolicy()), failover_delay_s=0)
    try:
        consumer = desk.join("c")
        consumer.on_flow(10 * ENTRIES)
        desk.publish(ENTRIES)
        desk.send()
        assert consumer.msg_out == ENTRIES
        assert consumer.pending_positions() == []
        desk.acknowledge(consumer, list(range(10)))
        assert (consumer.acked, consumer.unacked_messages) == (10, 0)
        desk.dispatcher.redeliver_all(consumer)
        desk.send()
        assert consumer.msg_out == ENTRIES + ENTRIES - 10
    finally:
        desk.close()


@pytest.mark.parametrize("make", MAKERS[:2])
@pytest.mark.parametrize("leaves", [False, True])
def test_what_a_consumer_had_waits_for_others_after_a_few_turns_and_nothing_overtakes_it(
    opened: _native.Storage,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Any], Dispatcher],
    leaves: bool,
) -> None:
    monkeypatch.setattr(redelivery, "ENTRIES_PER_STEP", AT_ONCE)
    desk = Desk(opened, make, delayed_delivery=False)
    try:
        steps: list[Callable[[], None]] = []
        desk.connection.session.step_queue.wait = steps.append
        consumer = desk.join("first")
        consumer.on_flow(ENTRIES)
        desk.publish(ENTRIES - 10)
        desk.send()
        assert len(desk.dispatcher.holders) == ENTRIES - 10
        other = consumer
        if leaves:
            other = desk.join("second")
            desk.leave(consumer)
        else:
            desk.dispatcher.redeliver_all(consumer)
        other.on_flow(ENTRIES)
        desk.publish(10)
        # It has nothing any more, and of what it had no more is done at once than that.
        assert (consumer.pending_positions(), consumer.unacked_messages) == ([], 0)
        assert desk.dispatcher.limits.unacked.messages == 0
        before, sent = len(desk.dispatcher.holders), other.msg_out
        assert before == ENTRIES - 10 - AT_ONCE
        while steps:
            assert other.msg_out == sent
            [step] = steps
            steps.clear()
            step()
            left = len(desk.dispatcher.holders)
            assert left >= before - AT_ONCE or other.msg_out > sent
            before = left
        desk.send()
        assert other.pending_positions() == [(LEDGER, each) for each in range(ENTRIES)]
        kept = desk.dispatcher.redelivery.counts
        assert kept == ({} if leaves else {(LEDGER, each): 1 for each in range(ENTRIES - 10)})
    finally:
        desk.close()


@pytest.mark.parametrize("make", MAKERS[:2])
def test_a_read_that_is_under_way_does_not_overtake_what_is_taken_back(
    opened: _native.Storage, monkeypatch: pytest.MonkeyPatch, make: Callable[[Any], Dispatcher]
) -> None:
    monkeypatch.setattr(redelivery, "ENTRIES_PER_STEP", AT_ONCE)
    desk = Desk(opened, make, delayed_delivery=False)
    try:
        consumer = desk.join("c")
        consumer.on_flow(3 * ENTRIES)
        desk.publish(ENTRIES - 10)
        desk.send()
        desk.ledger.cold = True
        desk.publish(10)
        assert len(desk.ledger.reads) == 1
        desk.dispatcher.redeliver_all(consumer)
        sent = consumer.msg_out
        desk.ledger.cold = False
        desk.ledger.answer()
        assert consumer.msg_out == sent
        desk.send()
        assert consumer.pending_positions() == [(LEDGER, each) for each in range(ENTRIES)]
        assert consumer.msg_out == sent + ENTRIES
    finally:
        desk.close()


@pytest.mark.parametrize("make", MAKERS[:2])
def test_who_goes_last_or_is_moved_leaves_what_it_had_to_be_freed_in_a_few_turns(
    opened: _native.Storage, monkeypatch: pytest.MonkeyPatch, make: Callable[[Any], Dispatcher]
) -> None:
    monkeypatch.setattr(redelivery, "ENTRIES_PER_STEP", AT_ONCE)
    for act in (Desk.leave, lambda desk, consumer: desk.dispatcher.reset()):
        desk = Desk(opened, make, delayed_delivery=False)
        try:
            steps: list[Callable[[], None]] = []
            desk.connection.session.step_queue.wait = steps.append
            consumer = desk.join("c")
            consumer.on_flow(ENTRIES)
            desk.publish(ENTRIES)
            desk.send()
            consumer.permits = 0
            act(desk, consumer)
            assert (len(desk.dispatcher.holders), consumer.pending_positions()) == (0, [])
            assert not desk.dispatcher.redelivery.is_returning
            done = 0
            while steps:
                steps.pop(0)()
                done += 1
            # The first ones are freed at once; the dict of their ledger is one more.
            assert done == ENTRIES // AT_ONCE
        finally:
            desk.close()
