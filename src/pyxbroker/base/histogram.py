"""Counts of values by their size, for durations that /metrics shows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """The number of values in each bucket, and their sum. The last bucket has no upper bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds  # the largest value of each bucket, ascending
        self.counts = [0] * len(bounds)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one more value."""
        self.counts[min(bisect_left(self.bounds, value), len(self.counts) - 1)] += 1
        self.sum += value
