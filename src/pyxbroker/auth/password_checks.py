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

Lines = OrderedDict[str, "deque[asyncio.Future[None]]"]


class PasswordChecks:
    """The password checks of one broker, with a limit for waiting ones."""

    def __init__(self, waiting_max: int, *, hold_lock: bool = False) -> None:
        """`hold_lock`: some checks hold the GIL throughout."""
        self._waiting_max = waiting_max
        self._thread = ThreadPoolExecutor(1, "passwords", None if hold_lock else _stand_back)
        self._lines: Lines = OrderedDict()
        self._lines_of_suspects: Lines = OrderedDict()
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
        """Check a password of an address. `known` is called before the check starts, because
        another client may have shown the same. Raises NotChecked if too many checks wait.

        A caller cancelled in the queue is not checked. A caller cancelled later still learns that a
        password is wrong: a guess counts even if its client does not wait for the answer.
        """
        if self._is_busy:
            await self._turn(network)
        self._is_busy = True
        try:
            found = known()
            if found is None:
                found = await self._look(network, check, password)
            return found
        finally:
            self._is_busy = False
            self._call_next()

    async def _look(self, network: str, check: Callable[[bytes], bool], password: bytes) -> bool:
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
        line = self._lines.pop(network, None)
        if line is not None:
            self._lines_of_suspects.setdefault(network, deque()).extend(line)

    async def _turn(self, network: str) -> None:
        lines = self._lines_of_suspects if network in self._suspects else self._lines
        if self._waiting >= self._waiting_max:
            self._make_room(network)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lines.setdefault(network, deque()).append(place)
        self._waiting += 1
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._is_busy = False
                self._call_next()  # it had been called already
            raise

    def _make_room(self, network: str) -> None:
        """Refuse one waiting check. Raises NotChecked if that is the new one."""
        lines = self._lines_of_suspects
        if not lines or network in self._suspects:
            every = (self._lines, self._lines_of_suspects)
            lines = max(every, key=lambda each: max(map(len, each.values()), default=0))
            own = max(len(each.get(network, ())) for each in every)
            if own >= max(map(len, lines.values())) - 1:
                raise self._too_many()
        name = max(lines, key=lambda each: len(lines[each]))
        last = lines[name].pop()
        if not lines[name]:
            del lines[name]
        self._waiting -= 1
        if not last.done():
            last.set_exception(self._too_many())

    def _too_many(self) -> NotChecked:
        return NotChecked(f"{self._waiting_max} passwords wait to be checked already.")

    def _call_next(self) -> None:
        """Start the next check; the thread is busy from then on."""
        while self._waiting:
            lines = self._lines
            if not lines or (self._lines_of_suspects and self._others_in_a_row >= FIRST_OF_OTHERS):
                lines = self._lines_of_suspects
            self._others_in_a_row = self._others_in_a_row + 1 if lines is self._lines else 0
            name, line = lines.popitem(last=False)
            place = line.popleft()
            self._waiting -= 1
            if line:
                lines[name] = line  # the address goes behind all others
            if not place.done():
                self._is_busy = True
                place.set_result(None)
                return


def _stand_back() -> None:
    """Lower the priority of this thread below the loop; only Linux has a niceness per thread."""
    if sys.platform == "linux":
        os.nice(NICENESS)
