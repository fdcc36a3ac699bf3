"""The turns of a broker's event loop, as the histogram in its /metrics tells them."""

from __future__ import annotations

import math

BUCKET = "pyxbroker_loop_turn_seconds_bucket{"

Turns = dict[float, int]
"""How many turns took at most so many ms, by the bound."""


def turns_of(text: str) -> Turns:
    """The histogram in the text of /metrics; empty where there is none."""
    found = {}
    for line in text.splitlines():
        if line.startswith(BUCKET):
            bound = line.split('le="')[1].split('"')[0]
            found[float(bound.replace("+Inf", "inf")) * 1000] = int(line.rpartition(" ")[2])
    return found


def longest_ms(before: Turns, after: Turns) -> float:
    """The bound of the longest turn between two histograms; NaN when there are none."""
    if not before or not after:
        return math.nan
    total = after[math.inf] - before[math.inf]
    return min(bound for bound in after if after[bound] - before[bound] == total)
