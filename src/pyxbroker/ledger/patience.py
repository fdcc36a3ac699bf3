"""Trying again: what a disk or the metadata store does not answer at this moment.

An error of that kind says nothing about what is stored. Who took it for "there is nothing" would
go on with something older, so whoever reads state waits and asks again, and gives up with the error
itself when that takes too long.
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

PATIENCE_S = 10.0
"""Clients give an operation up after 30 s, and then ask again."""
RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0


LASTING = (LedgerFenced, JournalFailed, NotEnoughBookies, WrongPassword)


def may_pass(error: Exception) -> bool:
    """Whether an error says only that something cannot be done at this moment."""
    if isinstance(error, LedgerError):
        return not is_lost(error) and not isinstance(error, LASTING)
    return isinstance(error, Unavailable)


class Patience:
    """What one undertaking waits for in all, however many things it asks for.

    The first failure is one line of the log, and so is the end of the trouble. `lasts` names the
    errors that are waited for beyond that time, as long as it says so.
    """

    def __init__(self, what: str, lasts: Callable[[Exception], bool] = lambda _: False) -> None:
        self._what = what
        self._lasts = lasts
        self._until = time.monotonic() + PATIENCE_S
        self._is_told = False

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """The answer; question is called again while it fails for a reason that may pass."""
        delay = RETRY_MIN_S
        tries = 0
        began = time.monotonic()
        while True:
            try:
                answer = await question()
            except (LedgerError, Unavailable) as error:
                is_late = time.monotonic() + delay > self._until
                if not may_pass(error) or (is_late and not self._lasts(error)):
                    raise
                if not self._is_told:
                    self._is_told = True
                    log.warning("it is tried again", what=self._what, error=error)
                tries += 1
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX_S)
                continue
            if tries:
                log.info(
                    "it went well after all",
                    what=self._what,
                    after_s=round(time.monotonic() - began, 3),
                    tries=tries,
                )
            return answer
