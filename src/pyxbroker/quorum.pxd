# The way of adds to bookies: packaging, the embedded bookie's intake, and who has acknowledged.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.native cimport storage

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
    cdef int _grow(self, int64_t wanted) except -1

# Puts runs into the storage of the bookie in this process.
cdef class StorageWriter:
    cdef object owner               # pyxbroker._native.Storage
    cdef storage *handle
