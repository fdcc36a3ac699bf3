"""Steps on the event loop, in time slices short enough for the latency of messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from pyxbroker.base.slices import Slices

T = TypeVar("T")

# Other work on the event loop waits at most this long, and one step more.
SLICE_S = 0.0005


async def in_slices(steps: Iterable[T | None], clock: Callable[[], float]) -> AsyncIterator[T]:
    """Run the steps and yield their results; a step that yields None has no result.

    A step should take much less than SLICE_S. The clock is read after each one.
    """
    await asyncio.sleep(0)  # the current turn of the loop may have run another slice already
    slices = Slices(SLICE_S, clock)
    for each in steps:
        if each is not None:
            yield each
        await slices.pause()


async def run_in_slices(steps: Iterable[None], clock: Callable[[], float]) -> None:
    """Run steps without results."""
    async for _ in in_slices(steps, clock):
        raise AssertionError("a step has a result")
