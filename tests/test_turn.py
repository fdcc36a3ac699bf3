"""Turns: what is asked for once is done once, in its order, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pyxbroker.turn import Turn
from served import turns


def in_loop(scenario: Callable[[Turn, list[Any]], Awaitable[None]]) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        failures: list[Any] = []
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        await scenario(Turn(loop), failures)

    asyncio.run(run())


def test_work_asked_for_in_a_turn_is_done_when_it_ends_and_writes_come_last() -> None:
    async def scenario(turn: Turn, failures: list[Any]) -> None:
        done: list[str] = []

        def first() -> None:
            done.append("a")
            turn.at_end(lambda: done.append("b"))

        def body() -> str:
            turn.at_last(lambda: done.append("write"))
            turn.at_end(first)
            done.append("body")
            return "result"

        assert turn.run(body) == "result"
        assert done == ["body", "a", "b", "write"]
        assert not failures

    in_loop(scenario)


def test_a_turn_inside_a_turn_ends_with_the_outer_one() -> None:
    async def scenario(turn: Turn, failures: list[Any]) -> None:
        done: list[str] = []

        def inner() -> None:
            turn.at_end(lambda: done.append("end"))

        def outer() -> None:
            turn.run(inner)
            done.append("outer")

        turn.run(outer)
        assert done == ["outer", "end"]

    in_loop(scenario)


def test_work_asked_for_outside_of_a_turn_gets_one() -> None:
    async def scenario(turn: Turn, failures: list[Any]) -> None:
        done: list[int] = []
        turn.at_end(lambda: done.append(1))
        turn.at_last(lambda: done.append(2))
        assert done == []
        await turns()
        assert done == [1, 2]

    in_loop(scenario)


def test_work_that_fails_stops_neither_its_turn_nor_later_ones() -> None:
    async def scenario(turn: Turn, failures: list[Any]) -> None:
        done: list[int] = []

        def body() -> None:
            turn.at_end(lambda: 1 // 0)
            turn.at_end(lambda: done.append(1))
            turn.at_last(lambda: done.append(2))

        turn.run(body)
        assert done == [1, 2]
        assert [type(each) for each in failures] == [ZeroDivisionError]
        turn.at_end(lambda: done.append(3))
        await turns()
        assert done == [1, 2, 3]

    in_loop(scenario)


# --- what many want in one moment -----------------------------------------------------------------


def test_a_share_runs_what_it_has_time_for_and_the_rest_in_later_turns_in_order() -> None:
    async def scenario(turn: Turn, failures: list[Any]) -> None:
        share, done = turn.dispatching, list[int]()
        share.turn_ns = 1
        for number in range(5):
            share.run(lambda number=number: done.append(number))  # type: ignore[misc]
        assert done == [0]
        for left in range(2, 6):
            await asyncio.sleep(0)
            assert done == list(range(left))
        await turns()
        assert not failures

    in_loop(scenario)


def test_a_share_that_is_not_used_up_lets_everything_run_at_once() -> None:
    async def scenario(turn: Turn, failures: list[Any]) -> None:
        done: list[int] = []
        turn.dispatching.turn_ns = 2**62
        for number in range(1000):
            turn.dispatching.run(lambda number=number: done.append(number))  # type: ignore[misc]
        assert done == list(range(1000))

    in_loop(scenario)


def test_who_waits_for_a_share_is_called_once_and_who_asks_again_then_goes_behind() -> None:
    async def scenario(turn: Turn, failures: list[Any]) -> None:
        share, done = turn.dispatching, list[str]()
        share.turn_ns = 1

        def first() -> None:
            done.append("first")
            if len(done) < 4:
                share.later(first)

        def second() -> None:
            done.append("second")

        share.later(first)
        share.later(second)
        share.later(first)
        await turns(10)
        assert done == ["first", "second", "first", "first"]

    in_loop(scenario)


def test_what_fails_in_a_share_keeps_nobody_from_their_turn() -> None:
    async def scenario(turn: Turn, failures: list[Any]) -> None:
        done: list[int] = []
        turn.dispatching.later(lambda: 1 // 0)
        turn.dispatching.later(lambda: done.append(1))
        await turns()
        assert done == [1]
        assert [type(each) for each in failures] == [ZeroDivisionError]

    in_loop(scenario)


def test_what_waited_for_a_share_runs_as_a_turn() -> None:
    async def scenario(turn: Turn, failures: list[Any]) -> None:
        done: list[str] = []

        def work() -> None:
            turn.at_end(lambda: done.append("end"))
            done.append("work")

        turn.dispatching.later(work)
        turn.dispatching.later(lambda: done.append("more work"))
        await asyncio.sleep(0)
        assert done == ["work", "more work", "end"]

    in_loop(scenario)
