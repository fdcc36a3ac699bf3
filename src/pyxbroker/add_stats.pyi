"""What Python sees of add_stats.pyx: latencies and sizes of the entries that are added."""

from pyxbroker.entry import EntryRun

NO_ADDS: tuple[int, ...]
"""AddStats.last_period() of a managed ledger to which nothing was added."""
BOUNDS_US: tuple[int, ...]
"""The longest time of each bucket of latency.h, in us."""

class PublishLatency:
    """How long the entries of all topics took until they were durable.

    Each managed ledger tells what the last whole one of its periods has brought.
    """

    def __init__(self, period_s: float = 60.0) -> None: ...
    def counts(self) -> tuple[int, bytes]:
        """Nanoseconds in all, and how many entries each bucket has, as 64 bits (latency.h)."""

class AddStats:
    """What was added to one managed ledger."""

    def __init__(self, all: PublishLatency) -> None: ...
    def on_added(self, run: EntryRun) -> None:
        """A run is durable."""
    def last_period(self) -> tuple[int, ...]:
        """The counts of each bucket of latencies, their number and sum in us; the same of sizes, in
        bytes."""
