"""Acknowledged positions of one cursor: a mark-delete position and bitmaps of single entries.

A million single acks cost a bit for each entry between the mark and the last of them, in memory and
on disk; nothing is ever dropped. The machine knows nothing of ledgers but what it is told: where a
ledger ends comes in from outside.
"""
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset

from pyxbroker.entry import Position


cdef extern from *:
    int __builtin_ctzll(unsigned long long) nogil
    int __builtin_popcountll(unsigned long long) nogil

cdef enum:
    WORDS_MIN = 8


cdef class EntryBitmap:
    def __dealloc__(self):
        free(self.words)

    cdef bint contains(self, int64_t entry_id) noexcept:
        cdef int64_t word = (entry_id >> 6) - self.base
        if word < 0 or word >= self.size:
            return False
        return (self.words[word] >> (entry_id & 63)) & 1

    cdef int _reach(self, int64_t word) except -1:
        """Makes room for a word (an absolute index)."""
        cdef int64_t first, grown
        cdef uint64_t *moved
        if self.words == NULL:
            self.base = word
        if word >= self.base and word - self.base < self.size:
            return 0
        first = min(word, self.base)
        grown = max(self.base + self.size, word + 1) - first
        if first == self.base:
            grown = max(grown, self.size * 2)
        grown = max(grown, <int64_t>WORDS_MIN)
        moved = <uint64_t *>realloc(self.words, <size_t>grown * 8)
        if moved == NULL:
            raise MemoryError("no memory for %d acknowledged entries" % (grown * 64))
        self.words = moved
        memmove(moved + (self.base - first), moved, <size_t>self.size * 8)
        memset(moved, 0, <size_t>(self.base - first) * 8)
        memset(moved + (self.base - first) + self.size, 0,
               <size_t>(grown - self.size - (self.base - first)) * 8)
        self.base = first
        self.size = grown
        return 0

    cdef int add(self, int64_t entry_id) except -1:
        cdef int64_t word = entry_id >> 6
        cdef uint64_t bit = <uint64_t>1 << (entry_id & 63)
        self._reach(word)
        if self.words[word - self.base] & bit:
            return 0
        self.words[word - self.base] |= bit
        self.count += 1
        return 1

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

    cdef int drop_below(self, int64_t entry_id) except -1:
        cdef int64_t words = (entry_id >> 6) - self.base
        cdef int64_t i
        cdef uint64_t mask
        if words < 0 or self.size == 0:
            return 0
        words = min(words, self.size)
        for i in range(words):
            self.count -= __builtin_popcountll(self.words[i])
            self.words[i] = 0
        if words < self.size and words == (entry_id >> 6) - self.base:
            mask = (<uint64_t>1 << (entry_id & 63)) - 1
            self.count -= __builtin_popcountll(self.words[words] & mask)
            self.words[words] &= ~mask
        # Moving the words is worth it only when most of them are behind the mark.
        if words * 2 > self.size and words > WORDS_MIN:
            memmove(self.words, self.words + words, <size_t>(self.size - words) * 8)
            memset(self.words + (self.size - words), 0, <size_t>words * 8)
            self.base += words
        return 0

    # PositionInfo.individualDeletedMessageRanges: word i holds entries 64*i .. 64*i+63.

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

    @staticmethod
    def from_longs(longs):
        cdef EntryBitmap bitmap = EntryBitmap()
        cdef int64_t i
        cdef uint64_t word
        for i, value in enumerate(longs):
            word = <uint64_t>(value & 0xffffffffffffffff)
            if word:
                bitmap._reach(i)
                bitmap.words[i - bitmap.base] = word
                bitmap.count += __builtin_popcountll(word)
        return bitmap


