"""Slices: long work yields to the loop, and many pieces of it together as often as one."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pyxbroker.base.pacing import Pace, paced
from pyxbroker.base.slices import Slices, in_slices

STEP_S = 0.0005
SLICE_S = 0.002


async def work(steps: int) -> None:
    slices = Slices(SLICE_S)
    for _ in range(steps):
        end = time.thread_time() + STEP_S
        while time.thread_time() < end:
            pass
        await slices.pause()


async def longest_turn(tasks: list[asyncio.Task[None]]) -> float:
    """Seconds of CPU between two turns of a task that only yields, while the others work."""
    longest = 0.0
    while not all(each.done() for each in tasks):
        before = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - before)
    return longest


def least_of(times: int, main: Callable[[], Coroutine[Any, Any, float]]) -> float:
    """The least that some runs of this have; a collection of garbage is not measured."""
    gc.collect()
    gc.disable()
    try:
        # What one run takes longer now and then is the machine's.
        return min(asyncio.run(main()) for _ in range(times))
    finally:
        gc.enable()


@pytest.mark.parametrize(("tasks", "steps"), [(1, 200), (20, 10)])
def test_a_turn_takes_a_slice_and_a_step_of_each(tasks: int, steps: int) -> None:
    async def main() -> float:
        return await longest_turn([asyncio.ensure_future(work(steps)) for _ in range(tasks)])

    longest = least_of(3, main)
    # Without what they share, twenty would take twenty slices: 50 ms.
    assert longest < SLICE_S + (tasks + 2) * STEP_S * 2


def test_another_clock_has_slices_of_its_own() -> None:
    times = iter([0.0, 1.0, 1.5, 3.1, 3.2, 3.3])

    async def main() -> list[int]:
        turns = 0
        seen = []

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        await asyncio.sleep(0)
        slices = Slices(2.0, lambda: next(times))
        for _ in range(3):
            before = turns
            await slices.pause()
            seen.append(turns - before)
        counting.cancel()
        return seen

    assert asyncio.run(main()) == [0, 0, 1]


def test_a_step_that_follows_a_pause_counts() -> None:
    """Else what follows a long one would be made in the turn of that."""
    turns = 0
    now = [0.0]

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> list[int]:
        counting = asyncio.ensure_future(count())
        await asyncio.sleep(0)
        slices = Slices(1.0, lambda: now[0])
        seen = []
        for _ in range(3):
            before = turns
            now[0] += 5.0  # a long step
            await slices.pause()
            seen.append(turns - before)
        counting.cancel()
        return seen

    assert asyncio.run(main()) == [1, 1, 1]


def test_of_many_with_one_step_each_a_turn_has_few() -> None:
    """Else each of them would make its step in the same turn."""
    tasks, step_s = 400, 0.0002

    async def one_more() -> None:
        slices = Slices(SLICE_S)
        for _ in range(3):
            await slices.pause()
            end = time.thread_time() + step_s
            while time.thread_time() < end:
                pass

    async def main() -> float:
        every = [asyncio.ensure_future(one_more()) for _ in range(tasks)]
        await asyncio.sleep(0)  # the first steps are made where the tasks come from
        return await longest_turn(every)

    assert least_of(3, main) < SLICE_S + 4 * step_s + 0.003  # 80 ms together


def test_those_in_line_go_on_in_their_order() -> None:
    now = [0.0]
    seen: list[int] = []

    async def main() -> None:
        slices = Slices(1.0, lambda: now[0])

        async def step(number: int) -> None:
            for _ in range(2):
                now[0] += 0.4
                await slices.pause()
                seen.append(number)

        await asyncio.gather(*(step(number) for number in range(100)))

    asyncio.run(asyncio.wait_for(main(), 10))
    first: dict[int, int] = {}
    for at, number in enumerate(seen):
        first.setdefault(number, at)
    waiting = [number for number in range(100) if first[number] >= 10]
    assert len(seen) == 200
    assert [first[number] for number in waiting] == sorted(first[number] for number in waiting)


def test_who_waits_no_more_holds_up_nobody() -> None:
    now = [0.0]

    async def main() -> None:
        slices = Slices(1.0, lambda: now[0])

        async def step() -> None:
            now[0] += 2.0
            await slices.pause()

        tasks = [asyncio.ensure_future(step()) for _ in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        # The first one had time and the second was called when they went.
        assert [each is None for each in done] == [True, *[True, False] * 50][:100]
        await step()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_who_is_called_and_comes_later_when_there_is_no_time_is_called_again() -> None:
    """Steps that are paced may come long after the turn that they were called for; nobody else may
    be in line then.
    """
    now = [0.0]

    async def main() -> None:
        pace = Pace(1.0, lambda: now[0])
        slices = Slices(1.0, lambda: now[0])
        others = []

        async def long() -> None:
            now[0] += 2.0
            await slices.pause()

        async def takes_the_turn_of_slices() -> None:
            await slices.pause()
            now[0] += 2.0

        async def takes_the_turn_of_commands() -> None:
            await long()
            others.append(asyncio.ensure_future(takes_the_turn_of_slices()))
            pace.spend(2.0)

        others += [asyncio.ensure_future(long()) for _ in range(2)]
        others.append(asyncio.ensure_future(takes_the_turn_of_commands()))
        await asyncio.wait_for(paced(long(), pace.queue()), 5)
        await asyncio.gather(*others)

    asyncio.run(main())


def test_a_loop_that_has_ended_is_let_go_of() -> None:
    async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
        await asyncio.gather(*(work(3) for _ in range(10)))
        return weakref.ref(asyncio.get_running_loop())

    loop = asyncio.run(main())
    gc.collect()
    assert loop() is None


def test_a_loop_pauses_after_each_item_and_one_that_is_left_early_leaves_no_task() -> None:
    now = [0.0]

    async def main() -> tuple[list[int], int]:
        seen: list[int] = []

        async def other() -> None:
            while True:
                seen.append(-1)
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(other())
        await asyncio.sleep(0)
        slices = Slices(1.0, lambda: now[0])
        async for item in in_slices(range(3), slices):
            seen.append(item)
            now[0] += 5.0  # a long step
        async for item in in_slices(range(3), slices):
            seen.append(item)
            break
        counting.cancel()
        return seen, len(asyncio.all_tasks())

    seen, tasks = asyncio.run(main())
    assert [each for each in seen if each >= 0] == [0, 1, 2, 0]
    assert seen[:6] == [-1, 0, -1, 1, -1, 2]
    assert tasks == 2  # this one, and the one that counts
