"""Frames between a broker and a bookie; bookie_frames.pxd describes their layout."""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport UINT32_MAX
from libc.stdlib cimport free
from libc.string cimport memcpy

from pyxbroker.entry cimport RunItem
from pyxbroker.integers cimport load_be32, load_be64, store_be32, store_be64
from pyxbroker.native cimport NATIVE_API_CAPSULE, native_api

from pyxbroker import _native

cdef native_api *_api = <native_api *>PyCapsule_GetPointer(_native._c_api, NATIVE_API_CAPSULE)

cdef enum:
    VERSION = 2
    ANSWER_BYTES = 24               # of an answer without entries
    BATCH_ANSWER_BYTES = 32

    # BookKeeper's codes of an answer (BookieProtocol).
    E_NO_LEDGER = 1
    E_NO_ENTRY = 2
    E_BAD_REQUEST = 100
    E_UNAUTHORIZED = 102
    E_BAD_VERSION = 103
    E_FENCED = 104
    E_READ_ONLY = 105
    E_TOO_MANY_REQUESTS = 106


cdef AddFrames package_run(EntryRun run, Digest digest, int64_t last_add_confirmed,
                           int64_t length, uint32_t flags):
    cdef AddFrames frames = run.frames
    cdef uint32_t prefix = ADD_PREFIX_BYTES + digest.spec.header_bytes
    cdef bytes key = digest.master_key
    cdef uint8_t *at
    cdef uint8_t *header
    cdef RunItem *item
    cdef int64_t total = length
    cdef uint32_t i
    if (frames is not None and frames.digest is digest and frames.flags == flags
            and frames.ledger_id == run.ledger_id and frames.length == length
            and frames.first_entry_id == run.first_entry_id):
        return frames
    if run.bytes + <uint64_t>run.count * prefix > UINT32_MAX:
        raise ValueError("a run of %d bytes is too large to be sent" % run.bytes)
    frames = AddFrames(run.bytes + <uint64_t>run.count * prefix)
    at = frames.data
    for i in range(run.count):
        item = &run.items[i]
        if item.data == NULL and item.length:
            raise ValueError("a run was sent after its data was released")
        total += item.length
        store_be32(at, prefix - 4 + item.length)
        store_be32(at + 4, <uint32_t>VERSION << 24 | <uint32_t>BOOKIE_ADD << 16 | flags)
        memcpy(at + 8, <const uint8_t *>key, MASTER_KEY_BYTES)
        header = at + ADD_PREFIX_BYTES
        store_be64(header, <uint64_t>run.ledger_id)
        store_be64(header + 8, <uint64_t>(run.first_entry_id + i))
        store_be64(header + 16, <uint64_t>last_add_confirmed)
        store_be64(header + 24, <uint64_t>total)
        _api.digest_write(&digest.spec, header, item.data, item.length, item.crc)
        memcpy(at + prefix, item.data, item.length)
        item.data = at + prefix
        if prefix - 4 + item.length > frames.longest:
            frames.longest = prefix - 4 + item.length
        at += prefix + item.length
    frames.prefix = prefix
    frames.digest = digest
    frames.flags = flags
    frames.ledger_id = run.ledger_id
    frames.first_entry_id = run.first_entry_id
    frames.length = length
    # The frames own the data from here on.
    free(run.copied)
    run.copied = NULL
    run.data_owner = None
    run.frames = frames
    return frames


cdef uint32_t build_read(uint8_t *out, uint32_t flags, int64_t ledger_id, int64_t entry_id,
                         const uint8_t *key) noexcept nogil:
    cdef uint32_t size = 24
    store_be32(out + 4, <uint32_t>VERSION << 24 | <uint32_t>BOOKIE_READ << 16 | flags)
    store_be64(out + 8, <uint64_t>ledger_id)
    store_be64(out + 16, <uint64_t>entry_id)
    if flags & BOOKIE_FENCING:
        memcpy(out + size, key, MASTER_KEY_BYTES)
        size += MASTER_KEY_BYTES
    store_be32(out, size - 4)
    return size


cdef uint32_t build_batch_read(uint8_t *out, uint32_t flags, int64_t ledger_id, int64_t entry_id,
                               int64_t request_id, uint32_t count, int64_t bytes_max,
                               const uint8_t *key) noexcept nogil:
    cdef uint32_t size = 44
    store_be32(out + 4, <uint32_t>VERSION << 24 | <uint32_t>BOOKIE_BATCH_READ << 16 | flags)
    store_be64(out + 8, <uint64_t>ledger_id)
    store_be64(out + 16, <uint64_t>entry_id)
    store_be64(out + 24, <uint64_t>request_id)
    store_be32(out + 32, count)
    store_be64(out + 36, <uint64_t>bytes_max)
    if flags & BOOKIE_FENCING:
        memcpy(out + size, key, MASTER_KEY_BYTES)
        size += MASTER_KEY_BYTES
    store_be32(out, size - 4)
    return size


cdef int _code_of(uint32_t code) noexcept nogil:
    """Return the code of ledger/bookie.py for one of BookKeeper's."""
    if code == 0:
        return 0
    if code == E_NO_LEDGER:
        return NO_LEDGER
    if code == E_NO_ENTRY:
        return NO_ENTRY
    if code == E_BAD_REQUEST or code == E_BAD_VERSION:
        return REFUSED
    if code == E_UNAUTHORIZED:
        return UNAUTHORIZED
    if code == E_FENCED:
        return FENCED
    if code == E_READ_ONLY:
        return READ_ONLY
    if code == E_TOO_MANY_REQUESTS:
        return BUSY
    return FAILED


cdef int64_t next_answer(const uint8_t *data, uint64_t size, uint32_t frame_bytes_max,
                         Answer *out) noexcept nogil:
    cdef uint32_t total, header, bytes_min
    if size < 4:
        return ANSWER_INCOMPLETE
    total = load_be32(data)
    if total > frame_bytes_max:
        return ANSWER_TOO_LARGE
    if total < ANSWER_BYTES:
        return ANSWER_MALFORMED
    if size < 8:
        return ANSWER_INCOMPLETE
    header = load_be32(data + 4)
    out.operation = header >> 16 & 0xff
    if header >> 24 != VERSION:
        return ANSWER_MALFORMED
    if out.operation == BOOKIE_BATCH_READ:
        bytes_min = BATCH_ANSWER_BYTES
    elif out.operation == BOOKIE_READ or (out.operation == BOOKIE_ADD and total == ANSWER_BYTES):
        bytes_min = ANSWER_BYTES
    else:
        return ANSWER_MALFORMED
    if total < bytes_min:
        return ANSWER_MALFORMED
    if size < <uint64_t>total + 4:
        return ANSWER_INCOMPLETE
    out.code = _code_of(load_be32(data + 8))
    out.ledger_id = load_be64(data + 12)
    out.entry_id = load_be64(data + 20)
    if out.operation == BOOKIE_BATCH_READ:
        out.request_id = load_be64(data + 28)
    out.entries = data + 4 + bytes_min
    out.size = total - bytes_min
    return <int64_t>total + 4


# The functions below are for tests.

def frames_of(EntryRun run not None, Digest digest not None, int64_t last_add_confirmed,
              int64_t length, uint32_t flags=0):
    """Return the bytes of a run's add requests, and the address of their memory."""
    cdef AddFrames frames = package_run(run, digest, last_add_confirmed, length, flags)
    return frames.data[:frames.size], <size_t>frames.data
