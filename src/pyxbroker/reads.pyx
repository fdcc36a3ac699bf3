"""Reads of the embedded bookie: batches of entries that lie in its cache or in entry logs."""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint64_t

from pyxbroker.entry cimport EntryBatch
from pyxbroker.native cimport NATIVE_API_CAPSULE, native_api, read_completion, storage

from pyxbroker import _native

cdef native_api *_api = <native_api *>PyCapsule_GetPointer(_native._c_api, NATIVE_API_CAPSULE)

cdef enum:
    COMPLETIONS_PER_CALL = 64


cdef class StorageReader:
    """Reads runs of entries; what the cache has at once, the rest through the read thread."""

    cdef object owner               # pyxbroker._native.Storage, kept open while batches are out
    cdef storage *handle
    cdef dict waiting               # tag -> EntryBatch being filled
    cdef uint64_t next_tag

    def __cinit__(self, owner):
        self.owner = owner
        self.handle = <storage *>PyCapsule_GetPointer(owner._handle, "pyxbroker._native.storage")
        self.waiting = {}

    def read_cached(self, int64_t ledger_id, int64_t first, int64_t last, int count_max,
                    uint64_t bytes_max):
        """An EntryBatch that starts with entry first, or None when the cache does not have it."""
        cdef EntryBatch batch = EntryBatch(ledger_id, count_max, self.owner)
        batch.count = _api.read_cached(self.handle, ledger_id, first, last, count_max, bytes_max,
                                       batch.refs)
        return batch if batch.count > 0 else None

    def submit(self, int64_t ledger_id, int64_t first, int64_t last, int count_max,
               uint64_t bytes_max):
        """Starts a read through the read thread; returns its tag (see completions), or an error."""
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
        """Finished reads: [(tag, EntryBatch)] or [(tag, negative error)]."""
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
        """Reads that the read thread still has."""
        return len(self.waiting)
