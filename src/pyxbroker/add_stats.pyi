"""Type stub of add_stats.pyx: latencies and sizes of added entries."""

from pyxbroker.entry import EntryRun

NO_ADDS: tuple[int, ...]
"""Result of AddStats.last_period() for a managed ledger without adds."""
BOUNDS_US: tuple[int, ...]
"""Upper bound of each bucket of latency.h, in us."""

class PublishLatency:
    """Publish latencies of all topics: the time until an entry is durable.

    period_s is the length of the periods that each managed ledger counts.
    """

    def __init__(self, period_s: float = 60.0) -> None: ...
    def counts(self) -> tuple[int, bytes]:
        """Return the sum in nanoseconds, and the count of each bucket as 64-bit integers
        (latency.h).
        """

class AddStats:
    """Latencies and sizes of the entries added to one managed ledger."""

    def __init__(self, all: PublishLatency) -> None: ...
    def on_added(self, run: EntryRun) -> None:
        """Count a run that has become durable."""
    def last_period(self) -> tuple[int, ...]:
        """Return the counts of the last whole period: each latency bucket, their number and their
        sum in us, then each size bucket, their number and their sum in bytes.
        """
