"""Acknowledged positions of one cursor: a mark-delete position, bitmaps of single entries, and the
messages that are left of batches.

A million single acks cost a bit for each entry between the mark and the last of them, in memory and
on disk; nothing is ever dropped. The machine knows nothing of ledgers but what it is told: where a
ledger ends comes in from outside.

A batch of which some messages are acknowledged is remembered by the bits of those that are left, as
clients and Pulsar's ManagedCursorImpl write them; when none is left, its entry is acknowledged.
"""
from libc.stdint cimport INT64_MAX

from pyxbroker.integers cimport put_varint, varint_size

from pyxbroker.entry import Position


cdef extern from *:
    int __builtin_popcountll(unsigned long long) nogil

cdef enum:
    BATCH_BYTES = 200               # memory that a batch takes here besides its words, about
    BATCHES_BYTES_MAX = 256 << 20   # beyond that, acks of single messages are not remembered
    DROPPED_AT_ONCE = 1024          # batches that the mark has passed: about 0.4 ms
    BATCHES_BYTES_SMALL = 1 << 20   # sets with less than this are not refused for what others have
    # 132 MiB: a bit for each of a billion entries, and the pages that they are in.
    RESTORED_WORDS_MAX = (1 << 24) + (1 << 19)
    TAG_RANGE_BYTES_MAX = 64        # one MessageRange with its tag and length
    TAG_WORD_BYTES_MAX = 11         # one word of a deleteSet with its tag

# Memory is the process's: these are sums over all sets, whoever they belong to.
cdef int64_t _total_bytes = 0
cdef int64_t _total_bytes_max = 0   # 0: no limit
cdef int64_t _refused = 0


def set_batches_bytes_max(int64_t bytes_max):
    """How many bytes all sets together may have of batches; 0 is no limit."""
    global _total_bytes_max
    _total_bytes_max = bytes_max


def batches_bytes():
    """Bytes that all sets have of batches, about."""
    return _total_bytes


def batches_refused():
    """Batches of which nothing was remembered, since there was too much."""
    return _refused


cdef int _count(AckSet acks, int64_t batches, int64_t words) noexcept:
    """A set has that many batches, and words of them, more."""
    global _total_bytes
    acks.partial += batches
    acks.partial_words += words
    _total_bytes += batches * BATCH_BYTES + words * 8
    return 0


cdef bint _has_room(AckSet acks) noexcept:
    """Whether one more batch may be remembered: who has little always may."""
    global _refused
    cdef int64_t held = acks.partial * BATCH_BYTES + acks.partial_words * 8
    if held <= BATCHES_BYTES_MAX and (
            held < BATCHES_BYTES_SMALL or _total_bytes_max == 0
            or _total_bytes < _total_bytes_max):
        return True
    _refused += 1
    acks.refused += 1
    return False


