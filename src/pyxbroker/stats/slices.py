"""Steps on the event loop, in slices short enough for who waits for a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from pyxbroker.base.slices import Slices

T = TypeVar("T")

# Who has work for the loop waits at most this long, and one step more, for a slice to end.
SLICE_S = 0.0005


async def in_slices(steps: Iterable[T | None], clock: Callable[[], float]) -> AsyncIterator[T]:
    """What the steps give; None is a step that gives nothing.

    A step should take well below SLICE_S. The clock is read after each one.
    """
    await asyncio.sleep(0)  # what ran before in this turn may have been a slice, too
    slices = Slices(SLICE_S, clock)
    for each in steps:
        if each is not None:
            yield each
        await slices.pause()


async def run_in_slices(steps: Iterable[None], clock: Callable[[], float]) -> None:
    """Goes through steps that give nothing."""
    async for _ in in_slices(steps, clock):
        raise AssertionError("a step gave something")
