"""Detection of SENDs that repeat earlier ones of their producer; see sequence_ids.pxd.

A SEND is new if its id is higher than all ids before it; gaps are allowed. The first id of a batch
decides. Only the last chunk of a message is checked and counted. Markers are neither checked nor
counted.
"""
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t

from pyxbroker.commands cimport MetadataPeek, peek_metadata
from pyxbroker.entry cimport ITEM_CHUNK, ITEM_UNCOUNTED, EntryBatch, EntryRun, RunItem
from pyxbroker.frames cimport payload_metadata
from pyxbroker.native cimport entry_ref

NO_SEQUENCE_ID = INT64_MIN
IS_DUPLICATE = DUPLICATE
IS_UNKNOWN = UNKNOWN


cdef inline int64_t _highest(RunItem *item) noexcept:
    return max(<int64_t>item.sequence_id, <int64_t>item.highest_sequence_id)


cdef bint _is_last_chunk(const uint8_t *data, uint32_t length) noexcept:
    """Return True for the last chunk of a message, and for entries that are not chunks."""
    cdef MetadataPeek peek
    cdef const uint8_t *metadata
    cdef uint32_t metadata_size
    if (payload_metadata(data, length, &metadata, &metadata_size) != 0
            or peek_metadata(metadata, metadata_size, &peek) != 0):
        return True
    return peek.num_chunks <= 1 or peek.chunk_id == peek.num_chunks - 1


cdef class SequenceIds:
    def __cinit__(self, int64_t persisted=INT64_MIN):
        self.pushed = persisted
        self.persisted = persisted

    cdef int _classify(self, EntryRun run, uint32_t i) noexcept:
        cdef RunItem *item = &run.items[i]
        if item.kind == ITEM_CHUNK:
            # Decide now: the bytes are no longer available once it is stored.
            item.kind = 0 if _is_last_chunk(item.data, item.length) else ITEM_UNCOUNTED
        if item.kind == ITEM_UNCOUNTED or <int64_t>item.sequence_id > self.pushed:
            return NOT_DUPLICATE
        return DUPLICATE if <int64_t>item.sequence_id <= self.persisted else UNKNOWN

    def take(self, EntryRun run not None):
        """Record a run as appended if all its SENDs are new, and return True. Otherwise change
        nothing.
        """
        cdef int64_t before = self.pushed
        cdef int64_t pushed = before
        cdef RunItem *item
        cdef uint32_t i
        for i in range(run.count):
            item = &run.items[i]
            if item.kind != 0 or <int64_t>item.sequence_id <= pushed:
                self.pushed = pushed
                if self._classify(run, i) != NOT_DUPLICATE:
                    self.pushed = before
                    return False
                if item.kind == ITEM_UNCOUNTED:
                    continue
            pushed = _highest(item)
        self.pushed = pushed
        return True

    def classify(self, EntryRun run not None, uint32_t i):
        """Classify one SEND of a run as 0, IS_DUPLICATE or IS_UNKNOWN, and record a new one as
        appended.
        """
        cdef int found
        if i >= run.count:
            raise IndexError(i)
        found = self._classify(run, i)
        if found == NOT_DUPLICATE and run.items[i].kind != ITEM_UNCOUNTED:
            self.pushed = _highest(&run.items[i])
        return found

    def confirm(self, EntryRun run not None):
        """Record a run as stored."""
        cdef int64_t persisted = self.persisted
        cdef uint32_t i
        for i in range(run.count):
            # Entries appended before deduplication was enabled may be chunks.
            if run.items[i].kind == 0:
                persisted = max(persisted, _highest(&run.items[i]))
        self.persisted = persisted
        self.pushed = max(self.pushed, persisted)

    def reset(self):
        """Reset to the stored ids after some appended entries were not stored."""
        self.pushed = self.persisted
        self.has_failed = False


def collect_highest(EntryBatch batch not None, dict found not None, uint32_t name_bytes_max):
    """Collect the highest sequence id of each producer in entries into found, name (bytes) -> id,
    the most recent name last. Entries with longer names are ignored.
    """
    cdef MetadataPeek peek
    cdef const uint8_t *metadata
    cdef uint32_t metadata_size
    cdef entry_ref *ref
    cdef int64_t highest
    cdef int i
    for i in range(batch.count):
        ref = &batch.refs[i]
        if (ref.length < batch.data_offset
                or payload_metadata(ref.data + batch.data_offset, ref.length - batch.data_offset,
                                    &metadata, &metadata_size) != 0
                or peek_metadata(metadata, metadata_size, &peek) != 0
                or peek.marker_type >= 0 or peek.producer_name_size > name_bytes_max
                or (peek.num_chunks > 1 and peek.chunk_id != peek.num_chunks - 1)):
            continue
        name = peek.producer_name[:peek.producer_name_size]
        highest = max(<int64_t>peek.sequence_id, <int64_t>peek.highest_sequence_id)
        before = found.pop(name, None)
        found[name] = highest if before is None else max(<int64_t>before, highest)
