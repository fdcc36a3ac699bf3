"""Who fails to log in again and again, and is refused for a while before anything is looked at.

Failures are counted for an address, of IPv6 for its network of 64 bits, which one client has as a
whole. So that somebody who guesses keeps nobody out who was let in from the same address before (a
network behind one address, a proxy), what was right lately is looked at all the same.

A login takes a while (a password waits for its check, a token for the keys of its issuer), so those
of an address that are under way count as if they had failed: who comes when more could fail than
may waits until one of them is over, and is refused only when so many have failed. A fleet that
comes back at once gets in, and guesses that come at once are no more than those that come one by
one.

What is remembered is bounded, whoever comes: the address that failed longest ago is forgotten.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import TypeVar

from pyxbroker.auth.provider import NotChecked
from pyxbroker.base.errors import TooManyRequests
from pyxbroker.base.eviction_queue import network_of
from pyxbroker.settings.config import Config

ADDRESSES_MAX = 16_384  # that are remembered for their failures
RIGHT_MAX = 16_384  # credentials that were right, as hashes with a key of this process
WAITING_MAX = 500  # logins of one address, besides those that are under way
_DIGEST_BYTES = 16

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Failures:
    """Of one address, in a period that began with the first of them."""

    __slots__ = ("count", "ends")

    def __init__(self, ends: float) -> None:
        self.count = 0
        self.ends = ends  # of the period; when there were too many, of the refusal


class _UnderWay:
    """Logins of one address of which nobody knows yet whether they fail."""

    __slots__ = ("count", "waiting")

    def __init__(self) -> None:
        self.count = 0  # of those that are looked at
        self.waiting: deque[asyncio.Event] = (
            deque()
        )  # of those beyond: when to see if there is room

    def call_next(self) -> None:
        """The first one that waits looks again; when it goes on or gives up, the next one does."""
        if self.waiting:
            self.waiting[0].set()


class FailedLogins:
    """Those of one broker, over both protocols."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = config.maxFailedLoginsPerAddress
        self._period_s = config.failedLoginsPeriodSeconds
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._under_way: dict[str, _UnderWay] = {}
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._key = os.urandom(32)

    @asynccontextmanager
    async def attempt(self, address: str, method: str, shown: bytes) -> AsyncIterator[None]:
        """What an address shows is looked at within it; whoever does notes what has come of it, at
        the latest in the step that leaves it.

        Raises TooManyRequests, and NotChecked when too many wait.
        """
        self.check(address, method, shown)
        if not (self._most and shown) or self._is_right(method, shown):
            yield
            return
        network = network_of(address)
        under_way = self._under_way.setdefault(network, _UnderWay())
        try:
            if under_way.waiting or not self._has_room(network, under_way):
                await self._wait(under_way, address, method, shown)
            under_way.count += 1
            try:
                yield
            finally:
                under_way.count -= 1
                under_way.call_next()
        finally:
            if not under_way.count and not under_way.waiting:
                self._under_way.pop(network, None)

    async def _wait(self, under_way: _UnderWay, address: str, method: str, shown: bytes) -> None:
        if len(under_way.waiting) >= WAITING_MAX:
            raise NotChecked(f"{WAITING_MAX} logins of this address wait already.")
        place = asyncio.Event()
        under_way.waiting.append(place)
        try:
            while True:
                await place.wait()
                place.clear()
                self.check(address, method, shown)
                if self._has_room(network_of(address), under_way) or self._is_right(method, shown):
                    return
        finally:
            under_way.waiting.remove(place)
            under_way.call_next()

    def _has_room(self, network: str, under_way: _UnderWay) -> bool:
        """Whether one more may be looked at, should all that are under way fail."""
        found = self._failures.get(network)
        failed = 0 if found is None or found.ends <= self._clock() else found.count
        return failed + under_way.count < self._most

    def check(self, address: str, method: str, shown: bytes) -> None:
        """Raises TooManyRequests when what an address shows is not looked at for now."""
        found = self._failures.get(network_of(address))
        if found is None or found.count < self._most:
            return
        left_s = found.ends - self._clock()
        if left_s <= 0 or self._is_right(method, shown):
            return
        raise TooManyRequests(
            f"Too many logins from this address have failed; try again in {math.ceil(left_s)} s."
        )

    def failed(self, address: str, method: str, shown: bytes, error: Exception) -> None:
        """What an address showed was refused. It is no guess, and does not count, where nothing was
        shown, or nobody has looked at it.
        """
        if not shown or isinstance(error, TooManyRequests | NotChecked):
            return
        self._right.pop(self._digest(method, shown), None)
        if not self._most:
            return
        network, now = network_of(address), self._clock()
        found = self._failures.get(network)
        if found is None or found.ends <= now:
            found = _Failures(now + self._period_s)
        found.count += 1
        if found.count == self._most:
            found.ends = now + self._period_s
        remember(self._failures, network, found, ADDRESSES_MAX)

    def succeeded(self, method: str, shown: bytes) -> None:
        """What somebody showed was right."""
        remember(self._right, self._digest(method, shown), None, RIGHT_MAX)

    def _is_right(self, method: str, shown: bytes) -> bool:
        """Whether it was, lately."""
        return self._digest(method, shown) in self._right

    def _digest(self, method: str, shown: bytes) -> bytes:
        name = method.encode(errors="surrogatepass")
        hashed = hashlib.blake2b(len(name).to_bytes(4, "big"), key=self._key,
                                 digest_size=_DIGEST_BYTES)  # fmt: skip
        hashed.update(name)
        hashed.update(shown)
        return hashed.digest()


def remember(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Keeps a value as the newest one; the oldest goes where there is no place for it."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
