"""Acknowledged positions of one cursor: a mark-delete position, bitmaps of individually
acknowledged entries, and ack sets of partially acknowledged batches.

A million individual acks cost one bit for each entry between the mark and the last of them, in
memory and on disk; none is ever dropped. This module has no knowledge of ledgers: the caller
supplies the last entry of each.

The ack set of a batch has one bit for each unacknowledged message, as clients and Pulsar's
ManagedCursorImpl write it. Once no bit is set, the entry is acknowledged.
"""
from libc.stdint cimport INT64_MAX

from pyxbroker.integers cimport put_varint, varint_size

from pyxbroker.entry import Position


cdef extern from *:
    int __builtin_popcountll(unsigned long long) nogil

cdef enum:
    BATCH_BYTES = 200               # approximate memory of a batch in addition to its words
    BATCHES_BYTES_MAX = 256 << 20   # above this, new acks of single messages are not stored
    DROPPED_PER_CALL = 1024         # passed batches freed per call: about 0.4 ms
    # sets below this size are exempt from the limit over all cursors
    BATCHES_BYTES_SMALL = 1 << 20
    # 132 MiB: a bit for each of a billion entries, and the pages of those bits.
    RESTORED_WORDS_MAX = (1 << 24) + (1 << 19)
    TAG_RANGE_BYTES_MAX = 64        # one MessageRange with its tag and length
    TAG_WORD_BYTES_MAX = 11         # one word of a deleteSet with its tag

# Memory is limited per process: these are sums over the sets of all cursors.
cdef int64_t _total_bytes = 0
cdef int64_t _total_bytes_max = 0   # 0: no limit
cdef int64_t _refused = 0


def set_batches_bytes_max(int64_t bytes_max):
    """Limit the memory that the ack sets of all cursors may take together, in bytes; 0 is no limit.
    """
    global _total_bytes_max
    _total_bytes_max = bytes_max


def batches_bytes():
    """Return the approximate memory of the ack sets of all cursors, in bytes."""
    return _total_bytes


def batches_refused():
    """Return how many ack sets were not stored because of a memory limit."""
    return _refused


cdef int _count(AckSet acks, int64_t batches, int64_t words) noexcept:
    """Add to the number of batches and words of a set and of the process."""
    global _total_bytes
    acks.partial += batches
    acks.partial_words += words
    _total_bytes += batches * BATCH_BYTES + words * 8
    return 0


cdef bint _has_room(AckSet acks) noexcept:
    """Return True if one more batch may be stored. A small set always has room."""
    global _refused
    cdef int64_t held = acks.partial * BATCH_BYTES + acks.partial_words * 8
    if held <= BATCHES_BYTES_MAX and (
            held < BATCHES_BYTES_SMALL or _total_bytes_max == 0
            or _total_bytes < _total_bytes_max):
        return True
    _refused += 1
    acks.refused += 1
    return False


cdef int32_t count_bits(bytes words, int64_t messages) noexcept:
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
    """Return the size of a NestedPositionInfo in bytes."""
    return 2 + varint_size(<uint64_t>ledger_id) + varint_size(<uint64_t>entry_id)


