"""Work that must not be left incomplete when its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pyxbroker.base.log import get_logger

log = get_logger(__name__)

T = TypeVar("T")


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work that completes even if the caller is cancelled.

    The cancellation, however often it is requested, takes effect when the work is done.
    """
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
        log.info("work of a cancelled caller failed", error=failure)
    raise given_up
