"""Entry ids of one ledger, a bit each, and those bits as bytes.

The bytes are runs of words, so that words without entries cost nothing. A run is

  varint   words that are left out before it (for the first run: from entry 0 on)
  varint   n, the words in it, at least 1
  8 * n    the words, little-endian; bit b of word w is entry 64 * w + b

Runs are in ascending order. Several such encodings of one ledger are merged by or.
"""
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from pyxbroker.integers cimport VARINT_BYTES_MAX, get_varint, put_varint


cdef extern from *:
    int __builtin_ctzll(unsigned long long) nogil
    int __builtin_popcountll(unsigned long long) nogil

cdef enum:
    BITMAP_BYTES = 200              # memory that one takes besides its words, about
    WORDS_MIN = 8
    WORDS_MAX = 1 << 24             # of one ledger: a billion entries, first to last


# Memory is the process's: what all of them take, whoever they belong to.
cdef int64_t _held_bytes = 0


def held_bytes():
    """Bytes that all sets take, about."""
    return _held_bytes


# The bits of a word that first..last have in it.
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
        _held_bytes -= BITMAP_BYTES + self.size * (8 + self.tracked)
        free(self.words)
        free(self.changed)

    cdef int _reach(self, int64_t word) except -1:
        """Makes room for a word (an absolute index)."""
        cdef int64_t first, grown
        if self.words == NULL:
            self.base = word
        if word >= self.base and word - self.base < self.size:
            return 0
        first = min(word, self.base)
        grown = max(self.base + self.size, word + 1) - first
        if first == self.base:
            grown = max(grown, min(self.size * 2, <int64_t>WORDS_MAX))
        return self._grow(first, max(grown, <int64_t>WORDS_MIN))

    cdef int _grow(self, int64_t first, int64_t grown) except -1:
        """Holds `grown` words from `first` on, which are all that it holds and more."""
        global _held_bytes
        cdef int64_t before = self.base - first
        cdef uint64_t *moved = NULL
        cdef uint8_t *flags
        if grown <= WORDS_MAX:
            moved = <uint64_t *>realloc(self.words, <size_t>grown * 8)
        if moved == NULL:
            raise MemoryError("no memory for a set of %d entries" % (grown * 64))
        self.words = moved
        if self.tracked:
            flags = <uint8_t *>realloc(self.changed, <size_t>grown)
            if flags == NULL:
                raise MemoryError("no memory for a set of %d entries" % (grown * 64))
            self.changed = flags
            memmove(flags + before, flags, <size_t>self.size)
            memset(flags, 0, <size_t>before)
            memset(flags + before + self.size, 0, <size_t>(grown - self.size - before))
        memmove(moved + before, moved, <size_t>self.size * 8)
        memset(moved, 0, <size_t>before * 8)
        memset(moved + before + self.size, 0, <size_t>(grown - self.size - before) * 8)
        _held_bytes += (grown - self.size) * (8 + self.tracked)
        self.base = first
        self.size = grown
        return 0

    cdef int _touch(self, int64_t at) noexcept:
        """Notes that a word (an index into words) is changed."""
        cdef int64_t word = self.base + at
        if self.changed == NULL:
            return 0
        self.changed[at] = 1
        if self.changed_from >= self.changed_to:
            self.changed_from = word
            self.changed_to = word + 1
        else:
            self.changed_from = min(self.changed_from, word)
            self.changed_to = max(self.changed_to, word + 1)
        return 0

    cdef int add(self, int64_t entry_id) except -1:
        cdef int64_t at
        cdef uint64_t bit = <uint64_t>1 << (entry_id & 63)
        self._reach(entry_id >> 6)
        at = (entry_id >> 6) - self.base
        if self.words[at] & bit:
            return 0
        self.words[at] |= bit
        self.count += 1
        self._touch(at)
        return 1

    cdef int64_t add_word(self, int64_t word, uint64_t bits) except -1:
        cdef int64_t at, fresh
        if bits == 0:
            return 0
        self._reach(word)
        at = word - self.base
        fresh = __builtin_popcountll(bits & ~self.words[at])
        if fresh:
            self.words[at] |= bits
            self.count += fresh
            self._touch(at)
        return fresh

    cdef int64_t add_range(self, int64_t first, int64_t last) except -1:
        cdef int64_t word
        cdef int64_t fresh = 0
        if first > last:
            return 0
        self._reach(first >> 6)
        self._reach(last >> 6)
        for word in range(first >> 6, (last >> 6) + 1):
            fresh += self.add_word(word, _mask(word, first, last))
        return fresh

    cdef int64_t remove_range(self, int64_t first, int64_t last) noexcept:
        cdef int64_t word, at
        cdef int64_t before = self.count
        cdef uint64_t mask
        for word in range(max(first >> 6, self.base),
                          min(last >> 6, self.base + self.size - 1) + 1):
            at = word - self.base
            mask = _mask(word, first, last)
            if self.words[at] & mask:
                self.count -= __builtin_popcountll(self.words[at] & mask)
                self.words[at] &= ~mask
                self._touch(at)
        return before - self.count

    cdef int64_t next_clear(self, int64_t entry_id) noexcept:
        cdef int64_t word = (entry_id >> 6) - self.base
        cdef uint64_t bits
        if word < 0 or word >= self.size:
            return entry_id
        bits = ~self.words[word] & (~<uint64_t>0 << (entry_id & 63))
        while bits == 0:
            word += 1
            if word == self.size:
                return (self.base + word) << 6
            bits = ~self.words[word]
        return ((self.base + word) << 6) + __builtin_ctzll(bits)

    cdef int64_t next_set(self, int64_t entry_id) noexcept:
        cdef int64_t word = (entry_id >> 6) - self.base
        cdef uint64_t bits
        if word < 0:
            word = 0
            entry_id = 0
        if word >= self.size:
            return -1
        bits = self.words[word] & (~<uint64_t>0 << (entry_id & 63))
        while bits == 0:
            word += 1
            if word == self.size:
                return -1
            bits = self.words[word]
        return ((self.base + word) << 6) + __builtin_ctzll(bits)

    cdef int64_t count_ranges(self) noexcept:
        cdef int64_t at
        cdef int64_t found = 0
        cdef uint64_t carried = 0
        for at in range(self.size):
            # A range begins at each id whose predecessor is not in the set.
            found += __builtin_popcountll(self.words[at] & ~(self.words[at] << 1 | carried))
            carried = self.words[at] >> 63
        return found

    cdef int drop_below(self, int64_t entry_id) except -1:
        cdef int64_t words = (entry_id >> 6) - self.base
        cdef int64_t at
        cdef uint64_t mask
        if words < 0 or self.size == 0:
            return 0
        words = min(words, self.size)
        for at in range(words):
            self.count -= __builtin_popcountll(self.words[at])
            self.words[at] = 0
        if self.changed != NULL:
            memset(self.changed, 0, <size_t>words)
        if words < self.size and words == (entry_id >> 6) - self.base:
            mask = (<uint64_t>1 << (entry_id & 63)) - 1
            self.count -= __builtin_popcountll(self.words[words] & mask)
            self.words[words] &= ~mask
        # Moving the words is worth it only when most of them are behind the mark.
        if words * 2 > self.size and words > WORDS_MIN:
            memmove(self.words, self.words + words, <size_t>(self.size - words) * 8)
            memset(self.words + (self.size - words), 0, <size_t>words * 8)
            if self.changed != NULL:
                memmove(self.changed, self.changed + words, <size_t>(self.size - words))
                memset(self.changed + (self.size - words), 0, <size_t>words)
            self.base += words
        return 0

    # --- as bytes -------------------------------------------------------------------------------

    cdef int forget_changes(self) noexcept:
        if self.changed != NULL:
            memset(self.changed, 0, <size_t>self.size)
        self.changed_from = self.changed_to = 0
        return 0

    cdef bint _wanted(self, int64_t at, bint only_changed) noexcept:
        if only_changed:
            return self.changed[at]
        return self.words[at] != 0

    cdef bytes encode_runs(self, int64_t *at, uint32_t bytes_max, bint only_changed):
        cdef int64_t word = max(at[0], self.base)
        cdef int64_t end = self.base + self.size
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
            while word < end and not self._wanted(word - self.base, only_changed):
                word += 1
            if word >= end:
                break
            room = (<int64_t>bytes_max - (p - data) - 2 * VARINT_BYTES_MAX) // 8
            if room < 1:
                at[0] = word
                break
            stop = word + 1
            while (stop < end and stop - word < room
                    and self._wanted(stop - self.base, only_changed)):
                stop += 1
            p = put_varint(put_varint(p, <uint64_t>(word - passed)), <uint64_t>(stop - word))
            memcpy(p, self.words + (word - self.base), <size_t>(stop - word) * 8)
            p += (stop - word) * 8
            if self.changed != NULL:
                memset(self.changed + (word - self.base), 0, <size_t>(stop - word))
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

    def to_longs(self):
        """Signed 64-bit words from entry 0 on, as Java's BitSet.toLongArray gives them."""
        cdef int64_t i
        cdef int64_t used = self.size
        while used and self.words[used - 1] == 0:
            used -= 1
        longs = [0] * self.base if used else []
        for i in range(used):
            longs.append(<int64_t>self.words[i])
        return longs

    def longs_size(self):
        """How many words to_longs gives."""
        cdef int64_t used = self.size
        while used and self.words[used - 1] == 0:
            used -= 1
        return self.base + used if used else 0

    def add_longs(self, longs, int64_t last):
        """Adds the entries up to last of the words that to_longs gave."""
        cdef int64_t word = 0
        if last < 0:
            return
        for value in longs:
            if word > last >> 6:
                return
            self.add_word(word, <uint64_t>(value & 0xffffffffffffffff) & _mask(word, 0, last))
            word += 1
