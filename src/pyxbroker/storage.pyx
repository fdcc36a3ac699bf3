"""The storage of the embedded bookie for Cython: adds of runs, reads of batches."""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.entry cimport Digest, EntryBatch, EntryRun, RunItem
from pyxbroker.integers cimport store_be64
from pyxbroker.native cimport (
    DIGEST_HEADER_BYTES_MAX,
    NATIVE_API_CAPSULE,
    STORAGE_ADD_HAS_CRC,
    native_api,
    read_completion,
    storage,
)

from pyxbroker import _native
from pyxbroker.entry import CRC32C

cdef native_api *_api = <native_api *>PyCapsule_GetPointer(_native._c_api, NATIVE_API_CAPSULE)

cdef enum:
    COMPLETIONS_PER_CALL = 64


cdef class StorageWriter:
    """Adds the entries of runs to the storage of the embedded bookie, packaged with a digest."""

    cdef object owner               # pyxbroker._native.Storage
    cdef storage *handle

    def __cinit__(self, owner):
        self.owner = owner
        self.handle = <storage *>PyCapsule_GetPointer(owner._handle, "pyxbroker._native.storage")

    def add_run(self, EntryRun run not None, int64_t last_add_confirmed, int64_t length,
                uint32_t start, uint32_t flags, Digest digest not None=CRC32C):
        """Add the entries of a run from index start on, packaged with a digest.

        length is the ledger's length in bytes before the run's first entry. Return (added,
        sequence, error): the number of entries of the run in the storage, the sequence number of
        the last, and 0 or the storage error that stopped the add.
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

    def commit(self):
        _api.commit(self.handle)

    def durable_sequence(self):
        return _api.durable_sequence(self.handle)

    def failure(self):
        return _api.failure(self.handle)


cdef class StorageReader:
    """Reads runs of entries, from the cache directly or through the read thread."""

    cdef object owner               # pyxbroker._native.Storage, kept open while batches exist
    cdef storage *handle
    cdef dict waiting               # tag -> EntryBatch being filled
    cdef uint64_t next_tag

    def __cinit__(self, owner):
        self.owner = owner
        self.handle = <storage *>PyCapsule_GetPointer(owner._handle, "pyxbroker._native.storage")
        self.waiting = {}

    def read_cached(self, int64_t ledger_id, int64_t first, int64_t last, int count_max,
                    uint64_t bytes_max):
        """Return a batch that starts with entry first, or None if the cache lacks that entry."""
        cdef EntryBatch batch = EntryBatch(ledger_id, count_max, self.owner)
        batch.count = _api.read_cached(self.handle, ledger_id, first, last, count_max, bytes_max,
                                       batch.refs)
        return batch if batch.count > 0 else None

    def submit(self, int64_t ledger_id, int64_t first, int64_t last, int count_max,
               uint64_t bytes_max):
        """Start a read on the read thread; return its tag (see completions), or a negative storage
        error.
        """
        cdef EntryBatch batch = EntryBatch(ledger_id, count_max, self.owner)
        cdef uint64_t tag = self.next_tag
        cdef int code
        self.next_tag += 1
        code = _api.read_submit(self.handle, ledger_id, first, last, count_max, bytes_max,
                                batch.refs, tag)
        if code < 0:
            return code
        self.waiting[tag] = batch
        return tag

    def completions(self):
        """Return finished reads: (tag, batch or negative storage error)."""
        cdef read_completion done[COMPLETIONS_PER_CALL]
        cdef EntryBatch batch
        cdef int i
        cdef int n = COMPLETIONS_PER_CALL
        finished = []
        while n == COMPLETIONS_PER_CALL:
            n = _api.read_completions(self.handle, done, COMPLETIONS_PER_CALL)
            for i in range(n):
                batch = self.waiting.pop(done[i].tag)
                if done[i].count > 0:
                    batch.count = <int>done[i].count
                    finished.append((done[i].tag, batch))
                else:
                    finished.append((done[i].tag, done[i].count))
        return finished

    @property
    def outstanding(self):
        """Number of reads in progress on the read thread."""
        return len(self.waiting)
