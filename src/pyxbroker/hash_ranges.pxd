# Hash ranges of STICKY Key_Shared consumers.
#
# A consumer may request tens of thousands of ranges, so they are stored as arrays of integers.
from libc.stdint cimport int32_t

cdef struct HashRange:
    int32_t first                   # both bounds inclusive; hashes outside of 0..65535 do not exist
    int32_t last

cdef struct HeldRange:
    int32_t first
    int32_t last
    int32_t slot                    # slot of the consumer, from 1

# The ranges that one consumer requests, ascending by the first hash.
cdef class HashRanges:
    cdef HashRange *items
    cdef readonly int32_t count
    cdef readonly object backward   # (first, last) of the first range with last < first
    cdef readonly object overlap    # two adjacent ranges with a common hash, or None
    cdef int32_t capacity
    cdef int _append(self, int32_t first, int32_t last) except -1
    cdef int _finish(self) except -1
    cdef int _sort(self) except -1

# The ranges of all consumers of a subscription. No two of them overlap.
cdef class HeldRanges:
    cdef HeldRange *items           # ascending
    cdef readonly int32_t count
