# Entry ids of one ledger, a bit each: what the acknowledgements of a cursor and the redeliveries
# of a dispatcher are made of.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

# A set of entry ids, one bit each, from word `base` on. Words are counted from entry 0 on: word w
# holds the entries 64 * w .. 64 * w + 63.
cdef class EntryBitmap:
    cdef uint64_t *words
    cdef uint8_t *changed           # a byte for each word, 1: changed since it was encoded, or NULL
    cdef bint tracked               # whether changes are noted
    cdef int64_t base               # index of the first word held
    cdef int64_t size               # words held
    cdef int64_t changed_from       # the changed words are among changed_from .. changed_to - 1
    cdef int64_t changed_to
    cdef readonly int64_t count     # entries in the set

    cdef inline bint contains(self, int64_t entry_id) noexcept:
        cdef int64_t word = (entry_id >> 6) - self.base
        if word < 0 or word >= self.size:
            return False
        return (self.words[word] >> (entry_id & 63)) & 1

    cdef int add(self, int64_t entry_id) except -1              # 1 when it was not in the set
    cdef int64_t add_range(self, int64_t first, int64_t last) except -1     # how many were not
    cdef int64_t remove_range(self, int64_t first, int64_t last) noexcept   # how many were
    cdef int64_t add_word(self, int64_t word, uint64_t bits) except -1      # how many were not
    cdef int64_t next_clear(self, int64_t entry_id) noexcept    # first id >= entry_id not in it
    cdef int64_t next_set(self, int64_t entry_id) noexcept      # first id >= entry_id in it, or -1
    cdef int64_t count_ranges(self) noexcept                    # stretches of ids without a gap
    cdef int drop_below(self, int64_t entry_id) except -1       # forgets ids < entry_id
    cdef int forget_changes(self) noexcept
    # Words as bytes; see the format in bitmap.pyx. encode_runs begins at word at[0], writes at most
    # bytes_max (64 or more), and sets at[0] to where to go on, -1 when that was all.
    cdef bytes encode_runs(self, int64_t *at, uint32_t bytes_max, bint only_changed)
    # Adds the entries up to last of the words that were encoded. ValueError: malformed.
    cdef int merge_runs(self, const uint8_t *data, uint32_t size, int64_t last) except -1
    cdef int _reach(self, int64_t word) except -1
    cdef int _grow(self, int64_t first, int64_t grown) except -1
    cdef int _touch(self, int64_t at) noexcept
    cdef bint _wanted(self, int64_t at, bint only_changed) noexcept
