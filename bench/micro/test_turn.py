"""turn.pyx: a turn with one call at its end and one write."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from manual_loop import ManualLoop
from pyxbroker.turn import Turn


def test_a_turn_with_an_end(benchmark: Any) -> None:
    turn = Turn(cast(asyncio.AbstractEventLoop, ManualLoop()))
    done: list[int] = []

    def work() -> None:
        turn.at_last(done.clear)
        turn.at_end(lambda: done.append(1))

    benchmark(turn.run, work)
    assert done == []
