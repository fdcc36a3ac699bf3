"""Queues of passwords that wait for their check: one check at a time, fair between addresses.

A check takes a twentieth of a second, on purpose. One thread does all checks, so guessing costs at
most a part of one core. The thread runs at lower priority than the event loop. It keeps its
priority if checks hold the GIL: otherwise other processes could take its core while the loop waits
for the GIL.

Each address has a queue of its own, so guesses only delay guesses from the same address. Addresses
without a recent wrong password go first. When too many checks wait, the last one of the longest
queue is refused.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pyxbroker.auth.failed_logins import remember
from pyxbroker.auth.provider import NotChecked

SUSPECTS_MAX = 16_384  # addresses with a recent wrong password
NICENESS = 10  # of the thread, relative to the loop
FIRST_OF_OTHERS = 4  # checks of other addresses for each check of a suspect

Queues = OrderedDict[str, "deque[asyncio.Future[None]]"]


class PasswordChecks:
    """The password checks of one broker, with a limit for waiting ones."""

    def __init__(self, waiting_max: int, *, hold_lock: bool = False) -> None:
        """`hold_lock`: some checks hold the GIL throughout."""
        self._waiting_max = waiting_max
        self._thread = ThreadPoolExecutor(1, "passwords", None if hold_lock else _stand_back)
        self._queues: Queues = OrderedDict()
        self._suspect_queues: Queues = OrderedDict()
        self._suspects: OrderedDict[str, None] = OrderedDict()
        self._others_in_a_row = 0
        self._waiting = 0
        self._is_busy = False

    async def check(
        self,
        network: str,
        check: Callable[[bytes], bool],
        password: bytes,
        known: Callable[[], bool | None] = lambda: None,
    ) -> bool:
        """Check a password from a network. `known` returns the result if another client with the
        same password was checked meanwhile. Raises NotChecked if too many checks wait.

        A caller cancelled in the queue is not checked. A caller cancelled later still learns that a
        password is wrong: a guess counts even if its client does not wait for the answer.
        """
        if self._is_busy:
            await self._turn(network)
        self._is_busy = True
        try:
            found = known()
            if found is None:
                found = await self._check_in_thread(network, check, password)
            return found
        finally:
            self._is_busy = False
            self._call_next()

    async def _check_in_thread(
        self, network: str, check: Callable[[bytes], bool], password: bytes
    ) -> bool:
        """Run a check in the thread, and wait for its end even if the caller is cancelled."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, check, password)
        has_left = False
        while not running.done():
            try:
                await asyncio.wait((running,))
            except asyncio.CancelledError:
                has_left = True
        is_right = running.result()
        self._note(network, is_right)
        if is_right and has_left:
            raise asyncio.CancelledError
        return is_right

    def _note(self, network: str, is_right: bool) -> None:
        if is_right:
            self._suspects.pop(network, None)
            return
        remember(self._suspects, network, None, SUSPECTS_MAX)
        queue = self._queues.pop(network, None)
        if queue is not None:
            self._suspect_queues.setdefault(network, deque()).extend(queue)

    async def _turn(self, network: str) -> None:
        queues = self._suspect_queues if network in self._suspects else self._queues
        if self._waiting >= self._waiting_max:
            self._make_room(network)
        entry: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queues.setdefault(network, deque()).append(entry)
        self._waiting += 1
        try:
            await entry
        except asyncio.CancelledError:
            if entry.done() and not entry.cancelled() and entry.exception() is None:
                self._is_busy = False
                self._call_next()  # its turn had come already
            raise

    def _make_room(self, network: str) -> None:
        """Refuse one waiting check. Raises NotChecked if that is the new one."""
        queues = self._suspect_queues
        if not queues or network in self._suspects:
            every = (self._queues, self._suspect_queues)
            queues = max(every, key=lambda each: max(map(len, each.values()), default=0))
            own = max(len(each.get(network, ())) for each in every)
            if own >= max(map(len, queues.values())) - 1:
                raise self._too_many()
        name = max(queues, key=lambda each: len(queues[each]))
        last = queues[name].pop()
        if not queues[name]:
            del queues[name]
        self._waiting -= 1
        if not last.done():
            last.set_exception(self._too_many())

    def _too_many(self) -> NotChecked:
        return NotChecked(f"{self._waiting_max} passwords wait to be checked already.")

    def _call_next(self) -> None:
        """Start the next check; the thread is busy from then on."""
        while self._waiting:
            queues = self._queues
            if not queues or (self._suspect_queues and self._others_in_a_row >= FIRST_OF_OTHERS):
                queues = self._suspect_queues
            self._others_in_a_row = self._others_in_a_row + 1 if queues is self._queues else 0
            name, queue = queues.popitem(last=False)
            entry = queue.popleft()
            self._waiting -= 1
            if queue:
                queues[name] = queue  # the address goes behind all others
            if not entry.done():
                self._is_busy = True
                entry.set_result(None)
                return


def _stand_back() -> None:
    """Lower the priority of this thread below the loop; only Linux has a niceness per thread."""
    if sys.platform == "linux":
        os.nice(NICENESS)
