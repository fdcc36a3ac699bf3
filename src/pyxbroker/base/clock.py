"""The clock of what a broker does by age or time of day: delays, TTL, retention, expiry.

A test can set it ahead of the host's clock (`pyxbroker.testing`). Timeouts, keep-alive and rates
follow the host's clock: they use the module `time` and the event loop.
"""

from __future__ import annotations

import time

_ahead_s = 0.0


def wall_s() -> float:
    """Return the time in s since 1970."""
    return time.time() + _ahead_s


def age_s() -> float:
    """Return a time in s that never goes back, to measure ages."""
    return time.monotonic() + _ahead_s


def set_ahead(seconds: float) -> None:
    """Set the clock ahead of the host's."""
    global _ahead_s
    _ahead_s = seconds
