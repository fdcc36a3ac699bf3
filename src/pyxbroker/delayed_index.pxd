# The index of delayed delivery: due times of the entries of a subscription.
from libc.stdint cimport int64_t, uint64_t

cdef struct DelayedItem:
    uint64_t when       # due time in ms and the number of the ledger, see delayed_index.pyx
    int64_t entry_id

cdef class DelayedIndex:
    cdef DelayedItem *items             # a heap with four children per item
    cdef size_t count, capacity
    cdef list ledgers                   # ledger ids by number
    cdef dict numbers                   # ledger number by id
    cdef public int64_t now             # ms since the epoch, set by the owner
    cdef int add(self, int64_t deliver_at, int64_t ledger_id, int64_t entry_id) except -1
    cdef int64_t _next_time(self) noexcept
    cdef int _take_first(self) except -1
    cdef void _sink(self, size_t at) noexcept
    cdef int _grow(self) except -1
