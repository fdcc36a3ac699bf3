"""Which SENDs of a run repeat what their producer has sent before; see sequence_ids.pxd.

Only what is higher than anything before is new, whatever is left out between. A batch is judged by
its first id. Of the chunks of a message the last one is, and counts; markers do neither.
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
    """Also of what is no chunk."""
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

    cdef int _judge(self, EntryRun run, uint32_t i) noexcept:
        cdef RunItem *item = &run.items[i]
        if item.kind == ITEM_CHUNK:
            # Its bytes are not there any more when it is stored.
            item.kind = 0 if _is_last_chunk(item.data, item.length) else ITEM_UNCOUNTED
        if item.kind == ITEM_UNCOUNTED or <int64_t>item.sequence_id > self.pushed:
            return NOT_DUPLICATE
        return DUPLICATE if <int64_t>item.sequence_id <= self.persisted else UNKNOWN

    def take(self, EntryRun run not None):
        """Whether all SENDs of a run are new; then they are noted as appended, else none is."""
        cdef int64_t before = self.pushed
        cdef int64_t pushed = before
        cdef RunItem *item
        cdef uint32_t i
        for i in range(run.count):
            item = &run.items[i]
            if item.kind != 0 or <int64_t>item.sequence_id <= pushed:
                self.pushed = pushed
                if self._judge(run, i) != NOT_DUPLICATE:
                    self.pushed = before
                    return False
                if item.kind == ITEM_UNCOUNTED:
                    continue
            pushed = _highest(item)
        self.pushed = pushed
        return True

    def judge(self, EntryRun run not None, uint32_t i):
        """What one SEND of a run is; a new one is noted as appended."""
        cdef int found
        if i >= run.count:
            raise IndexError(i)
        found = self._judge(run, i)
        if found == NOT_DUPLICATE and run.items[i].kind != ITEM_UNCOUNTED:
            self.pushed = _highest(&run.items[i])
        return found

    def confirm(self, EntryRun run not None):
        """A run is stored."""
        cdef int64_t persisted = self.persisted
        cdef uint32_t i
        for i in range(run.count):
            # What came before anybody asked may be any chunk.
            if run.items[i].kind == 0:
                persisted = max(persisted, _highest(&run.items[i]))
        self.persisted = persisted
        self.pushed = max(self.pushed, persisted)

    def reset(self):
        """Nothing is under way any more, and not all of it was stored."""
        self.pushed = self.persisted
        self.has_failed = False


def replay(EntryBatch batch not None, dict found not None, uint32_t name_bytes_max):
    """Takes the highest sequence id of each producer from entries into found, name (bytes) -> id;
    the latest name comes last. Longer names are of nobody.
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
