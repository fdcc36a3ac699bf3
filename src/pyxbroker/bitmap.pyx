"""Bitmaps of entry ids of one ledger, and their encoding.

The bits are stored in pages. A page is allocated when one of its entries is added and freed once
the mark has passed it. A set with the first and the last of a million entries therefore has two
pages, and a pointer for each page between them.

The encoding consists of runs of words, so that words without entries take no space. A run is

  varint   number of words skipped before it (for the first run: from entry 0 on)
  varint   n, the number of words in it, at least 1
  8 * n    the words, little-endian; bit b of word w is entry 64 * w + b

Runs are in ascending order. Several such encodings of one ledger are merged by bitwise or.
"""
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from pyxbroker.integers cimport VARINT_BYTES_MAX, get_varint, put_varint, varint_size


cdef extern from *:
    int __builtin_ctzll(unsigned long long) nogil
    int __builtin_popcountll(unsigned long long) nogil

cdef enum:
    BITMAP_BYTES = 200              # approximate memory of a set in addition to its pages
    # from the first to the last page of one ledger: a billion entries
    PAGES_MAX = 1 << 18


# Memory is limited per process: this is the sum over all bitmaps.
cdef int64_t _held_bytes = 0


def held_bytes():
    """Return the approximate memory of all bitmaps of the process, in bytes."""
    return _held_bytes


# Return the bits of a word that are in first..last.
cdef inline uint64_t _mask(int64_t word, int64_t first, int64_t last) noexcept:
    cdef uint64_t mask = ~<uint64_t>0
    if first > word << 6:
        mask &= ~<uint64_t>0 << (first & 63)
    if last < (word << 6) + 63:
        mask &= ~<uint64_t>0 >> (63 - (last & 63))
    return mask


