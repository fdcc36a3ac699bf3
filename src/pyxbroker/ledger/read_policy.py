"""The order in which readers ask the bookies that have an entry, and how long they wait.

All ledgers of a client share one ReadPolicy, so what one reader learns about a bookie helps the
others. Imported with the first ledger of which a bookie stores a copy of another one's entries.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyxbroker.ledger.bookie import Bookie
    from pyxbroker.ledger.reader import ReadSettings

MEMORY_S = 30.0
"""Age from which an observation of a bookie no longer influences the order."""
SLOW_FACTOR = 3.0
"""A bookie is slow when its latency is so many times that of the fastest other one,"""
SLOW_MIN_S = 0.005
"""and at least this long."""
_WEIGHT = 0.2  # of the newest latency in the average


class Clock(Protocol):
    """The part of an event loop that reads need."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle: ...


class _Score:
    """Recent observations of one bookie by reads."""

    __slots__ = ("at", "failed_at", "latency_s")

    def __init__(self) -> None:
        self.latency_s = 0.0
        self.at = -MEMORY_S  # time of the last answer
        self.failed_at = -MEMORY_S  # time of the last failure that no answer followed


class ReadPolicy:
    """Orders bookies by their health and latency, and counts their damaged answers."""

    def __init__(self, clock: Clock, settings: ReadSettings) -> None:
        self.clock = clock
        self.settings = settings
        self.damaged: Counter[str] = Counter()
        """Entries that failed their digest, by bookie."""
        self.speculative_reads = 0
        """Reads that asked a further bookie because the previous one was slow."""
        self._scores: dict[str, _Score] = {}

    def on_answer(self, bookie_id: str, latency_s: float) -> None:
        """A bookie has answered a request after this time."""
        self.on_wait(bookie_id, latency_s)
        self._score(bookie_id).failed_at = -MEMORY_S

    def on_wait(self, bookie_id: str, latency_s: float) -> None:
        """A bookie has kept a request waiting for so long."""
        score = self._score(bookie_id)
        now = self.clock.time()
        if now - score.at > MEMORY_S:
            score.latency_s = latency_s
        else:
            score.latency_s += _WEIGHT * (latency_s - score.latency_s)
        score.at = now

    def on_failure(self, bookie_id: str) -> None:
        """A bookie has failed or refused a request."""
        self._score(bookie_id).failed_at = self.clock.time()

    def sort(self, order: list[int], bookies: Sequence[Bookie]) -> None:
        """Move the ensemble indexes of slow bookies behind those of fast ones, and those of failed
        bookies to the end. Bookies that are alike keep their order.
        """
        if not self._scores:
            return
        since = self.clock.time() - MEMORY_S
        scores = {index: self._scores.get(bookies[index].bookie_id) for index in order}
        known = [each for each in scores.values() if each is not None]
        latencies = [each.latency_s for each in known if each.at > since]
        slow_s = max(SLOW_FACTOR * min(latencies, default=0.0), SLOW_MIN_S)

        def rank(index: int) -> int:
            score = scores[index]
            if bookies[index].failure or (score is not None and score.failed_at > since):
                return 2
            return int(score is not None and score.at > since and score.latency_s > slow_s)

        order.sort(key=rank)

    def _score(self, bookie_id: str) -> _Score:
        score = self._scores.get(bookie_id)
        if score is None:
            score = self._scores[bookie_id] = _Score()
        return score
