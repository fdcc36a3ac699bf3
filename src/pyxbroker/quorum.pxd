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
    cdef int64_t _add(self, int64_t count) except -1
    cdef int _ack(self, int index, int64_t first, int64_t last) except -1
    cdef int64_t _confirm(self) noexcept

# Unconfirmed runs with the acks of their entries. A run has `count`, `first_entry_id` and
# `last_entry_id`; all entries are added with one.
cdef class PendingRuns(PendingAdds):
    cdef list runs                  # unconfirmed runs from `head` on, in order
    cdef Py_ssize_t head
    cdef int64_t last               # last entry id of the oldest run; INT64_MAX without runs
    cdef list _take(self)
