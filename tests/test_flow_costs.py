"""What a FLOW costs others: a step of its dispatcher at a time, when a turn's time is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatching import ENTRIES, MAKERS, Desk, opened
from pyxbroker import _native
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.dispatch.unacked import BrokerUnacked
from shares import over_at_once

__all__ = ["opened"]

AT_ONCE = 10  # entries of a read


@pytest.fixture(params=MAKERS)
def desk(opened: _native.Storage, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A subscription with a backlog, in a broker whose time is over whenever it is looked at."""
    make: Callable[[Any], Dispatcher] = request.param
    desk = Desk(opened, make, read_batch_max=AT_ONCE, delayed_delivery=False)
    over_at_once(desk.connection.group.turn.dispatching)
    desk.publish(ENTRIES)
    try:
        yield desk
    finally:
        desk.close()


def one_turn(desk: Desk) -> None:
    """What is due in the next turn of the loop."""
    calls, desk.loop._soon = desk.loop._soon, []
    for call in calls:
        call()


def test_a_wake_ends_with_its_time_and_goes_on_in_later_turns(desk: Desk) -> None:
    consumer = desk.join("consumer")
    consumer.on_flow(ENTRIES)
    sent = consumer.msg_out
    # It does a step at once, however little time there is.
    assert 0 < sent <= AT_ONCE
    turns = 0
    while consumer.msg_out < ENTRIES:
        one_turn(desk)
        assert consumer.msg_out - sent <= AT_ONCE
        sent = consumer.msg_out
        turns += 1
        assert turns < 10 * ENTRIES
    assert turns >= ENTRIES // AT_ONCE - 1


def test_a_flow_behind_others_of_a_turn_waits_for_the_next_one(desk: Desk) -> None:
    consumer = desk.join("consumer")
    consumer.on_flow(AT_ONCE)
    sent = consumer.msg_out
    for _ in range(5):
        consumer.on_flow(AT_ONCE)
    assert 0 < sent == consumer.msg_out
    one_turn(desk)
    assert consumer.msg_out > sent


def test_what_comes_from_the_disk_when_a_turn_is_over_is_sent_in_the_next_one(desk: Desk) -> None:
    desk.ledger.cold = True
    consumer = desk.join("consumer")
    consumer.on_flow(ENTRIES)
    one_turn(desk)
    assert desk.ledger.reads
    desk.connection.group.turn.dispatching.run(lambda: None)  # somebody else has used up its time
    desk.ledger.answer()
    assert consumer.msg_out == 0
    one_turn(desk)
    assert consumer.msg_out > 0


def test_a_dispatcher_that_is_replaced_between_two_turns_sends_nothing_more(desk: Desk) -> None:
    consumer = desk.join("consumer")
    consumer.on_flow(ENTRIES)
    sent = consumer.msg_out
    desk.dispatcher.abandon()
    desk.dispatcher = cast(Any, SimpleNamespace(abandon=lambda: None))
    for _ in range(10):
        one_turn(desk)
    assert consumer.msg_out == sent


def test_who_leaves_between_two_turns_leaves_the_rest_to_the_next_one(desk: Desk) -> None:
    first = desk.join("first")
    first.on_flow(ENTRIES)
    one_turn(desk)
    desk.leave(first)
    for _ in range(10):
        one_turn(desk)
    last = desk.join("last")
    last.on_flow(ENTRIES)
    for _ in range(10 * ENTRIES):
        one_turn(desk)
    assert last.msg_out == ENTRIES


def test_many_that_wait_for_the_limit_of_a_broker_are_called_a_few_in_a_turn(desk: Desk) -> None:
    whole = BrokerUnacked(10, desk.connection.group.turn.dispatching)
    called: list[int] = []
    for number in range(100):
        whole.on_unblocked(partial(called.append, number))
    whole.resume()
    assert called == [0]
    for left in range(2, 101):
        one_turn(desk)
        assert called == list(range(left))


def test_many_that_wait_for_room_in_one_socket_are_called_a_few_in_a_turn(desk: Desk) -> None:
    called: list[int] = []
    for number in range(100):
        desk.connection.when_writable(partial(called.append, number))
    cast(Any, desk.connection)._resume_delivery()
    assert called == [0]
    for left in range(2, 101):
        one_turn(desk)
        assert called == list(range(left))
