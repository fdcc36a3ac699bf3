"""Pauses between attempts."""

from __future__ import annotations

import random
from collections.abc import Iterator


def pauses_s(first_s: float = 0.1, longest_s: float = 10.0) -> Iterator[float]:
    """Yield pauses without an end: each is twice as long as the one before, less up to 20 %.

    The random part keeps clients that lost one broker from returning in the same moment.
    """
    pause_s = first_s
    while True:
        yield pause_s * random.uniform(0.8, 1.0)
        pause_s = min(2 * pause_s, longest_s)
