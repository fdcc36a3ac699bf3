"""Adds on their way to a quorum of bookies; see quorum.pxd."""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from pyxbroker.entry cimport Digest, EntryRun, RunItem
from pyxbroker.integers cimport store_be64
from pyxbroker.native cimport (
    DIGEST_HEADER_BYTES_MAX,
    NATIVE_API_CAPSULE,
    STORAGE_ADD_HAS_CRC,
    native_api,
)

from pyxbroker import _native
from pyxbroker.entry import CRC32C

cdef native_api *_api = <native_api *>PyCapsule_GetPointer(_native._c_api, NATIVE_API_CAPSULE)

cdef enum:
    RING_MIN = 64


cdef extern from *:
    int __builtin_popcount(unsigned int) nogil


cdef class PendingAdds:
    """Counts acks of one ledger's entries and confirms them in order (BookKeeper's PendingAddOp).

    Entry e is written to the ensemble indexes (e + i) mod E for i < Qw and is confirmed when Qa of
    them acknowledged it and every entry before it is confirmed.
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
        """Entries added and not confirmed."""
        return self.next - self.first

    def add(self, int64_t count):
        """Takes count further entries; returns the id of the first."""
        cdef int64_t first = self.next
        if count <= 0:
            raise ValueError("a run has at least one entry")
        if self.next + count - self.first > self.capacity:
            self._grow(self.next + count - self.first)
        self.next += count
        return first

    def write_set(self, int64_t entry_id):
        """Ensemble indexes that entry_id is written to, in order."""
        return [(entry_id + i) % self.ensemble_size for i in range(self.write_quorum)]

    def on_ack(self, int index, int64_t first, int64_t last):
        """The bookie at an ensemble index has entries first..last; returns the last confirmed id.

        Answers for entries that are confirmed already, never added, or not written to that bookie
        change nothing.
        """
        cdef int64_t entry_id
        cdef int64_t distance
        if index < 0 or index >= self.ensemble_size:
            raise ValueError("ensemble index %d of %d" % (index, self.ensemble_size))
        for entry_id in range(max(first, self.first), min(last, self.next - 1) + 1):
            distance = (index - entry_id) % self.ensemble_size
            if distance < 0:
                distance += self.ensemble_size
            if distance < self.write_quorum:
                self.acks[entry_id & (self.capacity - 1)] |= <uint32_t>1 << index
        while (self.first < self.next
                and __builtin_popcount(self.acks[self.first & (self.capacity - 1)])
                >= self.ack_quorum):
            self.acks[self.first & (self.capacity - 1)] = 0
            self.first += 1
        return self.first - 1

    def truncate(self, int64_t first):
        """Takes back the entries from first on: no bookie was given any of them."""
        cdef int64_t entry_id
        if not self.first <= first <= self.next:
            raise ValueError("entries from %d on cannot be taken back: %d to %d are pending"
                             % (first, self.first, self.next - 1))
        for entry_id in range(first, self.next):
            self.acks[entry_id & (self.capacity - 1)] = 0
        self.next = first

    def forget(self, int index):
        """The bookie at an index was replaced: its acks of unconfirmed entries are void."""
        cdef int64_t entry_id
        if index < 0 or index >= self.ensemble_size:
            raise ValueError("ensemble index %d of %d" % (index, self.ensemble_size))
        for entry_id in range(self.first, self.next):
            self.acks[entry_id & (self.capacity - 1)] &= ~(<uint32_t>1 << index)


cdef class StorageWriter:
    """The intake of the embedded bookie: packages entries and adds them, a run at a time."""

    def __cinit__(self, owner):
        self.owner = owner
        self.handle = <storage *>PyCapsule_GetPointer(owner._handle, "pyxbroker._native.storage")

    def add_run(self, EntryRun run not None, int64_t last_add_confirmed, int64_t length,
                uint32_t start, uint32_t flags, Digest digest not None=CRC32C):
        """Packages and adds entries of a run from index start on.

        length is the ledger's length in bytes before the run's first entry. Returns (added,
        sequence, error): the number of entries that the run has in the storage now, the sequence
        number of the last, and 0 or the storage error that stopped the rest.
        """
        cdef uint8_t header[DIGEST_HEADER_BYTES_MAX]
        cdef uint32_t i
        cdef int64_t sequence = 0
        cdef int64_t added
        cdef RunItem *item
        store_be64(header, <uint64_t>run.ledger_id)
        store_be64(header + 16, <uint64_t>last_add_confirmed)
        for i in range(run.count):
            item = &run.items[i]
            length += item.length
            if i < start:
                continue
            store_be64(header + 8, <uint64_t>(run.first_entry_id + i))
            store_be64(header + 24, <uint64_t>length)
            _api.digest_write(&digest.spec, header, item.data, item.length, item.crc)
            added = _api.add(self.handle, header, digest.spec.header_bytes, item.data,
                             item.length, item.crc, flags | STORAGE_ADD_HAS_CRC)
            if added < 0:
                return i, sequence, added
            sequence = added
        return run.count, sequence, 0

    def add_packaged(self, bytes packaged not None, uint32_t flags):
        """Adds one entry that is packaged already; returns its sequence number or an error."""
        cdef const uint8_t *start = packaged
        if len(packaged) < 16:
            raise ValueError("an entry starts with its ledger id and entry id")
        return _api.add(self.handle, start, 16, start + 16, <uint32_t>len(packaged) - 16, 0, flags)

    def commit(self):
        _api.commit(self.handle)

    def durable_sequence(self):
        return _api.durable_sequence(self.handle)

    def failure(self):
        return _api.failure(self.handle)
