"""Topic compaction: find the latest message of each key, and build runs of these; see
compaction.pxd.
"""
from libc.stdint cimport UINT32_MAX, UINT64_MAX
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from pyxbroker.commands cimport BatchedPeek, peek_batched, peek_metadata
from pyxbroker.entry cimport EntryRun
from pyxbroker.frames cimport payload_metadata
from pyxbroker.integers cimport get_varint, load_be32, put_varint, store_be32
from pyxbroker.native cimport entry_ref, native_api

import os

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer

from pyxbroker.native cimport NATIVE_API_CAPSULE

from pyxbroker import _native
from pyxbroker.entry import Position

cdef enum:
    NO_MEMORY = -1
    TOO_MANY = -2
    PACKED = 1
    HEADER_BYTES_MAX = 64           # of a record in a compacted ledger
    TABLE_SIZE_MIN = 1024
    ID_BYTES_MAX = 4096             # far above the size of a message id
    # A message that was compacted out: SingleMessageMetadata with payload_size 0 and compacted_out.
    COMPACTED_OUT_BYTES = 8
    REBUILT_PER_SLICE = 4096        # messages of a batch per release of the GIL

cdef native_api *_api = <native_api *>PyCapsule_GetPointer(_native._c_api, NATIVE_API_CAPSULE)
cdef const uint8_t *_COMPACTED_OUT = b"\0\0\0\4\x18\0\x20\1"

KEY_PARTS = PARTS
BLOCK_BYTES = sizeof(KeyRecord) * BLOCK_RECORDS


class TooManyMessages(Exception):
    """Raised when a topic has more messages than a compaction accepts."""


# --- hashes ---------------------------------------------------------------------------------------

