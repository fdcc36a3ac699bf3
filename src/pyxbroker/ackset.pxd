# What a cursor has acknowledged: everything up to its mark-delete position, and single entries
# after it.
from libc.stdint cimport int64_t, uint64_t

from pyxbroker.entry cimport AckRun

# A set of entry ids of one ledger, one bit each, from word `base` on.
cdef class EntryBitmap:
    cdef uint64_t *words
    cdef int64_t base               # index of the first word held (64 entries a word)
    cdef int64_t size               # words held
    cdef readonly int64_t count     # entries in the set
    cdef bint contains(self, int64_t entry_id) noexcept
    cdef int add(self, int64_t entry_id) except -1              # 1 when it was not in the set
    cdef int64_t next_clear(self, int64_t entry_id) noexcept    # first id >= entry_id not in it
    cdef int64_t next_set(self, int64_t entry_id) noexcept      # first id >= entry_id in it, or -1
    cdef int drop_below(self, int64_t entry_id) except -1       # forgets ids < entry_id
    cdef int _reach(self, int64_t word) except -1

cdef class AckSet:
    cdef readonly int64_t mark_ledger_id        # the mark-delete position
    cdef readonly int64_t mark_entry_id
    cdef dict ledgers                           # ledger id -> EntryBitmap, after the mark
    cdef readonly int64_t holes                 # entries acknowledged after the mark
    cdef bint contains(self, int64_t ledger_id, int64_t entry_id)
    cdef int _drop(self, object ledger_id, EntryBitmap bitmap, int64_t below) except -1

# Positions in order, without limits on which: what is to be delivered again.
cdef class PositionSet:
    cdef dict ledgers               # ledger id -> EntryBitmap
    cdef int64_t count
