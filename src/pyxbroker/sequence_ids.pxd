# Highest sequence ids of one producer name on a topic with deduplication.
from libc.stdint cimport int64_t, uint32_t

from pyxbroker.entry cimport EntryRun

cdef enum:
    NOT_DUPLICATE = 0
    DUPLICATE = 1               # already stored
    UNKNOWN = 2                 # in progress, may still fail

cdef class SequenceIds:
    # Pulsar's sequence ids are signed. NO_SEQUENCE_ID means none.
    cdef readonly int64_t pushed            # highest id appended or stored
    cdef public int64_t persisted           # highest id stored
    # when the producer name was last known to be connected, in s
    cdef public double last_seen
    cdef public bint has_failed             # an appended entry was not stored
    cdef int _classify(self, EntryRun run, uint32_t i) noexcept