cdef inline uint64_t _rotate(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline void _round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[1] = _rotate(v[1], 13) ^ v[0]
    v[0] = _rotate(v[0], 32)
    v[2] += v[3]
    v[3] = _rotate(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = _rotate(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = _rotate(v[1], 17) ^ v[2]
    v[2] = _rotate(v[2], 32)


# Compute SipHash-2-4 with 128 bits of output, on a little-endian machine.
cdef void _siphash(const uint64_t *secret, const uint8_t *data, uint32_t size,
                   uint64_t *low, uint64_t *high) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef uint32_t at = 0
    cdef int _i
    v[0] = secret[0] ^ <uint64_t>0x736f6d6570736575
    v[1] = secret[1] ^ <uint64_t>0x646f72616e646f6d ^ 0xee
    v[2] = secret[0] ^ <uint64_t>0x6c7967656e657261
    v[3] = secret[1] ^ <uint64_t>0x7465646279746573
    while size - at >= 8:
        memcpy(&word, data + at, 8)
        v[3] ^= word
        _round(v)
        _round(v)
        v[0] ^= word
        at += 8
    word = 0
    memcpy(&word, data + at, size - at)
    word |= <uint64_t>(size & 0xff) << 56
    v[3] ^= word
    _round(v)
    _round(v)
    v[0] ^= word
    v[2] ^= 0xee
    for _i in range(4):
        _round(v)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xdd
    for _i in range(4):
        _round(v)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


def keyed_hash(bytes secret not None, bytes key not None):
    """Return the SipHash-2-4 of a key, 128 bits."""
    cdef uint64_t words[2]
    cdef uint64_t out[2]
    cdef const uint8_t *start = key
    cdef const uint8_t *from_ = secret
    if len(secret) != 16:
        raise ValueError("a secret has 16 bytes, not %d" % len(secret))
    memcpy(words, from_, 16)
    _siphash(words, start, <uint32_t>len(key), &out[0], &out[1])
    return (<uint8_t *>out)[:16]


# --- entries --------------------------------------------------------------------------------------

cdef void _shape(const uint8_t *data, uint32_t size, Shape *out) noexcept nogil:
    cdef const uint8_t *metadata
    cdef uint32_t metadata_size
    out.kind = WHOLE
    out.count = 1
    if (payload_metadata(data, size, &metadata, &metadata_size) != 0
            or peek_metadata(metadata, metadata_size, &out.peek) != 0):
        return
    out.payload = metadata + metadata_size
    out.payload_size = <uint32_t>(data + size - out.payload)
    if out.peek.marker_type >= 0:
        out.kind = MARKER
    elif not out.peek.is_batch or out.peek.is_encrypted:
        out.kind = SINGLE
    elif 1 <= out.peek.num_messages <= BATCH_MESSAGES_MAX:
        out.kind = BATCH
        out.count = <uint32_t>out.peek.num_messages


cdef inline void _shape_of(EntryBatch batch, int i, Shape *out) noexcept nogil:
    cdef entry_ref *ref = &batch.refs[i]
    if ref.length < batch.data_offset:
        out.kind = WHOLE
        out.count = 1
        return
    _shape(ref.data + batch.data_offset, ref.length - batch.data_offset, out)


# Return how many messages of a batch an earlier compaction has removed.
cdef inline uint32_t _compacted_out_count(const Shape *shape) noexcept nogil:
    cdef uint32_t left = shape.peek.compacted_indexes
    if shape.kind == BATCH and 0 < left <= shape.count:
        return shape.count - left
    return 0


# Advance to the next message of a batch. `at` is an offset; the metadata starts 4 bytes after the
# old one, the payload at `payload`. Returns 0, or -1 if the message exceeds data[0:size].
cdef int _next_batched(const uint8_t *data, uint32_t size, uint32_t *at, uint32_t *payload,
                       BatchedPeek *peek) noexcept nogil:
    cdef uint32_t length
    if size - at[0] < 4:
        return -1
    length = load_be32(data + at[0])
    if length > size - at[0] - 4:
        return -1
    payload[0] = at[0] + 4 + length
    if peek_batched(data + at[0] + 4, length, peek) != 0:
        return -1
    if <uint32_t>peek.payload_size > size - payload[0]:
        return -1
    at[0] = payload[0] + <uint32_t>peek.payload_size
    return 0


def compressed_payload(EntryBatch batch not None, int i):
    """Return (compression, uncompressed size, payload). Raise ValueError if malformed."""
    cdef Shape shape
    if i < 0 or i >= batch.count:
        raise IndexError(i)
    _shape_of(batch, i, &shape)
    if shape.kind in (WHOLE, MARKER):
        raise ValueError("entry %d is malformed" % batch.refs[i].entry_id)
    return (shape.peek.compression, shape.peek.uncompressed_size,
            shape.payload[:shape.payload_size])


cdef class LatestMessages:
    def __cinit__(self, bytes secret not None, bint retains_keyless=False,
                  uint64_t messages_max=<uint64_t>1 << 31):
        cdef const uint8_t *start = secret
        if len(secret) != 16:
            raise ValueError("a secret has 16 bytes, not %d" % len(secret))
        memcpy(self.secret, start, 16)
        self.retains_keyless = retains_keyless
        self.messages_max = messages_max
        self.last_ledger_id = self.last_entry_id = -1
        self.whole_from = UINT64_MAX

    def __dealloc__(self):
        cdef int i
        cdef Block *block
        cdef Block *following
        for i in range(PARTS):
            block = self.parts[i].first
            while block != NULL:
                following = block.next
                free(block)
                block = following
            free(self.parts[i].open)
            free(self.parts[i].spilled)
        free(self.bits)
        free(self.table)

    # --- scanning -----------------------------------------------------------------------------

    cdef int _reserve(self, uint64_t count) noexcept nogil:
        cdef uint64_t wanted = (self.messages + count + 7) // 8
        cdef uint64_t grown
        cdef void *moved
        if self.messages + count > self.messages_max:
            return TOO_MANY
        if wanted > self.bits_size:
            grown = max(wanted, self.bits_size + self.bits_size // 2, <uint64_t>4096)
            moved = realloc(self.bits, grown)
            if moved == NULL:
                return NO_MEMORY
            self.bits = <uint8_t *>moved
            memset(self.bits + self.bits_size, 0, grown - self.bits_size)
            self.bits_size = grown
        return 0

    cdef int _record(self, const uint8_t *key, uint32_t size, uint64_t message,
                     uint64_t flags) noexcept nogil:
        cdef KeyRecord *record
        cdef Part *part
        cdef uint64_t low, high
        _siphash(self.secret, key, size, &low, &high)
        part = &self.parts[low >> 56]
        if part.open == NULL:
            part.open = <Block *>malloc(sizeof(Block))
            if part.open == NULL:
                return NO_MEMORY
            part.open.next = NULL
            part.open_count = 0
        record = &part.open.records[part.open_count]
        record.low = low
        record.high = high
        record.message = message << NUMBER_SHIFT | flags
        self.has_live |= not flags & IS_TOMBSTONE
        part.open_count += 1
        if part.open_count == BLOCK_RECORDS:
            if part.last == NULL:
                part.first = part.open
            else:
                part.last.next = part.open
            part.last = part.open
            part.open = NULL
            self.blocks += 1
        return 0

    cdef int _scan_single(self, Shape *shape) noexcept nogil:
        cdef MetadataPeek *peek = &shape.peek
        cdef uint64_t flags = 0
        cdef uint64_t low, high
        cdef uint64_t size = peek.uncompressed_size if peek.has_uncompressed_size \
            else shape.payload_size
        if peek.partition_key == NULL:
            if self.retains_keyless:
                self._keep(self.messages)
            return 0
        if peek.num_chunks > 1:
            # All chunks of the latest message are retained. A chunked message counts once its last
            # chunk is scanned.
            low = 0
            if peek.uuid_size:
                _siphash(self.secret, peek.uuid, peek.uuid_size, &low, &high)
            flags = (low & TAG_MASK) or 4
            if peek.chunk_id != peek.num_chunks - 1:
                flags |= IS_PARTIAL
                self.has_partial = True
        elif peek.has_null_value or size == 0:
            flags = IS_TOMBSTONE
        return self._record(peek.partition_key, peek.partition_key_size, self.messages, flags)

    cdef int _scan_batch(self, Shape *shape, const uint8_t *data, uint32_t size) noexcept nogil:
        """Scan the messages of a batch. A malformed batch is retained as a whole."""
        cdef BatchedPeek peek
        cdef uint32_t at = 0
        cdef uint32_t payload, i, _i
        cdef uint32_t live = 0
        cdef uint64_t number
        cdef bint has_places = _compacted_out_count(shape) > 0
        cdef bint is_whole = data == NULL
        cdef int code
        if not is_whole:
            for _i in range(shape.count):
                if _next_batched(data, size, &at, &payload, &peek) != 0:
                    is_whole = True
                    break
                live += not peek.is_compacted_out
            if has_places and live != shape.peek.compacted_indexes:
                is_whole = True
        at = 0
        for i in range(shape.count):
            number = self.messages + i
            if is_whole:
                self._keep_whole(number)
                continue
            _next_batched(data, size, &at, &payload, &peek)
            if peek.is_compacted_out:
                if has_places:
                    self.bits[number >> 3] |= 1 << (number & 7)
            elif peek.partition_key == NULL:
                if self.retains_keyless:
                    self._keep(number)
            else:
                code = self._record(peek.partition_key, peek.partition_key_size, number,
                                    IS_TOMBSTONE if peek.has_null_value or peek.payload_size == 0
                                    else 0)
                if code != 0:
                    return code
        return 0

    cdef int _scan(self, EntryBatch batch, int *at) noexcept nogil:
        cdef Shape shape
        cdef int code
        while at[0] < batch.count:
            _shape_of(batch, at[0], &shape)
            self.has_live = False
            code = self._reserve(shape.count)
            if code != 0:
                return code
            if shape.kind == BATCH:
                if shape.peek.compression != 0:
                    return PACKED
                code = self._scan_batch(&shape, shape.payload, shape.payload_size)
            elif shape.kind == SINGLE:
                code = self._scan_single(&shape)
            elif shape.kind == WHOLE:
                self._keep_whole(self.messages)
            if code != 0:
                return code
            self._finish_entry(batch, at[0], &shape)
            at[0] += 1
        return 0

    cdef void _keep(self, uint64_t number) noexcept nogil:
        self.bits[number >> 3] |= 1 << (number & 7)
        self.has_live = True

    cdef void _keep_whole(self, uint64_t number) noexcept nogil:
        """Retain a message whose key is unknown. Later tombstones are retained too, as they may
        delete its key.
        """
        self.whole_from = min(self.whole_from, number)
        self._keep(number)

    cdef void _finish_entry(self, EntryBatch batch, int i, Shape *shape) noexcept nogil:
        self.messages += shape.count
        if self.has_live:
            self.last_ledger_id = batch.ledger_id
            self.last_entry_id = batch.refs[i].entry_id

    def scan(self, EntryBatch batch not None, int first):
        """Scan entries from `first` on. Return the index of a compressed batch that must be
        decompressed first, or the number of entries at the end. Raise MemoryError or
        TooManyMessages.
        """
        cdef int at = first
        cdef int code
        if first < 0:
            raise IndexError(first)
        with nogil:
            code = self._scan(batch, &at)
        self._check(code)
        return at

    def scan_unpacked(self, EntryBatch batch not None, int i, bytes unpacked):
        """Scan a compressed batch. unpacked is None if it cannot be decompressed; then it is
        retained.
        """
        cdef Shape shape
        cdef const uint8_t *data = NULL
        cdef uint32_t size = 0
        cdef int code
        if i < 0 or i >= batch.count:
            raise IndexError(i)
        if unpacked is not None:
            data = unpacked
            size = <uint32_t>len(unpacked)
        with nogil:
            _shape_of(batch, i, &shape)
            self.has_live = False
            code = self._reserve(shape.count)
            if code == 0:
                code = self._scan_batch(&shape, data, size)
                self._finish_entry(batch, i, &shape)
        self._check(code)

    cdef int _check(self, int code) except -1:
        if code == NO_MEMORY:
            raise MemoryError("no memory for the keys of a compaction")
        if code == TOO_MANY:
            raise TooManyMessages("there are more than %d messages" % self.messages_max)
        return 0

    @property
    def last_position(self):
        """Position of the last entry with a message that may be retained; -1:-1 if none."""
        return Position(self.last_ledger_id, self.last_entry_id)

    def spill(self, object file not None):
        """Write the full blocks to a file. Raise OSError on failure."""
        cdef int i
        cdef Part *part
        cdef Block *block
        cdef void *moved
        cdef const uint8_t *start
        cdef uint32_t grown
        for i in range(PARTS):
            part = &self.parts[i]
            while part.first != NULL:
                block = part.first
                if part.spilled_count == part.spilled_capacity:
                    grown = part.spilled_capacity * 2 if part.spilled_capacity else 64
                    moved = realloc(part.spilled, grown * sizeof(int64_t))
                    if moved == NULL:
                        raise MemoryError("no memory for the keys of a compaction")
                    part.spilled = <int64_t *>moved
                    part.spilled_capacity = grown
                start = <const uint8_t *>block.records
                _write_all(file.fileno(), start[:sizeof(block.records)], self.file_size)
                part.spilled[part.spilled_count] = <int64_t>self.file_size
                part.spilled_count += 1
                self.file_size += sizeof(block.records)
                part.first = block.next
                if part.first == NULL:
                    part.last = NULL
                free(block)
                self.blocks -= 1

    # --- resolving ----------------------------------------------------------------------------

    cdef KeyRecord *_slot(self, const KeyRecord *record) noexcept nogil:
        """Find the slot of a key: its own or a free one. Uses the other half of the hash than the
        part does.
        """
        cdef uint32_t mask = self.table_size - 1
        cdef uint32_t at = <uint32_t>record.high & mask
        cdef KeyRecord *slot = &self.table[at]
        # `message` of a used slot is never 0: numbers are stored plus one.
        while slot.message != 0 and (slot.low != record.low or slot.high != record.high):
            at = (at + 1) & mask
            slot = &self.table[at]
        return slot

    cdef int _grow(self) noexcept nogil:
        cdef KeyRecord *before = self.table
        cdef uint32_t size = self.table_size
        cdef uint32_t i
        self.table_size = size * 2 if size else TABLE_SIZE_MIN
        self.table = <KeyRecord *>calloc(self.table_size, sizeof(KeyRecord))
        if self.table == NULL:
            self.table = before
            self.table_size = size
            return NO_MEMORY
        for i in range(size):
            if before[i].message != 0:
                self._slot(&before[i])[0] = before[i]
        free(before)
        return 0

    cdef int _resolve(self, const KeyRecord *records, uint32_t count) noexcept nogil:
        """Enter records in scan order, so that later messages replace earlier ones."""
        cdef KeyRecord *slot
        cdef uint32_t i
        for i in range(count):
            if records[i].message & IS_PARTIAL:
                continue
            if self.table_used >= self.table_size // 4 * 3 and self._grow() != 0:
                return NO_MEMORY
            slot = self._slot(&records[i])
            if slot.message == 0:
                self.table_used += 1
            slot[0] = records[i]
            slot.message += <uint64_t>1 << NUMBER_SHIFT
        return 0

    cdef int _resolve_partial(self, const KeyRecord *records, uint32_t count) noexcept nogil:
        """Retain the other chunks of the latest message, and those of later messages that are still
        incomplete.
        """
        cdef KeyRecord *slot
        cdef uint64_t number
        cdef uint32_t i
        for i in range(count):
            if not records[i].message & IS_PARTIAL:
                continue
            number = records[i].message >> NUMBER_SHIFT
            if self.table_size != 0:
                slot = self._slot(&records[i])
                # The number of a slot is stored plus one; it is 0 in a free slot.
                if (number < slot.message >> NUMBER_SHIFT
                        and slot.message & TAG_MASK != records[i].message & TAG_MASK):
                    continue
            self.bits[number >> 3] |= 1 << (number & 7)
        return 0

    cdef int _blocks_of(self, Part *part, object file, bint partial) except -1:
        cdef uint32_t i
        cdef Block *block
        cdef const KeyRecord *records
        cdef const uint8_t *start
        cdef int code = 0
        for i in range(part.spilled_count):
            data = _read_all(file.fileno(), sizeof(KeyRecord) * BLOCK_RECORDS, part.spilled[i])
            start = data
            records = <const KeyRecord *>start
            with nogil:
                code = (self._resolve_partial(records, BLOCK_RECORDS) if partial
                        else self._resolve(records, BLOCK_RECORDS))
            self._check(code)
        with nogil:
            block = part.first
            while block != NULL and code == 0:
                code = (self._resolve_partial(block.records, BLOCK_RECORDS) if partial
                        else self._resolve(block.records, BLOCK_RECORDS))
                block = block.next
            if part.open != NULL and code == 0:
                code = (self._resolve_partial(part.open.records, part.open_count) if partial
                        else self._resolve(part.open.records, part.open_count))
        self._check(code)
        return 0

    def resolve(self, int number, object file):
        """Determine the latest message of each key of one part. Raise MemoryError or OSError."""
        cdef Part *part
        cdef KeyRecord *slot
        cdef Block *block
        cdef uint64_t message
        cdef uint32_t i
        if number < 0 or number >= PARTS:
            raise IndexError(number)
        part = &self.parts[number]
        self.table_used = 0
        if self.table != NULL:
            memset(self.table, 0, self.table_size * sizeof(KeyRecord))
        self._blocks_of(part, file, False)
        if self.has_partial:
            self._blocks_of(part, file, True)
        with nogil:
            for i in range(self.table_size):
                slot = &self.table[i]
                if slot.message == 0:
                    continue
                message = (slot.message >> NUMBER_SHIFT) - 1
                if not slot.message & IS_TOMBSTONE or message > self.whole_from:
                    self.bits[message >> 3] |= 1 << (message & 7)
            while part.first != NULL:
                block = part.first
                part.first = block.next
                free(block)
                self.blocks -= 1
            part.last = NULL
            free(part.open)
            part.open = NULL

    # --- selecting ----------------------------------------------------------------------------

    def begin_selection(self):
        """Start the selection at the first entry."""
        free(self.table)
        self.table = NULL
        self.table_size = 0
        self.selected = 0
        self.kept = 0

    cdef int _choose(self, EntryBatch batch, int *at, uint64_t bytes_max, uint8_t *chosen,
                     uint64_t *bytes) noexcept nogil:
        """Mark the entries to retain. Return 1 if it stops at a batch to be retained in part."""
        cdef Shape shape
        cdef uint32_t i, found
        cdef uint64_t number
        while at[0] < batch.count and bytes[0] < bytes_max:
            _shape_of(batch, at[0], &shape)
            if self.selected + shape.count > self.messages:
                return -1
            found = 0
            for i in range(shape.count):
                number = self.selected + i
                found += (self.bits[number >> 3] >> (number & 7)) & 1
            chosen[at[0]] = found == shape.count
            if chosen[at[0]]:
                bytes[0] += batch.refs[at[0]].length + HEADER_BYTES_MAX
            if found <= _compacted_out_count(&shape):
                chosen[at[0]] = 0
            elif found < shape.count:
                return 1
            self.kept += found - _compacted_out_count(&shape) if chosen[at[0]] else 0
            self.selected += shape.count
            at[0] += 1
        return 0

    def select(self, EntryBatch batch not None, int first, int partition, uint64_t bytes_max):
        """Return (run, index, partly): the records of the retained entries, about bytes_max bytes;
        the index where selection stopped; and whether that is a batch to be retained in part.
        """
        cdef int at = first
        cdef int i
        cdef int code
        cdef uint64_t bytes = 0
        cdef uint64_t filled = 0
        cdef uint32_t size
        cdef uint8_t *chosen
        cdef uint8_t *arena
        cdef EntryRun run
        if first < 0:
            raise IndexError(first)
        chosen = <uint8_t *>calloc(batch.count + 1, 1)
        if chosen == NULL:
            raise MemoryError("no memory for a run of a compaction")
        try:
            with nogil:
                code = self._choose(batch, &at, bytes_max, chosen, &bytes)
            if code < 0:
                raise ValueError("there are more messages than were scanned")
            if not bytes:
                return None, at, code == 1
            run = EntryRun()
            arena = run.copied = <uint8_t *>malloc(bytes)
            if arena == NULL:
                raise MemoryError("no memory for a run of a compaction")
            for i in range(first, at):
                if chosen[i]:
                    size = _put_record(arena + filled, batch.ledger_id, batch.refs[i].entry_id,
                                       partition, batch.refs[i].data + batch.data_offset,
                                       batch.refs[i].length - batch.data_offset)
                    run.append(0, 0, arena + filled, size, 0, 1)
                    filled += size
            with nogil:
                for i in range(<int>run.count):
                    run.items[i].crc = _api.crc32c(0, run.items[i].data, run.items[i].length)
            return (run if run.count else None), at, code == 1
        finally:
            free(chosen)

    cdef uint32_t _rebuild(self, const uint8_t *data, uint32_t size, uint32_t first, uint32_t end,
                           uint32_t *at, uint8_t *out, uint64_t *filled,
                           uint32_t *chosen) noexcept nogil:
        """Write messages of a batch or their compacted-out placeholders. Return the number of
        retained messages, or UINT32_MAX if the batch is malformed.
        """
        cdef BatchedPeek peek
        cdef uint32_t i, payload, begin
        cdef uint32_t found = 0
        cdef uint64_t number
        for i in range(first, end):
            begin = at[0]
            if _next_batched(data, size, at, &payload, &peek) != 0:
                return UINT32_MAX
            number = self.selected + i
            if (self.bits[number >> 3] >> (number & 7)) & 1 and not peek.is_compacted_out:
                memcpy(out + filled[0], data + begin, at[0] - begin)
                filled[0] += at[0] - begin
                chosen[found] = i
                found += 1
            else:
                memcpy(out + filled[0], _COMPACTED_OUT, COMPACTED_OUT_BYTES)
                filled[0] += COMPACTED_OUT_BYTES
        return found

    def rebuild(self, EntryBatch batch not None, int index, bytes unpacked):
        """Return the payload of a batch that is retained in part, and the indexes of its retained
        messages. The other messages are marked as compacted out. Selection continues with the next
        entry. unpacked has the decompressed messages of a compressed batch. Raise ValueError if the
        batch differs from the scanned one.
        """
        cdef Shape shape
        cdef const uint8_t *data
        cdef uint32_t size, i
        cdef uint32_t first = 0
        cdef uint32_t end, found
        cdef uint32_t at = 0
        cdef uint64_t filled = 0
        cdef uint32_t chosen[REBUILT_PER_SLICE]
        cdef uint8_t *out
        cdef list left = []
        if index < 0 or index >= batch.count:
            raise IndexError(index)
        _shape_of(batch, index, &shape)
        if unpacked is None:
            data, size = shape.payload, shape.payload_size
        else:
            data = unpacked
            size = <uint32_t>len(unpacked)
        if shape.kind != BATCH or self.selected + shape.count > self.messages:
            raise ValueError("the batch differs from the one that was scanned")
        # A placeholder has 8 bytes. Only messages of 6 bytes are smaller than that.
        out = <uint8_t *>malloc(size + <uint64_t>shape.count * COMPACTED_OUT_BYTES)
        if out == NULL:
            raise MemoryError("no memory for a batch")
        try:
            while first < shape.count:
                # Release the GIL between slices: a batch may have a million messages.
                end = min(first + REBUILT_PER_SLICE, shape.count)
                with nogil:
                    found = self._rebuild(data, size, first, end, &at, out, &filled, chosen)
                if found > end - first:
                    raise ValueError("the batch differs from the one that was scanned")
                for i in range(found):
                    left.append(chosen[i])
                first = end
            self.selected += shape.count
            self.kept += <uint64_t>len(left)
            return PyBytes_FromStringAndSize(<char *>out, <Py_ssize_t>filled), left
        finally:
            free(out)


cdef _write_all(int fd, bytes data, uint64_t offset):
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


cdef bytes _read_all(int fd, Py_ssize_t size, uint64_t offset):
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise OSError("a spill file of keys is shorter than what was written to it")
    return data


# --- records of a compacted ledger ----------------------------------------------------------------
#
#   0  4  size of the message id
#   4  n  protobuf MessageIdData: ledger, entry, and the partition if any
#   .. 4  size of the entry
#   .. m  the entry, as it was stored

cdef uint32_t _put_record(uint8_t *out, int64_t ledger_id, int64_t entry_id, int partition,
                          const uint8_t *data, uint32_t size) noexcept:
    cdef uint8_t *at = out + 4
    at = put_varint(put_varint(at, 1 << 3), <uint64_t>ledger_id)
    at = put_varint(put_varint(at, 2 << 3), <uint64_t>entry_id)
    if partition >= 0:
        at = put_varint(put_varint(at, 3 << 3), <uint64_t>partition)
    store_be32(out, <uint32_t>(at - out - 4))
    store_be32(at, size)
    memcpy(at + 4, data, size)
    return <uint32_t>(at + 4 - out) + size


def record(position not None, int partition, bytes entry not None):
    """Encode an entry as a compacted ledger stores it: together with its original message id."""
    cdef uint8_t head[HEADER_BYTES_MAX]
    cdef const uint8_t *start = entry
    cdef uint32_t size = _put_record(head, position[0], position[1], partition, start, 0)
    store_be32(head + size - 4, <uint32_t>len(entry))
    return head[:size] + entry


# Return the offset of the entry in a record; 0 if it is malformed.
cdef uint32_t _parse_record(const uint8_t *data, uint32_t size, int64_t *ledger_id,
                            int64_t *entry_id) noexcept:
    cdef uint32_t at = 4
    cdef uint32_t end
    cdef uint64_t key, value
    cdef int seen = 0
    if size < 8:
        return 0
    end = load_be32(data)
    if end > ID_BYTES_MAX or end > size - 8:
        return 0
    end += 4
    while at < end:
        if get_varint(data, end, &at, &key) != 0 or get_varint(data, end, &at, &value) != 0:
            return 0
        if key == 1 << 3:
            ledger_id[0] = <int64_t>value
            seen |= 1
        elif key == 2 << 3:
            entry_id[0] = <int64_t>value
            seen |= 2
        elif key & 7 == 2:
            if value > end - at:
                return 0
            at += <uint32_t>value
        elif key & 7 != 0:
            return 0
    if seen != 3 or ledger_id[0] < 0 or entry_id[0] < 0 or load_be32(data + end) != size - end - 4:
        return 0
    return end + 4


def wrapped_position(EntryBatch batch not None, int i):
    """Return the original position of an entry of a compacted ledger; None if the record is
    malformed.
    """
    cdef int64_t ledger_id = -1
    cdef int64_t entry_id = -1
    cdef entry_ref *ref
    if i < 0 or i >= batch.count:
        raise IndexError(i)
    ref = &batch.refs[i]
    if ref.length < batch.data_offset or not _parse_record(
            ref.data + batch.data_offset, ref.length - batch.data_offset, &ledger_id, &entry_id):
        return None
    return Position(ledger_id, entry_id)


def unwrap(EntryBatch batch not None, int first):
    """Return (entries, index): the entries of the records from `first` on under their original ids,
    as long as they belong to one ledger, and the index of the next record. The entries are None if
    the record at `first` is malformed.
    """
    cdef EntryBatch entries
    cdef entry_ref *ref
    cdef int64_t ledger_id = -1
    cdef int64_t entry_id = -1
    cdef uint32_t size, begin
    cdef int at = first
    if first < 0 or first >= batch.count:
        raise IndexError(first)
    entries = EntryBatch(-1, batch.count - first, batch)
    entries.data_offset = 0
    while at < batch.count:
        ref = &batch.refs[at]
        if ref.length < batch.data_offset:
            break
        size = ref.length - batch.data_offset
        begin = _parse_record(ref.data + batch.data_offset, size, &ledger_id, &entry_id)
        if not begin or (entries.count and ledger_id != entries.ledger_id):
            break
        entries.ledger_id = ledger_id
        entries.refs[entries.count].entry_id = entry_id
        entries.refs[entries.count].data = ref.data + batch.data_offset + begin
        entries.refs[entries.count].length = size - begin
        entries.refs[entries.count].from_disk = ref.from_disk
        entries.refs[entries.count].pin = NULL  # the batch that was read keeps it pinned
        entries.count += 1
        at += 1
    return (entries if entries.count else None), at
