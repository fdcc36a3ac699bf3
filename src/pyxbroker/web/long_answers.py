"""Limits on the memory of answers that are being produced; requests beyond them wait.

An answer is charged only when it is complete, and thousands of connections may request a long one
at the same time. A waiting request costs one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pyxbroker.base.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pyxbroker.web.request import Request


class _Waiting(NamedTuple):
    request: Request[Any]
    size: int
    admitted: asyncio.Future[None]


class LongAnswers:
    """A limit on the memory of answers of one kind.

    An answer larger than the limit is produced alone; one of `free` bytes or less does not count.
    """

    def __init__(self, room: int, free: int = 0) -> None:
        self._room = room
        self._free = free
        self._used = 0
        self._is_admit_scheduled = False
        self._waiting: list[_Waiting] = []  # at most one per connection

    @asynccontextmanager
    async def reserve(self, request: Request[Any], size: int = 1) -> AsyncIterator[None]:
        """Wait for memory for an answer of about `size` bytes, and reserve it within the context.

        The request is cancelled when its client disconnects, so it must not change anything.
        """
        if request.is_disconnected:
            raise asyncio.CancelledError
        size = 0 if size <= self._free else min(size, self._room)
        request.is_for_client_only = True
        try:
            if size:
                await self._enter(request, size)
            try:
                yield
            finally:
                self._leave(size)
        finally:
            request.is_for_client_only = False

    async def _enter(self, request: Request[Any], size: int) -> None:
        if not self._waiting and self._used + size <= self._room:
            self._used += size
            return
        waiting = _Waiting(request, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await waiting.admitted
        except asyncio.CancelledError:
            # The request may have been admitted in the same loop iteration.
            self._leave(0 if waiting.admitted.cancelled() else size)
            raise

    def _leave(self, size: int) -> None:
        """Release memory, or leave the queue, and admit waiting requests."""
        self._used -= size
        if self._waiting and not self._is_admit_scheduled:
            # Thousands may leave in one iteration: the queue is scanned once for all of them.
            self._is_admit_scheduled = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        self._is_admit_scheduled = False
        queue = [each for each in self._waiting if not each.admitted.cancelled()]
        # A client that has sent EOF has usually disconnected, which shows only when it is answered.
        queue.sort(key=lambda each: each.request.has_sent_eof)
        count = 0
        for each in queue:
            if self._used + each.size > self._room:
                break
            self._used += each.size
            each.admitted.set_result(None)
            count += 1
        self._waiting = queue[count:]
