# What a cursor has acknowledged: everything up to its mark-delete position, after it single
# entries, and single messages of batches.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.bitmap cimport PAGE_WORDS, EntryBitmap
from pyxbroker.entry cimport AckRun

cdef enum:
    BATCH_WORDS_MAX = 4096          # of what is left of a batch: 262,144 messages

# The batches of one ledger of which some messages are acknowledged.
cdef class LedgerBatches:
    cdef dict left                  # entry id -> bytes: 64-bit words, bit 1: not acknowledged
    cdef EntryBitmap ids            # the keys of left, in order
    cdef EntryBitmap changed        # those that changed since they were encoded; None: untracked

cdef class AckSet:
    cdef readonly int64_t mark_ledger_id        # the mark-delete position
    cdef readonly int64_t mark_entry_id
    cdef dict ledgers                           # ledger id -> EntryBitmap, after the mark
    cdef readonly int64_t holes                 # entries acknowledged after the mark
    cdef dict batches                           # ledger id -> LedgerBatches, after the mark
    cdef readonly int64_t partial               # batches of which some messages are acknowledged
    cdef readonly int64_t partial_words         # words of all of them
    cdef readonly int64_t refused               # times that a batch was not remembered
    cdef int64_t restored_words                 # of bitmaps, that restoring has made
    cdef readonly bint has_passed               # the mark has passed some that are not dropped yet
    cdef bint tracked                           # whether changes are noted, to be encoded
    cdef bint contains(self, int64_t ledger_id, int64_t entry_id)
    # The words of the messages of a batch that are left, None: no single one is acknowledged.
    cdef bytes left_of(self, int64_t ledger_id, int64_t entry_id)
    # The same without words behind the batch's end. messages: how many the batch says that it has,
    # whatever that is; set to how many of them are left, which may be none.
    cdef bytes left_of_batch(self, int64_t ledger_id, int64_t entry_id, int32_t *messages)
    cdef int _add(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef EntryBitmap _bitmap(self, int64_t ledger_id)
    cdef int _drop(self, object ledger_id, EntryBitmap bitmap, int64_t below) except -1
    cdef int _acknowledge_batch(self, int64_t ledger_id, int64_t entry_id, const uint64_t *words,
                                uint32_t count) except -1
    cdef int _forget_batch(self, int64_t ledger_id, int64_t entry_id) except -1
    cdef int _drop_batches(self) except -1
    cdef int _count_restored(self, int64_t words) except -1
    cdef int _settle_restored(self, int64_t ledger_id, EntryBitmap bitmap) except -1

# How many of the first `messages` bits of a batch's words are 1. At most BATCH_WORDS_MAX words.
cdef int32_t bits_below(bytes words, int64_t messages) noexcept

# Positions in order, without limits on which: what is to be delivered again.
cdef class PositionSet:
    cdef dict ledgers               # ledger id -> EntryBitmap
    cdef int64_t count
    cdef int put(self, int64_t ledger_id, int64_t entry_id) except -1
