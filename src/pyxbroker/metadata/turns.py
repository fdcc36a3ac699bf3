"""One at a time for each key, in the order in which they come, with what they do in metadata.

Nobody waits for a turn longer than the store lets an operation wait. While it hangs, whoever has
the turn learns of that when their operation's time is up, and with them all who wait behind: each
of those would only wait as long again.

A turn may last long while the store is well: a schema is compared with every version of its topic
under a transitive strategy, a namespace is deleted with all that is in it. Then who waits behind it
is refused alone, when their own time is up, and so is who waits for that turn within another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from pyxbroker.metadata.store import MetadataStore, Unavailable

K = TypeVar("K", bound=Hashable)

Line = deque["asyncio.Future[None]"]


class WaitedTooLong(Unavailable):
    """Others had the turn for as long as anybody waits for it; the store may be well."""


class Turns(Generic[K]):
    """Remembers only keys that somebody has the turn of."""

    def __init__(self, store: MetadataStore) -> None:
        self._patience_s = store.operation_timeout_s
        self._lines: dict[K, Line] = {}  # who waits for the turn of a key that somebody has

    def __len__(self) -> int:
        return len(self._lines)

    @asynccontextmanager
    async def turn(self, key: K) -> AsyncIterator[None]:
        """Within it nobody else has the turn of the key. Raises WaitedTooLong, and Unavailable
        behind somebody to whom the store was that.
        """
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
        else:
            await self._wait(key, line)
        try:
            yield
        except WaitedTooLong:
            # That was another turn, which those who wait for this one may not even want.
            raise
        except Unavailable as error:
            for place in line:
                _refuse(place, Unavailable(str(error)))
            raise
        finally:
            self._pass_on(key, line)

    async def _wait(self, key: K, line: Line) -> None:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        line.append(place)
        late = WaitedTooLong(
            f"other changes before this one have waited {self._patience_s:g} s for the metadata"
            " store, or taken so long"
        )
        timer = loop.call_later(self._patience_s, _refuse, place, late)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._pass_on(key, line)  # its turn had come already
            raise
        finally:
            timer.cancel()
            del place, late  # what they hold has this frame in its traceback

    def _pass_on(self, key: K, line: Line) -> None:
        while line:
            place = line.popleft()
            if not place.done():
                place.set_result(None)
                return
        del self._lines[key]


def _refuse(place: asyncio.Future[None], error: Unavailable) -> None:
    if not place.done():
        place.set_exception(error)
