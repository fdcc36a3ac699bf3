# The acknowledgement state of a cursor: the mark-delete position, individually acknowledged entries
# after it, and the ack sets of partially acknowledged batches.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.bitmap cimport PAGE_WORDS, EntryBitmap
from pyxbroker.entry cimport AckRun

cdef enum:
    BATCH_WORDS_MAX = 4096          # words of an ack set: 262,144 messages

# The partially acknowledged batches of one ledger.
cdef class LedgerBatches:
    # entry id -> bytes: 64-bit words; a set bit is an unacknowledged message
    cdef dict left
    cdef EntryBitmap ids            # the keys of `left`, in order
    cdef EntryBitmap changed        # those that changed since they were encoded; None if untracked

cdef class AckSet:
    cdef readonly int64_t mark_ledger_id        # the mark-delete position
    cdef readonly int64_t mark_entry_id
    cdef dict ledgers                           # ledger id -> EntryBitmap, after the mark
    cdef readonly int64_t holes                 # entries acknowledged after the mark
    cdef dict batches                           # ledger id -> LedgerBatches, after the mark
    cdef readonly int64_t partial               # partially acknowledged batches
    cdef readonly int64_t partial_words         # words of all their ack sets
    cdef readonly int64_t refused               # ack sets not stored because of a memory limit
    cdef int64_t restored_words                 # words of bitmaps allocated while restoring
    cdef readonly bint has_passed_batches       # the mark has passed batches that are not freed yet
    cdef bint tracked                           # changes are recorded for encoding
    cdef bint contains(self, int64_t ledger_id, int64_t entry_id)
    # Return the ack set of a batch, or None if no message was acknowledged individually.
    cdef bytes ack_set_words(self, int64_t ledger_id, int64_t entry_id)
    # Return the ack set without words beyond the end of the batch. `messages` is the batch's own
    # message count, which may be any value; it is set to the number of unacknowledged messages,
    # which may be 0.
    cdef bytes trimmed_ack_set(self, int64_t ledger_id, int64_t entry_id, int32_t *messages)
    cdef int _add(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef EntryBitmap _bitmap(self, int64_t ledger_id)
    cdef int _drop(self, object ledger_id, EntryBitmap bitmap, int64_t below) except -1
    cdef int _acknowledge_batch(self, int64_t ledger_id, int64_t entry_id, const uint64_t *words,
                                uint32_t count) except -1
    cdef int _forget_batch(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef int _drop_batches(self) except -1
    cdef int _count_restored(self, int64_t words) except -1
    cdef int _settle_restored(self, int64_t ledger_id, EntryBitmap bitmap) except -1

# Count the 1 bits among the first `messages` bits of an ack set of at most BATCH_WORDS_MAX words.
cdef int32_t count_bits(bytes words, int64_t messages) noexcept

# Positions in order, in any ledger: those to redeliver.
cdef class PositionSet:
    cdef dict ledgers               # ledger id -> EntryBitmap
    cdef int64_t count
    cdef int put(self, int64_t ledger_id, int64_t entry_id) except -1
