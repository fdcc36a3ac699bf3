"""Limits failed logins: an address with too many is refused for a while, without a check.

Failures are counted per address, for IPv6 per network of 64 bits, because one client owns a whole
network. Other clients may share the address (behind NAT or a proxy). Credentials that were verified
recently are therefore checked even when the address is blocked.

A login takes time: a password waits for its check, a token for its issuer's keys. Logins in
progress therefore count as if they had failed. At the limit, further logins of the address wait.
They are refused only when enough logins have really failed. So a fleet that reconnects is admitted,
and parallel guesses gain nothing over sequential ones.

Memory is bounded: the address with the oldest failure is evicted.
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

ADDRESSES_MAX = 16_384  # with failures that are stored
RIGHT_MAX = 16_384  # verified credentials, as hashes with a key of this process
WAITING_MAX = 500  # logins of one address, in addition to those in progress
_DIGEST_BYTES = 16

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Failures:
    """The failures of one address, in a period that began with the first one."""

    __slots__ = ("count", "ends")

    def __init__(self, ends: float) -> None:
        self.count = 0
        self.ends = ends  # of the period; at the limit, of the refusal


class _UnderWay:
    """Logins of one address whose result is not known yet."""

    __slots__ = ("count", "waiting")

    def __init__(self) -> None:
        self.count = 0  # being checked
        self.waiting: deque[asyncio.Event] = (
            deque()
        )  # beyond the limit: set to check for room again

    def call_next(self) -> None:
        """Wake the first waiting login; it wakes the next one when it has finished or given up."""
        if self.waiting:
            self.waiting[0].set()


class FailedLogins:
    """The failed logins of one broker, over both protocols."""

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
        """Context in which the credentials of an address are checked. The caller reports the result
        with failed() or succeeded(), at the latest in the step that leaves the context.
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
        """Return True if one more login may be checked even if all in progress fail."""
        found = self._failures.get(network)
        failed = 0 if found is None or found.ends <= self._clock() else found.count
        return failed + under_way.count < self._most

    def check(self, address: str, method: str, shown: bytes) -> None:
        """Raise TooManyRequests if logins of an address are refused for now."""
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
        """Count a refused login. It does not count without credentials, or if they were not
        checked, because it is no guess then.
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
        """Note that credentials were verified."""
        remember(self._right, self._digest(method, shown), None, RIGHT_MAX)

    def _is_right(self, method: str, shown: bytes) -> bool:
        """Return True if these credentials were verified recently."""
        return self._digest(method, shown) in self._right

    def _digest(self, method: str, shown: bytes) -> bytes:
        name = method.encode(errors="surrogatepass")
        hashed = hashlib.blake2b(len(name).to_bytes(4, "big"), key=self._key,
                                 digest_size=_DIGEST_BYTES)  # fmt: skip
        hashed.update(name)
        hashed.update(shown)
        return hashed.digest()


def remember(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Store a value as the newest one, and evict the oldest one beyond the limit."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)
