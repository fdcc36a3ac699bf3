"""Adds that wait for a quorum of bookies; see quorum.pxd."""
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport free, malloc
from libc.string cimport memset

cdef enum:
    RING_MIN = 64


cdef extern from *:
    int __builtin_popcount(unsigned int) nogil


cdef class PendingAdds:
    """Counts acks of a ledger's entries and confirms them in order (BookKeeper's PendingAddOp).

    Entry e is written to the ensemble indexes (e + i) mod E for i < Qw. It is confirmed when Qa of
    them have acknowledged it and every entry before it is confirmed.
    """

    def __cinit__(self, int ensemble_size, int write_quorum, int ack_quorum,
                  int64_t next_entry_id=0):
        if not 0 < ack_quorum <= write_quorum <= ensemble_size <= 32:
            raise ValueError("quorums must be 0 < ack <= write <= ensemble <= 32, not %d, %d, %d"
                             % (ack_quorum, write_quorum, ensemble_size))
        self.ensemble_size = ensemble_size
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self.first = next_entry_id
        self.next = next_entry_id
        self._grow(RING_MIN)

    def __dealloc__(self):
        free(self.acks)

    cdef int _grow(self, int64_t wanted) except -1:
        cdef int64_t capacity = self.capacity if self.capacity else RING_MIN
        cdef uint32_t *grown
        cdef int64_t entry_id
        while capacity < wanted:
            capacity *= 2
        grown = <uint32_t *>malloc(<size_t>capacity * sizeof(uint32_t))
        if grown == NULL:
            raise MemoryError("no memory for %d pending adds" % capacity)
        memset(grown, 0, <size_t>capacity * sizeof(uint32_t))
        for entry_id in range(self.first, self.next):
            grown[entry_id & (capacity - 1)] = self.acks[entry_id & (self.capacity - 1)]
        free(self.acks)
        self.acks = grown
        self.capacity = capacity
        return 0

    @property
    def last_add_confirmed(self):
        return self.first - 1

    @property
    def pending(self):
        """Number of unconfirmed entries."""
        return self.next - self.first

    def add(self, int64_t count):
        """Add entries; return the id of the first. Raise ValueError unless count is positive."""
        return self._add(count)

    cdef int64_t _add(self, int64_t count) except -1:
        cdef int64_t first = self.next
        if count <= 0:
            raise ValueError("a run has at least one entry")
        if self.next + count - self.first > self.capacity:
            self._grow(self.next + count - self.first)
        self.next += count
        return first

    def write_set(self, int64_t entry_id):
        """Return the ensemble indexes that an entry is written to, in order."""
        return [(entry_id + i) % self.ensemble_size for i in range(self.write_quorum)]

    def unacked(self, int64_t entry_id):
        """Return the ensemble indexes that have not acknowledged a pending entry."""
        cdef uint32_t acks
        if not self.first <= entry_id < self.next:
            raise ValueError("entry %d is not pending" % entry_id)
        acks = self.acks[entry_id & (self.capacity - 1)]
        return [index for index in self.write_set(entry_id) if not acks >> <int>index & 1]

    def on_ack(self, int index, int64_t first, int64_t last):
        """Record that the bookie at an ensemble index stored entries first..last; return the last
        add confirmed.

        Acks of entries that are confirmed, not added, or not written to that bookie are ignored.
        """
        self._ack(index, first, last)
        return self.first - 1

    cdef int _ack(self, int index, int64_t first, int64_t last) except -1:
        cdef int64_t entry_id
        cdef int64_t distance
        if index < 0 or index >= self.ensemble_size:
            raise ValueError("ensemble index %d of %d" % (index, self.ensemble_size))
        first = max(first, self.first)
        last = min(last, self.next - 1)
        distance = (index - first) % self.ensemble_size
        if distance < 0:
            distance += self.ensemble_size
        for entry_id in range(first, last + 1):
            if distance < self.write_quorum:
                self.acks[entry_id & (self.capacity - 1)] |= <uint32_t>1 << index
            distance = (distance if distance else self.ensemble_size) - 1
        if not self.is_held:
            self._confirm()
        return 0

    cdef int64_t _confirm(self) noexcept:
        while (self.first < self.next
                and __builtin_popcount(self.acks[self.first & (self.capacity - 1)])
                >= self.ack_quorum):
            self.acks[self.first & (self.capacity - 1)] = 0
            self.first += 1
        return self.first - 1

    def hold(self):
        """Count acknowledgements, but confirm nothing until resume()."""
        self.is_held = True

    def resume(self):
        """Confirm the acknowledged entries; return the last add confirmed."""
        self.is_held = False
        return self._confirm()

    def truncate(self, int64_t first):
        """Remove the entries from `first` on, which were sent to no bookie. Raise ValueError."""
        cdef int64_t entry_id
        if not self.first <= first <= self.next:
            raise ValueError("cannot remove the entries from %d on: %d to %d are pending"
                             % (first, self.first, self.next - 1))
        for entry_id in range(first, self.next):
            self.acks[entry_id & (self.capacity - 1)] = 0
        self.next = first

    def forget(self, int index):
        """Discard the acks of a replaced bookie for unconfirmed entries."""
        cdef int64_t entry_id
        if index < 0 or index >= self.ensemble_size:
            raise ValueError("ensemble index %d of %d" % (index, self.ensemble_size))
        for entry_id in range(self.first, self.next):
            self.acks[entry_id & (self.capacity - 1)] &= ~(<uint32_t>1 << index)


