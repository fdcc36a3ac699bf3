# What a topic with deduplication knows of one producer's name: the highest sequence ids.
from libc.stdint cimport int64_t, uint32_t

from pyxbroker.entry cimport EntryRun

cdef enum:
    NOT_DUPLICATE = 0
    DUPLICATE = 1               # it is stored
    UNKNOWN = 2                 # it is under way, and may still fail

cdef class SequenceIds:
    # Pulsar's ids are signed; NO_SEQUENCE_ID where there was none.
    cdef readonly int64_t pushed            # of what was appended, or is stored
    cdef public int64_t persisted           # of what is stored
    cdef public double last_seen            # when the name was known to be connected last, in s
    cdef public bint has_failed             # something that was appended never was stored
    cdef int _judge(self, EntryRun run, uint32_t i) noexcept
