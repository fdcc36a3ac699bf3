"""The pace of commands: how many steps are made in a turn, and whose is next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyxbroker.base.pacing import Pace, StepQueue, paced

STEPS_PER_TURN = 4


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Paced:
    """A pace with room for four steps of one second, and who did what in which turn."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pace = Pace(STEPS_PER_TURN - 0.5, self.clock)
        self.turn = 0
        self.steps: list[tuple[int, str]] = []
        self.failures: list[Any] = []

    def step(self, name: str) -> None:
        self.clock.now += 1
        self.steps.append((self.turn, name))

    async def command(self, name: str, *waits: Awaitable[object]) -> str:
        for each in waits:
            self.step(name)
            await each
        self.step(name)
        return name

    def of_turns(self) -> list[list[str]]:
        """The steps of each turn that had some."""
        turns = sorted({turn for turn, _ in self.steps})
        return [[name for turn, name in self.steps if turn == each] for each in turns]

    async def _count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


def in_loop(scenario: Callable[[Paced], Awaitable[None]]) -> None:
    async def run() -> None:
        paced_now = Paced()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: paced_now.failures.append(context))
        counting = asyncio.ensure_future(paced_now._count())
        await asyncio.sleep(0)
        await scenario(paced_now)
        counting.cancel()

    asyncio.run(run())


def test_a_turn_makes_as_many_steps_as_there_is_time_for() -> None:
    async def scenario(side: Paced) -> None:
        queue = side.pace.queue()
        names = [f"{n}" for n in range(20)]
        tasks = [asyncio.ensure_future(paced(side.command(name), queue)) for name in names]
        assert await asyncio.gather(*tasks) == names
        assert [len(turn) for turn in side.of_turns()] == [STEPS_PER_TURN] * 5
        assert [name for _, name in side.steps] == names

    in_loop(scenario)


def test_what_all_waited_for_lets_them_go_on_a_few_in_a_turn() -> None:
    """As when one commit of the metadata answers a thousand commands."""

    async def scenario(side: Paced) -> None:
        queue = side.pace.queue()
        commit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        commands = [side.command(f"{n}", commit) for n in range(20)]
        tasks = [asyncio.ensure_future(paced(each, queue)) for each in commands]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(side.steps) == 20
        side.steps.clear()
        commit.set_result(None)
        await asyncio.gather(*tasks)
        assert [len(turn) for turn in side.of_turns()] == [STEPS_PER_TURN] * 5
        assert [name for _, name in side.steps] == [f"{n}" for n in range(20)]

    in_loop(scenario)


def test_clients_take_turns_however_much_one_of_them_asks_for() -> None:
    async def scenario(side: Paced) -> None:
        flood, other = side.pace.queue(), side.pace.queue()
        tasks = [asyncio.ensure_future(paced(side.command("flood"), flood)) for _ in range(40)]
        tasks += [asyncio.ensure_future(paced(side.command("other"), other)) for _ in range(3)]
        await asyncio.gather(*tasks)
        turns = side.of_turns()
        assert turns[0] == ["flood"] * 4
        assert sorted(turns[1]) == ["flood"] * 2 + ["other"] * 2
        assert sorted(turns[2]) == ["flood"] * 3 + ["other"]

    in_loop(scenario)


def test_what_a_command_begins_waits_in_its_line_too() -> None:
    async def scenario(side: Paced) -> None:
        queue = side.pace.queue()

        async def opens() -> None:
            await asyncio.ensure_future(paced(side.command("topic")))

        tasks = [asyncio.ensure_future(paced(opens(), queue)) for _ in range(20)]
        await asyncio.gather(*tasks)
        assert [len(turn) for turn in side.of_turns()] == [STEPS_PER_TURN] * 5

    in_loop(scenario)


def test_a_step_longer_than_the_budget_is_made_alone() -> None:
    async def scenario(side: Paced) -> None:
        queue = side.pace.queue()

        async def long() -> None:
            side.clock.now += 100
            side.step("long")

        await asyncio.gather(*(asyncio.ensure_future(paced(long(), queue)) for _ in range(5)))
        assert side.of_turns() == [["long"]] * 5

    in_loop(scenario)


def test_a_command_that_is_cancelled_does_not_wait_for_its_turn() -> None:
    async def scenario(side: Paced) -> None:
        queue = side.pace.queue()
        ended = []

        async def cleans_up() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(side.turn)

        waiting = asyncio.ensure_future(paced(cleans_up(), queue))
        await asyncio.sleep(0)
        flood = [asyncio.ensure_future(paced(side.command("flood"), queue)) for _ in range(40)]
        await asyncio.sleep(0)
        waiting.cancel()  # while it waits for what it asked for
        with pytest.raises(asyncio.CancelledError):
            await waiting
        queued = flood[-1]
        queued.cancel()  # while it waits for its turn
        with pytest.raises(asyncio.CancelledError):
            await queued
        assert len(ended) == 1
        assert len(side.steps) < 39
        await asyncio.gather(*flood[:-1])
        assert len(side.steps) == 39

    in_loop(scenario)


def test_errors_reach_who_waits_as_without_a_pace() -> None:
    async def scenario(side: Paced) -> None:
        queue = side.pace.queue()

        async def fails(waited: Awaitable[None]) -> None:
            try:
                await waited
            except KeyError as error:
                raise ValueError("it failed") from error

        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(paced(fails(asked), queue))
        await asyncio.sleep(0)
        asked.set_exception(KeyError("x"))
        with pytest.raises(ValueError, match="it failed"):
            await task

    in_loop(scenario)


def test_what_fails_in_its_turn_keeps_nobody_else_from_theirs() -> None:
    async def scenario(side: Paced) -> None:
        queue: StepQueue = side.pace.queue()
        done = []
        queue.wait(lambda: 1 // 0)
        queue.wait(lambda: done.append(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert done == [1]
        [failure] = side.failures
        assert isinstance(failure["exception"], ZeroDivisionError)

    in_loop(scenario)


def test_what_is_run_is_run_at_once_while_there_is_time() -> None:
    async def scenario(side: Paced) -> None:
        queue = side.pace.queue()
        for n in range(10):
            queue.run(lambda n=n: side.step(f"{n}"))  # type: ignore[misc]
        assert len(side.steps) == STEPS_PER_TURN
        for _ in range(3):
            await asyncio.sleep(0)
        assert [name for _, name in side.steps] == [f"{n}" for n in range(10)]
        assert [len(turn) for turn in side.of_turns()] == [4, 4, 2]

    in_loop(scenario)
