"""Counts of the requests to the web port for /metrics."""

from __future__ import annotations

from collections import Counter


class WebCounts:
    """Requests and answers since the start."""

    def __init__(self) -> None:
        self.requests = 0
        self.active = self.active_max = 0  # requests that are being answered
        self.seconds = self.seconds_max = 0.0  # until the answer is written
        self.responses = Counter({f"{each}xx": 0 for each in range(1, 6)})  # by class of status
        self.response_bytes = 0

    def begin(self) -> None:
        """Count a request when its answer begins."""
        self.requests += 1
        self.active += 1
        self.active_max = max(self.active, self.active_max)

    def end(self, seconds: float) -> None:
        """Count the duration of a request, also if its answer could not be written."""
        self.active -= 1
        self.seconds += seconds
        self.seconds_max = max(seconds, self.seconds_max)