cdef class AckSet:
    """Mark-delete position plus the entries acknowledged after it."""

    def __cinit__(self, int64_t ledger_id, int64_t entry_id):
        self.mark_ledger_id = ledger_id
        self.mark_entry_id = entry_id
        self.ledgers = {}

    @property
    def mark_delete(self):
        return Position(self.mark_ledger_id, self.mark_entry_id)

    cdef bint contains(self, int64_t ledger_id, int64_t entry_id):
        cdef EntryBitmap bitmap
        if ledger_id < self.mark_ledger_id:
            return True
        if ledger_id == self.mark_ledger_id and entry_id <= self.mark_entry_id:
            return True
        if self.holes == 0:
            return False
        bitmap = self.ledgers.get(ledger_id)
        return bitmap is not None and bitmap.contains(entry_id)

    def is_acknowledged(self, int64_t ledger_id, int64_t entry_id):
        return self.contains(ledger_id, entry_id)

    def add(self, int64_t ledger_id, int64_t entry_id):
        """Acknowledges one entry; True when it was not acknowledged before.

        The caller knows that the entry exists: an id from the wire must be checked first.
        """
        cdef EntryBitmap bitmap
        if self.contains(ledger_id, entry_id):
            return False
        if (ledger_id == self.mark_ledger_id and entry_id == self.mark_entry_id + 1
                and self.holes == 0):
            self.mark_entry_id = entry_id
            return True
        bitmap = self.ledgers.get(ledger_id)
        if bitmap is None:
            bitmap = self.ledgers[ledger_id] = EntryBitmap()
        bitmap.add(entry_id)
        self.holes += 1
        return True

    def advance(self, next_ledger):
        """Moves the mark over everything that is acknowledged without a gap.

        next_ledger(ledger_id, entry_id) answers the id of the ledger that follows when entry_id is
        the last entry of a ledger that is closed, else None.
        """
        cdef EntryBitmap bitmap
        cdef int64_t reached
        while self.holes:
            bitmap = self.ledgers.get(self.mark_ledger_id)
            if bitmap is not None:
                reached = bitmap.next_clear(self.mark_entry_id + 1) - 1
                self._drop(self.mark_ledger_id, bitmap, reached + 1)
                self.mark_entry_id = reached
            if self.holes == 0:
                break
            following = next_ledger(self.mark_ledger_id, self.mark_entry_id)
            # A ledger without entries has nothing to wait for; the one after it may.
            while following is not None and following not in self.ledgers:
                following = next_ledger(following, -1)
            if following is None:
                break
            bitmap = self.ledgers[following]
            if not bitmap.contains(0):
                break
            self.mark_ledger_id = following
            self.mark_entry_id = -1

    def mark_delete_to(self, int64_t ledger_id, int64_t entry_id):
        """Sets the mark (cumulative ack, seek): forgets single entries up to it."""
        cdef EntryBitmap bitmap
        for held in list(self.ledgers):
            bitmap = self.ledgers[held]
            if held < ledger_id:
                self._drop(held, bitmap, -1)
            elif held == ledger_id:
                self._drop(held, bitmap, entry_id + 1)
        self.mark_ledger_id = ledger_id
        self.mark_entry_id = entry_id

    def clear(self):
        """Forgets every single entry; the mark stays."""
        self.ledgers = {}
        self.holes = 0

    cdef int _drop(self, object ledger_id, EntryBitmap bitmap, int64_t below) except -1:
        """Forgets entries below an id of one ledger, or (-1) all of it."""
        cdef int64_t before = bitmap.count
        if below >= 0:
            bitmap.drop_below(below)
        else:
            bitmap.count = 0
        self.holes -= before - bitmap.count
        if bitmap.count == 0:
            del self.ledgers[ledger_id]
        return 0

    def acknowledged_up_to(self, int64_t ledger_id, int64_t first, int64_t last):
        """How many of the entries first..last of one ledger are acknowledged one by one."""
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        cdef int64_t n = 0
        cdef int64_t at, stop
        if bitmap is None:
            return 0
        at = bitmap.next_set(first)
        while at != -1 and at <= last:
            stop = min(bitmap.next_clear(at), last + 1)
            n += stop - at
            at = bitmap.next_set(stop)
        return n

    def ranges(self, ledger_id):
        """[(lower, upper)] of one ledger, lower open and upper closed, as MessageRange has them."""
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        cdef int64_t at, stop
        found = []
        if bitmap is None:
            return found
        at = bitmap.next_set(0)
        while at != -1:
            stop = bitmap.next_clear(at)
            found.append((at - 1, stop - 1))
            at = bitmap.next_set(stop)
        return found

    def add_range(self, int64_t ledger_id, int64_t lower, int64_t upper):
        """Acknowledges the entries after lower up to upper (a restored MessageRange)."""
        cdef int64_t entry_id
        for entry_id in range(lower + 1, upper + 1):
            self.add(ledger_id, entry_id)

    def ledger_ids(self):
        """Ledgers that hold single acknowledged entries, ascending."""
        return sorted(self.ledgers)

    def to_longs(self, ledger_id):
        return (<EntryBitmap>self.ledgers[ledger_id]).to_longs()

    def restore_longs(self, ledger_id, longs):
        """Takes the words of one ledger that to_longs gave, in place of what is known of it."""
        cdef EntryBitmap bitmap = self.ledgers.pop(ledger_id, None)
        if bitmap is not None:
            self.holes -= bitmap.count
        bitmap = EntryBitmap.from_longs(longs)
        if ledger_id == self.mark_ledger_id:
            bitmap.drop_below(self.mark_entry_id + 1)
        if bitmap.count and ledger_id >= self.mark_ledger_id:
            self.ledgers[ledger_id] = bitmap
            self.holes += bitmap.count

    def add_run(self, AckRun run not None, last_entry):
        """Acknowledges the whole entries of an ACK; returns how many were new.

        last_entry(ledger_id) answers the last entry id of a ledger, None for an unknown one:
        positions outside of it are ignored, as are batches of which messages are left.
        """
        cdef int i
        cdef int added = 0
        cdef int64_t known = -1
        cdef int64_t last = -1
        for i in range(run.count):
            if run.items[i].left or run.items[i].entry_id < 0:
                continue
            if run.items[i].ledger_id != known:
                known = run.items[i].ledger_id
                found = last_entry(known)
                last = -1 if found is None else found
            if run.items[i].entry_id <= last:
                if self.add(known, run.items[i].entry_id):
                    added += 1
        return added


