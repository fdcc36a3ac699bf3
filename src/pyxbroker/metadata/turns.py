"""Mutual exclusion per key, in FIFO order, for changes of metadata.

A caller waits no longer than an operation of the store may take. If the store hangs, the operation
of the current holder fails after its timeout, and all waiting callers fail with it: each of them
would otherwise wait for as long again.

A holder may also take long while the store works. A schema is compared with every version of its
topic under a transitive strategy, or a namespace is deleted with all its contents. Then only the
callers whose own time is up are refused, including those that wait from within another turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from pyxbroker.metadata.store import MetadataStore, Unavailable

K = TypeVar("K", bound=Hashable)

WaitingCallers = deque["asyncio.Future[None]"]


class WaitedTooLong(Unavailable):
    """Other holders took the whole time that a caller waits; the store may be well."""


class Turns(Generic[K]):
    """Locks by key. Only keys that are held are stored."""

    def __init__(self, store: MetadataStore) -> None:
        self._timeout_s = store.operation_timeout_s
        self._waiting: dict[K, WaitingCallers] = {}  # the waiting callers of each held key

    def __len__(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, key: K) -> AsyncIterator[None]:
        """Hold the key exclusively. Raises WaitedTooLong, and Unavailable if the store was
        unavailable to an earlier holder.
        """
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
        else:
            await self._wait(key, waiting)
        try:
            yield
        except WaitedTooLong:
            # It concerns another key, which the callers waiting for this one may not need.
            raise
        except Unavailable as error:
            for caller in waiting:
                _refuse(caller, Unavailable(str(error)))
            raise
        finally:
            self._pass_on(key, waiting)

    async def _wait(self, key: K, waiting: WaitingCallers) -> None:
        loop = asyncio.get_running_loop()
        caller: asyncio.Future[None] = loop.create_future()
        waiting.append(caller)
        late = WaitedTooLong(
            f"earlier changes have waited {self._timeout_s:g} s for the metadata store, or taken"
            " that long"
        )
        timer = loop.call_later(self._timeout_s, _refuse, caller, late)
        try:
            await caller
        except asyncio.CancelledError:
            if caller.done() and not caller.cancelled() and caller.exception() is None:
                self._pass_on(key, waiting)  # it was already this caller's turn
            raise
        finally:
            timer.cancel()
            del caller, late  # leave no cycle of the error and this frame

    def _pass_on(self, key: K, waiting: WaitingCallers) -> None:
        while waiting:
            caller = waiting.popleft()
            if not caller.done():
                caller.set_result(None)
                return
        del self._waiting[key]


def _refuse(caller: asyncio.Future[None], error: Unavailable) -> None:
    if not caller.done():
        caller.set_exception(error)
