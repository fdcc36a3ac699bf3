"""Bookies that keep failing, which take no new ledgers for a while (BookKeeper's health check)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from pyxbroker.base.log import get_logger
from pyxbroker.ledger.bookie import DISCONNECTED, FENCED, NO_ENTRY, NO_LEDGER, TIMED_OUT

log = get_logger("pyxbroker.ledger")

HARMLESS = frozenset({NO_LEDGER, NO_ENTRY, DISCONNECTED, FENCED})
"""Codes that say nothing about the health of a bookie. One without a connection is not counted
either: it loses its registration when its process has ended."""


TIMEOUT_SPACING_S = 5.0
"""Time-outs of a bookie within this time count as one error. A pause of a bookie lets requests of
many ledgers time out. BookKeeper counts each of them, but only after 30 s without an answer, where
the writer waits for bookkeeper_addEntryTimeoutSec."""


class HealthCheck(NamedTuple):
    """The settings bookkeeperClientHealthCheck... and bookkeeperClientQuarantineRatio."""

    is_enabled: bool = True
    interval_s: float = 60.0
    errors_max: int = 5
    """A bookie with so many errors in an interval is quarantined."""
    quarantine_s: float = 1800.0
    ratio: float = 1.0
    """The probability that such a bookie is quarantined."""


class Quarantine:
    """Counts errors by bookie. `clock` returns seconds, `draw` a random number below 1."""

    def __init__(
        self, check: HealthCheck, clock: Callable[[], float], draw: Callable[[], float]
    ) -> None:
        self._check = check
        self._clock = clock
        self._draw = draw
        self._errors: Counter[str] = Counter()  # in the interval that ends at _ends
        self._ends = clock() + check.interval_s
        self._until: dict[str, float] = {}
        self._timed_out: dict[str, float] = {}  # time of the last time-out that was counted

    def on_error(self, bookie_id: str, code: int) -> None:
        """Count an error, and quarantine the bookie if it is one too many."""
        check = self._check
        if not check.is_enabled or code in HARMLESS:
            return
        now = self._clock()
        if now >= self._ends:
            self._errors.clear()
            self._timed_out.clear()
            self._ends = now + check.interval_s
        if code == TIMED_OUT:
            if now < self._timed_out.get(bookie_id, -TIMEOUT_SPACING_S) + TIMEOUT_SPACING_S:
                return
            self._timed_out[bookie_id] = now
        self._errors[bookie_id] += 1
        if self._errors[bookie_id] != check.errors_max or self._draw() >= check.ratio:
            return
        self._until[bookie_id] = now + check.quarantine_s
        log.warning(
            "a bookie keeps failing and takes no new ledgers for a while",
            bookie=bookie_id,
            errors=check.errors_max,
            seconds=check.quarantine_s,
        )

    def bookies(self) -> frozenset[str]:
        """Return the bookies that are quarantined now."""
        if not self._until:
            return frozenset()
        now = self._clock()
        self._until = {each: until for each, until in self._until.items() if until > now}
        return frozenset(self._until)
