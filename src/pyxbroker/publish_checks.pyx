"""The SENDs of a run that a topic's policies forbid, found by decoding their metadata in place."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.commands cimport MetadataPeek, peek_metadata
from pyxbroker.entry cimport EntryRun, RunItem
from pyxbroker.frames cimport payload_metadata

# Reasons why a SEND is refused; the first one that applies.
NOT_ENCRYPTED = 0
TOO_LARGE = 1
TOO_LATE = 2


cdef int _reason(RunItem *item, bint encrypted, uint32_t bytes_max,
                 int64_t delay_max_ms) noexcept:
    cdef MetadataPeek peek
    cdef const uint8_t *metadata
    cdef uint32_t metadata_size
    cdef uint64_t deliver_at
    if (payload_metadata(item.data, item.length, &metadata, &metadata_size) != 0
            or peek_metadata(metadata, metadata_size, &peek) != 0):
        # Written by the broker itself, not by a client.
        return -1
    if encrypted and not peek.is_encrypted:
        return 0
    if bytes_max and item.length > bytes_max and peek.num_chunks <= 1:
        return 1
    if delay_max_ms and peek.deliver_at_time > 0:
        deliver_at = <uint64_t>peek.deliver_at_time
        if (deliver_at > peek.publish_time
                and deliver_at - peek.publish_time > <uint64_t>delay_max_ms):
            return 2
    return -1


def forbidden(EntryRun run not None, bint encrypted, uint32_t bytes_max, int64_t delay_max_ms):
    """Return [(index, reason)] of the refused SENDs; a limit of 0 is no limit.

    encrypted: messages must be encrypted. bytes_max: limit of metadata and payload, except for
    chunks. delay_max_ms: limit of the delay after the publish time.
    """
    cdef list found = []
    cdef uint32_t i
    cdef int reason
    for i in range(run.count):
        reason = _reason(&run.items[i], encrypted, bytes_max, delay_max_ms)
        if reason >= 0:
            found.append((i, reason))
    return found
