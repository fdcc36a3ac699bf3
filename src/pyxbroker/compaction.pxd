# Topic compaction: find the latest message of each key, and build runs of the entries with such
# messages.
#
# Messages are numbered in scan order, those of a batch individually. For each message with a key, a
# record of 24 bytes is stored: the hash of the key and the number of the message. Records are
# grouped in blocks by a part of the hash. Full blocks may be spilled to a file. After the scan,
# each part in turn is loaded into a table of its keys. The result is one bit for each message.
# Memory is needed for the bits, the records that are not spilled, and the keys of one part, a 256th
# of all.
#
# The hash is SipHash-2-4 of 128 bits with a secret of its own for each compaction, so that clients
# cannot construct collisions. Two of 10 million keys collide by chance once in 10^24 compactions.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.commands cimport MetadataPeek
from pyxbroker.entry cimport EntryBatch

cdef enum:
    PARTS = 256
    BLOCK_RECORDS = 512
    BATCH_MESSAGES_MAX = 1 << 20    # a batch with more messages is retained without scanning it
    NUMBER_SHIFT = 24               # bits of a record's `message` below the number: tag and flags
    IS_TOMBSTONE = 1
    IS_PARTIAL = 2                  # a chunk other than the last one of its message
    TAG_MASK = 0xfffffc             # tag of a chunked message: hash of its uuid; 0 for others

cdef struct KeyRecord:
    uint64_t low                    # the hash of the key
    uint64_t high
    uint64_t message                # number << NUMBER_SHIFT | tag | flags

cdef struct Block:
    Block *next
    KeyRecord records[BLOCK_RECORDS]

# The records of the keys whose hashes start with the same byte.
cdef struct Part:
    Block *first                    # full blocks in memory, in order
    Block *last
    Block *open                     # the block being filled, or NULL
    uint32_t open_count
    uint32_t spilled_count
    uint32_t spilled_capacity
    int64_t *spilled                # file offsets of spilled blocks, which precede those in memory

cdef enum:
    WHOLE = 0                       # retained as it is: its messages cannot be decoded
    MARKER = 1                      # a marker of the broker: dropped
    SINGLE = 2
    BATCH = 3

# The kind of an entry, determined from its metadata alone.
cdef struct Shape:
    int kind
    uint32_t count                  # number of messages it counts for
    MetadataPeek peek
    const uint8_t *payload
    uint32_t payload_size

cdef class LatestMessages:
    cdef uint64_t secret[2]
    cdef bint retains_keyless       # all messages without a key are retained
    cdef readonly uint64_t messages  # scanned so far; also the number of the next message
    cdef uint64_t messages_max
    cdef uint8_t *bits              # by message number: 1 if it is retained
    cdef uint64_t bits_size         # bytes
    cdef Part parts[PARTS]
    cdef readonly uint64_t blocks   # full blocks in memory
    cdef uint64_t file_size
    cdef bint has_partial
    cdef uint64_t whole_from        # number of the first message whose key is unknown
    cdef bint has_live              # the current entry has a message that may be retained
    cdef int64_t last_ledger_id     # position of the last such entry
    cdef int64_t last_entry_id
    cdef KeyRecord *table           # of the part being resolved
    cdef uint32_t table_size        # slots, a power of two
    cdef uint32_t table_used
    cdef uint64_t selected          # number of the next message to select
    cdef readonly uint64_t kept     # messages selected so far
    cdef int _check(self, int code) except -1
    cdef int _reserve(self, uint64_t count) noexcept nogil
    cdef int _record(self, const uint8_t *key, uint32_t size, uint64_t message,
                     uint64_t flags) noexcept nogil
    cdef int _scan_single(self, Shape *shape) noexcept nogil
    cdef int _scan_batch(self, Shape *shape, const uint8_t *data, uint32_t size) noexcept nogil
    cdef void _keep(self, uint64_t number) noexcept nogil
    cdef void _keep_whole(self, uint64_t number) noexcept nogil
    cdef void _finish_entry(self, EntryBatch batch, int i, Shape *shape) noexcept nogil
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
