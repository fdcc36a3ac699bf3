# Ranges of hashes that STICKY consumers of Key_Shared ask for, and who has which.
#
# A consumer may ask for tens of thousands: they are numbers in a row here, not objects.
from libc.stdint cimport int32_t

cdef struct HashRange:
    int32_t first                   # both are in it; what is outside of 0..65535 does not exist
    int32_t last

cdef struct HeldRange:
    int32_t first
    int32_t last
    int32_t slot                    # of the consumer that has it, from 1

# What one consumer asks for, ascending by the first hash.
cdef class HashRanges:
    cdef HashRange *items
    cdef readonly int32_t count
    cdef readonly object backward   # (first, last) of the first range whose end is before its start
    cdef readonly object overlap    # two neighbours that have a hash in common, or None
    cdef int32_t capacity
    cdef int _append(self, int32_t first, int32_t last) except -1
    cdef int _settle(self) except -1
    cdef int _sort(self) except -1

# What all consumers of a subscription have; no two of the ranges overlap.
cdef class HeldRanges:
    cdef HeldRange *items           # ascending
    cdef readonly int32_t count
