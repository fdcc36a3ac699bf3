# Quorum acknowledgements of the entries of a ledger.
from libc.stdint cimport int64_t, uint32_t

# Unconfirmed adds of one ledger: counts the acks of the bookies, and confirms entries in order. It
# uses no socket, clock or future.
cdef class PendingAdds:
    cdef int ensemble_size
    cdef int write_quorum
    cdef int ack_quorum
    cdef uint32_t *acks             # ring by entry id: a bit per ensemble index
    cdef int64_t capacity           # of the ring, a power of two
    cdef readonly int64_t first     # oldest unconfirmed entry; first - 1 is the last add confirmed
    cdef readonly int64_t next      # id of the next entry
    cdef readonly bint is_held      # nothing is confirmed until resume()
    cdef int _grow(self, int64_t wanted) except -1
    cdef int64_t _confirm(self) noexcept