cdef class EntryBitmap:
    def __cinit__(self, bint tracked=False):
        global _held_bytes
        self.tracked = tracked
        _held_bytes += BITMAP_BYTES

    def __dealloc__(self):
        global _held_bytes
        cdef int64_t at
        for at in range(self.size):
            if self.pages[at] != NULL:
                self._forget(self.pages[at], 0)
        _held_bytes -= BITMAP_BYTES + self.size * <int64_t>sizeof(Page *)
        free(self.pages)

    cdef int _reach(self, int64_t page) except -1:
        """Extend `pages` so that it covers a page (an absolute index)."""
        cdef int64_t first, grown
        if self.pages == NULL:
            self.base = page
        if page >= self.base and page - self.base < self.size:
            return 0
        first = min(page, self.base)
        grown = max(self.base + self.size, page + 1) - first
        if first == self.base:
            grown = max(grown, min(self.size * 2, <int64_t>PAGES_MAX))
        return self._grow(first, grown)

    cdef int _grow(self, int64_t first, int64_t grown) except -1:
        """Extend `pages` to `grown` pages from `first` on, a superset of the present range."""
        global _held_bytes
        cdef int64_t before = self.base - first
        cdef Page **moved = NULL
        if grown <= PAGES_MAX:
            moved = <Page **>realloc(self.pages, <size_t>grown * sizeof(Page *))
        if moved == NULL:
            raise MemoryError("no memory for a set of %d entries" % (grown * PAGE_WORDS * 64))
        self.pages = moved
        memmove(moved + before, moved, <size_t>self.size * sizeof(Page *))
        memset(moved, 0, <size_t>before * sizeof(Page *))
        memset(moved + before + self.size, 0,
               <size_t>(grown - self.size - before) * sizeof(Page *))
        _held_bytes += (grown - self.size) * <int64_t>sizeof(Page *)
        self.base = first
        self.size = grown
        return 0

    cdef Page *_page(self, int64_t word) except NULL:
        global _held_bytes
        cdef Page *page = self.page_of(word)
        if page != NULL:
            return page
        self._reach(word >> 6)
        page = <Page *>calloc(1, sizeof(Page))
        if page == NULL:
            raise MemoryError("no memory for a set of %d entries" % (PAGE_WORDS * 64))
        self.pages[(word >> 6) - self.base] = page
        self.held += 1
        _held_bytes += <int64_t>sizeof(Page)
        return page

    cdef int _touch(self, Page *page, int64_t word) noexcept:
        """Record that a word has changed."""
        if not self.tracked:
            return 0
        page.changed |= <uint64_t>1 << (word & (PAGE_WORDS - 1))
        if self.changed_from >= self.changed_to:
            self.changed_from = word
            self.changed_to = word + 1
        else:
            self.changed_from = min(self.changed_from, word)
            self.changed_to = max(self.changed_to, word + 1)
        return 0

    cdef int add(self, int64_t entry_id) except -1:
        return <int>self.add_word(entry_id >> 6, <uint64_t>1 << (entry_id & 63))

    cdef int64_t add_word(self, int64_t word, uint64_t bits) except -1:
        cdef Page *page
        cdef int64_t fresh
        if bits == 0:
            return 0
        page = self._page(word)
        fresh = __builtin_popcountll(bits & ~page.words[word & (PAGE_WORDS - 1)])
        if fresh:
            page.words[word & (PAGE_WORDS - 1)] |= bits
            self.count += fresh
            self._touch(page, word)
        return fresh

    cdef int64_t add_range(self, int64_t first, int64_t last) except -1:
        cdef int64_t word, page
        cdef int64_t fresh = 0
        if first > last:
            return 0
        # Allocate all memory first, so that nothing is added if that fails.
        self._reach(first >> 6 >> 6)
        self._reach(last >> 6 >> 6)
        for page in range(first >> 6 >> 6, (last >> 6 >> 6) + 1):
            self._page(page * PAGE_WORDS)
        for word in range(first >> 6, (last >> 6) + 1):
            fresh += self.add_word(word, _mask(word, first, last))
        return fresh

    cdef int64_t remove_range(self, int64_t first, int64_t last) noexcept:
        cdef int64_t word = max(first >> 6, self.base * PAGE_WORDS)
        cdef int64_t end = min((last >> 6) + 1, (self.base + self.size) * PAGE_WORDS)
        cdef int64_t before = self.count
        cdef Page *page
        cdef uint64_t mask
        while word < end:
            page = self.page_of(word)
            if page == NULL:
                word = (word | (PAGE_WORDS - 1)) + 1
                continue
            mask = _mask(word, first, last) & page.words[word & (PAGE_WORDS - 1)]
            if mask:
                self.count -= __builtin_popcountll(mask)
                page.words[word & (PAGE_WORDS - 1)] &= ~mask
                self._touch(page, word)
            word += 1
        return before - self.count

    cdef int64_t next_clear(self, int64_t entry_id) noexcept:
        cdef int64_t word = entry_id >> 6
        cdef uint64_t bits = ~self.word_at(word) & (~<uint64_t>0 << (entry_id & 63))
        while bits == 0:  # a missing page ends the loop
            word += 1
            bits = ~self.word_at(word)
        return (word << 6) + __builtin_ctzll(bits)

    cdef int64_t next_set(self, int64_t entry_id) noexcept:
        cdef int64_t word = max(entry_id >> 6, self.base * PAGE_WORDS)
        cdef int64_t end = (self.base + self.size) * PAGE_WORDS
        cdef uint64_t bits
        if word >= end:
            return -1
        bits = self.word_at(word)
        if word == entry_id >> 6:
            bits &= ~<uint64_t>0 << (entry_id & 63)
        while bits == 0:
            if self.page_of(word) == NULL:
                word |= PAGE_WORDS - 1
            word += 1
            if word >= end:
                return -1
            bits = self.word_at(word)
        return (word << 6) + __builtin_ctzll(bits)

    cdef int64_t count_ranges(self) noexcept:
        cdef int64_t at
        cdef int i
        cdef Page *page
        cdef int64_t found = 0
        cdef uint64_t carried = 0
        for at in range(self.size):
            page = self.pages[at]
            if page == NULL:
                carried = 0
                continue
            for i in range(PAGE_WORDS):
                # A range begins at each id whose predecessor is not in the set.
                found += __builtin_popcountll(page.words[i] & ~(page.words[i] << 1 | carried))
                carried = page.words[i] >> 63
        return found

    cdef int64_t _forget(self, Page *page, int64_t words) noexcept:
        """Clear the first `words` words of a page, or free the page if `words` is 0."""
        global _held_bytes
        cdef int64_t i
        for i in range(words or PAGE_WORDS):
            self.count -= __builtin_popcountll(page.words[i])
            page.words[i] = 0
        if words:
            page.changed &= ~<uint64_t>0 << words
            return 0
        free(page)
        self.held -= 1
        _held_bytes -= <int64_t>sizeof(Page)
        return 0

    cdef int drop_below(self, int64_t entry_id) except -1:
        cdef int64_t pages = (entry_id >> 6 >> 6) - self.base
        cdef int64_t at, words
        cdef Page *page
        cdef uint64_t mask
        if pages < 0 or self.size == 0:
            return 0
        page = self.page_of(entry_id >> 6)
        if page != NULL:
            words = (entry_id >> 6) & (PAGE_WORDS - 1)
            if words:
                self._forget(page, words)
            mask = ((<uint64_t>1 << (entry_id & 63)) - 1) & page.words[words]
            self.count -= __builtin_popcountll(mask)
            page.words[words] &= ~mask
        pages = min(pages, self.size)
        for at in range(pages):
            if self.pages[at] != NULL:
                self._forget(self.pages[at], 0)
                self.pages[at] = NULL
        # Move the remaining pages only if most of the pages are below the mark.
        if pages * 2 > self.size:
            memmove(self.pages, self.pages + pages, <size_t>(self.size - pages) * sizeof(Page *))
            memset(self.pages + (self.size - pages), 0, <size_t>pages * sizeof(Page *))
            self.base += pages
        return 0

    # --- encoding -------------------------------------------------------------------------------

    cdef int forget_changes(self) noexcept:
        cdef int64_t at
        for at in range(self.size):
            if self.pages[at] != NULL:
                self.pages[at].changed = 0
        self.changed_from = self.changed_to = 0
        return 0

    cdef bint _is_wanted(self, int64_t word, bint only_changed) noexcept:
        cdef Page *page = self.page_of(word)
        if page == NULL:
            return False
        if only_changed:
            return (page.changed >> (word & (PAGE_WORDS - 1))) & 1
        return page.words[word & (PAGE_WORDS - 1)] != 0

    cdef int64_t _next_wanted(self, int64_t word, int64_t end, bint only_changed) noexcept:
        while word < end and not self._is_wanted(word, only_changed):
            if self.page_of(word) == NULL:
                word |= PAGE_WORDS - 1
            word += 1
        return word

    cdef uint8_t *_put_words(self, uint8_t *p, int64_t word, int64_t stop) noexcept:
        """Write consecutive words and clear their change bits."""
        cdef Page *page
        cdef int64_t i
        for word in range(word, stop):
            page = self.page_of(word)
            i = word & (PAGE_WORDS - 1)
            memcpy(p, &page.words[i], 8)
            page.changed &= ~(<uint64_t>1 << i)
            p += 8
        return p

    cdef bytes encode_runs(self, int64_t *at, uint32_t bytes_max, bint only_changed):
        cdef int64_t word = max(at[0], self.base * PAGE_WORDS)
        cdef int64_t end = (self.base + self.size) * PAGE_WORDS
        cdef int64_t passed = 0
        cdef int64_t stop, room
        cdef uint8_t *data
        cdef uint8_t *p
        if only_changed:
            word = max(word, self.changed_from)
            end = min(end, self.changed_to)
        data = <uint8_t *>malloc(bytes_max)
        if data == NULL:
            raise MemoryError("no memory for %d bytes of acknowledgements" % bytes_max)
        p = data
        at[0] = -1
        while True:
            word = self._next_wanted(word, end, only_changed)
            if word >= end:
                break
            room = (<int64_t>bytes_max - (p - data) - 2 * VARINT_BYTES_MAX) // 8
            if room < 1:
                at[0] = word
                break
            stop = word + 1
            while stop < end and stop - word < room and self._is_wanted(stop, only_changed):
                stop += 1
            p = put_varint(put_varint(p, <uint64_t>(word - passed)), <uint64_t>(stop - word))
            p = self._put_words(p, word, stop)
            word = passed = stop
        if at[0] == -1 and only_changed:
            self.changed_from = self.changed_to = 0
        try:
            return data[:p - data]
        finally:
            free(data)

    cdef int merge_runs(self, const uint8_t *data, uint32_t size, int64_t last) except -1:
        cdef uint32_t at = 0
        cdef uint64_t passed, n, _i, bits
        cdef int64_t word = 0
        while at < size:
            if (get_varint(data, size, &at, &passed) != 0
                    or get_varint(data, size, &at, &n) != 0
                    or n == 0 or n > (size - at) // 8 or passed > <uint64_t>1 << 57):
                raise ValueError("acknowledged entries are encoded wrongly")
            word += <int64_t>passed
            if last < 0 or word > last >> 6:
                return 0
            for _i in range(n):
                if word > last >> 6:
                    return 0
                memcpy(&bits, data + at, 8)
                at += 8
                self.add_word(word, bits & _mask(word, word << 6, last))
                word += 1
        return 0

    # --- PositionInfo.individualDeletedMessageRanges: word i holds entries 64*i .. 64*i+63 ------

    cdef bytes encode_longs(self, int64_t ledger_id, uint32_t number):
        cdef int64_t words = self._end_of_words()
        cdef int64_t word
        cdef uint64_t size = 1 + varint_size(<uint64_t>ledger_id) + <uint64_t>words
        cdef uint8_t *data
        cdef uint8_t *p
        for word in range(words):
            size += varint_size(self.word_at(word))
        data = <uint8_t *>malloc(size + 2 * VARINT_BYTES_MAX)
        if data == NULL:
            raise MemoryError("no memory for %d bytes of acknowledgements" % size)
        p = put_varint(put_varint(data, number << 3 | 2), size)
        p = put_varint(put_varint(p, 1 << 3), <uint64_t>ledger_id)
        for word in range(words):
            p[0] = 2 << 3
            p = put_varint(p + 1, self.word_at(word))
        try:
            return data[:p - data]
        finally:
            free(data)

    def longs_size(self):
        """Return the number of words that encode_longs encodes."""
        return self._end_of_words()

    cdef int64_t _end_of_words(self) noexcept:
        """Return the index after the last word that is not 0."""
        cdef int64_t at = self.size
        cdef int i
        while at:
            at -= 1
            if self.pages[at] == NULL:
                continue
            for i in reversed(range(PAGE_WORDS)):
                if self.pages[at].words[i]:
                    return (self.base + at) * PAGE_WORDS + i + 1
        return 0

    def add_longs(self, longs, int64_t last, int64_t word):
        """Add the entries up to `last` from encoded words, of which the first is number `word`."""
        if last < 0:
            return
        for value in longs:
            if word > last >> 6:
                return
            self.add_word(word, <uint64_t>(value & 0xffffffffffffffff) & _mask(word, 0, last))
            word += 1
