"""Retries of calls that fail temporarily in a disk or the metadata store.

A temporary error says nothing about what is stored. Taking it for "does not exist" would continue
with an older state. So code that reads state waits and retries, and raises the error itself when
that takes too long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pyxbroker.base.log import get_logger
from pyxbroker.ledger.errors import (
    JournalFailed,
    LedgerError,
    LedgerFenced,
    NotEnoughBookies,
    WrongPassword,
    is_lost,
)
from pyxbroker.metadata.store import Unavailable

T = TypeVar("T")

log = get_logger("pyxbroker.ledger")

RETRY_FOR_S = 10.0
"""Clients give up an operation after 30 s, and then retry it."""
RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0


PERMANENT = (LedgerFenced, JournalFailed, NotEnoughBookies, WrongPassword)


def is_temporary(error: Exception) -> bool:
    """Return True for an error that may be temporary."""
    if isinstance(error, LedgerError):
        return not is_lost(error) and not isinstance(error, PERMANENT)
    return isinstance(error, Unavailable)


class Retries:
    """The time that one operation spends on retries, in all the calls that it makes.

    The first failure is logged, and the first success after it. `lasts` returns True for errors
    that are retried beyond that time.
    """

    def __init__(self, what: str, lasts: Callable[[Exception], bool] = lambda _: False) -> None:
        self._what = what
        self._lasts = lasts
        self._until = time.monotonic() + RETRY_FOR_S
        self._is_logged = False

    async def call(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return the result of question(), which is retried after temporary errors."""
        delay = RETRY_MIN_S
        tries = 0
        began = time.monotonic()
        while True:
            try:
                answer = await question()
            except (LedgerError, Unavailable) as error:
                is_late = time.monotonic() + delay > self._until
                if not is_temporary(error) or (is_late and not self._lasts(error)):
                    raise
                if not self._is_logged:
                    self._is_logged = True
                    log.warning("a call failed; retrying", what=self._what, error=error)
                tries += 1
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)
                continue
            if tries:
                log.info(
                    "a call succeeded after retries",
                    what=self._what,
                    after_s=round(time.monotonic() - began, 3),
                    tries=tries,
                )
            return answer
