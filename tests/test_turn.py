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
