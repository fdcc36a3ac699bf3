# How long entries took until they were durable, and how large they are: counted for a run at once.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "latency.h" nogil:
    const int LATENCY_BUCKETS
    struct latency_counts:
        uint64_t sum_ns
        uint64_t *counts
    void latency_add(latency_counts *counts, uint64_t ns, uint64_t count) noexcept
    uint64_t latency_bound_us(int bucket) noexcept


cdef enum:
    ADD_LATENCIES = 10              # those of ADD_LATENCY_BOUNDS_US, and one for what is above
    ENTRY_SIZES = 9                 # those of ENTRY_SIZE_BOUNDS, and one for what is above

# What one period has brought.
cdef struct add_counts:
    uint32_t latencies[ADD_LATENCIES]
    uint32_t sizes[ENTRY_SIZES]
    uint32_t entries
    uint64_t latency_us
    uint64_t bytes

# All topics of a broker.
cdef class PublishLatency:
    cdef latency_counts latency     # since the start
    cdef int64_t period_ns          # of each AddStats

# One managed ledger.
cdef class AddStats:
    cdef PublishLatency all
    cdef int64_t ends_ns            # of the period that is counted now
    cdef add_counts now
    cdef add_counts last            # the whole period before it
    cdef void roll(self, int64_t now_ns) noexcept
