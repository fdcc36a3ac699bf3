# Bitmaps of entry ids of one ledger. The acknowledgements of a cursor and the redeliveries of a
# dispatcher are built from them.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    PAGE_WORDS = 64

# Words that are allocated together. The words of a missing page are 0.
cdef struct Page:
    uint64_t words[PAGE_WORDS]
    uint64_t changed                # bit i: words[i] changed since it was encoded

# A set of entry ids, one bit each. Words are counted from entry 0 on: word w holds the entries 64 *
# w .. 64 * w + 63, and page p the words PAGE_WORDS * p .. PAGE_WORDS * p + PAGE_WORDS - 1.
cdef class EntryBitmap:
    cdef Page **pages               # from page `base` on; NULL: no entry of the page is in the set
    cdef bint tracked               # changes are recorded
    cdef int64_t base               # index of the page in pages[0]
    cdef int64_t size               # length of `pages`
    cdef int64_t held               # allocated pages
    cdef int64_t changed_from       # all changed words are in changed_from .. changed_to - 1
    cdef int64_t changed_to
    cdef readonly int64_t count     # entries in the set

    # Return the memory of the set in words of 8 bytes.
    cdef inline int64_t taken(self) noexcept:
        return self.size + self.held * (PAGE_WORDS + 1)

    cdef inline Page *page_of(self, int64_t word) noexcept:
        cdef int64_t at = (word >> 6) - self.base
        return self.pages[at] if 0 <= at < self.size else NULL

    cdef inline uint64_t word_at(self, int64_t word) noexcept:
        cdef Page *page = self.page_of(word)
        return page.words[word & (PAGE_WORDS - 1)] if page != NULL else 0

    cdef inline bint contains(self, int64_t entry_id) noexcept:
        return (self.word_at(entry_id >> 6) >> (entry_id & 63)) & 1

    cdef int add(self, int64_t entry_id) except -1              # 1 if the id is new
    cdef int64_t add_range(self, int64_t first, int64_t last) except -1     # number of new ids
    cdef int64_t remove_range(self, int64_t first, int64_t last) noexcept   # number of removed ids
    cdef int64_t add_word(self, int64_t word, uint64_t bits) except -1      # number of new ids
    # first id >= entry_id not in the set
    cdef int64_t next_clear(self, int64_t entry_id) noexcept
    # first id >= entry_id in the set, or -1
    cdef int64_t next_set(self, int64_t entry_id) noexcept
    cdef int64_t count_ranges(self) noexcept                    # number of contiguous ranges
    cdef int drop_below(self, int64_t entry_id) except -1       # removes ids < entry_id
    cdef int forget_changes(self) noexcept
    # Encode words as bytes in the format of bitmap.pyx. Encoding starts at word at[0] and writes at
    # most bytes_max bytes (64 or more). at[0] is set to the next word to encode, or -1 at the end.
    cdef bytes encode_runs(self, int64_t *at, uint32_t bytes_max, bint only_changed)
    # Encode all words as a LongListMap, the field `number` of the enclosing message.
    cdef bytes encode_longs(self, int64_t ledger_id, uint32_t number)
    # Add the encoded entries up to `last`. Raises ValueError if the bytes are malformed.
    cdef int merge_runs(self, const uint8_t *data, uint32_t size, int64_t last) except -1
    cdef int _reach(self, int64_t page) except -1
    cdef int _grow(self, int64_t first, int64_t grown) except -1
    cdef Page *_page(self, int64_t word) except NULL            # allocates a missing page
    cdef int _touch(self, Page *page, int64_t word) noexcept
    cdef int64_t _forget(self, Page *page, int64_t words) noexcept
    cdef int64_t _end_of_words(self) noexcept
    cdef bint _is_wanted(self, int64_t word, bint only_changed) noexcept
    cdef int64_t _next_wanted(self, int64_t word, int64_t end, bint only_changed) noexcept
    cdef uint8_t *_put_words(self, uint8_t *p, int64_t word, int64_t stop) noexcept
