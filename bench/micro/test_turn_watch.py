"""turn_watch.pyx: cost of measuring a loop iteration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from pyxbroker.turn import Turn
from pyxbroker.turn_watch import TurnWatch

TURNS = 10_000


def turn_round(watched: bool) -> int:
    """Run many empty loop iterations; return how many were measured."""

    async def go() -> int:
        loop = asyncio.get_running_loop()
        turn = Turn(loop)
        watch = TurnWatch(loop, 1.0) if watched else None
        turn.watch = watch
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if watch is None:
            return 0
        buckets, _ = watch.histogram()
        watch.close()
        return sum(count for _, count in buckets)

    return uvloop.run(go())


@pytest.mark.parametrize("watched", [False, True])
def test_turns(benchmark: Any, watched: bool) -> None:
    assert benchmark(turn_round, watched) >= (TURNS if watched else 0)
