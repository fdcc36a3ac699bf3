"""Latencies and sizes of added entries; see add_stats.pxd.

The bounds are those of Pulsar's ManagedLedgerMBeanImpl. As in BookKeeper's StatsBuckets, a value
equal to a bound belongs to the lower bucket. A managed ledger reports the counts of the last whole
period, as in Pulsar.
"""
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memset

from pyxbroker.entry cimport EntryRun
from pyxbroker.turn_watch cimport turn_now_ns


cdef extern from *:
    """
    #include <stdint.h>

    static const uint64_t ADD_LATENCY_BOUNDS_US[9] = {
        500, 1000, 5000, 10000, 20000, 50000, 100000, 200000, 1000000,
    };
    static const uint32_t ENTRY_SIZE_BOUNDS[8] = {
        128, 512, 1024, 2048, 4096, 16384, 102400, 1232896,
    };
    """
    const uint64_t *ADD_LATENCY_BOUNDS_US
    const uint32_t *ENTRY_SIZE_BOUNDS

NO_ADDS = (0,) * (ADD_LATENCIES + 2 + ENTRY_SIZES + 2)
BOUNDS_US = tuple(latency_bound_us(i) for i in range(LATENCY_BUCKETS))


cdef class PublishLatency:
    def __cinit__(self, double period_s=60.0):
        self.period_ns = <int64_t>(period_s * 1e9)

    def counts(self):
        """Return the sum in nanoseconds, and the count of each bucket as 64-bit integers
        (latency.h).
        """
        return self.latency.sum_ns, (<char *>&self.latency.counts[0])[
            :LATENCY_BUCKETS * sizeof(uint64_t)]


cdef class AddStats:
    def __cinit__(self, PublishLatency all not None):
        self.all = all
        self.ends_ns = (turn_now_ns() // all.period_ns + 1) * all.period_ns

    cdef void roll(self, int64_t now_ns) noexcept:
        """Start a new period. If more than one period has passed, the last whole one is empty."""
        if now_ns - self.ends_ns < self.all.period_ns:
            memcpy(&self.last, &self.now, sizeof(add_counts))
        else:
            memset(&self.last, 0, sizeof(add_counts))
        memset(&self.now, 0, sizeof(add_counts))
        self.ends_ns = (now_ns // self.all.period_ns + 1) * self.all.period_ns

    def on_added(self, EntryRun run not None):
        """Count a run that has become durable."""
        cdef int64_t now_ns = turn_now_ns()
        cdef uint64_t ns = <uint64_t>(now_ns - run.started_ns)
        cdef uint64_t us = ns // 1000
        cdef int bucket = 0
        cdef uint32_t i, size
        if now_ns >= self.ends_ns:
            self.roll(now_ns)
        while bucket < ADD_LATENCIES - 1 and us > ADD_LATENCY_BOUNDS_US[bucket]:
            bucket += 1
        self.now.latencies[bucket] += run.count
        self.now.entries += run.count
        self.now.latency_us += us * run.count
        self.now.bytes += run.bytes
        for i in range(run.count):
            size = run.items[i].length
            bucket = 0
            while bucket < ENTRY_SIZES - 1 and size > ENTRY_SIZE_BOUNDS[bucket]:
                bucket += 1
            self.now.sizes[bucket] += 1
        latency_add(&self.all.latency, ns, run.count)

    def last_period(self):
        """Return the counts of the last whole period: each latency bucket, their number and their
        sum in us, then each size bucket, their number and their sum in bytes. Return NO_ADDS if
        nothing was added.
        """
        cdef int64_t now_ns = turn_now_ns()
        cdef add_counts *last = &self.last
        if now_ns >= self.ends_ns:
            self.roll(now_ns)
        if last.entries == 0:
            return NO_ADDS
        return (
            last.latencies[0], last.latencies[1], last.latencies[2], last.latencies[3],
            last.latencies[4], last.latencies[5], last.latencies[6], last.latencies[7],
            last.latencies[8], last.latencies[9], last.entries, last.latency_us,
            last.sizes[0], last.sizes[1], last.sizes[2], last.sizes[3], last.sizes[4],
            last.sizes[5], last.sizes[6], last.sizes[7], last.sizes[8], last.entries, last.bytes,
        )
