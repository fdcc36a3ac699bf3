# Compaction: which message of each key is the latest, and runs of those entries that have any.
#
# Messages are numbered in the order in which they are scanned, those of a batch one by one. Of each
# message with a key a record of 24 bytes is kept: the key's hash and the message's number. Records
# lie in blocks by a part of the hash; full blocks may be spilled to a file. When all is scanned,
# one part after the other is brought into a table of its keys, and what is left is one bit for each
# message. So what has to be in memory is the bits, the records that are not spilled, and the keys
# of one part: a 256th of them.
#
# The hash is SipHash-2-4 of 128 bits with a secret of each compaction: nobody can make keys that
# have the same one, and of 10 million keys two have by chance once in 10^24 times.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.commands cimport MetadataPeek
from pyxbroker.entry cimport EntryBatch

cdef enum:
    PARTS = 256
    BLOCK_RECORDS = 512
    BATCH_MESSAGES_MAX = 1 << 20    # a batch that counts more is not looked into
    NUMBER_SHIFT = 24               # of a record's number, above its tag and flags
    IS_TOMBSTONE = 1
    IS_PARTIAL = 2                  # a chunk that is not the last one of its message
    TAG_MASK = 0xfffffc             # of a message in chunks: of the hash of its uuid; else 0

cdef struct KeyRecord:
    uint64_t low                    # the hash of the key
    uint64_t high
    uint64_t message                # number << NUMBER_SHIFT | tag | flags

cdef struct Block:
    Block *next
    KeyRecord records[BLOCK_RECORDS]

# The records of the keys whose hashes begin alike.
cdef struct Part:
    Block *first                    # full ones in memory, in order
    Block *last
    Block *open                     # being filled, or NULL
    uint32_t open_count
    uint32_t spilled_count
    uint32_t spilled_capacity
    int64_t *spilled                # offsets of blocks in the file, all before those in memory

cdef enum:
    WHOLE = 0                       # kept as it is: nobody can tell what is in it
    MARKER = 1                      # of the broker's own: dropped
    SINGLE = 2
    BATCH = 3

# What an entry is, by its metadata alone.
cdef struct Shape:
    int kind
    uint32_t count                  # messages that it is counted as
    MetadataPeek peek
    const uint8_t *payload
    uint32_t payload_size

cdef class LatestMessages:
    cdef uint64_t secret[2]
    cdef bint keeps_keyless         # messages without a key are kept, all of them
    cdef readonly uint64_t messages  # that were scanned, and so the number of the next one
    cdef uint64_t messages_max
    cdef uint8_t *bits              # by number: it is kept
    cdef uint64_t bits_size         # bytes
    cdef Part parts[PARTS]
    cdef readonly uint64_t blocks   # full ones that are in memory
    cdef uint64_t file_size
    cdef bint has_partial
    cdef uint64_t whole_from        # number of the first message of which nobody can tell the key
    cdef bint has_live              # the entry that is being scanned has something of use
    cdef int64_t last_ledger_id     # of the last such entry
    cdef int64_t last_entry_id
    cdef KeyRecord *table           # of the part that is being resolved
    cdef uint32_t table_size        # slots, a power of two
    cdef uint32_t table_used
    cdef uint64_t selected          # number of the next message, when runs are made
    cdef readonly uint64_t kept     # messages that were selected
    cdef int _check(self, int code) except -1
    cdef int _reserve(self, uint64_t count) noexcept nogil
    cdef int _record(self, const uint8_t *key, uint32_t size, uint64_t message,
                     uint64_t flags) noexcept nogil
    cdef int _scan_single(self, Shape *shape) noexcept nogil
    cdef int _scan_batch(self, Shape *shape, const uint8_t *data, uint32_t size) noexcept nogil
    cdef void _keep(self, uint64_t number) noexcept nogil
    cdef void _keep_whole(self, uint64_t number) noexcept nogil
    cdef void _scanned(self, EntryBatch batch, int i, Shape *shape) noexcept nogil
    cdef int _scan(self, EntryBatch batch, int *at) noexcept nogil
    cdef int _resolve(self, const KeyRecord *records, uint32_t count) noexcept nogil
    cdef int _resolve_partial(self, const KeyRecord *records, uint32_t count) noexcept nogil
    cdef int _grow(self) noexcept nogil
    cdef KeyRecord *_slot(self, const KeyRecord *record) noexcept nogil
    cdef int _choose(self, EntryBatch batch, int *at, uint64_t bytes_max, uint8_t *chosen,
                     uint64_t *bytes) noexcept nogil
    cdef uint32_t _rebuild(self, const uint8_t *data, uint32_t size, uint32_t first, uint32_t end,
                           uint32_t *at, uint8_t *out, uint64_t *filled,
                           uint32_t *chosen) noexcept nogil
    cdef int _blocks_of(self, Part *part, object file, bint partial) except -1
