# Runs: entries of one producer on their way to disk, entries read for a dispatcher, and the
# positions of one ACK. Each is one Python object for many messages.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.native cimport digest, entry_ref

# The digest that packages and checks the entries of a ledger (digest.h).
cdef class Digest:
    cdef digest spec
    cdef bytes password
    cdef bytes _master_key          # None until it is asked for

cdef enum:
    BROKER_METADATA_BYTES_MAX = 28  # broker entry metadata before a client's payload

    ITEM_CHUNK = 1                  # kind of a RunItem: a chunk of a message, possibly the last
    # kind of a RunItem: its sequence id does not count for deduplication
    ITEM_UNCOUNTED = 2

cdef struct RunItem:
    uint64_t sequence_id
    uint64_t highest_sequence_id
    const uint8_t *data             # the payload section; valid until the bookies have copied it
    uint32_t length                 # bytes of data
    uint32_t crc                    # CRC32C of data
    int32_t num_messages
    int32_t kind                    # 0: a message or a batch; or ITEM_...

# The add requests of a run as bookies receive them: the frames of its entries, in order. All
# connections to bookies send from this memory, which holds the run's data as well.
cdef class AddFrames:
    cdef uint8_t *data
    cdef uint64_t size
    cdef uint32_t prefix            # bytes of a frame before the data of its entry
    cdef uint32_t longest           # bytes of the longest frame, without its length field
    # What they were built for; the last add confirmed may be an older one.
    cdef Digest digest
    cdef uint32_t flags
    cdef int64_t ledger_id
    cdef int64_t first_entry_id
    cdef int64_t length

# Entries of one producer from one read of its socket, in order.
cdef class EntryRun:
    cdef RunItem *items
    cdef readonly uint32_t count
    cdef uint32_t capacity
    cdef readonly uint64_t bytes    # of all data
    cdef readonly uint64_t broker_metadata_bytes  # of them, broker entry metadata
    cdef readonly uint64_t messages
    cdef public object owner        # notified by on_run_added(run) or on_run_failed(run, error)
    cdef public int64_t ledger_id   # set when appended to a ledger
    cdef public int64_t first_entry_id
    cdef int64_t started_ns         # when its first entry was read (turn_now_ns)
    cdef uint8_t *copied            # the run's own copy of the data, if it had to wait
    cdef object data_owner          # Python object that owns the data of a run created from bytes
    cdef AddFrames frames           # None, or the owner of the data
    # [(index, most bits, least bits)] of the SENDs of transactions; None: no such SENDs
    cdef readonly list transactions
    cdef list rebuilt               # bytes objects that own the data of some entries; or None
    cdef int append(self, uint64_t sequence_id, uint64_t highest_sequence_id, const uint8_t *data,
                    uint32_t length, uint32_t crc, int32_t num_messages) except -1
    # Keep the owner of the last entry's data as long as the run needs it.
    cdef int keep(self, bytes owner) except -1
    # Note that the last entry belongs to a transaction.
    cdef int note_transaction(self, uint64_t most, uint64_t least) except -1

# Consecutive entries read from one ledger. They are pinned while the object exists.
cdef class EntryBatch:
    cdef entry_ref *refs
    cdef readonly int count
    cdef int capacity
    cdef readonly int64_t ledger_id
    cdef uint32_t data_offset       # where the data starts after the packaging
    cdef bint is_foreign            # from another process: no digest of it was checked yet
    cdef object reader              # keeps the storage open while its entries are in use
    # ids of aborted transactions, whose entries clients never receive; None: no such ids
    cdef public object aborted

cdef struct AckItem:
    int64_t ledger_id
    int64_t entry_id
    int32_t batch_index             # -1: none
    int32_t batch_size
    int32_t left                    # unacknowledged messages of the batch; 0: none
    uint32_t first_word             # index of its ack set in the run's words
    # length of the ack set without trailing zero words; a set bit is unacknowledged
    uint32_t word_count

# The positions of one ACK command.
cdef class AckRun:
    cdef AckItem *items
    cdef readonly int count
    cdef int capacity
    cdef readonly int partial       # items with unacknowledged messages
    cdef uint64_t *words            # words of all ack sets
    cdef uint32_t words_count
    cdef uint32_t words_capacity
    # Append an item and its ack set, and fill in left, first_word and word_count.
    cdef int append(self, AckItem *item, const int64_t *words, uint32_t count) except -1
    cdef int _append_words(self, const int64_t *words, uint32_t count) except -1
