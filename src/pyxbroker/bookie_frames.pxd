# Frames of BookKeeper's v2 protocol, as a client of bookies builds and parses them
# (BookieProtocol, BookieProtoEncoding). Integers are big-endian.
#
#   request   length i32, then: header i32 (version << 24 | operation << 16 | flags), and
#     ADD         master key 20 B, the packaged entry (digest.h)
#     READ        ledger id i64, entry id i64 (-1: the last entry), with FENCING master key 20 B
#     BATCH_READ  ledger id i64, entry id i64, request id i64, entries i32, bytes i64, with FENCING
#                 master key 20 B
#   answer    length i32, then: header i32, code i32, ids of the request (2 x i64), and
#     ADD         nothing
#     READ        with code 0 the packaged entry
#     BATCH_READ  request id i64; with code 0 for each entry: size i32, the packaged entry
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.entry cimport AddFrames, Digest, EntryRun

cdef enum:
    BOOKIE_ADD = 1
    BOOKIE_READ = 2
    BOOKIE_BATCH_READ = 7

    BOOKIE_FENCING = 1              # flags of a request
    BOOKIE_RECOVERY_ADD = 2
    BOOKIE_HIGH_PRIORITY = 4

    MASTER_KEY_BYTES = 20
    ADD_PREFIX_BYTES = 28           # of an add before the packaged entry
    READ_BYTES_MAX = 68             # of a request to read
    ENTRY_BYTES_MIN = 32            # of a packaged entry

    # Codes and flags of ledger/bookie.py.
    NO_LEDGER = -2
    FAILED = -5
    BUSY = -11
    UNAUTHORIZED = -13
    REFUSED = -22
    READ_ONLY = -30
    NO_ENTRY = -61
    DAMAGED = -74
    DISCONNECTED = -107
    TIMED_OUT = -110
    FENCED = -116
    ADD_RECOVERY = 1
    ADD_HIGH_PRIORITY = 0x100

    # Codes of next_answer().
    ANSWER_INCOMPLETE = 0
    ANSWER_TOO_LARGE = -1
    ANSWER_MALFORMED = -2

cdef struct Answer:
    int operation                   # BOOKIE_...
    int code                        # 0, or a code of ledger/bookie.py
    int64_t ledger_id
    int64_t entry_id
    int64_t request_id              # of a batch read
    const uint8_t *entries          # the entry, or the sizes and entries of a batch read
    uint32_t size                   # bytes of entries

# Return the frames that add a run to a bookie. They are built once and kept in the run, whose data
# then lies within them. The run's data may be released afterwards.
cdef AddFrames package_run(EntryRun run, Digest digest, int64_t last_add_confirmed,
                           int64_t length, uint32_t flags)

# Build a request to read. key is 20 bytes with FENCING, else NULL. Return its size.
cdef uint32_t build_read(uint8_t *out, uint32_t flags, int64_t ledger_id, int64_t entry_id,
                         const uint8_t *key) noexcept nogil
cdef uint32_t build_batch_read(uint8_t *out, uint32_t flags, int64_t ledger_id, int64_t entry_id,
                               int64_t request_id, uint32_t count, int64_t bytes_max,
                               const uint8_t *key) noexcept nogil

# Parse the answer at the start of data. Return the bytes of its frame, or ANSWER_...
cdef int64_t next_answer(const uint8_t *data, uint64_t size, uint32_t frame_bytes_max,
                         Answer *out) noexcept nogil
