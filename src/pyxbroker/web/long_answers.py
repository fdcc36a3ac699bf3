"""Answers that take much memory while they are made: there is room for a few, the others wait.

Nothing of an answer is charged before it is there, and clients may ask for one in each of thousands
of connections. Who waits costs a task.
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
    called: asyncio.Future[None]


class LongAnswers:
    """The room for answers of one kind. One that is larger than all of it is made alone, and one of
    `free` or less needs none.
    """

    def __init__(self, room: int, free: int = 0) -> None:
        self._room = room
        self._free = free
        self._used = 0
        self._is_calling = False
        self._waiting: list[_Waiting] = []  # not more than there are connections

    @asynccontextmanager
    async def place(self, request: Request[Any], size: int = 1) -> AsyncIterator[None]:
        """Room for an answer of about that size. Meanwhile the request ends with its client: it is
        to change nothing.
        """
        if request.is_gone:
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
            await waiting.called
        except asyncio.CancelledError:
            # It may have been called in the same moment.
            self._leave(0 if waiting.called.cancelled() else size)
            raise

    def _leave(self, size: int) -> None:
        """Room is given back, or somebody waits no more: others may have it."""
        self._used -= size
        if self._waiting and not self._is_calling:
            # Thousands may go in one moment: the line is looked at once.
            self._is_calling = True
            asyncio.get_running_loop().call_soon(self._call)

    def _call(self) -> None:
        self._is_calling = False
        line = [each for each in self._waiting if not each.called.cancelled()]
        # Who sends no more has gone, mostly, which shows only when it gets an answer.
        line.sort(key=lambda each: each.request.sends_no_more)
        called = 0
        for each in line:
            if self._used + each.size > self._room:
                break
            self._used += each.size
            each.called.set_result(None)
            called += 1
        self._waiting = line[called:]
