# Acknowledgements of a ledger's adds by its bookies.
from libc.stdint cimport int64_t, uint32_t

# Adds of one ledger that are not confirmed yet: counts the bookies' answers, confirms in order.
# No socket, clock or future inside.
cdef class PendingAdds:
    cdef int ensemble_size
    cdef int write_quorum
    cdef int ack_quorum
    cdef uint32_t *acks             # ring: a bit per ensemble index, by entry id
    cdef int64_t capacity           # of the ring, a power of two
    cdef readonly int64_t first     # oldest entry not confirmed; first - 1 is the last confirmed
    cdef readonly int64_t next      # id of the next entry to be added
    cdef readonly bint is_held      # nothing is confirmed until resume()
    cdef int _grow(self, int64_t wanted) except -1
    cdef int64_t _confirm(self) noexcept
