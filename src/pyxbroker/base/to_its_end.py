"""What must not be left half done, also when who waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pyxbroker.base.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What the work comes to. Who is cancelled meanwhile, however often, is so when it is done."""
    task = asyncio.ensure_future(work)
    given_up: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            given_up = error
    if given_up is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        log.info("what was given up failed", error=failure)
    raise given_up