cdef class PendingRuns(PendingAdds):
    """The unconfirmed runs of a ledger's writer, and the acks of their entries."""

    def __cinit__(self, *arguments):
        self.runs = []
        self.last = INT64_MAX

    def append(self, run not None):
        """Give a run its entry ids; return the first."""
        cdef int64_t count = run.count
        cdef int64_t first = self._add(count)
        run.first_entry_id = first
        self.runs.append(run)
        if self.last == INT64_MAX:
            self.last = first + count - 1
        return first

    def on_run_ack(self, int index, int64_t first, int64_t last):
        """Do as on_ack; return the runs that are confirmed now, in order."""
        self._ack(index, first, last)
        return () if self.first <= self.last else self._take()

    def take_confirmed(self):
        """Remove and return the runs whose entries are all confirmed, in order."""
        return () if self.first <= self.last else self._take()

    cdef list _take(self):
        cdef Py_ssize_t end = self.head
        cdef Py_ssize_t count = len(self.runs)
        cdef list taken
        while self.last < self.first:
            end += 1
            self.last = self.runs[end].last_entry_id if end < count else INT64_MAX
        if end == count:
            taken = self.runs[self.head:] if self.head else self.runs
            self.runs = []
            self.head = 0
            return taken
        taken = self.runs[self.head:end]
        if end > RING_MIN and end * 2 > count:
            del self.runs[:end]
            end = 0
        else:
            # The list must not keep them alive.
            for i in range(self.head, end):
                self.runs[i] = None
        self.head = end
        return taken

    @property
    def has_runs(self):
        return self.last != INT64_MAX

    @property
    def newest(self):
        """The run that was appended last, if it is not confirmed; otherwise None."""
        return self.runs[len(self.runs) - 1] if self.last != INT64_MAX else None

    def unconfirmed(self):
        """Return the unconfirmed runs, in order."""
        return self.runs[self.head:]

    def take_all(self):
        """Remove and return the unconfirmed runs; their entries stay pending."""
        cdef list taken = self.runs[self.head:]
        self.runs = []
        self.head = 0
        self.last = INT64_MAX
        return taken

    def take_back(self):
        """Remove the run that was appended last, which was sent to no bookie."""
        self.truncate(self.newest.first_entry_id)
        self.runs.pop()
        if self.head == len(self.runs):
            self.runs.clear()
            self.head = 0
            self.last = INT64_MAX