cdef int32_t bits_below(bytes words, int64_t messages) noexcept:
    cdef const uint64_t *word = <const uint64_t *><const char *>words
    cdef int64_t count = min(<int64_t>(len(words) // 8), (messages + 63) // 64)
    cdef int32_t found = 0
    cdef int64_t i
    for i in range(count):
        if i * 64 + 64 > messages:
            found += __builtin_popcountll(word[i] & ((<uint64_t>1 << (messages & 63)) - 1))
        else:
            found += __builtin_popcountll(word[i])
    return found


cdef uint32_t _position_size(int64_t ledger_id, int64_t entry_id) noexcept:
    """Bytes of a NestedPositionInfo."""
    return 2 + varint_size(<uint64_t>ledger_id) + varint_size(<uint64_t>entry_id)


cdef uint8_t *_put_position(uint8_t *p, uint32_t number, int64_t ledger_id,
                            int64_t entry_id) noexcept:
    """A NestedPositionInfo as the field `number` of the message around it."""
    p = put_varint(p, number << 3 | 2)
    p = put_varint(p, _position_size(ledger_id, entry_id))
    p = put_varint(put_varint(p, 1 << 3), <uint64_t>ledger_id)
    return put_varint(put_varint(p, 2 << 3), <uint64_t>entry_id)


cdef class LedgerBatches:
    def __cinit__(self, bint tracked):
        self.left = {}
        self.ids = EntryBitmap()
        self.changed = EntryBitmap() if tracked else None


cdef class AckSet:
    """Mark-delete position plus the entries acknowledged after it."""

    def __cinit__(self, int64_t ledger_id, int64_t entry_id, bint tracked=False):
        self.mark_ledger_id = ledger_id
        self.mark_entry_id = entry_id
        self.tracked = tracked
        self.ledgers = {}
        self.batches = {}

    def __dealloc__(self):
        _count(self, -self.partial, -self.partial_words)

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

    cdef EntryBitmap _bitmap(self, int64_t ledger_id):
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        if bitmap is None:
            bitmap = self.ledgers[ledger_id] = EntryBitmap(self.tracked)
        return bitmap

    def add(self, int64_t ledger_id, int64_t entry_id):
        """Acknowledges one entry; True when it was not acknowledged before.

        The caller knows that the entry exists: an id from the wire must be checked first.
        """
        return bool(self._add(ledger_id, entry_id))

    cdef int _add(self, int64_t ledger_id, int64_t entry_id) except -1:
        if self.contains(ledger_id, entry_id):
            return 0
        if self.partial:
            self._forget_batch(ledger_id, entry_id)
        if (ledger_id == self.mark_ledger_id and entry_id == self.mark_entry_id + 1
                and self.holes == 0):
            self.mark_entry_id = entry_id
            return 1
        self._bitmap(ledger_id).add(entry_id)
        self.holes += 1
        return 1

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
        """Sets the mark (cumulative ack, seek): forgets what is acknowledged up to it."""
        cdef EntryBitmap bitmap
        for held in list(self.ledgers):
            bitmap = self.ledgers[held]
            if held < ledger_id:
                self._drop(held, bitmap, -1)
            elif held == ledger_id:
                self._drop(held, bitmap, entry_id + 1)
        self.mark_ledger_id = ledger_id
        self.mark_entry_id = entry_id
        if self.partial:
            self._drop_batches()

    def clear(self):
        """Forgets every single entry and message; the mark stays."""
        self.ledgers = {}
        self.holes = 0
        self.has_passed = False
        self.batches = {}
        _count(self, -self.partial, -self.partial_words)

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
        cdef int64_t word, end
        cdef uint64_t bits
        if bitmap is None:
            return 0
        word = max(first >> 6, bitmap.base * PAGE_WORDS)
        end = min((last >> 6) + 1, (bitmap.base + bitmap.size) * PAGE_WORDS)
        while word < end:
            if bitmap.page_of(word) == NULL:
                word = (word | (PAGE_WORDS - 1)) + 1
                continue
            bits = bitmap.word_at(word)
            if word == first >> 6:
                bits &= ~<uint64_t>0 << (first & 63)
            if word == last >> 6:
                bits &= ~<uint64_t>0 >> (63 - (last & 63))
            n += __builtin_popcountll(bits)
            word += 1
        return n

    def add_run(self, AckRun run not None, last_entry):
        """Acknowledges what an ACK names; returns how many entries and batches it changed.

        last_entry(ledger_id) answers the last entry id of a ledger, None for an unknown one:
        positions outside of it are ignored.
        """
        cdef int i
        cdef int changed = 0
        cdef int64_t known = -1
        cdef int64_t last = -1
        for i in range(run.count):
            if run.items[i].entry_id < 0:
                continue
            if run.items[i].ledger_id != known:
                known = run.items[i].ledger_id
                found = last_entry(known)
                last = -1 if found is None else found
            if run.items[i].entry_id > last:
                continue
            if run.items[i].left == 0:
                changed += self._add(known, run.items[i].entry_id)
            elif not 0 < run.items[i].batch_size <= run.items[i].left:
                changed += self._acknowledge_batch(
                    known, run.items[i].entry_id, run.words + run.items[i].first_word,
                    run.items[i].word_count)
        return changed

    # --- single messages of batches -------------------------------------------------------------

    cdef bytes left_of_batch(self, int64_t ledger_id, int64_t entry_id, int32_t *messages):
        cdef bytes words = self.left_of(ledger_id, entry_id)
        # A count of none, or of fewer, says nothing: the client's words do.
        cdef int64_t most = messages[0] if messages[0] > 0 else BATCH_WORDS_MAX * 64
        messages[0] = max(messages[0], 1)
        if words is None:
            return None
        messages[0] = bits_below(words, most)
        # Beyond the batch's end a client may have written anything.
        return words[:(most + 63) // 64 * 8] if len(words) * 8 >= most + 64 else words

    cdef bytes left_of(self, int64_t ledger_id, int64_t entry_id):
        cdef LedgerBatches batches
        if self.partial == 0:
            return None
        batches = self.batches.get(ledger_id)
        return None if batches is None else batches.left.get(entry_id)

    def messages_left(self, int64_t ledger_id, int64_t entry_id):
        """Messages of a batch that are not acknowledged; None when no single one of it was
        acknowledged, or all of them are.
        """
        words = None if self.contains(ledger_id, entry_id) else self.left_of(ledger_id, entry_id)
        return None if words is None else bits_below(words, BATCH_WORDS_MAX * 64)

    def ack_set(self, int64_t ledger_id, int64_t entry_id):
        """The words of the messages that are left of a batch; [] where messages_left is None."""
        cdef bytes words = self.left_of(ledger_id, entry_id)
        if words is None or self.contains(ledger_id, entry_id):
            return []
        return [(<const int64_t *><const char *>words)[i] for i in range(len(words) // 8)]

    def acknowledge_batch(self, int64_t ledger_id, int64_t entry_id, words):
        """Acknowledges the messages of a batch whose bits are 0; True when that changed anything.

        The caller knows that the entry exists. More than 4,096 words are not remembered. It is for
        what is restored: MemoryError, as below.
        """
        cdef uint64_t kept[BATCH_WORDS_MAX]
        cdef uint32_t count = 0
        cdef LedgerBatches batches
        cdef int64_t before
        cdef int changed
        if len(words) > BATCH_WORDS_MAX:
            return False
        for word in words:
            kept[count] = <uint64_t>(word & 0xffffffffffffffff)
            count += 1
        batches = self.batches.get(ledger_id)
        before = 0 if batches is None else batches.ids.size
        changed = self._acknowledge_batch(ledger_id, entry_id, kept, count)
        batches = self.batches.get(ledger_id)
        if batches is not None:
            self._count_restored(batches.ids.size - before)
        return changed != 0

    cdef int _acknowledge_batch(self, int64_t ledger_id, int64_t entry_id, const uint64_t *words,
                                uint32_t count) except -1:
        """1: messages of the batch are acknowledged that were not before."""
        cdef LedgerBatches batches
        cdef uint64_t both[BATCH_WORDS_MAX]
        cdef const uint64_t *held
        cdef uint32_t i
        if self.contains(ledger_id, entry_id):
            return 0
        before = self.left_of(ledger_id, entry_id)
        if before is not None:
            held = <const uint64_t *><const char *>before
            count = min(count, <uint32_t>(len(before) // 8))
        for i in range(count):
            both[i] = words[i] & held[i] if before is not None else words[i]
        while count and both[count - 1] == 0:
            count -= 1
        if count == 0:
            return self._add(ledger_id, entry_id)
        after = (<const char *>both)[:count * 8]
        if after == before or (before is None and not _has_room(self)):
            return 0
        batches = self.batches.get(ledger_id)
        if batches is None:
            batches = self.batches[ledger_id] = LedgerBatches(self.tracked)
        batches.ids.add(entry_id)
        batches.left[entry_id] = after
        if batches.changed is not None:
            batches.changed.add(entry_id)
        if before is None:
            _count(self, 1, count)
        else:
            _count(self, 0, <int64_t>count - <int64_t>(len(before) // 8))
        return 1

    cdef int _forget_batch(self, int64_t ledger_id, int64_t entry_id) except -1:
        cdef LedgerBatches batches = self.batches.get(ledger_id)
        cdef bytes words
        if batches is None:
            return 0
        words = batches.left.pop(entry_id, None)
        if words is None:
            return 0
        batches.ids.remove_range(entry_id, entry_id)
        if batches.changed is not None:
            batches.changed.remove_range(entry_id, entry_id)
        _count(self, -1, -<int64_t>(len(words) // 8))
        if batches.ids.count == 0:
            del self.batches[ledger_id]
        return 0

    def drop_passed(self):
        """Forgets some more of the batches that the mark has passed; True when that was all."""
        self._drop_batches()
        return not self.has_passed

    def drop_batches(self):
        """Forgets some of its batches, wherever the mark is; True when that was all. For a set that
        nobody needs any more: to free all at once takes long.
        """
        cdef LedgerBatches batches
        cdef int64_t entry_id
        cdef int room = DROPPED_AT_ONCE
        for ledger_id in list(self.batches):
            batches = self.batches[ledger_id]
            entry_id = batches.ids.next_set(0)
            while entry_id != -1:
                if room == 0:
                    return False
                room -= 1
                self._forget_batch(ledger_id, entry_id)
                entry_id = batches.ids.next_set(entry_id + 1)
        return True

    cdef int _drop_batches(self) except -1:
        """Forgets the batches that the mark has passed, but no more than a few at once: who looks
        for one of the others looks at the mark first.
        """
        cdef LedgerBatches batches
        cdef int64_t entry_id
        cdef int room = DROPPED_AT_ONCE
        self.has_passed = False
        for ledger_id in [each for each in self.batches if each <= self.mark_ledger_id]:
            batches = self.batches[ledger_id]
            entry_id = batches.ids.next_set(0)
            while entry_id != -1 and self.contains(ledger_id, entry_id):
                if room == 0:
                    self.has_passed = True
                    return 0
                room -= 1
                self._forget_batch(ledger_id, entry_id)
                entry_id = batches.ids.next_set(entry_id + 1)
        return 0

    def drop_acknowledged_batches(self):
        """After restoring: forgets the messages of entries that are acknowledged themselves."""
        for ledger_id, batches in list(self.batches.items()):
            for entry_id in list((<LedgerBatches>batches).left):
                if self.contains(ledger_id, entry_id):
                    self._forget_batch(ledger_id, entry_id)

    # --- as stored ------------------------------------------------------------------------------

    def ledger_ids(self):
        """Ledgers that hold single acknowledged entries, ascending."""
        return sorted(self.ledgers)

    def batch_ledger_ids(self):
        """Ledgers that hold batches of which messages are acknowledged, ascending."""
        return sorted(self.batches)

    def ranges(self, ledger_id, int64_t count_max=INT64_MAX):
        """The first [(lower, upper)] of one ledger, lower open and upper closed, as MessageRange
        has them. A million take a tenth of a second: who tells of some asks for no more.
        """
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        cdef int64_t at, stop
        found = []
        if bitmap is None:
            return found
        at = bitmap.next_set(0)
        while at != -1 and count_max > 0:
            stop = bitmap.next_clear(at)
            found.append((at - 1, stop - 1))
            at = bitmap.next_set(stop)
            count_max -= 1
        return found

    def count_ranges(self):
        """How many ranges the single entries make in all ledgers."""
        cdef int64_t found = 0
        for bitmap in self.ledgers.values():
            found += (<EntryBitmap>bitmap).count_ranges()
        return found

    def to_longs(self, ledger_id):
        return (<EntryBitmap>self.ledgers[ledger_id]).to_longs()

    def longs_size(self):
        """How many words to_longs gives of all ledgers."""
        return sum([(<EntryBitmap>bitmap).longs_size() for bitmap in self.ledgers.values()])

    def encode_ranges(self, uint32_t number):
        """Every range as the repeated field `number` of MessageRange, in protobuf's format."""
        cdef EntryBitmap bitmap
        cdef uint8_t one[TAG_RANGE_BYTES_MAX]
        cdef uint8_t *p
        cdef int64_t ledger_id, at, stop
        encoded = bytearray()
        for ledger_id in self.ledger_ids():
            bitmap = self.ledgers[ledger_id]
            at = bitmap.next_set(0)
            while at != -1:
                stop = bitmap.next_clear(at)
                p = put_varint(one, number << 3 | 2)
                p = put_varint(p, 4 + _position_size(ledger_id, at - 1)
                               + _position_size(ledger_id, stop - 1))
                p = _put_position(p, 1, ledger_id, at - 1)
                p = _put_position(p, 2, ledger_id, stop - 1)
                encoded += (<const char *>one)[:p - one]
                at = bitmap.next_set(stop)
        return bytes(encoded)

    def encode_runs(self, ledger_id, int64_t word, uint32_t bytes_max, bint only_changed):
        """(runs of words of one ledger, the word to go on from or -1); see bitmap.pyx.

        What was encoded is no longer noted as changed.
        """
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        if bitmap is None or (only_changed and bitmap.changed_from >= bitmap.changed_to):
            return b"", -1
        runs = bitmap.encode_runs(&word, bytes_max, only_changed)
        return runs, word

    def encode_batches(self, ledger_id, int64_t entry_id, uint32_t number, uint32_t bytes_max,
                       bint only_changed):
        """(batches of one ledger from an entry on, the entry to go on from or -1).

        They are the repeated field `number` of BatchedEntryDeletionIndexInfo, in protobuf's format,
        at least one, and no further one begins behind bytes_max. What was encoded is no longer
        noted as changed.
        """
        cdef LedgerBatches batches = self.batches.get(ledger_id)
        cdef EntryBitmap ids
        cdef uint8_t word[TAG_RANGE_BYTES_MAX]
        cdef const uint64_t *left
        cdef bytes words
        cdef uint8_t *p
        cdef Py_ssize_t i
        if batches is None:
            return b"", -1
        if ledger_id < self.mark_ledger_id:
            return b"", -1
        if ledger_id == self.mark_ledger_id:
            entry_id = max(entry_id, self.mark_entry_id + 1)
        ids = batches.changed if only_changed else batches.ids
        encoded = bytearray()
        entry_id = ids.next_set(entry_id)
        while entry_id != -1 and <uint32_t>len(encoded) < bytes_max:
            words = batches.left[entry_id]
            left = <const uint64_t *><const char *>words
            body = bytearray()
            p = _put_position(word, 1, ledger_id, entry_id)
            body += (<const char *>word)[:p - word]
            for i in range(len(words) // 8):
                p = put_varint(put_varint(word, 2 << 3), left[i])
                body += (<const char *>word)[:p - word]
            p = put_varint(put_varint(word, number << 3 | 2), <uint64_t>len(body))
            encoded += (<const char *>word)[:p - word]
            encoded += body
            if batches.changed is not None:
                batches.changed.remove_range(entry_id, entry_id)
            entry_id = ids.next_set(entry_id + 1)
        return bytes(encoded), entry_id

    def forget_changes(self):
        """Everything was encoded: nothing is noted as changed."""
        for bitmap in self.ledgers.values():
            (<EntryBitmap>bitmap).forget_changes()
        if self.tracked:
            for batches in self.batches.values():
                (<LedgerBatches>batches).changed = EntryBitmap()

    # --- restoring ------------------------------------------------------------------------------
    # `last` is the last entry of the ledger: nothing behind it is taken, whatever was stored.
    # MemoryError: it would take more than RESTORED_WORDS_MAX words.

    def add_range(self, int64_t ledger_id, int64_t lower, int64_t upper, int64_t last):
        """Acknowledges the entries after lower up to upper (a stored MessageRange)."""
        cdef int64_t first
        cdef int64_t words
        cdef EntryBitmap bitmap
        upper = min(upper, last)
        if ledger_id < self.mark_ledger_id or lower >= upper:
            return
        first = max(lower, <int64_t>-1) + 1
        if ledger_id == self.mark_ledger_id:
            first = max(first, self.mark_entry_id + 1)
            if first == self.mark_entry_id + 1 and first <= upper and self.holes == 0:
                self.mark_entry_id = upper
                if self.partial:
                    self._drop_batches()
                return
        if first <= upper:
            bitmap = self._bitmap(ledger_id)
            words = bitmap.taken()
            try:
                self.holes += bitmap.add_range(first, upper)
                self._count_restored(bitmap.taken() - words)
            finally:
                if bitmap.count == 0:
                    del self.ledgers[ledger_id]

    def add_longs(self, int64_t ledger_id, longs, int64_t last):
        """Acknowledges the entries of the words that to_longs gave."""
        cdef EntryBitmap bitmap
        cdef int64_t words
        if ledger_id >= self.mark_ledger_id and last >= 0:
            bitmap = self._bitmap(ledger_id)
            words = bitmap.taken()
            self.holes -= bitmap.count
            try:
                bitmap.add_longs(longs, last)
                self._count_restored(bitmap.taken() - words)
            finally:
                self._settle_restored(ledger_id, bitmap)

    def add_runs(self, int64_t ledger_id, const uint8_t[::1] runs not None, int64_t last):
        """Acknowledges the entries of the words that encode_runs gave. ValueError: malformed."""
        cdef EntryBitmap bitmap
        cdef int64_t words
        if ledger_id >= self.mark_ledger_id and last >= 0 and runs.shape[0] > 0:
            bitmap = self._bitmap(ledger_id)
            words = bitmap.taken()
            self.holes -= bitmap.count
            try:
                bitmap.merge_runs(&runs[0], <uint32_t>runs.shape[0], last)
                self._count_restored(bitmap.taken() - words)
            finally:
                self._settle_restored(ledger_id, bitmap)

    cdef int _count_restored(self, int64_t words) except -1:
        """What is restored takes no more memory than any cursor does, whatever the bytes say."""
        self.restored_words += words
        if self.restored_words > RESTORED_WORDS_MAX:
            raise MemoryError("the acknowledged entries are too far apart")
        return 0

    cdef int _settle_restored(self, int64_t ledger_id, EntryBitmap bitmap) except -1:
        """Counts the entries of a ledger that were just merged; none is before the mark."""
        if ledger_id == self.mark_ledger_id:
            bitmap.drop_below(self.mark_entry_id + 1)
        self.holes += bitmap.count
        if bitmap.count == 0:
            del self.ledgers[ledger_id]
        return 0


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
        self.put(ledger_id, entry_id)

    cdef int put(self, int64_t ledger_id, int64_t entry_id) except -1:
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        if bitmap is None:
            bitmap = self.ledgers[ledger_id] = EntryBitmap()
        self.count += bitmap.add(entry_id)
        return 0

    def first_range(self, int64_t count_max):
        """(ledger_id, first, last) of the first positions without a gap, at most count_max."""
        cdef EntryBitmap bitmap
        cdef int64_t first
        if self.count == 0:
            raise IndexError("no positions")
        ledger_id = min(self.ledgers)
        bitmap = self.ledgers[ledger_id]
        first = bitmap.next_set(0)
        return ledger_id, first, first + min(bitmap.next_clear(first) - first, count_max) - 1

    def discard_range(self, int64_t ledger_id, int64_t first, int64_t last):
        """Removes the positions first..last of one ledger, those that are there."""
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        if bitmap is None:
            return
        self.count -= bitmap.remove_range(first, last)
        if bitmap.count == 0:
            del self.ledgers[ledger_id]

    def clear(self):
        self.ledgers = {}
        self.count = 0