cdef uint8_t *_put_position(uint8_t *p, uint32_t number, int64_t ledger_id,
                            int64_t entry_id) noexcept:
    """Write a NestedPositionInfo as the field `number` of the enclosing message."""
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
    """A mark-delete position and the entries acknowledged after it."""

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
        """Acknowledge one entry; return True if it was not acknowledged before.

        The caller has checked that the entry exists: ids from the wire may be arbitrary.
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
        """Move the mark over all acknowledged entries up to the first gap.

        next_ledger(ledger_id, entry_id) returns the id of the following ledger if entry_id is the
        last entry of a closed ledger, else None.
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
            # Skip empty ledgers.
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
        """Set the mark (cumulative ack, seek), and drop the entries and ack sets up to it."""
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
        """Drop all individually acknowledged entries and ack sets; the mark stays."""
        self.ledgers = {}
        self.holes = 0
        self.has_passed_batches = False
        self.batches = {}
        _count(self, -self.partial, -self.partial_words)

    cdef int _drop(self, object ledger_id, EntryBitmap bitmap, int64_t below) except -1:
        """Drop the entries of one ledger below an id, or all of them if `below` is -1."""
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
        """Count the individually acknowledged entries among first..last of one ledger."""
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
        """Acknowledge the positions of an ACK; return how many entries and batches changed.

        last_entry(ledger_id) returns the last entry id of a ledger, or None for an unknown ledger.
        Positions outside of a ledger are ignored.
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

    # --- ack sets of batches --------------------------------------------------------------------

    cdef bytes trimmed_ack_set(self, int64_t ledger_id, int64_t entry_id, int32_t *messages):
        cdef bytes words = self.ack_set_words(ledger_id, entry_id)
        # A batch without a valid message count is as large as the client's ack set.
        cdef int64_t most = messages[0] if messages[0] > 0 else BATCH_WORDS_MAX * 64
        messages[0] = max(messages[0], 1)
        if words is None:
            return None
        messages[0] = count_bits(words, most)
        # The client may have set bits beyond the end of the batch.
        return words[:(most + 63) // 64 * 8] if len(words) * 8 >= most + 64 else words

    cdef bytes ack_set_words(self, int64_t ledger_id, int64_t entry_id):
        cdef LedgerBatches batches
        if self.partial == 0:
            return None
        batches = self.batches.get(ledger_id)
        return None if batches is None else batches.left.get(entry_id)

    def unacked_in_batch(self, int64_t ledger_id, int64_t entry_id):
        """Return how many messages of a partially acknowledged batch are unacknowledged. Return
        None for a batch that is acknowledged as a whole or not at all.
        """
        if self.contains(ledger_id, entry_id):
            return None
        words = self.ack_set_words(ledger_id, entry_id)
        return None if words is None else count_bits(words, BATCH_WORDS_MAX * 64)

    def ack_set(self, int64_t ledger_id, int64_t entry_id):
        """Return the ack set of a partially acknowledged batch as words; [] for other batches."""
        cdef bytes words = self.ack_set_words(ledger_id, entry_id)
        if words is None or self.contains(ledger_id, entry_id):
            return []
        return [(<const int64_t *><const char *>words)[i] for i in range(len(words) // 8)]

    def acknowledge_batch(self, int64_t ledger_id, int64_t entry_id, words):
        """Acknowledge the messages of a batch whose bits are 0; return True if any was new.

        The caller has checked that the entry exists. Ack sets of more than 4,096 words are ignored.
        This is for restoring, and counts against RESTORED_WORDS_MAX (MemoryError).
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
        """Return 1 if any message of the batch was not acknowledged before."""
        cdef LedgerBatches batches
        cdef uint64_t both[BATCH_WORDS_MAX]
        cdef const uint64_t *held
        cdef uint32_t i
        if self.contains(ledger_id, entry_id):
            return 0
        before = self.ack_set_words(ledger_id, entry_id)
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
        """Free a number of ack sets that the mark has passed; return True if none is left."""
        self._drop_batches()
        return not self.has_passed_batches

    def drop_batches(self):
        """Free a number of ack sets regardless of the mark; return True if none is left.

        For a set that is no longer in use: freeing everything in one call takes too long.
        """
        cdef LedgerBatches batches
        cdef int64_t entry_id
        cdef int room = DROPPED_PER_CALL
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
        """Free ack sets that the mark has passed, up to a limit per call. Lookups check the mark
        first, so the remaining ones are never seen.
        """
        cdef LedgerBatches batches
        cdef int64_t entry_id
        cdef int room = DROPPED_PER_CALL
        self.has_passed_batches = False
        for ledger_id in [each for each in self.batches if each <= self.mark_ledger_id]:
            batches = self.batches[ledger_id]
            entry_id = batches.ids.next_set(0)
            while entry_id != -1 and self.contains(ledger_id, entry_id):
                if room == 0:
                    self.has_passed_batches = True
                    return 0
                room -= 1
                self._forget_batch(ledger_id, entry_id)
                entry_id = batches.ids.next_set(entry_id + 1)
        return 0

    def drop_acknowledged_batches(self):
        """Drop the ack sets of fully acknowledged entries. Call this after restoring."""
        for ledger_id, batches in list(self.batches.items()):
            for entry_id in list((<LedgerBatches>batches).left):
                if self.contains(ledger_id, entry_id):
                    self._forget_batch(ledger_id, entry_id)

    # --- stored forms ---------------------------------------------------------------------------

    def ledger_ids(self):
        """Return the ledgers with individually acknowledged entries, ascending."""
        return sorted(self.ledgers)

    def batch_ledger_ids(self):
        """Return the ledgers with partially acknowledged batches, ascending."""
        return sorted(self.batches)

    def ranges(self, ledger_id, int64_t count_max=INT64_MAX):
        """Return up to count_max ranges of one ledger as (lower, upper), lower exclusive, upper
        inclusive, as in MessageRange. A million ranges take 0.1 s, so callers that report a few
        pass count_max.
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
        """Count the ranges of individually acknowledged entries over all ledgers."""
        cdef int64_t found = 0
        for bitmap in self.ledgers.values():
            found += (<EntryBitmap>bitmap).count_ranges()
        return found

    def longs_size(self):
        """Return how many words encode_longs encodes."""
        return sum([(<EntryBitmap>bitmap).longs_size() for bitmap in self.ledgers.values()])

    def encode_ranges(self, uint32_t number):
        """Encode all ranges as the repeated protobuf field `number` of type MessageRange."""
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

    def encode_longs(self, uint32_t number):
        """Encode all entries as the repeated protobuf field `number` of type LongListMap: signed
        words from entry 0 on, as Java's BitSet.toLongArray returns them.
        """
        return b"".join([
            (<EntryBitmap>self.ledgers[each]).encode_longs(each, number)
            for each in self.ledger_ids()
        ])

    def encode_runs(self, ledger_id, int64_t word, uint32_t bytes_max, bint only_changed):
        """Return (runs of words of one ledger, next word to encode or -1); see bitmap.pyx.

        The encoded words no longer count as changed.
        """
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        if bitmap is None or (only_changed and bitmap.changed_from >= bitmap.changed_to):
            return b"", -1
        runs = bitmap.encode_runs(&word, bytes_max, only_changed)
        return runs, word

    def encode_batches(self, ledger_id, int64_t entry_id, uint32_t number, uint32_t bytes_max,
                       bint only_changed):
        """Return (batches of one ledger from entry_id on, next entry to encode or -1).

        The batches are encoded as the repeated protobuf field `number` of type
        BatchedEntryDeletionIndexInfo. At least one is encoded; no further one starts beyond
        bytes_max. The encoded batches no longer count as changed.
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
        """Clear all change records. The caller has encoded everything."""
        for bitmap in self.ledgers.values():
            (<EntryBitmap>bitmap).forget_changes()
        if self.tracked:
            for batches in self.batches.values():
                (<LedgerBatches>batches).changed = EntryBitmap()

    # --- restoring ------------------------------------------------------------------------------
    # `last` is the last entry of the ledger. Stored bits beyond it are ignored. Each function
    # raises MemoryError once the restored bitmaps exceed RESTORED_WORDS_MAX words.

    def add_range(self, int64_t ledger_id, int64_t lower, int64_t upper, int64_t last):
        """Acknowledge the entries after lower up to upper (a stored MessageRange)."""
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

    def add_longs(self, int64_t ledger_id, longs, int64_t last, int64_t first_word=0):
        """Acknowledge the entries of words as of encode_longs, from first_word on, but none after
        last.
        """
        cdef EntryBitmap bitmap
        cdef int64_t words
        if ledger_id >= self.mark_ledger_id and last >= 0:
            bitmap = self._bitmap(ledger_id)
            words = bitmap.taken()
            self.holes -= bitmap.count
            try:
                bitmap.add_longs(longs, last, first_word)
                self._count_restored(bitmap.taken() - words)
            finally:
                self._settle_restored(ledger_id, bitmap)

    def add_runs(self, int64_t ledger_id, const uint8_t[::1] runs not None, int64_t last):
        """Acknowledge the entries that encode_runs encoded, but none after last. Raise ValueError
        if the bytes are malformed.
        """
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
        """Raise MemoryError if corrupt state would take more memory than any valid cursor."""
        self.restored_words += words
        if self.restored_words > RESTORED_WORDS_MAX:
            raise MemoryError("the stored acknowledgements need more memory than any valid cursor")
        return 0

    cdef int _settle_restored(self, int64_t ledger_id, EntryBitmap bitmap) except -1:
        """Count the entries just merged into the bitmap of a ledger, without those up to the mark.
        """
        if ledger_id == self.mark_ledger_id:
            bitmap.drop_below(self.mark_entry_id + 1)
        self.holes += bitmap.count
        if bitmap.count == 0:
            del self.ledgers[ledger_id]
        return 0


cdef class PositionSet:
    """A set of positions that returns its lowest ones first."""

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
        """Return (ledger_id, first, last) of the lowest contiguous positions, up to count_max.
        Raise IndexError if the set is empty.
        """
        cdef EntryBitmap bitmap
        cdef int64_t first
        if self.count == 0:
            raise IndexError("no positions")
        ledger_id = min(self.ledgers)
        bitmap = self.ledgers[ledger_id]
        first = bitmap.next_set(0)
        return ledger_id, first, first + min(bitmap.next_clear(first) - first, count_max) - 1

    def discard_range(self, int64_t ledger_id, int64_t first, int64_t last):
        """Remove the positions first..last of one ledger."""
        cdef EntryBitmap bitmap = self.ledgers.get(ledger_id)
        if bitmap is None:
            return
        self.count -= bitmap.remove_range(first, last)
        if bitmap.count == 0:
            del self.ledgers[ledger_id]

    def clear(self):
        self.ledgers = {}
        self.count = 0