cdef class PositionSet:
    """A set of positions that gives its first ones in order."""

    def __cinit__(self):
        self.ledgers = {}

    def __len__(self):
        return self.count

    def __contains__(self, position):
        cdef EntryBitmap bitmap = self.ledgers.get(position[0])
        return bitmap is not None and bitmap.contains(position[1])

    def add(self, int64_t ledger_id, int64_t entry_id):
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        if bitmap is None:
            bitmap = self.ledgers[ledger_id] = EntryBitmap()
        self.count += bitmap.add(entry_id)

    def first_range(self, int64_t count_max):
        """(ledger_id, first, last) of the first positions without a gap, at most count_max."""
        cdef EntryBitmap bitmap
        cdef int64_t first
        if self.count == 0:
            raise IndexError("no positions")
        ledger_id = min(self.ledgers)
        bitmap = self.ledgers[ledger_id]
        first = bitmap.next_set(0)
        return ledger_id, first, min(bitmap.next_clear(first), first + count_max) - 1

    def discard_range(self, int64_t ledger_id, int64_t first, int64_t last):
        """Removes the positions first..last of one ledger, those that are there."""
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        cdef int64_t at
        if bitmap is None:
            return
        at = bitmap.next_set(first)
        while at != -1 and at <= last:
            bitmap.words[(at >> 6) - bitmap.base] &= ~(<uint64_t>1 << (at & 63))
            bitmap.count -= 1
            self.count -= 1
            at = bitmap.next_set(at + 1)
        if bitmap.count == 0:
            del self.ledgers[ledger_id]

    def clear(self):
        self.ledgers = {}
        self.count = 0
