"""Quantiles of latencies, computed from cumulative counts."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from math import ceil
from typing import NamedTuple

from pyxbroker.base.histogram import Histogram
from pyxbroker.stats import exposition
from pyxbroker.stats.definitions import LATENCIES, SUMMARY, Summary

WINDOW_S = 60.0


class Latency(NamedTuple):
    """Durations of one operation since the start."""

    sum_ns: int
    counts: bytes  # number of operations: 64 bits for each bucket

    @classmethod
    def of_us(cls, histogram: Histogram) -> Latency:
        """Convert a histogram of microseconds."""
        return cls(int(histogram.sum * 1000), array("Q", histogram.counts).tobytes())


class _Window:
    """Growth of some counts over a window of time; all of them before the first window ends."""

    def __init__(self, now: float, counts: array[int]) -> None:
        self._began = now
        self._before = counts
        self._last: array[int] | None = None

    def counts(self, now: float, counts: array[int]) -> array[int]:
        """Return the counts; a call WINDOW_S after the window's start ends it (base/rates.py)."""
        if now - self._began >= WINDOW_S:
            grown = (new - old for new, old in zip(counts, self._before, strict=True))
            self._last = array("Q", grown)
            self._began, self._before = now, counts
        return counts if self._last is None else self._last


class Latencies:
    """Writes the series of definitions.LATENCIES, and keeps the state of their windows."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def text(
        self, now: float, latencies: Mapping[str, Latency], bounds_us: Sequence[int], label: str
    ) -> str:
        """Return the series for which there are counts.

        `bounds_us` has the upper bound of each bucket, `label` the common labels.
        """
        counts = {field: array("Q", latency.counts) for field, latency in latencies.items()}
        windows = {field: self._window(now, field, each) for field, each in counts.items()}
        known = (summary for summary in LATENCIES if summary.field in counts)
        pieces: list[str] = []
        for name, summaries in groupby(known, lambda each: each.series):
            for number, each in enumerate(summaries):
                if number == 0:
                    pieces.append(exposition.head(name, each.help, SUMMARY))
                labels = f"{label},{each.label}" if each.label else label
                pieces += _quantiles(each, windows[each.field], bounds_us, labels)
                braced = exposition.braced(labels)
                pieces.append(f"{name}_count{braced}{sum(counts[each.field])}\n")
                pieces.append(f"{name}_sum{braced}{latencies[each.field].sum_ns / 1e6}\n")
        return "".join(pieces)

    def _window(self, now: float, field: str, counts: array[int]) -> array[int]:
        window = self._windows.get(field)
        if window is None:
            window = self._windows[field] = _Window(now, counts)
        return window.counts(now, counts)


def _quantiles(
    summary: Summary, counts: array[int], bounds_us: Sequence[int], labels: str
) -> Iterator[str]:
    """Yield the quantiles in milliseconds, or NaN if nothing was counted."""
    up_to = list(accumulate(counts))
    total = up_to[-1]
    for text in summary.quantiles:
        rank = max(ceil(float(text) * total), 1)
        shown = f"{bounds_us[bisect_left(up_to, rank)] / 1000:g}" if total else "NaN"
        braced = exposition.braced(f'{labels},quantile="{text}"')
        yield f"{summary.series}{braced}{shown}\n"
