# Latencies and sizes of added entries, counted per run.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "latency.h" nogil:
    const int LATENCY_BUCKETS
    struct latency_counts:
        uint64_t sum_ns
        uint64_t *counts
    void latency_add(latency_counts *counts, uint64_t ns, uint64_t count) noexcept
    uint64_t latency_bound_us(int bucket) noexcept


cdef enum:
    ADD_LATENCIES = 10              # one for each of ADD_LATENCY_BOUNDS_US, and one above them
    ENTRY_SIZES = 9                 # one for each of ENTRY_SIZE_BOUNDS, and one above them

# The counts of one period.
cdef struct add_counts:
    uint32_t latencies[ADD_LATENCIES]
    uint32_t sizes[ENTRY_SIZES]
    uint32_t entries
    uint64_t latency_us
    uint64_t bytes

# The publish latencies of all topics of a broker.
cdef class PublishLatency:
    cdef latency_counts latency     # since the start
    cdef int64_t period_ns          # length of the periods of each AddStats

# The counts of one managed ledger.
cdef class AddStats:
    cdef PublishLatency all
    cdef int64_t ends_ns            # end of the current period
    cdef add_counts now             # the current period
    cdef add_counts last            # the previous whole period
    cdef void roll(self, int64_t now_ns) noexcept
