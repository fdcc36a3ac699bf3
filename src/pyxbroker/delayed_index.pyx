"""The index of delayed delivery: due times of the entries of a subscription.

A heap with 16 bytes per entry: ten million delayed messages take 160 MB. Adding and removing take
logarithmic time for any distribution of times. The index has no clock; the caller supplies the
time.
"""
from libc.stdlib cimport free, realloc

from pyxbroker.entry import Position

cdef enum:
    CAPACITY_MIN = 64
    CHILDREN = 4            # per item, in one cache line
    LEDGER_BITS = 22
    BYTES_SMALL = 1 << 20   # a smaller index is exempt from the limit over all indexes

cdef uint64_t LEDGER_MASK = (<uint64_t>1 << LEDGER_BITS) - 1
cdef int64_t TIME_MAX = (<int64_t>1 << (64 - LEDGER_BITS)) - 1      # ms: in the year 2109


# Memory is limited per process: this is the sum over the heaps of all subscriptions.
cdef int64_t _held_bytes = 0
cdef int64_t _bytes_max = 0     # 0: no limit


def set_bytes_max(int64_t bytes_max):
    """Limit the memory of all indexes together, in bytes; 0 is no limit."""
    global _bytes_max
    _bytes_max = bytes_max


def held_bytes():
    """Return the memory of all indexes in bytes."""
    return _held_bytes


cdef inline bint _is_before(const DelayedItem *a, const DelayedItem *b) noexcept nogil:
    return a.when < b.when or (a.when == b.when and a.entry_id < b.entry_id)


cdef class DelayedIndex:
    """Positions ordered by due time, then by position in the log."""

    def __init__(self):
        self.ledgers = []
        self.numbers = {}

    def __dealloc__(self):
        global _held_bytes
        _held_bytes -= <int64_t>(self.capacity * sizeof(DelayedItem))
        free(self.items)

    def __len__(self):
        return self.count

    @property
    def next_time(self):
        """Due time of the next entry in ms since the epoch; -1 if the index is empty."""
        return self._next_time()

    @property
    def memory_bytes(self):
        """Memory of the heap in bytes."""
        return self.capacity * sizeof(DelayedItem)

    @property
    def is_full(self):
        """True if the memory limit of all indexes is reached and this index is not small."""
        return (0 < _bytes_max <= _held_bytes
                and self.capacity * sizeof(DelayedItem) >= BYTES_SMALL)

    cdef int64_t _next_time(self) noexcept:
        return <int64_t>(self.items[0].when >> LEDGER_BITS) if self.count else -1

    def put(self, int64_t deliver_at, int64_t ledger_id, int64_t entry_id):
        """Add an entry that is due at a time in ms since the epoch. It must not be in the index.

        Raise MemoryError, or OverflowError beyond four million ledgers.
        """
        self.add(deliver_at, ledger_id, entry_id)

    cdef int add(self, int64_t deliver_at, int64_t ledger_id, int64_t entry_id) except -1:
        cdef DelayedItem item
        cdef size_t at = self.count
        cdef size_t above
        number = self.numbers.get(ledger_id)
        if number is None:
            number = len(self.ledgers)
            if number > LEDGER_MASK:
                raise OverflowError("delayed messages are spread over too many ledgers")
            self.ledgers.append(ledger_id)
            self.numbers[ledger_id] = number
        if self.count == self.capacity:
            self._grow()
        item.when = <uint64_t>min(max(deliver_at, 0), TIME_MAX) << LEDGER_BITS | <uint64_t>number
        item.entry_id = entry_id
        self.count += 1
        while at > 0:
            above = (at - 1) // CHILDREN
            if not _is_before(&item, &self.items[above]):
                break
            self.items[at] = self.items[above]
            at = above
        self.items[at] = item
        return 0

    cdef int _grow(self) except -1:
        global _held_bytes
        # Grow by a quarter only: ten million entries must not reserve memory for twenty.
        cdef size_t larger = max(self.capacity + self.capacity // 4, <size_t>CAPACITY_MIN)
        cdef void *moved = realloc(self.items, larger * sizeof(DelayedItem))
        if moved == NULL:
            raise MemoryError("no memory for %d delayed messages" % larger)
        self.items = <DelayedItem *>moved
        _held_bytes += <int64_t>((larger - self.capacity) * sizeof(DelayedItem))
        self.capacity = larger
        return 0

    cdef int _take_first(self) except -1:
        self.count -= 1
        if self.count == 0:
            self.clear()
            return 0
        self.items[0] = self.items[self.count]
        self._sink(0)
        if self.count * 4 < self.capacity and self.capacity > CAPACITY_MIN * 4:
            self._shrink()
        return 0

    cdef void _sink(self, size_t at) noexcept:
        # Move the item down below all items that are due earlier.
        cdef DelayedItem last = self.items[at]
        cdef size_t child, best, end
        while at * CHILDREN + 1 < self.count:
            child = at * CHILDREN + 1
            end = min(child + CHILDREN, self.count)
            best = child
            for child in range(best + 1, end):
                if _is_before(&self.items[child], &self.items[best]):
                    best = child
            if not _is_before(&self.items[best], &last):
                break
            self.items[at] = self.items[best]
            at = best
        self.items[at] = last

    def _shrink(self):
        global _held_bytes
        cdef size_t smaller = max(self.capacity // 2, <size_t>CAPACITY_MIN)
        cdef void *moved = realloc(self.items, <size_t>smaller * sizeof(DelayedItem))
        if moved != NULL:
            self.items = <DelayedItem *>moved
            _held_bytes -= <int64_t>((self.capacity - smaller) * sizeof(DelayedItem))
            self.capacity = smaller

    def take_due(self, int64_t now, int64_t count_max):
        """Remove and return up to count_max positions that are due now (ms), the earliest first."""
        cdef list due = []
        while self.count and len(due) < count_max and self._next_time() <= now:
            ledger_id = self.ledgers[self.items[0].when & LEDGER_MASK]
            due.append(Position(ledger_id, self.items[0].entry_id))
            self._take_first()
        return due

    def drop_up_to(self, int64_t ledger_id, int64_t entry_id):
        """Drop the entries up to an acknowledged position. Scans all entries."""
        cdef bytes dropped = bytes([each < ledger_id for each in self.ledgers])
        cdef const char *is_dropped = dropped
        cdef uint64_t here = self.numbers.get(ledger_id, LEDGER_MASK + 1)
        cdef uint64_t number
        cdef size_t last = self.count
        cdef size_t i, kept = 0
        for i in range(last):
            number = self.items[i].when & LEDGER_MASK
            if is_dropped[number] or (number == here and self.items[i].entry_id <= entry_id):
                continue
            self.items[kept] = self.items[i]
            kept += 1
        if kept == last:
            return
        if kept == 0:
            self.clear()
            return
        self.count = kept
        for i in range((kept + CHILDREN - 2) // CHILDREN, 0, -1):
            self._sink(i - 1)
        while self.count * 4 < self.capacity and self.capacity > CAPACITY_MIN * 4:
            last = self.capacity
            self._shrink()
            if self.capacity == last:
                break

    def clear(self):
        """Drop all entries, and free the memory."""
        global _held_bytes
        _held_bytes -= <int64_t>(self.capacity * sizeof(DelayedItem))
        free(self.items)
        self.items = NULL
        self.count = 0
        self.capacity = 0
        self.ledgers = []
        self.numbers = {}
